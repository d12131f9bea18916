"""The verdicts of the planned runs: the statistics against scipy's and by hand, and the rules."""
import re

import numpy as np
import pytest
from matplotlib import pyplot
from scipy import stats

from papers import claims, plan, results, verdicts
from papers.jobs import ROOT
from papers.tables import TABLES
from papers.verdicts import PLANS, Plan

MULTI30K, ENJA, MORE, JAEN, TOY = PLANS


def made_up_lines(seeds: int, gains: dict = {}, corpus: Plan = TOY) -> list[dict]:
    """Lines of the first `seeds` blocks; gains: of arms over the baseline."""
    rng = np.random.default_rng(1)
    table = TABLES[corpus.table]
    lines = []
    for seed in range(1, seeds + 1):
        for row in (*table.rows, *table.ended):
            bleu = 70 + gains.get(row.label, 0.0) + seed / 2 + rng.normal(0, 0.3)
            lines.append(dict(scale=table.scale, size="base", flags=row.flags, seed=seed,
                              bleu=bleu, chrf=90.0, valid_loss=1.0))
    return lines


def seeds_of(blocks: dict[str, list[dict]]) -> set[int]:
    return {line["seed"] for line in blocks["baseline"]}


# ---- Statistics

def test_two_models_are_compared_by_a_paired_t_test():
    one, two = {1: 3.0, 2: 5.0, 3: 4.5, 9: 0.0}, {3: 4.0, 2: 4.2, 1: 1.0}
    contrast = verdicts.paired_contrast(one, two)
    wanted = stats.ttest_rel([3.0, 5.0, 4.5], [1.0, 4.2, 4.0])
    assert contrast.p == pytest.approx(wanted.pvalue)
    assert contrast.interval == pytest.approx(tuple(wanted.confidence_interval()))
    assert verdicts.paired_contrast(one, {1: 1.0}) is None


def standard_error(scores: dict[str, list[float]]) -> tuple[float, int]:
    """Of a difference between two arms, with one residual variance; and its degrees of freedom."""
    x = np.array(list(scores.values()))                  # [arms, seeds]
    arms, seeds = x.shape
    residuals = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    freedom = (arms - 1) * (seeds - 1)
    return ((residuals ** 2).sum() / freedom * 2 / seeds) ** 0.5, freedom


def test_every_number_on_the_page_computed_again():
    """By numpy and scipy: Welch's test on the embedded corpus, one residual variance elsewhere."""
    lines = results.stored_lines()
    page = re.sub(" +", " ", claims.verdict_page(verdicts.read_corpora(lines)))
    bleu = {results.key_of(line): line["bleu"] for line in lines}
    for corpus, seeds in ((TOY, range(1, 21)), (MULTI30K, range(1, 5)), (ENJA, range(2, 10)),
                          (MORE, (2, *range(4, 9)))):
        table = TABLES[corpus.table]
        scores = {}
        for row in (*table.rows, *table.ended):
            scores[row.label] = [bleu[table.scale, "base", row.flags, seed] for seed in seeds]
            assert f"| {row.label} | {np.mean(scores[row.label]):.2f} |" in page
        error, freedom = standard_error(scores)
        for arm, against in (*corpus.pairs, ("one-head", "baseline")):
            difference = np.mean(scores[arm]) - np.mean(scores[against])
            if corpus is TOY:
                welch = stats.ttest_ind(scores[arm], scores[against], equal_var=False)
                freedom = welch.df
                error = difference / welch.statistic
            low, high = stats.t.interval(0.95, freedom, difference, error)
            p = 2 * stats.t.sf(abs(difference) / error, freedom)
            p_text = f"{p:.4f}" if p >= 0.0001 else "< 0.0001"
            detected = error * stats.t.ppf([0.975, 0.8], freedom).sum()
            figures = f"{difference:+.2f} [{low:+.2f}, {high:+.2f}]"
            row = f"| {arm} | {against} | {figures} | {detected:.2f} | {p_text} |"
            assert row in page or (arm == "one-head" and f"the baseline by {figures}." in page), row
    # the last are the seeds with all arms from English to Japanese
    for row in TABLES[ENJA.table].rows:
        scores[row.label] = [bleu[table.scale, "base", row.flags, seed] for seed in seeds]
    error, freedom = standard_error(scores)
    gain = np.mean(scores["uniform"]) - np.mean(scores["baseline"])
    low, high = stats.t.interval(0.95, freedom, gain, error)
    text = " ".join((ROOT / "docs" / "claims.md").read_text("utf-8").split())
    assert f"`uniform` gains significantly ({gain:+.2f} [{low:+.2f}, {high:+.2f}])" in text
    assert 9 * 2 * stats.t.sf(gain / error, freedom) < 0.05      # Holm's factor of the third of 11


