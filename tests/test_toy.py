"""toy.py: the corpus is reproducible, well-formed, and what its features say; the command prints and writes it."""
import hashlib
import random
import re
from collections import Counter

import pytest

import toy
import toy_lexicon as lexicon
from toy_grammar import ADJECTIVES, NOUNS
from toy_readings import VERBS, Tree

HASH = "0ca4f86053c2fb34b93fe3b4bbc5025f55013f4faa6fa291a3af5d29a54c4980"  # of the first 1,000 examples of seed 1


@pytest.fixture(scope="module")
def sample():
    """20,000 examples."""
    return toy.corpus(20_000, seed=11)


def test_same_seed_same_corpus():
    """The hash is of the corpus itself: it must be the same on every machine and Python."""
    lines = "\n".join(f"{one.english}\t{one.german}\t{one.tree}\t{one.features}" for one in toy.corpus(1_000, seed=1))
    assert hashlib.sha256(lines.encode()).hexdigest() == HASH
    assert toy.corpus(20, seed=2) != toy.corpus(20, seed=1)


def test_splits():
    """The sizes asked for, no English sentence twice, and held-out parts that do not depend on the training size."""
    parts = toy.splits(train=3_000, valid=200, test=300, seed=4)
    assert {name: len(part) for name, part in parts.items()} == {"train": 3_000, "valid": 200, "test": 300}
    assert len({one.english for part in parts.values() for one in part}) == 3_500
    more = toy.splits(train=3_100, valid=200, test=300, seed=4)
    assert more["test"] == parts["test"] and more["valid"] == parts["valid"] and more["train"][:3_000] == parts["train"]


def test_lexicon(sample):
    """At least 150 lemmas in each language, one translation each within a word class, and all of them in use."""
    nouns = {one for group in NOUNS.values() for one in group}
    verbs = {one for group in VERBS.values() for one in group}
    adjectives = {one for group in ADJECTIVES.values() for one in group}
    assert len({one.english for one in nouns}) == len({one.german for one in nouns}) == len(nouns)
    assert len({one.english for one in adjectives}) == len({one.german for one in adjectives}) == len(adjectives)
    assert all(one.base != one.past and one.third != one.past for one in verbs)
    other = [len(table.strip().split("\n")) for table in (lexicon.PRONOUNS, lexicon.DETERMINERS)]
    other += map(len, (lexicon.PLACES, lexicon.AROUND, lexicon.CONJUNCTIONS, lexicon.ADVERBS, lexicon.PARTS_OF_DAY))
    other += map(len, lexicon.TIMES.values())
    for base in ("base", "infinitive"):
        lemmas = len(nouns) + len(adjectives) + len({getattr(one, base) for one in verbs}) + sum(other)
        assert 150 <= lemmas <= 240
    words = Counter(word for one in sample for word in re.findall(r"\w+", one.english))
    assert all(words[noun.english] + words[noun.english_plural] > 40 for noun in nouns)
    assert all(words[one.english] > 40 for one in adjectives)
    assert all(words[one.base] + words[one.third] + words[one.past] + words[one.participle] > 40 for one in verbs)


def test_text(sample):
    """Ordinary text: one sentence per line, a capital, no space before a mark, a comma before a German conjunction."""
    for one in sample:
        for line in (one.english, one.german):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w ,]*[.?]", line), line
            assert not re.search(r"  | [.,?]|,[^ ]|, *[,.?]", line), line
        assert (one.english[-1] == "?") == (one.german[-1] == "?")
        assert not re.search(r"[^,] (weil|obwohl|während|wenn|dass|aber) ", one.german), one.german
        assert not re.search(r"\b(in|an|von|zu) dem\b|\bzu der\b|\bin das\b", one.german), one.german
        assert 3 <= len(one.german.split()) <= 24


PAST = {"did", "had", "could", "was", "were"}
PLURAL = {"we", "they", "them"}


