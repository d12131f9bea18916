"""logic.py and logic_data.py: relations against an independent evaluation and against Bowman et al.'s labels, the
generator's shares, files, batches, the model, and a run that is interrupted, resumed and extended."""
import json
import math
import random
import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import logic
from cli import UserError
from disagreement import output_disagreement
from logic_data import (BINS, EVERY, IDS, LETTERS, RELATIONS, Pair, batches, encode, generate, operators,
                        random_formula, read_files, relation, split, tokenize, truth_table, write_files)
from transformer import TransformerConfig

FILES = Path(__file__).resolve().parents[2] / "shared" / "data" / "propositional_logic"
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
        both, left_only, right_only, neither = (cell in rows for cell in
                                                ((True, True), (True, False), (False, True), (False, False)))
        wanted = "#"
        if both and neither and left_only + right_only < 2:
            wanted = ">" if left_only else "<" if right_only else "="
        elif left_only and right_only and both + neither < 2:
            wanted = "v" if both else "|" if neither else "^"
        assert relation(left, right) == wanted
        found.add(wanted)
    assert found == set(RELATIONS)


def test_swapping_the_formulas_swaps_the_entailments_only():
    for left, right in zip(formulas(300, 4, "abcd"), formulas(300, 5, "abcd")):
        assert relation(right, left) == SWAPPED[relation(left, right)]


def test_renaming_the_letters_changes_nothing():
    rng = random.Random(6)
    for left, right in zip(formulas(300, 7, "abcd"), formulas(300, 8, "abcd")):
        names = str.maketrans(dict(zip(LETTERS, rng.sample(LETTERS, 6))))
        rename = lambda text: " ".join(x.translate(names) if x in LETTERS else x for x in tokenize(text))
        assert relation(rename(left), rename(right)) == relation(left, right)


def test_spaces_around_brackets_may_be_left_out():
    assert relation("(not ((a(and a))(or(not e))))", "( not d )") == "#"     # the sample of Li 2021 §4.3.1
    assert truth_table("(a(and b))") == truth_table("  ( a ( and b ) ) ")


@pytest.mark.parametrize("formula, token", [
    ("", "ends"), ("( ", "ends"), ("( not a", "ends where ')'"), ("( a ( and b )", "ends where ')'"), ("( a", "ends"),
    ("g", "token 1, 'g'"), ("A", "token 1, 'A'"), ("ab", "token 1, 'ab'"), (")", "token 1, ')'"),
    ("a b", "token 2, 'b'"), ("a )", "token 2, ')'"), ("( a )", "token 3, ')'"), ("( a b )", "token 3, 'b'"),
    ("( a and b )", "token 3, 'and'"), ("( a ( xor b ) )", "token 4, 'xor'"), ("( a ( not b ) )", "token 4, 'not'"),
    ("( a ( and g ) )", "token 5, 'g'"), ("( not a b )", "token 4, 'b'"), ("( not )", "token 3, ')'"),
    ("not a", "token 1, 'not'"), ("( a ( and b c ) )", "token 6, 'c'"), ("( a ( and b ) c )", "token 7, 'c'"),
    ("( and a )", "token 2, 'and'"), ("( a ( and b ) ) ( or c )", "token 8, '('"),
])
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
    lines = [(int(path.name.lstrip("trainse")), *line.split("\t")) for path in sorted(FILES.iterdir())
             for line in path.read_text().splitlines()]
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
            assert truth_table(pair.left) not in (0, EVERY) and truth_table(pair.right) not in (0, EVERY)
    assert {pair.relation for pairs in bins.values() for pair in pairs} == set(RELATIONS)


def test_same_seed_same_data_everywhere():
    """The checksum is that of Python 3.11; `random.random` gives every Python the same numbers."""
    text = "\n".join("\t".join(pair) for pairs in generate(raw=2000, seed=0).values() for pair in pairs)
    assert zlib.crc32(text.encode()) == 3801699188
    assert generate(raw=200, seed=1) == generate(raw=200, seed=1) != generate(raw=200, seed=2)


def test_shares_of_the_formulas_are_bowmans_probabilities():
    """A letter 5/9 x 2/3, a negated letter 5/9 x 1/3; negation 1/3 at the root; `and` and `or` alike; depth <= 3."""
    n, rng = 20_000, random.Random(0)
    drawn = [random_formula(rng, LETTERS) for _ in range(n)]
    texts = [text for text, _, _ in drawn]
    ands, ors = (sum(f"( {name} " in text for text in texts) for name in ("and", "or"))
    assert ands == pytest.approx(ors, abs=4 * math.sqrt(2 * ors))
    for share, wanted in ((sum(text in LETTERS for text in texts), 10 / 27),
                          (sum(len(text.split()) == 4 for text in texts), 5 / 27),
                          (sum(text.startswith("( not") for text in texts), 1 / 3)):
        assert share / n == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / n))
    assert max(text.count("and") + text.count("or") for text in texts) <= 7
    assert all(table == truth_table(text) and count == operators(text) for text, table, count in drawn[:500])


