"""Scaled dot-product attention with several heads, and the cache that decoding step by step keeps.

Li et al. 2019, section 2, Eq. 1-2 (Li 2021 Eq. 1-2, Gu 2019 Eq. 1-2, Duan 2020 Eq. 1-5); Vaswani et al. 2017.
How the heads become one vector (Eq. 3-4) is a module handed in: see aggregation.py. So is the routing of the
attention logits: see capsule_transformer.py.
"""
import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from aggregation import LinearAggregation


class Heads(NamedTuple):
    """What the heads of one attention computed."""
    values: Tensor              # V^h [B, H, L_k, d_k]
    weights: Tensor | None      # A^h [B, H, L_q, L_k], before dropout; None where the fused kernel ran
    outputs: Tensor             # O^h [B, H, L_q, d_k], as passed on to the aggregation


class Cache:
    """What decoding step by step keeps of the steps before: keys, values and, for capsule attention, logits.

    `Cache()` is empty. One cache serves a whole model: every attention keeps its tensors under its own name, and
    fills them in place of the caller.
    """

    def __init__(self):
        self.length = 0         # target positions decoded so far
        self.growing = {}       # attention -> tensors of self-attention, longer with every step
        self.fixed = {}         # attention -> keys and values of the source sentence

    def reorder(self, index: Tensor, same_sources: bool = False) -> None:
        """Keeps the rows `index` [B'] of the batch: the beams that live on, repeated or dropped.

        same_sources=True promises that row i still belongs to the source sentence it had: then the keys and values
        of the source, alike for all beams of a sentence, stay where they are.
        """
        for entries in (self.growing,) if same_sources else (self.growing, self.fixed):
            for module, tensors in entries.items():
                entries[module] = tuple(x.index_select(0, index) for x in tensors)


def causal_mask(queries: int, keys: int, device=None) -> Tensor:
    """[queries, keys], True where the query, one of the last `queries` of `keys` positions, may look."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class MultiHeadAttention(nn.Module):
    """`A^h = softmax(Q^h K^hT / sqrt(d_k))`, `O^h = A^h V^h` for every head h, then the aggregation of the heads.

    Li 2019 Eq. 1-2. aggregation: a module [B, H, L_q, d_k] -> [B, L_q, d] (default: LinearAggregation, Eq. 3-4);
    capsule: a module on the logits [B, H, L_q, L_k] of self-attention, or None. Raises ValueError if the heads do not
    divide d_model.
    """

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0, aggregation: nn.Module | None = None,
                 capsule: nn.Module | None = None):
        super().__init__()
        if d_model % heads:
            raise ValueError(f"heads={heads} does not divide d_model={d_model}")
        self.heads, self.d_k, self.dropout = heads, d_model // heads, nn.Dropout(dropout)
        self.in_proj = nn.Linear(d_model, 3 * d_model)       # W^Q, W^K, W^V of all heads, in this order
        self.aggregation = LinearAggregation(d_model) if aggregation is None else aggregation
        self.capsule = capsule
        for weight in self.in_proj.weight.chunk(3):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.in_proj.bias)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None, cache: Cache | None = None,
                need_weights: bool = False, causal: bool = False) -> tuple[Tensor, Heads]:
        """query [B, L_q, d], memory [B, L_k, d] -> ([B, L_q, d], Heads).

        Self-attention is `query is memory`, the same tensor. mask: broadcastable to [B, 1, L_q, L_k], True where a
        query may look; causal adds that it may not look ahead. need_weights asks for A^h and so for the explicit
        path; without it the fused kernel runs, unless a capsule needs the logits. cache: filled in place; in
        self-attention query holds only the new positions, in cross-attention memory is read at the first step only.
        """
        Q, K, V = self.project(query, memory, cache)                         # [B, H, L, d_k] each
        if need_weights or self.capsule is not None:
            weights, O = self.attend_explicitly(Q, K, V, mask, causal, cache)
        else:
            weights, O = None, self.attend_fused(Q, K, V, mask, causal)      # [B, H, L_q, d_k]
        return self.aggregation(O), Heads(V, weights, O)

    def project(self, query, memory, cache):
        """Q_h, K_h, V_h = Q W_h^Q, K W_h^K, V W_h^V (Li 2019 Eq. 1), each [B, H, L, d_k]."""
        split = lambda x: [part.transpose(1, 2)                              # n times [B, H, L, d_k]
                           for part in x.unflatten(-1, (-1, self.heads, self.d_k)).unbind(2)]
        if query is memory:
            Q, K, V = split(self.in_proj(query))
            if cache is not None:
                if self in cache.growing:
                    past_K, past_V, *logits = cache.growing[self]
                    K, V = torch.cat([past_K, K], dim=2), torch.cat([past_V, V], dim=2)
                    cache.growing[self] = (K, V, *logits)
                else:
                    cache.growing[self] = (K, V)
            return Q, K, V
        d = query.shape[-1]
        W, b = self.in_proj.weight, self.in_proj.bias
        Q, = split(F.linear(query, W[:d], b[:d]))
        if cache is not None and self in cache.fixed:
            return Q, *cache.fixed[self]
        K, V = split(F.linear(memory, W[d:], b[d:]))
        if cache is not None:
            cache.fixed[self] = (K, V)
        return Q, K, V

    def attend_fused(self, Q, K, V, mask, causal):
        """O_h = softmax(Q_h K_h^T / sqrt(d_k)) V_h (Li 2019 Eq. 2) by the fused kernel."""
        whole = Q.shape[2] == K.shape[2]
        if causal and (mask is not None or not whole):
            if Q.shape[2] > 1:               # a single newest query may look at everything there is
                ahead = causal_mask(Q.shape[2], K.shape[2], Q.device)
                mask = ahead if mask is None else mask & ahead
            causal = False
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, is_causal=causal,
                                              dropout_p=self.dropout.p if self.training else 0.0)

    def attend_explicitly(self, Q, K, V, mask, causal, cache):
        """The same written out, with the routing of the logits (Duan 2020) where there is one: (A^h, O^h)."""
        if causal and K.shape[2] > 1:
            ahead = causal_mask(Q.shape[2], K.shape[2], Q.device)
            mask = ahead if mask is None else mask & ahead
        # E_h = Q_h K_h^T / sqrt(d_k)                                          Duan Eq. 5
        logits = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)               # [B, H, L_q, L_k]
        if self.capsule is not None:
            # E' = E + Omega_vertical + Omega_horizontal, before mask and softmax
            logits = self.capsule(*self.remember_logits(logits, mask, cache))
        if mask is not None:
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        weights = logits.softmax(-1)                                         # A^h
        return weights, self.dropout(weights).to(V.dtype) @ V                # O^h [B, H, L_q, d_k]

    def remember_logits(self, new, mask, cache):
        """The logits of all rows so far, their mask, and the number of new rows, which come last.

        Without a cache that is (new, mask, L_q). With one the earlier rows come from it, their new columns masked:
        routing runs over the rows t <= l, and no row looks ahead.
        """
        if cache is None:
            return new, mask, new.shape[2]
        rows, past = new.shape[2], new.shape[3] - new.shape[2]
        seen = causal_mask(rows, new.shape[3], new.device)
        new = new.masked_fill(~(seen if mask is None else seen & mask), 0)
        K, V, *before = cache.growing[self]
        E = torch.cat([F.pad(before[0], (0, rows)), new], dim=2) if past else new        # [B, H, L, L]
        cache.growing[self] = (K, V, E)
        return E, causal_mask(past + rows, past + rows, new.device), rows
