"""The command translate.py: a line out for every line in."""
import io
import os
import sys

import pytest
from small_run import TEXT, write_run, write_text

import translate
from nmt.search import translate_lines

ODD = ["\ufeffa man sees\r", "\r", "nul \0 bell \x07\r", "\u05e9\u05dc\u05d5 \u202ea \u0645",
       "\U0001f469\u200d\U0001f467 e\u0301", "a\u2028b\x85c\x0bd", "x" * 90, "word " * 9, ""]


@pytest.fixture
def run(tmp_path, tokenizer, monkeypatch):
    """The run folder `run` in the current directory, with other weights in last.pt, and in.txt."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", tokenizer, seed=1)
    (tmp_path / "run" / "best.pt").rename(tmp_path / "run" / "last.pt")
    write_run(tmp_path / "run", tokenizer)
    (tmp_path / "in.txt").write_text("\n".join(TEXT), "utf-8")
    return tmp_path


def expected(model, tokenizer, lines: list[str], beam=4, lenpen=0.6) -> list[str]:
    """The translations, as long as the training text of the run asks."""
    return translate_lines(model, tokenizer, lines, beam, lenpen, length_ratio=3.0)


def call(command: str) -> None:
    translate.main([*command.split(), "--device", "cpu"])


def set_input(monkeypatch, content: bytes, terminal: bool = False) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal)


def test_as_a_filter(run, model, tokenizer, monkeypatch, capfd):
    set_input(monkeypatch, b"\xef\xbb\xbfa man\r\n\n" + "the dög\u2028sees".encode())
    call("run --beam 2 --lenpen 1.5")
    lines = ["a man", "", "the dög\u2028sees"]
    assert capfd.readouterr().out.splitlines() == expected(model, tokenizer, lines, 2, 1.5)


def test_from_a_file_into_a_file(run, model, tokenizer, capfd):
    call("run --input in.txt --output out.txt")
    lines = "".join(f"{line}\n" for line in expected(model, tokenizer, TEXT))
    assert (run / "out.txt").read_bytes().decode() == lines
    assert capfd.readouterr().out == ""
    call("run --input in.txt --output last.txt --checkpoint last")
    assert (run / "last.txt").read_bytes() != (run / "out.txt").read_bytes()


def test_odd_text_gives_as_many_lines(run, capfd):
    write_text(run, "odd", ODD, [])
    call("run --input odd.en --beam 1")
    lines = capfd.readouterr().out.split("\n")[:-1]
    assert len(lines) == len(ODD)
    assert lines[1] == lines[8] == "" != lines[0]
    assert all(len(line.splitlines()) < 2 for line in lines)


def test_at_a_terminal_it_translates_line_by_line(run, model, tokenizer, monkeypatch, capfd):
    set_input(monkeypatch, b"a man\nthe dog\n", terminal=True)
    call("run")
    captured = capfd.readouterr().out
    for translation in expected(model, tokenizer, ["a man", "the dog"]):
        assert f"{translation}\n" in captured


@pytest.mark.parametrize("words, message", [
    ("run --checkpoint step-9 --input in.txt", "step-9.pt"),
    ("run --input gone.txt", "gone.txt"), ("run --input latin.txt", "latin.txt, line 2: not UTF-8"),
    ("run --input latin.txt --output in.txt", "latin.txt, line 2: not UTF-8"),
    ("run --input in.txt --output in.txt", "--output in.txt is the input"),
    ("run --input in.txt --output link.txt", "--output link.txt is the input"),
    ("run --input in.txt --beam 0", "--beam: 0 is not a whole number from 1 on")])
def test_a_mistake_is_one_line(words, message, run, capsys):
    """An older output stays."""
    (run / "latin.txt").write_bytes("good\nschön\n".encode("latin-1"))
    os.link("in.txt", "link.txt")
    with pytest.raises(SystemExit, match="2"):
        call(words)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error.replace("\\", "/")
    assert (run / "in.txt").read_text("utf-8") == "\n".join(TEXT)
