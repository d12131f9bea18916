"""Linguistic probing: what does a sentence encoder know? Ten classification tasks (Li 2019 §5.1, Li 2021 §4.2)

    python probe.py                                     # ten tasks x four models, a small setting
    python probe.py --task Tense                        # one task
    python probe.py --protocol li2021 --data senteval   # the paper's setting, on Conneau et al.'s files
    python probe.py --encoder runs/NAME runs/OTHER      # the frozen encoders of two translation models

An encoder reads a sentence, the mean of its top layer is the sentence's vector, and an MLP tells the class from it. In
the papers' protocol all of that is trained on the task; with --encoder only the MLP. Beside every accuracy stand that
of the most frequent class and that of a logistic regression on the bag of words. The same command again takes up an
interrupted table. Tasks and files: probe_data.py, probe_toy.py; model and training: probe_model.py. The papers leave
open batch size, dropout, vocabulary, the MLP's size and the epoch tested: see PAPER and probe_model.py; the epoch is
the one with the best validation accuracy.
"""
import argparse
import dataclasses
import json
import statistics
import sys
import zlib
from functools import lru_cache
from pathlib import Path

from tqdm import tqdm

from tasks import probe_model
from nmt.files import atomic_write, reported
from nmt.run_folder import RunFolder
from tasks.classifier import accuracy, fit
from nmt.flags import Parser, UserError, folder_name, real, run, whole
from nmt.fast_routing import install
from nmt.machine import keep_freed_memory, pick_device
from tasks.probe_data import (FILES, GROUPS, TASKS, TEXT_TASKS, Parts, download_task, read_task,
                              read_text, text_task)
from tasks.probe_toy import toy_task
from transformer import TransformerConfig, add_model_flags
from nmt.run_folder import load_run

MODELS = {"baseline": ("linear", ()), "simple": ("dynamic", ()), "em": ("em", ()), "aggregation": ("em", ()),
          "disagreement": ("linear", ("output",)), "combined": ("em", ("output",))}             # --agg and --reg
LI_2019, LI_2021 = ("baseline", "simple", "em"), ("baseline", "disagreement", "aggregation", "combined")
SMALL = dict(layers=2, d_model=64, heads=4, d_ff=128, dropout=0.1, epochs=6, lr=2e-3, batch=32)
PAPER = dict(layers=6, d_model=512, heads=8, d_ff=2048, dropout=0.1, epochs=250, lr=5e-4, batch=64)
PROTOCOLS = {"small": SMALL, "li2019": {**PAPER, "layers": 3}, "li2021": PAPER}
FROZEN = dict(epochs=30, lr=1e-3, batch=64)             # of the classifier alone
SENTENCES, VALID, TEST = 4_000, 1_000, 2_000            # of a generated task
BASELINES = ("majority", "bag of words")                # columns beside the models


# ---- The command line

def task_name(text: str) -> str:
    """An argparse type: a task's name in any mixture of capitals."""
    return next((task for task in TASKS if task.lower() == text.lower()), text)


