"""Trains a Transformer for translation, validates and tests it. All mechanisms combine freely.

    python train_mt.py --agg em --reg output    # the embedded corpus, minutes
    python train_mt.py --data multi30k          # captions, downloaded
    python train_mt.py --train DIR/train --valid DIR/val --src en --tgt de

A run is the folder runs/NAME. The same command resumes it. Defaults that depend on --arch are
listed per size; toy stands for size tiny on the embedded corpus.
"""
import contextlib
import math
import os
import sys
import time
import zlib
from dataclasses import asdict, dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from disagreement import model_disagreement
from nmt.batches import Step, training_steps
from nmt.corpus import Data, DataFlags, hash_text, load_data, name_text
from nmt.evaluate import (
    NO_4_GRAMS,
    check_lengths,
    disagreement_scores,
    has_4_grams,
    score_sets,
    summary,
    text_warnings,
    validate,
)
from nmt.flags import ModelFlags
from nmt.loss import fused_piece_loss, padded_cross_entropy, piece_loss
from nmt.replay import MAX_TOKENS, Replay, check_graphs
from nmt.run_folder import (
    RunFolder,
    average_checkpoints,
    custom_classes,
    find_folder,
    load_checkpoint,
    load_weights,
    say,
)
from tools.command_line import command_line, flag, name_run, run, shell_line
from tools.files import UserError, atomic_write
from tools.machine import (
    Machine,
    check_compiler,
    machine_defaults,
    mixed_precision,
    seed_torch,
    setup_machine,
)
from tools.signals import defer_signals, restore_signals
from transformer import PAD, SIZES, Transformer

# what --arch changes in the defaults below; toy is size tiny on the embedded corpus, base and big
# are Vaswani et al.'s
RECIPES = {
    "toy": dict(steps=1_800, warmup=150, lr=2.9e-3, max_tokens=512, eval_every=450, dropout=0.0,
                amp=False, **SIZES["tiny"]),     # so small matrices gain nothing from bfloat16
    "tiny": SIZES["tiny"],
    "small": dict(steps=10_000, warmup=1_000, lr=1.6e-3, max_tokens=4096, eval_every=1_000,
                  **SIZES["small"]),
    "base": dict(steps=100_000, warmup=4_000, lr=7.0e-4, decay="sqrt", clip=0.0, max_tokens=4096,
                 eval_every=10_000),
    "big": dict(steps=300_000, warmup=4_000, lr=4.9e-4, decay="sqrt", clip=0.0, max_tokens=4096,
                eval_every=30_000, dropout=0.3, **SIZES["big"]),
}
SAVE_SECONDS = 600              # so much training at most is lost between two saves of last.pt
# settings that may differ when a run is resumed; `text` has the checksums of the training text,
# and older runs lack the length_ratio that follows from it
FREE = ("accumulate", "device", "amp", "compile", "graphs", "workers", "data", "data_dir", "train",
        "valid", "test", "src", "tgt", "log_every", "save_every", "runs", "name", "length_ratio",
        "command")


