"""Tests of bench.py on tiny models: the rows, the work, the table; never a time."""
import json

import pytest
import torch

import bench
from attention import Cache
from nmt.flags import parse
from nmt.machine import Machine
from nmt.search import beam_search
from papers import synthetic
from transformer import PAD, SIZES

CPU = Machine(torch.device("cpu"))
D = 16  # width
H = 2  # heads
L = 2  # layers
V = 300  # vocabulary
SMALL = f"--vocab-size {V} --max-tokens 128 --batches 1 --sentences 3 --repeats 2 --device cpu"


@pytest.fixture(autouse=True)
def size(monkeypatch):
    monkeypatch.setitem(SIZES, "tiny", dict(layers=L, d_model=D, heads=H, d_ff=32))


@pytest.fixture
def settings():
    return parse(bench.Settings, SMALL.split(), bench.presets)


def test_training_batches_are_full_and_go_from_short_to_long_sentences():
    corpus = synthetic.make_pairs(V, 1024, at_least=5)
    steps = synthetic.training_work(corpus, 1024, 3)
    widths = []
    for step in steps:
        (batch,) = step.batches
        B = len(batch.source)
        widths.append(batch.target.shape[1])
        assert 512 < B * max(batch.source.shape[1], batch.target.shape[1]) <= 1024
        assert step.tokens == (batch.target[:, 1:] != PAD).sum()
        assert batch.source.max() < V
    assert widths[0] < widths[1] < widths[2]


def test_decoding_batches_hold_every_sentence_and_their_mean_length():
    corpus = synthetic.make_pairs(V, 1024, at_least=5)
    work = synthetic.decoding_work(corpus, 50, beam=4)
    assert sum(len(source) for source, _ in work) == 50
    decoded = sum(len(source) * length for source, length in work) / 50
    assert decoded == pytest.approx(1 + corpus.target_lengths.mean(), rel=0.1)


def test_parameters_of_the_rows(settings):
    extra = {}
    for name in ("linear", "torch", "reg-enc", "em-enc", "em-all", "capsule"):
        model = bench.build(name, settings, "meta")
        extra[name] = sum(p.numel() for p in model.parameters())
    linear = extra.pop("linear")
    extra = {name: count - linear for name, count in extra.items()}
    em = L * (H * (D * D + D) + 2 * D + 2 * D)  # votes, norm and betas
    capsule = L * (H * H + H)
    assert extra == {"torch": 0, "reg-enc": 0, "em-enc": em, "em-all": 3 * em, "capsule": capsule}


def test_torch_decodes_step_by_step_what_it_decodes_at_once(settings):
    model = bench.build("torch", settings, "cpu").eval()
    source = torch.randint(3, V, (3, 6))
    target = torch.randint(3, V, (3, 5))
    source[1, 4:] = PAD
    with torch.no_grad():
        expected = model.output(model.hidden(source, target)[0])  # [B, L_t, V]
        memory = model.encode(source)
        cache = Cache()
        for t in range(5):
            logits = model.decode(target[:, t : t + 1], memory, cache)[:, 0]
            torch.testing.assert_close(logits, expected[:, t])
        alone = model.output(model.hidden(source[1:2, :4], target[1:2])[0])
        torch.testing.assert_close(alone[0], expected[1])


@pytest.mark.parametrize("name", ["torch", "linear"])
def test_no_hypothesis_ends_before_its_limit(name, settings):
    model = bench.build(name, settings, "cpu")
    source = torch.randint(3, V, (3, 6))
    bench.decoding_speed(model, [(source, 7)], CPU.device)
    for hypotheses in beam_search(model, source, bench.BEAM, max_length=7):
        assert len(hypotheses[0].tokens) == 6  # and EOS


def test_the_command_prints_every_row_and_writes_every_turn(tmp_path, capsys):
    path = tmp_path / "figures.json"
    argv = f"--rows torch em-all {SMALL} --json {path}".split()
    assert bench.main(argv) == 0
    rows = json.loads(path.read_text())["rows"]
    assert list(rows) == ["linear", "torch", "em-all"]
    out = capsys.readouterr().out
    for name, turns in rows.items():
        assert bench.ROWS[name].label in out
        assert len(turns) == 2
        assert all(turn["training"] > 0 and turn["decoding"] > 0 for turn in turns)


def test_ratios_are_medians_within_a_turn():
    """The median of the ratios, 5/10, 16/20 and 24/40, is not the ratio of the medians."""
    gigabyte = 2**30
    rows = {}
    for name, training, decoding in (
        ("linear", (10.0, 20.0, 40.0), (1.0, 4.0, 3.0)),
        ("em-enc", (5.0, 16.0, 24.0), (0.9, 1.0, 2.7)),
    ):
        turns = [{"training": x, "decoding": y} for x, y in zip(training, decoding)]
        rows[name] = [{"parameters": 7000, "memory": gigabyte, **turn} for turn in turns]
    _, linear, em = bench.speed_table(rows, rate=8.4e6).splitlines()
    assert linear.split() == "linear 7,000 20 1.00 1.00 3.00 1.00 1.00 1,024 10.0%".split()
    assert em.split() == "--agg em at enc 7,000 16 0.60 0.63 1.00 0.90 0.99 1,024 8.0%".split()


def test_rows_that_do_not_fit_the_memory_or_the_time_are_left_out(settings, monkeypatch):
    def turn(name, *_):
        if name == "torch":
            raise torch.OutOfMemoryError
        return name

    monkeypatch.setattr(bench, "measure_turn", turn)
    settings.rows = ("torch", "em-all")
    assert bench.measure(settings, CPU) == {"linear": ["linear"] * 2, "em-all": ["em-all"] * 2}
    settings.minutes = 0
    assert bench.measure(settings, CPU) == {}


def test_the_rate_of_a_chip():
    assert bench.chip_rate("NVIDIA H200 NVL") == 835e12
    assert bench.chip_rate("NVIDIA H200 MIG 1g.18gb") is None
    assert bench.chip_rate("A processor") is None
