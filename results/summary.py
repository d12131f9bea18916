"""Compares the stored runs of train_mt.py, results/runs.jsonl.

    python results/summary.py                       # writes summary.txt, draws differences.png
    python results/summary.py --add runs/NAME ...   # first adds finished runs to runs.jsonl

A planned difference is the mean test BLEU of an arm minus that of another arm, over the seeds that
all arms of the family have. Its test is a paired t-test; on English-Japanese a t-test in the model
score = arm + seed, with one residual variance for all arms of a family. p is adjusted for the tests
of the family by Holm's method; one head, the positive control, is not adjusted.
"""
import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats
from tabulate import tabulate

FOLDER = Path(__file__).resolve().parent
# flags by arm
ARMS = {
    "baseline": "", "one-head": "--heads 1", "wide-ffn": "--d-ff {d_ff}",
    "output": "--reg output", "output-enc": "--reg output --reg-at enc",
    "output-0.5": "--reg output --reg-weight 0.5", "output-0.1": "--reg output --reg-weight 0.1",
    "em": "--agg em", "uniform": "--agg em --iterations 1", "dynamic": "--agg dynamic",
    "both": "--agg em --reg output", "both-enc": "--agg em --reg output --reg-at enc",
    "both-0.1": "--agg em --reg output --reg-weight 0.1",
    "gu-em": "--agg gu-em", "gu-em-full": "--agg gu-em --em-gradient full",
    "gu-dynamic": "--agg gu-dynamic", "capsule": "--capsule-attention enc dec"}


class Family(NamedTuple):
    """Arms that were planned and are tested together."""
    flags: str                          # of all arms
    arms: str                           # the first is the one that the others are compared with
    seeds: tuple[int, ...]              # those that were planned
    least: int                          # fewer seeds are not tested
    paired: bool = True                 # False: one residual variance for all arms
    control: str = "one-head"           # its p is not adjusted
    d_ff: int = 321                     # of the wider feed-forward layers


ENJA = "--arch tiny --heads 8 --data enja --vocab-size 6000 --steps 3000"
FAMILIES = {
    "English-German": Family(
        "", "baseline one-head output output-0.5 output-0.1 em uniform both gu-em gu-em-full "
        "capsule", tuple(range(11, 19)), 5),
    "English-German, second family": Family(
        "", "baseline dynamic gu-dynamic wide-ffn", tuple(range(11, 16)), 5),
    "English-German, four times the steps": Family(
        "--steps 11200", "baseline one-head output em both", tuple(range(11, 16)), 3,
        control=""),
    "English-Japanese": Family(
        ENJA, "baseline one-head em uniform output both gu-em capsule", tuple(range(2, 10)), 8,
        paired=False),
    "English-Japanese, second part": Family(
        ENJA, "baseline one-head wide-ffn gu-dynamic output-0.1 both-0.1", (2, 4, 5, 6, 7, 8), 6,
        paired=False, d_ff=385),
    "English-Japanese, repeated": Family(
        f"{ENJA} --eval-every 3000", "baseline one-head em uniform output both gu-em capsule "
        "wide-ffn gu-dynamic output-0.1 both-0.1 output-enc both-enc", tuple(range(10, 15)), 5,
        paired=False, d_ff=385)}
# has an interval and no test
UNTESTED = ("gu-em-full", "gu-em")


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


def read_scores(family: Family, runs: list[dict]) -> dict[int, dict[str, float]]:
    """{seed: {arm: test BLEU}}, for the seeds that all arms have; empty with too few of them."""
    bleu = {(run["command"], run["seed"]): run["bleu"] for run in runs}
    blocks = {}
    for seed in family.seeds:
        block = {}
        for arm in family.arms.split():
            command = f"{family.flags} {ARMS[arm]}".format(d_ff=family.d_ff).strip()
            block[arm] = bleu.get((command, seed))
        if None not in block.values():
            blocks[seed] = block
    return blocks if len(blocks) >= family.least else {}


