"""EM routing: output capsules are Gaussian clusters of the votes (Li 2019, Li 2021, Gu 2019).

Li et al. 2019, §4.2.2, Alg. 2 with Eq. 9-12 (Li et al. 2021, Eq. 12-15); Gu and Feng 2019, Eq.
12-15. Both go back to Hinton, Sabour and Frosst 2018, "Matrix Capsules with EM Routing". The votes
come from aggregation.py (Li 2019 Eq. 5-6) and capsule_aggregation.py (Gu 2019 Eq. 3). Where the
papers differ, or leave a point open, `em_routing` has an option, and docs/readings.md the reasons.

Symbols are Li's. An input capsule is m, an output capsule n (Li writes h, n and Gu i, j; see the
table in docs/equations.md). The algorithm as loops: `em_routing` in tests/equations/em_by_hand.py.
"""
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from routing_dynamic import at_least_float32

DENSITIES = ("product", "sum")
SCHEDULES = ("hinton", "released")
GRADIENTS = ("full", "last")


class EMRouting(NamedTuple):
    """The result of `em_routing`."""
    capsules: Tensor               # Omega [..., N, D], of the last M-step
    activations: Tensor            # A [..., N], in [0, 1]
    coupling: Tensor               # C [..., M, N], of the E-step after it; a row sums to 1


def em_routing(votes: Tensor, beta_a: Tensor | None = None, beta_mu: Tensor | None = None,
               iterations: int = 3, scale_by_activation: bool = True, eps: float = 1e-9,
               density: str = "product", schedule: str = "hinton",
               gradient: str = "full") -> EMRouting:
    """Couples M input capsules to N output capsules by expectation maximization: Li 2019 Alg. 2.

    votes: V [..., M, N, D]. beta_a, beta_mu: [N], learned; both None: no activations, A = 1.
    scale_by_activation: True for `Omega_n = A_n mu_n` (Li 2019 Eq. 9), False for `Omega_n = mu_n`
    (Gu 2019). eps: added to the variance. density: P over the D dimensions, "product" (Hinton et
    al. 2018) or "sum" (as Li 2019 prints it); for D = 1 they are equal. schedule: see
    `inverse_temperature`. gradient: "full" through every iteration, or "last" through the last
    M-step only; then beta_a and beta_mu learn only through A_n in Eq. 9.
    Returns capsules [..., N, D], activations [..., N], coupling [..., M, N]. Half precision is
    computed in float32. The coupling after t iterations is that of a routing with iterations=t
    (with "released" only up to 3 iterations, because its lambda depends on their number).
    Raises ValueError for one of beta_a and beta_mu without the other, and for an unknown option.

    >>> votes = torch.randn(2, 7, 8, 16, 4)      # 2 sentences, 7 positions, M = 8, N = 16, D = 4
    >>> em_routing(votes, torch.zeros(16), torch.zeros(16)).capsules.shape
    torch.Size([2, 7, 16, 4])
    """
    if (beta_a is None) != (beta_mu is None):
        raise ValueError("beta_a and beta_mu go together: give both, or neither for no activations")
    check_choice("gradient", gradient, GRADIENTS)
    V = at_least_float32(votes)
    # C_mn = 1/N                                                      Li 2019 Alg. 2 line 2
    log_C = V.new_full(V.shape[-3:-1], -math.log(V.shape[-2]))               # [M, N]
    for t in range(iterations):
        if gradient == "last":
            log_C = log_C.detach()
        # M-step: C is held, mu, sigma and A are adjusted             Li 2019 Alg. 2 line 4
        lambda_t = inverse_temperature(t, iterations, schedule)
        mu, log_sigma, log_A = m_step(V, log_C, beta_a, beta_mu, lambda_t, eps)
        # E-step: mu, sigma and A are held, C is adjusted             Li 2019 Alg. 2 line 5
        log_C = e_step(V, mu, log_sigma, log_A, density)                     # [..., M, N]
    A = log_A.exp()                                                          # [..., N]
    # Omega_n = A_n mu_n                                              Li 2019 Alg. 2 line 6, Eq. 9
    capsules = A.unsqueeze(-1) * mu if scale_by_activation else mu           # [..., N, D]
    return EMRouting(capsules, A, log_C.exp())


