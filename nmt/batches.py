"""Batches of pairs of similar lengths, and the stream of batches for training."""
import itertools
import os
import signal
from multiprocessing import active_children
from multiprocessing.queues import Queue
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from nmt.encoded import EncodedPairs
from nmt.tokenizer import BOS, EOS
from tools.files import UserError
from tools.signals import SIGNALS, hold_signals
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


class Step(NamedTuple):
    """The micro-batches of one update that this process computes."""
    batches: list
    tokens: int                 # target tokens of the update, over all processes
    place: tuple[int, int]      # (epoch, micro-batch) of the update after this one


class BatchesOfPairs(Dataset):
    """The pairs of a corpus; an item is the batch of the pairs with the given indices, a
    `rectangle` for max_tokens unless that is 0."""

    def __init__(self, encoded: EncodedPairs, max_tokens: int):
        self.encoded = encoded
        self.max_tokens = max_tokens

    def __getitem__(self, indices) -> Batch:
        batch = collate(self.encoded, indices)
        return rectangle(batch, self.max_tokens) if self.max_tokens else batch


def micro_batches(encoded: EncodedPairs, place: tuple[int, int], max_tokens: int, seed: int):
    """Yields the micro-batches from `place` on, epoch after epoch without end: the indices of the
    pairs, and the place of the next one."""
    epoch, start = place
    while True:
        index_batches = batches(encoded.source_lengths, encoded.target_lengths, max_tokens, seed,
                                epoch)
        for i in range(start, len(index_batches)):
            yield index_batches[i], (epoch, i + 1)
        epoch += 1
        start = 0


def training_steps(encoded: EncodedPairs, place: tuple[int, int], machine, max_tokens: int,
                   accumulate: int = 1, seed: int = 1, workers: int = 0, rectangles: bool = False):
    """Yields the updates from `place` on, endlessly. Each has `accumulate x world` micro-batches,
    assigned to the processes round-robin; one may span two epochs. rectangles: see `rectangle`."""
    size = accumulate * machine.world
    # the loader runs ahead in one of two copies of the stream; the other counts a step's tokens
    all_batches, ahead = itertools.tee(micro_batches(encoded, place, max_tokens, seed))
    own = (indices for indices, _ in itertools.islice(ahead, machine.rank, None, machine.world))
    # one loader for all epochs: its processes start once
    loaded = load_batches(DataLoader(
        BatchesOfPairs(encoded, max_tokens if rectangles else 0), sampler=own, batch_size=None,
        num_workers=workers, worker_init_fn=setup_worker,
        pin_memory=machine.device.type == "cuda"))
    while True:
        group = list(itertools.islice(all_batches, size))
        tokens = sum(int(encoded.target_lengths[indices].sum()) + len(indices)       # EOS counts
                     for indices, _ in group)
        yield Step(list(itertools.islice(loaded, accumulate)), tokens, group[-1][1])


def setup_worker(_: int) -> None:
    """Keeps a DataLoader's worker alive after a signal: the last step needs its batches. Ends it if
    it cannot send a batch, as with a full /dev/shm: Python would leave the training waiting."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    Queue._on_queue_feeder_error = staticmethod(lambda *_: os._exit(1))


def load_batches(loader: DataLoader):
    """Yields the batches of a loader. Raises UserError for a worker that cannot start, or ends."""
    try:
        with hold_signals():                             # a worker that starts would die of them
            loaded = iter(loader)
        if loader.num_workers and hasattr(signal, "SIGCHLD"):        # not on Windows
            # torch's handler raises wherever this process is when a worker is killed
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        yield from loaded
    except (EOFError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        for worker in active_children():                 # they ignore SIGTERM
            worker.kill()
        raise UserError("a process of --workers ended, perhaps because memory or /dev/shm is full: "
                        "the same command resumes; with --workers 0 it needs less") from error
