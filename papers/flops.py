"""Floating-point operations of a model's matrix products, counted on tensors that have shapes and
no data: what bench.py divides by seconds, and the ratio that these products alone would allow."""
import torch
from torch.utils.flop_counter import FlopCounterMode

from attention import Cache
from nmt.batches import Step
from transformer import Memory


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
    with FlopCounterMode(display=False) as counter:
        memory = model.encode(source.to("meta"))
        first = torch.empty(B, 1, dtype=torch.long, device="meta")
        model.decode(first, memory, cache)
        memory = widen(memory, cache, B * beam)
        for _ in range(length - 1):
            ids = torch.empty(B * beam, 1, dtype=torch.long, device="meta")
            model.decode(ids, memory, cache)
    return counter.get_total_flops() / B


def widen(memory: Memory, cache: Cache, rows: int) -> Memory:
    """Memory and cache for `rows` hypotheses."""
    index = torch.empty(rows, dtype=torch.long, device="meta")
    cache.reorder(index)
    return memory.select(index)