@needs_files
def test_generator_matches_bowmans_files(bowman):
    """Bin sizes and relations by bin: a chi-square test of both samples being one population, 4 standard deviations."""
    theirs = Counter(line[:2] for line in bowman if line[0])
    mine = Counter((size, pair.relation) for size, pairs in generate(seed=0).items() for pair in pairs if size)
    totals = theirs.total(), mine.total()
    statistic = sum((theirs[cell] * (totals[1] / totals[0]) ** 0.5 - mine[cell] * (totals[0] / totals[1]) ** 0.5) ** 2
                    / (theirs[cell] + mine[cell]) for cell in theirs | mine)
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
    parts = {name: {size: [Pair("#", "a", f"( {letter} ( and ( not {other} ) ) )") for letter in LETTERS
                           for other in LETTERS][:count] for size in BINS}
             for name, count in (("train", 18), ("valid", 4), ("test", 4)) if valid or name != "valid"}
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
    parts, read = small_files(tmp_path / "new", valid=False), read_files(tmp_path / "new")
    for size in BINS:
        assert read["train"][size] == parts["train"][size][:16] and read["valid"][size] == parts["train"][size][16:]
        assert read["test"][size] == parts["test"][size]


def test_writing_overwrites_nothing(tmp_path):
    (tmp_path / "notes").write_text("mine")
    for target in (tmp_path, tmp_path / "notes"):
        with pytest.raises(UserError, match="--write"):
            write_files(target, {"train": {1: []}})
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("line, message", [
    ("#\ta", "line 3: not `relation TAB left TAB right`"), ("~\ta\tb", "line 3: not"), ("", "line 3: not"),
    ("# a b", "line 3: not"), ("#\ta\t( not b", "line 3: formula '( not b' ends"), ("#\ta\tz", "line 3: token 1, 'z'"),
])
def test_a_malformed_line_is_named_by_file_and_line(tmp_path, line, message):
    small_files(tmp_path / "new")
    path = tmp_path / "new" / "test7"
    path.write_text("#\ta\tb\n=\tc\tc\n" + line + "\n#\ta\tb\n")
    with pytest.raises(UserError) as error:
        read_files(tmp_path / "new")
    assert str(path) in str(error.value) and message in str(error.value)


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


def test_batches_hold_every_pair_once_and_pairs_of_like_length():
    lengths = torch.randint(1, 60, (5000,))
    found = batches(lengths, 32, seed=1)
    assert sorted(torch.cat(found).tolist()) == list(range(5000)) and max(map(len, found)) == 32
    assert [b.tolist() for b in batches(lengths, 32, seed=1)] == [b.tolist() for b in found]
    assert [b.tolist() for b in batches(lengths, 32, seed=2)] != [b.tolist() for b in found]
    assert sum(lengths[b].max().item() * len(b) for b in found) < 1.1 * lengths.sum()
    firsts = [lengths[b].max().item() for b in found]
    assert firsts != sorted(firsts)


# ---- The model

def build(agg="linear", reg=(), d=8, **other):
    """A small float64 model in evaluation mode."""
    config = TransformerConfig(len(IDS) + 1, d_model=d, heads=2, layers=2, d_ff=2 * d, dropout=0.2, norm="post",
                               agg=agg, reg=reg, decoder=False, **other)
    return logic.LogicModel(config).double().eval()


