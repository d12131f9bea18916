"""A sentence pair with the tree of its English side and the features that probing tasks ask for."""
from dataclasses import dataclass

from .readings import Sentence, Tree


@dataclass(frozen=True)
class Features:
    """What SentEval's probing tasks ask about a sentence.

    In a sentence of two coordinated clauses, tense and numbers are those of the first. The perfect
    ("has seen") counts as present and the pluperfect ("had seen") as past, like their finite verbs.
    """
    tense: str                                 # of the main clause: present or past
    subject: str                               # number of the main clause's subject: sg or pl
    object: str | None                         # number of its direct object; None without one
    depth: int                                 # labels from S down to the deepest word
    top: tuple[str, ...]                       # labels directly below S
    coordination: bool                         # two main clauses
    words: int                                 # without punctuation


@dataclass(frozen=True)
class Example:
    """A sentence pair with the tree of its English side."""
    english: str
    german: str
    tree: Tree
    features: Features


def words(tree: Tree) -> list[str]:
    """The words and punctuation marks of a tree, from left to right."""
    collected = []
    collect_words(tree, collected)
    return collected


def collect_words(tree: Tree, collected: list[str]) -> int:
    """Appends the words below a tree; returns the number of labels down to the deepest of them."""
    depth = 0
    for child in tree.children:
        if child.__class__ is str:             # isinstance takes three times as long
            collected.append(child)
        else:
            depth = max(depth, collect_words(child, collected))
    return depth + 1


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


def number(phrase) -> str:
    """The number of a noun phrase or pronoun: sg or pl."""
    return "pl" if phrase.agreement == "p" else "sg"


def make_example(sentence: Sentence) -> Example:
    """Both readings of one derivation, and its features."""
    clause = sentence.clause
    has_object = clause.object and not clause.verb.particle
    tree = sentence.tree()
    english = []
    depth = collect_words(tree, english)
    features = Features(
        tense=clause.group.tense,
        subject=number(clause.subject),
        object=number(clause.object) if has_object else None,
        depth=depth,
        top=tuple([child.label for child in tree.children]),
        coordination=sentence.second is not None,
        words=len(english) - english.count(",") - 1,
    )
    return Example(join_words(english), join_words(sentence.german()), tree, features)
