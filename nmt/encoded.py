"""Encoded corpora: token ids in flat arrays, in memory or memory-mapped from files that are made once.

A corpus of n pairs is four flat arrays: per side, all token ids one after the other and n + 1 offsets into them.
Sentences are stored bare; `batches.collate` adds BOS and EOS. Memory-mapped, a corpus takes only the memory of the pages
in use, which the system can take back, and its batches are made from the lengths alone.

The files of a cached corpus lie in one folder whose name holds a SHA-256 over the whole text of both sides, the
tokenizer and the length limit. A changed text, tokenizer or limit is another folder, so a stale one is never used.
Reading everything for the digest costs seconds where encoding costs minutes; file times and sizes would be quicker and
can lie.
"""
import hashlib
import json
import os
import secrets
import shutil
import sys
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nmt.files import reported, sync_folder
from nmt.flags import UserError

# Set, so that `tokenizers` neither warns nor turns itself off when a DataLoader forks; its workers never tokenize.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

FORMAT = 1                      # of the cached files; counts up when they change
CHUNK = 10_000                  # pairs that are encoded at a time: what bounds the memory
SIDES = ("source", "target")


class Dropped(NamedTuple):
    """How many training pairs were left out: those with an empty side, those with a side over --max-length."""
    empty: int
    long: int


class EncodedPairs:
    """n pairs as flat arrays: sentence i of a side is `ids[offsets[i]:offsets[i + 1]]`, offsets [n + 1].

    The arrays are in memory, or memory-mapped; then `folder` says from where, and a copy sent to another process
    opens them there.
    """

    def __init__(self, source_ids, source_offsets, target_ids, target_offsets, dropped=Dropped(0, 0), folder=None):
        self.source_ids, self.source_offsets = source_ids, source_offsets
        self.target_ids, self.target_offsets = target_ids, target_offsets
        self.dropped, self.folder = dropped, folder
        self.source_lengths = np.diff(source_offsets)                                       # [n], without EOS
        self.target_lengths = np.diff(target_offsets)                                       # [n], without BOS and EOS

    def __len__(self) -> int:
        """The number of pairs n."""
        return len(self.source_lengths)

    def __reduce__(self):
        """Pickles as the folder, where there is one: worker processes map the files instead of copying them."""
        if self.folder:
            return open_encoded, (self.folder,)
        return EncodedPairs, (self.source_ids, self.source_offsets, self.target_ids, self.target_offsets, self.dropped)

    def source(self, i: int) -> np.ndarray:
        """The token ids of source sentence i, without EOS, int64."""
        return self.source_ids[self.source_offsets[i]:self.source_offsets[i + 1]].astype(np.int64)

    def target(self, i: int) -> np.ndarray:
        """The token ids of target sentence i, without BOS and EOS, int64."""
        return self.target_ids[self.target_offsets[i]:self.target_offsets[i + 1]].astype(np.int64)


def encode_chunks(tokenizer, pairs, max_length=None):
    """Yields, for every CHUNK pairs, the ids of both sides, their lengths, and what was `Dropped`.

    `([ids, ids], [lengths, lengths], Dropped)`: ids [sum of lengths] as small an integer type as the vocabulary
    allows, lengths [pairs] int64. With max_length, pairs with an empty side or with more than max_length tokens on a
    side are left out. All cores encode (`encode_batch` of tokenizers).
    """
    kind = np.uint16 if tokenizer.get_vocab_size() <= 2 ** 16 else np.int32
    remaining = zip(*pairs)
    while chunk := list(islice(remaining, CHUNK)):
        encoded = list(zip(*([encoding.ids for encoding in tokenizer.encode_batch_fast(side, add_special_tokens=False)]
                             for side in map(list, zip(*chunk)))))
        kept, dropped = encoded, Dropped(0, 0)
        if max_length is not None:
            full = [ids for ids, texts in zip(encoded, chunk) if texts[0].strip() and texts[1].strip()]
            kept = [ids for ids in full if max(map(len, ids)) <= max_length]
            dropped = Dropped(len(chunk) - len(full), len(full) - len(kept))
        sides = list(zip(*kept)) or [(), ()]
        yield ([np.fromiter(chain.from_iterable(side), kind) for side in sides],
               [np.fromiter(map(len, side), np.int64) for side in sides], dropped)