def m_step(V: Tensor, log_C: Tensor, beta_a: Tensor | None = None, beta_mu: Tensor | None = None,
           lambda_t: float = 1.0, eps: float = 1e-9) -> tuple[Tensor, Tensor, Tensor]:
    """The M-step of Li 2019 Alg. 2, Eq. 10-11, and Gu 2019 Eq. 12-13.

    V: votes [..., M, N, D]; log_C: [..., M, N] or [M, N]; beta_a, beta_mu: [N], or both None for
    A = 1; lambda_t: inverse temperature; eps: added to the variance.
    beta_a is minus the cost of an active capsule, and beta_mu minus the cost per vote of an
    inactive one (Hinton et al. 2018): A_n rises with beta_a and falls with beta_mu.
    Returns mu [..., N, D], log sigma [..., N, D], log A [..., N].
    """
    # C_mn / sum_m C_mn = softmax_m(log C_mn), which stays exact where the sum underflows
    weight = log_C.softmax(-2).unsqueeze(-1)                                 # [..., M, N, 1]
    # mu_n = sum_m C_mn V_mn / sum_m C_mn                             Li 2019 Eq. 10, Gu 2019 Eq. 12
    mu = (weight * V).sum(-3)                                                # [..., N, D]
    # sigma_n^2 = sum_m C_mn (V_mn - mu_n)^2 / sum_m C_mn + eps       Li 2019 Eq. 11, Gu 2019 Eq. 12
    sigma2 = (weight * (V - mu.unsqueeze(-3)).square()).sum(-3) + eps        # [..., N, D]
    log_sigma = sigma2.log() / 2                                             # [..., N, D]
    if beta_a is None:
        return mu, log_sigma, torch.zeros_like(log_sigma[..., 0])
    total_C = log_C.exp().sum(-2)                                            # [..., N], sum_m C_mn
    # chi_n = sum_i (log sigma_n^i + (1 + log 2 pi) / 2) sum_m C_mn   Li 2019 §4.2.2, Gu 2019 Eq. 13
    chi = (log_sigma + (1 + math.log(2 * math.pi)) / 2).sum(-1) * total_C    # [..., N]
    # A_n = logistic(lambda_t (beta_A - beta_mu sum_m C_mn - chi_n))  Li 2019 §4.2.2, Gu 2019 Eq. 13
    log_A = F.logsigmoid(lambda_t * (beta_a - beta_mu * total_C - chi))      # [..., N]
    return mu, log_sigma, log_A


def e_step(V: Tensor, mu: Tensor, log_sigma: Tensor, log_A: Tensor,
           density: str = "product") -> Tensor:
    """The E-step of Li 2019 Alg. 2, Eq. 12, and Gu 2019 Eq. 14-15.

    V: votes [..., M, N, D]; mu, log_sigma: [..., N, D]; log_A: [..., N]. density: how P combines
    the D dimensions, see `em_routing`. Returns log C [..., M, N]. Raises ValueError for an unknown
    density.
    """
    # log Normal(V_mn^i | mu_n^i, sigma_n^i)                          Gu 2019 Eq. 14
    # = -(V_mn^i - mu_n^i)^2 / (2 (sigma_n^i)^2) - log sigma_n^i - log(2 pi) / 2
    # = exponent - log_divisor
    precision = (-2 * log_sigma).exp().unsqueeze(-3)                         # [..., 1, N, D]
    exponent = (V - mu.unsqueeze(-3)).square() * (precision / -2)            # [..., M, N, D]
    log_divisor = (log_sigma + math.log(2 * math.pi) / 2).unsqueeze(-3)      # [..., 1, N, D]
    check_choice("density", density, DENSITIES)
    if density == "product":
        # P_mn = prod_i Normal(V_mn^i | mu_n^i, sigma_n^i)            Li 2019 §4.2.2, in words
        log_P = exponent.sum(-1) - log_divisor.sum(-1)                       # [..., M, N]
    else:
        # P_mn = sum_i Normal(V_mn^i | mu_n^i, sigma_n^i)             Li 2019 §4.2.2
        log_P = (exponent - log_divisor).logsumexp(-1)                       # [..., M, N]
    # C_mn = A_n P_mn / sum_k A_k P_mk                                Li 2019 Eq. 12, Gu 2019 Eq. 15
    return (log_A.unsqueeze(-2) + log_P).log_softmax(-1)                     # [..., M, N]


def inverse_temperature(t: int, T: int, schedule: str) -> float:
    """lambda_t of iteration t = 0 .. T-1, a factor in the activation. Both papers have a fixed
    schedule, but print no number and refer to Hinton et al. 2018.

    "hinton": 0.01 (1 - 0.95^(t+1)), that of Hinton et al., with which A_n stays close to 1/2.
    "released": 1 + (min(T, 3) - 1) t / max(1, T-1), so 1, 2, 3 for T = 3, that of the code that Li
    et al. released; it saturates A. Raises ValueError for an unknown schedule.
    """
    check_choice("schedule", schedule, SCHEDULES)
    if schedule == "hinton":
        return 0.01 * (1 - 0.95 ** (t + 1))
    return 1 + (min(T, 3) - 1) * t / max(1, T - 1)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Returns the value of an option. Raises ValueError if it is not among its choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose from {', '.join(choices)}")
    return value
