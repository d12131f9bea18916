"""Parallel text: corpora by name or prefix, one joint byte-level BPE vocabulary, length-bucketed batches.

A corpus is a prefix plus a language: `--train DIR/train --src en --tgt de` reads DIR/train.en and DIR/train.de, line i
of the one translating line i of the other. `--data NAME` is short for a known corpus.
"""
import os
from itertools import islice
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from checkpoint import atomic_write, reported
from cli import Parser, UserError, whole
from corpus_cache import EncodedPairs, digest, encode_files, encode_pairs
from download import corpus_files

PAD, BOS, EOS = 0, 1, 2
# Their brackets are no characters of the byte-level alphabet: no merge, and so no text, can give these tokens.
SPECIAL_TOKENS = ["⟨pad⟩", "⟨s⟩", "⟨/s⟩"]
# Every byte that occurs in UTF-8: what a byte-level tokenizer must give back.
SCRIPTS = "".join(map(chr, (*range(0x800), *range(0x800, 0xd800, 0x400), *range(0xe000, 0x110000, 0x1000))))
NAMES = {"toy": ("en", "de"), "multi30k": ("en", "de"), "wmt14-en-de": ("en", "de"), "wmt17-zh-en": ("zh", "en")}
VOCAB_SIZES = {"toy": 2_000, "multi30k": 10_000, "wmt14-en-de": 32_000, "wmt17-zh-en": 32_000}
TOY_TRAIN, TOY_VALID, TOY_TEST, TOY_SEED = 30_000, 500, 1_000, 1
LARGE = 1_000_000               # pairs: from here on own text gets 32,000 tokens
LEARN_FROM = 1_000_000          # pairs that the tokenizer learns from at most, evenly spread over the corpus
LONGEST_VALID = 2_048           # tokens of a validation line: its attention weights alone take gigabytes beyond
LEARN_UP_TO = 1_000             # characters of a line: learning BPE takes time quadratic in the longest word
CACHE_FROM = 64 << 20           # bytes of training text: from here on it is encoded into files, once


# Corpora

class Lines:
    """The lines of a UTF-8 file, read anew at every iteration, so that no corpus has to fit into memory.

    Lines end with \\n or \\r\\n and with nothing else (U+2028 or a form feed is text); a byte-order mark is skipped.
    Raises UserError for a file that is missing, unreadable, empty, or (while iterating) not UTF-8.
    """

    def __init__(self, path):
        self.path = Path(path)
        with reported("read", path):
            if self.path.is_dir():
                raise UserError(f"{path} is a directory; a text file with one sentence per line belongs there")
            try:
                with open(path, "rb") as file:
                    count, last = 0, b""
                    while block := file.read(1 << 20):
                        count, last = count + block.count(b"\n"), block
            except FileNotFoundError:
                raise UserError(f"{path} does not exist; a corpus is PREFIX.LANGUAGE, e.g. --train data/train --src en "
                                "reads data/train.en") from None
        if not last:
            raise UserError(f"{path} is empty; it should hold one sentence per line")
        self.count = count + (not last.endswith(b"\n"))

    def __len__(self) -> int:
        """The number of lines."""
        return self.count

    def __iter__(self) -> Iterator[str]:
        """The lines in order, without their ends."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                try:
                    yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
                except UnicodeDecodeError as error:
                    raise UserError(f"{self.path}, line {number}: not UTF-8 (byte {error.start + 1} of the line); "
                                    "convert the file, e.g. with iconv -t UTF-8") from None


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


def add_data_flags(parser: Parser) -> None:
    """Adds the flags that choose the text, its vocabulary and its longest sentences, as a group of their own."""
    group = parser.add_argument_group("data")
    group.add_argument("--data", choices=NAMES, default="toy", metavar="NAME",
                       help="a known corpus: toy (embedded), multi30k, wmt14-en-de, wmt17-zh-en; looked for in "
                            "DATA_DIR/NAME, else downloaded there")
    group.add_argument("--data-dir", default="data", metavar="DATA_DIR", help="where named corpora lie or go to")
    group.add_argument("--train", metavar="PREFIX", help="own training text instead: PREFIX.SRC and PREFIX.TGT")
    group.add_argument("--valid", metavar="PREFIX", help="own validation text, needed with --train")
    group.add_argument("--test", metavar="PREFIX", help="own test text; may be left out")
    group.add_argument("--src", metavar="SRC", help="source language, the ending of the source files (own text: "
                                                    "needed; named corpora: their own order)")
    group.add_argument("--tgt", metavar="TGT", help="target language, the ending of the target files")
    group.add_argument("--vocab-size", type=whole(259, 1_000_000), metavar="N",
                       help="size of the joint BPE vocabulary (toy 2000, multi30k 10000, wmt 32000; own text 10000, "
                            "from a million lines on 32000; these defaults shrink where the text is too small)")
    group.add_argument("--max-length", type=whole(1, 1_000_000), default=256, metavar="N",
                       help="training pairs with more tokens on a side are dropped; valid and test are kept whole")


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


# Vocabulary

def train_tokenizer(lines, vocab_size: int, exact: bool = True) -> Tokenizer:
    """Byte-level BPE (Sennrich et al. 2016) learnt from the lines; the same lines give the same tokenizer.

    Every byte is a token, so there is no unknown one and `decode(encode(text)) == text` for any text.
    Merges need two occurrences, and the first LEARN_UP_TO characters of a line count. Raises UserError where the text
    does not allow vocab_size tokens, unless exact is False: then the vocabulary is as large as the text allows.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=SPECIAL_TOKENS,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator((line[:LEARN_UP_TO] for line in lines), trainer)
    tokenizer.encode_special_tokens = True        # "⟨s⟩" typed by a user is text
    if exact and tokenizer.get_vocab_size() < vocab_size:
        raise UserError(f"--vocab-size {vocab_size} is more than the training text allows; the largest is "
                        f"{tokenizer.get_vocab_size()}")
    return tokenizer


