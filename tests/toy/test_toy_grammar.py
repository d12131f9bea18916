"""toy/grammar.py, toy/parts.py: counts are exact, every rule is used, the German is a function of
the English."""
import random
from bisect import bisect
from collections import Counter
from itertools import product

import pytest

import toy
from toy import grammar


def derivations(part):
    """Every value of a part of the grammar."""
    if isinstance(part, grammar.Leaf):
        yield part.value
    elif isinstance(part, grammar.Choice):
        for one in part.parts:
            yield from derivations(one)
    else:
        for values in product(*map(derivations, part.parts.values())):
            yield part.make(**part.constants, **dict(zip(part.parts, values)))


@pytest.mark.parametrize("part", [
    grammar.prepositional("goal"), grammar.argument("V", role="subject", plain=True),
    grammar.time("past"), grammar.groups("past"), grammar.copula("H", True)])
def test_counts_are_exact(part):
    """The count agrees with writing all derivations out, and they are distinct."""
    found = list(derivations(part))
    assert len(found) == part.count
    if hasattr(found[0], "tree"):
        assert len({value.tree() for value in found}) == len(found)


def test_the_grammar_has_many_derivations():
    assert grammar.sentence().count > 10 ** 9


def productions(part, seen):
    """Every (Choice, alternative) below a part, by name."""
    if id(part) not in seen:
        seen.add(id(part))
        if isinstance(part, grammar.Leaf):
            return
        if isinstance(part, grammar.Choice):
            for label in part.labels:
                yield part.name, label
        for one in part.parts if isinstance(part, grammar.Choice) else part.parts.values():
            yield from productions(one, seen)


CONSTRUCTIONS = {                              # names of Choices
    "sentence", "tense", "negated", "be", "frame", "group", "argument", "modifier", "adjunct",
    "determiner", "goal", "to", "place", "coordination", "conjunction", "adjectives"}


def test_every_production_is_reached(monkeypatch):
    """20,000 sentences reach every alternative of every Choice (but the many pairs of adjectives),
    and each construction is in at least 2 % of them."""
    drawn = set()

    def recorded(self, uniform):
        if self is grammar.sentence():         # what was drawn before was too short or too long
            drawn.clear()
        index = bisect(self.bounds, uniform() * self.bounds[-1])
        drawn.add((self.name, self.labels[index]))
        return self.parts[index].sample(uniform)
    monkeypatch.setattr(grammar.Choice, "sample", recorded)
    rng = random.Random(6)
    times = Counter()
    for _ in range(20_000):
        toy.derive(rng)
        times.update(drawn)
    every = {one for one in productions(grammar.sentence(), set()) if one[0] != "pair"}
    assert every == {one for one in times if one[0] != "pair"}
    rare = {one: count for one, count in times.items() if one[0] in CONSTRUCTIONS and count < 400}
    assert not rare


def test_one_translation(monkeypatch):
    """No English sentence has two translations or trees, where a turn fixes all words and leaves
    only the structure to chance, so that many derivations meet in one sentence."""
    structure = {"sentence", "tense", "adjunct", "frame", "group", "negated", "be", "modifier",
                 "argument", "coordination"}
    draw = grammar.Choice.sample
    known = {}
    rng = random.Random(3)
    turn = 0

    def narrow(self, uniform):
        if self.name in structure:
            return draw(self, uniform)
        return self.parts[turn % len(self.parts)].sample(uniform)
    monkeypatch.setattr(grammar.Choice, "sample", narrow)
    for turn in range(20):
        for _ in range(1_000):
            one = toy.derive(rng)
            assert known.setdefault(one.english, (one.german, one.tree)) == (one.german, one.tree)
    assert len(known) < 19_000                 # so there was something to compare
