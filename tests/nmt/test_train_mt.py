"""train_mt.py: settings, names, the learning rate, and three updates worked out by hand."""
import contextlib
import math
from dataclasses import asdict
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_run import TINY, rows, train
from torch.nn.functional import cross_entropy

import train_mt
from nmt.batches import batches, collate
from nmt.corpus import load_data
from nmt.run_folder import RunFolder, read_config
from tools.command_line import parse
from tools.files import UserError
from tools.machine import Machine
from transformer import PAD, Transformer


def settings(words) -> train_mt.Settings:
    """The settings of a command line."""
    return parse(train_mt.Settings, words.split() if isinstance(words, str) else words,
                 train_mt.presets)


# ---- Settings

def recipe(*values) -> dict:
    """The settings that depend on the size of a model."""
    names = "steps warmup lr decay clip max_tokens eval_every dropout"
    return dict(zip(names.split(), values, strict=True))


EVERYWHERE = dict(label_smoothing=0.1, accumulate=1, seed=1, average=0, beam=4, lenpen=0.6,
                  lowercase=False, max_length=256, save_every=1_000, log_every=100, runs="runs",
                  data_dir="data", device="auto")


@pytest.mark.parametrize("words, expected", [
    ("", recipe(1_800, 150, 2.9e-3, "linear", 1.0, 512, 450, 0.0)),
    ("--train a --valid b --src en --tgt de",
     recipe(4_000, 500, 3.2e-3, "linear", 1.0, 2048, 400, 0.1)),
    ("--arch small", recipe(10_000, 1_000, 1.6e-3, "linear", 1.0, 4096, 1_000, 0.1)),
    # Vaswani et al. 2017
    ("--arch base", recipe(100_000, 4_000, 7.0e-4, "sqrt", 0.0, 4096, 10_000, 0.1)),
    ("--arch big", recipe(300_000, 4_000, 4.9e-4, "sqrt", 0.0, 4096, 30_000, 0.3)),
    ("--arch big --steps 7 --heads 8 --dropout 0", dict(steps=7, heads=8, dropout=0.0)),
    # the warm-up is at most a quarter of the steps, unless it is given
    ("--steps 96", dict(warmup=24)),
    ("--steps 1000", dict(warmup=150)),
    ("--arch base --steps 10000", dict(warmup=2_500)),
    ("--steps 3", dict(warmup=1)),
    ("--steps 96 --warmup 50", dict(warmup=50)),
    ("--data multi30k --steps 1900", dict(eval_every=200)),
    ("--arch small --steps 3000", dict(eval_every=300))])
def test_the_recipe_of_every_size(words, expected):
    """Results are kept under the flags that differ from these defaults. What is given and the steps
    set the rest."""
    assert (EVERYWHERE | expected).items() <= vars(settings(words)).items()


@pytest.mark.parametrize("words", [
    "--agg em --iterations 2 --agg-at dec --capsules 8", "--agg gu-em --em-gradient full",
    "--capsule-attention enc --iterations 2 --capsule-parts vertical",
    "--reg position --reg-at dec --reg-weight 2"])
def test_a_mechanism_has_its_options(words):
    settings(words).check_model()


@pytest.mark.parametrize("words, compiled, graphs", [
    ("", False, True), ("--arch base", False, True), ("--arch big", False, True),
    ("--arch base --max-tokens 32768", True, False), ("--max-tokens 16384", False, False),
    ("--arch base --no-graphs", True, False), ("--arch big --no-graphs --no-compile", False, False),
    ("--arch base --compile", True, False), ("--arch small --max-tokens 16383", False, True)])
