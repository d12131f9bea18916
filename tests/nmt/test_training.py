"""Whole runs of train_mt.py: what is validated, kept, averaged, tested and written."""
import contextlib
import io
import itertools
import math
import re
from types import SimpleNamespace

import pytest
import torch
from small_run import load, name_files, rows, same, small_corpus, stop_after, train, write_text

import train_mt
import translate
from nmt.evaluate import NO_4_GRAMS, corpus_bleu, corpus_chrf, disagreement_scores, summary
from nmt.run_folder import (
    average_checkpoints,
    load_checkpoint,
    read_metrics,
)

A = "狗看见一个人在房子里"
B = "狗看见一只猫在房子里"
LEARN = "--vocab-size 298 --lr 0.05 --dropout 0 --steps 12 --eval-every 2"


@pytest.fixture
def chinese(tmp_path):
    """Text of which a tiny model learns the one target sentence in four updates; that of the test
    set is partly another. The flags that name it."""
    write_text(tmp_path, "train", ["the dog sees it", "a dog sees it"] * 20, [A] * 40, "zh")
    write_text(tmp_path, "valid", ["the dog sees it", "a dog sees it", "it"], [A, B, "人"], "zh")
    write_text(tmp_path, "test", ["the dog sees it"], [B], "zh")
    return name_files(tmp_path, "zh")


