"""results/summary.py: the planned tests, the tables that quote them, and added runs."""
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from results import summary

ROOT = Path(__file__).resolve().parents[1]
FLAGS = {summary.ARMS[arm].format(em="--agg em"): arm for arm in summary.ARMS}
FLAGS["--agg gu-em"] = "gu-em"


def planned_cells() -> dict[tuple, str]:
    """{(family, arm, against): difference ± half the interval, bold if significant}."""
    runs = summary.read_runs()
    text = summary.describe_runs(runs)
    cells = {}
    for title, family in summary.FAMILIES.items():
        table = text.partition(f"{title}, seeds")[2].partition("means:")[0]
        for x in summary.planned_differences(summary.read_scores(family, runs), family.welch):
            cell = f"{x.bleu:+z.1f} ± {(x.high - x.low) / 2:.1f}".replace("+0.0", "0.0")
            significant = re.search(rf"^{x.arm} - {x.against} .*(better|worse)$", table, re.M)
            cells[title, x.arm, x.against] = f"**{cell}**" if significant else cell
    return cells


def test_the_summary_is_what_the_script_prints():
    runs = summary.read_runs()
    assert (summary.FOLDER / "summary.txt").read_text("utf-8") == summary.describe_runs(runs)
    assert len({summary.run_key(run) for run in runs}) == len(runs)


def test_the_table_of_the_readme_is_that_of_the_runs():
    cells = planned_cells()
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme.partition("| Transformer, 8 heads |")[2].partition("\n\n")[0]
    rows = table.splitlines()[1:]
    assert len(rows) == 7
    for row in rows:
        label, _, real, generated, *_ = [cell.strip() for cell in row.strip("|").split("|")]
        arm = FLAGS[re.search("`(.*)`", label)[1]]
        assert real == cells["Real text", arm, "baseline"]
        assert generated == cells["Generated text", arm, "baseline"]


def test_the_table_of_the_results_is_that_of_the_runs():
    """Repeated runs are bold only where the text has no others."""
    cells = planned_cells()
    columns = (("Real text", "Real text, second part"), ("Real text, repeated",),
               ("Generated text", "Generated text, more arms"),
               ("Generated text, four times the steps",
                "Generated text, four times the steps, one head"))
    page = (ROOT / "results" / "README.md").read_text("utf-8")
    rows = page.partition("|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) == len(summary.ROWS)
    for (arm, against), row in zip(summary.ROWS, rows):
        label, _, *found = [cell.strip() for cell in row.strip("|").split("|")]
        assert f"`{arm}`" in label or against == "uniform"
        for titles, printed in zip(columns, found):
            wanted = [cells[title, arm, against] for title in titles
                      if (title, arm, against) in cells]
            if titles == ("Real text, repeated",) and arm not in ("output-enc", "both-enc"):
                wanted = [cell.strip("*") for cell in wanted]
            assert re.sub(r" \(\d seeds\)", "", printed) == (wanted or [""])[0], row


def test_the_planned_test_is_the_paired_one_for_two_arms():
    """The model is score = arm + seed with one residual variance."""
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
    """From the smallest p on they are times 3, 2 and 1, and never below a smaller one's."""
    assert summary.holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert summary.holm([0.6, 0.7]) == pytest.approx([1, 1])


def write_finished(folder) -> None:
    """The folder of a run with seed 3 that was tested twice."""
    command = "--heads 8 --agg em --agg-at enc cross:1 --steps 9 --seed 3 --runs elsewhere".split()
    (folder / "config.json").write_text(json.dumps({"command": command, "seed": 3}), "utf-8")
    test = dict(type="test", chrf=2.0, sets={}, signature="s", disagreement={"enc": {}},
                parameters=5, tokens_per_second=7.0)
    rows = [test | {"bleu": 1.0}, test | {"bleu": 4.0}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")


def test_an_added_run_has_its_flags_and_its_last_test(tmp_path):
    write_finished(tmp_path)
    line = summary.read_finished(tmp_path)
    assert summary.run_key(line) == ("--heads 8 --steps 9", "base",
                                     "--agg em --agg-at enc cross:1", 3)
    assert line["bleu"] == 4.0 and line["commit"]


def test_a_run_is_added_once(tmp_path, monkeypatch, capsys):
    write_finished(tmp_path)
    stored = (summary.FOLDER / "runs.jsonl").read_bytes()
    (tmp_path / "runs.jsonl").write_bytes(stored)
    monkeypatch.setattr(summary, "FOLDER", tmp_path)
    summary.main(["--add", str(tmp_path)])
    out = capsys.readouterr().out
    assert "'--agg em --agg-at enc cross:1', 3), BLEU 4.00" in out and out.count("\n") == 1
    added = (tmp_path / "runs.jsonl").read_bytes()
    assert added.startswith(stored) and added.count(b"\n") == stored.count(b"\n") + 1
    with pytest.raises(SystemExit, match="2"):
        summary.main(["--add", str(tmp_path)])
    assert (tmp_path / "runs.jsonl").read_bytes() == added
