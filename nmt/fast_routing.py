"""Routing made fast, its equations untouched: `install(model)` puts these forms in the place of
the routings.

A routing is a loop of cheap operations on large tensors: the votes of one attention hold H numbers
for every number of its output. Here
- the last step that changes no capsule is left out;
- where the gradient runs through all iterations, the backward pass computes them again instead of
  keeping every result (Chen et al. 2016), so that memory does not grow with the iterations;
- on a CPU a piece of the votes that fits the cache goes through the whole loop before the next,
  because every token is routed by itself;
- torch.compile fuses the operations into a few loops, on request.
"""
import functools
import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt import fast_em
from routing_dynamic import agreement, combine, dynamic_routing
from routing_em import e_step, em_routing, inverse_temperature, m_step

# votes that a CPU core routes at a time: 512 KiB in float32, a part of its own cache
PIECE = 2 ** 17


class Capsules(NamedTuple):
    """What the fast forms of a routing of votes return."""
    capsules: Tensor            # Omega [..., N, D]


def install(model: nn.Module, compiled: bool = False) -> nn.Module:
    """Puts the fast forms into every module of a model that routes; compiled: see `can_compile`.
    Returns the model."""
    for module in model.modules():
        if hasattr(module, "route"):
            module.route = of_votes(module.route, compiled)
        if hasattr(module, "route_vertical"):
            module.route_vertical = of_logits(module.route_vertical, compiled)
            module.route_horizontal = of_logits(module.route_horizontal, compiled)
    return model


