"""Floating-point operations of a model's matrix products, counted on tensors that have shapes and
no data: what bench.py divides by seconds, and the ratio that these products alone would allow."""
from math import comb

import torch
from torch.utils.flop_counter import FlopCounterMode

from attention import Cache
from nmt.batches import Step


def training_flops(model, steps: list[Step]) -> float:
    """Of training by `steps`, per target token; model: on device "meta".

    A backward pass takes twice the forward pass. What a routing does cell by cell is not counted.
    """
    with FlopCounterMode(display=False) as forward:
        for step in steps:
            for batch in step.batches:
                model(batch.source.to("meta"), batch.target[:, :-1].to("meta"))
    return 3 * forward.get_total_flops() / sum(step.tokens for step in steps)


@torch.no_grad()
def decoding_flops(model, source, length: int, beam: int) -> float:
    """Of a beam search of `length` steps over source [B, L_s], per sentence; model: on "meta"."""
    B = len(source)
    cache = Cache()
    encoding, memory = counted(model.encode, source.to("meta"))
    first, _ = counted(model.decode, newest(B), memory, cache)
    hypotheses = torch.empty(B * beam, dtype=torch.long, device="meta")
    cache.reorder(hypotheses, shared_sources=True)
    second, _ = counted(model.decode, newest(B * beam), memory, cache)
    third, _ = counted(model.decode, newest(B * beam), memory, cache)
    fourth, _ = counted(model.decode, newest(B * beam), memory, cache)
    # from the second on a step costs a quadratic function of its number, whose forward differences
    # give the sum over n of them (Newton)
    slope = third - second
    bend = (fourth - third) - slope
    n = length - 1
    others = comb(n, 1) * second + comb(n, 2) * slope + comb(n, 3) * bend
    return (encoding + first + others) / B


def counted(f, *arguments) -> tuple:
    """The operations that f takes, and what it returns."""
    with FlopCounterMode(display=False) as counter:
        result = f(*arguments)
    return counter.get_total_flops(), result


def newest(rows: int):
    """The newest token of every hypothesis: ids [rows, 1]."""
    return torch.empty(rows, 1, dtype=torch.long, device="meta")
