"""Tests of disagreement.py: Li et al. 2018, Eq. 1-3 (Eq. 5-7 of Li et al. 2021), against the
printed double sums."""
import itertools
import math

import pytest
import torch
from by_hand import cosine_double_sum, position_double_sum, squared_difference
from helpers import normal

from disagreement import (
    output_disagreement,
    position_disagreement,
    squared_position_disagreement,
    subspace_disagreement,
)

SHAPES = [((), 1, 1, 1), ((), 3, 4, 2), ((1,), 2, 1, 5), ((2,), 1, 3, 4), ((3,), 4, 5, 1),
          ((2, 3), 8, 4, 3)]                                                 # lead, H, L, width
every_kind = pytest.mark.parametrize("D", [
    subspace_disagreement, position_disagreement, output_disagreement,
    squared_position_disagreement])
both_cosines = pytest.mark.parametrize("D", [subspace_disagreement, output_disagreement])


def right_padding(lead: tuple, L: int) -> torch.Tensor:
    """A mask [*lead, L] with lengths L, 1, 2, ... (never 0) in turn."""
    lengths = [L] + [1 + i % L for i in range(math.prod(lead) - 1)]
    return torch.arange(L) < torch.tensor(lengths).view(*lead, 1)


@pytest.fixture(params=itertools.product(SHAPES, ["all", "masked"]), ids=str)
def heads(request):
    """Random vectors [..., H, L, width], and a mask [L] or [B, L], or None."""
    (lead, H, L, width), masked = request.param
    return normal(*lead, H, L, width), right_padding(lead[-1:], L) if masked == "masked" else None


def assert_scalar(value, expected):
    """`value` is a float64 scalar equal to `expected`."""
    assert value.shape == () and value.dtype == torch.float64
    assert value.item() == pytest.approx(expected, abs=1e-9)


# The equations


@both_cosines
def test_li2018_eq1_eq3_li2021_eq5_eq7_cosines_of_any_shape(heads, D):
    vectors, mask = heads
    assert_scalar(D(vectors, mask), cosine_double_sum(vectors, mask))


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_li2018_eq2_footnote2_li2021_eq6_positions_of_any_shape(heads, reduce):
    logits, mask = heads
    weights = logits.softmax(-1)
    assert_scalar(position_disagreement(weights, mask, reduce),
                  position_double_sum(weights, mask, reduce))
    assert_scalar(squared_position_disagreement(weights, mask, reduce),
                  position_double_sum(weights, mask, reduce, squared_difference))


@pytest.mark.parametrize("options, message", [
    ({"reduce": "mean"}, r"give \[..., L\], here \[2, 4\]"),
    ({"reduce": "sum"}, r"give \[..., L\], here \[2, 4\]"), ({"reduce": "median"}, "'median'")])
def test_the_mask_of_an_attention_or_another_reduce_is_an_error(options, message):
    mask = torch.ones(2, 1, 1, 4, dtype=torch.bool)                          # [B, 1, 1, L]
    with pytest.raises(ValueError, match=message):
        position_disagreement(normal(2, 3, 4, 4), mask, **options)


# Known values


@both_cosines
@pytest.mark.parametrize("heads, score", [
    (torch.eye(8), -1 / 8),              # Li 2018 Table 4, baseline: exp(-1/8) = 0.882
    # a zero vector has cosine 0 with everything: 3 x 3 of the 4 x 4 pairs agree
    (torch.tensor([[1], [1], [1], [0]]), -9 / 16),
    # the shortest vector that has a direction
    (torch.tensor([[1], [2e-12]]), -1.0), (torch.tensor([[1], [5e-13]]), -1 / 4)])
def test_li2018_known_values(D, heads, score):
    assert_scalar(D(heads.double().unsqueeze(1)), score)


# Masks


@every_kind
@pytest.mark.parametrize("garbage", [1.0, 1e15])
def test_padded_positions_change_nothing(D, garbage):
    mask = right_padding((3,), 4)                                            # [B, L]
    hidden = ~mask[:, None, :, None]
    x = normal(3, 2, 4, 5).softmax(-1).requires_grad_()
    other = torch.where(hidden, garbage * torch.rand_like(x), x).detach().requires_grad_()
    slope, = torch.autograd.grad(D(x, mask), x)
    slope_other, = torch.autograd.grad(D(other, mask), other)
    assert torch.equal(D(other, mask), D(x, mask))
    assert torch.equal(slope_other, slope)
    assert not slope.masked_select(hidden).any()
    assert D(other, torch.zeros_like(mask)).item() == 0


# Gradients, hard inputs, precision


@pytest.mark.parametrize("mask", [None, right_padding((2,), 3)], ids=["all", "masked"])
@every_kind
def test_gradcheck(D, mask):
    x = normal(2, 4, 3, 5).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: D(x, mask), x, fast_mode=True)


@every_kind
def test_hard_inputs_stay_finite(D):
    """A head whose one attended position is dropped puts out next to nothing."""
    x = torch.randn(2, 4, 3, 5)
    hard_inputs = [torch.ones_like(x), x[:, :1], 0 * x, 1e-4 * x, 1e4 * x]
    for size in (0, 1e-8, 1e-16, 1e-40):
        hard_inputs.append(x * torch.tensor([1, size, 1, 1]).view(4, 1, 1))
    for hard in hard_inputs:
        heads = hard.clone().requires_grad_()
        disagreement = D(heads)
        slope, = torch.autograd.grad(disagreement, heads)
        assert disagreement.isfinite() and slope.norm().isfinite()
        exact = D(heads.detach().double()).item()
        assert disagreement.item() == pytest.approx(exact, rel=1e-5, abs=1e-5)


@every_kind
def test_half_precision_is_computed_in_float32(D, precision):
    x = torch.randn(3, 4, 5, 6).softmax(-1).bfloat16().requires_grad_()
    mask = right_padding((3,), 5)
    with precision:
        disagreement = D(x, mask)
    assert disagreement.dtype == torch.float32
    assert disagreement.item() == D(x.detach().float(), mask).item()
    slope, = torch.autograd.grad(disagreement, x)
    assert slope.dtype == x.dtype and slope.isfinite().all() and slope.any()
