"""Everything that is drawn of trained runs: heads as points, attention, routing, BLEU by length.
PNG at page width.

In the manner of Li 2021 Fig. 3 (`heads`), Duan 2020 Fig. 5 (`attention`) and Gu 2019 Fig. 3
(`lengths`); `routing` and `couplings` have no model in the papers. Every function takes numbers as
analyze.py has them, and a path.
"""
import math

import matplotlib
from matplotlib import pyplot
from matplotlib.colors import PowerNorm, TwoSlopeNorm
from matplotlib.ticker import MaxNLocator

from nmt.files import atomic_write

matplotlib.use("Agg")           # files alone: no window

WIDTH = 8.0                     # inches: a page
DPI = 150
LINE = 6.0                      # points of the smallest label; with less, some tokens go unnamed
MARKERS = "os^Dv<>Pp*"
STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8,
         "xtick.labelsize": 8, "ytick.labelsize": 8, "font.family": ["DejaVu Sans"],
         "axes.spines.top": False, "axes.spines.right": False}


def plain(text: str) -> str:
    """Text in which no dollar sign starts a formula."""
    return text.replace("$", r"\$")


def write(figure, path) -> None:
    """Writes the figure as PNG, atomically, and closes it. Raises UserError where it cannot be
    written."""
    def save(file):
        figure.savefig(file, format="png", dpi=DPI)

    try:
        atomic_write(path, save)
    finally:
        pyplot.close(figure)


def label_axis(axis, names: list[str], room: float, turned: bool = False) -> None:
    """Names at the ticks of an axis of `room` inches, thinned out where there are too many to
    read."""
    points = 72 * room
    step = math.ceil(len(names) * LINE / points)
    shown = [plain(name) for name in names[::step]]
    axis.set_ticks(range(0, len(names), step), shown, fontsize=min(8.0, 0.9 * points / len(shown)),
                   rotation=90 if turned else 0)
    axis.set_tick_params(length=0, pad=2)


def legend_below(figure, axes, columns: int) -> None:
    """One legend for the whole figure, under it."""
    found = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center",
                  ncols=min(columns, len(found)), frameon=False)


# ---- Heads as points: Li 2021 Fig. 3

def heads(runs: list[str], together, apart, path) -> None:
    """The heads in the plane of a t-SNE, a colour per run.

    together: [runs][H] points of the plane, each head a point (averaged over words and layers: the
    paper's figure); apart: [runs][layers][H], each head of each layer a point with its layer's
    number, or None.
    """
    panels = 1 if apart is None else 2
    width = 0.6 * WIDTH if apart is None else WIDTH
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, panels, squeeze=False, layout="constrained",
                                       figsize=(width, 4.4))
        axes = axes[0]
        for i, name in enumerate(runs):
            look = dict(color=f"C{i}", marker=MARKERS[i % len(MARKERS)], label=plain(name))
            axes[0].scatter(*zip(*together[i]), s=60, **look)
            for head, point in enumerate(together[i], 1):
                axes[0].annotate(str(head), point, textcoords="offset points", xytext=(6, 3),
                                 fontsize=8)
            if apart is None:
                continue
            for layer, points in enumerate(apart[i], 1):
                axes[1].scatter(*zip(*points), s=95, alpha=0.35, **look)
                for x, y in points:
                    axes[1].text(x, y, str(layer), ha="center", va="center", fontsize=7)
        titles = ("mean over words and layers; numbers: heads", "mean over words; numbers: layers")
        for ax, title in zip(axes, titles):
            ax.set_title(title)
            ax.margins(0.12)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
        legend_below(figure, axes, 3)
        write(figure, path)


# ---- Attention: Duan 2020 Fig. 5

