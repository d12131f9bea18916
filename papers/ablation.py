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


def head_costs(run: measure.TrainedRun, beam: int | None = None) -> dict:
    """BLEU of the validation set with all heads minus BLEU without one: {"bleu": with all, "cost":
    {component: [layers][H]}, "mean": of all costs, "beam", "signature"}."""
    pairs = run.valid
    beam = beam or run.config["beam"]

    def score() -> tuple[float, str]:
        lines = measure.translate(run, pairs.source, beam)
        return corpus_bleu(lines, pairs.target, run.config["languages"][1], run.config["lowercase"])

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
    """The costs as text by run, component and layer; runs: {name: the result of `head_costs`}."""
    rows = []
    for name, x in runs.items():
        for component, layers in x["cost"].items():
            heads = sum(layers, [])
            means = [statistics.fmean(layer) for layer in layers]
            rows.append([name, component, statistics.fmean(heads), *means])
        rows.append([name, "all", x["mean"]])
    depth = max(map(len, rows)) - 3
    searches = dict.fromkeys(f"beam {x['beam']}, {x['signature']}" for x in runs.values())
    return ("BLEU lost without a head (Michel et al. 2019), means over heads; validation set,\n"
            f"{'; '.join(searches)}\n"
            + tabulate(rows, ["", "", "mean", *(f"layer {i + 1}" for i in range(depth))], "plain",
                       floatfmt=".2f"))
