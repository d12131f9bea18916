"""cli.py: mistakes are one line and exit code 2, bugs keep their traceback, numbers have ranges."""
import argparse
import os
import signal
import sys

import pytest
import torch

from nmt import flags

from nmt.flags import Parser, UserError


def run(error, capsys):
    """The status and the complaint of a command that raises the error."""
    def command(args):
        if error:
            raise error
    status = flags.run(command, Parser(prog="p.py"), [])
    return status, capsys.readouterr().err


@pytest.mark.parametrize("error, status, message", [
    (None, 0, ""), (KeyboardInterrupt(), 130, ""), (BrokenPipeError(), 0, ""),
    (UserError("--x 3\n does\tnot fit"), 2, "p.py: error: --x 3 does not fit\n"),
    (PermissionError(13, "Permission denied", "a/b"), 2, "p.py: error: a/b: Permission denied: choose another place\n"),
    (OSError(28, "Disk full"), 2, "p.py: error: standard output: Disk full: choose another place\n"),
])
def test_run_gives_a_status_and_at_most_one_line(error, status, message, capsys):
    assert run(error, capsys) == (status, message)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_standard_output_on_a_full_disk(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert flags.run(lambda args: print("a line"), Parser(prog="p.py"), []) == 2
    assert capsys.readouterr().err == "p.py: error: standard output: No space left on device: choose another place\n"


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"),
                                   RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_no_bug(error, capsys):
    status, message = run(error, capsys)
    assert status == 2 and message.count("\n") == 1 and "memory" in message and "--max-tokens" in message


def test_torch_says_so_in_the_words_that_are_looked_for():
    with pytest.raises(RuntimeError) as error:
        torch.empty(2 ** 60, dtype=torch.uint8)
    assert flags.out_of_memory(error.value)


@pytest.mark.skipif(os.name != "posix", reason="elsewhere os.kill ends the tests themselves")
@pytest.mark.parametrize("error, status", [(None, 143), (UserError("too late"), 143)])
def test_sigterm_leaves_through_every_finally(error, status, capsys):
    before, left = signal.getsignal(signal.SIGTERM), []

    def command(args):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise error or KeyError
        finally:
            left.append(1)
    with pytest.raises(SystemExit) as exit:
        flags.run(command, Parser(prog="p.py"), [])
    assert exit.value.code == status and left and signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == ""


def test_nul_in_an_argument(capsys):
    with pytest.raises(SystemExit) as exit:
        flags.run(print, Parser(prog="p.py"), ["--x", "a\0b"])
    error = capsys.readouterr().err
    assert exit.value.code == 2 and error.count("\n") == 1 and r"'a\x00b' holds a NUL" in error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("a"), ValueError("b"), TypeError("c")])
def test_bugs_keep_their_traceback(error, capsys):
    with pytest.raises(type(error)):
        run(error, capsys)


def test_letters_that_the_terminal_lacks_do_not_end_a_run(monkeypatch, tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert flags.run(lambda args: print("Größe 猫 \udcff"), Parser(prog="p.py"), []) == 0
    assert (tmp_path / "out").read_text() == "Gr\\xf6\\xdfe \\u732b \\udcff\n"


@pytest.mark.parametrize("kind, good, bad", [
    (flags.whole(1, 9), {"1": 1, "9": 9, " 3 ": 3}, ["0", "10", "2.0", "x", "", "nan", "1" + "0" * 400, "9" * 5000]),
    (flags.real(0, 1), {"0": 0, "1": 1, "1e-3": 1e-3, ".5": 0.5}, ["-0.1", "1.1", "nan", "inf", "-inf", "x", ""]),
    (flags.real(0, 1, low_open=True), {"1": 1, "1e-9": 1e-9}, ["0", "-0.0", "nan"])])
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


def test_the_parser_errs_in_one_line_and_takes_no_abbreviations(capsys):
    parser = Parser(prog="p.py")
    parser.add_argument("--count", type=flags.whole(1), help="how many", default=3)
    for argv in (["--coun", "3"], ["--count", "0"], ["a\nb"], ["--count"]):
        with pytest.raises(SystemExit) as exit:
            parser.parse_args(argv)
        error = capsys.readouterr().err
        assert exit.value.code == 2 and error.startswith("p.py: error: ") and error.count("\n") == 1
        assert error.endswith("(--help lists the arguments)\n")
    assert "how many (default: 3)" in " ".join(parser.format_help().split())
