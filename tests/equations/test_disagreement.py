"""Tests of disagreement.py: Li et al. 2018, Eq. 1-3 (Eq. 5-7 of Li et al. 2021), against the
printed double sums."""

import math

import pytest
import torch
from by_hand import cosine_double_sum, position_double_sum, squared_difference
from torch import Tensor

from disagreement import (
    KINDS,
    output_disagreement,
    position_disagreement,
    squared_output_disagreement,
    squared_position_disagreement,
    squared_subspace_disagreement,
    subspace_disagreement,
)

COSINES = {"subspace": subspace_disagreement, "output": output_disagreement}
SHAPES = [
    ((), 1, 1, 1),
    ((), 3, 4, 2),
    ((1,), 2, 1, 5),
    ((2,), 1, 3, 4),
    ((3,), 4, 5, 1),
    ((2, 3), 8, 4, 3),
]
every_shape = pytest.mark.parametrize("lead, H, L, width", SHAPES, ids=str)
masked_or_not = pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
both_cosines = pytest.mark.parametrize("function", COSINES.values(), ids=COSINES.keys())
both_reductions = pytest.mark.parametrize("reduce", ["mean", "sum"])


def normal(*shape, dtype=torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, dtype=dtype)


def attention(*shape, dtype=torch.float64) -> Tensor:
    """Rows that sum to 1, as attention weights do."""
    return normal(*shape, dtype=dtype).softmax(-1)


def right_padding(lead: tuple, L: int) -> Tensor:
    """A mask [*lead, L] with lengths L, 1, 2, ... (never 0) in turn."""
    lengths = torch.tensor([L if i == 0 else 1 + (i - 1) % L for i in range(math.prod(lead))]).view(
        *lead, 1
    )
    return torch.arange(L) < lengths


# The equations


@masked_or_not
@every_shape
def test_li2018_eq1_li2021_eq5_subspace(lead, H, L, width, masked):
    values = normal(*lead, H, L, width)
    mask = right_padding(lead, L) if masked else None
    D = subspace_disagreement(values, mask)
    assert D.shape == () and D.dtype == torch.float64
    assert D.item() == pytest.approx(cosine_double_sum(values, mask), abs=1e-9)


@both_reductions
@masked_or_not
@every_shape
def test_li2018_eq2_li2021_eq6_position(lead, H, L, width, masked, reduce):
    weights = attention(*lead, H, L, width)
    mask = right_padding(lead, L) if masked else None
    D = position_disagreement(weights, mask, reduce)
    assert D.shape == () and D.dtype == torch.float64
    assert D.item() == pytest.approx(position_double_sum(weights, mask, reduce), abs=1e-12)


@masked_or_not
@every_shape
def test_li2018_eq3_li2021_eq7_output(lead, H, L, width, masked):
    outputs = normal(*lead, H, L, width)
    mask = right_padding(lead, L) if masked else None
    D = output_disagreement(outputs, mask)
    assert D.shape == () and D.dtype == torch.float64
    assert D.item() == pytest.approx(cosine_double_sum(outputs, mask), abs=1e-9)


SQUARED = {"squared-subspace": squared_subspace_disagreement,
           "squared-output": squared_output_disagreement}
both_squares = pytest.mark.parametrize("function", SQUARED.values(), ids=SQUARED.keys())


@both_squares
@masked_or_not
@every_shape
def test_squared_cosines(lead, H, L, width, masked, function):
    """-1/H² Σ_i Σ_j cos(x^i, x^j)², of the released code's commit f7cda33."""
    vectors = normal(*lead, H, L, width)
    mask = right_padding(lead, L) if masked else None
    D = function(vectors, mask)
    assert D.shape == () and D.dtype == torch.float64
    assert D.item() == pytest.approx(cosine_double_sum(vectors, mask, power=2), abs=1e-9)


@both_squares
def test_squared_cosines_are_best_for_orthogonal_heads_and_not_for_cancelling_ones(function):
    orthogonal = torch.eye(4, dtype=torch.float64).unsqueeze(1)  # [H, L=1, d_k]
    cancelling = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]).double().expand(4, 4).unsqueeze(1)
    assert function(orthogonal).item() == pytest.approx(-1 / 4)
    assert function(cancelling).item() == pytest.approx(-1.0)
    assert output_disagreement(cancelling).item() == pytest.approx(0.0)


