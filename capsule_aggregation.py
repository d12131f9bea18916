"""From the heads' outputs to one vector, by a capsule layer after the heads: Gu 2019.

Gu and Feng 2019, "Improving Multi-Head Attention with Capsule Networks", §4, Eq. 3-7, with
dynamic routing (Eq. 8-11, routing_dynamic.py) or EM routing (Eq. 12-15, routing_em.py).
"""
import math

import torch
import torch.nn as nn
from torch import Tensor

from aggregation import ROUTINGS, em_routing_saving_memory
from attention import concatenate, init_linear
from routing_dynamic import dynamic_routing
from routing_em import GRADIENTS, check_choice


class CapsuleAggregation(nn.Module):
    """Gu 2019 §4, without W^O: a vote for each head and output capsule, routing, `O = u + FFN(v)`.
    [B, H, L, d_k] -> [B, L, d].

    Head i is a pose matrix M_i [p, q], p q = d_k, and its vote for capsule j is `W_ij M_i` [p', q],
    p' q = D = d/N; `weight` [H, N, p', p] holds the W_ij. routing "dynamic" (Eq. 8-11): q = 1, so
    M_i is the vector u_i. routing "em" (Eq. 12-15): q is `pose_columns`, and the capsules come out
    without their activations.

    capsules: N, a divisor of d_model; default the number of heads. gradient: of EM routing, see
    `em_routing`. With "last", the default of TransformerConfig, beta_a and beta_mu get no gradient.
    Raises ValueError for another routing or gradient.
    """

    def __init__(self, d_model: int, heads: int, capsules: int | None = None,
                 routing: str = "dynamic", iterations: int = 3, gradient: str = "full"):
        super().__init__()
        self.capsules = heads if capsules is None else capsules
        self.routing = check_choice("routing", routing, ROUTINGS)
        self.iterations = iterations
        self.gradient = check_choice("gradient", gradient, GRADIENTS)
        self.beta_a = nn.Parameter(torch.zeros(self.capsules)) if routing == "em" else None
        self.beta_mu = nn.Parameter(torch.zeros(self.capsules)) if routing == "em" else None
        d_k = d_model // heads
        width = d_model // self.capsules
        self.q = pose_columns(d_k, width) if routing == "em" else 1
        p, p_out = d_k // self.q, width // self.q
        bound = math.sqrt(6 / (p + p_out))                       # Xavier, each W_ij by itself
        weight = torch.empty(heads, self.capsules, p_out, p).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight)                       # W [H, N, p', p]
        # FFN(x) = max(0, x W_1 + b_1) W_2 + b_2                      Gu 2019 Eq. 5
        self.ffn = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(),
                                 nn.Linear(d_model, d_model)).apply(init_linear)

    def cast_votes(self, outputs: Tensor) -> Tensor:
        """The votes u_hat [B, L, H, N, D] of the heads' outputs u [B, H, L, d_k]."""
        M = outputs.unflatten(-1, (-1, self.q))                              # [B, H, L, p, q]
        # u_hat_{j|i} = W_ij u_i, with the pose matrix M_i of u_i     Gu 2019 Eq. 3, §4
        u_hat = torch.einsum("hnop,...hlpq->...lhnoq", self.weight, M)       # o is p'
        return u_hat.flatten(-2)                                             # [B, L, H, N, D]

    def forward(self, outputs: Tensor) -> Tensor:
        u_hat = self.cast_votes(outputs)                                     # [B, L, H, N, D]
        # v = f(u_hat, c), c = Update(u_hat, v)                       Gu 2019 Eq. 4
        if self.routing == "dynamic":
            routed = dynamic_routing(u_hat, self.iterations, normalize=False)
        else:
            routed = em_routing_saving_memory(u_hat, self.beta_a, self.beta_mu, self.iterations,
                                              self.gradient, scale_by_activation=False)
        v = routed.capsules                                                  # [B, L, N, D]
        # u = Concat(u_1, ..., u_h), v = Concat(v_1, ..., v_l), l = N  Gu 2019 Eq. 7
        u = concatenate(outputs)                                             # [B, L, d]
        v = v.flatten(-2)                                                    # [B, L, d]
        # O = u + FFN(v)                                              Gu 2019 Eq. 6
        return u + self.ffn(v)                                               # [B, L, d]


def pose_columns(d_k: int, width: int) -> int:
    """Columns q of Gu's pose matrices [p, q], p q = d_k: the common divisor of d_k and the output
    capsules' width nearest to sqrt(d_k), the smaller one at a tie (d_k = width = 64: 8, a square
    matrix as in Hinton et al. 2018)."""
    common = math.gcd(d_k, width)
    divisors = [q for q in range(1, common + 1) if common % q == 0]
    return min(divisors, key=lambda q: (abs(q - math.sqrt(d_k)), q))
