"""Parallel text: loads corpora by name or by prefix.

A corpus is a prefix plus a language: `--train DIR/train --src en --tgt de` reads DIR/train.en and
DIR/train.de; line i of one file translates line i of the other. `--data NAME` is a known corpus.
"""
import glob
import hashlib
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

import numpy as np
from tokenizers import Tokenizer

import toy
from nmt.download import CORPORA, corpus_files
from nmt.encoded import EncodedPairs, encode_files, encode_pairs
from nmt.tokenizer import lines_to_learn_from, load_tokenizer, train_tokenizer
from tools.command_line import Flags, flag
from tools.files import Lines, UserError, atomic_write, errors_of

LANGUAGES = {"toy": ("en", "de"), **{name: languages for name, (languages, _) in CORPORA.items()}}
VOCAB_SIZES = {"toy": 2_000, "enja": 6_000}
LARGE = 1_000_000               # pairs: a text of so many has 32,000 tokens, a smaller one 10,000
CACHE_FROM = 250_000            # training pairs: from here on, they are encoded into files


class Pairs(NamedTuple):
    """Source and target sentences; both sides have a length and can be iterated repeatedly."""
    source: Sequence[str] | Lines
    target: Sequence[str] | Lines


class Corpora(NamedTuple):
    """The text of a run; train may be on disk, the rest is in memory."""
    src: str
    tgt: str
    train: Pairs
    valid: Pairs
    tests: dict[str, Pairs]     # by the name of the test set; may be empty


class Data(NamedTuple):
    """The data of a run."""
    src: str
    tgt: str
    tokenizer: Tokenizer
    train: EncodedPairs
    valid: EncodedPairs
    valid_pairs: Pairs
    tests: dict[str, Pairs]     # by the name of the test set; may be empty
    text_hashes: dict[str, str]         # {"train.en": start of its SHA-256, "train.de": ...}
    pairs: int                  # in the training text, with those that `train` leaves out

    @property
    def longest_source(self) -> int:
        """The tokens of the longest training source; longer lines are translated in pieces."""
        return int(self.train.source_lengths.max())

    @property
    def length_ratio(self) -> float:
        """The ratio of target to source tokens, with EOS, that 99 % of the training pairs do not
        exceed: it limits the length of translations."""
        ratios = (self.train.target_lengths + 1) / (self.train.source_lengths + 1)
        return float(np.quantile(ratios, 0.99, method="lower"))      # one pair never decides


@dataclass
class DataFlags(Flags):
    """The flags that choose the text, its vocabulary and its longest sentences."""
    data: str = flag("toy", "corpus; toy is embedded, the others are downloaded", "data",
                     choices=tuple(LANGUAGES))
    data_dir: str = flag("data", "where downloads and encoded texts go", "data", metavar="DIR")
    train: str | None = flag(None, "own text: PREFIX.SRC and PREFIX.TGT", "data", metavar="PREFIX")
    valid: str | None = flag(None, "own validation text", "data", metavar="PREFIX")
    test: tuple[str, ...] = flag((), "own test sets", "data", metavar="PREFIX")
    src: str | None = flag(None, "source language, the ending of the files' names", "data",
                           metavar="SRC")
    tgt: str | None = flag(None, "target language", "data", metavar="TGT")
    vocab_size: int | None = flag(None, "tokens of the joint BPE vocabulary (toy 2000, enja 6000, "
                                  "multi30k 10000, WMT 32000, own text 10000 or 32000)", "data",
                                  259, 10 ** 6)
    pairs: int | None = flag(None, "the first N training pairs (all)", "data", 1)
    max_length: int = flag(256, "longest side of a training pair, in tokens", "data", 1, 10 ** 6)

    def check_text(self) -> None:
        """Raises UserError unless the flags name one text and its languages. Reads no file."""
        if not (self.train or self.valid or self.test):
            src, tgt = known_languages(self)
            if self.src not in (None, src) or self.tgt not in (None, tgt):
                raise UserError(f"--data {self.data} is between {src} and {tgt}: leave out --src "
                                "and --tgt")
            return
        missing = [f"--{name}" for name in ("train", "valid", "src", "tgt")
                   if not getattr(self, name)]
        if missing:
            raise UserError(f"own text needs {', '.join(missing)} as well (or none of --train, "
                            "--valid, --test, to use the corpus that --data names)")
        if self.src == self.tgt:
            raise UserError(f"--src and --tgt are both {self.src}: name two languages")
        if self.data != "toy":
            raise UserError(f"--data {self.data} and --train {self.train}: leave out one of the "
                            "two")


def name_text(flags: DataFlags) -> str:
    """The text's part of a run's name: --data, or the folder and prefix of --train."""
    if not flags.train:
        return flags.data
    path = Path(flags.train).resolve()
    return path.parent.name if path.name == "train" else f"{path.parent.name}-{path.name}"


def load_corpora(flags: DataFlags) -> Corpora:
    """The corpora that the flags name. Raises UserError for missing or unreadable files."""
    flags.check_text()
    if flags.train:
        tests = [("--test", prefix) for prefix in flags.test]
        return read_corpora(flags.src, flags.tgt,
                            [("--train", flags.train), ("--valid", flags.valid), *tests])
    src, tgt = known_languages(flags)
    if flags.data == "toy":
        train, valid, test = (toy_pairs(part, src) for part in ("train", "valid", "test"))
        return Corpora(src, tgt, train, valid, {"test": test})
    where = f"--data {flags.data}"
    with errors_of(where):
        prefixes = corpus_files(flags.data, Path(flags.data_dir))
    return read_corpora(src, tgt, [(where, prefix) for prefix in prefixes])


