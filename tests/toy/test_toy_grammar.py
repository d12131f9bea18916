"""toy/grammar.py: every rule is used, the German follows from the English."""
import random
from bisect import bisect

import toy
from toy import grammar
from toy.parts import Choice, Leaf


def alternatives(part, seen: set):
    """(name of a Choice, label) of every alternative within a part."""
    if id(part) in seen or isinstance(part, Leaf):
        return
    seen.add(id(part))
    children = part.parts
    if isinstance(part, Choice):
        yield from ((part.name, label) for label in part.labels)
    else:
        children = part.parts.values()
    for child in children:
        yield from alternatives(child, seen)


def test_every_alternative_is_drawn(monkeypatch):
    """20,000 sentences have every alternative of every Choice, but for rare pairs of adjectives."""
    drawn = set()

    def sample(self, uniform):
        index = bisect(self.bounds, uniform() * self.bounds[-1])
        drawn.add((self.name, self.labels[index]))
        return self.parts[index].sample(uniform)

    monkeypatch.setattr(Choice, "sample", sample)
    rng = random.Random(6)
    for _ in range(20_000):
        grammar.sentence().sample(rng.random)
    missing = set(alternatives(grammar.sentence(), set())) - drawn
    assert not [name for name, label in missing if name != "pair"]


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
