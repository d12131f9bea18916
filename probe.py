"""Linguistic probing: what does a sentence encoder know? (Li 2019 §5.1, Li 2021 §4.2)

    python probe.py                                     # ten tasks, four models
    python probe.py --task Tense --seeds 1 2 3
    python probe.py --protocol li2019 --data DIR        # as in the paper
    python probe.py --protocol frozen --models runs/A runs/B    # trained translators

An encoder reads a sentence, the mean of its top layer is the sentence's vector, and an MLP predicts
the class. All of it is trained on the task; with --protocol frozen only the MLP is. The table has
accuracies in per cent, that of the most frequent class first, and the papers' own beside ours. The
same command trains what is missing in results.json.
"""
import hashlib
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from tabulate import tabulate

from nmt.command_line import UserError, count, flag, natural, run
from nmt.corpus import hash_text
from nmt.machine import DEVICES, keep_freed_memory, pick_device
from nmt.run_folder import load_run
from papers.tables import TABLES
from tasks.classifier import accuracy, fit
from tasks.models import MODELS
from tasks.probe_data import GROUPS, TASKS, Parts, load_task
from tasks.probe_model import (
    Classifier,
    ProbeModel,
    classes_of,
    encode,
    freeze,
    majority,
    vocabulary,
)
from tasks.results import add_row, find_row, percent
from transformer import TransformerConfig

# Li 2021 prints layers, width, heads, epochs and rate; Li 2019 the layers alone. Both leave open
# batch size, dropout, vocabulary, the MLP's size, and the epoch that is tested: here the one with
# the best validation accuracy.
BASE = dict(d_model=512, heads=8, d_ff=2048, dropout=0.1)
PAPER = dict(epochs=250, lr=5e-4, batch=64)
LI_2021 = ("baseline", "disagreement", "aggregation", "combined")
PROTOCOLS = {
    "small": dict(models=LI_2021, published="li2021-7",
                  sizes=dict(layers=2, d_model=64, heads=4, d_ff=128, dropout=0.1),
                  training=dict(epochs=6, lr=2e-3, batch=32)),
    "li2019": dict(models=("baseline", "simple", "em"), published="li2019-1",
                   sizes=dict(layers=3, **BASE), training=PAPER),
    "li2021": dict(models=LI_2021, published="li2021-7",
                   sizes=dict(layers=6, **BASE), training=PAPER),
    # Conneau et al. 2018
    "frozen": dict(models=(), training=dict(epochs=30, lr=1e-3, batch=64)),
}


@dataclass
class Settings:
    """Flags."""
    task: tuple[str, ...] = flag(TASKS, f"one or several of {', '.join(TASKS)} (default: all)",
                                 choices=TASKS, metavar="TASK")
    protocol: str = flag("small", "small: 2 layers of width 64; li2019, li2021: 3 and 6 of width "
                         "512; frozen: encoders of translation models", choices=tuple(PROTOCOLS))
    data: str = flag("embedded", "embedded: those in tasks/; or the folder of SentEval's files")
    models: tuple[str, ...] = flag(
        (), f"some of {', '.join(MODELS)} (default: those of the paper); with --protocol frozen "
        "run folders", metavar="MODEL")
    seeds: tuple[int, ...] = flag((1,), "each model is trained once per seed (default: 1)",
                                  type=natural, metavar="N")
    epochs: int = flag(6, "passes over the training sentences", type=count)
    out: str = flag("", "folder of results.json", metavar="DIR")
    device: str = flag("auto", DEVICES)


def defaults(s, typed) -> dict:
    """The defaults that depend on the protocol and the data."""
    protocol = PROTOCOLS[s.protocol]
    return {"models": protocol["models"], "epochs": protocol["training"]["epochs"],
            "out": f"runs/probe-{s.protocol}-{Path(s.data).resolve().name}"}


# ---- A cell of the table

def build_model(sizes: dict, name: str, parts: Parts, seed: int, device):
    """A model of the papers, and the parts as it reads them."""
    words = vocabulary(parts["train"])
    config = TransformerConfig(len(words) + 2, decoder=False, **sizes, **MODELS[name])
    torch.manual_seed(seed)
    return ProbeModel(config, len(classes_of(parts))), encode(parts, words, device)


