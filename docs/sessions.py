"""The sessions of the course, py:percent files, run cell by cell; and their notebooks."""
import base64
import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib


class Cell(NamedTuple):
    """A cell of a session."""
    prose: bool
    text: str                   # Markdown or code
    output: str = ""
    figures: tuple = ()         # names of files


def run_cells(path: Path, folder: Path) -> list[Cell]:
    """The cells of a session, run from top to bottom; its figures go into a folder."""
    matplotlib.use("Agg")
    os.environ |= {"FIGURES": str(folder), "FIGURE_FORMAT": "png"}          # for course/lesson.py
    sys.path.insert(0, str(path.parent))
    cells = []
    names = {"__name__": "__main__"}
    for part in re.split(r"(?m)^# %%", path.read_text("utf-8"))[1:]:
        kind, _, text = part.partition("\n")
        text = text.strip("\n")
        if "[markdown]" in kind:
            cells.append(Cell(True, re.sub(r"(?m)^# ?", "", text)))
            continue
        printed, drawn = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(drawn):
            exec(compile(text, path, "exec"), names)
        figures = re.findall(r"(?m)^figure: (.+)$", drawn.getvalue())
        cells.append(Cell(False, text, printed.getvalue(),
                          tuple(Path(figure).name for figure in figures)))
    return cells


def make_notebook(cells: list[Cell], folder: Path) -> str:
    """A notebook of these cells, with their output and the figures in a folder."""
    written = []
    for cell in cells:
        if cell.prose:
            written.append({"cell_type": "markdown", "metadata": {}, "source": cell.text})
            continue
        outputs = []
        if cell.output:
            outputs.append({"output_type": "stream", "name": "stdout", "text": cell.output})
        for name in cell.figures:
            image = base64.b64encode((folder / name).read_bytes()).decode()
            outputs.append({"output_type": "display_data", "metadata": {},
                            "data": {"image/png": image}})
        written.append({"cell_type": "code", "metadata": {}, "execution_count": None,
                        "source": cell.text, "outputs": outputs})
    kernel = {"name": "python3", "display_name": "Python 3"}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "cells": written,
                       "metadata": {"kernelspec": kernel}}, indent=1)
