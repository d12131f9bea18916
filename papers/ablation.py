"""What every head is worth: the BLEU that a model loses without it.

Michel, Levy and Neubig 2019, "Are sixteen heads really better than one?", section 3: one head at a
time is masked in a trained model, nothing is trained anew. Heads that say the same twice cost
little.
"""
import contextlib
import statistics

from tqdm import tqdm

from nmt.evaluate import corpus_bleu
from nmt.progress import aligned
from nmt.search import translate_lines
from papers import measure


@contextlib.contextmanager
def without_head(attention, head: int):
    """A block in which O^h of one head (from 0) is 0 when it reaches the aggregation.

    Behind a routing a head that is 0 still casts votes, those of f_h(0).
    """
    def mask(module, inputs):
        O = inputs[0].clone()                                        # [B, H, L_q, d_k]
        O[:, head] = 0
        return (O, *inputs[1:])

    hook = attention.aggregation.register_forward_pre_hook(mask)
    try:
        yield
    finally:
        hook.remove()


def costs(run: measure.Run, beam: int | None = None) -> dict:
    """BLEU of the validation set with all heads less that without one: {"bleu": with all, "cost":
    {component: [layers][H]}, "mean": of all costs, "beam", "signature"}. Positive where the head is
    of use. Case and length penalty as in the run's own test."""
    pairs = run.corpora.valid
    beam = beam or run.settings.get("beam", 4)
    lenpen = run.settings.get("lenpen", 0.6)
    lowercase = bool(run.settings.get("lowercase"))

    def score() -> tuple[float, str]:
        lines = translate_lines(run.model, run.tokenizer, pairs.source, beam=beam, lenpen=lenpen)
        return corpus_bleu(lines, pairs.target, lowercase)

    whole, signature = score()
    found = {}
    attentions = measure.attentions(run.model)
    total = sum(attention.heads for attention in attentions.values())
    with tqdm(total=total, desc=f"{run.name}, heads left out", unit="head", disable=None) as bar:
        for place, attention in attentions.items():
            component = place.partition(":")[0]
            layer = []
            for head in range(attention.heads):
                with without_head(attention, head):
                    layer.append(whole - score()[0])
                bar.update()
            found.setdefault(component, []).append(layer)
    every = [cost for layers in found.values() for layer in layers for cost in layer]
    return {"bleu": whole, "cost": found, "mean": statistics.fmean(every), "beam": beam,
            "signature": signature}


def cost_table(found: dict) -> str:
    """What heads cost as text, by model, component and layer, the runs of a model together.

    found: {run: {"label": the model, ... what `costs` gives}}.
    """
    models = {}                         # label -> its runs
    for one in found.values():
        models.setdefault(one["label"], []).append(one)
    depth = max(len(layers) for one in found.values() for layers in one["cost"].values())
    cells = []
    for label, runs in models.items():
        name = label if len(runs) == 1 else f"{label} ({len(runs)} runs)"
        name = f"{name}, BLEU {statistics.fmean(one['bleu'] for one in runs):.2f}"
        every = []
        for component in runs[0]["cost"]:
            layers = [[] for _ in range(depth)]
            for one in runs:
                for layer, heads in zip(layers, one["cost"][component]):
                    layer += heads
            heads = sum(layers, [])
            means = [f"{statistics.fmean(layer):.2f}" if layer else "" for layer in layers]
            cells.append([name, component, *means, *summary(heads)])
            every += heads
            name = ""
        cells.append(["", "all", *[""] * depth, *summary(every)])
    one = next(iter(found.values()))
    header = ["", "", *(f"layer {i}" for i in range(1, depth + 1)), "mean", "least", "most"]
    return (f"BLEU that a head costs that is left out (Michel et al. 2019), means over heads;\n"
            f"validation set, beam {one['beam']}, {one['signature']}\n\n"
            + aligned(header, cells, words=2))


def summary(costs: list[float]) -> list[str]:
    """The mean, the least and the most of the heads' costs."""
    return [f"{x:.2f}" for x in (statistics.fmean(costs), min(costs), max(costs))]
