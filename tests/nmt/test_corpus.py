"""Corpora by name and by prefix, and what a run gets of them."""
import hashlib
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from small_run import write_text

from nmt import corpus
from nmt.command_line import UserError
from nmt.corpus import DataFlags, Lines, Pairs, load_data, load_text


def write_own(folder, **texts) -> DataFlags:
    """Writes own text, NAME=(English, German) lines; returns the flags that name it."""
    texts = {"train": (["a a", "b b"], ["x x", "y y"]), "valid": (["c"], ["z"]), **texts}
    for name, sides in texts.items():
        write_text(folder, name, *sides)
    tests = tuple(str(folder / name) for name in texts if name not in ("train", "valid"))
    return DataFlags(train=f"{folder}/train", valid=f"{folder}/valid", test=tests, src="en",
                     tgt="de", data_dir=f"{folder}/data")


def test_load_data(tmp_path):
    """The token ids decode to the text. Pairs with an empty side and those above --max-length are
    left out in training and in the validation loss. References have the form of translations."""
    flags = write_own(tmp_path, train=(["a a", "", "b b"], ["x x", "y", "y y"]),
                      valid=(["c", "c " * 99], ["z\u200b ", "z"]), web=(["e"], ["v"]),
                      news=(["d"], ["u\u0308  w\u00ad"]))
    data = load_data(replace(flags, max_length=9), tmp_path / "tokenizer.json")
    assert data.tests == {"news": (["d"], ["ü w"]), "web": (["e"], ["v"])}
    assert data.valid_pairs.target == ["z", "z"]
    assert data.languages == ("en", "de")
    decode = data.tokenizer.decode
    first, second = np.split(data.train.source_ids, data.train.source_offsets[1:-1])
    assert [decode(first), decode(second)] == ["a a", "b b"]
    assert decode(data.valid.target_ids) == "z" and len(data.valid_pairs.source) == 2
    assert data.checksums.keys() == {"train.en", "train.de", "valid.en", "valid.de"}
    german = hashlib.sha256(b"x x\ny\ny y\n").hexdigest()
    assert german.startswith(data.checksums["train.de"])


def test_the_length_ratio_is_one_that_a_pair_does_not_decide(tmp_path):
    """Two of 60 pairs have much longer translations: it is the second largest ratio."""
    words = ["a" * n for n in range(1, 61)]
    targets = [f"{word} is {word}" for word in words]
    targets[7] = "".join(map(chr, range(0x4E00, 0x4E80)))
    targets[8] = "".join(map(chr, range(0x5E00, 0x5E10)))
    data = load_data(write_own(tmp_path, train=(words, targets)), tmp_path / "tokenizer.json")
    ratios = sorted((data.train.target_lengths + 1) / (data.train.source_lengths + 1))
    assert ratios[-3] < data.length_ratio == ratios[-2] < ratios[-1]


def test_the_embedded_corpus_in_both_directions():
    languages, train, valid, tests = load_text(DataFlags())
    assert languages == ("en", "de")
    assert [len(part.source) for part in (train, valid, tests["test"])] == [57_000, 500, 1_000]
    back = load_text(DataFlags(src="de"))
    assert back[0] == ("de", "en") and back[1] == (train.target, train.source)
    assert load_text(DataFlags(tgt="en")) == back
    with pytest.raises(UserError, match="--data tatoeba is between"):
        load_text(DataFlags(src="fr"))


@pytest.mark.parametrize("flags, large, size", [
    ({}, False, 4_000), ({"data": "enja"}, False, 6_000), ({"data": "multi30k"}, False, 10_000),
    ({"train": "own"}, False, 10_000), ({"train": "own"}, True, 32_000)])
def test_default_vocabularies(flags, large, size, tokenizer, tmp_path, monkeypatch):
    pairs = Pairs(["a"], ["x"])
    learn = Mock(return_value=tokenizer)
    monkeypatch.setattr(corpus, "load_text", lambda flags: (("en", "de"), pairs, pairs, {}))
    monkeypatch.setattr(corpus, "train_tokenizer", learn)
    monkeypatch.setattr(corpus, "LARGE", 1 if large else 2)
    load_data(DataFlags(**flags), tmp_path / "tokenizer.json")
    assert learn.call_args.args[1] == size


def test_pairs_takes_the_first_training_pairs(tmp_path):
    texts = dict(train=(["a a", "b b", "c c"], ["x x", "y y", "z z"]), valid=(["d"] * 3, ["w"] * 3))
    data = load_data(replace(write_own(tmp_path, **texts), pairs=2), tmp_path / "tokenizer.json")
    assert (len(data.train), len(data.valid)) == (2, 3)
    english = hashlib.sha256(b"a a\nb b\n").hexdigest()
    assert english.startswith(data.checksums["train.en"])


def test_a_large_text_is_encoded_once_and_never_stale(tmp_path, monkeypatch):
    flags = write_own(tmp_path, train=(["a a a", "b b", "a b"] * 9, ["x x", "y y", "x y y"] * 9))
    in_memory = load_data(flags, tmp_path / "0.json").train
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr(corpus, "CACHE_FROM", 27)

    def files(flags, tokenizer: str) -> int:
        train = load_data(flags, tmp_path / tokenizer).train
        assert isinstance(train.source_ids, np.memmap)
        if flags.max_length == 256:
            assert train.source_ids.tolist() == in_memory.source_ids.tolist()
        return len([*(tmp_path / "data" / "encoded").iterdir()])

    assert files(flags, "1.json") == files(flags, "1.json") == files(flags, "2.json") == 1
    assert files(replace(flags, max_length=2), "1.json") == 2
    assert files(replace(flags, vocab_size=260, max_length=3), "3.json") == 3
    write_text(tmp_path, "train", ["b b"] * 27, ["y y"] * 27)
    assert len(load_data(flags, tmp_path / "1.json").train.source_ids) == 27 * 2


def test_line_ends_and_byte_order_marks(tmp_path):
    content = "\ufeffone\r\ntwo\u2028\x0b\x0c\x85\x1c still\n\nfour\rfour\n\ufefffive".encode()
    expected = ["one", "two\u2028\x0b\x0c\x85\x1c still", "", "four\rfour", "\ufefffive"]
    (tmp_path / "text").write_bytes(content)
    lines = Lines(tmp_path / "text")
    assert list(lines) == expected == list(lines) and len(lines) == 5
