"""Routing made fast, its equations untouched: recomputed in the backward pass, and compiled on request.

A routing is a loop of cheap operations on large tensors: the votes of one attention hold H numbers for every number of
its output. Run plainly, it keeps the results of every operation of every iteration for the backward pass. Here the
backward pass starts from the votes again, so that memory does not grow with the iterations (Chen et al. 2016); on a
CPU a piece of the votes that fits the cache goes through the whole loop before the next, because every token is routed
by itself; and torch.compile fuses the operations into a few loops.
"""
import math
import sys

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

PIECE = 2 ** 17                 # votes that a CPU core routes at a time: 512 KiB in float32, a part of its own cache
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
    batch to batch, so that one compiled form serves them all. Votes of which only the first varies go in pieces.
    """
    pieces = math.ceil(votes.numel() / (PIECE * torch.get_num_threads()))
    if pieces > 1 and votes.device.type == "cpu" and varying == (0,):
        cut = lambda x: isinstance(x, Tensor) and x.dim() == votes.dim() and len(x) == len(votes)
        parts = zip(*(x.chunk(pieces) if cut(x) else pieces * (x,) for x in (votes, *parameters)))
        return _joined([_routed(routing, *part, varying=varying, **settings) for part in parts])
    return _routed(routing, votes, *parameters, varying=varying, **settings)


def _routed(routing, votes, *parameters, varying, **settings):
    """What `routed` computes, for one piece of the batch."""
    training = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (votes, *parameters))
    run = recomputed if training else plain
    if _compiled:
        for x in (votes, *parameters):
            if isinstance(x, Tensor) and x.dim() == votes.dim():
                for dim in varying:
                    torch._dynamo.maybe_mark_dynamic(x, dim)
    return _compiled.get(run, run)(routing, votes, *parameters, **settings)


def _joined(results):
    """The results of the pieces in one: tensors, or tuples of tensors and None."""
    if isinstance(results[0], tuple):
        return type(results[0])(*map(_joined, zip(*results)))
    return None if results[0] is None else torch.cat(results)


def plain(routing, *arguments, **settings):
    """The routing as it stands."""
    return routing(*arguments, **settings)


def recomputed(routing, *arguments, **settings):
    """The routing, computed a second time in the backward pass instead of stored in the first."""
    return checkpoint(routing, *arguments, use_reentrant=False, preserve_rng_state=False, **settings)
