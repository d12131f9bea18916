"""translate.py's scores and its command; bad input: test_errors.py."""
import io
import sys

import pytest
import torch
from small_run import TEXT, small, write_run
from test_search import by_slow_search

import translate
from nmt import evaluate, run_folder, search
from nmt.evaluate import corpus_bleu
from nmt.flags import parse
from nmt.run_folder import load_run

# Scores

def test_corpus_bleu_is_sacrebleus():
    from sacrebleu import corpus_bleu as expected
    references = [line.replace("sees", "saw") for line in TEXT]
    score, signature = corpus_bleu(TEXT, references)
    assert score == expected(TEXT, [references]).score and 0 < score < 100
    assert "case:mixed" in signature and "tok:13a" in signature
    shouted = [line.upper() for line in references]
    assert corpus_bleu(shouted, references)[0] < 5
    score, signature = corpus_bleu(shouted, references, lowercase=True)
    assert score == pytest.approx(100) and "case:lc" in signature


def test_paired_bootstrap_tells_runs_apart():
    references = [f"the dog number {i} sees a man and a cat" for i in range(60)]
    worse = [line.replace("sees", "saw") if i % 2 else line for i, line in enumerate(references)]
    table = evaluate.paired_bootstrap(
        [("runs/worse", worse), ("runs/same", references)], references
    ).splitlines()
    assert "baseline" in table[1] and table[1].split()[0] == "runs/worse"
    assert table[2].split()[:2] == ["runs/same", "100.00"] and float(table[2].split()[-1]) < 0.01
    alike = evaluate.paired_bootstrap([("a", worse), ("b", worse)], references).splitlines()
    assert alike[2].endswith(" identical")
    others = [line if i % 2 else line.replace("sees", "saw") for i, line in enumerate(references)]
    alike = evaluate.paired_bootstrap([("a", worse), ("b", others)], references).splitlines()
    assert alike[2].endswith(" alike")  # as many mistakes, in other sentences


# The command

