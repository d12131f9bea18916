"""Encoded corpora: in memory and memory-mapped the same, and never a stale one."""
import os
import pickle
import random

import numpy as np
import pytest
import torch

from nmt import corpus, encoded
from nmt import tokenizer as tokenizers
from nmt.batches import batches, collate
from nmt.corpus import DataFlags, Pairs, load_corpora, read_pairs
from nmt.encoded import encode_files, encode_pairs, encode_train, encode_valid, open_encoded
from nmt.flags import UserError, parse
from nmt.tokenizer import corpus_tokenizer, train_tokenizer


def write_corpus(folder, count=300, seed=0, name="train"):
    """A corpus on disk with one empty side and one long pair; returns its Pairs of Lines."""
    rng = random.Random(seed)
    words = ["tree", "house", "Straße", "naïve", "犬", "a", "of", "running", "läuft", "🙂"]

    def sentences():
        return [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(count)]
    sides = [sentences(), sentences()]
    sides[0][7], sides[1][11] = "  ", "word " * 200
    for language, lines in zip(("en", "de"), sides):
        text = "".join(line + "\n" for line in lines)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return read_pairs(folder / name, "en", "de")


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(encoded, "CHUNK", 64)          # several chunks
    return write_corpus(tmp_path)


@pytest.fixture
def tokenizer(pairs):
    return train_tokenizer((line for side in pairs for line in side), 300)


def same(a, b) -> bool:
    """Whether two encoded corpora hold the same pairs."""
    return a.dropped == b.dropped and all(
        np.array_equal(getattr(a, f"{side}_{part}"), getattr(b, f"{side}_{part}"))
        for side in ("source", "target") for part in ("ids", "offsets", "lengths"))


def test_encode_pairs(pairs, tokenizer):
    """Every sentence decodes to its text; valid text is kept whole, training text loses its empty
    and long pairs."""
    whole = encode_pairs(tokenizer, pairs)
    assert len(whole) == 300 and whole.dropped == (0, 0)
    for i, (source, target) in enumerate(zip(*pairs)):
        assert tokenizer.decode(whole.source(i)) == source
        assert tokenizer.decode(whole.target(i)) == target
        assert len(whole.source(i)) == whole.source_lengths[i]
        assert len(whole.target(i)) == whole.target_lengths[i]
    train = encode_pairs(tokenizer, pairs, max_length=100)
    assert len(train) == 298 and train.dropped == (1, 1)
    assert max(train.source_lengths.max(), train.target_lengths.max()) <= 100
    kept = [i for i in range(300) if i not in (7, 11)]
    assert all(np.array_equal(train.source(j), whole.source(i)) for j, i in enumerate(kept))


def test_no_pair(tokenizer):
    found = encode_pairs(tokenizer, Pairs([], []))
    assert len(found) == 0 and batches(found.source_lengths, found.target_lengths, 100) == []


def test_all_dropped(tokenizer, tmp_path):
    found = encode_pairs(tokenizer, Pairs(["", "a"], ["b", " "]), max_length=10)
    assert len(found) == 0 and found.dropped == (2, 0)


def test_large_vocabulary_needs_wider_ids(pairs, tokenizer, tmp_path):
    """Above 65,536 tokens the ids are int32, and small ones do not wrap around."""
    tokenizer.add_tokens([f"zz{i}zz" for i in range(70_000)])
    found = encode_pairs(tokenizer, Pairs(["zz69999zz a"], ["b"]))
    assert found.source_ids.dtype == np.int32 and tokenizer.decode(found.source(0)) == "zz69999zz a"
    assert encode_files(tokenizer, pairs, None, tmp_path / "encoded").source_ids.dtype == np.int32


