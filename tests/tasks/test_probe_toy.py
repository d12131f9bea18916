"""probe_toy.py: every label recomputed from the tree, balance, disjoint parts, and the accuracy of
a logistic regression on only the words or only the length."""
import itertools
import zlib
from collections import Counter

import numpy as np
import pytest

from tasks import probe_data, probe_model
from tasks.probe_toy import TOY_TASKS, toy_task
from toy import Tree
from toy.lexicon import VERBS

COUNTS = {"train": 480, "valid": 60, "test": 240}
WC_COUNTS = {"train": 155, "valid": 31, "test": 31}
DEEP = {"train": 200, "valid": 30, "test": 100}
LABELS = {name: task.labels for name, task in TOY_TASKS.items()}
MARKS = (",", ".", "?")
HIDDEN = ("BShif", "CoIn", "SOMO", "ToCo", "TrDep")             # tasks whose words say nothing


@pytest.fixture(scope="module")
def tasks():
    """Every task, small."""
    counts = {"WC": WC_COUNTS, "TrDep": DEEP}
    return {task: toy_task(task, counts.get(task, COUNTS), seed=3) for task in probe_data.TASKS}


# ---- The tree, read anew

def leaves(node) -> list:
    """(label, word) from left to right."""
    pairs = []
    for part in node.children:
        pairs += leaves(part) if isinstance(part, Tree) else [(node.label, part)]
    return pairs


def tokens_of(node, marks=True) -> tuple:
    return tuple(word for label, word in leaves(node) if marks or label not in MARKS)


def levels(node) -> int:
    return 1 + max((levels(part) for part in node.children if isinstance(part, Tree)), default=0)


def child(node, *labels):
    return next((part for part in node.children if part.label in labels), None)


def main_clause(node) -> Tree:
    """The S itself, or the first of two coordinated."""
    return child(node, "S") or node


def head(phrase) -> tuple:
    """(label, word) of a noun phrase's noun, pronoun or name; None for two joined by "and"."""
    if child(phrase, "NP"):
        return None if child(phrase, "CC") else head(child(phrase, "NP"))
    return leaves(phrase)[-1]


def relabel_length(item, node):
    """The range that the number of words falls into."""
    length = len(tokens_of(node, marks=False))
    for name in LABELS["SeLen"]:
        low, high = map(int, name.split("-"))
        if low <= length <= high:
            return name


def relabel_tense(item, node):
    """The tense of the finite verb."""
    clause = main_clause(node)
    labels = ("AUX", "VBD", "VBZ", "VBP")
    verb = child(clause, *labels) or child(child(clause, "VP"), *labels)
    past = {form.past for frame in VERBS.values() for form in frame}
    past |= {"had", "did", "was", "were", "could"}
    return "PAST" if verb.children[0] in past else "PRES"


def relabel_object(item, node):
    """The last noun phrase beside the full verb."""
    phrase = main_clause(node)
    while child(phrase, "VP"):
        phrase = child(phrase, "VP")
    return head([part for part in phrase.children if part.label == "NP"][-1])[0]


def relabel_shift(item, node):
    intact = tokens_of(node)
    if intact == item.tokens:
        return "O"
    places = [i for i, (one, other) in enumerate(zip(intact, item.tokens)) if one != other]
    assert len(places) == 2 and places[1] == places[0] + 1 and places[0] > 0
    assert [item.tokens[i] for i in places] == [intact[i] for i in reversed(places)]
    return "I"


def relabel_inversion(item, node):
    parts = [tokens_of(part) for part in node.children]
    if sum(parts, ()) == item.tokens:
        return "O"
    assert sum((parts[3], parts[1], parts[2], parts[0], parts[4]), ()) == item.tokens
    return "I"


def relabel_odd(item, node):
    """C where another word of the same kind, of the open classes, is in one place."""
    intact = leaves(node)
    changed = [label for (label, word), other in zip(intact, item.tokens)
               if word != other and word not in ("a", "an")]
    assert len(intact) == len(item.tokens) and len(changed) <= 1
    assert all(label[:2] in ("NN", "VB") for label in changed)
    return "C" if changed else "O"


RELABEL = {
    "SeLen": relabel_length,
    "WC": lambda item, node: " ".join(word for _, word in leaves(node) if word in LABELS["WC"]),
    "TrDep": lambda item, node: str(levels(node)),
    "ToCo": lambda item, node: "_".join(x.label for x in node.children if x.label not in MARKS),
    "BShif": relabel_shift,
    "Tense": relabel_tense,
    "SubNm": lambda item, node: head(child(main_clause(node), "NP"))[0],
    "ObjNm": relabel_object,
    "SOMO": relabel_odd,
    "CoIn": relabel_inversion,
}


@pytest.mark.parametrize("task", probe_data.TASKS)
def test_labels_are_those_of_the_tree_in_equal_numbers(tasks, task):
    """No sentence is there twice, nor both changed and unchanged."""
    seen = set()
    trees = set()
    changed = task in ("BShif", "CoIn", "SOMO")
    for items in tasks[task].values():
        for item in items:
            assert RELABEL[task](item, item.tree) == item.label, (item.tokens, str(item.tree))
            if not changed:
                assert item.tokens == tokens_of(item.tree, marks=task not in ("ToCo", "TrDep"))
        counts = Counter((item.label, item.control) for item in items)
        assert set(counts) == set(itertools.product(LABELS[task], TOY_TASKS[task].controls))
        assert len(set(counts.values())) == 1
        sentences = {tuple(sorted(item.tokens)) for item in items}
        assert len(sentences) == len(items) and not sentences & seen
        seen |= sentences
        trees |= {str(item.tree) for item in items}
    assert not changed or len(trees) == len(seen)


@pytest.mark.parametrize("task", HIDDEN)
def test_neither_words_nor_length_tell_the_class(tasks, task):
    """A logistic regression on the words, and one on the length, stay within 4 standard
    deviations of chance."""
    parts = tasks[task]
    chance = 1 / len(LABELS[task])
    n = len(parts["test"])
    limit = chance + 4 * (chance * (1 - chance) / n) ** 0.5
    lengths = {}
    for part, items in parts.items():
        rows = [[len(item.tokens), len(item.tokens) ** 2] for item in items]
        lengths[part] = np.array(rows) / 10
    assert probe_model.bag_of_words(parts) < limit
    assert probe_model.logistic_regression(lengths, parts) < limit
    assert probe_model.majority(parts) == chance


def test_same_seed_same_items_everywhere(tasks):
    """The checksum is that of Python 3.11; `random.random` gives every Python the same numbers."""
    lines = []
    for task, parts in tasks.items():
        for part, items in parts.items():
            for item in items:
                lines.append(f"{task} {part} {item.label} {' '.join(item.tokens)} {item.tree}")
    assert zlib.crc32("\n".join(lines).encode()) == 2036665668
