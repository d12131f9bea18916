"""Runs of train_mt.py, logic.py and probe.py as processes, several at a time: one per GPU, or sharing the cores.

A signal is passed on to them once; they save, and the same command resumes. A run that fails does not stop the others.
"""
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from nmt import files

from nmt.machine import processor, stopped_by_signals
from papers.tables import TABLES
from papers.plan import Run

ROOT = Path(__file__).resolve().parents[1]


def metrics(path: Path) -> list[dict]:
    """The whole rows of a run's metrics.jsonl; none where there is no such file."""
    try:
        lines = (path / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(dict(json.loads(line)))
        except ValueError:                               # what a killed run has left
            pass
    return rows


def finished(path: Path) -> bool:
    """Whether a run of train_mt.py has been tested."""
    return any("test_bleu" in row for row in metrics(path))


def complete(job: Run, args) -> bool:
    """Whether there is nothing left to train of a run; of logic.py and probe.py, no model and seed."""
    path = Path(args.runs) / job.name
    if job.script == "train_mt.py":
        return finished(path)
    try:
        rows = json.loads((path / "results.json").read_text())["runs"]
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return {(row["model"], row["seed"]) for row in rows} >= {(row.flags, seed) for row in TABLES[job.name].rows
                                                             for seed in args.seeds}


def read_note(path: Path) -> dict | None:
    """What `note` keeps in a run's folder; None where there is nothing, or nothing whole."""
    try:
        found = json.loads((path / "machine.json").read_text())
        return {**found, "seconds": float(found["seconds"]), "jobs": int(found["jobs"]), "date": str(found["date"]),
                "machine": str(found["machine"])}
    except (OSError, KeyError, TypeError, ValueError):
        return None


def environment(slot: int, jobs: int, device: torch.device) -> dict:
    """The environment of the run in a slot: its GPU, and its share of the processor's cores."""
    settings = dict(os.environ)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    settings.setdefault("OMP_NUM_THREADS", str(max(1, cores // jobs)))
    if device.type == "cuda":
        there = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        there = there if there != [""] else [str(i) for i in range(torch.cuda.device_count())]
        settings["CUDA_VISIBLE_DEVICES"] = there[(slot if device.index is None else device.index) % len(there)]
    return settings


def start(job: Run, args, slot: int, device: torch.device):
    """Starts a run in a process group of its own: Ctrl-C reaches it through this program, once."""
    words = [sys.executable, str(ROOT / job.script), *job.flags, "--name", job.name, "--runs", args.runs,
             "--device", device.type]
    with open(Path(args.runs) / f"{job.name}.log", "ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                env=environment(slot, args.jobs, device), start_new_session=True)


def note(job: Run, args, seconds: float, device: torch.device) -> None:
    """Keeps beside a run where and how long it was trained, over all its sittings."""
    path = Path(args.runs) / job.name / "machine.json"
    before = (read_note(path.parent) or {"seconds": 0.0})["seconds"]
    threads = environment(0, args.jobs, device).get("OMP_NUM_THREADS")
    files.atomic_write(path, json.dumps({
        "machine": processor(device) + (f", threads: {threads}" if device.type == "cpu" else ""),
        "jobs": args.jobs, "torch": torch.__version__, "python": platform.python_version(),
        "date": datetime.date.today().isoformat(), "seconds": before + seconds}) + "\n")


def train(jobs: list[Run], args, device: torch.device) -> list[str]:
    """Trains the runs, args.jobs at a time; one that fails is told and the others go on. Returns the names that failed.

    A signal is passed on to the runs, which save; SystemExit then follows.
    """
    Path(args.runs).mkdir(parents=True, exist_ok=True)
    say = lambda text: tqdm.write(text, file=sys.stdout) or sys.stdout.flush()
    waiting, working, failed, stop, done = list(jobs), {}, [], [], 0
    bar = tqdm(total=len(jobs), unit="run", disable=not sys.stderr.isatty())
    with stopped_by_signals(stop):
        try:
            while working or (waiting and not stop):
                for slot in set(range(args.jobs)) - set(working) if not stop else ():
                    if waiting:
                        job = waiting.pop(0)
                        working[slot] = job, start(job, args, slot, device), time.perf_counter()
                        say(f"{len(jobs) - len(waiting)}/{len(jobs)}  {job.name}: started")
                time.sleep(0.1)
                if stop and waiting is not None:
                    for _, process, _ in working.values():
                        process.send_signal(stop[0])
                    waiting = None                       # passed on; only the saving is waited for
                for slot, (job, process, began) in list(working.items()):
                    if process.poll() is not None:
                        del working[slot]
                        done += 1
                        bar.update()
                        outcome(job, args, process.returncode, time.perf_counter() - began, device, failed, stop, say)
        finally:
            for _, process, _ in working.values():
                process.kill()
            bar.close()
    if stop:
        say("stopped; the same command resumes")
        raise SystemExit(128 + stop[0])
    return failed


def outcome(job: Run, args, code: int, seconds: float, device, failed: list, stop: list, say) -> None:
    """Says how a run ended, notes its time, and adds it to `failed` where it did."""
    path = Path(args.runs) / job.name
    if (path / "config.json").exists():
        note(job, args, seconds, device)
    if complete(job, args):
        score = [f"test BLEU {row['test_bleu']:.2f}" for row in metrics(path) if "test_bleu" in row]
        say(f"{job.name}: {score[-1] if score else 'finished'} after {duration(seconds)}")
    elif not stop:
        failed.append(job.name)
        log = Path(args.runs) / f"{job.name}.log"
        lines = log.read_text(errors="replace").strip().splitlines() or [""]
        say(f"{job.name}: failed (exit status {code}): {lines[-1]} (all of it: {log})")
    else:
        say(f"{job.name}: stopped")


def duration(seconds: float) -> str:
    """Seconds in the largest fitting unit."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s"
