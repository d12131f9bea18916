"""The seven sessions of the course run from top to bottom and print what docs/course.md says."""
import re
import runpy
from pathlib import Path

import pytest
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def value(number: str) -> float:
    return float(number.replace(",", ""))


def last_digit(number: str) -> float:
    """The unit of the last digit of a number: 0.01 of 3.14."""
    _, _, decimals = number.partition(".")
    return 10.0 ** -len(decimals)


def words(text: str) -> list[str]:
    return re.sub(NUMBER, "#", text).split()


# torch's tensors do not know numpy's newest way of being drawn
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("number", range(1, 8))
def test_a_session_prints_what_the_course_says(number, monkeypatch, tmp_path, capsys):
    """The same words; numbers to a unit of the last digit that is said, and in the sessions that
    train or optimize something (2 and 7) to what a processor changes there."""
    name = f"course/session{number}.py"
    document = (ROOT / "docs" / "course.md").read_text()
    said = re.search(rf"```\n\$ python {name}\n(.*?)```", document, flags=re.DOTALL)[1]
    monkeypatch.setenv("FIGURES", str(tmp_path))
    monkeypatch.syspath_prepend(ROOT / "course")
    pyplot.switch_backend("Agg")
    runpy.run_path(str(ROOT / name))
    printed = capsys.readouterr().out
    assert words(printed) == words(said)
    found = re.findall(NUMBER, printed)
    expected = re.findall(NUMBER, said)
    for ours, theirs in zip(found, expected, strict=True):
        tolerance = 1.01 * last_digit(theirs)
        if number in (2, 7):
            tolerance = max(tolerance, 0.02, 0.02 * abs(value(theirs)))
        assert value(ours) == pytest.approx(value(theirs), rel=0, abs=tolerance)
    assert list(tmp_path.glob("*.png"))
    assert not pyplot.get_fignums()
