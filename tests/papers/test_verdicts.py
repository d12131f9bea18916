"""The verdicts of the planned runs: the statistics against scipy's and by hand, the rules, and the
page recomputed from results/."""
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from papers import claims, plan, verdicts
from papers.tables import TABLES
from papers.verdicts import TOY, Contrast

ROOT = Path(__file__).resolve().parents[2]


def made_up_lines(seeds: int, gains: dict = {}, corpus=TOY) -> list[dict]:
    """Lines of the first `seeds` blocks; gains: of arms over the baseline."""
    rng = np.random.default_rng(1)
    table = TABLES[corpus]
    lines = []
    for seed in range(1, seeds + 1):
        for row in (*table.rows, *table.ended):
            bleu = 70 + gains.get(row.label, 0.0) + seed / 2 + rng.normal(0, 0.3)
            lines.append(dict(scale=table.scale, size="base", flags=row.flags, seed=seed,
                              bleu=bleu, chrf=90.0, valid_loss=1.0))
    return lines


def made_up_runs(seeds: int, gains: dict = {}) -> list[dict]:
    return verdicts.whole_blocks(made_up_lines(seeds, gains), TOY)


def test_with_two_arms_the_model_is_the_paired_t_test():
    runs = [run for run in made_up_runs(6) if run["arm"] in ("em", "baseline")]
    contrast = verdicts.contrast_arms(verdicts.fit_arms(runs), "em", "baseline")
    one = [run["score"] for run in runs if run["arm"] == "em"]
    two = [run["score"] for run in runs if run["arm"] == "baseline"]
    wanted = stats.ttest_rel(one, two)
    assert contrast.p == pytest.approx(wanted.pvalue)
    assert contrast.interval == pytest.approx(tuple(wanted.confidence_interval()))


def test_the_model_is_that_of_least_squares():
    """With a column of the design for each arm and each seed."""
    runs = made_up_runs(5, {"em": 1.0})
    y = np.array([run["score"] for run in runs])
    design = np.hstack([np.tile(np.eye(12), (5, 1)), np.repeat(np.eye(5), 12, axis=0)])
    effects = np.linalg.pinv(design) @ y
    contrast = verdicts.contrast_arms(verdicts.fit_arms(runs), "em", "baseline")
    assert contrast.freedom == 60 - np.linalg.matrix_rank(design)
    assert contrast.error == pytest.approx(np.std(y - design @ effects) * np.sqrt(60 / 44 * 2 / 5))
    assert contrast.difference == pytest.approx(effects[2] - effects[0])


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
    assert {run["seed"] for run in verdicts.whole_blocks(lines, TOY)} == {1, 2}


def test_em_routing_is_judged_by_its_uniform_coupling():
    lines = made_up_lines(20, {"em": 3.0, "uniform": 3.0, "one-head": -3.0})
    (row,) = [x for x in verdicts.five_lines(verdicts.analyze(lines)) if x[0] == "Li 2019"]
    assert row[5] == "a gain as printed is excluded" and "; uniform minus baseline +" in row[6]


def test_the_first_corpus_that_can_test_a_claim_decides():
    def read(multi30k: float, toy: float) -> tuple[str, str]:
        """The verdict on Li 2018 and its reason where one head differs by so much."""
        lines = made_up_lines(4, {"one-head": multi30k}, verdicts.MULTI30K)
        corpora = verdicts.analyze(lines + made_up_lines(20, {"output": 2.0, "one-head": toy}))
        unable = (multi30k == 0) + (toy == 0)
        assert verdicts.page(corpora).count("cannot test the papers") == unable
        return tuple(verdicts.five_lines(corpora)[0][5:])

    judged, reason = read(-3.0, -3.0)
    assert judged != "gain found" and reason == "output minus baseline on Multi30K"
    judged, reason = read(0.0, -3.0)
    assert judged == "gain found"
    assert "corpus; Multi30K, where one head does not lose: " in reason
    assert read(0.0, 0.0)[0] == "cannot be tested"


def test_runs_of_two_precisions_are_not_compared():
    lines = made_up_lines(3)
    lines[0]["precision"] = "bfloat16"                   # of seed 1
    lines[-1]["precision"] = "float32"                   # as the older lines, which do not say it
    assert {run["seed"] for run in verdicts.whole_blocks(lines, TOY)} == {2, 3}
    runs = [line | {"scale": "", "flags": "", "scores": {"output": 0.5}} for line in lines]
    assert [pool.where for pool in claims.pools_from_lines(runs)] == [
        "embedded, bfloat16", "embedded"]