@both_squares
def test_squared_cosines_gradcheck_and_precision(function):
    heads = normal(2, 4, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(function, heads)
    for hard in HARD.values():
        x = hard().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            D = function(x)
        (slope,) = torch.autograd.grad(D, x)
        assert D.dtype == torch.float32 and slope.isfinite().all()
        assert D.item() == pytest.approx(cosine_double_sum(x.detach().double(), power=2), abs=1e-5)


@both_reductions
@masked_or_not
@every_shape
def test_li2018_footnote2_squared_position(lead, H, L, width, masked, reduce):
    """+1/H² Σ_i Σ_j |A^i - A^j|², the sum over the cells of valid queries, per valid query or per
    sentence."""
    weights = attention(*lead, H, L, width)
    mask = right_padding(lead, L) if masked else None
    D = squared_position_disagreement(weights, mask, reduce)
    assert D.shape == () and D.dtype == torch.float64
    want = position_double_sum(weights, mask, reduce, squared_difference)
    assert D.item() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("H", [1, 2, 8])
def test_squared_position_runs_from_heads_alike_to_heads_apart(H):
    alike = attention(1, 1, 3, 8).expand(1, H, 3, 8)
    apart = torch.eye(8, dtype=torch.float64)[:H].view(1, H, 1, 8)
    assert squared_position_disagreement(alike).item() == pytest.approx(0, abs=1e-15)
    assert squared_position_disagreement(apart).item() == pytest.approx(2 - 2 / H)


def test_squared_position_gradcheck_and_unknown_reduction():
    logits = normal(2, 3, 4, 5).requires_grad_()
    mask = right_padding((2,), 4)
    assert torch.autograd.gradcheck(
        lambda x: squared_position_disagreement(x.softmax(-1), mask), logits
    )
    with pytest.raises(ValueError, match="reduce='max'"):
        squared_position_disagreement(logits.softmax(-1), mask, "max")


# Known values


@pytest.mark.parametrize("H", [1, 2, 8])
@both_cosines
def test_identical_heads_score_minus_1(function, H):
    assert function(normal(2, 1, 5, 4).expand(2, H, 5, 4)).item() == pytest.approx(-1)


@pytest.mark.parametrize("H", [1, 2, 8])
@both_cosines
def test_orthogonal_heads_score_minus_1_over_H(function, H):
    basis = torch.linalg.qr(normal(2, 5, H, H)).Q * (
        0.1 + torch.rand(2, 5, H, 1, dtype=torch.float64)
    )
    D = function(basis.transpose(1, 2))  # [B, H, L, H]
    assert D.item() == pytest.approx(-1 / H)


@both_cosines
def test_li2018_table4_baseline_is_the_score_of_8_orthogonal_heads(function):
    heads = torch.eye(8, dtype=torch.float64).view(1, 8, 1, 8)
    assert round(function(heads).exp().item(), 3) == 0.882


@both_cosines
def test_heads_that_cancel_score_0(function):
    pair = normal(2, 1, 5, 4) * torch.tensor([1.0, -3.0]).view(2, 1, 1)  # lengths do not count
    angles = torch.arange(3, dtype=torch.float64) * 2 * math.pi / 3
    # three directions, 120 degrees apart
    star = torch.stack([angles.cos(), angles.sin()], -1).view(3, 1, 2)
    for heads in (pair, star):
        assert function(heads).item() == pytest.approx(0, abs=1e-9)


@both_cosines
def test_a_zero_vector_has_cosine_0_with_everything(function):
    heads = torch.ones(4, 1, 3, dtype=torch.float64)
    heads[3] = 0
    assert function(heads).item() == pytest.approx(-9 / 16)  # 3 x 3 of the 4 x 4 pairs agree
    assert function(torch.zeros(2, 4, 3, 5)).item() == 0


@pytest.mark.parametrize("H", [1, 2, 8])
def test_identical_one_hot_rows_score_minus_1_per_query(H):
    one_hot = torch.eye(5, dtype=torch.float64)[
        torch.tensor([[0, 3, 3], [4, 1, 2]])
    ]  # [B, L_q, L_k]
    weights = one_hot.unsqueeze(1).expand(2, H, 3, 5)
    assert position_disagreement(weights).item() == pytest.approx(-1)
    # three queries a sentence
    assert position_disagreement(weights, reduce="sum").item() == pytest.approx(-3)


@pytest.mark.parametrize("H", [1, 2, 8])
def test_one_hot_rows_at_different_positions_score_minus_1_over_H(H):
    weights = torch.stack(
        [torch.eye(H, dtype=torch.float64).roll(shift, 1) for shift in range(3)], 1
    )  # [H, 3, H]
    assert position_disagreement(weights).item() == pytest.approx(-1 / H)


# Masks


@pytest.mark.parametrize("garbage", [1.0, -1e4, 1e15])
def test_padded_positions_change_nothing(garbage):
    mask = right_padding((3,), 4)  # [B, L]
    hidden = ~mask[:, None, :, None]
    for function, x in (
        (subspace_disagreement, normal(3, 2, 4, 5)),
        (output_disagreement, normal(3, 2, 4, 5)),
        (position_disagreement, attention(3, 2, 4, 5)),
    ):
        x.requires_grad_()
        other = torch.where(hidden, garbage * torch.rand_like(x), x).detach().requires_grad_()
        D = function(x, mask)
        D_other = function(other, mask)
        assert D_other.item() == D.item()
        slope, = torch.autograd.grad(D, x)
        slope_other, = torch.autograd.grad(D_other, other)
        assert torch.equal(slope_other, slope)
        assert not slope.masked_select(hidden).any()
    assert (position_disagreement(x, mask, "sum").item()
            == position_disagreement(other, mask, "sum").item())


def test_a_batch_without_valid_positions_scores_0():
    nothing = torch.zeros(2, 5, dtype=torch.bool)
    for function in (subspace_disagreement, output_disagreement, position_disagreement):
        assert function(attention(2, 3, 5, 4), nothing).item() == 0


def test_an_unknown_reduction_is_an_error():
    with pytest.raises(ValueError, match="reduce"):
        position_disagreement(attention(2, 3, 4, 4), reduce="median")


# Gradients


@masked_or_not
@both_cosines
def test_gradcheck_cosines(function, masked):
    mask = right_padding((2,), 3) if masked else None
    heads = normal(2, 4, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: function(x, mask), heads)


@both_reductions
@masked_or_not
def test_gradcheck_position(masked, reduce):
    mask = right_padding((2,), 3) if masked else None
    weights = attention(2, 4, 3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: position_disagreement(x, mask, reduce), weights)


# Hard inputs and precision

HARD = {"identical": lambda: torch.ones(2, 4, 3, 5),
        "one head": lambda: torch.randn(2, 1, 3, 5),
        "zeros": lambda: torch.zeros(2, 4, 3, 5),
        "a zero head": lambda: (
            torch.randn(2, 4, 3, 5) * torch.tensor([1.0, 0.0, 1.0, 1.0]).view(4, 1, 1)
        ),
        "1e-4": lambda: 1e-4 * torch.randn(2, 4, 3, 5),
        "1e4": lambda: 1e4 * torch.randn(2, 4, 3, 5)}


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("hard", HARD.values(), ids=HARD.keys())
@both_cosines
def test_hard_inputs_stay_finite_cosines(function, hard, amp):
    heads = hard().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        D = function(heads)
    (slope,) = torch.autograd.grad(D, heads)
    assert D.isfinite() and slope.isfinite().all()
    assert D.item() == pytest.approx(cosine_double_sum(heads.detach().double()), abs=1e-5)


@both_reductions
@pytest.mark.parametrize("amp", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 1e4])
def test_hard_inputs_stay_finite_position(size, amp, reduce):
    weights = (size * torch.rand(2, 4, 3, 5)).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        D = position_disagreement(weights, reduce=reduce)
    (slope,) = torch.autograd.grad(D, weights)
    assert D.isfinite() and slope.isfinite().all()
    assert D.item() == pytest.approx(
        position_double_sum(weights.detach().double(), reduce=reduce), rel=1e-5
    )


