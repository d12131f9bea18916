"""What every mechanism costs in speed and memory, measured in one run and set beside the papers'
speed columns.

    python bench.py                        # size tiny on one CPU core: a quarter of an hour
    python bench.py --gpu-report           # size base on a GPU: nine minutes

The rows take turns, and are built anew for every turn; figures are medians. Batches are synthetic
(papers/synthetic.py). Training is `train_mt.train_step`, decoding `search.beam_search` with beam 4;
torch.nn.Transformer runs through the same two. It keeps no keys and values from step to step, so
that its only way is to decode the whole prefix again. MarianMTModel, where the package transformers
is installed, decodes by its own search. Both train by the cross-entropy of all logits.
"""
import dataclasses
import gc
import json
import multiprocessing
import re
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.nn as nn
from tqdm import tqdm

from disagreement import MEASURED
from nmt import files, search
from nmt.batches import Batch, Step
from nmt.flags import UserError, command_line, flag, run
from nmt.loss import Objective
from nmt.machine import Machine, has_bfloat16, keep_freed_memory, pick_device, processor
from nmt.progress import aligned
from nmt.tokenizer import EOS
from papers import documents, flops, marian, synthetic
from papers.torch_transformer import LogitsObjective, TorchTransformer
from train_mt import train_step
from transformer import SIZES, Transformer, TransformerConfig

ROOT = Path(__file__).resolve().parent
DESCRIPTION = ("Measures what every mechanism costs in training speed, decoding speed and memory, "
               "beside the papers' figures and the limit that the matrix products alone set.")
BEAM = 4
LENPEN = 0.6
LABEL_SMOOTHING = 0.1
# TFLOP/s of bfloat16 matrix products without sparsity, as NVIDIA prints them; the first name that
# is part of the processor's
CHIPS = {"H200 NVL": 835, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "A100": 312}
MODES = {"no": "not compiled", "layers": "layers compiled"}
GROWTH = ("linear", "em-enc", "capsule")        # rows of the second table
# what --gpu-report sets where no flag does; the batch is the papers' 8 x 4,096
GPU_REPORT = dict(arch="base", vocab_size=32_000, device="cuda", max_tokens=32_768,
                  compile=("no", "layers"), minutes=8.0, store=True)


class Row(NamedTuple):
    """A model to measure, and its published speed relative to the baseline of the same paper."""
    label: str
    settings: dict | None           # of TransformerConfig; None: another package's model
    training: float | None = None
    decoding: float | None = None


def table_rows(layers: int = 6) -> dict[str, Row]:
    """The rows by name. Published speeds: Li 2018 Tables 1-2, Li 2019 Tables 2-3, all of size base
    or big."""
    low = (f"enc:1-{min(2, layers)}",)
    everywhere = ("enc", "cross", "dec")
    return {
        "torch": Row("torch.nn.Transformer", None),
        "marian": Row("transformers.MarianMTModel", None),
        "linear": Row("linear", {}, 1.0, 1.0),
        "reg-output": Row("--reg output", dict(reg=("output",)), 0.88),
        "reg-enc": Row("--reg, all kinds, at enc", dict(reg=MEASURED, reg_at=("enc",)), 0.87),
        "dynamic-enc": Row("--agg dynamic at enc", dict(agg="dynamic", agg_at=("enc",)), 0.64),
        "em-enc": Row("--agg em at enc", dict(agg="em", agg_at=("enc",)), 0.63, 0.99),
        "em-low": Row(f"--agg em at {low[0]}", dict(agg="em", agg_at=low), 0.87),
        "em-all": Row("--agg em at enc cross dec", dict(agg="em", agg_at=everywhere), 0.34, 0.53),
        "gu-dynamic": Row("--agg gu-dynamic", dict(agg="gu-dynamic")),
        "gu-em": Row("--agg gu-em", dict(agg="gu-em")),
        "capsule": Row("--capsule enc dec", dict(capsule_attention=("enc", "dec"))),
    }


def available_rows() -> tuple[str, ...]:
    """The rows that this machine can run."""
    return tuple(name for name in table_rows() if name != "marian" or marian.installed())