def test_a_corpus_is_read_when_the_plan_allows_it():
    assert verdicts.analyze(made_up_lines(19)) == {}
    assert list(verdicts.analyze(made_up_lines(20))) == [TOY]


def scores_of(corpus: str) -> dict[str, np.ndarray]:
    """The scores of the whole blocks in results/, by arm."""
    table = TABLES[corpus]
    blocks = {}
    for line in map(json.loads, (ROOT / "results" / "runs.jsonl").read_text().splitlines()):
        if line["scale"] == table.scale:
            blocks.setdefault(line["seed"], {})[line["flags"]] = line["bleu"]
    rows = (*table.rows, *table.ended)
    whole = [block for block in blocks.values() if len(block) == len(rows)]
    scores = {}
    for row in rows:
        scores[row.label] = np.array([block[row.flags] for block in whole])
    return scores


def in_words(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


@pytest.mark.parametrize("corpus", [TOY, verdicts.MULTI30K])
def test_the_numbers_of_the_page_follow_from_the_stored_runs(corpus):
    """Computed again without papers/differences.py: means, differences, intervals, p by Holm."""
    scores = scores_of(corpus)
    seeds = len(scores["baseline"])
    page = (ROOT / "docs" / "claims.md").read_text("utf-8")
    name = verdicts.CORPUS_NAMES[corpus]
    if f"On {name}:" not in page:
        assert seeds < verdicts.LEAST_BLOCKS[corpus]
        pytest.skip(f"{seeds} whole blocks")
    page = page[page.index("<!-- verdicts -->"):]
    five_lines, _, section = page.partition(f"On {name}: {seeds} whole blocks")
    section = section.split("\n\nOn ")[0].split("<!-- end -->")[0]
    table = np.array(list(scores.values()))
    residuals = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    pooled_freedom = (len(table) - 1) * (seeds - 1)
    pooled = np.sqrt((residuals ** 2).sum() / pooled_freedom * 2 / seeds)
    assert ("Welch" in section) == (stats.levene(*table).pvalue < 0.01)
    rows = [row.strip("| ").split("|") for row in section.splitlines() if row.startswith("|")]
    rows = [list(map(str.strip, row)) for row in rows[2:]]
    tested = []
    for row in rows:
        arm, against = scores[row[0]], scores[row[1]]
        difference = arm.mean() - against.mean()
        error, freedom = pooled, pooled_freedom
        if "Welch" in section:
            error = np.sqrt((arm.var(ddof=1) + against.var(ddof=1)) / seeds)
            freedom = stats.ttest_ind(arm, against, equal_var=False).df
        half = stats.t.ppf(0.975, freedom) * error
        p = 2 * stats.t.sf(abs(difference) / error, freedom)
        tested.append((p, row[5]))
        figures = f"{difference:+.2f} [{difference - half:+.2f}, {difference + half:+.2f}]"
        detectable = half + stats.t.ppf(0.8, freedom) * error
        assert row[2:5] == [figures, f"{detectable:.2f}", in_words(p)]
        assert f"{row[0]} {arm.mean():.2f}" in section
    adjusted = 0.0
    for k, (p, holm) in enumerate(sorted(tested)):
        adjusted = max(adjusted, min(1, (len(rows) - k) * p))
        assert holm == in_words(adjusted)
    printed = {(row[0], row[1]): row[2] for row in rows}
    judged = re.findall(rf"(\S+ \[.*?\]) .*?\| (\S+) minus (\S+) on {name}",
                        five_lines)
    assert len(judged) == five_lines.count(f" on {name}")
    unable = re.findall(rf"(\S+) minus (\S+) on .*{name}, where one head does not"
                        r" lose: (\S+ \[.*?\])", five_lines)
    judged += [(figures, arm, against) for arm, against, figures in unable]
    assert bool(unable) == ("this setting cannot test the papers" in section)
    assert judged
    for figures, arm, against in judged:
        assert figures == printed[arm, against]


def test_the_planned_runs_are_stored_as_the_page_reads_them():
    for corpus in verdicts.SEEDS:
        table = TABLES[corpus]
        for row, (run,) in plan.plan(table, {}, (1,)):
            assert (run.scale, run.flags) == (table.scale, row.flags)
            assert run.settings.heads == (1 if row.label == "one-head" else 8)


def test_the_planned_runs_are_those_of_the_plan():
    text = (ROOT / "docs" / "plan.md").read_text("utf-8")
    for corpus, arms in ((TOY, 12), ("plan-multi30k", 7)):
        rows = (*TABLES[corpus].rows, *TABLES[corpus].ended)
        assert len(rows) == arms
        for row in rows:
            assert f"| {row.label} |" in text
            assert f"| {len(verdicts.SEEDS[corpus])} " in text
