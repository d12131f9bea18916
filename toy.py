"""The embedded corpus: a synchronous English-German grammar.

One derivation gives an English sentence, its German translation, the English constituency tree and the features that
probing asks for. The words are in toy_lexicon.py, the rules in toy_grammar.py, and toy_readings.py turns a derivation
into both languages. The same seed gives the same corpus on every machine and Python.

    python toy.py --count 5                          # pairs to look at
    python toy.py --count 4500000 --write data/big   # data/big.en and data/big.de
"""
import os
import random
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any, Iterator

from cli import Parser, UserError, run, whole
from toy_grammar import sentence
from toy_readings import Sentence, Tree

SHORTEST, LONGEST = 6, 20                                       # English words of a sentence, punctuation not counted


@dataclass(frozen=True)
class Features:
    """What probing asks for. Of two coordinated clauses, tense and numbers are the first one's. The perfect
    ("has seen") counts as present and the pluperfect ("had seen") as past, as the finite verb shows."""
    tense: str                                                  # of the main clause: present or past
    subject: str                                                # number of the main clause's subject: sg or pl
    object: str | None                                          # of its direct object; None without one
    depth: int                                                  # labels from S down to the deepest word
    top: tuple[str, ...]                                        # labels directly below S
    coordination: bool                                          # two main clauses
    words: int                                                  # punctuation not counted


@dataclass(frozen=True)
class Example:
    """A sentence pair with the tree of its English side."""
    english: str
    german: str
    tree: Tree
    features: Features


def collect(tree: Tree, words: list[str]) -> int:
    """Appends the words below `tree` to `words`; returns the number of labels on the longest path."""
    depth = 0
    for child in tree.children:
        if child.__class__ is str:
            words.append(child)
        else:
            depth = max(depth, collect(child, words))
    return depth + 1


def words(tree: Tree) -> list[str]:
    """The words and marks of a tree, from left to right."""
    found: list[str] = []
    collect(tree, found)
    return found


def text(words: list[str]) -> str:
    """The words as ordinary text: no space before punctuation, no comma twice, a capital at the start."""
    line = " ".join(words).removeprefix(", ").replace(" , ,", " ,").replace(" , ,", " ,")
    line = line.replace(" , .", ".").replace(" , ?", "?").replace(" ,", ",").replace(" .", ".").replace(" ?", "?")
    return line[0].upper() + line[1:]


def number(phrase: Any) -> str:
    """The number of a noun phrase or pronoun: sg or pl."""
    return "pl" if phrase.agreement == "p" else "sg"


def example(sentence: Sentence) -> Example:
    """Both readings of one derivation, and its features."""
    tree, words, clause = sentence.tree(), [], sentence.clause
    depth = collect(tree, words)
    direct = number(clause.object) if clause.object and not clause.verb.particle else None
    features = Features(clause.group.tense, number(clause.subject), direct, depth,
                        tuple([child.label for child in tree.children]), sentence.second is not None,
                        len(words) - words.count(",") - 1)
    return Example(text(words), text(sentence.german()), tree, features)


def count_derivations() -> int:
    """How many derivations have SHORTEST to LONGEST English words, counted from the grammar."""
    return sum(count for words, count in sentence().lengths.items() if SHORTEST <= words <= LONGEST)


def derive(rng: random.Random) -> Example:
    """One random derivation of SHORTEST to LONGEST English words."""
    start = sentence()
    while True:
        found = example(start.sample(rng.random))
        if SHORTEST <= found.features.words <= LONGEST:
            return found


def distinct(seed: int) -> Iterator[Example]:
    """Endless examples, no English sentence twice; the same ones for the same seed on any machine."""
    rng, seen = random.Random(seed), set()
    while True:
        found = derive(rng)
        if found.english not in seen:
            seen.add(found.english)
            yield found


def corpus(count: int, seed: int = 1) -> list[Example]:
    """`count` examples with distinct English sentences."""
    return list(islice(distinct(seed), count))


def splits(train: int = 50_000, valid: int = 1_000, test: int = 1_000, seed: int = 1) -> dict[str, list[Example]]:
    """{"train": [...], "valid": [...], "test": [...]}, no English sentence twice in all three together.

    Test and validation are drawn first: they stay the same when `train` changes.
    """
    stream = distinct(seed)
    held_out = {name: list(islice(stream, count)) for name, count in (("test", test), ("valid", valid))}
    return {"train": list(islice(stream, train)), **held_out}


def write(prefix: str, count: int, seed: int = 1) -> None:
    """Writes `count` pairs to PREFIX.en and PREFIX.de, line by line, with repetitions (a set of all lines would need
    the memory). Both files appear when they are whole. Raises UserError where they cannot be written."""
    from checkpoint import atomic_write           # here, because it loads torch, which takes seconds

    def derivations(english, german):
        rng = random.Random(seed)
        for _ in range(count):
            pair = derive(rng)
            english.write(f"{pair.english}\n".encode())
            german.write(f"{pair.german}\n".encode())

    if not os.path.basename(prefix):
        raise UserError(f"--write {prefix!r} names no file: give a prefix such as data/toy")
    try:
        atomic_write(f"{prefix}.en", lambda english: atomic_write(
            f"{prefix}.de", lambda german: derivations(english, german)))
    except UserError as error:
        raise UserError(f"--write {error}") from error


def parser() -> Parser:
    """The arguments of `python toy.py`."""
    flags = Parser(prog="toy.py", description="Prints or writes pairs of the embedded English-German corpus.")
    flags.add_argument("--count", type=whole(1), default=5, help="number of sentence pairs")
    flags.add_argument("--seed", type=whole(0), default=1, help="the same seed gives the same pairs")
    flags.add_argument("--trees", action="store_true", help="print the English tree and the features as well")
    flags.add_argument("--write", metavar="PREFIX", 
                       help="write PREFIX.en and PREFIX.de instead of printing; lines may repeat")
    return flags


def command(args) -> None:
    """Prints distinct pairs, or writes a corpus."""
    if args.write is not None:
        if args.trees:
            raise UserError("--trees is for printing; leave it or --write out")
        return write(args.write, args.count, args.seed)
    for pair in islice(distinct(args.seed), args.count):
        print(pair.english, pair.german, *((pair.tree, pair.features) if args.trees else ()), "", sep="\n")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(command, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
