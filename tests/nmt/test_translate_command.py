"""The command translate.py; bad input: test_errors.py."""
import io
import json
import os
import sys

import pytest
import torch
from small_run import TEXT, write_run

import translate
from nmt import search
from nmt.evaluate import NO_4_GRAMS
from nmt.search import translate_lines
from tools.command_line import parse


@pytest.fixture
def runs(tmp_path, tokenizer, monkeypatch):
    """Two run folders, NAME and OTHER, and in.txt in the current directory."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "NAME", tokenizer)
    write_run(tmp_path / "OTHER", tokenizer, seed=1)
    (tmp_path / "in.txt").write_text("\n".join(TEXT), "utf-8")
    return tmp_path


def call(command: str) -> int:
    """The exit status of translate.py with these arguments."""
    return translate.main(command.split())


def set_input(monkeypatch, content: bytes, terminal: bool = False) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal)


def test_as_a_filter(runs, model, tokenizer, monkeypatch, capfd):
    set_input(monkeypatch, b"\xef\xbb\xbfa man\r\n\n" + "the dög\u2028sees".encode())
    assert call("NAME --device cpu --beam 2 --lenpen 1.5") == 0
    lines = "a man", "", "the dög\u2028sees"
    expected = translate_lines(model, tokenizer, lines, beam=2, lenpen=1.5)
    captured = capfd.readouterr()
    assert captured.out == "".join(f"{line}\n" for line in expected)
    assert "One sentence" not in captured.err            # that is for a terminal
    set_input(monkeypatch, b"")
    assert call("NAME") == 0
    assert capfd.readouterr().out == ""


def test_the_standard_input_is_not_overwritten(runs, monkeypatch, capfd):
    monkeypatch.setattr(os, "fstat", lambda descriptor: (runs / "in.txt").stat())
    text = (runs / "in.txt").read_text("utf-8")
    set_input(monkeypatch, text.encode())
    assert call("NAME --output in.txt --device cpu") == 2
    assert "--output in.txt is read as well" in capfd.readouterr().err
    assert (runs / "in.txt").read_text("utf-8") == text


@pytest.mark.filterwarnings("ignore:.*to a meta parameter")
def test_the_flags_of_the_search_reach_it(runs, monkeypatch):
    """And the device, in both runs of a comparison, each with the limits of its training. A file
    has a bar of progress, a terminal has the translations."""
    calls = []

    def translate_text(model, tokenizer, lines, **given):
        calls.append(given | {"device": str(next(model.parameters()).device)})
        return []

    monkeypatch.setattr(translate, "translate_text", translate_text)
    monkeypatch.setattr(translate, "pick_device", torch.device)
    flags = dict(beam=4, lenpen=0.6, max_tokens=8192, max_source=512, length_ratio=1.5,
                 window=1_000, progress=True, device="cpu")
    assert call("NAME --input in.txt --device cpu") == 0
    assert calls.pop() == flags                          # runs without an entry have a ratio of 1.5
    change_config(runs / "NAME", length_ratio=2.5, longest_source=20)
    flags |= dict(beam=3, lenpen=1.5, max_tokens=99, max_source=20, length_ratio=2.5, device="meta")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(translate, "print_scores", lambda *_: None)
    for name in ("NAME", "OTHER"):
        (runs / name / "best.pt").rename(runs / name / "step-2.pt")
    for output, progress in (("", False), (f"--output {os.devnull}", True)):
        flags["progress"] = progress
        assert call("NAME --input in.txt --beam 3 --lenpen 1.5 --max-tokens 99 --device meta "
                    f"--reference in.txt --compare OTHER --checkpoint step-2 {output}") == 0
        assert calls.pop() == flags | dict(max_source=512, length_ratio=1.5)
        assert calls.pop() == flags


def test_what_is_translated_is_written_at_once(runs, monkeypatch, capfd):
    """At the second window the lines of the first are there, in a file, which is replaced, and in a
    pipe."""
    (runs / "out.txt").write_text("old", "utf-8")
    assert call("NAME --input in.txt --beam 1") == 0
    whole = capfd.readouterr().out
    monkeypatch.setattr(translate, "WINDOW", 5)
    search_all = search.search_all

    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))

    def stop(*arguments):
        texts.append((runs / "out.txt").read_text("utf-8") if output else pipe.getvalue().decode())
        if len(texts) == 2:
            raise KeyboardInterrupt
        return search_all(*arguments)

    monkeypatch.setattr(search, "search_all", stop)
    for output in ("", "--output out.txt"):
        texts = []
        assert call(f"NAME --input in.txt --beam 1 {output}") == 130
        assert texts == ["", "".join(whole.splitlines(keepends=True)[:5])]


def test_a_run_is_found_in_runs(runs, capfd):
    assert call("NAME --input in.txt") == 0
    expected = capfd.readouterr().out
    (runs / "runs").mkdir()
    (runs / "NAME").rename(runs / "runs" / "NAME")
    for name in ("NAME", "runs/NAME"):
        assert call(f"{name} --input in.txt") == 0
        assert capfd.readouterr().out == expected
        assert call(f"NAME --input in.txt --reference in.txt --compare {name}") == 2
        assert "is RUN itself" in capfd.readouterr().err


def test_scores_and_comparison(runs, capfd):
    (runs / "config.json").write_text("{}", "utf-8")              # of another program
    assert call("OTHER --input in.txt --output reference.txt --beam 2") == 0
    translations = (runs / "reference.txt").read_text("utf-8")
    (runs / "reference.txt").write_text(translations.upper(), "utf-8")
    flags = "--input in.txt --reference reference.txt --beam 2 --lowercase"
    assert call(f"OTHER {flags}") == 0
    captured = capfd.readouterr()
    assert captured.out == translations
    *_, long, bleu, chrf = captured.err.splitlines()
    assert long == "OTHER: translations that reached the length limit and may be cut: 12"
    assert bleu.startswith("BLEU 100.00  nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|")
    assert chrf.startswith("chrF 100.00  nrefs:1|case:lc|eff:yes|nc:6|nw:0|")
    assert call(f"NAME {flags} --compare OTHER --sign-test") == 0
    first, second, *_, header, other, name, sign = capfd.readouterr().err.splitlines()
    assert " ".join(header.split()) == (
        "run BLEU 95 % (bootstrap) p against the baseline (randomization)")
    assert first.startswith("NAME: ") and second.startswith("OTHER: ")       # the order of the work
    assert other.startswith("OTHER  100.00") and other.endswith("baseline")
    assert name.startswith("NAME ") and name.split()[-1].startswith("0.00")
    assert sign == "sign test: 0 sentences better than the baseline's, 12 worse, p: 0.0005"


@pytest.mark.parametrize("words, tgt, right, baseline, reference", [
    ("--lowercase", "de", "A B C D", "a b c x", "a b c d"),
    ("", "ja", "12345678.", "1234 5679", "1234 5678 .")])        # without spaces
def test_case_and_language_reach_every_score(words, tgt, right, baseline, reference, capsys):
    """Only the baseline is wrong, in six of nine lines; against a right one nothing differs."""
    settings = parse(translate.Settings, f"NAME {words} --compare OTHER --sign-test".split())
    lines = []
    for other in (baseline, reference):
        systems = {"OTHER": [other] * 6 + [reference] * 3, "NAME": [right] * 9}
        translate.print_scores(systems, [reference] * 9, tgt, settings)
        bleu, chrf, _, wrong, name, sign = capsys.readouterr().err.splitlines()
        assert bleu.startswith("BLEU 100.00") and chrf.startswith("chrF 100.00")
        lines.append((wrong.split(), name.split(), sign))
    (wrong, differs, sign), (_, same, _) = lines
    assert float(wrong[2].strip("[,")) < float(wrong[1]) < float(wrong[3].strip("]"))
    assert differs == ["NAME", "100.00", "[100.00,", "100.00]", "0.0312"]
    assert same[-1] == "1.0000" and sign.startswith("sign test: 6 sentences better")
    settings.sign_test = False
    translate.print_scores(systems, [reference] * 9, tgt, settings)
    assert capsys.readouterr().err.splitlines()[-1].startswith("NAME ")


def change_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **settings}), "utf-8")


def test_bleu_has_the_tokenizer_of_the_references(runs, capfd):
    """Where no text decides, that of the run's target language. Then come the notes on them."""
    segmented = ("warning: the references are segmented or tokenized, as in 'ein Hund .': their "
                 "BLEU cannot be compared with that of ordinary text")
    for tgt, line, tokenizer, notes in (
            ("de", "猫和狗", "zh", [NO_4_GRAMS]), ("ja", "1234", "char", []),
            ("de", "ein Hund .", "13a", [segmented, NO_4_GRAMS]),
            ("de", "ein Hund da!", "13a", [])):
        change_config(runs / "NAME", languages=["en", tgt])
        (runs / "reference.txt").write_text(f"{line}\n" * len(TEXT), "utf-8")
        assert call("NAME --input in.txt --reference reference.txt --beam 1") == 0
        bleu, _, chrf = capfd.readouterr().err.partition("chrF ")
        assert f"tok:{tokenizer}|" in bleu and chrf.splitlines()[1:] == notes


def test_prompts_of_a_terminal_are_on_standard_error(runs, model, tokenizer, monkeypatch, capfd):
    """At the prompt nothing is scored or written to a file."""
    set_input(monkeypatch, b"a man\nsch\xf6n\n", terminal=True)
    assert call("NAME --device cpu") == 0
    translations = translate_lines(model, tokenizer, ["a man", "sch\ufffdn"])
    captured = capfd.readouterr()
    assert captured.out.split("\n") == [*translations, ""]
    assert captured.err == "One sentence per line; Ctrl-D ends.\n> > > \n"
    for words in ("--output out.txt", "--reference in.txt"):
        set_input(monkeypatch, b"", terminal=True)
        assert call(f"NAME {words} --device cpu") == 2
        assert "name it with --input FILE" in capfd.readouterr().err
    assert not (runs / "out.txt").exists()
    assert call("NAME --input in.txt --beam 1 --device cpu") == 0
    assert "One sentence" not in capfd.readouterr().err
