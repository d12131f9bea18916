"""From the heads' outputs to one vector: linear, Li's routing aggregation, and Gu's capsule layer.

Li et al. 2019, Eq. 3-4 (linear) and section 4.1, Eq. 5-6 (routing by Algorithm 1 or 2); Gu and Feng 2019,
section 4, Eq. 3-7. Every class takes O^h [B, H, L, d_k] and returns [B, L, d].
"""
import math

import torch
import torch.nn as nn
from torch import Tensor

from fast_routing import routed
from routing_dynamic import dynamic_routing
from routing_em import em_routing


def concatenate(outputs: Tensor) -> Tensor:
    """`O^ = [O_1, ..., O_H]` (Li 2019 Eq. 3, Gu Eq. 7, Duan Eq. 3): [B, H, L, d_k] -> [B, L, H d_k]."""
    return outputs.transpose(-3, -2).flatten(-2)


class LinearAggregation(nn.Module):
    """`O = [O_1, ..., O_H] W^O`: Li 2019 Eq. 3-4, the Transformer's own. [B, H, L, d_k] -> [B, L, d]."""

    def __init__(self, d_model: int):
        super().__init__()
        self.output = nn.Linear(d_model, d_model)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, outputs: Tensor) -> Tensor:
        # O = O^ W^O                                                           Li Eq. 4
        return self.output(concatenate(outputs))                             # [B, L, d]


def _capsules(capsules: int | None, default: int, d_model: int) -> int:
    """The number N of output capsules, which must divide d_model."""
    N = default if capsules is None else capsules
    if N < 1 or d_model % N:
        raise ValueError(f"capsules={N} does not divide d_model={d_model}")
    return N


