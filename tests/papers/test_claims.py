"""The table of claims: comparisons, and where the numbers come from."""
import re

import pytest

from papers import claims, plan
from papers.claims import BASE, BOTH, EM
from papers.tables import SCORES, TABLES


def test_every_comparison_is_of_models_that_a_table_trains():
    """A misspelled model would read "not run" for ever."""
    trained = {}                        # table -> the flags of its rows
    for name in ("claims", "li2018-1", "li2018-2", "li2021-5", "gu-2"):
        rows = plan.plan(TABLES[name], {}, (1,))
        trained[name] = {runs[0].flags for row, runs in rows if runs and row.size == "base"}
    for claim in claims.CLAIMS:
        known = set.union(*trained.values())
        if claim.metric == claims.BLEU:
            known = trained["claims"] | trained["li2018-1"]
        elif claim.metric in (claims.FORMULAS, claims.PROBES):
            known = {row.flags for row in TABLES["li2021-7"].rows}
        models = {model for pair in claim.compared for model in pair}
        assert {name for name in models - {BASE} if not name.startswith("later.")} <= known


def gain(table: str, column: str, label: str, against: str) -> float:
    """The gain of a row of a published table over another."""
    place = TABLES[table].columns.index(column)
    cells = {row.label: row.published[place] for row in TABLES[table].rows if row.published}
    a, b = (float(cells[name].split()[0].rstrip("↑⇑*")) for name in (label, against))
    return round(a - b, 3)


def find_claim(start: str) -> claims.Claim:
    (claim,) = [claim for claim in claims.CLAIMS if claim.text.startswith(start)]
    return claim


DE = "En-De BLEU"


@pytest.mark.parametrize("start, gains", [
    ("Output disagreement in", [gain("li2018-2", "BLEU", "Enc", "baseline")]),
    ("Disagreement of outputs", [gain("li2018-1", "BLEU", "4  output", "2  subspace"),
                                 gain("li2018-1", "BLEU", "4  output", "3  position")]),
    ("Disagreement of subspaces", [gain("li2018-1", "BLEU", "5  subspace, output", "4  output")]),
    ("Rewarding the heads' outputs for disagreeing makes",
     [round(float(SCORES["output"][2]) - float(SCORES["baseline"][2]), 3)]),
    ("Simple", [gain("li2019-2", "BLEU", "3  Enc, simple", "2  baseline")]),
    ("EM routing beats", [gain("li2019-2", "BLEU", "4  Enc, EM", "3  Enc, simple")]),
    ("EM routing in", [gain("li2019-3", "BLEU", "5  [1,2]", "2  [1-6]")]),
    ("Disagreement and", [gain("li2021-5", DE, "base + Both", f"base + {name}")
              for name in ("Disagreement", "Aggregation")]),
    ("Linguistic", [gain("li2021-7", group, "Combine", "Baseline")
                    for group in ("surface", "syntactic", "semantic")]),
    ("Gu's capsules: EM", [gain("gu-2", "BLEU", "base + EM Routing", "base + Dynamic Routing"),
                           gain("gu-1", "AVE.", "+ EM Routing", "+ Dynamic Routing")])])
def test_published_gains_are_those_of_the_tables(start, gains):
    published = find_claim(start).published
    printed = [float(number) for number in re.findall(r"[+-]\d\.\d+", published)]
    assert printed == gains


@pytest.mark.parametrize("source, wanted", [
    ("Li 2018", gain("li2018-3", DE, "base + Disagreement", "base")),
    ("Li 2019", gain("li2019-4", DE, "base + Effective Aggregation", "base")),
    ("Li 2021", gain("li2021-5", DE, "base + Both", "base")),
    ("Gu 2019", gain("gu-2", "BLEU", "base + EM Routing", "base")),
    ("Duan 2020", gain("duan-1", DE, "capsule-Transformer base", "base"))])
def test_main_gains_are_those_of_the_tables(source, wanted):
    (claim,) = [claim for claim in claims.MAIN_CLAIMS if claim.source == source]
    assert claim.printed == wanted


# ---- Where the numbers come from

def lines_of(rows: dict, scale: str = "") -> list[dict]:
    """Lines of results/runs.jsonl: {flags: [(seed, BLEU), ...]}."""
    lines = []
    for flags, runs in rows.items():
        for seed, bleu in runs:
            lines.append({"scale": scale, "size": "base", "flags": flags, "seed": seed,
                          "bleu": bleu, "scores": {"output": 0.5}})
    return lines


def test_runs_of_one_scale_are_compared_with_each_other():
    lines = lines_of({EM: [(1, 20.0), (2, 21.0), (3, 22.0)], "--agg dynamic": [(1, 19.0)],
                      BOTH: [(3, 24.1), (1, 22.0), (2, 22.9)], BASE: [(1, 5.0), (2, 50.0)]})
    lines += lines_of({"--reg output": [(1, 9.0), (2, 9.0)]}, "--dropout 0.3")
    lines += [{**line, "size": "big", "bleu": 0.0} for line in lines[:3]]
    scores = claims.collect_scores(lines, {})
    # output is of another scale; both minus EM: +2, +1.9, +2.1
    ((place, pair, em),) = claims.compare(find_claim("Disagreement and"), scores)
    assert (place, pair) == ("embedded", (BOTH, EM))
    # standard error 0.1 / sqrt(3), t of two degrees 4.303
    assert em.difference == pytest.approx(2)
    assert em.interval == pytest.approx((1.75, 2.25), abs=0.01)
    assert claims.compare(find_claim("Simple routing"), scores) == []        # one seed


def test_numbers_of_the_other_scripts():
    logic = {"kind": "logic", "pairs": {"6": 5, "7": 1, "12": 3, ">=7": 4},
             "runs": [{"model": "m", "seed": 1, "accuracy": {"6": 1, "7": 0.5, "12": 0.1}}]}
    analysis = {"kind": "analysis", "runs": {"a": {"flags": EM, "seed": 2}},
                "ablation": {"a": {"mean": 1.5}},
                "length": {"a": {"bleu": 20.0, "bins": [{"bleu": 30.0}, {"bleu": 18.0}]}}}
    runs = [{"task": "WC", "model": "m-seed3", "seed": 1, "accuracy": 0.5},
            {"task": "CoIn", "model": "m-seed3", "seed": 1, "accuracy": 0.7},
            {"task": "WC", "model": "n", "seed": 4, "accuracy": 0.6}]
    scores = claims.collect_scores(
        [], {"l": logic, "a": analysis, "p": {"kind": "probing", "runs": runs}})
    assert scores == {
        # seven and more operators: 1 of 4 pairs at 0.5, 3 of 4 at 0.1
        ("l", claims.FORMULAS): {"m": {1: pytest.approx(20)}},
        ("a", claims.COST): {EM: {2: 1.5}}, ("a", claims.LONG): {EM: {2: -2.0}},
        ("p", claims.PROBES): {"m": {3: pytest.approx(60)}, "n": {4: pytest.approx(60)}}}
