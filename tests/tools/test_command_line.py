"""command_line.py: a dataclass is the flags; mistakes are one line and exit code 2, bugs have
tracebacks."""
import importlib
import os
import re
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import logic
import probe
import train_mt
from nmt.run_folder import say
from tools import command_line as flags
from tools.command_line import command_line, flag, name_run, parse
from tools.files import UserError

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Basic:
    """Flags of several commands."""
    count: int = flag(3, "how many, 100 % of them", low=1)
    rate: float | None = flag(None, "how fast", "speed", above=0, high=2, metavar="FACTOR")


@dataclass
class Example(Basic):
    """Every kind of flag, and those of Basic."""
    tables: tuple[str, ...] = flag((), "which tables", positional=True)
    kind: str = flag("a", "the kind", choices=("a", "b"))
    kinds: tuple[str, ...] = flag((), "several kinds", "speed", choices=("a", "b"), metavar="K")
    sizes: tuple[int, ...] | None = flag(None, "sizes", low=1, high=9)
    long_name: bool = flag(True, "yes or no")


DEFAULTS = dict(count=3, rate=None, tables=(), kind="a", kinds=(), sizes=None, long_name=True)


# ---- From words to settings

@pytest.mark.parametrize("words, changes", [
    ("", {}),
    ("x y --kinds b a", dict(tables=("x", "y"), kinds=("b", "a"))),
    ("--count 7 --rate 0.5 --sizes 1 9", dict(count=7, rate=0.5, sizes=(1, 9))),
    ("--kind b --no-long-name", dict(kind="b", long_name=False)),
    ("--long-name", dict(long_name=True)),
])
def test_flags_are_read_and_written(words, changes):
    """The annotation decides how a flag is read."""
    settings = parse(Example, words.split())
    assert asdict(settings) == {**DEFAULTS, **changes}
    assert settings.given == changes.keys()
    assert command_line(Example, changes) == words.replace("x y", "tables x y").split()


@dataclass
class Build:
    """A positional flag with a type of its own."""
    folder: Path = flag(Path("site"), "where", positional=True)


def test_values_of_flags(tmp_path, monkeypatch):
    """A pattern is the paths that it names, sorted, as other shells than Windows' give them. Values
    add up and count once. A path that is left out has its default. Presets do not override what is
    given."""
    monkeypatch.chdir(tmp_path)
    for name in ("b2", "b1", "a"):
        (tmp_path / name).touch()
    assert parse(Example, ["c", "b*", "b1", "*x"]).tables == ("c", "b1", "b2", "*x")
    for words in ("--kinds b --kinds a", "--kinds b a b"):
        assert parse(Example, words.split()).kinds == ("b", "a")
    assert parse(Build, []).folder == Path("site") and parse(Build, ["x"]).folder == Path("x")
    settings = parse(Example, "--count 3".split(), lambda s: dict(count=9, kind=s.count))
    assert (settings.count, settings.kind) == (3, 3)


def test_a_long_name_of_a_run_is_cut():
    words = ["--name", "a" * 99]
    assert name_run(words[:1], "-seed1") == "name-seed1"
    long, other = name_run(words, "-seed1"), name_run([*words, "b"], "-seed1")
    assert long != other and len(long) == len(other) == 106
    assert long.startswith("name-aaa") and long.endswith("-seed1")


@pytest.mark.parametrize("words, message", [
    ("--co 3", "--co; did you mean --count?"),                   # no abbreviations
    ("--sign", "--sign (--help"),                                # nor is it --kind
    pytest.param("--count 1" + "0" * 5000, "--count", id="a long number"),
    ("--rate 0", "--rate: '0' is not a number above 0, at most 2"),
    ("--rate nan", "--rate: 'nan' is not a number"),
    ("--count 0", "--count: '0' is not a whole number from 1 to 1000000000"),
    ("--count", "--count: expected one argument"),
    ("--long-name=yes", "takes no value such as 'yes'"),
    ("--sizes 1 10", "--sizes: '10' is not a whole number from 1 to 9"),
    ("--kinds a,b", "separate several values by spaces"),
    ("--kind a,b", "invalid choice"),
])
def test_the_parser_errs_in_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as exit:
        parse(Example, words.split())
    error = capsys.readouterr().err
    assert exit.value.code == 2
    assert message in error and error.startswith("test_command_line.py: error: ")
    assert error.count("\n") == 1 and len(error) < 200
    assert ("several" in error) == ("--kinds" in words)


