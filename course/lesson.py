"""What the seven sessions share: the project's folder on Python's path, and where figures go."""
import os
import sys
from pathlib import Path

from matplotlib import pyplot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def show(name: str) -> None:
    """Shows the figures drawn so far, in a notebook or on a screen. Where there is neither
    (MPLBACKEND=Agg) the last one goes to NAME.png in the folder FIGURES, an environment variable;
    without it in figures/."""
    if pyplot.get_backend().lower() != "agg":
        pyplot.show()
        return
    folder = Path(os.environ.get("FIGURES", "figures"))
    folder.mkdir(parents=True, exist_ok=True)
    pyplot.savefig(folder / f"{name}.png", dpi=110)
    pyplot.close()
    print(f"figure: {folder / name}.png", file=sys.stderr)
