"""Dynamic ("simple") routing between capsules: Li 2019, Li 2021, Gu 2019, Duan 2020.

Li et al. 2019, §4.2.1, Algorithm 1 with Eq. 7-8 (Li et al. 2021, Algorithm 1, Eq. 10-11); Gu and
Feng 2019, Eq. 8-11; Duan et al. 2020, Algorithm 1 with Eq. 6-7. All of them go back to Sabour et
al. 2017, "Dynamic Routing Between Capsules". Symbols are Li's, but m, n are h, n there and i, j in
Gu, and s_n is Omega_n before the squash (docs/equations.md has a table).
"""
from typing import NamedTuple

import torch
from torch import Tensor


class DynamicRouting(NamedTuple):
    """The result of `dynamic_routing`."""
    capsules: Tensor             # Omega [..., N, D]
    coupling: Tensor             # C [..., M, N], of the last iteration; a row sums to 1
    logits: Tensor               # B [..., M, N], after the last update


def dynamic_routing(votes: Tensor, iterations: int = 3, normalize: bool = True,
                    mask: Tensor | None = None, start: Tensor | None = None) -> DynamicRouting:
    """Couples M input capsules to N output capsules by the agreement of votes and outputs.

    Li 2019 Algorithm 1 (normalize=True divides by the total coupling, Eq. 7); normalize=False is
    Sabour et al. 2017, Gu 2019 Eq. 8-11 and Duan 2020 Algorithm 1. Line 5 of Li's names only Eq. 7;
    here Eq. 8 follows it in every iteration, as in Sabour et al. 2017.

    votes: V [..., M, N, D]; mask: [..., N], True for the output capsules that exist (the others
    get no coupling and come out as 0); start: logits B [..., M, N] or [M, N] to start from; None:
    B = 0. Returns capsules [..., N, D], coupling [..., M, N] and logits [..., M, N]. Half precision
    is computed in float32. The coupling of iteration t is that of a routing with iterations=t.
    Raises ValueError unless iterations >= 1.

    >>> votes = torch.randn(2, 7, 8, 16, 4)      # 2 sentences, 7 positions, M = 8, N = 16, D = 4
    >>> dynamic_routing(votes).capsules.shape
    torch.Size([2, 7, 16, 4])
    """
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: routing takes at least 1")
    V = at_least_float32(votes)
    # B_mn = 0                                                        Li 2019 Alg. 1 line 2
    B = V.new_zeros(V.shape[:-1]) if start is None else start.expand(V.shape[:-1])  # [..., M, N]
    for _ in range(iterations):
        # C = softmax(B), Omega_n = squash(s_n)                       Li 2019 Alg. 1 lines 4-5
        capsules, C = combine(V, B, normalize, mask)                      # [..., N, D], [..., M, N]
        # B_mn += Omega_n . V_mn                                      Li 2019 Alg. 1 line 6,
        #                                                             Gu 2019 Eq. 11
        B = B + agreement(V, capsules)                                       # [..., M, N]
    return DynamicRouting(capsules, C, B)


def combine(V: Tensor, B: Tensor, normalize: bool = True,
            mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The output capsules under the logits B: Li 2019 Alg. 1 lines 4-5.

    V: votes [..., M, N, D]; B: [..., M, N]; normalize, mask: see `dynamic_routing`.
    Returns Omega [..., N, D] and the coupling C [..., M, N].
    """
    # C_mn = exp(B_mn) / sum_k exp(B_mk)                              Li 2019 Alg. 1 line 4,
    #                                                                 Gu 2019 Eq. 9
    log_C = log_coupling(B, mask)                                            # [..., M, N]
    C = log_C.exp()
    if normalize:
        # s_n = sum_m C_mn V_mn / sum_m C_mn                          Li 2019 Eq. 7
        # C_mn / sum_m C_mn = softmax_m(log C_mn), which stays exact where the sum underflows
        share = log_C.softmax(-2)                                            # [..., M, N]
    else:
        # s_n = sum_m C_mn V_mn                                       Gu 2019 Eq. 8, Duan 2020 Eq. 7
        share = C
    s = (share.unsqueeze(-1) * V).sum(-3)                                    # [..., N, D]
    if mask is not None:
        s = s.masked_fill(~mask.unsqueeze(-1), 0)
    # Omega_n = squash(s_n)                                           Li 2019 Eq. 8, Gu 2019 Eq. 10,
    #                                                                 Duan 2020 Eq. 6
    return squash(s), C


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrinks a vector's length into [0, 1): `||s||^2 / (1 + ||s||^2) * s / ||s||`, and 0 at s = 0.

    Li 2019 Eq. 8, Gu 2019 Eq. 10, Duan 2020 Eq. 6. s: [..., D] with the vectors along `dim`.
    Returns the same shape. The gradient at s = 0 is 0. Half precision is computed in float32.
    """
    s = at_least_float32(s)
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)              # ||s||
    # ||s||^2 / (1 + ||s||^2) * s / ||s||                             Li 2019 Eq. 8, Gu 2019 Eq. 10
    # = s * (||s|| / (1 + ||s||^2)), which does not divide by zero
    return s * (length / (1 + length * length))


def agreement(V: Tensor, capsules: Tensor) -> Tensor:
    """`Omega_n . V_mn`, the agreement of capsules [..., N, D] and votes [..., M, N, D] that an
    iteration adds to B [..., M, N] (Gu 2019 Eq. 11)."""
    return (capsules.unsqueeze(-3) * V).sum(-1)                              # [..., M, N]


def log_coupling(B: Tensor, mask: Tensor | None) -> Tensor:
    """log C [..., M, N] of the logits B: the logarithm of the softmax over the output capsules.
    Where mask [..., N] is False, there is no output capsule, and C is 0."""
    if mask is None:
        return B.log_softmax(-1)
    missing = ~mask.unsqueeze(-2)                                            # [..., 1, N]
    lowest = torch.finfo(B.dtype).min                                        # exp(lowest) is 0
    log_C = B.masked_fill(missing, lowest).log_softmax(-1)
    return log_C.masked_fill(missing, lowest)


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, else x itself."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
