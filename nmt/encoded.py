"""Encoded corpora: token ids in flat arrays, in memory or memory-mapped from files made once.

Sentences are stored without BOS and EOS; `batches.collate` adds them.
"""
import os
import shutil
from array import array
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from nmt.tokenizer import prepare_line
from tools.files import as_user_error, atomic_write, rename

# otherwise `tokenizers` warns when a DataLoader forks; its workers never tokenize
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

CHUNK = 10_000                  # pairs that are tokenized at a time
ARRAYS = ("source_ids", "source_offsets", "target_ids", "target_offsets")


class EncodedPairs:
    """n pairs as flat arrays, ids [tokens] and offsets [n + 1]: sentence i of a side is
    `ids[offsets[i]:offsets[i + 1]]`. folder: where the arrays are mapped from."""

    def __init__(self, source_ids, source_offsets, target_ids, target_offsets, folder=None):
        self.source_ids = source_ids
        self.source_offsets = source_offsets
        self.target_ids = target_ids
        self.target_offsets = target_offsets
        self.folder = folder
        self.source_lengths = np.diff(source_offsets)                # [n], without EOS
        self.target_lengths = np.diff(target_offsets)                # [n], without BOS and EOS

    def __len__(self) -> int:
        return len(self.source_lengths)

    def __reduce__(self):
        """Pickles mapped arrays as their folder: worker processes map the files, too."""
        if self.folder:
            return open_encoded, (self.folder,)
        return EncodedPairs, tuple(getattr(self, name) for name in ARRAYS)


def encode_pairs(tokenizer, pairs, max_length: int | None = None) -> EncodedPairs:
    """The token ids of a corpus, in memory. With max_length, for training text, pairs with an empty
    side or with more than max_length tokens on a side are left out."""
    kind = "H" if tokenizer.get_vocab_size() <= 2 ** 16 else "i"     # uint16 or int32
    ids = [array(kind), array(kind)]                                 # source, target
    offsets = [array("q", [0]), array("q", [0])]
    remaining = zip(*pairs, strict=True)                             # both are read to their end
    bar = tqdm(total=len(pairs.source), desc="encoding", unit="pair", unit_scale=True, delay=2,
               disable=None)
    while texts := list(islice(remaining, CHUNK)):
        sides = []
        for lines in zip(*texts):
            lines = list(map(prepare_line, lines))
            sides.append(tokenizer.encode_batch_fast(lines))
        for encodings in zip(*sides):
            lengths = list(map(len, encodings))
            if max_length is None or min(lengths) > 0 and max(lengths) <= max_length:
                for side in range(2):
                    ids[side].extend(encodings[side].ids)
                    offsets[side].append(len(ids[side]))
        bar.update(len(texts))
    bar.close()
    source_ids, target_ids = map(np.asarray, ids)
    source_offsets, target_offsets = map(np.asarray, offsets)
    return EncodedPairs(source_ids, source_offsets, target_ids, target_offsets)


def encode_files(tokenizer, pairs, max_length: int, folder: Path) -> EncodedPairs:
    """The same as `encode_pairs`, mapped from the files in `folder`, which the first call makes.
    Raises UserError if it cannot be written."""
    if not folder.exists():
        with as_user_error("write", folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / ".lock"):
                if not folder.exists():           # otherwise another process made it meanwhile
                    make_folder(encode_pairs(tokenizer, pairs, max_length), folder)
    return open_encoded(folder)


def make_folder(encoded: EncodedPairs, folder: Path) -> None:
    """Writes the arrays under another name and renames the folder: it is complete or missing."""
    unfinished = folder.with_name("unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)            # left by a killed program
    unfinished.mkdir()
    for name in ARRAYS:
        array = getattr(encoded, name)
        # into a real file NumPy writes by itself, and does not notice a full disk
        atomic_write(unfinished / f"{name}.npy",
                     lambda file: np.save(SimpleNamespace(write=file.write), array))
    rename(unfinished, folder)


def open_encoded(folder: Path) -> EncodedPairs:
    """Maps the arrays of a folder into memory."""
    arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ARRAYS]
    return EncodedPairs(*arrays, folder=folder)