def planned_differences(blocks: dict[int, dict[str, float]], paired: bool) -> list[Difference]:
    """The differences of a family's arms from the first one, and between two pairs of others.
    blocks: {seed: {arm: test BLEU}}."""
    first, *others = next(iter(blocks.values()))
    pairs = [(arm, first) for arm in others]
    pairs += [pair for pair in (("em", "uniform"), UNTESTED) if {*pair} <= {*others}]
    x = np.array([[*block.values()] for block in blocks.values()])           # [seeds, arms]
    scores = dict(zip([first, *others], x.T))
    # what the model score = arm + seed leaves
    residuals = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()          # [seeds, arms]
    freedom = (x.shape[0] - 1) * (x.shape[1] - 1)
    error = ((residuals ** 2).sum() / freedom * 2 / x.shape[0]) ** 0.5       # of a difference
    differences = []
    for arm, against in pairs:
        bleu = scores[arm].mean() - scores[against].mean()
        if paired:
            test = stats.ttest_rel(scores[arm], scores[against])
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


def stored_differences(titles: tuple[str, ...], runs: list[dict]) -> dict[tuple, Difference]:
    """The differences of families by (arm, against); a later family's replace an earlier one's."""
    differences = {}
    for title in titles:
        family = FAMILIES[title]
        blocks = read_scores(family, runs)
        if blocks:
            for x in planned_differences(blocks, family.paired):
                differences[x.arm, x.against] = x
    return differences


# ---- What is printed

def describe_family(title: str, family: Family, blocks: dict[int, dict[str, float]]) -> str:
    """The table of a family, with the means of its arms."""
    differences = planned_differences(blocks, family.paired)
    adjusted = [x for x in differences if x.arm != family.control and x[:2] != UNTESTED]
    p_holm = dict(zip(adjusted, holm([x.p for x in adjusted])))
    rows = []
    for x in differences:
        row = [f"{x.arm} - {x.against}", f"{x.bleu:+z.2f}", f"[{x.low:+z.2f}, {x.high:+z.2f}]"]
        if x[:2] != UNTESTED:
            p = p_holm.get(x, x.p)
            row += [f"{x.p:.4f}", f"{p:.4f}"]
            if p < 0.05:
                row.append("better" if x.bleu > 0 else "worse")
        rows.append(row)
    header = ["difference", "BLEU", "95 %", "p", "p, Holm", ""]
    lines = [f"{title}, seeds {' '.join(map(str, blocks))}",
             tabulate(rows, header, disable_numparse=True), "BLEU, mean ± standard deviation:"]
    for arm in family.arms.split():
        bleu = [block[arm] for block in blocks.values()]
        lines.append(f"  {arm:10} {np.mean(bleu):.2f} ± {np.std(bleu, ddof=1):.2f}")
    return "\n".join(lines)


def describe_runs(runs: list[dict]) -> str:
    """The text of summary.txt."""
    parts = []
    for title, family in FAMILIES.items():
        blocks = read_scores(family, runs)
        if blocks:
            parts.append(describe_family(title, family, blocks))
    return "\n\n".join(parts) + "\n"


# ---- The picture

ROWS = {                                # arm and the one it is compared with: label, paper's gain
    ("output", "baseline"): ("Li 2018: reward", 0.87),
    ("output-enc", "baseline"): ("reward only in the encoder", 0.65),
    ("output-0.5", "baseline"): ("half of the reward", None),
    ("output-0.1", "baseline"): ("a tenth of the reward", None),
    ("em", "baseline"): ("Li 2019: routing layers", 0.95),
    ("uniform", "baseline"): ("the same without routing", None),
    ("em", "uniform"): ("with minus without routing", None),
    ("dynamic", "baseline"): ("Li 2019: simple routing", 0.67),
    ("wide-ffn", "baseline"): ("wider layers, no routing", None),
    ("both", "baseline"): ("Li 2021: reward, routing", 1.10),
    ("both-enc", "baseline"): ("both, only in the encoder", None),
    ("both-0.1", "baseline"): ("both, a tenth of the reward", None),
    ("gu-em", "baseline"): ("Gu 2019: capsule layer", 0.43),
    ("gu-em-full", "baseline"): ("Gu 2019: full gradient", 0.43),
    ("gu-em-full", "gu-em"): ("full minus last gradient", None),
    ("gu-dynamic", "baseline"): ("Gu 2019: dynamic routing", 0.33),
    ("capsule", "baseline"): ("Duan 2020: routed logits", 0.61),
    ("one-head", "baseline"): ("control: one head", None)}
