"""EM routing: output capsules as Gaussian clusters of the votes.

Li et al. 2019, section 4.2.2, Algorithm 2 with Eq. 9-12 (Li et al. 2021, Eq. 12-15); Gu and Feng
2019, Eq. 12-15. Both go back to Hinton, Sabour and Frosst 2018, "Matrix Capsules with EM Routing".
Where the papers print different things, or leave one open, `em_routing` has an option for each.
"""
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

DENSITIES = ("product", "sum")
SCHEDULES = ("hinton", "released")
GRADIENTS = ("full", "last")


class EMRouting(NamedTuple):
    """What `em_routing` returns."""
    capsules: Tensor               # Omega [..., N, D]
    activations: Tensor            # A [..., N], in [0, 1]
    coupling: Tensor               # C [..., M, N], after the last E-step; a row sums to 1


def inverse_temperature(t: int, T: int, schedule: str = "hinton") -> float:
    """lambda_t of iteration t = 0 .. T-1, a fixed schedule in both papers, which print no number
    and refer to Hinton et al.

    "hinton": 0.01 (1 - 0.95^(t+1)), what Hinton et al. used. "released": 1 + (min(T, 3) - 1) t /
    max(1, T-1), from 1 to 3 for T = 3, in the code that Li et al. released, there on a cost that
    was standardized over the capsules; on the cost as printed it saturates A. Raises ValueError
    for another schedule.
    """
    if schedule == "hinton":
        return 0.01 * (1 - 0.95 ** (t + 1))
    if schedule == "released":
        return 1 + (min(T, 3) - 1) * t / max(1, T - 1)
    raise ValueError(f"schedule={schedule!r}: choose from {', '.join(SCHEDULES)}")


def m_step(V: Tensor, log_C: Tensor, beta_a: Tensor | None = None, beta_mu: Tensor | None = None,
           lambda_t: float = 1.0, eps: float = 1e-9) -> tuple[Tensor, Tensor, Tensor]:
    """The M-step: C is held, mu, sigma and A are adjusted. Li 2019 Algorithm 2, Eq. 10-11; Gu 2019
    Eq. 12-13.

    V: votes [..., M, N, D]; log_C: [..., M, N] or [M, N]; beta_a, beta_mu: [N], or None twice for
    A = 1.
    Returns mu [..., N, D], log sigma [..., N, D], log A [..., N].
    """
    # Li 2019 Eq. 10-11: M-step, mean and deviation, 2 points
    # Li 2019 Alg. 2, Gu 2019 Eq. 13: M-step, activations, 2 points
    raise NotImplementedError("Li 2019 Eq. 10-11: M-step, mean and deviation")


def e_step(V: Tensor, mu: Tensor, log_sigma: Tensor, log_A: Tensor,
           density: str = "product") -> Tensor:
    """The E-step: mu, sigma and A are held, C is adjusted. Li 2019 Algorithm 2, Eq. 12; Gu 2019
    Eq. 14-15.

    V: votes [..., M, N, D]; mu, log_sigma: [..., N, D]; log_A: [..., N]. density: what P is of its
    D dimensions, see `em_routing`. Returns log C [..., M, N]. Raises ValueError for another
    density.
    """
    # Li 2019 Eq. 12: E-step, 2 points
    # Li 2019 Eq. 12: E-step, far votes, 2 points
    # Li 2019 Alg. 2: E-step, sum of densities, 2 points
    raise NotImplementedError("Li 2019 Eq. 12: E-step")


def em_routing(votes: Tensor, beta_a: Tensor | None = None, beta_mu: Tensor | None = None,
               iterations: int = 3, scale_by_activation: bool = True, eps: float = 1e-9,
               density: str = "product", schedule: str = "hinton", gradient: str = "full",
               start: Tensor | None = None, trace: bool = False) -> EMRouting:
    """Couples M input capsules to N output capsules by expectation maximization.

    Li 2019 Algorithm 2: `Omega_n = A_n mu_n` (Eq. 9). scale_by_activation=False gives
    `Omega_n = mu_n`: Gu 2019 keeps the activations inside the routing and leaves them out of its
    result.

    votes: V [..., M, N, D]; beta_a, beta_mu: [N], learned; both None leaves the activations out (A
    = 1). eps: added to the variance.
    density: "product" of the densities of the D dimensions, as in Hinton et al. 2018, or their
    "sum", to the letter of Li 2019 (Gu Eq. 14 prints one dimension); the same for D = 1. With
    "product" and without activations the mixture's likelihood cannot fall between iterations.
    schedule: of lambda, see `inverse_temperature`.
    gradient: "full" runs through every iteration; "last" takes the coupling that enters the last
    M-step as a constant, so that its backward pass is that of one M-step; beta_a and beta_mu then
    learn through A_n in the result alone, and without it not at all. The papers do not say; the
    model's default is "last".
    start: log C [..., M, N] or [M, N] to start from; None: C = 1/N.
    trace: hands out the coupling of every iteration, [T, ..., M, N], in place of the last one.
    Returns capsules [..., N, D], activations [..., N], coupling [..., M, N]. Half precision is
    computed in float32.
    Raises ValueError unless iterations >= 1, when only one of beta_a and beta_mu is None, and for
    unknown options.

    >>> votes = torch.randn(2, 7, 8, 16, 4)      # 2 sentences, 7 positions, M = 8, N = 16, D = 4
    >>> em_routing(votes, torch.zeros(16), torch.zeros(16)).capsules.shape
    torch.Size([2, 7, 16, 4])
    """
    # Li 2019 Alg. 2, Eq. 9: EM routing, 3 points
    # Li 2019 Alg. 2: EM routing, last gradient, 2 points
    raise NotImplementedError("Li 2019 Alg. 2, Eq. 9: EM routing")
