"""logic.py, logic_model.py: the model, a run that is interrupted and extended, the table."""
import itertools
import json
import math

import by_hand
import pytest
import torch
import torch.nn.functional as F

import logic
from disagreement import output_disagreement
from tasks import logic_model
from tasks.logic_data import BINS, IDS, Formulas, Pair, encode_formulas, generate
from tools.command_line import parse
from transformer import TransformerConfig, positions

# ---- The model

def build(agg="linear", reg=(), reach=0, **other):
    """A small float64 model in evaluation mode."""
    config = TransformerConfig(len(IDS) + 1, 8, 2, 2, 16, 0.2, norm="post", agg=agg, reg=reg,
                               decoder=False, **other)
    return logic.LogicModel(config, reach).double().eval()


def some_pairs(count=24, tables=False):
    """One batch of generated pairs, count // 12 of every length: formulas and labels."""
    bins = generate(raw=20 * count)
    pairs = [pair for size in BINS for pair in bins[size][:count // 12]]
    data = encode_formulas(pairs, tables=tables)
    return data.batch(torch.arange(len(data.labels)))


def one_pair(formulas, left, right):
    """The formulas `left` and `right` (rows) as a batch of one pair, without padding."""
    ids = formulas.ids[[left, right]]
    width = int((ids != 0).sum(-1).max())
    return Formulas(ids[:, :width], torch.tensor([0, 1]))


@pytest.mark.parametrize("agg, capsule, reach", [
    ("linear", (), 0), ("em", (), 0), ("linear", ("enc",), 0), ("linear", (), 80)])
def test_padding_changes_nothing(agg, capsule, reach):
    model = build(agg, capsule_attention=capsule, reach=reach)
    formulas, _ = some_pairs()
    logits = model(formulas)
    padded = Formulas(F.pad(formulas.ids, (0, 9)), formulas.rows)
    torch.testing.assert_close(model(padded), logits)
    left, right = formulas.rows.view(-1, 2)[5].tolist()
    torch.testing.assert_close(model(one_pair(formulas, left, right)), logits[5:6])
    assert (logits[0] - logits[5]).abs().max() > 1e-3


def test_two_queries_pool_each_formula():
    """For one pair: every formula's states by both queries, then 4d -> d -> d -> 7."""
    model = build()
    formulas, _ = some_pairs()
    in_proj = model.pooling.in_proj
    vectors = []
    for row in formulas.rows[6:8]:
        formula = formulas.ids[row][formulas.ids[row] != 0][None]
        states, _ = model.encoder(model.embedding(formula), formula != 0)
        heads = by_hand.attention(in_proj.weight, in_proj.bias, model.queries[None], states, 2)
        vectors.append(model.pooling.aggregation(heads[2]).flatten())
    first, _, second, _, third = model.classifier
    assert tuple(first.weight.shape) == (8, 4 * 8)
    wanted = third(torch.relu(second(torch.relu(first(torch.cat(vectors))))))
    torch.testing.assert_close(model(formulas)[3], wanted)


def test_loss_over_every_pair_of_a_batch():
    """The mean over all ordered pairs of distinct formulas, by a loop."""
    model = build()
    formulas, labels = some_pairs(12, tables=True)
    losses = []
    for left, right in itertools.permutations(range(len(formulas.ids)), 2):
        logits = model(one_pair(formulas, left, right))
        losses.append(F.cross_entropy(logits[0], labels[left, right]))
    torch.testing.assert_close(model.loss(formulas, labels), torch.stack(losses).mean())
    single_pair = encode_formulas([Pair("=", "a", "a")], tables=True).batch(torch.tensor([0]))
    assert model.loss(*single_pair) == 0


@pytest.mark.parametrize("agg", ["linear", "em"])
@pytest.mark.parametrize("tables", [False, True])
def test_loss_is_cross_entropy_minus_lambda_disagreement(agg, tables):
    model = build(agg, reg=("output",), reg_weight=0.7)
    plain = build(agg)
    plain.load_state_dict(model.state_dict())
    formulas, labels = some_pairs(tables=tables)
    _, heads, mask = model.read(formulas)
    D = sum(output_disagreement(x.outputs, mask) for x in heads["enc"]) / 2
    assert -1 <= D < 0
    wanted = plain.loss(formulas, labels) - 0.7 * D
    torch.testing.assert_close(model.loss(formulas, labels), wanted)


IDS_OF_FOUR = torch.tensor([[3, 6, 0, 0, 0], [1, 6, 4, 7, 2], [6, 0, 0, 0, 0], [3, 7, 6, 0, 0]])
LENGTHS = (2, 5, 1, 3)
WITH_A_LONG_ONE = torch.cat([F.pad(IDS_OF_FOUR, (0, 25)), torch.ones(1, 30, dtype=torch.long)])


def find_places(training, ids):
    """The positions [N, L] that an embedding which spreads them over 12 adds to the words."""
    embedding = logic_model.SpreadEmbedding(len(IDS) + 1, 8, 0.0, 12).double().train(training)
    added = embedding(ids) - embedding.weight[ids] * math.sqrt(8)            # [N, L, d]
    table = positions(80, 8, dtype=torch.float64)
    return (added[:, :, None] - table).abs().amax(-1).argmin(-1).tolist()


def test_spread_positions_in_a_test_are_even():
    """floor(12 i / length), whatever the padding; a longer formula is counted."""
    for ids in (IDS_OF_FOUR, F.pad(IDS_OF_FOUR, (0, 20)), WITH_A_LONG_ONE):
        rows = find_places(False, ids)
        assert [row[:length] for row, length in zip(rows, LENGTHS)] == [
            [0, 6], [0, 2, 4, 7, 9], [0], [0, 4, 8]]
    assert rows[4] == list(range(30))


def test_spread_positions_in_training_are_drawn_in_order():
    drawn = [set() for _ in LENGTHS]
    for i in range(100):
        ids = WITH_A_LONG_ONE if i % 2 else IDS_OF_FOUR
        rows = find_places(True, ids)
        assert rows[4:] == [list(range(30))] * (i % 2)
        for row, length, seen in zip(rows, LENGTHS, drawn):
            assert row[:length] == sorted(set(row[:length]))
            seen.update(row[:length])
    assert all(seen == set(range(12)) for seen in drawn)


# ---- A run

def command(folder, flags, data="--pairs 400"):
    """The command with a model of seconds; returns its exit status."""
    small = f"--device cpu {data} --d-model 8 --d-ff 8 --heads 2 --batch 64 --name x"
    return logic.main(f"--runs {folder} {small} {flags}".split())


def results(folder):
    return json.loads((folder / "x" / "results.json").read_text("utf-8"))


def test_finished_models_are_kept_and_others_added(tmp_path, capsys):
    assert command(tmp_path, "") == 0
    first = results(tmp_path)
    capsys.readouterr()
    assert command(tmp_path, "--models baseline combined --seeds 1 2 --device auto") == 0
    text, error = capsys.readouterr()
    assert "combined, seed 1: epoch 2/2" in text and "baseline, seed 1" not in text
    assert error == ""                                   # a log has no progress bar
    again = results(tmp_path)
    assert again["runs"][:1] == first["runs"] and len(again["runs"]) == 4
    assert command(tmp_path, "--pairs 500") == 2


def test_flags_reach_the_training_and_the_data(tmp_path):
    """Each of them changes the loss of the first epoch."""
    variants = ["", "--seeds 2", "--learn pairs", "--decay none", "--spread 0",
                "--notation brackets", "--data-seed 3", "--pairs 300"]
    losses = set()
    for i, flags in enumerate(variants):
        assert command(tmp_path / str(i), f"--epochs 1 {flags}") == 0
        losses.add(results(tmp_path / str(i))["runs"][0]["history"][0]["loss"])
    assert len(losses) == len(variants)


@pytest.mark.parametrize("notation", ["brackets", "compact"])
def test_every_part_has_the_chosen_notation(notation):
    """One pair in all parts: it has as many tokens in each."""
    pairs = {size: [Pair("<", "( not a )", "( a ( or b ) )")] for size in BINS}
    s = parse(logic.Settings, ["--notation", notation], logic.presets)
    data = logic.encode_parts({"train": pairs, "valid": pairs, "test": pairs}, s, "cpu")
    lengths = {part: data[part].lengths[0].item() for part in ("train", "valid")}
    lengths |= {f"test {size}": data["test"][size].lengths[0].item() for size in BINS}
    assert len(set(lengths.values())) == 1, lengths


class Equal(torch.nn.Module):
    """A model that finds every pair equivalent."""
    def forward(self, formulas):
        return F.one_hot(torch.zeros(len(formulas.rows) // 2, dtype=torch.long), 7).double()


def write_files(folder, parts):
    """{part: {bin: pairs}} in Bowman's format."""
    folder.mkdir(exist_ok=True)
    for part, bins in parts.items():
        for size, pairs in bins.items():
            lines = ["\t".join(pair) + "\n" for pair in pairs]
            (folder / f"{part}{size}").write_text("".join(lines), "utf-8")


def negated(n):
    """A formula of n negations."""
    return "( not " * n + "a" + " )" * n


def test_trained_on_up_to_6_operators_tested_on_all(tmp_path, monkeypatch, capsys):
    """Every part and bin has formulas with a number of negations of its own, and a test bin has a
    share of `=` of its own. The last ninth of a training file is for validation."""
    train, test = {}, {}
    for b in BINS:
        train[b] = [Pair("=", negated(b), "b")] * 16 + [Pair("=", negated(12 + b), "b")] * 2
        test[b] = [Pair("=", negated(24 + b), "b")] * b + [Pair("#", "a", "b")] * (13 - b)
    write_files(tmp_path / "files", {"train": train, "test": test})
    seen = {}

    def fit(build, data, s, seed, label, decay):
        assert decay and data["train"].tables is not None                    # the defaults
        for part in ("train", "valid"):
            negations = (data[part].ids == IDS["not"]).sum(-1)[data[part].rows[:, 0]]
            seen[part] = sorted(set(negations.tolist()))
        return Equal(), {"valid": 0.125, "parameters": 1, "seconds": 0.0, "history": []}
    monkeypatch.setattr(logic, "fit", fit)
    assert command(tmp_path, "--notation brackets", f"--data {tmp_path / 'files'}") == 0
    assert seen == {"train": list(range(1, 7)), "valid": list(range(13, 25))}
    assert ": 96 pairs to train on, 24 to validate; cpu" in capsys.readouterr().out
    (run,) = results(tmp_path)["runs"]
    assert run["accuracy"] == {str(b): b / 13 for b in BINS}
    cells = results(tmp_path)["models"]["baseline"]
    assert cells["<=6"]["mean"] == pytest.approx(21 / 78)
    assert cells[">=7"]["mean"] == pytest.approx(57 / 78)
    write_files(tmp_path / "files", {"test": {1: [Pair("#", "a", "b")]}})
    assert command(tmp_path, "--notation brackets", f"--data {tmp_path / 'files'}") == 2
    assert "the pairs in the folder of --data differ" in capsys.readouterr().err


PAIR = Pair("#", "a", "( not b )")


@pytest.mark.parametrize("file, pairs, message", [
    ("train7", [PAIR] * 8, "train7: has 8 pairs, and at least 9 are needed"),
    ("test7", [], "test7: has 0 pairs, and at least 1"),
    ("test7", [PAIR, ("#", "a")], "test7, line 2: not `relation TAB left TAB right`"),
    ("test7", [PAIR, Pair("~", "a", "b")], "test7, line 2: not"),
    ("train2", [PAIR, Pair("#", "a", "( g )")], "line 2: token 2 of formula '( g )' is 'g'"),
    ("train2", [Pair("#", "a", negated(2_000))], "train2, line 1: maximum recursion depth")])
def test_files_that_do_not_suffice_are_one_line(file, pairs, message, tmp_path, capsys):
    full = dict.fromkeys(BINS, [PAIR] * 9)
    write_files(tmp_path / "files", {"train": full, "test": full, file: {"": pairs}})
    assert command(tmp_path, "", f"--data {tmp_path / 'files'}") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


# ---- The table

def labelled(names):
    """Examples of these relations."""
    return encode_formulas([Pair(name, "a", "b") for name in names])


def test_the_table_weights_bins_by_their_pairs():
    """Three bins of 4, 996 and 2 pairs; a model of two seeds."""
    test = {1: labelled("##=<"), 3: labelled("#=" * 498), 12: labelled("v|")}
    rows = []
    for seed, first in ((1, 0.5), (2, 1.0)):
        accuracy = {"1": first, "3": 0.75, "12": 0.5}
        rows.append({"model": "baseline", "seed": seed, "accuracy": accuracy})
    summary = logic.summarize({"test": test}, rows)
    assert summary["majority"]["<=6"] == pytest.approx(500 / 1000)
    lines = [line.split() for line in logic.table(summary).splitlines()]
    assert lines[0] == ["operators", "pairs", "majority", "baseline"]
    assert [line[0] for line in lines[1:]] == ["1", "3", "12+", "<=6", ">=7"]
    assert lines[1] == ["1", "4", "50.0", "75.0", "±35.4"]
    assert lines[4] == ["<=6", "1,000", "50.0", "75.0", "±0.1"]
