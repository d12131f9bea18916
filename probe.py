"""Linguistic probing: what does a sentence encoder know? (Li 2019 §5.1, Li 2021 §4.2)

    python probe.py                                     # ten tasks, four models
    python probe.py --task Tense                        # one task
    python probe.py --protocol li2021 --data senteval   # as in the paper
    python probe.py --encoder runs/NAME runs/OTHER      # trained translators

There are ten classification tasks. An encoder reads a sentence, the mean of its top layer is the
sentence's vector, and an MLP predicts the class. In the papers all of this is trained on the task;
with --encoder only the MLP is. The table also has the accuracy of the most frequent class and that
of a logistic regression on the bag of words. The same command again fills in the missing cells.

The papers' settings (--protocol): 6 layers of width 512 (Li 2019: 3, with routing in all of them),
8 heads, d_ff 2048, 250 epochs at a learning rate of 5e-4. Li 2019 leaves learning rate and epochs
open; li2019 takes those of Li 2021. Both leave open batch size, dropout, vocabulary, the size of
the MLP and the epoch to test, which is the one with the best validation accuracy here.
"""
import dataclasses
import re
import statistics
import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

import toy
from nmt.run_folder import RunFolder, find_folder, find_run, load_run, say
from tasks import probe_model
from tasks.classifier import accuracy, find_row, fit, percent, summarize_seeds, write_results
from tasks.models import FRAME, MODELS, TaskFlags, encoder_config, name_task_run
from tasks.probe_data import GROUPS, TASKS, Parts, download_task, read_task
from tools.command_line import check_given, flag, run
from tools.files import UserError, errors_of, read_lines
from tools.machine import keep_freed_memory, pick_device

SMALL = dict(models=("baseline", "disagreement", "aggregation", "combined"))
LI_2021 = dict(SMALL, layers=6, d_model=512, heads=8, d_ff=2048, epochs=250, lr=5e-4, batch=64)
LI_2019 = dict(LI_2021, layers=3, models=("baseline", "simple", "em"))
PROTOCOLS = {"small": SMALL, "li2019": LI_2019, "li2021": LI_2021}
# the classifier on a frozen encoder; the sizes are the encoder's
FROZEN = dict(models=(), epochs=30, lr=1e-3, batch=64)
# settings that may differ between two runs in one folder
FREE = ("task", "models", "seeds", "encoder", "data_dir", "name", "runs", "device")
ENCODERS = "frozen encoders (Conneau et al. 2018)"
DATA = "data"


@dataclass
class Settings(TaskFlags):
    """Every setting of a run; the defaults are those of the small setting, see `presets`."""
    task: tuple[str, ...] = flag(
        TASKS, f"one or several of {', '.join(TASKS)} (all)", choices=TASKS, metavar="TASK")
    protocol: str = flag("small", "the setting: small, li2019, li2021, see above",
                         choices=tuple(PROTOCOLS), metavar="PROTOCOL")

    encoder: tuple[str, ...] = flag(
        (), "folders of trained translation models: only a classifier on their encoders is "
        "trained; NAME-seed1, NAME-seed2, ... share a column", ENCODERS,
        metavar="RUN")
    checkpoint: str = flag("best", "which one of theirs: best, last, average or step-N", ENCODERS,
                           metavar="NAME")

    data: str = flag("toy", "the embedded tasks, or Conneau et al.'s files", DATA,
                     choices=("toy", "senteval"))
    data_dir: str = flag("data", "where these files are, in the folder senteval; missing ones are "
                         "downloaded", DATA, metavar="DIR")
    sentences: int | None = flag(None, "the first N training sentences of a task (all)", DATA, 1)

    RECIPES = {**PROTOCOLS, "--encoder": {**dict.fromkeys(FRAME), **FROZEN}}     # for --help


