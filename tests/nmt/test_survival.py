"""Long runs: stopped by signals, killed, moved. Each ends bit-identical to one left alone."""
import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from small_run import TINY, Killed, load, rows, same, small_corpus, stop_after, train, train_until
from torch.utils.data import DataLoader

import train_mt
from nmt import batches
from nmt.run_folder import load_checkpoint
from tools.machine import Machine
from tools.signals import SIGNALS

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
    """Stopped at a validation and between two; in the end in another folder, under another name,
    from another current directory, with relative paths."""
    folder = tmp_path / "runs" / "a"
    loader = Mock(wraps=DataLoader)
    monkeypatch.setattr(batches, "DataLoader", loader)
    for step, more in ((3, "--workers 2"), (5, "")):
        stop_after(step, text, f"{LONG} {more}")
        assert load(folder)["step"] == step == rows(folder, "train")[-1]["step"]
    assert [call.kwargs["num_workers"] for call in loader.call_args_list] == [2, 0]
    shutil.move(folder, tmp_path / "elsewhere" / "moved")
    monkeypatch.chdir(tmp_path)
    flags = "--src en --tgt de --train train --valid valid --test test --runs elsewhere".split()
    assert train(flags, f"{LONG} --name moved") == 0
    check_same(whole, tmp_path / "elsewhere" / "moved")


