"""Computes the numbers on docs/claims.md and docs/statistics.md, and those of the further claims
on docs/results.md, from results/. Draws docs/verdicts.png.

    python -m papers.claims

It prints the rows of the tables, and phrases of the two pages that have a computed number. The
statistics are those of docs/plan.md.
"""
import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

if not __package__:
    print("error: start it in the project's folder: python -m papers.claims", file=sys.stderr)
    sys.exit(2)

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from nmt.significance import format_p
from papers.reproduce import stored_lines
from papers.tables import TABLES
from tools.command_line import Flags
from tools.command_line import run as run_command
from tools.files import UserError

ROOT = Path(__file__).resolve().parents[1]
MARGIN = 0.3                    # BLEU; a smaller difference counts as none


@dataclass
class Settings(Flags):
    """There are none."""


class Contrast(NamedTuple):
    """The difference between two models. Interval and p are not adjusted for other contrasts."""
    difference: float
    low: float                  # ends of the 95 % interval
    high: float
    p: float
    detectable: float           # what one test at 0.05 finds with a probability of about 80 %
    outside_p: float            # of two one-sided tests that place the difference within MARGIN


def make_contrast(difference: float, error: float, freedom: float) -> Contrast:
    """A contrast from a difference, its standard error and the degrees of freedom."""
    t = stats.t(freedom, difference, error)
    return Contrast(difference, *t.interval(0.95), p=2 * min(t.cdf(0), t.sf(0)),
                    detectable=error * stats.t.ppf([0.975, 0.8], freedom).sum(),
                    outside_p=max(t.cdf(-MARGIN), t.sf(MARGIN)))


def paired_contrast(gains: list[float]) -> Contrast:
    """A contrast from differences seed by seed, as in a paired t-test."""
    return make_contrast(np.mean(gains), stats.sem(gains), len(gains) - 1)


def welch_contrast(x: np.ndarray, y: np.ndarray) -> Contrast:
    """A contrast from the scores of two models, by Welch's t-test."""
    difference = x.mean() - y.mean()
    test = stats.ttest_ind(x, y, equal_var=False)
    return make_contrast(difference, difference / test.statistic, test.df)


def format_contrast(x: Contrast, digits: int = 2) -> str:
    """The difference and its interval as text."""
    difference, low, high = [f"{number:+z.{digits}f}"                # z: 0 is "+0.00", not "-0.00"
                             for number in (x.difference, x.low, x.high)]
    return f"{difference} [{low}, {high}]"


def format_half(x: Contrast) -> str:
    """The difference and half its interval as text."""
    return f"{x.difference:+z.2f} ± {x.high - x.difference:.2f}"


# ---- The planned runs

AGAIN = "The real text, repeated"       # has no verdict beside first runs
LONGER = "The generated text, trained longer"
# corpus: the table of papers/tables.py whose rows are the arms, and the seeds with all arms
FAMILIES = {
    "The real text": ("plan-enja", range(2, 10)),
    "The real text, second part": ("plan-enja-more", (2, 4, 5, 6, 7, 8)),
    AGAIN: ("plan-enja-again", range(10, 15)),
    "The generated text": ("plan-toy", range(1, 21)),
    "The generated text, more arms": ("plan-toy-more", range(21, 28)),
    LONGER: ("plan-toy-longer", range(31, 36)),
    "Multi30K": ("plan-multi30k", range(1, 5))}
CONTROL_SEEDS = range(21, 27)   # of the control of Li 2021 on the generated text
GU_EM_BETA = "--agg gu-em --em-gradient beta"            # an option that is gone
ONE_HEAD = "one-head", "baseline"                        # the positive control
CONTROL = "em", "uniform"


def count_seeds(corpus: str) -> int:
    _, seeds = FAMILIES[corpus]
    return len(seeds)


