"""The table of claims: comparisons, the rule of the verdicts, where the numbers come from."""
import pytest

from papers import claims, plan
from papers.claims import BASE, BOTH, EM, FAILS, HOLDS, OUTPUT, UNKNOWN, Comparison, Pool
from papers.tables import TABLES


@pytest.mark.parametrize("differences, p, margin, wanted", [
    ([1.0, 1.1, 0.9], [], None, HOLDS),
    ([-1.0, -1.1, -0.9], [], None, FAILS),
    ([1.0, -1.0, 0.5], [], None, UNKNOWN),
    ([9.0], [], None, UNKNOWN),                          # one seed has no interval
    ([1.0, 1.1, 0.9], [0.2, 0.04, 0.06], None, UNKNOWN),
    ([1.0, 1.1, 0.9], [0.2, 0.04, 0.01], None, HOLDS),
    ([-0.1, -0.11, -0.09], [], 0.3, HOLDS),              # worse, and by less than the margin
    ([-1.0, -1.1, -0.9], [], 0.3, FAILS),
    ([-0.2, -0.3, -0.1], [], 0.3, UNKNOWN)])
def test_verdicts_follow_the_rule(differences, p, margin, wanted):
    assert claims.verdict(Comparison(differences, p), margin) == wanted


@pytest.mark.parametrize("verdicts, wanted", [
    ([HOLDS, HOLDS], HOLDS), ([HOLDS, UNKNOWN], UNKNOWN), ([UNKNOWN, FAILS, HOLDS], FAILS)])
def test_a_claim_holds_where_all_of_it_does(verdicts, wanted):
    assert claims.verdict_on_all(verdicts) == wanted


@pytest.mark.parametrize("control, wanted", [(22.0, "holds, also with a uniform coupling"),
                                             (20.0, "holds")])
def test_a_verdict_names_a_control_that_does_as_well(control, wanted):
    pool = Pool("", {})
    for model, bleu in ((BASE, 20.0), (EM, 22.0), (f"{EM} --iterations 1", control)):
        for seed, noise in enumerate((0.0, 0.1 if model else 0.0, 0.0)):
            pool.add(claims.BLEU, model, seed, bleu + noise)
    claim = next(claim for claim in claims.CLAIMS if claim.control)
    assert claims.verdict_on_claim(claim, pool) == wanted


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
            known = {row.flags for row in TABLES["li2021-fig4"].rows}
        models = {model for pair in claim.compared for model in pair}
        assert models | {flags for _, flags in [claim.control or ("", BASE)]} - {BASE} <= known


def test_published_gains_are_read_off_the_tables():
    printed = {claim.text: claim.published for claim in claims.CLAIMS}
    assert printed["EM routing of the heads beats the baseline"] == "+0.95 En-De, +0.55 Zh-En"
    assert printed["EM routing in the lower layers suffices: no worse than in all"] == "-0.02 En-De"
    assert "exp(D) +0.116" in printed.values()


# ---- Where the numbers come from

def table(steps: int, rows: dict, recipe: str = "") -> dict:
    """A file of reproduce.py: {flags: [(seed, BLEU, exp(D), p), ...]}."""
    stored = []
    for flags, runs in rows.items():
        runs = [{"seed": seed, "bleu": bleu, "scores": {"output": score}, "p": p}
                for seed, bleu, score, p in runs]
        stored.append({"label": flags, "size": "base", "flags": flags, "runs": runs})
    return {"kind": "table", "data": "text", "arch": "tiny", "steps": steps, "rows": stored,
            "command": f"python reproduce.py claims --seeds 1 2 3{recipe}"}


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


def test_tables_of_one_recipe_are_compared_with_each_other():
    found = rows_of(claims.page({
        "one.json": table(100, {
            BASE: [(1, 20.0, 0.5, None), (2, 21.0, 0.5, None), (3, 22.0, 0.5, None)],
            EM: [(3, 24.1, 0.5, 0.01), (1, 22.0, 0.5, 0.02), (2, 22.9, 0.5, 0.5)]}),
        "two.json": table(100, {BOTH: [(1, 19.0, 0.6, 0.01), (9, 90.0, 0.1, 0.01)],
                                OUTPUT: [(1, 18.5, 0.9, 0.02)]}),
        "recipe.json": table(100, {"--agg gu-em": [(1, 9.0, 0.5, 0.1)]}, " --dropout 0.3")}))
    # +2, +1.9, +2.1: standard error 0.1 / sqrt(3), t of two degrees 4.303
    assert found["EM routing of the heads beats the baseline"] == [
        ["Li 2019 Table 4", "+0.95 En-De, +0.55 Zh-En", "text, tiny, 100 steps",
         "+2.00 [+1.75, +2.25] (3 seeds; p 0.020, 0.500, 0.010)", "holds"]]
    (both,) = found["Both together beat disagreement alone and aggregation alone"]
    assert both[2:] == ["text, tiny, 100 steps", "+0.50 (1 seed); -3.00 (1 seed)", UNKNOWN]
    (differ,) = [cells for name, cells in found.items() if "makes them differ" in name]
    assert differ[0][3] == f"{claims.SCORE}: +0.400 (1 seed)"
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