def parser() -> Parser:
    """The command line: which tasks and models, the protocol, the data, the model's flags by paper, machine."""
    p = Parser(prog="probe.py", description="Linguistic probing (Li 2019 section 5.1, Li 2021 section 4.2): trains "
               "models on ten tasks and prints their accuracies beside the most frequent class and a bag of words.")
    none = dict(default=argparse.SUPPRESS)
    p.add_argument("--task", nargs="+", type=task_name, choices=TASKS, metavar="TASK",
                   help=f"one or several of {', '.join(TASKS)}; all by default, with --text SeLen, WC, BShif", **none)
    p.add_argument("--models", nargs="+", choices=(*MODELS, "own"), metavar="MODEL", help="baseline, simple (--agg "
                   "dynamic), em or aggregation (--agg em), disagreement (--reg output), combined (em and output), own "
                   "(by the flags below); the four of Li 2021 by default, the first three with --protocol li2019, own "
                   "where one of --agg, --reg, --capsule is given", **none)
    p.add_argument("--seeds", nargs="+", type=whole(0, 10 ** 6), default=[1], metavar="SEED",
                   help="train each model once per seed; the table has mean and standard deviation")
    p.add_argument("--protocol", choices=PROTOCOLS, default="small", help="; ".join(
        f"{name}: " + ", ".join(f"{key} {value}" for key, value in setting.items())
        for name, setting in PROTOCOLS.items()) + "; routing is in the lowest two layers, with li2019 in all")
    g = p.add_argument_group("frozen encoders (Conneau et al. 2018)")
    g.add_argument("--encoder", nargs="+", metavar="RUN", help="folders of trained translation models: their encoders "
                   "stay as they are, only the classifier is trained ("
                   + ", ".join(f"{key} {value}" for key, value in FROZEN.items()) + ")", **none)
    g.add_argument("--checkpoint", default="best", metavar="NAME", help="of these runs: best, last, average, step-N")
    g = p.add_argument_group("data")
    g.add_argument("--data", default="toy", metavar="toy|senteval|DIR", help="the embedded grammar; Conneau et al.'s "
                   "files, downloaded once into DATA_DIR/senteval; a folder that holds them")
    g.add_argument("--data-dir", default="data", metavar="DATA_DIR", help="where downloads lie or go to")
    g.add_argument("--text", metavar="FILE", help="SeLen, WC and BShif from a plain English text, a sentence on a line",
                   **none)
    g.add_argument("--sentences", type=whole(20, 10 ** 7), metavar="N", help=f"training sentences of a task "
                   f"({SENTENCES:,}; files: all); toy and --text have {VALID:,} more to validate and {TEST:,} to test, "
                   "but no more than N", **none)
    g.add_argument("--data-seed", type=whole(0), default=1, help="seed of the drawing, for toy and --text")
    add_model_flags(p, arch=argparse.SUPPRESS)          # without --arch the protocol has the sizes
    g = p.add_argument_group("training (by the protocol)")
    g.add_argument("--epochs", type=whole(1), help="passes over the training sentences", **none)
    g.add_argument("--lr", type=real(0, 1e3, low_open=True), help="learning rate of Adam", **none)
    g.add_argument("--batch", type=whole(1, 10 ** 6), help="sentences per step", **none)
    g = p.add_argument_group("machine")
    g.add_argument("--name", type=folder_name, metavar="NAME", help="name of the run's folder (probe, and what differs "
                   "from the defaults)", **none)
    g.add_argument("--runs", default="runs", metavar="DIR", help="where the runs' folders lie")
    g.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    return p


def complete(args) -> None:
    """Fills in what the flags left to the protocol. Raises UserError for flags that contradict each other."""
    own = args.agg != "linear" or "reg" in args or "capsule" in args
    frozen, text = "encoder" in args, "text" in args
    if frozen and (own or args.protocol != "small" or any(name in args for name in (
            "models", "arch", "layers", "d_model", "heads", "d_ff", "dropout", "agg_at", "capsules", "reg_at"))):
        raise UserError("--encoder probes trained runs: leave out --models, --protocol and the flags of a model")
    if own and "own" not in getattr(args, "models", ["own"]):
        raise UserError("--agg, --reg and --capsule describe the model own: add it to --models")
    if text and args.data != "toy":
        raise UserError("--text is data of its own: leave out --data")
    args.tasks = list(dict.fromkeys(getattr(args, "task", TEXT_TASKS if text else TASKS)))
    for task in args.tasks if text else ():
        if task not in TEXT_TASKS:
            raise UserError(f"--task {task} needs parsed sentences; from --text there are {', '.join(TEXT_TASKS)}")
    for name, value in (FROZEN if frozen else PROTOCOLS[args.protocol]).items():
        if not ("arch" in args and name in ("layers", "d_model", "heads", "d_ff")):             # --arch brings its own
            setattr(args, name, getattr(args, name, value))
    args.arch = getattr(args, "arch", "tiny")           # its sizes are all overridden then
    usual = ["own"] if own else LI_2019 if args.protocol == "li2019" else LI_2021
    args.models = list(dict.fromkeys([] if frozen else getattr(args, "models", usual)))
    args.seeds = list(dict.fromkeys(args.seeds))
    args.source = Path(args.text).name if text else Path(args.data).resolve().name if is_folder(args) else args.data
    if "name" not in args:
        flags = [args.agg if args.agg != "linear" else "", "-".join(getattr(args, "reg", [])),
                 "capsule" if "capsule" in args else ""] if "own" in args.models else []
        parts = ["frozen" * frozen, args.source * (args.source != "toy"), args.protocol * (args.protocol != "small")]
        args.name = "-".join(filter(None, ["probe", *parts, *flags]))


def is_folder(args) -> bool:
    """Whether --data names a folder of files."""
    return args.data not in ("toy", "senteval")


def configuration(args, name: str) -> TransformerConfig:
    """The encoder of a model of the papers, or of the flags for "own"; its vocabulary is the task's."""
    shared = dict(vocab_size=2, decoder=False)
    everywhere = dict(agg_at=("enc",)) if args.protocol == "li2019" and "agg_at" not in args else {}
    if name == "own":
        return TransformerConfig.from_flags(args, **shared, **(everywhere if args.agg in ("dynamic", "em") else {}))
    agg, reg = MODELS[name]
    without = everywhere if agg != "linear" else dict(agg_at=None, capsules=None)
    return TransformerConfig.from_flags(args, **shared, agg=agg, reg=reg, capsule=(), **without,
                                        **({} if reg else dict(reg_at=None)))


