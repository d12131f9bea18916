"""logic.py: the model, a run that is interrupted, resumed and extended, the table, mistakes."""
import dataclasses
import json
import math
import os
import signal

import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

import logic
from disagreement import output_disagreement
from nmt import run_folder
from nmt.flags import parse
from tasks import classifier, logic_data, logic_model
from tasks.logic_data import BINS, IDS, LETTERS, Pair, encode, generate
from transformer import TransformerConfig, positions

# ---- The model

def build(agg="linear", reg=(), d=8, reach=0, dropout=0.2, **other):
    """A small float64 model in evaluation mode."""
    config = TransformerConfig(
        len(IDS) + 1,
        d_model=d,
        heads=2,
        layers=2,
        d_ff=2 * d,
        dropout=dropout,
        norm="post",
        agg=agg,
        reg=reg,
        decoder=False,
        **other,
    )
    return logic.LogicModel(config, reach).double().eval()


def pairs(count, seed=0):
    """Generated pairs, count // 12 of every length: one batch, formulas and labels."""
    bins = generate(raw=20 * count, seed=seed)
    data = encode([pair for size in BINS for pair in bins[size][:count // 12]])
    return data.batch(torch.arange(len(data.labels)))


@pytest.mark.parametrize(
    "agg, capsule, reach",
    [
        ("linear", (), 0),
        ("em", (), 0),
        ("dynamic", (), 0),
        ("linear", ("enc",), 0),
        ("linear", (), 80),
    ],
)
def test_pooling_ignores_padding(agg, capsule, reach):
    model = build(agg, capsule_attention=capsule, reach=reach)
    ids, _ = pairs(24)
    logits = model(ids)[0]
    torch.testing.assert_close(model(F.pad(ids, (0, 9)))[0], logits)
    for i in (0, 5, 17):  # alone, without its neighbours' padding
        width = int((ids[i] != 0).sum(-1).max())
        torch.testing.assert_close(model(ids[i:i + 1, :, :width])[0], logits[i:i + 1])
    assert (logits[0] - logits[5]).abs().max() > 1e-3


def test_pooling_is_two_queries_by_multi_head_attention_and_four_vectors_are_classified():
    """Written out for one pair: softmax(Q K^T / sqrt(d_k)) V by head, concatenated, W^O; then 4d ->
    d -> d -> 7."""
    model = build()
    ids, _ = pairs(24)
    width = [(ids[3, side] != 0).sum() for side in (0, 1)]
    d = 8
    found = []
    for side in (0, 1):
        formula = ids[3:4, side, :width[side]]
        states, _ = model.encoder(model.embedding(formula), formula != 0)
        W = model.pooling.in_proj.weight.chunk(3)
        b = model.pooling.in_proj.bias.chunk(3)
        for query in model.queries:
            q = query @ W[0].T + b[0]
            k = states[0] @ W[1].T + b[1]
            v = states[0] @ W[2].T + b[2]
            heads = [
                torch.softmax(k[:, h] @ q[h] / math.sqrt(d // 2), 0) @ v[:, h]
                for h in (slice(0, 4), slice(4, 8))
            ]
            found.append(model.pooling.aggregation.output(torch.cat(heads)))
    x = torch.cat(found)                                                      # [4d]
    first, _, second, _, third = model.classifier
    assert [tuple(layer.weight.shape) for layer in (first, second, third)] == [
        (d, 4 * d),
        (d, d),
        (7, d),
    ]
    torch.testing.assert_close(model(ids)[0][3], third(torch.relu(second(torch.relu(first(x))))))


def test_a_formula_of_several_pairs_is_read_once():
    """In training without dropout: the loss and the gradients are those of reading every copy."""
    model = build(dropout=0.0)
    ids, labels = pairs(24)
    ids = torch.cat([ids, ids[:5].flip(1)])  # copies on the other side
    labels, read = torch.cat([labels, labels[:5]]), []
    model.embedding.register_forward_pre_hook(lambda module, inputs: read.append(len(inputs[0])))
    losses, gradients = [], []
    for training in (True, False):
        loss = model.train(training).loss(ids, labels)
        losses.append(loss)
        gradients.append(torch.autograd.grad(loss, model.parameters()))
    assert read == [len(ids.flatten(0, 1).unique(dim=0)), 2 * len(ids)] and read[0] < read[1] - 10
    torch.testing.assert_close(*losses)
    for once, each in zip(*gradients):
        torch.testing.assert_close(once, each)
    model.train().config = dataclasses.replace(model.config, reg=("output",))
    model.loss(ids, labels)
    assert read[-1] == 2 * len(ids)


def test_spread_positions():
    """In training some of the first `reach` places in ascending order; in a test even ones; by
    formula, not by batch."""
    d = 8
    reach = 12
    table = positions(12, 8, dtype=torch.float64)
    embedding = logic_model.SpreadEmbedding(len(IDS) + 1, d, 0.0, reach).double()
    ids = torch.tensor([[3, 6, 0, 0, 0], [1, 6, 4, 7, 2], [6, 0, 0, 0, 0], [3, 7, 6, 0, 0]])
    words = embedding.weight[ids] * math.sqrt(d)
    found, seen = embedding.eval()(ids) - words, ids != 0
    places = torch.tensor(
        [[0, 6, 0, 0, 0], [0, 2, 4, 7, 9], [0] * 5, [0, 4, 8, 0, 0]]
    )  # floor(12 i / length)
    torch.testing.assert_close(found[seen], table[places][seen])
    wide = F.pad(ids, (0, 20))  # padding moves nothing
    torch.testing.assert_close(embedding(wide)[:, :5][seen], embedding(ids)[seen])
    drawn, differ = [set() for _ in ids], 0
    for _ in range(100):
        found = embedding.train()(ids) - words                                # [4, 5, d]
        rows = (found[:, :, None] - table).abs().amax(-1).argmin(-1)          # the places drawn
        torch.testing.assert_close(found, table[rows])
        for row, length, places in zip(rows.tolist(), (2, 5, 1, 3), drawn):
            assert row[:length] == sorted(set(row[:length]))
            places |= set(row[:length])
        differ += rows[0, 0] != rows[3, 0]
    assert all(places == set(range(reach)) for places in drawn) and differ > 50
    long = torch.ones(2, 30, dtype=torch.long)
    table = positions(30, d, dtype=torch.float64)
    long[1, 3:] = 0
    for training in (True, False) * 5:  # longer than the reach: counted
        found = embedding.train(training)(long) - embedding.weight[long] * math.sqrt(
            d
        )  # [2, 30, d]
        torch.testing.assert_close(found[0], table)
        rows = (
            (found[1, :3, None] - table).abs().amax(-1).argmin(-1).tolist()
        )  # a short one beside it is not
        assert rows == sorted(set(rows)) and rows[-1] < reach


@pytest.mark.parametrize("once", [True, False])
def test_loss_over_every_pair_of_a_batch(once):
    """The mean over all ordered pairs of the formulas that were read, a formula with itself left
    out, by a loop."""
    model = build(dropout=0.0)
    bins = generate(raw=400, seed=3)
    data = encode([pair for size in (1, 2, 5) for pair in bins[size][:6]], tables=True)
    formulas, labels = data.batch(torch.arange(len(data.labels)))
    ids = formulas.flatten(0, 1)
    kept = [i for i, row in enumerate(ids.tolist()) if not once or row not in ids[:i].tolist()]
    assert (len(kept) < len(ids)) == once
    losses = []
    for i in kept:
        others = [j for j in kept if j != i]
        rows = torch.stack([torch.stack([ids[i], ids[j]]) for j in others])
        logits = model.eval()(rows)[0]
        for j, row in zip(others, logits):
            losses.append(F.cross_entropy(row, labels[i, j]))
    torch.testing.assert_close(model.train(once).loss(formulas, labels), torch.stack(losses).mean())
    one = encode([Pair("=", "a", "a")], tables=True).batch(
        torch.tensor([0])
    )  # nothing to learn, no NaN
    if once:
        assert model.loss(*one) == 0


@pytest.mark.parametrize("agg", ["linear", "em"])
def test_loss_is_cross_entropy_minus_lambda_disagreement(agg):
    model = build(agg, reg=("output",), reg_weight=0.7)
    ids, labels = pairs(24)
    logits, heads, mask = model(ids)
    D = sum(output_disagreement(layer.outputs, mask) for layer in heads["enc"]) / 2
    torch.testing.assert_close(model.loss(ids, labels), F.cross_entropy(logits, labels) - 0.7 * D)
    matrix = torch.randint(7, (2 * len(ids), 2 * len(ids)))  # of every pair of the batch
    torch.testing.assert_close(
        model.loss(ids, matrix),
        F.cross_entropy(
            model.classify_all(model.read(ids)[0]).flatten(0, 1),
            matrix.fill_diagonal_(-100).flatten(),
        )
        - 0.7 * D,
    )
    assert -1 <= D < 0
    plain = build(agg)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain.loss(ids, labels), F.cross_entropy(logits, labels))


def filled(*flags):
    """The settings that a command line gives."""
    return logic.completed(parse(logic.Settings, flags, "logic.py", ""))


def test_the_four_models_of_fig_4():
    args = filled("--full")
    assert args.models == ("baseline", "disagreement", "aggregation", "combined")
    configs = {name: logic.configuration(args, name) for name in args.models}
    assert {name: (c.agg, c.reg) for name, c in configs.items()} == {
        "baseline": ("linear", ()),
        "disagreement": ("linear", ("output",)),
        "aggregation": ("em", ()),
        "combined": ("em", ("output",)),
    }
    for c in configs.values():  # Li 2021 §4.3.2
        assert (c.layers, c.d_model, c.d_ff, c.dropout, c.norm, c.decoder) == (
            2, 256, 512, 0.2, "post", False,
        )
    assert (args.epochs, args.lr) == (100, 1e-4)
    assert configs["combined"].agg_at == ("enc:1-2",)


def test_flags_of_the_model_choose_a_model_of_ones_own():
    args = filled(
        *"--agg dynamic --reg subspace --capsule enc:1 --d-model 32 --agg-at enc:2".split()
    )
    config = logic.configuration(args, "own")
    assert args.models == ("own",) and (config.agg, config.reg) == ("dynamic", ("subspace",))
    assert config.capsule_attention == ("enc:1",)
    assert config.d_model == 32 and config.agg_at == ("enc:2",)
    assert logic.configuration(args, "aggregation").agg_at == ("enc:2",)
    assert logic.configuration(args, "baseline").agg_at == ()


# ---- A run

def command(tmp_path, *flags, pairs=400):
    """The command with a model of seconds; returns its exit status."""
    return logic.main(
        [
            "--runs",
            str(tmp_path),
            "--device",
            "cpu",
            "--pairs",
            str(pairs),
            "--d-model",
            "8",
            "--d-ff",
            "8",
            "--heads",
            "2",
            "--epochs",
            "2",
            "--batch",
            "64",
            *flags,
        ]
    )


@pytest.mark.parametrize(
    "flags, dimensions", [([], 2), (["--learn", "pairs", "--decay", "none"], 1)]
)
def test_learn_and_decay_reach_the_training(tmp_path, monkeypatch, flags, dimensions):
    """Labels [2B, 2B] of every pair of a batch or [B] of the drawn ones; a learning rate that falls
    or stays."""
    seen = set()
    rates = []
    loss = logic.LogicModel.loss
    step = torch.optim.Adam.step
    monkeypatch.setattr(logic.LogicModel, "loss", lambda self, formulas, labels: (
        seen.add(labels.dim()), loss(self, formulas, labels))[1])
    monkeypatch.setattr(
        torch.optim.Adam,
        "step",
        lambda self: rates.append(self.param_groups[0]["lr"]) or step(self),
    )
    assert command(tmp_path, *flags, "--lr", "0.01") == 0
    assert seen == {dimensions} and (rates[-1] == 0.01) == (dimensions == 1)


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


@pytest.mark.skipif(os.name != "posix", reason="elsewhere os.kill ends the tests themselves")
def test_an_interrupted_run_ends_as_one_without_a_break(tmp_path, monkeypatch, capsys, ctrl_c):
    """SIGTERM, then SIGINT, both in the second epoch; in between a damaged checkpoint is refused.
    """
    flags = "--models", "combined", "--dropout", "0.3"
    assert command(tmp_path / "whole", *flags) == 0
    train_epoch, calls = classifier.train_epoch, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) in (2, 3):
            os.kill(os.getpid(), {2: signal.SIGTERM, 3: signal.SIGINT}[len(calls)])
        return train_epoch(*arguments)

    monkeypatch.setattr(classifier, "train_epoch", interrupted)
    with pytest.raises(SystemExit) as exit:
        command(tmp_path / "broken", *flags)
    assert exit.value.code == 143 and "stopped; the same command goes on" in capsys.readouterr().out
    path = tmp_path / "broken" / "logic" / "combined-seed1.pt"
    saved = run_folder.load(path)
    for name, value, word in (
        ("model", {}, "weight"),
        ("best", {}, "weight"),
        ("optimizer", {}, "optimizer"),
        ("scheduler", 3, "optimizer"),
    ):
        run_folder.save(path, {**saved, name: value})
        assert command(tmp_path / "broken", *flags) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and str(path) in error and word in error
    run_folder.save(path, saved)
    assert command(tmp_path / "broken", *flags) == 130
    assert command(tmp_path / "broken", *flags) == 0
    assert len(calls) == 4  # the first epoch was not run again
    runs = [json.loads((tmp_path / which / "logic" / "results.json").read_text())["runs"][0]
            for which in ("whole", "broken")]
    assert runs[0].pop("seconds") > 0 and runs[1].pop("seconds") > 0
    assert runs[0] == runs[1]


def test_training_learns():
    """Pairs of one letter and its like: `=` of a letter with itself, `^` with its negation."""
    found = [
        Pair(name, left, right)
        for letter in LETTERS
        for name, left, right in (
            ("=", letter, letter),
            ("^", letter, f"( not {letter} )"),
            ("^", f"( not {letter} )", letter),
        )
    ]
    data = encode(found)
    args = filled("--lr", "0.003")
    torch.manual_seed(0)
    model = logic.LogicModel(
        TransformerConfig(
            len(IDS) + 1, d_model=32, heads=2, layers=1, d_ff=32, dropout=0.0, decoder=False
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    losses = [classifier.train_epoch(model, optimizer, data, 6, seed) for seed in range(60)]
    assert losses[-1] < 0.05 < 1 < losses[0] and classifier.accuracy(model, data) == (18, 18)


@pytest.mark.parametrize("decay", [False, True])
def test_the_learning_rate_stays_or_rises_and_falls_to_0(tmp_path, monkeypatch, decay):
    data = encode([Pair("=", "a", "a"), Pair("#", "a", "b"), Pair("^", "a", "( not a )")])
    args = filled("--lr", "0.5", "--epochs", "20", "--batch", "1")
    rates, step = [], torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam,
        "step",
        lambda self: rates.append(self.param_groups[0]["lr"]) or step(self),
    )
    classifier.fit(
        build,
        {"train": data, "valid": data},
        args,
        1,
        tmp_path / "state.pt",
        lambda text: None,
        decay,
    )
    rise = {0: 1 / 3, 1: 2 / 3}  # a twentieth of 60 steps
    assert rates == pytest.approx(
        [0.5 * rise.get(i, 1) * (1 - i / 60) if decay else 0.5 for i in range(60)]
    )


def labelled(names):
    """Examples of these relations."""
    return encode([Pair(name, "a", "b") for name in names])


def test_summary_weights_bins_by_their_pairs_and_leaves_empty_ones_out():
    data = {
        "test": {size: labelled("") for size in BINS}
        | {1: labelled("##=<"), 3: labelled("#" * 12), 8: labelled("v|")}
    }
    rows = []
    for seed, first in ((1, 0.5), (2, 1.0)):
        accuracy = {str(size): None for size in BINS} | {"1": first, "3": 1.0, "8": 0.5}
        rows.append({"model": "baseline", "seed": seed, "accuracy": accuracy})
    summary = logic.summarize(data, rows)
    cells = summary["models"]["baseline"]
    assert (
        summary["pairs"]["<=6"] == 16
        and summary["pairs"]["12"] == 0
        and summary["majority"]["1"] == 0.5
    )
    assert (
        summary["majority"]["<=6"] == pytest.approx(14 / 16) and summary["majority"]["12"] is None
    )
    assert (
        cells["<=6"]["mean"] == pytest.approx(((0.5 * 4 + 12) / 16 + 1) / 2)
        and cells[">=7"]["mean"] == 0.5
    )
    assert cells["1"]["spread"] == pytest.approx(math.sqrt(0.125)) and cells["12"] == {
        "mean": None, "spread": None, "seeds": 2}
    text = logic.table(summary)
    assert (
        "75.0 ±35.4" in text
        and text.splitlines()[12].split()[0] == "12+"
        and "-" in text.splitlines()[12]
    )


@pytest.fixture
def two_models():
    """The summary of two models whose accuracy in every bin is another: in bin b of 10 b pairs, of
    which b + 3 are of the most frequent relation, 5 b and 2 b in a hundred."""
    relations = "=<>^|v#"
    data = {"test": {b: labelled("#" * (b + 3) + (relations[:6] * 99)[:9 * b - 3]) for b in BINS}}
    rows = []
    for model, share, seed in (("baseline", 5, 1), ("em", 1, 1), ("em", 3, 2)):
        accuracy = {str(b): share * b / 100 for b in BINS}
        rows.append({"model": model, "seed": seed, "accuracy": accuracy})
    return logic.summarize(data, rows)


def test_the_table_has_every_number_in_its_place(two_models):
    """Bins 1 to 12, then all up to 6 operators, as trained on, and all of more; pairs, majority, a
    column per model."""
    lines = [line.split() for line in logic.table(two_models).splitlines()]
    assert lines[0] == ["operators", "pairs", "majority", "baseline", "em"]
    groups = {**{str(b): [b] for b in BINS}, "<=6": range(1, 7), ">=7": range(7, 13)}
    for (name, *cells), (group, sizes) in zip(lines[1:], groups.items()):
        total = sum(10 * b for b in sizes)
        most = sum(b + 3 for b in sizes)
        relations = []
        for i in range(6):
            relations.append(sum(math.ceil((9 * b - 3 - i) / 6) for b in sizes))
        shares = []
        for share in (5, 1, 3):
            shares.append(sum(10 * b * share * b / 100 for b in sizes) / total)
        spread = abs(shares[2] - shares[1]) / math.sqrt(2)
        assert name == {"12": "12+"}.get(group, group)
        assert cells == [
            f"{total}",
            f"{100 * max(most, *relations) / total:.1f}",
            f"{100 * shares[0]:.1f}",
            f"{50 * (shares[1] + shares[2]):.1f}",
            f"±{100 * spread:.1f}",
        ]
    assert len(lines) == 1 + len(groups)


def test_the_plot_shows_the_numbers_of_the_table(two_models, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *given, **settings: drawn.append(figure))
    logic.draw(two_models, tmp_path / "accuracy.png")
    axes, = drawn[0].axes
    found = {bars.get_label(): bars for bars in axes.containers}
    assert list(found) == ["baseline", "em"]
    for name, bars in found.items():
        line, _, spreads = bars.lines
        cells = [two_models["models"][name][str(b)] for b in BINS]
        assert line.get_xdata().tolist() == list(BINS)
        assert line.get_ydata().tolist() == pytest.approx([100 * cell["mean"] for cell in cells])
        if name == "baseline":  # one seed has no bars
            assert spreads == ()
            continue
        heights = [high[1] - low[1] for low, high in spreads[0].get_segments()]
        assert heights == pytest.approx([200 * cell["spread"] for cell in cells])
    majority = next(line for line in axes.lines if line.get_label() == "majority class")
    assert majority.get_ydata().tolist() == pytest.approx(
        [100 * two_models["majority"][str(b)] for b in BINS]
    )
    assert [line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1] == [
        6.5
    ]  # trained up to here
    assert (
        axes.get_xlabel() == "operators of the longer formula"
        and axes.get_ylabel() == "accuracy (%)"
    )
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        *map(str, range(1, 12)),
        "12+",
    ]


class Equal(torch.nn.Module):
    """A model that finds every pair equivalent."""
    def forward(self, formulas):
        return F.one_hot(torch.zeros(len(formulas), dtype=torch.long), 7).double(),


def test_trained_on_up_to_6_operators_and_tested_on_the_test_part(tmp_path, monkeypatch):
    """Every part and bin has formulas of its own, told by their number of negations, and a share of
    `=` of its own."""
    parts, codes = {}, {}
    for part, equal in (("train", lambda b: 5), ("valid", lambda b: 13 - b), ("test", lambda b: b)):
        for b in BINS:
            code = len(codes)
            codes[part, b] = code
            parts.setdefault(part, {})[b] = [
                Pair("=" if i < equal(b) else "#", "( not " * code + "a" + " )" * code, "b")
                for i in range(13)
            ]
    logic_data.write_files(tmp_path / "files", parts)
    seen = []

    def fit(build, data, args, seed, path, log, decay):
        seen.append((data, args, seed, decay))
        path.touch()
        return Equal(), {"valid": 0.125, "parameters": 1, "seconds": 0.0, "history": []}
    monkeypatch.setattr(logic, "fit", fit)
    assert (
        command(
            tmp_path,
            "--data",
            str(tmp_path / "files"),
            "--notation",
            "brackets",
            "--seeds",
            "5",
            "9",
            "--lr",
            "0.25",
        )
        == 0
    )

    def negations(examples):
        return (examples.formulas[:, 0] == IDS["not"]).sum(-1).tolist()

    assert [seed for _, _, seed, _ in seen] == [5, 9]
    for data, args, _, decay in seen:
        assert sorted(set(negations(data["train"]))) == [codes["train", b] for b in range(1, 7)]
        assert len(data["train"].labels) == 6 * 13 and data["train"].tables is not None
        assert sorted(set(negations(data["valid"]))) == [codes["valid", b] for b in BINS]
        assert len(data["valid"].labels) == 12 * 13
        assert {size: set(negations(x)) for size, x in data["test"].items()} == {
            b: {codes["test", b]} for b in BINS
        }
        assert (args.epochs, args.lr, args.batch, decay) == (2, 0.25, 64, True)
    results = json.loads((tmp_path / "logic" / "results.json").read_text())
    for run in results["runs"]:
        assert run["accuracy"] == {str(b): b / 13 for b in BINS} and run["valid"] == 0.125
    assert results["models"]["baseline"]["<=6"]["mean"] == pytest.approx(21 / 78)
    assert results["models"]["baseline"][">=7"]["mean"] == pytest.approx(57 / 78)


def test_seeds_of_the_data_and_of_the_model(tmp_path):
    """--data-seed draws other pairs, --seeds another model on the same pairs."""
    def found(*flags):
        name = "".join(flags).lstrip("-")
        assert command(tmp_path, "--name", name, "--epochs", "1", *flags) == 0
        results = json.loads((tmp_path / name / "results.json").read_text())
        return results["settings"]["data_checksum"], results["runs"][0]["history"][0]["loss"]

    first = found("--seeds", "1")
    again = found("--data-seed", "0")
    other = found("--data-seed", "3")
    assert first == again != other and first[0] != other[0]
    second = found("--seeds", "2")
    assert second[0] == first[0] and second[1] != first[1]


def test_initialization():
    """The classifier's is He's, biases 0; the queries are standard normal: what is learned at first
    depends on it."""
    torch.manual_seed(0)
    model = logic.LogicModel(
        TransformerConfig(len(IDS) + 1, d_model=128, heads=2, layers=1, d_ff=8, decoder=False)
    )
    for linear, inputs in zip(model.classifier[::2], (512, 128, 128)):
        assert linear.weight.shape[1] == inputs and not linear.bias.any()
        assert linear.weight.std().item() == pytest.approx(math.sqrt(2 / inputs), rel=0.1)
    assert model.queries.std().item() == pytest.approx(1, rel=0.2)


def test_write_makes_files_that_data_reads(tmp_path, capsys):
    assert command(tmp_path, "--write", str(tmp_path / "files")) == 0
    assert command(tmp_path, "--data", str(tmp_path / "files"), "--models", "baseline") == 0
    own = json.loads((tmp_path / "logic" / "results.json").read_text())
    assert command(tmp_path, "--models", "baseline", "--name", "generated") == 0
    generated = json.loads((tmp_path / "generated" / "results.json").read_text())
    assert (
        own["settings"] == generated["settings"]
        and own["runs"][0]["accuracy"] == generated["runs"][0]["accuracy"]
    )
    assert command(tmp_path, "--write", str(tmp_path / "files")) == 2
    assert "--write" in capsys.readouterr().err
