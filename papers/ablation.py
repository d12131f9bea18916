"""The BLEU that a model loses without one of its heads (Michel, Levy and Neubig 2019, "Are sixteen
heads really better than one?", §3): one head at a time is masked, and nothing is trained again.
Heads that say the same cost little."""
import contextlib
import statistics

from tabulate import tabulate
from tqdm import tqdm

from nmt.evaluate import corpus_bleu
from papers import measure


@contextlib.contextmanager
def without_head(attention, head: int):
    """A block in which O^h of one head (from 0) is 0 when it reaches the aggregation. With routing
    this head still casts votes, those of f_h(0)."""
    def mask(module, inputs):
        O = inputs[0].clone()                                        # [B, H, L_q, d_k]
        O[:, head] = 0
        return (O, *inputs[1:])

    hook = attention.aggregation.register_forward_pre_hook(mask)
    try:
        yield
    finally:
        hook.remove()


def head_costs(run: measure.Run, beam: int | None = None) -> dict:
    """BLEU of the validation set with all heads minus BLEU without one: {"bleu": with all, "cost":
    {component: [layers][H]}, "mean": of all costs, "beam", "signature"}."""
    pairs = run.valid
    beam = beam or run.config["beam"]

    def score() -> tuple[float, str]:
        lines = measure.translate(run, pairs.source, beam)
        return corpus_bleu(lines, pairs.target, run.languages[1], run.config["lowercase"])

    whole, signature = score()
    costs = {}
    attentions = measure.attentions(run.model)
    total = sum(attention.heads for attention in attentions.values())
    with tqdm(total=total, desc=f"{run.name}, heads left out", unit="head", disable=None) as bar:
        for place, attention in attentions.items():
            layer = []
            for head in range(attention.heads):
                with without_head(attention, head):
                    layer.append(whole - score()[0])
                bar.update()
            costs.setdefault(place.partition(":")[0], []).append(layer)
    every = [cost for layers in costs.values() for layer in layers for cost in layer]
    return {"bleu": whole, "cost": costs, "mean": statistics.fmean(every), "beam": beam,
            "signature": signature}


def cost_table(runs: dict) -> str:
    """The costs as text, by model, component and layer, the runs of a model together; runs: {run:
    the result of `head_costs` and "label": its model}."""
    models = {}
    for result in runs.values():
        models.setdefault(result["label"], []).append(result)
    depth = max(len(layers) for x in runs.values() for layers in x["cost"].values())
    rows = []
    for label, results in models.items():
        bleu = statistics.fmean(x["bleu"] for x in results)
        name = f"{label} ({len(results)}), BLEU {bleu:.2f}"
        every = []
        for component in results[0]["cost"]:
            # the costs of the heads of all runs, by layer
            layers = [sum(heads, []) for heads in zip(*(x["cost"][component] for x in results))]
            means = [f"{statistics.fmean(layer):.2f}" for layer in layers]
            heads = sum(layers, [])
            rows.append([name, component, *means, *[""] * (depth - len(means)), *summary(heads)])
            every += heads
            name = ""
        rows.append(["", "all", *[""] * depth, *summary(every)])
    x = next(iter(runs.values()))
    header = ["", "", *(f"layer {i}" for i in range(1, depth + 1)), "mean", "least", "most"]
    sides = ["left", "left", *["right"] * (depth + 3)]
    return (f"BLEU lost without a head (Michel et al. 2019), means over heads (and runs);\n"
            f"validation set, beam {x['beam']}, {x['signature']}\n\n"
            + tabulate(rows, header, "plain", colalign=sides, disable_numparse=True))


def summary(costs: list[float]) -> list[str]:
    """The mean, the least and the most of the heads' costs."""
    return [f"{x:.2f}" for x in (statistics.fmean(costs), min(costs), max(costs))]