ALL = {name: kind.D for name, kind in KINDS.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function", ALL.values(), ids=ALL.keys())
def test_autocast_changes_nothing(function, dtype):
    x = attention(3, 4, 5, 6, dtype=dtype)
    mask = right_padding((3,), 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        D = function(x, mask)
    assert D.dtype == dtype and D.item() == function(x, mask).item()


@pytest.mark.parametrize("function", ALL.values(), ids=ALL.keys())
def test_bfloat16_is_computed_in_float32(function):
    x = attention(3, 4, 5, 6).bfloat16().requires_grad_()
    mask = right_padding((3,), 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        D = function(x, mask)
    assert D.dtype == torch.float32
    assert D.item() == pytest.approx(function(x.detach().float(), mask).item(), rel=1e-6)
    (slope,) = torch.autograd.grad(D, x)
    assert slope.dtype == torch.bfloat16 and slope.isfinite().all() and slope.any()


@pytest.mark.parametrize(("name", "settings"), [
    *((name, {}) for name in ALL),
    ("position", {"reduce": "sum"}),
    ("squared-position", {"reduce": "sum"}),
])
def test_what_stands_at_padding_does_not_count(name, settings):
    x = attention(3, 4, 5, 6)
    mask = right_padding((3,), 5)
    D = ALL[name](x, mask, **settings)
    x = x.masked_fill(~mask[:, None, :, None], math.nan)
    assert ALL[name](x, mask, **settings).item() == D.item()


@pytest.mark.parametrize("size", [1e-8, 1e-12, 1e-16, 1e-20, 1e-30, 1e-40])
def test_what_dropout_leaves_of_a_head_has_a_finite_gradient(size):
    """A head whose one attended position is dropped puts out next to nothing."""
    outputs = torch.randn(2, 4, 5, 8)
    outputs[:, 1] *= size
    outputs.requires_grad_()
    for D in (subspace_disagreement(outputs), output_disagreement(outputs)):
        (gradient,) = torch.autograd.grad(D, outputs)
        assert D.isfinite() and gradient.isfinite().all()
        assert gradient.norm().isfinite()


def test_the_shortest_vector_that_has_a_direction():
    for function in (subspace_disagreement, output_disagreement):
        for size, want in ((2e-12, -1.0), (5e-13, -1 / 4)):
            heads = torch.ones(2, 1, 1, dtype=torch.float64)
            heads[1] *= size
            assert function(heads).item() == pytest.approx(want, abs=1e-9)
