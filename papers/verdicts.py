"""The planned runs of results/runs.jsonl, evaluated by the rules of docs/plan.md: the differences
between their models, and the verdicts on the papers' main claims."""
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from papers.results import key_of, precision_of
from papers.tables import TABLES

LEVEL = 0.05
MARGIN = 0.3                    # BLEU; a smaller difference counts as none


class Contrast(NamedTuple):
    """The difference between two models. Interval and p are not adjusted for other contrasts."""
    difference: float
    interval: tuple[float, float]       # 95 %
    p: float
    detectable: float           # what one test at 0.05 finds with a probability of about 80 %
    equivalent: bool            # two one-sided tests at 0.05 place the difference within MARGIN
    adjusted: float = math.nan  # p after Holm's adjustment in its family


def make_contrast(difference: float, error: float, freedom: float) -> Contrast:
    """A contrast from a difference, its standard error and the degrees of freedom."""
    t = stats.t(freedom, difference, error)
    return Contrast(difference, t.interval(0.95), p=2 * min(t.cdf(0), t.sf(0)),
                    detectable=error * stats.t.ppf([0.975, 0.8], freedom).sum(),
                    equivalent=max(t.cdf(-MARGIN), t.sf(MARGIN)) < LEVEL)


def paired_contrast(one: dict[int, float], two: dict[int, float]) -> Contrast | None:
    """The contrast of a paired t-test between scores by seed; None without two common seeds."""
    gains = [one[seed] - two[seed] for seed in one if seed in two]
    if len(gains) < 2:
        return None
    return make_contrast(np.mean(gains), stats.sem(gains), len(gains) - 1)


def holm(contrasts: dict[tuple, Contrast]) -> dict[tuple, Contrast]:
    """Fills in the adjusted p of a family of contrasts (Holm 1979)."""
    order = sorted(contrasts, key=lambda pair: contrasts[pair].p)
    scaled = [(len(order) - i) * contrasts[pair].p for i, pair in enumerate(order)]
    adjusted = dict(zip(order, np.maximum.accumulate(scaled).clip(max=1)))
    return {pair: x._replace(adjusted=adjusted[pair]) for pair, x in contrasts.items()}


# ---- The planned runs

class Plan(NamedTuple):
    """The plan for a corpus in docs/plan.md: the table of its runs in papers/tables.py, its name,
    the seeds, how many of them are needed, and the pairs of arms that are a Holm family."""
    table: str
    corpus: str
    seeds: range
    needed: int
    pairs: tuple[tuple[str, str], ...]


PAIRS = (("em", "baseline"), ("uniform", "baseline"), ("output", "baseline"), ("both", "baseline"),
         ("em", "uniform"))
PLANS = (
    Plan("plan-multi30k", "Multi30K", range(1, 7), 4, (("wide-ffn", "baseline"), *PAIRS)),
    Plan("plan-enja", "the English-Japanese corpus", range(2, 10), 6,
         (*PAIRS, ("gu-em", "baseline"), ("capsule", "baseline"))),
    Plan("plan-enja-more", "the English-Japanese corpus, second part", range(2, 10), 6,
         (("wide-ffn", "baseline"), ("gu-dynamic", "baseline"), ("output-0.1", "baseline"),
          ("both-0.1", "baseline"))),
    Plan("plan-jaen", "the Japanese-English corpus", range(2, 6), 4,
         (("em", "baseline"), ("uniform", "baseline"), ("output", "baseline"), ("em", "uniform"))),
    Plan("plan-toy", "the embedded corpus", range(1, 21), 20,
         (("wide-ffn", "baseline"), *PAIRS, ("gu-em", "baseline"), ("gu-em-beta", "baseline"),
          ("gu-em-full", "baseline"), ("gu-dynamic", "baseline"), ("capsule", "baseline"))))