def read_arms(lines: dict[tuple, dict], name: str, seeds) -> dict[str, list[dict]]:
    """{arm: its lines, in the order of the seeds}. lines: of results/runs.jsonl, by key. Raises
    UserError for a run that is not there."""
    table = TABLES[name]
    flags_by_arm = {row.label: row.flags for row in table.rows}
    if name == "plan-toy":
        flags_by_arm["gu-em-beta"] = GU_EM_BETA
    runs = {}
    for arm, flags in flags_by_arm.items():
        keys = [(table.scale, "base", flags, seed) for seed in seeds]
        for key in keys:
            if key not in lines:
                raise UserError(f"results/runs.jsonl has no run of {arm} with seed {key[-1]} for "
                                f"the table {name}: put the project's own file back")
        runs[arm] = [lines[key] for key in keys]
    return runs


def scores_by_arm(runs: dict[str, list[dict]]) -> dict[str, np.ndarray]:
    """{arm: the test BLEU of its runs [seeds]}."""
    scores = {}
    for arm, arm_runs in runs.items():
        scores[arm] = np.array([run["bleu"] for run in arm_runs])
    return scores


def family(runs: dict[str, list[dict]]) -> list[tuple[str, str]]:
    """The tests of a family, (arm, against): the other arms against the baseline, and em against
    its control. One head is outside of it."""
    pairs = [(arm, "baseline") for arm in runs if arm not in ("baseline", "one-head")]
    if "uniform" in runs:
        pairs.append(CONTROL)
    return pairs


def holm(contrasts: dict[tuple, Contrast]) -> dict[tuple, float]:
    """The p of a family of tests after Holm's adjustment (1979)."""
    p = [x.p for x in contrasts.values()]
    adjusted = np.empty(len(p))
    adjusted[np.argsort(p)] = np.maximum.accumulate(np.sort(p) * np.arange(len(p), 0, -1))
    return dict(zip(contrasts, adjusted.clip(max=1)))


def welch_contrasts(runs: dict[str, list[dict]], pairs) -> dict[tuple, Contrast]:
    """Welch's test of pairs of arms."""
    scores = scores_by_arm(runs)
    return {(arm, against): welch_contrast(scores[arm], scores[against]) for arm, against in pairs}


def pooled_contrasts(runs: dict[str, list[dict]], pairs) -> tuple[float, dict[tuple, Contrast]]:
    """The residual standard deviation of `score = arm + seed + residual`, fitted by least squares,
    and the tests of pairs of arms with it."""
    scores = scores_by_arm(runs)
    x = np.array([*scores.values()])                                         # [arms, seeds]
    arms, seeds = x.shape
    residuals = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    freedom = (arms - 1) * (seeds - 1)
    deviation = math.sqrt((residuals ** 2).sum() / freedom)
    contrasts = {}
    for arm, against in pairs:
        difference = scores[arm].mean() - scores[against].mean()
        contrasts[arm, against] = make_contrast(difference, deviation * math.sqrt(2 / seeds),
                                                freedom)
    return deviation, contrasts


def compare_arms(runs: dict[str, list[dict]]) -> tuple[str, dict[tuple, tuple[Contrast, float]]]:
    """Which standard error the planned tests have, and {(arm, against): the contrast, its p}, where
    p is Holm's but for one head. The tests are Welch's if the arms' variances differ."""
    pairs = family(runs)
    if "one-head" in runs:
        pairs.insert(0, ONE_HEAD)
    if stats.levene(*scores_by_arm(runs).values()).pvalue < 0.01:
        test = "the test is Welch's"
        contrasts = welch_contrasts(runs, pairs)
    else:
        deviation, contrasts = pooled_contrasts(runs, pairs)
        test = f"one residual standard deviation, {deviation:.2f} BLEU"
    adjusted = holm({pair: contrasts[pair] for pair in family(runs)})
    return test, {pair: (x, adjusted.get(pair, x.p)) for pair, x in contrasts.items()}


def gains_by_seed(scores: dict[str, dict[int, float]], model: str,
                  against: str) -> dict[int, float]:
    """The differences of two models by the seeds that both have. scores: {model: {seed: score}}."""
    seeds = scores[model].keys() & scores[against].keys()
    return {seed: scores[model][seed] - scores[against][seed] for seed in seeds}


def paired_gains(scores: dict[str, dict[int, float]], model: str, against: str) -> list[float]:
    """The values of `gains_by_seed`."""
    return [*gains_by_seed(scores, model, against).values()]


