"""Corpora by name and by prefix, what a run gets of them, and every mistake in naming them."""
import hashlib
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from small_run import write_text

from nmt import corpus
from nmt.corpus import DataFlags, load_corpora, load_data
from nmt.tokenizer import train_tokenizer
from tools.command_line import parse
from tools.files import UserError


def data_flags(words: str) -> DataFlags:
    """The flags of a corpus."""
    return parse(DataFlags, words.split())


def write_own(folder, **texts) -> DataFlags:
    """Writes own text, NAME=(English, German) lines; returns the flags that name it."""
    texts = {"train": (["a a", "b b"], ["x x", "y y"]), "valid": (["c"], ["z"]), **texts}
    for name, sides in texts.items():
        write_text(folder, name, *sides)
    tests = " ".join(str(folder / name) for name in texts if name not in ("train", "valid"))
    return data_flags(f"--train {folder}/train --valid {folder}/valid --src en --tgt de"
                      + f" --test {tests}" * bool(tests))


def test_load_data(tmp_path):
    """Token ids that decode to the text, and which text it was. --max-length is for training."""
    flags = write_own(tmp_path, train=(["a a", "", "b b"], ["x x", "y", "y y"]),
                      valid=(["c", "c " * 99], ["z", ""]), news=(["d"], ["w"]), web=(["e"], ["v"]))
    flags.max_length = 9
    data = load_data(flags)
    assert data.tests == {"news": (["d"], ["w"]), "web": (["e"], ["v"])}
    assert (data.src, data.tgt) == ("en", "de")
    decode = data.tokenizer.decode
    first, second = np.split(data.train.source_ids, data.train.source_offsets[1:-1])
    assert [decode(first), decode(second)] == ["a a", "b b"]
    assert len(data.train) == 2                                 # without the empty pair
    assert decode(data.valid.target_ids) == "z" and data.valid_pairs.source[0] == "c"
    assert len(data.valid) == 2 and data.valid.source_lengths[1] > 9
    german = hashlib.sha256(b"x x\ny\ny y\n").hexdigest()
    assert data.text_hashes.keys() == {"train.en", "train.de"}
    assert german.startswith(data.text_hashes["train.de"])


def test_the_length_of_targets(tmp_path):
    """Of 60 pairs, two of which have much longer translations, the second largest ratio."""
    words = ["a" * n for n in range(1, 61)]
    targets = [f"{word} is {word}" for word in words]
    targets[7] = "".join(map(chr, range(0x4E00, 0x4E80)))
    targets[8] = "".join(map(chr, range(0x5E00, 0x5E10)))
    data = load_data(write_own(tmp_path, train=(words, targets)))
    ratios = sorted((data.train.target_lengths + 1) / (data.train.source_lengths + 1))
    assert ratios[-3] < data.length_ratio == ratios[-2] < ratios[-1]


@pytest.mark.parametrize("reader", ["train_tokenizer", "encode_pairs"])
def test_a_text_that_changes_while_it_is_read_is_refused(reader, tmp_path, monkeypatch):
    """If only the last letter of the target is another."""
    flags = write_own(tmp_path, train=(["a a", "b b"] * 9, ["x x", "y y"] * 9))
    read = getattr(corpus, reader)

    def read_later(*args, **settings):
        path = tmp_path / "train.de"
        path.write_bytes(path.read_bytes()[:-2] + b"z\n")
        return read(*args, **settings)

    monkeypatch.setattr(corpus, reader, read_later)
    with pytest.raises(UserError, match=r"train\.de: changed while it was read: .*again"):
        load_data(flags)


def test_the_embedded_corpus_in_both_directions():
    forth = load_corpora(data_flags(""))
    back = load_corpora(data_flags("--src de"))
    assert (forth.src, forth.tgt) == ("en", "de") and (back.src, back.tgt) == ("de", "en")
    assert load_corpora(data_flags("--tgt en")) == back
    assert forth.train == tuple(reversed(back.train))
    parts = (forth.train, forth.valid, forth.tests["test"])
    assert [len(part.source) for part in parts] == [30_000, 500, 1_000]


def test_pairs_takes_the_first_training_pairs(tmp_path):
    """Of own text, and of a known corpus."""
    texts = dict(train=(["a a", "b b", "c c"], ["x x", "y y", "z z"]), valid=(["d"] * 3, ["w"] * 3))
    data = load_data(replace(write_own(tmp_path, **texts), pairs=2))
    assert (len(data.train), data.pairs, len(data.valid)) == (2, 2, 3)
    english = hashlib.sha256(b"a a\nb b\n").hexdigest()
    assert english.startswith(data.text_hashes["train.en"])
    assert load_data(data_flags("--pairs 7")).pairs == 7


def test_the_size_of_the_vocabulary(tmp_path, monkeypatch):
    """That of a known corpus is in --help; a large text gets a larger one."""
    learn = Mock(wraps=train_tokenizer)
    monkeypatch.setattr(corpus, "train_tokenizer", learn)
    load_data(data_flags("--pairs 60"))
    assert (corpus.LARGE, corpus.CACHE_FROM) == (1_000_000, 250_000)
    for large in (3, 2):                                        # the text has two pairs
        monkeypatch.setattr(corpus, "LARGE", large)
        load_data(write_own(tmp_path))
    assert [call.args[1] for call in learn.call_args_list] == [2_000, 10_000, 32_000]
    named = DataFlags.__dataclass_fields__["vocab_size"].metadata["help"]
    for name, size in corpus.VOCAB_SIZES.items():
        assert f"{name} {size}" in named


def test_pairs_in_two_texts_are_counted(tmp_path, capsys):
    flags = write_own(tmp_path)
    load_data(flags)
    assert "warning" not in capsys.readouterr().out
    for own in (dict(valid=flags.train), dict(test=(flags.train,))):
        load_data(replace(flags, **own))
        assert capsys.readouterr().out == (
            "warning: the training text contains 2 validation or test pairs\n")


def test_the_largest_vocabulary_is_named(tmp_path):
    flags = write_own(tmp_path, train=(["ab ab ab"] * 3, ["cd cd"] * 3))
    largest = load_data(flags).tokenizer.get_vocab_size()        # shrinks by itself
    flags.vocab_size = 5000
    with pytest.raises(UserError, match=f"^--vocab-size 5000: the largest .* is {largest}$"):
        load_data(flags)
    flags.vocab_size = largest
    assert load_data(flags).tokenizer.get_vocab_size() == largest