def attention(maps: dict, title: str, path) -> None:
    """A^h of a sentence: a block of panels per run (one or two), a panel per head, keys below and
    queries at the left.

    maps: {run: {"weights": [H][L_q][L_k], "queries", "keys": tokens, "entropy": [H]}}. The shade
    grows with the square root of the weight, so that weak attention shows too, from 0 to the
    largest weight of all, alike in every panel. Tokens stand at the outer panels of a block; all of
    its panels share them.
    """
    all_maps = list(maps.values())
    H = max(len(one["weights"]) for one in all_maps)
    highest = max(weight for one in all_maps for head in one["weights"] for row in head
                  for weight in row)
    norm = PowerNorm(0.5, 0, highest)
    columns = panel_columns(all_maps, H)
    rows = math.ceil(H / columns)
    room = (WIDTH - 0.8 - 0.7 * len(maps)) / columns / len(maps)     # of a panel without its tokens
    tallest = max(len(one["queries"]) / len(one["keys"]) for one in all_maps)
    height = max(1.0, min(1.3 * room, room * tallest))
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(WIDTH, rows * (height + 0.3) + 1.4), layout="constrained")
        figure.suptitle(plain(title), fontsize=10)
        blocks = figure.subfigures(1, len(maps), squeeze=False, wspace=0.02)[0]
        for block, (name, one) in zip(blocks, maps.items()):
            block.suptitle(plain(name), fontsize=9)
            axes = block.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
            own = len(one["weights"])
            for ax in axes.flat[own:]:
                ax.set_visible(False)
            for h, ax in enumerate(axes.flat[:own]):
                image = ax.imshow(one["weights"][h], cmap="Blues", norm=norm, aspect="auto",
                                  interpolation="nearest")
                ax.set_title(f"head {h + 1}, entropy {one['entropy'][h]:.2f}", fontsize=8, pad=3)
                label_axis(ax.xaxis, one["keys"], room, turned=True)
                label_axis(ax.yaxis, one["queries"], height)
                ax.tick_params(labelbottom=h + columns >= own, labelleft=h % columns == 0)
        bar = figure.colorbar(image, ax=blocks[-1].axes, shrink=0.5, aspect=30, pad=0.02)
        bar.ax.tick_params(labelsize=7)
        write(figure, path)


def panel_columns(maps: list[dict], H: int) -> int:
    """How many panels stand side by side in a block of `attention`."""
    crowded = max(len(one["keys"]) for one in maps) > 18
    if len(maps) > 1:
        return 1 if crowded else 2
    return 2 if crowded or H <= 4 else 4


# ---- Routing

def routing(runs: dict, path) -> None:
    """Entropy and agreement per iteration, a line per place, and the mean activation of EM's
    capsules, largest first.

    runs: {run: {place: {"entropy": [T], "agreement": [T], "activations": [N] or None}}}.
    """
    lines = [(name, place, x) for name, found in runs.items() for place, x in found.items()]
    names = list(runs)
    places = list(dict.fromkeys(place for _, place, _ in lines))
    colours = pyplot.get_cmap("tab20" if len(places) > 10 else "tab10")
    active = any(x["activations"] for _, _, x in lines)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, 3 if active else 2, squeeze=False, layout="constrained",
                                       figsize=(WIDTH, 3.1 + 0.19 * math.ceil(len(lines) / 2)))
        axes = axes[0]
        for name, place, x in lines:
            k = places.index(place)
            label = f"{name} {place}" if len(runs) > 1 else place
            look = dict(color=colours(k % 20), label=plain(label),
                        ls=("-", "--", ":", "-.")[names.index(name) % 4])
            for ax, key in zip(axes, ("entropy", "agreement")):
                ax.plot(range(1, len(x[key]) + 1), x[key], marker=MARKERS[k % len(MARKERS)], ms=4,
                        **look)
            if x["activations"]:
                N = len(x["activations"])
                share = [(n + 0.5) / N for n in range(N)]
                axes[2].plot(share, sorted(x["activations"], reverse=True), **look)
        axes[0].set(title="entropy of the coupling / log N", xlabel="iteration",
                    ylim=(-0.03, 1.03))
        axes[1].set(title="agreement of votes and capsules", xlabel="iteration")
        for ax in axes[:2]:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if active:
            axes[2].set(title="EM's activations, mean over words",
                        xlabel="share of capsules, sorted", ylim=(-0.03, 1.03))
        legend_below(figure, axes, 2 if len(runs) > 1 else 4)
        write(figure, path)


