"""Two mechanisms that came after the five papers, each a subclass of MultiHeadAttention.

GatedAttention: Qiu et al. 2025, "Gated Attention for Large Language Models" (arXiv 2505.06708), in
its form with one gate per head. TalkingHeads: Shazeer et al. 2020, "Talking-Heads Attention" (arXiv
2003.02436), with as many heads in the logits as in the weights.

To put one into every attention of a model, name it where transformer.py builds its attentions:

    import sys, train_mt, transformer
    transformer.MultiHeadAttention = TalkingHeads
    sys.exit(train_mt.main(["--steps", "300", "--name", "talking-heads"]))
"""
import math

import torch
import torch.nn as nn
from torch import Tensor

from attention import MultiHeadAttention, both_masks, causal_mask


class GatedAttention(MultiHeadAttention):
    """`g_h O^h` in place of `O^h`, where `g = sigmoid(X W_g + b_g)` is a number in [0, 1] per head
    and query token X. It starts at 1/2."""

    def __init__(self, d_model: int, heads: int, *args):
        super().__init__(d_model, heads, *args)
        self.gate = nn.Linear(d_model, heads)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, query: Tensor, *args, **settings):
        _, heads = super().forward(query, *args, **settings)
        g = torch.sigmoid(self.gate(query)).transpose(1, 2).unsqueeze(-1)    # [B, H, L_q, 1]
        heads = heads._replace(outputs=g * heads.outputs)                    # [B, H, L_q, d_k]
        return self.aggregation(heads.outputs), heads


class TalkingHeads(MultiHeadAttention):
    """The heads mixed linearly in the logits and again in the weights:
    `A^i = sum_h after_ih softmax(sum_j before_hj E^j)`. It starts as plain attention. A capsule
    routes the logits before they are mixed."""

    def __init__(self, d_model: int, heads: int, *args):
        super().__init__(d_model, heads, *args)
        self.before = nn.Parameter(torch.eye(heads))
        self.after = nn.Parameter(torch.eye(heads))

    def attend_fused(self, Q, K, V, mask, causal):
        """Calls attend_explicitly, because the fused kernel cannot mix heads."""
        return self.attend_explicitly(Q, K, V, mask, causal, None)[1]

    def attend_explicitly(self, Q, K, V, mask, causal, cache):
        """Returns (A^h, O^h)."""
        E = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)                    # [B, H, L_q, L_k]
        if self.capsule is not None:
            E = self.routed_logits(E, mask, causal, cache)                   # [B, H, L_q, L_k]
        if causal:
            mask = both_masks(mask, causal_mask(Q.shape[2], K.shape[2], Q.device))
        E = torch.einsum("ij,bjqk->biqk", self.before, E)
        if mask is not None:
            E = E.masked_fill(~mask, torch.finfo(E.dtype).min)
        A = torch.einsum("ij,bjqk->biqk", self.after, E.softmax(-1))
        return A, self.dropout(A) @ V                                        # [B, H, L_q, d_k]
