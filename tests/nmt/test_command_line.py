"""command_line.py: dataclasses are the flags. Mistakes are in test_errors.py."""
import io
import sys
from dataclasses import dataclass

import pytest

from nmt.command_line import count, flag, parse, run


@dataclass
class Example:
    """Every kind of flag."""
    files: tuple[str, ...] = flag((), "which files", positional=True, nargs="*", metavar="FILE")
    pairs: int | None = flag(None, "how many", type=count)
    kinds: tuple[str, ...] = flag((), "kinds", choices=("a", "b"))
    long_name: bool = flag(True, "yes or no")


@pytest.mark.parametrize("words, values", [
    ("", {}), ("x y --kinds b a", dict(files=("x", "y"), kinds=("b", "a"))),
    ("--pairs 7 --no-long-name", dict(pairs=7, long_name=False))])
def test_the_annotation_says_how_a_flag_is_read(words, values):
    assert parse("", Example, argv=words.split()) == [Example(**values)]


def test_a_bug_keeps_its_traceback():
    def command():
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(command, argv=[])


def test_the_output_is_utf8(monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="latin-1"))

    def command():
        print("für 猫")
        assert output.getvalue().split() == ["für".encode(), "猫".encode()]

    run(command, argv=[])
