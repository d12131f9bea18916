"""Capsule routing of the attention logits of self-attention: vertical, horizontal and positional.

Duan et al. 2020, "Capsule-Transformer for Neural Machine Translation", §3.4, Eq. 8-14,
Algorithms 2-3. The logits E = Q K^T / sqrt(d_k) [B, H, L_q, L_k] are seen as capsules and routed;
what comes out is added to them: `E' = E + Omega_vertical + Omega_horizontal`, before mask and
softmax.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from routing_dynamic import at_least_float32, dynamic_routing, squash


def _masked(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Logits with 0 in the masked cells, in float32 at least, and the queries [..., L_q] that take
    part: those whose row has any True."""
    E = at_least_float32(logits)
    if mask is None:
        return E, None
    rows = mask.expand(E.shape).any(-1).any(-2)                              # [..., L_q]
    return E.masked_fill(~mask, 0), rows


def vertical_routing(logits: Tensor, weight: Tensor, bias: Tensor, iterations: int = 3,
                     mask: Tensor | None = None) -> Tensor:
    """Routes the heads (M = H input capsules) to the tokens (N = L_q output capsules): Duan
    Algorithm 2, Eq. 8-11.

    `V_{h->l} = e_{l,h}`, dynamic routing without normalization,
    `Lambda = W [sum_l B_{h->l}]_h + b`, `Omega_h = softmax(Lambda)_h [Omega_1 .. Omega_L]`.

    logits: E [..., H, L_q, L_k]; weight: W [H, H]; bias: b [H]; mask: broadcastable to the logits,
    True where a cell counts. A query without any True is not an output capsule. Returns Omega
    [..., H, L_q, L_k]. Raises ValueError unless iterations >= 1.
    """
    V, rows = _masked(logits, mask)                                      # V_{h->l} = e_{l,h}, Eq. 8
    # {Omega_l} = ROUTING({V_{h->l}}, T)                                       Eq. 9
    omega, _, B = dynamic_routing(V, iterations, normalize=False, mask=rows)
    # omega [..., L_q, L_k], B [..., H, L_q]
    # Lambda = W [sum_l B_{1->l}, ..., sum_l B_{H->l}] + b                     Eq. 11
    # a masked query has zero votes: its B is 0 and adds nothing
    with torch.autocast(V.device.type, enabled=False):                       # in full precision
        Lambda = F.linear(B.sum(-1), weight.to(V.dtype), bias.to(V.dtype))   # [..., H]
    # Omega = softmax(Lambda) [Omega_1 .. Omega_L]                             Eq. 10
    return Lambda.softmax(-1)[..., None, None] * omega.unsqueeze(-3)         # [..., H, L_q, L_k]


def horizontal_routing(logits: Tensor, iterations: int = 3, mask: Tensor | None = None,
                       last: int | None = None) -> Tensor:
    """Routes the tokens t <= l (M = l input capsules) to the heads (N = H), for every l: Duan
    Algorithm 3, Eq. 12-14.

    `V_{t->h} = e_{t,h}`, a dynamic routing (without normalization) of its own for every l:
    positional routing.

    logits: E [..., H, L_q, L_k]; mask: broadcastable to the logits, True where a cell counts. A
    query without any True is left out. last: only the last rows l are wanted (decoding step by
    step). Returns Omega [..., H, L_q, L_k], or [..., H, last, L_k]. Raises ValueError unless
    iterations >= 1.
    """
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: routing takes at least 1")
    E, rows = _masked(logits, mask)                                     # V_{t->h} = e_{t,h}, Eq. 12
    L = E.shape[-2]
    last = L if last is None else last
    # t <= l, [last, L_q]
    takes_part = torch.ones(last, L, dtype=torch.bool, device=E.device).tril(L - last)
    if rows is not None:                # a masked t has zero votes already; a masked l must give 0
        takes_part = takes_part & rows[..., L - last:].unsqueeze(-1)         # [..., last, L_q]
        takes_part = takes_part.unsqueeze(-3)                                # [..., 1, last, L_q]
    B = E.new_zeros(*E.shape[:-2], last, L)                                  # [..., H, l, t]
    with torch.autocast(E.device.type, enabled=False):                       # in full precision
        # Omega_l = ROUTING({V_{t->h}}, T), t <= l                             Eq. 14
        # the L routings side by side: row l of B[:, h] routes to head h, two matrix products an
        # iteration
        for step in range(iterations):
            R = B.softmax(-3) * takes_part                             # [..., H, l, t], 0 for t > l
            omega = squash(R @ E)                                        # [..., H, l, L_k], Eq. 6-7
            if step + 1 < iterations:                                   # the last B is not used
                B = B + omega @ E.transpose(-2, -1)                          # [..., H, l, t]
    return omega                                                      # [Omega_1 .. Omega_L], Eq. 13


PARTS = ("vertical", "horizontal")


class CapsuleRouting(nn.Module):
    """The routing of one attention's logits, `E' = E + Omega_vertical + Omega_horizontal` (Duan
    §3.2).

    parts: "vertical", "horizontal" or both; a decoder has only the horizontal one (§3.4.3).
    New parameters: W and b of the vertical part, H^2 + H, which start at 0, so that every head
    takes 1/H. Raises ValueError for an unknown part.
    """

    def __init__(self, heads: int, parts: tuple[str, ...] = PARTS, iterations: int = 3):
        super().__init__()
        if not parts or set(parts) - set(PARTS):
            raise ValueError(f"parts={parts!r}: choose from 'vertical' and 'horizontal'")
        self.parts = tuple(parts)
        self.iterations = iterations
        if "vertical" in parts:
            self.weight = nn.Parameter(torch.zeros(heads, heads))            # W
            self.bias = nn.Parameter(torch.zeros(heads))                     # b

    def forward(self, logits: Tensor, mask: Tensor | None = None,
                last: int | None = None) -> Tensor:
        """E [B, H, L, L] -> E' [B, H, last, L] in float32 or float64 (last: the last rows only,
        default all).

        mask: the softmax's, broadcastable to [B, 1, L, L]. Padding is what may not look at itself:
        such a query is left out of the routing. Raises ValueError for last < L with a vertical
        part, which routes to all tokens at once.
        """
        L = logits.shape[-2]
        if mask is not None:
            diagonal = mask.expand(mask.shape[:-2] + (L, L)).diagonal(dim1=-2, dim2=-1)   # [..., L]
            mask = mask & diagonal.unsqueeze(-1)                        # query and key, [..., L, L]
        last = L if last is None else last
        out = logits[..., L - last:, :]
        if "vertical" in self.parts:
            if last < L:
                raise ValueError("vertical routing sees all tokens: it cannot run step by step")
            out = out + vertical_routing(logits, self.weight, self.bias, self.iterations, mask)
        if "horizontal" in self.parts:
            out = out + horizontal_routing(logits, self.iterations, mask, last)
        return out
