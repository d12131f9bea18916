"""Dynamic routing ("simple routing") between capsules.

Li et al. 2019, section 4.2.1, Algorithm 1 with Eq. 7-8; Gu and Feng 2019, Eq. 8-11; Duan et al.
2020, Algorithm 1 with Eq. 6-7. All three go back to Sabour et al. 2017, "Dynamic Routing Between
Capsules".
"""
from typing import NamedTuple

import torch
from torch import Tensor


class DynamicRouting(NamedTuple):
    """What `dynamic_routing` returns."""
    capsules: Tensor             # Omega [..., N, D]
    coupling: Tensor             # C [..., M, N], of the last iteration; a row sums to 1
    logits: Tensor               # B [..., M, N], after the last update


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrinks a vector's length into [0, 1): `||s||^2 / (1 + ||s||^2) * s / ||s||`, and 0 at s = 0.

    Li 2019 Eq. 8, Gu 2019 Eq. 10, Duan 2020 Eq. 6. s: [..., D] with the vectors along `dim`; the
    same shape comes back. The gradient at s = 0 is 0. Half precision is computed in float32.
    """
    # Li 2019 Eq. 8: squash, 1 point
    raise NotImplementedError("Li 2019 Eq. 8: squash")


def combine(V: Tensor, B: Tensor, normalize: bool = True,
            mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The output capsules under the logits B: the first half of an iteration, Li 2019 Algorithm 1
    lines 4-5.

    V: votes [..., M, N, D]; B: [..., M, N] or [M, N]; normalize, mask: see `dynamic_routing`.
    Returns Omega [..., N, D] and the coupling C [..., M, N] (or [M, N]).
    """
    # Li 2019 Eq. 7, Gu 2019 Eq. 8-9: output capsules, 2 points
    # Li 2019 Eq. 7: capsules nobody chooses, 2 points
    raise NotImplementedError("Li 2019 Eq. 7, Gu 2019 Eq. 8-9: output capsules")


def agreement(V: Tensor, capsules: Tensor) -> Tensor:
    """How far votes [..., M, N, D] and capsules [..., N, D] agree, [..., M, N]: what an iteration
    adds to B."""
    # Li 2019 Alg. 1, Gu 2019 Eq. 11: agreement, 1 point
    raise NotImplementedError("Li 2019 Alg. 1, Gu 2019 Eq. 11: agreement")


def dynamic_routing(votes: Tensor, iterations: int = 3, normalize: bool = True,
                    mask: Tensor | None = None, start: Tensor | None = None,
                    trace: bool = False) -> DynamicRouting:
    """Couples M input capsules to N output capsules by the agreement of votes and outputs.

    Li 2019 Algorithm 1 (normalize=True divides by the total coupling, Eq. 7); normalize=False is
    Sabour et al. 2017, Gu 2019 Eq. 8-11 and Duan 2020 Algorithm 1.

    votes: V [..., M, N, D]; mask: [..., N], True for the output capsules that exist (the others
    get no coupling and come out as 0); start: logits B [..., M, N] or [M, N] to start from; None:
    B = 0; trace: hands out the coupling of every iteration, [T, ..., M, N], in place of the last
    one. Returns capsules [..., N, D], coupling [..., M, N] and logits [..., M, N]. Half precision
    is computed in float32.
    Raises ValueError unless iterations >= 1.

    >>> votes = torch.randn(2, 7, 8, 16, 4)      # 2 sentences, 7 positions, M = 8, N = 16, D = 4
    >>> dynamic_routing(votes).capsules.shape
    torch.Size([2, 7, 16, 4])
    """
    # Li 2019 Alg. 1: dynamic routing, 2 points
    raise NotImplementedError("Li 2019 Alg. 1: dynamic routing")
