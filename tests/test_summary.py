"""results/summary.py: the planned tests, the tables that quote them, and added runs."""
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from results import summary

ROOT = Path(__file__).resolve().parents[1]
ARMS = {flags: arm for arm, flags in summary.ARMS.items()}
# columns of the tables of README.md and results/README.md, from the third on
COLUMNS = (("English-German", "English-German, second family"),
           ("English-Japanese, second part", "English-Japanese"), ("English-Japanese, repeated",))


def printed_cells(titles) -> dict[tuple, str]:
    """{(arm, against): difference ± half the interval, bold if significant} of families."""
    runs = summary.read_runs()
    text = summary.describe_runs(runs)
    tables = "".join(text.partition(f"{title}, seeds")[2].partition("BLEU, mean")[0]
                     for title in titles)
    cells = {}
    for (arm, against), x in summary.stored_differences(titles, runs).items():
        cell = f"{x.bleu:+z.1f} ± {(x.high - x.low) / 2:.1f}".replace("+0.0", "0.0")
        significant = re.search(rf"^{arm} - {against} .*(better|worse)$", tables, re.M)
        cells[arm, against] = f"**{cell}**" if significant else cell
    return cells


def table_rows(page: str, start: str) -> list[list[str]]:
    """The rows of a page's table, which begins with `start`."""
    table = (ROOT / page).read_text("utf-8").partition(start)[2].partition("\n\n")[0]
    return [re.split(r"\s*\|\s*", row)[1:-1] for row in table.splitlines()[2:]]


def test_the_summary_is_what_the_script_prints():
    runs = summary.read_runs()
    assert (summary.FOLDER / "summary.txt").read_text("utf-8") == summary.describe_runs(runs)


def test_every_run_is_stored_once_and_runs_of_a_text_have_its_checksums():
    runs = summary.read_runs()
    assert len({(run["command"], run["seed"]) for run in runs}) == len(runs)
    checksums = {}
    for run in runs:
        assert checksums.setdefault(run["text"], run.get("checksums")) == run.get("checksums")


def test_the_table_of_the_readme_is_that_of_the_runs():
    columns = [printed_cells(titles) for titles in COLUMNS[:2]]
    baseline, *rows = table_rows("README.md", "| mechanism | gain in the paper |")
    assert len(rows) == 7
    for label, _, *found in rows:
        pair = ARMS[re.search("`(.*)`", label)[1]], "baseline"
        assert found[:2] == [cells[pair] for cells in columns]


def test_the_table_of_the_results_is_that_of_the_runs():
    """Repeated runs are bold only where the text has no others."""
    columns = [printed_cells(titles) for titles in COLUMNS]
    for pair in columns[1]:
        columns[2][pair] = columns[2][pair].strip("*")
    rows = table_rows("results/README.md", "| mechanism (arm) |")
    assert len(rows) == len(summary.ROWS)
    for (arm, against), (label, _, *found) in zip(summary.ROWS, rows):
        assert f"`{arm}`" in label or against != "baseline"
        assert [re.sub(r" \(\d seeds\)", "", cell) for cell in found] == [
            cells.get((arm, against), "") for cells in columns]


def blocks_of(**scores) -> dict[int, dict[str, float]]:
    return {seed: dict(zip(scores, block)) for seed, block in enumerate(zip(*scores.values()))}


def test_the_planned_tests_are_the_paired_one_for_two_arms():
    """The model of one residual variance is score = arm + seed."""
    a, b = np.random.default_rng(0).normal(size=(2, 8))
    test = stats.ttest_rel(a, b)
    low, high = test.confidence_interval(0.95)
    for paired in (True, False):
        x, = summary.planned_differences(blocks_of(b=b, a=a), paired)
        assert x[2:] == pytest.approx((np.mean(a - b), low, high, test.pvalue))


