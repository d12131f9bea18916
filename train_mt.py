"""Trains a translation model, validates and tests it: the project's main job, readable from top to
bottom.

    python train_mt.py --agg em --reg output            # the embedded corpus, minutes on a CPU
    python train_mt.py --data multi30k                  # real text
    python train_mt.py --train DIR/train --valid DIR/val --test DIR/test --src en --tgt de
    torchrun --nproc-per-node 8 train_mt.py --data wmt14-en-de --arch base

A run lives in runs/NAME: config.json, tokenizer.json, metrics.jsonl, checkpoints. The same command
again resumes it.
"""
import contextlib
import dataclasses
import math
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from nmt.batches import Step, batches, padding_share, steps
from nmt.corpus import NAMES, DataFlags, load_corpora
from nmt.encoded import encode_train, encode_valid
from nmt.evaluate import bleu, disagreement_scores, summary, validate
from nmt.files import atomic_write
from nmt.flags import MODEL, ModelFlags, UserError, flag, folder_name, run
from nmt.loss import Objective
from nmt.machine import (
    DEVICES,
    Machine,
    agreed,
    check_fits,
    has_bfloat16,
    machine,
    stopped_by_signals,
)
from nmt.progress import check_finite, draw, rate_in_words, say, summary_writer
from nmt.run_folder import (
    RunFolder,
    average,
    defaults_of,
    load,
    load_model_state,
    may_change,
    random_state,
    run_name,
    save,
    seed_all,
    set_random_state,
)
from nmt.tokenizer import corpus_tokenizer, load_tokenizer, save_tokenizer
from transformer import PAD, SIZES, Transformer, TransformerConfig

# What a size takes where no flag says otherwise: the papers' settings for base and big, a small
# machine's for the rest.
RECIPES = {
    "toy": dict(steps=1_800, warmup=150, lr=0.4, decay="linear", clip=1.0, max_tokens=512,
                dropout=0.0, eval_every=450),
    "tiny": dict(steps=4_000, warmup=500, lr=0.8, decay="linear", clip=1.0, max_tokens=2048,
                 dropout=0.1),
    "small": dict(steps=10_000, warmup=1_000, lr=0.8, decay="linear", clip=1.0, max_tokens=4096,
                  dropout=0.1),
    "base": dict(steps=100_000, warmup=4_000, lr=1.0, decay="sqrt", clip=0.0, max_tokens=4096,
                 dropout=0.1),
    "big": dict(steps=300_000, warmup=4_000, lr=1.0, decay="sqrt", clip=0.0, max_tokens=4096,
                dropout=0.3),
}
DESCRIPTION = ("Trains a Transformer for translation and tests it. All mechanisms combine freely; "
               "their flags are grouped by paper.")
EVAL_EVERY = 200            # steps: what a validation costs, of small models on small sets
# devices whose fused Adam looks at found_inf; Apple's does not
LEAVES_OUT = ("cpu", "cuda")
TRAINING = "training (Vaswani et al. 2017)"
SCORES = "validation, checkpoints and test"
MACHINE = "machine"
# settings that may differ when a run is resumed
FREE = ("device", "compile", "workers", "data_dir", "train", "valid", "test", "log_every",
        "tensorboard")


def recipe(key: str) -> str:
    """A setting of every recipe, in words."""
    return ", ".join(f"{name} {values[key]}" for name, values in RECIPES.items())


