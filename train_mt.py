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
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from tqdm import tqdm

import checkpoint
from cli import Parser, UserError, real, run, whole
from data import (BatchDataset, add_data_flags, batches, corpus_tokenizer, encode_pairs, load_corpora, load_tokenizer,
                  padding_share, save_tokenizer)
from transformer import KINDS, PAD, Transformer, TransformerConfig, add_model_flags, layer_disagreement
from translate import corpus_bleu, translate_lines

# What a size takes where no flag says otherwise: the papers' settings for base and big, a small machine's for the rest.
RECIPES = {"toy": dict(steps=1_200, warmup=300, max_tokens=1024), "tiny": dict(steps=6_000, warmup=1_000, max_tokens=4096),
           "small": dict(steps=10_000, warmup=2_000, max_tokens=4096),
           "base": dict(steps=100_000, warmup=4_000, max_tokens=4096),
           "big": dict(steps=300_000, warmup=4_000, max_tokens=4096)}
FREE = ("device", "workers", "data_dir", "train", "valid", "test", "log_every")     # may differ when a run is resumed


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
    g.add_argument("--lr", type=real(0, 1e3, low_open=True), default=1.0, metavar="FACTOR", help="factor on the learning "
                   "rate d^-0.5 min(step^-0.5, step warmup^-1.5)")
    g.add_argument("--max-tokens", type=whole(1, 10 ** 8), help="size of a micro-batch: its sentences times the longest "
                   f"of them, in tokens ({recipe('max_tokens')})", **none)
    g.add_argument("--accumulate", type=whole(1, 10 ** 6), default=1, help="micro-batches per step, in every process")
    g.add_argument("--label-smoothing", type=real(0, 0.99), default=0.1, help="label smoothing")
    g.add_argument("--clip", type=real(0), default=0.0, help="largest norm of the gradient; 0 does not clip")
    g.add_argument("--seed", type=whole(0, 2 ** 31), default=1, help="seed of the parameters, dropout and batches")
    g = p.add_argument_group("validation, checkpoints and test")
    g.add_argument("--eval-every", type=whole(1), help="steps between validations, each with a checkpoint (a tenth of "
                   "the steps)", **none)
    g.add_argument("--log-every", type=whole(1), default=100, help="steps between log lines")
    g.add_argument("--average", type=whole(0, 1000), default=0, metavar="K", help="test the average of the last K "
                   "checkpoints; 0 tests the best one")
    g.add_argument("--beam", type=whole(1, 1000), default=4, help="beam size of the test")
    g.add_argument("--lenpen", type=real(0, 100), default=0.6, help="length penalty alpha of the test")
    g.add_argument("--lowercase", action="store_true", help="score BLEU case-insensitively, as Gu 2019 does for Zh-En")
    g = p.add_argument_group("machine")
    g.add_argument("--run", metavar="NAME", help="name of the run's folder (made from the other flags)", **none)
    g.add_argument("--runs", default="runs", metavar="DIR", help="where the runs' folders lie")
    g.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    g.add_argument("--amp", action=argparse.BooleanOptionalAction, help="bfloat16 matrix products (yes on a GPU)", **none)
    g.add_argument("--workers", type=whole(0, 256), help="processes that prepare batches (GPU 2, CPU 0)", **none)
    return p


# ---- The machine

class Machine(NamedTuple):
    """Where this process computes: its device, and its place among the processes of the run."""
    device: torch.device
    rank: int
    world: int

    @property
    def first(self) -> bool:
        """Whether this is the process that validates, writes and talks."""
        return self.rank == 0


