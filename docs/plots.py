"""Draws the mechanisms at work, by the project's own functions: coupling.svg, logits.svg,
vectors.svg.

    python -m docs.plots
"""
import io
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot
from torch import Tensor

from capsule_transformer import horizontal_routing, vertical_routing
from disagreement import output_disagreement
from routing_dynamic import dynamic_routing
from routing_em import em_routing

DRAWS = 200
ITERATIONS = 10
GREY = "#707070"
LI_2018 = "#1f5f9f"             # a color for each paper, as in heads.svg
LI_2019 = "#2f7d2c"
GU = "#b06a00"
DUAN = "#6b3fa0"


# ---- The coupling of planted clusters over the iterations

def planted(length: float) -> tuple[Tensor, Tensor]:
    """Votes [draws, M=12, N=3, D=4], four parts to a whole, and the whole [M] of every part. The
    votes on the own whole agree up to noise 0.1 on its pose, Normal(0, length^2); those on the
    others scatter, Normal(0, 4^2)."""
    torch.manual_seed(0)
    whole = torch.arange(3).repeat(4)
    votes = 4 * torch.randn(DRAWS, 12, 3, 4)
    poses = length * torch.randn(DRAWS, 3, 4)
    votes[:, range(12), whole] = poses[:, whole] + 0.1 * torch.randn(DRAWS, 12, 4)
    return votes, whole


def members(length: float, routing, *betas, **settings) -> list[float]:
    """The mean coupling of a part to its own whole, by iteration."""
    votes, whole = planted(length)
    C = routing(votes, *betas, iterations=ITERATIONS, trace=True, **settings).coupling
    return C[:, :, range(12), whole].mean((1, 2)).tolist()


def coupling():
    """Dynamic and EM routing of planted clusters, two lengths of the poses."""
    figure, panels = pyplot.subplots(1, 2, figsize=(7.6, 3.3), sharey=True)
    zeros = torch.zeros(3)
    lines = {
        "EM, defaults": (LI_2019, "-", em_routing, zeros, zeros, {}),
        "EM, λ = 1..3 as released": (LI_2018, "--", em_routing, zeros, zeros,
                                     {"schedule": "released"}),
        "EM, sum of the densities": (DUAN, "-.", em_routing, zeros, zeros, {"density": "sum"}),
        "dynamic": (GU, "-", dynamic_routing, {}),
    }
    for axes, length, title in zip(panels, (1, 4), ("poses shorter than other votes",
                                                    "all votes of one length")):
        axes.axhline(1 / 3, color=GREY, linewidth=0.8, linestyle=":")
        for label, (color, style, routing, *betas, settings) in lines.items():
            share = members(length, routing, *betas, **settings)
            axes.plot(range(1, ITERATIONS + 1), share, style, color=color, label=label)
        axes.set(title=title, xlabel="iteration", ylim=(0, 1.03), xticks=range(1, ITERATIONS + 1))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("coupling to the own whole")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncol=4, frameon=False,
                  columnspacing=1.4, handlelength=2)
    figure.subplots_adjust(0.075, 0.27, 0.99, 0.91, wspace=0.08)
    return figure


# ---- Vertical and horizontal routing of logits

def logits():
    """Two heads' logits of five tokens, what the routings make of them, and the sum."""
    torch.manual_seed(2)
    E = 2 * torch.randn(2, 5, 5)                                             # [H, L, L]
    up = vertical_routing(E, torch.zeros(2, 2), torch.zeros(2))
    across = horizontal_routing(E)
    panels = {                                           # title -> (logits, largest number)
        "$E$": (E, 4),
        r"$E + \Omega^\uparrow + \Omega^\leftrightarrow$": (E + up + across, 4),
        r"$\Omega^\uparrow$" + "\nheads to tokens": (up, 1),
        r"$\Omega^\leftrightarrow$" + "\ntokens to heads": (across, 1),
    }
    figure, grid = pyplot.subplots(2, 4, figsize=(7.6, 3.7), layout="constrained")
    for column, (title, (x, most)) in enumerate(panels.items()):
        grid[0, column].set_title(title)
        grid[1, column].set_xlabel("key")
        for h in range(2):
            axes = grid[h, column]
            drawn = axes.imshow(x[h].tolist(), cmap="RdBu_r", vmin=-most, vmax=most)
            axes.set(xticks=[], yticks=[])
        if column % 2:
            figure.colorbar(drawn, ax=grid[:, column - 1:column + 1], ticks=[-most, 0, most])
    for h in range(2):
        grid[h, 0].set_ylabel(f"head {h + 1}\nquery")
    return figure


# ---- Unit vectors of heads

def vectors():
    """Two heads whose unit vectors are alike, orthogonal, or cancel, with the D of each."""
    heads = {"alike": [[0.6, 0.8], [0.6, 0.8]], "orthogonal": [[0.6, 0.8], [0.8, -0.6]],
             "they cancel": [[0.6, 0.8], [-0.6, -0.8]]}
    style = dict(arrowstyle="-|>", color=LI_2018, linewidth=1.2, shrinkA=0, shrinkB=0)
    figure, panels = pyplot.subplots(1, 3, figsize=(7.6, 2.9))
    for axes, (title, rows) in zip(panels, heads.items()):
        u = torch.tensor(rows, dtype=torch.float64)                          # [H, d]
        D = output_disagreement(u.unsqueeze(1)).item()
        axes.add_patch(pyplot.Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.6))
        for end in rows:
            axes.annotate("", end, (0, 0), arrowprops=style)
        axes.plot(*u.mean(0).tolist(), "o", color=GU, markersize=6)
        axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
        axes.set_title(f"{title}: D = {round(D, 9) + 0:.3g}")
        axes.axis("off")
    figure.text(0.5, 0.02, "dot: the mean of the H = 2 unit vectors; D is minus the square of its "
                "length: -1, -1/H, 0", ha="center")
    figure.subplots_adjust(0.01, 0.1, 0.99, 0.9, wspace=0.02)
    return figure


def save(figure, path: Path) -> None:
    """Writes a figure as a small SVG: text as text, hundredths of a point, a path on one line; the
    same bytes for the same matplotlib."""
    drawn = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with pyplot.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata=no_metadata)
    pyplot.close(figure)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", drawn.getvalue())
    path.write_text(re.sub(r" ?\n(?=[LQCz\"])", " ", text))


def main(folder: Path = Path(__file__).parent) -> None:
    """Writes the three figures into a folder."""
    settings = {"font.size": 9, "axes.titlesize": 9.5, "mathtext.fontset": "dejavusans"}
    with pyplot.rc_context(settings):
        for draw in (coupling, logits, vectors):
            save(draw(), folder / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main()
