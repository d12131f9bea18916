"""Scaled dot-product attention with several heads: Vaswani 2017, in the notation of Li 2018.

Li et al. 2019, §2, Eq. 1-4 (Li 2018 §2, Li 2021 Eq. 1-4, Gu 2019 Eq. 1-2, Duan 2020 Eq. 1-5). The
modules that aggregate the heads and that route the logits are passed in. The equations as loops:
`attention` in tests/equations/by_hand.py.
"""
import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class Heads(NamedTuple):
    """Values, weights and outputs of the heads in one attention."""
    values: Tensor              # V^h [B, H, L_k, d_k]
    weights: Tensor | None      # A^h [B, H, L_q, L_k], before dropout; None if it was fused
    outputs: Tensor             # O^h [B, H, L_q, d_k], as passed on to the aggregation


class MultiHeadAttention(nn.Module):
    """`A^h = softmax(Q^h K^hT / sqrt(d_k))`, `O^h = A^h V^h` for every head h, then the aggregation
    of the heads: Li 2018 §2; Li 2019 Eq. 1-2, where A^h is `ATT(Q^h, K^h)`.

    dropout: rate on the A^h that weights V^h. aggregation: a module [B, H, L_q, d_k] ->
    [B, L_q, d] (default: LinearAggregation, Eq. 3-4). capsule: a module that routes the logits
    [B, H, L, L] of self-attention, such as CapsuleRouting, or None. explicit: whether training
    computes A^h, which the position disagreement reads.
    """

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0,
                 aggregation: nn.Module | None = None, capsule: nn.Module | None = None,
                 explicit: bool = False):
        super().__init__()
        self.heads = heads
        self.d_k = d_model // heads
        self.dropout = nn.Dropout(dropout)
        self.in_proj = nn.Linear(d_model, 3 * d_model)       # W^Q, W^K, W^V of all heads, biases
        self.aggregation = LinearAggregation(d_model) if aggregation is None else aggregation
        self.capsule = capsule
        self.explicit = explicit
        for weight in self.in_proj.weight.chunk(3):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.in_proj.bias)

    def forward(self, query: Tensor, memory: Tensor | None = None, mask: Tensor | None = None,
                cache: "Cache | None" = None, need_weights: bool = False,
                causal: bool = False) -> tuple[Tensor, Heads]:
        """query [B, L_q, d], memory [B, L_k, d] -> ([B, L_q, d], Heads).

        memory: the vectors that the queries attend to; None for self-attention. mask: boolean,
        broadcastable to [B, 1, L_q, L_k], True where attention is allowed; with a capsule, pass the
        key mask [B, 1, 1, L_k]. causal: in self-attention, no query attends to later positions.
        need_weights asks for A^h and so for the explicit path. Otherwise the fused kernel runs,
        unless a capsule needs the logits, or `explicit` is set and there is no cache. cache: filled
        in place; in self-attention query holds only the new positions, in cross-attention memory is
        read at the first step only. A fully masked query gets 0 from the fused kernel, the mean of
        all values from the explicit path. Raises ValueError for a mask of another type or shape,
        and for memory with a capsule.
        """
        if memory is None:
            # Q^h, K^h, V^h = X W_h^Q, X W_h^K, X W_h^V               Li 2019 Eq. 1, Duan 2020 Eq. 1
            Q, K, V = self.split(self.in_proj(query))                        # [B, H, L, d_k] each
            if cache is not None:
                K, V = cache.extend(self, K, V)
        else:
            if self.capsule is not None:
                raise ValueError("memory: a capsule routes the logits of self-attention only")
            Q, K, V = self.project_cross(query, memory, cache)
        check_mask(mask, (Q.shape[0], 1, Q.shape[2], K.shape[2]), "[B, 1, L_q, L_k]")
        explicit = need_weights or (self.explicit and cache is None)
        if explicit or self.capsule is not None:
            weights, O = self.attend_explicitly(Q, K, V, mask, causal, cache)
        else:
            weights, O = None, self.attend_fused(Q, K, V, mask, causal)      # O [B, H, L_q, d_k]
        return self.aggregation(O), Heads(V, weights, O)

    def attend_explicitly(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, causal: bool,
                          cache: "Cache | None") -> tuple[Tensor, Tensor]:
        """A^h [B, H, L_q, L_k] and O^h [B, H, L_q, d_k] written out; with a capsule the logits are
        routed before the mask."""
        # E^h = Q^h K^hT / sqrt(d_k)                                  Li 2018 §2, Duan 2020 Eq. 5
        E = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)                    # [B, H, L_q, L_k]
        if self.capsule is not None:
            E = self.routed_logits(E, mask, causal, cache)                   # [B, H, L_q, L_k]
        if causal:
            mask = both_masks(mask, causal_mask(*E.shape[2:], E.device))
        if mask is not None:
            E = E.masked_fill(~mask, torch.finfo(E.dtype).min)
        # A^h = ATT(Q^h, K^h) = softmax(E^h)                          Li 2019 Eq. 2, Duan 2020 Eq. 4
        A = E.softmax(-1)                                                    # [B, H, L_q, L_k]
        # O^h = A^h V^h                                               Li 2019 Eq. 2, Duan 2020 Eq. 2
        O = self.dropout(A) @ V                                              # [B, H, L_q, d_k]
        return A, O

    def attend_fused(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None,
                     causal: bool) -> Tensor:
        """O^h [B, H, L_q, d_k] by the fused kernel, which returns no A^h and routes no logits."""
        queries, keys = Q.shape[2], K.shape[2]
        dropout = self.dropout.p if self.dropout.training else 0.0
        # O^h = softmax(Q^h K^hT / sqrt(d_k)) V^h                     Li 2019 Eq. 2, Gu 2019 Eq. 1
        if causal and mask is None and queries == keys:
            return F.scaled_dot_product_attention(Q, K, V, is_causal=True, dropout_p=dropout)
        if causal and queries > 1:                       # one newest query sees every key
            mask = both_masks(mask, causal_mask(queries, keys, Q.device))
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, dropout_p=dropout)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """[B, L, n d] -> n tensors [B, H, L, d_k]."""
        parts = x.unflatten(-1, (-1, self.heads, self.d_k)).unbind(-3)       # [B, L, H, d_k] each
        return tuple(part.transpose(-3, -2) for part in parts)

    def project_cross(self, query: Tensor, memory: Tensor, cache: "Cache | None"):
        """Queries [B, H, L_q, d_k] of query, keys and values [B, H, L_k, d_k] of memory, or of the
        cache where it has them."""
        d = query.shape[-1]
        W, b = self.in_proj.weight, self.in_proj.bias
        # Q^h, K^h, V^h = Q W_h^Q, K W_h^K, V W_h^V                   Li 2019 Eq. 1, Gu 2019 Eq. 2
        (Q,) = self.split(F.linear(query, W[:d], b[:d]))
        if cache is not None and self in cache.fixed:
            return Q, *cache.fixed[self]
        K, V = self.split(F.linear(memory, W[d:], b[d:]))
        if cache is not None:
            cache.fixed[self] = (K, V)
        return Q, K, V

    def routed_logits(self, E: Tensor, keys: Tensor | None, causal: bool,
                      cache: "Cache | None") -> Tensor:
        """Routed logits [B, H, L_q, L] of the queries. With a cache these are the newest rows, and
        the routing runs over all rows so far, which the cache keeps (Duan 2020 §3.4.3)."""
        newest = E.shape[2]
        if cache is not None:
            E = cache.extend_logits(self, E)                                 # [B, H, L, L]
        return self.capsule(E, keys, causal, newest)


