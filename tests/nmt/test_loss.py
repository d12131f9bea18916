"""nmt/loss.py: the loss is torch's cross-entropy of the logits, in values and gradients."""
import math

import pytest
import torch
import torch.nn.functional as F

from nmt.loss import smoothed_cross_entropy


def arguments(n=11, V=7, d=5, dtype=torch.float64):
    """hidden [n, d] and weight [V, d], which take gradients, and target [n]."""
    return (torch.randn(n, d, dtype=dtype, requires_grad=True),
            torch.randn(V, d, dtype=dtype, requires_grad=True), torch.randint(V, (n,)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("n, scale", [(1, 1.0), (11, 1.0), (11, 1e4)])
def test_it_is_cross_entropy(n, scale, smoothing):
    hidden, weight, target = arguments(n)
    hidden = scale * hidden
    nll = smoothed_cross_entropy(hidden, weight, target, smoothing)
    expected = F.cross_entropy(hidden @ weight.T, target, reduction="sum",
                               label_smoothing=smoothing)
    torch.testing.assert_close(nll, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(-0.3 * loss, (hidden, weight)) for loss in (nll, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_smoothing_by_hand():
    """The logits 0 and log 3 are P = 1/4 and 3/4; of 0.2, each word gets 0.1."""
    hidden = torch.ones(1, 1)
    weight = torch.tensor([[0.0], [math.log(3)]])
    loss = smoothed_cross_entropy(hidden, weight, torch.tensor([1]), 0.2)
    expected = -(0.1 * math.log(1 / 4) + 0.9 * math.log(3 / 4))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_under_autocast_it_is_about_the_same():
    hidden, weight, target = arguments(20, 50, 16, torch.float32)
    expected = F.cross_entropy(hidden @ weight.T, target, reduction="sum", label_smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        nll = smoothed_cross_entropy(hidden, weight, target, 0.1)
    torch.testing.assert_close(nll, expected, rtol=0.01, atol=0)
    for a, b in zip(torch.autograd.grad(nll, (hidden, weight)),
                    torch.autograd.grad(expected, (hidden, weight))):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02 * b.abs().max().item())
