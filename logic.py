"""Logical inference: which of seven relations holds between two propositional formulas? (Li 2021 §4.3, Fig. 4)

    python logic.py                                     # the baseline in a small setting, minutes on a CPU
    python logic.py --models baseline disagreement aggregation combined
    python logic.py --full --data DIR                   # all four in the paper's setting, on Bowman's files
    python logic.py --agg em --capsule enc              # a model of one's own, by the flags of train_mt.py

A model that composes what the brackets nest can answer; trained on formulas of at most six operators, it is tested on
one to twelve. The command trains models of Fig. 4 and prints their accuracy by number of operators; the same command
again takes up an interrupted run. Formulas, relations and files: logic_data.py; the model: logic_model.py. Where the
paper leaves a point open it follows Tran et al. 2018, and so does --full, as their code has it: as many heads as queries,
two; d_ff = 2d; post-norm; batches of 32 pairs; tested is the epoch with the best validation accuracy over all lengths.
Of two votes EM routing can only take the mean: `--full --heads 4` shows what it does with more.

Without --full a small part of that training must do, so the small setting makes the task easier to learn, not to solve:
it learns from every pair of a batch's formulas (`--learn batch`: their relations are known, and reading them is what
costs), reads pairs in a shorter notation that says the same (`logic_data.encode`), spreads the positions
(`logic_model.SpreadEmbedding`) and lets the learning rate rise and fall.
"""
import argparse
import dataclasses
import json
import statistics
import sys
import zlib
from pathlib import Path

import torch
from tqdm import tqdm

from nmt.files import atomic_write
from nmt.run_folder import RunFolder
from tasks.classifier import accuracy, fit
from nmt.flags import Parser, UserError, folder_name, real, run, whole
from nmt.fast_routing import can_compile, install
from tasks.logic_data import (BINS, IDS, RAW_PAIRS, RELATIONS, encode, generate, read_files,
                              relation, split, write_files)
from tasks.logic_model import QUERIES, LogicModel
from nmt.machine import keep_freed_memory, pick_device
from transformer import TransformerConfig, add_model_flags

__all__ = ["relation", "LogicModel", "encode", "parser", "main"]
TRAINED = tuple(size for size in BINS if size <= 6)     # the operators of the training pairs
MODELS = {"baseline": ("linear", ()), "disagreement": ("linear", ("output",)),          # --agg and --reg of Fig. 4
          "aggregation": ("em", ()), "combined": ("em", ("output",))}


# --- training and testing ---------------------------------------------------------------------------------------

def train_and_test(config: TransformerConfig, data: dict, args, seed: int, path: Path, say=print) -> dict:
    """Trains a model and tests it: {"accuracy": {bin: share, None for an empty bin}, ...}, see `classify.fit`.
    data: {"train": Examples, "valid": Examples, "test": {bin: Examples}}."""
    model, found = fit(lambda: install(LogicModel(config, args.spread), args.compile), data, args, seed, path, say,
                       args.decay == "linear")
    tested = {str(size): accuracy(model, examples) for size, examples in data["test"].items()}
    return {"accuracy": {size: right / pairs if pairs else None for size, (right, pairs) in tested.items()}, **found}


# --- the table --------------------------------------------------------------------------------------------------

def summarize(data: dict, rows: list[dict]) -> dict:
    """Accuracy by number of operators, and over all test pairs of up to 6 and of 7 and more operators.

    {"pairs": {bin: n}, "majority": {bin: share}, "models": {name: {bin: {"mean", "spread", "seeds"}}}}; a bin is "1" to
    "12", "<=6" or ">=7"; majority is the share of the most frequent relation, which is what a model must beat; spread
    is the sample standard deviation over the seeds, None for one seed. Empty bins have None.
    """
    pairs = {str(size): len(examples.labels) for size, examples in data["test"].items()}
    groups = {**{name: [name] for name in pairs}, "<=6": [str(size) for size in BINS if size in TRAINED],
              ">=7": [str(size) for size in BINS if size not in TRAINED]}
    counts = {str(size): torch.bincount(examples.labels, minlength=len(RELATIONS)).cpu()
              for size, examples in data["test"].items()}

    def share(accuracies, names):
        total = sum(pairs[name] for name in names)
        return sum(accuracies[name] * pairs[name] for name in names if pairs[name]) / total if total else None

    majority, models = {}, {}
    for group, names in groups.items():
        total = sum(counts[name] for name in names)
        majority[group] = (total.max() / total.sum()).item() if total.sum() else None
    for model in dict.fromkeys(row["model"] for row in rows):
        models[model] = {}
        for group, names in groups.items():
            found = [share(row["accuracy"], names) for row in rows if row["model"] == model]
            known = found if None not in found else []
            models[model][group] = {"mean": statistics.fmean(known) if known else None, "seeds": len(found),
                                    "spread": statistics.stdev(known) if len(known) > 1 else None}
    return {"pairs": {group: sum(pairs[name] for name in names) for group, names in groups.items()},
            "majority": majority, "models": models}