def causal_mask(queries: int, keys: int, device=None) -> Tensor:
    """[queries, keys], True where attention is allowed; the queries are the last `queries`
    positions."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def both_masks(mask: Tensor | None, other: Tensor) -> Tensor:
    """Where both masks are True; None is True everywhere."""
    return other if mask is None else mask & other


def check_mask(mask: Tensor | None, full: tuple, layout: str) -> None:
    """Raises ValueError unless a mask is None, or boolean and broadcastable to the shape `full`;
    layout: what its sizes are, for the message."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(f"mask is {mask.dtype}: give a boolean one, True where a position counts")
    sizes = [1] * (len(full) - mask.dim()) + [*mask.shape]
    if len(sizes) > len(full) or any(a not in (1, b) for a, b in zip(sizes, full)):
        raise ValueError(f"mask has shape {list(mask.shape)}: give {layout}, here {list(full)}, "
                         "in which a size may be 1")


# ---- The Transformer's own aggregation of the heads

def concatenate(outputs: Tensor) -> Tensor:
    """[B, H, L, d_k] -> [B, L, H d_k]."""
    # O_hat = [O^1, ..., O^H]                                         Li 2019 Eq. 3, Duan 2020 Eq. 3
    return outputs.transpose(-3, -2).flatten(-2)


