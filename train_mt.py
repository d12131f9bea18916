"""Trains a translation model, validates and tests it: the project's main job, readable from top to bottom.

    python train_mt.py --agg em --reg output                    # the embedded corpus, minutes on a CPU
    python train_mt.py --data multi30k                          # real text
    torchrun --nproc-per-node 8 train_mt.py --data wmt14-en-de --arch base      # the papers' batch: 8 x 4,096 tokens

A run lives in runs/NAME: config.json, tokenizer.json, metrics.jsonl, checkpoints. The same command again resumes it.
"""
import argparse
import contextlib
import dataclasses
import math
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from tqdm import tqdm

import checkpoint
import cli
from cli import Parser, UserError, folder_name, real, whole
from data import (BatchDataset, add_data_flags, batches, corpus_tokenizer, encode_train, encode_valid, load_corpora,
                  load_tokenizer, padding_share, save_tokenizer)
from evaluate import bleu, disagreement_scores, score_table, validate
from fast_routing import can_compile, install
from machine import Machine, agreed, check_fits, machine, stopped_by_signals
from nmt.loss import of_tokens
from transformer import PAD, Transformer, TransformerConfig, add_model_flags

# What a size takes where no flag says otherwise: the papers' settings for base and big, a small machine's for the rest.
RECIPES = {
    "toy": dict(steps=1_800, warmup=150, lr=0.4, decay="linear", clip=1.0, max_tokens=512, dropout=0.0,
                eval_every=450),
    "tiny": dict(steps=4_000, warmup=500, lr=0.8, decay="linear", clip=1.0, max_tokens=2048, dropout=0.1),
    "small": dict(steps=10_000, warmup=1_000, lr=0.8, decay="linear", clip=1.0, max_tokens=4096, dropout=0.1),
    "base": dict(steps=100_000, warmup=4_000, lr=1.0, decay="sqrt", clip=0.0, max_tokens=4096, dropout=0.1),
    "big": dict(steps=300_000, warmup=4_000, lr=1.0, decay="sqrt", clip=0.0, max_tokens=4096, dropout=0.3)}
PATIENCE = 5                    # steps in a row without a finite gradient, after which the run gives up
FREE = ("device", "compile", "workers", "data_dir", "train", "valid", "test", "log_every")     # may differ when a run is resumed