@dataclass
class Settings(ModelFlags, DataFlags):
    """Every setting of a run, a flag and an entry of config.json."""
    steps: int = flag(4_000, "steps of training, each an update of the parameters", "training", 1)
    warmup: int = flag(500, "steps until the peak of the learning rate; if --steps is given, at "
                            "most a quarter of it", "training", 1)
    lr: float = flag(3.2e-3, "peak learning rate", "training", above=0, high=0.1)
    decay: str = flag("linear", "after the peak: linearly to 0, or as step^-0.5", "training",
                      choices=("linear", "sqrt"))
    clip: float = flag(1.0, "largest norm of the gradient; 0: no clipping", "training", 0)
    max_tokens: int = flag(2048, "tokens per batch on the longer side, with padding", "training", 1)
    accumulate: int = flag(1, "micro-batches per update", "training", 1)
    label_smoothing: float = flag(0.1, "label smoothing epsilon", "training", 0, 0.99)
    seed: int = flag(1, "seed of parameters, dropout and batches", "training", 0, 2 ** 31)

    eval_every: int = flag(400, "steps between validations; if --steps is given, a tenth of it, at "
                           "least 200, except for toy", "evaluation", 1)
    save_every: int = flag(1_000, "steps between extra saves of last.pt", "evaluation", 1)
    log_every: int = flag(100, "steps between log lines", "evaluation", 1)
    average: int = flag(0, "test the average of the last N validated checkpoints; 0: the best one",
                        "evaluation", 0)
    beam: int = flag(4, "beam size of the test", "evaluation", 1, 1000)
    lenpen: float = flag(0.6, "length penalty of the test", "evaluation", 0, 100)
    lowercase: bool = flag(False, "BLEU without case, as in Gu 2019's Zh-En (off)", "evaluation")

    name: str = flag("", "name of the run's folder (made from the other flags)", "machine")
    runs: str = flag("runs", "where the runs' folders are", "machine", metavar="DIR")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps", "machine")
    amp: bool = flag(False, "bfloat16 matrix products (toy: off; others: on if the processor has "
                            "them)", "machine")
    compile: bool = flag(False, "torch.compile: slow to start, then faster (base and big on a GPU, "
                                "without --graphs: on)", "machine")
    graphs: bool = flag(False, f"CUDA graphs (on one GPU with --max-tokens below {MAX_TOKENS}: on)",
                        "machine")
    workers: int = flag(0, "processes that make batches; with CUDA 2", "machine", 0, 256)

    RECIPES = RECIPES           # for --help


