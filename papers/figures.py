"""Figures of trained runs as PNG, from the numbers that papers/measure.py returns."""
import math
import textwrap

from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure  # needs no backend, which a notebook may have chosen

from tools.figure_text import literal_text, optional_figure

LOOK = literal_text({"font.size": 8, "axes.titlesize": 9, "axes.spines.top": False,
                     "axes.spines.right": False, "savefig.dpi": 150})
WIDTH = 8.0                     # inches: a page
LABELS = 1.8                    # inches of the width for labels and color bar beside heat maps
TOKEN = 0.115                   # inches of an axis for a token in readable letters
MARKERS = "os^Dv<>Pp*"


def label_tokens(axis, tokens: list[str], inches: float, **options) -> None:
    """Writes tokens at the ticks of an axis of this length, in letters that fit between two
    ticks."""
    size = min(8.0, 0.8 * 72 * inches / len(tokens))     # a point is 1/72 inch
    axis.set_ticks(range(len(tokens)), tokens, fontsize=size, **options)
    axis.set_tick_params(length=0)


# ---- Heads as points: Li 2021 Fig. 3

@optional_figure("heads.png")
@LOOK
def draw_heads(runs: list[str], points, path):
    """Scatter plot of the heads' t-SNE, with a color per run. points: [runs][H][2], from vectors
    that are averaged over words and layers as in the paper. Returns the path."""
    figure = Figure(figsize=(WIDTH, 4.4 + 0.2 * len(runs)), layout="constrained")
    ax = figure.subplots()
    ax.set(title="t-SNE of the heads' outputs, mean over words and layers; numbers: heads",
           xticks=[], yticks=[])
    ax.set_aspect("equal", "datalim")
    for r, name in enumerate(runs):
        # matplotlib's legend leaves out labels that start with "_", hence the blank
        ax.scatter(*zip(*points[r]), s=60, color=f"C{r}", marker=MARKERS[r % len(MARKERS)],
                   label=f" {name}")
        for head, point in enumerate(points[r], 1):
            ax.annotate(head, point, (6, 4), textcoords="offset points")
    figure.legend(loc="outside lower center", frameon=False)
    figure.savefig(path)
    return path


# ---- Attention: Duan 2020 Fig. 5

@optional_figure("attention.png")
@LOOK
def draw_attention(maps: dict, title: str, query: str, key: str, path):
    """Heat maps of A^h for one sentence: a panel per head, queries at the left, keys below. maps:
    {run: result of measure.attention_map}; query, key: what the tokens of these axes are. The shade
    grows with the square root of the weight, so that weak attention is visible. Returns the path.
    """
    width, columns = page_layout(max(len(x["keys"]) for x in maps.values()))
    columns = min(columns, max(len(x["weights"]) for x in maps.values()))
    highest = max(weight for x in maps.values() for head in x["weights"] for row in head
                  for weight in row)
    norm = PowerNorm(0.5, 0, highest)
    heights = []                                         # a run's, in inches
    for x in maps.values():
        keys = 0.7 + 0.07 * max(map(len, x["keys"]))     # with the title of the panel below
        rows = math.ceil(len(x["weights"]) / columns)
        heights.append(0.7 + rows * (panel_height(x["queries"]) + keys))
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(maps), 1, squeeze=False, height_ratios=heights)
    for part, (name, x) in zip(parts.flat, maps.items()):
        part.suptitle(f"{textwrap.fill(name, 60)}\n{title}")
        part.supxlabel(f"key: {key}")
        part.supylabel(f"query: {query}")
        draw_maps(part, x, columns, (width - LABELS) / columns, norm)
    figure.savefig(path)
    return path


def page_layout(keys: int) -> tuple[float, int]:
    """The width of the figure, in inches, and its panels side by side, for a number of keys. The
    figure is narrow where two panels have room, so that a phone shows readable letters."""
    for width in (0.7 * WIDTH, WIDTH):
        if 2 * keys * TOKEN <= width - LABELS:
            return width, 2
    return WIDTH, 1


def panel_height(queries: list[str]) -> float:
    """The height of a panel in inches."""
    return TOKEN * min(max(len(queries), 10), 80)


def draw_maps(part, x: dict, columns: int, width: float, norm: PowerNorm) -> None:
    """The panels of one run in its part of the figure; width: of a panel, in inches."""
    rows = math.ceil(len(x["weights"]) / columns)
    axes = part.subplots(rows, columns, squeeze=False)
    for ax in axes.flat[len(x["weights"]):]:
        ax.set_visible(False)
    for h, (ax, weights) in enumerate(zip(axes.flat, x["weights"])):
        image = ax.imshow(weights, cmap="Blues", norm=norm, aspect="auto")
        ax.set_title(f"head {h + 1}", fontsize=8)
        queries = x["queries"] if h % columns == 0 else [""]
        label_tokens(ax.xaxis, x["keys"], width, rotation=90)
        label_tokens(ax.yaxis, queries, panel_height(queries))
    part.colorbar(image, ax=axes, shrink=0.5, label="attention weight (square-root scale)")


# ---- BLEU by source length: Gu 2019 Fig. 3

def bin_label(x: dict) -> str:
    """The label of a bin of source lengths, {"low", "high"}."""
    return f"{x['low']}-{x['high']}" if x["high"] else f"{x['low']}+"


@optional_figure("length.png")
@LOOK
def draw_lengths(runs: dict, path):
    """Line plot of BLEU by source length, with a line per run, 95 % intervals as bars, and the
    number of sentences below each bin. runs: {run: result of measure.bleu_by_length}. Returns the
    path."""
    counts = {}
    for result in runs.values():
        for x in result["bins"]:
            counts[x["low"], bin_label(x)] = x["count"]
    order = sorted(counts)
    figure = Figure(figsize=(WIDTH, 3.6 + 0.2 * len(runs)), layout="constrained")
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
    figure.legend(loc="outside lower center", frameon=False)
    figure.savefig(path)
    return path
