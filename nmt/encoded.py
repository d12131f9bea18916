"""Encoded corpora: token ids in flat arrays, in memory or memory-mapped from files made once.

A corpus of n pairs is four flat arrays: per side, all token ids one after the other and n + 1
offsets into them. Sentences are stored bare; `batches.collate` adds BOS and EOS. Memory-mapped, a
corpus takes only the memory of the pages in use, which the system can take back, and its batches
are made from the lengths alone.

The files of a cached corpus lie in one folder whose name holds a SHA-256 over the whole text of
both sides, the tokenizer and the length limit. A changed text, tokenizer or limit is another
folder, so a stale one is never used. Reading everything for the digest costs seconds where encoding
costs minutes; file times and sizes would be quicker and can lie.
"""
import hashlib
import json
import os
import shutil
import sys
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nmt.files import reported, sync_folder, temporary_name
from nmt.flags import UserError

# Set, so that `tokenizers` neither warns nor turns itself off when a DataLoader forks; its workers
# never tokenize.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

FORMAT = 1                      # of the cached files; counts up when they change
CHUNK = 10_000                  # pairs that are encoded at a time: what bounds the memory
LONGEST_VALID = 2_048           # tokens of a validation line: its attention weights take gigabytes


class Dropped(NamedTuple):
    """Training pairs that were left out: with an empty side, with a side over --max-length."""
    empty: int
    long: int


class EncodedPairs:
    """n pairs as flat arrays: sentence i of a side is `ids[offsets[i]:offsets[i + 1]]`.

    ids [tokens], offsets [n + 1], in memory or memory-mapped; then `folder` says from where, and a
    copy sent to another process opens them there.
    """

    def __init__(self, source_ids, source_offsets, target_ids, target_offsets,
                 dropped=Dropped(0, 0), folder=None):
        self.source_ids = source_ids
        self.source_offsets = source_offsets
        self.target_ids = target_ids
        self.target_offsets = target_offsets
        self.dropped = dropped
        self.folder = folder
        self.source_lengths = np.diff(source_offsets)                # [n], without EOS
        self.target_lengths = np.diff(target_offsets)                # [n], without BOS and EOS

    def __len__(self) -> int:
        """The number of pairs n."""
        return len(self.source_lengths)

    def __reduce__(self):
        """Pickles as the folder, where there is one: worker processes map the files instead of
        copying them."""
        if self.folder:
            return open_encoded, (self.folder,)
        return EncodedPairs, (self.source_ids, self.source_offsets, self.target_ids,
                              self.target_offsets, self.dropped)

    def source(self, i: int) -> np.ndarray:
        """The token ids of source sentence i, without EOS, int64."""
        return self.source_ids[self.source_offsets[i]:self.source_offsets[i + 1]].astype(np.int64)

    def target(self, i: int) -> np.ndarray:
        """The token ids of target sentence i, without BOS and EOS, int64."""
        return self.target_ids[self.target_offsets[i]:self.target_offsets[i + 1]].astype(np.int64)


# ---- Encoding

class Side(NamedTuple):
    """The sentences of one language, one after the other."""
    ids: np.ndarray             # [sum of lengths], of as small a type as the vocabulary allows
    lengths: np.ndarray         # [sentences] int64


class Chunk(NamedTuple):
    """Some encoded pairs, and what was left out among them."""
    source: Side
    target: Side
    dropped: Dropped


def flat_side(sentences: list[list[int]], kind) -> Side:
    """Sentences of token ids as flat arrays; kind: the integer type of the ids."""
    ids = np.fromiter(chain.from_iterable(sentences), kind)
    lengths = np.fromiter(map(len, sentences), np.int64)
    return Side(ids, lengths)


def tokenized(tokenizer, lines: list[str]) -> list[list[int]]:
    """The token ids of lines; all cores encode."""
    encodings = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def fitting(texts, sources, targets, max_length: int) -> tuple[list[int], Dropped]:
    """The indices of the pairs that have two sides, of max_length tokens at most; how many of the
    others have an empty side, how many one that is too long."""
    kept = []
    empty = 0
    long = 0
    for i, (source, target) in enumerate(texts):
        if not source.strip() or not target.strip():
            empty += 1
        elif max(len(sources[i]), len(targets[i])) > max_length:
            long += 1
        else:
            kept.append(i)
    return kept, Dropped(empty, long)


def encode_chunks(tokenizer, pairs, max_length=None):
    """Yields a Chunk for every CHUNK pairs. With max_length, pairs with an empty side or with more
    than max_length tokens on a side are left out."""
    kind = np.uint16 if tokenizer.get_vocab_size() <= 2 ** 16 else np.int32
    remaining = zip(*pairs)
    while texts := list(islice(remaining, CHUNK)):
        sources = tokenized(tokenizer, [source for source, _ in texts])
        targets = tokenized(tokenizer, [target for _, target in texts])
        dropped = Dropped(0, 0)
        if max_length is not None:
            kept, dropped = fitting(texts, sources, targets, max_length)
            sources = [sources[i] for i in kept]
            targets = [targets[i] for i in kept]
        yield Chunk(flat_side(sources, kind), flat_side(targets, kind), dropped)


def joined(sides: list[Side]) -> tuple[np.ndarray, np.ndarray]:
    """The chunks of one side as (ids, offsets)."""
    if not sides:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    ids = np.concatenate([side.ids for side in sides])
    lengths = np.concatenate([side.lengths for side in sides])
    return ids, np.concatenate(([0], np.cumsum(lengths)))