def scores_by_seed(*parts: dict[str, list[dict]]) -> dict[str, dict[int, float]]:
    """{arm: {seed: the test BLEU of its run}}, with the seeds of all parts."""
    scores = defaultdict(dict)
    for arm, arm_runs in (item for runs in parts for item in runs.items()):
        for run in arm_runs:
            scores[arm][run["seed"]] = run["bleu"]
    return scores


def paired_contrasts(runs: dict[str, list[dict]], pairs) -> dict[tuple, Contrast]:
    """Paired t-tests of pairs of arms."""
    scores = scores_by_seed(runs)
    return {pair: paired_contrast(paired_gains(scores, *pair)) for pair in pairs}


def output_disagreement(arm_runs: list[dict]) -> float:
    """exp(D) of the encoder's outputs, on average over the runs of an arm."""
    return np.mean([run["scores"]["output"] for run in arm_runs])


def planned_rows(runs: dict[str, list[dict]], test: str, contrasts: dict) -> list[str]:
    """Phrases of the pages about a corpus, and the rows of its two tables. test, contrasts: of
    `compare_arms`."""
    millions = [arm_runs[0]["parameters"] / 1e6 for arm_runs in runs.values()]
    smallest, largest = f"{min(millions):.1f}M", f"{max(millions):.1f}M"
    rows = [smallest if smallest == largest else f"{smallest} to {largest}",
            f"the {len(runs['baseline'])} seeds with runs of all arms", test]
    for pair, (x, p) in contrasts.items():
        if pair == ONE_HEAD:
            rows.append(f"one head, differs from the baseline by {format_contrast(x)}")
            continue
        cells = [*pair, format_contrast(x), f"{x.detectable:.2f}", format_p(x.p), format_p(p)]
        rows.append(f"| {' | '.join(cells)} |")
        if x.outside_p < 0.05:
            arm, against = pair
            rows.append(f"`{arm}` and `{against}` differ by less than {MARGIN} BLEU")
    for arm in sorted(runs):
        scores = [(run["bleu"], run["chrf"], run["valid_loss"]) for run in runs[arm]]
        bleu, chrf, loss = np.mean(scores, axis=0)
        rows.append(f"| {arm} | {bleu:.2f} | {chrf:.2f} | {loss:.3f} |")
    return rows


# ---- The picture

# the rows of the table of docs/claims.md and of the picture; a capital starts a group
ROWS = {
    ("output", "baseline"): "Li 2018: reward",
    ("output-enc", "baseline"): "only in the encoder",
    ("output-0.1", "baseline"): "a tenth of the reward",
    ("em", "baseline"): "Li 2019: routing layers",
    ("uniform", "baseline"): "the same without routing",
    CONTROL: "difference of these two",
    ("wide-ffn", "baseline"): "wider layers, no routing",
    ("both", "baseline"): "Li 2021: reward, routing",
    ("both-enc", "baseline"): "only in the encoder",
    ("both-0.1", "baseline"): "a tenth of the reward",
    ("gu-em", "baseline"): "Gu 2019: capsule layer",
    ("gu-em-full", "baseline"): "gradient of all iterations",
    ("gu-dynamic", "baseline"): "dynamic routing",
    ("capsule", "baseline"): "Duan 2020: routed logits",
    ONE_HEAD: "One head, not eight"}
# the gains over the baseline that the papers print at size base, for En-De unless marked
PRINTED = {"output": "+0.87", "output-enc": "+0.65 (Zh-En)", "em": "+0.95", "both": "+1.10",
           "gu-em": "+0.43", "gu-dynamic": "+0.33", "capsule": "+0.61"}
LEFT_END = -3                   # a difference whose interval lies below it is printed there
PANELS = {                      # a panel per unit, by its title: the corpora
    "real text,\nEnglish to Japanese,\nBLEU over characters":
        ("The real text", "The real text, second part", AGAIN),
    "generated text,\nEnglish to German,\nBLEU over words":
        ("The generated text", "The generated text, more arms", LONGER)}
MARKERS = {AGAIN: ("C1", "s"), LONGER: ("C2", "D")}


