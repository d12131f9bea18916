"""Batches of pairs of similar lengths, and the updates of training."""
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

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
    `len(batch) · widest pair <= max_tokens`; a wider pair is a batch by itself.

    Pairs are sorted by target length and, within one, by source length, upwards and downwards in
    turn, so that neighbours have similar lengths on both sides. With shuffle, equal pairs and
    batches are in random order, the same for the same (seed, epoch).
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
    index_batches = []
    start = 0
    while start < n:
        most = max_tokens // width[start]                # a batch's widest is at least its first
        widest = np.maximum.accumulate(width[start:start + most])
        sizes = widest * np.arange(1, len(widest) + 1)   # a batch of 1, 2, ... pairs
        count = max(1, np.searchsorted(sizes, max_tokens, side="right"))
        index_batches.append(order[start:start + count])
        start += count
    if shuffle:
        index_batches = [index_batches[i] for i in random.permutation(len(index_batches))]
    return index_batches


def collate(encoded: EncodedPairs, indices) -> Batch:
    """Puts the pairs `indices` [B] into one padded Batch."""
    indices = np.asarray(indices)
    return Batch(pad_rows(encoded.source_ids, encoded.source_offsets, indices, []),
                 pad_rows(encoded.target_ids, encoded.target_offsets, indices, [BOS]))


def pad_rows(ids, offsets, indices, first: list[int]) -> torch.Tensor:
    """Returns the sentences `indices` of one side, int64 [B, L]: `first`, tokens, EOS, padding."""
    start = offsets[indices]                                                 # [B]
    length = offsets[indices + 1] - start                                    # [B]
    width = len(first) + length.max() + 1
    rows = np.full((len(indices), width), PAD, np.int64)                     # [B, L]
    rows[:, :len(first)] = first
    column = np.arange(width)[None] - len(first)                             # [1, L], 0 at token 1
    inside = (column >= 0) & (column < length[:, None])                      # [B, L]
    rows[inside] = ids[(start[:, None] + column)[inside]]
    rows[np.arange(len(indices)), len(first) + length] = EOS
    return torch.from_numpy(rows)


def rectangle(batch: Batch, max_tokens: int) -> Batch:
    """Pads a batch to one of few shapes: both sides as wide as the wider one, and as many rows as
    max_tokens allow. An added row has no target, not even BOS, and does not count; EOS is its
    source, because an attention needs a key."""
    pairs = len(batch.source)
    width = max(batch.source.shape[1], batch.target.shape[1])
    rows = max(pairs, max_tokens // width)
    padded = Batch(*(F.pad(x, (0, width - x.shape[1], 0, rows - pairs)) for x in batch))
    padded.source[pairs:, 0] = EOS
    return padded


class Update(NamedTuple):
    """The micro-batches of one update that this process computes."""
    batches: list
    tokens: int                 # target tokens of the update, over all processes
    end: tuple[int, int]        # (epoch, micro-batch) of the update after this one


def training_updates(encoded: EncodedPairs, start: tuple[int, int], machine, max_tokens: int,
                     accumulate: int = 1, seed: int = 1, rectangles: bool = False):
    """Yields the updates from `start` on, endlessly. Each has `accumulate x world` micro-batches,
    assigned to the processes round-robin; one may span two epochs. rectangles: see `rectangle`."""
    epoch, first = start
    group = []                                           # the micro-batches of an update
    while True:
        index_batches = batches(encoded.source_lengths, encoded.target_lengths, max_tokens, seed,
                                epoch)
        for i in range(first, len(index_batches)):
            group.append(index_batches[i])
            if len(group) == accumulate * machine.world:
                # EOS counts
                tokens = sum(int(encoded.target_lengths[pairs].sum()) + len(pairs)
                             for pairs in group)
                own = [collate(encoded, pairs) for pairs in group[machine.rank::machine.world]]
                if rectangles:
                    own = [rectangle(batch, max_tokens) for batch in own]
                yield Update(own, tokens, (epoch, i + 1))
                group = []
        epoch += 1
        first = 0