def table(summary: dict) -> str:
    """The summary as text: accuracies in per cent, a row per number of operators, a column per model."""
    def cell(mean, spread=None):
        text = "-" if mean is None else f"{100 * mean:.1f}"
        return text if spread is None else f"{text} ±{100 * spread:.1f}"

    lines = ["operators   pairs  majority" + "".join(f"{name:>14}" for name in summary["models"])]
    for group, pairs in summary["pairs"].items():
        label = f"{BINS[-1]}+" if group == str(BINS[-1]) else group
        lines.append(f"{label:>9}{pairs:8,}{cell(summary['majority'][group]):>10}" + "".join(
            f"{cell(cells[group]['mean'], cells[group]['spread']):>14}" for cells in summary["models"].values()))
    return "\n".join(lines)


def draw(summary: dict, path: Path) -> None:
    """A plot in the manner of Li 2021 Fig. 4: accuracy over the number of operators, a line per model."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(6.4, 4))
    sizes = [str(size) for size in BINS]
    percent = lambda values: [float("nan") if value is None else 100 * value for value in values]
    for marker, (name, cells) in zip("os^Dvx", summary["models"].items()):
        axes.errorbar(BINS, percent(cells[size]["mean"] for size in sizes), marker=marker, label=name, capsize=3,
                      yerr=[100 * (cells[size]["spread"] or 0) for size in sizes])
    axes.plot(BINS, percent(summary["majority"][size] for size in sizes), "--", color="gray", label="majority class")
    axes.axvline(TRAINED[-1] + 0.5, color="lightgray", linewidth=1)          # to the right: longer than in training
    axes.set(xlabel="operators of the longer formula", ylabel="accuracy (%)", xticks=BINS,
             xticklabels=[*BINS[:-1], f"{BINS[-1]}+"])
    axes.legend()
    figure.tight_layout()
    atomic_write(path, lambda file: figure.savefig(file, format="png", dpi=150))
    pyplot.close(figure)


# --- the command ------------------------------------------------------------------------------------------------

SMALL = dict(layers=2, d_model=128, heads=8, d_ff=256, dropout=0.0, norm="pre", epochs=2, lr=1e-3, decay="linear", batch=32,
             pairs=600_000, notation="compact", spread=40, learn="batch")
PAPER = dict(layers=2, d_model=256, heads=QUERIES, d_ff=512, dropout=0.2, norm="post", epochs=100, lr=1e-4, decay="none",
             batch=32, pairs=RAW_PAIRS, notation="brackets", spread=0, learn="pairs")


def parser() -> Parser:
    """The command line: which models, the data, the model's flags by paper, training, machine."""
    p = Parser(prog="logic.py", description="Logical inference (Li 2021 section 4.3): trains the models of Fig. 4 on "
               "formulas of at most six operators and prints their accuracy on one to twelve.")
    none = dict(default=argparse.SUPPRESS)
    both = lambda name: f"{SMALL[name]}, with --full {PAPER[name]}"
    p.add_argument("--full", action="store_true", help="the paper's setting: " + ", ".join(
        f"{name} {value}" for name, value in PAPER.items()) + "; without it: " + ", ".join(
        f"{name} {value}" for name, value in SMALL.items()) + ". With the paper's two heads EM routing stays at the plain "
        "mean of the votes (docs/experiments.md, \"Two heads\"); --full --heads 4 gives it something to route")
    p.add_argument("--models", nargs="+", choices=(*MODELS, "own"), metavar="MODEL", help="baseline, disagreement "
                   "(--reg output), aggregation (--agg em), combined (both), own (by the flags below); without it the "
                   "baseline, with --full all of Fig. 4, and own where one of --agg, --reg, --capsule is given", **none)
    p.add_argument("--seeds", nargs="+", type=whole(0, 10 ** 6), default=[1], metavar="SEED",
                   help="train each model once per seed; the table has mean and standard deviation")
    g = p.add_argument_group("data (Bowman et al. 2015)")
    g.add_argument("--data", metavar="DIR", help="folder with train1..12 and test1..12 (and valid1..12) in Bowman's "
                   "format, lines `relation TAB left TAB right`; generated without it", **none)
    g.add_argument("--pairs", type=whole(1, 10 ** 8), help=f"pairs to draw, duplicates included ({both('pairs')})", **none)
    g.add_argument("--notation", choices=("brackets", "compact"), help="as in Bowman's files, or shorter and saying the "
                   f"same: `( a and b )`, letters named in order of appearance ({both('notation')})", **none)
    g.add_argument("--data-seed", type=whole(0), default=0, help="seed of the drawing")
    g.add_argument("--write", metavar="DIR", help="write the generated data to a new folder and stop", **none)
    add_model_flags(p, arch=argparse.SUPPRESS, norm=argparse.SUPPRESS)        # left out, they are the setting's
    g = p.add_argument_group("training")
    g.add_argument("--epochs", type=whole(1), help=both("epochs"), **none)
    g.add_argument("--lr", type=real(0, 1e3, low_open=True), help=f"learning rate of Adam ({both('lr')})", **none)
    g.add_argument("--decay", choices=("none", "linear"), help="of the learning rate: linear falls from "
                   f"--lr towards 0, scaled up from 0 over the first twentieth of the steps ({both('decay')})", **none)
    g.add_argument("--spread", type=whole(0, 10 ** 5), metavar="N", help="spread the positions of a formula over N, for "
                   f"longer formulas than in training; 0 counts its tokens ({both('spread')})", **none)
    g.add_argument("--batch", type=whole(1, 10 ** 6), help=f"pairs per step ({both('batch')})", **none)
    g.add_argument("--learn", choices=("pairs", "batch"), help="from the labels of a batch's pairs, or from the relations "
                   "of all its formulas to each other, by their truth tables; memory then grows with the square of --batch "
                   f"({both('learn')})", **none)
    g = p.add_argument_group("machine")
    g.add_argument("--name", type=folder_name, metavar="NAME", help="name of the run's folder (logic, with "
                   "--full logic-full)", **none)
    g.add_argument("--runs", default="runs", metavar="DIR", help="where the runs' folders lie")
    g.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    g.add_argument("--compile", action=argparse.BooleanOptionalAction, help="routing compiled into a few loops: faster "
                   "after a start of a minute (yes on a GPU)", **none)
    return p


