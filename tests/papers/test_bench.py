"""Tests of bench.py on tiny models: the rows, the work, the table; never a time."""
import re
from types import SimpleNamespace

import pytest
import torch

import train_mt
from nmt.loss import piece_loss
from nmt.search import beam_search
from nmt.tokenizer import EOS
from papers import bench
from tools.command_line import parse
from transformer import PAD, SIZES

V = 300  # vocabulary
SMALL = f"--vocab-size {V} --max-tokens 128 --repeats 1 --device cpu"


@pytest.fixture(autouse=True)
def size(monkeypatch):
    for name in ("tiny", "small"):
        monkeypatch.setitem(SIZES, name, dict(layers=2, d_model=16, heads=2, d_ff=32))


@pytest.fixture
def settings():
    return parse(bench.Settings, SMALL.split(), bench.presets)


def test_every_row_is_a_model_and_torch_has_the_parameters_of_linear(settings):
    counts = {}
    for name in bench.ROWS:
        model = bench.build(name, settings, "meta")
        counts[name] = sum(p.numel() for p in model.parameters())
    assert counts["torch"] == counts["linear"] < counts["em-low"]


def test_the_heads_of_a_size_are_replaced():
    heads = []
    for words, name in (("", "linear"), ("--heads 8", "capsule"), ("--heads 8", "one-head")):
        s = parse(bench.Settings, f"{SMALL} {words}".split(), bench.presets)
        heads.append(bench.build(name, s, "meta").config.heads)
    assert heads == [2, 8, 1]                            # the sizes are smaller in these tests


def test_a_row_that_is_no_model_stops_before_the_first_turn(capsys):
    assert bench.main(f"{SMALL} --rows em-output --heads 1".split()) == 2
    captured = capsys.readouterr()
    assert "needs --heads 2" in captured.err and "turn 1" not in captured.out


def test_torch_sees_neither_padding_nor_later_words(settings):
    model = bench.build("torch", settings, "cpu").eval()
    source = torch.randint(3, V, (2, 6))
    target = torch.randint(3, V, (2, 5))
    source[1, 4:] = PAD
    with torch.no_grad():
        states, _ = model.hidden(source, target)                             # [B, L_t, d]
        alone, _ = model.hidden(source[1:, :4], target[1:, :3])
    torch.testing.assert_close(alone[0], states[1, :3])


def test_no_hypothesis_ends_before_its_limit(settings):
    model = bench.build("linear", settings, "cpu").eval()
    assert not model.output.weight[EOS].any()  # else a few seeds would end earlier
    source = torch.randint(3, V, (3, 6))
    for hypotheses in beam_search(model, source, bench.BEAM, max_length=7):
        assert len(hypotheses[0].tokens) == 6  # and EOS


def test_a_training_batch_is_full(settings):
    for settings.max_tokens, sentences in ((124, 4), (125, 5)):
        step = bench.random_step(settings)
        source, target = step.batches[0]
        assert step.tokens == sentences * 25 == (target[:, 1:] != PAD).sum()
        assert source.min() > 2 and torch.equal(target[:, 1:-1], source)


@pytest.mark.parametrize("words, compiled, graphs", [
    ("", False, True), ("--max-tokens 32768", False, False), ("--arch base", False, True),
    ("--arch base --max-tokens 32768", True, False), ("--arch base --no-graphs", True, False),
    ("--arch base --compile", True, False)])
def test_on_a_gpu_training_is_that_of_train_mt(words, compiled, graphs, monkeypatch):
    monkeypatch.setattr(bench, "pick_device", torch.device)
    monkeypatch.setattr(train_mt, "machine_defaults", lambda name:
                        dict.fromkeys(("amp", "compile", "graphs"), name == "cuda"))
    s = parse(bench.Settings, ["--device", "cuda", *words.split()], bench.presets)
    assert (s.amp, s.compile, s.graphs, s.rows) == (True, compiled, graphs, bench.GPU_ROWS)
    batch = bench.random_step(s).batches[0]
    assert (batch.source.shape == batch.target.shape) == s.graphs            # a rectangle


