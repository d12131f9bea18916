"""Tests of routing_dynamic.py: Li et al. 2019 Alg. 1 and Eq. 7-8, Gu et al. 2019 Eq. 8-11, Duan et
al. 2020 Alg. 1."""
import by_hand
import pytest
import torch
from helpers import assert_finite, normal
from torch.testing import assert_close

from routing_dynamic import agreement, dynamic_routing, masked_log_softmax, squash, weigh_votes

SIZES = [(1, 1, 1), (1, 4, 3), (4, 1, 3), (3, 5, 1), (6, 2, 4), (2, 3, 5)]           # M, N, D
every_size = pytest.mark.parametrize("M, N, D", SIZES, ids=str)
ROUTINGS = [((), 1, 1, 1, 3), ((), 3, 5, 1, 1), ((1,), 1, 4, 3, 2), ((2, 3), 4, 1, 3, 3),
            ((2,), 6, 2, 4, 5), ((2, 3), 2, 3, 5, 2)]    # leading dimensions, M, N, D, iterations
every_routing = pytest.mark.parametrize("lead, M, N, D, T", ROUTINGS, ids=str)
both_kinds = pytest.mark.parametrize("normalize", [True, False], ids=["li2019", "sabour2017"])


# Squashing


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 3, 1)], ids=str)
def test_li2019_eq8_li2021_eq11_gu_eq10_duan_eq6_of_any_shape(shape, size):
    s = size * normal(*shape)
    want = [by_hand.squash(row) for row in s.reshape(-1, shape[-1]).tolist()]
    assert_close(squash(s), s.new_tensor(want).view(shape), atol=0, rtol=1e-6)


def test_squash_works_along_any_dimension():
    s = normal(3, 4, 5)
    assert_close(squash(s, dim=0), squash(s.movedim(0, -1)).movedim(-1, 0))


def test_squash_of_zero_is_zero_with_gradient_zero():
    s = torch.zeros(2, 3, requires_grad=True)
    slope, = torch.autograd.grad(squash(s).sum(), s)
    assert not squash(s).any() and not slope.any()       # ‖squash(s)‖ ~ ‖s‖²: flat at 0


# The equations, one by one


@both_kinds
@every_size
def test_li2019_eq7_li2021_eq10_gu_eq8_duan_eq7(M, N, D, normalize):
    """s_n is Σ_m C_mn V_mn, divided by Σ_m C_mn in Li 2019, also where a capsule has next to no
    parts; 0 for one that does not exist."""
    V = normal(2, M, N, D)
    C = normal(2, M, N).softmax(-1)
    C[..., 0] *= 1e-20
    exists = torch.arange(N) > 0
    s = weigh_votes(V, C.log(), normalize)
    for b, (votes, coupling) in enumerate(zip(V.tolist(), C.tolist())):
        want = [by_hand.weighted_votes(votes, coupling, n, normalize) for n in range(N)]
        assert_close(s[b], V.new_tensor(want))
    masked = s.masked_fill(~exists.unsqueeze(-1), 0)
    assert_close(weigh_votes(V, C.log(), normalize, exists), masked)


@every_size
def test_gu_eq9(M, N, D):
    """The coupling is the softmax of the logits over the output capsules."""
    B = 3 * normal(M, N)
    want = [by_hand.softmax(row) for row in B.tolist()]
    assert_close(masked_log_softmax(B).exp(), B.new_tensor(want))


@every_size
def test_gu_eq11(M, N, D):
    """An iteration adds the dot product of capsule and vote to the logits."""
    V = normal(M, N, D)
    capsules = normal(N, D)
    want = []
    for V_m in V.tolist():
        want.append([by_hand.dot(omega, V_mn) for omega, V_mn in zip(capsules.tolist(), V_m)])
    two = agreement(torch.stack([V, V]), torch.stack([capsules, 2 * capsules]))
    assert_close(two, V.new_tensor(want) * V.new_tensor([1, 2]).view(2, 1, 1))


# The algorithms


