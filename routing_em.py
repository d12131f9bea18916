"""EM routing: output capsules as Gaussian clusters of the votes.

Li et al. 2019, section 4.2.2, Algorithm 2 with Eq. 9-12; Gu and Feng 2019, Eq. 12-15. Both go back to Hinton,
Sabour and Frosst 2018, "Matrix Capsules with EM Routing". The votes' density multiplies over the D dimensions, as
in Hinton et al.: Li 2019's E-step sums it (the same for D = 1), Gu Eq. 14 misprints its normalizer.
"""
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class EMRouting(NamedTuple):
    """What `em_routing` returns."""
    capsules: Tensor       # Omega [..., N, D]
    activations: Tensor    # A [..., N], in [0, 1]
    coupling: Tensor | None        # C [..., M, N], after the last E-step; a row sums to 1


def em_routing(votes: Tensor, beta_a: Tensor | None = None, beta_mu: Tensor | None = None, iterations: int = 3,
               scale_by_activation: bool = True, eps: float = 1e-9, coupling: bool = True) -> EMRouting:
    """Couples M input capsules to N output capsules by expectation maximization.

    Li 2019 Algorithm 2: `Omega_n = A_n mu_n`. scale_by_activation=False gives `Omega_n = mu_n` (Gu 2019 keeps the
    activations inside the routing and leaves them out of its result).

    votes: V [..., M, N, D]; beta_a, beta_mu: [N], learned; both None leaves the activations out (A = 1), and then
    the mixture's likelihood cannot fall between iterations. eps: the floor under the variance. coupling=False leaves
    out the last E-step, which changes nothing but C. Returns capsules [..., N, D], activations [..., N], coupling
    [..., M, N] or None. Half precision is computed in float32.
    Raises ValueError unless iterations >= 1, and when only one of beta_a and beta_mu is None.

    >>> votes = torch.randn(2, 7, 8, 16, 4)          # 2 sentences, 7 positions, M = 8, N = 16, D = 4
    >>> em_routing(votes, torch.zeros(16), torch.zeros(16)).capsules.shape
    torch.Size([2, 7, 16, 4])
    """
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: routing takes at least 1")
    if (beta_a is None) != (beta_mu is None):
        raise ValueError("beta_a and beta_mu go together: give both, or neither for no activations")
    V = votes.float() if votes.dtype in (torch.float16, torch.bfloat16) else votes
    M, N = V.shape[-3:-1]
    # C_mn = 1 / N: S_n = M / N, C_mn / S_n = 1 / M
    S, share = V.new_full((*V.shape[:-3], N), M / N), V.new_full((M, 1, 1), 1 / M)
    for t in range(iterations):
        # M-step: C is held, mu, sigma and A are adjusted
        if t > 0:
            # C_mn / S_n, straight from log C: exact where S_n = sum_m C_mn underflows, a capsule that few votes chose
            share = log_C.softmax(-2).unsqueeze(-1)                          # [..., M, N, 1]
            S = log_C.exp().sum(-2)                                          # [..., N]
        # mu_n = sum_m C_mn V_mn / S_n                                         Li Eq. 10, Gu Eq. 12
        mu = (share * V).sum(-3)                                             # [..., N, D]
        # sigma_n^2 = sum_m C_mn (V_mn - mu_n)^2 / S_n + eps                   Li Eq. 11, Gu Eq. 12
        square = (V - mu.unsqueeze(-3)) ** 2                                 # [..., M, N, D]
        sigma2 = (share * square).sum(-3) + eps                              # [..., N, D]
        log_sigma = 0.5 * sigma2.log()                                       # [..., N, D]
        if beta_a is None:
            log_A = torch.zeros_like(S)                                      # [..., N]
        else:
            # chi_n = sum_i (log sigma_n^i + (1 + log 2 pi) / 2) S_n           Li M-step, Gu Eq. 13
            chi = (log_sigma + (1 + math.log(2 * math.pi)) / 2).sum(-1) * S  # [..., N]
            # A_n = logistic(lambda_t (beta_A - beta_mu S_n - chi_n))          Li M-step, Gu Eq. 13
            lambda_t = 1 + (min(iterations, 3) - 1) * t / max(1, iterations - 1)
            log_A = F.logsigmoid(lambda_t * (beta_a - beta_mu * S - chi))    # [..., N]
        if t + 1 == iterations and not coupling:                             # nobody asks for the last C
            break
        # E-step: mu, sigma and A are held, C is adjusted
        # log P_mn = sum_i log Normal(V_mn^i | mu_n^i, sigma_n^i)              Li E-step, Gu Eq. 14
        log_P = (square * (-0.5 / sigma2).unsqueeze(-3)).sum(-1) \
            - (log_sigma + 0.5 * math.log(2 * math.pi)).sum(-1).unsqueeze(-2)   # [..., M, N]
        # C_mn = A_n P_mn / sum_k A_k P_mk                                     Li Eq. 12, Gu Eq. 15
        log_C = (log_A.unsqueeze(-2) + log_P).log_softmax(-1)                # [..., M, N]
    A = log_A.exp()                                                          # [..., N]
    # Omega_n = A_n mu_n                                                       Li Eq. 9
    capsules = A.unsqueeze(-1) * mu if scale_by_activation else mu           # [..., N, D]
    return EMRouting(capsules, A, log_C.exp() if coupling else None)
