"""What a person meets day by day: the names of runs, more steps for a run, curves, TensorBoard, the
learning rate in words, Apple's GPU."""
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from test_train_mt import SMALL, corpus, flags, metrics, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bench
import train_mt
from nmt import progress, run_folder
from nmt.evaluate import validate
from nmt.flags import UserError
from nmt.machine import pick_device
from nmt.search import beam_search
from transformer import TransformerConfig

OWN = "--train some/where/train --valid v --src en --tgt de "


# ---- Names

@pytest.mark.parametrize("argv, name", [
    ("", "toy-tiny-seed1"),
    ("--agg em --reg output position --seed 3", "toy-tiny-em-output-position-seed3"),
    ("--capsule enc dec", "toy-tiny-capsule-seed1"),
    ("--capsule enc:1-2", "toy-tiny-capsule-enc1-2-seed1"),
    ("--data multi30k --arch small", "multi30k-small-seed1"),
    # what is as usual is not named, what may differ from command to command neither
    ("--steps 1800 --dropout 0 --layers 4 --beam 4 --device cpu --tensorboard", "toy-tiny-seed1"),
    ("--dropout 0.3 --steps 90", "toy-tiny-dropout-0.3-steps-90-seed1"),
    ("--agg em --agg-at enc:1 cross --no-em-activations",
     "toy-tiny-em-agg-at-enc1-cross-no-em-activations-seed1"),
    ("--reg output --reg-weight 2", "toy-tiny-output-reg-weight-2.0-seed1"),
    ("--src de --tgt en", "toy-tiny-src-de-tgt-en-seed1"),
    (OWN, "where-en-de-tiny-seed1"),
    (OWN + "--train some/where/news", "where-news-en-de-tiny-seed1"),
])
def test_a_run_is_named_after_its_text_and_what_differs(argv, name):
    args = settings(argv.split())
    train_mt.complete(args, train_mt.Machine(torch.device("cpu")))
    assert args.name == name


def test_help_has_the_scripts_own_flags_first_and_examples_last(capsys):
    with pytest.raises(SystemExit):
        train_mt.main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: train_mt.py [flags]\n")
    headings = [text.index(f"\n{name}") for name in ("training (", "machine:", "data:", "model (")]
    assert headings == sorted(headings)
    assert "examples:\n    python train_mt.py --agg em --reg output" in text[headings[-1]:]
    # what the embedded corpus trains with
    words = " ".join(text.split())
    assert "dropout rate (toy 0.0, tiny 0.1, small 0.1, base 0.1, big 0.3)" in words


# ---- More steps

def test_a_finished_run_takes_more_steps_exactly(text, tmp_path, capsys):
    """As if it had been meant to, where the schedule does not end; where it does, one line."""
    argv = [*text, *SMALL, "--eval-every", "4", "--decay", "sqrt"]
    assert train_mt.main([*argv, "--steps", "8", "--name", "parts"]) == 0
    assert train_mt.main([*argv, "--steps", "12", "--name", "parts"]) == 0
    assert "resumed at step 8" in capsys.readouterr().out
    assert train_mt.main([*argv, "--steps", "12", "--name", "parts"]) == 0
    again = capsys.readouterr().out
    assert "finished with step 12" in again and "resumed" not in again
    heads = run_folder.read_config(tmp_path / "runs" / "parts")["model"]["heads"]
    assert f"{math.exp(-1 / heads):.3f} where they are orthogonal" in again
    assert train_mt.main([*argv, "--steps", "12", "--name", "whole"]) == 0
    whole, parts = (tmp_path / "runs" / name for name in ("whole", "parts"))
    tests = [row["step"] for row in metrics(parts) if row["type"] == "test"]
    assert tests == [8, 12] and run_folder.read_config(parts)["steps"] == 12
    assert [row for row in metrics(parts) if row["type"] != "test" or row["step"] == 12] == \
        metrics(whole)
    a, b = (run_folder.load(folder / "last.pt")["model"] for folder in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)
    # fewer steps are another run
    assert train_mt.main([*argv, "--steps", "11", "--name", "parts"]) == 2
    assert "steps was 12, is now 11" in capsys.readouterr().err


def test_more_steps_keep_what_followed_from_the_fewer(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"format": 2, "steps": 100, "warmup": 25, "lr": 0.1, "eval_every": 20}')
    args = settings("--arch base --steps 900 --eval-every 50".split())
    train_mt.complete(args, train_mt.Machine(torch.device("cpu")))
    assert args.warmup == 225
    assert run_folder.may_change(args, tmp_path) == ("steps",)
    assert (args.warmup, args.lr, args.eval_every) == (25, 0.1, 50)
    args.decay = "linear"
    with pytest.raises(UserError, match="--steps 900: .* linearly to 0 at step 100"):
        run_folder.may_change(args, tmp_path)


