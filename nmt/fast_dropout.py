"""Dropout made fast on a CPU: `install(model)` puts it in the place of `nn.Dropout` and of the
fused attention's own.

`bernoulli_` takes a random number of 64 bits for every element, a fifth of a training step at size
tiny. Here one such number serves four elements, with 16 bits each. They come from torch's
generator, whose state a checkpoint holds.
"""
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from attention import both_masks, causal_mask

LEVELS = 2 ** 16                # so finely a rate is told: 0.1 becomes 0.10001


def noise(shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
    """What dropout multiplies with, on the CPU: 0 with probability `rate`, else 1 / (1 - rate)."""
    count = shape.numel()
    # all 64 bits of them
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-2 ** 63, None)
    bits = words.view(torch.int16)[:count].view(shape)                  # uniform on -LEVELS / 2 ...
    kept = torch.ge(bits, round(rate * LEVELS) - LEVELS // 2, out=torch.empty(shape, dtype=dtype))
    return kept.div_(1 - rate)


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`F.dropout`, by `noise` on a CPU."""
    # the compiler has numbers of its own, drawn where they are used
    if not training or not 0 < rate < 1 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate, training)
    return x * noise(x.shape, rate, x.dtype)


class FastDropout(nn.Dropout):
    """`nn.Dropout` by the function above."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def attend(attention: nn.Module, fused, Q, K, V, mask, causal) -> Tensor:
    """O^h = dropout(softmax(Q^h K^hT / sqrt(d_k))) V^h: [B, H, L, d_k] each -> [B, H, L_q, d_k].

    For a CPU in training, where the fused kernel does not cover dropout; elsewhere it runs. The
    mask is what the products are added to.
    """
    rate = attention.dropout.p if attention.training else 0.0
    if not rate or Q.device.type != "cpu" or torch.compiler.is_compiling():
        return fused(Q, K, V, mask, causal)
    B, H, L_q, d_k = Q.shape
    if causal:
        mask = both_masks(mask, causal_mask(L_q, K.shape[2]))
    Q, K, V = (x.flatten(0, 1) for x in (Q, K, V))                           # [B H, L, d_k]
    bias = Q.new_zeros(())
    if mask is not None:
        bias = Q.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(Q.dtype).min)
        if bias.dim() == 4:                                                  # [B, 1, 1 or L_q, L_k]
            bias = bias.expand(B, H, -1, -1).flatten(0, 1)
    logits = torch.baddbmm(bias, Q, K.mT, alpha=d_k ** -0.5)                 # [B H, L_q, L_k]
    weights = dropout(logits.softmax(-1), rate, training=True)
    return torch.bmm(weights.to(V.dtype), V).unflatten(0, (B, H))


def install(model: nn.Module) -> nn.Module:
    """Puts the fast dropout into every module of a model. Returns the model."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
        if hasattr(module, "attend_fused"):
            module.attend_fused = functools.partial(attend, module, module.attend_fused)
    return model
