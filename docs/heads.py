"""Draws docs/heads.svg: where the five papers change the attention of a Transformer.

    python -m docs.heads

Letters are drawn as shapes, so that they are in their places whatever fonts a reader has. They can
be read where the picture is 420 pixels wide, as on a phone.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    print("error: start it in the project's folder: python -m docs.heads", file=sys.stderr)
    sys.exit(2)

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from tools.command_line import Flags, run

SIZE = (5.8, 6.25)              # inches, which are the units of all places; y grows downwards
PLAIN = ("#eeeeee", "#222222")  # colors of a box: its face and its edge
LI_2018 = ("#cfe3f7", "#1f5f9f")
LI_2019 = ("#d5efd3", "#2f7d2c")
GU = ("#fbe3c4", "#b06a00")
DUAN = ("#e7d9f3", "#6b3fa0")
STEPS = (                       # inside an attention, from the top
    (0.75, "$Q^h,\\ K^h,\\ V^h$", "queries, keys, values"),
    (1.7, "$E^h = Q^h {K^h}^{\\top} / \\sqrt{d_k}$", "logits"),
    (2.65, "$A^h = \\mathrm{softmax}(E^h)$", "attention weights"),
    (3.6, "$O^h = A^h V^h$", "outputs of the heads"),
    (4.95, "$O = [O^1, \\ldots, O^H]\\, W^O$", "one vector per token"))
PAPERS = (                      # what a paper does to the step beside it, and its flag
    (0.75, LI_2018, "Li 2018, Li 2021: encoder", "reward heads whose $V^h$ differ",
     "--reg subspace --reg-at enc"),
    (1.7, DUAN, "Duan 2020: self-attentions", "add routed logits to $E^h$",
     "--capsule-attention enc dec"),
    (2.65, LI_2018, "Li 2018, Li 2021: encoder", "reward heads whose $A^h$ differ",
     "--reg position --reg-at enc"),
    (3.6, LI_2018, "Li 2018, Li 2021: all attentions", "reward heads whose $O^h$ differ",
     "--reg output"),
    (4.55, LI_2019, "Li 2019, Li 2021: encoder layers 1-2", "routing in place of $W^O$",
     "--agg em or dynamic"),
    (5.5, GU, "Gu 2019: last decoder layer", "a capsule layer in place of $W^O$",
     "--agg gu-em or gu-dynamic"))
KEY = ("$h$: one of the $H$ heads", "arrow to the left: changes a step",
       "dashed: a reward in the loss")


@dataclass
class Settings(Flags):
    """There are none."""


def draw_box(ax, center, width: float, lines: list[str], colors=PLAIN) -> None:
    """A box with centred lines of text."""
    x, y = center
    height = 0.2 * len(lines) + 0.2
    ax.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, facecolor=colors[0],
                                edgecolor=colors[1], boxstyle="round,pad=0,rounding_size=0.08"))
    for i, line in enumerate(lines):
        style = {}
        if line.startswith("--"):
            style = {"family": "monospace"}
        elif len(lines) == 3 and i == 0:                 # the names of papers
            style = {"weight": "bold"}
        baseline = y + 0.2 * (i - (len(lines) - 1) / 2) + 0.05
        ax.text(x, baseline, line, style, ha="center")


def draw_arrow(ax, start, end, color: str = PLAIN[1], line: str = "-") -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 0,
                                            "shrinkB": 0, "linestyle": line})


def draw(path: Path = Path(__file__).with_name("heads.svg")) -> None:
    """Draws the picture into a file; the same letters give the same bytes."""
    with rc_context({"font.size": 10, "mathtext.fontset": "dejavusans", "svg.fonttype": "path",
                     "svg.hashsalt": "heads"}):
        figure = Figure(figsize=SIZE, facecolor="white")
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, SIZE[0]), ylim=(SIZE[1], 0))
        ax.axis("off")
        ax.text(SIZE[0] / 2, 0.2, "Inside a multi-head attention, and what the papers change",
                ha="center", weight="bold")
        for i, line in enumerate(KEY):
            ax.text(0.15, 5.7 + 0.2 * i, line)
        for y, *lines in STEPS:
            draw_box(ax, (1.25, y), 2.2, lines)
        for (above, *_), (below, *_) in zip(STEPS, STEPS[1:]):
            draw_arrow(ax, (1.25, above + 0.3), (1.25, below - 0.3))
        last = STEPS[-1][0]
        draw_arrow(ax, (1.25, last + 0.3), (1.25, last + 0.55))
        for y, colors, *lines in PAPERS:
            draw_box(ax, (4.2, y), 3.0, lines, colors)
            if colors == LI_2018:                        # it reads the step, for the loss
                draw_arrow(ax, (2.35, y), (2.7, y), colors[1], "--")
                continue
            step = last if y > 4 else y                  # two papers change the last step
            draw_arrow(ax, (2.7, y), (2.35, step + (y - step) / 4), colors[1])
        figure.savefig(path, metadata={"Date": None})


def main(argv=None) -> int:
    return run(lambda _: draw(), Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
