"""Encoded corpora: what training reads, in memory and memory-mapped the same."""
import random
import time
from concurrent.futures import ThreadPoolExecutor
from unicodedata import normalize

import numpy as np
import pytest

from nmt import encoded
from nmt.corpus import Pairs, read_pairs
from nmt.encoded import encode_files, encode_pairs
from nmt.tokenizer import train_tokenizer

WORDS = ["tree", "house", "Straße", "naïve", "犬", "a", "of", "running", "läuft", "🙂"]


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """300 pairs on disk; pairs 7 and 9 have an empty side, pairs 11 and 13 a long one."""
    monkeypatch.setattr(encoded, "CHUNK", 64)          # several chunks
    rng = random.Random(0)
    for language in ("en", "de"):
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(300)]
        empty, long = (7, 11) if language == "en" else (9, 13)
        lines[empty] = "  "
        lines[long] = "word " * 200
        (tmp_path / f"train.{language}").write_text("\n".join(lines), encoding="utf-8")
    return read_pairs(tmp_path / "train", "en", "de")


@pytest.fixture
def tokenizer(pairs):
    return train_tokenizer((line for side in pairs for line in side), 300)


def ids_of(pairs, side: str, i: int) -> list[int]:
    """The token ids of sentence i of a side."""
    start, end = getattr(pairs, f"{side}_offsets")[i:i + 2]
    return getattr(pairs, f"{side}_ids")[start:end].tolist()


@pytest.mark.parametrize("blank", ["  ", "\t", "\u3000", " \ufeff"])
def test_blanks_and_composition_make_no_difference(blank, tokenizer):
    lines = ["the tree is running", "a", "läuft of 犬"]
    spaced = [blank + normalize("NFD", line).replace(" ", blank) + blank for line in lines]
    a, b = (encode_pairs(tokenizer, Pairs(text, text)) for text in (lines, spaced))
    assert a.source_ids.tolist() == b.source_ids.tolist()
    learned = [train_tokenizer(text * 3, 280).to_str() for text in (lines, spaced)]
    assert learned[0] == learned[1]


def test_every_sentence_decodes_to_its_text(pairs, tokenizer):
    whole = encode_pairs(tokenizer, pairs)
    assert len(whole) == 300
    for i, (source, target) in enumerate(zip(*pairs)):
        assert tokenizer.decode(ids_of(whole, "source", i)) == source.strip()
        assert tokenizer.decode(ids_of(whole, "target", i)) == target.strip()
        assert len(ids_of(whole, "source", i)) == whole.source_lengths[i]


def test_empty_and_long_pairs_are_left_out(pairs, tokenizer):
    whole = encode_pairs(tokenizer, pairs)
    train = encode_pairs(tokenizer, pairs, max_length=100)
    kept = [i for i in range(300) if i not in (7, 9, 11, 13)]
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


def test_files_are_mapped_and_complete(pairs, tokenizer, tmp_path, monkeypatch):
    """What a killed program left is replaced. The second time nothing is encoded."""
    folder = tmp_path / "cache" / "text"
    unfinished = folder.with_name("text.tmp")
    unfinished.mkdir(parents=True)
    (unfinished / "source_ids.npy").write_bytes(b"half")
    expected = encode_pairs(tokenizer, pairs, 100)
    for _ in range(2):
        mapped = encode_files(tokenizer, pairs, 100, folder)
        assert [path.name for path in folder.parent.iterdir()] == ["text"]
        assert isinstance(mapped.source_ids, np.memmap)
        for name in encoded.ARRAYS:
            assert np.array_equal(getattr(mapped, name), getattr(expected, name))
        monkeypatch.setattr(encoded, "encode_pairs", None)
        monkeypatch.setattr(encoded, "FileLock", None)   # a read-only folder has no lock


def test_three_at_once_make_the_files_once(pairs, tokenizer, tmp_path, monkeypatch):
    calls = []

    def encode_slowly(*arguments):
        calls.append(arguments)
        time.sleep(0.3)
        return encode_pairs(*arguments)

    monkeypatch.setattr(encoded, "encode_pairs", encode_slowly)
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(encode_files, tokenizer, pairs, 100, tmp_path / "cache" / "text")
                for _ in range(3)]
    lengths = {len(run.result()) for run in runs}
    assert lengths == {296} and len(calls) == 1
