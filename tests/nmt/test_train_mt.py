"""train_mt.py: recipes, names, the learning rate, and three updates worked out by hand."""
import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_run import TINY, rows, train
from torch.nn.functional import cross_entropy

import train_mt
from nmt.batches import batches, collate
from nmt.command_line import UserError, parse
from nmt.corpus import DataFlags, load_data
from nmt.flags import MODEL, check_used
from nmt.machine import seed_torch
from nmt.run_folder import read_config, read_log
from transformer import PAD, Transformer, TransformerConfig


def settings(words) -> tuple[DataFlags, TransformerConfig, train_mt.Training]:
    """What a command line asks for."""
    words = words.split() if isinstance(words, str) else words
    return parse("", *train_mt.FLAGS, argv=words, help=MODEL, defaults=train_mt.defaults)


# ---- Settings

@pytest.mark.parametrize("words, expected", [
    ("", (2_800, 150, 2.9e-3, "linear", 1.0, 512, 700)),
    ("--train a --valid b --src en --tgt de", (4_000, 500, 3.2e-3, "linear", 1.0, 2048, 400)),
    ("--arch small", (10_000, 1_000, 1.6e-3, "linear", 1.0, 4096, 1_000)),
    # Vaswani et al. 2017
    ("--arch base", (100_000, 4_000, 7.0e-4, "sqrt", 0.0, 4096, 10_000)),
    ("--arch big", (300_000, 4_000, 4.9e-4, "sqrt", 0.0, 4096, 30_000))])
def test_the_recipe_of_every_size(words, expected):
    """Results are stored under the flags that differ from these defaults."""
    _, config, s = settings(words)
    assert expected == (s.steps, s.warmup, s.lr, s.decay, s.clip, s.max_tokens, s.eval_every)
    assert config.dropout == {"": 0.0, "--arch big": 0.3}.get(words, 0.1)
    everywhere = dict(label_smoothing=0.1, accumulate=1, seed=1, average=0, beam=4, lenpen=0.6)
    assert everywhere.items() <= vars(s).items()


@pytest.mark.parametrize("words, warmup, eval_every", [
    ("--steps 96", 24, 700), ("--steps 3", 1, 700), ("--steps 96 --warmup 50", 50, 700),
    ("--arch small --steps 3000", 750, 300), ("--data multi30k --steps 1900", 475, 200)])
def test_fewer_steps_have_a_shorter_warmup(words, warmup, eval_every):
    """It is at most a quarter of --steps, unless it is given."""
    _, _, s = settings(words)
    assert (s.warmup, s.eval_every) == (warmup, eval_every)


@pytest.mark.parametrize("words, name", [
    ("", "tatoeba-tiny-seed1"),
    ("--data multi30k --agg em --reg output position --agg-at enc:1-2 dec",
     "multi30k-tiny-em-output-position-agg-at-enc1-2-dec-seed1"),
    ("--train some/where/trains --valid v --src en --tgt de --accumulate 2 "
     "--device cpu --log-every 2",
     "where-trains-tiny-src-en-tgt-de-accumulate-2-seed1"),
    ("--d-model 64 --layers 3 --agg em --no-amp --seed 3",
     "tatoeba-tiny-em-d-model-64-layers-3-no-amp-seed3"),
    ("--name mine --agg em", "mine"),
])
def test_the_name_of_a_run(words, name):
    assert settings(words)[2].name == name


@pytest.mark.parametrize("words, graphs, compiled", [
    ("", True, False), ("--arch base", True, False), ("--compile", False, True),
    ("--arch base --max-tokens 32768", False, True), ("--arch base --no-graphs", False, True),
    ("--arch base --max-tokens 32768 --graphs", True, False)])
