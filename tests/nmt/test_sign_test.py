"""The two tests of a difference in BLEU: the sign test (Collins et al. 2005) and approximate
randomization (Riezler and Maxwell 2005); the interval of BLEU."""
import itertools

import pytest
from sacrebleu.metrics import BLEU

from nmt.evaluate import bleu_metric
from nmt.significance import bleu_interval, format_p, randomization_test, sign_test

METRIC = bleu_metric([], "en")
REFERENCES = [f"the dog number {i} sees a man and a cat" for i in range(60)]


def wrong_at(places):
    """The references with a mistake in some lines."""
    return [line.replace("sees", "Sees") if i in places else line
            for i, line in enumerate(REFERENCES)]


def test_sign_test_replaces_one_sentence_after_the_other():
    baseline = wrong_at(range(0, 60, 2))
    other = wrong_at(range(6, 60, 2))                            # 0, 2, 4 are right
    other[1] = "Nothing of this"
    whole = BLEU().corpus_score(baseline, [REFERENCES]).score
    better = worse = 0
    for i, line in enumerate(other):
        replaced = [*baseline[:i], line, *baseline[i + 1:]]
        change = BLEU().corpus_score(replaced, [REFERENCES]).score - whole
        better += change > 0
        worse += change < 0
    assert (better, worse) == (3, 1)
    p = 2 * (4 + 1) / 2 ** 4                                     # of 3 or 4 heads in 4 throws
    assert sign_test(baseline, other, REFERENCES, METRIC) == (3, 1, pytest.approx(p))
    # smoothed: else a test set without a correct 4-gram has BLEU 0, whatever replaces a sentence
    assert sign_test(["a b x d"], ["a b c x"], ["a b c d"], METRIC)[:2] == (1, 0)
    assert sign_test(["a b"], ["a b"], ["a c"], METRIC) == (0, 0, 1.0)


def test_p_is_the_share_of_swaps_that_differ_by_as_much():
    """None of the 10,000 does; all eight swaps of three sentences, and the one of a single one. The
    same systems have the same p."""
    p = randomization_test(wrong_at(range(40)), REFERENCES, REFERENCES, METRIC)
    assert p == 1 / 10_001 and format_p(p) == "< 0.0001" and format_p(0.0001) == "0.0001"
    close = wrong_at(range(20)), wrong_at(range(18, 42)), REFERENCES, METRIC
    assert 0.01 < randomization_test(*close) == randomization_test(*close) < 1
    baseline = wrong_at([0, 1])[:3]
    other = wrong_at([2])[:3]
    references = REFERENCES[:3]
    differences = []
    for swaps in itertools.product((0, 1), repeat=3):
        pairs = [(b, a) if swap else (a, b) for a, b, swap in zip(baseline, other, swaps)]
        one, two = (BLEU().corpus_score(lines, [references]).score for lines in zip(*pairs))
        differences.append(abs(one - two))
    p = sum(x >= differences[0] - 1e-9 for x in differences) / 8
    assert randomization_test(baseline, other, references, METRIC) == p
    assert randomization_test(baseline[:1], other[:1], references[:1], METRIC) == 1


def test_the_interval_is_that_of_a_thousand_resamples():
    """It is a point where all are right."""
    lines = wrong_at(range(20))
    score, interval = bleu_interval(lines, REFERENCES, METRIC)
    expected = BLEU().corpus_score(lines, [REFERENCES], n_bootstrap=1_000)
    half = expected._ci
    assert score == expected.score and half > 1
    assert interval == (expected._mean - half, expected._mean + half)
    assert bleu_interval(REFERENCES, REFERENCES, METRIC)[1] == pytest.approx((100, 100))
