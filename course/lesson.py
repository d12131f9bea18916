"""Shared by the sessions: the project's folder on Python's path, and the place of figures."""
import os
import sys
from pathlib import Path

from matplotlib import pyplot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def show(name: str) -> None:
    """Shows the figures drawn so far, in a notebook or on a screen. Without either
    (MPLBACKEND=Agg) the last one goes to a file. Two environment variables name it: FIGURES, the
    folder (figures), and FIGURE_FORMAT, png (the default), svg or pdf."""
    if pyplot.get_backend().lower() != "agg":
        pyplot.show()
        return
    folder = Path(os.environ.get("FIGURES", "figures"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{os.environ.get('FIGURE_FORMAT', 'png')}"
    pyplot.savefig(path, dpi=110)
    pyplot.close()
    print(f"figure: {path}", file=sys.stderr)
