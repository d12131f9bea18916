"""Encoded corpora: token ids in flat arrays, in memory or memory-mapped from files made once.

Sentences are stored without BOS and EOS; `batches.collate` adds them.
"""
import os
import shutil
from array import array
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from nmt.tokenizer import prepare_line

CHUNK = 10_000                  # pairs that are tokenized at a time
ARRAYS = ("source_ids", "source_offsets", "target_ids", "target_offsets")


class EncodedPairs:
    """n pairs as flat arrays, ids [tokens] and offsets [n + 1]: sentence i of a side is
    `ids[offsets[i]:offsets[i + 1]]`."""

    def __init__(self, source_ids, source_offsets, target_ids, target_offsets):
        self.source_ids = source_ids
        self.source_offsets = source_offsets
        self.target_ids = target_ids
        self.target_offsets = target_offsets
        self.source_lengths = np.diff(source_offsets)                # [n], without EOS
        self.target_lengths = np.diff(target_offsets)                # [n], without BOS and EOS

    def __len__(self) -> int:
        return len(self.source_lengths)


def encode_pairs(tokenizer, pairs, max_length: int | None = None) -> EncodedPairs:
    """The token ids of a corpus, in memory. With max_length, pairs with an empty side or with more
    than max_length tokens on a side are left out."""
    kind = "H" if tokenizer.get_vocab_size() <= 2 ** 16 else "i"     # uint16 or int32
    ids = [array(kind), array(kind)]                                 # source, target
    offsets = [array("q", [0]), array("q", [0])]
    remaining = zip(*pairs, strict=True)
    bar = tqdm(total=len(pairs.source), desc="encoding", unit="pair", unit_scale=True, delay=2,
               disable=None)
    while texts := list(islice(remaining, CHUNK)):
        sides = []
        for lines in zip(*texts):
            sides.append(tokenizer.encode_batch_fast(list(map(prepare_line, lines))))
        for encodings in zip(*sides):
            lengths = list(map(len, encodings))
            if max_length is None or min(lengths) > 0 and max(lengths) <= max_length:
                for side in range(2):
                    ids[side].extend(encodings[side].ids)
                    offsets[side].append(len(ids[side]))
        bar.update(len(texts))
    bar.close()
    return EncodedPairs(*map(np.asarray, (ids[0], offsets[0], ids[1], offsets[1])))


def encode_files(tokenizer, pairs, max_length: int, folder: Path) -> EncodedPairs:
    """The same as `encode_pairs`, mapped from the files in `folder`, which the first call makes."""
    if not folder.exists():                              # a complete one may be read-only
        unfinished = folder.with_name(f"{folder.name}.tmp")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder.parent}.lock"):
            if not folder.exists():                      # another program may have made it
                shutil.rmtree(unfinished, ignore_errors=True)        # left by a killed program
                unfinished.mkdir()
                encoded = encode_pairs(tokenizer, pairs, max_length)
                for name in ARRAYS:
                    np.save(unfinished / f"{name}.npy", getattr(encoded, name))
                os.replace(unfinished, folder)
    arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS]
    return EncodedPairs(*arrays)
