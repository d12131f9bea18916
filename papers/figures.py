"""Figures of trained runs as PNG, from the numbers that papers/measure.py returns."""
import math

from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure  # needs no backend, which a notebook may have chosen

from tools.figure_text import literal_text, optional_figure

LOOK = literal_text({"font.size": 8, "axes.titlesize": 9, "axes.spines.top": False,
                     "axes.spines.right": False, "savefig.dpi": 150})
WIDTH = 8.0                     # inches: a page
MARKERS = "os^Dv<>Pp*"


def label_tokens(axis, tokens: list[str], **options) -> None:
    """Writes tokens at the ticks of an axis, in smaller letters if there are many."""
    size = min(8.0, 200 / len(tokens))
    axis.set_ticks(range(len(tokens)), tokens, fontsize=size, **options)
    axis.set_tick_params(length=0)


# ---- Heads as points: Li 2021 Fig. 3

@optional_figure("heads.png")
@LOOK
def draw_heads(runs: list[str], points, path) -> None:
    """Scatter plot of the heads' t-SNE, with a colour per run. points: [runs][H][2], from vectors
    that are averaged over words and layers as in the paper."""
    figure = Figure(figsize=(WIDTH / 2, 4.4), layout="constrained")
    ax = figure.subplots()
    ax.set(title="t-SNE of the heads' outputs, mean over words\nand layers; numbers: heads",
           xticks=[], yticks=[])
    for r, name in enumerate(runs):
        # matplotlib's legend leaves out labels that start with "_", hence the blank
        ax.scatter(*zip(*points[r]), s=60, color=f"C{r}", marker=MARKERS[r % len(MARKERS)],
                   label=f" {name}")
        for head, point in enumerate(points[r], 1):
            ax.annotate(f" {head}", point)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)


# ---- Attention: Duan 2020 Fig. 5

@optional_figure("attention.png")
@LOOK
def draw_attention(maps: dict, title: str, path) -> None:
    """Heat maps of A^h for one sentence: a panel per head, queries at the left, keys below. maps:
    {run: result of measure.attention_map}. The shade grows with the square root of the weight, so
    that weak attention is visible."""
    H = max(len(x["weights"]) for x in maps.values())
    columns = min(H, 4)
    rows = math.ceil(H / columns)
    highest = max(weight for x in maps.values() for head in x["weights"] for row in head
                  for weight in row)
    norm = PowerNorm(0.5, 0, highest)
    size = WIDTH * max(1, columns / 3), 0.5 + 2.4 * rows * len(maps)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(maps) * rows, columns, squeeze=False)
    figure.suptitle(title)
    for ax in axes.flat:
        ax.set_visible(False)
    for r, (name, x) in enumerate(maps.items()):
        for h, weights in enumerate(x["weights"]):
            ax = axes[r * rows + h // columns][h % columns]
            ax.set_visible(True)
            image = ax.imshow(weights, cmap="Blues", norm=norm, aspect="auto")
            ax.set_title(f"head {h + 1}, entropy {x['entropy'][h]:.2f}", fontsize=8)
            ax.set_xlabel("key")
            label_tokens(ax.xaxis, x["keys"], rotation=90)
            label_tokens(ax.yaxis, x["queries"] if h % columns == 0 else [""])
        axes[r * rows][0].set_ylabel(f"{name}\nquery")
    figure.colorbar(image, ax=axes, shrink=0.5, label="attention weight")
    figure.savefig(path)


# ---- BLEU by source length: Gu 2019 Fig. 3

def bin_label(x: dict) -> str:
    """The label of a bin of source lengths, {"low", "high"}."""
    return f"{x['low']}-{x['high']}" if x["high"] else f"{x['low']}+"


@optional_figure("length.png")
@LOOK
def draw_lengths(runs: dict, path) -> None:
    """Line plot of BLEU by source length, with a line per run, 95 % intervals as bars, and the
    number of sentences below each bin. runs: {run: result of measure.bleu_by_length}."""
    counts = {}
    for result in runs.values():
        for x in result["bins"]:
            counts[x["low"], bin_label(x)] = x["count"]
    order = sorted(counts)
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    ax = figure.subplots()
    for i, (name, result) in enumerate(runs.items()):
        aside = 0.08 * (i - (len(runs) - 1) / 2)         # so that the bars do not cover each other
        places = [order.index((x["low"], bin_label(x))) + aside for x in result["bins"]]
        values = [x["bleu"] for x in result["bins"]]
        below = [max(0.0, x["bleu"] - x["interval"][0]) for x in result["bins"]]
        above = [max(0.0, x["interval"][1] - x["bleu"]) for x in result["bins"]]
        ax.errorbar(places, values, [below, above], capsize=2, elinewidth=0.8,
                    marker=MARKERS[i % len(MARKERS)], label=f" {name}")
    ax.set_xticks(range(len(order)), [f"{label}\n({counts[low, label]})" for low, label in order])
    ax.set(xlabel="source length (number of sentences)", ylabel="BLEU",
           title="BLEU by source length, 95 % intervals (bootstrap over the sentences)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)
