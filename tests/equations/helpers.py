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