def parser() -> Parser:
    """The command line: the text, the model by paper, training, test, machine."""
    p = Parser(prog="train_mt.py", description="Trains a Transformer for translation and tests it. All mechanisms "
               "combine freely; their flags are grouped by paper.")
    recipe = lambda key: ", ".join(f"{name} {values[key]}" for name, values in RECIPES.items())
    none = dict(default=argparse.SUPPRESS)
    add_data_flags(p)
    add_model_flags(p)
    g = p.add_argument_group("training (Vaswani et al. 2017)")
    g.add_argument("--steps", type=whole(1), help=f"updates of the parameters ({recipe('steps')})", **none)
    g.add_argument("--warmup", type=whole(1), help=f"warm-up steps ({recipe('warmup')})", **none)
    g.add_argument("--lr", type=real(0, 1e3, low_open=True), metavar="FACTOR", help="factor on the learning rate "
                   f"d^-0.5 min(step^-0.5, step warmup^-1.5) ({recipe('lr')})", **none)
    g.add_argument("--decay", choices=("sqrt", "linear"), help="how the learning rate falls after the warm-up: with "
                   f"step^-0.5, or linearly to 0 ({recipe('decay')})", **none)
    g.add_argument("--max-tokens", type=whole(1, 10 ** 8), help="size of a micro-batch: its sentences times the longest "
                   f"of them, in tokens ({recipe('max_tokens')})", **none)
    g.add_argument("--accumulate", type=whole(1, 10 ** 6), default=1, help="micro-batches per step, in every process")
    g.add_argument("--label-smoothing", type=real(0, 0.99), default=0.1, help="label smoothing")
    g.add_argument("--clip", type=real(0), help=f"largest norm of the gradient; 0 does not clip ({recipe('clip')})", **none)
    g.add_argument("--seed", type=whole(0, 2 ** 31), default=1, help="seed of the parameters, dropout and batches")
    g = p.add_argument_group("validation, checkpoints and test")
    g.add_argument("--eval-every", type=whole(1), help="steps between validations, each with a checkpoint (a tenth of "
                   "the steps; toy 450)", **none)
    g.add_argument("--log-every", type=whole(1), default=100, help="steps between log lines")
    g.add_argument("--average", type=whole(0, 1000), default=0, metavar="K", help="test the average of the last K "
                   "checkpoints; 0 tests the best one")
    g.add_argument("--beam", type=whole(1, 1000), default=4, help="beam size of the test")
    g.add_argument("--lenpen", type=real(0, 100), default=0.6, help="length penalty alpha of the test")
    g.add_argument("--lowercase", action="store_true", help="score BLEU case-insensitively, as Gu 2019 does for Zh-En")
    g = p.add_argument_group("machine")
    g.add_argument("--name", type=folder_name, help="name of the run's folder (made from the other flags)", **none)
    g.add_argument("--runs", default="runs", metavar="DIR", help="where the runs' folders lie")
    g.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    g.add_argument("--amp", action=argparse.BooleanOptionalAction, help="bfloat16 matrix products (yes on a GPU)", **none)
    g.add_argument("--compile", action=argparse.BooleanOptionalAction, help="routing compiled into a few loops: faster "
                   "after a start of a minute (yes on a GPU)", **none)
    g.add_argument("--workers", type=whole(0, 256), help="processes that prepare batches (GPU 2, CPU 0)", **none)
    return p


# ---- Batches and loss

class Step(NamedTuple):
    """The micro-batches of one update that fall to this process."""
    batches: list
    tokens: int                 # target tokens of the update, over all processes
    place: tuple[int, int]      # (epoch, micro-batch) of the update after this one


def steps(encoded, args, place, rank=0, world=1, pin_memory=False):
    """The updates from `place` on, without end: every `accumulate x world` micro-batches of the shuffled stream make
    one, dealt out to the processes in turn. An epoch's last few wait for the next epoch."""
    (epoch, start), group, seen, tokens = place, [], 0, 0
    while True:
        found = batches(encoded.source_lengths, encoded.target_lengths, args.max_tokens, args.seed, epoch)[start:]
        own = [indices for i, indices in enumerate(found, seen) if i % world == rank]
        loader = iter(DataLoader(BatchDataset(encoded, own), batch_size=None, num_workers=args.workers,
                                 pin_memory=pin_memory, generator=torch.Generator()))
        for i, indices in enumerate(found, seen):
            if i % world == rank:
                group.append(next(loader))
            tokens += int(encoded.target_lengths[indices].sum()) + len(indices)      # EOS counts
            if (i + 1) % (args.accumulate * world) == 0:
                yield Step(group, tokens, (epoch, start + i + 1 - seen))
                group, tokens = [], 0
        seen = (seen + len(found)) % (args.accumulate * world)
        epoch, start = epoch + 1, 0


