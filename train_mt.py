"""Trains a Transformer for translation, validates and tests it.

    python train_mt.py --agg em --reg output    # the embedded corpus, minutes
    python train_mt.py --data multi30k          # captions, downloaded
    python train_mt.py --train DIR/train --valid DIR/val --src en --tgt de

A run is the folder runs/NAME. The same command resumes it from its last checkpoint. The defaults
below are those of the embedded corpus; RECIPES in this file has what another --arch changes.
"""
import contextlib
import math
import signal
import sys
import time
import zlib
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from disagreement import model_disagreement
from nmt.batches import Update, training_updates
from nmt.command_line import UserError, count, flag, natural, nonnegative, positive, run, share
from nmt.corpus import Data, DataFlags, load_data, name_text
from nmt.evaluate import describe_test, disagreement_scores, score_sets, validate
from nmt.files import write_lines
from nmt.flags import MODEL, check_used
from nmt.loss import smoothed_cross_entropy
from nmt.machine import (
    DEVICES,
    Machine,
    has_bfloat16,
    mixed_precision,
    pick_device,
    seed_torch,
    setup_machine,
)
from nmt.replay import MAX_TOKENS, Replay
from nmt.run_folder import (
    average,
    drop_log_after,
    load,
    load_optimizer,
    lock,
    log,
    print_above,
    read_log,
    save,
    write_config,
)
from transformer import PAD, SIZES, Transformer, TransformerConfig

# what --arch changes; tatoeba is size tiny on this corpus, base and big are Vaswani et al.'s
RECIPES = {
    # small matrices gain nothing from bfloat16
    "tatoeba": dict(steps=2_800, warmup=150, lr=2.9e-3, max_tokens=512, eval_every=700, dropout=0.0,
                    amp=False, **SIZES["tiny"]),
    "tiny": SIZES["tiny"],
    "small": dict(steps=10_000, warmup=1_000, lr=1.6e-3, max_tokens=4096, eval_every=1_000,
                  **SIZES["small"]),
    "base": dict(steps=100_000, warmup=4_000, lr=7.0e-4, decay="sqrt", clip=0.0, max_tokens=4096,
                 eval_every=10_000, **SIZES["base"]),
    "big": dict(steps=300_000, warmup=4_000, lr=4.9e-4, decay="sqrt", clip=0.0, max_tokens=4096,
                eval_every=30_000, dropout=0.3, **SIZES["big"]),
}
SAVE_SECONDS = 300              # a killed run loses at most so much training
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")
           if hasattr(signal, name)]                     # Windows has no SIGHUP
# settings that may differ when a run is resumed; its text is known by the checksums
FREE = ("data", "data_dir", "train", "valid", "test", "log_every", "name", "runs", "device",
        "compile", "graphs")
# stored as the languages, and as the micro-batches of an update over all processes
DERIVED = ("src", "tgt", "accumulate")


@dataclass
class Training:
    """Training, test and machine."""
    arch: str = flag("tiny", "size of the model, and recipe", choices=tuple(SIZES))
    steps: int = flag(4_000, "updates of the parameters", type=count)
    warmup: int = flag(500, "steps until the peak of the learning rate; with --steps, at most a "
                            "quarter of it", type=count)
    lr: float = flag(3.2e-3, "peak learning rate", type=positive)
    decay: str = flag("linear", "after the peak: linearly to 0, or as step^-0.5",
                      choices=("linear", "sqrt"))
    clip: float = flag(1.0, "largest norm of the gradient; 0: no clipping", type=nonnegative)
    max_tokens: int = flag(2048, "tokens per batch on the longer side, with padding", type=count)
    accumulate: int = flag(1, "micro-batches per update", type=count)
    label_smoothing: float = flag(0.1, "label smoothing epsilon", type=share, metavar="EPS")
    seed: int = flag(1, "seed of parameters, dropout and batches", type=natural)
    eval_every: int = flag(400, "steps between validations; with --steps, a tenth of it, at least "
                                "200, except for tatoeba", type=count)
    log_every: int = flag(100, "steps between log lines", type=count)
    average: int = flag(0, "test the average of the last N validated checkpoints; 0: the best one",
                        type=natural)
    beam: int = flag(4, "beam size of the test", type=count)
    lenpen: float = flag(0.6, "length penalty of the test", type=nonnegative)
    name: str = flag("", "name of the run's folder, made from the other flags")
    runs: str = flag("runs", "where the runs' folders are", metavar="DIR")
    device: str = flag("auto", DEVICES)
    amp: bool = flag(False, "bfloat16 matrix products; on where the processor has them, except "
                            "for tatoeba")
    compile: bool = flag(False, "torch.compile the layers; on for base and big on a GPU without "
                                "graphs")
    graphs: bool = flag(False, f"CUDA graphs; on for one GPU and --max-tokens below {MAX_TOKENS}")


