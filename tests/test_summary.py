"""results/summary.py: the planned tests, and added runs."""
import json

import numpy as np
import pytest
from scipy import stats

from results import summary



def test_the_summary_is_what_the_script_prints():
    runs = summary.read_runs()
    assert (summary.FOLDER / "summary.txt").read_text("utf-8") == summary.describe_runs(runs)
    assert len({summary.run_key(run) for run in runs}) == len(runs)


def test_the_planned_test_is_the_paired_one_for_two_arms():
    """score = arm + seed with one residual variance."""
    a, b = np.random.default_rng(0).normal(size=(2, 8))
    x, = summary.planned_differences({"b": b, "a": a})
    test = stats.ttest_rel(a, b)
    low, high = test.confidence_interval(0.95)
    assert x[2:] == pytest.approx((np.mean(a - b), low, high, test.pvalue))


def test_the_planned_test_is_welchs_where_variances_differ():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=20), rng.normal(1, 9, 20)
    x, = summary.planned_differences({"b": b, "a": a})
    assert x.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_holms_adjustment():
    """Times 3, 2 and 1 from the smallest p on, and never less than that of a smaller p."""
    assert summary.holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert summary.holm([0.6, 0.7]) == pytest.approx([1, 1])


def test_an_added_run_has_its_flags_and_its_last_test(tmp_path):
    command = ["--heads", "8", "--agg", "em", "--agg-at", "enc", "cross:1", "--steps", "9"]
    (tmp_path / "config.json").write_text(json.dumps({"command": command, "seed": 3}), "utf-8")
    test = dict(type="test", test_chrf=2.0, sets={}, signature="s", disagreement={"enc": {}},
                parameters=5, tokens_per_second=7.0)
    rows = [test | {"test_bleu": 1.0}, test | {"test_bleu": 4.0}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    line = summary.read_finished(tmp_path)
    assert summary.run_key(line) == ("--heads 8 --steps 9", "base",
                                     "--agg em --agg-at enc cross:1", 3)
    assert line["bleu"] == 4.0 and line["commit"]