def complete(args) -> None:
    """Fills in what the flags left to the setting. Raises UserError for flags that contradict each other."""
    own = args.agg != "linear" or "reg" in args or "capsule" in args
    if own and "own" not in getattr(args, "models", ["own"]):
        raise UserError("--agg, --reg and --capsule describe the model own: add it to --models")
    for name, value in (PAPER if args.full else SMALL).items():
        if not ("arch" in args and name in ("layers", "d_model", "heads", "d_ff")):       # --arch brings its own
            setattr(args, name, getattr(args, name, value))
    args.arch = getattr(args, "arch", "tiny")           # its sizes are all overridden then
    usual = ["own"] if own else MODELS if args.full else ["baseline"]
    args.models = list(dict.fromkeys(getattr(args, "models", usual)))
    args.seeds = list(dict.fromkeys(args.seeds))
    if "name" not in args:
        flags = [args.agg if args.agg != "linear" else "", "-".join(getattr(args, "reg", [])),
                 "capsule" if "capsule" in args else ""] if "own" in args.models else []
        args.name = "-".join(filter(None, ["logic", "full" if args.full else "", *flags]))


def configuration(args, name: str) -> TransformerConfig:
    """The encoder of a model of Fig. 4, or of the flags for "own"; --agg-at, --reg-at and their like apply to both."""
    shared = dict(vocab_size=len(IDS) + 1, decoder=False)
    if name == "own":
        return TransformerConfig.from_flags(args, **shared)
    agg, reg = MODELS[name]
    without = {} if agg != "linear" else dict(agg_at=None, capsules=None)
    return TransformerConfig.from_flags(args, **shared, agg=agg, reg=reg, capsule=(), **without,
                                        **({} if reg else dict(reg_at=None)))


