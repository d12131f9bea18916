"""Parts of a grammar that can be sampled and counted: `Leaf`, `Join` and `Choice`, built bottom up.

Every part knows how many derivations it has for each number of English words (`lengths`: {words: derivations}), from
the same alternatives that `sample(uniform)` draws from. `uniform` draws a float from [0, 1), as random.Random.random.
"""
from bisect import bisect
from itertools import accumulate
from typing import Any, Callable


class Leaf:
    """One value, and how many English words it makes."""

    def __init__(self, value: Any, words: int = 0):
        self.value, self.lengths = value, {words: 1}

    def sample(self, uniform: Callable[[], float]) -> Any:
        """The value."""
        return self.value


class Join:
    """`make(...)` of one value of every part, plus `words` English words. Counts multiply, lengths add."""

    def __init__(self, make: Callable, *parts, words: int = 0):
        self.make, self.parts, self.words, self.lengths = make, parts, words, {words: 1}
        for part in parts:
            lengths: dict[int, int] = {}
            for one, count in self.lengths.items():
                for other, times in part.lengths.items():
                    lengths[one + other] = lengths.get(one + other, 0) + count * times
            self.lengths = lengths

    def sample(self, uniform: Callable[[], float]) -> Any:
        """`make` of a sample of every part, drawn from left to right."""
        return self.make(*[part.sample(uniform) for part in self.parts])


class Choice:
    """One of the alternatives `(weight, label, part)`. Counts add. An alternative that is None or empty is left out."""

    def __init__(self, name: str, *alternatives):
        alternatives = [alternative for alternative in alternatives if alternative and alternative[2].lengths]
        weights, labels, self.parts = zip(*alternatives) if alternatives else ((), (), ())
        self.name, self.labels, self.bounds = name, labels, list(accumulate(weights))
        self.total = sum(weights)
        self.lengths: dict[int, int] = {}
        for part in self.parts:
            for words, count in part.lengths.items():
                self.lengths[words] = self.lengths.get(words, 0) + count

    def sample(self, uniform: Callable[[], float]) -> Any:
        """A sample of one alternative, drawn by weight."""
        return self.parts[bisect(self.bounds, uniform() * self.total)].sample(uniform)