def machine(name: str) -> Machine:
    """The device called name ("auto" prefers a GPU); joins the other processes where torchrun started this one."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name}: choose auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: choose auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: this machine has {torch.cuda.device_count()} GPUs; choose cpu or auto")
    if world > 1:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Machine(device, rank, world)


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


def losses(model, batch, label_smoothing: float, device):
    """Smoothed cross-entropy summed over the target tokens of a batch, and the disagreement D."""
    source, target = (x.to(device, non_blocking=True) for x in batch)
    target_in, target_out = target[:, :-1], target[:, 1:]                    # [B, L_t]
    logits, heads = model(source, target_in)                                 # [B, L_t, V]
    loss = F.cross_entropy(logits.flatten(0, 1), target_out.flatten(), ignore_index=PAD, reduction="sum",
                           label_smoothing=label_smoothing)
    inner = getattr(model, "module", model)                                  # inside DistributedDataParallel
    # where the next token is padding nothing is predicted: such positions count in neither sum
    return loss, inner.disagreement(heads, source != PAD, target_out != PAD)


def learning_rate(step: int, d_model: int, warmup: int) -> float:
    """`d^-0.5 min(step^-0.5, step warmup^-1.5)` (Vaswani et al. 2017, section 5.3), for step = 1, 2, ..."""
    return d_model ** -0.5 * min(step ** -0.5, step * warmup ** -1.5)


def train_step(model, optimizer, step: Step, args, where: Machine):
    """One update: (cross-entropy, D times target tokens) summed over this process's micro-batches, and the norm of
    the gradient, all still on the device. An update whose gradient is not finite is left out.

    The loss of a micro-batch is cross-entropy per target token - lambda D (Li 2018 section 3.1); the micro-batches
    of an update are weighted by their target tokens, so it does not matter how the tokens fall on the processes.
    """
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros(2, device=where.device)
    for i, batch in enumerate(step.batches):
        last = i + 1 == len(step.batches)
        with contextlib.nullcontext() if last or where.world == 1 else model.no_sync():
            tokens = int((batch.target[:, 1:] != PAD).sum())                 # on the CPU still
            with torch.autocast(where.device.type, torch.bfloat16, enabled=args.amp):
                cross_entropy, D = losses(model, batch, args.label_smoothing, where.device)
            loss = (cross_entropy - args.reg_weight * D * tokens) / step.tokens
            (loss * where.world).backward()                                  # the processes' gradients are averaged
        total += torch.stack([cross_entropy.detach(), D.detach() * tokens])
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)
    if torch.isfinite(norm):
        optimizer.step()
    return total, norm


# ---- Validation and test

@torch.no_grad()
def validate(model, encoded, args, device) -> tuple[float, dict]:
    """Cross-entropy per target token, and exp(D) of the three kinds by component (Li 2018 Table 4): the exponential
    of the mean over the layers, positions by the literal sum of Eq. 2."""
    model.eval()
    nll, count, sentences, scores = 0.0, 0, 0, {}
    found = batches(encoded.source_lengths, encoded.target_lengths, args.max_tokens, shuffle=False)
    for batch in DataLoader(BatchDataset(encoded, found), batch_size=None, generator=torch.Generator()):
        source, target = (x.to(device) for x in batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
            logits, heads = model(source, target[:, :-1], need_weights=True)
        nll += F.cross_entropy(logits.float().flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD,
                               reduction="sum").item()
        count += int((target[:, 1:] != PAD).sum())
        for component, layers in heads.items():
            for kind in KINDS:
                D = [layer_disagreement(kind, component, h, source != PAD, target[:, 1:] != PAD, reduce="sum")
                     for h in layers]
                total = scores.setdefault(component, {}).setdefault(kind, 0.0)
                scores[component][kind] = total + torch.stack(D).mean().item() * len(source)
        sentences += len(source)
    model.train()
    return nll / count, {c: {k: math.exp(v / sentences) for k, v in kinds.items()} for c, kinds in scores.items()}


def bleu(model, tokenizer, pairs, args, beam: int, device):
    """(hypotheses, sacreBLEU, signature) of the translation of pairs."""
    with torch.autocast(device.type, torch.bfloat16, enabled=args.amp):
        hypotheses = translate_lines(model, tokenizer, pairs.source, beam=beam, lenpen=args.lenpen)
    return hypotheses, *corpus_bleu(hypotheses, pairs.target, lowercase=args.lowercase)


def score_table(scores: dict) -> str:
    """exp(D) as a small table, a row per component."""
    rows = [f"  {'':6}" + "".join(f"{kind:>10}" for kind in KINDS)]
    rows += [f"  {c:6}" + "".join(f"{kinds[kind]:10.3f}" for kind in KINDS) for c, kinds in scores.items()]
    return "\n".join(rows)


# ---- The run

def complete(args) -> None:
    """Fills in what the flags left to the recipe of the corpus and the size."""
    small_toy = args.data == "toy" and not args.train and args.arch == "tiny"
    for name, value in RECIPES["toy" if small_toy else args.arch].items():
        setattr(args, name, getattr(args, name, value))
    args.eval_every = getattr(args, "eval_every", max(1, args.steps // 10))
    if not hasattr(args, "run"):
        flags = [Path(args.train).name if args.train else args.data, args.arch, args.agg if args.agg != "linear" else "",
                 "-".join(getattr(args, "reg", [])), "capsule" if hasattr(args, "capsule") else "", f"seed{args.seed}"]
        args.run = "-".join(flag for flag in flags if flag)


def settings(args, config: TransformerConfig) -> dict:
    """What config.json holds: the model's configuration, and the flags that are not part of it."""
    model = dataclasses.asdict(config)
    flags = {k: v for k, v in vars(args).items() if k not in model and k not in ("run", "runs")}
    return {"model": model, **flags}