@pytest.fixture
def runs(tmp_path, tokenizer, monkeypatch):
    """Two run folders, NAME and OTHER, in the current directory."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "NAME", tokenizer)
    write_run(tmp_path / "OTHER", tokenizer, seed=1)
    return tmp_path


@torch.no_grad()
def best(model, tokenizer, line):
    """The best translation with beam 2, by the slow search."""
    return by_slow_search(model, tokenizer, line, beam=2)[0][0]


def pipe(monkeypatch, content: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_load_run(runs, tokenizer):
    model, loaded, settings = load_run("NAME")
    assert not model.training and settings["data"] == "toy"
    assert loaded.encode(TEXT[0]).ids == tokenizer.encode(TEXT[0]).ids
    expected = small(tokenizer).state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in model.state_dict().items())


def test_another_checkpoint_holds_its_own_weights(runs, tokenizer):
    other = small(tokenizer, seed=7).state_dict()
    run_folder.save(runs / "NAME" / "last.pt", {"model": other})
    model, *_ = load_run("NAME", "last")
    assert all(torch.equal(weight, other[name]) for name, weight in model.state_dict().items())


def test_command_searches_as_it_was_told(runs, monkeypatch, capfd):
    """The flags, and what holds without them, as they reach the search: of the run, and of the one
    it is compared to."""
    calls = []

    def found(model, tokenizer, lines, beam, lenpen, max_tokens, nbest, progress):
        calls.append((lines, beam, lenpen, max_tokens, nbest))
        return [[search.Translation(f"this is line {i}", -1.0)] * nbest for i in range(len(lines))]
    monkeypatch.setattr(translate, "translate_nbest", found)
    (runs / "in.txt").write_text("\n".join(TEXT))
    (runs / "ref.txt").write_text("\n".join(f"this is line {i}" for i in range(len(TEXT))))
    flags = ["NAME", "--input", "in.txt", "--reference", "ref.txt", "--compare", "OTHER"]
    assert translate.main(flags) == 0
    assert translate.main(flags + "--beam 7 --lenpen 1.5 --max-tokens 99 --nbest 3".split()) == 0
    assert calls == [(TEXT, 4, 0.6, 8192, 1)] * 2 + [(TEXT, 7, 1.5, 99, 3)] * 2
    found = capfd.readouterr()
    assert found.out.splitlines()[:len(TEXT)] == [f"this is line {i}" for i in range(len(TEXT))]
    assert found.err.startswith("BLEU 100.00  nrefs:1|case:mixed|")
    assert parse(translate.Settings, ["NAME"], "translate.py", "").checkpoint == "best"


def test_command_as_a_filter(runs, model, tokenizer, monkeypatch, capfd):
    pipe(monkeypatch, b"\xef\xbb\xbfa man\r\n\n" + "the dög\u2028sees".encode())
    assert translate.main(["NAME", "--device", "cpu", "--beam", "2"]) == 0
    first, last = (best(model, tokenizer, line) for line in ("a man", "the dög\u2028sees"))
    assert capfd.readouterr().out == f"{first}\n\n{last}\n"
    pipe(monkeypatch, b"")
    assert translate.main(["NAME"]) == 0 and capfd.readouterr().out == ""


def test_command_with_files_nbest_and_scores(runs, model, tokenizer, capfd):
    (runs / "in.txt").write_text("a man\n\nthe dog\n")
    flags = [
        "NAME", "--input", "in.txt", "--output", "out.txt", "--nbest", "2", "--scores", "--beam",
        "3",
    ]
    assert translate.main(flags) == 0 and capfd.readouterr().out == ""
    rows = [row.split("\t") for row in (runs / "out.txt").read_text().splitlines()]
    first, last = (by_slow_search(model, tokenizer, line, 3, 2) for line in ("a man", "the dog"))
    expected = [("1", *x) for x in first] + [("2", "", 0.0)] + [("3", *x) for x in last]
    assert [(number, text) for number, _, text in rows] == [
        (number, text) for number, text, _ in expected
    ]
    scores = [score for *_, score in expected]
    assert [float(score) for _, score, _ in rows] == pytest.approx(scores, abs=2e-4)


def test_command_scores_and_compares(runs, capfd):
    (runs / "in.txt").write_text("\n".join(TEXT))
    assert (
        translate.main(["OTHER", "--input", "in.txt", "--output", "reference.txt", "--beam", "1"])
        == 0
    )
    flags = ["--input", "in.txt", "--reference", "reference.txt", "--beam", "1", "--lowercase"]
    assert translate.main(["OTHER", *flags]) == 0
    captured = capfd.readouterr()
    assert captured.out == (runs / "reference.txt").read_text()
    assert captured.err.startswith("BLEU 100.00  nrefs:1|case:lc|")
    assert translate.main(["NAME", *flags, "--compare", "OTHER"]) == 0
    table = capfd.readouterr().err.splitlines()
    assert len(table) == 5 and table[2].startswith("OTHER  100.00") and table[3].startswith("NAME ")
    assert "|bs:1000|seed:12345|" in table[4]


def test_command_on_a_terminal(runs, model, tokenizer, monkeypatch, capfd):
    terminal = io.StringIO("a man\n\nthe dog\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert translate.main(["NAME", "--beam", "2"]) == 0
    found = [best(model, tokenizer, line) for line in ("a man", "the dog")]
    assert capfd.readouterr().out == f"> {found[0]}\n> \n> {found[1]}\n> \n"


def test_input_that_is_no_utf8_ends_the_command(runs, monkeypatch, capfd):
    """Read from a pipe; files: test_errors.py."""
    pipe(monkeypatch, b"a\nsch\xf6n\n")
    assert translate.main(["NAME", "--device", "cpu"]) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert "standard input, line 2: not UTF-8" in printed.err
