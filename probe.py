"""Linguistic probing: what does a sentence encoder know? (Li 2019 §5.1, Li 2021 §4.2)

    python probe.py                                     # ten tasks x four models, a small setting
    python probe.py --task Tense                        # one task
    python probe.py --protocol li2021 --data senteval   # the paper's setting, on SentEval's files
    python probe.py --encoder runs/NAME runs/OTHER      # the frozen encoders of translation models

An encoder reads a sentence, the mean of its top layer is the sentence's vector, and an MLP tells
the class from it, in ten classification tasks. In the papers' protocol all of that is trained on
the task; with --encoder only the MLP. Beside every accuracy stand that of the most frequent class
and that of a logistic regression on the bag of words. The same command again resumes an interrupted
table. Tasks and files: tasks/probe_data.py, tasks/probe_toy.py; model: tasks/probe_model.py;
training: tasks/classifier.py. The papers leave open batch size, dropout, vocabulary, the MLP's size
and the epoch tested: see PAPER and probe_model.py; the epoch is the one with the best validation
accuracy.
"""
import dataclasses
import functools
import json
import re
import statistics
import sys
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

from nmt.files import atomic_write, reported
from nmt.flags import MODEL, ModelFlags, UserError, flag, folder_name, run
from nmt.machine import DEVICES, keep_freed_memory, pick_device
from nmt.progress import aligned, say
from nmt.run_folder import RunFolder, defaults_of, load_run
from tasks import probe_model
from tasks.classifier import accuracy, fit
from tasks.models import (
    OWN,
    choose,
    encoder_config,
    in_words,
    model_fields,
    other_settings,
    own_name,
    sized,
)
from tasks.probe_data import (
    FILES,
    GROUPS,
    TASKS,
    TEXT_TASKS,
    Parts,
    download_task,
    read_task,
    read_text,
    text_task,
)
from tasks.probe_toy import toy_task
from transformer import SIZES, TransformerConfig

MODELS = {                                               # the papers' models by their mechanisms
    "baseline": {},
    "simple": {"agg": "dynamic"},
    "em": {"agg": "em"},
    "aggregation": {"agg": "em"},
    "disagreement": {"reg": ("output",)},
    "combined": {"agg": "em", "reg": ("output",)},
}
LI_2019 = ("baseline", "simple", "em")
LI_2021 = ("baseline", "disagreement", "aggregation", "combined")
SMALL = {
    "layers": 2,
    "d_model": 64,
    "heads": 4,
    "d_ff": 128,
    "dropout": 0.1,
    "epochs": 6,
    "lr": 2e-3,
    "batch": 32,
}
PAPER = {
    "layers": 6,
    "d_model": 512,
    "heads": 8,
    "d_ff": 2048,
    "dropout": 0.1,
    "epochs": 250,
    "lr": 5e-4,
    "batch": 64,
}
PROTOCOLS = {
    "small": SMALL,
    "li2019": {**PAPER, "layers": 3},
    "li2021": PAPER,
}
FROZEN = {                                               # of the classifier alone
    "epochs": 30,
    "lr": 1e-3,
    "batch": 64,
}
SENTENCES = 4_000                                        # of a generated task, to train on,
VALID = 1_000                                            # to validate
TEST = 2_000                                             # and to test
BASELINES = {                                            # columns beside the models
    "majority": probe_model.majority,
    "bag of words": probe_model.bag_of_words,
}


# ---- The command line

def task_name(text: str) -> str:
    """An argparse type: a task's name in any mixture of capitals."""
    for task in TASKS:
        if task.lower() == text.lower():
            return task
    return text


FROZEN_ENCODERS = "frozen encoders (Conneau et al. 2018)"
DATA = "data"
TRAINING = "training (by the protocol)"
MACHINE = "machine"