def test_a_compiled_step_with_graphs_is_measured(monkeypatch, capsys):
    """Without a compiler or a graph: calls of the replay, and of the loss in it."""
    assert bench.main(f"--graphs {SMALL}".split()) == 2
    assert "--graphs needs a GPU" in capsys.readouterr().err
    calls = []

    def record_and_compute(*args):
        calls.append("loss")
        return piece_loss(*args)

    def compile_parts(self):
        self.piece_loss = record_and_compute

    monkeypatch.setattr(bench.Objective, "compile_parts", compile_parts)
    monkeypatch.setattr(bench, "check_compiler", lambda device: None)
    monkeypatch.setattr(bench, "check_graphs", lambda *args: None)
    monkeypatch.setattr(bench, "Replay", lambda: lambda f, *x: calls.append("replay") or f(*x))
    assert bench.main(f"--rows linear --compile --graphs {SMALL}".split()) == 0
    assert calls == ["replay", "loss"] * 3
    assert "layers compiled, CUDA graphs" in capsys.readouterr().out


def test_the_command_prints_a_table(capsys):
    assert bench.main(f"--rows torch em-all {SMALL}".split()) == 0
    out = capsys.readouterr().out
    assert re.search(r"turn 1 of 1, linear: [\d,]+ target tokens/s, [\d,.]+ sentences/s, nan", out)
    *_, linear, torchs, em = out.splitlines()
    assert linear.split()[0] == "linear" and linear.split()[-2:] == ["1.00", "1.00"]
    assert torchs.split()[0] == "torch" and torchs.count("nan") == 4     # no decoding, no GPU
    assert em.startswith("em-all --agg em --agg-at enc cross dec")


def test_training_is_in_the_usual_precision_and_decoding_without_dropout(monkeypatch, capsys):
    """And with label smoothing and the usual lambda. A call of either takes two seconds."""
    seen = []
    monkeypatch.setattr(bench, "train_step", lambda objective, *args, reg_weight, amp, replay:
                        seen.append((objective.training, args[-1], reg_weight, amp)))
    monkeypatch.setattr(bench, "beam_search", lambda model, source, beam, max_length:
                        seen.append((model.training, beam, max_length)))
    monkeypatch.setattr(bench, "measure_seconds", lambda f, device: f() or 2.0)
    monkeypatch.setattr(bench, "measure_kernels", lambda f, device: 1.0)
    monkeypatch.setattr(train_mt, "machine_defaults", lambda name:
                        dict(amp=True, compile=False, graphs=False))
    words = f"--rows linear --arch small {SMALL} --vocab-size 3000 --repeats 2"
    assert bench.main(words.split()) == 0
    assert seen == [(True, 0.1, 1.0, True), (False, 4, 25)] * 2
    out = capsys.readouterr().out
    machine = f"{bench.processor(torch.device('cpu'))}, threads: 1; PyTorch {torch.__version__}"
    heading, turn, *_ = out.splitlines()
    assert heading == f"{machine}; size small, vocabulary 3,000, batches of 128 tokens; bfloat16"
    assert turn == ("turn 1 of 2, linear: 62 target tokens/s, 16.00 sentences/s, nan MiB, GPU busy "
                    "0.50")


@pytest.mark.parametrize("device, threads, clock, calls", [
    ("cpu", 1, "process_time", 3), ("cpu", 2, "perf_counter", 3), ("cuda", 1, "perf_counter", 7)])
def test_the_first_two_calls_do_not_count(device, threads, clock, calls, monkeypatch):
    """A call takes ten seconds."""
    now = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(bench.time, clock, lambda: 10 * len(now))
    monkeypatch.setattr(torch, "get_device_module", lambda device:
                        SimpleNamespace(synchronize=lambda: None))
    assert bench.measure_seconds(lambda: now.append(1), torch.device(device)) == 10
    assert len(now) == calls


def test_ratios_are_medians_within_a_turn():
    """The median of the ratios, 5/10, 16/20 and 24/40, is not the ratio of the medians."""
    rows = {"linear": [bench.Turn(7000, speed, 1.0, 2.0, 0.5) for speed in (10.0, 20.0, 40.0)],
            "em-enc": [bench.Turn(7000, speed, 3.0, 2.0, 0.7) for speed in (5.0, 16.0, 24.0)]}
    header, _, em = bench.speed_table(rows).splitlines()
    assert re.split("  +", header.strip()) == ["parameters", "train tok/s", "decode sent/s",
                                               "GPU MiB", "GPU busy", "train", "decode"]
    assert em.split()[5:] == "7,000 16 3.00 2 0.70 0.60 3.00".split()
