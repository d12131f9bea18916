"""Whole runs of train_mt.py: what is validated, kept, averaged, tested and written."""
import pytest
import torch
from small_run import load, name_files, rows, same, stop_after, train, write_text

import train_mt
from nmt.evaluate import corpus_bleu, corpus_chrf, disagreement_scores
from nmt.run_folder import average

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


def best_of(valid: list[dict]) -> dict:
    """The validation with the best BLEU; ties are broken by the loss."""
    return max(valid, key=lambda row: (row["valid_bleu"], -row["valid_loss"]))


def test_the_checkpoint_with_the_best_bleu_is_tested(chinese, tmp_path):
    """It is neither the last one nor that of the lowest loss. Chinese is scored by characters."""
    assert train(chinese, f"{LEARN} --name a") == 0
    folder = tmp_path / "runs" / "a"
    valid = rows(folder, "valid")
    best = best_of(valid)
    assert [row["step"] for row in valid] == [2, 4, 6, 8, 10, 12]
    assert best["step"] not in (min(valid, key=lambda row: row["valid_loss"])["step"], 12)
    assert 0 < best["valid_bleu"] < 100
    row, = rows(folder, "test")
    assert row["valid_loss"] == best["valid_loss"]
    assert row["disagreement"] == disagreement_scores(best["valid_disagreement"])
    assert "tok:zh" in row["signature"]
    assert (folder / "test.hyp").read_text("utf-8") == f"{A}\n"
    assert (folder / "test.ref").read_text("utf-8") == f"{B}\n"
    assert row["bleu"] == corpus_bleu([A], [B], "zh")[0]
    assert 0 < row["bleu"] < 100
    stop_after(best["step"] + 1, chinese, f"{LEARN} --log-every 1 --name b")
    assert train(chinese, f"{LEARN} --name b") == 0      # it knows which one was the best
    assert same(load(folder, "best"), load(tmp_path / "runs" / "b", "best"))


def test_the_average_of_the_last_checkpoints_is_tested(chinese, tmp_path):
    assert train(chinese, f"{LEARN} --average 2 --name a") == 0
    folder = tmp_path / "runs" / "a"
    last = sorted(folder.glob("step-*.pt"))
    assert [path.stem for path in last] == ["step-000000010", "step-000000012"]
    assert same(average(last), load(folder, "average")["model"])
    assert same(load(folder, "step-000000012")["model"], load(folder)["model"])
    valid = rows(folder, "valid")
    row, = rows(folder, "test")
    assert row["valid_loss"] not in [x["valid_loss"] for x in valid]
    assert row["disagreement"] not in [disagreement_scores(x["valid_disagreement"]) for x in valid]


def test_where_bleu_ties_the_lower_loss_is_best(text, tmp_path):
    assert train(text, "--steps 4 --eval-every 2 --name a") == 0
    first, second = rows(tmp_path / "runs" / "a", "valid")
    assert first["valid_bleu"] == second["valid_bleu"] == 0
    assert first["valid_loss"] > second["valid_loss"]
    folder = tmp_path / "runs" / "a"
    assert same(load(folder, "best")["model"], load(folder)["model"])


@pytest.mark.parametrize("flags, line", [("--beam 3 --lenpen 0", ""), ("--beam 3 --lenpen 5", A)])
def test_the_test_has_its_beam_and_length_penalty(flags, line, chinese, tmp_path):
    """After three steps the empty translation is the most probable one. A validation is greedy."""
    assert train(chinese, f"{LEARN} --steps 3 {flags} --name a") == 0
    assert rows(tmp_path / "runs" / "a", "valid")[-1]["valid_bleu"] == 0
    assert (tmp_path / "runs" / "a" / "test.hyp").read_text("utf-8") == f"{line}\n"


def test_test_sets_are_scored_one_by_one_and_together(chinese, tmp_path):
    """In the end the model writes one line."""
    line = "der Hund sieht es hier"
    write_text(tmp_path, "train", ["the dog sees it", "a dog sees it"] * 20, [line] * 40)
    write_text(tmp_path, "valid", ["the dog sees it"], [line])
    write_text(tmp_path, "old", ["the dog sees it"], ["eine Katze sieht es dort"])
    write_text(tmp_path, "new", ["a dog sees it"] * 2, [line] * 2)
    flags = [*name_files(tmp_path)[:-2], "--test", str(tmp_path / "old"), str(tmp_path / "new")]
    assert train(flags, f"{LEARN} --name a") == 0
    row, = rows(tmp_path / "runs" / "a", "test")
    old, new = row["sets"]["old"], row["sets"]["new"]
    assert [new["bleu"], new["chrf"]] == pytest.approx([100, 100])
    references = ["eine Katze sieht es dort", line, line]
    assert row["bleu"] == corpus_bleu([line] * 3, references)[0]
    assert row["chrf"] == corpus_chrf([line] * 3, references)
    assert 0 < old["bleu"] < row["bleu"] < 100


def test_without_test_sets_the_validation_set_is_tested(text, tmp_path):
    assert train(text[:-2], "--steps 1 --name a") == 0
    row, = rows(tmp_path / "runs" / "a", "test")
    assert row["sets"].keys() == {"valid"}
    assert (tmp_path / "runs" / "a" / "valid.hyp").read_text("utf-8").count("\n") == 12


@pytest.mark.parametrize("more", ["--log-every 1", "--log-every 9"])
@pytest.mark.parametrize("factor", [torch.nan, 1e-25])
def test_a_loss_that_is_not_finite_ends_the_run_unsaved(factor, more, text, tmp_path, monkeypatch,
                                                        capsys):
    """It is noticed where it is logged, and where the run would be saved. So is a gradient that is
    not finite: weights 1e-25 times as large, and the next 1e25 times, keep the loss."""
    words = "--steps 4 --name a"
    stop_after(2, text, words)
    path = tmp_path / "runs" / "a" / "last.pt"
    state = torch.load(path)
    for name in ("weight", "bias"):
        state["model"][f"encoder.layers.0.norm2.{name}"] *= factor
    state["model"]["encoder.layers.0.ffn.0.weight"] /= factor
    torch.save(state, path)
    spoiled = path.read_bytes()
    monkeypatch.setattr(train_mt, "SAVE_SECONDS", 0)
    capsys.readouterr()
    assert train(text, f"{words} {more}") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "step 3: the loss or its gradient is not finite" in error
    assert path.read_bytes() == spoiled
    assert not (path.parent / "best.pt").exists()