def presets(s: Settings) -> dict:
    """The defaults that depend on the setting."""
    values = dict(FROZEN if s.encoder else PROTOCOLS[s.protocol])
    parts = ["probe", "frozen"] if s.encoder else ["probe"]
    values["name"] = name_task_run(s, [*parts, s.data], (*FREE, "data"))
    return values


def model_config(s: Settings, model: str, vocab_size: int):
    """The configuration of a model of the papers. Raises UserError."""
    if s.protocol == "li2019" and "agg" in MODELS[model]:                    # in all layers
        return encoder_config(s, model, vocab_size, agg_at=("enc",))
    return encoder_config(s, model, vocab_size)


def load_task(s: Settings, task: str) -> Parts:
    """The parts of a task."""
    if s.data == "toy":
        return read_task(toy.task(task), s.sentences)
    path = download_task(task, Path(s.data_dir) / "senteval")
    return read_task(read_lines(path), s.sentences)


# ---- A column of the table: a baseline, a model that is trained, or a frozen encoder

class Column(NamedTuple):
    """measure(parts, seed, label) trains and tests the classifier of a task and returns
    {"accuracy": share, ...}; label: what its log lines begin with."""
    measure: Callable[[Parts, int, str], dict]
    seeds: tuple[int, ...]
    checkpoint: int | None = None       # checksum of a frozen encoder's checkpoint


def measure_baseline(predict, parts: Parts, seed: int, label: str) -> dict:
    return {"accuracy": predict(parts)}


def train_model(s: Settings, config, device, parts: Parts, seed: int, label: str) -> dict:
    """The encoder and its classifier are trained on the task."""
    words = probe_model.vocabulary(parts)
    config = dataclasses.replace(config, vocab_size=len(words) + 2)
    build = partial(probe_model.ProbeModel, config, len(probe_model.classes_of(parts)))
    data = probe_model.encode(parts, words, device)
    trained, result = fit(build, data, s, seed, label)
    return {**result, "accuracy": accuracy(trained, data["test"])}


def train_classifier(s: Settings, model, tokenizer, device, parts: Parts, seed: int,
                     label: str) -> dict:
    """Only the classifier of the translation model's encodings is trained."""
    classes = len(probe_model.classes_of(parts))
    build = partial(probe_model.Classifier, model.config.d_model, classes)
    data = probe_model.freeze(parts, model, tokenizer, device)
    trained, result = fit(build, data, s, seed, label)
    return {**result, "accuracy": accuracy(trained, data["test"])}


def frozen_columns(s: Settings, device) -> dict[str, Column]:
    """The columns of --encoder by the names of the runs' folders. Raises UserError."""
    columns = {}
    folders = {Path(folder).resolve(): folder for folder in map(find_run, s.encoder)}
    for path, folder in folders.items():
        name = path.name
        if name in columns:
            raise UserError(f"--encoder: two runs are called {name}: rename the folder of one")
        with errors_of("--encoder"):
            model, tokenizer, config = load_run(folder, s.checkpoint, device)
        if not config["languages"][0].lower().startswith("en"):
            raise UserError(f"--encoder {folder}: does not read English, as the tasks do")
        checkpoint = (path / f"{s.checkpoint}.pt").read_bytes()
        columns[name] = Column(partial(train_classifier, s, model, tokenizer, device), s.seeds,
                               zlib.crc32(checkpoint))
    return columns


def all_columns(s: Settings, device) -> dict[str, Column]:
    """The columns by name, in the table's order."""
    columns = {
        "majority": Column(partial(measure_baseline, probe_model.majority), (0,)),
        "bag of words": Column(partial(measure_baseline, probe_model.bag_of_words), (0,)),
    }
    columns |= frozen_columns(s, device)
    for model in s.models:
        config = model_config(s, model, vocab_size=2)
        columns[model] = Column(partial(train_model, s, config, device), s.seeds)
    return columns


