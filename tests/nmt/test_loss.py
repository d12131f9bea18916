"""Tests of nmt/loss.py: the loss without the logits equals F.cross_entropy, in values, gradients
and precision."""

import math

import by_hand
import pytest
import torch
import torch.nn.functional as F

import nmt.loss
from nmt.loss import of_tokens, smoothed_cross_entropy


@pytest.fixture(autouse=True)
def pieces_of_four(monkeypatch):
    """Four tokens at a time, so that a few tokens are several pieces."""
    monkeypatch.setitem(nmt.loss.TOKENS, "cpu", 4)


def arguments(n=11, V=7, d=5, dtype=torch.float64):
    """hidden [n, d], weight [V, d], which take gradients, and target [n]."""
    return (
        torch.randn(n, d, dtype=dtype, requires_grad=True),
        torch.randn(V, d, dtype=dtype, requires_grad=True),
        torch.randint(V, (n,)),
    )


def usual(hidden, weight, target, smoothing=0.0):
    """The same with all the logits."""
    return F.cross_entropy(
        F.linear(hidden, weight), target, reduction="sum", label_smoothing=smoothing
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("n", [0, 1, 4, 11])
def test_it_is_cross_entropy(n, smoothing):
    hidden, weight, target = arguments(n)
    found = smoothed_cross_entropy(hidden, weight, target, smoothing)
    expected = usual(hidden, weight, target, smoothing)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(-0.3 * found, (hidden, weight)),
        torch.autograd.grad(-0.3 * expected, (hidden, weight)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_it_is_the_sum_that_stands_above_it():
    """`logsumexp(z) - (1 - eps) z_y - eps mean(z)`, by a loop over tokens and words."""
    hidden, weight, target = arguments()
    total, eps = 0.0, 0.1
    for h, y in zip(hidden.tolist(), target.tolist()):
        z = [by_hand.dot(h, w) for w in weight.tolist()]
        total += math.log(sum(map(math.exp, z))) - (1 - eps) * z[y] - eps * sum(z) / len(z)
    assert smoothed_cross_entropy(hidden, weight, target, eps).item() == pytest.approx(
        total, rel=1e-12
    )


def test_gradcheck():
    hidden, weight, target = arguments()
    assert torch.autograd.gradcheck(
        lambda h, w: smoothed_cross_entropy(h, w, target, 0.1), (hidden, weight)
    )


def test_a_weight_that_is_embedding_too_gets_both_gradients():
    _, weight, target = arguments()
    ids = torch.randint(7, (11,))
    for loss in (smoothed_cross_entropy, usual):
        loss(F.embedding(ids, weight), weight, target, 0.1).backward()
    twice, weight.grad = weight.grad, None
    usual(F.embedding(ids, weight), weight, target, 0.1).backward()
    torch.testing.assert_close(twice, 2 * weight.grad, rtol=1e-12, atol=1e-12)


def test_only_what_has_the_shape_of_the_arguments_is_kept():
    hidden, weight, target = arguments(40, 30, 5)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        smoothed_cross_entropy(hidden, weight, target, 0.1)
    assert sorted(kept) == [(30, 5), (40, 5)]


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_float32_is_finite_and_right_at_any_scale(scale):
    hidden, weight, target = arguments(dtype=torch.float32)
    small = (hidden.detach() * scale).requires_grad_()
    exact = (hidden.detach().double() * scale).requires_grad_()
    found = smoothed_cross_entropy(small, weight, target, 0.1)
    expected = usual(exact, weight.double(), target, 0.1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(found, small)
    torch.testing.assert_close(
        gradient.double(), torch.autograd.grad(expected, exact)[0], rtol=1e-4, atol=1e-4
    )


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    hidden, weight, target = arguments(200, 50, 16, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = smoothed_cross_entropy(hidden, weight, target, 0.1)
        expected = usual(hidden, weight, target, 0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    # it did round
    assert not torch.equal(found, smoothed_cross_entropy(hidden, weight, target, 0.1))
    for ours, theirs in zip(
        torch.autograd.grad(found, (hidden, weight)),
        torch.autograd.grad(expected, (hidden, weight)),
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02 * theirs.abs().max().item())


def test_without_gradients():
    hidden, weight, target = arguments()
    expected = usual(hidden, weight, target)
    with torch.no_grad():
        found = smoothed_cross_entropy(hidden, weight, target)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    with torch.inference_mode():
        assert torch.equal(smoothed_cross_entropy(hidden, weight, target), found)


def test_padding_is_left_out():
    """Wherever it stands, as cross_entropy's ignore_index."""
    hidden = torch.randn(3, 4, 5, requires_grad=True)
    weight = torch.randn(7, 5, requires_grad=True)
    target = torch.tensor([[3, 0, 1, 0], [2, 2, 6, 5], [0, 0, 0, 0]])
    found = of_tokens(hidden, weight, target, 6, 0.1)
    expected = F.cross_entropy(
        (hidden @ weight.T).flatten(0, 1),
        target.flatten(),
        ignore_index=0,
        reduction="sum",
        label_smoothing=0.1,
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, hidden)[0], torch.autograd.grad(expected, hidden)[0]
    )
