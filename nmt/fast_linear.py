"""Linear maps made fast on AMD processors with AVX-512: `install(model)` puts them in the place of
`nn.Linear`.

On a CPU torch multiplies matrices by Intel's MKL, which gives an AMD processor code for vectors of
half its width. oneDNN, which torch carries as well, gives it all: 230 GFLOP/s instead of 105 on a
core of Zen 5. It makes code for every size anew, which takes almost as long as the product, and
batches of sentences have hundreds of sizes; so it gets whole blocks of rows, and MKL the rest.
"""
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention import MultiHeadAttention
from nmt.machine import processor

FEW_ROWS = 1024             # fewer there are in decoding and in small batches
SMALL = 16                  # rows of a block then
ROWS = 128                  # and else


@functools.cache
def faster() -> bool:
    """Whether this processor is one on which oneDNN is faster than MKL."""
    return ("AMD" in processor(torch.device("cpu"))
            and torch.backends.cpu.get_cpu_capability() == "AVX512"
            and torch.backends.mkl.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise"))


def rows_in_blocks(x: Tensor) -> int:
    """How many rows of x [m, k], the first ones, go to oneDNN: whole blocks, or none."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or not faster():
        return 0
    block = SMALL if len(x) < FEW_ROWS else ROWS
    return len(x) - len(x) % block


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x weight^T + bias` [m, n] of x [m, k], weight [n, k], bias [n]; without a gradient."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same, of which oneDNN does the whole blocks of rows."""
    m = rows_in_blocks(x)
    if m == 0:
        return F.linear(x, weight, bias)
    if m == len(x):
        return by_onednn(x, weight, bias)
    return torch.cat((by_onednn(x[:m], weight, bias), F.linear(x[m:], weight, bias)))


def outer(y: Tensor, x: Tensor) -> Tensor:
    """`y^T x`, a sum over the rows: [n, k] of y [m, n], x [m, k]."""
    m = rows_in_blocks(x)
    if m == 0:
        return y.T @ x
    total = by_onednn(y[:m].T, x[:m].T)
    if m < len(x):
        total.addmm_(y[m:].T, x[m:])
    return total


def add_outer(total: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """`total += y^T x`. Returns total [n, k]."""
    if rows_in_blocks(x) == 0:
        return total.addmm_(y.T, x)          # without a tensor in between
    return total.add_(outer(y, x))


class _Linear(torch.autograd.Function):
    """`x weight^T + bias` with its gradients; x [m, k]."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = None
        d_weight = None
        d_bias = None
        if ctx.needs_input_grad[0]:
            dx = product(dy, weight.T)
        if ctx.needs_input_grad[1]:
            d_weight = outer(dy, x)
        if ctx.needs_input_grad[2]:
            d_bias = dy.sum(0)
        return dx, d_weight, d_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, `x weight^T + bias`: x [..., k], weight [n, k], bias [n] -> [..., n].

    Differentiable once where oneDNN runs.
    """
    # under autocast the product is in half precision, which goes to oneDNN in any case
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if not torch.is_grad_enabled():
        y = product(rows, weight, bias)
    elif rows_in_blocks(rows) == 0:
        return F.linear(x, weight, bias)
    else:
        y = _Linear.apply(rows, weight, bias)
    return y.view(*x.shape[:-1], y.shape[-1])


class FastLinear(nn.Linear):
    """`nn.Linear` by the function above."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def install(model: nn.Module) -> nn.Module:
    """Puts the fast linear map into every module of a model, on a processor where it is faster.
    Returns the model."""
    if not faster():
        return model
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear        # the parameters stay the same
        if isinstance(module, MultiHeadAttention):
            module.linear = linear
    return model
