"""Tests of routing_em.py: Li et al. 2019 Alg. 2 and Eq. 9-12 (Li et al. 2021 Eq. 12-15), Gu et al.
2019 Eq. 12-15."""

import itertools
import math

import em_by_hand
import pytest
import torch
from helpers import assert_finite, normal
from torch.testing import assert_close

from routing_em import (
    DENSITIES,
    GRADIENTS,
    SCHEDULES,
    e_step,
    em_routing,
    inverse_temperature,
    m_step,
)

SIZES = [(1, 1, 1), (1, 4, 3), (4, 1, 3), (3, 5, 1), (2, 3, 4)]  # M, N, D
every_size = pytest.mark.parametrize("M, N, D", SIZES, ids=str)
with_and_without = pytest.mark.parametrize("active", [True, False], ids=["activations", "none"])
every_density = pytest.mark.parametrize("density", DENSITIES)
default_and_last = pytest.mark.parametrize("option", [{}, {"gradient": "last"}], ids=str)


def betas(N: int, active: bool = True, dtype=torch.float64) -> tuple:
    """beta_A and beta_mu, [N] each, or None twice."""
    return (normal(N, dtype=dtype), normal(N, dtype=dtype)) if active else (None, None)


def assert_routing(result, expected, atol=1e-7, rtol=1e-6):
    """Capsules, activations and coupling are those expected."""
    for got, want in zip(result, expected):
        assert_close(got, want, atol=atol, rtol=rtol)


# The equations, one by one


@with_and_without
def test_li2019_eq9_li2021_eq12_capsules(active):
    """Omega_n = A_n mu_n; Gu leaves A_n out of the result, and it changes nothing else."""
    votes = normal(4, 3, 2)
    beta = betas(3, active)
    mu, A, C = em_by_hand.em_routing(votes, *beta)
    assert_routing(em_routing(votes, *beta), (A.unsqueeze(-1) * mu, A, C))
    assert_routing(em_routing(votes, *beta, scale_by_activation=False), (mu, A, C))


@pytest.mark.parametrize("eps, lambda_t, least", [(1e-9, 2.0, 1), (1e-2, 0.01, 1e-20)])
@every_size
def test_li2019_eq10_eq11_li2021_eq13_eq14_gu_eq12_eq13_m_step(M, N, D, eps, lambda_t, least):
    """It holds where a capsule has next to no parts, too. With one part eps is all of the
    variance."""
    votes = normal(M, N, D)
    C = normal(M, N).softmax(-1)
    C[:, 0] *= least
    beta_a, beta_mu = betas(N)
    two = torch.stack([votes, votes])
    mu, log_sigma, log_A = (x[1] for x in m_step(two, C.log(), beta_a, beta_mu, lambda_t, eps))
    S, want_mu, want_sigma = em_by_hand.m_step(votes, C, eps)
    A = em_by_hand.activations(S, want_sigma, beta_a, beta_mu, lambda_t)
    for got, want in ((mu, want_mu), (log_sigma.exp(), want_sigma), (log_A.exp(), A)):
        assert_close(got, want)
    if M == 1:
        assert_close(2 * log_sigma, torch.full_like(log_sigma, math.log(eps)))
    without = m_step(votes, C.log(), eps=eps)            # without betas A = 1
    assert_close(without, (mu, log_sigma, torch.zeros_like(log_A)))


@every_density
@every_size
def test_li2019_eq12_li2021_eq15_gu_eq15_coupling(M, N, D, density):
    votes = normal(M, N, D)
    mu = normal(N, D)
    sigma = normal(N, D).exp()
    A = torch.rand(N, dtype=torch.float64)
    two = [torch.stack([x, x]) for x in (votes, mu, sigma.log(), A.log())]
    want = em_by_hand.e_step(votes, mu, sigma, A, density)
    assert_close(e_step(*two, density).exp(), torch.stack([want, want]))


def test_li2019_density_gu_eq14():
    """Two capsules have mu = 1, 3 and sigma = 1, 3 in every dimension, so the densities of a part
    are as 3 to 1."""
    one = torch.tensor([[[0.0], [0.0]], [[2.0], [6.0]]]).double()            # D = 1
    two = one.expand(2, 2, 2)                                                # D = 2
    P = [math.exp(-0.5) / math.sqrt(2 * math.pi), math.exp(-0.5) / math.sqrt(2 * math.pi * 9)]
    share = one.new_tensor([[P[0] / sum(P), P[1] / sum(P)]] * 2)             # 3/4, 1/4
    for votes, density, C in ((one, "product", share), (one, "sum", share), (two, "sum", share),
                              (two, "product", one.new_tensor([[0.9, 0.1]] * 2))):
        assert_close(em_routing(votes, iterations=1, density=density).coupling, C)


@pytest.mark.parametrize("schedule, expected", [
    ("hinton", [0.0005]), ("hinton", [0.0005, 0.000975, 0.00142625]), ("released", [1]),
    ("released", [1, 2]), ("released", [1, 2, 3]), ("released", [1, 1.5, 2, 2.5, 3])], ids=str)
def test_schedules_of_lambda(schedule, expected):
    T = len(expected)
    lambdas = [inverse_temperature(t, T, schedule) for t in range(T)]
    assert lambdas == pytest.approx(expected, rel=1e-12)


# The algorithm

CASES = [((2, 3, 2), 3, options)
         for options in itertools.product(DENSITIES, SCHEDULES, (True, False))]