class Objective(nn.Module):
    """A model with the two parts of its loss: what DistributedDataParallel wraps, for it follows `forward` alone."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, source, target, tokens: int, label_smoothing: float):
        """source [B, L_s], target [B, L_t + 1] with `tokens` tokens after BOS -> smoothed cross-entropy, summed over
        these tokens, and the disagreement D."""
        target_in, target_out = target[:, :-1], target[:, 1:]                # [B, L_t]
        hidden, heads = self.model.hidden(source, target_in)                 # [B, L_t, d]
        # where the next token is padding nothing is predicted: such positions count in neither sum
        cross_entropy = of_tokens(hidden, self.model.output.weight, target_out, PAD, tokens, label_smoothing)
        return cross_entropy, self.model.disagreement(heads, source != PAD, target_out != PAD)


def losses(objective, batch, tokens: int, label_smoothing: float, device):
    """The two parts of the loss of a batch, which need not be on the device."""
    source, target = (x.to(device, non_blocking=True) for x in batch)
    return objective(source, target, tokens, label_smoothing)


def learning_rate(step: int, d_model: int, args) -> float:
    """The learning rate of step = 1, 2, ...: with --decay sqrt `d^-0.5 min(step^-0.5, step warmup^-1.5)` (Vaswani et al.
    2017, section 5.3); with --decay linear the same rise to the same peak, then a straight line to 0 at the last step."""
    peak = args.lr * (d_model * args.warmup) ** -0.5
    falling = ((args.warmup / step) ** 0.5 if args.decay == "sqrt"
               else (args.steps + 1 - step) / max(1, args.steps + 1 - args.warmup))
    return peak * min(step / args.warmup, falling)


def train_step(objective, optimizer, step: Step, args, where: Machine):
    """One update of an Objective: [cross-entropy, D times target tokens] summed over this process's micro-batches, and
    the norm of the gradient, all still on the device. Where the loss or the gradient is not finite the parameters stay
    as they are.

    The loss of a micro-batch is cross-entropy per target token - lambda D (Li 2018 section 3.1); the micro-batches
    of an update are weighted by their target tokens, so it does not matter how the tokens fall on the processes.
    """
    optimizer.zero_grad(set_to_none=True)
    reg_lambda = getattr(objective, "module", objective).model.config.reg_lambda        # inside DistributedDataParallel
    total = torch.zeros(2, device=where.device)
    for i, batch in enumerate(step.batches):
        last = i + 1 == len(step.batches)
        with contextlib.nullcontext() if last or where.world == 1 else objective.no_sync():
            tokens = int((batch.target[:, 1:] != PAD).sum())                 # on the CPU still
            with torch.autocast(where.device.type, torch.bfloat16, enabled=args.amp):
                cross_entropy, D = losses(objective, batch, tokens, args.label_smoothing, where.device)
            loss = (cross_entropy - reg_lambda * D * tokens) / step.tokens
            sound = torch.where(loss.detach().isfinite(), where.world, math.nan)     # NaN reaches every process's norm
            (loss * sound).backward()                                        # the processes' gradients are averaged
        total += torch.stack([cross_entropy.detach(), D.detach() * tokens])
    norm = torch.nn.utils.get_total_norm([p.grad for p in objective.parameters() if p.grad is not None])
    if args.clip:
        torch.nn.utils.clip_grads_with_norm_(objective.parameters(), args.clip, norm)
    optimizer.found_inf = (~torch.isfinite(norm)).float()      # the fused Adam then leaves the step out, as for AMP
    optimizer.step()
    return total, norm


# ---- The run

class Training:
    """A model in training: all that a checkpoint holds."""
    COUNTS = ("step", "place", "best", "seconds", "tokens", "window", "window_tokens", "norms", "bad")

    def __init__(self, args, config: TransformerConfig, where: Machine, compiled: bool = False):
        checkpoint.seed(args.seed)
        self.args, self.where = args, where
        self.model = install(Transformer(config).to(where.device), compiled)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda done: learning_rate(done + 1, config.d_model, args))
        self.step, self.place, self.best = 0, (0, 0), -1.0
        self.seconds, self.tokens = 0.0, 0                                   # of training, up to the last log line
        self.window, self.window_tokens = torch.zeros(2, device=where.device), 0     # sums since the last log line
        self.norms = []                                  # of the gradients since then, each with the place it leads to
        self.bad = 0                                                         # steps in a row whose norm is not finite
        checkpoint.seed(args.seed + 1_000_003 * where.rank)                  # every process has its own dropout

    def save(self, path) -> None:
        """Writes all that resuming exactly takes."""
        checkpoint.save(path, {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(), "random": checkpoint.random_state(),
            **{name: getattr(self, name) for name in self.COUNTS}})

    def resume(self, path) -> None:
        """Takes up what `save` wrote. Raises UserError for a checkpoint that is not one of such a run."""
        needs = ("model", "optimizer", "schedule", "random", *self.COUNTS)
        state = checkpoint.load(path, self.where.device, needs)
        checkpoint.load_model_state(self.model, state["model"], path)
        weights, like = [*self.model.parameters()], lambda value: (type(value), getattr(value, "shape", None))
        try:
            moments = state["optimizer"]["state"]
            if (bool(moments) != bool(state["step"]) or list(map(type, state["place"])) != [int, int]
                    or any(moment[name].shape != weights[i].shape for i, moment in moments.items()
                           for name in ("exp_avg", "exp_avg_sq"))
                    or any(like(state[name]) != like(getattr(self, name)) for name in self.COUNTS)
                    or state["schedule"].keys() != self.schedule.state_dict().keys()):
                raise ValueError
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
        except Exception as error:                       # a foreign state errs in a way of its own
            raise UserError(f"{path}: its optimizer or its counts are not those of this run: use a checkpoint that the "
                            "run wrote itself, or train again under another --name") from error
        checkpoint.set_random_state(state["random"])     # the first process's; for the others see `fit`
        vars(self).update((name, state[name]) for name in self.COUNTS)


def say(text: str) -> None:
    """Prints past the progress bar."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


