"""logic_data.py: relations against an independent evaluation and against Bowman et al.'s labels,
the generator's shares, files, pairs as tensors."""
import math
import random
import zlib
from collections import Counter

import pytest
import torch
from outside import SHARED

from nmt.flags import UserError
from tasks.logic_data import (
    BINS,
    EVERY,
    IDS,
    LETTERS,
    RELATIONS,
    Pair,
    encode,
    generate,
    infix,
    random_formula,
    read_files,
    read_pairs,
    relation,
    renamed,
    split,
    table_labels,
    table_relation,
    tokenize,
    truth_table,
    write_files,
)

FILES = SHARED / "data" / "propositional_logic"
needs_files = pytest.mark.skipif(not FILES.is_dir(), reason="Bowman et al.'s files are not at hand")
SWAPPED = dict(zip("=<>^|v#", "=><^|v#"))
HAND_MADE = [
    ("=", "a", "( a ( and a ) )"), ("=", "( not ( not c ) )", "c"),
    ("=", "( not ( a ( or b ) ) )", "( ( not a ) ( and ( not b ) ) )"),
    ("<", "( a ( and b ) )", "a"), ("<", "f", "( e ( or f ) )"),
    (">", "a", "( a ( and b ) )"), (">", "( not ( a ( and b ) ) )", "( not a )"),
    ("^", "( not c )", "c"), ("^", "( a ( or b ) )", "( ( not a ) ( and ( not b ) ) )"),
    ("|", "( a ( and b ) )", "( not a )"), ("|", "( a ( and b ) )", "( a ( and ( not b ) ) )"),
    ("v", "( a ( or b ) )", "( not a )"), ("v", "( not ( d ( and e ) ) )", "d"),
    ("#", "a", "b"), ("#", "( not d )", "( not b )"),
    # a tautology or a contradiction leaves two cells of the table empty, a pattern without a name
    ("#", "( a ( or ( not a ) ) )", "b"), ("#", "( a ( and ( not a ) ) )", "a"),
    ("#", "( a ( or ( not a ) ) )", "( a ( and ( not a ) ) )"),
]


def operators(formula):
    """The number of operators of a formula: and, or and not all count."""
    return sum(token in ("and", "or", "not") for token in tokenize(formula))


def formulas(count, seed=1, letters=LETTERS):
    """Random formulas, long ones among them."""
    rng = random.Random(seed)
    return [random_formula(rng, letters)[0] for _ in range(count)]


def value(formula, row):
    """The formula's value in one row of its truth table, by Python's own `and`, `or`, `not`."""
    python = formula.replace("( and", "and (").replace("( or", "or (")
    return eval(python, {letter: bool(row >> place & 1) for place, letter in enumerate(LETTERS)})


# ---- Formulas and relations

@pytest.mark.parametrize("wanted, left, right", HAND_MADE)
def test_relation_of_hand_made_pairs(wanted, left, right):
    assert relation(left, right) == wanted
    assert relation(right, left) == SWAPPED[wanted]


def test_truth_table_is_the_value_in_all_64_rows():
    for formula in formulas(60):
        assert truth_table(formula) == sum(1 << row for row in range(64) if value(formula, row))


def test_relation_is_the_set_of_joint_values():
    """By the definition of every relation, over the 64 rows, written out."""
    found = set()
    for left, right in zip(formulas(120, 2, "abc"), formulas(120, 3, "abc")):
        rows = {(value(left, row), value(right, row)) for row in range(64)}
        both, left_only, right_only, neither = (
            cell in rows for cell in ((True, True), (True, False), (False, True), (False, False))
        )
        wanted = "#"
        if both and neither and left_only + right_only < 2:
            if left_only:
                wanted = ">"
            elif right_only:
                wanted = "<"
            else:
                wanted = "="
        elif left_only and right_only and both + neither < 2:
            if both:
                wanted = "v"
            elif neither:
                wanted = "|"
            else:
                wanted = "^"
        assert relation(left, right) == wanted
        found.add(wanted)
    assert found == set(RELATIONS)


def test_swapping_the_formulas_swaps_the_entailments_only():
    for left, right in zip(formulas(300, 4, "abcd"), formulas(300, 5, "abcd")):
        assert relation(right, left) == SWAPPED[relation(left, right)]


def with_letters(formula, names):
    """The formula with other letters: `names` has the new one of every letter."""
    return " ".join(names.get(x, x) for x in tokenize(formula))


def test_renaming_the_letters_changes_nothing():
    rng = random.Random(6)
    for left, right in zip(formulas(300, 7, "abcd"), formulas(300, 8, "abcd")):
        names = dict(zip(LETTERS, rng.sample(LETTERS, 6)))
        new = [with_letters(text, names) for text in (left, right)]
        assert relation(*new) == relation(left, right)


