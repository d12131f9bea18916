"""Whether two systems differ: tests over the sentences of a test set, and intervals.

Li 2019 and Li 2021 use the bootstrap, Li 2018 and Gu 2019 the sign test.
"""
import numpy as np

TRIALS = 10_000                 # resamples of the randomization test


def bleu_interval(hypotheses, references, metric) -> tuple[float, tuple]:
    """The BLEU of lines, and its 95 % interval (low, high) by the choice of the sentences, from
    1,000 bootstrap resamples. metric: see `bleu_metric`, here and below."""
    score = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=1000)
    return score.score, (score._mean - score._ci, score._mean + score._ci)


def bleu_of_mixtures(baseline, other, references, metric):
    """A function of an array [sentences]: the BLEU of the test set with the baseline's translation
    of a sentence where it is 0, the other's where it is 1."""
    # what BLEU is computed from, per sentence: n-gram counts and lengths, [sentences, 10]
    counts = np.array(metric._extract_corpus_statistics(baseline, [references]))
    change = np.array(metric._extract_corpus_statistics(other, [references])) - counts
    total = counts.sum(0)

    def bleu(chosen) -> float:
        return metric._compute_score_from_stats((total + chosen @ change).tolist()).score
    return bleu


def randomization_test(baseline, other, references, metric) -> float:
    """p of two-sided approximate randomization (Riezler and Maxwell 2005): how often the systems
    differ in BLEU by as much or more when their translations are swapped at random.

    sacreBLEU's own test counts only larger differences: for a single sentence that differs it
    returns p = 0.0001.
    """
    from scipy.stats import permutation_test
    if len(references) == 1:                             # scipy takes two sentences or more
        return 1.0
    bleu = bleu_of_mixtures(baseline, other, references, metric)
    choices = np.ones(len(references)), np.zeros(len(references))
    # scipy's "two-sided" doubles the smaller tail
    result = permutation_test(choices, lambda one, two: abs(bleu(one) - bleu(two)),
                              vectorized=False, permutation_type="samples", n_resamples=TRIALS,
                              batch=100,                 # else the memory grows with TRIALS
                              alternative="greater", random_state=np.random.default_rng(1))
    return float(result.pvalue)


def format_p(p: float) -> str:
    """p with four decimals, as text."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def sign_test(baseline, other, references, metric) -> tuple[int, int, float]:
    """(better, worse, p): the two-sided sign test of Collins, Koehn and Kučerová 2005, which Li
    2018 and Gu 2019 use.

    A sentence of `other` is better if it raises the baseline's BLEU when it replaces the
    baseline's, and worse if it lowers it. p is the probability of a split at least as uneven if
    both were equally likely.
    """
    from scipy.stats import binomtest
    bleu = bleu_of_mixtures(baseline, other, references, metric)
    n = len(references)
    gains = np.array([bleu(np.arange(n) == i) for i in range(n)]) - bleu(np.zeros(n))
    better = int((gains > 0).sum())
    worse = int((gains < 0).sum())
    p = binomtest(better, better + worse).pvalue if better + worse else 1.0
    return better, worse, p
