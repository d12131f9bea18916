"""Full disks, closed streams, changing texts, signals, killed processes. Not part of the suite.

    python tests/soak/survive_damage.py              # ten to fifteen minutes
    python tests/soak/survive_damage.py 7            # other moments: seed 7

Works in Linux. The small disk that fills up is mounted, which takes root; other users skip that
part.

Every run must end with the weights of one that was left alone, or with a signal's status, or with
status 2 and one line.
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from small_run import TINY, load, same, small_corpus

from nmt.run_folder import read_config

WORDS = f"{TINY} --average 2 --dropout 0.1 --max-tokens 160 --steps 12 --eval-every 4"
PYTHON = [sys.executable, "train_mt.py"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--master-port", "29731", "train_mt.py"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


def command(start: list[str], text: list[str], name: str, *more: str) -> list[str]:
    """The words of a training command."""
    return [*start, *text, *WORDS.split(), "--name", name, *more]


def run(words: list[str], streams: str = "") -> tuple[int, str]:
    """The exit status and standard error of a command; streams: what the shell does with its."""
    program = subprocess.run(["sh", "-c", f'exec "$@" {streams}', "sh", *words], cwd=ROOT,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return program.returncode, program.stderr


def start(words: list[str]) -> subprocess.Popen:
    """Starts a command, with SIGINT as a terminal does it."""
    return subprocess.Popen(
        words, cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def wait_for(path: Path, program: subprocess.Popen) -> None:
    while not path.exists() and program.poll() is None:
        time.sleep(0.001)


def children_of(program: subprocess.Popen) -> list[int]:
    """The processes that a program has started."""
    text = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text("utf-8")
    return [int(word) for word in text.split()]


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
            *_, last = error.splitlines() or [""]
            assert status == 0 or (status == 2 and "free some space" in last), error
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


def kill_workers(text: list[str], whole: Path, dice: random.Random) -> None:
    """torchrun with two processes, of which one is killed; compared with one left alone."""
    assert run(command(TORCHRUN, text, "two"))[0] == 0
    for number in range(2):
        name = f"killed{number}"
        words = command(TORCHRUN, text, name)
        parent = start(words)
        wait_for(whole.with_name(name) / "last.pt", parent)
        time.sleep(dice.random())
        os.kill(children_of(parent)[number], signal.SIGKILL)
        parent.communicate()
        assert parent.returncode != 0
        assert run(words)[0] == 0
        check(whole.with_name(name), whole.with_name("two"))
        print(f"worker {number} of two killed", flush=True)


def change_texts(place: Path, text: list[str], whole: Path, dice: random.Random) -> None:
    """Runs while another program writes their text anew: refused, or trained on one text."""
    paths = sorted(place.glob("train.*"))
    contents = [path.read_bytes() for path in paths]
    counts = {0: 0, 2: 0}
    for number in range(6):
        name = f"changing{number}"
        program = start(command(PYTHON, text, name))
        while program.poll() is None and not (whole.parent / name / "last.pt").exists():
            for path, content in zip(paths, contents):
                path.write_bytes(content[:len(content) // 2])
                time.sleep(dice.random() / 100)
                path.write_bytes(content)
            time.sleep(dice.random() / 10)
        error = program.communicate()[1]
        counts[program.returncode] += 1
        if program.returncode == 0:
            same_text = read_config(whole.parent / name)["text"] == read_config(whole)["text"]
            assert same_text, name
            check(whole.parent / name, whole)
        else:
            assert error.count("\n") == 1, error
    print(f"changing texts: {counts[0]} runs trained on the whole, {counts[2]} refused")


def send_signals(text: list[str], whole: Path, dice: random.Random) -> None:
    """Signals at random moments, and while average.pt is written; the same command resumes."""
    for number in SIGNALS:
        for turn in range(2):
            name = f"{number.name}{turn}"
            folder = whole.with_name(name)
            program = start(command(PYTHON, text, name))
            wait_for(folder / "config.json", program)
            if turn == 0:
                while program.poll() is None and not [*folder.glob(".average.pt.*")]:
                    pass
            else:
                time.sleep(dice.random())
            program.send_signal(number)
            error = program.communicate()[1]
            # -number: after the end of `main`
            assert program.returncode in (0, 128 + number, -number), (program.returncode, error)
            assert "Error" not in error, error
            assert run(command(PYTHON, text, name))[0] == 0
            check(folder, whole)
        print(f"{number.name}: ended and resumed", flush=True)


def kill_batch_makers(text: list[str], whole: Path, dice: random.Random) -> None:
    """One of two processes that make batches is killed."""
    for number in range(3):
        name = f"maker{number}"
        words = command(PYTHON, text, name, "--workers", "2")
        program = start(words)
        wait_for(whole.with_name(name) / "metrics.jsonl", program)
        while not (children := children_of(program)):
            time.sleep(0.001)
        time.sleep(dice.random() / 10)
        os.kill(children[number % len(children)], signal.SIGKILL)
        error = program.communicate(timeout=60)[1]
        if program.returncode:                           # otherwise it needed no more batches
            assert program.returncode == 2 and error.count("\n") == 1, error
            assert "a process of --workers ended" in error
        assert run(words)[0] == 0
        check(whole.with_name(name), whole)
        print(f"a maker of batches killed: status {program.returncode}", flush=True)


def main(seed: int = 0) -> None:
    """One run that is left alone, then all kinds of damage."""
    dice = random.Random(seed)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        text = small_corpus(place)
        whole = place / "runs" / "whole"
        assert run(command(PYTHON, text, "whole"))[0] == 0
        fill_disks(place, text, whole)
        close_streams(text, whole)
        kill_workers(text, whole, dice)
        change_texts(place, text, whole, dice)
        send_signals(text, whole, dice)
        kill_batch_makers(text, whole, dice)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