@dataclass
class Settings:
    """The flags of bench.py; None: see `complete`."""
    arch: str = flag("tiny", f"size of the models: {', '.join(SIZES)}", choices=tuple(SIZES),
                     metavar="SIZE")
    rows: tuple[str, ...] = flag(
        available_rows(), "what to measure (all; marian where transformers is installed); linear "
        f"always is: {', '.join(table_rows())}", choices=tuple(table_rows()), metavar="ROW")
    device: str = flag("auto", "auto, cpu, cuda or cuda:N")
    amp: bool | None = flag(None, "bfloat16 matrix products (yes on a GPU that has them)")
    compile: tuple[str, ...] = flag(
        ("no",), "a table for each of: no; layers, which compiles the layers (no)",
        choices=tuple(MODES), metavar="WHAT")
    threads: int = flag(1, "threads on a CPU; with one, times are CPU seconds, which other "
                        "programs disturb least", low=1, high=1024)
    vocab_size: int = flag(10_000, "joint vocabulary", low=100, high=10 ** 6)
    median_length: float = flag(24.0, "tokens of a source sentence", low=1, high=1000, metavar="L")
    max_tokens: int = flag(4096, "size of a training batch", low=16, high=10 ** 8)
    batches: int = flag(3, "training batches per turn", low=1, high=1000)
    sentences: int | None = flag(None, "sentences decoded per turn (CPU 32, GPU 512)", low=1,
                                 high=10 ** 6)
    repeats: int = flag(3, "turns of every row", low=1, high=1000)
    lengths: tuple[int, ...] = flag(
        (16, 32, 64, 128, 256, 512), "sentence lengths of the second table (16 32 64 128 256 512); "
        "none leaves it out", low=2, high=10 ** 5, metavar="L", empty=True)
    memory: bool = flag(True, "measure peak memory; on a CPU that takes a process of its own for "
                        "every row")
    seed: int = flag(1, "seed of parameters, lengths and tokens", low=0, high=2 ** 31)
    minutes: float | None = flag(None, "begin no turn after so many; rows without a turn are left "
                                 "out", above=0, high=10 ** 5)
    json: str | None = flag(None, "where all figures of all turns go", metavar="FILE")
    store: bool = flag(False, "keep the figures in results/ and renew (or add) their table in "
                       "RESULTS.md")
    gpu_report: bool = flag(
        False, "in nine minutes: --arch base --vocab-size 32000 --max-tokens 32768 --device cuda "
        "--compile no layers --minutes 8 --store, as far as these are not given otherwise")


# ---- One turn of one row

def build(name: str, args, device, mode: str = "no") -> nn.Module:
    """The model of a row, with random parameters, on a device; mode: what is compiled of it."""
    torch.manual_seed(args.seed)
    size = SIZES[args.arch]
    row = table_rows(size["layers"])[name]
    with torch.device(device):
        config = TransformerConfig(args.vocab_size, **size, **(row.settings or {}))
        if name == "torch":
            return TorchTransformer(config)
        if name == "marian":
            return marian.Marian(config)
        model = Transformer(config)
    if mode == "layers":
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.compile(dynamic=True)
    return model


def timed(f, where: Machine) -> float:
    """Seconds that f takes: CPU seconds of this process on a CPU with one thread, else of the
    clock on the wall."""
    alone = where.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    finish(where)
    started = clock()
    f()
    finish(where)
    return clock() - started


def finish(where: Machine) -> None:
    """Waits until the device has done all that it was given."""
    if where.device.type == "cuda":
        torch.cuda.synchronize(where.device)


def trainer(model, args, where: Machine):
    """A function that trains the model on a list of updates."""
    settings = SimpleNamespace(label_smoothing=LABEL_SMOOTHING, clip=0.0, amp=args.amp)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, betas=(0.9, 0.98), eps=1e-9,
                                 fused=True)
    loss = Objective if hasattr(model, "hidden") else LogitsObjective
    objective = loss(model).train()

    def train(work: list[Step]) -> None:
        for step in work:
            train_step(objective, optimizer, step, settings, where)
    return train


def training_speed(model, work: list[Step], args, where: Machine) -> float:
    """Target tokens per second in training, after two rounds to warm up."""
    train = trainer(model, args, where)
    # Adam's averages, made in the first step, lie where its activations were: the next asks the
    # system for more memory
    for _ in range(2):
        train(work)
    seconds = timed(lambda: train(work), where)
    return sum(step.tokens for step in work) / seconds


