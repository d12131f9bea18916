"""The corpus is reproducible, well-formed and what its features say; the command prints and writes
it."""
import ast
import hashlib
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import toy
from toy import lexicon
from toy.__main__ import main
from toy.lexicon import ADJECTIVES, NOUNS, VERBS
from toy.readings import Tree

ROOT = Path(__file__).resolve().parents[2]
# of the first 1,000 examples of seed 1
HASH = "0ca4f86053c2fb34b93fe3b4bbc5025f55013f4faa6fa291a3af5d29a54c4980"


@pytest.fixture(scope="module")
def sample():
    """20,000 examples."""
    return toy.corpus(20_000, seed=11)


def test_same_seed_same_corpus():
    """The hash is of the corpus itself: it must be the same on every machine and Python."""
    lines = []
    for one in toy.corpus(1_000, seed=1):
        lines.append(f"{one.english}\t{one.german}\t{one.tree}\t{one.features}")
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == HASH
    assert toy.corpus(20, seed=2) != toy.corpus(20, seed=1)


def test_splits():
    """The sizes asked for, no English sentence twice; test and valid do not depend on `train`."""
    parts = toy.splits(train=3_000, valid=200, test=300, seed=4)
    sizes = {name: len(part) for name, part in parts.items()}
    assert sizes == {"train": 3_000, "valid": 200, "test": 300}
    assert len({one.english for part in parts.values() for one in part}) == 3_500
    more = toy.splits(train=3_100, valid=200, test=300, seed=4)
    assert more["test"] == parts["test"]
    assert more["valid"] == parts["valid"]
    assert more["train"][:3_000] == parts["train"]


def test_lexicon(sample):
    """At least 150 lemmas in each language, one translation each within a class, all in use."""
    nouns = {one for group in NOUNS.values() for one in group}
    verbs = {one for group in VERBS.values() for one in group}
    adjectives = {one for group in ADJECTIVES.values() for one in group}
    for words in (nouns, adjectives):
        assert len({one.english for one in words}) == len(words)
        assert len({one.german for one in words}) == len(words)
    assert all(one.base != one.past and one.third != one.past for one in verbs)
    tables = (lexicon.PRONOUNS, lexicon.DETERMINERS, lexicon.PREPOSITIONS, *lexicon.FIXED.values())
    other = [len(table) for table in tables]
    for bases in ({one.base for one in verbs}, {one.infinitive for one in verbs}):
        assert 150 <= len(nouns) + len(adjectives) + len(bases) + sum(other) <= 240
    words = Counter(word for one in sample for word in re.findall(r"\w+", one.english))
    assert all(words[noun.english] + words[noun.english_plural] > 40 for noun in nouns)
    assert all(words[one.english] > 40 for one in adjectives)
    for one in verbs:
        forms = {one.base, one.third, one.past, one.participle}
        assert sum(words[form] for form in forms) > 40, one


def test_text(sample):
    """Ordinary text: a capital, no space before a mark, a comma before a German conjunction."""
    for one in sample:
        for line in (one.english, one.german):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w ,]*[.?]", line), line
            assert not re.search(r"  | [.,?]|,[^ ]|, *[,.?]", line), line
        assert (one.english[-1] == "?") == (one.german[-1] == "?")
        assert not re.search(r"[^,] (weil|obwohl|während|wenn|dass|aber) ", one.german), one.german
        assert not re.search(r"\b((in|an|von|zu) dem|zu der|in das)\b", one.german), one.german
        assert 3 <= len(one.german.split()) <= 24


PAST = {"did", "had", "could", "was", "were"}
PLURAL = {"we", "they", "them"}


def features_of(tree: Tree) -> toy.Features:
    """The features, read off the English tree alone: labels, a few word lists and the shape."""
    def leaves(node):
        if isinstance(node.children[0], str):
            return [node]
        return [leaf for child in node.children for leaf in leaves(child)]

    def inner(node):
        return [one for one in node.children if not isinstance(one, str)]

    def child(node, *labels):
        return next((one for one in inner(node) if one.label in labels), None)

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
    depth = 0
    level = [tree]
    while level:
        depth += 1
        level = [one for node in level for one in inner(node)]
    return toy.Features(
        tense="past" if past else "present",
        subject=number(child(main, "NP")),
        object=number(objects[-1]) if objects else None,
        depth=depth,
        top=top,
        coordination=top.count("S") == 2,
        words=len(words),
    )


