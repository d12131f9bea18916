"""EM routing on a CPU uncompiled, for capsules of one dimension and the gradient through the last
M-step alone: the defaults. `routing_em.em_routing` in a third of the time, by fewer passes over the
votes and fewer new tensors of their size.

The squared deviations of an M-step serve the E-step after it, the coupling C stands where the
routing as written keeps log C, and the last M-step has its gradient written out. A piece of the
votes that fits the cache goes through all of it before the next, in the same two work tensors.
"""
import math

import torch
from torch import Tensor

from routing_em import inverse_temperature

PIECE = 2 ** 17         # votes that a CPU core routes at a time: 512 KiB in float32
CONSTANT = (1 + math.log(2 * math.pi)) / 2      # of chi, Li 2019 Algorithm 2
SMALLEST = 1e-20        # a sum S_n of couplings below is about to lose its digits


def pieces(V: Tensor) -> list[slice]:
    """Where to cut votes [items, M, N] into pieces."""
    size = max(1, int(PIECE * torch.get_num_threads() // V.shape[1:].numel()))
    return [slice(start, start + size) for start in range(0, len(V), size)]


def argument(log_sigma: Tensor, S: Tensor, beta_a: Tensor, beta_mu: Tensor,
             lambda_t: float) -> Tensor:
    """`lambda_t (beta_A - beta_mu S - chi)`, of which A is the logistic, with `chi = S (log sigma +
    (1 + log 2 pi) / 2)` of one dimension: [items, N]."""
    return (log_sigma + (beta_mu + CONSTANT)).mul_(S).sub_(beta_a).mul_(-lambda_t)


def iterate(V: Tensor, C: Tensor, beta_a: Tensor, beta_mu: Tensor, iterations: int, eps: float,
            schedule: str, work: Tensor) -> tuple[Tensor, ...]:
    """The routing of one piece: fills C [items, M, N], which enters the last M-step, and returns
    what that step finds, mu, sigma^2, S and A, [items, N] each. work: [2, items, M, N],
    overwritten."""
    M, N = V.shape[-2:]
    product, square = work
    # M-step with C = 1 / N                                                    Li 2019 Eq. 10-11
    if iterations == 1:
        C.fill_(1 / N)
    S = V.new_full(V[:, 0].shape, M / N)
    mu = V.mean(-2)
    torch.sub(V, mu.unsqueeze(-2), out=square).square_()
    sigma2 = square.mean(-2).add_(eps)
    for t in range(iterations - 1):
        # E-step, log A_n P_mn = log A_n - log sigma_n - (V_mn - mu_n)^2 / (2 sigma_n^2) + constant
        lambda_t = inverse_temperature(t, iterations, schedule)
        log_sigma = sigma2.log().div_(2)
        log_A = argument(log_sigma, S, beta_a, beta_mu, lambda_t).sigmoid_().log_()
        square.mul_((-0.5 / sigma2).unsqueeze(-2)).add_((log_A - log_sigma).unsqueeze(-2))
        torch.softmax(square, -1, out=C)
        # M-step
        S = C.sum(-2)
        mu = torch.mul(C, V, out=product).sum(-2).div_(S)
        torch.sub(V, mu.unsqueeze(-2), out=square).square_()
        sigma2 = torch.mul(C, square, out=product).sum(-2).div_(S).add_(eps)
    lambda_T = inverse_temperature(iterations - 1, iterations, schedule)
    A = argument(sigma2.log().div_(2), S, beta_a, beta_mu, lambda_T).sigmoid_()
    return mu, sigma2, S, A


@torch.no_grad()
def last_m_step(V: Tensor, beta_a: Tensor, beta_mu: Tensor, iterations: int, eps: float,
                schedule: str) -> tuple[Tensor, Tensor]:
    """What the last M-step of votes V [items, M, N] has: its C [items, M, N], and its mu, sigma^2,
    S and A as one tensor [4, items, N]."""
    C = torch.empty_like(V)
    found = V.new_empty(4, len(V), V.shape[-1])
    cuts = pieces(V)
    work = V.new_empty(2, *V[cuts[0]].shape)
    for cut in cuts:
        piece = V[cut]
        step = iterate(piece, C[cut], beta_a, beta_mu, iterations, eps, schedule,
                       work[:, :len(piece)])
        torch.stack(step, out=found[:, cut])
    return C, found


class LastStep(torch.autograd.Function):
    """Omega [items, N], A mu or mu, of the last M-step, with its gradient for V [items, M, N] and
    betas [N]; C is a constant in it."""

    @staticmethod
    def forward(ctx, V, beta_a, beta_mu, C, found, lambda_T, scale):
        ctx.save_for_backward(V, C, found)
        ctx.lambda_T = lambda_T
        ctx.scale = scale
        mu, _, _, A = found
        return A * mu if scale else mu.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        V, C, found = ctx.saved_tensors
        d_V = torch.empty_like(V)
        d_beta_a = V.new_zeros(V.shape[-1])
        d_beta_mu = V.new_zeros(V.shape[-1])
        for cut in pieces(V):
            mu, sigma2, S, A = found[:, cut]
            d_omega = gradient[cut]
            d = d_V[cut]                                                     # filled in place
            if not ctx.scale:
                torch.mul(C[cut], (d_omega / S).unsqueeze(-2), out=d)
                continue
            # x = lambda (beta_A - beta_mu S - chi), A = logistic(x)
            d_x = (d_omega * mu).mul_(A).mul_(1 - A).mul_(ctx.lambda_T)      # [items, N]
            d_beta_a += d_x.sum(0)
            d_x.mul_(S)
            d_beta_mu -= d_x.sum(0)
            # dV = C / S (dmu + 2 (V - mu) dsigma^2): that mu moves sigma^2 sums to 0
            # dmu = A domega, dsigma^2 = -dx S / (2 sigma^2)
            torch.sub(V[cut], mu.unsqueeze(-2), out=d)
            d.mul_((d_x / sigma2).neg_().unsqueeze(-2)).add_((d_omega * A).unsqueeze(-2))
            d.mul_(C[cut]).div_(S.unsqueeze(-2))
        if not ctx.scale:
            return d_V, *[None] * 6
        return d_V, d_beta_a, d_beta_mu, *[None] * 4


def covers(votes: Tensor, betas, start: Tensor | None, gradient: str = "full", **_) -> bool:
    """Whether this is the form for such a routing of votes [..., M, N, D]."""
    return (votes.device.type == "cpu" and votes.shape[-1] == 1 and start is None
            and gradient == "last" and len(betas) == 2)


def em_capsules(votes: Tensor, beta_a: Tensor, beta_mu: Tensor, iterations: int = 3,
                scale_by_activation: bool = True, eps: float = 1e-9, schedule: str = "hinton",
                **_) -> Tensor | None:
    """Omega [items, N, 1] of votes [items, M, N, 1]; None where numbers so small turn up that only
    the routing as written is exact."""
    V = votes.squeeze(-1).contiguous()
    if V.dtype in (torch.float16, torch.bfloat16):
        V = V.float()
    C, found = last_m_step(V, beta_a, beta_mu, iterations, eps, schedule)
    if not found[2].min() > SMALLEST:
        return None
    lambda_T = inverse_temperature(iterations - 1, iterations, schedule)
    omega = LastStep.apply(V, beta_a, beta_mu, C, found, lambda_T, scale_by_activation)
    return omega.unsqueeze(-1)
