"""Tests of bench.py on a minute model: the rows, the batches, the counted operations, the tables;
never a time."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import bench
from attention import Cache
from nmt.flags import parse
from nmt.machine import Machine
from nmt.search import beam_search
from papers import marian, synthetic
from transformer import PAD, SIZES, Transformer, TransformerConfig

CPU = Machine(torch.device("cpu"))
D = 16  # width
H = 2  # heads
F = 32  # feed-forward
L = 2  # layers
V = 300  # vocabulary


@pytest.fixture(autouse=True)
def minute(monkeypatch):
    """Size tiny is minute here."""
    monkeypatch.setitem(SIZES, "tiny", dict(layers=L, d_model=D, heads=H, d_ff=F))


FEW = f"--vocab-size {V} --max-tokens 128 --batches 2 --sentences 5 --median-length 6 --repeats 2"


def arguments(*flags):
    """Parsed flags as `command` completes them, of a run of a few tokens."""
    words = [*FEW.split(), "--lengths", "4", "8", *flags]
    args = parse(bench.Settings, words, "bench.py", "")
    bench.complete(args)
    return args


def work(args):
    """The training and decoding work of args."""
    return bench.work_of(args, CPU)


def test_batches_are_full_alike_and_of_mixed_lengths():
    args = arguments("--max-tokens", "1024", "--batches", "3", "--median-length", "24")
    training, decoding = work(args)
    again, _ = work(args)
    for step, same in zip(training, again):
        (batch,), (other,) = step.batches, same.batches
        assert torch.equal(batch.source, other.source) and torch.equal(batch.target, other.target)
        B = len(batch.source)
        assert 512 < B * max(batch.source.shape[1], batch.target.shape[1]) <= 1024
        assert step.tokens == (batch.target[:, 1:] != PAD).sum()
        assert 3 <= batch.target[:, 1:][batch.target[:, 1:] > 2].min() and batch.target.max() < V
    widths = [step.batches[0].target.shape[1] for step in training]
    assert widths[0] < widths[1] < widths[2]
    assert sum(len(source) for source, _ in decoding) == args.sentences


def test_the_lengths_are_spread_as_documented():
    corpus = synthetic.pairs(V, 24, 20_000, at_least=5, seed=1)
    source = torch.tensor(corpus.source_lengths).double()
    target = torch.tensor(corpus.target_lengths).double()
    assert source.median() == pytest.approx(24, abs=1)
    assert source.log().std() == pytest.approx(synthetic.SPREAD, abs=0.03)
    assert (target / source).log().std() == pytest.approx(synthetic.NOISE, abs=0.03)


def test_every_row_is_the_model_it_says():
    """Parameters over `linear`: those of DESIGN-sized formulas, for the minute size."""
    args = arguments()
    count = {}
    for name in bench.table_rows(L):
        if name != "marian":
            model = bench.build(name, args, "meta")
            count[name] = sum(p.numel() for p in model.parameters())
    extra = {name: n - count["linear"] for name, n in count.items()}
    votes = H * (D * D + D) + D * D + D + 2 * D - (D * D + D)  # votes, hidden, norm, without W^O
    assert extra["reg-output"] == extra["reg-enc"] == 0
    assert extra["dynamic-enc"] == L * votes
    # betas; the model has two layers
    assert extra["em-enc"] == extra["em-low"] == L * (votes + 2 * D)
    assert extra["em-all"] == 3 * L * (votes + 2 * D)
    # cross and dec of the last layer
    assert extra["gu-dynamic"] == 2 * (H * D * D // H + D * D + D)
    assert extra["capsule"] == L * (H * H + H)
    assert extra["torch"] == 0
    assert [bench.table_rows(6)[name].label for name in ("em-low", "torch")] == [
        "--agg em at enc:1-2",
        "torch.nn.Transformer",
    ]


def forward_by_hand(source, target, votes_at=()):
    """Multiplications and additions of the matrix products of a forward pass, written out."""
    (B, S), T = source, target
    # W^O, or hidden layer and votes
    def heads(at):
        return H * D * D + D * D if at in votes_at else D * D

    def attention(q, k):  # Q K^T and A V
        return 2 * q * k * D

    encoder = L * (S * (3 * D * D + heads("enc") + 2 * D * F) + attention(S, S))
    decoder = L * (
        T * (3 * D * D + heads("dec") + D * D + heads("cross") + 2 * D * F)
        + S * 2 * D * D
        + attention(T, T)
        + attention(T, S)
    )
    return 2 * B * (encoder + decoder + T * D * V)


@pytest.mark.parametrize(
    "name, votes_at",
    [("torch", ()), ("linear", ()), ("em-enc", ("enc",)), ("em-all", ("enc", "cross", "dec"))],
)
def test_the_matrix_products_are_counted_right(name, votes_at):
    args = arguments()
    training, decoding = work(args)
    counted = bench.operations(name, args, training, decoding)
    shapes = [
        (step.batches[0].source.shape, step.batches[0].target.shape[1] - 1) for step in training
    ]
    assert counted["training_flops"] * sum(step.tokens for step in training) == pytest.approx(
        3 * sum(forward_by_hand(*shape, votes_at) for shape in shapes), rel=1e-12
    )
    if name == "em-all":  # step t: B or 4 B hypotheses, keys and values of t positions
        expected = 0
        for source, length in decoding:
            B, S = source.shape
            own = 3 * D * D + (H * D * D + D * D) * 2 + D * D + 2 * D * F
            expected += (
                2
                * B
                * L
                * (S * (3 * D * D + H * D * D + D * D + 2 * D * F) + 2 * S * S * D + S * 2 * D * D)
            )
            for t in range(1, length + 1):
                expected += (
                    2 * (B if t == 1 else bench.BEAM * B) * (L * (own + 2 * (t + S) * D) + D * V)
                )
        assert counted["decoding_flops"] * args.sentences == pytest.approx(expected, rel=1e-12)


TORCH_NAMES = (
    ("attention.in_proj.", "self_attn.in_proj_"),
    ("attention.aggregation.output", "self_attn.out_proj"),
    ("cross.in_proj.", "multihead_attn.in_proj_"),
    ("cross.aggregation.output", "multihead_attn.out_proj"),
    ("ffn.0", "linear1"),
    ("ffn.3", "linear2"),
    ("source_embedding", "embedding"),
    ("encoder.", "body.encoder."),
    ("decoder.", "body.decoder."),
)


def torch_name(name: str) -> str:
    """What `TorchTransformer` calls a weight of `Transformer`."""
    for ours, theirs in TORCH_NAMES:
        name = name.replace(ours, theirs)
    return name


def test_torch_is_the_same_model_as_linear():
    """Twice the same weights: torch.nn.Transformer's output is that of this project's, whole and
    step by step with a cache."""
    args = arguments()
    ours = bench.build("linear", args, "cpu").eval()
    theirs = bench.build("torch", args, "cpu").eval()
    with torch.no_grad():
        for weight in ours.parameters():
            weight.copy_(torch.randn_like(weight) / 4)
        weights = {torch_name(name): weight for name, weight in ours.state_dict().items()}
        weights.pop("target_embedding.weight")  # tied: one matrix
        theirs.load_state_dict(weights)
        source = torch.randint(3, V, (3, 6))
        target = torch.randint(3, V, (3, 5))
        source[1, 4:] = PAD
        wanted, _ = ours(source, target)  # [B, L_t, V]
        torch.testing.assert_close(theirs(source, target)[0], wanted, rtol=1e-3, atol=1e-3)
        memory = theirs.encode(source)
        cache = Cache()
        for t in range(5):
            step = theirs.decode(target[:, t : t + 1], memory, cache)
            torch.testing.assert_close(step[:, 0], wanted[:, t], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["torch", "linear"])
def test_every_model_decodes_as_many_tokens(name):
    args = arguments()
    (source, _), *_ = work(args)[1]
    model = bench.build(name, args, "cpu")
    bench.decoding_speed(model, [(source, 7)], args, CPU)
    for hypotheses in beam_search(model, source, bench.BEAM, max_length=7):
        assert len(hypotheses[0].tokens) == 6  # and EOS


def test_one_run_one_table(tmp_path, capsys):
    """Rows that take turns, ratios to `linear`, growth, JSON."""
    path = tmp_path / "figures.json"
    small = f"--vocab-size {V} --max-tokens 64 --batches 1 --sentences 3 --median-length 5"
    flags = f"{small} --lengths 4 8 --repeats 2 --device cpu --no-memory --json {path}".split()
    assert bench.main(["--rows", "torch", "em-all", "capsule", *flags]) == 0
    out = capsys.readouterr().out
    for name in ("torch", "linear", "em-all", "capsule"):
        assert bench.table_rows(L)[name].label in out
    for column in (
        "parameters", "train tok/s", "TFLOP/s", "decode sent/s", "ratio", "paper", "limit",
        "peak MiB",
    ):
        assert column in out
    figures = json.loads(path.read_text())
    table = figures["tables"]["no"]
    summary = table["summary"]
    assert list(summary) == list(table["rows"]) == ["torch", "linear", "em-all", "capsule"]
    assert all(len(row["training"]) == len(row["decoding"]) == 2 for row in table["rows"].values())
    assert all(
        row[f"{what}_{kind}"] > 0
        for row in summary.values()
        for what in ("training", "decoding")
        for kind in ("ratio", "limit")
    )
    assert summary["linear"]["training_ratio"] == summary["linear"]["decoding_ratio"] == 1
    assert summary["linear"]["training_limit"] == 1 and summary["torch"]["training_limit"] == 1
    assert summary["em-all"]["training_limit"] < 1 and summary["em-all"]["training_paper"] == 0.34
    assert summary["torch"]["decoding_limit"] < 1
    assert list(table["growth"]) == ["linear", "capsule"]
    assert all(
        len(turn) == 2 and min(turn) > 0 for turns in table["growth"].values() for turn in turns
    )
    assert figures["settings"]["vocab_size"] == V and "PyTorch" in figures["machine"]


@pytest.fixture
def summary():
    """The summary of two rows over three turns; every number another, and the mean of a turn's
    ratios is not the median."""
    rows = {
        "linear": {
            "parameters": [5000, 5000],
            "training": [10.0, 20.0, 40.0],
            "decoding": [1.0, 4.0, 3.0],
            "training_flops": 10,
            "decoding_flops": 60,
        },
        "em-enc": {
            "parameters": [7000, 7000],
            "training": [5.0, 16.0, 24.0],
            "decoding": [0.9, 1.0, 2.7],
            "memory": [3 * 2**20, 4 * 2**20],
            "training_flops": 40,
            "decoding_flops": 80,
        },
        "em-all": {"training_flops": 50, "decoding_flops": 90},  # no turn was left for it
    }
    return bench.summarized(rows, 6)


def test_ratios_are_medians_within_a_turn(summary):
    assert summary["em-enc"] == {
        "label": "--agg em at enc",
        "parameters": 7000,
        "memory": 4 * 2**20,
        "flops": 640,
        "training": 16,
        "training_ratio": 0.6,
        "training_paper": 0.63,
        "training_limit": 0.25,
        "decoding": 1.0,
        "decoding_ratio": 0.9,
        "decoding_paper": 0.99,
        "decoding_limit": 0.75,
    }
    assert summary["linear"] == {
        "label": "linear",
        "parameters": 5000,
        "memory": None,
        "flops": 200,
        "training": 20,
        "training_ratio": 1,
        "training_paper": 1,
        "training_limit": 1,
        "decoding": 3.0,
        "decoding_ratio": 1,
        "decoding_paper": 1,
        "decoding_limit": 1,
    }


def test_the_printed_tables_have_every_number_in_its_place(summary):
    header, linear, em = bench.speed_table(summary, 2e-9).splitlines()
    assert re.split(r"  +", header.strip()) == [
        "parameters", "train tok/s", "ratio", "paper", "limit", "TFLOP/s", "of chip",
        "decode sent/s", "ratio", "paper", "limit", "peak MiB",
    ]
    first = "--agg em at enc 7,000 16 0.60 0.63 0.25 6.4e-10 32.0% 1.00 0.90 0.99 0.75 4"
    assert em.split() == first.split()
    second = "linear 5,000 20 1.00 1.00 1.00 2e-10 10.0% 3.00 1.00 1.00 1.00"
    assert linear.split() == second.split()
    assert "of chip" not in bench.speed_table(summary)
    growth = {
        "linear": [[1.0, 9.0], [2.0, 7.0], [5.0, 8.0]],
        "capsule": [[1.5, 30.0], [4.5, 10.0], [2.5, 20.0]],
    }
    header, short, long = bench.growth_table(growth, [16, 64]).splitlines()
    assert header.split() == ["sentence", "length", "linear", "--capsule", "enc", "dec"]
    assert short.split() == ["16", "2.0", "2.5"] and long.split() == ["64", "8.0", "20.0"]


def test_the_command_prints_how_many_operations_a_second_linear_takes(monkeypatch, capsys):
    """Operations per token times tokens per second."""
    row = {
        "parameters": [5],
        "training": [20.0, 10.0, 40.0],
        "decoding": [1.0],
        "training_flops": 3e9,
        "decoding_flops": 7.0,
    }
    monkeypatch.setattr(
        bench,
        "measure",
        lambda args, where: {"no": {"rows": {"linear": row}, "growth": {"linear": [[1.0], [4.0]]}}},
    )
    assert bench.main(["--rows", "linear", "--device", "cpu", "--lengths", "16"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^linear +5 +20( +1\.00){3} +0\.06 ", out, re.M)  # 60 GFLOP/s
    assert re.search(r"^16 +2\.5$", out, re.M)


def test_speeds_are_work_over_time(monkeypatch):
    """Target tokens per second of training, after two rounds that do not count; sentences per
    second; microseconds per target token by length. With a clock by which everything takes half a
    second."""
    args = arguments()
    steps = []
    searched = []
    limits = []

    def timed(f, where):
        done = len(steps), len(searched)
        f()
        limits.append((len(steps) - done[0], searched[done[1] :]))
        return 0.5

    monkeypatch.setattr(bench, "timed", timed)
    monkeypatch.setattr(
        bench,
        "train_step",
        lambda model, optimizer, step, settings, where: steps.append(
            (step, settings.label_smoothing, model.training)
        ),
    )
    monkeypatch.setattr(
        bench.search,
        "beam_search",
        lambda model, source, beam, lenpen, max_length: searched.append(
            (len(source), beam, lenpen, max_length, model.training)
        ),
    )
    training, decoding = work(args)
    model = bench.build("linear", args, "cpu")
    tokens = sum(
        int((batch.target[:, 1:] != PAD).sum()) for step in training for batch in step.batches
    )
    assert bench.training_speed(model, training, args, CPU) == 2 * tokens
    assert steps == [(step, 0.1, True) for step in training * 3] and limits == [(len(training), [])]
    assert bench.decoding_speed(model, decoding, args, CPU) == 2 * 5
    assert searched[: len(decoding)] == [
        (len(source), 4, 0.6, min(3, length), False) for source, length in decoding
    ]
    assert limits[1] == (0, [(len(source), 4, 0.6, length, False) for source, length in decoding])
    steps.clear()
    found = bench.growth_turn("capsule", "no", args, CPU)
    for length, value, (step, *_) in zip(args.lengths, found, steps[::3]):
        (batch,) = step.batches
        assert batch.source.shape == (32 // length, length) and batch.target.shape == (
            32 // length,
            length + 1,
        )
        assert value == pytest.approx(1e6 * 0.5 / (32 // length * length))


def test_a_row_that_fails_on_a_gpu_is_left_out(monkeypatch, capsys):
    args = arguments("--rows", "linear", "em-enc", "--repeats", "2", "--lengths", "--no-memory")
    args.compile = ("layers", "no")
    turns = []

    def turn(name, mode, *_):
        turns.append((mode, name))
        if (mode, name) == ("layers", "em-enc"):
            raise RuntimeError("CUDA out of memory\nand more")
        return {"training": 1.0}
    monkeypatch.setattr(bench, "turn", turn)
    monkeypatch.setattr(bench, "work_of", lambda *_: ((), ()))
    monkeypatch.setattr(bench, "operations", lambda *_: {})
    tables = bench.measure(args, Machine(torch.device("cuda")))
    assert tables["layers"]["rows"] == {"linear": {"training": [1.0, 1.0]}, "em-enc": {}}
    assert tables["no"]["rows"]["em-enc"] == {"training": [1.0, 1.0]}
    # a mode after the other, and the row not tried again
    assert [mode for mode, _ in turns] == ["layers"] * 3 + ["no"] * 4
    error = capsys.readouterr().err
    assert error.count("left out: CUDA out of memory") == 1 and "and more" not in error
    with pytest.raises(RuntimeError):                    # on a CPU it is a mistake of ours
        bench.measure(args, CPU)


@pytest.mark.parametrize("name, rate", [
    ("NVIDIA H200", 989), ("NVIDIA H200 NVL", 835), ("NVIDIA H200 MIG 1g.18gb", None),
    ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-80GB", 312), ("A processor", None)])
def test_the_rate_of_a_chip(name, rate, monkeypatch):
    monkeypatch.setattr(bench, "processor", lambda device: name)
    assert bench.chip_rate(SimpleNamespace(amp=True), CPU) == rate
    assert bench.chip_rate(SimpleNamespace(amp=False), CPU) is None


def test_the_clock(monkeypatch):
    """CPU seconds with one thread, which other programs do not lengthen; seconds on the wall with
    several."""
    wall = iter((100.0, 107.0))
    cpu = iter((3.0, 5.0))
    clocks = SimpleNamespace(perf_counter=lambda: next(wall), process_time=lambda: next(cpu))
    monkeypatch.setattr(bench, "time", clocks)
    assert bench.timed(lambda: None, CPU) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert bench.timed(lambda: None, CPU) == 7


def test_peak_memory_holds_parameters_gradients_and_moments(monkeypatch):
    """In a process of its own, so that nothing but this row counts; there, tiny is tiny."""
    monkeypatch.undo()
    args = arguments("--vocab-size", "50000", "--max-tokens", "32", "--batches", "1", "--lengths")
    with bench.multiprocessing.get_context("spawn").Pool(1) as pool:
        peak = pool.apply(bench.peak_on_cpu, ("linear", "no", args))
    parameters = sum(p.numel() for p in bench.build("linear", args, "meta").parameters())
    logits = 32 * 50_000
    # oneDNN's product for the output matrix is one more tensor of its size
    assert 16 * parameters < peak < 20 * parameters + 4 * 12 * logits + 2**26


def test_the_gpu_report_on_a_cpu(monkeypatch, tmp_path, capsys):
    """The figures of two tables land in results/, their text at the end of RESULTS.md; a second
    run renews both."""
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda layer, **_: None)
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n")
    small = "--arch tiny --device cpu --vocab-size 300 --max-tokens 64 --batches 1 --sentences 3"
    flags = f"{small} --repeats 1 --rows linear reg-output --lengths --no-memory".split()
    for _ in range(2):
        assert bench.main(["--gpu-report", "--compile", "no", "layers", *flags]) == 0
        text = path.read_text()
        assert text.count("<!-- results/bench-tiny-cpu.json -->") == text.count("<!-- end -->") == 1
        assert text.count("layers compiled:") == 1 and text.count("--reg output") == 2
        assert "\n    python bench.py --arch tiny --rows linear reg-output" in text
    stored = json.loads((tmp_path / "results/bench-tiny-cpu.json").read_text())
    assert stored["settings"]["minutes"] == 8 and stored["settings"]["vocab_size"] == 300
    assert torch.cuda.is_available() or bench.main(["--gpu-report"]) == 2
    assert torch.cuda.is_available() or "--device cuda" in capsys.readouterr().err


def test_what_does_not_fit_the_time_is_left_out(monkeypatch):
    """With a clock that jumps a minute at every look: rows of one turn where two were asked for."""
    minutes = iter(range(0, 10_000, 60))
    clocks = SimpleNamespace(perf_counter=lambda: next(minutes), process_time=lambda: 0.0)
    monkeypatch.setattr(bench, "time", clocks)
    monkeypatch.setattr(bench, "turn", lambda *_: {"parameters": 1, "training": 2, "decoding": 3})
    monkeypatch.setattr(bench, "operations", lambda *_: {})
    args = arguments("--minutes", "5", "--rows", "reg-output", "--lengths", "--no-memory")
    rows = bench.measure(args, CPU)["no"]["rows"]
    assert [len(row["training"]) for row in rows.values()] == [2, 1]


@pytest.mark.skipif(not marian.installed(), reason="transformers is not installed")
def test_marian_is_as_large_as_linear_and_decodes_as_far():
    """The same products, counted; parameters but for the two last norms; a search to the limit."""
    args = arguments()
    ours, theirs = (bench.build(name, args, "cpu").eval() for name in ("linear", "marian"))
    count = []
    for model in (ours, theirs):
        count.append(sum(p.numel() for p in model.parameters() if p.requires_grad))
    assert count[0] - count[1] == 4 * D
    source = torch.randint(3, V, (3, 6))
    target = torch.randint(3, V, (3, 5))
    flops = []
    for model in (ours, theirs):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            logits, _ = model(source, target)
        assert logits.shape == (3, 5, V)
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1]
    bench.decoding_speed(theirs, [(source, 7)], args, CPU)
    assert theirs.search(source, bench.BEAM, 0.6, 7).shape == (3, 8)  # BOS first


@pytest.mark.skipif(marian.installed(), reason="transformers is installed")
def test_without_transformers_one_line(capsys):
    assert "marian" not in bench.available_rows()
    assert bench.main(["--rows", "marian", "--device", "cpu"]) == 2
    assert "pip install transformers" in capsys.readouterr().err


def test_the_whole_model_is_left_as_it_was():
    """Building rows changes neither the sizes nor the flags of the real ones."""
    before = {**SIZES["tiny"]}
    bench.build("capsule", arguments(), "meta")
    assert SIZES["tiny"] == before
    assert isinstance(bench.build("linear", arguments(), "meta"), Transformer)
    assert bench.build("torch", arguments(), "meta").config == TransformerConfig(V, **SIZES["tiny"])
