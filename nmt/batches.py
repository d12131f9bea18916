"""Length-bucketed batches of encoded pairs."""
from typing import NamedTuple

import numpy as np
import torch

from nmt.encoded import EncodedPairs
from nmt.tokenizer import BOS, EOS
from transformer import PAD


class Batch(NamedTuple):
    """Padded sentences: `source [B, L_s]`: tokens, EOS; `target [B, L_t]`: BOS, tokens, EOS; int64, 0 on the right."""
    source: torch.Tensor
    target: torch.Tensor


def widths(source_lengths, target_lengths) -> np.ndarray:
    """What a pair needs in a batch: the longer of its source with EOS and its target with BOS and EOS; [n]."""
    return np.maximum(np.asarray(source_lengths) + 1, np.asarray(target_lengths) + 2)


def batches(source_lengths, target_lengths, max_tokens: int, seed: int = 0, epoch: int = 0,
            shuffle: bool = True) -> list[np.ndarray]:
    """Splits pairs 0..n-1 into batches of similar lengths: index arrays with `len(batch) · widest pair <= max_tokens`.

    Pairs are sorted by target length and, within one, by source length, upwards and downwards in turn, so that both
    sides change little from pair to pair; equal pairs are in random order. With shuffle, so are the batches.
    The same (seed, epoch) gives the same batches, another epoch others; nothing but the lengths is needed.
    A pair wider than max_tokens is a batch of its own.
    """
    source_lengths, target_lengths = np.asarray(source_lengths), np.asarray(target_lengths)
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(source_lengths)) if shuffle else np.arange(len(source_lengths))
    rank = np.unique(target_lengths, return_inverse=True)[1]                                # [n] 0, 1, 2, ...
    turn = np.where(rank % 2 == 0, source_lengths, -source_lengths)
    order = order[np.lexsort((turn[order], target_lengths[order]))]
    width = widths(source_lengths, target_lengths)[order]
    found, start = [], 0
    while start < len(order):
        widest = np.maximum.accumulate(width[start:start + max(1, max_tokens // width[start])])
        fits = np.searchsorted(widest * np.arange(1, len(widest) + 1), max_tokens, side="right")
        found.append(order[start:start + max(1, fits)])
        start += max(1, fits)
    if shuffle:
        found = [found[i] for i in random.permutation(len(found))]
    return found


def padding_share(source_lengths, target_lengths, found: list[np.ndarray]) -> float:
    """The share of padding among all cells of the batches `found`, both sides together, in 0..1."""
    source, target = np.asarray(source_lengths) + 1, np.asarray(target_lengths) + 2         # [n] with BOS and EOS
    cells = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in found)
    real = sum(source[batch].sum() + target[batch].sum() for batch in found)
    return float(1 - real / cells) if cells else 0.0


def collate(encoded: EncodedPairs, indices, pad_to_multiple: int = 1) -> Batch:
    """The pairs `indices` [B] as one padded Batch; widths are rounded up to a multiple of pad_to_multiple."""
    def padded(ids, offsets, first):
        start, length = offsets[indices], offsets[np.asarray(indices) + 1] - offsets[indices]   # [B]
        width = len(first) + length.max() + 1
        out = np.full((len(length), -(-width // pad_to_multiple) * pad_to_multiple), PAD, np.int64)     # [B, L]
        out[:, :len(first)] = first
        column = np.arange(out.shape[1])[None] - len(first)                                 # [1, L]
        inside = (column >= 0) & (column < length[:, None])                                 # [B, L]
        out[inside] = ids[(start[:, None] + column)[inside]]
        out[np.arange(len(length)), len(first) + length] = EOS
        return torch.from_numpy(out)

    return Batch(padded(encoded.source_ids, encoded.source_offsets, []),
                 padded(encoded.target_ids, encoded.target_offsets, [BOS]))


class BatchDataset(torch.utils.data.Dataset):
    """The batches of one epoch, for `DataLoader(dataset, batch_size=None, num_workers=...)`, which prefetches them."""

    def __init__(self, encoded: EncodedPairs, found: list[np.ndarray], pad_to_multiple: int = 1):
        self.encoded, self.found, self.pad_to_multiple = encoded, found, pad_to_multiple

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.found)

    def __getitem__(self, i: int) -> Batch:
        """Batch i."""
        return collate(self.encoded, self.found[i], self.pad_to_multiple)
