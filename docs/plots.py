"""Draws two mechanisms at work, by the project's own functions: logits.svg and vectors.svg.

    python -m docs.plots
"""
import io
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot

from capsule_transformer import horizontal_routing, vertical_routing
from disagreement import output_disagreement


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
            figure.colorbar(drawn, ax=grid[:, column - 1:column + 1], ticks=[-most, 0, most],
                            label="logit" if most == 4 else "added to the logit")
    for h in range(2):
        grid[h, 0].set_ylabel(f"head {h + 1}\nquery")
    return figure

def vectors():
    """Two heads whose unit vectors are alike, orthogonal, or cancel, with the D of each."""
    heads = {"alike": [[0.6, 0.8], [0.6, 0.8]], "orthogonal": [[0.6, 0.8], [0.8, -0.6]],
             "they cancel": [[0.6, 0.8], [-0.6, -0.8]]}
    style = dict(arrowstyle="-|>", color="#1f5f9f", linewidth=1.2, shrinkA=0, shrinkB=0)
    figure, panels = pyplot.subplots(1, 3, figsize=(7.6, 2.9))
    for axes, (title, rows) in zip(panels, heads.items()):
        u = torch.tensor(rows, dtype=torch.float64)                          # [H, d]
        D = output_disagreement(u.unsqueeze(1)).item()
        axes.add_patch(pyplot.Circle((0, 0), 1, fill=False, color="#707070", linewidth=0.6))
        for end in rows:
            axes.annotate("", end, (0, 0), arrowprops=style)
        axes.plot(*u.mean(0).tolist(), "o", color="#b06a00", markersize=6)
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
    """Writes the figures into a folder."""
    settings = {"font.size": 9, "axes.titlesize": 9.5, "mathtext.fontset": "dejavusans"}
    with pyplot.rc_context(settings):
        for draw in (logits, vectors):
            save(draw(), folder / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main()