class Run:
    """A model in training: everything that a checkpoint holds, and the folder that holds the checkpoints."""

    def __init__(self, args, config: TransformerConfig, folder, where: Machine):
        self.args, self.config, self.folder, self.where = args, config, folder, where
        torch.manual_seed(args.seed)
        self.model = Transformer(config).to(where.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9,
                                          fused=where.device.type == "cuda")
        rate = lambda done: args.lr * learning_rate(done + 1, config.d_model, args.warmup)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.step, self.place, self.best, self.seconds, self.tokens = 0, (0, 0), -1.0, 0.0, 0
        torch.manual_seed(args.seed + 1_000_003 * where.rank)                # every process has its own dropout

    def save(self, path) -> None:
        """Writes all that resuming exactly takes."""
        checkpoint.save(path, {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(), "random": checkpoint.random_state(), "step": self.step,
            "place": list(self.place), "best": self.best, "seconds": self.seconds, "tokens": self.tokens})

    def resume(self, path) -> None:
        """Takes up what `save` wrote."""
        state = checkpoint.load(path, self.where.device)
        checkpoint.load_model_state(self.model, state["model"], path)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        checkpoint.set_random_state(state["random"])
        self.step, self.place, self.best = state["step"], tuple(state["place"]), state["best"]
        self.seconds, self.tokens = state["seconds"], state["tokens"]


def say(*text) -> None:
    """Prints past the progress bar."""
    tqdm.write(" ".join(map(str, text)), file=sys.stdout)
    sys.stdout.flush()


def fit(run: Run, encoded, corpora, tokenizer, stop) -> None:
    """Trains run up to its last step, validating as it goes."""
    args, folder, where = run.args, run.folder, run.where
    model = run.model
    if where.world > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    bar = tqdm(total=args.steps, initial=run.step, unit="step", dynamic_ncols=True,
               disable=not (where.first and sys.stderr.isatty()))
    window, window_tokens, started = torch.zeros(2, device=where.device), 0, time.perf_counter()
    run.model.train()
    for step in steps(encoded["train"], args, run.place, where.rank, where.world, where.device.type == "cuda"):
        if run.step >= args.steps or stop:
            break
        total, norm = train_step(model, run.optimizer, step, args, where)
        run.schedule.step()
        run.step, run.place = run.step + 1, step.place
        window, window_tokens = window + total, window_tokens + step.tokens
        bar.update()
        if run.step % args.log_every == 0 or run.step % args.eval_every == 0 or run.step == args.steps:
            if where.world > 1:
                dist.all_reduce(window)
            cross_entropy, D = (window / window_tokens).tolist()             # waits for the device
            seconds = time.perf_counter() - started
            run.seconds, run.tokens = run.seconds + seconds, run.tokens + window_tokens
            row = {"step": run.step, "epoch": step.place[0], "loss": cross_entropy, "disagreement": D,
                   "gradient_norm": norm.item(), "lr": run.schedule.get_last_lr()[0],
                   "tokens_per_second": window_tokens / seconds}
            if where.first:
                folder.append_metrics(row)
                say(f"step {run.step:6}  epoch {row['epoch']:3}  loss {cross_entropy:.3f}"
                    + (f"  D {D:.3f}" if run.config.reg else "") + f"  lr {row['lr']:.2e}"
                    f"  {row['tokens_per_second']:,.0f} target tokens/s")
            if (run.step % args.eval_every == 0 or run.step == args.steps) and where.first:
                judge(run, encoded["valid"], corpora.valid, tokenizer)
            window, window_tokens, started = torch.zeros_like(window), 0, time.perf_counter()
    bar.close()


