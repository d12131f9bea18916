"""Dynamic routing ("simple routing") between capsules.

Li et al. 2019, §4.2.1, Algorithm 1 with Eq. 7-8; Gu and Feng 2019, Eq. 8-11; Duan et al.
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


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, else x itself."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrinks a vector's length into [0, 1): `||s||^2 / (1 + ||s||^2) * s / ||s||`, and 0 at s = 0.

    Li 2019 Eq. 8, Gu 2019 Eq. 10, Duan 2020 Eq. 6. s: [..., D] with the vectors along `dim`; the
    same shape comes back. The gradient at s = 0 is 0. Half precision is computed in float32.
    """
    # ||s||^2 / (1 + ||s||^2) / ||s|| = ||s|| / (1 + ||s||^2): no division by zero
    s = at_least_float32(s)
    length = torch.linalg.vector_norm(s, dim=dim, keepdim=True)
    return s * (length / (1 + length * length))


def combine(V: Tensor, B: Tensor, normalize: bool = True,
            mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The output capsules under the logits B: the first half of an iteration, Li 2019 Algorithm 1
    lines 4-5.

    V: votes [..., M, N, D]; B: [..., M, N]; normalize, mask: see `dynamic_routing`.
    Returns Omega [..., N, D] and the coupling C [..., M, N].
    """
    logits = B
    if mask is not None:
        exists = mask.unsqueeze(-2)                                          # [..., 1, N]
        logits = B.masked_fill(~exists, torch.finfo(B.dtype).min)
    # C_mn = exp(B_mn) / sum_k exp(B_mk)   Li Alg. 1 line 4, Gu Eq. 9
    log_C = logits.log_softmax(-1)                                           # [..., M, N]
    C = log_C.exp()
    # s_n = sum_m C_mn V_mn                                                    Gu Eq. 8, Duan Eq. 7
    # s_n = sum_m C_mn V_mn / sum_m C_mn                                       Li Eq. 7: normalize
    # C_mn / sum_m C_mn = softmax_m(log C_mn): exact where the sum underflows
    share = log_C.softmax(-2) if normalize else C                            # [..., M, N]
    if mask is not None:
        C = C * exists
        share = share * exists
    s = (share.unsqueeze(-1) * V).sum(-3)                                    # [..., N, D]
    # Omega_n = ||s_n||^2 / (1 + ||s_n||^2) * s_n / ||s_n||   Li Eq. 8, Gu Eq. 10, Duan Eq. 6
    return squash(s), C


def agreement(V: Tensor, capsules: Tensor) -> Tensor:
    """How far votes [..., M, N, D] and capsules [..., N, D] agree, [..., M, N]: what an iteration
    adds to B."""
    # Omega_n . V_mn   Li Alg. 1 line 6, Gu Eq. 11
    return (capsules.unsqueeze(-3) * V).sum(-1)                              # [..., M, N]


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
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: routing takes at least 1")
    V = at_least_float32(votes)
    # B_mn = 0                                                                 Li Alg. 1 line 2
    B = V.new_zeros(V.shape[:-1]) if start is None else start.expand(V.shape[:-1])  # [..., M, N]
    couplings = []
    for _ in range(iterations):
        # C = softmax(B), Omega_n = squash(s_n), s_n the sum or, normalized, the mean of C_mn V_mn
        capsules, C = combine(V, B, normalize, mask)                      # [..., N, D], [..., M, N]
        # B_mn += Omega_n . V_mn
        B = B + agreement(V, capsules)                                       # [..., M, N]
        if trace:
            couplings.append(C)
    return DynamicRouting(capsules, torch.stack(couplings) if trace else C, B)
