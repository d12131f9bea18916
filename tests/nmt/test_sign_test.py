"""The two tests of a difference in BLEU: the sign test (Collins et al. 2005) and approximate
randomization (Riezler and Maxwell 2005)."""
import itertools

import pytest
from sacrebleu.metrics import BLEU

from nmt import significance
from nmt.significance import randomization_test, sign_test

REFERENCES = [f"the dog number {i} sees a man and a cat" for i in range(60)]


@pytest.fixture(autouse=True)
def fewer_trials(monkeypatch):
    monkeypatch.setattr(significance, "TRIALS", 1_000)


def wrong_at(places):
    """The references with a mistake in some lines."""
    return [line.replace("sees", "saw") if i in places else line
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
    assert sign_test(baseline, other, REFERENCES) == (3, 1, pytest.approx(p))


def test_sign_test_scores_as_the_reported_score():
    """Smoothed: else a test set without a correct 4-gram has BLEU 0, whatever replaces a sentence.
    Without case, by characters."""
    assert sign_test(["a b x d"], ["a b c x"], ["a b c d"])[:2] == (1, 0)
    assert sign_test(["a b c x"], ["A B C D"], ["a b c d"])[:2] == (0, 1)
    assert sign_test(["a b c x"], ["A B C D"], ["a b c d"], lowercase=True)[:2] == (1, 0)
    assert sign_test(["a b"], ["a b"], ["a c"]) == (0, 0, 1.0)
    assert sign_test(["狗看见一只猫"], ["狗看见一个人"], ["狗看见一个人了"], "zh")[:2] == (1, 0)


def test_p_is_the_share_of_swaps_that_differ_by_as_much():
    """None of the 1,000 does; all eight swaps of three sentences, and the one of a single one."""
    assert randomization_test(wrong_at(range(40)), REFERENCES, REFERENCES) == 1 / 1_001
    baseline = wrong_at([0, 1])[:3]
    other = wrong_at([2])[:3]
    references = REFERENCES[:3]
    differences = []
    for swaps in itertools.product((0, 1), repeat=3):
        pairs = [(b, a) if swap else (a, b) for a, b, swap in zip(baseline, other, swaps)]
        one, two = (BLEU().corpus_score(lines, [references]).score for lines in zip(*pairs))
        differences.append(abs(one - two))
    p = sum(x >= differences[0] - 1e-9 for x in differences) / 8
    assert randomization_test(baseline, other, references) == p
    assert randomization_test(baseline[:1], other[:1], references[:1]) == 1


def test_p_without_case():
    shouted = [line.upper() for line in REFERENCES]
    assert randomization_test(REFERENCES, shouted, REFERENCES) < 0.001
    assert randomization_test(REFERENCES, shouted, REFERENCES, lowercase=True) == 1
