"""Runs the sessions of the course, py:percent files, as notebooks."""
import base64
import contextlib
import io
import os
import re
import sys
from pathlib import Path

import matplotlib


def run_session(path: Path, folder: Path) -> dict:
    """A session, run from top to bottom, as a notebook with its output. Figures go into a folder,
    and their names into the metadata."""
    matplotlib.use("Agg")
    os.environ |= {"FIGURES": str(folder), "FIGURE_FORMAT": "png"}          # for course/lesson.py
    sys.path.insert(0, str(path.parent))
    cells = []
    names = {"__name__": "__main__"}
    for part in re.split(r"(?m)^# %%", path.read_text("utf-8"))[1:]:
        kind, _, source = part.partition("\n")
        source = source.strip("\n")
        cell = {"cell_type": "markdown", "metadata": {}, "source": re.sub("(?m)^# ?", "", source)}
        if "[markdown]" not in kind:
            outputs = run_cell(compile(source, path, "exec"), names)
            cell = {"cell_type": "code", "metadata": {}, "execution_count": None,
                    "source": source, "outputs": outputs}
        cells.append(cell)
    kernel = {"name": "python3", "display_name": "Python 3"}
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": {"kernelspec": kernel}, "cells": cells}


def run_cell(code, names: dict) -> list[dict]:
    """The outputs of a cell's code: the text that it prints, then its figures."""
    printed, drawn = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(drawn):
        exec(code, names)
    outputs = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    for figure in re.findall("(?m)^figure: (.+)$", drawn.getvalue()):
        image = base64.b64encode(Path(figure).read_bytes()).decode()
        outputs.append({"output_type": "display_data", "metadata": {"file": Path(figure).name},
                        "data": {"image/png": image}})
    return outputs
