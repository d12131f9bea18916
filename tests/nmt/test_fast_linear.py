"""The fast linear map: the numbers and gradients of `F.linear`, whichever library makes them."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from nmt import fast_linear
from nmt.fast_linear import FEW_ROWS, ROWS, SMALL, add_outer, by_onednn, linear, product
from nmt.loss import Objective
from transformer import Transformer, TransformerConfig

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
pytestmark = pytest.mark.skipif(not ONEDNN, reason="this torch has no linear map of oneDNN")

# (rows, how many of them are in whole blocks)
SIZES = [(1, 0), (SMALL - 1, 0), (SMALL, SMALL), (SMALL + 1, SMALL), (5 * SMALL, 5 * SMALL),
         (FEW_ROWS, FEW_ROWS), (FEW_ROWS + ROWS - 1, FEW_ROWS)]


@pytest.fixture
def blocks(monkeypatch):
    """On any processor as on one where oneDNN is faster; a list of the rows that it gets."""
    seen = []

    def counted(x, *arguments):
        seen.append(len(x))
        return by_onednn(x, *arguments)
    monkeypatch.setattr(fast_linear, "faster", lambda: True)
    monkeypatch.setattr(fast_linear, "by_onednn", counted)
    return seen


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("rows", "whole"), SIZES)
def test_linear_and_its_gradients_are_those_of_torch(rows, whole, with_bias, blocks):
    x = torch.randn(rows, 24, requires_grad=True)
    weight = torch.randn(40, 24, requires_grad=True)
    inputs = [x, weight]
    if with_bias:
        inputs.append(torch.randn(40, requires_grad=True))
    ours = linear(*inputs)
    theirs = F.linear(*inputs)
    close(ours, theirs)
    dy = torch.randn(rows, 40)
    for mine, other in zip(torch.autograd.grad(ours, inputs, dy),
                           torch.autograd.grad(theirs, inputs, dy), strict=True):
        close(mine, other)
    # forward, dx, and dW, whose rows are the outputs
    assert blocks == ([whole, whole, 40] if whole else [])


def test_linear_of_sentences_and_of_strided_tensors(blocks):
    x = torch.randn(24, 50, 9).mT                                            # [24, 9, 50]: 216 rows
    weight = torch.randn(30, 3, 50)[:, 1]
    y = linear(x, weight)
    assert y.shape == (24, 9, 30)
    close(y, F.linear(x, weight))
    assert blocks == [208]


@pytest.mark.parametrize("needed", [0, 1, 2])
def test_linear_gives_the_gradients_that_are_asked_for(needed, blocks):
    inputs = [torch.randn(SMALL, 5), torch.randn(6, 5), torch.randn(6)]
    inputs[needed].requires_grad_()
    linear(*inputs).sum().backward()
    ours = inputs[needed].grad
    inputs[needed].grad = None
    F.linear(*inputs).sum().backward()
    close(ours, inputs[needed].grad)
    assert len(blocks) == (1 if needed == 2 else 2)


@pytest.mark.parametrize(("rows", "whole"), SIZES)
def test_add_outer_adds_to_what_is_there(rows, whole, blocks):
    y = torch.randn(rows, 7)
    x = torch.randn(rows, 5)
    total = torch.ones(7, 5)
    found = add_outer(total, y, x)
    assert found is total
    close(total, 1 + y.T @ x)
    assert blocks == ([7] if whole else [])


@pytest.mark.parametrize("shape", [(5,), (SMALL, 5), (2, SMALL, 5), (0, 5), (0, 3, 5)])
@torch.no_grad()
def test_linear_without_a_gradient(shape, blocks):
    x = torch.randn(shape)
    weight = torch.randn(7, 5)
    y = linear(x, weight)
    assert y.shape == (*shape[:-1], 7)
    close(y, F.linear(x, weight))
    assert sum(blocks) == x.numel() // 5 // SMALL * SMALL


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_stay_with_torch(dtype, blocks):
    x = torch.randn(SMALL, 8, dtype=dtype)
    weight = torch.randn(4, 8, dtype=dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert torch.equal(product(x, weight), F.linear(x, weight))
    assert not blocks


def test_autocast_stays_with_torch(blocks):
    x = torch.randn(SMALL, 8)
    weight = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    assert not blocks


def test_other_processors_stay_with_torch(monkeypatch):
    def asked(model, capability):
        fast_linear.faster.cache_clear()
        monkeypatch.setattr(fast_linear, "processor", lambda device: model)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        return fast_linear.faster()
    assert not asked("Intel(R) Xeon(R) Processor", "AVX512")
    assert not asked("AMD EPYC 7551", "AVX2")
    assert asked("AMD EPYC 9755", "AVX512") == torch.backends.mkl.is_available()
    fast_linear.faster.cache_clear()


@pytest.mark.parametrize("faster", [True, False])
def test_only_a_processor_on_which_it_is_faster_gets_it(faster, monkeypatch):
    monkeypatch.setattr(fast_linear, "faster", lambda: faster)
    model = nn.Sequential(nn.Linear(5, 7))
    assert fast_linear.install(model) is model
    assert (type(model[0]) is fast_linear.FastLinear) == faster
    assert repr(model[0]) == repr(nn.Linear(5, 7)).replace("Linear", type(model[0]).__name__)


def test_a_model_trains_with_the_same_gradients(blocks):
    torch.manual_seed(1)
    config = TransformerConfig(50, d_model=16, heads=2, layers=2, d_ff=32, dropout=0.0, agg="em",
                               agg_at=("enc:1",))
    model = Transformer(config)
    source = torch.randint(4, 50, (20, 8))
    target = torch.randint(4, 50, (20, 9))
    gradients = []
    for _ in range(2):
        model.zero_grad()
        loss, _ = Objective(model)(source, target, 160, 0.1)
        loss.backward()
        gradients.append([loss.detach()] + [p.grad.clone() for p in model.parameters()])
        fast_linear.install(model)
    calls = len(blocks)
    for plain, fast in zip(*gradients, strict=True):
        close(plain, fast)
    # three products each of every linear map; cross-attention has two of its one in_proj, and the
    # loss is the same in both models
    maps = sum(isinstance(module, nn.Linear) for module in model.modules()) - 1
    assert calls == 3 * (maps + config.layers) + 2 * 3
