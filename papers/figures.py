"""Everything that is drawn of trained runs: heads as points, attention, routing, BLEU by length. PNG at page width.

In the manner of Li 2021 Fig. 3 (`heads`), Duan 2020 Fig. 5 (`attention`) and Gu 2019 Fig. 3 (`lengths`); `routing` and
`couplings` have no model in the papers. Every function takes numbers as analyze.py has them, and a path.
"""
import math

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.colors import PowerNorm, TwoSlopeNorm  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from nmt.files import atomic_write

WIDTH = 8.0                     # inches: a page
DPI = 150
LINE = 6.0                      # points that the smallest label takes; where tokens have less, not all are named
MARKERS = "os^Dv<>Pp*"
STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8, "xtick.labelsize": 8,
         "ytick.labelsize": 8, "font.family": ["DejaVu Sans"], "axes.spines.top": False, "axes.spines.right": False}


def plain(text: str) -> str:
    """Text in which no dollar sign starts a formula."""
    return text.replace("$", r"\$")


def write(figure, path) -> None:
    """Writes the figure as PNG, atomically, and closes it. Raises UserError where it cannot be written."""
    try:
        atomic_write(path, lambda file: figure.savefig(file, format="png", dpi=DPI))
    finally:
        pyplot.close(figure)


def label_axis(axis, names: list[str], room: float, turned: bool = False) -> None:
    """Names at the ticks of an axis of `room` inches, thinned out where there are too many to read."""
    step = math.ceil(len(names) * LINE / (72 * room))
    size = min(8.0, 0.9 * 72 * room / len(names[::step]))
    axis.set_ticks(range(0, len(names), step), [plain(name) for name in names[::step]], fontsize=size,
                   rotation=90 if turned else 0)
    axis.set_tick_params(length=0, pad=2)


def below(figure, axes, columns: int) -> None:
    """One legend for the whole figure, under it."""
    found = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=min(columns, len(found)),
                  frameon=False)


# ---- Heads as points: Li 2021 Fig. 3

def heads(runs: list[str], together, apart, path) -> None:
    """The heads in the plane of a t-SNE, a colour per run.

    together: [runs][H] points of the plane, each head a point (averaged over words and layers: the paper's figure);
    apart: [runs][layers][H], each head of each layer a point with its layer's number, or None.
    """
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, 1 if apart is None else 2, squeeze=False, layout="constrained",
                                       figsize=(WIDTH * (0.6 if apart is None else 1), 4.4))
        for i, name in enumerate(runs):
            look = dict(color=f"C{i}", marker=MARKERS[i % len(MARKERS)])
            axes[0, 0].scatter(*zip(*together[i]), s=60, label=plain(name), **look)
            for h, point in enumerate(together[i], 1):
                axes[0, 0].annotate(str(h), point, textcoords="offset points", xytext=(6, 3), fontsize=8)
            if apart is not None:
                for layer, points in enumerate(apart[i], 1):
                    axes[0, 1].scatter(*zip(*points), s=95, alpha=0.35, label=plain(name), **look)
                    for x, y in points:
                        axes[0, 1].text(x, y, str(layer), ha="center", va="center", fontsize=7)
        titles = ("mean over words and layers; numbers: heads", "mean over words; numbers: layers")
        for ax, title in zip(axes[0], titles):
            ax.set_title(title)
            ax.margins(0.12)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
        below(figure, axes[0], 3)
        write(figure, path)


# ---- Attention: Duan 2020 Fig. 5

def attention(maps: dict, title: str, path) -> None:
    """A^h of a sentence: a block of panels per run (one or two), a panel per head, keys below and queries at the left.

    maps: {run: {"weights": [H][L_q][L_k], "queries", "keys": tokens, "entropy": [H]}}. The shade grows with the square
    root of the weight, so that weak attention shows too, from 0 to the largest weight of all, alike in every panel.
    Tokens stand at the outer panels of a block; all of its panels share them.
    """
    H = max(len(one["weights"]) for one in maps.values())
    top = max(max(map(max, head)) for one in maps.values() for head in one["weights"])
    crowded = max(len(one["keys"]) for one in maps.values()) > 18
    columns = (1 if crowded else 2) if len(maps) > 1 else (2 if crowded or H <= 4 else 4)
    rows = -(-H // columns)
    room = (WIDTH - 0.8 - 0.7 * len(maps)) / columns / len(maps)             # of a panel, without its tokens
    height = max(1.0, min(1.3 * room, room * max(len(one["queries"]) / len(one["keys"]) for one in maps.values())))
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(WIDTH, rows * (height + 0.3) + 1.4), layout="constrained")
        figure.suptitle(plain(title), fontsize=10)
        blocks = figure.subfigures(1, len(maps), squeeze=False, wspace=0.02)[0]
        for block, (name, one) in zip(blocks, maps.items()):
            block.suptitle(plain(name), fontsize=9)
            axes = block.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
            H = len(one["weights"])                      # of this run
            for h, ax in enumerate(axes.flat):
                if h >= H:
                    ax.set_visible(False)
                    continue
                image = ax.imshow(one["weights"][h], cmap="Blues", norm=PowerNorm(0.5, 0, top), aspect="auto",
                                  interpolation="nearest")
                ax.set_title(f"head {h + 1}, entropy {one['entropy'][h]:.2f}", fontsize=8, pad=3)
                label_axis(ax.xaxis, one["keys"], room, turned=True)
                label_axis(ax.yaxis, one["queries"], height)
                ax.tick_params(labelbottom=h + columns >= H, labelleft=h % columns == 0)
        figure.colorbar(image, ax=blocks[-1].axes, shrink=0.5, aspect=30, pad=0.02).ax.tick_params(labelsize=7)
        write(figure, path)


