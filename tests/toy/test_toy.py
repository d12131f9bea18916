"""toy/: the same corpus everywhere, ordinary text, German and trees that belong to the English."""
import hashlib
import random
import re
from pathlib import Path

import pytest

import toy
from toy.__main__ import main
from toy.parts import Choice

# SHA-256 of the first sentences of the corpus that train_mt.py uses.
PAIRS = "5a10cac1915ad07c964db72b832d766c066d80ed827c72e9a319a314dafacd04"
TREES = "ed473c9afab5c9b838cf3a05cd3ca77ec1ffe23eef8c4b14642d273808cd919e"
STRUCTURE = {"sentence", "tense", "adjunct", "frame", "group", "negated", "be", "modifier",
             "argument", "coordination"}


@pytest.fixture(scope="module")
def pairs():
    """6,000 pairs with distinct English sentences."""
    return toy.corpus(6_000, seed=1)


def sha256(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_same_corpus_on_every_machine_and_python():
    """A prefix of the splits of train_mt.py: test and validation do not depend on `train`."""
    parts = toy.splits(2_000, *toy.PAIRS[1:], seed=1)
    texts = []
    trees = []
    for name in ("train", "valid", "test"):
        for pair in parts[name]:
            texts.append(f"{pair.english}\t{pair.german}")
            trees.append(str(pair.tree))
    assert sha256(texts) == PAIRS
    assert sha256(trees) == TREES
    assert len({pair.english for part in parts.values() for pair in part}) == 3_500
    few = toy.splits(train=50, valid=500, test=1_000, seed=1)
    assert few == {**parts, "train": parts["train"][:50]}
    assert toy.splits(train=5, valid=4, test=6, seed=2) != toy.splits(train=5, valid=4, test=6)


def test_no_english_sentence_is_there_twice(monkeypatch):
    """Others may have the same German."""
    drawn = iter("abacbd")
    monkeypatch.setattr(toy, "derive", lambda rng: toy.Example(next(drawn), "x", None))
    assert [pair.english for pair in toy.corpus(4)] == ["a", "b", "c", "d"]


def test_every_english_sentence_has_one_translation_and_one_tree(monkeypatch):
    """In each of 20 rounds the words are fixed and only the structure is drawn, so that different
    derivations give the same English sentence."""
    draw = Choice.sample
    turn = 0

    def sample(self, uniform):
        if self.name in STRUCTURE:
            return draw(self, uniform)
        return self.parts[turn % len(self.parts)].sample(uniform)

    monkeypatch.setattr(Choice, "sample", sample)
    rng = random.Random(3)
    known = {}
    for turn in range(20):
        for _ in range(400):
            pair = toy.derive(rng)
            reading = (pair.german, pair.tree)
            assert known.setdefault(pair.english, reading) == reading
    assert len(known) < 7_600                  # there were sentences to compare


def test_the_leaves_of_the_tree_are_the_sentence(pairs):
    for pair in pairs:
        leaves = re.findall(r"[^\s()]+(?=\))", str(pair.tree))
        assert toy.words(pair.tree) == leaves
        assert re.sub(r" ([,.?])", r"\1", " ".join(leaves)).lower() == pair.english.lower()


def test_german_and_trees_are_those_checked_by_hand(pairs):
    german = {pair.english: pair.german for pair in pairs}
    trees = {str(pair.tree) for pair in pairs}
    for line in Path(__file__).with_name("hand_checked.txt").read_text("utf-8").splitlines():
        if " | " in line:
            english, translation = line.split(" | ")
            assert german.get(english) == translation
        elif line.startswith("(S "):
            assert line in trees


def test_the_corpus_as_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toy, "PAIRS", (6, 2, 3))
    folder = tmp_path / "text"
    assert main([str(folder), "--pairs", "4"]) == 0
    parts = toy.splits(6, 2, 3)
    for part, count in (("train", 4), ("valid", 2), ("test", 3)):
        for language, side in (("en", "english"), ("de", "german")):
            lines = (folder / f"{part}.{language}").read_text("utf-8").splitlines()
            assert lines == [getattr(example, side) for example in parts[part][:count]]
    with pytest.raises(SystemExit, match="2"):
        main([str(folder), "--pairs", "30001"])
    assert "--pairs: '30001' is not a whole number from 1 to 30000" in capsys.readouterr().err
    written = (folder / "train.en").stat()
    assert main([str(folder), "--pairs", "4"]) == 0      # a training may be reading them
    assert (folder / "train.en").stat() == written
    assert main([str(folder), "--pairs", "3"]) == 2
    (folder / "train.en").write_bytes(bytes(written.st_size))
    assert main([str(folder), "--pairs", "4"]) == 2
    assert "train.en: has another text: choose another folder" in capsys.readouterr().err
