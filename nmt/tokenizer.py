"""One joint byte-level BPE vocabulary for both languages (Sennrich et al. 2016)."""
import unicodedata
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.files import UserError, as_user_error

BOS = 1                                                  # 0 is transformer.PAD
EOS = 2
SPECIAL_TOKENS = ["⟨pad⟩", "⟨s⟩", "⟨/s⟩"]                # no text gives these tokens
LEARN_FROM = 1_000_000          # pairs that the tokenizer learns from at most, evenly spread
LEARN_UP_TO = 1_000             # characters of a line: time is quadratic in the longest word
# byte order mark, word joiner, zero-width space, soft hyphen
INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u2060\u200b\xad"))
# what BPE merges within. GPT-2's pattern, which `ByteLevel` has by default, knows no marks (\p{M})
# and no zero-width joiners: it cuts a word at every vowel sign, and an emoji in its parts.
WORDS = Regex(r"'s|'t|'re|'ve|'m|'ll|'d"
              r"| ?[\p{L}\p{M}][\p{L}\p{M}\x{200C}\x{200D}]*"
              r"| ?\p{N}+"
              r"| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*"
              r"|\s+(?!\S)|\s+")


def prepare_line(line: str) -> str:
    """A line as every model reads it, in training and in translation: in NFC, with single blanks
    between words and none around them, and without invisible characters that spell nothing.

    NFKC would change what is written: "10²" into "102", and the full-width "！" into "!". The
    zero-width joiners stay: they spell words in Persian and Indic scripts, and join emoji.
    """
    return " ".join(unicodedata.normalize("NFC", line.translate(INVISIBLE)).split())


def train_tokenizer(lines, vocab_size: int, exact: bool = True) -> Tokenizer:
    """Byte-level BPE learned from the lines; the same lines give the same tokenizer.

    Every byte is a token, so there is no unknown one and `decode(encode(text)) == text` for any
    text. Merges need two occurrences. Raises UserError if the text does not allow vocab_size
    tokens, unless exact is False: then the vocabulary is as large as the text allows.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(WORDS, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    texts = (prepare_line(line)[:LEARN_UP_TO] for line in lines)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True        # "⟨s⟩" typed by a user is text
    size = tokenizer.get_vocab_size()
    if exact and size != vocab_size:
        bound = "largest that the text allows" if size < vocab_size else "smallest"
        raise UserError(f"--vocab-size {vocab_size}: the {bound} is {size}")
    return tokenizer


def lines_to_learn_from(pairs):
    """Yields the source lines, then the target lines; of more than LEARN_FROM, every n-th."""
    step = -(-len(pairs.source) // LEARN_FROM)           # rounded up
    for side in pairs:
        yield from islice(side, 0, None, step)


def load_tokenizer(path) -> Tokenizer:
    """Reads a run's tokenizer.json. Raises UserError if it is missing or damaged."""
    with as_user_error("read", path):
        content = Path(path).read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception:                                    # the library raises bare Exceptions
        raise UserError(f"{path} is not a tokenizer: put the run's own back") from None
    tokenizer.encode_special_tokens = True               # not part of the file
    return tokenizer