@dataclass
class Settings(ModelFlags):
    """The flags of the command; None leaves the choice to the protocol."""
    task: tuple[str, ...] | None = flag(
        None, f"one or several of {', '.join(TASKS)}; all by default, with --text "
        f"{', '.join(TEXT_TASKS)}", choices=TASKS, type=task_name, metavar="TASK")
    models: tuple[str, ...] | None = flag(
        None, "baseline, simple (--agg dynamic), em or aggregation (--agg em), disagreement (--reg "
        "output), combined (em and output), own (by the flags below); the four of Li 2021 by "
        "default, the first three with --protocol li2019, own where a mechanism is given",
        choices=(*MODELS, OWN), metavar="MODEL")
    seeds: tuple[int, ...] = flag(
        (1,), "train each model once per seed; the table has mean and standard deviation (1)",
        low=0, high=10 ** 6, metavar="SEED")
    protocol: str = flag(
        "small", "; ".join(f"{name}: {in_words(setting)}" for name, setting in PROTOCOLS.items())
        + "; routing is in the lowest two layers, with li2019 in all", choices=tuple(PROTOCOLS))

    encoder: tuple[str, ...] | None = flag(
        None, "folders of trained translation models: their encoders stay as they are, only the "
        f"classifier is trained ({in_words(FROZEN)}); NAME-seed1, NAME-seed2, ... share a column",
        FROZEN_ENCODERS, metavar="RUN")
    checkpoint: str = flag(
        "best", "of these runs: best, last, average, step-N", FROZEN_ENCODERS, metavar="NAME")

    data: str = flag(
        "toy", "the embedded grammar; Conneau et al.'s files, downloaded once into "
        "DATA_DIR/senteval; a folder that holds them", DATA, metavar="toy|senteval|DIR")
    data_dir: str = flag("data", "where downloads lie or go to", DATA, metavar="DATA_DIR")
    text: str | None = flag(
        None, f"{', '.join(TEXT_TASKS)} from a plain English text, a sentence on a line", DATA,
        metavar="FILE")
    sentences: int | None = flag(
        None, f"training sentences of a task ({SENTENCES:,}; files: all); toy and --text have "
        f"{VALID:,} more to validate and {TEST:,} to test, but no more than N", DATA, 20, 10 ** 7)
    data_seed: int = flag(1, "seed of the drawing, for toy and --text", DATA, 0)

    arch: str | None = flag(
        None, f"size, over the protocol's: {', '.join(SIZES)}", MODEL, choices=tuple(SIZES),
        metavar="SIZE")

    epochs: int | None = flag(None, "passes over the training sentences", TRAINING, 1)
    lr: float | None = flag(None, "learning rate of Adam", TRAINING, above=0, high=1000)
    batch: int | None = flag(None, "sentences per step", TRAINING, 1, 10 ** 6)

    name: str | None = flag(
        None, "name of the run's folder (probe, and what differs from the defaults)", MACHINE,
        type=folder_name, metavar="NAME")
    runs: str = flag("runs", "where the runs' folders lie", MACHINE, metavar="DIR")
    device: str = flag("auto", DEVICES, MACHINE)


# Settings that may differ between two runs in one folder. What the data is says its checksum.
FREE = ("task", "models", "seeds", "protocol", "encoder", "checkpoint", "data", "data_dir", "text",
        "name", "runs", "device")


def source_of(settings: Settings) -> str:
    """What the data is called: toy, senteval, or the name of a file or folder."""
    if settings.text:
        return Path(settings.text).name
    if settings.data in ("toy", "senteval"):
        return settings.data
    return Path(settings.data).resolve().name


def check(settings: Settings) -> None:
    """Raises UserError for flags that contradict each other."""
    models = settings.models or settings.protocol != "small"
    for field in model_fields(settings):
        models = models or getattr(settings, field.name) != field.default
    if settings.encoder and models:
        raise UserError("--encoder probes trained runs: leave out --models, --protocol and the"
                        " flags of a model")
    if settings.text and settings.data != "toy":
        raise UserError("--text is data of its own: leave out --data")
    for task in settings.task or ():
        if settings.text and task not in TEXT_TASKS:
            raise UserError(f"--task {task} needs parsed sentences; from --text there are"
                            f" {', '.join(TEXT_TASKS)}")


