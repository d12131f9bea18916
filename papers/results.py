"""Finished runs of train_mt.py: the lines of results/runs.jsonl, and how a line is made."""
import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import torch

import train_mt
from nmt.run_folder import RunFolder, read_config, read_metrics
from papers.jobs import ROOT
from papers.plan import PlannedRun
from tools.machine import pick_device, processor


def stored_lines() -> list[dict]:
    return read_metrics(ROOT / "results" / "runs.jsonl")


def key_of(line: dict) -> tuple:
    return line["scale"], line["size"], line["flags"], line["seed"]


def read_run(path: Path, run: PlannedRun) -> dict | None:
    """The line of a run; None if it is not finished. Commit, torch and processor are the current
    ones. Raises UserError if its folder has another run."""
    rows = read_metrics(path / "metrics.jsonl")
    tests = [row for row in rows if row.get("type") == "test"]
    if not tests:
        return None
    test = tests[0]
    s = run.settings
    settings = {**asdict(s), "accumulate_times_processes": s.accumulate}
    defaults = asdict(train_mt.Settings())
    free = set(train_mt.FREE)
    if "amp" in s.given:                 # a run's name does not say its precision
        free.remove("amp")
    with RunFolder(path, settings, free, defaults):                  # compares the settings
        config = read_config(path)
    on_cpu = config["device"] == "cpu"
    valid = [row for row in rows if row.get("type") == "valid"]
    best = max(valid, key=lambda row: (row["valid_bleu"], -row["valid_loss"]))
    commit = ""
    if shutil.which("git"):
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True,
                                capture_output=True).stdout.strip()
    return {"scale": run.scale, "size": run.size, "flags": run.flags, "seed": s.seed,
            "bleu": test["test_bleu"], "chrf": test["test_chrf"], "sets": test["sets"],
            "signature": test["signature"], "scores": test["disagreement"]["enc"],
            "parameters": test["parameters"], "tokens": test["tokens"],
            "tokens_per_second": test["tokens_per_second"],
            "sentences_per_second": test["sentences_per_second"], "best_step": best["step"],
            "valid_bleu": best["valid_bleu"], "valid_loss": best["valid_loss"],
            "precision": "bfloat16" if config["amp"] else "float32",
            "commit": commit, "torch": torch.__version__,
            "processor": processor(pick_device("cpu" if on_cpu else "auto"))}


def store(line: dict) -> None:
    path = ROOT / "results" / "runs.jsonl"
    path.parent.mkdir(exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
