"""Tests of routing_em.py: Li et al. 2019 Alg. 2 and Eq. 9-12 (Li et al. 2021 Eq. 12-15), Gu et al. 2019 Eq. 12-15."""
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from routing_em import em_routing

SIZES = [(1, 1, 1), (1, 4, 3), (4, 1, 3), (3, 5, 1), (6, 2, 4), (2, 3, 5)]                # M, N, D
every_size = pytest.mark.parametrize("M, N, D", SIZES, ids=str)
every_lead = pytest.mark.parametrize("lead", [(), (1,), (2, 3)], ids=str)
several_iterations = pytest.mark.parametrize("T", [1, 2, 3, 5])
with_and_without = pytest.mark.parametrize("active", [True, False], ids=["activations", "none"])


def normal(*shape, dtype=torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, dtype=dtype)


def betas(N: int, active: bool = True, dtype=torch.float64) -> tuple:
    """β_A and β_μ, [N] each, or None twice."""
    return (normal(N, dtype=dtype), normal(N, dtype=dtype)) if active else (None, None)


def density(x: float, mu: float, sigma: float) -> float:
    """The normal density."""
    return math.exp(-(x - mu) ** 2 / (2 * sigma ** 2)) / math.sqrt(2 * math.pi * sigma ** 2)


def m_step_by_hand(V: list, C: list, eps: float = 1e-9) -> tuple[list, list, list]:
    """The M-step of one item, loop by loop: S [N], μ [N, D], σ [N, D] (the standard deviation)."""
    M, N, D = len(V), len(V[0]), len(V[0][0])
    S = [sum(C[m][n] for m in range(M)) for n in range(N)]
    mu = [[sum(C[m][n] * V[m][n][i] for m in range(M)) / S[n] for i in range(D)] for n in range(N)]
    sigma = [[math.sqrt(sum(C[m][n] * (V[m][n][i] - mu[n][i]) ** 2 for m in range(M)) / S[n] + eps) for i in range(D)]
             for n in range(N)]
    return S, mu, sigma


def activations_by_hand(S: list, sigma: list, beta_a: list, beta_mu: list, lambda_t: float) -> list:
    """A_n = logistic(λ (β_A - β_μ S_n - χ_n)) with χ_n = Σ_i (log σ_n^i + (1 + log 2π)/2) · S_n."""
    A = []
    for n in range(len(S)):
        chi = sum(math.log(s) + (1 + math.log(2 * math.pi)) / 2 for s in sigma[n]) * S[n]
        A.append(1 / (1 + math.exp(-lambda_t * (beta_a[n] - beta_mu[n] * S[n] - chi))))
    return A


def e_step_by_hand(V: list, mu: list, sigma: list, A: list) -> list:
    """C_mn = A_n P_mn / Σ_n' A_n' P_mn', P the product of the dimensions' densities."""
    C = []
    for vote in V:
        P = [math.prod(map(density, vote[n], mu[n], sigma[n])) for n in range(len(A))]
        C.append([a * p / sum(b * q for b, q in zip(A, P)) for a, p in zip(A, P)])
    return C


def em_by_hand(V: list, beta_a, beta_mu, T: int) -> tuple[list, list, list]:
    """The printed algorithm for one item: μ [N, D], A [N], C [M, N]."""
    M, N = len(V), len(V[0])
    C = [[1 / N] * N for _ in range(M)]
    for t in range(T):
        S, mu, sigma = m_step_by_hand(V, C)
        lambda_t = 1 + (min(T, 3) - 1) * t / max(1, T - 1)
        A = [1.0] * N if beta_a is None else activations_by_hand(S, sigma, beta_a, beta_mu, lambda_t)
        C = e_step_by_hand(V, mu, sigma, A)
    return mu, A, C


def coupling_before(votes: Tensor, T: int) -> Tensor:
    """The coupling that iteration T starts from, without activations: 1/N, then that of the iteration before."""
    if T == 1:
        return torch.full_like(votes[..., 0], 1 / votes.shape[-2])
    return em_routing(votes, iterations=T - 1).coupling


# The equations, one by one, from what the function returns

@with_and_without
@several_iterations
@every_size
def test_li2019_eq9(M, N, D, T, active):
    votes, (beta_a, beta_mu) = normal(2, M, N, D), betas(N, active)
    result = em_routing(votes, beta_a, beta_mu, T)
    mu = em_routing(votes, beta_a, beta_mu, T, scale_by_activation=False)
    torch.testing.assert_close(result.capsules, result.activations.unsqueeze(-1) * mu.capsules)
    assert torch.equal(result.activations, mu.activations) and torch.equal(result.coupling, mu.coupling)


