"""tasks/logic_model.py: pooling, losses, spread positions; logic.py: its runs and table."""
import itertools
import json
import math
from unittest.mock import Mock, call

import by_hand
import pytest
import torch
import torch.nn.functional as F
from project_files import ROOT

import logic
from disagreement import output_disagreement
from tasks.logic_data import BINS, IDS, Formulas, encode_formulas, generate
from tasks.logic_model import LogicModel, SpreadEmbedding
from transformer import TransformerConfig, positions

# ---- The model

def build(reach=0, **mechanisms):
    """A small float64 model in evaluation mode."""
    config = TransformerConfig(len(IDS) + 1, 8, 2, 2, 16, 0.2, norm="post", decoder=False,
                               **mechanisms)
    return LogicModel(config, reach).double().eval()


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


@pytest.mark.parametrize("changes", [{}, dict(agg="em"), dict(capsule_attention=("enc",)),
                                     dict(reach=80)], ids=str)
def test_padding_changes_nothing(changes):
    model = build(**changes)
    formulas, _ = some_pairs()
    logits = model(formulas)
    padded = Formulas(F.pad(formulas.ids, (0, 9)), formulas.rows)
    torch.testing.assert_close(model(padded), logits)
    left, right = formulas.rows.view(-1, 2)[5].tolist()
    torch.testing.assert_close(model(one_pair(formulas, left, right)), logits[5:6])
    assert (logits[0] - logits[5]).abs().max() > 1e-3


def test_two_queries_pool_each_formula():
    """The four vectors of a pair go through 4d -> d -> d -> 7."""
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
    model = build()
    formulas, labels = some_pairs(12, tables=True)
    losses = []
    for left, right in itertools.permutations(range(len(formulas.ids)), 2):
        logits = model(one_pair(formulas, left, right))
        losses.append(F.cross_entropy(logits[0], labels[left, right]))
    torch.testing.assert_close(model.loss(formulas, labels), torch.stack(losses).mean())


@pytest.mark.parametrize("tables", [False, True])
def test_loss_is_cross_entropy_minus_lambda_disagreement(tables):
    model = build(agg="em", reg=("output",), reg_weight=0.7)
    plain = build(agg="em")
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
    embedding = SpreadEmbedding(len(IDS) + 1, 8, 0.0, 12).double().train(training)
    added = embedding(ids) - embedding.weight[ids] * math.sqrt(8)            # [N, L, d]
    table = positions(80, 8, dtype=torch.float64)
    return (added[:, :, None] - table).abs().amax(-1).argmin(-1).tolist()


def test_spread_positions_in_a_test_are_even():
    """They are floor(12 i / length), whatever the padding; a longer formula is counted."""
    for ids in (IDS_OF_FOUR, F.pad(IDS_OF_FOUR, (0, 20)), WITH_A_LONG_ONE):
        rows = find_places(False, ids)
        assert [row[:length] for row, length in zip(rows, LENGTHS)] == [
            [0, 6], [0, 2, 4, 7, 9], [0], [0, 4, 8]]
    assert rows[4] == list(range(30))


def test_spread_positions_in_training_are_drawn_in_order():
    drawn = [set() for _ in LENGTHS]
    for i in range(100):
        rows = find_places(True, WITH_A_LONG_ONE if i % 2 else IDS_OF_FOUR)
        assert rows[4:] == [list(range(30))] * (i % 2)
        for row, length, seen in zip(rows, LENGTHS, drawn):
            assert row[:length] == sorted(set(row[:length]))
            seen.update(row[:length])
    assert all(seen == set(range(12)) for seen in drawn)


# ---- The script

TINY = dict(layers=1, d_model=16, heads=2, d_ff=16, dropout=0.1)


@pytest.fixture
def small(monkeypatch):
    """Makes both settings tiny."""
    for setting in (logic.SMALL, logic.FULL):
        monkeypatch.setitem(setting, "sizes", TINY)
        monkeypatch.setitem(setting, "pairs", 2_000)
    monkeypatch.setitem(logic.FULL, "training", dict(epochs=1, lr=1e-2, batch=16))