def test_holm():
    contrast = verdicts.make_contrast(1.0, 1.0, 9)
    family = {p: contrast._replace(p=p) for p in (0.01, 0.04, 0.03, 0.005)}
    adjusted = {p: x.adjusted for p, x in verdicts.holm(family).items()}
    assert adjusted == pytest.approx({0.01: 0.03, 0.04: 0.06, 0.03: 0.06, 0.005: 0.02})


# ---- The rules of docs/plan.md

@pytest.mark.parametrize("difference, error, adjusted, wanted", [
    (0.8, 0.1, 0.001, "it gains as much as printed"),
    (0.5, 0.1, 0.001, "it gains, but less than printed"),    # up to 0.71, less than 0.87
    (-0.5, 0.1, 0.001, "it loses"),
    (-0.5, 0.1, 0.06, "no gain; one as large as printed is excluded"),      # before Holm p < 0.001
    (0.05, 0.1, 0.9, "no gain (within 0.3 BLEU)"),
    (0.2, 0.2, 0.3, "no gain; one as large as printed is excluded"),         # up to 0.62
    (0.5, 0.3, 0.2, "undecided; a difference of 0.9 was likely to be found")])
def test_the_rules_of_the_verdicts(difference, error, adjusted, wanted):
    contrast = verdicts.make_contrast(difference, error, 20)._replace(adjusted=adjusted)
    assert verdicts.verdict(contrast, 0.87) == wanted


def test_a_block_counts_when_it_is_whole():
    lines = made_up_lines(3)[:-1] + [{**made_up_lines(1)[0], "scale": "--steps 7", "seed": 3}]
    assert seeds_of(verdicts.whole_blocks(lines, TOY)) == {1, 2}


def test_a_larger_model_with_the_flags_of_an_arm_is_not_that_arm():
    lines = made_up_lines(2)
    larger = [line | {"size": "wide --d-model 256", "bleu": 0.0} for line in lines]
    assert verdicts.whole_blocks(lines + larger, TOY) == verdicts.whole_blocks(lines, TOY)


def test_runs_of_two_precisions_are_not_compared(monkeypatch):
    lines = made_up_lines(3)
    lines[0]["precision"] = "bfloat16"                   # of seed 1
    lines[-1]["precision"] = "float32"                   # as the older lines, which do not say it
    assert seeds_of(verdicts.whole_blocks(lines, TOY)) == {2, 3}
    exploratory = [line | {"scale": "", "scores": {"output": 0.5}} for line in lines]
    places = {place for place, _ in claims.collect_scores(exploratory, {})}
    assert places == {"embedded", "embedded, bfloat16"}
    monkeypatch.setitem(TABLES, TOY.table, TABLES[TOY.table]._replace(amp=True))
    lines = [line | {"precision": "bfloat16"} for line in lines[12:]]
    assert seeds_of(verdicts.whole_blocks(lines, TOY)) == {2, 3}


def test_a_corpus_is_read_when_the_plan_allows_it():
    assert verdicts.read_corpora(made_up_lines(19)) == []
    (corpus,) = verdicts.read_corpora(made_up_lines(20))
    assert corpus.plan is TOY and tuple(corpus.contrasts) == TOY.pairs


