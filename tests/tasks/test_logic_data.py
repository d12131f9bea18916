"""tasks/logic_data.py: relations against their definitions and against Bowman et al.'s labels, the
generator, their files, pairs as tensors."""
import random
import zlib

import pytest
import torch
from outside import SHARED

from tasks.logic_data import (
    BINS,
    EVERY,
    IDS,
    LETTERS,
    RELATIONS,
    Pair,
    encode_formulas,
    generate,
    infix,
    random_formula,
    read_files,
    relation,
    renamed,
    split,
    tokenize,
    truth_table,
)

FILES = SHARED / "data" / "propositional_logic"


def formulas(count, seed=1, letters=LETTERS):
    """Random formulas, long ones among them."""
    rng = random.Random(seed)
    return [random_formula(rng, letters)[0] for _ in range(count)]


def value(formula, row):
    """The formula's value in one row of its truth table, by Python's own `and`, `or`, `not`."""
    python = formula.replace("( and", "and (").replace("( or", "or (")
    return eval(python, {letter: bool(row >> place & 1) for place, letter in enumerate(LETTERS)})


# ---- Formulas and relations

def test_truth_table_is_the_value_in_all_64_rows():
    """Spaces around brackets may be left out, as in the sample of Li 2021 §4.3.1."""
    for formula in (*formulas(60), "( not ( ( a ( and a ) ) ( or ( not e ) ) ) )"):
        table = sum(1 << row for row in range(64) if value(formula, row))
        short = formula.replace("( ", "(").replace(" )", ")").replace(" (", "(")
        assert truth_table(formula) == truth_table(short) == table


def test_relation_is_the_set_of_joint_values():
    """The definition of every relation is written out over the 64 rows."""
    relations = {"00 11": "=", "00 01 11": "<", "00 10 11": ">", "01 10": "^", "00 01 10": "|",
                 "01 10 11": "v"}
    seen_relations = set()
    constants = ["( a ( or ( not a ) ) )", "( a ( and ( not a ) ) )"]
    for left, right in zip(formulas(120, 2, "abc") + constants, formulas(121, 3, "abc") + ["a"]):
        joint = {f"{value(left, row):d}{value(right, row):d}" for row in range(64)}
        wanted = relations.get(" ".join(sorted(joint)), "#")
        assert relation(left, right) == wanted
        seen_relations.add(wanted)
    assert seen_relations == set(RELATIONS)


@pytest.mark.parametrize("text", ["", "( not a", "( a ( xor b ) )", "a b"])
def test_another_text_is_no_formula(text):
    with pytest.raises(ValueError, match="not a formula"):
        relation("a", text)