def compile_layers(model: nn.Module) -> nn.Module:
    """Compiles the layers of a model for training: one form serves all layers of a kind and all
    batches. Returns the model. In eval mode they run as they are, for the search's shapes grow."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                layer.forward = compiled_in_training(layer)
    return model


def compiled_in_training(layer: nn.Module):
    """The `forward` of a layer, compiled for tensors of any size where the layer is in training."""
    eager = layer.forward
    compiled = torch.compile(eager, dynamic=True)

    def forward(*arguments, **settings):
        return compiled(*arguments, **settings) if layer.training else eager(*arguments, **settings)
    return forward


def can_compile(device="cpu") -> bool:
    """Whether torch.compile works on this machine; one line on stderr says so where it does not."""
    # forms of one function: per shape of capsules, training or not
    torch._dynamo.config.cache_size_limit = 64
    # pieces of a layer need no splitting for DDP, whose splitter cannot cut at every operation
    torch._dynamo.config.optimize_ddp = False
    try:
        torch.compile(torch.exp)(torch.zeros(2, device=device))
        return True
    except Exception as error:                      # each compiler and version fails in its own way
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"--compile: this machine cannot compile ({reason[:120]}); it runs "
              "uncompiled, with the same results", file=sys.stderr)
        return False


# ---- Without what changes no capsule

def em_coupling(V: Tensor, beta_a, beta_mu, iterations: int, eps: float, density: str,
                schedule: str, start: Tensor | None) -> Tensor:
    """log C [..., M, N] that enters the last M-step of `em_routing`."""
    log_C = V.new_full(V.shape[-3:-1], -math.log(V.shape[-2])) if start is None else start
    for t in range(iterations - 1):
        lambda_t = inverse_temperature(t, iterations, schedule)
        mu, log_sigma, log_A = m_step(V, log_C, beta_a, beta_mu, lambda_t, eps)
        log_C = e_step(V, mu, log_sigma, log_A, density)
    return log_C


def em_capsules(votes: Tensor, beta_a=None, beta_mu=None, iterations: int = 3,
                scale_by_activation: bool = True, eps: float = 1e-9, density: str = "product",
                schedule: str = "hinton", gradient: str = "full",
                start: Tensor | None = None) -> Capsules:
    """`em_routing` without its last E-step."""
    V = votes.float() if votes.dtype in (torch.float16, torch.bfloat16) else votes
    with torch.set_grad_enabled(torch.is_grad_enabled() and gradient == "full"):
        log_C = em_coupling(V, beta_a, beta_mu, iterations, eps, density, schedule, start)
    lambda_T = inverse_temperature(iterations - 1, iterations, schedule)
    mu, _, log_A = m_step(V, log_C, beta_a, beta_mu, lambda_T, eps)
    A = log_A.exp()
    return Capsules(A.unsqueeze(-1) * mu if scale_by_activation else mu)


def dynamic_capsules(votes: Tensor, iterations: int = 3, normalize: bool = True,
                     mask: Tensor | None = None, start: Tensor | None = None) -> Capsules:
    """`dynamic_routing` without its last update."""
    V = votes.float() if votes.dtype in (torch.float16, torch.bfloat16) else votes
    B = V.new_zeros(V.shape[-3:-1]) if start is None else start
    for _ in range(iterations - 1):
        capsules, _ = combine(V, B, normalize, mask)
        B = B + agreement(V, capsules)
    capsules, _ = combine(V, B, normalize, mask)
    return Capsules(capsules)


SHORTER = {em_routing: em_capsules, dynamic_routing: dynamic_capsules}


# ---- Recomputed, in pieces, compiled

def recomputed(routing, *arguments, **settings):
    """The routing, computed a second time in the backward pass instead of stored in the first.

    EM with the gradient of the last M-step alone keeps little as it is.
    """
    learned = any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
    if not (learned and torch.is_grad_enabled()) or settings.get("gradient") == "last":
        return routing(*arguments, **settings)
    return checkpoint(routing, *arguments, use_reentrant=False, preserve_rng_state=False,
                      **settings)


@functools.cache
def compiled_form():
    """`recomputed`, compiled."""
    return torch.compile(recomputed)


def of_votes(routing, compiled: bool = False):
    """The fast form of a routing of votes [..., M, N, D], of which every leading item is routed by
    itself."""
    shorter = SHORTER.get(routing, routing)

    @torch.compiler.disable                 # in a compiled layer it is a form of its own
    def fast(votes: Tensor, *parameters, start: Tensor | None = None, **settings):
        run = compiled_form() if compiled else recomputed
        lead = votes.shape[:-3]
        V = votes.flatten(0, -4)                                             # [items, M, N, D]
        if routing is em_routing and not compiled and fast_em.covers(V, parameters, start,
                                                                     **settings):
            omega = fast_em.em_capsules(V, *parameters, **settings)          # [items, N, D]
            if omega is not None:
                return Capsules(omega.unflatten(0, lead))
        starts = None if start is None else start.flatten(0, -3)             # [items, M, N]
        pieces = 1
        if V.device.type == "cpu":
            pieces = max(1, math.ceil(V.numel() / (PIECE * torch.get_num_threads())))
        capsules = []
        for i, piece in enumerate(V.chunk(pieces)):
            begin = None if starts is None else starts.chunk(pieces)[i]
            if compiled:
                torch._dynamo.maybe_mark_dynamic(piece, 0)
            capsules.append(run(shorter, piece, *parameters, start=begin, **settings).capsules)
        joined = torch.cat(capsules) if len(capsules) > 1 else capsules[0]   # [items, N, D]
        return Capsules(joined.unflatten(0, lead))
    return fast


def of_logits(routing, compiled: bool = False):
    """The fast form of a routing of logits [B, H, L_q, L_k]."""

    @torch.compiler.disable
    def fast(logits: Tensor, *arguments):
        run = compiled_form() if compiled else recomputed
        if compiled:
            for x in (logits, *arguments):
                if isinstance(x, Tensor) and x.dim() == logits.dim():
                    for dim in (0, 2, 3):               # all but the heads vary from batch to batch
                        torch._dynamo.maybe_mark_dynamic(x, dim)
        return run(routing, logits, *arguments)
    return fast