def test_a_killed_run_is_the_same_bit_by_bit(whole, text, tmp_path, monkeypatch):
    """It goes on at its last checkpoint, also between validations, without repeated log lines. In a
    validation it validates again, whether or not its row was written; so does the test."""
    folder = tmp_path / "runs" / "a"
    stop_after(2, text, LONG)                            # before the first validation
    train_until("train step      3 ", text, f"{LONG} --save-every 9")
    assert rows(folder, "train")[-1]["step"] == 3 and load(folder)["step"] == 2
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(train_mt, "validate", Mock(side_effect=Killed))
        train(text, LONG)
    assert not rows(folder, "valid")
    train_until("valid step", text, LONG)
    assert len(rows(folder, "valid")) == 1
    assert load(folder)["unvalidated"] and load(folder)["step"] == 3
    train_until("train step      5 ", text, f"{LONG} --save-every 2")
    assert rows(folder, "train")[-1]["step"] == 5 and load(folder)["step"] == 4
    train_until("valid step      6 ", text, LONG)
    assert load(folder)["unvalidated"] and not rows(folder, "test")
    assert train(text, LONG) == 0
    check_same(whole, folder)
    metrics = (folder / "metrics.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(metrics[:-1]), "utf-8")    # before its test
    assert train(text, LONG) == 0
    check_same(whole, folder)


def test_a_run_that_logs_rarely_is_saved_by_time(whole, text, tmp_path, monkeypatch):
    """Without a row of its own. It goes on there, with the same weights and tokens in the end. One
    that logs often is saved by the time since the last save, too."""
    words = f"{LONG} --log-every 9 --eval-every 5"
    folder = tmp_path / "runs" / "a"
    with monkeypatch.context() as patch:                 # a clock that is read three times a step
        clock = itertools.count()
        patch.setattr(train_mt, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        patch.setattr(train_mt, "SAVE_SECONDS", 5)
        train_until("train step      4 ", text, f"{words} --log-every 1 --name b")
    assert 0 < load(tmp_path / "runs" / "b")["step"] < 4
    assert train_mt.SAVE_SECONDS == 600
    monkeypatch.setattr(train_mt, "SAVE_SECONDS", 0)
    train_until("train step      5 ", text, words)
    assert rows(folder, "train")[-1]["step"] == 5 and load(folder)["step"] == 4
    assert load_checkpoint(folder / "last.pt")["seconds"] > 0    # those since the start, too
    monkeypatch.undo()
    assert train(text, words) == 0
    last, expected = load(folder), load(whole)
    for state in (last, expected):
        del state["best"]                                # there were other validations
    assert same(last, expected)


# ---- Signals

@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_saves_and_ends_the_program(number, text, tmp_path):
    """In training, unless it is ignored: nohup makes a program ignore SIGHUP, and a shell SIGINT in
    a program in the background. In the last validation it ends the
    program before the test, and in the test at once."""
    words = "--steps 3 --name a"
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert train_until("train step      1 ", text, "--steps 3 --name b", number) == 0
        signal.signal(number, usual)
        assert train_until("train step      1 ", text, words, number) == 128 + number
        assert load(tmp_path / "runs" / "a")["step"] == 2
        assert train_until("valid step      3 ", text, words, number) == 128 + number
        assert not rows(tmp_path / "runs" / "a", "test")
        assert train_until("test BLEU", text, words, number) == 128 + number
        assert signal.getsignal(number) is usual         # as it was
    finally:
        signal.signal(number, before)
    assert load(tmp_path / "runs" / "a")["step"] == 3


def test_processes_that_differ_are_refused(text, tmp_path, monkeypatch, capsys):
    """Two machines without a disk in common: other flags, another text, another checkpoint."""
    stop_after(2, text, "--steps 4 --name a")
    compared = []

    def all_equal(machine, number: int) -> bool:
        compared.append(number)
        return len(compared) == 2                        # then the text is the same

    monkeypatch.setattr(Machine, "all_equal", all_equal)
    differ = "the processes read different texts or have different flags"
    for name, message in (("a", differ), ("a", "the processes resume at different steps"),
                          ("b", differ), ("c --dropout 0", differ)):
        assert train(text, f"--steps 4 --name {name}") == 2
        assert message in capsys.readouterr().err
    shutil.copy(tmp_path / "train.de", tmp_path / "train.en")
    assert train(text, "--steps 4 --name a") == 2        # with the tokenizer that it has
    first, again, step, renamed, other_flags, other_text = compared
    assert first == again == renamed and step == 2
    assert len({first, other_flags, other_text}) == 3


@pytest.fixture
def start_two(text):
    """A function that starts what torchrun would: two processes of a run, each with a process group
    of its own."""
    pair = []

    def start_two(words: str) -> list[subprocess.Popen]:
        command = [sys.executable, "train_mt.py", *text, *TINY.split(), *words.split()]
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        for rank in "01":
            environment = dict(os.environ, OMP_NUM_THREADS="1", RANK=rank, LOCAL_RANK=rank,
                               WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port)
            del environment["TOKENIZERS_PARALLELISM"]    # which nmt/encoded.py sets
            pair.append(subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, start_new_session=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return pair

    yield start_two
    for program in pair:
        program.kill()                                   # if a test failed


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows ends without signals")
def test_two_processes_are_one_with_twice_the_accumulation(start_two, text, tmp_path):
    """A run of one process is resumed by two, and stopped by SIGTERM to the second of them and to
    its workers. Nothing since the last step is lost; up to rounding, which Adam magnifies. Nor does
    a library warn."""
    words = ("--steps 100000 --eval-every 100000 --save-every 100000 --decay sqrt --warmup 20 "
             "--lr 0.001 --dropout 0 --reg output position --agg gu-em --em-gradient last --name a")
    folder = tmp_path / "runs" / "a"
    stop_after(2, text, f"{words} --accumulate 4")
    pair = start_two(f"{words} --accumulate 2 --workers 1")
    while len(rows(folder, "train")) < 4:
        assert pair[0].poll() is None, pair[0].communicate()[0]
        time.sleep(0.01)
    os.killpg(pair[1].pid, signal.SIGTERM)
    outputs = [program.communicate(timeout=60)[0] for program in pair]
    assert [program.returncode for program in pair] == [143, 143], outputs
    step = load(folder)["step"]
    assert f"stopped at step {step}; the same command resumes it" in outputs[0]
    assert "TOKENIZERS_PARALLELISM" not in "".join(outputs)
    shutil.move(folder, tmp_path / "two")
    stop_after(step, text, f"{words} --accumulate 4")
    one, two = (rows(place, "train") for place in (folder, tmp_path / "two"))
    assert [row["step"] for row in two] == [*range(1, step + 1)]
    for a, b in zip(one, two, strict=True):
        for name in ("loss", "disagreement", "gradient_norm", "lr"):
            assert a[name] == pytest.approx(b[name], rel=1e-3)
