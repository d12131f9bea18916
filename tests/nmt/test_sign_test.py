"""Test of the sign test of translate.py (Collins et al. 2005) against sacreBLEU on whole test
sets."""

from math import comb

import pytest
from sacrebleu.metrics import BLEU

from nmt.evaluate import sign_test

WORDS = "a small cat sat on the old mat and slept all day long".split()


def test_sign_test_replaces_one_sentence_after_the_other():
    references = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(9)]
    baseline = [
        " ".join(line.split()[:-2] + ["x", "y"]) if i % 2 else line
        for i, line in enumerate(references)
    ]
    other = [line if i in (1, 3, 5) else baseline[i] for i, line in enumerate(references)]
    other[0] = "Nothing of this"
    better = worse = 0
    for i, line in enumerate(other):
        replaced = [*baseline[:i], line, *baseline[i + 1 :]]
        change = (
            BLEU().corpus_score(replaced, [references]).score
            - BLEU().corpus_score(baseline, [references]).score
        )
        better += change > 0
        worse += change < 0
    assert (better, worse) == (3, 1)
    p = 2 * sum(comb(4, k) for k in (3, 4)) / 2**4
    assert sign_test(baseline, other, references) == (3, 1, pytest.approx(p))


def test_sign_test_of_identical_translations():
    assert sign_test(["a b"], ["a b"], ["a c"]) == (0, 0, 1.0)


def test_sign_test_without_case():
    assert sign_test(["a x c d"], ["A b c d"], ["a b c d"], lowercase=True)[:2] == (1, 0)
