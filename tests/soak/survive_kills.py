"""Kills training again and again, and looks whether anything is lost. Not part of the suite.

    python tests/soak/survive_kills.py               # 20 runs, some minutes on one core
    python tests/soak/survive_kills.py 3 7           # as many runs as you like, another seed

One run of a minute model, every kind of mechanism on, is left alone. The others have the same
flags; each is killed one to four times with SIGKILL and started again, and must end with the same
files to the last bit: parameters, optimizer, random states, averages, metrics. There are three
kinds of kills: at a random moment; as soon as a half-written file is seen in the run's folder; and
by the process itself, right before or after one of the system calls that make a write durable
(fsync, rename, truncate, unlink). After every kill each checkpoint in the folder must be readable.

Works where processes fork (not on Windows).
"""
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # a model on the meta device loads it: here once for all

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import train_mt
from nmt import files, run_folder

FLAGS = """--src en --tgt de --device cpu --layers 1 --d-model 16 --heads 2 --d-ff 16
    --vocab-size 300 --max-tokens 160 --dropout 0.1 --accumulate 2 --steps 24 --eval-every 4
    --log-every 3 --warmup 10 --average 2 --beam 2 --seed 5
    --agg em --agg-at enc cross --reg output subspace position --capsule enc dec""".split()
# what nmt/files.py and run_folder.py ask of the system
CALLS = ("fsync", "replace", "truncate", "unlink")
CLOCK = ("time", "seconds", "tokens_per_second", "sentences_per_second")


def write_text(folder: Path) -> list[str]:
    """A small parallel corpus; the flags that name it."""
    words = "ein zwei drei vier der die das Haus Baum geht sieht und rot blau klein".split()
    rng = np.random.default_rng(0)
    for name, count in (("train", 100), ("valid", 8), ("test", 6)):
        lines = [" ".join(rng.choice(words, rng.integers(2, 8))) for _ in range(count)]
        (folder / f"{name}.de").write_text("\n".join(lines) + "\n")
        (folder / f"{name}.en").write_text(
            "\n".join(" ".join(reversed(line.split())) for line in lines) + "\n"
        )
    return [x for name in ("train", "valid", "test") for x in (f"--{name}", str(folder / name))]


def start(argv: list[str], die_at: int | None = None) -> int:
    """Trains in a process of its own and returns its number; with die_at, it kills itself at that
    system call."""
    child = os.fork()
    if child:
        return child
    status = 70                                              # of a crash
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if die_at is not None:
            lie_in_wait(die_at)
        status = train_mt.main(argv)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def lie_in_wait(count: int) -> None:
    """Lets this process be killed at a later one of CALLS: right before it where count is even,
    else right after."""
    left = [count // 2]

    def trapped(call):
        def trap(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0 and count % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return trap
    for name in CALLS:
        setattr(os, name, trapped(getattr(os, name)))


def half_written(folder: Path) -> list[str]:
    """The temporary files in a run's folder."""
    return (
        [name for name in os.listdir(folder) if files.TEMPORARY.fullmatch(name)]
        if folder.exists()
        else []
    )


def kill(argv: list[str], folder: Path, rng: random.Random, longest: float) -> str:
    """Starts the run and kills it in one way or another; says which. "ended" where it was
    faster."""
    kind = rng.choice(("random moment", "file half-written", "system call"))
    child = start(argv, rng.randrange(2 * 60) if kind == "system call" else None)
    moment = time.monotonic() + rng.uniform(0, longest)
    seen = rng.randrange(12)
    old = set(half_written(folder))
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if kind == "random moment" and time.monotonic() > moment:
            break
        if kind == "file half-written" and (new := set(half_written(folder)) - old):
            old |= new
            if (seen := seen - len(new)) < 0:
                break
        time.sleep(0.0002)
    else:
        assert ended[1] in (0, signal.SIGKILL), (
            f"it ended with {os.waitstatus_to_exitcode(ended[1])}"
        )
        return kind if ended[1] else "ended"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return kind


def finished(folder: Path) -> bool:
    """Whether the run has been tested, which is its last act."""
    path = folder / "metrics.jsonl"
    return path.exists() and b"test_bleu" in path.read_bytes()


def content(folder: Path) -> dict:
    """All that a run leaves, without what the clock has a say in."""
    def timeless(value):
        return {k: v for k, v in value.items() if k not in CLOCK}
    found = {path.name: timeless(run_folder.load(path)) for path in folder.glob("*.pt")}
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    return {**found, "metrics": [timeless(json.loads(row)) for row in rows],
            "others": {path.name: path.read_bytes() for path in folder.iterdir()
                       if path.suffix not in (".pt", ".jsonl", ".tmp")}}


def difference(a, b, where: str = "") -> str:
    """Where two values are not equal to the last bit, tensors within them included; "" where they
    are."""
    if type(a) is not type(b):
        return f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        return "" if a.dtype == b.dtype and torch.equal(a, b) else f"{where}: another tensor"
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return f"{where}: {sorted(map(str, a.keys() ^ b.keys()))} only on one side"
        return next(filter(None, (difference(a[key], b[key], f"{where}/{key}") for key in a)), "")
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} and {len(b)} entries"
        return next(
            filter(None, (difference(x, y, f"{where}/{i}") for i, (x, y) in enumerate(zip(a, b)))),
            "",
        )
    return "" if a == b else f"{where}: {a!r} and {b!r}"


def listed(counts: Counter) -> str:
    """Counts as text."""
    return ", ".join(f"{n} x {what}" for what, n in counts.items())


def main(runs: int = 20, seed: int = 0) -> int:
    """Trains one run undisturbed and `runs` that are killed, compares them and prints the
    counts."""
    torch.set_num_threads(1)                                 # nothing that a fork would lose
    rng = random.Random(seed)
    kills = Counter()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        argv = FLAGS + write_text(base) + ["--runs", str(base / "runs"), "--name"]
        started = time.monotonic()
        assert os.waitpid(start(argv + ["whole"]), 0)[1] == 0
        whole = content(base / "runs" / "whole")
        longest = time.monotonic() - started
        assert {"last.pt", "best.pt", "average.pt", "step-24.pt"} <= set(whole), set(whole)
        for number in range(1, runs + 1):
            folder, wanted = base / "runs" / f"killed-{number}", rng.randint(1, 4)
            mine = Counter()
            while mine.total() < wanted and not finished(folder):
                kind = kill(argv + [folder.name], folder, rng, longest)
                if kind == "ended" and not mine:  # faster than its first kill: from the start
                    shutil.rmtree(folder)
                    continue
                if kind == "ended":
                    break
                mine[kind] += 1
                kills["half"] += bool(half_written(folder))
                kills["read"] += len([run_folder.load(path) for path in folder.glob("*.pt")])
            assert os.waitpid(start(argv + [folder.name]), 0)[1] == 0, "the last start failed"
            assert not (where := difference(content(folder), whole)), (
                f"run {number} ended otherwise: {where}"
            )
            assert not half_written(folder)
            kills += mine
            print(
                f"run {number}: killed {mine.total()} times ({listed(mine)}), ended like the first",
                flush=True,
            )
    half = kills.pop("half", 0)
    read = kills.pop("read", 0)
    print(
        f"{runs} runs survived {kills.total()} kills ({listed(kills)}), {half} of which left a "
        "half-written file; "
        f"{read} checkpoints read after kills, none unreadable; all runs ended bit-identical; "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