def completed(settings: Settings) -> Settings:
    """The settings with what the flags left open. Raises UserError for flags that contradict each
    other."""
    check(settings)
    tasks = settings.task or (TEXT_TASKS if settings.text else TASKS)
    if settings.encoder:
        values = sized(settings, FROZEN)
        values["models"] = ()
    else:
        values = sized(settings, PROTOCOLS[settings.protocol])
        usual = LI_2019 if settings.protocol == "li2019" else LI_2021
        values["models"] = choose(settings, MODELS, usual)
    values["task"] = tuple(dict.fromkeys(tasks))
    values["seeds"] = tuple(dict.fromkeys(settings.seeds))
    if settings.name is None:
        parts = ["probe"]
        if settings.encoder:
            parts.append("frozen")
        if source_of(settings) != "toy":
            parts.append(source_of(settings))
        if settings.protocol != "small":
            parts.append(settings.protocol)
        if OWN in values["models"] and own_name(settings):
            parts.append(own_name(settings))
        values["name"] = "-".join(parts)
    return dataclasses.replace(settings, **values)


def configuration(settings: Settings, model: str) -> TransformerConfig:
    """The encoder of a model of the papers, or of the flags for "own"; its vocabulary is the
    task's."""
    mechanisms = MODELS.get(model)
    agg = settings.agg if mechanisms is None else mechanisms.get("agg")
    if settings.protocol == "li2019" and settings.agg_at is None and agg in ("dynamic", "em"):
        settings = dataclasses.replace(settings, agg_at=("enc",))            # in all layers
    return encoder_config(settings, mechanisms, vocab_size=2)


# ---- The data of a task

@functools.lru_cache(maxsize=1)
def load_text(path: str) -> list[tuple[str, ...]]:
    """The sentences of --text, read once."""
    return read_text(Path(path))


def load_task(settings: Settings, task: str) -> Parts:
    """The parts of a task from where the flags say. Raises UserError for what is missing or
    malformed."""
    train = settings.sentences or SENTENCES
    counts = {"train": train, "valid": min(VALID, train), "test": min(TEST, train)}
    if settings.text:
        return text_task(task, load_text(settings.text), counts, settings.data_seed)
    if settings.data == "toy":
        return toy_task(task, counts, settings.data_seed)
    if settings.data == "senteval":
        path = download_task(task, Path(settings.data_dir) / "senteval")
    else:
        path = Path(settings.data) / FILES[task][0]
    return read_task(path, settings.sentences)


def checksum(parts: Parts) -> int:
    """A number that tells one set of data from another."""
    lines = []
    for part, items in parts.items():
        lines += [f"{part}\t{item.label}\t{' '.join(item.tokens)}" for item in items]
    return zlib.crc32("\n".join(lines).encode())


# ---- What is probed

class Probed(NamedTuple):
    """A column of the table: a model that is trained, or a frozen encoder."""
    prepare: Callable           # parts of a task -> (a function that builds the model, the data)
    checkpoint: int | None      # the checksum of a frozen encoder's checkpoint


def trained(config: TransformerConfig, device, parts: Parts):
    """A model of which all is trained on the task: a function that builds it, and the data."""
    words = probe_model.vocabulary(parts)
    classes = len(probe_model.classes_of(parts))
    of_task = dataclasses.replace(config, vocab_size=len(words) + 2)

    def build():
        return probe_model.ProbeModel(of_task, classes)
    return build, probe_model.encode(parts, words, device)


def frozen(model, tokenizer, device, parts: Parts):
    """The classifier on the vectors of a trained model's encoder: a function that builds it, and
    the data."""
    classes = len(probe_model.classes_of(parts))

    def build():
        return probe_model.FrozenProbe(model.config.d_model, classes)
    return build, probe_model.freeze(parts, model, tokenizer, device)


def frozen_columns(settings: Settings, device) -> dict[str, Probed]:
    """The columns of --encoder by their names, those of the runs' folders."""
    columns = {}
    for folder in settings.encoder:
        name = Path(folder).resolve().name
        if name in columns or name in BASELINES:
            raise UserError("--encoder: a run folder's name heads its column, so no two may be"
                            f" alike, and {name} is there twice: rename one")
        model, tokenizer, _ = load_run(folder, settings.checkpoint, device)
        path = Path(folder) / f"{settings.checkpoint}.pt"
        with reported("read", path):
            number = zlib.crc32(path.read_bytes())
        columns[name] = Probed(functools.partial(frozen, model, tokenizer, device), number)
    return columns