def offsets(lengths) -> np.ndarray:
    """Where each sentence starts, and where the last one ends: int64 [n + 1]."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def encode_pairs(tokenizer, pairs, max_length=None) -> EncodedPairs:
    """Encodes a corpus into memory; max_length is for training text (`encode_chunks` says what it leaves out)."""
    chunks = list(encode_chunks(tokenizer, pairs, max_length))
    ids, lengths = ([np.concatenate([chunk[part][side] for chunk in chunks]) if chunks else np.zeros(0, np.int64)
                     for side in (0, 1)] for part in (0, 1))
    dropped = Dropped(*(sum(chunk[2][reason] for chunk in chunks) for reason in (0, 1)))
    return EncodedPairs(ids[0], offsets(lengths[0]), ids[1], offsets(lengths[1]), dropped)


LONGEST_VALID = 2_048           # tokens of a validation line: its attention weights alone take gigabytes beyond


def encode_train(tokenizer, corpora, max_length: int) -> EncodedPairs:
    """The training pairs as token ids, without those that have an empty side or more than max_length tokens on a side.

    A large corpus is encoded into files on the first call and mapped into memory from then on.
    Raises UserError if no pair is left.
    """
    encoded = (encode_files(tokenizer, corpora.train, max_length, corpora.cache) if corpora.cache
               else encode_pairs(tokenizer, corpora.train, max_length))
    if not len(encoded):
        raise UserError(f"no training pair of {corpora.name} is left: {encoded.dropped.empty} have an empty side, "
                        f"{encoded.dropped.long} more tokens than --max-length {max_length}")
    return encoded


def encode_valid(tokenizer, corpora) -> EncodedPairs:
    """The validation pairs as token ids, whole. Raises UserError for a line with more than LONGEST_VALID tokens: its
    attention would not fit the memory, and it is better to say so before the training than after hours of it."""
    encoded = encode_pairs(tokenizer, corpora.valid)
    for language, lengths in ((corpora.src, encoded.source_lengths), (corpora.tgt, encoded.target_lengths)):
        if lengths.max() > LONGEST_VALID:
            raise UserError(f"--valid: line {lengths.argmax() + 1} of the {language} text has {lengths.max():,} tokens "
                            f"and may have {LONGEST_VALID:,} at most: shorten the line or leave the pair out")
    return encoded


# Files

def digest(*parts) -> str:
    """32 hexadecimal digits of the SHA-256 over the parts: a Path counts with its file's content, the rest as text."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with reported("read", part), open(part, "rb") as file:
                part = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(hashlib.sha256(str(part).encode()).digest())
    return total.hexdigest()[:32]


def encode_files(tokenizer, pairs, max_length, parent) -> EncodedPairs:
    """The same as `encode_pairs` for a corpus on disk (`pairs` of `files.Lines`), memory-mapped.

    Encoded on the first call, into a folder below `parent`; later calls only read the text once for its digest.
    The folder is complete or not there: it is written under another name, forced to the disk, and renamed.
    Raises UserError if it cannot be written.
    """
    source, target = (side.path for side in pairs)
    key = digest(FORMAT, source, target, tokenizer.to_str(), max_length)
    folder = Path(parent) / f"{source.stem}.{source.suffix[1:]}-{target.suffix[1:]}.{key}"
    if not folder.exists():
        print(f"encoding {len(pairs.source):,} pairs into {folder}, once", file=sys.stderr, flush=True)
        with reported("write", folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = folder.with_name(f".{folder.name[:40]}.{secrets.token_hex(8)}.tmp")
            try:
                temporary.mkdir()
                write_arrays(temporary, encode_chunks(tokenizer, pairs, max_length), len(pairs.source))
                if key != digest(FORMAT, source, target, tokenizer.to_str(), max_length):
                    raise UserError(f"{source} or {target} changed while it was read: start again")
                try:
                    temporary.rename(folder)
                except OSError:                   # another process was faster, with the same content
                    if not folder.exists():
                        raise
                sync_folder(folder.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return open_encoded(folder)


def write_arrays(folder: Path, chunks, total: int) -> None:
    """Writes encoded chunks of `total` pairs as the files of a cached corpus, chunk by chunk, forced to the disk."""
    files = {f"{side}_{part}": open(folder / f"{side}_{part}", "wb") for side in SIDES for part in ("ids", "offsets")}
    try:
        ends, empty, long, kind = [0, 0], 0, 0, np.uint16
        for file in (files["source_offsets"], files["target_offsets"]):
            file.write(np.zeros(1, np.int64).tobytes())
        with tqdm(total=total, unit="pair", unit_scale=True, desc="encoding", disable=None) as bar:
            for ids, lengths, dropped in chunks:
                for i, side in enumerate(SIDES):
                    files[f"{side}_ids"].write(ids[i].tobytes())
                    files[f"{side}_offsets"].write((ends[i] + np.cumsum(lengths[i])).tobytes())
                    ends[i] += int(lengths[i].sum())
                empty, long, kind = empty + dropped.empty, long + dropped.long, ids[0].dtype
                bar.update(len(lengths[0]) + sum(dropped))
        files["meta.json"] = open(folder / "meta.json", "wb")
        files["meta.json"].write(json.dumps({"kind": np.dtype(kind).str, "empty": empty, "long": long,
                                             "sizes": {name: file.tell() for name, file in files.items()
                                                       if name != "meta.json"}}).encode())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    sync_folder(folder)


def open_encoded(folder) -> EncodedPairs:
    """Maps the files of a cached corpus into memory. Raises UserError if they are damaged."""
    folder, arrays = Path(folder), {}
    try:
        meta = json.loads((folder / "meta.json").read_text())
        for name, size in meta["sizes"].items():
            kind = np.dtype(np.int64 if name.endswith("offsets") else meta["kind"])
            if (folder / name).stat().st_size != size or kind.kind not in "iu":
                raise ValueError
            arrays[name] = np.asarray(np.memmap(folder / name, kind, mode="r")) if size else np.zeros(0, kind)
        return EncodedPairs(**arrays, dropped=Dropped(meta["empty"], meta["long"]), folder=folder)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder} is damaged: delete it, and it is made again") from None