# ---- The data of a task

@lru_cache(maxsize=1)
def load_text(path: str):
    """The sentences of --text, read once."""
    return read_text(Path(path))


def load_task(args, task: str) -> Parts:
    """The parts of a task from where the flags say. Raises UserError for what is missing or malformed."""
    if "text" not in args and args.data != "toy":
        folder = Path(args.data_dir) / "senteval" if args.data == "senteval" else Path(args.data)
        path = download_task(task, folder) if args.data == "senteval" else folder / FILES[task][0]
        return read_task(path, getattr(args, "sentences", None))
    train = getattr(args, "sentences", SENTENCES)
    counts = {"train": train, "valid": min(VALID, train), "test": min(TEST, train)}
    if "text" in args:
        return text_task(task, load_text(args.text), counts, args.data_seed)
    return toy_task(task, counts, args.data_seed)


def checksum(parts: Parts) -> int:
    """A number that tells one set of data from another."""
    return zlib.crc32("\n".join(f"{part}\t{item.label}\t{' '.join(item.tokens)}" for part, items in parts.items()
                                for item in items).encode())


# ---- The table

def probe(args) -> None:
    """Trains and tests what is missing of tasks x models x seeds, then prints the table and writes it as JSON."""
    complete(args)
    device = pick_device(args.device)
    keep_freed_memory()
    settings = {"data": args.source, "data_seed": args.data_seed, "sentences": getattr(args, "sentences", None),
                "epochs": args.epochs, "lr": args.lr, "batch": args.batch}
    if "encoder" in args:
        builders = {Path(folder).resolve().name: frozen(folder, args.checkpoint, device) for folder in args.encoder}
        if len(builders) < len(args.encoder) or set(builders) & set(BASELINES):
            raise UserError("--encoder: a run folder's name heads its column, so no two may be alike: rename one")
    else:
        configs = {name: configuration(args, name) for name in dict.fromkeys((*MODELS, *args.models))}
        builders = {name: (trained(configs[name], device), None) for name in args.models}
        settings["models"] = {name: dataclasses.asdict(config) for name, config in configs.items()}
    path = Path(args.runs) / args.name
    if args.data != "toy" or "text" in args:            # told before there is a folder with settings that do not do
        for task in args.tasks if not path.exists() else ():
            load_task(args, task)
    with RunFolder(path, settings) as folder:
        say = lambda text: tqdm.write(text, file=sys.stdout) or sys.stdout.flush()
        say(f"{path}: {len(args.tasks)} tasks, {', '.join(builders)}; {device}")
        rows = []
        try:
            for task in args.tasks:
                rows += probe_task(args, task, builders, folder, say)
        except (KeyboardInterrupt, SystemExit):          # SIGINT, SIGTERM
            say(f"{path}: stopped; the same command goes on after the last whole epoch")
            raise
        report(path, rows, list(builders), settings, say)


def probe_task(args, task: str, builders: dict, folder: RunFolder, say) -> list[dict]:
    """The rows of a task, {"task", "model", "seed", "accuracy", ...}, first those of the baselines; what is not in the
    folder's metrics yet is computed and kept there, and what is there of another checkpoint is computed anew.

    builders: by model, what `frozen` gives, or `trained` and None. Raises UserError where rows are of other sentences.
    """
    numbers = {name: number for name, (_, number) in builders.items()}
    done = {(row["model"], row["seed"]): row for row in folder.read_metrics()
            if "accuracy" in row and row["task"] == task and row.get("checkpoint") == numbers.get(row["model"])}
    wanted = [*((name, 0) for name in BASELINES), *((name, seed) for seed in args.seeds for name in builders)]
    if not all(key in done for key in wanted):
        parts = load_task(args, task)
        data_sum = checksum(parts)
        for row in done.values():
            if row["data_checksum"] != data_sum:
                raise UserError(f"{folder.path}: its results for {task} are of other sentences: choose another --name")
        say(f"{task}: {len(parts['train']):,} sentences to train on, {len(parts['valid']):,} to validate, "
            f"{len(parts['test']):,} to test; {len(probe_model.classes_of(parts))} classes")
        for name, seed in (key for key in wanted if key not in done):
            if name in BASELINES:
                found = {"accuracy": (probe_model.majority if name == "majority" else probe_model.bag_of_words)(parts)}
                say(f"{task}, {name}: {found['accuracy']:.1%}")
            else:
                build, data = builders[name][0](task, parts)
                state = folder.path / f"{task}-{name}-seed{seed}.pt"
                model, found = fit(build, data, args, seed, state,
                                   lambda text: say(f"{task}, {name}, seed {seed}: {text}"))
                right, count = accuracy(model, data["test"])
                found = {"accuracy": right / count, **found}
            done[name, seed] = {"task": task, "model": name, "seed": seed, "checkpoint": numbers.get(name),
                                "data_checksum": data_sum, **found}
            folder.append_metrics(done[name, seed])
            if name not in BASELINES:
                state.unlink()
    return [done[key] for key in wanted]