# ---- The table

def summarize(rows: list[dict], columns: list[str]) -> list[dict]:
    """The table's lines: [{"group", "task", cells: {column: {"mean", "spread", "seeds"}}}, ...] in
    the papers' order.

    After the tasks of a group that is complete comes their average, "Ave.", and after all ten that
    of all, "All"; an average is taken seed by seed. Spread: sample standard deviation over the
    seeds, None for one seed.
    """
    accuracies: dict[tuple, dict] = {}                   # (task, column) -> {seed: accuracy}
    for row in rows:
        by_seed = accuracies.setdefault((row["task"], row["model"]), {})
        by_seed[row["seed"]] = row["accuracy"]
    done = {row["task"] for row in rows}

    def line(group: str, name: str, tasks) -> dict:
        cells = {}
        for column in columns:
            means = []                                   # over the tasks, of every seed
            for seed in accuracies[tasks[0], column]:
                means.append(statistics.fmean(accuracies[task, column][seed] for task in tasks))
            spread = statistics.stdev(means) if len(means) > 1 else None
            cells[column] = {"mean": statistics.fmean(means), "seeds": len(means), "spread": spread}
        return {"group": group, "task": name, "cells": cells}

    lines = []
    for group, tasks in GROUPS.items():
        lines += [line(group, task, [task]) for task in tasks if task in done]
        if done.issuperset(tasks):
            lines.append(line(group, "Ave.", tasks))
    if done.issuperset(TASKS):
        lines.append(line("all", "Ave.", TASKS))
    return lines


def over_runs(rows: list[dict], columns: list[str]) -> tuple[list[dict], list[str]]:
    """The rows and columns of frozen encoders, those of runs NAME-seed1, NAME-seed2, ... as one
    column NAME with the runs' seeds beside the classifier's."""
    bare = {column: re.sub(r"-seed\d+$", "", column) for column in columns}
    runs = Counter(bare.values())
    names = {}                                           # column -> NAME, where it has several
    for column, name in bare.items():
        shared = runs[name] > 1 and name not in columns
        names[column] = name if shared else column
    merged = []
    for row in rows:
        column = row["model"]
        seed = (column, row["seed"])
        merged.append({**row, "model": names.get(column, column), "seed": seed})
    return merged, list(dict.fromkeys(names.values()))


def table(lines: list[dict]) -> str:
    """The lines as text in the layout of Li 2021 Table 7: accuracies in per cent."""
    columns = list(lines[0]["cells"])
    rows = []
    group = None
    for line in lines:
        first = line["group"].capitalize() if line["group"] != group else ""
        group = line["group"]
        row = [first, line["task"]]
        for column in columns:
            cell = line["cells"][column]
            text = f"{100 * cell['mean']:.2f}"
            if cell["spread"] is not None:
                text += f" ±{100 * cell['spread']:.2f}"
            row.append(text)
        rows.append(row)
    return aligned(["", "", *columns], rows, words=2)


def report(path: Path, rows: list[dict], models: list[str], identity: dict) -> None:
    """Prints the table; writes it as table.txt, and with every seed's row and the settings as
    results.json."""
    merged, columns = over_runs(rows, models)
    lines = summarize(merged, [*BASELINES, *columns])
    text = table(lines)
    atomic_write(path / "table.txt", text + "\n")
    results = {"kind": "probing", "table": lines, "runs": rows, "settings": identity}
    atomic_write(path / "results.json", json.dumps(results, indent=1) + "\n")
    say(f"\naccuracy (%) on the test sentences\n{text}\n\n{path / 'results.json'},"
        f" {path / 'table.txt'}")


# ---- The command