@pytest.mark.skipif(not FILES.is_dir(), reason="Bowman et al.'s files are not at hand")
def test_relation_agrees_with_the_labels_of_bowman():
    lines = []
    for path in sorted(FILES.iterdir()):
        lines += [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    assert len(lines) == 249_069
    assert not [line for line in lines[::5] if relation(*line[1:]) != line[0]]


# ---- The generator, and files

def test_generated_pairs_are_what_they_say():
    bins = generate(raw=3000, seed=3)
    assert sorted(bins) == [0, *BINS]
    for size, pairs in bins.items():
        assert len(set(pairs)) == len(pairs)
        for pair in pairs:
            assert pair.relation == relation(pair.left, pair.right)
            operators = [sum(map(text.count, ("not", "and", "or"))) for text in pair[1:]]
            assert min(12, max(operators)) == size
            assert len(set(tokenize(pair.left + pair.right)) & set(LETTERS)) <= 4
            assert not {truth_table(pair.left), truth_table(pair.right)} & {0, EVERY}


def test_same_seed_same_data_everywhere():
    """The checksum is that of Python 3.11; `random.random` gives every Python the same numbers."""
    pairs = [pair for bin in generate(raw=2000, seed=0).values() for pair in bin]
    text = "\n".join(map("\t".join, pairs))
    assert zlib.crc32(text.encode()) == 3801699188
    assert generate(raw=200, seed=1) != generate(raw=200, seed=2)


def test_splits_are_disjoint_and_complete():
    bins = generate(raw=4000, seed=5)
    parts = split(bins)
    for size, pairs in bins.items():
        train, valid, test = (parts[name][size] for name in ("train", "valid", "test"))
        assert train + valid + test == pairs
        assert len(train) == int(0.8 * len(pairs)) and abs(len(valid) - len(test)) <= 1


def test_the_last_ninth_of_a_training_file_is_for_validation(tmp_path):
    for size in BINS:
        lines = [f"#\ta\t( not b )\n=\t{'cdef'[i % 4]}\tb\n" for i in range(9 * size)]
        (tmp_path / f"train{size}").write_text("".join(lines), "utf-8")
        (tmp_path / f"test{size}").write_text("<\ta\tc\n" * size, "utf-8")
    parts = read_files(tmp_path)
    for part, share in (("train", 16), ("valid", 2), ("test", 1)):
        assert [len(parts[part][size]) for size in BINS] == [share * size for size in BINS]
    assert parts["train"][1][0] == Pair("#", "a", "( not b )")
    assert parts["valid"][1] == [Pair("#", "a", "( not b )"), Pair("=", "c", "b")]


# ---- Pairs as tensors

def test_encoded_pairs():
    data = encode_formulas([Pair("<", "( not a )", "b"), Pair("#", "c", "b")])
    a_not = [IDS[token] for token in tokenize("( not a )")]
    assert data.ids.tolist() == [a_not, [IDS["b"], 0, 0, 0], [IDS["c"], 0, 0, 0]]
    assert data.rows.tolist() == [[0, 1], [2, 1]] and data.lengths.tolist() == [4, 1]
    formulas, labels = data.batch(torch.tensor([1]))
    assert formulas.ids.tolist() == [[IDS["b"]], [IDS["c"]]]
    assert formulas.rows.tolist() == [1, 0] and labels.tolist() == [RELATIONS.index("#")]


def test_infix_notation_says_the_same():
    rng, texts = random.Random(0), {}
    for _ in range(300):
        text, table, count = random_formula(rng, LETTERS)
        short = infix(text)
        assert texts.setdefault(" ".join(short), text) == text
        for row in (0, 1, 22, 37, 63):
            values = {letter: bool(row >> place & 1) for place, letter in enumerate(LETTERS)}
            assert eval(" ".join(short), values) == bool(table >> row & 1)
    assert infix("( not ( a ( and ( not b ) ) ) )") == "not ( a and not b )".split()


def test_letters_are_renamed_in_order_of_appearance():
    pair = Pair("#", "( f ( and c ) )", "( c ( or ( not a ) ) )")
    assert renamed(pair) == Pair("#", "( a ( and b ) )", "( b ( or ( not c ) ) )")
    for pair in generate(raw=2000)[6]:
        new = renamed(pair)
        assert new.relation == pair.relation == relation(new.left, new.right)


@pytest.mark.parametrize("notation", ["brackets", "compact"])
def test_with_truth_tables_a_batch_has_all_its_relations(notation):
    bins = generate(raw=4000)
    pairs = [pair for size in BINS for pair in bins[size][:5]]
    pairs.append(Pair("#", "( f ( and ( not f ) ) )", "( f ( or ( not f ) ) )"))
    index = torch.tensor([60, 3, 17, 41, 8, 55, 29])
    formulas, labels = encode_formulas(pairs, notation=notation, tables=True).batch(index)
    texts = []
    for i in index:
        pair = renamed(pairs[i]) if notation == "compact" else pairs[i]
        texts += [pair.left, pair.right]
    wanted = []
    for left in texts:
        wanted.append([RELATIONS.index(relation(left, right)) for right in texts])
    assert labels[formulas.rows][:, formulas.rows].tolist() == wanted
    plain, own = encode_formulas(pairs, notation=notation).batch(index)
    assert torch.equal(plain.ids, formulas.ids) and torch.equal(plain.rows, formulas.rows)
    assert own.tolist() == [wanted[i][i + 1] for i in range(0, 14, 2)]