def test_a_claim_is_judged_on_every_corpus_where_one_head_loses():
    def verdict_text(multi30k: float, toy: float, output: float = 2.0) -> str:
        """The paragraph of Li 2018, of corpora where one head differs by so much."""
        lines = made_up_lines(4, {"one-head": multi30k}, MULTI30K)
        lines += made_up_lines(20, {"output": output, "one-head": toy})
        return claims.verdict_text(claims.MAIN_CLAIMS[0], verdicts.read_corpora(lines))

    both = verdict_text(-3.0, -3.0)
    assert both.count("On Multi30K ") == both.count("On the embedded corpus ") == 1
    assert both.endswith("**. The corpora disagree.")     # there is no gain on Multi30K
    assert verdict_text(-3.0, -3.0, output=-2.0).endswith("**. No corpus shows a gain.")
    only_toy = verdict_text(0.0, -3.0)
    assert "Multi30K" not in only_toy and only_toy.endswith("**it gains as much as printed**.")
    assert verdict_text(3.0, -3.0) == only_toy           # one head that is better decides nothing
    assert verdict_text(0.0, 0.0).endswith("**It cannot be tested here.**")


@pytest.mark.parametrize("difference, adjusted, words", [
    (0.1, 0.3, "and so does its control"), (-2.0, 0.01, "and so does its control"),
    (2.0, 0.01, "and more than its control")])
def test_a_gain_is_compared_with_that_of_its_control(difference, adjusted, words):
    gain = verdicts.make_contrast(1.0, 0.2, 20)._replace(adjusted=0.001)
    over = verdicts.make_contrast(difference, 0.2, 20)._replace(adjusted=adjusted)
    contrasts = {("em", "baseline"): gain, ("em", "uniform"): over}
    corpus = verdicts.Corpus(TOY, {}, 0.3, contrasts, gain)
    assert verdicts.judge("em", "uniform", 0.95, corpus) == f"it gains as much as printed, {words}"


def test_the_forest_plot_has_every_interval_and_the_printed_gains(tmp_path, monkeypatch):
    (corpus,) = corpora = verdicts.read_corpora(made_up_lines(20))
    with monkeypatch.context() as patch:
        patch.setattr(pyplot, "close", lambda figure: None)
        claims.draw(corpora, tmp_path / "forest.png")
    (ax,) = pyplot.gcf().axes
    pyplot.close()
    bars = [x for x in ax.lines if (x.get_marker(), x.get_color()) == ("None", "tab:blue")]
    assert [tuple(x.get_xdata()) for x in bars] == [x.interval for x in corpus.contrasts.values()]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    diamonds = [line for line in ax.lines if line.get_marker() == "D"]
    assert {labels[x.get_ydata()[0]]: x.get_xdata()[0] for x in diamonds} == {
        "output - baseline": 0.87, "em - baseline": 0.95, "both - baseline": 1.10,
        "gu-em - baseline": 0.43, "capsule - baseline": 0.61}


def test_the_planned_runs_are_stored_as_the_page_reads_them():
    for corpus in PLANS:
        table = TABLES[corpus.table]
        for row, (run,) in plan.plan(table, {}, (1,)):
            assert (run.scale, run.flags) == (table.scale, row.flags)
            assert run.settings.heads == (1 if row.label == "one-head" else 8)
            assert ("--amp" if corpus in (ENJA, MORE, JAEN) else "--no-amp") in run.words


def test_the_planned_runs_are_those_of_the_plan():
    for corpus in PLANS:
        rows = (*TABLES[corpus.table].rows, *TABLES[corpus.table].ended)
        assert {x for pair in corpus.pairs for x in pair} == {x.label for x in rows} - {"one-head"}
    assert (len(ENJA.pairs), len(MORE.pairs), len(JAEN.pairs)) == (7, 4, 4)
    assert (len(MULTI30K.seeds), len(TOY.seeds)) == (6, 20)
    assert (ENJA.seeds, ENJA.needed) == (MORE.seeds, MORE.needed) == (range(2, 10), 6)
    assert (JAEN.seeds, JAEN.needed) == (range(2, 6), 4)