def corpus_tokenizer(corpora: Corpora, vocab_size: int | None = None) -> Tokenizer:
    """The joint tokenizer of a corpus' training text; vocab_size None takes the corpus' own or what its text allows.

    That of a large corpus is kept in its cache folder, under a digest of the text and the size.
    """
    pairs, exact = corpora.train, vocab_size is not None
    vocab_size = vocab_size or VOCAB_SIZES.get(corpora.name, 32_000 if len(pairs.source) >= LARGE else 10_000)
    if corpora.cache:
        key = digest(*(side.path for side in pairs), vocab_size, exact, LEARN_FROM)
        path = corpora.cache / f"tokenizer.{key}.json"
        if path.exists():
            return load_tokenizer(path)
    step = -(-len(pairs.source) // LEARN_FROM)
    tokenizer = train_tokenizer((line for side in pairs for line in islice(side, 0, None, step)), vocab_size, exact)
    if corpora.cache:
        with reported("make the folder", corpora.cache):
            corpora.cache.mkdir(parents=True, exist_ok=True)
        save_tokenizer(tokenizer, path)
    return tokenizer


def encode_train(tokenizer: Tokenizer, corpora: Corpora, max_length: int) -> EncodedPairs:
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


def encode_valid(tokenizer: Tokenizer, corpora: Corpora) -> EncodedPairs:
    """The validation pairs as token ids, whole. Raises UserError for a line with more than LONGEST_VALID tokens: its
    attention would not fit the memory, and it is better to say so before the training than after hours of it."""
    encoded = encode_pairs(tokenizer, corpora.valid)
    for language, lengths in ((corpora.src, encoded.source_lengths), (corpora.tgt, encoded.target_lengths)):
        if lengths.max() > LONGEST_VALID:
            raise UserError(f"--valid: line {lengths.argmax() + 1} of the {language} text has {lengths.max():,} tokens "
                            f"and may have {LONGEST_VALID:,} at most: shorten the line or leave the pair out")
    return encoded


def save_tokenizer(tokenizer: Tokenizer, path) -> None:
    """Writes the tokenizer as JSON, atomically."""
    atomic_write(path, tokenizer.to_str(pretty=True))


def load_tokenizer(path) -> Tokenizer:
    """Reads what `save_tokenizer` wrote. Raises UserError for a missing, damaged or foreign file, which it tries out:
    a text of many scripts must come back from its tokens."""
    foreign = f"{path} is not a tokenizer of this project (put the run's own back; in a cache, delete it):"
    try:
        if os.path.getsize(path) > 1 << 28:       # a vocabulary of a million tokens takes less
            raise UserError(f"{foreign} it is too large")
        tokenizer = Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        tokenizer.encode_special_tokens = True    # not part of the file
        ids, kinds = tokenizer.get_vocab().values(), (tokenizer.model, tokenizer.pre_tokenizer, tokenizer.decoder)
        if (list(map(type, kinds)) != [models.BPE, pre_tokenizers.ByteLevel, decoders.ByteLevel]
                or any((tokenizer.normalizer, tokenizer.post_processor, tokenizer.truncation, tokenizer.padding))
                or sorted(ids) != list(range(len(ids))) or tokenizer.decode(tokenizer.encode(SCRIPTS).ids) != SCRIPTS):
            raise UserError(f"{foreign} text does not come back from its tokens")
    except OSError as error:
        raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from None
    except UserError:
        raise
    except Exception as error:                    # the library raises bare Exceptions for bad JSON
        raise UserError(f"{foreign} {str(error)[:100]}") from None
    if [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] != [PAD, BOS, EOS]:
        raise UserError(f"{foreign} its tokens 0, 1, 2 are not {SPECIAL_TOKENS}")
    return tokenizer


# Batches

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
