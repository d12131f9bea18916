"""Capsule routing of the attention logits, vertical, horizontal and positional: Duan 2020.

Duan et al. 2020, "Capsule-Transformer for Neural Machine Translation", §3.4, Eq. 8-14,
Alg. 2-3. The logits E = Q K^T / sqrt(d_k) [B, H, L_q, L_k] of self-attention are treated as
capsules and routed; the output capsules are added to them before mask and softmax:
`E' = E + Omega_vertical + Omega_horizontal`. Both algorithms as loops: `vertical_routing` and
`horizontal_routing` in tests/equations/by_hand.py.
"""
import torch
import torch.nn as nn
from torch import Tensor

from attention import both_masks, causal_mask
from routing_dynamic import at_least_float32, dynamic_routing, squash

PARTS = ("vertical", "horizontal")


def vertical_routing(logits: Tensor, weight: Tensor, bias: Tensor, iterations: int = 3,
                     mask: Tensor | None = None) -> Tensor:
    """Routes the heads (M = H input capsules) to the tokens (N = L_q output capsules):
    Duan 2020 Alg. 2, Eq. 8-11.

    logits: E [..., H, L_q, L_k]; weight: W [H, H]; bias: b [H]; mask: broadcastable to the logits,
    True where a cell counts. A query without any True is not an output capsule. Returns Omega
    [..., H, L_q, L_k].
    """
    # V_{h->l} = e_{l,h}                                              Duan 2020 Eq. 8
    V, queries = masked_votes(logits, mask)                                  # [..., H, L_q, L_k]
    # {Omega_l} = ROUTING({V_{h->l}}, T)                              Duan 2020 Eq. 9
    omega, _, B = dynamic_routing(V, iterations, normalize=False, mask=queries)
    # omega [..., L_q, L_k], B [..., H, L_q]; a masked query has B = 0
    # Lambda = W [sum_l B_{1->l}, ..., sum_l B_{H->l}] + b            Duan 2020 Eq. 11
    # a product and a sum: autocast would run a matrix product in half precision
    Lambda = (weight * B.sum(-1).unsqueeze(-2)).sum(-1) + bias               # [..., H]
    # Omega = softmax(Lambda) [Omega_1 .. Omega_L]                    Duan 2020 Eq. 10
    # = Concat_h(lambda_h [Omega_1 .. Omega_L]), lambda = softmax(Lambda)    Duan 2020 Alg. 2
    return Lambda.softmax(-1)[..., None, None] * omega.unsqueeze(-3)         # [..., H, L_q, L_k]


def horizontal_routing(logits: Tensor, iterations: int = 3, mask: Tensor | None = None,
                       last: int | None = None) -> Tensor:
    """Routes the tokens t <= l (M = l input capsules) to the heads (N = H), with a routing of its
    own for every l (positional routing): Duan 2020 Alg. 3, Eq. 12-14.

    logits: E [..., H, L_q, L_k]; mask: broadcastable to the logits, True where a cell counts. A
    query without any True is left out. last: computes only the last `last` rows (decoding step by
    step). Returns Omega [..., H, L_q, L_k], or [..., H, last, L_k].
    """
    # V_{t->h} = e_{t,h}                                              Duan 2020 Eq. 12
    V, queries = masked_votes(logits, mask)                                  # [..., H, t, L_k]
    L = V.shape[-2]
    last = L if last is None else last
    routed = causal_mask(last, L, V.device)                                  # [l, t], t <= l
    if queries is not None:             # a masked l must give 0; a masked t has zero votes already
        routed = (routed & queries[..., L - last:, None]).unsqueeze(-3)      # [..., 1, l, t]
    B = V.new_zeros(*V.shape[:-2], last, L)                                  # [..., H, l, t]
    # Omega_l = ROUTING({V_{t->h}}, T), t <= l                        Duan 2020 Alg. 3, Eq. 14
    # For one l this loop is dynamic_routing of the rows t <= l with normalize=False. All l run side
    # by side, in two matrix products an iteration
    with torch.autocast(V.device.type, enabled=False):                       # no half precision
        for _ in range(iterations):
            # R_{t->h} = softmax_h(B_{t->h})                          Duan 2020 Alg. 1
            R = B.softmax(-3) * routed                                       # [..., H, l, t]
            # Omega_h = squash(S_h), S_h = sum_t R_{t->h} V_{t->h}    Duan 2020 Eq. 6-7
            omega = squash(R @ V)                                            # [..., H, l, L_k]
            # B_{t->h} += Omega_h . V_{t->h}                          Duan 2020 Alg. 1
            B = B + omega @ V.transpose(-2, -1)                              # [..., H, l, t]
    # Omega = [Omega_1 .. Omega_L]                                    Duan 2020 Eq. 13
    return omega


def masked_votes(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Logits with 0 in the masked cells, in float32 at least, and the queries [..., L_q] that take
    part: those whose row has any True."""
    E = at_least_float32(logits)
    if mask is None:
        return E, None
    queries = mask.expand(E.shape).any(-1).any(-2)                           # [..., L_q]
    return E.masked_fill(~mask, 0), queries


class CapsuleRouting(nn.Module):
    """The routing of one attention's logits, `E' = E + Omega_vertical + Omega_horizontal` (Duan
    2020 §3.2).

    parts: "vertical", "horizontal" or both; a decoder has only the horizontal one (§3.4.3).
    New parameters: W and b of the vertical part, H^2 + H, which start at 0, so that every head
    takes 1/H. Raises ValueError for an unknown part.
    """

    def __init__(self, heads: int, parts: tuple[str, ...] = PARTS, iterations: int = 3):
        super().__init__()
        if not parts or set(parts) - set(PARTS):
            raise ValueError(f"parts={parts!r}: choose from 'vertical' and 'horizontal'")
        self.parts = parts
        self.iterations = iterations
        if "vertical" in parts:
            self.weight = nn.Parameter(torch.zeros(heads, heads))            # W
            self.bias = nn.Parameter(torch.zeros(heads))                     # b

    def forward(self, logits: Tensor, keys: Tensor | None = None, causal: bool = False,
                last: int | None = None) -> Tensor:
        """E [B, H, L, L] -> E' [B, H, last, L] in float32 or float64 (last: the last rows only,
        default all).

        keys: [B, 1, 1, L], True at a token: padding takes no part in the routing. causal: row
        l sees only keys up to l (§3.4.3). Raises ValueError for keys of another shape, and for
        causal or last < L with a vertical part, which sees all tokens.
        """
        if "vertical" in self.parts and (causal or last not in (None, logits.shape[-2])):
            raise ValueError("vertical routing sees all tokens: a decoder takes "
                             "parts=('horizontal',)")
        L = logits.shape[-2]
        if keys is not None and keys.shape[1:] != (1, 1, L):
            raise ValueError(f"keys has shape {list(keys.shape)}: give the mask of the keys, "
                             f"[B, 1, 1, L] with L = {L}; causal=True hides later keys")
        mask = None if keys is None else keys & keys.transpose(-2, -1)       # [B, 1, L, L]
        if causal:
            mask = both_masks(mask, causal_mask(L, L, logits.device))
        out = logits if last is None else logits[..., L - last:, :]
        # E' = E + Omega_vertical + Omega_horizontal                  Duan 2020 §3.2
        if "vertical" in self.parts:
            out = out + vertical_routing(logits, self.weight, self.bias, self.iterations, mask)
        if "horizontal" in self.parts:
            out = out + horizontal_routing(logits, self.iterations, mask, last)
        return out