def judge(run: Run, encoded, pairs, tokenizer) -> None:
    """Validation loss and BLEU by greedy search, two translations to look at, checkpoints."""
    args, folder = run.args, run.folder
    started = time.perf_counter()
    nll, scores = validate(run.model, encoded, args, run.where.device)
    hypotheses, score, _ = bleu(run.model, tokenizer, pairs, args, beam=1, device=run.where.device)
    folder.append_metrics({"step": run.step, "valid_loss": nll, "valid_perplexity": math.exp(min(nll, 700)),
                           "valid_bleu": score, "valid_disagreement": scores})
    say(f"step {run.step:6}  valid loss {nll:.3f}  perplexity {math.exp(min(nll, 700)):.2f}  BLEU {score:.2f} (greedy)"
        f"  {time.perf_counter() - started:.1f} s")
    for i in (run.step % len(hypotheses), (run.step + len(hypotheses) // 2) % len(hypotheses)):
        say(f"    source      {pairs.source[i]}\n    reference   {pairs.target[i]}\n    translation {hypotheses[i]}")
    if args.average:
        run.save(folder.numbered(run.step))
        folder.keep(args.average)
    if score > run.best:
        run.best = score
        run.save(folder.best)
    run.save(folder.last)
    run.model.train()


def test(run: Run, encoded, corpora, tokenizer) -> None:
    """The last words of a run: test BLEU by beam search with its signature, speed, parameters, disagreement."""
    args, folder, device = run.args, run.folder, run.where.device
    if args.average:
        state = checkpoint.average([folder.numbered(step) for step in folder.steps()])
        checkpoint.save(folder.path / "average.pt", {"model": state})
    else:
        state = checkpoint.load(folder.best, device)["model"]
    run.model.load_state_dict(state)
    _, scores = validate(run.model, encoded["valid"], args, device)
    started = time.perf_counter()
    pairs = corpora.test or corpora.valid
    _, score, signature = bleu(run.model, tokenizer, pairs, args, beam=args.beam, device=device)
    seconds = time.perf_counter() - started
    parameters = sum(p.numel() for p in run.model.parameters())
    result = {"step": run.step, "test_bleu": score, "signature": signature, "beam": args.beam, "lenpen": args.lenpen,
              "parameters": parameters, "tokens_per_second": run.tokens / max(run.seconds, 1e-9),
              "sentences_per_second": len(pairs.source) / seconds, "disagreement": scores}
    folder.append_metrics(result)
    say(f"\n{folder.path}: {'test' if corpora.test else 'validation'} BLEU {score:.2f}   {signature}\n"
        f"  beam {args.beam}, length penalty {args.lenpen}, {'average of the last ' + str(args.average) if args.average else 'best'}"
        f" checkpoint\n  {parameters:,} parameters; trained {run.tokens:,} target tokens at {result['tokens_per_second']:,.0f}/s;"
        f" decoded {result['sentences_per_second']:.1f} sentences/s\n"
        f"  disagreement exp(D) on the validation set (1: the heads cancel, e^-1 = 0.368: they are alike)\n{score_table(scores)}")


def train(args) -> None:
    """Trains, validates and tests one run; the same command again takes it up where it stopped."""
    complete(args)
    where = machine(args.device)
    args.amp = getattr(args, "amp", where.device.type == "cuda")
    args.workers = getattr(args, "workers", 2 if where.device.type == "cuda" else 0)
    path = Path(args.runs) / args.run
    corpora = load_corpora(args)
    known = (path / "tokenizer.json").exists()
    tokenizer = load_tokenizer(path / "tokenizer.json") if known else corpus_tokenizer(corpora, args.vocab_size)
    config = TransformerConfig.from_flags(args, vocab_size=tokenizer.get_vocab_size())
    with checkpoint.RunFolder(path, settings(args, config), FREE) if where.first else contextlib.nullcontext() as folder:
        if where.first and not known:
            save_tokenizer(tokenizer, folder.tokenizer)
        encoded = {"train": encode_pairs(tokenizer, corpora.train, args.max_length),
                   "valid": encode_pairs(tokenizer, corpora.valid)}
        run = Run(args, config, folder, where)
        last = path / "last.pt"
        if last.exists():
            run.resume(last)
        if where.first:
            if last.exists():
                folder.truncate_metrics(run.step)
            lengths = encoded["train"].source_lengths, encoded["train"].target_lengths
            share = padding_share(*lengths, batches(*lengths, args.max_tokens, args.seed, 0))
            say(f"{path}: {sum(p.numel() for p in run.model.parameters()):,} parameters on {where.device} x {where.world};"
                f" {len(encoded['train']):,} pairs, {config.vocab_size:,} tokens, {share:.1%} padding"
                + (f"; resumed at step {run.step}" if run.step else ""))
        stop = []
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda number, frame: stop.append(number))
        fit(run, encoded, corpora, tokenizer, stop)
        if where.first and not stop:
            test(run, encoded, corpora, tokenizer)
        if stop:
            if where.first:
                run.save(last)
                say(f"stopped at step {run.step}; the same command resumes it")
            raise SystemExit(128 + stop[0])
    if where.world > 1:
        dist.destroy_process_group()


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(train, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