def fit(job: Training, folder, encoded, corpora, tokenizer, stop: list) -> None:
    """Trains up to the last step or a signal to stop, logging and validating as it goes."""
    args, where, objective = job.args, job.where, Objective(job.model)
    if where.world > 1:
        objective = DistributedDataParallel(objective, gradient_as_bucket_view=True)
    bar = tqdm(total=args.steps, initial=job.step, unit="step", dynamic_ncols=True,
               disable=not (where.first and sys.stderr.isatty()))
    objective.train()
    started = time.perf_counter()
    for step in steps(encoded["train"], args, job.place, where.rank, where.world, where.device.type == "cuda"):
        if job.step >= args.steps or agreed(stop, job.step, where):
            break
        if not where.first:                              # a checkpoint has the first process's random state alone
            torch.manual_seed(args.seed + 1_000_003 * where.rank + job.step)
        total, norm = train_step(objective, job.optimizer, step, args, where)
        job.schedule.step()
        job.step, job.place = job.step + 1, step.place
        job.window, job.window_tokens, job.norms = job.window + total, job.window_tokens + step.tokens, \
            job.norms + [(norm, step.place)]
        bar.update()
        judging = job.step % args.eval_every == 0 or job.step == args.steps
        if judging or job.step % args.log_every == 0:
            log(job, folder, time.perf_counter() - started)
            if judging and where.first:
                judge(job, folder, encoded["valid"], corpora.valid, tokenizer)
            started = time.perf_counter()
    job.seconds += time.perf_counter() - started
    bar.close()


def log(job: Training, folder, seconds: float) -> None:
    """A log line and a row of metrics about the steps since the last one. Raises UserError after PATIENCE steps in a
    row whose gradient was not finite."""
    if job.where.world > 1:
        dist.all_reduce(job.window)
    cross_entropy, D = (job.window / job.window_tokens).tolist()             # waits for the device
    norms, places = torch.stack([norm for norm, _ in job.norms]).tolist(), [place for _, place in job.norms]
    job.seconds, job.tokens = job.seconds + seconds, job.tokens + job.window_tokens
    row = {"step": job.step, "epoch": job.place[0], "loss": cross_entropy, "disagreement": D,
           "gradient_norm": norms[-1], "lr": learning_rate(job.step, job.model.config.d_model, job.args),
           "tokens_per_second": job.window_tokens / seconds}
    if job.where.first:
        folder.append_metrics(row)
        say(f"step {job.step:6}  epoch {job.place[0]:3}  loss {cross_entropy:.3f}"
            + (f"  D {D:.3f}" if job.model.config.reg else "")
            + f"  lr {row['lr']:.2e}  {row['tokens_per_second']:,.0f} target tokens/s")
    for step, norm, (epoch, batch) in zip(range(job.step - len(norms) + 1, job.step + 1), norms, places):
        job.bad = 0 if math.isfinite(norm) else job.bad + 1
        if job.bad and job.where.first:
            say(f"step {step:6}  epoch {epoch:3}  batch {batch}: the loss or its gradient is not finite: step left out")
        if job.bad == PATIENCE:
            raise UserError(f"steps {step - PATIENCE + 1} to {step}, up to batch {batch} of epoch {epoch}: the loss or "
                            "its gradient is not finite; the last checkpoint is intact: translate with it, or train "
                            "again under another --name with a lower --lr or with --clip 1")
    job.window, job.window_tokens, job.norms = torch.zeros_like(job.window), 0, []