CASES += [(size, T, ("product", "hinton", True)) for size, T in zip(SIZES, (1, 2, 5, 3, 4))]
CASES += [((4, 3, 2), 4, ("product", "released", True))]


@pytest.mark.parametrize("size, T, options", CASES, ids=str)
def test_li2019_alg2_li2021_alg2(size, T, options):
    density, schedule, active = options
    votes = normal(*size)
    beta = betas(size[1], active)
    result = em_routing(votes, *beta, T, density=density, schedule=schedule,
                        scale_by_activation=False)
    assert_routing(result, em_by_hand.em_routing(votes, *beta, T, density, schedule))


@pytest.mark.parametrize("size, eps", [(1e-4, 1e-9), (1e-3, 1e-9), (30.0, 1e-9), (1.0, 0.5)])
def test_li2019_alg2_at_any_size(size, eps):
    votes = size * normal(4, 3, 2)
    result = em_routing(votes, eps=eps)
    assert_routing(result, em_by_hand.em_routing(votes, eps=eps), atol=1e-9)


@with_and_without
@pytest.mark.parametrize("lead", [(1,), (2, 3)], ids=str)
def test_any_leading_shape_is_a_batch(lead, active):
    votes = normal(*lead, 4, 3, 2)
    beta = betas(3, active)
    result = em_routing(votes, *beta)
    for index in itertools.product(*map(range, lead)):
        assert_routing((x[index] for x in result), em_routing(votes[index], *beta))


@with_and_without
@every_density
@default_and_last
def test_li2019_alg2_gradient(option, density, active):
    """The gradient is that of the loops; with "last" their couplings are held constant."""
    votes = normal(4, 3, 2).requires_grad_()
    beta = [b.requires_grad_() for b in betas(3)] if active else [None, None]
    learned = [votes, *(b for b in beta if active)]
    result = em_routing(votes, *beta, density=density, scale_by_activation=False, **option)
    by_hand = em_by_hand.em_routing(votes, *beta, density=density, **option)
    assert_routing(result, by_hand)                      # no result depends on `gradient`
    weights = [torch.randn_like(x) for x in by_hand]
    used = (0, 1, 2) if active else (0, 2)
    gradients = torch.autograd.grad(sum((result[i] * weights[i]).sum() for i in used), learned)
    expected = torch.autograd.grad(sum((by_hand[i] * weights[i]).sum() for i in used), learned)
    assert_routing(gradients, expected, rtol=1e-5)


@pytest.mark.parametrize("name, value, message", [
    ("beta_a", None, "beta_a and beta_mu go together"),
    ("density", "mean", "density='mean': choose from product, sum"),
    ("schedule", "none", "schedule='none': choose from hinton, released"),
    ("gradient", "first", "gradient='first': choose from full, last")])
def test_half_of_the_betas_or_an_unknown_option_is_an_error(name, value, message):
    usual = dict(votes=normal(4, 3, 2), beta_a=torch.zeros(3), beta_mu=torch.zeros(3))
    with pytest.raises(ValueError, match=message):
        em_routing(**usual | {name: value})


# Gradients, hard inputs, precision


@with_and_without
def test_moving_all_votes_moves_the_means_alone(active):
    """In float32, at a distance of 1,000 spreads, E[V^2] - mu^2 would lose the variance."""
    votes = normal(8, 3, 2, dtype=torch.float32)
    beta = betas(3, active, torch.float32)
    mu, A, C = em_routing(votes, *beta, scale_by_activation=False)
    moved = em_routing(votes + 1000, *beta, scale_by_activation=False)
    assert_routing(moved, (mu + 1000, A, C), atol=5e-3, rtol=0)


@with_and_without
def test_hard_inputs_stay_finite(hard_votes, active):
    for density, schedule, gradient in itertools.product(DENSITIES, SCHEDULES, GRADIENTS):
        N = hard_votes.shape[-2]
        beta = [b.requires_grad_() for b in betas(N, dtype=torch.float32)] if active else []
        result = em_routing(hard_votes, *beta, density=density, schedule=schedule,
                            gradient=gradient)
        assert_finite(result, hard_votes, *beta)
        assert hard_votes.any() or not result.capsules.any()


@pytest.mark.parametrize("beta", [-1e4, 1e4])
def test_a_capsule_that_loses_all_parts_stays_finite(beta):
    votes = torch.randn(2, 4, 3, 5).requires_grad_()
    beta_a = torch.tensor([0.0, beta, 0.0], requires_grad=True)
    result = em_routing(votes, beta_a, torch.zeros(3), schedule="released")
    assert_finite(result, votes, beta_a)
    if beta < 0:
        assert not result.coupling[..., 1].any() and not result.activations[..., 1].any()


@with_and_without
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64],
                         ids=str)
def test_no_precision_below_float32(dtype, active, precision):
    votes = normal(2, 4, 3, 5).to(dtype).requires_grad_()
    exact = votes.detach().to(torch.promote_types(dtype, torch.float32))
    beta = betas(3, active, exact.dtype)
    with precision:
        result = em_routing(votes, *beta)
    for got, want in zip(result, em_routing(exact, *beta)):
        assert got.dtype == exact.dtype and torch.equal(got, want)
    slope, = torch.autograd.grad(result.capsules.sum(), votes)
    assert slope.dtype == dtype and slope.isfinite().all() and slope.any()
