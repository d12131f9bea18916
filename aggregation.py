"""From the heads' outputs to one vector: the linear map of the Transformer, and Li's routing
aggregation.

Li et al. 2019, Eq. 3-4 (linear) and §4.1, Eq. 5-6 with Algorithm 1 or 2 (Li et al. 2021,
§3.2). Every class takes O^h [B, H, L, d_k] and returns [B, L, d].
"""
import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from routing_dynamic import dynamic_routing
from routing_em import em_routing


def concatenate(outputs: Tensor) -> Tensor:
    """`O_hat = [O^1, ..., O^H]` (Li 2019 Eq. 3, Gu Eq. 7, Duan Eq. 3): [B, H, L, d_k] ->
    [B, L, H d_k]."""
    return outputs.transpose(-3, -2).flatten(-2)


class LinearAggregation(nn.Module):
    """`O = [O^1, ..., O^H] W^O`: Li 2019 Eq. 3-4, the Transformer's own. [B, H, L, d_k] ->
    [B, L, d]."""

    def __init__(self, d_model: int):
        super().__init__()
        self.output = nn.Linear(d_model, d_model)                            # W^O, and a bias
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, outputs: Tensor) -> Tensor:
        # O = O_hat W^O                                                        Li Eq. 4
        return self.output(concatenate(outputs))                             # [B, L, d]


def capsule_width(d_model: int, capsules: int) -> int:
    """D = d / N, the width of an output capsule. Raises ValueError unless the N capsules divide
    d_model."""
    if capsules < 1 or d_model % capsules:
        raise ValueError(f"capsules={capsules} does not divide d_model={d_model}")
    return d_model // capsules


def random_coupling(votes: Tensor) -> Tensor:
    """log C [..., M, N] of a random coupling of votes [..., M, N, D]: each row uniform among all
    rows of shares that sum to 1.

    A control, as in Paik et al. 2019: a gain that it shares with the routed coupling is not due to
    the routing. Drawn anew at every call.
    """
    draws = torch.empty(votes.shape[:-1], device=votes.device).exponential_()
    return draws.clamp(min=torch.finfo(draws.dtype).tiny).log().log_softmax(-1)


def route_votes(aggregation: nn.Module, votes: Tensor) -> Tensor:
    """The output capsules [..., N, D] of an aggregation's votes [..., M, N, D], by its routing
    ("em" or "dynamic") with its settings, or with a random coupling."""
    settings = dict(aggregation.settings)
    if aggregation.random:
        settings.update(iterations=1, start=random_coupling(votes))
    if aggregation.routing == "dynamic":
        return dynamic_routing(votes, **settings).capsules
    betas = getattr(aggregation, "beta_a", None), getattr(aggregation, "beta_mu", None)
    if settings.get("gradient") == "full" and votes.requires_grad:
        # computed again in the backward pass: memory does not grow with the iterations
        return checkpoint(em_routing, votes, *betas, use_reentrant=False, **settings).capsules
    return em_routing(votes, *betas, **settings).capsules


COUPLINGS = ("routed", "random")


class RoutingAggregation(nn.Module):
    """Li 2019 §4.1: votes from all heads together, routing, the N capsules concatenated.
    Replaces W^O.

    `Omega_in = f(O_hat)` (Eq. 5) is `relu(hidden(norm(O_hat)))`, one hidden layer for all heads:
    the paper writes a distinct f_h, but its parameter counts fit one shared layer, as in the
    released code. `V = Omega_in W` (Eq. 6).

    capsules: N, a divisor of d_model; default d_model, capsules of width D = d_model / N = 1, the
    papers' best.
    routing: "em" (Algorithm 2) or "dynamic" (Algorithm 1); activations: whether EM has A_n.
    coupling: "routed", or "random" for the control of `random_coupling`. settings: further
    arguments of the routing. Raises ValueError for an unknown name or another N.
    """

    def __init__(self, d_model: int, heads: int, capsules: int | None = None, routing: str = "em",
                 iterations: int = 3, activations: bool = True, coupling: str = "routed",
                 **settings):
        super().__init__()
        if routing not in ("em", "dynamic"):
            raise ValueError(f"routing={routing!r}: choose 'em' or 'dynamic'")
        if coupling not in COUPLINGS:
            raise ValueError(f"coupling={coupling!r}: choose 'routed' or 'random'")
        self.heads = heads
        self.routing = routing
        self.capsules = d_model if capsules is None else capsules
        capsule_width(d_model, self.capsules)
        self.random = coupling == "random"
        self.settings = {"iterations": iterations, **settings}
        self.norm = nn.LayerNorm(d_model)
        self.hidden = nn.Linear(d_model, d_model)
        self.votes = nn.Linear(d_model, heads * d_model)         # W_{h->n} for all h, n, and biases
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        for W_h in self.votes.weight.chunk(heads):               # each W_h drawn as a [d, d] matrix
            nn.init.xavier_uniform_(W_h)
        nn.init.zeros_(self.votes.bias)
        if routing == "em" and activations:
            self.beta_a = nn.Parameter(torch.zeros(self.capsules))
            self.beta_mu = nn.Parameter(torch.zeros(self.capsules))

    def cast_votes(self, outputs: Tensor) -> Tensor:
        """The votes V [B, L, H, N, D] of the heads' outputs [B, H, L, d_k]."""
        # Omega_in = f(O_hat)                                                  Li Eq. 5
        omega_in = torch.relu(self.hidden(self.norm(concatenate(outputs))))  # [B, L, d]
        # V_{h->n} = Omega_in W_{h->n}                                         Li Eq. 6
        V = self.votes(omega_in)                                             # [B, L, H d]
        return V.unflatten(-1, (self.heads, self.capsules, -1))              # [B, L, H, N, D]

    def forward(self, outputs: Tensor) -> Tensor:
        V = self.cast_votes(outputs)                                         # [B, L, H, N, D]
        omega = route_votes(self, V)                                         # [B, L, N, D]
        # O = [Omega_1, ..., Omega_N]                                          Li §4.1
        O = omega.flatten(-2)                                                # [B, L, d]
        return O.to(self.hidden.weight.dtype)    # the routing of half precision gives float32
