"""train_mt.py, what turns a run into results: the rates at every step, the clipped gradient, the
log, which checkpoint is tested, what search and BLEU are called with, every process's dropout,
defaults in numbers."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from test_train_mt import SMALL, corpus, flags, metrics, rows, settings
from torch.optim.optimizer import register_optimizer_step_pre_hook

import train_mt
from nmt import run_folder
from transformer import TransformerConfig

VALID_LINES, TEST_LINES = 12, 8  # of the fixture `text`
# of five validations: the best is the second, the worst the fourth, and the loss falls all the
# while
BLEUS = [12.0, 31.0, 31.0, 4.0, 20.0]
NLLS = [5.0, 4.0, 3.0, 2.0, 1.0]


def copied(model):
    """The weights as they are now."""
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def same(state, other):
    equal = [torch.equal(weight, other[name]) for name, weight in state.items()]
    return state.keys() == other.keys() and all(equal)


@pytest.fixture
def steps_taken(monkeypatch):
    """What the optimizer's step found, every time: its settings and the norm of the gradient."""
    taken = []

    def note(optimizer, args, kwargs):
        (group,) = optimizer.param_groups
        squares = [
            p.grad.double().square().sum().item() for p in group["params"] if p.grad is not None
        ]
        taken.append(SimpleNamespace(**group, norm=math.sqrt(sum(squares))))

    handle = register_optimizer_step_pre_hook(note)
    yield taken
    handle.remove()


def stopped_at(step, argv, monkeypatch):
    """The run, stopped by a signal at that step."""

    def agreed(stop, now, where):
        if now == step:
            stop.append(15)
        return bool(stop)

    with monkeypatch.context() as patch:
        patch.setattr(train_mt, "agreed", agreed)
        with pytest.raises(SystemExit):
            train_mt.main(argv)


@pytest.mark.parametrize("decay", ["sqrt", "linear"])
def test_the_learning_rate_at_every_step(decay, text, tmp_path, steps_taken, monkeypatch):
    """The optimizer steps with the formula's rate, which is the logged one, over a stop too."""
    argv = [
        *text,
        *SMALL,
        "--steps",
        "8",
        "--warmup",
        "3",
        "--lr",
        "0.7",
        "--decay",
        decay,
        "--log-every",
        "1",
        "--eval-every",
        "8",
        "--name",
        "a",
    ]
    stopped_at(5, argv, monkeypatch)
    assert len(steps_taken) == 5
    assert train_mt.main(argv) == 0
    rising = [0.7 * 16**-0.5 * step * 3**-1.5 for step in (1, 2, 3)]
    falling = [0.7 * 16**-0.5 * step**-0.5 for step in (4, 5, 6, 7, 8)]
    if decay == "linear":
        falling = [rising[-1] * left / 6 for left in (5, 4, 3, 2, 1)]
    assert [step.lr for step in steps_taken] == pytest.approx(rising + falling)
    logged = [row["lr"] for row in metrics(tmp_path / "runs" / "a") if "lr" in row]
    assert logged == pytest.approx(rising + falling)
    # Vaswani et al. 2017, section 5.3
    assert all((step.betas, step.eps) == ((0.9, 0.98), 1e-9) for step in steps_taken)
    assert not any(step.weight_decay or step.amsgrad or step.maximize for step in steps_taken)


@pytest.mark.parametrize("clip", [0.0, 0.05, 1e3])
def test_the_gradient_is_clipped_to_its_norm(clip, text, tmp_path, steps_taken):
    argv = [*text, *SMALL, "--steps", "4", "--log-every", "1", "--clip", str(clip), "--name", "a"]
    assert train_mt.main(argv) == 0
    before = [row["gradient_norm"] for row in metrics(tmp_path / "runs" / "a") if "lr" in row]
    assert len(before) == 4 and min(before) > 0.05
    want = [0.05] * 4 if clip == 0.05 else before
    assert [step.norm for step in steps_taken] == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("amp, smoothing", [(False, None), (True, 0.25)])
