"""The table of claims: comparisons, and where the numbers come from."""

import pytest

from papers import claims
from papers.claims import BASE, BOTH, EM


def find_claim(start: str) -> claims.Claim:
    (claim,) = [claim for claim in claims.CLAIMS if claim.text.startswith(start)]
    return claim


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