def pairs(count, seed=0):
    """Generated pairs, count // 12 of every length: one batch, formulas and labels."""
    bins = generate(raw=20 * count, seed=seed)
    data = encode([pair for size in BINS for pair in bins[size][:count // 12]])
    return data.batch(torch.arange(len(data.labels)))


@pytest.mark.parametrize("agg, capsule", [("linear", ()), ("em", ()), ("dynamic", ()), ("linear", ("enc",))])
def test_pooling_ignores_padding(agg, capsule):
    model = build(agg, capsule=capsule)
    ids, _ = pairs(24)
    logits = model(ids)[0]
    torch.testing.assert_close(model(F.pad(ids, (0, 9)))[0], logits)
    for i in (0, 5, 17):                                                      # alone, without its neighbours' padding
        width = int((ids[i] != 0).sum(-1).max())
        torch.testing.assert_close(model(ids[i:i + 1, :, :width])[0], logits[i:i + 1])
    assert (logits[0] - logits[5]).abs().max() > 1e-3


def test_pooling_is_two_queries_by_multi_head_attention_and_four_vectors_are_classified():
    """Written out for one pair: softmax(Q K^T / sqrt(d_k)) V by head, concatenated, W^O; then 4d -> d -> d -> 7."""
    model, (ids, _) = build(), pairs(24)
    width, d, found = [(ids[3, side] != 0).sum() for side in (0, 1)], 8, []
    for side in (0, 1):
        formula = ids[3:4, side, :width[side]]
        states, _ = model.encoder(model.embedding(formula), formula != 0)
        W, b = model.pooling.in_proj.weight.chunk(3), model.pooling.in_proj.bias.chunk(3)
        for query in model.queries:
            q, k, v = query @ W[0].T + b[0], states[0] @ W[1].T + b[1], states[0] @ W[2].T + b[2]
            heads = [torch.softmax(k[:, h] @ q[h] / math.sqrt(d // 2), 0) @ v[:, h] for h in (slice(0, 4), slice(4, 8))]
            found.append(model.pooling.aggregation.output(torch.cat(heads)))
    x = torch.cat(found)                                                      # [4d]
    first, _, second, _, third = model.classifier
    assert [tuple(layer.weight.shape) for layer in (first, second, third)] == [(d, 4 * d), (d, d), (7, d)]
    torch.testing.assert_close(model(ids)[0][3], third(torch.relu(second(torch.relu(first(x))))))


@pytest.mark.parametrize("agg", ["linear", "em"])
def test_loss_is_cross_entropy_minus_lambda_disagreement(agg):
    model, (ids, labels) = build(agg, reg=("output",), reg_weight=0.7), pairs(24)
    logits, heads, mask = model(ids)
    D = sum(output_disagreement(layer.outputs, mask) for layer in heads["enc"]) / 2
    torch.testing.assert_close(model.loss(ids, labels), F.cross_entropy(logits, labels) - 0.7 * D)
    assert -1 <= D < 0
    plain = build(agg)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain.loss(ids, labels), F.cross_entropy(logits, labels))


def test_the_four_models_of_fig_4():
    args = logic.parser().parse_args(["--full"])
    logic.complete(args)
    assert args.models == ["baseline", "disagreement", "aggregation", "combined"]
    configs = {name: logic.configuration(args, name) for name in args.models}
    assert {name: (c.agg, c.reg) for name, c in configs.items()} == {
        "baseline": ("linear", ()), "disagreement": ("linear", ("output",)), "aggregation": ("em", ()),
        "combined": ("em", ("output",))}
    for c in configs.values():                                                # Li 2021 §4.3.2
        assert (c.layers, c.d_model, c.d_ff, c.dropout, c.norm, c.decoder) == (2, 256, 512, 0.2, "post", False)
    assert (args.epochs, args.lr) == (100, 1e-4)
    assert configs["combined"].places("agg") == {"enc": {0, 1}}


def test_flags_of_the_model_choose_a_model_of_ones_own():
    args = logic.parser().parse_args("--agg dynamic --reg subspace --capsule enc:1 --d-model 32 --agg-at enc:2".split())
    logic.complete(args)
    config = logic.configuration(args, "own")
    assert args.models == ["own"] and (config.agg, config.reg, config.capsule) == ("dynamic", ("subspace",), ("enc:1",))
    assert config.d_model == 32 and config.places("agg") == {"enc": {1}}
    assert logic.configuration(args, "aggregation").places("agg") == {"enc": {1}}
    assert logic.configuration(args, "baseline").agg_at is None


# ---- A run

def command(tmp_path, *flags, pairs=400):
    """The command with a model of seconds; returns its exit status."""
    return logic.main(["--runs", str(tmp_path), "--device", "cpu", "--pairs", str(pairs), "--d-model", "8",
                       "--d-ff", "8", "--heads", "2", "--epochs", "2", "--batch", "64", *flags])


def test_a_run_keeps_finished_models_and_goes_on(tmp_path, capsys):
    assert command(tmp_path, "--models", "baseline", "combined") == 0
    text = capsys.readouterr().out
    assert "majority" in text and "combined" in text and "12+" in text and ">=7" in text
    results = json.loads((tmp_path / "logic" / "results.json").read_text())
    assert (tmp_path / "logic" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    for name in ("baseline", "combined"):
        assert set(results["models"][name]) == {*map(str, BINS), "<=6", ">=7"}
    assert command(tmp_path, "--models", "baseline", "combined", "--seeds", "1", "2") == 0
    text = capsys.readouterr().out
    assert "seed 2: epoch 2/2" in text and "seed 1: epoch" not in text and "±" in text
    again = json.loads((tmp_path / "logic" / "results.json").read_text())
    assert again["runs"][0] == results["runs"][0] and len(again["runs"]) == 4
    assert sorted(path.name for path in (tmp_path / "logic").iterdir()) == [
        "accuracy.png", "config.json", "lock", "metrics.jsonl", "results.json"]


def test_an_interrupted_run_ends_as_one_without_a_break(tmp_path, monkeypatch):
    assert command(tmp_path / "whole", "--models", "combined", "--dropout", "0.3") == 0
    train_epoch, calls = logic.train_epoch, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train_epoch(*arguments)

    monkeypatch.setattr(logic, "train_epoch", interrupted)
    assert command(tmp_path / "broken", "--models", "combined", "--dropout", "0.3") == 130
    assert (tmp_path / "broken" / "logic" / "combined-seed1.pt").exists()
    assert command(tmp_path / "broken", "--models", "combined", "--dropout", "0.3") == 0
    assert len(calls) == 3                                                    # the first epoch was not run again
    runs = [json.loads((tmp_path / which / "logic" / "results.json").read_text())["runs"][0]
            for which in ("whole", "broken")]
    assert runs[0].pop("seconds") > 0 and runs[1].pop("seconds") > 0
    assert runs[0] == runs[1]


def test_training_learns():
    """Pairs of one letter and its like: `=` of a letter with itself, `^` with its negation."""
    found = [Pair(name, left, right) for letter in LETTERS for name, left, right in (
        ("=", letter, letter), ("^", letter, f"( not {letter} )"), ("^", f"( not {letter} )", letter))]
    data, args = encode(found), logic.parser().parse_args(["--lr", "0.003"])
    torch.manual_seed(0)
    model = logic.LogicModel(TransformerConfig(len(IDS) + 1, d_model=32, heads=2, layers=1, d_ff=32, dropout=0.0,
                                               decoder=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    losses = [logic.train_epoch(model, optimizer, data, 6, seed) for seed in range(60)]
    assert losses[-1] < 0.05 < 1 < losses[0] and logic.accuracy(model, data) == (18, 18)


def test_summary_weights_bins_by_their_pairs_and_leaves_empty_ones_out():
    made = lambda names: encode([Pair(name, "a", "b") for name in names])
    data = {"test": {size: made("") for size in BINS} | {1: made("##=<"), 3: made("#" * 12), 8: made("v|")}}
    rows = [{"model": "baseline", "seed": seed, "accuracy": {str(size): None for size in BINS} | {
        "1": first, "3": 1.0, "8": 0.5}} for seed, first in ((1, 0.5), (2, 1.0))]
    summary = logic.summarize(data, rows)
    cells = summary["models"]["baseline"]
    assert summary["pairs"]["<=6"] == 16 and summary["pairs"]["12"] == 0 and summary["majority"]["1"] == 0.5
    assert summary["majority"]["<=6"] == pytest.approx(14 / 16) and summary["majority"]["12"] is None
    assert cells["<=6"]["mean"] == pytest.approx(((0.5 * 4 + 12) / 16 + 1) / 2) and cells[">=7"]["mean"] == 0.5
    assert cells["1"]["spread"] == pytest.approx(math.sqrt(0.125)) and cells["12"] == {
        "mean": None, "spread": None, "seeds": 2}
    text = logic.table(summary)
    assert "75.0 ±35.4" in text and text.splitlines()[12].split()[0] == "12+" and "-" in text.splitlines()[12]


@pytest.mark.parametrize("flags, message", [
    (["--data", "/no/such/folder"], "no such folder"), (["--models", "nonsense"], "--models"),
    (["--agg-at", "enc:3", "--agg", "em"], "--agg-at enc:3"), (["--device", "tpu"], "--device"),
    (["--heads", "3"], "--heads 3"), (["--models", "baseline", "--agg", "em"], "add it to --models"),
    (["--write", "new", "--data", "old"], "leave out --data"), (["--pairs", "1"], "--pairs"), (["--seeds", "x"], "--seeds"),
])
def test_mistakes_get_one_line_and_status_2(tmp_path, capsys, flags, message):
    try:
        status = command(tmp_path, *flags)
    except SystemExit as exit:
        status = exit.code
    error = capsys.readouterr().err
    assert status == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "logic").exists()


def test_write_makes_files_that_data_reads(tmp_path, capsys):
    assert command(tmp_path, "--write", str(tmp_path / "files")) == 0
    assert command(tmp_path, "--data", str(tmp_path / "files"), "--models", "baseline") == 0
    own = json.loads((tmp_path / "logic" / "results.json").read_text())
    assert command(tmp_path, "--models", "baseline", "--run", "generated") == 0
    generated = json.loads((tmp_path / "generated" / "results.json").read_text())
    assert own["settings"] == generated["settings"] and own["runs"][0]["accuracy"] == generated["runs"][0]["accuracy"]
    assert command(tmp_path, "--write", str(tmp_path / "files")) == 2
    assert "--write" in capsys.readouterr().err