def test_the_best_checkpoint_by_bleu_then_by_loss_is_tested(chinese, tmp_path, capsys):
    """Neither the last one nor that of the lowest loss. Chinese is scored by characters."""
    assert train(chinese, f"{LEARN} --average 9 --name a") == 0
    folder = tmp_path / "runs" / "a"
    valid = rows(folder, "valid")
    steps = [row["step"] for row in valid]
    assert steps == [2, 4, 6, 8, 10, 12]
    assert rows(folder, "test")[0]["average"] == steps   # of as many as there are, if fewer
    out = capsys.readouterr().out
    assert "average of 6 checkpoints, steps 2 to 12" in out
    at_limit = [row["valid_at_limit"] for row in valid if row["valid_at_limit"]]
    assert [int(n) for n in re.findall("cut at the length limit: (.*)", out)] == at_limit
    assert len(at_limit) < 6
    best = max(valid, key=lambda row: (row["valid_bleu"], -row["valid_loss"]))
    lowest = min(valid, key=lambda row: row["valid_loss"])
    assert best["step"] not in (lowest["step"], 12)
    assert 0 < best["valid_bleu"] < 100
    assert same(load(folder, "best"), load(folder, f"step-{best['step']}"))

    assert train(chinese, f"{LEARN} --amp --name b") == 0        # without the average
    row, = rows(tmp_path / "runs" / "b", "test")
    valid = rows(tmp_path / "runs" / "b", "valid")
    best = max(valid, key=lambda row: (row["valid_bleu"], -row["valid_loss"]))
    assert row["average"] == []
    assert row["disagreement"] == disagreement_scores(best["valid_disagreement"])
    assert "tok:zh" in row["signature"]
    lines = (tmp_path / "runs" / "b" / "test.hyp").read_text("utf-8").splitlines()
    assert lines == [A]
    assert row["test_bleu"] == corpus_bleu([A], [B], "zh")[0]
    assert 0 < row["test_bleu"] < 100


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with its files: folder, text (flags), words (other flags), out."""
    root = tmp_path_factory.mktemp("finished")
    run = SimpleNamespace(
        folder=root / "runs" / "a", text=small_corpus(root),
        words="--steps 6 --eval-every 2 --average 2 --beam 3 --lenpen 1 --reg output --agg em "
              "--name a")
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        assert train(run.text, f"{run.words} --amp") == 0
    run.out = stdout.getvalue()
    return run


def test_the_average_of_the_last_checkpoints(finished):
    """Where BLEU ties, the lower loss is best."""
    folder = finished.folder
    assert sorted(path.stem for path in folder.glob("step-*.pt")) == ["step-4", "step-6"]
    mean = average_checkpoints([folder / "step-4.pt", folder / "step-6.pt"])
    assert same(mean, load(folder, "average")["model"])
    *_, tested = read_metrics(folder / "metrics.jsonl")
    assert tested["average"] == [4, 6]
    for first, warned in ((3, True), (4, False)):        # 3 is half of the training
        text = summary(tested | {"average": [first, 6]}, heads=2)
        assert ("reaches into the first half" in text) == warned
    valid = rows(folder, "valid")
    assert [row["valid_bleu"] for row in valid] == [0, 0, 0]
    assert valid[2]["valid_loss"] < valid[1]["valid_loss"] < valid[0]["valid_loss"]
    assert same(load(folder, "best"), load(folder, "step-6"))


def test_what_is_printed_is_what_is_stored(finished):
    *_, trained, valid, tested = read_metrics(finished.folder / "metrics.jsonl")
    assert 1.7e9 < trained["time"] < valid["time"] < tested["time"]          # since 1970
    for row, line in (
            (tested, "{parameters:,} parameters on 1 x cpu, bfloat16 matrix products, step 0 of 6"),
            (trained, "train step      6  epoch {epoch:3}  loss {loss:.3f} (smoothed)  D "
                      "{disagreement:.3f}  lr {lr:.2e}  {tokens_per_second:,.0f} target tokens/s"),
            (valid, "valid step      6  loss {valid_loss:.3f}  perplexity {valid_perplexity:.2f}  "
                    "BLEU {valid_bleu:.2f} (greedy)  "
                    "translations cut at the length limit: {valid_at_limit}"),
            (tested, "test BLEU {test_bleu:.2f}, chrF {test_chrf:.2f}   {signature}"),
            (tested, "  translations that reached the length limit and may be cut: {at_limit}"),
            (tested, "  average of 2 checkpoints, steps 4 to 6, beam 3, length penalty 1.0"),
            (tested, "  {parameters:,} parameters; trained on {tokens:,} target tokens, "
                     "{tokens_per_second:,.0f} per second; decoded {sentences_per_second:.1f} "
                     "sentences per second"),
            (tested, "subspace and output: 1 where the heads cancel,\n"
                     "  0.607 where they are orthogonal, 0.368 where alike;")):      # exp(-1/2)
        assert line.format(**row) in finished.out


def test_translate_gives_the_translations_of_the_test(finished, capsys):
    """And those that are shown at a validation, which are greedy."""
    shown = re.findall(r"source +(.*)\n +reference +(.*)\n +translation (.*)\n", finished.out)
    assert len(shown) == 6 and all(a.split() == b.split()[::-1] for a, b, _ in shown)
    assert len({*shown[-2:]}) == 2
    texts = finished.folder.parents[1]
    flags = f"{finished.folder} --lenpen 1 --device cpu --input"
    words = f"{flags} {texts}/test.en --checkpoint average --beam 3"
    assert translate.main(words.split()) == 0
    assert capsys.readouterr().out == (finished.folder / "test.hyp").read_text("utf-8")
    words = f"{flags} {texts}/valid.en --checkpoint last --beam 1"
    assert translate.main(words.split()) == 0
    sources = (texts / "valid.en").read_text("utf-8").splitlines()
    greedy = dict(zip(sources, capsys.readouterr().out.splitlines()))
    assert all(greedy[source] == translation for source, _, translation in shown[-2:])


def test_a_finished_run_is_not_trained_or_tested_again(finished, capsys):
    """Nor on a machine that sets other defaults, or with other log lines."""
    before = {path: path.read_bytes() for path in finished.folder.iterdir()}
    assert train(finished.text, f"{finished.words} --workers 1 --log-every 9 --save-every 9") == 0
    out = capsys.readouterr().out
    assert "train step" not in out
    assert out.splitlines()[-9:] == finished.out.splitlines()[-9:]           # of the test
    assert {path: path.read_bytes() for path in finished.folder.iterdir()} == before


def test_test_sets_are_scored_one_by_one_and_together(text, tmp_path, capsys):
    """Without any, the validation set is tested."""
    text = text[:-2]                                     # without its --test
    folder = tmp_path / "runs" / "a"
    words = "--steps 2 --beam 2 --name a --lowercase"
    assert train(text, words) == 0
    row, = rows(folder, "test")
    assert row["sets"].keys() == {"valid"} and "case:lc" in row["signature"]
    assert rows(folder, "train")[0]["disagreement"] is None
    assert "\n  valid: BLEU " in capsys.readouterr().out
    assert (folder / "valid.hyp").read_text("utf-8").count("\n") == 12

    sources, references = ((tmp_path / f"valid.{language}").read_text("utf-8").splitlines()
                           for language in ("en", "de"))
    write_text(tmp_path, "old", sources[:3], references[:3])
    write_text(tmp_path, "new", sources[3:], references[3:])
    words += f" --test {tmp_path}/old {tmp_path}/new"
    assert train(text, words) == 0                       # with other test sets it is tested again
    old, new = ((folder / f"{name}.hyp").read_text("utf-8").split("\n")[:-1]
                for name in ("old", "new"))
    _, row = rows(folder, "test")
    assert row["sets"].keys() == {"old", "new"}
    assert row["sets"]["old"]["chrf"] == corpus_chrf(old, references[:3], True)[0]
    assert row["sets"]["new"]["chrf"] == corpus_chrf(new, references[3:], True)[0]
    assert row["sets"]["new"]["bleu"] == corpus_bleu(new, references[3:], "de", True)[0]
    assert row["test_chrf"] == corpus_chrf([*old, *new], references, True)[0]
    assert (f"  new: BLEU {row['sets']['new']['bleu']:.2f}, chrF {row['sets']['new']['chrf']:.2f}\n"
            ) in capsys.readouterr().out
    write_text(tmp_path, "new", sources[:3], references[:3])
    assert train(text, words) == 0
    assert rows(folder, "test")[2]["sets"]["new"] == row["sets"]["old"]
    write_text(tmp_path, "new", sources[3:], references[3:])     # its translations are gone
    assert train(text, words) == 0
    assert (folder / "new.hyp").read_text("utf-8").split("\n")[:-1] == new


def test_what_is_unusual_in_the_text_is_said(text, tmp_path, monkeypatch, capsys):
    """Training pairs that are left out, long lines, references that are segmented, and a test set
    without 4-grams: numbers in a language that BLEU scores by characters have some. A run that did
    not begin leaves no vocabulary behind."""
    german = (tmp_path / "train.de").read_text("utf-8").splitlines()
    text = name_files(tmp_path, "ja")
    write_text(tmp_path, "train", ["", "das " * 99, "das " * 20, *german[3:]], german, "ja")
    write_text(tmp_path, "valid", ["das " * 30, "das " * 20], ["Ha@@ us", "zwei"], "ja")
    write_text(tmp_path, "test", ["das " * 30, "der"], ["Ha@@ us da ist", "Ba@@"], "ja")
    write_text(tmp_path, "words", ["ein", "zwei"], ["ein", "zwei"], "ja")
    write_text(tmp_path, "numbers", ["1"], ["1234 ."], "ja")
    assert train(text, "--steps 1 --name a --max-length 1 --vocab-size 270") == 2
    assert train([*text, f"{tmp_path}/words", f"{tmp_path}/numbers"],
                 "--steps 1 --max-length 50 --name a") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path / 'runs' / 'a'}: reading the text and its vocabulary\n")
    assert "a: 118 pairs, vocabulary 290 (" in out
    assert ("warning: 2 of 120 training pairs are left out: a side is empty or has more than 50 "
            "tokens (--max-length)\n") in out
    for place in ("\nwarning: valid: ", "\n  "):         # before the training, after the test
        assert f"{place}lines longer than any training source, translated in pieces: 1\n" in out
    for name, warned in (("valid", True), ("test", True), ("words", False), ("numbers", False)):
        assert (f"warning: {name}: the references are segmented or tokenized" in out) == warned
    *_, named, first, second = out.splitlines()
    assert named == f"words: {NO_4_GRAMS}" and out.count(NO_4_GRAMS) == 1
    folder = tmp_path / "runs" / "a"
    assert first == f"next: python translate.py {folder}"
    assert second == f"      python -m papers.analyze {folder}"
    monkeypatch.chdir(tmp_path)                          # where there are no such programs
    assert train([*text, f"{tmp_path}/words"], "--steps 1 --max-length 50 --name a") == 0
    assert "next:" not in capsys.readouterr().out


def test_the_time_of_a_run_adds_up(text, tmp_path, monkeypatch):
    """Over the log lines and a resume, without that of a validation. An update has all pairs: each
    has as many tokens."""
    clock = itertools.count()
    validate = train_mt.validate

    def validate_for_long(*args):
        for _ in range(10_000):
            next(clock)
        return validate(*args)

    monkeypatch.setattr(train_mt, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(train_mt, "validate", validate_for_long)
    words = "--steps 5 --max-tokens 100000 --log-every 2 --eval-every 4 --name a"
    stop_after(3, text, words)
    assert train(text, words) == 0
    folder = tmp_path / "runs" / "a"
    state = load_checkpoint(folder / "last.pt")
    logged = [row for row in read_metrics(folder / "metrics.jsonl") if row["type"] == "train"]
    *_, tested = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in logged] == [2, 3, 4, 5]
    updates = [2, 1, 1, 1]                               # since the line before
    seconds = [n * state["tokens"] / 5 / row["tokens_per_second"]
               for n, row in zip(updates, logged)]
    assert state["seconds"] == pytest.approx(sum(seconds)) and state["seconds"] < 1_000
    assert tested["tokens_per_second"] == pytest.approx(state["tokens"] / state["seconds"])


def spoil(folder, weight: str, place, number: float = torch.nan) -> bytes:
    """Changes a number (or row) of a weight in last.pt; returns the file's content."""
    state = load_checkpoint(folder / "last.pt")
    state["model"][weight][place] = number
    torch.save(state, folder / "last.pt")
    return (folder / "last.pt").read_bytes()