# panel: families, marker, distance from the row's middle, label
PANELS = {
    "English to German": (
        (("English-German", "English-German, second family"), "oC0", -0.12, "first runs"),
        (("English-German, four times the steps",), "DC2", 0.12, "four times the steps")),
    "English to Japanese": (
        (("English-Japanese, second part", "English-Japanese"), "oC0", -0.12, "first runs"),
        (("English-Japanese, repeated",), "sC1", 0.12, "repeated"))}


def draw_differences(runs: list[dict]) -> None:
    """Draws differences.png: a row per arm, a panel per text."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(4 + 2 * len(PANELS), 7), dpi=120, layout="constrained")
    panels, = figure.subplots(1, len(PANELS), sharey=True, squeeze=False)
    for panel, (title, series) in zip(panels, PANELS.items()):
        panel.set(title=title, xlabel="difference in BLEU, 95 % interval")
        panel.axvline(0, color="gray", linewidth=1)
        panel.grid(axis="y", alpha=0.3)
        for titles, marker, shift, label in series:
            for pair, x in stored_differences(titles, runs).items():
                place = [*ROWS].index(pair)
                panel.errorbar(x.bleu, place + shift, xerr=[[x.bleu - x.low], [x.high - x.bleu]],
                               fmt=marker, markersize=5, label=label)
                gain = ROWS[pair][1]
                if gain:
                    panel.plot(gain, place, "k|", markersize=14, label="the paper's gain")
    panels[0].set_yticks(range(len(ROWS)), [label for label, _ in ROWS.values()])
    panels[0].invert_yaxis()
    handles = {}
    for panel in panels:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels())))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4)
    figure.savefig(FOLDER / "differences.png")


# ---- Adding runs

def read_finished(folder: Path) -> dict:
    """The line of runs.jsonl of a finished run: its flags, seed, text and last test. The commit is
    that of the clone in which the run's folder lies."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    rows = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    test = [row for row in rows if row["type"] == "test"][-1]
    command = re.sub(r"--(?:seed|name|runs|device|data-dir) \S+", "", " ".join(config["command"]))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, text=True,
                            capture_output=True, check=True).stdout.strip()
    return {"command": " ".join(command.split()), "seed": config["seed"],
            "text": config["train"] or config["data"], "checksums": config["text"],
            "bleu": test["bleu"], "chrf": test["chrf"], "sets": test["sets"],
            "signature": test["signature"], "scores": test["disagreement"]["enc"],
            "parameters": test["parameters"], "commit": commit}


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="RUN",
                        help="folders of finished runs that runs.jsonl lacks")
    runs = read_runs()
    for folder in parser.parse_args(argv).add:
        run = read_finished(folder)
        key = run["command"], run["seed"]
        if key in [(other["command"], other["seed"]) for other in runs]:
            parser.error(f"{folder}: runs.jsonl has this run: {key}")
        runs.append(run)
        with (FOLDER / "runs.jsonl").open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(run) + "\n")
        print(f"added: {key}, BLEU {run['bleu']:.2f}")
    (FOLDER / "summary.txt").write_text(describe_runs(runs), "utf-8", newline="\n")
    draw_differences(runs)


if __name__ == "__main__":
    main()