def probe_task(s: Settings, task: str, columns: dict[str, Column],
               folder: RunFolder) -> list[dict]:
    """The rows of a task, {"task", "model", "seed", "accuracy", ...}. A row is computed unless
    metrics.jsonl has it with the same checkpoint."""
    parts = load_task(s, task)
    rows = []
    for name, column in columns.items():
        for seed in column.seeds:
            key = {"task": task, "model": name, "seed": seed, "checkpoint": column.checkpoint}
            row = find_row(folder, key)
            if row is None:
                row = {**key, **column.measure(parts, seed, f"{task}, {name}, seed {seed}")}
                folder.append_metrics(row)
            rows.append(row)
    return rows


# ---- The table

def summarize(rows: list[dict]) -> list[dict]:
    """The table's lines: [{"group", "task", cells: {column: {"mean", "spread", "seeds"}}}, ...] in
    the papers' order.

    After the tasks of a group that is complete comes their average, "Ave.", and after all ten that
    of all; an average is taken seed by seed. Runs NAME-seed1, NAME-seed2, ... share a column.
    """
    accuracies: dict[tuple, dict] = {}                   # (task, column) -> {(model, seed): share}
    for row in rows:
        column = re.sub(r"-seed\d+$", "", row["model"])
        by_seed = accuracies.setdefault((row["task"], column), {})
        by_seed[row["model"], row["seed"]] = row["accuracy"]
    columns = list(dict.fromkeys(column for _, column in accuracies))
    sections = []                                        # (group, name, tasks) of a line
    for group, tasks in GROUPS.items():
        sections += [(group, task, [task]) for task in tasks]
        sections.append((group, "Ave.", tasks))
    sections.append(("all", "Ave.", TASKS))
    lines = []
    for group, name, tasks in sections:
        if any((task, columns[0]) not in accuracies for task in tasks):
            continue
        cells = {}
        for column in columns:
            means = []                                   # over the tasks, of every seed
            for seed in accuracies[tasks[0], column]:
                means.append(statistics.fmean(accuracies[task, column][seed] for task in tasks))
            cells[column] = summarize_seeds(means)
        lines.append({"group": group, "task": name, "cells": cells})
    return lines


def table(lines: list[dict]) -> str:
    """The lines as text in the layout of Li 2021 Table 7: accuracies in per cent."""
    columns = list(lines[0]["cells"])
    rows = [["", "", *columns]]
    group = None
    for line in lines:
        first = line["group"].capitalize() if line["group"] != group else ""
        group = line["group"]
        cells = [percent(line["cells"][column], 2) for column in columns]
        rows.append([first, line["task"], *cells])
    align = ["left", "left", *("right" for _ in columns)]
    return tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=align)


# ---- The command

def probe(s: Settings) -> None:
    """Trains and tests the missing cells of tasks x models x seeds, prints the table and writes
    results.json."""
    if s.encoder:
        check_given(s, dict.fromkeys(("models", "protocol", *FRAME), "a run without --encoder"))
    else:
        check_given(s, {"checkpoint": "--encoder RUN"})
    if s.data == "toy":
        check_given(s, {"data_dir": "--data senteval"})
    device = pick_device(s.device)
    keep_freed_memory()
    columns = all_columns(s, device)
    if s.data == "senteval":                             # all files, before hours of training
        for task in s.task:
            download_task(task, Path(s.data_dir) / "senteval")
    path = find_folder(s.runs, s.name)
    with RunFolder(path, asdict(s), FREE, asdict(Settings())) as folder:
        folder.begin()
        folder.drop_metrics_after(0)                     # a line that was cut off
        say(f"{path}: {len(s.task)} tasks, {', '.join(columns)}; {device}")
        rows = []
        for task in s.task:
            rows += probe_task(s, task, columns, folder)
        lines = summarize(rows)
        write_results(folder, kind="probing", table=lines, runs=rows)
        say(f"\naccuracy (%) on the test sentences\n{table(lines)}\n\n{path / 'results.json'}")


def main(argv=None) -> int:
    return run(probe, Settings, argv, presets)


if __name__ == "__main__":
    sys.exit(main())