def test_spaces_around_brackets_may_be_left_out():
    assert (
        relation("(not ((a(and a))(or(not e))))", "( not d )") == "#"
    )  # the sample of Li 2021 §4.3.1
    assert truth_table("(a(and b))") == truth_table("  ( a ( and b ) ) ")


@pytest.mark.parametrize(
    "formula, token",
    [
        ("", "ends"),
        ("( ", "ends"),
        ("( not a", "ends where ')'"),
        ("( a ( and b )", "ends where ')'"),
        ("( a", "ends"),
        ("g", "token 1, 'g'"),
        ("A", "token 1, 'A'"),
        ("ab", "token 1, 'ab'"),
        (")", "token 1, ')'"),
        ("a b", "token 2, 'b'"),
        ("a )", "token 2, ')'"),
        ("( a )", "token 3, ')'"),
        ("( a b )", "token 3, 'b'"),
        ("( a and b )", "token 3, 'and'"),
        ("( a ( xor b ) )", "token 4, 'xor'"),
        ("( a ( not b ) )", "token 4, 'not'"),
        ("( a ( and g ) )", "token 5, 'g'"),
        ("( not a b )", "token 4, 'b'"),
        ("( not )", "token 3, ')'"),
        ("not a", "token 1, 'not'"),
        ("( a ( and b c ) )", "token 6, 'c'"),
        ("( a ( and b ) c )", "token 7, 'c'"),
        ("( and a )", "token 2, 'and'"),
        ("( a ( and b ) ) ( or c )", "token 8, '('"),
    ],
)
def test_a_parsing_error_names_the_offending_token(formula, token):
    with pytest.raises(ValueError) as error:
        relation("a", formula)
    assert token in str(error.value) and "\n" not in str(error.value)
    assert isinstance(error.value, UserError)


def test_nesting_beyond_reason_is_an_error_of_its_own():
    with pytest.raises(UserError, match="nested too deeply"):
        truth_table("( not " * 10 ** 5 + "a" + " )" * 10 ** 5)


def test_operators_are_and_or_and_not():
    texts = "a", "( not a )", "( a ( and b ) )", "( not ( a ( or ( not b ) ) ) )"
    assert [operators(text) for text in texts] == [0, 1, 1, 3]


@pytest.fixture(scope="module")
def bowman():
    """Every line of Bowman et al.'s files: [(bin, relation, left, right), ...]."""
    lines = [
        (int(path.name.lstrip("trainse")), *line.split("\t"))
        for path in sorted(FILES.iterdir())
        for line in path.read_text().splitlines()
    ]
    assert len(lines) == 249_069
    return lines


@needs_files
def test_relation_agrees_with_every_label_of_bowman(bowman):
    assert not [line for line in bowman if relation(*line[2:]) != line[1]]


# ---- The generator

def test_generated_pairs_are_what_they_say():
    bins = generate(raw=3000, seed=3)
    assert sorted(bins) == [0, *BINS]
    for size, pairs in bins.items():
        assert len(set(pairs)) == len(pairs)
        for pair in pairs:
            assert pair.relation == relation(pair.left, pair.right)
            assert min(12, max(operators(pair.left), operators(pair.right))) == size
            assert len(set(tokenize(pair.left) + tokenize(pair.right)) & set(LETTERS)) <= 4
            assert truth_table(pair.left) not in (0, EVERY) and truth_table(pair.right) not in (
                0,
                EVERY,
            )
    assert {pair.relation for pairs in bins.values() for pair in pairs} == set(RELATIONS)


def test_same_seed_same_data_everywhere():
    """The checksum is that of Python 3.11; `random.random` gives every Python the same numbers."""
    text = "\n".join(
        "\t".join(pair) for pairs in generate(raw=2000, seed=0).values() for pair in pairs
    )
    assert zlib.crc32(text.encode()) == 3801699188
    assert generate(raw=200, seed=1) == generate(raw=200, seed=1) != generate(raw=200, seed=2)


def test_shares_of_the_formulas_are_bowmans_probabilities():
    """A letter 5/9 x 2/3, a negated letter 5/9 x 1/3; negation 1/3 at the root; `and` and `or`
    alike; depth <= 3."""
    n, rng = 20_000, random.Random(0)
    drawn = [random_formula(rng, LETTERS) for _ in range(n)]
    texts = [text for text, _, _ in drawn]
    ands = sum("( and " in text for text in texts)
    ors = sum("( or " in text for text in texts)
    assert ands == pytest.approx(ors, abs=4 * math.sqrt(2 * ors))
    for share, wanted in ((sum(text in LETTERS for text in texts), 10 / 27),
                          (sum(len(text.split()) == 4 for text in texts), 5 / 27),
                          (sum(text.startswith("( not") for text in texts), 1 / 3)):
        assert share / n == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / n))
    assert max(text.count("and") + text.count("or") for text in texts) <= 7
    assert all(
        table == truth_table(text) and count == operators(text)
        for text, table, count in drawn[:500]
    )