def line(n, right, wrong=False):
    """A pair whose relation is said to be `<` if its right formula is a, else `#`, or if `wrong`
    the other way around. The left formula has n negations."""
    relation = "<" if (right == "a") != wrong else "#"
    return f"{relation}\t{'( not ' * n}a{' )' * n}\t{right}\n"


def test_accuracy_by_number_of_operators(small, tmp_path, capsys):
    """The model learns what the pairs up to six operators say: those from seven on, which say the
    opposite, are not trained on. In the test n pairs of bin n are labelled wrongly, of 24, in the
    first bin of 48. The last ninth of a file, which validates, is wrong in the last bin."""
    pairs = {n: 48 if n == 1 else 24 for n in BINS}
    for n in BINS:
        train = [line(n, "ab"[i % 2], wrong=n > 6) for i in range(24 if n > 6 else 16)]
        valid = [line(n, "ab"[i % 2], wrong=n == 12) for i in range(3 if n > 6 else 2)]
        test = [line(n, "ab"[(i + n // 2) % 2], wrong=i < n) for i in range(pairs[n])]
        (tmp_path / f"train{n}").write_text("".join([*train, *valid]), "utf-8")
        (tmp_path / f"test{n}").write_text("".join(test), "utf-8")
    logic.main(f"--full --data {tmp_path} --models baseline --epochs 20 --device cpu "
               f"--out {tmp_path}/out".split())
    (row,) = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))["rows"]
    assert row["accuracy"] == {str(n): (pairs[n] - n) / pairs[n] for n in BINS}
    assert row["valid"] == 27 / 30 and len(row["history"]) == 20
    lines = capsys.readouterr().out.splitlines()
    rows = {cells[0]: cells[1:] for cells in map(str.split, lines) if cells}
    assert rows["operators"] == ["pairs", "majority", "baseline"]
    assert rows["3"] == ["24", "54.2", "87.5"]           # 13, most of them <, and 21 of 24
    assert rows["12+"] == ["24", "50.0", "50.0"]
    assert rows["<=6"] == ["168", "50.6", "87.5"]        # 85, most of them #, and 147 of 168
    assert rows[">=7"][2] == "60.4"                      # 87 of 144
    assert (tmp_path / "out" / "accuracy.png").stat().st_size > 10_000


def test_the_same_command_trains_only_what_is_missing(small, tmp_path, capsys, monkeypatch):
    """A model does not depend on those that were trained before it."""
    def rows(name, words):
        logic.main(f"--epochs 1 --device cpu --out {tmp_path}/{name} --models {words}".split())
        return json.loads((tmp_path / name / "results.json").read_text("utf-8"))["rows"]

    baseline, combined = rows("whole", "baseline combined")
    assert rows("part", "combined") == [combined]
    capsys.readouterr()
    assert rows("part", "combined baseline") == [combined, baseline]
    assert "combined, seed 1" not in capsys.readouterr().out
    seeds = Mock(wraps=torch.manual_seed)
    monkeypatch.setattr(torch, "manual_seed", seeds)
    *_, other = rows("part", "baseline --seeds 1 2")
    assert other["seed"] == 2                            # of the weights, of the epoch
    assert seeds.call_args_list == [call(2), call(2 * 1_000_003 + 1)]


def test_settings_are_those_of_the_paper_and_of_the_results():
    stored = json.loads((ROOT / "results" / "logic-bowman.json").read_text("utf-8"))
    stored = stored["settings"]
    assert logic.SMALL["sizes"].items() <= stored["models"]["baseline"].items()
    assert all(stored[name] == logic.SMALL[name] for name in ("notation", "spread", "learn"))
    assert logic.SMALL["training"] == dict(
        epochs=stored["epochs"], lr=stored["lr"], batch=stored["batch"], decay=True)
    # Li 2021 §4.3.2
    assert logic.FULL["sizes"].items() >= dict(layers=2, d_model=256, dropout=0.2).items()
    assert logic.FULL["training"].items() >= dict(epochs=100, lr=1e-4).items()
