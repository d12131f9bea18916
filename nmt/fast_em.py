"""EM routing on a CPU uncompiled, for capsules of one dimension and the gradient through the last
M-step alone: the defaults. `routing_em.em_routing` in half the time, by fewer passes over the
votes.

The squared deviations of an M-step serve the E-step after it, the coupling C stands where the
routing as written keeps log C, and the last M-step has its gradient written out.
"""
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from routing_em import inverse_temperature

CONSTANT = (1 + math.log(2 * math.pi)) / 2      # of chi, Li 2019 Algorithm 2
SMALLEST = 1e-30        # a sum S_n of couplings below has lost its digits


def moments(V: Tensor, C: Tensor | None, S: Tensor, eps: float):
    """mu [items, N], (V - mu)^2 [items, M, N] and sigma^2 [items, N] (Li 2019 Eq. 10-11); C None:
    the same for all."""
    if C is None:
        mu = V.mean(-2)
        square = (V - mu.unsqueeze(-2)).square_()
        return mu, square, square.mean(-2).add_(eps)
    product = C * V
    mu = product.sum(-2).div_(S)
    square = (V - mu.unsqueeze(-2)).square_()
    return mu, square, torch.mul(C, square, out=product).sum(-2).div_(S).add_(eps)


def argument(sigma2: Tensor, S: Tensor, beta_a: Tensor, beta_mu: Tensor, lambda_t: float) -> Tensor:
    """lambda_t (beta_A - beta_mu S - chi), of which A is the logistic: [items, N]."""
    chi = sigma2.log().div_(2).add_(CONSTANT).mul_(S)
    return (beta_a - beta_mu * S).sub(chi).mul_(lambda_t)


@torch.no_grad()
def coupling(V: Tensor, beta_a: Tensor, beta_mu: Tensor, iterations: int, eps: float,
             schedule: str) -> tuple[Tensor | None, Tensor]:
    """C [items, M, N] that enters the last M-step, None where it is 1 / N, and its sum S over m."""
    M, N = V.shape[-2:]
    C = None
    S = V.new_full((N,), M / N)
    for t in range(iterations - 1):
        mu, square, sigma2 = moments(V, C, S, eps)
        lambda_t = inverse_temperature(t, iterations, schedule)
        log_A = F.logsigmoid(argument(sigma2, S, beta_a, beta_mu, lambda_t))
        # log A_n P_mn = log A_n - log sigma_n - (V_mn - mu_n)^2 / (2 sigma_n^2) + a constant
        square.mul_((-0.5 / sigma2).unsqueeze(-2))
        C = square.add_((log_A - sigma2.log() / 2).unsqueeze(-2)).softmax(-1)
        S = C.sum(-2)                                                        # [items, N]
    return C, S


class LastStep(torch.autograd.Function):
    """The last M-step with a constant coupling: V [items, M, N], betas [N] -> A mu or mu,
    [items, N]."""

    @staticmethod
    def forward(ctx, V, beta_a, beta_mu, C, S, eps, lambda_t, scale):
        mu, _, sigma2 = moments(V, C, S, eps)
        A = argument(sigma2, S, beta_a, beta_mu, lambda_t).sigmoid_()
        ctx.save_for_backward(V, C, S, mu, sigma2, A)
        ctx.lambda_t = lambda_t
        ctx.scale = scale
        return A * mu if scale else mu

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        V, C, S, mu, sigma2, A = ctx.saved_tensors
        share = 1 / V.shape[-2] if C is None else C / S.unsqueeze(-2)
        if not ctx.scale:
            return share * gradient.unsqueeze(-2).expand_as(V), *[None] * 7
        # x = lambda (beta_A - beta_mu S - chi), A = logistic(x), chi = (log sigma^2 / 2 + ...) S
        d_x = gradient * mu * A * (1 - A) * ctx.lambda_t                     # [items, N]
        d_beta_mu = -(d_x * S)
        # dV = C / S (dmu + 2 (V - mu) dsigma^2): that mu moves sigma^2 sums to 0
        d_sigma2 = d_beta_mu / sigma2                                        # twice
        deviation = V - mu.unsqueeze(-2)
        d_V = deviation.mul_(d_sigma2.unsqueeze(-2)).add_((gradient * A).unsqueeze(-2)).mul_(share)
        return d_V, d_x.sum(0), d_beta_mu.sum(0), *[None] * 5


def em_capsules(V: Tensor, beta_a: Tensor, beta_mu: Tensor, iterations: int, eps: float,
                schedule: str, scale: bool) -> Tensor | None:
    """Omega [items, N] of votes V [items, M, N]; None where numbers so small turn up that only the
    routing as written is exact."""
    C, S = coupling(V, beta_a, beta_mu, iterations, eps, schedule)
    if not S.min() > SMALLEST:
        return None
    lambda_T = inverse_temperature(iterations - 1, iterations, schedule)
    return LastStep.apply(V, beta_a, beta_mu, C, S, eps, lambda_T, scale)
