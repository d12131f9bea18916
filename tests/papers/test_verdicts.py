"""The verdicts of the planned runs: the statistics against scipy's and by hand, the rules, and the
page recomputed from results/."""
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from papers import plan, verdicts
from papers.tables import TABLES
from papers.verdicts import TOY, Contrast

ROOT = Path(__file__).resolve().parents[2]


def made_up_lines(seeds: int, gains: dict = {}, noise=0.3) -> list[dict]:
    """Lines of the first `seeds` blocks; gains: of arms over the baseline."""
    rng = np.random.default_rng(1)
    table = TABLES[TOY]
    lines = []
    for seed in range(1, seeds + 1):
        for row in table.rows:
            bleu = 70 + gains.get(row.label, 0.0) + seed / 2 + rng.normal(0, noise)
            lines.append(dict(scale=table.scale, size="base", flags=row.flags, seed=seed,
                              bleu=bleu))
    return lines


def made_up_runs(seeds: int, gains: dict = {}) -> list[dict]:
    return verdicts.whole_blocks(made_up_lines(seeds, gains), TOY)


def test_with_two_arms_the_model_is_the_paired_t_test():
    runs = [run for run in made_up_runs(6) if run["arm"] in ("em", "baseline")]
    found = verdicts.compare(verdicts.fit(runs), "em", "baseline")
    scores = {arm: [run["score"] for run in runs if run["arm"] == arm]
              for arm in ("em", "baseline")}
    wanted = stats.ttest_rel(scores["em"], scores["baseline"])
    assert found.p == pytest.approx(wanted.pvalue)
    assert found.interval == pytest.approx(tuple(wanted.confidence_interval()))


def test_the_residual_variance_is_pooled_over_all_arms():
    """In a balanced design it is the two-way analysis of variance."""
    runs = made_up_runs(5, {"em": 1.0})
    table = np.array([run["score"] for run in runs]).reshape(5, 12)
    residuals = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    found = verdicts.compare(verdicts.fit(runs), "em", "baseline")
    assert found.freedom == 4 * 11
    assert found.error == pytest.approx(np.sqrt((residuals ** 2).sum() / 44 * 2 / 5))
    assert found.difference == pytest.approx((table[:, 2] - table[:, 0]).mean())


def test_arms_with_different_variances_take_welchs_test():
    runs = made_up_runs(12)
    for run in runs:
        if run["arm"] == "output":
            run["score"] += 8 * (run["seed"] % 2)
    found = verdicts.compare(verdicts.fit(runs), "output", "baseline")
    scores = {arm: [run["score"] for run in runs if run["arm"] == arm]
              for arm in ("output", "baseline")}
    wanted = stats.ttest_ind(scores["output"], scores["baseline"], equal_var=False)
    assert found.p == pytest.approx(wanted.pvalue)
    assert found.interval == pytest.approx(tuple(wanted.confidence_interval()))


def test_holms_adjustment_by_hand():
    family = [Contrast("", "", 1.0, 1.0, 9, p) for p in (0.01, 0.04, 0.03, 0.005)]
    adjusted = [contrast.adjusted for contrast in verdicts.holm(family)]
    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize("difference, error, adjusted, wanted", [
    (0.5, 0.1, 0.001, "gain found"),
    (-0.5, 0.1, 0.001, "the opposite"),
    (0.05, 0.1, 0.9, "no different (within 0.3 BLEU)"),
    (0.2, 0.2, 0.3, "a gain as printed is excluded"),    # up to 0.62, less than 0.87
    (0.5, 0.3, 0.2, "too imprecise (could detect 0.9)")])
def test_the_rules_of_the_verdicts(difference, error, adjusted, wanted):
    contrast = Contrast("em", "baseline", difference, error, 20, 0.1, adjusted)
    assert verdicts.verdict(contrast, 0.87) == wanted


def test_a_block_counts_when_it_is_whole():
    lines = made_up_lines(3)[:-1] + [{**made_up_lines(1)[0], "scale": "--steps 7", "seed": 3}]
    seeds = {run["seed"] for run in verdicts.whole_blocks(lines, TOY)}
    assert seeds == {1, 2}


def test_em_routing_is_judged_by_its_uniform_coupling():
    lines = made_up_lines(6, {"em": 3.0, "uniform": 3.0})
    rows = {row[0]: row for row in verdicts.five_lines(verdicts.analyze(lines))}
    assert rows["Li 2019"][5] != "gain found"
    assert "the control +" in rows["Li 2019"][6]


def test_a_setting_in_which_one_head_does_not_lose_cannot_test_the_papers():
    sentence = "cannot test the papers"
    assert sentence in verdicts.page(made_up_lines(4))
    assert sentence not in verdicts.page(made_up_lines(4, {"one-head": -3.0}))


def test_the_forest_plot_is_drawn(tmp_path):
    verdicts.draw(made_up_lines(2), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5_000


def test_the_five_lines_of_the_page_follow_from_the_stored_runs():
    """Computed independently, on the embedded corpus."""
    page = (ROOT / "docs" / "claims.md").read_text("utf-8")
    scores = {}
    for line in map(json.loads, (ROOT / "results" / "runs.jsonl").read_text().splitlines()):
        if "toy4000" in line["scale"]:
            scores.setdefault(line["seed"], {})[line["flags"]] = line["bleu"]
    blocks = [block for block in scores.values() if len(block) == 12]
    em = "--agg em --em-gradient last"
    pairs = [("--reg output", ""), (em, "--agg em --iterations 1"), (f"{em} --reg output", ""),
             ("--agg gu-em --em-gradient last", ""),
             ("--capsule-attention enc dec", "")]
    assert f"{len(blocks)} whole blocks" in page
    for flags, against in pairs:
        mean = np.mean([block[flags] - block[against] for block in blocks])
        assert f"{mean:+.2f} [" in page


def test_the_planned_runs_are_stored_as_the_page_reads_them():
    for corpus in verdicts.SEEDS:
        table = TABLES[corpus]
        for row, (run,) in plan.plan(table, {}, (1,)):
            assert (run.scale, run.flags) == (table.scale, row.flags)
            assert run.settings.heads == (1 if row.label == "one-head" else 8)


def test_the_planned_runs_are_those_of_the_plan():
    text = (ROOT / "docs" / "plan.md").read_text("utf-8")
    for corpus, arms in ((TOY, 12), ("plan-multi30k", 7)):
        rows = TABLES[corpus].rows
        assert len(rows) == arms
        for row in rows:
            assert f"| {row.label} |" in text
            assert f"| {len(verdicts.SEEDS[corpus])} " in text