def test_graphs_for_small_batches_and_compiled_layers_of_large_models(words, compiled, graphs,
                                                                      monkeypatch):
    """On a CPU with bfloat16 only the smallest recipe is in float32."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    on_cpu = settings(f"{words} --device cpu")
    assert (on_cpu.compile, on_cpu.graphs) == ("--compile" in words, False)
    assert on_cpu.amp == ("--arch" in words)
    on_gpu = {"compile": True, "graphs": True}
    monkeypatch.setattr(train_mt, "machine_defaults", lambda device: dict(on_gpu))
    assert (settings(words).compile, settings(words).graphs) == (compiled, graphs)


def test_vaswani_learning_rate():
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5), §5.3; --lr is its peak, rounded. The end cuts
    a long warm-up."""
    for s in settings("--arch base"), settings("--arch big"):
        for step in (1, 10, 3_999, 4_000, 4_001, 100_000):
            expected = s.d_model ** -0.5 * min(step ** -0.5, step * 4_000 ** -1.5)
            assert train_mt.learning_rate(step, s) == pytest.approx(expected, rel=0.01)
    for warmup in (8, 9, 20):
        s = settings(f"--steps 8 --warmup {warmup}")
        rates = [train_mt.learning_rate(step, s) for step in range(1, 9)]
        assert rates == pytest.approx([s.lr * step / warmup for step in range(1, 9)])


def test_what_may_differ_when_a_run_is_resumed(tmp_path):
    """What does not change what it learns from a step, and where things are."""
    values = asdict(settings("")) | {"length_ratio": None}               # of an older run
    with RunFolder(tmp_path, values) as folder:
        folder.begin()
    free = set()
    for name in values:
        with (contextlib.suppress(UserError),
              RunFolder(tmp_path, values | {name: "other"}, train_mt.FREE)):
            free.add(name)
    words = ("accumulate device amp compile graphs workers data data_dir train valid test src tgt "
             "log_every save_every runs name length_ratio")
    assert free == {*words.split()}


# ---- Names

@pytest.mark.parametrize("words, name", [
    ("", "toy-tiny-seed1"),
    ("--data multi30k --agg em --reg output position --agg-at enc:1-2 dec",
     "multi30k-tiny-em-output-position-agg-at-enc1-2-dec-seed1"),
    ("--train some/where/train --device cpu --workers 2", "where-tiny-seed1"),
    ("--train some/where/trains --tgt de --accumulate 2",
     "where-trains-tiny-tgt-de-accumulate-2-seed1"),
    ("--d-model 64 --layers 3 --no-em-activations --seed 3",
     "toy-tiny-layers-3-d-model-64-no-em-activations-seed3"),
    ("--arch small --agg em --seed 2", "toy-small-em-seed2"),
    ("--name mine --agg em", "mine"),
])
def test_the_name_of_a_run(words, name):
    assert settings(words).name == name


# ---- Updates

def by_hand(s, data):
    """The three updates of a run: [cross-entropy, D, gradient norm, target tokens, learning rate]
    of each, and the model after them. Two of them are warm-up."""
    torch.manual_seed(s.seed)
    model = Transformer(s.model_config(data.tokenizer.get_vocab_size()))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    pairs = data.train
    micro_batches = batches(pairs.source_lengths, pairs.target_lengths, s.max_tokens, s.seed)
    metrics = []
    for rate in (0.005, 0.01, 0.005):
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
        adam.param_groups[0]["lr"] = rate
        adam.step()
        metrics.append([*totals / tokens, norm, tokens, rate])
    return np.array(metrics), model


HAND = ("--steps 3 --warmup 2 --lr 0.01 --decay linear --clip 0.7 --max-tokens 160 --accumulate 2 "
        "--dropout 0 --label-smoothing 0.2 --reg output --reg-weight 0.5 --seed 3 --name a")


