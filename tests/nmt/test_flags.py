"""flags.py: a dataclass is the flags; mistakes are one line and exit code 2, bugs have
tracebacks."""
import argparse
import os
import signal
import sys
from dataclasses import asdict, dataclass

import pytest
import torch

from nmt import flags
from nmt.flags import ModelFlags, UserError, command_line, flag, parse


@dataclass
class Nothing:
    """A command without flags."""


def run(command, argv=()):
    """The status of a command without flags."""
    return flags.run(command, Nothing, "p.py", "", list(argv))


def raising(error):
    """A command that raises the error, or nothing."""
    def command(settings):
        if error:
            raise error
    return command


# ---- Running a command

@pytest.mark.parametrize("error, status, message", [
    (None, 0, ""),
    (KeyboardInterrupt(), 130, ""),
    (BrokenPipeError(), 0, ""),
    (UserError("--x 3\n does\tnot fit"), 2, "p.py: error: --x 3 does not fit\n"),
    (PermissionError(13, "Permission denied", "a/b"), 2,
     "p.py: error: a/b: Permission denied: choose another place\n"),
    (OSError(28, "Disk full"), 2,
     "p.py: error: standard output: Disk full: choose another place\n"),
])
def test_run_gives_a_status_and_at_most_one_line(error, status, message, capsys):
    assert run(raising(error)) == status
    assert capsys.readouterr().err == message


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_standard_output_on_a_full_disk(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(lambda settings: print("a line")) == 2
    assert capsys.readouterr().err == \
        "p.py: error: standard output: No space left on device: choose another place\n"


@pytest.mark.parametrize("error", [
    MemoryError(), torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_no_bug(error, capsys):
    assert run(raising(error)) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "memory" in message and "--max-tokens" in message


def test_torch_says_so_in_the_words_that_are_looked_for():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2 ** 60, dtype=torch.uint8)
    assert flags.out_of_memory(error.value)


@pytest.mark.skipif(os.name != "posix", reason="elsewhere os.kill ends the tests themselves")
@pytest.mark.parametrize("error", [KeyError(), UserError("too late")])
def test_sigterm_leaves_through_every_finally(error, capsys):
    before = signal.getsignal(signal.SIGTERM)
    left = []

    def command(settings):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise error
        finally:
            left.append(1)
    with pytest.raises(SystemExit) as exit:
        run(command)
    assert exit.value.code == 143 and left
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == ""


def test_nul_in_an_argument(capsys):
    with pytest.raises(SystemExit) as exit:
        run(print, ["--x", "a\0b"])
    error = capsys.readouterr().err
    assert exit.value.code == 2 and error.count("\n") == 1 and r"'a\x00b' holds a NUL" in error


@pytest.mark.parametrize("error", [
    RuntimeError("a bug"), KeyError("a"), ValueError("b"), TypeError("c")])
def test_bugs_keep_their_traceback(error):
    with pytest.raises(type(error)):
        run(raising(error))


def test_letters_that_the_terminal_lacks_do_not_end_a_run(monkeypatch, tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert run(lambda settings: print("Größe 猫 \udcff")) == 0
    assert (tmp_path / "out").read_text() == "Gr\\xf6\\xdfe \\u732b \\udcff\n"


# ---- Types of values

@pytest.mark.parametrize("kind, good, bad", [
    (flags.number(int, 1, 9), {"1": 1, "9": 9, " 3 ": 3},
     ["0", "10", "2.0", "x", "", "nan", "1" + "0" * 400, "9" * 5000]),
    (flags.number(float, 0, 1), {"0": 0, "1": 1, "1e-3": 1e-3, ".5": 0.5},
     ["-0.1", "1.1", "nan", "inf", "-inf", "x", ""]),
    (flags.number(float, above=0, high=1), {"1": 1, "1e-9": 1e-9}, ["0", "-0.0", "nan"]),
    (flags.number(int, -3), {"-3": -3, "1000000000": 10 ** 9}, ["-4", "1000000001"]),
])
def test_numbers_within_their_range(kind, good, bad):
    assert {text: kind(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a .*number") as error:
            kind(text)
        assert len(str(error.value)) < 120


def test_names_of_folders():
    assert flags.folder_name("toy-em.2") == "toy-em.2" and flags.folder_name("a/b") == "a/b"
    for text in ("", " ", ".", "..", "./", "../.."):
        with pytest.raises(argparse.ArgumentTypeError, match="names no folder"):
            flags.folder_name(text)


# ---- A dataclass of flags

@dataclass
class Basic:
    """Flags of several commands."""
    run: str = flag(help="which run", positional=True, metavar="RUN")
    count: int = flag(3, "how many, 100 % of them", low=1)
    rate: float | None = flag(None, "how fast", "speed", above=0, high=2, metavar="FACTOR")


@dataclass
class Example(Basic):
    """Every kind of flag, beside those of Basic."""
    more: tuple[str, ...] = flag((), "other runs", positional=True)
    kind: str = flag("a", "the kind", choices=("a", "b"))
    kinds: tuple[str, ...] = flag(("a",), "several kinds", "speed", choices=("a", "b"), metavar="K")
    sizes: tuple[int, ...] | None = flag(None, "sizes", low=1, high=9)
    long_name: bool = flag(True, "yes or no", alias="--short")
    stop: bool = flag(False, "and stop")
    name: str | None = flag(None, "a folder", type=flags.folder_name)


def parsed(*argv):
    return parse(Example, list(argv), "p.py", "An example.")


def test_what_is_not_given_has_its_default():
    settings = parsed("x")
    assert asdict(settings) == dict(count=3, rate=None, run="x", more=(), kind="a", kinds=("a",),
                                    sizes=None, long_name=True, stop=False, name=None)
    assert settings.given == {"run", "more"} or settings.given == {"run"}


def test_the_annotation_decides_how_a_flag_is_read():
    settings = parsed("x", "y", "z", "--count", "7", "--rate", "0.5", "--kind", "b", "--kinds", "b",
                      "a", "--sizes", "1", "9", "--no-long-name", "--stop", "--name", "deep/er")
    assert asdict(settings) == dict(count=7, rate=0.5, run="x", more=("y", "z"), kind="b",
                                    kinds=("b", "a"), sizes=(1, 9), long_name=False, stop=True,
                                    name="deep/er")
    assert settings.given == set(asdict(settings))
    assert parsed("x", "--short").long_name is True
    assert parsed("x", "--long-name", "--no-long-name").long_name is False


@pytest.mark.parametrize("argv, words", [
    (["x", "--coun", "3"], "--coun 3; did you mean --count?"),               # no abbreviations
    (["x", "-rate=1", "--kin", "a"], "did you mean --rate, --kind?"),
    (["x", "--wholly-else"], "--wholly-else (--help"),
    (["x", "--count", "0"], "--count: '0' is not a whole number from 1 to"),
    (["x", "--count", "1.5"], "--count: '1.5' is not a whole number from 1 to"),
    (["x", "--rate", "0"], "--rate: '0' is not a number above 0 up to 2"),
    (["x", "--rate", "2.1"], "--rate"),
    (["x", "--count"], "--count: expected one argument"),
    (["x", "--kind", "c"], "--kind: invalid choice: 'c'"),
    (["x", "--kinds", "a", "c"], "--kinds: invalid choice: 'c'"),
    (["x", "--sizes", "1", "10"], "--sizes: '10' is not a whole number from 1 to 9"),
    (["x", "--name", ".."], "--name: '..' names no folder"),
    (["x", "--a\nb"], "--a b"),
    ([], "RUN"),
])
def test_the_parser_errs_in_one_line(argv, words, capsys):
    with pytest.raises(SystemExit) as exit:
        parsed(*argv)
    error = capsys.readouterr().err
    assert exit.value.code == 2 and error.startswith("p.py: error: ") and error.count("\n") == 1
    assert words in error and error.endswith("(--help lists the arguments)\n")


def test_help_has_the_defaults_and_the_groups(capsys):
    with pytest.raises(SystemExit) as exit:
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert exit.value.code == 0 and text.startswith("usage: p.py") and "An example." in text
    assert "how many, 100 % of them (default: 3)" in text and "the kind (default: a)" in text
    assert text.index("how many") < text.index("speed:") < text.index("how fast")
    assert "--rate FACTOR" in text and "--long-name, --no-long-name, --short" in text
    assert "--stop " in text and "--no-stop" not in text
    assert "(default: None)" not in text


def test_a_command_line_is_read_back_as_it_was():
    settings = parsed("x", "--count", "7", "--kinds", "b", "a", "--long-name", "--rate", "0.5")
    given = {name: getattr(settings, name) for name in settings.given - {"run", "more"}}
    words = command_line(Example, given)
    assert words == ["--count", "7", "--rate", "0.5", "--kinds", "b", "a", "--long-name"]
    assert asdict(parsed("x", *words)) == asdict(settings)
    assert command_line(Example, {"long_name": False, "stop": False}) == ["--no-long-name"]


def test_what_the_configuration_refuses_is_said_in_flags():
    model = parse(ModelFlags, ["--heads", "3"], "p.py", "")
    with pytest.raises(UserError, match="--d-model 128 must be even and a multiple of --heads 3"):
        model.model_config(9)
