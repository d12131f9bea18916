"""Parallel text: loads corpora by name or by prefix.

A corpus is a prefix plus a language: `--train DIR/train --src en --tgt de` reads DIR/train.en and
DIR/train.de; line i of one file translates line i of the other. `--data NAME` is a known corpus.
"""
import hashlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple

import numpy as np
from tokenizers import Tokenizer

import tatoeba
from nmt.command_line import UserError, count, flag
from nmt.download import CORPORA, corpus_files
from nmt.encoded import EncodedPairs, encode_files, encode_pairs
from nmt.tokenizer import lines_to_learn_from, load_tokenizer, prepare_line, train_tokenizer

LANGUAGES = {"tatoeba": ("en", "de"),
             **{name: languages for name, (languages, _) in CORPORA.items()}}
VOCAB_SIZES = {"tatoeba": 4_000, "enja": 6_000}
LARGE = 1_000_000               # pairs: a text of so many has 32,000 tokens, a smaller one 10,000
CACHE_FROM = 250_000            # training pairs: from here on, they are encoded into files


class Lines:
    """The lines of a UTF-8 file, read anew at every iteration: a corpus need not fit into memory.
    Raises UserError for a line that is not UTF-8."""

    def __init__(self, path):
        self.path = Path(path)
        with open(path, "rb") as file:
            self.count = sum(1 for _ in file)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        with open(self.path, "rb") as file:
            yield from decode_lines(file, self.path)


def decode_lines(file, name) -> Iterator[str]:
    """Yields the lines of a binary file, which end with \\n or \\r\\n, without a byte-order mark.
    Raises UserError for a line that is not UTF-8."""
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {number}: not UTF-8") from None


class Pairs(NamedTuple):
    """Source and target sentences; both sides have a length and can be iterated repeatedly."""
    source: list[str] | Lines
    target: list[str] | Lines


class Data(NamedTuple):
    """The data of a run."""
    languages: tuple[str, str]          # source, target
    tokenizer: Tokenizer
    train: EncodedPairs
    valid: EncodedPairs
    valid_pairs: Pairs
    tests: dict[str, Pairs]     # by the name of the test set; may be empty
    checksums: dict[str, str]           # of the training and the validation text

    @property
    def length_ratio(self) -> float:
        """The ratio of target to source tokens, with EOS, that 99 % of the training pairs do not
        exceed: it limits the length of translations."""
        ratios = (self.train.target_lengths + 1) / (self.train.source_lengths + 1)
        return float(np.quantile(ratios, 0.99, method="lower"))      # one pair never decides


@dataclass
class DataFlags:
    """Text."""
    data: str = flag("tatoeba", "corpus; tatoeba is embedded, the others are downloaded",
                     choices=tuple(LANGUAGES))
    data_dir: str = flag("data", "where downloads and encoded texts go", metavar="DIR")
    train: str | None = flag(None, "own text: PREFIX.SRC and PREFIX.TGT", metavar="PREFIX")
    valid: str | None = flag(None, "own validation text", metavar="PREFIX")
    test: tuple[str, ...] = flag((), "own test sets", metavar="PREFIX")
    src: str | None = flag(None, "source language, the ending of the files' names")
    tgt: str | None = flag(None, "target language")
    pairs: int | None = flag(None, "the first N training pairs (default: all)", type=count)
    vocab_size: int | None = flag(None, "tokens of the joint BPE vocabulary (default: tatoeba "
                                  "4000, enja 6000, multi30k 10000, WMT 32000, own text 10000 or "
                                  "32000)", type=count)
    max_length: int = flag(256, "longest side of a pair, in tokens", type=count)


def name_text(flags: DataFlags) -> str:
    """The text's part of a run's name: --data, or the folder and prefix of --train."""
    if not flags.train:
        return flags.data
    path = Path(flags.train).resolve()
    return path.parent.name if path.name == "train" else f"{path.parent.name}-{path.name}"


# ---- Text

