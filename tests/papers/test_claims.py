"""The table of claims: comparisons, and where the numbers come from."""
import pytest

from papers import claims, plan
from papers.claims import BASE, EM
from papers.tables import TABLES


def test_every_comparison_is_of_models_that_a_table_trains():
    """A misspelled model would read "not run" for ever."""
    trained = {}                        # table -> the flags of its rows
    for name in ("claims", "li2018-1", "li2018-2", "li2021-5", "gu-2"):
        rows = plan.plan(TABLES[name], {}, (1,))
        trained[name] = {runs[0].flags for row, runs in rows if runs and row.size == "base"}
    for claim in claims.CLAIMS:
        known = set.union(*trained.values())
        if claim.metric == claims.BLEU:
            known = trained["claims"]
        elif claim.metric in (claims.FORMULAS, claims.PROBES):
            known = {row.flags for row in TABLES["li2021-7"].rows}
        models = {model for pair in claim.compared for model in pair}
        assert models - {BASE} <= known


def test_published_gains_are_read_off_the_tables():
    printed = {claim.text: claim.published for claim in claims.CLAIMS}
    em = "EM routing of the heads beats the baseline, and here its uniform coupling"
    assert printed[em] == "+0.95 En-De, +0.55 Zh-En"
    assert printed["EM routing in the lower layers suffices: no worse than in all"] == "-0.02 En-De"
    assert "exp(D) +0.116" in printed.values()


# ---- Where the numbers come from

def lines_of(rows: dict, scale: str = "") -> list[dict]:
    """Lines of results/runs.jsonl: {flags: [(seed, BLEU), ...]}."""
    lines = []
    for flags, runs in rows.items():
        for seed, bleu in runs:
            lines.append({"scale": scale, "size": "base", "flags": flags, "seed": seed,
                          "bleu": bleu, "scores": {"output": 0.5}})
    return lines


def rows_of(page: str) -> dict[str, list[list[str]]]:
    """{claim: its lines, as cells}."""
    found = {}
    name = ""
    for line in page.splitlines():
        if line.startswith("|") and not line.startswith("|:-"):
            claim, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            name = claim or name
            found.setdefault(name, []).append(cells)
    return found


def test_runs_of_one_scale_are_compared_with_each_other():
    lines = lines_of({BASE: [(1, 20.0), (2, 21.0), (3, 22.0)], "--agg dynamic": [(1, 19.0)],
                      EM: [(3, 24.1), (1, 22.0), (2, 22.9)]})
    lines += lines_of({"--agg gu-em": [(1, 9.0), (2, 9.0)]}, "--dropout 0.3")
    found = rows_of(claims.page(lines, {}))
    # +2, +1.9, +2.1: standard error 0.1 / sqrt(3), t of two degrees 4.303
    (em,) = [rows for name, rows in found.items() if "uniform coupling" in name]
    assert em == [["Li 2019 Table 4", "+0.95 En-De, +0.55 Zh-En", "embedded corpus",
                   "+2.00 [+1.75, +2.25]; –"]]
    assert found["Simple routing beats the baseline"][0][-1] == "not run"    # one seed
    assert found["Gu's capsules with EM routing beat the baseline"][0][-1] == "not run"


def test_numbers_of_the_other_scripts():
    logic = {"kind": "logic", "pairs": {"6": 5, "7": 1, "12": 3, ">=7": 4},
             "runs": [{"model": "m", "seed": 1, "accuracy": {"6": 1, "7": 0.5, "12": 0.1}}]}
    # seven and more operators: 1 of 4 pairs at 0.5, 3 of 4 at 0.1
    values = claims.pool_from_file("f", logic).values
    assert values == {(claims.FORMULAS, "m"): {1: pytest.approx(20)}}
    analysis = {"kind": "analysis", "runs": {"a": {"flags": EM, "seed": 2}},
                "ablation": {"a": {"mean": 1.5}},
                "length": {"a": {"bleu": 20.0, "bins": [{"bleu": 30.0}, {"bleu": 18.0}]}}}
    values = claims.pool_from_file("f", analysis).values
    assert values == {(claims.COST, EM): {2: 1.5}, (claims.LONG, EM): {2: -2.0}}
    runs = [{"task": "WC", "model": "m-seed3", "seed": 1, "accuracy": 0.5},
            {"task": "CoIn", "model": "m-seed3", "seed": 1, "accuracy": 0.7},
            {"task": "WC", "model": "n", "seed": 4, "accuracy": 0.6}]
    values = claims.pool_from_file("f", {"kind": "probing", "runs": runs}).values
    assert values == {(claims.PROBES, "m"): {3: pytest.approx(60)},
                      (claims.PROBES, "n"): {4: pytest.approx(60)}}