@both_kinds
@every_routing
def test_li2019_alg1_li2021_alg1_duan_alg1_gu_eq4_of_any_shape(lead, M, N, D, T, normalize):
    votes = normal(*lead, M, N, D)
    result = dynamic_routing(votes, T, normalize)
    items = votes.reshape(-1, M, N, D).tolist()
    expected = zip(*[by_hand.dynamic_routing(item, T, normalize) for item in items])
    for got, want, shape in zip(result, expected, ((N, D), (M, N), (M, N)), strict=True):
        assert_close(got, votes.new_tensor(want).view(*lead, *shape))


# Masks

# [B, N]
EXISTS = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1]]).bool()


@pytest.mark.parametrize("garbage", [1.0, 1e15])
@both_kinds
@pytest.mark.parametrize("T", [1, 3])
def test_masked_output_capsules_behave_as_if_they_did_not_exist(T, normalize, garbage):
    votes = normal(4, 3, 4, 5)                                               # [B, M, N, D]
    votes = torch.where(EXISTS[:, None, :, None], votes, garbage * torch.rand_like(votes))
    result = dynamic_routing(votes, T, normalize, mask=EXISTS)
    assert not result.coupling.masked_select(~EXISTS.unsqueeze(1)).any()
    for b, exists in enumerate(EXISTS):
        alone = dynamic_routing(votes[b][:, exists], T, normalize)
        assert_close(result.capsules[b][exists], alone.capsules)
        assert_close(result.coupling[b][:, exists], alone.coupling)
        assert_close(result.logits[b][:, exists], alone.logits)


@both_kinds
@pytest.mark.parametrize("T", [1, 3])
def test_masked_output_capsules_are_0_and_get_no_gradient(T, normalize):
    exists = EXISTS[:, None, :, None]
    votes = normal(4, 3, 4, 5).requires_grad_()                              # [B, M, N, D]
    result = dynamic_routing(votes, T, normalize, mask=EXISTS)
    assert not result.capsules.masked_select(~EXISTS.unsqueeze(-1)).any()
    empty = dynamic_routing(votes, T, normalize, mask=torch.zeros_like(EXISTS))
    assert not empty.capsules.any() and not empty.coupling.any()
    total = result.capsules.square().sum() + result.coupling.square().sum()
    slope, = torch.autograd.grad(total, votes)
    assert slope.isfinite().all()
    assert not slope.masked_select(~exists).any() and slope.masked_select(exists).any()


# Gradients, hard inputs, precision


@pytest.mark.parametrize("mask", [None, EXISTS[1:3, :3]], ids=["all", "masked"])
@both_kinds
@pytest.mark.parametrize("T", [1, 3])
def test_gradcheck_dynamic_routing(T, normalize, mask):
    votes = normal(2, 4, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: tuple(dynamic_routing(v, T, normalize, mask))[:2], votes, fast_mode=True)


@both_kinds
def test_hard_inputs_stay_finite(hard_votes, normalize):
    result = dynamic_routing(hard_votes, 3, normalize)
    assert_finite(result, hard_votes)
    assert (result.capsules.norm(dim=-1) <= 1 + 1e-6).all()      # in float32 1 - 1e-8 is 1
    if not hard_votes.any():
        assert not result.capsules.any() and not result.logits.any()


@both_kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64],
                         ids=str)
def test_no_precision_below_float32(dtype, normalize, precision):
    votes = normal(2, 4, 3, 5).to(dtype).requires_grad_()
    exact = votes.detach().to(torch.promote_types(dtype, torch.float32))
    with precision:
        result = dynamic_routing(votes, 3, normalize, EXISTS[:2, :3])
        squashed = squash(votes)
    assert torch.equal(squashed, squash(exact))
    for got, want in zip(result, dynamic_routing(exact, 3, normalize, EXISTS[:2, :3])):
        assert got.dtype == exact.dtype and torch.equal(got, want)
    slope, = torch.autograd.grad(result.capsules.sum(), votes)
    assert slope.dtype == dtype and slope.isfinite().all() and slope.any()
