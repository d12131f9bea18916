"""One joint byte-level BPE vocabulary for both languages (Sennrich et al. 2016), by the library
`tokenizers`."""
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from nmt.encoded import digest
from nmt.files import atomic_write, reported
from nmt.flags import UserError
from transformer import PAD

BOS = 1
EOS = 2
# Their brackets are no characters of the byte-level alphabet: no merge, and so no text, can give
# these tokens.
SPECIAL_TOKENS = ["⟨pad⟩", "⟨s⟩", "⟨/s⟩"]
# Every byte that occurs in UTF-8: what a byte-level tokenizer must give back.
CODE_POINTS = [*range(0x800), *range(0x800, 0xd800, 0x400), *range(0xe000, 0x110000, 0x1000)]
SCRIPTS = "".join(map(chr, CODE_POINTS))
VOCAB_SIZES = {"toy": 2_000, "multi30k": 10_000, "wmt14-en-de": 32_000, "wmt17-zh-en": 32_000}
LARGE = 1_000_000               # pairs: from here on own text gets 32,000 tokens
LEARN_FROM = 1_000_000          # pairs that the tokenizer learns from at most, evenly spread
LEARN_UP_TO = 1_000             # characters of a line: time is quadratic in the longest word


def train_tokenizer(lines, vocab_size: int, exact: bool = True) -> Tokenizer:
    """Byte-level BPE learnt from the lines; the same lines give the same tokenizer.

    Every byte is a token, so there is no unknown one and `decode(encode(text)) == text` for any
    text. Merges need two occurrences, and the first LEARN_UP_TO characters of a line count. Raises
    UserError where the text does not allow vocab_size tokens, unless exact is False: then the
    vocabulary is as large as the text allows.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator((line[:LEARN_UP_TO] for line in lines), trainer)
    tokenizer.encode_special_tokens = True        # "⟨s⟩" typed by a user is text
    if exact and tokenizer.get_vocab_size() < vocab_size:
        raise UserError(f"--vocab-size {vocab_size} is more than the training text allows; the"
                        f" largest is {tokenizer.get_vocab_size()}")
    return tokenizer


def default_vocab_size(corpora) -> int:
    """The size of the vocabulary where --vocab-size does not say."""
    if corpora.name in VOCAB_SIZES:
        return VOCAB_SIZES[corpora.name]
    return 32_000 if len(corpora.train.source) >= LARGE else 10_000


def corpus_tokenizer(corpora, vocab_size: int | None = None) -> Tokenizer:
    """The joint tokenizer of a corpus' training text; vocab_size None takes the corpus' own or what
    its text allows.

    That of a large corpus is kept in its cache folder, under a digest of the text and the size.
    """
    exact = vocab_size is not None
    if not exact:
        vocab_size = default_vocab_size(corpora)
    if corpora.cache:
        source, target = corpora.train
        key = digest(source.path, target.path, vocab_size, exact, LEARN_FROM)
        path = corpora.cache / f"tokenizer.{key}.json"
        if path.exists():
            return load_tokenizer(path)
    tokenizer = train_tokenizer(lines_to_learn_from(corpora.train), vocab_size, exact)
    if corpora.cache:
        with reported("make the folder", corpora.cache):
            corpora.cache.mkdir(parents=True, exist_ok=True)
        save_tokenizer(tokenizer, path)
    return tokenizer


def lines_to_learn_from(pairs):
    """Yields the source lines, then the target lines; of more than LEARN_FROM, every n-th."""
    step = -(-len(pairs.source) // LEARN_FROM)           # rounded up
    for side in pairs:
        yield from islice(side, 0, None, step)


def save_tokenizer(tokenizer: Tokenizer, path) -> None:
    """Writes the tokenizer as JSON, atomically."""
    atomic_write(path, tokenizer.to_str(pretty=True))


def load_tokenizer(path) -> Tokenizer:
    """Reads what `save_tokenizer` wrote. Raises UserError for a missing, damaged or foreign file,
    which it tries out: a text of many scripts must come back from its tokens."""
    try:
        tokenizer = Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        tokenizer.encode_special_tokens = True           # not part of the file
        ours = [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [PAD, BOS, EOS]
        ours = ours and tokenizer.decode(tokenizer.encode(SCRIPTS).ids) == SCRIPTS
    except OSError as error:
        raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from None
    except Exception:                                    # the library raises bare Exceptions
        ours = False
    if not ours:
        raise UserError(f"{path} is not a tokenizer of this project: put the run's own back; in a"
                        " cache, delete it")
    return tokenizer
