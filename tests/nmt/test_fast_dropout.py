"""Tests of nmt/fast_dropout.py: its rate, its randomness, and that all else is as without it."""

import copy

import pytest
import torch
import torch.nn.functional as F

from attention import MultiHeadAttention
from nmt import fast_dropout
from transformer import Transformer, TransformerConfig


def model(dropout, **settings):
    """A model of a few numbers in float64, in training, and the same with the fast dropout."""
    config = TransformerConfig(30, 8, 2, 2, 16, dropout=dropout, **settings)
    plain = Transformer(config).double().train()
    return plain, fast_dropout.install(copy.deepcopy(plain))


def ids():
    """source [3, 5], target [3, 4], padded."""
    source = torch.randint(3, 30, (3, 5))
    target = torch.randint(3, 30, (3, 4))
    source[1, 3:] = 0
    target[2, 2:] = 0
    return source, target


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_has_its_rate_and_keeps_the_mean(rate, dtype):
    """Zeros are binomial: a million draws tell 0.1 from 0.101; also in each of the four places of
    a word."""
    noise = fast_dropout.noise(torch.Size((1000, 1001)), rate, dtype)
    assert noise.shape == (1000, 1001) and noise.dtype == dtype
    values = noise.unique()
    assert values.tolist() == [0, torch.ones((), dtype=dtype).div(1 - rate).item()]
    zeros = (noise == 0).flatten().double()
    assert zeros.mean().item() == pytest.approx(
        rate, abs=5 * (rate * (1 - rate) / zeros.numel()) ** 0.5
    )
    for place in range(4):
        assert zeros[place::4].mean().item() == pytest.approx(rate, abs=0.005)


def test_neighbours_are_independent():
    zeros = (fast_dropout.noise(torch.Size((4_000_000,)), 0.5, torch.float32) == 0).float() - 0.5
    for distance in range(1, 9):
        # five standard deviations
        assert (4 * zeros[distance:] * zeros[:-distance]).mean().abs() < 0.0025


def test_it_comes_from_torchs_generator():
    """What a checkpoint saves is enough to draw the same again."""
    state = torch.get_rng_state()
    first = fast_dropout.noise(torch.Size((7, 3)), 0.3, torch.float32)
    second = fast_dropout.noise(torch.Size((7, 3)), 0.3, torch.float32)
    torch.set_rng_state(state)
    assert torch.equal(fast_dropout.noise(torch.Size((7, 3)), 0.3, torch.float32), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_without_chance_nothing_changes(norm, monkeypatch):
    """Every site, with a fixed pattern in the place of the noise: F.dropout's and the fast one's
    are the same model."""

    def pattern(x):
        return 1 + 0.5 * torch.sin(torch.arange(x.numel(), dtype=x.dtype)).view(x.shape)

    def fixed(x, p=0.5, training=True, inplace=False):
        return x * pattern(x) if training else x

    plain, fast = model(0.3, norm=norm)
    source, target = ids()
    monkeypatch.setattr(fast_dropout, "dropout", lambda x, rate, training: fixed(x, rate, training))
    monkeypatch.setattr(F, "dropout", fixed)
    found, _ = fast(source, target)
    expected, _ = plain(source, target, need_weights=True)  # the path that calls F.dropout
    torch.testing.assert_close(found[target != 0], expected[target != 0], rtol=1e-10, atol=1e-12)


def test_nothing_is_dropped_outside_training():
    plain, fast = model(0.3)
    source, target = ids()
    assert torch.equal(fast.eval()(source, target)[0], plain.eval()(source, target)[0])


def test_a_rate_of_zero_is_no_dropout():
    plain, fast = model(0.0)
    source, target = ids()
    assert torch.equal(fast(source, target)[0], plain(source, target)[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [None, (2, 1, 1, 5), (2, 1, 5, 5), (5, 5)])
def test_attention_is_the_fused_one(shape, causal, monkeypatch):
    """Masks of every shape; values and gradients, dropout aside."""
    monkeypatch.setattr(fast_dropout, "dropout", lambda x, rate, training: x)
    plain = MultiHeadAttention(8, 2, dropout=0.5).double()
    fast = fast_dropout.install(copy.deepcopy(plain)).train()
    mask = None
    if shape:
        mask = torch.rand(shape) < 0.6
        mask[..., 0] = True
    results = []
    for attention in (plain.eval(), fast):
        x = torch.linspace(-1, 1, 80, dtype=torch.float64).view(2, 5, 8).requires_grad_()
        out, _ = attention(x, x, mask, causal=causal)
        results.append(
            (
                out,
                *torch.autograd.grad(
                    (out * out.detach().cos()).sum(), [x, attention.in_proj.weight]
                ),
            )
        )
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_installing_leaves_names_and_rates_alone():
    plain, fast = model(0.3)
    assert plain.state_dict().keys() == fast.state_dict().keys()
    rates = [module.p for module in fast.modules() if isinstance(module, torch.nn.Dropout)]
    assert rates == [module.p for module in plain.modules() if isinstance(module, torch.nn.Dropout)]
    assert all(type(module) is not torch.nn.Dropout for module in fast.modules())
