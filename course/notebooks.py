"""Writes the sessions as notebooks for Jupyter and Colab.

    pip install -r requirements.txt -r requirements-docs.txt
    python -m course.notebooks [FOLDER]

A notebook runs in any folder: its first cell finds the project or clones it.
"""
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

if not __package__:
    print("error: start it in the project's folder: python -m course.notebooks", file=sys.stderr)
    sys.exit(2)

from tools.command_line import flag, run
from tools.files import UserError, new_folder

COURSE = Path(__file__).resolve().parent
SETUP = """\
# Finds the project in this folder or above it. Anywhere else, PROJECT names its folder, or an
# address from which git clones it (as on Colab).
import os
import subprocess
import sys
from pathlib import Path

PROJECT = os.environ.get("PROJECT", {project!r})
here = Path.cwd()
places = [here, *here.parents, here / "project", Path(PROJECT)]
found = [place for place in places if (place / "course" / "lesson.py").exists()]
if not found:
    assert PROJECT, "set PROJECT to the project's folder or address"
    subprocess.run(["git", "clone", "--quiet", PROJECT, "project"], check=True)
    requirements = ["-r", "project/requirements.txt"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *requirements], check=True)
    found = [here / "project"]
sys.path.insert(0, str(found[0] / "course"))
%matplotlib inline"""


PREDICT = "**Predict before you run.**"          # a question about the cell below
ANSWER = "**Answer.**"                           # the start of a cell below that
PREDICTION = "*Your prediction:*"
FOLDED = "<details><summary>Answer</summary>\n\n{}\n\n</details>"


def require(*packages: str) -> None:
    """Raises UserError if a package of requirements-docs.txt is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UserError(f"needs {', '.join(missing)}: "
                        "pip install -r requirements.txt -r requirements-docs.txt")


def read_session(path: Path, project: str = ""):
    """Converts a session to a notebook whose first cell finds the project."""
    import jupytext
    from nbformat.v4 import new_code_cell
    notebook = jupytext.read(path)
    notebook.cells.insert(0, new_code_cell(SETUP.format(project=project)))
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3",
                                    "language": "python"}
    return notebook


def execute(notebook, folder: Path):
    """Runs a notebook in a folder. Returns it with its outputs."""
    from nbclient import NotebookClient
    place = {"metadata": {"path": str(folder)}}
    # every kernel would warn that it is not encrypted
    quiet = ["--log-level=ERROR"]
    return NotebookClient(notebook, resources=place, coalesce_streams=True,
                          extra_arguments=quiet).execute()


@dataclass
class Settings:
    folder: Path = flag(Path("notebooks"), "a new folder (notebooks)", positional=True,
                        metavar="FOLDER")
    project: str = flag(str(COURSE.parent), "where a notebook elsewhere finds the project: a "
                        "folder, or an address that git can clone", metavar="PLACE")


def write_notebooks(s: Settings) -> None:
    """Writes one notebook per session into a new folder, with a cell for every prediction, and the
    answers folded. Raises UserError without jupytext."""
    require("jupytext")
    import jupytext
    from nbformat.v4 import new_markdown_cell
    project = s.project
    if Path(project).is_dir():                           # an address is none
        project = str(Path(project).resolve())
    with new_folder(s.folder):
        for path in sorted(COURSE.glob("session?.py")):
            notebook = read_session(path, project)
            cells = []
            for cell in notebook.cells:
                if cell.source.startswith(ANSWER):
                    cell.source = FOLDED.format(cell.source)
                cells.append(cell)
                if PREDICT in cell.source:
                    cells.append(new_markdown_cell(PREDICTION))
            notebook.cells = cells
            target = s.folder / path.with_suffix(".ipynb").name
            jupytext.write(notebook, target)
            print(target)


def main(argv=None) -> int:
    return run(write_notebooks, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
