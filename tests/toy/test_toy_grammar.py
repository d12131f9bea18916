"""toy/grammar.py: the German follows from the English."""
import random

import toy
from toy.parts import Choice

STRUCTURE = {"sentence", "tense", "adjunct", "frame", "group", "negated", "be", "modifier",
             "argument", "coordination"}


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