def test_pairs_of_three_arms():
    """A paired test does not depend on the other arms; an arm has its own control, too."""
    a, b, c = np.random.default_rng(0).normal(size=(3, 8))
    differences = summary.planned_differences(blocks_of(baseline=a, uniform=b, em=c), True)
    assert [x[:2] for x in differences] == [
        ("uniform", "baseline"), ("em", "baseline"), ("em", "uniform")]
    for x, pair in zip(differences, ((b, a), (c, a), (c, b))):
        assert x.p == pytest.approx(stats.ttest_rel(*pair).pvalue)


def test_seeds_count_that_all_arms_have():
    family = summary.Family("--steps 9", "baseline wide-ffn", (1, 2, 3), 2)
    runs = [dict(command=command, seed=seed, bleu=10.0 * seed + len(command))
            for command in ("--steps 9", "--steps 9 --d-ff 321") for seed in (1, 2, 3)]
    del runs[1]
    assert summary.read_scores(family, runs) == {
        1: {"baseline": 19.0, "wide-ffn": 30.0}, 3: {"baseline": 39.0, "wide-ffn": 50.0}}
    assert summary.read_scores(family._replace(least=3), runs) == {}


def test_holms_adjustment():
    """From the smallest p on they are times 3, 2 and 1, and never below a smaller one's."""
    assert summary.holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert summary.holm([0.6, 0.7]) == pytest.approx([1, 1])


def test_which_p_is_adjusted():
    """Not that of the control; gu-em-full minus gu-em has none."""
    family = summary.FAMILIES["English-German"]
    scores = np.random.default_rng(0).normal(size=(11, 5))
    blocks = blocks_of(**dict(zip(family.arms.split(), scores)))
    rows = {}
    for line in summary.describe_family("", family, blocks).splitlines()[3:15]:
        pair, _, interval, *p = re.split(r"  +", line)
        rows[pair] = [float(x) for x in p[:2]]
    assert len(rows) == 12 and rows.pop("gu-em-full - gu-em") == []
    control = rows.pop("one-head - baseline")
    assert control[0] == control[1]
    p, adjusted = zip(*rows.values())
    assert adjusted == pytest.approx(summary.holm(p), abs=1e-3)


@pytest.fixture
def finished(tmp_path):
    """The folder of a run with seed 3 that was tested twice, in a clone."""
    for command in ("init -q", "-c user.name=A -c user.email=a commit -q --allow-empty -m A"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    command = "--heads 8 --agg em --agg-at enc cross:1 --steps 9 --seed 3 --runs elsewhere".split()
    config = {"command": command, "seed": 3, "train": None, "data": "tatoeba", "text": {"a": "1"}}
    test = dict(type="test", chrf=2.0, sets={}, signature="s", disagreement={"enc": {}},
                parameters=5)
    rows = [test | {"bleu": 1.0}, test | {"bleu": 4.0}]
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return tmp_path


def test_an_added_run_has_its_flags_its_last_test_and_the_commit_of_its_clone(finished):
    line = summary.read_finished(finished)
    commit = subprocess.run(["git", "log", "--format=%h"], cwd=finished, text=True,
                            capture_output=True).stdout.strip()
    wanted = dict(command="--heads 8 --agg em --agg-at enc cross:1 --steps 9", seed=3, bleu=4.0,
                  text="tatoeba", checksums={"a": "1"}, commit=commit)
    assert line | wanted == line


def test_a_run_is_added_once(finished, monkeypatch, capsys):
    stored = (summary.FOLDER / "runs.jsonl").read_bytes()
    (finished / "runs.jsonl").write_bytes(stored)
    monkeypatch.setattr(summary, "FOLDER", finished)
    summary.main(["--add", str(finished)])
    out = capsys.readouterr().out
    assert "--agg em --agg-at enc cross:1 --steps 9', 3), BLEU 4.00" in out and out.count("\n") == 1
    added = (finished / "runs.jsonl").read_bytes()
    assert added.startswith(stored) and added.count(b"\n") == stored.count(b"\n") + 1
    with pytest.raises(SystemExit, match="2"):
        summary.main(["--add", str(finished)])
    assert (finished / "runs.jsonl").read_bytes() == added
