"""Trains the runs of docs/plan.md, seed by seed, and adds one line per finished run to
results/planned.jsonl. Runs whose line is there are left out: the same command goes on.

    python -m papers.planned toy4000
    python -m papers.planned multi30k --data-dir data
"""
import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from nmt.corpus import DataFlags, load_corpora
from nmt.run_folder import read_metrics
from papers.jobs import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "planned.jsonl"
PAIRS = 4_000
ARMS = {
    "baseline": "",
    "wide-ffn": "--d-ff 385",
    "em": "--agg em",
    "uniform": "--agg em --iterations 1",
    "output": "--reg output",
    "both": "--agg em --reg output",
    "one-head": "--heads 1",
    "gu-em": "--agg gu-em --em-gradient last",
    "gu-em-full": "--agg gu-em --em-gradient full",
    "gu-em-beta": "--agg gu-em --em-gradient beta",
    "gu-dynamic": "--agg gu-dynamic",
    "capsule": "--capsule-attention enc dec",
}
SCALES = {
    "toy4000": "--src en --tgt de --vocab-size 2000 --steps 1400 --lr 2.9e-3 --warmup 150 "
               "--max-tokens 512 --eval-every 1400",
    "multi30k": "--data multi30k --vocab-size 6000 --steps 8000",
}


def planned_runs(corpus: str) -> list[tuple[int, str]]:
    """(seed, arm) of all runs on a corpus, in the order of docs/plan.md."""
    if corpus == "toy4000":
        return [(seed, arm) for seed in range(1, 21) for arm in ARMS]
    shared = [arm for arm in ARMS if not arm.startswith(("gu", "capsule"))]
    runs = [(seed, arm) for seed in range(1, 7) for arm in shared]
    return runs + [(seed, "baseline") for seed in range(7, 11)]


def write_text(folder: Path) -> list[str]:
    """Writes the first PAIRS training pairs of the embedded corpus, and its validation and test
    pairs, as files into `folder`. Returns the flags that name them."""
    corpora = load_corpora(DataFlags())
    folder.mkdir(parents=True, exist_ok=True)
    sets = {"train": corpora.train, "valid": corpora.valid, "test": corpora.tests["test"]}
    for name, pairs in sets.items():
        for language, lines in ((corpora.src, pairs.source), (corpora.tgt, pairs.target)):
            text = "".join(f"{line}\n" for line in lines[:PAIRS])
            (folder / f"{name}.{language}").write_text(text, "utf-8")
    return [word for name in sets for word in (f"--{name}", str(folder / name))]


def train(corpus: str, seed: int, arm: str, text: list[str], runs: Path, commit: str) -> str:
    """Trains or resumes one run and adds its line to RESULTS. Returns how it ended, in words."""
    name = f"{corpus}-{arm}-seed{seed}"
    flags = f"--arch tiny --heads 8 {SCALES[corpus]} {ARMS[arm]}".split()
    if arm == "one-head":
        flags.remove("--heads")
        flags.remove("8")
    words = ["train_mt.py", *text, *flags, "--seed", str(seed), "--runs", str(runs), "--name", name]
    with open(runs / f"{name}.log", "ab") as log:
        status = subprocess.run([sys.executable, *words], stdout=log, stderr=log, cwd=ROOT,
                                env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    if status:
        return f"{name}: exit status {status}, see {log.name}"
    rows = read_metrics(runs / name / "metrics.jsonl")
    test = rows[-1]
    valid = [row for row in rows if row["type"] == "valid"]
    best = max(valid, key=lambda row: (row["valid_bleu"], -row["valid_loss"]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    line = {"corpus": corpus, "arm": arm, "seed": seed, "flags": " ".join(flags),
            **{key: test[key] for key in ("test_bleu", "test_chrf", "sets", "disagreement",
                                          "parameters", "tokens_per_second")},
            "best_step": best["step"], "valid_loss": best["valid_loss"],
            "valid_bleu": best["valid_bleu"], "commit": commit, "torch": torch.__version__,
            "processor": processor(device)}
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return f"{name}: test BLEU {test['test_bleu']:.2f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("corpus", choices=SCALES)
    parser.add_argument("--data-dir", default="data", help="folder of multi30k (data)")
    parser.add_argument("--runs", default="runs/planned", help="where the runs' folders are")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each (2)")
    given = parser.parse_args()
    runs = Path(given.runs).resolve()
    if given.corpus == "toy4000":
        text = write_text(runs / "toy4000")
    else:
        text = ["--data-dir", str(Path(given.data_dir).resolve())]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True,
                            capture_output=True).stdout.strip()
    finished = {(line["seed"], line["arm"]) for line in read_metrics(RESULTS)
                if line["corpus"] == given.corpus}
    waiting = [run for run in planned_runs(given.corpus) if run not in finished]
    print(f"{len(waiting)} runs to go")
    pool = ThreadPoolExecutor(given.jobs)
    try:
        ends = [pool.submit(train, given.corpus, *run, text, runs, commit) for run in waiting]
        for end in ends:
            print(end.result(), flush=True)
    finally:                                             # Ctrl-C: the runs at work save and stop
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
