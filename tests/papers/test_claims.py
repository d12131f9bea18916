"""The page of claims: what is compared, the rule of the verdicts, and the screen's and the page's
tables."""

import json
from pathlib import Path

import pytest

from papers import claims, plan, render
from papers.claims import BASE, BOTH, EM, ENCODER, FAILS, OUTPUT, UNKNOWN, Comparison
from papers.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "differences, p, margin, wanted",
    [
        ([1.0, 1.1, 0.9], [], None, "holds"),
        ([-1.0, -1.1, -0.9], [], None, FAILS),
        ([1.0, -1.0, 0.5], [], None, UNKNOWN),
        ([9.0], [], None, UNKNOWN),  # one seed has no interval
        ([1.0, 1.1, 0.9], [0.2, 0.04, 0.06], None, UNKNOWN),
        ([1.0, 1.1, 0.9], [0.2, 0.04, 0.01], None, "holds"),
        ([-1.0, -1.1, -0.9], [0.2, 0.2, 0.01], None, UNKNOWN),
        ([-0.1, -0.11, -0.09], [], 0.3, "holds"),  # worse, and by less than the margin
        ([-1.0, -1.1, -0.9], [], 0.3, FAILS),
        ([-0.2, -0.3, -0.1], [], 0.3, UNKNOWN),  # worse, perhaps by more than the margin
        ([0.1, -0.9, 0.8], [], 0.3, UNKNOWN),
    ],
)
def test_verdicts_follow_the_rule(differences, p, margin, wanted):
    assert claims.verdict(Comparison(differences, p), margin) == wanted


def test_a_claim_holds_where_all_of_it_does():
    assert claims.verdict(None) == UNKNOWN
    assert claims.of_all(["holds", "holds"]) == "holds"
    assert claims.of_all(["holds", UNKNOWN]) == UNKNOWN
    assert claims.of_all([UNKNOWN, FAILS, "holds"]) == FAILS


# metric -> the table of another script's models
OF_SCRIPTS = {claims.FORMULAS: "li2021-fig4", claims.PROBES: "li2021-7"}


def test_every_comparison_is_of_models_that_a_table_trains():
    """A misspelt model would read "not run" for ever."""
    trained = {
        " ".join(jobs[0].mechanisms)
        for name, table in TABLES.items()
        if table.kind == "mt"
        for row, jobs in plan.plan(table, {}, (1,))
        if jobs and row.size == "base"
    }
    of_one_table = {
        " ".join(jobs[0].mechanisms) for _, jobs in plan.plan(TABLES["claims"], {}, (1,))
    }
    for claim in claims.CLAIMS:
        known = of_one_table if claim.metric == claims.BLEU else trained
        if claim.metric in OF_SCRIPTS:
            known = {row.flags for row in TABLES[OF_SCRIPTS[claim.metric]].rows}
        models = {model for pair in claim.compared for model in pair}
        if claim.control:
            models.add(claim.control[1])
        assert models <= known, claim.text


def test_published_gains_are_read_off_the_tables():
    printed = {claim.text: claim.published for claim in claims.CLAIMS}
    assert printed["EM routing of the heads beats the baseline"] == "+0.95 En-De, +0.55 Zh-En"
    assert printed["EM routing beats simple routing"] == "+0.30 En-De, all layers"
    assert printed["Gu's capsules with EM routing beat the baseline"] == "+0.43 En-De, +0.75 Zh-En"
    assert printed["EM routing in the lower layers suffices: no worse than in all"] == "-0.02 En-De"
    assert any("exp(D) +0.116" == text for text in printed.values())


def table(data: str, steps: int, rows: dict, recipe: str = "") -> dict:
    """A file of results: {flags: [(seed, BLEU, exp(D), p), ...]}."""
    stored = []
    for flags, runs in rows.items():
        found = []
        for seed, bleu, score, p in runs:
            found.append({"seed": seed, "bleu": bleu, "scores": {"output": score}, "p": p})
        stored.append({"label": flags, "size": "base", "flags": flags, "runs": found})
    return {"kind": "table", "data": data, "arch": "tiny", "steps": steps, "rows": stored,
            "command": f"python reproduce.py claims --seeds 1 2 3{recipe}"}


@pytest.mark.parametrize("of_control, wanted", [(22.0, "holds, also with a uniform coupling"),
                                                (20.0, "holds")])
def test_a_verdict_names_a_control_that_does_as_well(of_control, wanted):
    rows = {}
    for flags, bleu in ((BASE, 20.0), (EM, 22.0), (f"{EM} --iterations 1", of_control)):
        rows[flags] = [(seed, bleu + noise, 0.5, None)
                       for seed, noise in ((1, 0.0), (2, 0.1), (3, -0.1))]
        # no two differences alike
        rows[flags][0] = (1, bleu + 0.01 * len(rows), 0.5, None)
    found = rows_of(claims.page({"one.json": table("text", 100, rows)}))
    ((*_, word),) = found["EM routing of the heads beats the baseline"]
    assert word == wanted


def rows_of(page: str) -> dict[str, list[list[str]]]:
    """{claim: its lines, as cells}."""
    found = {}
    for line in page.splitlines():
        if line.startswith("|") and not line.startswith("|:-"):
            claim, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            if claim:
                name = claim
            found.setdefault(name, []).append(cells)
    return found


