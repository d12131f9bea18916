"""Full disks, closed streams, flipped bytes, killed workers. Not part of the suite.

    python tests/soak/survive_damage.py              # less than ten minutes
    python tests/soak/survive_damage.py 7            # other bytes and moments: seed 7

The small disk that fills up is mounted, which takes root; other users skip that part.

Every run must end with the weights of one that was left alone, or with status 2 and one line.
"""
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from small_run import TINY, load, same, small_corpus, stop_after

WORDS = f"{TINY} --average 2 --dropout 0.1 --max-tokens 160 --steps 12 --eval-every 4"
PYTHON = [sys.executable, "train_mt.py"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--master-port", "29731", "train_mt.py"]


def command(start: list[str], text: list[str], name: str, *more: str) -> list[str]:
    """The words of a training command."""
    return [*start, *text, *WORDS.split(), "--name", name, *more]


def run(words: list[str], streams: str = "") -> tuple[int, str]:
    """The exit status and standard error of a command; streams: what the shell does with its."""
    program = subprocess.run(["sh", "-c", f'exec "$@" {streams}', "sh", *words], cwd=ROOT,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return program.returncode, program.stderr


def check(folder: Path, whole: Path) -> None:
    """Asserts that two runs have the same checkpoints."""
    for name in ("last", "best", "average"):
        assert same(load(folder, name), load(whole, name)), (folder, name)


def fill_disks(place: Path, text: list[str], whole: Path) -> None:
    """Runs on a disk of 700 kB with 20 to 400 kB free, and again when it has space."""
    disk = place / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", disk]).returncode:
        print("full disks: not tried, because mounting takes root")
        return
    try:
        for free in range(20, 420, 50):
            (disk / "filling").write_bytes(bytes(1024 * (700 - free)))
            words = command(PYTHON, text, "a", "--runs", str(disk))
            status, error = run(words)
            *warnings, last = error.splitlines() or [""]
            assert status == 0 or (status == 2 and "free some space" in last), error
            assert all(line.startswith("warning: loss.png") for line in warnings), error
            for path in disk.glob("a/*.pt"):
                load(path.parent, path.stem)
            (disk / "filling").unlink()
            assert run(words)[0] == 0
            check(disk / "a", whole)
            shutil.rmtree(disk / "a")
            print(f"full disk: {free} kB free, status {status}", flush=True)
    finally:
        subprocess.run(["umount", disk])


def close_streams(text: list[str], whole: Path) -> None:
    """Runs without some of the standard streams, as cron and daemons start them."""
    for number, streams in enumerate((">&-", "2>&-", "<&- >&- 2>&-")):
        assert run(command(PYTHON, text, f"closed{number}"), streams)[0] == 0
        check(whole.with_name(f"closed{number}"), whole)
        print(f"closed streams: {streams}", flush=True)


def flip_bytes(text: list[str], whole: Path, dice: random.Random) -> None:
    """Resumes from checkpoints with one wrong byte: refused, unless the byte has no meaning."""
    stop_after(6, text, WORDS + " --name stopped")
    stopped = whole.with_name("stopped")
    for number in range(10):
        folder = shutil.copytree(stopped, whole.with_name(f"flipped{number}"))
        content = bytearray((folder / "last.pt").read_bytes())
        at = dice.randrange(len(content))
        content[at] ^= 1 << dice.randrange(8)
        (folder / "last.pt").write_bytes(content)
        status, error = run(command(PYTHON, text, folder.name))
        assert status == 0 or (status == 2 and error.count("\n") == 1), error
        if status == 0:
            check(folder, whole)
        print(f"byte {at:,} of {len(content):,} flipped: status {status}", flush=True)


def kill_workers(text: list[str], whole: Path, dice: random.Random) -> None:
    """torchrun with two processes, of which one is killed; compared with one left alone."""
    assert run(command(TORCHRUN, text, "two"))[0] == 0
    for number in range(2):
        name = f"killed{number}"
        words = command(TORCHRUN, text, name)
        parent = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        while not whole.with_name(name).joinpath("last.pt").exists():
            time.sleep(0.01)
        time.sleep(dice.random())
        workers = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text("utf-8").split()
        os.kill(int(workers[number]), 9)
        assert parent.wait() != 0
        assert run(words)[0] == 0
        check(whole.with_name(name), whole.with_name("two"))
        print(f"worker {number} of two killed", flush=True)


@contextlib.contextmanager
def run_left_alone():
    """A temporary folder, the flags of its text, and a run on it that nothing disturbed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        text = small_corpus(place)
        assert run(command(PYTHON, text, "whole"))[0] == 0
        yield place, text, place / "runs" / "whole"


def main(seed: int = 0) -> None:
    """One run that is left alone, then all kinds of damage."""
    dice = random.Random(seed)
    with run_left_alone() as (place, text, whole):
        fill_disks(place, text, whole)
        close_streams(text, whole)
        flip_bytes(text, whole, dice)
        kill_workers(text, whole, dice)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