def trained(config: TransformerConfig, device):
    """(task, parts) -> (a function that builds the model, the encoded parts), where all of the model is trained."""
    def prepare(task, parts):
        words, classes = probe_model.vocabulary(parts), len(probe_model.classes_of(parts))
        sized = dataclasses.replace(config, vocab_size=len(words) + 2)
        return lambda: install(probe_model.ProbeModel(sized, classes)), probe_model.encode(parts, words, device)
    return prepare


def frozen(folder: str, checkpoint: str, device):
    """As `trained`, where only the classifier is, on the vectors of a run's encoder; and the checkpoint's checksum.

    The vectors of a task are computed once, not for every seed.
    """
    model, tokenizer, _ = load_run(folder, checkpoint, device)
    path, latest = Path(folder) / f"{checkpoint}.pt", {}
    with reported("read", path):
        number = zlib.crc32(path.read_bytes())

    def prepare(task, parts):
        if task not in latest:
            latest.clear()
            latest[task] = probe_model.freeze(parts, model, tokenizer, device)
        return lambda: probe_model.FrozenProbe(model.config.d_model, len(probe_model.classes_of(parts))), latest[task]
    return prepare, number


def summarize(rows: list[dict], columns: list[str]) -> list[dict]:
    """The table's lines: [{"group", "task", cells: {column: {"mean", "spread", "seeds"}}}, ...] in the papers' order.

    After the tasks of a group that is complete comes their average, "Ave.", and after all ten that of all, "All"; an
    average is taken seed by seed. Spread: sample standard deviation over the seeds, None for one seed.
    """
    found: dict[tuple, dict[int, float]] = {}
    for row in rows:
        found.setdefault((row["task"], row["model"]), {})[row["seed"]] = row["accuracy"]
    done = {row["task"] for row in rows}

    def line(group, name, tasks):
        cells = {}
        for column in columns:
            by_task = [found[task, column] for task in tasks]
            means = [statistics.fmean(by_seed[seed] for by_seed in by_task) for seed in by_task[0]]
            cells[column] = {"mean": statistics.fmean(means), "seeds": len(means),
                             "spread": statistics.stdev(means) if len(means) > 1 else None}
        return {"group": group, "task": name, "cells": cells}

    lines = []
    for group, tasks in GROUPS.items():
        lines += [line(group, task, [task]) for task in tasks if task in done]
        if done.issuperset(tasks):
            lines.append(line(group, "Ave.", tasks))
    return lines + ([line("all", "Ave.", TASKS)] if done.issuperset(TASKS) else [])


def table(lines: list[dict], columns: list[str]) -> str:
    """The lines as text in the layout of Li 2021 Table 7: accuracies in per cent."""
    def cell(mean, spread, seeds):
        return f"{100 * mean:.2f}" if spread is None else f"{100 * mean:.2f} ±{100 * spread:.2f}"

    widths = [max(14, len(column) + 2) for column in columns]
    text, before = [" " * 17 + "".join(f"{column:>{width}}" for column, width in zip(columns, widths))], None
    for line in lines:
        group = line["group"].capitalize() if line["group"] != before else ""
        before = line["group"]
        text.append(f"{group:<11}{line['task']:<6}" + "".join(
            f"{cell(**line['cells'][column]):>{width}}" for column, width in zip(columns, widths)))
    return "\n".join(text)


def report(path: Path, rows: list[dict], models: list[str], settings: dict, say) -> None:
    """Prints the table; writes it as table.txt, and with every seed's row and the settings as results.json."""
    columns = [*BASELINES, *models]
    lines = summarize(rows, columns)
    text = table(lines, columns)
    atomic_write(path / "table.txt", text + "\n")
    results = {"table": lines, "runs": rows, "settings": settings}
    atomic_write(path / "results.json", json.dumps(results, indent=1) + "\n")
    say(f"\naccuracy (%) on the test sentences\n{text}\n\n{path / 'results.json'}, {path / 'table.txt'}")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(probe, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
