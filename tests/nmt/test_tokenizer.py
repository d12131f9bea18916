"""The vocabulary: what goes in comes out; every line is read in one form."""
import random
import unicodedata

import pytest

from nmt import tokenizer as vocabulary
from nmt.corpus import Pairs
from nmt.tokenizer import BOS, EOS, prepare_line, train_tokenizer
from transformer import PAD

HOSTILE = ["", "  two  spaces ", "naïve Straße 12.345,67 €", "犬も歩けば棒に当たる", "Ġ Ċ ĠĠ",
           "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea e\u0301",
           "\u05e9\u05dc\u05d5\u05dd \u202eabc\u202c \u0645\u0631\u062d\u0628\u0627",
           "nul \x00 bell \x07 escape \x1b[31m", "\ufeffmark \U0010ffff",
           "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg tab\tand\rcarriage\n",
           "⟨s⟩⟨/s⟩⟨pad⟩ <s> </s> <unk> [PAD]"]


def test_round_trip(tokenizer):
    rng = random.Random(1)
    letters = [chr(x) for x in (*range(0x300), *range(0x4E00, 0x4E20), *range(0x1F600, 0x1F640))]
    noise = ["".join(rng.choices(letters, k=rng.randint(1, 30))) for _ in range(300)]
    for text in HOSTILE + noise:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text and min(ids, default=3) > max(PAD, BOS, EOS)


@pytest.mark.parametrize("word", [
    "हिन्दी", "ශ්‍රී", "ไม้เท้า", "ខ្មែរ", "မြန်မာ", "தமிழ்", "שָׁלוֹם", "مُحَمَّد", "می‌خواهم", "ọ̀rọ̀",
    unicodedata.normalize("NFD", "müde"), "❤️", "👩‍👩‍👧", "house", "2026", "...", "犬も歩けば"])
def test_a_word_keeps_its_marks_and_joiners(word, tokenizer):
    """BPE can merge all of it, also after a blank. GPT-2's pattern cuts most of these."""
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(f"{word} {word}")
    assert [span for _, span in pieces] == [(0, len(word)), (len(word), 2 * len(word) + 1)]


@pytest.mark.parametrize("line, form", [
    ("The  old woman sees the dog.", "The old woman sees the dog."),
    ("\u3000a\xa0 b\tc\u2028d\r", "a b c d"), ("e\u0301 u\u0308", "é ü"),
    ("10² ½ ﬁ ！", "10² ½ ﬁ ！"), (" \t ", "")])
def test_the_form_of_a_line(line, form):
    """It is NFC with single blanks. A line in this form stays as it is."""
    assert prepare_line(line) == prepare_line(form) == form


def test_invisible_characters_are_dropped():
    """Only the joiners stay, because they spell words."""
    for x in (0xfeff, 0x200b, 0xad, 0x200e, 0x200f, 0x61c, 0x180e, *range(0x202a, 0x202f),
              *range(0x2060, 0x2070), 0xfffc):
        assert prepare_line(f"{chr(x)}a wo{chr(x)}rd {chr(x)}") == "a word"
    for joiner in "\u200c\u200d":
        assert prepare_line(f"a{joiner}b") == f"a{joiner}b"


def test_special_tokens_are_the_same_after_save_and_load(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = vocabulary.load_tokenizer(tmp_path / "tokenizer.json")
    ids = [loaded.token_to_id(token) for token in vocabulary.SPECIAL_TOKENS]
    assert ids == [PAD, BOS, EOS] == [0, 1, 2]
    assert loaded.decode([BOS, *tokenizer.encode("Hello").ids, EOS, PAD, PAD]) == "Hello"
    for text in HOSTILE:
        assert loaded.encode(text).ids == tokenizer.encode(text).ids


def test_a_merge_needs_two_occurrences():
    assert train_tokenizer(["ab cd"], 300).get_vocab_size() == 3 + 256
    assert train_tokenizer(["ab ab cd"], 300).get_vocab_size() > 3 + 256


def test_a_large_corpus_is_learned_from_in_part(monkeypatch):
    monkeypatch.setattr(vocabulary, "LEARN_FROM", 3)
    pairs = Pairs(list("abcdefg"), list("tuvwxyz"))
    assert list(vocabulary.lines_to_learn_from(pairs)) == ["a", "d", "g", "t", "w", "z"]