# ---- To see what happens

@pytest.mark.parametrize("steps, warmup, lr, words", [
    (1000, 100, 0.5, "peak 6.25e-03 at step 100 = --lr 0.5 x (d_model 64 x --warmup 100)^-0.5"),
    (99, 100, 0.5, "--steps 99 end before --warmup 100"),
    (1000, 100, 0.0005, "6.25e-06 hardly trains: --lr is a factor"),
])
def test_the_learning_rate_in_words(steps, warmup, lr, words):
    args = SimpleNamespace(steps=steps, warmup=warmup, lr=lr, decay="linear")
    said = progress.rate_in_words(64, args)
    assert words in said and ("warning" in said) == (steps < warmup or lr < 0.1)
    assert f"peak {train_mt.learning_rate(100, 64, args):.2e}" in said or steps < warmup


def test_rows_have_types_and_times_and_tensorboard_their_numbers(text, tmp_path, monkeypatch):
    """torch's writer gets every number of a row that is no count; loss.png lies beside."""
    board = []

    class SummaryWriter:
        def __init__(self, path, purge_step):
            board.append((path, purge_step))

        def add_scalar(self, name, value, step):
            board.append((name, value, step))

        def close(self):
            board.append("closed")

    monkeypatch.setattr(train_mt, "summary_writer", lambda: SummaryWriter)
    monkeypatch.setattr(train_mt, "draw", progress.draw)
    argv = [*text, *SMALL, "--steps", "6", "--name", "a", "--tensorboard"]
    assert train_mt.main(argv) == 0
    folder = tmp_path / "runs" / "a"
    rows = run_folder.read_metrics(folder / "metrics.jsonl")
    assert [row["type"] for row in rows] == ["train", "train", "valid", "test"]
    assert sorted(row["time"] for row in rows) == [row["time"] for row in rows]
    assert board[0] == (folder, 1) and board[-1] == "closed"
    for name, row in (("loss", rows[0]), ("valid_bleu", rows[2]), ("test_bleu", rows[3])):
        assert (f"{row['type']}/{name}", row[name], row["step"]) in board
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_missing_is_one_line(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert train_mt.main([*text, *SMALL, "--steps", "6", "--name", "a", "--tensorboard"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "pip install tensorboard" in error
    assert not (tmp_path / "runs").exists()


def test_losses_that_are_no_numbers_are_not_drawn(tmp_path):
    progress.draw([{"step": 3, "loss": None}, {"step": 6, "loss": 1.5}], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 5_000


# ---- Apple's GPU, as far as another machine can tell

def test_mps_is_a_device_where_torch_finds_it(monkeypatch, capsys):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device mps: torch finds no Apple GPU"):
        pick_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    where = train_mt.Machine(pick_device("mps"))
    args = settings([])
    train_mt.complete(args, where)
    assert where.device.type == "mps"
    assert (args.amp, args.workers) == (False, 0)
    torch.autocast(where.device.type, torch.bfloat16, enabled=args.amp)
    # bench.py would measure how fast work is handed over
    assert bench.main(["--device", "mps"]) == 2
    assert "--device mps: times and memory" in capsys.readouterr().err


class NoFloat64(TorchDispatchMode):
    """Fails at the first operation whose result is float64, which Apple's GPU lacks."""
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            assert not isinstance(x, torch.Tensor) or x.dtype != torch.float64, function
        return result


@pytest.mark.parametrize("mechanisms", [
    dict(reg=("subspace", "position", "output"), capsule_attention=("enc", "dec")),
    dict(agg="em", agg_at=("enc", "cross")), dict(agg="dynamic"), dict(agg="gu-em"),
    dict(agg="gu-dynamic")], ids=str)
def test_training_validating_and_searching_need_no_float64(mechanisms):
    with NoFloat64():
        config = TransformerConfig(30, 16, 2, 1, 16, **mechanisms)
        where = train_mt.Machine(torch.device("cpu"))
        args = settings(["--max-tokens", "40"])
        encoded = corpus(9)
        train_mt.complete(args, where)
        job = train_mt.Training(args, config, where)
        step = next(train_mt.steps(encoded, flags(), (0, 0)))
        train_mt.train_step(train_mt.Objective(job.model), job.optimizer, step, args, where)
        validate(job.model, encoded, 40)
        beam_search(job.model.eval(), step.batches[0].source, 2)
