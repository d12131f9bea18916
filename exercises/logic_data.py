"""A function of tasks/logic_data.py."""
from tasks.logic_data import EVERY, truth_table


def relation(left: str, right: str) -> str:
    """The relation of formula `left` to formula `right`, one of `= < > ^ | v #` (Bowman et al.
    2015; Li 2021 §4.3.1).

    `=` equivalent, `<` left entails right, `>` right entails left, `^` contradictory and
    exhaustive, `|` contradictory, `v` exhaustive, `#` independent. A tautology or a contradiction
    on either side gives `#`, as in Bowman's data. Raises UserError (a ValueError) for a text that
    is no formula.
    """
    # Li 2021 §4.3.1: seven relations, 2 points
    raise NotImplementedError("Li 2021 §4.3.1: seven relations")
