"""Parallel text: corpora by name or prefix.

A corpus is a prefix plus a language: `--train DIR/train --src en --tgt de` reads DIR/train.en and DIR/train.de, line i
of the one translating line i of the other. `--data NAME` is short for a known corpus.
"""
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Sequence

from nmt.download import corpus_files
from nmt.files import Lines
from nmt.flags import UserError, flag

NAMES = {"toy": ("en", "de"), "multi30k": ("en", "de"), "wmt14-en-de": ("en", "de"), "wmt17-zh-en": ("zh", "en")}
TOY_TRAIN, TOY_VALID, TOY_TEST, TOY_SEED = 30_000, 500, 1_000, 1
CACHE_FROM = 64 << 20           # bytes of training text: from here on it is encoded into files, once
DATA = "data"


class Pairs(NamedTuple):
    """Source and target sentences; both sides have a length and can be iterated repeatedly (a list or `Lines`)."""
    source: Sequence[str] | Lines
    target: Sequence[str] | Lines


class Corpora(NamedTuple):
    """What one run trains and is judged on; train may stay on disk, valid and test are in memory."""
    name: str                   # of --data, or the --train prefix
    src: str
    tgt: str
    train: Pairs
    valid: Pairs
    test: Pairs | None          # None where only --train and --valid are given
    cache: Path | None          # where the tokenizer and the encoded training text are kept; None for small text


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
        DATA, 259, 1_000_000, metavar="N")
    max_length: int = flag(
        256, "training pairs with more tokens on a side are dropped; valid and test are kept whole",
        DATA, 1, 1_000_000, metavar="N")


def load_corpora(args) -> Corpora:
    """The corpora that the flags of `add_data_flags` name. Raises UserError for whatever is missing or unreadable."""
    if args.train or args.valid or args.test:
        missing = [f"--{flag}" for flag in ("train", "valid", "src", "tgt") if not getattr(args, flag)]
        if missing:
            raise UserError(f"own text needs {', '.join(missing)} as well (or none of --train, --valid, --test, to use "
                            "the corpus that --data names)")
        src, tgt, name = args.src, args.tgt, args.train
        prefixes = [args.train, args.valid, args.test]
    else:
        name, languages = args.data, NAMES[args.data]
        src = args.src or next((x for x in languages if x != args.tgt), languages[0])
        tgt = args.tgt or next((x for x in languages if x != src), languages[1])
        if {src, tgt} != set(languages):
            raise UserError(f"--data {name} is between {languages[0]} and {languages[1]}, not --src {src} --tgt {tgt}")
    if src == tgt:
        raise UserError(f"--src and --tgt are both {src}; a corpus has two languages")
    if not args.train and name == "toy":
        return Corpora(name, src, tgt, *toy_splits(src), cache=None)
    if not args.train:
        prefixes = corpus_files(name, Path(args.data_dir))
    train = read_pairs(prefixes[0], src, tgt)
    valid, test = (prefix and Pairs(*map(list, read_pairs(prefix, src, tgt))) for prefix in prefixes[1:])
    cache = None
    if sum(side.path.stat().st_size for side in train) >= CACHE_FROM:
        beside = train.source.path.parent
        cache = (beside if os.access(beside, os.W_OK) else Path(args.data_dir)) / "encoded"
    return Corpora(name, src, tgt, train, valid, test or None, cache)


def read_pairs(prefix, src: str, tgt: str) -> Pairs:
    """The pairs of PREFIX.src and PREFIX.tgt, left on disk. Raises UserError, also for unequal line counts."""
    source, target = Lines(f"{prefix}.{src}"), Lines(f"{prefix}.{tgt}")
    if len(source) != len(target):
        raise UserError(f"{source.path} has {len(source)} lines and {target.path} has {len(target)}; line i of the one "
                        "must translate line i of the other")
    return Pairs(source, target)


def toy_splits(src: str) -> list[Pairs]:
    """Training, validation and test pairs of the embedded corpus, from English or from German."""
    import toy
    splits = toy.splits(TOY_TRAIN, TOY_VALID, TOY_TEST, seed=TOY_SEED)
    english_german = [([x.english for x in splits[part]], [x.german for x in splits[part]])
                      for part in ("train", "valid", "test")]
    return [Pairs(*pair) if src == "en" else Pairs(*reversed(pair)) for pair in english_german]