def features_of(tree: Tree) -> toy.Features:
    """The features, read off the English tree alone: part-of-speech labels, a few word lists and the shape."""
    def leaves(node):
        if isinstance(node.children[0], str):
            return [node]
        return [leaf for child in node.children for leaf in leaves(child)]

    def child(node, *labels):
        return next((one for one in node.children if not isinstance(one, str) and one.label in labels), None)

    def number(phrase):
        if child(phrase, "CC"):
            return "pl"
        while child(phrase, "NP"):
            phrase = child(phrase, "NP")
        last = phrase.children[-1]
        return "pl" if last.label == "NNS" or last.children[0] in PLURAL else "sg"

    words = [leaf for leaf in leaves(tree) if leaf.label not in (",", ".")]
    top = tuple(one.label for one in tree.children)
    main = child(tree, "S") or tree
    phrase = child(main, "VP")
    finite = child(main, "AUX") or child(phrase, "AUX", "VBZ", "VBP", "VBD")
    past = finite.label == "VBD" or finite.children[0] in PAST
    while phrase and child(phrase, "VP"):
        phrase = child(phrase, "VP")
    objects = [one for one in phrase.children if one.label == "NP"] if phrase else []
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [one for node in level for one in node.children if not isinstance(one, str)]
    return toy.Features("past" if past else "present", number(child(main, "NP")),
                        number(objects[-1]) if objects else None, depth, top, top.count("S") == 2, len(words))


def test_features_from_the_tree(sample):
    """Independent code reads the same features off the tree, and the same words off its leaves."""
    for one in sample:
        assert features_of(one.tree) == one.features
        words = re.findall(r"[^\s()]+(?=\))", str(one.tree))
        assert toy.words(one.tree) == words
        assert " ".join(words).replace(" ,", ",").replace(" .", ".").replace(" ?", "?").lower() == one.english.lower()
        assert toy.SHORTEST <= one.features.words <= toy.LONGEST
        assert one.features.words == len(one.english.split())


def test_enough_of_each_feature(sample):
    """What probing needs: balanced labels to draw from, and depth that length does not give away."""
    features = [one.features for one in sample]
    share = lambda values: {key: count / len(features) for key, count in Counter(values).items()}     # noqa: E731
    assert all(value > 0.3 for value in share(one.tense for one in features).values())
    assert all(value > 0.3 for value in share(one.subject for one in features).values())
    assert all(value > 0.15 for value in share(one.object for one in features).values())
    assert share(one.coordination for one in features)[True] > 0.08
    assert sum(value > 0.02 for value in share(one.top for one in features).values()) >= 8
    assert sum(value > 0.05 for value in share(one.depth for one in features).values()) >= 5
    depths = [one.depth for one in features if one.words == 12]
    assert sum(count > 0.05 * len(depths) for count in Counter(depths).values()) >= 5
    lengths = [one.words for one in features]
    assert sum(7 <= one <= 12 for one in lengths) > 0.5 * len(lengths) and set(lengths) == set(range(6, 21))


# ---- command ---------------------------------------------------------------------------------------------------------

def test_command_prints(capsys):
    assert toy.main(["--count", "3", "--seed", "9"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines == [line for one in toy.corpus(3, seed=9) for line in (one.english, one.german, "")] + [""]
    assert toy.main(["--count", "1", "--trees"]) == 0
    assert str(toy.corpus(1)[0].tree) in capsys.readouterr().out


def test_command_writes(tmp_path):
    assert toy.main(["--count", "50", "--seed", "9", "--write", str(tmp_path / "big")]) == 0
    rng = random.Random(9)
    pairs = [toy.derive(rng) for _ in range(50)]
    for name, lines in (("big.en", [one.english for one in pairs]), ("big.de", [one.german for one in pairs])):
        assert (tmp_path / name).read_text(encoding="utf-8") == "\n".join(lines) + "\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.de", "big.en"]


def test_command_keeps_old_files_when_it_fails(tmp_path, monkeypatch, capsys):
    """Neither file is replaced unless both are whole, and nothing is left behind."""
    for name in ("big.en", "big.de"):
        (tmp_path / name).write_text("old")
    pairs = iter(toy.corpus(3))

    def failing(rng):
        if (pair := next(pairs, None)) is None:
            raise OSError(28, "No space left on device")
        return pair
    monkeypatch.setattr(toy, "derive", failing)
    assert toy.main(["--count", "9", "--write", str(tmp_path / "big")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"big.en": "old", "big.de": "old"}


@pytest.mark.parametrize("argv, named", [(["--write", "nowhere/at/all"], "--write"), (["--count", "0"], "--count"),
                                         (["--count", "many"], "--count"), (["--seed", "-1"], "--seed"),
                                         (["--tree"], "--tree"), (["--write", ""], "--write")])
def test_command_errors(argv, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        status = toy.main(argv)
    except SystemExit as stop:
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2 and named in error and error.count("\n") == 1 and not list(tmp_path.iterdir())