# ---- Routing

def routing(runs: dict, path) -> None:
    """Entropy and agreement per iteration, a line per place, and the mean activation of EM's capsules, largest first.

    runs: {run: {place: {"entropy": [T], "agreement": [T], "activations": [N] or None}}}.
    """
    places = list(dict.fromkeys(place for found in runs.values() for place in found))
    active = any(x["activations"] for found in runs.values() for x in found.values())
    lines = ("-", "--", ":", "-.")
    with pyplot.rc_context(STYLE):
        entries = sum(map(len, runs.values()))
        figure, axes = pyplot.subplots(1, 3 if active else 2, squeeze=False, layout="constrained",
                                       figsize=(WIDTH, 3.1 + 0.19 * -(-entries // 2)))
        for i, (name, found) in enumerate(runs.items()):
            for place, x in found.items():
                k = places.index(place)
                look = dict(color=pyplot.get_cmap("tab20" if len(places) > 10 else "tab10")(k % 20),
                            ls=lines[i % len(lines)], label=plain(f"{name} {place}" if len(runs) > 1 else place))
                for ax, key in zip(axes[0], ("entropy", "agreement")):
                    ax.plot(range(1, len(x[key]) + 1), x[key], marker=MARKERS[k % len(MARKERS)], ms=4, **look)
                if x["activations"]:
                    N = len(x["activations"])
                    share = [(n + 0.5) / N for n in range(N)]
                    axes[0, 2].plot(share, sorted(x["activations"], reverse=True), **look)
        axes[0, 0].set(title="entropy of the coupling / log N", xlabel="iteration", ylim=(-0.03, 1.03))
        axes[0, 1].set(title="agreement of votes and capsules", xlabel="iteration")
        for ax in axes[0, :2]:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if active:
            axes[0, 2].set(title="EM's activations, mean over words", xlabel="share of capsules, sorted",
                           ylim=(-0.03, 1.03))
        below(figure, axes[0], 2 if len(runs) > 1 else 4)
        write(figure, path)


def couplings(places: dict, heads: int, title: str, path) -> None:
    """The coupling matrices of a sentence, a panel per place: heads at the left, capsules below.

    places: {place: {"share": [H][columns], "columns": tokens or None}}; each column sums to 1 where any head feeds it.
    Numbered capsules are put in the order of the head that feeds them most, so that a head's share shows as a block.
    The shades run from 0 to 1, white at 1/H: blue less, red more.
    """
    columns = 1 if len(places) == 1 else 2
    rows = -(-len(places) // columns)
    named = any(x["columns"] for x in places.values())
    norm = TwoSlopeNorm(1 / heads, 0, 1) if heads > 1 else None
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(rows, columns, squeeze=False, layout="constrained",
                                       figsize=(WIDTH, 0.9 + rows * (0.75 + 0.13 * heads + 0.75 * named)))
        figure.suptitle(plain(title), fontsize=10)
        for ax in axes.flat[len(places):]:
            ax.set_visible(False)
        for ax, (place, x) in zip(axes.flat, places.items()):
            by_column = list(zip(*x["share"]))                               # [columns][H]
            if x["columns"] is None:
                strongest = lambda column: (max(range(len(column)), key=column.__getitem__), -max(column))
                by_column.sort(key=strongest)
                ax.set_xlabel(f"{len(by_column)} capsules, sorted by their strongest head", fontsize=8)
                ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            start = 0.5 if x["columns"] is None else -0.5                    # capsules count from 1
            image = ax.imshow(list(zip(*by_column)), cmap="RdBu_r", norm=norm, aspect="auto", interpolation="nearest",
                              extent=(start, start + len(by_column), heads - 0.5, -0.5))
            ax.set_title(place, fontsize=9)
            if x["columns"] is not None:
                label_axis(ax.xaxis, x["columns"], (WIDTH - 1.8) / columns - 0.4, turned=True)
            step = -(-heads // 8)
            ax.set_yticks(range(0, heads, step), [f"head {h + 1}" for h in range(0, heads, step)], fontsize=7)
        figure.colorbar(image, ax=axes, shrink=min(1.0, 3 / rows), aspect=25, pad=0.02,
                        ticks=sorted({0, 1 / heads, 0.5, 1}), format="%.2f").ax.tick_params(labelsize=7)
        write(figure, path)


# ---- BLEU by source length: Gu 2019 Fig. 3

def lengths(runs: dict, path) -> None:
    """BLEU over the bins of source lengths, a line per run; below each bin its number of sentences.

    runs: {run: {"bins": [{"low", "high", "count", "bleu"}, ...]}}, as measure.bleu_by_length gives them.
    """
    label = lambda x: f"{x['low']}-{x['high']}" if x["high"] else f"{x['low']}+"
    counts = {(x["low"], label(x)): x["count"] for found in runs.values() for x in found["bins"]}
    order = sorted(counts)
    with pyplot.rc_context(STYLE):
        figure, ax = pyplot.subplots(figsize=(WIDTH * 0.8, 3.8), layout="constrained")
        for i, (name, found) in enumerate(runs.items()):
            values = {(x["low"], label(x)): x["bleu"] for x in found["bins"]}
            ax.plot(range(len(order)), [values.get(key, math.nan) for key in order],
                    marker=MARKERS[i % len(MARKERS)], label=plain(name))
        ax.set_xticks(range(len(order)), [f"{name}\n({counts[low, name]})" for low, name in order])
        ax.set(xlabel="source length (number of sentences)", ylabel="BLEU")
        ax.grid(axis="y", alpha=0.3)
        below(figure, [ax], 3)
        write(figure, path)