def draw_forest(contrasts: dict[str, dict]) -> Figure:
    """The forest plot: a panel per unit of BLEU, a row per contrast. contrasts: by corpus."""
    figure = Figure(figsize=(6.4, 8.2), dpi=150, layout="constrained")
    figure.suptitle("Difference from the Transformer:\n"
                    "no gain from the reward or from routing itself",
                    weight="bold", size="medium")
    axes = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for ax, (title, corpora) in zip(axes, PANELS.items()):
        ax.set_title(title, size="medium")
        ax.set_xlabel("difference in BLEU\n◄ worse       better ►")
        ax.axvline(0, color="gray", linewidth=0.8, zorder=0)
        for row, pair in enumerate(ROWS):
            arm, _ = pair
            if arm in PRINTED and pair != CONTROL:
                gain, *_ = PRINTED[arm].split()
                ax.plot(float(gain), row, "|", color="gray", markersize=12)
            places = [corpus for corpus in corpora if pair in contrasts[corpus]]
            if pair == ONE_HEAD:                         # the second part has it from the first
                places = [corpus for corpus in places if corpus != "The real text, second part"]
            if not places:
                ax.text(0, row, "not run", ha="center", va="center", color="gray", size="small",
                        backgroundcolor="white")
            for i, corpus in enumerate(places):
                x, p = contrasts[corpus][pair]
                y = row + 0.4 * (i - (len(places) - 1) / 2)
                color, marker = MARKERS.get(corpus, ("C0", "o"))
                if x.high < LEFT_END:
                    ax.text(LEFT_END, y, f"◄ {format_half(x)}", va="center", color=color,
                            size="small", bbox=dict(facecolor="white", edgecolor="none", pad=0))
                    continue
                decides = corpus != AGAIN or len(places) == 1
                ax.errorbar(x.difference, y, xerr=x.high - x.difference, fmt=marker, markersize=5,
                            color=color, markerfacecolor=color if p < 0.05 and decides else "white")
    ax = axes[0]
    ax.set_xlim(LEFT_END - 0.2, None)
    ax.set_ylim(len(ROWS) - 0.4, -0.5)
    ax.set_yticks(range(len(ROWS)), ROWS.values())
    for row, label in enumerate(ROWS.values()):
        if label[0].isupper():
            ax.get_yticklabels()[row].set_weight("bold")
            for panel in axes:
                panel.axhline(row - 0.5, color="lightgray", linewidth=0.8, zorder=0)
    real, more, again, toy, toy_more, longer = [count_seeds(corpus) for corpora in PANELS.values()
                                                for corpus in corpora]
    handles = [
        ax.errorbar([], [], xerr=[], fmt="o", color="C0",
                    label=f"first runs ({real} or {more} seeds; generated: {toy} or {toy_more})"),
        ax.errorbar([], [], xerr=[], fmt="s", color="C1",
                    label=f"repeated with new seeds ({again})"),
        ax.errorbar([], [], xerr=[], fmt="D", color="C2",
                    label=f"four times the steps ({longer})"),
        *ax.plot([], [], "|", color="gray", markersize=12,
                 label="the paper's gain, with a larger model and other text")]
    figure.legend(handles=handles, loc="outside lower center",
                  title="bars: 95 % intervals, which are not adjusted;\n"
                        "filled: p < 0.05, adjusted except for one head;\n"
                        "repeated runs count only where they are alone")
    return figure


# ---- Further claims

# the models, by their names on docs/results.md
MODELS = {
    "baseline": "",
    "output": "--reg output",
    "em": "--agg em --em-gradient last",
    "both": "--agg em --em-gradient last --reg output",
    "output-enc": "--reg output --reg-at enc",
    "output-enc-0.5": "--reg output --reg-at enc --reg-weight 0.5",
    "subspace-enc": "--reg subspace --reg-at enc",
    "position-enc": "--reg position --reg-at enc",
    "subspace-output-enc": "--reg subspace output --reg-at enc",
    "dynamic": "--agg dynamic",
    "uniform": "--agg em --iterations 1",
    "em-enc": "--agg em --agg-at enc --em-gradient last",
    "wide-ffn": "--d-ff 321",
    "gu-em": "--agg gu-em --em-gradient last",
    "gu-dynamic": "--agg gu-dynamic",
    "one-head": "--heads 1"}