def test_every_step_trains_as_told_and_the_log_sums_them(
    amp, smoothing, text, tmp_path, monkeypatch
):
    """In training mode after a validation too; label smoothing 0.1 unless told.

    A log line is about the steps since the last one: losses per target token, D weighted by these.
    """
    seen = []
    totals = []
    train_step = train_mt.train_step
    forward = train_mt.Objective.forward

    def loss_spy(objective, source, target, tokens, label_smoothing):
        seen.append((objective.training, label_smoothing, torch.is_autocast_enabled("cpu")))
        return forward(objective, source, target, tokens, label_smoothing)

    def step_spy(model, optimizer, step, args, where):
        total, norm = train_step(model, optimizer, step, args, where)
        tokens = sum(int((batch.target[:, 1:] != 0).sum()) for batch in step.batches)
        totals.append((total.tolist(), tokens, norm.item(), step.place[0]))
        return total, norm

    monkeypatch.setattr(train_mt.Objective, "forward", loss_spy)
    monkeypatch.setattr(train_mt, "train_step", step_spy)
    argv = [
        *text,
        *SMALL,
        "--steps",
        "8",
        "--eval-every",
        "5",
        "--log-every",
        "3",
        "--accumulate",
        "2",
        "--reg",
        "output",
        "--reg-at",
        "enc",
        "--name",
        "a",
    ] + ["--amp"] * amp
    if smoothing:
        argv += ["--label-smoothing", str(smoothing)]
    assert train_mt.main(argv) == 0
    assert seen == [(True, smoothing or 0.1, amp)] * 16
    folder = tmp_path / "runs" / "a"
    logged = [row for row in metrics(folder) if "loss" in row]
    assert [row["step"] for row in logged] == [3, 5, 6, 8]
    # the last one too
    assert [row["step"] for row in metrics(folder) if "valid_bleu" in row] == [5, 8]
    for row, (start, stop) in zip(logged, ((0, 3), (3, 5), (5, 6), (6, 8))):
        window = totals[start:stop]
        tokens = sum(tokens for _, tokens, *_ in window)
        assert row["loss"] == pytest.approx(sum(total[0] for total, *_ in window) / tokens)
        assert row["disagreement"] == pytest.approx(sum(total[1] for total, *_ in window) / tokens)
        assert -1 <= row["disagreement"] < 0
        assert row["gradient_norm"] == pytest.approx(window[-1][2])
        assert row["epoch"] == window[-1][3]
    assert metrics(folder)[-1]["tokens"] == sum(tokens for _, tokens, *_ in totals)


@pytest.fixture
def judged(monkeypatch):
    """Validations find BLEUS and NLLS, the test 77 BLEU; what they asked for, and of which
    weights."""
    found = SimpleNamespace(validations=[], searches=[])
    D = {"enc": {"subspace": [-0.1, -0.3], "position": [-1.0, -3.0], "output": [-0.5, -0.7]}}

    def validate(model, encoded, max_tokens, amp=False):
        found.validations.append((len(encoded), max_tokens, amp, copied(model)))
        return (NLLS * 2)[len(found.validations) - 1], D

    def bleu(model, tokenizer, pairs, beam, lenpen, lowercase=False, amp=False):
        found.searches.append(
            (list(pairs.source), list(pairs.target), beam, lenpen, lowercase, amp, copied(model))
        )
        last = len(found.searches) > len(BLEUS)
        translations = [f"line {i}" for i in range(len(pairs.source))]
        return translations, 77.0 if last else BLEUS[len(found.searches) - 1], "the signature", 5.0

    monkeypatch.setattr(train_mt, "validate", validate)
    monkeypatch.setattr(train_mt, "bleu", bleu)
    return found


