"""Shared by the sessions: imports from the project's folder, and figures."""
import sys
from pathlib import Path

from matplotlib import pyplot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def show(name: str) -> None:
    """Shows the figures drawn so far. Without a display, writes the last one to figures/."""
    if pyplot.get_backend().lower() != "agg":
        pyplot.show()
        return
    Path("figures").mkdir(exist_ok=True)
    pyplot.savefig(f"figures/{name}.png", dpi=110)
    pyplot.close()
    print(f"written: figures/{name}.png")


def play(draw, frames: int, name: str, label: str) -> None:
    """Shows `draw(ax, t)` for t = 0, 1, ... as a row of panels. `draw` returns the image that the
    color bar with this label belongs to."""
    figure, axes = pyplot.subplots(1, frames, figsize=(1 + 2 * frames, 3), layout="constrained",
                                   sharex=True, sharey=True)
    for t, ax in enumerate(axes):
        image = draw(ax, t)
        ax.label_outer()
    figure.colorbar(image, ax=axes, label=label)
    show(name)