def judge(job: Training, folder, encoded, pairs, tokenizer) -> None:
    """Validation loss and BLEU by greedy search, two translations to look at, checkpoints."""
    args = job.args
    nll, D = validate(job.model, encoded, args.max_tokens, args.amp)
    hypotheses, score, *_ = bleu(job.model, tokenizer, pairs, 1, args.lenpen, args.lowercase, args.amp)
    perplexity = math.exp(min(nll, 700))
    folder.append_metrics({"step": job.step, "valid_loss": nll, "valid_perplexity": perplexity, "valid_bleu": score,
                           "valid_disagreement": D})
    say(f"step {job.step:6}  valid loss {nll:.3f}  perplexity {perplexity:.2f}  BLEU {score:.2f} (greedy)")
    lines = list(zip(pairs.source, pairs.target, hypotheses))
    for i in (job.step % len(lines), (job.step + len(lines) // 2) % len(lines)):
        say("    source      {}\n    reference   {}\n    translation {}".format(*lines[i]))
    if args.average:
        checkpoint.save(folder.numbered(job.step), {"model": job.model.state_dict(), "step": job.step})
        folder.keep(args.average)
    if score > job.best:
        job.best = score
        checkpoint.save(folder.best, {"model": job.model.state_dict(), "step": job.step})
    job.save(folder.last)


def test(job: Training, folder, encoded, corpora, tokenizer) -> None:
    """The last words of a run: test BLEU by beam search with its signature, speed, parameters, disagreement."""
    args = job.args
    if args.average:
        state = checkpoint.average([folder.numbered(step) for step in folder.steps()])
        checkpoint.save(folder.path / "average.pt", {"model": state, "step": job.step})
    else:
        state = checkpoint.load(folder.best, job.where.device, needs=("model",))["model"]
    checkpoint.load_model_state(job.model, state, folder.path)
    scores = disagreement_scores(validate(job.model, encoded, args.max_tokens, args.amp)[1])
    pairs = corpora.test or corpora.valid
    hypotheses, score, signature, speed = bleu(job.model, tokenizer, pairs, args.beam, args.lenpen, args.lowercase,
                                               args.amp)
    checkpoint.atomic_write(folder.path / "test.hyp", "".join(f"{line}\n" for line in hypotheses))
    folder.append_metrics({
        "step": job.step, "test_bleu": score, "signature": signature, "set": "test" if corpora.test else "validation",
        "beam": args.beam, "lenpen": args.lenpen, "average": args.average, "disagreement": scores,
        "parameters": sum(p.numel() for p in job.model.parameters()), "tokens": job.tokens,
        "tokens_per_second": job.tokens / max(job.seconds, 1e-9), "sentences_per_second": speed})


def report(path, result: dict) -> None:
    """Prints what `test` found."""
    which = f"average of the last {result['average']} checkpoints" if result["average"] else "best checkpoint"
    say(f"\n{path}: {result['set']} BLEU {result['test_bleu']:.2f}   {result['signature']}\n"
        f"  {which}, beam {result['beam']}, length penalty {result['lenpen']}\n"
        f"  {result['parameters']:,} parameters; trained on {result['tokens']:,} target tokens, "
        f"{result['tokens_per_second']:,.0f} per second; decoded {result['sentences_per_second']:.1f} sentences per second\n"
        "  disagreement exp(D) on the validation set: 0.368 where the heads are alike, 1 where they cancel;\n"
        "  of the positions it is a sum over the sentence, which falls with its length\n"
        f"{score_table(result['disagreement'])}")


def complete(args, where: Machine) -> None:
    """Fills in what the flags leave to the corpus, the size and the machine."""
    gpu, toy = where.device.type == "cuda", args.data == "toy" and not args.train and args.arch == "tiny"
    for name, value in {**RECIPES["toy" if toy else args.arch], "amp": gpu, "compile": gpu, "workers": 2 if gpu else 0}.items():
        setattr(args, name, getattr(args, name, value))
    args.eval_every = getattr(args, "eval_every", max(1, args.steps // 10))
    if not hasattr(args, "name"):
        parts = [Path(args.train).name if args.train else args.data, args.arch, args.agg if args.agg != "linear" else "",
                 "-".join(getattr(args, "reg", [])), "capsule" if hasattr(args, "capsule") else "", f"seed{args.seed}"]
        args.name = "-".join(part for part in parts if part)


def train(args) -> None:
    """Trains, validates and tests one run; the same command again takes it up where it stopped."""
    where = machine(args.device)
    complete(args, where)
    TransformerConfig.from_flags(args, vocab_size=1)     # wrong sizes and places are told before anything is read
    path = Path(args.runs) / args.name
    with where.first_alone():                            # it downloads and encodes; the others find it done
        corpora = load_corpora(args)
        known = (path / "tokenizer.json").exists()
        tokenizer = load_tokenizer(path / "tokenizer.json") if known else corpus_tokenizer(corpora, args.vocab_size)
        encoded = {"train": encode_train(tokenizer, corpora, args.max_length),
                   "valid": encode_valid(tokenizer, corpora)}
    config = TransformerConfig.from_flags(args, vocab_size=tokenizer.get_vocab_size())
    with torch.device("meta"):
        check_fits(Transformer(config), where.device)
    compiled = args.compile and bool(config.places("agg") or config.places("capsule")) and can_compile(where.device)
    model = dataclasses.asdict(config)
    flags = {name: value for name, value in vars(args).items() if name not in model and name not in ("name", "runs")}
    lengths = encoded["train"].source_lengths, encoded["train"].target_lengths
    flags["data_checksum"] = zlib.crc32(lengths[1], zlib.crc32(lengths[0]))      # a place in other text is no place
    with checkpoint.RunFolder(path, {"model": model, **flags}, FREE) if where.first else contextlib.nullcontext() as folder:
        if where.first and not known:
            save_tokenizer(tokenizer, folder.tokenizer)
        job, last, stop = Training(args, config, where, compiled), path / "last.pt", []
        if last.exists():
            job.resume(last)
        if where.first:
            folder.truncate_metrics(job.step)
            share = padding_share(*lengths, batches(*lengths, args.max_tokens, args.seed))
            say(f"{path}: {sum(p.numel() for p in job.model.parameters()):,} parameters on {where.world} x {where.device}, "
                f"{len(encoded['train']):,} pairs, {config.vocab_size:,} tokens, {share:.1%} padding"
                + (f"; resumed at step {job.step}" if job.step else ""))
        with stopped_by_signals(stop):
            fit(job, folder, encoded, corpora, tokenizer, stop)
        if stop:
            if where.first:
                job.save(last)
                say(f"{path}: stopped at step {job.step}; the same command resumes it")
            raise SystemExit(128 + stop[0])
        if where.first:
            if not any("test_bleu" in row for row in folder.read_metrics()):
                test(job, folder, encoded["valid"], corpora, tokenizer)
            report(path, [row for row in folder.read_metrics() if "test_bleu" in row][-1])
    if where.world > 1:
        dist.destroy_process_group()


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return cli.run(train, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