def defaults(s, typed: dict) -> dict:
    """The defaults that depend on other flags. s: all flags; typed: those on the command line.
    Raises UserError."""
    values = recipe(s, typed)
    s = SimpleNamespace(**{**vars(s), **values, **typed})
    check_used(s, typed)
    return {**machine_defaults(s, typed), **values, "name": name_run(s, typed)}


def recipe(s, typed: dict) -> dict:
    """The defaults that depend on size, text and steps."""
    embedded = s.data == "tatoeba" and not s.train and s.arch == "tiny"
    values = {**RECIPES["tatoeba" if embedded else s.arch]}
    if "steps" in typed:
        values["warmup"] = min(values.get("warmup", s.warmup), max(1, s.steps // 4))
        if not embedded:
            values["eval_every"] = max(200, s.steps // 10)
    return values


def machine_defaults(s, typed: dict) -> dict:
    """The defaults that depend on the processor."""
    device = pick_device(s.device)
    on_gpu = device.type == "cuda"
    graphs = (on_gpu and s.max_tokens < MAX_TOKENS and not s.compile
              and not dist.is_torchelastic_launched())
    # smaller models do not make up for the time of compiling
    large = s.arch in ("base", "big")
    return {"amp": has_bfloat16(device), "graphs": graphs,
            "compile": on_gpu and large and not typed.get("graphs", graphs)}


def name_run(s, typed: dict) -> str:
    """TEXT-ARCH-MECHANISMS-OTHERS-seedN, OTHERS as they are typed."""
    words = [name_text(s), s.arch]
    if s.agg != "linear":
        words.append(s.agg)
    words += s.reg
    for name in vars(s):
        if name in typed and name not in (*FREE, "arch", "agg", "reg", "seed"):
            words += write_flag(name, typed[name])
    name = "-".join(words).replace("--", "").replace(":", "").replace("/", "")
    if len(name) > 100:                                  # a path in Windows has at most 260
        name = f"{name[:91]}-{zlib.crc32(name.encode()):08x}"
    return f"{name}-seed{s.seed}"


def write_flag(name: str, value) -> list[str]:
    """A flag as the words of a command line."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", *map(str, value if isinstance(value, tuple) else [value])]


# ---- One update

def learning_rate(step: int, s: Training) -> float:
    """The learning rate of step 1, 2, ...: a linear rise to the peak --lr, then a straight line to
    0 at `steps + 1`, or as step^-0.5. With --decay sqrt and the peak `(d_model warmup)^-0.5` it is
    `d_model^-0.5 min(step^-0.5, step warmup^-1.5)` (Vaswani et al. 2017 §5.3)."""
    if s.decay == "sqrt":
        falling = (s.warmup / step) ** 0.5
    else:
        falling = (s.steps + 1 - step) / max(1, s.steps + 1 - s.warmup)
    return s.lr * min(step / s.warmup, falling)


class Objective(nn.Module):
    """The two terms of `J = likelihood + lambda D` (Li 2018 §3.1) for a micro-batch. They are one
    `forward`, as DistributedDataParallel needs it."""

    def __init__(self, model: Transformer, label_smoothing: float):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.cross_entropy = smoothed_cross_entropy
        self.disagreement = model_disagreement

    def compile_parts(self) -> None:
        """Compiles every layer, the disagreement and the loss, for tensors of any shape."""
        torch._dynamo.config.recompile_limit = 64        # layers share their code
        for layer in (*self.model.encoder.layers, *self.model.decoder.layers):
            layer.compile(dynamic=True)
        self.cross_entropy = torch.compile(smoothed_cross_entropy, dynamic=True)
        self.disagreement = torch.compile(model_disagreement, dynamic=True)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """source [B, L_s], target [B, L_t + 1] -> the cross-entropy of the target tokens, summed,
        and the disagreement D. A row without BOS does not count."""
        target_in, target_out = target[:, :-1], target[:, 1:]                # [B, L_t]
        hidden, heads = self.model.hidden(source, target_in)                 # [B, L_t, d]
        cross_entropy = self.cross_entropy(hidden.flatten(0, 1), self.model.output.weight,
                                           target_out.flatten(), self.label_smoothing, PAD)
        source_mask = (source != PAD) & (target_in[:, :1] != PAD)            # [B, L_s]
        D = self.disagreement(self.model.config, heads, source_mask, target_out != PAD)
        return cross_entropy, D


def train_step(objective, optimizer, update: Update, machine: Machine, reg_weight: float,
               clip: float = 0.0, amp: bool = False, replay=None):
    """One update. It maximizes `J = likelihood + lambda D` (Li 2018 §3.1) per target token. D of a
    micro-batch has the weight of its target tokens, so the same micro-batches give the same J on
    any number of processes. replay: a `Replay`, the same one for all updates of an objective.
    Returns [cross-entropy, D times target tokens], summed over this process's micro-batches, and
    the norm of the gradient, on the device."""
    def add_gradient(source, target, update_tokens):
        """Adds the gradient of a micro-batch; returns [cross-entropy, D times target tokens]."""
        with mixed_precision(machine.device, amp):
            cross_entropy, D = objective(source, target)
        tokens = (target[:, 1:] != PAD).sum()
        likelihood = -cross_entropy
        # J = likelihood + lambda D                                   Li 2018 §3.1
        J = (likelihood + reg_weight * D * tokens) / update_tokens
        # DistributedDataParallel averages the gradients; times the processes they are a sum
        (-J * machine.world).backward()
        return torch.stack([cross_entropy.detach(), D.detach() * tokens])

    optimizer.zero_grad(set_to_none=replay is None)      # a graph adds to the same tensors
    total = torch.zeros(2, device=machine.device)
    update_tokens = torch.full((), update.tokens, device=machine.device)
    for i, batch in enumerate(update.batches):
        wait = machine.world > 1 and i + 1 < len(update.batches)             # to add up gradients
        with objective.no_sync() if wait else contextlib.nullcontext():
            inputs = *map(machine.move, batch), update_tokens
            total += replay(add_gradient, *inputs) if replay else add_gradient(*inputs)
    norm = torch.nn.utils.clip_grad_norm_(objective.parameters(), clip or math.inf)
    optimizer.step()
    return total, norm


# ---- The run

@dataclass
class Progress:
    """How far a run is: what a checkpoint holds beside model and optimizer."""
    step: int = 0
    end: tuple[int, int] = (0, 0)               # where the next update begins, see `Update`
    best: tuple[float, float] = (-1.0, 0.0)     # validation BLEU and -loss of best.pt
    tokens: int = 0                             # target tokens so far


def train(flags: DataFlags, config: TransformerConfig, settings: Training) -> None:
    """One run from start to end: data, model, resuming, training loop, test."""
    machine = setup_machine(settings.device)
    folder = Path(settings.runs) / settings.name
    if machine.first:
        folder_lock = lock(folder)
    with machine.first_on_each_node():                   # it downloads and encodes for the others
        data = load_data(flags, folder / "tokenizer.json")
    config = replace(config, vocab_size=data.tokenizer.get_vocab_size())
    if machine.first:
        write_settings(folder, flags, config, settings, data, machine.world)

    # model
    torch.manual_seed(settings.seed)
    model = Transformer(config).to(machine.device)
    objective = Objective(model, settings.label_smoothing)
    if settings.compile:
        objective.compile_parts()
    if machine.world > 1:                                # betas of gu-em may have no gradient
        objective = DistributedDataParallel(objective, find_unused_parameters=config.agg == "gu-em")
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)

    # resume
    progress = Progress()
    if (folder / "last.pt").exists():
        checkpoint = load(folder / "last.pt")
        model.load_state_dict(checkpoint["model"])
        load_optimizer(optimizer, checkpoint["optimizer"])
        progress = Progress(**checkpoint["progress"])
    if machine.first:
        drop_log_after(folder, progress.step)
        print(f"{folder}: {len(data.train):,} pairs, vocabulary {config.vocab_size:,}, "
              f"{sum(p.numel() for p in model.parameters()):,} parameters on {machine.world} x "
              f"{machine.device}, step {progress.step:,} of {settings.steps:,}")

    # training loop
    graphs = (settings.graphs and machine.device.type == "cuda" and machine.world == 1
              and not settings.compile)
    replay = Replay() if graphs else None
    updates = training_updates(data.train, progress.end, machine, settings.max_tokens,
                               settings.accumulate, settings.seed, rectangles=graphs)
    window = torch.zeros(2, device=machine.device)       # cross-entropy and D since the last log
    window_tokens = 0
    largest_norm = torch.zeros((), device=machine.device)
    logged = saved = time.perf_counter()
    stop = catch_signals() if machine.world == 1 else []
    for update in tqdm(islice(updates, settings.steps - progress.step), initial=progress.step,
                       total=settings.steps, unit="step", dynamic_ncols=True,
                       disable=None if machine.first else True):
        # update
        progress.step += 1
        progress.end = update.end
        lr = learning_rate(progress.step, settings)
        for group in optimizer.param_groups:
            group["lr"] = lr
        seed_torch(settings.seed, machine.rank, progress.step)               # the dropout's seed
        total, norm = train_step(objective, optimizer, update, machine, config.reg_weight,
                                 settings.clip, settings.amp, replay)
        window += total
        window_tokens += update.tokens
        progress.tokens += update.tokens
        largest_norm = torch.maximum(largest_norm, norm)                     # NaN if one is NaN

        # log
        validating = progress.step % settings.eval_every == 0 or progress.step == settings.steps
        if validating or stop or progress.step % settings.log_every == 0:
            cross_entropy, D = (machine.sum(window) / window_tokens).tolist()
            check_finite(progress.step, cross_entropy, largest_norm.item())
            if machine.first:
                seconds = time.perf_counter() - logged
                log(folder, {"type": "train", "step": progress.step, "epoch": update.end[0],
                             "loss": cross_entropy, "disagreement": D if config.reg else None,
                             "lr": lr, "gradient_norm": largest_norm.item(),
                             "tokens_per_second": window_tokens / seconds})
            window.zero_()
            window_tokens = 0
            largest_norm.zero_()
            logged = time.perf_counter()

        # validate
        if machine.first and validating:
            validate_and_keep_best(model, progress, data, folder, settings)
            logged = time.perf_counter()

        # save
        if machine.first and (validating or stop or time.perf_counter() - saved > SAVE_SECONDS):
            check_finite(progress.step, largest_norm.item())
            save(folder / "last.pt", model=model.state_dict(),
                 optimizer=optimizer.state_dict()["state"], progress=asdict(progress))
            saved = time.perf_counter()
        if stop:
            print(f"{folder}: stopped at step {progress.step:,}; the same command resumes it")
            sys.exit(128 + stop[0])
    release_signals()                                    # all is saved

    if machine.first:
        test(model, progress, data, folder, settings)
        folder_lock.release()
    machine.wait()


def write_settings(folder: Path, flags: DataFlags, config: TransformerConfig, settings: Training,
                   data: Data, world: int) -> None:
    """Writes config.json, or compares the settings with those that it has. Raises UserError."""
    fixed = {**asdict(flags), **asdict(settings)}
    free = {name: fixed.pop(name) for name in (*FREE, *DERIVED)}
    write_config(folder, fixed={
        "model": asdict(config), "text": data.checksums, "languages": data.languages,
        "micro_batches": settings.accumulate * world, **fixed,
    }, free={**free, "command": sys.argv[1:], "length_ratio": data.length_ratio})


def catch_signals() -> list[int]:
    """Returns a list to which the first of SIGNALS is appended. A second one ends the program."""
    stop = []

    def append(number, _):
        stop.append(number)
        release_signals()

    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:   # as nohup makes it
            signal.signal(number, append)
    return stop


def release_signals() -> None:
    """Lets SIGNALS end the program at once."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def check_finite(step: int, *numbers: float) -> None:
    """Raises UserError for a loss or gradient that is not finite."""
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"step {step:,}: the loss or its gradient is not finite: train again under "
                        "another --name, with a lower --lr or --clip 1")


def validate_and_keep_best(model, progress: Progress, data: Data, folder: Path,
                           settings: Training) -> None:
    """Logs loss and greedy BLEU, prints two translations, saves the best weights, and those that
    are averaged."""
    step = progress.step
    loss, D = validate(model, data.valid, settings.max_tokens, settings.amp)
    check_finite(step, loss)
    translations, scores = score_sets(model, data, {"valid": data.valid_pairs}, 1, settings.lenpen)
    log(folder, {"type": "valid", "step": step, "valid_loss": loss, "valid_bleu": scores["bleu"],
                 "valid_disagreement": D})
    lines = translations["valid"]
    for i in (step % len(lines), (step + len(lines) // 2) % len(lines)):
        print_above(f"    source      {data.valid_pairs.source[i]}\n"
                    f"    reference   {data.valid_pairs.target[i]}\n    translation {lines[i]}")
    if settings.average:
        save(folder / f"step-{step:09}.pt", model=model.state_dict())
        for older in sorted(folder.glob("step-*.pt"))[:-settings.average]:
            older.unlink()
    if (scores["bleu"], -loss) > progress.best:          # ties are broken by the loss
        progress.best = scores["bleu"], -loss
        save(folder / "best.pt", model=model.state_dict())


def test(model, progress: Progress, data: Data, folder: Path, settings: Training) -> None:
    """Scores the test sets with the best checkpoint or the average of the last ones, and writes
    the translations."""
    name = "best.pt"
    if settings.average:
        name = "average.pt"
        save(folder / name, model=average(sorted(folder.glob("step-*.pt"))))
    model.load_state_dict(load(folder / name)["model"])
    loss, D = validate(model, data.valid, settings.max_tokens, settings.amp)
    sets = data.tests or {"valid": data.valid_pairs}
    translations, scores = score_sets(model, data, sets, settings.beam, settings.lenpen)
    for name, pairs in sets.items():
        write_lines(folder / f"{name}.hyp", translations[name])
        write_lines(folder / f"{name}.ref", pairs.target)
    speeds = [row["tokens_per_second"] for row in read_log(folder) if row["type"] == "train"]
    row = {"type": "test", "step": progress.step, **scores, "valid_loss": loss,
           "disagreement": disagreement_scores(D), "tokens": progress.tokens,
           "tokens_per_second": median(speeds),
           "parameters": sum(p.numel() for p in model.parameters())}
    log(folder, row)
    print(f"\n{folder}: {describe_test(row, model.config.heads)}")


FLAGS = DataFlags, TransformerConfig, Training


def main(argv=None) -> None:
    run(train, *FLAGS, argv=argv, help=MODEL, defaults=defaults)


if __name__ == "__main__":
    main()
