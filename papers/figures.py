"""Figures of trained runs: heads as points, attention, BLEU by length.

After Li 2021 Fig. 3 (`draw_heads`), Duan 2020 Fig. 5 (`draw_attention`) and Gu 2019 Fig. 3
(`draw_lengths`). Every function takes numbers as analyze.py has them, and the path of a PNG.
"""
import math
from contextlib import contextmanager

import matplotlib
from matplotlib import pyplot
from matplotlib.colors import PowerNorm

from nmt.files import atomic_write

matplotlib.use("Agg")           # no window

WIDTH = 8.0                     # inches: a page
MARKERS = "os^Dv<>Pp*"
STYLE = {"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8, "xtick.labelsize": 8,
         "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False,
         "figure.titlesize": 10, "figure.constrained_layout.use": True}


@contextmanager
def subplots(path, rows: int, columns: int, height: float, title: str = "", width: float = WIDTH,
             **options):
    """A block that draws a figure: yields (figure, axes [rows][columns]), then writes it."""
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(rows, columns, squeeze=False, figsize=(width, height),
                                       **options)
        figure.suptitle(plain(title))
        yield figure, axes
        atomic_write(path, lambda file: figure.savefig(file, format="png", dpi=150))
        pyplot.close(figure)


def plain(text: str) -> str:
    """Text in which no dollar sign starts a formula."""
    return text.replace("$", r"\$")


def add_legend(figure, axes, columns: int) -> None:
    """One legend for the whole figure, under it."""
    handles = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center",
                  ncols=min(columns, len(handles)), frameon=False)


def label_tokens(axis, tokens: list[str], **options) -> None:
    """Tokens at the ticks of an axis, smaller where there are many."""
    size = min(8.0, 200 / len(tokens))
    axis.set_ticks(range(len(tokens)), [plain(token) for token in tokens], fontsize=size, **options)
    axis.set_tick_params(length=0)


# ---- Heads as points: Li 2021 Fig. 3

def draw_heads(runs: list[str], together, apart, path) -> None:
    """The heads in the plane of a t-SNE, a colour per run.

    together: [runs][H] points, averaged over words and layers as in the paper, numbered by head;
    apart: [runs][layers][H] points, averaged over words, numbered by layer.
    """
    with subplots(path, 1, 2, 4.4, "t-SNE of the heads' outputs") as (figure, axes):
        left, right = axes[0]
        left.set_title("mean over words and layers; numbers: heads")
        right.set_title("mean over words; numbers: layers")
        for r, name in enumerate(runs):
            look = dict(color=f"C{r}", marker=MARKERS[r % len(MARKERS)], label=plain(name))
            left.scatter(*zip(*together[r]), s=60, **look)
            for head, point in enumerate(together[r], 1):
                left.annotate(f" {head}", point)
            for layer, points in enumerate(apart[r], 1):
                right.scatter(*zip(*points), s=95, alpha=0.35, **look)
                for x, y in points:
                    right.text(x, y, layer, ha="center", va="center", fontsize=7)
        for ax in axes[0]:
            ax.set(xticks=[], yticks=[])
        add_legend(figure, axes[0], 2)


# ---- Attention: Duan 2020 Fig. 5

def draw_attention(maps: dict, title: str, path) -> None:
    """A^h of a sentence: rows of panels per run, a panel per head, keys below, queries at the left.

    maps: {run: {"weights": [H][L_q][L_k], "queries", "keys": tokens, "entropy": [H]}}. The shade
    grows with the square root of the weight, so that weak attention is visible.
    """
    H = max(len(x["weights"]) for x in maps.values())
    columns = min(H, 4)
    rows = math.ceil(H / columns)
    highest = max(weight for x in maps.values() for head in x["weights"] for row in head
                  for weight in row)
    norm = PowerNorm(0.5, 0, highest)
    with subplots(path, len(maps) * rows, columns, 0.5 + 2.4 * rows * len(maps), title,
                  WIDTH * max(1, columns / 3)) as (figure, axes):
        for ax in axes.flat:
            ax.set_visible(False)
        for r, (name, x) in enumerate(maps.items()):
            for h, weights in enumerate(x["weights"]):
                ax = axes[r * rows + h // columns][h % columns]
                ax.set_visible(True)
                image = ax.imshow(weights, cmap="Blues", norm=norm, aspect="auto")
                ax.set_title(f"head {h + 1}, entropy {x['entropy'][h]:.2f}", fontsize=8)
                label_tokens(ax.xaxis, x["keys"], rotation=90)
                label_tokens(ax.yaxis, x["queries"] if h % columns == 0 else [""])
            axes[r * rows][0].set_ylabel(plain(name))
        figure.colorbar(image, ax=axes, shrink=0.5, label="attention weight")


# ---- BLEU by source length: Gu 2019 Fig. 3

def bin_label(x: dict) -> str:
    """A bin of source lengths, {"low", "high"}, as text."""
    return f"{x['low']}-{x['high']}" if x["high"] else f"{x['low']}+"


def draw_lengths(runs: dict, path) -> None:
    """BLEU over the bins of source lengths, a line per run; below each bin its number of sentences.

    runs: {run: the result of measure.bleu_by_length}; the bars are the bootstrap's 95 % intervals.
    """
    counts = {}
    for result in runs.values():
        for x in result["bins"]:
            counts[x["low"], bin_label(x)] = x["count"]
    order = sorted(counts)
    title = "BLEU by source length, 95 % intervals (bootstrap over the sentences)"
    with subplots(path, 1, 1, 3.8, title) as (figure, axes):
        ax = axes[0][0]
        for i, (name, result) in enumerate(runs.items()):
            aside = 0.08 * (i - (len(runs) - 1) / 2)     # so that the bars do not cover each other
            places = [order.index((x["low"], bin_label(x))) + aside for x in result["bins"]]
            values = [x["bleu"] for x in result["bins"]]
            ends = [x["interval"] for x in result["bins"]]
            below = [max(0.0, value - low) for value, (low, _) in zip(values, ends)]
            above = [max(0.0, high - value) for value, (_, high) in zip(values, ends)]
            ax.errorbar(places, values, [below, above], capsize=2, elinewidth=0.8,
                        marker=MARKERS[i % len(MARKERS)], label=plain(name))
        ax.set_xticks(range(len(order)),
                      [f"{label}\n({counts[low, label]})" for low, label in order])
        ax.set(xlabel="source length (number of sentences)", ylabel="BLEU")
        add_legend(figure, [ax], 2)
