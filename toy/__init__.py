"""The embedded corpus: a synchronous English-German grammar.

One derivation gives an English sentence, its German translation and the English constituency tree.
The words are in lexicon.txt and the rules in grammar.py; readings.py turns a derivation into both
languages. The same seed gives the same corpus on every machine and Python version.

    import toy
    for pair in toy.corpus(5):
        print(pair.english, "->", pair.german)
"""
import gzip
import random
from itertools import islice
from pathlib import Path
from typing import Iterator, NamedTuple

from .grammar import sentence
from .readings import Tree

PAIRS = 30_000, 500, 1_000                     # as in train_mt.py: training, validation, test
SHORTEST = 6                                   # English words in a sentence, without punctuation
LONGEST = 20


class Example(NamedTuple):
    """A sentence pair with the tree of its English side."""
    english: str
    german: str
    tree: Tree


def words(tree: Tree) -> list[str]:
    """The words and punctuation marks of a tree, from left to right."""
    collected = []
    for child in tree.children:
        if child.__class__ is str:             # isinstance takes three times as long
            collected.append(child)
        else:
            collected += words(child)
    return collected


def join_words(words: list[str]) -> str:
    """Ordinary text: a capital, no space before a mark, no comma at the start or before a mark."""
    line = ""
    for word in words:
        if word in (",", ".", "?"):
            line = line.removesuffix(",") + word
        else:
            line += " " + word
    line = line.lstrip(", ")
    return line[0].upper() + line[1:]


def derive(rng: random.Random) -> Example:
    """One random derivation with SHORTEST to LONGEST English words."""
    start = sentence()
    while True:
        derivation = start.sample(rng.random)
        tree = derivation.tree()
        example = Example(join_words(words(tree)), join_words(derivation.german()), tree)
        if SHORTEST <= len(example.english.split()) <= LONGEST:
            return example


def distinct(seed: int) -> Iterator[Example]:
    """Endless examples without repeated English sentences."""
    rng = random.Random(seed)
    seen = set()
    while True:
        example = derive(rng)
        if example.english not in seen:
            seen.add(example.english)
            yield example


def corpus(count: int, seed: int = 1) -> list[Example]:
    """`count` examples with distinct English sentences."""
    return list(islice(distinct(seed), count))


def splits(train: int, valid: int, test: int, seed: int = 1) -> dict[str, list[Example]]:
    """{"train": [...], "valid": [...], "test": [...]} with distinct English sentences.

    Test and validation are drawn first: they stay the same when `train` changes.
    """
    stream = distinct(seed)
    held_out = {"test": list(islice(stream, test)), "valid": list(islice(stream, valid))}
    return {"train": list(islice(stream, train)), **held_out}


# ---- The data: see README.md

def pairs(part: str) -> list[tuple[str, str]]:
    """(English, German) sentences of a part: "train", "valid" or "test"."""
    return list(zip(read_lines(f"{part}.en"), read_lines(f"{part}.de")))


def task(name: str) -> list[str]:
    """The examples of a probing task, such as "Tense", as lines "tr|va|te TAB label TAB tokens"."""
    return read_lines(f"{name}.txt")


def read_lines(name: str) -> list[str]:
    """The lines of NAME.gz in this folder."""
    path = Path(__file__).with_name(f"{name}.gz")
    return gzip.decompress(path.read_bytes()).decode().splitlines()
