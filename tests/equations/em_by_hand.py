"""EM routing as the papers print it, number by number: the oracle of test_routing_em.py.

Every number is a tensor of its own, so that the loops can be differentiated.
"""
import math

import torch
from torch import Tensor


def m_step(V: Tensor, C: Tensor, eps: float = 1e-9) -> tuple[Tensor, Tensor, Tensor]:
    """S [N], mu [N, D], sigma [N, D] of votes V [M, N, D] under the coupling C [M, N]."""
    M, N, D = V.shape
    S = torch.zeros(N, dtype=V.dtype)
    mu = torch.zeros(N, D, dtype=V.dtype)
    sigma = torch.zeros(N, D, dtype=V.dtype)
    for n in range(N):
        S_n = sum(C[m, n] for m in range(M))
        S[n] = S_n
        for i in range(D):
            mean = sum(C[m, n] * V[m, n, i] for m in range(M)) / S_n
            variance = sum(C[m, n] * (V[m, n, i] - mean) ** 2 for m in range(M)) / S_n + eps
            mu[n, i] = mean
            sigma[n, i] = variance.sqrt()
    return S, mu, sigma


def inverse_temperature(t: int, T: int, schedule: str) -> float:
    """lambda of iteration t = 0 .. T-1: Hinton et al.'s, or the released code's, which ends at 1,
    2, 3, 3, ..."""
    if schedule == "hinton":
        return 0.01 * (1 - 0.95 ** (t + 1))
    if T == 1:
        return 1.0
    return 1 + (min(T, 3) - 1) * t / (T - 1)


def activations(S: Tensor, sigma: Tensor, beta_a: Tensor, beta_mu: Tensor,
                lambda_t: float) -> Tensor:
    """A_n = logistic(lambda (beta_A - beta_mu S_n - chi_n)), chi_n = sum_i (log sigma_n^i + (1 +
    log 2 pi)/2) S_n."""
    A = []
    for n in range(len(S)):
        chi = sum((s.log() + (1 + math.log(2 * math.pi)) / 2) * S[n] for s in sigma[n])
        A.append(1 / (1 + torch.exp(-lambda_t * (beta_a[n] - beta_mu[n] * S[n] - chi))))
    return torch.stack(A)


def normal(x: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """The normal density of a number."""
    return torch.exp(-(x - mu) ** 2 / (2 * sigma ** 2)) / (2 * math.pi * sigma ** 2).sqrt()


def e_step(V: Tensor, mu: Tensor, sigma: Tensor, A: Tensor, density: str = "product") -> Tensor:
    """C_mn = A_n P_mn / sum_k A_k P_mk [M, N], P the product or the sum of the dimensions'
    densities."""
    M, N, D = V.shape
    rows = []
    for m in range(M):
        weighted = []
        for n in range(N):
            densities = [normal(V[m, n, i], mu[n, i], sigma[n, i]) for i in range(D)]
            P = math.prod(densities) if density == "product" else sum(densities)
            weighted.append(A[n] * P)
        rows.append(torch.stack([x / sum(weighted) for x in weighted]))
    return torch.stack(rows)


def em_routing(V: Tensor, beta_a=None, beta_mu=None, T: int = 3, density: str = "product",
               schedule: str = "hinton", gradient: str = "full",
               eps: float = 1e-9) -> tuple[Tensor, Tensor, Tensor]:
    """The printed algorithm for one item V [M, N, D]: mu [N, D], A [N], C [M, N]."""
    M, N, _ = V.shape
    C = torch.full((M, N), 1 / N, dtype=V.dtype)
    for t in range(T):
        if gradient == "last":
            C = C.detach()                  # held constant: the loops before are not differentiated
        S, mu, sigma = m_step(V, C, eps)
        A = torch.ones(N, dtype=V.dtype)
        if beta_a is not None:
            A = activations(S, sigma, beta_a, beta_mu, inverse_temperature(t, T, schedule))
        C = e_step(V, mu, sigma, A, density)
    return mu, A, C
