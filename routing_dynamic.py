"""Dynamic ("simple") routing between capsules: Li 2019, Li 2021, Gu 2019, Duan 2020.

Li et al. 2019, §4.2.1, Alg. 1 with Eq. 7-8 (Li et al. 2021, Alg. 1, Eq. 10-11); Gu and Feng 2019,
Eq. 8-11; Duan et al. 2020, Alg. 1 with Eq. 6-7. All of them go back to Sabour et al. 2017, "Dynamic
Routing Between Capsules". The votes come from aggregation.py (Li 2019 Eq. 5-6),
capsule_aggregation.py (Gu 2019 Eq. 3) and capsule_transformer.py (Duan 2020 Eq. 8).

Symbols are Li's. An input capsule is m, an output capsule n (Li writes h, n and Gu i, j); s_n is
the capsule before the squash (docs/equations.md has a table). The algorithm as loops:
`dynamic_routing` in tests/equations/by_hand.py.
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
                    mask: Tensor | None = None) -> DynamicRouting:
    """Couples M input capsules to N output capsules by the agreement of votes and outputs.

    Li 2019 Alg. 1 (normalize=True, Eq. 7); Sabour et al. 2017, Gu 2019 Eq. 8-11 and Duan 2020
    Alg. 1 (normalize=False).

    votes: V [..., M, N, D]; mask: [..., N], True for the output capsules that exist (the others
    get no coupling and are 0). Returns capsules [..., N, D], coupling [..., M, N] and logits
    [..., M, N]. Half precision is computed in float32. The coupling of iteration t is that of a
    routing with iterations=t.

    >>> votes = torch.randn(2, 7, 8, 16, 4)      # 2 sentences, 7 positions, M = 8, N = 16, D = 4
    >>> dynamic_routing(votes).capsules.shape
    torch.Size([2, 7, 16, 4])
    """
    V = at_least_float32(votes)
    # B_mn = 0                                      Li 2019 Alg. 1 line 2, Duan 2020 Alg. 1
    B = V.new_zeros(V.shape[:-1])                                            # [..., M, N]
    for _ in range(iterations):
        # C = softmax(B), in logarithms                 Li 2019 Alg. 1 line 4, Gu 2019 Eq. 9
        log_C = masked_log_softmax(B, mask)                                  # [..., M, N]
        # s_n = sum_m C_mn V_mn / sum_m C_mn                          Li 2019 Alg. 1 line 5, Eq. 7
        s = weigh_votes(V, log_C, normalize, mask)                           # [..., N, D]
        # Omega_n = squash(s_n)                                       Li 2019 Eq. 8
        omega = squash(s)                                                    # [..., N, D]
        # B_mn += Omega_n . V_mn                        Li 2019 Alg. 1 line 6, Gu 2019 Eq. 11
        B = B + agreement(V, omega)                                          # [..., M, N]
    return DynamicRouting(omega, log_C.exp(), B)


def masked_log_softmax(B: Tensor, mask: Tensor | None = None) -> Tensor:
    """log C [..., M, N] of the logits B. Where mask [..., N] is False, there is no output capsule,
    and C is 0 (Duan 2020's padded tokens)."""
    if mask is None:
        # C_mn = exp(B_mn) / sum_k exp(B_mk)                          Gu 2019 Eq. 9
        return B.log_softmax(-1)
    missing = ~mask.unsqueeze(-2)                                            # [..., 1, N]
    lowest = torch.finfo(B.dtype).min                                        # exp(lowest) is 0
    log_C = B.masked_fill(missing, lowest).log_softmax(-1)
    return log_C.masked_fill(missing, lowest)


def weigh_votes(V: Tensor, log_C: Tensor, normalize: bool = True,
                mask: Tensor | None = None) -> Tensor:
    """s [..., N, D]: the mean of the votes V [..., M, N, D], weighted by C [..., M, N], or with
    normalize=False their weighted sum. mask: see `dynamic_routing`."""
    if normalize:
        # s_n = sum_m C_mn V_mn / sum_m C_mn                          Li 2019 Eq. 7
        # C_mn / sum_m C_mn = softmax_m(log C_mn), which stays exact where the sum underflows
        weight = log_C.softmax(-2)                                           # [..., M, N]
    else:
        # s_n = sum_m C_mn V_mn                                       Gu 2019 Eq. 8, Duan 2020 Eq. 7
        weight = log_C.exp()
    s = (weight.unsqueeze(-1) * V).sum(-3)                                   # [..., N, D]
    return s if mask is None else s.masked_fill(~mask.unsqueeze(-1), 0)


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
    """The agreement [..., M, N] of capsules [..., N, D] and votes [..., M, N, D], which an
    iteration adds to B."""
    # the product Omega_n . V_mn                                      Gu 2019 Eq. 11
    return (capsules.unsqueeze(-3) * V).sum(-1)                              # [..., M, N]


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, else x itself."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