def presets(s: Settings) -> dict:
    """Returns the defaults that depend on the size, the text and the machine."""
    toy = s.data == "toy" and not s.train and s.arch == "tiny"
    values = machine_defaults(s.device) | RECIPES["toy" if toy else s.arch]
    given = {name: getattr(s, name) for name in s.given}
    max_tokens = (asdict(s) | values | given)["max_tokens"]
    values["graphs"] &= max_tokens < MAX_TOKENS and not s.compile
    # smaller models do not make up for the start; with graphs it was not tried
    values["compile"] &= s.arch in ("base", "big") and not (values | given)["graphs"]
    if "steps" in s.given:
        values["warmup"] = min(values.get("warmup", s.warmup), max(1, s.steps // 4))
        if not toy:
            values["eval_every"] = max(200, s.steps // 10)
    mechanisms = [*s.reg] if s.agg == "linear" else [s.agg, *s.reg]
    # these of FREE change what a run learns, so its name has them
    named = s.given - ({*FREE} - {"accumulate", "src", "tgt"})
    others = named - {"arch", "agg", "reg", "seed"}      # which the name has without their flags
    words = command_line(Settings, {name: getattr(s, name) for name in others})
    values["name"] = name_run([name_text(s), s.arch, *mechanisms, *words], f"-seed{s.seed}")
    return values


# ---- One update

def learning_rate(step: int, s: Settings) -> float:
    """The learning rate of step 1, 2, ...: a linear rise to the peak --lr, then a straight line to
    0 or a fall with step^-0.5. With --decay sqrt and the peak `(d_model warmup)^-0.5` it is
    `d_model^-0.5 min(step^-0.5, step warmup^-1.5)` (Vaswani et al. 2017 §5.3)."""
    if s.decay == "sqrt":
        falling = (s.warmup / step) ** 0.5
    else:
        falling = (s.steps + 1 - step) / max(1, s.steps + 1 - s.warmup)
    return s.lr * min(step / s.warmup, falling)


class Objective(nn.Module):
    """The two terms of `J = likelihood + lambda D` (Li 2018 §3.1) for a micro-batch. They are one
    `forward`, as DistributedDataParallel needs it."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model
        self.model_disagreement = model_disagreement
        self.piece_loss = piece_loss

    def compile_parts(self) -> None:
        """Compiles every layer, the disagreement and the loss, for tensors of any shape."""
        torch._dynamo.config.recompile_limit = 64        # layers share their code
        for layer in (*self.model.encoder.layers, *self.model.decoder.layers):
            layer.compile(dynamic=True)
        self.model_disagreement = torch.compile(model_disagreement, dynamic=True)
        self.piece_loss = torch.compile(fused_piece_loss, dynamic=True)

    def forward(self, source: Tensor, target: Tensor, places: Tensor, smoothing: float):
        """source [B, L_s], target [B, L_t + 1], places [n] in the flattened target[:, 1:]: those of
        the tokens, and perhaps of padding -> the tokens' smoothed cross-entropy, summed, and the
        disagreement D. A row without BOS does not count."""
        target_in, target_out = target[:, :-1], target[:, 1:]                # [B, L_t]
        hidden, heads = self.model.hidden(source, target_in)                 # [B, L_t, d]
        hidden = hidden.flatten(0, 1).index_select(0, places)                # [n, d]
        cross_entropy = padded_cross_entropy(
            hidden, self.model.output.weight, target_out.flatten()[places], smoothing, PAD,
            self.piece_loss)
        source_mask = (source != PAD) & (target_in[:, :1] != PAD)            # [B, L_s]
        D = self.model_disagreement(self.model.config, heads, source_mask, target_out != PAD)
        return cross_entropy, D


def train_step(objective, optimizer, step: Step, machine: Machine, label_smoothing: float,
               reg_weight: float, clip: float = 0.0, amp: bool = False, replay=None):
    """One update. It maximizes `J = likelihood + lambda D` (Li 2018 §3.1) per target token. D of a
    micro-batch has the weight of its target tokens, so the same micro-batches give the same J on
    any number of processes. replay: a `Replay`, the same one for all steps of an objective. Returns
    [cross-entropy, D times target tokens], summed over this process's micro-batches, and the norm
    of the gradient, on the device."""
    def add_gradient(source, target, places, step_tokens):
        """Adds the gradient of a micro-batch; returns [cross-entropy, D times target tokens]."""
        with mixed_precision(machine.device, amp):
            cross_entropy, D = objective(source, target, places, label_smoothing)
        tokens = (target[:, 1:] != PAD).sum()
        # loss = -(log-likelihood / tokens + lambda D)                Li 2018 §3.1
        # D is the mean over the micro-batches, weighted by their target tokens
        loss = (cross_entropy - reg_weight * D * tokens) / step_tokens
        # DistributedDataParallel averages the gradients; times the processes they are a sum
        (loss * machine.world).backward()
        return torch.stack([cross_entropy.detach(), D.detach() * tokens])

    optimizer.zero_grad(set_to_none=replay is None)      # a graph adds to the same tensors
    total = torch.zeros(2, device=machine.device)
    step_tokens = torch.full((), step.tokens, device=machine.device)
    for i, batch in enumerate(step.batches):
        wait = machine.world > 1 and i + 1 < len(step.batches)               # to add up gradients
        with objective.no_sync() if wait else contextlib.nullcontext():
            # the places of the tokens, found on the CPU: a device need not wait for their number;
            # a graph has a fixed number, so it takes all places
            y = batch.target[:, 1:].flatten()
            places = torch.arange(len(y)) if replay else (y != PAD).nonzero().squeeze(1)
            if batch.target.is_pinned():
                places = places.pin_memory()
            # Apple's GPU may read memory that is not pinned after it was freed
            inputs = [x.to(machine.device, non_blocking=x.is_pinned()) for x in (*batch, places)]
            inputs.append(step_tokens)
            total += replay(add_gradient, *inputs) if replay else add_gradient(*inputs)
    norm = torch.nn.utils.clip_grad_norm_(objective.parameters(), clip or math.inf)
    optimizer.step()
    return total, norm


# ---- The run

@dataclass
class Progress:
    """How far a run is: what a checkpoint holds beside model and optimizer."""
    step: int = 0
    place: tuple[int, int] = (0, 0)             # where the next update begins: `training_steps`
    best: tuple[float, float] = (-1.0, 0.0)     # validation BLEU and -loss of best.pt
    tokens: int = 0                             # target tokens so far
    seconds: float = 0.0                        # spent in training
    unvalidated: bool = False                   # saved at a validation that is yet to come


def train(s: Settings) -> None:
    """One run from start to end: data, model, resuming, training loop, test."""
    machine = setup_machine(s.device)
    s.check_model()
    s.check_text()
    if s.graphs:
        check_graphs(machine, s.max_tokens, s.compile)
    if s.compile:
        check_compiler(machine.device)
    path = find_folder(s.runs, s.name)
    if machine.first:
        # resuming must not change accumulate x processes
        fixed = {"accumulate_times_processes": s.accumulate * machine.world}
        folder = RunFolder(path, asdict(s) | fixed, FREE, defaults=asdict(Settings()))
        if not (path / "config.json").exists():          # a run that never began left it
            (path / "tokenizer.json").unlink(missing_ok=True)
        say(f"{path}: reading the text and its vocabulary")

    # data: token ids, and the tokenizer learned from the training text
    reading_since = time.perf_counter()
    with machine.first_on_each_node():                   # it downloads and encodes for the others
        data = load_data(s, path / "tokenizer.json")
    flags = {name: value for name, value in asdict(s).items() if name not in FREE}
    seen = f"{flags} {data.text_hashes} {data.tokenizer.to_str()}"           # by this process
    if not machine.all_equal(zlib.crc32(seen.encode())):
        raise UserError(f"{path}: the processes read different texts or have different flags: start"
                        " all alike, with --runs, --train and --data-dir on a disk that they share")
    config = s.model_config(vocab_size=data.tokenizer.get_vocab_size())
    check_lengths(data.valid, config)
    if machine.first:
        typed = s.given - {"seed", "name", "runs", "device", "data_dir"}
        command = command_line(Settings, {name: getattr(s, name) for name in typed})
        folder.begin(model=asdict(config), text=data.text_hashes, command=command,
                     valid_text=list(map(hash_text, data.valid_pairs)),
                     languages=[data.src, data.tgt], longest_source=data.longest_source,
                     length_ratio=data.length_ratio)
        say(f"{path}: {len(data.train):,} pairs, vocabulary {config.vocab_size:,} "
            f"({time.perf_counter() - reading_since:.1f} s)")
        for warning in text_warnings(data, s.max_length):
            say(f"warning: {warning}")

    # model
    torch.manual_seed(s.seed)
    model = Transformer(config).to(machine.device)
    objective = Objective(model)
    if s.compile:
        objective.compile_parts()
    if machine.world > 1:                                # betas of gu-em may have no gradient
        objective = DistributedDataParallel(objective, find_unused_parameters=s.agg == "gu-em")
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)

    # resume
    progress = Progress()
    last = path / "last.pt"
    if last.exists():
        checkpoint = load_checkpoint(last)
        load_weights(model, checkpoint, last, optimizer)
        progress = Progress(**{name: checkpoint[name] for name in asdict(progress)})
    if not machine.all_equal(progress.step):
        raise UserError(f"{path}: the processes resume at different steps: put --runs on a disk "
                        "that all machines share")
    if machine.first:
        folder.drop_metrics_after(progress.step, progress.unvalidated)
        products = "bfloat16 matrix products" if s.amp else "float32"
        say(f"{sum(p.numel() for p in model.parameters()):,} parameters on {machine.world} x "
            f"{machine.device}, {products}, step {progress.step:,} of {s.steps:,}")

    # training loop
    window = torch.zeros(2, device=machine.device)       # cross-entropy and D since the last log
    window_tokens = 0
    largest_norm = torch.zeros((), device=machine.device)
    stop = defer_signals()                               # a list: signals append to it
    stopped_by = 0
    bar = tqdm(total=s.steps, initial=progress.step, unit="step", dynamic_ncols=True,
               disable=None if machine.first else True)
    if progress.unvalidated and machine.first:           # killed between saving and validating
        validate_and_save(model, optimizer, progress, data, folder, s)
    window_since = saved = time.perf_counter()
    steps = training_steps(data.train, progress.place, machine, s.max_tokens, s.accumulate, s.seed,
                           s.workers, rectangles=s.graphs)
    replay = Replay() if s.graphs else None
    for step in islice(steps, s.steps - progress.step):
        # one update
        progress.step += 1
        progress.place = step.place
        lr = learning_rate(progress.step, s)
        for group in optimizer.param_groups:
            group["lr"] = lr
        seed_torch(s.seed, machine.rank, progress.step)                      # the dropout's seed
        total, norm = train_step(objective, optimizer, step, machine, s.label_smoothing,
                                 s.reg_weight, s.clip, s.amp, replay)
        window += total
        window_tokens += step.tokens
        progress.tokens += step.tokens
        largest_norm = torch.maximum(largest_norm, norm)                     # NaN if one is NaN
        bar.update()

        # what follows it
        validating = progress.step % s.eval_every == 0 or progress.step == s.steps
        stopped_by = machine.largest(max(stop, default=0))
        saving = validating or stopped_by or progress.step % s.save_every == 0

        # log
        if saving or progress.step % s.log_every == 0:
            cross_entropy, D = (machine.sum(window) / window_tokens).tolist()
            norm = largest_norm.item()
            check_finite(cross_entropy + norm, progress.step)
            seconds = time.perf_counter() - window_since
            progress.seconds += seconds
            if machine.first:
                folder.log("train", step=progress.step, epoch=step.place[0], loss=cross_entropy,
                           disagreement=D if s.reg else None, lr=lr, gradient_norm=norm,
                           tokens_per_second=window_tokens / seconds)
            window.zero_()
            window_tokens = 0
            largest_norm.zero_()
            window_since = time.perf_counter()

        # save, validate, stop: a kill in the validation loses no step of the training
        progress.unvalidated = validating
        if machine.first and (saving or time.perf_counter() - saved > SAVE_SECONDS):
            seconds = progress.seconds
            if not saving:                               # nor logged
                check_finite(largest_norm.item(), progress.step)
                seconds += time.perf_counter() - window_since
            save_last(folder, model, optimizer, replace(progress, seconds=seconds))
            saved = time.perf_counter()
        if validating and machine.first:
            validate_and_save(model, optimizer, progress, data, folder, s)
            window_since = saved = time.perf_counter()
        if stopped_by:
            break
    bar.close()

    # end
    stopped_by = stopped_by or machine.largest(max(stop, default=0))         # in the validation
    if stopped_by and machine.first:
        say(f"{path}: stopped at step {progress.step:,}; the same command resumes it")
    elif machine.first:
        restore_signals()                                # the last checkpoint is written
        test(model, progress, data, folder, s)
    machine.wait()
    if stopped_by:
        raise SystemExit(128 + stopped_by)


def check_finite(number: float, step: int) -> None:
    """Raises UserError for a loss or gradient that is not finite."""
    if not math.isfinite(number):
        raise UserError(f"step {step:,}: the loss or its gradient is not finite: train again under "
                        "another --name, with a lower --lr or --clip 1")


def save_last(folder: RunFolder, model, optimizer, progress: Progress) -> None:
    """Saves everything needed to resume; the optimizer's settings are those of the program."""
    averages = {"state": optimizer.state_dict()["state"]}
    folder.save("last.pt", model=model.state_dict(), optimizer=averages, **asdict(progress))


def validate_and_save(model, optimizer, progress: Progress, data: Data, folder: RunFolder,
                      s: Settings) -> None:
    """Logs loss and greedy BLEU, prints two translations, saves checkpoints."""
    step = progress.step
    nll, D = validate(model, data.valid, s.max_tokens, s.amp)
    check_finite(nll, step)
    scores = score_sets(model, data, {"valid": data.valid_pairs}, beam=1, lenpen=s.lenpen,
                        lowercase=s.lowercase)
    folder.log("valid", step=step, valid_loss=nll, valid_perplexity=math.exp(min(nll, 700)),
               valid_bleu=scores.bleu, valid_at_limit=scores.at_limit or None,
               valid_disagreement=D)
    lines = scores.translations["valid"]
    for i in (step % len(lines), (step + len(lines) // 2) % len(lines)):
        source, reference = data.valid_pairs.source[i], data.valid_pairs.target[i]
        say(f"    source      {source}\n    reference   {reference}\n    translation {lines[i]}")
    if s.average:
        folder.save(f"step-{step}.pt", model=model.state_dict())
        for older in folder.numbered()[:-s.average]:
            older.unlink()
    if (scores.bleu, -nll) > progress.best:              # ties are broken by the loss
        progress.best = (scores.bleu, -nll)
        folder.save("best.pt", model=model.state_dict())
    progress.unvalidated = False
    save_last(folder, model, optimizer, progress)


def test(model, progress: Progress, data: Data, folder: RunFolder, s: Settings) -> None:
    """Scores the test sets, unless that was done, and prints the scores."""
    sets = data.tests or {"valid": data.valid_pairs}
    texts = {name: list(map(hash_text, pairs)) for name, pairs in sets.items()}
    tested = [row for row in folder.read_metrics() if row.get("type") == "test"]
    if tested and tested[-1].get("texts") == texts:      # their translations are in the folder
        row = tested[-1]
    else:
        row = score_tests(model, progress, data, sets, texts, folder, s)
    say(f"\n{folder.path}: {summary(row, s.heads)}")
    for name, pairs in sets.items():
        if not has_4_grams(pairs.target, data.tgt):
            say(f"{name}: {NO_4_GRAMS}")
    if os.path.exists("papers/analyze.py") and not custom_classes(model):    # they work here
        say(f"next: {shell_line('python', 'translate.py', folder.path)}\n"
            f"      {shell_line('python', '-m', 'papers.analyze', folder.path)}")


def score_tests(model, progress: Progress, data: Data, sets: dict, texts: dict,
                folder: RunFolder, s: Settings) -> dict:
    """Scores test sets {name: pairs} with the best checkpoint or the average of the last ones,
    writes the translations, and logs and returns the row. texts: checksums of the sets."""
    numbered = folder.numbered() if s.average else []
    averaged_steps = [int(path.stem.removeprefix("step-")) for path in numbered]
    if numbered:
        folder.save("average.pt", model=average_checkpoints(numbered))
    name = "average.pt" if numbered else "best.pt"
    load_weights(model, load_checkpoint(folder.path / name), folder.path / name)
    _, D = validate(model, data.valid, s.max_tokens, s.amp)
    scores = score_sets(model, data, sets, s.beam, s.lenpen, s.lowercase)
    for set_name, lines in scores.translations.items():
        atomic_write(folder.path / f"{set_name}.hyp", "".join(f"{line}\n" for line in lines))
        atomic_write(folder.path / f"{set_name}.ref",
                     "".join(f"{line}\n" for line in sets[set_name].target))
    return folder.log(
        "test", step=progress.step, test_bleu=scores.bleu, test_chrf=scores.chrf,
        sets=scores.sets, texts=texts, signature=scores.signature, beam=s.beam, lenpen=s.lenpen,
        in_pieces=scores.in_pieces, at_limit=scores.at_limit, average=averaged_steps,
        disagreement=disagreement_scores(D), tokens=progress.tokens,
        tokens_per_second=progress.tokens / max(progress.seconds, 1e-9),
        sentences_per_second=scores.sentences_per_second,
        parameters=sum(p.numel() for p in model.parameters()))


def main(argv=None) -> int:
    """Trains with the flags argv (default: the command line's). Returns the exit status."""
    return run(train, Settings, argv, presets)


if __name__ == "__main__":
    sys.exit(main())