@needs_files
def test_generator_matches_bowmans_files(bowman):
    """Bin sizes and relations by bin: a chi-square test of both samples being one population, 4
    standard deviations."""
    theirs = Counter(line[:2] for line in bowman if line[0])
    mine = Counter(
        (size, pair.relation) for size, pairs in generate(seed=0).items() for pair in pairs if size
    )
    totals = theirs.total(), mine.total()
    statistic = sum(
        (
            theirs[cell] * (totals[1] / totals[0]) ** 0.5
            - mine[cell] * (totals[0] / totals[1]) ** 0.5
        )
        ** 2
        / (theirs[cell] + mine[cell])
        for cell in theirs | mine
    )
    freedom = len(BINS) * len(RELATIONS) - 1
    assert totals[1] == pytest.approx(totals[0], rel=0.01)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_splits_are_disjoint_and_complete():
    bins = generate(raw=4000, seed=5)
    parts = split(bins)
    for size, pairs in bins.items():
        train, valid, test = (parts[name][size] for name in ("train", "valid", "test"))
        assert train + valid + test == pairs and len(set(pairs)) == len(pairs)
        assert len(train) == int(0.8 * len(pairs)) and abs(len(valid) - len(test)) <= 1


# ---- Files

def small_files(folder, valid=True):
    """Files of 18 training pairs and 4 of each other part in every bin, written by write_files."""
    pairs = [
        Pair("#", "a", f"( {letter} ( and ( not {other} ) ) )")
        for letter in LETTERS
        for other in LETTERS
    ]
    parts = {}
    for name, count in (("train", 18), ("valid", 4), ("test", 4)):
        if valid or name != "valid":
            parts[name] = {size: pairs[:count] for size in BINS}
    write_files(folder, parts)
    return parts


def test_files_are_read_as_they_were_written(tmp_path):
    parts = split(generate(raw=500, seed=2))
    write_files(tmp_path / "new", parts)
    read = read_files(tmp_path / "new")
    assert all(read[name][size] == parts[name][size] for name in parts for size in BINS)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(
        f"{name}{size}" for name in ("train", "valid", "test") for size in range(13))


def test_without_validation_files_the_last_ninth_of_train_serves(tmp_path):
    parts = small_files(tmp_path / "new", valid=False)
    read = read_files(tmp_path / "new")
    for size in BINS:
        assert (
            read["train"][size] == parts["train"][size][:16]
            and read["valid"][size] == parts["train"][size][16:]
        )
        assert read["test"][size] == parts["test"][size]