@several_iterations
@every_size
def test_li2019_eq10(M, N, D, T):
    """Without activations the capsules are the means under the coupling of the iteration before."""
    votes = normal(M, N, D)
    S, mu, sigma = m_step_by_hand(votes.tolist(), coupling_before(votes, T).tolist())
    torch.testing.assert_close(em_routing(votes, iterations=T).capsules, votes.new_tensor(mu))


@pytest.mark.parametrize("eps", [1e-9, 1e-2])
@pytest.mark.parametrize("M, N", [(1, 1), (1, 3), (4, 1), (5, 3)], ids=str)
def test_li2019_eq11(M, N, eps):
    """σ² + eps, read back from A = logistic(-(log σ + (1 + log 2π)/2) S) with S = M/N at T = 1, D = 1, β = 0.

    One input capsule has no spread: its variance is eps.
    """
    votes = 0.5 * normal(M, N, 1)
    A = em_routing(votes, *torch.zeros(2, N, dtype=torch.float64), iterations=1, eps=eps).activations
    log_sigma = -A.logit() * N / M - (1 + math.log(2 * math.pi)) / 2
    S, mu, sigma = m_step_by_hand(votes.tolist(), [[1 / N] * N] * M, eps)
    torch.testing.assert_close((2 * log_sigma).exp(), votes.new_tensor(sigma).square().squeeze(-1))


@several_iterations
@every_size
def test_li2019_eq12(M, N, D, T):
    votes = normal(M, N, D)
    S, mu, sigma = m_step_by_hand(votes.tolist(), coupling_before(votes, T).tolist())
    want = e_step_by_hand(votes.tolist(), mu, sigma, [1.0] * N)
    torch.testing.assert_close(em_routing(votes, iterations=T).coupling, votes.new_tensor(want))


@every_size
def test_gu_eq13(M, N, D):
    votes, (beta_a, beta_mu) = normal(M, N, D), betas(N)
    S, mu, sigma = m_step_by_hand(votes.tolist(), [[1 / N] * N] * M)
    A = activations_by_hand(S, sigma, beta_a.tolist(), beta_mu.tolist(), lambda_t=1.0)
    torch.testing.assert_close(em_routing(votes, beta_a, beta_mu, 1).activations, votes.new_tensor(A))


@every_size
def test_gu_eq15(M, N, D):
    """The activations weigh the densities: c_ij = α_j p_j / Σ_k α_k p_k."""
    votes, (beta_a, beta_mu) = normal(M, N, D), betas(N)
    result = em_routing(votes, beta_a, beta_mu, 1)
    S, mu, sigma = m_step_by_hand(votes.tolist(), [[1 / N] * N] * M)
    want = e_step_by_hand(votes.tolist(), mu, sigma, result.activations.tolist())
    torch.testing.assert_close(result.coupling, votes.new_tensor(want))


def test_gu_eq14():
    """With Hinton's product and the right normalizer: two capsules, one part's density ratio worked out by hand."""
    votes = torch.tensor([[[0.0], [0.0]], [[2.0], [6.0]]], dtype=torch.float64)           # μ = 1, 3; σ = 1, 3
    P = [math.exp(-0.5) / math.sqrt(2 * math.pi), math.exp(-0.5) / math.sqrt(2 * math.pi * 9)]
    want = votes.new_tensor([[P[0] / sum(P), P[1] / sum(P)]] * 2)                         # 3/4, 1/4
    torch.testing.assert_close(em_routing(votes, iterations=1).coupling, want)
    twice = em_routing(votes.expand(2, 2, 2).contiguous(), iterations=1).coupling         # D = 2: 9/10, 1/10
    torch.testing.assert_close(twice, votes.new_tensor([[0.9, 0.1]] * 2))


# The algorithm

@with_and_without
@several_iterations
@every_lead
@every_size
def test_li2019_alg2(M, N, D, lead, T, active):
    votes, (beta_a, beta_mu) = normal(*lead, M, N, D), betas(N, active)
    result = em_routing(votes, beta_a, beta_mu, T, scale_by_activation=False)
    by_hand = (beta_a.tolist(), beta_mu.tolist()) if active else (None, None)
    items = [em_by_hand(item, *by_hand, T) for item in votes.reshape(-1, M, N, D).tolist()]
    for got, want, shape in zip(result, zip(*items), ((N, D), (N,), (M, N))):
        assert got.shape == (*lead, *shape)
        torch.testing.assert_close(got, votes.new_tensor(want).view(got.shape), atol=1e-6, rtol=1e-6)


