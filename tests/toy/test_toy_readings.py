"""toy/readings.py and lexicon.py: German and trees checked by hand."""
from pathlib import Path

import pytest

HAND_CHECKED = Path(__file__).with_name("hand_checked.txt").read_text(encoding="utf-8").splitlines()
TRANSLATIONS = [line.split(" | ") for line in HAND_CHECKED if " | " in line]
TREES = [line for line in HAND_CHECKED if line.startswith("(S ")]


@pytest.mark.parametrize("english, german", TRANSLATIONS)
def test_hand_checked_german(english, german, pairs):
    assert [pair.german for pair in pairs if pair.english == english] == [german]


def test_hand_checked_trees(pairs):
    trees = {str(pair.tree) for pair in pairs}
    assert [tree for tree in TREES if tree not in trees] == []