def test_writing_overwrites_nothing(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for target in (tmp_path, tmp_path / "notes"):
        with pytest.raises(UserError, match="--write"):
            write_files(target, {"train": {1: []}})
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    "line, message",
    [
        ("#\ta", "line 3: not `relation TAB left TAB right`"),
        ("~\ta\tb", "line 3: not"),
        ("", "line 3: not"),
        ("# a b", "line 3: not"),
        ("#\ta\t( not b", "line 3: formula '( not b' ends"),
        ("#\ta\tz", "line 3: token 1, 'z'"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_line(tmp_path, line, message):
    small_files(tmp_path / "new")
    path = tmp_path / "new" / "test7"
    path.write_text("#\ta\tb\n=\tc\tc\n" + line + "\n#\ta\tb\n")
    with pytest.raises(UserError) as error:
        read_files(tmp_path / "new")
    assert str(path) in str(error.value) and message in str(error.value)


def test_a_byte_order_mark_and_windows_line_ends_are_passed_over(tmp_path):
    (tmp_path / "train1").write_bytes(b"\xef\xbb\xbf#\ta\tb\r\n=\t( not a )\t( not a )\r\n")
    assert read_pairs(tmp_path / "train1") == [
        Pair("#", "a", "b"),
        Pair("=", "( not a )", "( not a )"),
    ]


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        read_files(tmp_path / "none")
    small_files(tmp_path / "new")
    (tmp_path / "new" / "train4").unlink()
    with pytest.raises(UserError, match="train4: no such file"):
        read_files(tmp_path / "new")


# ---- Pairs as tensors

def test_encoded_pairs():
    data = encode([Pair("<", "( not a )", "b"), Pair("#", "c", "d")])
    wanted = [[[IDS[token] for token in tokenize("( not a )")], [IDS["b"], 0, 0, 0]],
              [[IDS["c"], 0, 0, 0], [IDS["d"], 0, 0, 0]]]
    assert data.formulas.tolist() == wanted and data.lengths.tolist() == [4, 1]
    assert data.labels.tolist() == [RELATIONS.index("<"), RELATIONS.index("#")]
    cut, labels = data.batch(torch.tensor([1]))
    assert cut.tolist() == [[[IDS["c"]], [IDS["d"]]]] and labels.tolist() == [6]
    assert sorted(IDS.values()) == list(range(1, 12)) and len(encode([]).labels) == 0


def test_infix_notation_says_the_same():
    """Python reads it alike, and no two formulas become one."""
    rng, texts = random.Random(0), {}
    for _ in range(300):
        text, table, count = random_formula(rng, LETTERS)
        short = infix(text)
        assert texts.setdefault(" ".join(short), text) == text
        assert sum(token in ("not", "and", "or") for token in short) == count
        assert short.count("(") == short.count(")") == short.count("and") + short.count("or")
        for row in (0, 1, 22, 37, 63):
            values = {letter: bool(row >> place & 1) for place, letter in enumerate(LETTERS)}
            assert eval(" ".join(short), values) == bool(table >> row & 1)
    assert infix("( not ( a ( and ( not b ) ) ) )") == "not ( a and not b )".split()


def test_compact_pairs_have_their_letters_in_order_of_appearance():
    assert renamed(Pair("#", "( f ( and c ) )", "( c ( or ( not a ) ) )")) == Pair(
        "#", "( a ( and b ) )", "( b ( or ( not c ) ) )")
    for pair in generate(raw=2000)[6]:
        new = renamed(pair)
        assert new.relation == pair.relation == relation(new.left, new.right)
        left = infix(new.left)
        right = infix(new.right)
        letters = [token for token in left + right if token in LETTERS]
        assert (
            sorted(set(letters))
            == list(dict.fromkeys(letters))
            == list(LETTERS[: len(set(letters))])
        )
        back = dict(
            zip(
                letters,
                (token for token in infix(pair.left) + infix(pair.right) if token in LETTERS),
            )
        )
        assert [back.get(token, token) for token in left + right] == infix(pair.left) + infix(
            pair.right
        )
    data = encode([Pair("#", "f", "( not f )")], notation="compact")
    assert data.formulas.tolist() == [[[IDS["a"], 0], [IDS["not"], IDS["a"]]]]


@pytest.mark.parametrize("notation", ["brackets", "compact"])
def test_with_truth_tables_a_batch_has_the_relations_of_all_its_formulas(notation):
    bins = generate(raw=4000)
    pairs = [pair for size in BINS for pair in bins[size][:5]] + [
        Pair("#", "( f ( and ( not f ) ) )", "( f ( or ( not f ) ) )")
    ]  # no relation of its own: `#`
    data = encode(pairs, notation=notation, tables=True)
    index = torch.tensor([60, 3, 17, 41, 8, 55, 29])
    formulas, labels = data.batch(index)
    read = [renamed(pairs[i]) if notation == "compact" else pairs[i] for i in index]
    texts = [text for pair in read for text in (pair.left, pair.right)]
    wanted = []
    for left in texts:
        wanted.append([RELATIONS.index(relation(left, right)) for right in texts])
    assert labels.tolist() == wanted
    assert (
        labels[::2, 1::2].diagonal().tolist() == data.labels[index].tolist()
    )  # a pair's own label
    plain = encode(pairs, notation=notation)
    assert plain.tables is None and (plain.batch(index)[0] == formulas).all()
    assert (plain.batch(index)[1] == data.labels[index]).all()


def test_relations_of_tensors_are_those_of_the_definition():
    """All 15 patterns of joint values that can occur, also with bit 63, which is a tensor's sign.
    """
    tables = [
        truth_table(text)
        for text in (
            "a", "b", "( not a )", "( a ( and b ) )", "( a ( or f ) )", "f", "( not f )",
            "( a ( or ( not a ) ) )", "( a ( and ( not a ) ) )",
        )
    ]
    signed = torch.tensor([table - (table >> 63 << 64) for table in tables])
    found = table_labels(signed[:, None], signed)
    wanted = []
    for left in tables:
        wanted.append([RELATIONS.index(table_relation(left, right)) for right in tables])
    assert found.tolist() == wanted
    assert set(found.flatten().tolist()) == set(range(7))