@dataclass
class Settings(ModelFlags, DataFlags):
    """Every setting of a run: a flag, a field of config.json. None: see `complete`."""
    steps: int | None = flag(
        None, f"updates of the parameters ({recipe('steps')}); with --decay sqrt a run takes more "
        "of them later: --name NAME --steps N", TRAINING, 1)
    warmup: int | None = flag(
        None, f"warm-up steps ({recipe('warmup')}; at most a quarter of --steps)", TRAINING, 1)
    lr: float | None = flag(
        None, f"factor on the learning rate d^-0.5 min(step^-0.5, step warmup^-1.5), not the rate "
        f"itself ({recipe('lr')}; with a shorter warm-up so much less that the peak stays)",
        TRAINING, above=0, high=1000, metavar="FACTOR")
    dropout: float | None = flag(None, f"dropout rate ({recipe('dropout')})", MODEL, 0, 0.99)
    decay: str | None = flag(
        None, f"how the learning rate falls after the warm-up: with step^-0.5, or linearly to 0 "
        f"({recipe('decay')})", TRAINING, choices=("sqrt", "linear"))
    max_tokens: int | None = flag(
        None, f"size of a micro-batch: its sentences times the longest of them, in tokens "
        f"({recipe('max_tokens')})", TRAINING, 1, 10 ** 8)
    accumulate: int = flag(1, "micro-batches per step, in every process", TRAINING, 1, 10 ** 6)
    label_smoothing: float = flag(0.1, "label smoothing", TRAINING, 0, 0.99)
    clip: float | None = flag(
        None, f"largest norm of the gradient; 0 does not clip ({recipe('clip')})", TRAINING, 0)
    seed: int = flag(1, "seed of the parameters, dropout and batches", TRAINING, 0, 2 ** 31)

    eval_every: int | None = flag(
        None, "steps between validations, each with a checkpoint (a tenth of --steps, at least "
        f"{EVAL_EVERY}; toy 450)", SCORES, 1)
    log_every: int = flag(100, "steps between log lines", SCORES, 1)
    tensorboard: bool = flag(
        False, "write the numbers of metrics.jsonl for TensorBoard as well: tensorboard --logdir "
        "runs", SCORES)
    average: int = flag(
        0, "test the average of the last K checkpoints; 0 tests the best one", SCORES, 0, 1000,
        metavar="K")
    beam: int = flag(4, "beam size of the test", SCORES, 1, 1000)
    lenpen: float = flag(0.6, "length penalty alpha of the test", SCORES, 0, 100)
    lowercase: bool = flag(
        False, "score BLEU case-insensitively, as Gu 2019 does for Zh-En", SCORES)

    name: str | None = flag(
        None, "name of the run's folder (made from the other flags)", MACHINE, type=folder_name)
    runs: str = flag("runs", "where the runs' folders lie", MACHINE, metavar="DIR")
    device: str = flag("auto", DEVICES, MACHINE)
    amp: bool | None = flag(
        None, "bfloat16 matrix products (yes on a GPU that has them; on a CPU with AMX they pay "
        "from size base on)", MACHINE)
    compile: bool = flag(
        False, "torch.compile the layers: faster after a start of minutes", MACHINE)
    workers: int | None = flag(
        None, "processes that prepare batches (CUDA 2, else 0)", MACHINE, 0, 256)