def test_a_page_has_every_number_in_its_place():
    """Models of one text and recipe are compared across tables, by the seeds that both have."""
    results = {
        "one.json": table("text", 100, {
            BASE: [(1, 20.0, 0.5, None), (2, 21.0, 0.5, None), (3, 22.0, 0.5, None)],
            EM: [(3, 24.1, 0.5, 0.01), (1, 22.0, 0.5, 0.02), (2, 22.9, 0.5, 0.5)]}),
        "two.json": table("text", 100, {BOTH: [(1, 19.0, 0.6, 0.01), (9, 90.0, 0.1, 0.01)],
                                        OUTPUT: [(1, 18.5, 0.9, 0.02)]}),
        "other.json": table("text", 200, {EM: [(1, 99.0, 0.5, None)]}),
        "recipe.json": table("text", 100, {f"{ENCODER} --reg-weight 0.5": [(1, 9.0, 0.5, 0.1)]},
                             " --dropout 0.3"),
        "logic.json": {
            "kind": "logic", "majority": {}, "pairs": {"6": 5, "7": 1, "12": 3, ">=7": 4},
            "runs": [{"model": model, "seed": 1, "accuracy": {"6": 1, "7": 0.5, "12": x}}
                     for model, x in (("baseline", 0.1), ("combined", 0.3))]},
        "heads.json": {
            "kind": "analysis",
            "runs": {"a": {"flags": BASE, "seed": 1}, "b": {"flags": BOTH, "seed": 1}},
            "ablation": {"a": {"mean": 1.5}, "b": {"mean": 1.25}}},
        "probing.json": {
            "kind": "probing", "published": "li2021-7", "table": [],
            "runs": [{"task": task, "model": model, "seed": 1, "accuracy": accuracy}
                     for task, model, accuracy in (
                         ("WC", "baseline", 0.5), ("CoIn", "baseline", 0.7),
                         ("WC", "combined", 0.6), ("CoIn", "combined", 0.75))]},
        "frozen.json": {
            "kind": "probing", "table": [],
            "runs": [{"task": "WC", "model": f"{model}-seed{seed}", "seed": 1, "accuracy": accuracy}
                     for model, seed, accuracy in (
                         ("baseline", 1, 0.5), ("baseline", 2, 0.5), ("combined", 1, 0.51),
                         ("combined", 2, 0.53), ("combined", 3, 0.9))]},
    }
    found = rows_of(claims.page(results))
    # +2, +1.9, +2.1: a mean of 2, a standard error of 0.1 / sqrt(3), t of two degrees 4.303
    assert found["EM routing of the heads beats the baseline"] == [
        ["Li 2019 Table 4", "+0.95 En-De, +0.55 Zh-En", "text, tiny, 100 steps",
         "+2.00 [+1.75, +2.25] (3 seeds; p 0.020, 0.500, 0.010)", "holds"]]
    (both,) = found["Both together beat disagreement alone and aggregation alone"]
    assert both[2:] == ["text, tiny, 100 steps", "+0.50 (1 seed); -3.00 (1 seed)", UNKNOWN]
    (differ,) = [cells for name, cells in found.items() if "makes them differ" in name]
    assert differ[0][3] == f"{claims.SCORE}: +0.400 (1 seed)"
    (logic,) = [cells for name, cells in found.items() if name.startswith("Logical")]
    # seven and more: 1 of 4 pairs at the same accuracy, 3 of 4 at 20 points more
    assert logic[0][2:] == ["logic", f"{claims.FORMULAS}: +15.00 (1 seed); –; –", UNKNOWN]
    (heads,) = [cells for name, cells in found.items() if name.startswith("Heads")]
    assert heads[0][2:] == ["heads", f"{claims.COST}: –; –; -0.25 (1 seed)", UNKNOWN]
    (probing,) = [cells for name, cells in found.items() if name.startswith("Linguistic")]
    # tasks of 60 and 75 per cent, less tasks of 50 and 70
    assert probing[0][1:] == ["+1.02 surface, +2.01 syntactic, +1.70 semantic", "probing",
                              f"{claims.PROBES}: +7.50 (1 seed)", UNKNOWN]
    # 1 and 3 points, t of one degree 12.71
    assert probing[1][2:] == ["frozen", f"{claims.PROBES}: +2.00 [-10.71, +14.71] (2 seeds)",
                              UNKNOWN]
    assert found["Routing beats a uniform coupling"][0][2:] == ["–", "–", "not run"]
    # another recipe's run has no baseline to be compared with
    (encoder,) = found["The same in the encoder alone (here with λ = H/8)"]
    assert encoder[-1] == "not run"


def test_a_screen_holds_every_column_once_within_its_width():
    cells = [["", "flags", "BLEU", "Δ", "empty", "paper: BLEU"],
             ["baseline", "", "20.00 ± 1.00", "", "–", "27.31"],
             ["EM routing", "`--agg em`", "21.00 ± 1.00", "+1.00", "", "28.26"]]
    wide = render.on_screen(cells, 100)
    assert wide.splitlines()[0].split() == ["BLEU", "Δ", "paper:", "BLEU"]
    narrow = render.on_screen(cells, 34)
    assert all(len(line) <= 34 for line in narrow.splitlines())
    assert [block.split()[0] for block in narrow.split("\n\n")] == ["BLEU", "paper:"]
    assert narrow.count("EM routing") == 2 and "--agg" not in narrow


def test_a_small_difference_has_no_p():
    def run(seed, bleu, p=None):
        return {"seed": seed, "bleu": bleu, "parameters": 1, "tokens_per_second": None,
                "sentences_per_second": None, "p": p}

    base = [run(1, 20.0), run(2, 20.0)]
    cells = render.measured([run(1, 20.04, 0.9), run(2, 20.06, 0.8)], base)
    assert cells[4] == "–, 0.800"


def test_figures_of_results_are_there():
    """Every table with several seeds has its figure in docs/."""
    from papers.documents import rows_to_draw

    for file in (ROOT / "results").glob("*.json"):
        stored = json.loads(file.read_text())
        if rows_to_draw(stored) or "ablation" in stored:
            assert (ROOT / "docs" / f"{file.stem}.svg").exists(), file.name
