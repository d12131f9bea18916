"""train_mt.py: the schedule, the stream of batches, the weighting of the loss, whole runs,
resuming, two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_run import small_corpus

import train_mt
from nmt import run_folder
from nmt.batches import collate
from nmt.encoded import EncodedPairs
from nmt.flags import parse
from transformer import Transformer, TransformerConfig

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "--layers", "1", "--d-model", "16", "--heads", "2", "--d-ff", "16", "--vocab-size", "300",
    "--workers", "0", "--max-tokens", "256", "--warmup", "20", "--log-every", "3", "--device",
    "cpu",
]
EVERYTHING = [
    "--agg", "em", "--agg-at", "enc", "cross", "--reg", "output", "subspace", "position",
    "--capsule", "enc", "dec",
]


def metrics(folder):
    """The rows of a run without what the clock has a say in."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clock = ("time", "tokens_per_second", "sentences_per_second")
    for row in rows:
        for key in clock:
            row.pop(key, None)
    return rows


def corpus(n=50, seed=0):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, (2, n))
    offsets = [np.concatenate(([0], side.cumsum())) for side in lengths]
    ids = [random.integers(3, 30, side.sum()).astype(np.int32) for side in lengths]
    return EncodedPairs(ids[0], offsets[0], ids[1], offsets[1])


def settings(argv) -> train_mt.Settings:
    """The settings of a command line."""
    return parse(train_mt.Settings, argv, "train_mt.py", "")


def flags(**kwargs):
    return SimpleNamespace(
        **{
            **dict(
                max_tokens=40,
                seed=1,
                accumulate=2,
                workers=0,
                amp=False,
                label_smoothing=0.1,
                clip=0.0,
            ),
            **kwargs,
        }
    )


# ---- Schedule, stream, loss


def test_vaswani_schedule():
    d, warmup = 512, 4000
    args = SimpleNamespace(lr=0.7, warmup=warmup, decay="sqrt", steps=10)
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        rising, falling = step * warmup**-1.5, step**-0.5
        assert train_mt.learning_rate(step, d, args) == pytest.approx(
            0.7 * d**-0.5 * min(rising, falling)
        )


def test_linear_decay():
    args = SimpleNamespace(lr=2.0, warmup=10, decay="linear", steps=30)
    peak = 2.0 * (64 * 10) ** -0.5
    rates = [train_mt.learning_rate(step, 64, args) for step in range(1, 32)]
    assert rates[:10] == pytest.approx([peak * step / 10 for step in range(1, 11)])
    assert rates[9:] == pytest.approx(np.linspace(peak, 0, 22))


def rows(batches):
    return sorted(
        tuple(map(tuple, (s.tolist(), t.tolist())))
        for b in batches
        for s, t in zip(b.source, b.target)
    )


def test_every_pair_once_per_epoch():
    encoded, seen = corpus(), []
    for step in train_mt.steps(encoded, flags(accumulate=1), (0, 0)):
        if step.place[0] == 1 and seen and step.place[1] == 1:
            break
        seen += step.batches
    trimmed = sorted(
        (tuple(s[s > 2].tolist()), tuple(t[t > 2].tolist()))
        for b in seen
        for s, t in zip(b.source, b.target)
    )
    assert trimmed == sorted(
        (tuple(encoded.source(i).tolist()), tuple(encoded.target(i).tolist())) for i in range(50)
    )


@pytest.mark.parametrize("world, accumulate", [(2, 1), (2, 3), (3, 2)])
def test_shards_are_the_whole_without_overlap(world, accumulate):
    encoded = corpus()
    alone = train_mt.steps(encoded, flags(accumulate=accumulate * world), (0, 0))
    shards = [
        train_mt.steps(encoded, flags(accumulate=accumulate), (0, 0), rank, world)
        for rank in range(world)
    ]
    for _ in range(12):  # over the ends of several epochs
        whole = next(alone)
        parts = [next(shard) for shard in shards]
        assert all(len(part.batches) == accumulate for part in parts)
        assert rows(whole.batches) == rows([b for part in parts for b in part.batches])
        assert {whole.tokens} == {part.tokens for part in parts}
        assert {whole.place} == {part.place for part in parts}
        assert whole.tokens == sum(int((b.target[:, 1:] != 0).sum()) for b in whole.batches)


def test_the_stream_goes_on_from_its_place():
    encoded = corpus()
    args = flags(accumulate=3)
    stream = train_mt.steps(encoded, args, (0, 0))
    first = [next(stream) for _ in range(9)]
    for k in range(8):
        again = train_mt.steps(encoded, args, first[k].place)
        assert rows(next(again).batches) == rows(first[k + 1].batches)


