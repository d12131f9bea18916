"""Tests of bench.py on tiny models: the rows, the work, the table; never a time."""
import pytest
import torch

from nmt.flags import parse
from nmt.machine import Machine
from nmt.search import beam_search
from papers import bench
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


def test_a_training_batch_is_full(settings):
    step = bench.random_step(settings)
    source, target = step.batches[0]
    assert target.numel() <= 128 + len(target) and step.tokens == 5 * 25
    assert (target[:, 1:] != PAD).sum() == step.tokens
    assert source.min() > 2 and source.max() < V
    assert torch.equal(target[:, 1:-1], source)


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
    model = bench.build("linear", settings, "cpu")
    bench.decoding_speed(model, settings, CPU.device)
    source = torch.randint(3, V, (3, 6))
    for hypotheses in beam_search(model, source, bench.BEAM, max_length=7):
        assert len(hypotheses[0].tokens) == 6  # and EOS


def test_the_command_prints_every_row(capsys):
    assert bench.main(f"--rows torch em-all {SMALL}".split()) == 0
    *_, linear, torchs, em = capsys.readouterr().out.splitlines()
    assert linear.split()[0] == "linear" and len(linear.split()) == 6
    assert torchs.startswith("torch ") and len(torchs.split()) == 4  # no decoding
    assert em.startswith("em-all --agg em --agg-at enc cross dec")


def test_ratios_are_medians_within_a_turn():
    """The median of the ratios, 5/10, 16/20 and 24/40, is not the ratio of the medians."""
    rows = {}
    for name, training, decoding in (
        ("linear", (10.0, 20.0, 40.0), (1.0, 4.0, 3.0)),
        ("em-enc", (5.0, 16.0, 24.0), (0.9, 1.0, 2.7)),
    ):
        turns = [{"training": x, "decoding": y} for x, y in zip(training, decoding)]
        rows[name] = [{"parameters": 7000, "memory": 2**30, **turn} for turn in turns]
    _, linear, em = bench.speed_table(rows).splitlines()
    assert linear.split() == "linear 7,000 20 1.00 3.00 1.00 1,024".split()
    assert em.split()[5:] == "7,000 16 0.60 1.00 0.90 1,024".split()


def test_the_rows_take_turns(settings, monkeypatch):
    turns = []

    def measure_turn(name, *_):
        turns.append(name)
        return {"parameters": 1, "memory": None, "training": 1.0, "decoding": 1.0}
    monkeypatch.setattr(bench, "measure_turn", measure_turn)
    settings.rows = ("em-all",)
    bench.bench(settings)
    assert turns == ["linear", "em-all"] * 2
