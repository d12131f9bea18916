"""Propositional formulas and the seven relations between them: the data of logical inference
(Li 2021 §4.3).

The task, the relations and the file format are those of Bowman, Manning & Potts 2015,
"Tree-structured composition in neural networks without tree-structured architectures". A formula
over the letters a..f is written with separate brackets for every operator, as in
`( not ( a ( and b ) ) )`; a pair is one line `relation TAB left TAB right`. A formula's meaning is
its truth table, one 64-bit mask over the 2^6 assignments of the letters, so a relation is exact and
costs four bitwise operations.
"""
import random
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nmt.corpus import Lines
from transformer import PAD

LETTERS = "abcdef"
END = "the end"                                        # of a formula
RELATIONS = ("=", "<", ">", "^", "|", "v", "#")        # the classes, in the order of their ids
BINS = tuple(range(1, 13))          # operators of a pair's longer formula; 12 means 12 or more
IDS = {token: i for i, token in enumerate(("(", ")", "not", "and", "or", *LETTERS), 1)}
EVERY = 2 ** 64 - 1                                    # the truth table of a tautology
# by the cells of the 2x2 table of joint values that are not empty, see `pattern`; all others: #
PATTERNS = {0b1001: "=", 0b1101: "<", 0b1011: ">", 0b0110: "^", 0b1110: "|", 0b0111: "v"}


def letter_table(k: int) -> int:
    """The truth table of letter k of a..f: it holds in the rows that have bit k."""
    return sum(1 << row for row in range(64) if row >> k & 1)


LETTER_TABLES = {letter: letter_table(k) for k, letter in enumerate(LETTERS)}


class Pair(NamedTuple):
    """Two formulas and the relation of the left one to the right one."""
    relation: str
    left: str
    right: str


# ---- Formulas and relations

def tokenize(formula: str) -> list[str]:
    """The tokens of a formula: brackets, operators, letters. Spaces around brackets may be left
    out."""
    return formula.replace("(", " ( ").replace(")", " ) ").split()


def truth_table(formula: str) -> int:
    """The truth table of a formula as a 64-bit mask: bit r is its value when letter k of a..f has
    bit k of r.

    Grammar:
    `formula = letter | ( not formula ) | ( formula ( and formula ) ) | ( formula ( or formula ) )`.
    Raises ValueError for another text.
    """
    return read_formula(formula)[0]


def infix(formula: str) -> list[str]:
    """The tokens of a formula in Python's notation, without the brackets of each operator: `not a`,
    `( a and b )`."""
    return read_formula(formula)[1]


def read_formula(formula: str) -> tuple[int, list[str]]:
    """The truth table of a formula, and its tokens in the notation of `infix`."""
    tokens = [END, *reversed(tokenize(formula))]
    table, short = take_formula(tokens)
    take(tokens, END)
    return table, short


def take_formula(tokens: list[str]) -> tuple[int, list[str]]:
    """As `read_formula`, for the formula at the end of a list of tokens in reverse order, which it
    removes."""
    token = take(tokens, "(", *LETTERS)
    if token != "(":
        return LETTER_TABLES[token], [token]
    if tokens[-1] == "not":
        tokens.pop()
        table, short = take_formula(tokens)
        take(tokens, ")")
        return EVERY ^ table, ["not", *short]
    left, left_short = take_formula(tokens)
    take(tokens, "(")
    operator = take(tokens, "and", "or")
    right, right_short = take_formula(tokens)
    take(tokens, ")")
    take(tokens, ")")
    short = ["(", *left_short, operator, *right_short, ")"]
    return combine_tables(operator, left, right), short


def take(tokens: list[str], *wanted: str) -> str:
    """Removes and returns the last token, which must be one of `wanted`."""
    token = tokens.pop()
    if token not in wanted:
        raise ValueError(f"not a formula: {token!r} in the place of {' or '.join(wanted)}")
    return token


def combine_tables(operator: str, left: int, right: int) -> int:
    """The truth table of `left operator right`."""
    return left & right if operator == "and" else left | right


def pattern(left, right, every=EVERY):
    """The cells of the 2x2 table of joint values that are not empty, as a sum of 1 (both), 2 (left
    only), 4 (right only) and 8 (neither).

    left, right: truth tables or tensors of them; every: the table of a tautology.
    """
    both = left & right != 0
    left_only = left & ~right != 0
    right_only = right & ~left != 0
    neither = left | right != every
    return 1 * both + 2 * left_only + 4 * right_only + 8 * neither


