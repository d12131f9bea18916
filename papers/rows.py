"""What a table of results is made of."""
from typing import NamedTuple


class Row(NamedTuple):
    """A row of a table.

    size: "base" is the scale's size; "big" twice its width, heads and FFN, as big is of base;
    "wide" the same with base's heads (Li 2021 Table 6).
    """
    label: str
    flags: str | None = ""
    published: tuple = ()       # by column, as printed; None where nothing is
    size: str = "base"


class Table(NamedTuple):
    """A table: where it stands, what it was measured on, its published columns, rows and footnotes.

    kind: "mt" (train_mt.py: speed and BLEU), "scores" (exp(D) by kind), "layers" (exp(D) of the
    positions by layer), "probe", "logic" (those scripts' own tables), "figure" (analyze.py draws).
    Footnotes are numbered from 1; a published cell refers to them as in "47.43 (+0.11) [1]".
    """
    source: str
    title: str
    data: str
    columns: tuple
    rows: tuple
    notes: tuple = ()
    kind: str = "mt"
    chinese: str = ""           # the paper's flags for Chinese source text alone
    big: str = "--arch big"     # what "big" is where the scale is exactly --arch base
    part: str = ""              # of a figure: what analyze.py draws
