"""Draws heads.svg: where the five papers plug into a Transformer's attention.

    python -m docs.draw
"""
import io
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

INK = "#222222"
GREY = "#707070"
PLAIN = "#eeeeee"
LI_2018 = ("#cfe3f7", "#1f5f9f")  # of a paper: its box, its lines
LI_2019 = ("#d5efd3", "#2f7d2c")
GU = ("#fbe3c4", "#b06a00")
DUAN = ("#e7d9f3", "#6b3fa0")


def box(axes, x, y, width, height, text, color=PLAIN, edge=INK, size=10.5):
    """A rounded box with its text in the middle; (x, y) is its lower left corner."""
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12",
                                  facecolor=color, edgecolor=edge, linewidth=1))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size,
              color=INK, linespacing=1.35)


def arrow(axes, start, end, color=INK, **style):
    """An arrow between two points."""
    style = dict(arrowstyle="-|>", color=color, linewidth=1.2, shrinkA=0, shrinkB=0, **style)
    axes.annotate("", end, start, arrowprops=style)


def model(axes):
    """Left: the three attentions of an encoder-decoder Transformer and their names in the flags."""
    axes.text(1.75, 8.55, "a Transformer", ha="center", fontsize=11.5, color=INK, weight="bold")
    box(axes, 0.1, 3.9, 1.5, 0.8, "self-attention\nenc", size=9.3)
    box(axes, 0.1, 5.2, 1.5, 0.6, "feed-forward", size=9.3)
    box(axes, 1.9, 3.9, 1.5, 0.8, "self-attention\ndec", size=9.3)
    box(axes, 1.9, 5.2, 1.5, 0.8, "attention\ncross", size=9.3)
    box(axes, 1.9, 6.5, 1.5, 0.6, "feed-forward", size=9.3)
    ups = [(0.85, 3.3, 3.9), (0.85, 4.7, 5.2), (2.65, 3.3, 3.9), (2.65, 4.7, 5.2), (2.65, 6.0, 6.5),
           (2.65, 7.1, 7.7)]
    for x, low, high in ups:
        arrow(axes, (x, low), (x, high))
    axes.plot([0.85, 0.85, 1.75, 1.75], [5.8, 6.25, 6.25, 5.6], color=INK, linewidth=1.1)
    arrow(axes, (1.75, 5.6), (1.9, 5.6))
    words = [(0.85, 3.05, "source"), (2.65, 3.05, "target so far"), (2.65, 7.85, "next token")]
    for x, y, text in words:
        axes.text(x, y, text, ha="center", va="center", fontsize=9.3, color=INK)
    axes.text(1.75, 2.3, "the same in every layer", ha="center", va="center", fontsize=9.3,
              color=GREY)


def attention(axes):
    """Middle: one multi-head attention, from the bottom to the top."""
    left = 4.3
    width = 2.9
    center = left + width / 2
    axes.text(center, 8.55, "each of its attentions", ha="center", fontsize=11.5, color=INK,
              weight="bold")
    steps = [
        (0.4, r"$Q^h,\ K^h,\ V^h$" + "\nH heads of width $d_k = d/H$"),
        (2.0, r"$E^h = Q^h {K^h}^\top /$√$d_k$" + "\nlogits"),
        (3.6, r"$A^h = \mathrm{softmax}(E^h)$" + "\nattended positions"),
        (5.2, r"$O^h = A^h V^h$" + "\noutputs of the heads"),
        (6.8, r"$O = [O^1, \ldots, O^H]\, W^O$" + "\none vector per token"),
    ]
    for y, text in steps:
        box(axes, left, y, width, 0.95, text)
    for (low, _), (high, _) in zip(steps, steps[1:]):
        arrow(axes, (center, low + 0.95), (center, high))
    arrow(axes, (center, -0.05), (center, 0.4))
    arrow(axes, (center, 7.75), (center, 8.25))


def papers(axes):
    """Right: what the papers do to an attention, with dashed arrows to where they do it."""
    left = 8.2
    width = 4.4
    edge = 7.2                                          # of `attention`
    axes.text(left + width / 2, 8.55, "what the papers do to it", ha="center", fontsize=11.5,
              color=INK, weight="bold")
    li_2019 = ("Li 2019, Li 2021: routing-by-agreement\n" + r"in place of $W^O$"
               + "\n--agg dynamic, em")
    gu = ("Gu 2019: a capsule layer behind the heads\n" + r"$O = u + \mathrm{FFN}(v)$"
          + "\n--agg gu-dynamic, gu-em")
    li_2018 = ("Li 2018, Li 2021: rewards the heads for differing\n"
               + r"$J = \log P + \lambda D$,  with $D$ of $V^h$, $A^h$ or $O^h$"
               + "\n--reg subspace, position, output")
    duan = ("Duan 2020: routes the logits themselves\n"
            + r"$E + \Omega^{\uparrow} + \Omega^{\leftrightarrow}$ in place of $E$"
            + "\n--capsule enc dec")
    box(axes, left, 6.9, width, 1.25, li_2019, *LI_2019, size=9.3)
    box(axes, left, 5.3, width, 1.25, gu, *GU, size=9.3)
    box(axes, left, 3.2, width, 1.65, li_2018, *LI_2018, size=9.3)
    box(axes, left, 1.5, width, 1.25, duan, *DUAN, size=9.3)
    dashed = dict(linestyle=(0, (4, 2)))
    arrow(axes, (left, 7.5), (edge, 7.45), LI_2019[1], **dashed)
    arrow(axes, (left, 5.95), (edge, 7.1), GU[1], **dashed)
    for y, start in ((5.6, 4.6), (4.05, 4.05), (0.95, 3.5)):    # O, A, V: where D is measured
        arrow(axes, (left, start), (edge, y), LI_2018[1], **dashed)
    arrow(axes, (left, 2.2), (edge, 2.4), DUAN[1], **dashed)


def save(figure, path: Path) -> None:
    """Writes a figure as a small SVG: text as text, hundredths of a point, a path on one line; the
    same bytes for the same matplotlib."""
    drawn = io.StringIO()
    nobody = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with pyplot.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata=nobody)
    pyplot.close(figure)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", drawn.getvalue())
    path.write_text(re.sub(r" ?\n(?=[LQCz\"])", " ", text))


def main() -> None:
    """Writes heads.svg beside this file."""
    pyplot.rcParams["mathtext.fontset"] = "dejavusans"
    figure, axes = pyplot.subplots(figsize=(9.8, 6.6), facecolor="white")
    axes.set(xlim=(-0.05, 12.75), ylim=(-0.1, 8.9))
    axes.axis("off")
    model(axes)
    attention(axes)
    papers(axes)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.99)
    save(figure, Path(__file__).with_name("heads.svg"))


if __name__ == "__main__":
    main()