def probe(settings: Settings) -> None:
    """Trains and tests what is missing of tasks x models x seeds, then prints the table and writes
    it as JSON."""
    settings = completed(settings)
    device = pick_device(settings.device)
    keep_freed_memory()

    # what identifies the run; every row has its data's checksum
    identity = {"data": source_of(settings), **other_settings(settings, FREE)}
    if settings.encoder:
        columns = frozen_columns(settings, device)
    else:
        names = dict.fromkeys((*MODELS, *settings.models))
        configs = {name: configuration(settings, name) for name in names}
        columns = {}
        for name in settings.models:
            columns[name] = Probed(functools.partial(trained, configs[name], device), None)
        identity["models"] = {name: dataclasses.asdict(configs[name]) for name in names}

    path = Path(settings.runs) / settings.name
    if (settings.data != "toy" or settings.text) and not path.exists():
        for task in settings.task:       # what is wrong with it is told before there is a folder
            load_task(settings, task)
    younger = {"models": dict.fromkeys((*MODELS, OWN), defaults_of(TransformerConfig))}
    with RunFolder(path, identity, defaults=younger) as folder:
        say(f"{path}: {len(settings.task)} tasks, {', '.join(columns)}; {device}")
        rows = []
        try:
            for task in settings.task:
                rows += probe_task(settings, task, columns, folder)
        except (KeyboardInterrupt, SystemExit):          # SIGINT, SIGTERM
            say(f"{path}: stopped; the same command goes on after the last whole epoch")
            raise
        report(path, rows, list(columns), identity)


def probe_task(settings: Settings, task: str, columns: dict[str, Probed],
               folder: RunFolder) -> list[dict]:
    """The rows of a task, {"task", "model", "seed", "accuracy", ...}, first those of the baselines.

    What is not in the folder's metrics yet is computed and kept there, and what is there of another
    checkpoint is computed anew. Raises UserError where rows are of other sentences.
    """
    checkpoints = {name: column.checkpoint for name, column in columns.items()}
    finished = {}
    for row in folder.read_metrics():
        if row["task"] == task and row["checkpoint"] == checkpoints.get(row["model"]):
            finished[row["model"], row["seed"]] = row
    wanted = [(name, 0) for name in BASELINES]
    wanted += [(name, seed) for seed in settings.seeds for name in columns]
    if all(key in finished for key in wanted):
        return [finished[key] for key in wanted]

    parts = load_task(settings, task)
    number = checksum(parts)
    for row in finished.values():
        if row["data_checksum"] != number:
            raise UserError(f"{folder.path}: its results for {task} are of other sentences: choose"
                            " another --name")
    say(f"{task}: {len(parts['train']):,} sentences to train on, {len(parts['valid']):,} to"
        f" validate, {len(parts['test']):,} to test; {len(probe_model.classes_of(parts))} classes")
    prepared = {}                        # the vectors of a frozen encoder serve all seeds
    for name, seed in wanted:
        if (name, seed) in finished:
            continue
        row = {"task": task, "model": name, "seed": seed, "checkpoint": checkpoints.get(name),
               "data_checksum": number}
        if name in BASELINES:
            row["accuracy"] = BASELINES[name](parts)
            say(f"{task}, {name}: {row['accuracy']:.1%}")
            folder.append_metrics(row)
        else:
            if name not in prepared:
                prepared[name] = columns[name].prepare(parts)
            build, data = prepared[name]
            words = [task, name, f"seed{seed}"]
            if checkpoints[name] is not None:            # what another one has begun is not ours
                words.append(str(checkpoints[name]))
            state = folder.path / f"{'-'.join(words)}.pt"
            row.update(train_and_test(settings, build, data, seed, state, f"{task}, {name}"))
            folder.append_metrics(row)
            state.unlink()
        finished[name, seed] = row
    return [finished[key] for key in wanted]


def train_and_test(settings: Settings, build, data: dict, seed: int, state: Path,
                   label: str) -> dict:
    """{"accuracy": on the test part, ...} of a model, see `fit`; state: where `fit` keeps what
    resuming takes; label: what log lines begin with."""
    def log_epoch(text: str):
        say(f"{label}, seed {seed}: {text}")

    model, history = fit(build, data, settings, seed, state, log_epoch)
    right, count = accuracy(model, data["test"])
    return {"accuracy": right / count, **history}


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(probe, Settings, "probe.py",
               "Linguistic probing (Li 2019 section 5.1, Li 2021 section 4.2): trains models on\n"
               "ten tasks and prints their accuracies beside the most frequent class and a bag of\n"
               "words.", argv)


if __name__ == "__main__":
    sys.exit(main())
