"""The seven sessions run from top to bottom, and their own asserts hold."""
import re
import runpy
from pathlib import Path

import pytest
from matplotlib import pyplot

COURSE = Path(__file__).resolve().parents[2] / "course"


# torch's tensors do not know numpy's newest way of being drawn
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("number", range(1, 8))
def test_a_session_runs_and_draws_its_figures(number, monkeypatch, tmp_path, capsys):
    path = COURSE / f"session{number}.py"
    monkeypatch.syspath_prepend(COURSE)
    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("Agg")
    runpy.run_path(str(path))
    figures = re.findall(rf'"(session{number}-\w+)"', path.read_text("utf-8"))
    printed = re.findall(r"^written: (.*)", capsys.readouterr().out, re.MULTILINE)
    assert figures and {Path(file).stem for file in printed if Path(file).exists()} == {*figures}
