"""Compares the stored runs of train_mt.py, results/runs.jsonl.

    python results/summary.py                       # writes summary.txt, draws differences.png
    python results/summary.py --add runs/NAME ...   # first adds finished runs to runs.jsonl

A planned difference is the mean test BLEU of an arm minus that of another arm, over the same seeds.
Its test is a t-test in the model score = arm + seed, with one residual variance for all arms of a
family, or Welch's t-test where the arms' variances differ (Levene's test, p < 0.01). p is adjusted
for the tests of the family by Holm's method; only one head, the positive control, is not adjusted.
"""
import argparse
import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats
from tabulate import tabulate

FOLDER = Path(__file__).resolve().parent
ENJA = "--arch tiny --heads 8 --data enja --vocab-size 6000 --steps 3000"
TOY = ("--arch tiny --heads 8 --train {toy4000}/train --valid {toy4000}/valid "
       "--test {toy4000}/test --src en --tgt de --vocab-size 2000 --steps %d --lr 2.9e-3 "
       "--warmup 150 --max-tokens 512 --eval-every 1400")
MULTI30K = "--arch tiny --heads 8 --data multi30k --vocab-size 6000 --steps 8000"
# flags by arm; {em}: --agg em, with the gradient that the text was run with
ARMS = {
    "baseline": "", "one-head": "--heads 1", "wide-ffn": "--d-ff 385",
    "output": "--reg output", "output-enc": "--reg output --reg-at enc",
    "output-0.1": "--reg output --reg-weight 0.1",
    "em": "{em}", "uniform": "--agg em --iterations 1",
    "both": "{em} --reg output", "both-enc": "{em} --reg output --reg-at enc",
    "both-0.1": "{em} --reg output --reg-weight 0.1",
    "both-uniform": "--agg em --iterations 1 --reg output",
    "gu-em": "--agg gu-em --em-gradient last", "gu-em-full": "--agg gu-em --em-gradient full",
    "gu-em-beta": "--agg gu-em --em-gradient beta", "gu-dynamic": "--agg gu-dynamic",
    "capsule": "--capsule-attention enc dec"}


class Family(NamedTuple):
    """Arms that were planned and are tested together."""
    scale: str                          # the flags of all arms
    arms: str                           # the first is the one that the others are compared with
    seeds: tuple[int, ...]              # those that all arms have
    welch: bool = False                 # Welch's test was planned, whatever the variances


FAMILIES = {
    "Real text": Family(
        ENJA, "baseline one-head em uniform output both gu-em capsule", tuple(range(2, 10))),
    "Real text, second part": Family(
        ENJA, "baseline one-head wide-ffn gu-dynamic output-0.1 both-0.1", (2, 4, 5, 6, 7, 8)),
    "Real text, repeated": Family(
        f"{ENJA} --eval-every 3000", "baseline one-head em uniform output both gu-em capsule "
        "wide-ffn gu-dynamic output-0.1 both-0.1 output-enc both-enc", tuple(range(10, 15))),
    "Generated text": Family(
        TOY % 1400, "baseline one-head wide-ffn em uniform output both gu-em gu-em-full gu-dynamic "
        "capsule gu-em-beta", tuple(range(1, 21))),
    "Generated text, more arms": Family(
        TOY % 1400, "baseline output-enc output-0.1 both-enc both-0.1", tuple(range(21, 28))),
    "Generated text, control of both": Family(
        TOY % 1400, "both both-uniform", tuple(range(21, 27))),
    "Generated text, four times the steps": Family(
        TOY % 5600, "baseline output gu-em", tuple(range(31, 36))),
    "Generated text, four times the steps, one head": Family(
        TOY % 5600, "baseline one-head", tuple(range(31, 36)), welch=True),
    "Multi30K": Family(
        MULTI30K, "baseline one-head wide-ffn em uniform output both", (1, 2, 3, 4))}


class Difference(NamedTuple):
    """Mean test BLEU of an arm minus that of another."""
    arm: str
    against: str
    bleu: float
    low: float                          # 95 % interval
    high: float
    p: float


# ---- The planned tests

