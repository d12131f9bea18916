"""Routing made fast, its equations untouched: recomputed in the backward pass, and compiled on request.

A routing is a loop of cheap operations on large tensors: the votes of one attention hold H numbers for every number of
its output. Run plainly, it keeps the results of every operation of every iteration for the backward pass. Here the
backward pass starts from the votes again, so that memory does not grow with the iterations (Chen et al. 2016); and
torch.compile fuses the operations into a few loops.
"""
import sys

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_compiled = {}                  # `plain` and `recomputed` in compiled form, while compile_routing is on


def compile_routing(device="cpu", on: bool = True) -> bool:
    """Compiles every routing of this process from its next call on; on=False goes back. Returns whether it is on.

    Tries the compiler of the device first. Where that fails, as without a C++ compiler, the routings stay as they
    are, the same numbers more slowly, and one line on stderr says so.
    """
    _compiled.clear()
    if on:
        torch._dynamo.config.cache_size_limit = 64       # forms of one function: per shape of capsules, training or not
        try:
            torch.compile(torch.exp)(torch.zeros(2, device=device))
        except Exception as error:                       # each compiler and version fails in its own way
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            print(f"--compile: this machine cannot compile ({reason.strip()[:120]}); the routing runs uncompiled, with "
                  "the same results", file=sys.stderr)
            return False
        _compiled.update({run: torch.compile(run) for run in (plain, recomputed)})
    return on


def routed(routing, votes: Tensor, *parameters, varying: tuple[int, ...] = (0,), **settings):
    """`routing(votes, *parameters, **settings)`, of which the backward pass keeps nothing but the arguments.

    varying: the dimensions of the votes (and of parameters of as many dimensions, such as a mask) that differ from
    batch to batch, so that one compiled form serves them all.
    """
    training = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (votes, *parameters))
    run = recomputed if training else plain
    if _compiled:
        for x in (votes, *parameters):
            if isinstance(x, Tensor) and x.dim() == votes.dim():
                for dim in varying:
                    torch._dynamo.maybe_mark_dynamic(x, dim)
    return _compiled.get(run, run)(routing, votes, *parameters, **settings)


def plain(routing, *arguments, **settings):
    """The routing as it stands."""
    return routing(*arguments, **settings)


def recomputed(routing, *arguments, **settings):
    """The routing, computed a second time in the backward pass instead of stored in the first."""
    return checkpoint(routing, *arguments, use_reentrant=False, preserve_rng_state=False, **settings)