PLACES = {                      # by scale
    "": "embedded",
    "--data multi30k --vocab-size 6000 (test_2016_flickr)": "Multi30K",
    TABLES["plan-enja"].scale: "real text",
    TABLES["plan-enja-again"].scale: "real text"}
# a line per claim of docs/results.md: the measure, and pairs of models, of which by the claim the
# first scores higher
COMPARED = (
    ("BLEU", ("baseline", "one-head")),
    ("BLEU", ("output-enc", "baseline"), ("output-enc-0.5", "baseline"),
     ("subspace-enc", "baseline"), ("position-enc", "baseline")),
    ("BLEU", ("output-enc", "subspace-enc"), ("output-enc", "position-enc")),
    ("BLEU", ("output-enc", "subspace-output-enc")),
    ("BLEU", ("output", "baseline")),
    ("exp(D)", ("output", "baseline")),
    ("BLEU", ("dynamic", "baseline")),
    ("BLEU", ("em", "dynamic")),
    ("BLEU", ("em", "baseline"), ("em-enc", "baseline")),
    ("BLEU", ("em", "uniform")),
    ("BLEU", ("uniform", "baseline")),
    ("BLEU", ("em", "em-enc")),
    ("BLEU", ("em", "wide-ffn")),
    ("BLEU", ("both", "output"), ("both", "em")),
    ("probing", ("both", "baseline")),
    ("logic", ("both", "baseline"), ("both", "output"), ("both", "em")),
    ("ablation", ("output", "baseline"), ("em", "baseline"), ("both", "baseline")),
    ("BLEU", ("gu-em", "gu-dynamic")),
    ("length", ("gu-em", "baseline")))