def init_linear(module: nn.Module) -> None:
    """Initializes a linear layer: Glorot and Bengio 2010 for the weight, 0 for the bias. For
    `Module.apply`; other modules stay as they are."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


class LinearAggregation(nn.Module):
    """The Transformer's own aggregation, `O = [O^1, ..., O^H] W^O`: Li 2019 Eq. 3-4.
    [B, H, L, d_k] -> [B, L, d]."""

    def __init__(self, d_model: int):
        super().__init__()
        self.output = nn.Linear(d_model, d_model).apply(init_linear)         # W^O, and a bias

    def forward(self, outputs: Tensor) -> Tensor:
        # O = O_hat W^O                                               Li 2019 Eq. 4
        return self.output(concatenate(outputs))                             # [B, L, d]


# ---- Decoding step by step

class Cache:
    """Keys and values of earlier decoding steps and, for capsule attention, their logits.

    `Cache()` is empty. One cache serves a whole model; tensors are stored per attention module.
    """

    def __init__(self):
        self.length = 0         # target positions decoded so far
        self.growing = {}       # attention -> (K, V) of self-attention, which grow at every step
        self.logits = {}        # attention -> its logits so far
        self.fixed = {}         # attention -> (K, V) of the source sentence

    def extend(self, attention: nn.Module, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the newest keys and values of a self-attention; returns all of them."""
        if attention in self.growing:
            past_K, past_V = self.growing[attention]
            K = torch.cat([past_K, K], dim=2)                                # [B, H, L, d_k]
            V = torch.cat([past_V, V], dim=2)
        self.growing[attention] = (K, V)
        return K, V

    def extend_logits(self, attention: nn.Module, new: Tensor) -> Tensor:
        """Adds the newest rows [B, H, new, L] to the logits of a self-attention; returns all of
        them, [B, H, L, L]. The earlier rows are 0 in the new columns, which they do not see."""
        if attention in self.logits:
            past = F.pad(self.logits[attention], (0, new.shape[2]))          # [B, H, past, L]
            new = torch.cat([past, new], dim=2)                              # [B, H, L, L]
        self.logits[attention] = new
        return new

    def reorder(self, index: Tensor) -> None:
        """Keeps the target sentences `index` [B'], such as the beams that survive a step of the
        search; a sentence can repeat."""
        for attention, E in self.logits.items():
            self.logits[attention] = E.index_select(0, index)
        for attention, tensors in self.growing.items():
            self.growing[attention] = tuple(x.index_select(0, index) for x in tensors)

    def select_sources(self, index: Tensor) -> None:
        """Keeps the source sentences `index` [B']."""
        for attention, tensors in self.fixed.items():
            self.fixed[attention] = tuple(x.index_select(0, index) for x in tensors)
