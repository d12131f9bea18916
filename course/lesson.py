"""Shared by the sessions: finds the project's modules, and shows figures and players."""
import errno
import os
import re
import sys
from pathlib import Path

from matplotlib import pyplot
from matplotlib.animation import FuncAnimation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.files import UserError, as_user_error, describe_error  # noqa: E402
from tools.streams import setup_streams  # noqa: E402


def end_session(kind, error, traceback) -> None:
    """Ends a session on a user's mistake or a full disk with one line and status 2, and silently if
    `| head` closed its output. Other errors keep their traceback."""
    if issubclass(kind, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        error = UserError(describe_error(error))
    if not isinstance(error, UserError):
        sys.__excepthook__(kind, error, traceback)
        return
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


sys.excepthook = end_session
setup_streams()                 # the sessions print German, which some systems' encoding lacks
try:
    pyplot.switch_backend(pyplot.get_backend())
except ImportError:             # MPLBACKEND names one of a notebook that this Python lacks
    pyplot.switch_backend("Agg")

# characters for the player's buttons; matplotlib would load icons from the web
BUTTONS = {"minus": "−", "fast-backward": "«", "step-backward": "‹", "pause": "‖", "play": "►",
           "play fa-flip-horizontal": "◄", "step-forward": "›", "fast-forward": "»", "plus": "+"}


def show(name: str) -> None:
    """Shows the figures drawn so far, in a notebook or on a screen. Without a display
    (MPLBACKEND=Agg) writes the last one to a file. The environment variables FIGURES, by default
    figures, and FIGURE_FORMAT, by default png, are its folder and format (png, svg or pdf). Raises
    UserError for another format, and for a folder that cannot be written."""
    if pyplot.get_backend().lower() != "agg":
        pyplot.show()
        return
    folder = Path(os.environ.get("FIGURES", "figures"))
    file_format = os.environ.get("FIGURE_FORMAT", "png")
    if file_format not in ("png", "svg", "pdf"):
        raise UserError(f"FIGURE_FORMAT={file_format}: choose png, svg or pdf")
    path = folder / f"{name}.{file_format}"
    with as_user_error("write", path):
        folder.mkdir(parents=True, exist_ok=True)
        pyplot.savefig(path, dpi=110)
    pyplot.close()
    print(f"figure: {path}", file=sys.stderr)


def play(draw, frames: int, name: str, label: str) -> None:
    """Shows `draw(ax, t)` for t = 0, 1, ...: in a notebook as a player with a slider over t,
    otherwise as a row of panels. `draw` returns the image that the color bar with this label
    belongs to."""
    if "inline" not in pyplot.get_backend():
        figure, axes = pyplot.subplots(1, frames, figsize=(1 + 2 * frames, 3), layout="constrained",
                                       sharex=True, sharey=True)
        for t, ax in enumerate(axes):
            image = draw(ax, t)
            ax.label_outer()
        figure.colorbar(image, ax=axes, label=label)
        show(name)
        return
    from IPython.display import HTML, display
    figure, ax = pyplot.subplots(figsize=(4.4, 3.6), layout="constrained")
    figure.colorbar(draw(ax, 0), label=label)

    def redraw(t):
        ax.clear()
        draw(ax, t)

    player = FuncAnimation(figure, redraw, frames).to_jshtml(fps=1, default_mode="once")
    pyplot.close(figure)
    player = re.sub(r"<link [^>]*>", "", player)
    for button, letter in BUTTONS.items():
        player = player.replace(f'<i class="fa fa-{button}"></i>', letter)
    display(HTML(player))