test_li2021_eq12, test_li2021_eq13, test_li2021_eq14 = test_li2019_eq9, test_li2019_eq10, test_li2019_eq11
test_li2021_eq15, test_li2021_alg2, test_gu_eq12 = test_li2019_eq12, test_li2019_alg2, test_li2019_eq10
test_li2019_chi_and_activation, test_li2019_density, test_gu_eq12_sigma = test_gu_eq13, test_gu_eq14, test_li2019_eq11


@pytest.mark.parametrize("schedule", [[1], [1, 2], [1, 2, 3], [1, 5 / 3, 7 / 3, 3], [1, 1.5, 2, 2.5, 3]], ids=str)
def test_lambda_rises_from_1_to_3(schedule):
    """Same votes for all n: the densities cancel, C_mn = A_n / Σ_k A_k, and the routing is a recursion in A alone."""
    votes, (beta_a, beta_mu) = normal(5, 1, 2).expand(5, 3, 2), betas(3)
    cost = (votes[:, 0].var(0, correction=0).log() / 2 + (1 + math.log(2 * math.pi)) / 2).sum()
    share = torch.full((3,), 1 / 3, dtype=torch.float64)
    for lambda_t in schedule:
        A = torch.sigmoid(lambda_t * (beta_a - (beta_mu + cost) * 5 * share))
        share = A / A.sum()
    result = em_routing(votes, beta_a, beta_mu, len(schedule))
    torch.testing.assert_close(result.activations, A, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(result.coupling, share.expand(5, 3), atol=1e-6, rtol=1e-6)


def test_three_iterations_scaled_by_the_activation_are_the_default():
    votes, (beta_a, beta_mu) = normal(2, 4, 3, 5), betas(3)
    want = em_routing(votes, beta_a, beta_mu, iterations=3, scale_by_activation=True, eps=1e-9)
    assert all(torch.equal(x, y) for x, y in zip(em_routing(votes, beta_a, beta_mu), want))


def test_wrong_arguments_are_errors():
    votes, beta = normal(4, 3, 2), torch.zeros(3, dtype=torch.float64)
    for one in ({"beta_a": beta}, {"beta_mu": beta}):
        with pytest.raises(ValueError, match="beta"):
            em_routing(votes, **one)
    with pytest.raises(ValueError, match="iterations"):
        em_routing(votes, iterations=0)


# Normalization, order and ties

@with_and_without
@every_lead
@every_size
def test_coupling_rows_sum_to_1_and_activations_lie_between_0_and_1(M, N, D, lead, active):
    result = em_routing(5 * normal(*lead, M, N, D), *betas(N, active))
    torch.testing.assert_close(result.coupling.sum(-1), torch.ones(*lead, M, dtype=torch.float64))
    assert (result.coupling >= 0).all() and (result.activations >= 0).all() and (result.activations <= 1).all()
    assert active or (result.activations == 1).all()


@with_and_without
def test_permuting_capsules_permutes_coupling_rows_and_columns(active):
    votes, beta = normal(2, 5, 3, 4), betas(3, active)
    parts, wholes = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 0, 1])
    result = em_routing(votes, *beta)
    permuted = em_routing(votes[:, parts][:, :, wholes], *(b[wholes] if active else None for b in beta))
    torch.testing.assert_close(permuted.coupling, result.coupling[:, parts][..., wholes])
    torch.testing.assert_close(permuted.activations, result.activations[:, wholes])
    torch.testing.assert_close(permuted.capsules, result.capsules[:, wholes])


@with_and_without
@several_iterations
def test_output_capsules_with_the_same_votes_stay_tied(T, active):
    votes = normal(2, 4, 1, 5).expand(2, 4, 3, 5)
    result = em_routing(votes, *([torch.ones(3, dtype=torch.float64)] * 2 if active else (None, None)), T)
    torch.testing.assert_close(result.coupling, torch.full((2, 4, 3), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(result.capsules, result.capsules[:, :1].expand(2, 3, 5))


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-9), (torch.float32, 5e-3)], ids=str)
@with_and_without
def test_moving_all_votes_moves_the_means_alone(active, dtype, atol):
    """Also at a distance of 1,000 spreads in float32, where E[V²] - μ² would have lost the variance."""
    votes, beta = normal(8, 3, 2, dtype=dtype), betas(3, active, dtype)
    here, there = (em_routing(votes + way, *beta, scale_by_activation=False) for way in (0, 1000))
    torch.testing.assert_close(there.coupling, here.coupling, atol=atol, rtol=0)
    torch.testing.assert_close(there.activations, here.activations, atol=atol, rtol=0)
    torch.testing.assert_close(there.capsules - 1000, here.capsules, atol=atol, rtol=0)


