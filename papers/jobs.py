"""Runs train_mt.py and probe.py in processes, one per GPU, or several that share the cores."""
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from nmt.run_folder import read_metrics, say
from tools.files import as_user_error
from tools.machine import defer_signals

ROOT = Path(__file__).resolve().parents[1]


class Job(NamedTuple):
    """A script with its command line, and the folder that it writes to."""
    script: str
    words: tuple[str, ...]      # its command line, without --runs, --name and --device
    path: Path

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def step(self) -> int:
        """The last training step that it has logged; 0 before the first."""
        rows = read_metrics(self.path / "metrics.jsonl")
        return max([0, *(row["step"] for row in rows if "step" in row)])


def run_job(job: Job, free_devices: list[str], env: dict, stop: list[int]) -> int | None:
    """Runs a job in its own session, so that Ctrl-C does not reach it twice. Returns its exit
    status, or None if it did not start because of a signal. A signal in `stop` is passed on."""
    if stop:
        return None
    device = free_devices.pop()
    words = [sys.executable, str(ROOT / job.script), *job.words, "--runs", str(job.path.parent),
             "--name", job.path.name, "--device", device]
    say(f"{job.path.name}: started, output in {job.log}")
    with open(job.log, "ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True, env=env)
    while process.poll() is None and not stop:
        time.sleep(0.2)
    if stop:
        process.send_signal(stop[0])
    free_devices.append(device)
    return process.wait()


def run_jobs(jobs: list[Job], runs: Path, at_once: int, device: torch.device, end) -> list[str]:
    """Runs the jobs, `at_once` at a time, and calls end(job) after each that succeeds. A job that
    fails does not stop the others. Returns the names of the failed jobs. A signal is passed on to
    the jobs, which save; then SystemExit is raised."""
    with as_user_error("write", f"--runs {runs}"):
        runs.mkdir(parents=True, exist_ok=True)
    env = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // at_once)), **os.environ}
    free_devices = [str(device)] * at_once
    if str(device) == "cuda":           # all GPUs in turn
        free_devices = [f"cuda:{i % torch.cuda.device_count()}" for i in range(at_once)]
    failed = []
    stop = defer_signals()
    bar = tqdm(total=len(jobs), unit="run", dynamic_ncols=True, disable=None)
    with ThreadPoolExecutor(at_once) as pool, bar:
        waiting = {pool.submit(run_job, job, free_devices, env, stop): job for job in jobs}
        try:
            while waiting:
                steps = [f"{job.path.name} step {job.step:,}" for future, job in waiting.items()
                         if future.running()]
                bar.set_postfix_str(", ".join(steps))
                for future in wait(waiting, 0.5, FIRST_COMPLETED).done:
                    job = waiting.pop(future)
                    status = future.result()
                    bar.update(0 if stop else 1)
                    if status == 0:
                        say(f"{job.path.name}: finished")
                        end(job)
                    elif not stop:
                        failed.append(job.path.name)
                        last = job.log.read_text(errors="replace").strip().rpartition("\n")[2]
                        say(f"{job.path.name}: exit status {status}: {last} (see {job.log})")
        except BaseException:
            stop.append(signal.SIGTERM)                  # for the jobs that still run
            raise
    if stop:
        say("stopped; the same command resumes")
        raise SystemExit(128 + stop[0])
    return failed
