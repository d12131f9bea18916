"""train_mt.py: settings, names, the learning rate, and three updates worked out by hand."""
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_run import TINY, load, rows, same, train, write_text
from torch.nn.functional import cross_entropy

import train_mt
from nmt.batches import batches, collate
from nmt.corpus import load_data
from tools.command_line import parse
from tools.machine import Machine
from transformer import PAD, Transformer

CPU = torch.device("cpu")


def settings(words) -> train_mt.Settings:
    """The settings of a command line."""
    return parse(train_mt.Settings, words.split() if isinstance(words, str) else words,
                 train_mt.presets)


# ---- Settings

@pytest.mark.parametrize("words, expected", [
    # Vaswani et al. 2017: 4,000 steps of warm-up, dropout 0.1 and 0.3, 100,000 and 300,000 steps
    ("--arch base", dict(steps=100_000, warmup=4_000, dropout=0.1, decay="sqrt", d_model=512)),
    ("--arch big", dict(steps=300_000, warmup=4_000, dropout=0.3, decay="sqrt", heads=16)),
    ("", dict(steps=1_800, dropout=0.0, max_tokens=512)),
    ("--train a --valid b --src en --tgt de", dict(steps=4_000, dropout=0.1)),
    ("--arch big --steps 7 --heads 8 --dropout 0", dict(steps=7, heads=8, dropout=0.0)),
    # the warm-up is at most a quarter of the steps, unless it is given
    ("--steps 96", dict(warmup=24)),
    ("--steps 3", dict(warmup=1)),
    ("--steps 96 --warmup 50", dict(warmup=50)),
    ("--data multi30k --steps 1900", dict(eval_every=200)),
    ("--arch small --steps 3000", dict(eval_every=300)),
])
def test_the_size_the_text_and_the_steps_set_the_rest(words, expected):
    assert expected.items() <= vars(settings(words)).items()


def test_the_smallest_recipe_is_in_float32(monkeypatch):
    """The others are in bfloat16 where the processor has it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert not settings("--device cpu").amp
    assert settings("--device cpu --data multi30k").amp
    assert settings("--device cpu --arch small").amp


@pytest.mark.parametrize("words, compiled, graphs", [
    ("", False, True), ("--arch base", False, True), ("--arch big", False, True),
    ("--arch base --max-tokens 32768", True, False), ("--max-tokens 16384", False, False),
    ("--arch base --no-graphs", True, False), ("--arch big --no-graphs --no-compile", False, False),
    ("--arch base --compile", True, False), ("--arch small --max-tokens 16383", False, True)])
def test_graphs_for_small_batches_and_compiled_layers_of_large_models(words, compiled, graphs,
                                                                      monkeypatch):
    on_cpu = settings(f"{words} --device cpu")
    assert (on_cpu.compile, on_cpu.graphs) == ("--compile" in words, False)
    on_gpu = {"compile": True, "graphs": True}
    monkeypatch.setattr(train_mt, "machine_defaults", lambda device: dict(on_gpu))
    assert (settings(words).compile, settings(words).graphs) == (compiled, graphs)


@pytest.mark.parametrize("arch", ["base", "big"])
def test_vaswani_learning_rate(arch):
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5), §5.3; --lr is its peak, rounded."""
    s = settings(f"--arch {arch}")
    for step in (1, 10, 3_999, 4_000, 4_001, 100_000):
        expected = s.d_model ** -0.5 * min(step ** -0.5, step * 4_000 ** -1.5)
        assert train_mt.learning_rate(step, s) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("warmup", [8, 9, 20])
def test_a_long_warm_up_is_cut_by_the_end(warmup):
    s = settings(f"--steps 8 --warmup {warmup}")
    rates = [train_mt.learning_rate(step, s) for step in range(1, 9)]
    assert rates == pytest.approx([s.lr * step / warmup for step in range(1, 9)])


# ---- Names

@pytest.mark.parametrize("words, name", [
    ("", "toy-tiny-seed1"),
    ("--data multi30k --agg em --reg output position", "multi30k-tiny-em-output-position-seed1"),
    ("--train some/where/train --device cpu --workers 2", "where-tiny-seed1"),
    ("--train some/where/trains --tgt de --accumulate 2",
     "where-trains-tiny-tgt-de-accumulate-2-seed1"),
    ("--dropout 0.3 --no-em-activations", "toy-tiny-dropout-0.3-no-em-activations-seed1"),
    ("--name mine --agg em", "mine"),
])
def test_the_name_of_a_run(words, name):
    assert settings(words).name == name


