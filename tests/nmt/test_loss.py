"""nmt/loss.py: the loss without all logits equals F.cross_entropy, in values and gradients."""

import pytest
import torch
import torch.nn.functional as F

import nmt.loss
from nmt.loss import fused_piece_loss, padded_cross_entropy, piece_loss, smoothed_cross_entropy


@pytest.fixture(autouse=True)
def pieces_of_four(monkeypatch):
    """Four tokens at a time, so that a few tokens are several pieces."""
    monkeypatch.setitem(nmt.loss.TOKENS, "cpu", 4)


def arguments(n=11, V=7, d=5, dtype=torch.float64):
    """hidden [n, d] and weight [V, d], which take gradients, and target [n]."""
    return (torch.randn(n, d, dtype=dtype, requires_grad=True),
            torch.randn(V, d, dtype=dtype, requires_grad=True), torch.randint(V, (n,)))


def with_all_logits(hidden, weight, target, smoothing=0.0):
    """The same by torch."""
    return F.cross_entropy(F.linear(hidden, weight), target, reduction="sum",
                           label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("n, scale", [(0, 1.0), (1, 1.0), (4, 1e-4), (11, 1.0), (11, 1e4)])
def test_it_is_cross_entropy(n, scale, smoothing):
    """Padding does not count."""
    hidden, weight, target = arguments(n)
    hidden = scale * hidden
    target[2::3] = 0
    tokens = target != 0
    for nll, expected in (
            (smoothed_cross_entropy(hidden, weight, target, smoothing),
             with_all_logits(hidden, weight, target, smoothing)),
            (padded_cross_entropy(hidden, weight, target, smoothing, padding=0),
             with_all_logits(hidden[tokens], weight, target[tokens], smoothing))):
        torch.testing.assert_close(nll, expected, rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(-0.3 * loss, (hidden, weight)) for loss in (nll, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_compiled_pieces_are_the_same():
    """They are traced only."""
    traced = torch.compile(fused_piece_loss, backend="aot_eager", dynamic=True)
    for scale, smoothing in ((1.0, 0.1), (1e4, 0.0)):
        hidden, weight, target = arguments(11)
        hidden = scale * hidden
        results = []
        for loss_of_piece in (piece_loss, traced):
            nll = padded_cross_entropy(hidden, weight, target, smoothing, -1, loss_of_piece)
            results.append([nll, *torch.autograd.grad(nll, (hidden, weight))])
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_no_logits_are_kept():
    hidden, weight, target = arguments(40, 30, 5)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        smoothed_cross_entropy(hidden, weight, target, 0.1)
    assert sorted(kept) == [(30, 5), (40, 5)]


def test_under_autocast_only_the_products_are_rounded():
    """One token has the loss of float32 on logits in bfloat16, to float32's precision."""
    hidden, weight, _ = arguments(1, 50, 16, torch.float32)
    logits = hidden.bfloat16() @ weight.bfloat16().T
    target = logits.argmax(-1)
    expected = F.cross_entropy(logits.float(), target, label_smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        nll = smoothed_cross_entropy(hidden, weight, target, 0.1)
    torch.testing.assert_close(nll, expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(torch.autograd.grad(nll, (hidden, weight)),
                    torch.autograd.grad(expected, (hidden, weight))):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02 * b.abs().max().item())
