"""Parallel text: corpora by name or prefix.

A corpus is a prefix plus a language: `--train DIR/train --src en --tgt de` reads DIR/train.en and
DIR/train.de, line i of the one translating line i of the other. `--data NAME` is short for a known
corpus.
"""
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Sequence

from nmt.download import CORPORA, corpus_files
from nmt.files import Lines
from nmt.flags import UserError, flag

TOY_TRAIN = 30_000              # pairs of the embedded corpus
TOY_VALID = 500
TOY_TEST = 1_000
TOY_SEED = 1
NAMES = {"toy": ("en", "de"), **{name: languages for name, (languages, _) in CORPORA.items()}}
CACHE_FROM = 64 << 20           # bytes of training text, from which on it is encoded into files
DATA = "data"


class Pairs(NamedTuple):
    """Source and target sentences; both sides have a length and can be iterated repeatedly."""
    source: Sequence[str] | Lines
    target: Sequence[str] | Lines


class Corpora(NamedTuple):
    """What one run trains and is evaluated on; train may stay on disk, the rest is in memory."""
    name: str                   # of --data, or the --train prefix
    src: str
    tgt: str
    train: Pairs
    valid: Pairs
    test: Pairs | None          # None where only --train and --valid are given
    cache: Path | None          # where large text is kept encoded, with its tokenizer; else None


@dataclass
class DataFlags:
    """The flags that choose the text, its vocabulary and its longest sentences."""
    data: str = flag(
        "toy", "a known corpus: toy (embedded), multi30k, wmt14-en-de, wmt17-zh-en; looked for in "
        "DATA_DIR/NAME, else downloaded there", DATA, choices=tuple(NAMES), metavar="NAME")
    data_dir: str = flag("data", "where named corpora lie or go to", DATA, metavar="DATA_DIR")
    train: str | None = flag(
        None, "own training text instead: PREFIX.SRC and PREFIX.TGT", DATA, metavar="PREFIX")
    valid: str | None = flag(
        None, "own validation text, needed with --train", DATA, metavar="PREFIX")
    test: str | None = flag(None, "own test text; may be left out", DATA, metavar="PREFIX")
    src: str | None = flag(
        None, "source language, the ending of the source files (own text: needed; named corpora: "
        "their own order)", DATA, metavar="SRC")
    tgt: str | None = flag(
        None, "target language, the ending of the target files", DATA, metavar="TGT")
    vocab_size: int | None = flag(
        None, "size of the joint BPE vocabulary (toy 2000, multi30k 10000, wmt 32000; own text "
        "10000, from a million lines on 32000; these defaults shrink where the text is too small)",
        DATA, 259, 1_000_000)
    max_length: int = flag(
        256, "training pairs with more tokens on a side are dropped; valid and test are kept whole",
        DATA, 1, 1_000_000)


def text_name(flags: DataFlags) -> str:
    """The name of the text in a run's: of --data, or the folder and prefix of --train."""
    if not flags.train:
        return flags.data
    path = Path(flags.train).resolve()
    return path.parent.name if path.name == "train" else f"{path.parent.name}-{path.name}"


def load_corpora(flags: DataFlags) -> Corpora:
    """The corpora that the flags name. Raises UserError for whatever is missing or unreadable."""
    if flags.train or flags.valid or flags.test:
        return own_corpora(flags)
    return known_corpora(flags)


def own_corpora(flags: DataFlags) -> Corpora:
    """The text of --train, --valid and --test."""
    missing = [f"--{name}" for name in ("train", "valid", "src", "tgt") if not getattr(flags, name)]
    if missing:
        raise UserError(f"own text needs {', '.join(missing)} as well (or none of --train, --valid,"
                        " --test, to use the corpus that --data names)")
    if flags.src == flags.tgt:
        raise UserError(f"--src and --tgt are both {flags.src}; a corpus has two languages")
    prefixes = (flags.train, flags.valid, flags.test)
    return read_corpora(flags.train, flags.src, flags.tgt, prefixes, flags.data_dir)


def known_corpora(flags: DataFlags) -> Corpora:
    """The corpus of --data, in its own direction or the one that --src or --tgt asks for."""
    name = flags.data
    src, tgt = NAMES[name]
    if flags.src == tgt or flags.tgt == src:
        src, tgt = tgt, src
    wanted = (flags.src or src, flags.tgt or tgt)
    if wanted != (src, tgt):
        raise UserError(f"--data {name} is between {' and '.join(NAMES[name])}, not"
                        f" --src {wanted[0]} --tgt {wanted[1]}")
    if name == "toy":
        return Corpora(name, src, tgt, *toy_pairs(src), cache=None)
    return read_corpora(name, src, tgt, corpus_files(name, Path(flags.data_dir)), flags.data_dir)


def read_corpora(name: str, src: str, tgt: str, prefixes, data_dir: str) -> Corpora:
    """The training, validation and, unless that prefix is None, test text of the prefixes."""
    train = read_pairs(prefixes[0], src, tgt)
    valid = in_memory(read_pairs(prefixes[1], src, tgt))
    test = in_memory(read_pairs(prefixes[2], src, tgt)) if prefixes[2] else None
    cache = None
    if sum(side.path.stat().st_size for side in train) >= CACHE_FROM:
        beside = train.source.path.parent
        cache = (beside if os.access(beside, os.W_OK) else Path(data_dir)) / "encoded"
    return Corpora(name, src, tgt, train, valid, test, cache)


def read_pairs(prefix, src: str, tgt: str) -> Pairs:
    """The pairs of PREFIX.src and PREFIX.tgt, left on disk. Raises UserError, also for unequal
    line counts."""
    source = Lines(f"{prefix}.{src}")
    target = Lines(f"{prefix}.{tgt}")
    if len(source) != len(target):
        raise UserError(f"{source.path} has {len(source)} lines and {target.path} has"
                        f" {len(target)}; line i of the one must translate line i of the other")
    return Pairs(source, target)


def in_memory(pairs: Pairs) -> Pairs:
    """The same pairs as lists."""
    return Pairs(list(pairs.source), list(pairs.target))


def toy_pairs(src: str) -> list[Pairs]:
    """Training, validation and test pairs of the embedded corpus, from English or from German."""
    import toy
    splits = toy.splits(TOY_TRAIN, TOY_VALID, TOY_TEST, seed=TOY_SEED)
    found = []
    for part in ("train", "valid", "test"):
        english = [pair.english for pair in splits[part]]
        german = [pair.german for pair in splits[part]]
        found.append(Pairs(english, german) if src == "en" else Pairs(german, english))
    return found
