"""From the heads' outputs to one vector by routing: Li 2019, Li 2021.

Li et al. 2019, §4.1, Eq. 5-6 (Li et al. 2021, Eq. 8-9) with Alg. 1 (routing_dynamic.py) or Alg. 2
(routing_em.py). The linear aggregation, Eq. 3-4, is in attention.py. Every aggregation takes O^h
[B, H, L, d_k] and returns [B, L, d].
"""
import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention import concatenate, init_linear
from routing_dynamic import dynamic_routing
from routing_em import GRADIENTS, EMRouting, check_choice, em_routing

ROUTINGS = ("dynamic", "em")


class RoutingAggregation(nn.Module):
    """Li 2019 §4.1, in place of W^O: votes from all heads, routing, the capsules concatenated.
    [B, H, L, d_k] -> [B, L, d].

    `Omega_in = f(O_hat)` (Eq. 5) is `relu(hidden(norm(O_hat)))`, one hidden layer for all heads,
    where the paper writes a distinct f_h. `V = Omega_in W` (Eq. 6).

    capsules: N, a divisor of d_model; default d_model, capsules of width D = d_model / N = 1, the
    papers' best. routing: "em" (Alg. 2) or "dynamic" (Alg. 1). gradient: of EM routing, see
    `em_routing`. Raises ValueError for another routing or gradient.
    """

    def __init__(self, d_model: int, heads: int, capsules: int | None = None, routing: str = "em",
                 iterations: int = 3, gradient: str = "full"):
        super().__init__()
        self.heads = heads
        self.capsules = d_model if capsules is None else capsules
        self.routing = check_choice("routing", routing, ROUTINGS)
        self.iterations = iterations
        self.gradient = check_choice("gradient", gradient, GRADIENTS)
        self.norm = nn.LayerNorm(d_model)
        self.hidden = nn.Linear(d_model, d_model)
        self.votes = nn.Linear(d_model, heads * d_model)         # W_{h->n} for all h, n, and biases
        self.hidden.apply(init_linear)
        for W_h in self.votes.weight.chunk(heads):               # bounds of a [d, d] matrix
            nn.init.xavier_uniform_(W_h)
        nn.init.zeros_(self.votes.bias)
        self.beta_a = nn.Parameter(torch.zeros(self.capsules)) if routing == "em" else None
        self.beta_mu = nn.Parameter(torch.zeros(self.capsules)) if routing == "em" else None

    def cast_votes(self, outputs: Tensor) -> Tensor:
        """The votes V [B, L, H, N, D] of the heads' outputs [B, H, L, d_k]."""
        # Omega_in = f(O_hat)                                         Li 2019 Eq. 5
        omega_in = torch.relu(self.hidden(self.norm(concatenate(outputs))))  # [B, L, d]
        # V_{h->n} = Omega_in W_{h->n}                                Li 2019 Eq. 6
        V = self.votes(omega_in)                                             # [B, L, H d]
        return V.unflatten(-1, (self.heads, self.capsules, -1))              # [B, L, H, N, D]

    def forward(self, outputs: Tensor) -> Tensor:
        V = self.cast_votes(outputs)                                         # [B, L, H, N, D]
        if self.routing == "dynamic":
            routed = dynamic_routing(V, self.iterations)
        else:
            routed = em_routing_saving_memory(V, self.beta_a, self.beta_mu, self.iterations,
                                              self.gradient)
        # O = [Omega_1, ..., Omega_N]                                 Li 2019 §4.1
        return routed.capsules.flatten(-2)                                   # [B, L, d]


# ---- The memory of the full gradient

# above this many numbers in the votes, the full gradient recomputes the routing in the backward
# pass, instead of storing it: at size base, with 4,096 tokens, 1.4 GiB for every routing
LARGE = 2 ** 22


def em_routing_saving_memory(votes: Tensor, beta_a: Tensor, beta_mu: Tensor, iterations: int,
                             gradient: str, scale_by_activation: bool = True) -> EMRouting:
    """`em_routing`, which the backward pass computes again where the votes are many."""
    options = dict(iterations=iterations, scale_by_activation=scale_by_activation,
                   gradient=gradient)
    if gradient == "full" and votes.numel() > LARGE:
        # the routing draws no random numbers, so their state need not be kept
        return checkpoint(em_routing, votes, beta_a, beta_mu, use_reentrant=False,
                          preserve_rng_state=False, **options)
    return em_routing(votes, beta_a, beta_mu, **options)