class Corpus(NamedTuple):
    """The results on a corpus. deviation: of the residuals of `score = arm + seed + residual`, or
    None if the arms' variances differ, in which case Welch's test is used."""
    plan: Plan
    lines: dict[str, list[dict]]        # {arm: a line per seed that has all arms}
    deviation: float | None
    contrasts: dict[tuple[str, str], Contrast]
    control: Contrast                   # one head against the baseline

    def can_test(self) -> bool:
        """Whether one head loses: only then can a claim about several heads be tested."""
        return self.control.p < LEVEL and self.control.difference < 0


def whole_blocks(lines: list[dict], plan: Plan) -> dict[str, list[dict]]:
    """The lines of results/runs.jsonl whose seed has all arms of the plan, by arm."""
    table = TABLES[plan.table]
    precision = "bfloat16" if table.amp else "float32"
    rows = (*table.rows, *table.ended)
    stored = {key_of(line): line for line in lines if precision_of(line) == precision}
    whole = []
    for seed in plan.seeds:
        block = {row.label: stored.get((table.scale, "base", row.flags, seed)) for row in rows}
        if all(block.values()):
            whole.append(block)
    lines_by_arm = {}
    for arm in sorted(row.label for row in rows):
        lines_by_arm[arm] = [block[arm] for block in whole]
    return lines_by_arm


def read_corpus(lines: list[dict], plan: Plan) -> Corpus | None:
    """The results on a corpus; None if fewer seeds have all arms than the plan needs."""
    blocks = whole_blocks(lines, plan)
    seeds = len(blocks["baseline"])
    if seeds < plan.needed:
        return None
    scores = {}                         # [seeds], by arm
    for arm, arm_lines in blocks.items():
        scores[arm] = np.array([line["bleu"] for line in arm_lines])
    table = np.array(list(scores.values()))                              # [arms, seeds]
    # score = arm + seed + residual, by least squares
    residuals = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    freedom = (len(table) - 1) * (seeds - 1)
    deviation = math.sqrt((residuals ** 2).sum() / freedom)
    if stats.levene(*table).pvalue < 0.01:
        deviation = None

    def contrast(arm: str, against: str) -> Contrast:
        one, two = scores[arm], scores[against]
        difference = one.mean() - two.mean()
        if deviation is None:
            welch = stats.ttest_ind(one, two, equal_var=False)
            return make_contrast(difference, difference / welch.statistic, welch.df)
        return make_contrast(difference, deviation * math.sqrt(2 / seeds), freedom)

    family = holm({pair: contrast(*pair) for pair in plan.pairs})
    return Corpus(plan, blocks, deviation, family, contrast("one-head", "baseline"))


def read_corpora(lines: list[dict]) -> list[Corpus]:
    corpora = [read_corpus(lines, plan) for plan in PLANS]
    return [corpus for corpus in corpora if corpus]


# ---- Verdicts

def verdict(contrast: Contrast, printed: float) -> str:
    """The verdict on a mechanism whose paper prints this gain, by the rules of docs/plan.md."""
    if contrast.adjusted < LEVEL and contrast.difference < 0:
        return "it loses"
    if contrast.adjusted < LEVEL:
        less = contrast.interval[1] < printed
        return "it gains, but less than printed" if less else "it gains as much as printed"
    if contrast.equivalent:
        return f"no gain (within {MARGIN} BLEU)"
    if contrast.interval[1] < printed:
        return "no gain; one as large as printed is excluded"
    return f"undecided; a difference of {contrast.detectable:.1f} was likely to be found"


def judge(arm: str, control: str | None, printed: float, corpus: Corpus) -> str:
    """The verdict on an arm. If it gains over the baseline, it is also compared with its
    control."""
    words = verdict(corpus.contrasts[arm, "baseline"], printed)
    if control is None or not words.startswith("it gains"):
        return words
    over = corpus.contrasts[arm, control]
    if over.adjusted < LEVEL and over.difference > 0:
        return f"{words}, and more than its control"
    return f"{words}, and so does its control"