def encode_pairs(tokenizer, pairs, max_length=None) -> EncodedPairs:
    """Encodes a corpus into memory; max_length is for training text (see `encode_chunks`)."""
    chunks = list(encode_chunks(tokenizer, pairs, max_length))
    dropped = Dropped(sum(chunk.dropped.empty for chunk in chunks),
                      sum(chunk.dropped.long for chunk in chunks))
    source = joined([chunk.source for chunk in chunks])
    target = joined([chunk.target for chunk in chunks])
    return EncodedPairs(*source, *target, dropped)


def encode_train(tokenizer, corpora, max_length: int) -> EncodedPairs:
    """The training pairs as token ids, without those that have an empty side or more than
    max_length tokens on a side.

    A large corpus is encoded into files on the first call and mapped into memory from then on.
    Raises UserError if no pair is left.
    """
    if corpora.cache:
        encoded = encode_files(tokenizer, corpora.train, max_length, corpora.cache)
    else:
        encoded = encode_pairs(tokenizer, corpora.train, max_length)
    if not len(encoded):
        empty, long = encoded.dropped
        raise UserError(f"no training pair of {corpora.name} is left: {empty} have an empty side,"
                        f" {long} more tokens than --max-length {max_length}")
    return encoded


def encode_valid(tokenizer, corpora) -> EncodedPairs:
    """The validation pairs as token ids, whole. Raises UserError for a line with more than
    LONGEST_VALID tokens: its attention would not fit the memory, and it is better to say so before
    the training than after hours of it."""
    encoded = encode_pairs(tokenizer, corpora.valid)
    sides = ((corpora.src, encoded.source_lengths), (corpora.tgt, encoded.target_lengths))
    for language, lengths in sides:
        if lengths.max() > LONGEST_VALID:
            raise UserError(f"--valid: line {lengths.argmax() + 1} of the {language} text has"
                            f" {lengths.max():,} tokens and may have {LONGEST_VALID:,} at most:"
                            " shorten the line or leave the pair out")
    return encoded


# ---- Files

def digest(*parts) -> str:
    """32 hexadecimal digits of the SHA-256 over the parts: a Path counts with its file's content,
    the rest as text."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with reported("read", part), open(part, "rb") as file:
                part = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(hashlib.sha256(str(part).encode()).digest())
    return total.hexdigest()[:32]


def encode_files(tokenizer, pairs, max_length, parent) -> EncodedPairs:
    """The same as `encode_pairs` for a corpus on disk (`pairs` of `files.Lines`), memory-mapped.

    Encoded on the first call, into a folder below `parent`; later calls only read the text once for
    its digest. The folder is complete or not there: it is written under another name, forced to the
    disk, and renamed. Raises UserError if it cannot be written.
    """
    source = pairs.source.path
    target = pairs.target.path
    key = digest(FORMAT, source, target, tokenizer.to_str(), max_length)
    languages = f"{source.suffix[1:]}-{target.suffix[1:]}"
    folder = Path(parent) / f"{source.stem}.{languages}.{key}"
    if folder.exists():
        return open_encoded(folder)
    count = len(pairs.source)
    print(f"encoding {count:,} pairs into {folder}, once", file=sys.stderr, flush=True)
    with reported("write", folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(folder)
        try:
            temporary.mkdir()
            write_arrays(temporary, encode_chunks(tokenizer, pairs, max_length), count)
            if key != digest(FORMAT, source, target, tokenizer.to_str(), max_length):
                raise UserError(f"{source} or {target} changed while it was read: start again")
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.exists():           # else another process was faster, with the same
                    raise
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return open_encoded(folder)


def write_arrays(folder: Path, chunks, total: int) -> None:
    """Writes encoded chunks of `total` pairs as the files of a cached corpus, chunk by chunk, and
    forces them to the disk."""
    ends = {"source": 0, "target": 0}             # tokens so far
    empty = 0
    long = 0
    kind = np.uint16
    with ExitStack() as stack:
        files = {}
        for side in ends:
            for part in ("ids", "offsets"):
                name = f"{side}_{part}"
                files[name] = stack.enter_context(open(folder / name, "wb"))
            files[f"{side}_offsets"].write(np.zeros(1, np.int64).tobytes())
        bar = tqdm(total=total, unit="pair", unit_scale=True, desc="encoding", disable=None)
        stack.enter_context(bar)
        for chunk in chunks:
            for side in ends:
                ids, lengths = getattr(chunk, side)
                files[f"{side}_ids"].write(ids.tobytes())
                files[f"{side}_offsets"].write((ends[side] + np.cumsum(lengths)).tobytes())
                ends[side] += int(lengths.sum())
                kind = ids.dtype
            empty += chunk.dropped.empty
            long += chunk.dropped.long
            bar.update(len(lengths) + sum(chunk.dropped))
        sizes = {name: file.tell() for name, file in files.items()}
        meta = {"kind": np.dtype(kind).str, "empty": empty, "long": long, "sizes": sizes}
        files["meta"] = stack.enter_context(open(folder / "meta.json", "wb"))
        files["meta"].write(json.dumps(meta).encode())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    sync_folder(folder)


def open_encoded(folder) -> EncodedPairs:
    """Maps the files of a cached corpus into memory. Raises UserError if they are damaged."""
    folder = Path(folder)
    arrays = {}
    try:
        meta = json.loads((folder / "meta.json").read_text())
        for name, size in meta["sizes"].items():
            kind = np.dtype(np.int64 if name.endswith("offsets") else meta["kind"])
            if (folder / name).stat().st_size != size:
                raise ValueError
            if size:
                arrays[name] = np.asarray(np.memmap(folder / name, kind, mode="r"))
            else:
                arrays[name] = np.zeros(0, kind)          # there is no map of an empty file
        dropped = Dropped(meta["empty"], meta["long"])
        return EncodedPairs(**arrays, dropped=dropped, folder=folder)
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder} is damaged: delete it, and it is made again") from None
