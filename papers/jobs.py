"""Runs of train_mt.py and probe.py as processes: one per GPU, or sharing the cores."""
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from nmt.files import as_user_error
from nmt.machine import defer_signals
from nmt.run_folder import read_metrics, say

ROOT = Path(__file__).resolve().parents[1]


class Job(NamedTuple):
    """A script to run, and the folder that it writes to."""
    script: str
    words: tuple[str, ...]      # its command line, without --runs, --name and --device
    path: Path

    @property
    def log(self) -> Path:
        """The file of its output."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def step(self) -> int:
        """The last training step that it has logged; 0 before the first."""
        rows = read_metrics(self.path / "metrics.jsonl")
        return max([0, *(row["step"] for row in rows if "step" in row)])


def start(job: Job, slot: int, at_once: int, device: torch.device) -> subprocess.Popen:
    """Starts the job of a slot with a GPU, or with its share of the cores, in a process group of
    its own, so that Ctrl-C does not reach it twice."""
    name = str(device)
    if name == "cuda":
        name = f"cuda:{slot % torch.cuda.device_count()}"
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    words = [sys.executable, str(ROOT / job.script), *job.words, "--runs", str(job.path.parent),
             "--name", job.path.name, "--device", name]
    with open(job.log, "ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL, start_new_session=True,
                                env={"OMP_NUM_THREADS": threads, **os.environ})


def run_jobs(jobs: list[Job], runs: Path, at_once: int, device: torch.device, end) -> list[str]:
    """Runs the jobs, `at_once` at a time, and calls end(job) after each that succeeded; a job that
    fails does not stop the others. Returns the names of those that failed.

    A signal is passed on to the jobs, which save; SystemExit follows.
    """
    with as_user_error("write", f"--runs {runs}"):
        runs.mkdir(parents=True, exist_ok=True)
    waiting = list(jobs)
    working = {}                        # slot -> (job, process)
    failed = []
    passed_on = False
    stop = defer_signals()
    bar = tqdm(total=len(jobs), unit="run", dynamic_ncols=True, disable=not sys.stderr.isatty())
    while working or (waiting and not stop):
        for slot in range(at_once):
            if waiting and not stop and slot not in working:
                job = waiting.pop(0)
                working[slot] = job, start(job, slot, at_once, device)
                say(f"{len(jobs) - len(waiting)}/{len(jobs)}  {job.path.name}: started, output in "
                    f"{job.log}")
        time.sleep(0.2)
        if stop and not passed_on:
            for _, process in working.values():
                process.send_signal(stop[0])
            passed_on = True
        for slot, (job, process) in list(working.items()):
            status = process.poll()
            if status is None:
                continue
            del working[slot]
            bar.update()
            if status == 0:
                say(f"{job.path.name}: finished")
                end(job)
            elif not stop:
                failed.append(job.path.name)
                last = job.log.read_text(errors="replace").strip().rpartition("\n")[2]
                say(f"{job.path.name}: exit status {status}: {last} (the whole output: {job.log})")
        bar.set_postfix_str(", ".join(f"{job.path.name} step {job.step:,}"
                                      for job, _ in working.values()))
    bar.close()
    if stop:
        say("stopped; the same command resumes")
        raise SystemExit(128 + stop[0])
    return failed