def test_a_loss_or_gradient_that_is_not_finite_ends_the_run(text, tmp_path, monkeypatch, capsys):
    """Whether it is logged, or saved, or only a validation shows it: there, a word that is not in
    the training text has an embedding of NaN. A large loss is finite, and so is its perplexity."""
    write_text(tmp_path, "valid", ["Q"], ["das Haus"])
    words = "--steps 4 --tie none --name a"
    train_step = train_mt.train_step
    stop_after(2, text, words)
    folder = tmp_path / "runs" / "a"
    before = (folder / "last.pt").read_bytes()

    def step_with_nan(objective, optimizer, *args):
        adam = optimizer.defaults
        assert (adam["betas"], adam["eps"], adam["fused"]) == ((0.9, 0.98), 1e-9, True)
        total, norm = train_step(objective, optimizer, *args)
        return total, norm * torch.nan

    with monkeypatch.context() as patch:                 # where a loss is finite
        patch.setattr(train_mt, "train_step", step_with_nan)
        patch.setattr(train_mt, "SAVE_SECONDS", 0)
        for more in ("", "--log-every 9"):
            assert train(text, f"{words} {more}") == 2
            printed, error = capsys.readouterr()
            assert "parameters on 1 x cpu, float32, step 2 of 4\n" in printed
            assert "step 3: the loss or its gradient is not finite" in error and "--clip" in error
            assert (folder / "last.pt").read_bytes() == before
    spoiled = spoil(folder, "encoder.norm.weight", 0)
    assert train(text, words) == 2
    assert "step 3: the loss or its gradient is not finite" in capsys.readouterr().err
    assert (folder / "last.pt").read_bytes() == spoiled
    (folder / "last.pt").write_bytes(before)
    spoil(folder, "source_embedding.weight", 3 + ord("Q") - ord("!"))
    assert train(text, words) == 2
    assert "step 4: the loss" in capsys.readouterr().err
    assert not (folder / "best.pt").exists()
    (folder / "last.pt").write_bytes(before)
    spoil(folder, "output.weight", (5, 0), 1e6)
    assert train(text, words) == 0
    row, = rows(folder, "valid")
    assert row["valid_loss"] > 1_000 and row["valid_perplexity"] == math.exp(700)