def read_result(name: str) -> dict:
    """The content of results/NAME.json."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text("utf-8"))


def read_scores(lines: dict[tuple, dict]) -> dict:
    """{measure: {place: {model: {seed: score}}}}. A place is a text or a recipe; only scores of one
    place are compared."""
    names = {flags: name for name, flags in MODELS.items()}
    scores = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for (scale, size, flags, seed), line in lines.items():
        if scale in PLACES and size == "base" and flags in names:
            model = names[flags]
            scores["BLEU"][PLACES[scale]][model][seed] = line["bleu"]
            scores["exp(D)"][PLACES[scale]][model][seed] = line["scores"]["output"]

    stored = read_result("ablation.toy-tiny-1800")
    for name, run in stored["runs"].items():             # BLEU lost without a head, on average
        model = names[run["flags"]]
        scores["ablation"]["embedded"][model][run["seed"]] = stored["ablation"][name]["mean"]
        length = stored["length"][name]                  # BLEU of the longest minus BLEU of all
        gain = length["bins"][-1]["bleu"] - length["bleu"]
        scores["length"]["embedded"][model][run["seed"]] = gain

    names = {"disagreement": "output", "aggregation": "em", "combined": "both"}
    stored = read_result("logic-bowman")
    pairs = {str(n): stored["pairs"][str(n)] for n in range(7, 13)}          # operators: pairs
    for run in stored["runs"]:
        model = names.get(run["model"], run["model"])
        right = sum(count * run["accuracy"][n] for n, count in pairs.items())
        scores["logic"]["formulas"][model][run["seed"]] = 100 * right / sum(pairs.values())

    for name, place in (("probe-toy", "trained on the tasks"),
                        ("probe-frozen-multi30k-toy", "frozen encoders")):
        accuracies = defaultdict(list)                   # one per task
        for run in read_result(name)["runs"]:            # a frozen encoder is NAME-seed1
            model, _, seed = run["model"].partition("-seed")
            accuracies[names.get(model, model), int(seed or run["seed"])].append(run["accuracy"])
        for (model, seed), shares in accuracies.items():
            scores["probing"][place][model][seed] = 100 * np.mean(shares)
    return scores


def further_rows(scores: dict) -> list[str]:
    """Rows of the table of further claims, without the claim: differences with 95 %
    intervals by a paired t-test over the seeds, and the outcome, which is "for" or "against" the
    claim if the interval excludes 0."""
    rows = []
    for measure, *pairs in COMPARED:
        digits = 3 if measure == "exp(D)" else 2
        for place, models in scores[measure].items():
            for model, against in pairs:
                gains = paired_gains(models, model, against)
                if len(gains) < 2:
                    continue
                x = paired_contrast(gains)
                outcome = "open"
                if (place, measure) == ("Multi30K", "BLEU"):             # one head does not lose
                    outcome = "not judged"
                elif x.low > 0:
                    outcome = "for"
                elif x.high < 0:
                    outcome = "against"
                cells = [f"`{model}` minus `{against}`", f"{place}, {len(gains)} seeds",
                         format_contrast(x, digits), outcome]
                rows.append(" | ".join(cells))
    return rows


# ---- The page of claims, but for the planned tables

# a difference whose runs are of another family than those of its column
SECOND_PARTS = {"The real text": "The real text, second part",
                "The generated text": "The generated text, more arms"}
# pairs that were not planned, or only with another test
UNPLANNED = (CONTROL, ("both", "output"), ("both", "em"), ("em", "wide-ffn"),
             ("output", "output-enc"), ("both", "both-enc"), ("output-0.1", "baseline"),
             ("both-0.1", "baseline"))


def verdict_rows(contrasts: dict[str, dict]) -> list[str]:
    """The rows of the table of docs/claims.md: the planned contrasts with their intervals, bold if
    significant. Repeated runs have no verdict beside first ones, and are not bold. contrasts: by
    corpus."""
    rows = []
    for pair, label in ROWS.items():
        gain = "" if pair == CONTROL else PRINTED.get(pair[0], "")
        cells = [f"{label}, {name_pair(pair)}", gain]
        for name in ("The real text", AGAIN, "The generated text", LONGER):
            note = ""
            if pair not in contrasts[name] and name in SECOND_PARTS:
                name = SECOND_PARTS[name]
                note = f" ({count_seeds(name)} seeds)"
            cell = ""
            if pair in contrasts[name]:
                x, p = contrasts[name][pair]
                cell = format_half(x)
                decides = name != AGAIN or not cells[2]
                cell = (f"**{cell}**" if p < 0.05 and decides else cell) + note
            cells.append(cell)
        rows.append(" | ".join(cells).rstrip())
    return rows


def name_pair(pair: tuple[str, str]) -> str:
    """The names of two arms, as the pages write them; the baseline has none."""
    arm, against = pair
    return f"`{arm}`" if against == "baseline" else f"`{arm}` minus `{against}`"


def format_paired(gains: list[float]) -> str:
    """The difference, its interval and the number of seeds, by a paired t-test."""
    return f"{format_contrast(paired_contrast(gains))} ({len(gains)})"


def pooled_rows(real: dict[str, dict[int, float]]) -> list[str]:
    """The rows of the table of the first and the repeated runs together: paired tests that were
    not planned. real: the scores of all runs on the real text."""
    rows = []
    for pair in ROWS:
        gains = paired_gains(real, *pair)
        if len(gains) > count_seeds(AGAIN):
            rows.append(f"{name_pair(pair)} | {format_paired(gains)}")
    return rows


def unplanned_rows(*texts: dict[str, dict[int, float]]) -> list[str]:
    """The rows of the table of other differences: paired tests that were not planned, the last of
    a difference of differences. texts: the scores of all runs on the real and on the generated
    text."""
    rows = []
    for pair in UNPLANNED:
        cells = [name_pair(pair)]
        for scores in texts:
            gains = paired_gains(scores, *pair)
            cells.append(format_paired(gains) if gains else "no common seeds")
        rows.append(" | ".join(cells))
    cells = ["(`both` minus `output`) minus (`em` minus `baseline`)"]
    for scores in texts:
        gains = {"both": gains_by_seed(scores, "both", "output"),
                 "em": gains_by_seed(scores, "em", "baseline")}
        cells.append(format_paired(paired_gains(gains, "both", "em")))
    rows.append(" | ".join(cells))
    return rows


def close_rows(lines: dict[tuple, dict], corpora: dict[str, dict[str, list[dict]]]) -> list[str]:
    """The rows of the table of close verdicts: p after Holm's adjustment with one residual
    variance, by Welch's test and by paired t-tests."""
    first = corpora["The real text"]
    second = corpora["The real text, second part"]
    repeated = corpora[AGAIN]
    _, seeds = FAMILIES["The real text, second part"]
    planned = read_arms(lines, "plan-enja", seeds) | second                  # as it was planned
    together = {arm: first[arm] + repeated[arm] for arm in first}
    rows = []
    for text, arms, parts in (
            ("real", ("gu-em", "gu-dynamic", "both", "both-enc", "uniform"),
             (first, second, planned, repeated, together)),
            ("generated", ("capsule", "wide-ffn", "both-0.1"),
             (corpora["The generated text"], corpora["The generated text, more arms"]))):
        for arm in arms:
            for runs in parts:
                if arm not in runs:
                    continue
                pairs = family(runs)
                _, pooled = pooled_contrasts(runs, pairs)
                cells = [f"`{arm}`", text, f"{len(runs[arm])} seeds, {len(pairs)} tests"]
                for contrasts in (pooled, welch_contrasts(runs, pairs),
                                  paired_contrasts(runs, pairs)):
                    cells.append(format_p(holm(contrasts)[arm, "baseline"]))
                rows.append(" | ".join(cells))
    return rows


