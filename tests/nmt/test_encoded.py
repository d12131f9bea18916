"""Encoded corpora: in memory and memory-mapped the same, and never a stale one."""
import contextlib
import pickle
import random
import shutil
from unicodedata import normalize

import numpy as np
import pytest

from nmt import corpus, encoded
from nmt.corpus import DataFlags, Pairs, load_data, read_pairs
from nmt.encoded import encode_files, encode_pairs
from nmt.search import pieces
from nmt.tokenizer import train_tokenizer

WORDS = ["tree", "house", "Straße", "naïve", "犬", "a", "of", "running", "läuft", "🙂"]


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """300 pairs on disk; pair 7 has an empty side, pair 11 a long one."""
    monkeypatch.setattr(encoded, "CHUNK", 64)          # several chunks
    rng = random.Random(0)
    for language in ("en", "de"):
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(300)]
        if language == "en":
            lines[7] = "  "
        else:
            lines[11] = "word " * 200
        (tmp_path / f"train.{language}").write_text("\n".join(lines), encoding="utf-8")
    return read_pairs(tmp_path / "train", "en", "de")


@pytest.fixture
def tokenizer(pairs):
    return train_tokenizer((line for side in pairs for line in side), 300)


def same(a, b) -> bool:
    """Whether two encoded corpora hold the same pairs."""
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in encoded.ARRAYS)


def ids_of(pairs, side: str, i: int) -> list[int]:
    """The token ids of sentence i of a side."""
    start, end = getattr(pairs, f"{side}_offsets")[i:i + 2]
    return getattr(pairs, f"{side}_ids")[start:end].tolist()


@pytest.mark.parametrize("blank", [" ", "  ", "\t", "\xa0", "\u3000", "\u2009", "\x0b", "\r",
                                   " \ufeff", "\u200b "])
def test_a_line_is_the_same_in_training_and_in_translation(blank, tokenizer):
    """Whatever its blanks, and in NFD: ids of training and translation, and what BPE learns."""
    lines = ["the tree is running", "a", "läuft of 犬"]
    spaced = [blank + normalize("NFD", line).replace(" ", blank) + blank for line in lines]
    clean = encode_pairs(tokenizer, Pairs(lines, lines))
    trained = encode_pairs(tokenizer, Pairs(spaced, lines[::-1]), max_length=256)
    for i, line in enumerate(spaced):
        translated, = pieces(line, tokenizer, 256)
        assert ids_of(trained, "source", i) == translated == ids_of(clean, "source", i)
    learned = [train_tokenizer(text * 3, 280, exact=False).to_str() for text in (lines, spaced)]
    assert learned[0] == learned[1]


def test_only_training_text_loses_its_empty_and_long_pairs(pairs, tokenizer):
    """Every sentence decodes to its text without outer blanks. --max-length itself is allowed."""
    whole = encode_pairs(tokenizer, pairs)
    assert len(whole) == 300
    for i, (source, target) in enumerate(zip(*pairs)):
        assert tokenizer.decode(ids_of(whole, "source", i)) == source.strip()
        assert tokenizer.decode(ids_of(whole, "target", i)) == target.strip()
        assert len(ids_of(whole, "source", i)) == whole.source_lengths[i]
    train = encode_pairs(tokenizer, pairs, max_length=100)
    kept = [i for i in range(300) if i not in (7, 11)]
    assert len(train) == len(kept)
    for j, i in enumerate(kept):
        assert ids_of(train, "target", j) == ids_of(whole, "target", i)
    longest = max(train.source_lengths.max(), train.target_lengths.max())
    assert len(encode_pairs(tokenizer, pairs, longest)) == len(kept)
    assert len(encode_pairs(tokenizer, pairs, longest - 1)) < len(kept)


def test_a_large_vocabulary_needs_wider_ids(tokenizer):
    """Above 65,536 tokens the ids are int32, and small ones do not wrap around."""
    assert encode_pairs(tokenizer, Pairs(["a"], ["b"])).source_ids.dtype == np.uint16
    tokenizer.add_tokens([f"zz{i}zz" for i in range(70_000)])
    wide = encode_pairs(tokenizer, Pairs(["zz69999zz a"], ["b"]))
    assert wide.source_ids.dtype == np.int32 and tokenizer.decode(wide.source_ids) == "zz69999zz a"


def test_pickle_maps_instead_of_copying(pairs, tokenizer, tmp_path):
    """A worker process gets the folder of a mapped corpus, and the arrays of one in memory."""
    mapped = encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    assert isinstance(mapped.source_ids.base, np.memmap)
    assert len(pickle.dumps(mapped)) < 1000 < mapped.source_ids.nbytes
    for pairs in (mapped, encode_pairs(tokenizer, pairs, 100)):
        assert same(pickle.loads(pickle.dumps(pairs)), pairs)


def test_a_killed_encoding_is_cleared_away(pairs, tokenizer, tmp_path, monkeypatch):
    """That of a program which this one waited for is taken."""
    (tmp_path / "cache" / "unfinished").mkdir(parents=True)
    (tmp_path / "cache" / "unfinished" / "source_ids.npy").write_bytes(b"half")
    folder = tmp_path / "cache" / "text"
    encode_files(tokenizer, pairs, 100, folder)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".lock", "text"}
    folder.rename(tmp_path / "other")

    def wait(path):
        shutil.copytree(tmp_path / "other", folder)
        return contextlib.nullcontext()

    monkeypatch.setattr(encoded, "FileLock", wait)
    encode_files(tokenizer, pairs, 100, folder)


def test_a_large_text_is_encoded_once(pairs, tmp_path, monkeypatch):
    """The second start encodes nothing. Changed text, another --max-length or vocabulary do."""
    prefix = str(tmp_path / "train")
    data = tmp_path / "data"
    flags = DataFlags(data_dir=str(data), train=prefix, valid=prefix, src="en", tgt="de")
    small = load_data(flags)
    assert not data.exists()
    monkeypatch.setattr(corpus, "CACHE_FROM", 300)

    def files() -> int:
        large = load_data(flags)
        assert same(large.train, encode_pairs(large.tokenizer, read_pairs(prefix, "en", "de"),
                                              flags.max_length))
        return len(list((data / "encoded").glob("t*")))

    assert files() == 1
    with monkeypatch.context() as patch:
        patch.setattr(encoded, "make_folder", None)
        again = load_data(flags)
    assert same(small.train, again.train)
    assert small.tokenizer.to_str() == again.tokenizer.to_str()
    flags.max_length = 5
    assert files() == 2
    lines = (tmp_path / "train.de").read_text("utf-8").split("\n")           # the same vocabulary
    (tmp_path / "train.de").write_text("\n".join(lines[::-1]), "utf-8")
    assert files() == 3
    flags.vocab_size = 290
    assert files() == 4