def read_runs() -> list[dict]:
    lines = (FOLDER / "runs.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def run_key(run: dict) -> tuple:
    return run["scale"], run["size"], run["flags"], run["seed"]


def planned_keys(family: Family) -> dict[str, list[tuple]]:
    """{arm: the keys of its runs, by seed}."""
    em = "--agg em --em-gradient last"
    if family.scale.startswith(ENJA):
        em = "--agg em --em-gradient full"
    keys = {}
    for arm in family.arms.split():
        flags = ARMS[arm].format(em=em)
        keys[arm] = [(family.scale, "base", flags, seed) for seed in family.seeds]
    return keys


def read_scores(family: Family, runs: list[dict]) -> dict[str, np.ndarray]:
    """{arm: test BLEU [seeds]}."""
    bleu = {run_key(run): run["bleu"] for run in runs}
    scores = {}
    for arm, keys in planned_keys(family).items():
        scores[arm] = np.array([bleu[key] for key in keys])
    return scores


def planned_differences(scores: dict[str, np.ndarray], welch: bool = False) -> list[Difference]:
    """The differences of a family's arms from the first one, and of em from uniform. scores:
    {arm: [seeds]}."""
    first, *others = scores
    pairs = [(arm, first) for arm in others]
    if "uniform" in scores:
        pairs.append(("em", "uniform"))
    x = np.array([*scores.values()])                                         # [arms, seeds]
    welch = welch or stats.levene(*x).pvalue < 0.01
    # what the model score = arm + seed leaves
    residuals = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()          # [arms, seeds]
    freedom = (x.shape[0] - 1) * (x.shape[1] - 1)
    error = ((residuals ** 2).sum() / freedom * 2 / x.shape[1]) ** 0.5       # of a difference
    differences = []
    for arm, against in pairs:
        bleu = scores[arm].mean() - scores[against].mean()
        if welch:
            test = stats.ttest_ind(scores[arm], scores[against], equal_var=False)
            p = test.pvalue
            low, high = test.confidence_interval(0.95)
        else:
            p = 2 * stats.t.sf(abs(bleu / error), freedom)
            low, high = stats.t.interval(0.95, freedom, bleu, error)
        differences.append(Difference(arm, against, bleu, low, high, p))
    return differences


def holm(p) -> np.ndarray:
    """p after Holm's adjustment (1979) for len(p) tests."""
    p = np.array(p)
    order = p.argsort()
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return adjusted.clip(max=1)


# ---- What is printed

def describe_family(title: str, family: Family, scores: dict[str, np.ndarray]) -> str:
    """The table of a family, with the means of its arms."""
    differences = planned_differences(scores, family.welch)
    # the positive control is not adjusted
    control = [x for x in differences if x.arm == "one-head"]
    tested = [x for x in differences if x.arm != "one-head"]
    adjusted = [*holm([x.p for x in tested]), *(x.p for x in control)]
    rows = []
    for x, p in zip(tested + control, adjusted):
        verdict = ""
        if p < 0.05:
            verdict = "better" if x.bleu > 0 else "worse"
        rows.append([f"{x.arm} - {x.against}", f"{x.bleu:+z.2f}",
                     f"[{x.low:+z.2f}, {x.high:+z.2f}]", f"{x.p:.4f}", f"{p:.4f}", verdict])
    header = ["difference", "BLEU", "95 %", "p", "p, Holm", ""]
    means = "  ".join(f"{arm} {bleu.mean():.2f}" for arm, bleu in scores.items())
    seeds = " ".join(map(str, family.seeds))
    return (f"{title}, seeds {seeds}\n{tabulate(rows, header, disable_numparse=True)}\n"
            f"means: {means}")


def describe_others(runs: list[dict], planned: set[tuple]) -> list[str]:
    """A table for every text and size with runs that were not planned: mean, standard deviation,
    and the difference from the runs without flags that have the same seeds."""
    groups = defaultdict(lambda: defaultdict(dict))      # scale and size -> flags -> seed -> BLEU
    unplanned = defaultdict(set)                         # scale and size -> flags
    for run in runs:
        scale, size, flags, seed = run_key(run)
        groups[scale, size][flags][seed] = run["bleu"]
        if run_key(run) not in planned:
            unplanned[scale, size].add(flags)
    tables = []
    for (scale, size), names in unplanned.items():
        baseline = groups[scale, size][""]
        rows = []
        for flags in sorted(names):
            bleu = groups[scale, size][flags]
            scores = list(bleu.values())
            spread = f"{np.std(scores, ddof=1):.2f}" if len(scores) > 1 else ""
            gains = [bleu[seed] - baseline[seed] for seed in bleu if seed in baseline]
            gain = f"{np.mean(gains):+z.2f} ({len(gains)})" if flags and gains else ""
            seeds = " ".join(map(str, sorted(bleu)))
            rows.append([flags or "(no flags)", seeds, f"{np.mean(scores):.2f}", spread, gain])
        header = ["flags", "seeds", "mean", "spread", "difference (seeds)"]
        title = f"train_mt.py {scale} {size.removeprefix('base')}".strip()
        tables.append(f"{title}\n{tabulate(rows, header, disable_numparse=True)}")
    return tables


def describe_runs(runs: list[dict]) -> str:
    """The text of summary.txt."""
    parts = ["PLANNED DIFFERENCES"]
    planned = set()
    for title, family in FAMILIES.items():
        parts.append(describe_family(title, family, read_scores(family, runs)))
        planned.update(*planned_keys(family).values())
    parts += ["OTHER RUNS", *describe_others(runs, planned)]
    return "\n\n".join(parts) + "\n"


# ---- The picture

ROWS = {                                # arm and the one it is compared with: label, paper's gain
    ("output", "baseline"): ("Li 2018: reward", 0.87),
    ("output-enc", "baseline"): ("only in the encoder", 0.65),
    ("output-0.1", "baseline"): ("a tenth of the reward", None),
    ("em", "baseline"): ("Li 2019: routing layers", 0.95),
    ("uniform", "baseline"): ("the same without routing", None),
    ("em", "uniform"): ("difference of these two", None),
    ("wide-ffn", "baseline"): ("wider layers, no routing", None),
    ("both", "baseline"): ("Li 2021: reward, routing", 1.10),
    ("both-enc", "baseline"): ("only in the encoder", None),
    ("both-0.1", "baseline"): ("a tenth of the reward", None),
    ("gu-em", "baseline"): ("Gu 2019: capsule layer", 0.43),
    ("gu-em-full", "baseline"): ("gradient of all iterations", None),
    ("gu-dynamic", "baseline"): ("dynamic routing", 0.33),
    ("capsule", "baseline"): ("Duan 2020: routed logits", 0.61),
    ("one-head", "baseline"): ("one head", None)}
SERIES = (                              # panel, families, marker, distance from the row's middle
    (0, ("Real text, second part", "Real text"), "oC0", -0.12, "first runs"),
    (0, ("Real text, repeated",), "sC1", 0.12, "other seeds"),
    (1, ("Generated text", "Generated text, more arms"), "oC0", -0.12, ""),
    (1, ("Generated text, four times the steps", "Generated text, four times the steps, one head"),
     "DC2", 0.12, "four times the steps"))


def draw_differences(runs: list[dict]) -> None:
    """Draws differences.png: a row per arm, a panel per text."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 7.5), dpi=120, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, title in zip(panels, ("real text, English to Japanese", "generated text")):
        panel.set(title=title, xlabel="difference in BLEU, 95 % interval")
        panel.axvline(0, color="gray", linewidth=1)
        panel.grid(axis="y", alpha=0.3)
        printed = [(gain, place) for place, (_, gain) in enumerate(ROWS.values()) if gain]
        panel.plot(*zip(*printed), "k|", markersize=14, label="the paper's gain")
    for i, titles, marker, shift, label in SERIES:
        differences = {}                                 # one head is in both parts of a text
        for title in titles:
            family = FAMILIES[title]
            for x in planned_differences(read_scores(family, runs), family.welch):
                differences[x.arm, x.against] = x
        for place, pair in enumerate(ROWS):
            if pair in differences:
                x = differences[pair]
                panels[i].errorbar(x.bleu, place + shift,
                                   xerr=[[x.bleu - x.low], [x.high - x.bleu]], fmt=marker,
                                   markersize=5, label=label)
    panels[0].set_yticks(range(len(ROWS)), [label for label, _ in ROWS.values()])
    panels[0].invert_yaxis()
    handles = {}
    for panel in panels:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels())))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4)
    figure.savefig(FOLDER / "differences.png")


# ---- Adding runs

def read_finished(folder: Path) -> dict:
    """The line of runs.jsonl of a finished run: its flags, seed, commit and last test."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    rows = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    test = [row for row in rows if row["type"] == "test"][-1]
    # the flags of the mechanisms with their values; all other flags are the scale
    mechanism = r"--(?:agg|reg|capsule|iterations|em-)\S*(?: (?!--)\S+)*"
    command = re.sub(r"--(?:seed|name|runs|device|data-dir) \S+", "", " ".join(config["command"]))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER, text=True,
                            capture_output=True).stdout.strip()
    return {"scale": " ".join(re.sub(mechanism, "", command).split()), "size": "base",
            "flags": " ".join(re.findall(mechanism, command)), "seed": config["seed"],
            "bleu": test["bleu"], "chrf": test["chrf"], "sets": test["sets"],
            "signature": test["signature"], "scores": test["disagreement"]["enc"],
            "parameters": test["parameters"], "tokens_per_second": test["tokens_per_second"],
            "commit": commit}


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="RUN",
                        help="folders of finished runs that runs.jsonl lacks")
    runs = read_runs()
    for folder in parser.parse_args(argv).add:
        run = read_finished(folder)
        if run_key(run) in map(run_key, runs):
            parser.error(f"{folder}: runs.jsonl has this run: {run_key(run)}")
        runs.append(run)
        with (FOLDER / "runs.jsonl").open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(run) + "\n")
        print(f"added: {run_key(run)}, BLEU {run['bleu']:.2f}")
    (FOLDER / "summary.txt").write_text(describe_runs(runs), "utf-8", newline="\n")
    draw_differences(runs)


if __name__ == "__main__":
    main()