def table_relation(left: int, right: int) -> str:
    """The relation of two truth tables."""
    return PATTERNS.get(pattern(left, right), "#")


def relation(left: str, right: str) -> str:
    """The relation of formula `left` to formula `right`, one of `= < > ^ | v #` (Bowman et al.
    2015; Li 2021 §4.3.1).

    `=` equivalent, `<` left entails right, `>` right entails left, `^` contradictory and
    exhaustive, `|` contradictory, `v` exhaustive, `#` independent. A tautology or a contradiction
    on either side gives `#`; Bowman's data has none. Raises ValueError for a text that is not a
    formula.
    """
    return table_relation(truth_table(left), truth_table(right))


# ---- The generator
# Only `random.random()` is drawn from: its sequence for a seed is promised to stay, those of
# `choice` and `sample` are not. So a seed gives the same data on every Python.


def random_formula(rng: random.Random, letters, budget: int = 12) -> tuple[str, int, int]:
    """A random formula over `letters`: (text, truth table, operators), with the probabilities of
    Bowman et al.

    A node is a letter with probability 5/9, and always when the budget is under 2; otherwise `and`
    or `or`, equally likely, of two formulas of half the budget. Every node, a letter too, is
    negated with probability 1/3.
    """
    kind = int(rng.random() * 9)                       # 0, 1: and; 2, 3: or; 4..8: a letter
    if kind >= 4 or budget < 2:
        text = letters[int(rng.random() * len(letters))]
        table = LETTER_TABLES[text]
        count = 0
    else:
        operator = "and" if kind < 2 else "or"
        left, left_table, left_count = random_formula(rng, letters, budget // 2)
        right, right_table, right_count = random_formula(rng, letters, budget // 2)
        text = f"( {left} ( {operator} {right} ) )"
        table = combine_tables(operator, left_table, right_table)
        count = left_count + right_count + 1
    if rng.random() * 3 < 1:
        return f"( not {text} )", EVERY ^ table, count + 1
    return text, table, count


def generate(raw: int, seed: int = 0) -> dict[int, list[Pair]]:
    """Pairs by bin 0..12, as Bowman et al. draw them: {operators of the longer formula: [Pair,
    ...]}; 12 is 12 or more.

    Draws `raw` pairs without a tautology or contradiction; the letters of a pair come from 4 of
    a..f. Then drops duplicates and shuffles the rest, because frequent pairs are drawn early.
    """
    rng = random.Random(seed)
    fours = list(combinations(LETTERS, 4))
    bins = {size: {} for size in (0, *BINS)}           # dicts as ordered sets
    drawn = 0
    while drawn < raw:
        letters = fours[int(rng.random() * len(fours))]
        left, left_table, left_count = random_formula(rng, letters)
        right, right_table, right_count = random_formula(rng, letters)
        if left_table in (0, EVERY) or right_table in (0, EVERY):
            continue
        drawn += 1
        pair = Pair(table_relation(left_table, right_table), left, right)
        bins[min(max(left_count, right_count), BINS[-1])][pair] = None
    return {size: sorted(pairs, key=lambda pair: rng.random()) for size, pairs in bins.items()}


def split(bins: dict[int, list[Pair]]) -> dict[str, dict[int, list[Pair]]]:
    """Cuts each bin in its order, 80 : 10 : 10 (Li 2021 §4.3.2). Returns {part: {bin: [Pair, ...]}}
    with the parts "train", "valid" and "test"."""
    parts = {"train": {}, "valid": {}, "test": {}}
    for size, pairs in bins.items():
        train_end = int(0.8 * len(pairs))
        valid_end = int(0.9 * len(pairs))
        parts["train"][size] = pairs[:train_end]
        parts["valid"][size] = pairs[train_end:valid_end]
        parts["test"][size] = pairs[valid_end:]
    return parts


# ---- Bowman's files

def read_files(folder) -> dict[str, dict[int, list[Pair]]]:
    """Reads `train1..12` and `test1..12` from a folder; the form of `split`.

    The last ninth of each training bin is the validation part, so that train and valid are 8 to 1
    as in Li 2021 §4.3.2. Labels are taken as they are written.
    """
    parts = {"train": {}, "valid": {}, "test": {}}
    for size in BINS:
        pairs = read_pairs(Path(folder) / f"train{size}")
        cut = len(pairs) - len(pairs) // 9
        parts["train"][size] = pairs[:cut]
        parts["valid"][size] = pairs[cut:]
        parts["test"][size] = read_pairs(Path(folder) / f"test{size}")
    return parts


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file of lines `relation TAB left TAB right`."""
    return [Pair(*line.split("\t")) for line in Lines(path)]


# ---- Pairs as tensors

class Formulas(NamedTuple):
    """The formulas of B pairs, every distinct one once."""
    ids: Tensor                     # [k, L] token ids, PAD after a formula's end
    rows: Tensor                    # [2B] the rows of the left and right formulas in turn


class EncodedFormulas(NamedTuple):
    """Encoded pairs of formulas. Rows and lengths, which select, are on the CPU, the rest on the
    device."""
    ids: Tensor                     # [m, L] token ids of the m distinct formulas, uint8
    rows: Tensor                    # [n, 2] of the left and the right formula, on the CPU
    lengths: Tensor                 # [n] tokens of the longer formula, on the CPU
    labels: Tensor                  # [n] index into RELATIONS
    tables: Tensor | None = None    # [m] truth tables

    def batch(self, index: Tensor) -> tuple[Formulas, Tensor]:
        """The pairs `index` [B]: their k distinct formulas, cut to the longest of them, and labels
        [B]; where the truth tables are known [k, k], of every formula to every one."""
        device = self.labels.device
        distinct, rows = self.rows[index].unique(return_inverse=True)        # [k], [B, 2]
        distinct = distinct.to(device, non_blocking=True)
        width = int(self.lengths[index].max())
        rows = rows.flatten().to(device, non_blocking=True)                  # [2B]
        formulas = Formulas(self.ids[distinct, :width].long(), rows)
        if self.tables is None:
            return formulas, self.labels[index.to(device, non_blocking=True)]
        tables = self.tables[distinct]                                       # [k]
        return formulas, table_labels(tables[:, None], tables)


def renamed(pair: Pair) -> Pair:
    """A pair with its letters named a, b, c, ... in order of appearance: no relation depends on
    their names."""
    left = tokenize(pair.left)
    right = tokenize(pair.right)
    letters = dict.fromkeys(token for token in left + right if token in LETTER_TABLES)
    names = dict(zip(letters, LETTERS))
    new_left = " ".join(names.get(token, token) for token in left)
    new_right = " ".join(names.get(token, token) for token in right)
    return Pair(pair.relation, new_left, new_right)


def encode_formulas(pairs, device="cpu", notation: str = "brackets",
                    tables: bool = False) -> EncodedFormulas:
    """Pairs as tensors, in the notation of Bowman's files ("brackets") or in a shorter, equivalent
    one ("compact": `infix` of `renamed`). tables: with their truth tables."""
    spell = tokenize
    if notation == "compact":
        spell = infix
        pairs = [renamed(pair) for pair in pairs]
    texts = [text for pair in pairs for text in (pair.left, pair.right)]     # 2n
    ids = {}                                             # text -> a byte per token
    for text in set(texts):
        ids[text] = bytes(IDS[token] for token in spell(text))
    distinct = sorted(set(ids.values()))                 # m
    width = max(map(len, distinct))
    padded = b"".join(formula.ljust(width, bytes([PAD])) for formula in distinct)
    matrix = np.frombuffer(padded, np.uint8).reshape(-1, width).copy()       # [m, L]
    row_of = {formula: i for i, formula in enumerate(distinct)}
    rows = torch.tensor([row_of[ids[text]] for text in texts]).view(-1, 2)
    lengths = torch.tensor([len(formula) for formula in distinct])[rows].amax(1)
    labels = torch.tensor([RELATIONS.index(pair.relation) for pair in pairs])
    known = None
    if tables:
        text_of = {formula: text for text, formula in ids.items()}
        unsigned = np.array([truth_table(text_of[formula]) for formula in distinct], np.uint64)
        known = torch.from_numpy(unsigned.view(np.int64)).to(device)
    return EncodedFormulas(torch.from_numpy(matrix).to(device), rows, lengths, labels.to(device),
                           known)


def table_labels(left: Tensor, right: Tensor) -> Tensor:
    """`table_relation` for tensors: truth tables [...] as 64-bit masks -> index into RELATIONS
    [...]."""
    names = [PATTERNS.get(cells, "#") for cells in range(16)]
    labels = torch.tensor([RELATIONS.index(name) for name in names], device=left.device)
    return labels[pattern(left, right, every=-1)]                            # -1: every bit is set