@pytest.mark.parametrize(
    "average, stop, part", [(0, None, "test"), (3, None, "test"), (0, 7, "valid"), (3, 7, "test")]
)
def test_which_checkpoint_is_tested_and_how(
    average, stop, part, text, tmp_path, judged, monkeypatch, capsys
):
    """The best by BLEU on the validation set, or the average of the last K, over a stop too.

    Validation searches greedily, the test with --beam; both with --lenpen, --lowercase and --amp.
    """
    if part == "valid":  # no test set: the validation set is searched once more
        where = text.index("--test")
        text = text[:where] + text[where + 2 :]
    argv = [
        *text,
        *SMALL,
        "--steps",
        "10",
        "--eval-every",
        "2",
        "--average",
        str(average),
        "--beam",
        "7",
        "--lenpen",
        "1.5",
        "--lowercase",
        "--amp",
        "--name",
        "a",
    ]
    if stop:
        stopped_at(stop, argv, monkeypatch)
        assert len(judged.searches) == 3
    assert train_mt.main(argv) == 0
    folder = tmp_path / "runs" / "a"
    weights = [call[-1] for call in judged.searches[:5]]  # after steps 2, 4, 6, 8, 10
    assert not any(same(a, b) for a in weights for b in weights if a is not b)

    # what was kept and tested
    best, last = (run_folder.load(folder / name) for name in ("best.pt", "last.pt"))
    assert best["step"] == 4 and same(best["model"], weights[1])
    assert last["step"] == 10 and same(last["model"], weights[4]) and last["best"] == 31.0
    numbered = sorted(path.name for path in folder.glob("step-*.pt"))
    assert numbered == (["step-10.pt", "step-6.pt", "step-8.pt"] if average else [])
    tested = weights[1]
    if average:
        for name in weights[0]:
            tested = {**tested, name: (sum(w[name].double() for w in weights[2:]) / 3).float()}
        assert same(run_folder.load(folder / "average.pt")["model"], tested)
    assert same(judged.searches[5][-1], tested) and same(judged.validations[5][-1], tested)

    # what search, BLEU and the validation were asked for
    def lines(part):
        return [(tmp_path / f"{part}.{side}").read_text().splitlines() for side in ("en", "de")]

    assert [call[:6] for call in judged.searches] == [(*lines("valid"), 1, 1.5, True, True)] * 5 + [
        (*lines(part), 7, 1.5, True, True)
    ]
    assert [call[:3] for call in judged.validations] == [(VALID_LINES, 256, True)] * 6

    # what was written down
    read = [row for row in metrics(folder) if "valid_bleu" in row]
    assert [(row["step"], row["valid_bleu"], row["valid_loss"]) for row in read] == [
        (2 * i + 2, bleu, nll) for i, (bleu, nll) in enumerate(zip(BLEUS, NLLS))
    ]
    perplexities = [row["valid_perplexity"] for row in read]
    assert perplexities == pytest.approx([math.exp(nll) for nll in NLLS])
    result = metrics(folder)[-1]
    part_name = {"test": "test", "valid": "validation"}[part]
    want = dict(
        step=10,
        test_bleu=77.0,
        signature="the signature",
        beam=7,
        lenpen=1.5,
        average=average,
        set=part_name,
    )
    assert want.items() <= result.items()
    scores = dict(subspace=math.exp(-0.2), position=math.exp(-2), output=math.exp(-0.6))
    assert result["disagreement"] == {"enc": pytest.approx(scores)}
    assert result["parameters"] == sum(
        p.numel()
        for p in train_mt.Transformer(
            TransformerConfig(**json.loads((folder / "config.json").read_text())["model"])
        ).parameters()
    )
    count = {"test": TEST_LINES, "valid": VALID_LINES}[part]
    assert (folder / "test.hyp").read_text() == "".join(f"line {i}\n" for i in range(count))
    said = capsys.readouterr().out
    assert (
        f"{part_name} BLEU 77.00   the signature" in said and "beam 7, length penalty 1.5" in said
    )
    assert ("average of the last 3 checkpoints" if average else "best checkpoint") in said


def test_every_process_has_its_own_dropout_at_every_step_and_the_same_parameters(monkeypatch):
    """Three processes, played one after the other."""
    monkeypatch.setattr(train_mt, "DistributedDataParallel", lambda model, **options: model)
    monkeypatch.setattr(train_mt, "agreed", lambda stop, step, where: step == 4)
    config = TransformerConfig(30, 16, 2, 1, 16, dropout=0.3)
    drawn = []
    parameters = []

    def draw(model, optimizer, step, args, where):
        drawn.append(tuple(torch.rand(3).tolist()))
        optimizer.step()
        return torch.zeros(2), torch.zeros(())

    monkeypatch.setattr(train_mt, "train_step", draw)
    for rank, seed in ((0, 1), (1, 1), (2, 1), (1, 2)):
        where = train_mt.Machine(torch.device("cpu"), rank, 3)
        argv = f"--steps 90 --max-tokens 40 --device cpu --seed {seed}".split()
        args = settings(argv)
        train_mt.complete(args, where)
        job = train_mt.Training(args, config, where)
        parameters.append(copied(job.model))
        train_mt.fit(job, None, {"train": corpus()}, None, None, [])
    assert len(drawn) == 16 and len(set(drawn[:12])) == 12  # of one seed
    assert same(parameters[0], parameters[1]) and same(parameters[0], parameters[2])
    assert not same(parameters[1], parameters[3])