@pytest.mark.parametrize("script", [train_mt, probe, logic])
def test_a_flag_keeps_the_range_of_its_declaration_elsewhere(script, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(script.Settings, ["--heads", "0"])
    assert "--heads: '0' is not a whole number from 1 to" in capsys.readouterr().err


@pytest.mark.parametrize("script, recipe, words", [
    (train_mt, "toy", ""), (train_mt, "tiny", "--data multi30k"),
    (train_mt, "small", "--arch small"), (train_mt, "base", "--arch base"),
    (train_mt, "big", "--arch big --data enja"), (probe, "small", ""),
    (probe, "li2019", "--protocol li2019"), (probe, "--encoder", "--encoder x"),
    (logic, "small", ""), (logic, "--full", "--full")])
def test_the_default_that_help_prints_is_the_one_that_is_used(script, recipe, words):
    settings = parse(script.Settings, words.split(), script.presets)
    checked = 0
    for field in fields(script.Settings):
        text = flags.argument_options(field, field.type, script.Settings.RECIPES)["help"]
        printed = re.search(r"\(([^()]*)\)$", text)
        if not printed or field.default in (None, (), "") or f"--{field.name}" in words:
            continue
        defaults = dict(part.rpartition(" ")[::2] for part in printed[1].split(", "))
        assert len(defaults) == 1 or len(set(defaults.values())) > 1         # else one says it
        value = defaults.get(recipe, defaults.get(""))
        if value not in (None, "all") and type(field.default) is not bool:
            used = getattr(settings, field.name)
            used = used if isinstance(used, tuple) else (used,)
            assert value == " ".join(map(str, used)), field.name
            checked += 1
    assert checked > (25 if script is train_mt else 6)


# ---- Running a command

@dataclass
class Nothing:
    """A command without flags."""


@pytest.mark.parametrize("error, status, message", [
    (None, 0, ""),
    (KeyboardInterrupt(), 130, ""),
    (BrokenPipeError(), 141, ""),
    (UserError("--x 3\n does\tnot fit"), 2, "--x 3 does not fit"),
    (PermissionError(13, "Permission denied", "a/b"), 2,
     "a/b: Permission denied: choose another place"),
    (OSError(28, "No space left on device"), 2, "output: No space left on device: free some space"),
    (MemoryError(), 2, "not enough memory: choose a smaller model or smaller batches"),
    (torch.OutOfMemoryError("CUDA out of memory"), 2, "not enough memory"),
    (RuntimeError("[gloo] Connection closed by peer [::1]:9"), 2, "another process of this run"),
    (RuntimeError("DefaultCPUAllocator: not enough memory"), 2, "choose a smaller model"),
])
def test_run_gives_a_status_and_at_most_one_line(error, status, message, monkeypatch, capfd):
    monkeypatch.setattr(os, "dup2", lambda *_: None)     # of the pipe
    assert flags.run(Mock(side_effect=error), Nothing, []) == status
    line = capfd.readouterr().err
    assert message in line
    assert line.count("\n") == bool(message)


def test_lines_are_in_a_file_as_they_are_printed(tmp_path, monkeypatch):
    """With a question mark for a character that a terminal lacks."""
    with open(tmp_path / "log", "w", encoding="latin-1") as log:
        monkeypatch.setattr(sys, "stdout", log)
        say("step 1")
        assert (tmp_path / "log").read_text("latin-1") == ""
        assert flags.run(lambda settings: say("für 猫"), Nothing, []) == 0
        say("step 3")
        assert (tmp_path / "log").read_text("latin-1") == "step 1\nfür ?\nstep 3\n"


def test_closed_streams_are_replaced(monkeypatch):
    """They are None where a shell's `>&-` closed them. A bug keeps its traceback, a lack of memory
    has none."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert flags.run(lambda settings: say(sys.stdin.read()), Nothing, []) == 0
    assert flags.run(lambda settings: torch.empty(2 ** 60), Nothing, []) == 2
    with pytest.raises(RuntimeError):
        flags.run(Mock(side_effect=RuntimeError("a bug")), Nothing, [])


@pytest.mark.parametrize("module, operands", [
    ("train_mt", ""), ("translate", " [RUN]"), ("probe", ""), ("logic", ""),
    ("papers.reproduce", " [TABLE ...]"), ("papers.analyze", " RUN ..."), ("papers.bench", "")])
def test_help_has_80_columns_and_names_what_is_needed(module, operands, capsys):
    script = importlib.import_module(module)
    with pytest.raises(SystemExit) as exit:
        script.main(["--help"])
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert exit.value.code == 0
    assert max(map(len, lines)) <= 80 and lines[0].endswith(f" [flags]{operands}")
    assert "()" not in out                               # an empty default
    texts = [script.__doc__]
    assert ("\nDefaults are in parentheses.\n" in out) == bool(fields(script.Settings))
    for field in fields(script.Settings):
        if field.name in getattr(script.Settings, "HIDDEN", ()):         # its tables set them
            assert f"--{field.name.replace('_', '-')} " not in out
        else:
            texts.append(field.metadata["help"])
            assert f"\n{field.metadata['group'] or 'options'}:\n" in out
    assert script.__doc__[:40] in out                    # paragraphs, not letters
    for text in texts:
        assert "".join(text.split()) in "".join(out.split())
    if operands.startswith(" FOLDER"):
        with pytest.raises(SystemExit):
            script.main([])
        assert "are required: FOLDER (--help lists the" in capsys.readouterr().err