def by_strongest_head(column) -> tuple[int, float]:
    """What numbered capsules are sorted by: the head that feeds one most, most first."""
    strongest = max(column)
    return column.index(strongest), -strongest


def couplings(places: dict, heads: int, title: str, path) -> None:
    """The coupling matrices of a sentence, a panel per place: heads at the left, capsules below.

    places: {place: {"share": [H][columns], "columns": tokens or None}}; each column sums to 1 where
    any head feeds it. Numbered capsules are put in the order of the head that feeds them most, so
    that a head's share shows as a block. The shades run from 0 to 1, white at 1/H: blue less, red
    more.
    """
    columns = 1 if len(places) == 1 else 2
    rows = math.ceil(len(places) / columns)
    named = any(x["columns"] for x in places.values())
    norm = TwoSlopeNorm(1 / heads, 0, 1) if heads > 1 else None
    height = 0.9 + rows * (0.75 + 0.13 * heads + 0.75 * named)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(rows, columns, squeeze=False, layout="constrained",
                                       figsize=(WIDTH, height))
        figure.suptitle(plain(title), fontsize=10)
        for ax in axes.flat[len(places):]:
            ax.set_visible(False)
        for ax, (place, x) in zip(axes.flat, places.items()):
            by_column = list(zip(*x["share"]))                       # [columns][H]
            start = -0.5
            if x["columns"] is None:
                by_column.sort(key=by_strongest_head)
                start = 0.5                                          # capsules count from 1
                ax.set_xlabel(f"{len(by_column)} capsules, sorted by their strongest head",
                              fontsize=8)
                ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            extent = (start, start + len(by_column), heads - 0.5, -0.5)
            image = ax.imshow(list(zip(*by_column)), cmap="RdBu_r", norm=norm, aspect="auto",
                              interpolation="nearest", extent=extent)
            ax.set_title(place, fontsize=9)
            if x["columns"] is not None:
                room = (WIDTH - 1.8) / columns - 0.4
                label_axis(ax.xaxis, x["columns"], room, turned=True)
            shown = range(0, heads, math.ceil(heads / 8))
            ax.set_yticks(shown, [f"head {h + 1}" for h in shown], fontsize=7)
        bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 3 / rows), aspect=25, pad=0.02,
                              ticks=sorted({0, 1 / heads, 0.5, 1}), format="%.2f")
        bar.ax.tick_params(labelsize=7)
        write(figure, path)


# ---- BLEU by source length: Gu 2019 Fig. 3

def bin_label(x: dict) -> str:
    """A bin of source lengths, {"low", "high"}, as text."""
    return f"{x['low']}-{x['high']}" if x["high"] else f"{x['low']}+"


def lengths(runs: dict, path) -> None:
    """BLEU over the bins of source lengths, a line per run; below each bin its number of sentences.

    runs: {run: {"bins": [{"low", "high", "count", "bleu"}, ...]}}, as measure.bleu_by_length gives
    them.
    """
    counts = {}
    for found in runs.values():
        for x in found["bins"]:
            counts[x["low"], bin_label(x)] = x["count"]
    order = sorted(counts)
    with pyplot.rc_context(STYLE):
        figure, ax = pyplot.subplots(figsize=(WIDTH * 0.8, 3.8), layout="constrained")
        for i, (name, found) in enumerate(runs.items()):
            values = {(x["low"], bin_label(x)): x["bleu"] for x in found["bins"]}
            ax.plot(range(len(order)), [values.get(key, math.nan) for key in order],
                    marker=MARKERS[i % len(MARKERS)], label=plain(name))
        ax.set_xticks(range(len(order)),
                      [f"{label}\n({counts[low, label]})" for low, label in order])
        ax.set(xlabel="source length (number of sentences)", ylabel="BLEU")
        ax.grid(axis="y", alpha=0.3)
        legend_below(figure, [ax], 3)
        write(figure, path)
