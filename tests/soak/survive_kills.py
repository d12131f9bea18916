"""Kills training again and again with SIGKILL, at random moments. Not part of the suite.

    python tests/soak/survive_kills.py               # 20 runs, some minutes
    python tests/soak/survive_kills.py 3 7           # 3 runs, seed 7

One run is left alone; the others have the same flags, are killed up to four times and resumed, and
must end with the same checkpoints, bit by bit. After every kill each checkpoint in the folder must
be readable. A kill comes at a random moment, or as soon as a half-written file is in the folder.
Works where processes fork (not on Windows).
"""
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (1, 2)]
from small_run import load, rows, same, small_corpus, train

WORDS = ("--agg em --agg-at enc cross --reg output subspace position --capsule-attention enc dec "
         "--average 2 --dropout 0.1 --accumulate 2 --max-tokens 160 --steps 24 --eval-every 4 "
         "--name ")


def start(text: list[str], name: str) -> int:
    """Trains in a new process; returns its number."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(train(text, WORDS + name))
    return child


def is_writing(folder: Path, since: float) -> bool:
    """Whether a file was begun since then and is not complete."""
    for path in folder.glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError):     # it is complete now
            if path.stat().st_mtime > since:
                return True
    return False


def kill(child: int, folder: Path, moment: float, half_written: bool) -> str:
    """Kills the process after so many seconds, or when it writes a file; returns how: "half" in a
    write, "killed", or "ended" where it was faster."""
    begun = time.time()
    while time.time() < begun + moment:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return "ended"
        if half_written and is_writing(folder, begun):
            break
        time.sleep(0.0002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "half" if is_writing(folder, begun) else "killed"


def main(runs: int = 20, seed: int = 0) -> None:
    """Trains one run undisturbed and `runs` that are killed; compares them and prints counts."""
    dice = random.Random(seed)
    counts = {"ended": 0, "killed": 0, "half": 0}
    with tempfile.TemporaryDirectory() as place:
        text = small_corpus(Path(place))
        first = Path(place) / "runs" / "whole"
        begun = time.monotonic()
        assert os.waitpid(start(text, "whole"), 0)[1] == 0
        seconds = time.monotonic() - begun
        for number in range(runs):
            folder = Path(place) / "runs" / f"run{number}"
            for _ in range(dice.randint(1, 4)):
                child = start(text, folder.name)
                counts[kill(child, folder, dice.uniform(0, seconds), dice.random() < 0.5)] += 1
                for path in folder.glob("*.pt"):
                    load(folder, path.stem)
            assert os.waitpid(start(text, folder.name), 0)[1] == 0
            for name in ("last", "best", "average"):
                assert same(load(first, name), load(folder, name)), (folder, name)
            assert rows(first, "train") == rows(folder, "train"), folder
            print(f"{folder.name}: ended like the first", flush=True)
    print(f"{runs} runs survived {counts['killed'] + counts['half']} kills, {counts['half']} of "
          "which left a half-written file; all ended bit-identical")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