def infer(args) -> None:
    """Trains and tests what is missing of the models x seeds, then prints the table and writes it as JSON and plot."""
    if "write" in args:
        if "data" in args:
            raise UserError("--write writes generated data: leave out --data")
        parts = split(generate(getattr(args, "pairs", RAW_PAIRS), args.data_seed))
        write_files(args.write, parts)
        print(f"{args.write}: " + ", ".join(f"{sum(map(len, bins.values())):,} {name}" for name, bins in parts.items()))
        return
    complete(args)
    device = pick_device(args.device)
    keep_freed_memory()
    args.compile = getattr(args, "compile", device.type == "cuda") and can_compile(device)
    configs = {name: configuration(args, name) for name in dict.fromkeys((*MODELS, *args.models))}
    parts = read_files(args.data) if "data" in args else split(generate(args.pairs, args.data_seed))
    read = lambda pairs, tables=False: encode(pairs, device, args.notation, tables)
    data = {"train": read([pair for size in TRAINED for pair in parts["train"][size]], args.learn == "batch"),
            "valid": read([pair for size in BINS for pair in parts["valid"][size]]),
            "test": {size: read(parts["test"][size]) for size in BINS}}
    if not len(data["train"].labels):
        raise UserError("no training pairs of 1 to 6 operators: raise --pairs, or name another --data folder")
    path = Path(args.runs) / args.name
    settings = {"models": {name: dataclasses.asdict(config) for name, config in configs.items()},
                "data_checksum": checksum(parts),
                **{name: getattr(args, name) for name in (
                    "epochs", "lr", "decay", "batch", "notation", "spread", "learn")}}
    with RunFolder(path, settings) as folder:
        say = lambda text: tqdm.write(text, file=sys.stdout) or sys.stdout.flush()
        say(f"{path}: {len(data['train'].labels):,} pairs to train on, {len(data['valid'].labels):,} to validate,"
            f" {sum(len(examples.labels) for examples in data['test'].values()):,} to test; {device}")
        wanted = [(name, seed) for seed in args.seeds for name in args.models]
        done = {(row["model"], row["seed"]): row for row in folder.read_metrics() if "accuracy" in row}
        for name, seed in wanted:
            if (name, seed) not in done:
                state = path / f"{name}-seed{seed}.pt"
                try:
                    row = {"model": name, "seed": seed, **train_and_test(configs[name], data, args, seed, state,
                                                                         lambda text: say(f"{name}, seed {seed}: {text}"))}
                except (KeyboardInterrupt, SystemExit):                      # SIGINT, SIGTERM
                    say(f"{path}: stopped; the same command goes on after the last whole epoch")
                    raise
                folder.append_metrics(row)
                state.unlink()
                done[name, seed] = row
        report(path, data, [done[key] for key in wanted], settings, say)


def checksum(parts: dict) -> int:
    """A number that tells one set of data from another."""
    return zlib.crc32("\n".join("\t".join(pair) for bins in parts.values() for size in BINS
                                for pair in bins[size]).encode())


def report(path: Path, data: dict, rows: list[dict], settings: dict, say) -> None:
    """Prints the table; writes results.json (summary, every seed's row, settings) and accuracy.png."""
    summary = summarize(data, rows)
    atomic_write(path / "results.json", json.dumps({**summary, "runs": rows, "settings": settings}, indent=1) + "\n")
    say("\naccuracy (%) by number of operators; trained on up to 6\n" + table(summary))
    try:
        draw(summary, path / "accuracy.png")
        say(f"\n{path / 'results.json'}, {path / 'accuracy.png'}")
    except ImportError:
        say(f"\n{path / 'results.json'} (no plot: matplotlib is not installed)")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(infer, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
