"""toy/readings.py and lexicon.py: German and trees checked by hand, by construction."""
from pathlib import Path

import pytest

from toy.lexicon import ADJECTIVES, CASES, NOUNS
from toy.readings import NounPhrase

HAND_CHECKED = Path(__file__).with_name("hand_checked.txt").read_text(encoding="utf-8").splitlines()
TRANSLATIONS = [line.split(" | ") for line in HAND_CHECKED if " | " in line]
TREES = [line for line in HAND_CHECKED if line.startswith("(S ")]


@pytest.mark.parametrize("english, german", TRANSLATIONS)
def test_hand_checked_german(english, german, pairs):
    assert [pair.german for pair in pairs if pair.english == english] == [german]


def test_hand_checked_trees(pairs):
    trees = {str(pair.tree) for pair in pairs}
    assert [tree for tree in TREES if tree not in trees] == []


ENDINGS = {
    "the": """
der alte Hund, die alte Kuh, das alte Pferd, die alten Hunde
den alten Hund, die alte Kuh, das alte Pferd, die alten Hunde
dem alten Hund, der alten Kuh, dem alten Pferd, den alten Hunden""",
    "no": """
kein alter Hund, keine alte Kuh, kein altes Pferd, keine alten Hunde
keinen alten Hund, keine alte Kuh, kein altes Pferd, keine alten Hunde
keinem alten Hund, keiner alten Kuh, keinem alten Pferd, keinen alten Hunden""",
}


@pytest.mark.parametrize("determiner", ENDINGS)
def test_every_ending(determiner):
    """Rows: nominative, accusative, dative. Columns: three genders and the plural."""
    animals = {noun.english: noun for noun in NOUNS["A"]}
    old = next(word for word in ADJECTIVES["A"] if word.english == "old")
    phrases = [NounPhrase(determiner, (old,), animals[name], plural=False)
               for name in ("dog", "cow", "horse")]
    phrases.append(NounPhrase(determiner, (old,), animals["dog"], plural=True))
    for case, line in zip(CASES, ENDINGS[determiner].strip().splitlines()):
        assert [" ".join(phrase.german(case)) for phrase in phrases] == line.split(", ")