def test_li2018_objective():
    """Micro-batches weigh by their target tokens.

    The gradient of an update is that of (sum of cross-entropies - lambda sum of D tokens) / all
    tokens; both sums and the gradient's norm come back for the log.
    """
    torch.manual_seed(0)
    config = TransformerConfig(
        30, 16, 2, 1, 16, dropout=0.0, reg=("output", "position"), reg_weight=0.7
    )
    model = Transformer(config).double()
    encoded = corpus()
    micro = [
        collate(encoded, [0, 1, 2, 3, 4, 5]),
        collate(encoded, [6]),
        collate(encoded, [7, 8, 9]),
    ]
    tokens = [int((b.target[:, 1:] != 0).sum()) for b in micro]
    step = train_mt.Step(micro, sum(tokens), (0, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)
    sums, norm = train_mt.train_step(
        train_mt.Objective(model),
        optimizer,
        step,
        flags(label_smoothing=0.3),
        train_mt.Machine(torch.device("cpu")),
    )
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    total, want = 0, torch.zeros(2)
    for batch, n in zip(micro, tokens):
        logits, heads = model(batch.source, batch.target[:, :-1])
        D = model.disagreement(heads, batch.source != 0, batch.target[:, 1:] != 0)
        out = batch.target[:, 1:]
        log_p = logits.log_softmax(-1)
        cross_entropy = 0
        for b in range(len(out)):  # label smoothing, literally
            for l in range(out.shape[1]):
                if out[b, l] != 0:
                    cross_entropy -= 0.7 * log_p[b, l, out[b, l]] + 0.3 * log_p[b, l].mean()
        total = total + (cross_entropy / n - 0.7 * D) * n / sum(tokens)
        want += torch.stack([cross_entropy, D * n]).detach()
    total.backward()
    torch.testing.assert_close(sums, want)
    squares = [p.grad.square().sum() for p in model.parameters()]
    assert norm.item() == pytest.approx(sum(squares).sqrt().item())
    for p, grad in zip(model.parameters(), found):
        torch.testing.assert_close(grad, p.grad, rtol=1e-9, atol=1e-12)


class Blind(torch.optim.Adam):
    """Does not look at found_inf, as the fused Adam on Apple's GPU."""

    def step(self):
        self.found_inf = None
        super().step()


@pytest.mark.parametrize("adam, leaves_out", [(torch.optim.Adam, ("cpu",)), (Blind, ())])
def test_an_infinite_gradient_leaves_parameters_and_optimizer_alone(adam, leaves_out, monkeypatch):
    monkeypatch.setattr(train_mt, "LEAVES_OUT", leaves_out)
    model = Transformer(TransformerConfig(30, 16, 2, 1, 16, reg=("output",)))
    encoded = corpus()
    optimizer = adam(model.parameters(), fused=True)
    step = next(train_mt.steps(encoded, flags(), (0, 0)))
    train_mt.train_step(
        train_mt.Objective(model), optimizer, step, flags(), train_mt.Machine(torch.device("cpu"))
    )
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = [v.clone() for s in optimizer.state.values() for v in s.values()]
    model.config.reg_weight = float("inf")
    _, norm = train_mt.train_step(
        train_mt.Objective(model), optimizer, step, flags(), train_mt.Machine(torch.device("cpu"))
    )
    assert not torch.isfinite(norm)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    after = [v for s in optimizer.state.values() for v in s.values()]
    assert all(torch.equal(a, b) for a, b in zip(state, after))


# ---- Whole runs


def test_a_run_writes_reports_and_is_not_run_twice(text, tmp_path, capsys):
    argv = (
        text
        + SMALL
        + EVERYTHING
        + ["--steps", "8", "--eval-every", "4", "--average", "2", "--name", "a"]
    )
    assert train_mt.main(argv) == 0
    first, folder = capsys.readouterr().out, tmp_path / "runs" / "a"
    assert "test BLEU" in first and "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in first
    assert {
        "config.json", "tokenizer.json", "metrics.jsonl", "last.pt", "best.pt", "average.pt",
    } <= set(os.listdir(folder))
    result = metrics(folder)[-1]
    assert set(result["disagreement"]) == {"enc", "cross", "dec"}
    for kinds in result["disagreement"].values():
        assert all(0 < score <= 1 for score in kinds.values())
    assert [row["step"] for row in metrics(folder) if "valid_bleu" in row] == [4, 8]
    assert train_mt.main(argv) == 0
    assert capsys.readouterr().out.splitlines()[-6:] == first.splitlines()[-6:]


INTERRUPTED = [*EVERYTHING, "--steps", "11", "--eval-every", "6", "--accumulate", "2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run which nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    argv = [*small_corpus(folder), *SMALL, *INTERRUPTED, "--name", "whole"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_mt, "draw", lambda rows, path: None)
        assert train_mt.main(argv) == 0
    return folder / "runs" / "whole"


@pytest.mark.parametrize("stop", [1, 5, 6, 10])
def test_resuming_is_exact(text, whole, tmp_path, monkeypatch, stop):
    """Stopped in an epoch, between log lines, at a validation, and after one: the same parameters
    and metrics."""
    argv = [*text, *SMALL, *INTERRUPTED, "--name", "parts"]

    def agreed(signals, step, where):
        if step == stop:
            signals.append(15)
        return step == stop
    with monkeypatch.context() as patch:
        patch.setattr(train_mt, "agreed", agreed)
        with pytest.raises(SystemExit) as exit:
            train_mt.main(argv)
    assert exit.value.code == 143
    torch.manual_seed(99)
    torch.rand(7)
    assert train_mt.main(argv) == 0
    parts = tmp_path / "runs" / "parts"
    assert metrics(whole) == metrics(parts)
    a, b = (run_folder.load(folder / "last.pt") for folder in (whole, parts))
    assert a["model"].keys() == b["model"].keys()
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    for name, state in a["optimizer"]["state"].items():
        assert all(torch.equal(state[k], b["optimizer"]["state"][name][k]) for k in state)


def test_resuming_is_exact_in_the_other_processes_too(tmp_path, monkeypatch):
    """The second of two processes, played alone; a checkpoint has the random state of the first
    one only."""
    where = train_mt.Machine(torch.device("cpu"), 1, 2)
    config = TransformerConfig(30, 16, 2, 1, 16, dropout=0.3)
    args = settings("--steps 9 --max-tokens 40 --device cpu".split())
    encoded = {"train": corpus()}
    train_mt.complete(args, where)
    monkeypatch.setattr(train_mt, "DistributedDataParallel", lambda model, **options: model)
    monkeypatch.setattr(train_mt.dist, "all_reduce", lambda *arguments: None)

    def trained(until, path=None):
        monkeypatch.setattr(train_mt, "agreed", lambda stop, step, where: step == until)
        job = train_mt.Training(args, config, where)
        if path:
            job.resume(path)
        train_mt.fit(job, None, encoded, None, None, [])
        assert job.step == until
        return job

    whole = trained(7)
    part = trained(4)
    torch.manual_seed(99)  # as far as this process knows
    part.save(tmp_path / "last.pt")
    again = trained(7, tmp_path / "last.pt")
    assert all(map(torch.equal, whole.model.parameters(), again.model.parameters()))
    assert whole.norms[-3:] == again.norms[-3:]


def test_a_few_steps_without_a_finite_gradient_end_the_run(text, tmp_path, capsys, monkeypatch):
    argv = text + SMALL + ["--steps", "40", "--eval-every", "4", "--name", "a"]
    sound, calls = train_mt.Objective.forward, []

    def broken(*args):
        calls.append(1)
        loss, D = sound(*args)
        return loss * (float("nan") if len(calls) > 6 else 1), D

    monkeypatch.setattr(train_mt.Objective, "forward", broken)
    assert train_mt.main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for words in ("steps 7 to 11, up to batch", "not finite", "--lr"):
        assert words in error
    state = run_folder.load(tmp_path / "runs" / "a" / "last.pt")
    assert all(weight.isfinite().all() for weight in state["model"].values())


@pytest.mark.parametrize(
    "extra",
    [
        ["--arch", "huge"],
        ["--steps", "0"],
        ["--dropout", "1.5"],
        ["--agg", "magic"],
        ["--warmup", "-3"],
        ["--lr", "0"],
        ["--seed", "x"],
        ["--nonsense"],
    ],
)
def test_wrong_flags_exit_with_2(extra, capsys):
    with pytest.raises(SystemExit) as exit:
        train_mt.main(extra)
    error = capsys.readouterr().err
    assert exit.value.code == 2 and error.count("\n") == 1 and extra[0] in error


# ---- Many processes


def test_two_processes_are_one_with_twice_the_accumulation(text, tmp_path):
    """float64, no dropout, --reg on: the parameters agree to 1e-9 after some steps, and so do the
    losses in the log, over a stop and a resumption too."""
    argv = (
        text
        + SMALL
        + [
            "--steps", "6", "--eval-every", "6", "--dropout", "0", "--reg", "output", "subspace",
            "position", "--agg", "gu-em", "--capsule", "enc", "dec", "--seed", "3",
        ]
    )
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    script = str(ROOT / "tests" / "double_train.py")
    command = [sys.executable, *launcher, script, *argv, "--name", "two", "--accumulate", "2"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run(
        command, env={**alone, "STOP": "4"}, capture_output=True, text=True, timeout=600
    )
    assert "stopped at step 4" in first.stdout, first.stderr
    two = subprocess.Popen(
        command, env=alone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    torch.set_default_dtype(torch.float64)
    try:
        assert train_mt.main([*argv, "--name", "one", "--accumulate", "4"]) == 0
    finally:
        torch.set_default_dtype(torch.float32)
        output = two.communicate(timeout=600)[0]
    assert two.returncode == 0, output
    a, b = (
        run_folder.load(tmp_path / "runs" / name / "last.pt")["model"] for name in ("one", "two")
    )
    assert a.keys() == b.keys() and all(weight.dtype == torch.float64 for weight in a.values())
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9)
    losses = []
    for name in ("one", "two"):
        rows = metrics(tmp_path / "runs" / name)
        losses.append([row["loss"] for row in rows if "loss" in row])
    np.testing.assert_allclose(*losses, rtol=1e-9)