def complete(settings: Settings, where: Machine) -> None:
    """Fills in what the flags leave to the corpus, the size and the machine."""
    gpu = where.device.type == "cuda"
    toy = settings.data == "toy" and not settings.train and settings.arch == "tiny"
    usual = dict(RECIPES["toy" if toy else settings.arch])
    length = settings.steps or usual["steps"]
    warmup = min(usual["warmup"], max(1, length // 4))
    if settings.warmup is None:
        usual["lr"] *= (warmup / usual["warmup"]) ** 0.5                     # for the same peak
    usual["warmup"] = warmup
    usual.setdefault("eval_every", max(EVAL_EVERY, length // 10))
    usual.update(amp=has_bfloat16(where.device), workers=2 if gpu else 0)
    for name, value in usual.items():
        if getattr(settings, name) is None:
            setattr(settings, name, value)
    if settings.name is None:
        src, tgt = NAMES[settings.data]
        settings.name = run_name(
            settings, {**SIZES[settings.arch], **usual, "src": src, "tgt": tgt}, FREE)


# ---- One update

def learning_rate(step: int, d_model: int, settings: Settings) -> float:
    """The learning rate of step = 1, 2, ...: with --decay sqrt
    `d^-0.5 min(step^-0.5, step warmup^-1.5)` (Vaswani et al. 2017, section 5.3); with --decay
    linear the same rise to the same peak, then a straight line to 0 at the last step."""
    warmup, last = settings.warmup, settings.steps + 1
    peak = settings.lr * (d_model * warmup) ** -0.5
    if settings.decay == "sqrt":
        falling = (warmup / step) ** 0.5
    else:
        falling = (last - step) / max(1, last - warmup)
    return peak * min(step / warmup, falling)


def train_step(objective, optimizer, step: Step, settings: Settings, where: Machine):
    """One update by an `Objective`: [cross-entropy, D times target tokens] summed over this
    process's micro-batches, and the norm of the gradient, all still on the device. Where the loss
    or the gradient is not finite the parameters stay as they are.

    The loss of a micro-batch is cross-entropy per target token - lambda D (Li 2018 section 3.1);
    the micro-batches of an update are weighted by their target tokens, so it does not matter how
    the tokens fall on the processes.
    """
    optimizer.zero_grad(set_to_none=True)
    whole = getattr(objective, "module", objective)      # inside DistributedDataParallel's wrapper
    reg_weight = whole.model.config.reg_weight
    total = torch.zeros(2, device=where.device)
    for i, batch in enumerate(step.batches):
        last = i + 1 == len(step.batches)
        more_to_come = where.world > 1 and not last
        with objective.no_sync() if more_to_come else contextlib.nullcontext():
            tokens = int((batch.target[:, 1:] != PAD).sum())                 # on the CPU still
            # Apple's GPU may read memory that is not pinned after it was freed
            source, target = (x.to(where.device, non_blocking=x.is_pinned()) for x in batch)
            with torch.autocast(where.device.type, torch.bfloat16, enabled=settings.amp):
                cross_entropy, D = objective(source, target, tokens, settings.label_smoothing)
            # J = likelihood + lambda D                                        Li 2018 section 3.1
            loss = (cross_entropy - reg_weight * D * tokens) / step.tokens
            # DistributedDataParallel averages the gradients: times the processes they are a sum;
            # times NaN every process learns of a loss that is not finite
            factor = torch.where(loss.detach().isfinite(), where.world, math.nan)
            (loss * factor).backward()
        total += torch.stack([cross_entropy.detach(), D.detach() * tokens])
    gradients = [p.grad for p in objective.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if settings.clip:
        torch.nn.utils.clip_grads_with_norm_(objective.parameters(), settings.clip, norm)
    # the fused Adam then leaves the step out, as for AMP
    optimizer.found_inf = (~torch.isfinite(norm)).float()
    if where.device.type in LEAVES_OUT or norm.isfinite():
        optimizer.step()
    return total, norm


# ---- The run

class Training:
    """A model in training: all that a checkpoint holds."""
    COUNTS = ("step", "place", "best", "seconds", "tokens", "window", "window_tokens", "norms",
              "bad")

    def __init__(self, settings: Settings, config: TransformerConfig, where: Machine):
        self.settings = settings
        self.where = where
        seed_all(settings.seed)
        self.model = Transformer(config).to(where.device)
        if settings.compile:
            for layer in (*self.model.encoder.layers, *self.model.decoder.layers):
                layer.compile(dynamic=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, betas=(0.9, 0.98),
                                          eps=1e-9, fused=True)

        def rate(done: int) -> float:
            return learning_rate(done + 1, config.d_model, settings)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.step = 0
        self.place = (0, 0)                              # epoch and micro-batch of the next step
        self.best = -1.0                                 # validation BLEU
        self.seconds = 0.0                               # of training, up to the last log line
        self.tokens = 0                                  # target tokens, likewise
        # cross-entropy and D since the last log line
        self.window = torch.zeros(2, device=where.device)
        self.window_tokens = 0
        self.norms = []               # of the gradients since then, each with the place it leads to
        self.bad = 0                                     # steps in a row whose norm is not finite
        seed_all(settings.seed + 1_000_003 * where.rank)         # every process has its own dropout

    def save(self, path) -> None:
        """Writes all that resuming exactly takes."""
        save(path, {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "schedule": self.schedule.state_dict(), "random": random_state(),
                    **{name: getattr(self, name) for name in self.COUNTS}})

    def resume(self, path) -> None:
        """Goes on from what `save` wrote. Raises UserError for a checkpoint that is not one of
        such a run."""
        needs = ("model", "optimizer", "schedule", "random", *self.COUNTS)
        state = load(path, self.where.device, needs)
        load_model_state(self.model, state["model"], path)
        try:
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: its optimizer is not that of this run: use a checkpoint that "
                            "the run wrote itself, or train again under another --name") from error
        set_random_state(state["random"])            # the first process's; for the others see `fit`
        for name in self.COUNTS:
            setattr(self, name, state[name])
        if not self.where.first:
            self.window = torch.zeros_like(self.window)


def fit(job: Training, folder, encoded, corpora, tokenizer, stop: list) -> None:
    """Trains up to the last step or a signal to stop, logging and validating as it goes."""
    settings, where = job.settings, job.where
    objective = Objective(job.model)
    if where.world > 1:
        # Gu's EM leaves A out of its result: its betas may have no gradient
        objective = DistributedDataParallel(
            objective, gradient_as_bucket_view=True,
            find_unused_parameters=job.model.config.agg == "gu-em")
    bar = tqdm(total=settings.steps, initial=job.step, unit="step", dynamic_ncols=True,
               disable=not (where.first and sys.stderr.isatty()))
    objective.train()
    started = time.perf_counter()
    timed = 0                              # target tokens since then
    pinned = where.device.type == "cuda"
    for step in steps(encoded["train"], settings, job.place, where.rank, where.world, pinned):
        if job.step >= settings.steps or agreed(stop, job.step, where):
            break
        if not where.first:                # a checkpoint has the first process's random state alone
            torch.manual_seed(settings.seed + 1_000_003 * where.rank + job.step)
        total, norm = train_step(objective, job.optimizer, step, settings, where)
        job.schedule.step()
        job.step += 1
        job.place = step.place
        job.window = job.window + total
        job.window_tokens += step.tokens
        timed += step.tokens
        job.norms.append((norm, step.place))
        bar.update()
        if not bar.disable and job.step % 10 == 0:                           # waits for the device
            bar.set_postfix_str(f"loss {total[0].item() * where.world / step.tokens:.3f}")
        validating = job.step % settings.eval_every == 0 or job.step == settings.steps
        if validating or job.step % settings.log_every == 0:
            log(job, folder, timed, time.perf_counter() - started)
            if validating and where.first:
                bar.set_description_str("validating")
                validate_and_save(job, folder, encoded["valid"], corpora.valid, tokenizer)
                bar.set_description_str()
            started = time.perf_counter()
            timed = 0
    job.seconds += time.perf_counter() - started
    bar.close()


def log(job: Training, folder, timed: int, seconds: float) -> None:
    """A log line and a row of metrics about the steps since the last one; timed: the target tokens
    of the last `seconds`, fewer than the steps' where the run was resumed between."""
    if job.where.world > 1:
        dist.all_reduce(job.window)
    cross_entropy, D = (job.window / job.window_tokens).tolist()             # waits for the device
    norms = torch.stack([norm for norm, _ in job.norms]).tolist()
    speed = timed / seconds
    rate = learning_rate(job.step, job.model.config.d_model, job.settings)
    job.seconds += seconds
    job.tokens += job.window_tokens
    if job.where.first:
        folder.append_metrics({
            "type": "train", "time": time.time(), "step": job.step, "epoch": job.place[0],
            "loss": cross_entropy, "disagreement": D, "gradient_norm": norms[-1], "lr": rate,
            "tokens_per_second": speed})
        disagreement = f"  D {D:.3f}" if job.model.config.reg else ""
        say(f"step {job.step:6}  epoch {job.place[0]:3}  loss {cross_entropy:.3f}{disagreement}"
            f"  lr {rate:.2e}  {speed:,.0f} target tokens/s")
    check_finite(job, norms)
    job.window = torch.zeros_like(job.window)
    job.window_tokens = 0
    job.norms = []


@torch.compiler.set_stance("force_eager")        # the search has other shapes at every step
def validate_and_save(job: Training, folder, encoded, pairs, tokenizer) -> None:
    """Validation loss and BLEU by greedy search, two translations to look at, checkpoints, the
    curves so far."""
    settings = job.settings
    nll, D = validate(job.model, encoded, settings.max_tokens, settings.amp)
    hypotheses, score, *_ = bleu(job.model, tokenizer, pairs, 1, settings.lenpen,
                                 settings.lowercase, settings.amp)
    perplexity = math.exp(min(nll, 700))
    folder.append_metrics({
        "type": "valid", "time": time.time(), "step": job.step, "valid_loss": nll,
        "valid_perplexity": perplexity, "valid_bleu": score, "valid_disagreement": D})
    say(f"step {job.step:6}  valid loss {nll:.3f}  perplexity {perplexity:.2f}  "
        f"BLEU {score:.2f} (greedy)")
    for i in (job.step % len(hypotheses), (job.step + len(hypotheses) // 2) % len(hypotheses)):
        say(f"    source      {pairs.source[i]}\n"
            f"    reference   {pairs.target[i]}\n"
            f"    translation {hypotheses[i]}")
    weights = {"model": job.model.state_dict(), "step": job.step}
    if settings.average:
        save(folder.numbered(job.step), weights)
        folder.keep(settings.average)
    if score > job.best:
        job.best = score
        save(folder.best, weights)
    job.save(folder.last)
    draw(folder.read_metrics(), folder.path / "loss.png")


@torch.compiler.set_stance("force_eager")
def test(job: Training, folder, encoded, corpora, tokenizer) -> dict:
    """The last row of a run: test BLEU by beam search with its signature, speed, parameters,
    disagreement."""
    settings = job.settings
    averaged = [folder.numbered(step) for step in folder.steps()] if settings.average else []
    if averaged:
        state = average(averaged)
        save(folder.path / "average.pt", {"model": state, "step": job.step})
    else:
        state = load(folder.best, job.where.device, needs=("model",))["model"]
    load_model_state(job.model, state, folder.path)
    scores = disagreement_scores(validate(job.model, encoded, settings.max_tokens, settings.amp)[1])
    pairs = corpora.test or corpora.valid
    say(f"testing: {len(pairs.source):,} sentences, beam {settings.beam}")
    hypotheses, score, signature, speed = bleu(job.model, tokenizer, pairs, settings.beam,
                                               settings.lenpen, settings.lowercase, settings.amp)
    atomic_write(folder.path / "test.hyp", "".join(f"{line}\n" for line in hypotheses))
    row = {
        "type": "test", "time": time.time(), "step": job.step,
        "test_bleu": score, "signature": signature,
        "set": "test" if corpora.test else "validation", "beam": settings.beam,
        "lenpen": settings.lenpen, "average": len(averaged), "disagreement": scores,
        "parameters": sum(p.numel() for p in job.model.parameters()), "tokens": job.tokens,
        "tokens_per_second": job.tokens / max(job.seconds, 1e-9), "sentences_per_second": speed}
    folder.append_metrics(row)
    return row


def kept_settings(settings: Settings, config: TransformerConfig, checksum: int) -> dict:
    """What config.json keeps: the model, and of the settings those that are not of it, with the
    checksum of the text's lengths."""
    model = dataclasses.asdict(config)
    kept = {"model": model}
    for name, value in dataclasses.asdict(settings).items():
        if name not in model and name not in ("name", "runs"):
            kept[name] = value
    if settings.train:
        kept["data"] = None
    return {**kept, "data_checksum": checksum}


def say_start(job: Training, path: Path, lengths) -> None:
    """The first lines: what is trained, and how."""
    settings = job.settings
    config = job.model.config
    share = padding_share(*lengths, batches(*lengths, settings.max_tokens, settings.seed))
    so_far = ""
    if job.step >= settings.steps:
        so_far = f"; finished with step {job.step}"
    elif job.step:
        so_far = f"; resumed at step {job.step}"
    parameters = sum(p.numel() for p in job.model.parameters())
    say(f"{path}: {parameters:,} parameters on {job.where.world} x {job.where.device}, "
        f"{len(lengths[0]):,} pairs, {config.vocab_size:,} tokens, {share:.1%} padding{so_far}\n"
        f"{rate_in_words(config.d_model, settings)}")


def train(settings: Settings) -> None:
    """Trains, validates and tests one run; the same command again resumes it where it stopped."""
    where = machine(settings.device)
    complete(settings, where)
    settings.model_config(vocab_size=1)    # wrong sizes and places are told before anything is read
    path = Path(settings.runs) / settings.name
    grown = may_change(settings, path)
    writer = summary_writer() if settings.tensorboard else None

    # data
    if where.first:
        say(f"{path}: reading the text and its vocabulary")
    with where.first_alone():                    # it downloads and encodes; the others find it done
        corpora = load_corpora(settings)
        known = (path / "tokenizer.json").exists()
        if known:
            tokenizer = load_tokenizer(path / "tokenizer.json")
        else:
            tokenizer = corpus_tokenizer(corpora, settings.vocab_size)
        encoded = {"train": encode_train(tokenizer, corpora, settings.max_length),
                   "valid": encode_valid(tokenizer, corpora)}
    lengths = encoded["train"].source_lengths, encoded["train"].target_lengths

    # model
    config = settings.model_config(vocab_size=tokenizer.get_vocab_size())
    with torch.device("meta"):
        check_fits(Transformer(config), where.device)
    opened = contextlib.nullcontext()                    # only the first process writes
    if where.first:
        free = (*FREE, "data", *grown)                   # the text has its checksum
        checksum = zlib.crc32(lengths[1], zlib.crc32(lengths[0]))    # a place is one in this text
        kept = kept_settings(settings, config, checksum)
        opened = RunFolder(path, kept, free, defaults_of(Settings))
    with opened as folder:
        if where.first and not known:
            save_tokenizer(tokenizer, folder.tokenizer)
        job = Training(settings, config, where)
        last = path / "last.pt"
        if last.exists():
            job.resume(last)
        if where.first:
            folder.truncate_metrics(job.step)
            if writer:
                folder.board = writer(path, purge_step=job.step + 1)
            say_start(job, path, lengths)

        # train
        stop = []
        with stopped_by_signals(stop):
            fit(job, folder, encoded, corpora, tokenizer, stop)
        if stop:
            if where.world > 1:
                dist.all_reduce(job.window)              # the first process saves those of all
            if where.first:
                job.save(last)
                say(f"{path}: stopped at step {job.step}; the same command resumes it")
            raise SystemExit(128 + stop[0])

        # test
        if where.first:
            tested = [row for row in folder.read_metrics() if "test_bleu" in row]
            if not tested or tested[-1]["step"] < job.step:
                tested.append(test(job, folder, encoded["valid"], corpora, tokenizer))
            say(f"\n{path}: {summary(tested[-1], config.heads)}")
    if where.world > 1:
        dist.destroy_process_group()


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(train, Settings, "train_mt.py", DESCRIPTION, argv)


if __name__ == "__main__":
    sys.exit(main())
