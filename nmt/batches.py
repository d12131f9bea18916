"""Length-bucketed batches of encoded pairs, and the stream of them that training goes through."""
import functools
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from nmt.encoded import EncodedPairs
from nmt.tokenizer import BOS, EOS
from transformer import PAD


class Batch(NamedTuple):
    """Padded sentences, int64, 0 on the right."""
    source: torch.Tensor        # [B, L_s]: tokens, EOS
    target: torch.Tensor        # [B, L_t + 1]: BOS, tokens, EOS


def batches(source_lengths, target_lengths, max_tokens: int, seed: int = 0, epoch: int = 0,
            shuffle: bool = True) -> list[np.ndarray]:
    """Splits pairs 0..n-1 into batches of similar lengths: index arrays with
    `len(batch) · widest pair <= max_tokens`.

    Pairs are sorted by target length and, within one, by source length, upwards and downwards in
    turn, so that both sides change little from pair to pair; equal pairs are in random order. With
    shuffle, so are the batches.
    The same (seed, epoch) gives the same batches, another epoch others; nothing but the lengths is
    needed. A pair wider than max_tokens is a batch of its own.
    """
    source_lengths = np.asarray(source_lengths)
    target_lengths = np.asarray(target_lengths)
    n = len(source_lengths)
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(n) if shuffle else np.arange(n)
    rank = np.unique(target_lengths, return_inverse=True)[1]                 # [n] 0, 1, 2, ...
    turn = np.where(rank % 2 == 0, source_lengths, -source_lengths)
    order = order[np.lexsort((turn[order], target_lengths[order]))]
    width = np.maximum(source_lengths + 1, target_lengths + 2)[order]        # [n], with BOS and EOS
    found = []
    start = 0
    while start < n:
        most = max(1, max_tokens // width[start])        # a batch's widest is at least its first
        widest = np.maximum.accumulate(width[start:start + most])
        sizes = widest * np.arange(1, len(widest) + 1)   # of the batch with 1, 2, ... pairs
        count = max(1, np.searchsorted(sizes, max_tokens, side="right"))
        found.append(order[start:start + count])
        start += count
    if shuffle:
        found = [found[i] for i in random.permutation(len(found))]
    return found


def padding_share(source_lengths, target_lengths, found: list[np.ndarray]) -> float:
    """The share of padding among all cells of the batches `found`, both sides together, in 0..1."""
    source = np.asarray(source_lengths) + 1              # [n] with EOS
    target = np.asarray(target_lengths) + 2              # [n] with BOS and EOS
    cells = 0
    tokens = 0
    for batch in found:
        cells += len(batch) * (source[batch].max() + target[batch].max())
        tokens += source[batch].sum() + target[batch].sum()
    return float(1 - tokens / cells) if cells else 0.0


def collate(encoded: EncodedPairs, indices) -> Batch:
    """The pairs `indices` [B] as one padded Batch."""
    indices = np.asarray(indices)
    return Batch(padded(encoded.source_ids, encoded.source_offsets, indices, []),
                 padded(encoded.target_ids, encoded.target_offsets, indices, [BOS]))


def padded(ids, offsets, indices, first: list[int]) -> torch.Tensor:
    """The sentences `indices` of one side as rows: `first`, tokens, EOS, padding; int64 [B, L]."""
    start = offsets[indices]                                                 # [B]
    length = offsets[indices + 1] - start                                    # [B]
    width = len(first) + length.max() + 1
    rows = np.full((len(indices), width), PAD, np.int64)                     # [B, L]
    rows[:, :len(first)] = first
    column = np.arange(width)[None] - len(first)                             # [1, L], 0 at a token
    inside = (column >= 0) & (column < length[:, None])                      # [B, L]
    rows[inside] = ids[(start[:, None] + column)[inside]]
    rows[np.arange(len(indices)), len(first) + length] = EOS
    return torch.from_numpy(rows)


class Step(NamedTuple):
    """The micro-batches of one update that fall to this process."""
    batches: list
    tokens: int                 # target tokens of the update, over all processes
    place: tuple[int, int]      # (epoch, micro-batch) of the update after this one


def steps(encoded: EncodedPairs, settings, place: tuple[int, int], rank: int = 0, world: int = 1,
          pin_memory: bool = False):
    """The updates from `place` on, without end: every `accumulate x world` micro-batches of the
    shuffled stream make one, dealt out to the processes in turn. An epoch's last few wait for the
    next epoch.

    settings: its max_tokens, seed, workers and accumulate.
    """
    size = settings.accumulate * world
    stream = micro_batches(encoded, settings, place, rank, world, pin_memory)
    while True:
        group = [next(stream) for _ in range(size)]
        mine = [batch for batch, _, _ in group[rank::world]]
        tokens = sum(tokens for _, tokens, _ in group)
        yield Step(mine, tokens, group[-1][2])


def micro_batches(encoded: EncodedPairs, settings, place: tuple[int, int], rank: int, world: int,
                  pin_memory: bool):
    """The stream of micro-batches from `place` = (epoch, micro-batch) on, without end, each with
    its target tokens and the place after it: (Batch, or None where another process computes it;
    tokens; place)."""
    epoch, start = place
    seen = 0                            # micro-batches so far: every world-th is this process's
    while True:
        found = batches(encoded.source_lengths, encoded.target_lengths, settings.max_tokens,
                        settings.seed, epoch)[start:]
        own = [indices for i, indices in enumerate(found, seen) if i % world == rank]
        made = iter(DataLoader(
            own, batch_size=None, collate_fn=functools.partial(collate, encoded),
            num_workers=settings.workers, pin_memory=pin_memory, generator=torch.Generator()))
        for i, indices in enumerate(found):
            batch = next(made) if (seen + i) % world == rank else None
            tokens = int(encoded.target_lengths[indices].sum()) + len(indices)       # EOS counts
            yield batch, tokens, (epoch, start + i + 1)
        seen += len(found)
        epoch += 1
        start = 0
