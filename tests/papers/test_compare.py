"""papers/compare.py on run folders written by hand."""
import json

import pytest

from nmt.run_folder import log, write_config
from papers import compare

MODEL = {"agg": "linear", "agg_at": [], "heads": 4}
EM = {"agg": "em", "agg_at": ["enc:1-2"], "heads": 4}


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    """Writes the folder of a finished run in the current folder; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, seed: int, bleu: float, model: dict, text: str = "1", ref: str = "x"):
        folder = tmp_path / f"{name}-seed{seed}"
        folder.mkdir()
        write_config(folder, {"model": model, "text": {"train.en": text}, "seed": seed, "lr": 0.1},
                     {"command": [name], "data": name, "length_ratio": seed})
        log(folder, {"type": "test", "step": 1, "bleu": bleu, "chrf": bleu + 1, "parameters": 1234,
                     "signature": "nrefs:1|tok:13a|v", "sets": {"test": {}},
                     "valid_loss": seed + 0.5, "tokens_per_second": 1000.0 * seed})
        (folder / "test.ref").write_text(ref, "utf-8")
        return folder.name

    return write


def lines_of(capsys, *runs: str) -> list[str]:
    """What the command prints."""
    capsys.readouterr()
    compare.main(runs)
    return capsys.readouterr().out.splitlines()


def test_groups_differ_in_their_seeds(write_run, capsys):
    """The difference is over the seeds that both have: gains of 1 and 2 have the mean 1.5, and
    t(0.975, 1) = 12.706 times the standard error 0.5 is 6.35."""
    plain = [write_run("plain", 1, 40.0, MODEL), write_run("plain", 2, 42.0, MODEL)]
    em = [write_run("em", seed, bleu, EM) for seed, bleu in ((2, 44.0), (1, 41.0), (3, 99.0))]
    _, first, second = lines_of(capsys, *plain, *em, plain[0])               # a run named twice
    assert first.split("  ")[0] == "plain"
    assert first.split()[1:] == ["1", "2", "41.00", "±", "1.41", "42.00", "2.000", "1,234", "1,500"]
    assert second.split()[:10] == ["--agg", "em", "--agg-at", "enc:1-2", "2", "1", "3", "61.33",
                                   "±", "32.65"]
    assert second.endswith("+1.50 ± 6.35 (2)")


def test_a_single_pair_is_tested_over_its_sentences(write_run, capsys):
    runs = write_run("plain", 1, 40.0, MODEL), write_run("em", 1, 39.5, EM)
    _, _, second, command = lines_of(capsys, *runs)
    assert second.endswith("-0.50 (1)")
    assert command.replace("\\", "/") == ("sacrebleu plain-seed1/test.ref -i plain-seed1/test.hyp "
                                          "em-seed1/test.hyp --paired-bs -tok 13a")


@pytest.mark.parametrize("other, message", [
    (dict(text="2"), "b-seed1: has another text or other test sets than a-seed1"),
    (dict(ref="y"), "b-seed1: has another text or other test sets than a-seed1"),
    (None, "c: is not finished"), ({}, "config.json")])
def test_a_mistake_is_one_line(other, message, write_run, tmp_path, capsys):
    runs = [write_run("a", 1, 40.0, MODEL)]
    if other:
        runs.append(write_run("b", 1, 40.0, MODEL, **other))
    else:
        runs.append("c")
        (tmp_path / "c").mkdir()
    if other is None:
        (tmp_path / "c" / "config.json").write_text(
            json.dumps({"version": 4}), "utf-8")
    with pytest.raises(SystemExit, match="2"):
        lines_of(capsys, *runs)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
