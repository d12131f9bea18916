"""The seven sessions of the course run from top to bottom and print what docs/course.md says."""
import re
import runpy
from pathlib import Path

import pytest
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(NUMBER, text)]


def words(text: str) -> list[str]:
    return re.sub(NUMBER, "#", text).split()


# torch's tensors do not know numpy's newest way of being drawn
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("number", range(1, 8))
def test_a_session_prints_what_the_course_says(number, monkeypatch, tmp_path, capsys):
    """The same words; numbers to rounding, and to what a processor changes in a short training."""
    name = f"course/session{number}.py"
    document = (ROOT / "docs" / "course.md").read_text()
    said = re.search(rf"```\n\$ python {name}\n(.*?)```", document, flags=re.DOTALL)[1]
    monkeypatch.setenv("FIGURES", str(tmp_path))
    monkeypatch.syspath_prepend(ROOT / "course")
    pyplot.switch_backend("Agg")
    runpy.run_path(str(ROOT / name))
    printed = capsys.readouterr().out
    assert words(printed) == words(said)
    assert numbers(printed) == pytest.approx(numbers(said), rel=0.02, abs=0.02)
    assert list(tmp_path.glob("*.png"))
    assert not pyplot.get_fignums()
