"""The embedded corpus: a synchronous English-German grammar.

One derivation gives an English sentence, its German translation, the English constituency tree and
the features that probing asks for. The words are in lexicon.txt, the rules in grammar.py, and
readings.py turns a derivation into both languages. The same seed gives the same corpus on every
machine and Python.

    python -m toy --count 5                          # pairs to look at
    python -m toy --count 4500000 --write data/big   # data/big.en and data/big.de
"""
import random
from itertools import islice
from typing import Iterator

from .features import Example, Features, example, words
from .grammar import sentence
from .readings import Tree

__all__ = ["LONGEST", "SHORTEST", "Example", "Features", "Tree", "corpus", "derive", "distinct",
           "example", "splits", "words"]

SHORTEST, LONGEST = 6, 20                      # English words of a sentence, without punctuation


def derive(rng: random.Random) -> Example:
    """One random derivation of SHORTEST to LONGEST English words."""
    start = sentence()
    while True:
        drawn = example(start.sample(rng.random))
        if SHORTEST <= drawn.features.words <= LONGEST:
            return drawn


def distinct(seed: int) -> Iterator[Example]:
    """Endless examples, no English sentence twice."""
    rng = random.Random(seed)
    seen = set()
    while True:
        drawn = derive(rng)
        if drawn.english not in seen:
            seen.add(drawn.english)
            yield drawn


def corpus(count: int, seed: int = 1) -> list[Example]:
    """`count` examples with distinct English sentences."""
    return list(islice(distinct(seed), count))


def splits(train: int = 50_000, valid: int = 1_000, test: int = 1_000,
           seed: int = 1) -> dict[str, list[Example]]:
    """{"train": [...], "valid": [...], "test": [...]}, no English sentence twice in all three.

    Test and validation are drawn first: they stay the same when `train` changes.
    """
    stream = distinct(seed)
    held_out = {"test": list(islice(stream, test)), "valid": list(islice(stream, valid))}
    return {"train": list(islice(stream, train)), **held_out}