def test_features_from_the_tree(sample):
    """Independent code reads the same features off the tree, and the same words off its leaves."""
    for one in sample:
        assert features_of(one.tree) == one.features
        words = re.findall(r"[^\s()]+(?=\))", str(one.tree))
        assert toy.words(one.tree) == words
        assert re.sub(r" ([,.?])", r"\1", " ".join(words)).lower() == one.english.lower()
        assert toy.SHORTEST <= one.features.words <= toy.LONGEST
        assert one.features.words == len(one.english.split())


def test_enough_of_each_feature(sample):
    """What probing needs: balanced labels, and depth that length does not give away."""
    features = [one.features for one in sample]

    def share(values):
        return {key: count / len(features) for key, count in Counter(values).items()}
    tenses = share(one.tense for one in features)
    subjects = share(one.subject for one in features)
    objects = share(one.object for one in features)
    tops = share(one.top for one in features)
    depths = share(one.depth for one in features)
    assert all(value > 0.3 for value in tenses.values())
    assert all(value > 0.3 for value in subjects.values())
    assert all(value > 0.15 for value in objects.values())
    assert share(one.coordination for one in features)[True] > 0.08
    assert sum(value > 0.02 for value in tops.values()) >= 8
    assert sum(value > 0.05 for value in depths.values()) >= 5
    of_twelve = [one.depth for one in features if one.words == 12]
    assert sum(count > 0.05 * len(of_twelve) for count in Counter(of_twelve).values()) >= 5
    lengths = [one.words for one in features]
    assert sum(7 <= one <= 12 for one in lengths) > 0.5 * len(lengths)
    assert set(lengths) == set(range(6, 21))


# ---- The command

def test_command_prints(capsys):
    assert main(["--count", "3", "--seed", "9"]) == 0
    expected = ""
    for one in toy.corpus(3, seed=9):
        expected += f"{one.english}\n{one.german}\n\n"
    assert capsys.readouterr().out == expected
    assert main(["--count", "1", "--trees"]) == 0
    one = toy.corpus(1)[0]
    assert capsys.readouterr().out == f"{one.english}\n{one.german}\n{one.tree}\n{one.features}\n\n"


def test_command_writes(tmp_path):
    assert main(["--count", "50", "--seed", "9", "--write", str(tmp_path / "big")]) == 0
    rng = random.Random(9)
    pairs = [toy.derive(rng) for _ in range(50)]
    english = "".join(f"{one.english}\n" for one in pairs)
    german = "".join(f"{one.german}\n" for one in pairs)
    assert (tmp_path / "big.en").read_text(encoding="utf-8") == english
    assert (tmp_path / "big.de").read_text(encoding="utf-8") == german
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.de", "big.en"]


def refused(argv, capsys) -> str:
    """Asserts exit code 2 and one line on stderr; returns the line."""
    with pytest.raises(SystemExit) as stop:
        main(argv)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.count("\n") == 1 and error.startswith("python -m toy: error: ")
    return error


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
    argv = ["--count", "9", "--write", str(tmp_path / "big")]
    assert "No space left on device" in refused(argv, capsys)
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {"big.en": "old", "big.de": "old"}


ERRORS = {
    "no folder": (["--write", "no/such"], "--write no/such.en: No such file or directory: choose"),
    "a file as a folder": (["--write", "file/big"], "--write file/big.en"),
    "no name": (["--write", "data/"], "data/toy"),
    "an empty name": (["--write", ""], "data/toy"),
    "trees in a file": (["--write", "big", "--trees"], "--trees"),
    "no pairs": (["--count", "0"], "--count 0"),
    "fewer than none": (["--count", "-3"], "--count -3"),
    "many": (["--count", "many"], "--count"),
    "half a pair": (["--count", "0.5"], "--count"),
    "a negative seed": (["--seed", "-1"], "--seed -1"),
    "a shortened flag": (["--tree"], "--tree"),
    "an unknown flag": (["--trains"], "--trains"),
}


@pytest.mark.parametrize("argv, named", ERRORS.values(), ids=ERRORS)
def test_command_errors(argv, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("old")
    assert named in refused(argv, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_command_on_a_full_disk():
    """One line, and no second one from Python's own last flush."""
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "toy", "--count", "2"], cwd=ROOT, stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "standard output: No space left on device" in done.stderr


def test_command_into_a_closed_pipe():
    """`python -m toy | head -1` ends without a word."""
    argv = [sys.executable, "-m", "toy", "--count", "2000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=ROOT, **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0


def test_the_package_stands_alone():
    """It imports the standard library and itself."""
    for path in (ROOT / "toy").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                assert name == "toy" or name.split(".")[0] in sys.stdlib_module_names, (path, name)