def known_languages(flags: DataFlags) -> tuple[str, str]:
    """Source and target of the corpus of --data, in the direction of --src and --tgt if given."""
    src, tgt = LANGUAGES[flags.data]
    if flags.src == tgt or flags.tgt == src:
        return tgt, src
    return src, tgt


def toy_pairs(part: str, src: str) -> Pairs:
    """A part of the embedded corpus, from English or from German."""
    english, german = map(list, zip(*toy.pairs(part)))
    return Pairs(english, german) if src == "en" else Pairs(german, english)


def read_corpora(src: str, tgt: str, prefixes: list[tuple]) -> Corpora:
    """The texts of (flag, prefix): training, validation, tests. Raises UserError, which names every
    mistake."""
    texts = []
    mistakes = []
    for flag_name, prefix in prefixes:
        try:
            with errors_of(flag_name):
                pairs = read_pairs(prefix, src, tgt)
                texts.append(Pairs(*map(list, pairs)) if texts else pairs)
        except UserError as error:
            mistakes.append(str(error))
    names = [Path(prefix).name for _, prefix in prefixes[2:]]
    for test in sorted(set(names)):
        if names.count(test) > 1:
            mistakes.append(f"--test: two sets are named {test}: rename the files of one")
    if mistakes:
        raise UserError("; ".join(dict.fromkeys(mistakes)))
    train, valid, *tests = texts
    return Corpora(src, tgt, train, valid, dict(zip(names, tests)))


def read_pairs(prefix, src: str, tgt: str) -> Pairs:
    """The pairs of PREFIX.src and PREFIX.tgt, left on disk. Raises UserError."""
    for language in (src, tgt):
        if str(prefix).endswith(f".{language}") and os.path.exists(prefix):
            raise UserError(f"{prefix} exists: write {Path(prefix).with_suffix('')}, without "
                            f".{language}")
        if not os.path.exists(f"{prefix}.{language}"):
            paths = [*Path(prefix).parent.glob(f"{glob.escape(Path(prefix).name)}.*"),
                     *Path(prefix).glob(f"*.{glob.escape(language)}")]
            candidates = ", ".join(sorted(map(str, paths))[:9]) or f"no files {prefix}.*"
            raise UserError(f"{prefix}.{language} does not exist; a corpus is PREFIX.LANGUAGE; "
                            f"there are {candidates}")
    source = Lines(f"{prefix}.{src}")
    target = Lines(f"{prefix}.{tgt}")
    if len(source) != len(target):
        raise UserError(f"{source.path} has {len(source)} lines and {target.path} has"
                        f" {len(target)}; line i of one must translate line i of the other")
    return Pairs(source, target)


def load_data(flags: DataFlags, tokenizer_path=None) -> Data:
    """Loads and encodes the text that the flags name. The tokenizer is read from
    tokenizer_path, or learned and written there; a large training text is encoded into files below
    --data-dir once. Raises UserError for missing, unreadable or too small files."""
    src, tgt, train, valid, tests = load_corpora(flags)
    if flags.pairs:
        train = Pairs(*[list(islice(side, flags.pairs)) for side in train])
    hashes = {f"train.{src}": hash_text(train.source), f"train.{tgt}": hash_text(train.target)}
    if tokenizer_path and os.path.exists(tokenizer_path):
        tokenizer = load_tokenizer(tokenizer_path)
    else:
        usual = 32_000 if len(train.source) >= LARGE else 10_000
        if not flags.train:
            usual = VOCAB_SIZES.get(flags.data, usual)
        tokenizer = train_tokenizer(lines_to_learn_from(train), flags.vocab_size or usual,
                                    exact=flags.vocab_size is not None)
        held_out = {pair for pairs in (valid, *tests.values()) for pair in zip(*pairs)}
        repeated = len(held_out.intersection(zip(*train)))
        if repeated:
            print(f"warning: the training text contains {repeated:,} validation or test pairs")
        if tokenizer_path:
            Path(tokenizer_path).parent.mkdir(parents=True, exist_ok=True)
            atomic_write(tokenizer_path, tokenizer.to_str(pretty=True))
    if len(train.source) >= CACHE_FROM:
        key = hash_text([repr(hashes), tokenizer.to_str(), str(flags.max_length)])
        folder = Path(flags.data_dir) / "encoded" / f"{name_text(flags)}.{key}"
        encoded = encode_files(tokenizer, train, flags.max_length, folder)
    else:
        encoded = encode_pairs(tokenizer, train, flags.max_length)
    if not len(encoded):
        raise UserError(f"no training pair of {flags.train or flags.data} is left: all have an "
                        f"empty side, or more tokens than --max-length {flags.max_length}")
    return Data(src, tgt, tokenizer, encoded, encode_pairs(tokenizer, valid), valid, tests,
                hashes, len(train.source))


def hash_text(lines: Iterable[str] | Lines) -> str:
    """The first 16 hexadecimal digits of a text's SHA-256: of its file, or of its lines."""
    if isinstance(lines, Lines):
        return lines.sha256[:16]
    text = "".join(f"{line}\n" for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