def test_three_updates_by_hand(text, tmp_path):
    """Loss, D, gradient norm and learning rate in the log; the validation loss after them; what
    config.json says of the text."""
    assert train(text, HAND) == 0
    folder = tmp_path / "runs" / "a"
    s = settings([*text, *TINY.split(), *HAND.split()])
    data = load_data(s, folder / "tokenizer.json")
    expected, model = by_hand(s, data)
    logged = rows(folder, "train")
    for i, name in enumerate(("loss", "disagreement", "gradient_norm")):
        np.testing.assert_allclose([row[name] for row in logged], expected[:, i], rtol=1e-4)
    assert [row["lr"] for row in logged] == pytest.approx(expected[:, 4])

    batch = collate(data.valid, range(len(data.valid)))
    logits, _ = model(batch.source, batch.target[:, :-1])
    nll = cross_entropy(logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PAD)
    row, = rows(folder, "valid")
    assert row["valid_loss"] == pytest.approx(nll.item(), rel=1e-4)
    assert row["valid_perplexity"] == pytest.approx(nll.exp().item(), rel=1e-3)
    row, = rows(folder, "test")
    assert row["tokens"] == expected[:, 3].sum()
    assert row["parameters"] == sum(p.numel() for p in model.parameters())
    config = read_config(folder)
    assert (config["languages"], config["longest_source"], config["length_ratio"]) == (
        ["en", "de"], data.longest_source, data.length_ratio)

    # a log line is about all steps since the last one: means per target token, the largest norm
    words = f"{HAND} --name b --log-every 3 --clip 0"
    assert train(text, words) == 0
    row, = rows(tmp_path / "runs" / "b", "train")
    expected, _ = by_hand(settings([*text, *TINY.split(), *words.split()]), data)
    tokens = expected[:, 3]
    assert row["loss"] == pytest.approx((expected[:, 0] * tokens).sum() / tokens.sum(), rel=1e-4)
    assert row["disagreement"] == pytest.approx(expected[:, 1] @ tokens / tokens.sum(), rel=1e-4)
    assert row["gradient_norm"] == pytest.approx(expected[:, 2].max(), rel=1e-4)


def test_every_step_and_process_drops_other_units(text, monkeypatch):
    """`seed_torch` makes other numbers of the seed, the process and the step."""
    seeds = []
    monkeypatch.setattr(Machine, "first", True)          # the second process of two writes the log
    monkeypatch.setattr(train_mt, "setup_machine", lambda name: Machine(torch.device("cpu"), 1))
    monkeypatch.setattr(train_mt, "seed_torch", lambda *numbers: seeds.append(numbers))
    assert train(text, "--steps 2 --seed 7 --name a") == 0
    assert seeds == [(7, 1, 1), (7, 1, 2)]


def test_bfloat16_and_compiled_layers_are_about_the_same(text, tmp_path, monkeypatch, capsys):
    """The parts are traced only: compiling them takes minutes. A missing compiler is one line."""
    compile_function = torch.compile
    compiled = []

    def trace(f, **options):
        compiled.append(f.__name__)
        assert options["dynamic"]
        return compile_function(f, backend="eager", **options)

    def first_step(words: str) -> dict:
        """The log line of the first update."""
        same_for_all = "--steps 1 --dropout 0 --reg output --agg em"
        assert train(text, f"{same_for_all} --name a{words} {words}") == 0
        return rows(tmp_path / "runs" / f"a{words}", "train")[0]

    monkeypatch.setattr(torch, "compile", trace)
    plain, rounded = first_step(""), first_step("--amp")
    assert not compiled
    assert rounded["loss"] == pytest.approx(plain["loss"], rel=0.01)
    assert rounded["loss"] != plain["loss"]
    assert rounded["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=0.05)
    traced = first_step("--compile")
    # a trial, two layers
    assert compiled == ["<lambda>", "_call_impl", "_call_impl", "model_disagreement",
                        "fused_piece_loss"]
    for name in ("loss", "disagreement", "gradient_norm"):
        assert traced[name] == pytest.approx(plain[name], rel=1e-5)

    fail = Mock(side_effect=RuntimeError("InvalidCxxCompiler: no g++\n\nSet TORCHDYNAMO_VERBOSE=1"))
    monkeypatch.setattr(torch, "compile", lambda *_, **options: fail)
    assert train(text, "--compile --steps 1 --name b") == 2
    assert "--compile: torch cannot compile here (InvalidCxxCompiler: no g++)" in (
        capsys.readouterr().err)