# Convergence on planted inputs

def part_whole(assignment: list, N: int, D: int = 4) -> tuple[Tensor, Tensor]:
    """Votes [M, N, D] = pose of part m minus its place in whole n, and the wholes' poses [N, D].

    A part stands at its place in its own whole, so its vote there is that whole's pose up to noise 0.1;
    its votes on the other wholes lie 3 · sqrt(2) off in every dimension.
    """
    wholes, places = normal(N, D), 3 * normal(len(assignment), N, D)
    parts = torch.stack([wholes[n] + places[m, n] for m, n in enumerate(assignment)])
    return (parts + 0.1 * normal(len(assignment), D)).unsqueeze(1) - places, wholes


def symmetric(N: int, each: int) -> tuple[Tensor, Tensor]:
    """Votes [N · each, N, 2] with the same cluster around every pose: members at ±0.1 j, all others at ±(2 + j).

    By symmetry all S_n, σ_n and A_n are equal at every iteration: the activations cancel in the E-step, μ_n stays
    at the pose, and the votes nearest to it, the members', win.
    """
    wholes, way = normal(N, 1, 2), normal(2)
    near = torch.cat([way * 0.1 * (j + 1) * torch.tensor([[1.0], [-1.0]]) for j in range(each // 2)]).double()
    far = torch.cat([way * (2 + j) * torch.tensor([[1.0], [-1.0]]) for j in range(each // 2)]).double()
    votes = [torch.stack([near if k == n else far for n in range(N)], 1) for k in range(N)]          # [each, N, 2]
    return torch.cat(votes) + wholes.transpose(0, 1), wholes.squeeze(1)


def assert_sharpens(votes: Tensor, wholes: Tensor, assignment: list, beta: tuple):
    """More iterations: lower entropy, votes nearer to their capsules, members' coupling to 1, capsules at the poses."""
    whole, N = torch.tensor(assignment), votes.shape[-2]
    entropies, distances, members = [math.log(N)], [], [1 / N]
    for T in (1, 2, 3, 5, 10):
        result = em_routing(votes, *beta, T, scale_by_activation=False)
        C = result.coupling
        entropies.append(-torch.xlogy(C, C).sum(-1).mean().item())
        distances.append((C * (votes - result.capsules).square().sum(-1)).sum(-1).mean().item())
        members.append(C.gather(1, whole.unsqueeze(1)).mean().item())
    assert C.argmax(-1).equal(whole) and members[-1] > 0.99
    assert all(later < earlier or earlier < 1e-6 for earlier, later in pairwise(entropies))
    assert all(later < earlier + 1e-6 for earlier, later in pairwise(distances)) and distances[-1] < distances[0]
    assert all(later > earlier or earlier > 1 - 1e-6 for earlier, later in pairwise(members))
    torch.testing.assert_close(result.capsules, wholes, atol=0.2, rtol=0)


@pytest.mark.parametrize("trial", range(5))
@pytest.mark.parametrize("assignment, N", [([0, 0, 0, 1, 1, 1], 2), ([1, 1, 1, 0, 0, 0, 0, 0], 2), ([0, 1, 2] * 4, 3)],
                         ids=["even", "uneven", "three"])
def test_more_iterations_recover_the_planted_parts(assignment, N, trial):
    torch.manual_seed(trial)
    votes, wholes = part_whole(assignment, N)
    assert_sharpens(votes, wholes, assignment, (None, None))


@pytest.mark.parametrize("beta", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("N, each", [(2, 2), (3, 4)], ids=str)
def test_more_iterations_recover_the_planted_parts_with_activations(N, each, beta):
    votes, wholes = symmetric(N, each)
    beta_a, beta_mu = torch.full((2, N), beta, dtype=torch.float64)
    assert_sharpens(votes, wholes, [n for n in range(N) for _ in range(each)], (beta_a, beta_mu))


def mixture_log_likelihood(V: list, mu: list, sigma: list) -> float:
    """Σ_m log (1/N) Σ_n Π_i N(V_mn^i | μ_n^i, σ_n^i): every part is drawn from one of N equally likely capsules."""
    N = len(mu)
    return sum(math.log(sum(math.prod(map(density, v[n], mu[n], sigma[n])) for n in range(N)) / N) for v in V)


@pytest.mark.parametrize("trial", range(5))
@pytest.mark.parametrize("M, N, D", [(8, 2, 1), (12, 2, 2), (12, 3, 1), (20, 4, 3)], ids=str)
def test_without_activations_the_likelihood_does_not_fall(M, N, D, trial):
    torch.manual_seed(trial)
    votes = normal(M, N, D)
    likelihoods = []
    for T in range(1, 9):
        S, mu, sigma = m_step_by_hand(votes.tolist(), coupling_before(votes, T).tolist())
        likelihoods.append(mixture_log_likelihood(votes.tolist(), mu, sigma))
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 0.05


# Gradients, hard inputs, precision

@with_and_without
@pytest.mark.parametrize("scale", [True, False], ids=["scaled", "means"])
@pytest.mark.parametrize("M, N, D, T", [(5, 3, 2, 1), (5, 3, 2, 3), (6, 2, 1, 2), (4, 1, 2, 3)], ids=str)
def test_gradcheck_em_routing(M, N, D, T, scale, active):
    votes = normal(2, M, N, D).requires_grad_()
    beta = [b.requires_grad_() for b in betas(N)] if active else []
    assert torch.autograd.gradcheck(lambda v, *b: tuple(em_routing(v, *b, iterations=T, scale_by_activation=scale)),
                                    (votes, *beta))


def assert_finite(result, inputs):
    """All results and all their gradients with respect to all inputs are finite float32."""
    for tensor in result:
        assert tensor.dtype == torch.float32 and tensor.isfinite().all()
        if tensor.requires_grad:
            slopes = torch.autograd.grad((tensor * torch.randn_like(tensor)).sum(), inputs, retain_graph=True,
                                         allow_unused=True)
            assert all(slope is None or slope.isfinite().all() for slope in slopes)
    torch.testing.assert_close(result.coupling.sum(-1), torch.ones_like(result.coupling[..., 0]))


@with_and_without
def test_hard_inputs_stay_finite(hard_votes, precision, active):
    beta = [b.requires_grad_() for b in betas(hard_votes.shape[-2], dtype=torch.float32)] if active else []
    with precision:
        result = em_routing(hard_votes, *beta)
    assert_finite(result, (hard_votes, *beta))


@pytest.mark.parametrize("beta", [-1e4, 1e4])
def test_a_capsule_that_loses_all_parts_stays_finite(beta):
    votes, beta_a = torch.randn(2, 4, 3, 5).requires_grad_(), torch.tensor([0.0, beta, 0.0], requires_grad=True)
    result = em_routing(votes, beta_a, torch.zeros(3))
    assert_finite(result, (votes, beta_a))
    if beta < 0:
        assert not result.coupling[..., 1].any() and not result.activations[..., 1].any()


def test_a_capsule_with_next_to_no_parts_keeps_its_weighted_mean():
    """μ_n = Σ_m C_mn V_mn / S_n also where S_n is 1e-20: here β_A nearly closes the second capsule."""
    votes, beta_a, beta_mu = normal(4, 3, 2), torch.tensor([0, -45, 0]).double(), torch.zeros(3).double()
    assert em_routing(votes, beta_a, beta_mu, 1).coupling[:, 1].sum() < 1e-15
    mu, A, C = em_by_hand(votes.tolist(), beta_a.tolist(), beta_mu.tolist(), 2)
    result = em_routing(votes, beta_a, beta_mu, 2, scale_by_activation=False)
    torch.testing.assert_close(result.capsules, votes.new_tensor(mu))


@with_and_without
def test_zero_votes_give_zero_capsules_and_an_even_coupling(active):
    result = em_routing(torch.zeros(4, 5, 3), *([torch.zeros(5)] * 2 if active else (None, None)))
    assert not result.capsules.any()
    torch.testing.assert_close(result.coupling, torch.full((4, 5), 0.2))


@with_and_without
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_autocast_changes_nothing(dtype, active):
    votes, beta = normal(2, 4, 3, 5, dtype=dtype), betas(3, active, dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = em_routing(votes, *beta)
    for got, want in zip(inside, em_routing(votes, *beta)):
        assert got.dtype == dtype and torch.equal(got, want)


@with_and_without
def test_bfloat16_votes_are_routed_in_float32(active):
    votes, beta = normal(2, 6, 3, 4).bfloat16().requires_grad_(), betas(3, active, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = em_routing(votes, *beta)
    for got, want in zip(result, em_routing(votes.detach().float(), *beta)):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want)
    (slope,) = torch.autograd.grad(result.capsules.sum(), votes)
    assert slope.dtype == torch.bfloat16 and slope.isfinite().all() and slope.any()