class RoutingAggregation(nn.Module):
    """Li 2019, section 4.1: votes from all heads together, routing, the N capsules concatenated. Replaces W^O.

    `Omega_in = f(O^)` (Eq. 5) is `relu(hidden(norm(O^)))`, one hidden layer for all heads: the paper writes a
    distinct f_h, but its parameter counts fit one shared layer, as in the released code. `V = Omega_in W` (Eq. 6).

    capsules: N, a divisor of d_model; default d_model, capsules of width D = d_model / N = 1, the papers' best.
    routing: "em" (Algorithm 2) or "dynamic" (Algorithm 1). Raises ValueError for another name or another N.
    """

    def __init__(self, d_model: int, heads: int, capsules: int | None = None, routing: str = "em",
                 iterations: int = 3):
        super().__init__()
        if routing not in ("em", "dynamic"):
            raise ValueError(f"routing={routing!r}: choose 'em' or 'dynamic'")
        self.heads, self.routing, self.iterations = heads, routing, iterations
        self.capsules = _capsules(capsules, d_model, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.hidden = nn.Linear(d_model, d_model)
        self.votes = nn.Linear(d_model, heads * d_model)
        for linear, blocks in ((self.hidden, 1), (self.votes, heads)):       # each W_h drawn as a [d, d] matrix
            for weight in linear.weight.chunk(blocks):
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(linear.bias)
        if routing == "em":
            self.beta_a = nn.Parameter(torch.zeros(self.capsules))
            self.beta_mu = nn.Parameter(torch.zeros(self.capsules))

    def cast_votes(self, outputs: Tensor) -> Tensor:
        """The votes V [B, L, H, N, D] of the heads' outputs [B, H, L, d_k]."""
        # Omega_in = f(O^)                                                     Li Eq. 5
        omega_in = torch.relu(self.hidden(self.norm(concatenate(outputs))))  # [B, L, d]
        # V_{h->n} = Omega_in W_{h->n}                                         Li Eq. 6
        return self.votes(omega_in).unflatten(-1, (self.heads, self.capsules, -1))   # [B, L, H, N, D]

    def forward(self, outputs: Tensor) -> Tensor:
        votes = self.cast_votes(outputs).flatten(0, 1)                       # [B L, H, N, D]
        if self.routing == "em":
            omega = routed(em_routing, votes, self.beta_a, self.beta_mu, iterations=self.iterations, coupling=False)
        else:
            omega = routed(dynamic_routing, votes, iterations=self.iterations, coupling=False)
        # O = [Omega_1, ..., Omega_N]
        return omega.capsules.reshape(outputs.shape[0], outputs.shape[2], -1)   # [B, L, d]


def pose_columns(d_k: int, width: int) -> int:
    """Columns q of Gu's pose matrices [p, q], p q = d_k: the common divisor of d_k and the output capsules' width
    nearest to sqrt(d_k), the smaller one at a tie (d_k = width = 64: 8, as in Hinton et al. 2018)."""
    common = math.gcd(d_k, width)
    return min((q for q in range(1, common + 1) if common % q == 0), key=lambda q: (abs(q - math.sqrt(d_k)), q))


class CapsuleAggregation(nn.Module):
    """Gu 2019, section 4: a vote per pair of heads and output capsules, routing, `O = u + FFN(v)`. No W^O.

    routing "dynamic" (Eq. 8-11): `u^_{j|i} = W_ij u_i` with `weight` [H, N, d_k, d/N]. routing "em" (Eq. 12-15):
    head i is a pose matrix M_i [p, q], its vote is `W_ij M_i` [p', q] with `weight` [H, N, p', p], and the capsules
    come out without their activations. capsules: N, default the number of heads. Raises ValueError for a routing
    of another name, or an N or a number of heads that does not divide d_model.
    """

    def __init__(self, d_model: int, heads: int, capsules: int | None = None, routing: str = "dynamic",
                 iterations: int = 3):
        super().__init__()
        if routing not in ("em", "dynamic"):
            raise ValueError(f"routing={routing!r}: choose 'em' or 'dynamic'")
        if d_model % heads:
            raise ValueError(f"heads={heads} does not divide d_model={d_model}")
        self.routing, self.iterations = routing, iterations
        self.capsules = N = _capsules(capsules, heads, d_model)
        d_k, width = d_model // heads, d_model // N
        if routing == "em":
            self.q = pose_columns(d_k, width)
            self.weight = nn.Parameter(torch.empty(heads, N, width // self.q, d_k // self.q))   # [H, N, p', p]
            self.beta_a, self.beta_mu = nn.Parameter(torch.zeros(N)), nn.Parameter(torch.zeros(N))
            fan_in, fan_out = d_k // self.q, width // self.q
        else:
            self.weight = nn.Parameter(torch.empty(heads, N, d_k, width))
            fan_in, fan_out = d_k, width
        bound = math.sqrt(6 / (fan_in + fan_out))                            # Xavier, each W_ij by itself
        nn.init.uniform_(self.weight, -bound, bound)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, d_model))
        for linear in (self.ffn[0], self.ffn[2]):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def cast_votes(self, outputs: Tensor) -> Tensor:
        """The votes u^ [B, L, H, N, D] of the heads' outputs u [B, H, L, d_k]."""
        # u^_{j|i} = W_ij u_i                                                  Gu Eq. 3
        if self.routing == "dynamic":
            return torch.einsum("...hld,hnde->...lhne", outputs, self.weight)
        poses = outputs.unflatten(-1, (-1, self.q))                          # [B, H, L, p, q]
        return torch.einsum("...hlpq,hnop->...lhnoq", poses, self.weight).flatten(-2)

    def forward(self, outputs: Tensor) -> Tensor:
        votes = self.cast_votes(outputs).flatten(0, 1)                       # [B L, H, N, D]
        # v = f(u^, c), c = Update(u^, v)                                      Gu Eq. 4
        if self.routing == "em":
            v = routed(em_routing, votes, self.beta_a, self.beta_mu, iterations=self.iterations,
                       scale_by_activation=False, coupling=False)
        else:
            v = routed(dynamic_routing, votes, iterations=self.iterations, normalize=False, coupling=False)
        # O = u + FFN(v), FFN(x) = max(0, x W_1 + b_1) W_2 + b_2               Gu Eq. 5-7
        u = concatenate(outputs)                                             # [B, L, d]
        return u + self.ffn(v.capsules.reshape(*u.shape[:-1], -1))              # [B, L, d]
