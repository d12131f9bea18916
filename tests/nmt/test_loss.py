"""nmt/loss.py: the loss is torch's cross-entropy of the logits, in values and gradients."""
import math

import pytest
import torch
import torch.nn.functional as F

from nmt.loss import smoothed_cross_entropy


def test_smoothing_by_hand():
    """The logits 0 and log 3 are P = 1/4 and 3/4; of 0.2, each word gets 0.1. Two of three tokens
    are no padding."""
    hidden = torch.ones(3, 1)
    weight = torch.tensor([[0.0], [math.log(3)]])
    loss = smoothed_cross_entropy(hidden, weight, torch.tensor([1, 0, 1]), 0.2, padding=0)
    expected = -2 * (0.1 * math.log(1 / 4) + 0.9 * math.log(3 / 4))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_under_autocast_it_is_about_the_same():
    hidden = torch.randn(20, 16, requires_grad=True)
    weight = torch.randn(50, 16, requires_grad=True)
    target = torch.randint(50, (20,))
    expected = F.cross_entropy(hidden @ weight.T, target, reduction="sum", label_smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        nll = smoothed_cross_entropy(hidden, weight, target, 0.1)
    torch.testing.assert_close(nll, expected, rtol=0.01, atol=0)
    for a, b in zip(torch.autograd.grad(nll, (hidden, weight)),
                    torch.autograd.grad(expected, (hidden, weight))):
        torch.testing.assert_close(a, b, rtol=0, atol=0.02 * b.abs().max().item())