def test_batches_are_shuffled_anew_by_seed_and_epoch():
    encoded = corpus()
    first = [
        rows(next(train_mt.steps(encoded, flags(seed=seed), (epoch, 0))).batches)
        for seed, epoch in ((1, 0), (1, 1), (2, 0), (1, 0))
    ]
    assert first[0] == first[3] and first[0] != first[1] and first[0] != first[2]


# ---- Defaults, in numbers

COMPLETED = {
    "": dict(
        steps=1_800,
        warmup=150,
        lr=0.4,
        decay="linear",
        clip=1.0,
        max_tokens=512,
        dropout=0.0,
        eval_every=450,
    ),
    "--data multi30k": dict(
        steps=4_000,
        warmup=500,
        lr=0.8,
        decay="linear",
        clip=1.0,
        max_tokens=2048,
        dropout=0.1,
        eval_every=400,
    ),
    "--train x --valid y --src en --tgt de": dict(
        steps=4_000, warmup=500, lr=0.8, clip=1.0, dropout=0.1
    ),
    "--arch small": dict(
        steps=10_000,
        warmup=1_000,
        lr=0.8,
        decay="linear",
        clip=1.0,
        max_tokens=4096,
        dropout=0.1,
        eval_every=1_000,
    ),
    "--arch base": dict(
        steps=100_000,
        warmup=4_000,
        lr=1.0,
        decay="sqrt",
        clip=0.0,
        max_tokens=4096,
        dropout=0.1,
        eval_every=10_000,
    ),
    "--arch big": dict(
        steps=300_000,
        warmup=4_000,
        lr=1.0,
        decay="sqrt",
        clip=0.0,
        max_tokens=4096,
        dropout=0.3,
        eval_every=30_000,
    ),
    "--arch big --steps 7 --warmup 5 --lr 3 --decay linear --clip 2 --max-tokens 9 --dropout .2": {
        **dict(steps=7, warmup=5, lr=3.0, decay="linear", clip=2.0, max_tokens=9, dropout=0.2),
        "eval_every": 200,
    },
    # the warm-up is a quarter of the steps at most, up to the same peak; 200 steps to a validation
    "--steps 600": dict(steps=600, eval_every=450, warmup=150, lr=0.4),
    "--steps 96": dict(steps=96, eval_every=450, warmup=24, lr=0.4 * 0.4),
    "--steps 96 --warmup 150": dict(warmup=150, lr=0.4),
    "--steps 96 --lr 2": dict(warmup=24, lr=2.0),
    "--steps 3": dict(warmup=1),
    "--data multi30k --steps 500": dict(eval_every=200, warmup=125, lr=0.8 * 0.5),
    "--arch small --steps 50 --eval-every 4": dict(steps=50, eval_every=4),
}


@pytest.mark.parametrize("argv, want", COMPLETED.items(), ids=[argv or "toy" for argv in COMPLETED])
def test_the_settings_of_every_size(argv, want):
    """Vaswani et al. 2017 for base and big: 4,000 steps of warm-up, dropout 0.1 and 0.3."""
    args = settings(argv.split())
    train_mt.complete(args, train_mt.Machine(torch.device("cpu")))
    assert want.items() <= vars(args).items()
    assert args.model_config(vocab_size=9).dropout == args.dropout
    assert args.model_config(vocab_size=9).reg_weight == 1.0
    common = dict(
        accumulate=1,
        label_smoothing=0.1,
        seed=1,
        log_every=100,
        average=0,
        beam=4,
        lenpen=0.6,
        lowercase=False,
        amp=False,
        compile=False,
        workers=0,
        norm="pre",
        tie="all",
        agg="linear",
        iterations=3,
        reg_weight=1.0,
        max_length=256,
        runs="runs",
    )
    assert common.items() <= vars(args).items()


def test_a_gpu_computes_in_bfloat16(monkeypatch):
    for has_bfloat16 in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported",
                            lambda including_emulation: has_bfloat16 or including_emulation)
        args = settings([])
        train_mt.complete(args, train_mt.Machine(torch.device("cuda")))
        assert (args.amp, args.workers) == (has_bfloat16, 2)
    args = settings("--no-amp --workers 0".split())
    train_mt.complete(args, train_mt.Machine(torch.device("cuda")))
    assert (args.amp, args.workers) == (False, 0)
