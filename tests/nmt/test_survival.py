"""Runs that are stopped, killed or moved: each ends bit-identical to one left alone."""
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_run import (
    SIGNALS,
    TINY,
    Killed,
    load,
    program,
    rows,
    same,
    small_corpus,
    stop_after,
    train,
    train_until,
)

import train_mt

ROOT = Path(__file__).resolve().parents[2]
LONG = ("--agg em --agg-at enc cross --reg output subspace position "
        "--capsule-attention enc dec --average 2 --dropout 0.1 --accumulate 2 --max-tokens 160 "
        "--lr 0.01 --steps 6 --eval-every 3 --name a")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run without interruptions, over the end of an epoch, with mechanisms of every
    kind and all that draws random numbers."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(small_corpus(folder), LONG) == 0
    folder = folder / "runs" / "a"
    assert {row["epoch"] for row in rows(folder, "train")} == {0, 1}
    return folder


# ---- Resuming is exact

def check_same(whole, folder) -> None:
    """Asserts that a finished run has the weights, the log and the translations of `whole`."""
    for name in ("last", "best", "average"):
        assert same(load(whole, name), load(folder, name))
    for kind in ("train", "valid", "test"):
        assert rows(whole, kind) == rows(folder, kind)
    assert (whole / "test.hyp").read_bytes() == (folder / "test.hyp").read_bytes()


def test_a_stopped_and_moved_run_is_the_same_bit_by_bit(whole, text, tmp_path, monkeypatch):
    """It is stopped at a validation and between two, and goes on in another folder, under another
    name, from another current directory, with relative paths."""
    folder = tmp_path / "runs" / "a"
    for step in (3, 4):
        stop_after(step, text, LONG)
        assert load(folder)["progress"]["step"] == step == rows(folder, "train")[-1]["step"]
    shutil.move(folder, tmp_path / "elsewhere" / "moved")
    monkeypatch.chdir(tmp_path)
    flags = "--src en --tgt de --train train --valid valid --test test --runs elsewhere".split()
    assert train(flags, f"{LONG} --name moved") == 0
    check_same(whole, tmp_path / "elsewhere" / "moved")


def test_a_killed_run_is_the_same_bit_by_bit(whole, text, tmp_path, monkeypatch):
    """It goes on at its last checkpoint, also between validations, without repeated log lines. A
    validation that was not saved is repeated, whether or not its row was written; so is the
    test."""
    folder = tmp_path / "runs" / "a"

    def step_saved() -> int:
        return load(folder)["progress"]["step"]

    train_until("train  step 2 ", text, LONG)            # before there is a checkpoint
    assert len(rows(folder, "train")) == 1 and not (folder / "last.pt").exists()
    with monkeypatch.context() as patch:
        patch.setattr(train_mt, "SAVE_SECONDS", 0)
        train_until("train  step 3 ", text, LONG)
    assert (rows(folder, "train")[-1]["step"], step_saved()) == (3, 2)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(train_mt, "validate", raise_killed)
        train(text, LONG)
    assert step_saved() == 2 and not rows(folder, "valid")
    train_until("valid  step 3 ", text, LONG)
    assert step_saved() == 2 and len(rows(folder, "valid")) == 1
    train_until("valid  step 6 ", text, LONG)
    assert step_saved() == 3 and len(rows(folder, "valid")) == 2
    train_until("test BLEU", text, LONG)                 # the test again
    assert train(text, LONG) == 0
    check_same(whole, folder)


def raise_killed(*args):
    raise Killed


def test_a_run_is_saved_every_five_minutes(text, tmp_path, monkeypatch):
    """The clock advances by a minute whenever it is read, which is once a step."""
    minutes = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: 60.0 * next(minutes))
    monkeypatch.setattr(train_mt, "time", clock)
    train_until("train  step 8 ", text, "--steps 9 --log-every 8 --eval-every 9 --name a")
    assert load(tmp_path / "runs" / "a")["progress"]["step"] == 6


def test_a_finished_run_is_not_trained_again(whole, text, tmp_path):
    shutil.copytree(whole, tmp_path / "runs" / "a")
    assert train(text, f"{LONG} --log-every 9") == 0     # what is printed may differ
    check_same(whole, tmp_path / "runs" / "a")


# ---- Signals

@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_saves_and_ends_the_run(number, text, tmp_path):
    with program():
        signal.signal(number, signal.SIG_DFL)            # a shell may have it ignored
        words = "--steps 3 --name a"
        assert train_until("train  step 2 ", text, words, number) == 128 + number
    assert load(tmp_path / "runs" / "a")["progress"]["step"] == 2


def test_an_ignored_signal_stays_ignored():
    """nohup ignores SIGHUP, and a shell SIGINT in a program in the background."""
    with program():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        train_mt.catch_signals()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a terminal of Unix")
def test_a_closed_terminal_saves_and_ends_the_run(text, tmp_path):
    """It sends SIGHUP, and from then on nothing can be printed."""
    terminal, slave = os.openpty()
    words = "--steps 2000 --name a"
    command = [sys.executable, "train_mt.py", *text, *TINY.split(), *words.split()]

    def take_terminal():
        os.login_tty(slave)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)     # nohup ignores it

    with subprocess.Popen(command, cwd=ROOT, preexec_fn=take_terminal):
        os.close(slave)
        output = b""
        while b"train  step 4 " not in output:
            output += os.read(terminal, 999)
        os.close(terminal)
    folder = tmp_path / "runs" / "a"
    assert load(folder)["progress"]["step"] == rows(folder, "train")[-1]["step"] in range(4, 2000)


# ---- Several processes

@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs libuv there")
def test_two_processes_are_one_with_twice_the_accumulation(text, tmp_path):
    """A run of one process is resumed by two, and by one. Adam magnifies rounding."""
    words = ("--steps 6 --decay sqrt --warmup 20 --lr 0.001 --dropout 0 --reg output position "
             "--agg gu-em --em-gradient last --name a")
    folder = tmp_path / "runs" / "a"
    stop_after(2, text, f"{words} --accumulate 4")
    shutil.copytree(tmp_path / "runs", tmp_path / "two")
    assert train(text, f"{words} --accumulate 4") == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["train_mt.py", *text, *TINY.split(), *words.split(), "--accumulate", "2"]
    two = subprocess.run([*torchrun, *command, "--runs", str(tmp_path / "two")], cwd=ROOT,
                         encoding="utf-8", errors="replace", capture_output=True)
    assert two.returncode == 0, two.stderr
    for kind, names in (("train", "loss disagreement gradient_norm lr"), ("valid", "valid_loss")):
        one, both = rows(folder, kind), rows(tmp_path / "two" / "a", kind)
        assert [row["step"] for row in one] == [row["step"] for row in both]
        for name in names.split():
            values = [row[name] for row in both]
            assert [row[name] for row in one] == pytest.approx(values, rel=1e-3)