def levene_rows(corpora: dict[str, dict[str, list[dict]]]) -> list[str]:
    """The rows of the table of Levene's test: its p, centered on the median and on the mean."""
    rows = []
    for corpus, runs in corpora.items():
        scores = scores_by_arm(runs).values()
        p = [stats.levene(*scores, center=name).pvalue for name in ("median", "mean")]
        rows.append(" | ".join([corpus.removeprefix("The "), *map(format_p, p)]))
    return rows


def longer_rows(short: dict[str, dict[int, float]], longer: dict[str, dict[int, float]],
                contrasts: dict[str, dict]) -> list[str]:
    """The rows of the tables of longer training: the planned differences with the usual steps and
    with four times as many, and the change, by Welch's test of the seeds' differences; then the
    same of the arms' deficits, 100 - BLEU, as multiples of the baseline's, or of one head's, by
    t-tests of the logarithms. short, longer: the scores with the usual steps and with four times as
    many."""
    rows = []
    for pair in contrasts[LONGER]:
        planned = [contrasts[name][pair][0] for name in ("The generated text", LONGER)]
        before, after = [np.array(paired_gains(scores, *pair)) for scores in (short, longer)]
        change = welch_contrast(after, before)
        cells = [format_half(x) for x in (*planned, change)]
        rows.append(" | ".join([name_pair(pair), *cells, format_p(change.p)]))
    deficits = [log_deficits(scores) for scores in (short, longer)]
    for arm, against in (*contrasts[LONGER], ("output", "one-head")):
        before, after = [np.array(paired_gains(x, arm, against)) for x in deficits]
        cells = []
        for gains in (before, after):
            ratio, low, high = np.exp(paired_contrast(gains)[:3])
            cells.append(f"{ratio:.2f} ({low:.2f} to {high:.2f})")
        p = welch_contrast(after, before).p
        rows.append(" | ".join([f"`{arm}` / `{against}`", *cells, format_p(p)]))
    return rows