@pytest.mark.parametrize("max_length", [None, 100])
def test_files_equal_memory(pairs, tokenizer, tmp_path, max_length):
    """Memory-mapped and in memory: the same pairs, the same batches, the same tensors."""
    memory = encode_pairs(tokenizer, pairs, max_length)
    mapped = encode_files(tokenizer, pairs, max_length, tmp_path / "encoded")
    assert isinstance(mapped.source_ids.base, np.memmap) and same(memory, mapped)
    found = batches(memory.source_lengths, memory.target_lengths, 300, seed=3)
    again = batches(mapped.source_lengths, mapped.target_lengths, 300, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    for batch in found:
        for a, b in zip(collate(memory, batch), collate(mapped, batch)):
            assert torch.equal(a, b)


def count_encoding(monkeypatch):
    """Counts how often text is encoded from now on."""
    calls, original = [], encoded.encode_chunks
    monkeypatch.setattr(
        encoded, "encode_chunks", lambda *args: (calls.append(1), original(*args))[1]
    )
    return calls


def test_second_start_reads_the_files(pairs, tokenizer, tmp_path, monkeypatch):
    calls = count_encoding(monkeypatch)
    first = encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    second = encode_files(
        tokenizer, read_pairs(tmp_path / "train", "en", "de"), 100, tmp_path / "encoded"
    )
    assert len(calls) == 1 and same(first, second)


def test_stale_files_are_not_used(pairs, tokenizer, tmp_path, monkeypatch):
    """Another text (of the same size and time), tokenizer or limit is encoded anew."""
    calls = count_encoding(monkeypatch)
    encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    path = tmp_path / "train.de"
    times = path.stat()
    text = path.read_bytes()
    path.write_bytes(text.replace(b"house", b"mouse", 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns and path.stat().st_size == times.st_size
    changed = read_pairs(tmp_path / "train", "en", "de")
    assert same(
        encode_files(tokenizer, changed, 100, tmp_path / "encoded"),
        encode_pairs(tokenizer, changed, 100),
    )
    other = train_tokenizer((line for side in changed for line in side), 280)
    assert same(
        encode_files(other, changed, 100, tmp_path / "encoded"), encode_pairs(other, changed, 100)
    )
    assert same(
        encode_files(other, changed, 5, tmp_path / "encoded"), encode_pairs(other, changed, 5)
    )
    assert len(calls) == 4 + 3


def test_interrupted_encoding_leaves_nothing(pairs, tokenizer, tmp_path, monkeypatch):
    original = encoded.encode_chunks

    def broken(*args):
        yield next(original(*args))
        raise KeyboardInterrupt
    monkeypatch.setattr(encoded, "encode_chunks", broken)
    with pytest.raises(KeyboardInterrupt):
        encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    assert list((tmp_path / "encoded").iterdir()) == []
    monkeypatch.undo()
    assert same(
        encode_files(tokenizer, pairs, 100, tmp_path / "encoded"),
        encode_pairs(tokenizer, pairs, 100),
    )


def test_text_that_changes_meanwhile(pairs, tokenizer, tmp_path, monkeypatch):
    original = encoded.encode_chunks

    def meddling(*args):
        yield from original(*args)
        with open(tmp_path / "train.en", "a") as file:
            file.write("more\n")
    monkeypatch.setattr(encoded, "encode_chunks", meddling)
    with pytest.raises(UserError, match="changed while"):
        encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    assert list((tmp_path / "encoded").iterdir()) == []


def test_two_at_once(pairs, tokenizer, tmp_path, monkeypatch):
    """A second process that ends first: its files are used, and ours go."""
    original = encoded.encode_chunks

    def slow(*args):
        yield from original(*args)
        monkeypatch.setattr(encoded, "encode_chunks", original)
        encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    monkeypatch.setattr(encoded, "encode_chunks", slow)
    found = encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    assert same(found, encode_pairs(tokenizer, pairs, 100))
    assert len(list((tmp_path / "encoded").iterdir())) == 1


@pytest.mark.parametrize("name", ["source_ids", "target_offsets", "meta.json"])
def test_damaged_files(pairs, tokenizer, tmp_path, name):
    folder = encode_files(tokenizer, pairs, 100, tmp_path / "encoded").folder
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(UserError, match="damaged: delete it"):
        open_encoded(folder)


def test_place_that_cannot_be_written(pairs, tokenizer, tmp_path):
    (tmp_path / "encoded").write_text("a file")
    with pytest.raises(UserError, match="encoded"):
        encode_files(tokenizer, pairs, 100, tmp_path / "encoded")


def test_full_disk_leaves_nothing(pairs, tokenizer, tmp_path):
    """A limit on the size of files stands in for the full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        with pytest.raises(UserError, match="cannot write .*File too large"):
            encode_files(tokenizer, pairs, 100, tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "cache").iterdir())
    assert len(encode_files(tokenizer, pairs, 100, tmp_path / "cache"))


def test_pickle_maps_instead_of_copying(pairs, tokenizer, tmp_path):
    """What a worker process gets of a mapped corpus is its folder; of one in memory, the arrays."""
    mapped = encode_files(tokenizer, pairs, 100, tmp_path / "encoded")
    assert len(pickle.dumps(mapped)) < 1000 < mapped.source_ids.nbytes
    for found in (mapped, encode_pairs(tokenizer, pairs, 100)):
        assert same(pickle.loads(pickle.dumps(found)), found)


def flags_of(folder, *more) -> DataFlags:
    """The flags that name the corpus in a folder, for training and validation."""
    argv = f"--train {folder}/train --valid {folder}/train --src en --tgt de".split()
    return parse(DataFlags, [*argv, *more], "p.py", "")


def test_large_corpus_is_cached_as_a_whole(pairs, tmp_path, monkeypatch):
    """load_corpora, corpus_tokenizer and encode_train: the second start trains and encodes nothing,
    with equal results; a corpus below the limit leaves no files."""
    def start():
        corpora = load_corpora(flags_of(tmp_path))
        tokenizer = corpus_tokenizer(corpora)
        return tokenizer, encode_train(tokenizer, corpora, 100)

    small = start()
    assert not (tmp_path / "encoded").exists()
    monkeypatch.setattr(corpus, "CACHE_FROM", 1)
    first = start()
    calls = count_encoding(monkeypatch)
    monkeypatch.setattr(tokenizers, "train_tokenizer", None)
    second = start()
    assert not calls and len(list((tmp_path / "encoded").iterdir())) == 2
    assert small[0].to_str() == first[0].to_str() == second[0].to_str()
    assert same(small[1], first[1]) and same(first[1], second[1])
    text = (tmp_path / "train.en").read_text(encoding="utf-8")
    (tmp_path / "train.en").write_text(text.replace("tree", "wood"), encoding="utf-8")
    with pytest.raises(TypeError):                # the changed text needs a tokenizer of its own
        start()


def test_folder_without_permission(pairs, tmp_path, monkeypatch):
    """Text in a folder that is not ours is cached below --data-dir."""
    monkeypatch.setattr(corpus, "CACHE_FROM", 1)
    monkeypatch.setattr(corpus.os, "access", lambda path, mode: path != tmp_path)
    corpora = load_corpora(flags_of(tmp_path, "--data-dir", f"{tmp_path}/own"))
    encode_train(corpus_tokenizer(corpora), corpora, 100)
    assert len(list((tmp_path / "own" / "encoded").iterdir())) == 2


def test_a_validation_line_too_long_for_the_memory_is_named(pairs, tokenizer, monkeypatch):
    """Line 12 of the German text is the longest."""
    corpora = corpus.Corpora("own", "en", "de", pairs, pairs, None, None)
    longest = int(encode_valid(tokenizer, corpora).target_lengths.max())
    monkeypatch.setattr(encoded, "LONGEST_VALID", longest - 1)
    with pytest.raises(UserError, match=f"line 12 of the de text has {longest:,} tokens"):
        encode_valid(tokenizer, corpora)