def test_what_is_typed_counts_on_a_gpu(words, graphs, compiled, monkeypatch):
    monkeypatch.setattr(train_mt, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(train_mt, "has_bfloat16", lambda device: True)
    _, _, s = settings(words)
    assert (s.graphs, s.compile) == (graphs, compiled)


def test_an_aggregation_without_routing_has_no_capsules():
    _, config, _ = settings("")
    config.agg = "mean"
    for name in ("capsules", "iterations"):
        with pytest.raises(UserError, match=f"--{name} is not used"):
            check_used(config, [name])


def test_vaswani_learning_rate():
    """It is d_model^-0.5 min(step^-0.5, step warmup^-1.5) (§5.3); --lr is its rounded peak."""
    for arch in ("base", "big"):
        _, config, s = settings(f"--arch {arch}")
        for step in (1, 10, 3_999, 4_000, 4_001, 100_000):
            expected = config.d_model ** -0.5 * min(step ** -0.5, step * 4_000 ** -1.5)
            assert train_mt.learning_rate(step, s) == pytest.approx(expected, rel=0.01)


def test_linear_learning_rate():
    """It rises in 3 steps and falls in 5, the step after the last one included."""
    _, _, s = settings("--steps 7 --warmup 3 --lr 1 --decay linear")
    rates = [train_mt.learning_rate(step, s) for step in range(1, 8)]
    assert rates == pytest.approx([1/3, 2/3, 1, 4/5, 3/5, 2/5, 1/5])


# ---- Updates

def by_hand(words):
    """The three updates of a run: [cross-entropy, D, gradient norm, target tokens, learning rate]
    of each, the model after them, and its data."""
    text, config, s = settings(words)
    data = load_data(text, Path(s.runs) / s.name / "tokenizer.json")
    torch.manual_seed(s.seed)
    model = Transformer(replace(config, vocab_size=data.tokenizer.get_vocab_size()))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    pairs = data.train
    micro_batches = batches(pairs.source_lengths, pairs.target_lengths, s.max_tokens, s.seed)
    metrics = []
    for step in (1, 2, 3):
        seed_torch(s.seed, 0, step)                      # process 0; the dropout's
        update = [collate(pairs, micro_batches.pop(0)) for _ in range(2)]
        tokens = sum(int((batch.target[:, 1:] != PAD).sum()) for batch in update)
        adam.zero_grad()
        totals = np.zeros(2)
        for source, target in update:
            logits, heads = model(source, target[:, :-1])
            out = target[:, 1:]
            D = model.disagreement(heads, source != PAD, out != PAD)
            nll = cross_entropy(logits.flatten(0, 1), out.flatten(), ignore_index=PAD,
                                reduction="sum", label_smoothing=0.2)
            count = (out != PAD).sum()
            ((nll - 0.5 * D * count) / tokens).backward()
            totals += nll.item(), (D * count).item()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        norm = gradients.norm().item()
        for p in model.parameters():
            p.grad *= min(1, (s.clip or math.inf) / norm)
        adam.param_groups[0]["lr"] = rate = train_mt.learning_rate(step, s)
        adam.step()
        metrics.append([*totals / tokens, norm, tokens, rate])
    return np.array(metrics), model.eval(), data


HAND = ("--steps 3 --warmup 2 --lr 0.01 --decay linear --clip 0.7 --max-tokens 160 --accumulate 2 "
        "--dropout 0.1 --label-smoothing 0.2 --reg output --reg-weight 0.5 --seed 3 --log-every 1 "
        "--name a")


def test_three_updates_by_hand(text, tmp_path):
    """The log has their loss, D, gradient norm and learning rate, and the validation loss."""
    assert train(text, HAND) == 0
    folder = tmp_path / "runs" / "a"
    expected, model, data = by_hand([*text, *TINY.split(), *HAND.split()])
    logged = rows(folder, "train")
    for i, name in enumerate(("loss", "disagreement", "gradient_norm")):
        np.testing.assert_allclose([row[name] for row in logged], expected[:, i], rtol=1e-4)
    assert [row["lr"] for row in logged] == pytest.approx(expected[:, 4])

    batch = collate(data.valid, range(len(data.valid)))
    logits, _ = model(batch.source, batch.target[:, :-1])
    nll = cross_entropy(logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PAD)
    row, = rows(folder, "valid")
    assert row["valid_loss"] == pytest.approx(nll.item(), rel=1e-4)
    row, = rows(folder, "test")
    assert row["tokens"] == expected[:, 3].sum()
    assert row["parameters"] == sum(p.numel() for p in model.parameters())
    config = read_config(folder)
    assert (config["languages"], config["length_ratio"]) == (["en", "de"], data.length_ratio)


def test_a_log_line_is_about_all_steps_since_the_last_one(text, tmp_path):
    """It has means per target token, and the largest norm of a gradient."""
    words = f"{HAND} --log-every 3 --clip 0"
    assert train(text, words) == 0
    row, = rows(tmp_path / "runs" / "a", "train")
    expected, _, _ = by_hand([*text, *TINY.split(), *words.split()])
    tokens = expected[:, 3]
    assert row["loss"] == pytest.approx(expected[:, 0] @ tokens / tokens.sum(), rel=1e-4)
    assert row["disagreement"] == pytest.approx(expected[:, 1] @ tokens / tokens.sum(), rel=1e-4)
    assert row["gradient_norm"] == pytest.approx(expected[:, 2].max(), rel=1e-4)


def test_speed_is_that_of_the_updates(text, tmp_path, monkeypatch):
    """An update takes 2 seconds here, and a validation 100. The test has the median."""
    seconds = [0.0]
    tokens = []
    defaults = []
    train_step, validate = train_mt.train_step, train_mt.validate

    def timed_step(objective, optimizer, update, *others):
        seconds[0] += 2
        tokens.append(update.tokens)
        defaults.append(optimizer.defaults)
        return train_step(objective, optimizer, update, *others)

    def timed_validation(*args):
        seconds[0] += 100
        return validate(*args)

    monkeypatch.setattr(train_mt, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(train_mt, "train_step", timed_step)
    monkeypatch.setattr(train_mt, "validate", timed_validation)
    assert train(text, "--steps 6 --eval-every 2 --name a") == 0
    *log, test = read_log(tmp_path / "runs" / "a")
    speeds = [row["tokens_per_second"] for row in log if row["type"] == "train"]
    assert speeds == [(a + b) / 4 for a, b in zip(tokens[::2], tokens[1::2])]
    assert (test["tokens"], test["tokens_per_second"]) == (sum(tokens), sorted(speeds)[1])
    assert (defaults[0]["betas"], defaults[0]["eps"]) == ((0.9, 0.98), 1e-9)


def test_bfloat16_is_about_the_same(text, tmp_path):
    def first_step(words: str) -> dict:
        """The log line of the first update."""
        assert train(text, f"--steps 1 --dropout 0 --reg output --name a{words} {words}") == 0
        return rows(tmp_path / "runs" / f"a{words}", "train")[0]

    plain, rounded = first_step(""), first_step("--amp")
    assert rounded["loss"] == pytest.approx(plain["loss"], rel=0.01)
    assert rounded["loss"] != plain["loss"]
    assert rounded["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=0.05)


def test_seed_process_and_step_draw_other_numbers():
    """Their order counts."""
    drawn = set()
    for numbers in itertools.permutations((0, 1, 2)):
        seed_torch(*numbers)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6
