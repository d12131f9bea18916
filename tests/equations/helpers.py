"""Shared by several tests of the equations."""
import math

import pytest
import torch
from torch import Tensor

from aggregation import RoutingAggregation
from attention import LinearAggregation
from capsule_aggregation import CapsuleAggregation

AGGREGATIONS = ["linear", "dynamic", "em", "gu-dynamic", "gu-em"]
every_aggregation = pytest.mark.parametrize("agg", AGGREGATIONS)


def build_aggregation(agg: str, d: int, heads: int) -> torch.nn.Module:
    """An aggregation by its name in --agg."""
    if agg == "linear":
        return LinearAggregation(d)
    kind = CapsuleAggregation if agg.startswith("gu-") else RoutingAggregation
    return kind(d, heads, routing=agg.removeprefix("gu-"))


def normal(*shape, dtype=torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, dtype=dtype)


def close(x: Tensor, y: Tensor, tolerance: float = 1e-10) -> bool:
    """Whether two tensors have the same shape and, up to rounding, the same numbers."""
    return x.shape == y.shape and torch.allclose(x, y, rtol=tolerance, atol=tolerance)


def assert_finite(result, *inputs: Tensor) -> None:
    """Asserts that the results of a routing are finite float32, and their gradients finite; the
    couplings of an input capsule sum to 1."""
    for tensor in result:
        assert tensor.dtype == torch.float32 and tensor.isfinite().all()
        if tensor.requires_grad:
            slopes = torch.autograd.grad((tensor * torch.randn_like(tensor)).sum(), inputs,
                                         retain_graph=True, allow_unused=True)
            assert all(slope is None or slope.isfinite().all() for slope in slopes)
    sums = result.coupling.sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def padding(*lengths: int) -> Tensor:
    """[B, 1, 1, L], True at the first keys of each sentence."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])[:, None, None]


@torch.no_grad()
def randomize(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64 with random parameters: no zero bias and no unit gain hides an
    error."""
    for parameter in module.double().parameters():
        parameter.copy_(normal(*parameter.shape) / math.sqrt(parameter.shape[-1]))
    return module


def causal(length: int) -> Tensor:
    """[1, 1, length, length], True where a query may look."""
    return torch.ones(length, length, dtype=torch.bool).tril()[None, None]
