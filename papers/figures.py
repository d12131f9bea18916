"""Everything that is drawn of trained runs: heads as points, attention, routing, BLEU by length,
what heads cost, a table of results. At page width.

In the manner of Li 2021 Fig. 3 (`heads`), Duan 2020 Fig. 5 (`attention`) and Gu 2019 Fig. 3
(`lengths`); `routing` and `couplings` have no model in the papers. Every function takes numbers as
analyze.py has them, and a path.
"""
import math

import matplotlib
from matplotlib import pyplot
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from nmt.evaluate import t_interval
from nmt.files import atomic_write

matplotlib.use("Agg")           # files alone: no window

WIDTH = 8.0                     # inches: a page
DPI = 150
LINE = 6.0                      # points of the smallest label; with less, some tokens go unnamed
MARKERS = "os^Dv<>Pp*"
STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8,
         "xtick.labelsize": 8, "ytick.labelsize": 8, "font.family": ["DejaVu Sans"],
         "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "figures"}


def plain(text: str) -> str:
    """Text in which no dollar sign starts a formula."""
    return text.replace("$", r"\$")


def write(figure, path) -> None:
    """Writes the figure as PNG or SVG, as the path ends, atomically, and closes it. Raises
    UserError where it cannot be written."""
    suffix = path.suffix.removeprefix(".")
    # without its date an SVG is the same whenever it is drawn
    metadata = {"Date": None} if suffix == "svg" else None

    def save(file):
        figure.savefig(file, format=suffix, dpi=DPI, metadata=metadata)

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
    paper's figure), or None; apart: [runs][layers][H], each head of each layer a point with its
    layer's number, or None.
    """
    panels = [part for part in (together, apart) if part is not None]
    width = 0.6 * WIDTH if len(panels) == 1 else WIDTH
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, len(panels), squeeze=False, layout="constrained",
                                       figsize=(width, 4.4))
        rest = list(axes[0])
        if together is not None:
            ax = rest.pop(0)
            ax.set_title("mean over words and layers; numbers: heads")
            for look, points in zip(looks(runs), together):
                ax.scatter(*zip(*points), s=60, **look)
                for head, point in enumerate(points, 1):
                    ax.annotate(str(head), point, textcoords="offset points", xytext=(6, 3),
                                fontsize=8)
        if apart is not None:
            ax = rest.pop(0)
            ax.set_title("mean over words; numbers: layers")
            for look, layers in zip(looks(runs), apart):
                for layer, points in enumerate(layers, 1):
                    ax.scatter(*zip(*points), s=95, alpha=0.35, **look)
                    for x, y in points:
                        ax.text(x, y, str(layer), ha="center", va="center", fontsize=7)
        for ax in axes[0]:
            ax.margins(0.12)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
        figure.suptitle("t-SNE of the heads' outputs", fontsize=10)
        legend_below(figure, axes[0], 2)
        write(figure, path)


def looks(runs: list[str]) -> list[dict]:
    """Colour, marker and label of every run."""
    found = []
    for i, name in enumerate(runs):
        found.append(dict(color=f"C{i}", marker=MARKERS[i % len(MARKERS)], label=plain(name)))
    return found


def cosines(runs: dict, path) -> None:
    """The cosine of every two heads, a panel per run: what is drawn of too few heads for a t-SNE.

    runs: {run: [H][H] cosines of the heads, averaged over words and layers}.
    """
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, len(runs), squeeze=False, layout="constrained",
                                       figsize=(min(WIDTH, 1.2 + 3.2 * len(runs)), 3.6))
        for ax, (name, matrix) in zip(axes[0], runs.items()):
            image = ax.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
            H = len(matrix)
            for i in range(H):
                for j in range(H):
                    colour = "white" if abs(matrix[i][j]) > 0.6 else "black"
                    ax.text(j, i, f"{matrix[i][j]:.2f}", ha="center", va="center", fontsize=7,
                            color=colour)
            ax.set_xticks(range(H), range(1, H + 1))
            ax.set_yticks(range(H), range(1, H + 1))
            ax.set(xlabel="head", ylabel="head", title=plain(name))
        figure.suptitle("cosines of the heads' outputs, mean over words and layers", fontsize=10)
        figure.colorbar(image, ax=axes[0], shrink=0.7, label="cosine")
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
            block.supxlabel("key", fontsize=8)
            block.supylabel("query", fontsize=8)
        bar = figure.colorbar(image, ax=blocks[-1].axes, shrink=0.5, aspect=30, pad=0.02)
        bar.set_label("attention weight (shades by its square root)", fontsize=8)
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
        height = 3.3 + 0.19 * math.ceil(len(lines) / 2)
        figure, axes = pyplot.subplots(1, 3 if active else 2, squeeze=False, layout="constrained",
                                       sharey=True, figsize=(WIDTH, height))
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
        lowest = min(0.0, *(value for _, _, x in lines for value in x["agreement"]))
        axes[0].set(title="how evenly a head gives", xlabel="iterations",
                    ylabel="entropy of the couplings, share of log N",
                    ylim=(lowest - 0.03, 1.03))
        axes[1].set(title="how well votes agree", xlabel="iterations",
                    ylabel="cosine of votes and capsules")
        for ax in axes[:2]:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if active:
            axes[2].set(title="EM's activations", ylabel="activation, mean over words",
                        xlabel="share of the capsules")
        for ax in axes:
            ax.grid(axis="y", alpha=0.3)
            ax.tick_params(labelleft=True)
        legend_below(figure, axes, 2 if len(runs) > 1 else 4)
        write(figure, path)


def by_strongest_head(column) -> tuple[int, float]:
    """What numbered capsules are sorted by: the head that feeds one most, most first."""
    strongest = max(column)
    return column.index(strongest), -strongest


def couplings(places: dict, heads: int, title: str, path) -> None:
    """The coupling matrices of a sentence, a panel per place: heads at the left, capsules below.

    places: {place: {"share": [H][columns], "columns": tokens or None}}; each column sums to 1 where
    any head feeds it, else to 0. Numbered capsules are put in the order of the head that feeds them
    most, so that a head's share shows as a block. The shades run from 0 to 1.
    """
    columns = 1 if len(places) == 1 else 2
    rows = math.ceil(len(places) / columns)
    named = any(x["columns"] for x in places.values())
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
            image = ax.imshow(list(zip(*by_column)), cmap="viridis", vmin=0, vmax=1,
                              aspect="auto", interpolation="nearest", extent=extent)
            ax.set_title(place, fontsize=9)
            if x["columns"] is not None:
                ax.set_xlabel("tokens", fontsize=8)
                room = (WIDTH - 1.8) / columns - 0.4
                label_axis(ax.xaxis, x["columns"], room, turned=True)
            shown = range(0, heads, math.ceil(heads / 8))
            ax.set_yticks(shown, [f"head {h + 1}" for h in shown], fontsize=7)
        bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 3 / rows), aspect=25, pad=0.02,
                              ticks=sorted({0, 1 / heads, 0.5, 1}), format="%.2f")
        bar.set_label("share from a head", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        write(figure, path)


# ---- BLEU by source length: Gu 2019 Fig. 3

def bin_label(x: dict) -> str:
    """A bin of source lengths, {"low", "high"}, as text."""
    return f"{x['low']}-{x['high']}" if x["high"] else f"{x['low']}+"


def lengths(runs: dict, path) -> None:
    """BLEU over the bins of source lengths, a line per run; below each bin its number of sentences.

    runs: {run: {"bins": [{"low", "high", "count", "bleu", "interval": (low, high)}, ...]}}, as
    measure.bleu_by_length gives them; the bars are the bootstrap's 95 % over a bin's sentences.
    """
    counts = {}
    for found in runs.values():
        for x in found["bins"]:
            counts[x["low"], bin_label(x)] = x["count"]
    order = sorted(counts)
    lowest = min(x["interval"][0] for found in runs.values() for x in found["bins"])
    with pyplot.rc_context(STYLE):
        figure, ax = pyplot.subplots(figsize=(WIDTH * 0.8, 3.8), layout="constrained")
        for i, (name, found) in enumerate(runs.items()):
            bins = {(x["low"], bin_label(x)): x for x in found["bins"]}
            places = [k for k, key in enumerate(order) if key in bins]
            values = [bins[order[k]]["bleu"] for k in places]
            ends = [bins[order[k]]["interval"] for k in places]
            below = [max(0.0, value - low) for value, (low, _) in zip(values, ends)]
            above = [max(0.0, high - value) for value, (_, high) in zip(values, ends)]
            aside = 0.08 * (i - (len(runs) - 1) / 2)     # so that the bars do not cover each other
            ax.errorbar([k + aside for k in places], values, [below, above], capsize=2,
                        elinewidth=0.8, marker=MARKERS[i % len(MARKERS)], label=plain(name))
        ax.set_xticks(range(len(order)),
                      [f"{label}\n({counts[low, label]})" for low, label in order])
        ax.set(xlabel="source length (number of sentences)", ylabel="BLEU",
               title="BLEU by source length, 95 % intervals by the bootstrap over the sentences")
        ax.set_ylim(bottom=10 * math.floor(max(0.0, lowest) / 10))
        ax.grid(axis="y", alpha=0.3)
        legend_below(figure, [ax], 2)
        write(figure, path)


# ---- What heads cost: Michel et al. 2019

def costs_by_layer(runs: dict, model: str, component: str) -> dict[int, list[float]]:
    """Layer, from 1 -> what its heads cost in all runs of a model."""
    layers = {}
    for one in runs.values():
        if one["label"] == model:
            for i, costs in enumerate(one["cost"][component], 1):
                layers.setdefault(i, []).extend(costs)
    return layers


def ablation(runs: dict, path) -> None:
    """The BLEU that every head costs: a panel per component, a dot per head over its layer, the
    runs of a model in one colour, a bar at their mean.

    runs: {run: {"label": the model, "cost": {component: [layers][H]}}}, as ablation.costs gives.
    """
    models = list(dict.fromkeys(one["label"] for one in runs.values()))
    components = list(next(iter(runs.values()))["cost"])
    titles = {"enc": "encoder", "cross": "decoder to encoder", "dec": "decoder"}
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, len(components), squeeze=False, sharey=True,
                                       layout="constrained", figsize=(WIDTH, 3.8))
        for ax, component in zip(axes[0], components):
            ax.axhline(0, color="grey", linewidth=0.6)
            for m, model in enumerate(models):
                aside = 0.6 * ((m + 0.5) / len(models) - 0.5)
                for i, costs in costs_by_layer(runs, model, component).items():
                    ax.plot([i + aside] * len(costs), costs, ".", color=f"C{m}", alpha=0.5,
                            label=plain(model))
                    ax.plot([i + aside], [sum(costs) / len(costs)], "_", color=f"C{m}", ms=12,
                            mew=2)
            ax.set(title=titles.get(component, component), xlabel="layer",
                   xticks=range(1, 1 + max(len(one["cost"][component]) for one in runs.values())))
        # most heads cost less than one BLEU, a few ten times that
        axes[0][0].set_yscale("symlog", linthresh=1)
        ticks = [-5, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50]
        axes[0][0].yaxis.set_major_locator(FixedLocator(ticks))
        axes[0][0].yaxis.set_major_formatter("{x:g}")
        axes[0][0].yaxis.set_minor_locator(NullLocator())
        axes[0][0].set_ylabel("BLEU lost without the head")
        figure.suptitle("what every head costs that is left out; bars: means; logarithmic beyond 1",
                        fontsize=10)
        legend_below(figure, axes[0], 2)
        write(figure, path)


# ---- A table of results

def results(rows: dict, title: str, path) -> None:
    """BLEU by row, its seeds as dots, mean and 95 % interval (Student's t); beside it the learning
    curves in the same colours, means over the seeds.

    rows: {label: [{"bleu", "curve": {step: BLEU on the validation set} or absent}, ...]}, the
    baseline first.
    """
    colours = pyplot.get_cmap("tab10" if len(rows) <= 10 else "tab20")
    curves = all(run.get("curve") for runs in rows.values() for run in runs)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, 2 if curves else 1, squeeze=False, layout="constrained",
                                       figsize=(WIDTH, 1.6 + 0.24 * max(8, len(rows))))
        left = axes[0][0]
        for i, (label, runs) in enumerate(rows.items()):
            scores = [run["bleu"] for run in runs]
            mean = sum(scores) / len(scores)
            if i == 0:
                left.axvline(mean, color="grey", linewidth=0.8, linestyle="--")
            left.plot(scores, [i] * len(scores), "o", ms=4, color=colours(i), alpha=0.7)
            interval = t_interval(scores)
            if interval:
                left.plot(interval, [i, i], color=colours(i), linewidth=1)
                left.plot([mean], [i], "|", color=colours(i), ms=11, mew=2)
        left.set_yticks(range(len(rows)), map(plain, rows))
        left.invert_yaxis()
        left.set(xlabel="test BLEU", title="seeds, mean and 95 % interval (t)")
        left.grid(axis="x", alpha=0.3)
        if curves:
            right = axes[0][1]
            for i, runs in enumerate(rows.values()):
                steps = [int(step) for step in runs[0]["curve"]]
                values = zip(*(run["curve"].values() for run in runs))
                means = [sum(column) / len(column) for column in values]
                right.plot(steps, means, color=colours(i), marker=".", linewidth=1)
            right.set(xlabel="step", ylabel="validation BLEU (greedy)",
                      title="learning curves (means, same colours)", ylim=(0, None))
            right.grid(alpha=0.3)
        figure.suptitle(plain(title), fontsize=10)
        write(figure, path)
