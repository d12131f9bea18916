"""Foreign checkpoints, texts that change, signals, killed helpers. Not part of the suite.

    python tests/soak/survive_outside.py             # a few minutes
    python tests/soak/survive_outside.py 7           # other moments: seed 7

Every run must end with the weights of one that was left alone, or with a signal's status, or with
status 2 and one line. Works in Linux.
"""
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]
from survive_damage import PYTHON, ROOT, WORDS, check, command, run, run_left_alone

import torch  # isort: skip
from small_run import TINY, load, stop_after  # isort: skip

from nmt.run_folder import read_config, read_metrics  # isort: skip

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


def start(words: list[str], **environment) -> subprocess.Popen:
    """Starts a command, with SIGINT as a terminal does it."""
    return subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, **environment}, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def wait_for(path: Path, program: subprocess.Popen) -> None:
    while not path.exists() and program.poll() is None:
        time.sleep(0.001)


def children_of(program: subprocess.Popen) -> list[int]:
    """The processes that a program has started."""
    text = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text("utf-8")
    return [int(word) for word in text.split()]


def expect_one_line(status: int, error: str, part: str) -> None:
    assert status == 2 and error.count("\n") == 1 and part in error, (status, error)


def load_foreign(text: list[str], whole: Path) -> None:
    """Averages of other shapes and strides, in a run that goes on training."""
    stop_after(6, text, WORDS + " --name foreign")
    folder = whole.with_name("foreign")
    state = load(folder) | {"format": 4, "seconds": 1.0}
    average = state["optimizer"]["state"][0]["exp_avg"]
    shared = average.flatten()[:1].as_strided(average.shape, (0,) * average.dim())
    for foreign in (torch.zeros(3), torch.zeros(0), average.repeat(9, 1), average.half(), shared):
        state["optimizer"]["state"][0]["exp_avg"] = foreign
        torch.save(state, folder / "last.pt")
        status, error = run(command(PYTHON, text, "foreign"))
        if foreign.shape == average.shape:
            assert status == 0, error
        else:
            expect_one_line(status, error, "is not a checkpoint of this model")
        print(f"foreign average, {[*foreign.shape]} {foreign.stride()}: status {status}")


def fill_store(place: Path) -> None:
    """Lines of results/runs.jsonl on a disk that fills up, and again when it has space."""
    disk = place / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]).returncode:
        print("full disk: not tried, because mounting takes root")
        return
    code = ("import sys; from pathlib import Path; from papers import reproduce; "
            f"reproduce.ROOT = Path('{disk}'); "
            "reproduce.run_command(lambda s: reproduce.store({'seed': int(sys.argv[1]), "
            "'text': 'x' * 5000}), reproduce.Settings, [])")
    path = disk / "results" / "runs.jsonl"
    try:
        for number in range(8):
            run([sys.executable, "-c", code, str(number)])
        stored = len(read_metrics(path))
        assert 0 < stored < 8 and path.read_bytes().endswith(b"\n")
        subprocess.run(["mount", "-o", "remount,size=640k", disk], check=True)
        run([sys.executable, "-c", code, "9"])
        assert [row["seed"] for row in read_metrics(path)] == [*range(stored), 9]
        print(f"full disk: {stored} lines stored, no line torn")
    finally:
        subprocess.run(["umount", disk])


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
            expect_one_line(program.returncode, error, "a process of --workers ended")
        assert run(words)[0] == 0
        check(whole.with_name(name), whole)
        print(f"a maker of batches killed: status {program.returncode}", flush=True)


def differ(place: Path, text: list[str]) -> None:
    """Two processes of a run, of which the second reads another text."""
    other = place / "other"
    other.mkdir()
    for path in place.glob("*.[de][ne]"):
        shutil.copy(path, other)
    changed = (place / "train.en").read_text("utf-8").replace("rot", "blau")
    (other / "train.en").write_text(changed, "utf-8")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    pair = []
    for rank in "01":
        words = command([sys.executable, "train_mt.py"], text, "differ")
        if rank == "1":
            words[words.index(str(place / "train"))] = str(other / "train")
        pair.append(start(words, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_PORT=port,
                          MASTER_ADDR="localhost"))
    for program in pair:
        error = program.communicate(timeout=120)[1]
        assert program.returncode == 2 and "read different texts" in error, error
    print("two processes with different texts: refused")


def save_by_time(text: list[str], whole: Path, dice: random.Random) -> None:
    """Killed again and again, saved by the clock only."""
    code = "import sys, train_mt; train_mt.SAVE_SECONDS = 0.01; sys.exit(train_mt.main())"
    words = command([sys.executable, "-c", code], text, "clock")
    for _ in range(3):
        program = start(words)
        time.sleep(2 + 2 * dice.random())
        program.kill()
        program.communicate()
    assert run(words)[0] == 0
    check(whole.with_name("clock"), whole)
    print("saved by time, killed 3 times: ended like the first")


def kill_reproduce(place: Path, text: list[str]) -> None:
    """papers.reproduce gets SIGKILL, and SIGHUP, while it trains two runs at a time."""
    runs = place / "tables"
    for number in (signal.SIGKILL, signal.SIGHUP):
        program = start([sys.executable, "-m", "papers.reproduce", "duan-4", *text, *TINY.split(),
                         "--steps", "100000", "--jobs", "2", "--runs", str(runs)])
        while len([*runs.glob("*/last.pt")]) < 2 and program.poll() is None:
            time.sleep(0.01)
        trainings = children_of(program)
        assert len(trainings) == 2, program.communicate()[1]
        program.send_signal(number)
        program.communicate()
        for pid in trainings:
            deadline = time.monotonic() + 60
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not Path(f"/proc/{pid}").exists()
        for path in runs.glob("*/last.pt"):
            load(path.parent)
        shutil.rmtree(runs)
        print(f"papers.reproduce, {number.name}: its trainings saved and ended", flush=True)


def main(seed: int = 0) -> None:
    """One run that is left alone, then everything that may happen to others."""
    dice = random.Random(seed)
    with run_left_alone() as (place, text, whole):
        load_foreign(text, whole)
        fill_store(place)
        change_texts(place, text, whole, dice)
        send_signals(text, whole, dice)
        kill_batch_makers(text, whole, dice)
        differ(place, text)
        save_by_time(text, whole, dice)
        kill_reproduce(place, text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