def build_classifier(folder: str, parts: Parts, seed: int, device):
    """A classifier for a translation model's encoder, and the parts as the encoder's vectors.
    Raises UserError if it does not read English."""
    encoder, tokenizer, settings = load_run(folder, device=device)
    if not settings["languages"][0].startswith("en"):
        raise UserError(f"{folder}: does not read English, as the tasks do")
    data = freeze(parts, encoder, tokenizer, device)
    torch.manual_seed(seed)
    return Classifier(encoder.config.d_model, len(classes_of(parts))), data


def measure(s: Settings, parts: Parts, name: str, seed: int, label: str, device) -> dict:
    """{"accuracy": share, ...} of a new model on the test part, see `fit`."""
    protocol = PROTOCOLS[s.protocol]
    if s.protocol == "frozen":
        model, data = build_classifier(name, parts, seed, device)
    else:
        model, data = build_model(protocol["sizes"], name, parts, seed, device)
    training = {**protocol["training"], "epochs": s.epochs}
    result = fit(model.to(device), data["train"], data["valid"], seed, label, **training)
    return {"accuracy": accuracy(model, data["test"]), **result}


# ---- The table

def table(models, accuracies: dict, published: dict) -> str:
    """A line per task, and the average of each group of tasks and of all.

    accuracies: {(task, model): [share of every seed]}; published: {model: {task or group: text}}.
    An average is taken seed by seed.
    """
    sections = []                                        # (label, tasks) of a line
    for group, tasks in GROUPS.items():
        sections += [(task, [task]) for task in tasks]
        sections.append((group, tasks))
    sections.append(("all", TASKS))
    rows = []
    for label, tasks in sections:
        if not all((task, "majority") in accuracies for task in tasks):
            continue
        row = {"": label}
        for model in ("majority", *models):
            by_seed = zip(*[accuracies[task, model] for task in tasks])
            means = [statistics.fmean(shares) for shares in by_seed]
            row[model] = percent(means, 2)
            if model in published:
                row[f"{model} (paper)"] = published[model].get(label, "")
        rows.append(row)
    align = ["left"] + ["right"] * (len(rows[0]) - 1)
    return tabulate(rows, headers="keys", tablefmt="plain", disable_numparse=True, colalign=align)


def published_accuracies(name: str) -> dict:
    """A table of papers/tables.py as {model: {task or group: text}}, without footnotes."""
    accuracies = {}
    for row in TABLES[name].rows:
        numbers = [text.partition(" ")[0] for text in row.published]
        accuracies[row.flags] = dict(zip(TABLES[name].columns, numbers))
    return accuracies


# ---- The command

def probe(s: Settings) -> None:
    """Trains and tests tasks x models x seeds, and prints the table."""
    models = {}                                          # {name: its part of a row's key}
    for name in s.models:
        models[name] = {"model": name}
        if s.protocol == "frozen":                       # a changed checkpoint is measured again
            checkpoint = (Path(name) / "best.pt").read_bytes()
            models[name]["checkpoint"] = hashlib.sha256(checkpoint).hexdigest()[:16]
        elif name not in MODELS:
            raise UserError(f"--models: {name} is none of {', '.join(MODELS)}")
    device = pick_device(s.device)
    keep_freed_memory()
    path = Path(s.out) / "results.json"
    settings = {"protocol": s.protocol, "data": s.data, "epochs": s.epochs}
    accuracies = {}                                      # {(task, model): [share of every seed]}
    for task in s.task:
        parts = load_task(task, s.data)
        text = hash_text(map(str, parts.values()))       # a changed file is measured again
        accuracies[task, "majority"] = [majority(parts)]
        for name, model in models.items():
            accuracies[task, name] = []
            for seed in s.seeds:
                key = {"task": task, "text": text, **model, "seed": seed}
                row = find_row(path, settings, key)
                if row is None:
                    label = f"{task}, {name}, seed {seed}"
                    row = {**key, **measure(s, parts, name, seed, label, device)}
                    add_row(path, settings, row)
                accuracies[task, name].append(row["accuracy"])
    published = {}
    if s.protocol != "frozen":
        published = published_accuracies(PROTOCOLS[s.protocol]["published"])
    print(f"\n{table(s.models, accuracies, published)}\n\n{path}")


def main(argv=None) -> None:
    run(probe, Settings, argv=argv, defaults=defaults)


if __name__ == "__main__":
    main()
