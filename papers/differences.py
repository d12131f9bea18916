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
    """The linear model `score = arm + seed + residual` of the runs, by least squares."""
    arms: list[str]
    scores: dict[str, np.ndarray]       # by arm
    effects: np.ndarray                 # of the arms, then of the seeds
    covariance: np.ndarray              # of the effects, over the residual variance
    variance: float                     # of the residuals
    freedom: int                        # of the residuals
    levene: float                       # p of equal variances in the arms


def fit(runs: list[dict]) -> Model:
    """The model of runs {"arm", "seed", "score"}."""
    arms = sorted({run["arm"] for run in runs})
    seeds = sorted({run["seed"] for run in runs})
    design = np.zeros((len(runs), len(arms) + len(seeds)))
    y = np.array([run["score"] for run in runs])
    for i, run in enumerate(runs):
        design[i, arms.index(run["arm"])] = 1
        design[i, len(arms) + seeds.index(run["seed"])] = 1
    effects, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    residuals = y - design @ effects
    freedom = len(y) - int(rank)
    variance = float(residuals @ residuals / freedom)
    scores = {arm: y[design[:, i] == 1] for i, arm in enumerate(arms)}
    return Model(arms, scores, effects, np.linalg.pinv(design.T @ design), variance, freedom,
                 float(levene(*scores.values()).pvalue))


def compare(model: Model, arm: str, against: str) -> Contrast:
    """The difference of two arms: by the model, or by Welch's test if the arms' variances
    differ."""
    if model.levene < 0.01:
        test = ttest_ind(model.scores[arm], model.scores[against], equal_var=False)
        difference = float(model.scores[arm].mean() - model.scores[against].mean())
        error = difference / float(test.statistic)
        freedom = float(test.df)
    else:
        weights = np.zeros(len(model.effects))
        weights[model.arms.index(arm)] = 1
        weights[model.arms.index(against)] = -1
        difference = float(weights @ model.effects)
        error = math.sqrt(model.variance * float(weights @ model.covariance @ weights))
        freedom = model.freedom
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