def log_deficits(scores: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """The logarithm of 100 - BLEU. scores: {model: {seed: BLEU}}."""
    deficits = {}
    for model, by_seed in scores.items():
        deficits[model] = {seed: math.log(100 - bleu) for seed, bleu in by_seed.items()}
    return deficits


def phrases(lines: dict[tuple, dict], corpora: dict[str, dict[str, list[dict]]],
            contrasts: dict[str, dict], real: dict[str, dict[int, float]],
            control: dict[str, list[dict]]) -> list[str]:
    """Phrases of the two pages about several corpora. contrasts: by corpus; real: the scores of
    all runs on the real text; control: the runs of the control of Li 2021."""
    first = corpora["The real text"]
    repeated = corpora[AGAIN]
    before, after = [output_disagreement(first[arm]) for arm in ("baseline", "output")]
    encoder, tenth = [output_disagreement(repeated[arm]) for arm in ("output-enc", "output-0.1")]
    changes = []                                         # from the first runs to the repeated ones
    for name in ("The real text", "The real text, second part"):
        for pair, (x, _) in contrasts[name].items():
            again, _ = contrasts[AGAIN][pair]
            changes.append(abs(again.difference - x.difference))
    found = [f"exp(D) of the encoder's outputs from {before:.3f} to {after:.3f}",
             f"exp(D) is {encoder:.3f} with `output-enc` and {tenth:.3f} with `output-0.1`",
             f"differences changed by up to {max(changes):.2f}"]
    for flags in ("--agg em", MODELS["em"]):             # the two gradients
        bleu = [lines["", "base", flags, seed]["bleu"] for seed in (1, 2, 3)]
        found.append(f"{np.mean(bleu):.2f} BLEU on average")
    for arm in ("both", "gu-em"):
        gains = paired_gains(real, arm, "baseline")
        below = sum(gain < 0 for gain in gains)
        found.append(f"`{arm}` is below the baseline with {below} of {len(gains)} seeds")
    p = [paired_contrast(paired_gains(scores, *CONTROL)).outside_p
         for scores in (real, scores_by_seed(corpora["The generated text"]))]
    found.append(f"the routing changes BLEU by less than {MARGIN} on both texts (two one-sided "
                 f"paired tests, p = {format_p(p[0])} and {format_p(p[1])})")
    x = welch_contrasts(corpora["Multi30K"], [ONE_HEAD])[ONE_HEAD]
    found.append(f"by Welch's test one head differs by {format_contrast(x)}")
    x = paired_contrast(paired_gains(scores_by_seed(control), "both-uniform", "both"))
    found.append(f"`both-uniform` minus `both` is {format_contrast(x)} ({len(CONTROL_SEEDS)} "
                 f"seeds, p = {x.p:.2f}; it would detect a difference of {x.detectable:.2f} "
                 "with a power of 80 %)")
    return found


def print_claims(path: Path = ROOT / "docs" / "verdicts.png") -> Figure:
    """Prints the numbers of docs/claims.md, of docs/statistics.md and of the further claims on
    docs/results.md, and draws the figure."""
    lines = stored_lines()
    _, seeds = FAMILIES[LONGER]
    one_head = read_arms(lines, "plan-toy-head", seeds)
    corpora = {}
    contrasts = {}
    for corpus, (table, seeds) in FAMILIES.items():
        runs = read_arms(lines, table, seeds)
        corpora[corpus] = runs
        test, contrasts[corpus] = compare_arms(runs)
        if corpus == LONGER:                             # planned later, so not in the others' test
            x = welch_contrasts(one_head, [ONE_HEAD])[ONE_HEAD]
            contrasts[corpus][ONE_HEAD] = x, x.p
            runs = runs | one_head
        print(f"### {corpus}", *planned_rows(runs, test, contrasts[corpus]), "", sep="\n")
    figure = draw_forest(contrasts)
    figure.savefig(path)
    control = read_arms(lines, "plan-toy-both", CONTROL_SEEDS)
    real = scores_by_seed(*(corpora[name] for name in FAMILIES if name.startswith("The real")))
    more = corpora["The generated text, more arms"]
    short = scores_by_seed(corpora["The generated text"])
    longer = scores_by_seed(corpora[LONGER], one_head)
    generated = scores_by_seed(corpora["The generated text"], more, control)
    for title, rows in (("Claims", verdict_rows(contrasts)),
                        ("Close verdicts", close_rows(lines, corpora)),
                        ("Levene's test", levene_rows(corpora)),
                        ("Longer training", longer_rows(short, longer, contrasts)),
                        ("Other differences", unplanned_rows(real, generated)),
                        ("All seeds", pooled_rows(real)),
                        ("Phrases", phrases(lines, corpora, contrasts, real, control))):
        print(f"## {title}", *rows, "", sep="\n")
    print("## Further claims", *further_rows(read_scores(lines)), sep="\n")
    return figure


def main(argv=None) -> int:
    return run_command(lambda _: print_claims(), Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