# ---- Updates

def by_hand(s, data, updates: int):
    """The first updates of a run: [cross-entropy, D, gradient norm, target tokens, learning rate]
    of each, and the model after them. The rates are those of three steps, two of them warm-up."""
    torch.manual_seed(s.seed)
    model = Transformer(s.model_config(data.tokenizer.get_vocab_size()))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    pairs = data.train
    micro_batches = batches(pairs.source_lengths, pairs.target_lengths, s.max_tokens, s.seed)
    metrics = []
    for rate in (0.005, 0.01, 0.005)[:updates]:
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
            p.grad *= min(1, 0.7 / norm)
        adam.param_groups[0]["lr"] = rate
        adam.step()
        metrics.append([*totals / tokens, norm, tokens, rate])
    return np.array(metrics), model


HAND = ("--steps 3 --warmup 2 --lr 0.01 --decay linear --clip 0.7 --max-tokens 160 --accumulate 2 "
        "--dropout 0 --label-smoothing 0.2 --reg output --reg-weight 0.5 --seed 3 --name a")


def test_three_updates_by_hand(text, tmp_path):
    """Loss, D, gradient norm and learning rate in the log; the validation loss after
    them."""
    assert train(text, HAND) == 0
    folder = tmp_path / "runs" / "a"
    s = settings([*text, *TINY.split(), *HAND.split()])
    data = load_data(s, folder / "tokenizer.json")
    expected, model = by_hand(s, data, 3)
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

    # a log line is about all steps since the last one: means per target token, the largest norm
    assert train(text, HAND.replace("--name a", "--name b") + " --log-every 3") == 0
    row, = rows(tmp_path / "runs" / "b", "train")
    tokens = expected[:, 3]
    assert row["loss"] == pytest.approx((expected[:, 0] * tokens).sum() / tokens.sum(), rel=1e-4)
    assert row["disagreement"] == pytest.approx(expected[:, 1] @ tokens / tokens.sum(), rel=1e-4)
    assert row["gradient_norm"] == pytest.approx(expected[:, 2].max(), rel=1e-4)


def test_clip_0_does_not_clip(text, tmp_path):
    states = []
    for clip in ("0", "1000000"):
        assert train(text, f"--steps 3 --clip {clip} --name {clip}") == 0
        states.append(load(tmp_path / "runs" / clip)["model"])
    assert same(*states)


class SecondProcess(Machine):
    """The second process of two, which here writes the log."""
    first = True


def test_every_step_and_process_drops_other_units(text, tmp_path, monkeypatch):
    """The same batch, and next to no learning: the losses differ by the dropout."""
    write_text(tmp_path, "train", ["der Hund sieht das Haus"] * 20, ["the dog sees it"] * 20)
    losses = {}
    for dropout, machine in ((0, Machine(CPU)), (0.5, Machine(CPU)), (0.5, SecondProcess(CPU, 1))):
        monkeypatch.setattr(train_mt, "setup_machine", lambda device: machine)
        name = f"{dropout}-{machine.rank}"
        assert train(text, "--steps 2 --lr 1e-12 --vocab-size 265 --max-tokens 9999 "
                           f"--dropout {dropout} --name {name}") == 0
        losses[name] = [row["loss"] for row in rows(tmp_path / "runs" / name, "train")]
    assert losses["0-0"][0] == pytest.approx(losses["0-0"][1], abs=1e-3)
    different = sorted(losses["0.5-0"] + losses["0.5-1"])
    assert min(b - a for a, b in pairwise(different)) > 1e-3


def test_bfloat16_and_compiled_layers_are_about_the_same(text, tmp_path, monkeypatch):
    """The parts are traced only: compiling them takes minutes."""
    compile_function = torch.compile
    compiled = []

    def trace(f, **options):
        compiled.append(f.__name__)
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


def test_a_missing_compiler_is_one_line(text, monkeypatch, capsys):
    def fail(x):
        raise RuntimeError("InvalidCxxCompiler: no g++\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(torch, "compile", lambda *_, **options: fail)
    assert train(text, "--compile --steps 1 --name a") == 2
    assert "--compile: torch cannot compile here (InvalidCxxCompiler: no g++)" in (
        capsys.readouterr().err)