def load_text(flags: DataFlags):
    """The languages, the training pairs, which may be on disk, the validation pairs, and the test
    sets {name: pairs} that the flags name. Raises UserError."""
    if flags.train:
        if not (flags.valid and flags.src and flags.tgt):
            raise UserError("--train needs --valid, --src and --tgt, too")
        languages = flags.src, flags.tgt
        prefixes = [flags.train, flags.valid, *flags.test]
    else:
        if flags.valid or flags.test:
            raise UserError("--valid and --test need --train")
        languages = known_languages(flags)
        if flags.data == "tatoeba":
            train, valid, test = (embedded_pairs(part, languages)
                                  for part in ("train", "valid", "test"))
            return languages, train, valid, {"test": test}
        prefixes = corpus_files(flags.data, Path(flags.data_dir))
    train, valid, *tests = [read_pairs(prefix, *languages) for prefix in prefixes]
    names = [Path(prefix).name for prefix in prefixes[2:]]
    if len({*names}) < len(names):
        raise UserError("--test: two sets have the same name")
    tests = {name: Pairs(*map(list, pairs)) for name, pairs in zip(names, tests)}
    return languages, train, Pairs(*map(list, valid)), tests


def known_languages(flags: DataFlags) -> tuple[str, str]:
    """Source and target of the corpus of --data, in the direction of --src and --tgt if given.
    Raises UserError for another language."""
    for src, tgt in (LANGUAGES[flags.data], LANGUAGES[flags.data][::-1]):
        if flags.src in (None, src) and flags.tgt in (None, tgt):
            return src, tgt
    raise UserError(f"--data {flags.data} is between {src} and {tgt}")


def embedded_pairs(part: str, languages: tuple[str, str]) -> Pairs:
    """A part of the embedded corpus, from English or from German."""
    english, german = map(list, zip(*tatoeba.pairs(part)))
    return Pairs(english, german) if languages[0] == "en" else Pairs(german, english)


def read_pairs(prefix, src: str, tgt: str) -> Pairs:
    """The pairs of PREFIX.src and PREFIX.tgt, left on disk. Raises UserError for unequal numbers of
    lines."""
    source = Lines(f"{prefix}.{src}")
    target = Lines(f"{prefix}.{tgt}")
    if len(source) != len(target):
        raise UserError(f"{source.path} has {len(source)} lines and {target.path} has "
                        f"{len(target)}; line i of one must translate line i of the other")
    return Pairs(source, target)


def prepare_pairs(pairs: Pairs) -> Pairs:
    """The pairs as a model reads and writes them."""
    return Pairs(*(list(map(prepare_line, side)) for side in pairs))


def hash_text(lines: Iterable[str]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a text."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16]


# ---- Token ids

def load_data(flags: DataFlags, tokenizer_path: Path) -> Data:
    """Loads and encodes the text that the flags name. The tokenizer is read from tokenizer_path, or
    learned and written there; a large training text is encoded into files below --data-dir once.
    Raises UserError."""
    languages, train, valid, tests = load_text(flags)
    if flags.pairs:
        train = Pairs(*[list(islice(side, flags.pairs)) for side in train])
    checksums = {}
    for part, pairs in (("train", train), ("valid", valid)):
        for language, side in zip(languages, pairs):
            checksums[f"{part}.{language}"] = hash_text(side)
    # references are scored in the form of the translations
    valid = prepare_pairs(valid)
    tests = {name: prepare_pairs(pairs) for name, pairs in tests.items()}
    if tokenizer_path.exists():
        tokenizer = load_tokenizer(tokenizer_path)
    else:
        usual = 32_000 if len(train.source) >= LARGE else 10_000
        if not flags.train:
            usual = VOCAB_SIZES.get(flags.data, usual)
        tokenizer = train_tokenizer(lines_to_learn_from(train), flags.vocab_size or usual)
        tokenizer.save(str(tokenizer_path))
    if len(train.source) >= CACHE_FROM:
        key = hash_text([repr(checksums), tokenizer.to_str(), str(flags.max_length)])
        folder = Path(flags.data_dir) / "encoded" / f"{name_text(flags)}.{key}"
        encoded = encode_files(tokenizer, train, flags.max_length, folder)
    else:
        encoded = encode_pairs(tokenizer, train, flags.max_length)
    if not len(encoded):
        raise UserError(f"no training pair has two sides of 1 to {flags.max_length} tokens")
    return Data(languages, tokenizer, encoded, encode_pairs(tokenizer, valid, flags.max_length),
                valid, tests, checksums)
