"""The parts of a grammar, built bottom up: `Leaf`, `Join` and `Choice`.

`part.sample(uniform)` draws one of its derivations, where `uniform()` returns a number in [0, 1),
such as random.Random.random. `part.possible` is False where it has none.
"""
from bisect import bisect
from itertools import accumulate
from typing import Any, Callable


class Leaf:
    """One value."""
    possible = True

    def __init__(self, value: Any):
        self.value = value

    def sample(self, uniform: Callable[[], float]) -> Any:
        """The value."""
        return self.value


class Join:
    """`make(name=value, ...)`. A field is a part, of which a value is drawn, or a constant."""

    def __init__(self, make: Callable, **fields):
        self.make = make
        self.constants = {}
        self.parts = {}
        for name, field in fields.items():
            if isinstance(field, (Leaf, Join, Choice)):
                self.parts[name] = field
            else:
                self.constants[name] = field
        self.possible = all(part.possible for part in self.parts.values())

    def sample(self, uniform: Callable[[], float]) -> Any:
        """`make` of a sample of every part, drawn from left to right."""
        values = {name: part.sample(uniform) for name, part in self.parts.items()}
        return self.make(**self.constants, **values)


class Choice:
    """One of the alternatives (weight, label, part). A part without derivations is left out.

    Name and labels are for the reader.
    """

    def __init__(self, name: str, alternatives: list[tuple[int, str, Any]]):
        possible = [alternative for alternative in alternatives if alternative[2].possible]
        self.name = name
        self.parts = [part for weight, label, part in possible]
        self.bounds = list(accumulate(weight for weight, label, part in possible))
        self.possible = bool(possible)

    def sample(self, uniform: Callable[[], float]) -> Any:
        """A sample of one alternative, drawn by weight."""
        return self.parts[bisect(self.bounds, uniform() * self.bounds[-1])].sample(uniform)
