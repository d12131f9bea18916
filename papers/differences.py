"""Differences between models that were trained with several seeds: a linear model of model and
seed, Welch's test, Holm's adjustment, equivalence."""
import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit
from scipy.stats import levene, ttest_ind

MARGIN = 0.3                    # BLEU; two systems closer than that are "no different"
LEVEL = 0.05


class Contrast(NamedTuple):
    """A difference between two arms in BLEU. adjusted: p after Holm's adjustment in its family."""
    arm: str
    against: str
    difference: float
    error: float                # standard error
    freedom: float              # degrees of freedom
    p: float
    adjusted: float = math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval, not adjusted for the other contrasts."""
        half = float(stdtrit(self.freedom, 0.975)) * self.error
        return self.difference - half, self.difference + half

    @property
    def detectable(self) -> float:
        """The difference that one test at 0.05 finds with a probability of 80 %, about."""
        return float(stdtrit(self.freedom, 0.975) + stdtrit(self.freedom, 0.8)) * self.error

    @property
    def equivalent(self) -> bool:
        """Whether two one-sided tests at 0.05 place the difference within MARGIN."""
        above = stdtr(self.freedom, -(self.difference + MARGIN) / self.error)
        below = stdtr(self.freedom, (self.difference - MARGIN) / self.error)
        return bool(max(above, below) < LEVEL)


class Model(NamedTuple):
    """The linear model `score = arm + seed + residual` by least squares."""
    scores: dict[str, np.ndarray]       # [seeds], by arm
    variance: float                     # of the residuals
    freedom: int                        # of the residuals
    unequal: bool                       # the arms' variances, by Levene's test


def fit_arms(runs: list[dict]) -> Model:
    """The model of runs {"arm", "seed", "score"}; every arm has the same seeds."""
    scores = {}
    for run in sorted(runs, key=lambda run: (run["arm"], run["seed"])):
        scores.setdefault(run["arm"], []).append(run["score"])
    scores = {arm: np.array(of_seeds) for arm, of_seeds in scores.items()}
    table = np.array(list(scores.values()))                              # [arms, seeds]
    residuals = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return Model(scores, float((residuals ** 2).sum() / freedom), freedom,
                 bool(levene(*table).pvalue < 0.01))


def contrast_arms(model: Model, arm: str, against: str, welch: bool = False) -> Contrast:
    """The difference of two arms: by the model, or by Welch's test."""
    one, two = model.scores[arm], model.scores[against]
    difference = float(one.mean() - two.mean())
    error = math.sqrt(2 * model.variance / len(one))
    freedom = model.freedom
    if welch:
        test = ttest_ind(one, two, equal_var=False)
        error = difference / float(test.statistic)
        freedom = float(test.df)
    p = 2 * float(stdtr(freedom, -abs(difference) / error))
    return Contrast(arm, against, difference, error, freedom, p)


def holm(contrasts: list[Contrast]) -> list[Contrast]:
    """The contrasts of a family with adjusted p (Holm 1979), in the same order."""
    order = sorted(contrasts, key=lambda contrast: contrast.p)
    scaled = [min(1.0, (len(order) - i) * contrast.p) for i, contrast in enumerate(order)]
    adjusted = dict(zip(order, itertools.accumulate(scaled, max)))
    return [contrast._replace(adjusted=adjusted[contrast]) for contrast in contrasts]


def in_figures(contrast: Contrast, digits: int = 2) -> str:
    """The difference and its interval."""
    low, high = contrast.interval
    return f"{contrast.difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