@torch.no_grad()
@torch.compiler.set_stance("force_eager")        # the search has other shapes at every step
def decoding_speed(model, work, args, where: Machine) -> float:
    """Sentences per second in decoding. No hypothesis ends before its limit: all models decode as
    many tokens."""
    model.eval().output.weight[EOS] = 0     # its logit, 0, is never among the best of a vocabulary

    def decode(work) -> None:
        """Decodes batches, each as far as it says."""
        with torch.autocast(where.device.type, torch.bfloat16, enabled=args.amp):
            for source, length in work:
                source = source.to(where.device)
                if hasattr(model, "search"):
                    model.search(source, BEAM, LENPEN, max_length=length)
                else:
                    search.beam_search(model, source, BEAM, LENPEN, max_length=length)

    # a GPU loads kernels for every length; a CPU only has to touch its memory once
    gpu = where.device.type == "cuda"
    decode(work if gpu else [(source, min(length, 3)) for source, length in work])
    seconds = timed(lambda: decode(work), where)
    return sum(len(source) for source, _ in work) / seconds


def turn(name: str, mode: str, args, where: Machine, training, decoding) -> dict:
    """One turn of a row: speeds, and on a GPU the peak memory of training."""
    gpu = where.device.type == "cuda"
    if gpu:
        gc.collect()    # the row before, whose modules refer to each other in circles
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where.device)
    model = build(name, args, where.device, mode)
    found = {"parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    found["training"] = training_speed(model, training, args, where)
    if gpu:
        found["memory"] = torch.cuda.max_memory_allocated(where.device)
    model.zero_grad(set_to_none=True)
    found["decoding"] = decoding_speed(model, decoding, args, where)
    return found


def growth_turn(name: str, mode: str, args, where: Machine) -> list[float]:
    """One turn of a row of the second table: microseconds of training per target token, for every
    length."""
    model = build(name, args, where.device, mode)
    tokens = max(*args.lengths, args.max_tokens // 4)
    found = []
    for length in args.lengths:
        step = synthetic.of_length(length, tokens, args.vocab_size, where.device)
        found.append(1e6 / training_speed(model, [step], args, where))
    return found


# ---- Memory on a CPU: of a process, so that every row has one of its own

def memory_on_cpu(name: str, mode: str, args) -> int:
    """`peak_on_cpu` in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(peak_on_cpu, name, mode, args).result()


def peak_on_cpu(name: str, mode: str, args) -> int:
    """Bytes that training a row takes, beyond the interpreter and its libraries."""
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    where = Machine(torch.device("cpu"))
    work, _ = work_of(args, where)
    # all that the first step of any model loads is not the row's
    minute = Transformer(TransformerConfig(args.vocab_size, d_model=2, heads=1, layers=1, d_ff=2))
    word = Batch(*(x[:1, :2] for x in work[0].batches[0]))
    trainer(minute, args, where)([synthetic.as_step(word, where.device)])
    before = resident_peak()
    train = trainer(build(name, args, "cpu", mode), args, where)
    train([work[0], work[-1]])
    return resident_peak() - before


def resident_peak() -> int:
    """Bytes of memory that this process has held at most."""
    try:
        # getrusage's figure starts from the parent process'
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024
    except (OSError, TypeError):
        import resource
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# ---- All turns

def work_of(args, where: Machine) -> tuple[list[Step], list]:
    """What every row trains on, and what it decodes."""
    corpus = synthetic.pairs(args.vocab_size, args.median_length, args.max_tokens, args.sentences,
                             args.seed)
    training = synthetic.training(corpus, args.max_tokens, args.batches, where.device)
    return training, synthetic.decoding(corpus, args.sentences, BEAM)


def operations(name: str, args, training: list[Step], decoding) -> dict:
    """Floating-point operations of the matrix products of a row: per target token in training, per
    sentence in decoding, the latter of the batch in the middle."""
    if name == "marian":
        name = "linear"                     # the same products; its own code asks for data
    model = build(name, args, "meta")
    source, length = decoding[len(decoding) // 2]
    return {"training_flops": flops.training_flops(model, training),
            "decoding_flops": flops.decoding_flops(model, source, length, BEAM)}


def measure(args, where: Machine) -> dict:
    """All figures by what is compiled: {mode: {"rows": {name: {...}}, "growth": {name:
    [turns][lengths]}}}; lists hold a figure per turn."""
    begun = time.perf_counter()
    training, decoding = work_of(args, where)
    counted = {name: operations(name, args, training, decoding) for name in args.rows}
    tables = {}
    failed = set()
    for mode in args.compile:
        rows = {name: dict(counted[name]) for name in args.rows}
        tables[mode] = {"rows": rows, "growth": {}}
    for kind, mode, name in tqdm(jobs(args, where), unit="turn", disable=not sys.stderr.isatty()):
        started = time.perf_counter()
        if args.minutes and started - begun > 60 * args.minutes:
            print(f"{args.minutes:g} minutes are over: the rest is left out", file=sys.stderr)
            break
        if (kind, mode, name) in failed:
            continue
        row = tables[mode]["rows"][name]
        try:
            if kind == "memory":
                row["memory"] = [memory_on_cpu(name, mode, args)]
            elif kind == "growth":
                found = growth_turn(name, mode, args, where)
                tables[mode]["growth"].setdefault(name, []).append(found)
            else:
                for key, value in turn(name, mode, args, where, training, decoding).items():
                    row.setdefault(key, []).append(value)
        except RuntimeError as error:           # of the GPU's memory, of the compiler
            if where.device.type == "cpu":
                raise
            failed.add((kind, mode, name))
            print(f"{kind} {name}, {MODES[mode]}: left out: {error}".splitlines()[0],
                  file=sys.stderr)
        if not sys.stderr.isatty():
            seconds = time.perf_counter() - started
            print(f"{kind} {name}, {MODES[mode]}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return tables


def jobs(args, where: Machine) -> list[tuple[str, str, str]]:
    """What is measured, in order: (memory, row or growth; what is compiled; name)."""
    found = []
    if args.memory and where.device.type == "cpu":
        found += [("memory", mode, name) for mode in args.compile for name in args.rows]
    growing = [name for name in GROWTH if name in args.rows and args.lengths]
    for mode in args.compile:           # one after the other, should the minutes not do for all
        for _ in range(args.repeats):
            found += [("row", mode, name) for name in args.rows]
            found += [("growth", mode, name) for name in growing]
    return found


# ---- Tables

def summarized(rows: dict, layers: int) -> dict[str, dict]:
    """Per row that had a turn: the medians, the median ratios to `linear` in the same turn, the
    ratios that the matrix products alone would allow, and their FLOP/s in training."""
    base = rows["linear"]
    found = {}
    for name, row in rows.items():
        if "training" not in row:
            continue
        published = table_rows(layers)[name]
        found[name] = {
            "label": published.label,
            "parameters": row["parameters"][0],
            "memory": max(row["memory"]) if "memory" in row else None,
            "flops": statistics.median(row["training"]) * row["training_flops"],
        }
        for what, paper in (("training", published.training), ("decoding", published.decoding)):
            to_linear = [x / y for x, y in zip(row[what], base[what])]
            found[name][what] = statistics.median(row[what])
            found[name][f"{what}_ratio"] = statistics.median(to_linear)
            found[name][f"{what}_paper"] = paper
            found[name][f"{what}_limit"] = base[f"{what}_flops"] / row[f"{what}_flops"]
    return found


def speed_table(found: dict[str, dict], chip: float | None = None) -> str:
    """The first table. Ratios are to `linear`: ours, the paper's, and the limit set by the matrix
    products. chip: the processor's TFLOP/s, of which a column then tells the share."""
    share = [] if chip is None else ["of chip"]
    header = ["", "parameters", "train tok/s", "ratio", "paper", "limit", "TFLOP/s", *share,
              "decode sent/s", "ratio", "paper", "limit", "peak MiB"]
    lines = []
    for row in found.values():
        rate = row["flops"] / 1e12
        share = [] if chip is None else [f"{rate / chip:.1%}"]
        memory = "" if row["memory"] is None else f"{row['memory'] / 2 ** 20:,.0f}"
        lines.append([row["label"], f"{row['parameters']:,}",
                      f"{row['training']:,.0f}", *ratios(row, "training"),
                      f"{rate:.3g}", *share,
                      f"{row['decoding']:,.2f}", *ratios(row, "decoding"),
                      memory])
    return aligned(header, lines)


def ratios(row: dict, what: str) -> list[str]:
    """The cells of a row's ratios: ours, the paper's, the limit."""
    found = [row[f"{what}_{kind}"] for kind in ("ratio", "paper", "limit")]
    return ["" if x is None else f"{x:.2f}" for x in found]


def growth_table(growth: dict, lengths: list[int]) -> str:
    """The second table: medians of microseconds per target token."""
    header = ["sentence length", *(table_rows()[name].label for name in growth)]
    lines = []
    for i, length in enumerate(lengths):
        line = [str(length)]
        for turns in growth.values():
            line.append(f"{statistics.median(times[i] for times in turns):,.1f}")
        lines.append(line)
    return aligned(header, lines)


def report(figures: dict) -> str:
    """All that `command` stores as text: the machine and its tables."""
    parts = [figures["machine"]]
    for mode, table in figures["tables"].items():
        parts.append(f"{MODES[mode]}:\n\n{speed_table(table['summary'], figures['chip'])}")
        if table["growth"]:
            parts.append(growth_table(table["growth"], figures["settings"]["lengths"]))
    return "\n\n".join(parts)


def computer(args, where: Machine) -> str:
    """The machine and the settings that the figures depend on, as a line."""
    name = processor(where.device)
    if where.device.type == "cpu":
        name += f", threads: {args.threads}"
    numbers = "bfloat16" if args.amp else "float32"
    return (f"{name}; PyTorch {torch.__version__}; size {args.arch}, vocabulary "
            f"{args.vocab_size:,}, batches of {args.max_tokens:,} tokens; {numbers}")


def chip_rate(args, where: Machine) -> float | None:
    """TFLOP/s of the processor, where they are known."""
    name = processor(where.device)
    if "MIG" in name:                   # a slice of a chip
        return None
    known = [rate for chip, rate in CHIPS.items() if chip in name and args.amp]
    return known[0] if known else None


# ---- The command

def complete(args) -> Machine:
    """Fills in what the flags leave to --gpu-report and the machine, which it returns."""
    if args.gpu_report:
        for name, value in GPU_REPORT.items():
            if name not in args.given:
                setattr(args, name, value)
    where = Machine(pick_device(args.device))
    if where.device.type == "mps":
        raise UserError("--device mps: times and memory are measured on a CPU or with CUDA alone; "
                        "choose cpu")
    gpu = where.device.type == "cuda"
    if args.amp is None:
        args.amp = has_bfloat16(where.device)
    args.sentences = args.sentences or (512 if gpu else 32)
    if "marian" in args.rows and not marian.installed():
        raise UserError("--rows marian: pip install transformers first, or leave it out")
    args.rows = [name for name in table_rows() if name in args.rows or name == "linear"]
    return where


def command(args) -> None:
    """Measures, prints the tables, writes the figures."""
    words = command_line(Settings, {name: getattr(args, name) for name in args.given})
    where = complete(args)
    if args.json:
        files.check_writable(args.json, "--json")
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    tables = measure(args, where)
    for table in tables.values():
        table["summary"] = {}
        if "training" in table["rows"]["linear"]:
            table["summary"] = summarized(table["rows"], SIZES[args.arch]["layers"])
    figures = {
        "kind": "bench",
        "machine": computer(args, where),
        "command": " ".join(["python bench.py", *words]),
        "settings": dataclasses.asdict(args),
        "chip": chip_rate(args, where),
        "tables": {mode: table for mode, table in tables.items() if table["summary"]},
    }
    print(f"{report(figures)}\n\n"
          "ratio: to linear, in the same turn; paper: the published one; limit: if only matrix "
          "products took time;\nTFLOP/s: of matrix products, in training; second table: "
          "microseconds of training per target token")
    if args.json:
        files.atomic_write(args.json, json.dumps(figures, indent=1) + "\n")
    if args.store:
        store(figures, result_name(args, where))


def result_name(args, where: Machine) -> str:
    """The file of results/: one for every size, kind of processor and, on a CPU, precision."""
    words = ["bench", args.arch, "gpu" if where.device.type == "cuda" else "cpu"]
    if args.amp and where.device.type == "cpu":
        words.append("bfloat16")
    return "-".join(words) + ".json"


def store(figures: dict, name: str) -> None:
    """Writes results/`name` and its table in the document that has it, a new one at the end of
    RESULTS.md."""
    (ROOT / "results").mkdir(exist_ok=True)
    text = json.dumps(documents.portable(figures), indent=1) + "\n"
    files.atomic_write(ROOT / "results" / name, text)
    path = ROOT / "RESULTS.md"
    marker = f"<!-- results/{name} -->"
    for page in (ROOT / "docs").glob("*.md"):
        if marker in page.read_text():
            path = page
    document = path.read_text()
    if marker not in document:
        document += f"\n## Speed: {figures['machine']}\n\n    {figures['command']}\n\n"
        files.atomic_write(path, f"{document}{marker}\n<!-- end -->\n")
    documents.write(path, ROOT)
    print(f"stored: results/{name}, {path.relative_to(ROOT)}")


def main(argv=None) -> int:
    """Runs the command line; returns the exit status."""
    return run(command, Settings, "bench.py", DESCRIPTION, argv)


if __name__ == "__main__":
    sys.exit(main())
