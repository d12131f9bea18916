"""One joint byte-level BPE vocabulary for both languages (Sennrich et al. 2016)."""
import unicodedata
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS = 1                                                  # 0 is transformer.PAD
EOS = 2
SPECIAL_TOKENS = ["⟨pad⟩", "⟨s⟩", "⟨/s⟩"]                # no text gives these tokens
LEARN_FROM = 1_000_000          # pairs that the tokenizer learns from at most, evenly spread
# byte order mark, zero-width space, soft hyphen, Mongolian vowel separator, object replacement,
# marks of direction, word joiner and invisible operators
INVISIBLE = dict.fromkeys([0xfeff, 0x200b, 0xad, 0x180e, 0xfffc, 0x200e, 0x200f, 0x61c,
                           *range(0x202a, 0x202f), *range(0x2060, 0x2070)])
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


def train_tokenizer(lines, vocab_size: int) -> Tokenizer:
    """Byte-level BPE learned from the lines; the same lines give the same tokenizer.

    Every byte is a token, so there is no unknown one and `decode(encode(text)) == text` for any
    text. Merges need two occurrences: a small text gives fewer than vocab_size tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(WORDS, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(map(prepare_line, lines), trainer)
    tokenizer.encode_special_tokens = True        # "⟨s⟩" typed by a user is text
    return tokenizer


def lines_to_learn_from(pairs):
    """Yields the source lines, then the target lines; of more than LEARN_FROM, every n-th."""
    step = -(-len(pairs.source) // LEARN_FROM)           # rounded up
    for side in pairs:
        yield from islice(side, 0, None, step)


def load_tokenizer(path) -> Tokenizer:
    """Reads a run's tokenizer.json."""
    with open(path, "rb") as file:                       # a missing file is a FileNotFoundError
        tokenizer = Tokenizer.from_buffer(file.read())
    tokenizer.encode_special_tokens = True               # not part of the file
    return tokenizer
