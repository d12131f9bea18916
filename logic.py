"""Logical inference: which of seven relations holds between two formulas? (Li 2021 §4.3, Fig. 4)

    python logic.py                             # the baseline in a small setting, minutes on a CPU
    python logic.py --models baseline disagreement aggregation combined
    python logic.py --full --data DIR           # all four in the paper's setting, on Bowman's files
    python logic.py --agg em --capsule-attention enc    # one's own, by the flags of train_mt.py

A model that composes what the brackets nest can answer; trained on formulas of at most six
operators, it is tested on one to twelve. The command trains models of Fig. 4 and prints their
accuracy by number of operators; the same command again resumes an interrupted run. Formulas,
relations and files: tasks/logic_data.py; the model: tasks/logic_model.py. Where the paper leaves a
point open it follows Tran et al. 2018, and so does --full, as their code has it: as many heads as
queries, two; d_ff = 2d; post-norm; batches of 32 pairs; tested is the epoch with the best
validation accuracy over all lengths. Of two votes EM routing can only take the mean: `--full
--heads 4` shows what it does with more.

Without --full a small part of that training must do, so the small setting makes the task easier to
learn, not to solve: it learns from every pair of a batch's formulas (`--learn batch`: their
relations are known, and reading them is what costs), reads pairs in a shorter notation that says
the same (`logic_data.encode`), spreads the positions (`logic_model.SpreadEmbedding`) and lets the
learning rate rise and fall.
"""
import dataclasses
import json
import math
import statistics
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.files import atomic_write
from nmt.flags import MODEL, ModelFlags, UserError, flag, folder_name, run
from nmt.machine import DEVICES, keep_freed_memory, pick_device
from nmt.progress import aligned, say
from nmt.run_folder import RunFolder, defaults_of
from tasks.classifier import accuracy, fit
from tasks.logic_data import (
    BINS,
    IDS,
    RAW_PAIRS,
    RELATIONS,
    encode,
    generate,
    read_files,
    relation,
    split,
    write_files,
)
from tasks.logic_model import QUERIES, LogicModel
from tasks.models import OWN, choose, encoder_config, in_words, other_settings, own_name, sized
from transformer import SIZES, TransformerConfig

__all__ = ["Settings", "relation", "main"]

TRAINED = tuple(size for size in BINS if size <= 6)      # the operators of the training pairs
MODELS = {                                               # the mechanisms of Fig. 4
    "baseline": {},
    "disagreement": {"reg": ("output",)},
    "aggregation": {"agg": "em"},
    "combined": {"agg": "em", "reg": ("output",)},
}
SMALL = {
    "layers": 2,
    "d_model": 128,
    "heads": 8,
    "d_ff": 256,
    "dropout": 0.0,
    "norm": "pre",
    "epochs": 2,
    "lr": 1e-3,
    "decay": "linear",
    "batch": 32,
    "pairs": 600_000,
    "notation": "compact",
    "spread": 40,
    "learn": "batch",
}
PAPER = {
    "layers": 2,
    "d_model": 256,
    "heads": QUERIES,
    "d_ff": 512,
    "dropout": 0.2,
    "norm": "post",
    "epochs": 100,
    "lr": 1e-4,
    "decay": "none",
    "batch": 32,
    "pairs": RAW_PAIRS,
    "notation": "brackets",
    "spread": 0,
    "learn": "pairs",
}


# ---- The command line

def both(name: str) -> str:
    """What the two settings say of a flag, for --help."""
    return f"({SMALL[name]}, with --full {PAPER[name]})"


DATA = "data (Bowman et al. 2015)"
TRAINING = "training"
MACHINE = "machine"


@dataclass
class Settings(ModelFlags):
    """The flags of the command; None leaves the choice to the setting, SMALL or PAPER."""
    full: bool = flag(
        False, f"the paper's setting: {in_words(PAPER)}; without it: {in_words(SMALL)}")
    models: tuple[str, ...] | None = flag(
        None, "baseline, disagreement (--reg output), aggregation (--agg em), combined (both), own "
        "(by the flags below); without it the baseline, with --full all of Fig. 4, and own where a "
        "mechanism is given", choices=(*MODELS, OWN), metavar="MODEL")
    seeds: tuple[int, ...] = flag(
        (1,), "train each model once per seed; the table has mean and standard deviation (1)",
        low=0, high=10 ** 6, metavar="SEED")

    data: str | None = flag(
        None, "folder with train1..12 and test1..12 (and valid1..12) in Bowman's format, lines "
        "`relation TAB left TAB right`; generated without it", DATA, metavar="DIR")
    pairs: int | None = flag(
        None, f"pairs to draw, duplicates included {both('pairs')}; --write: {RAW_PAIRS}", DATA, 1,
        10 ** 8)
    notation: str | None = flag(
        None, "as in Bowman's files, or shorter and saying the same: `( a and b )`, letters named "
        f"in order of appearance {both('notation')}", DATA, choices=("brackets", "compact"))
    data_seed: int = flag(0, "seed of the drawing", DATA, 0)
    write: str | None = flag(
        None, "write the generated data to a new folder and stop", DATA, metavar="DIR")

    arch: str | None = flag(
        None, f"size, over the setting's: {', '.join(SIZES)}", MODEL, choices=tuple(SIZES),
        metavar="SIZE")
    norm: str | None = flag(
        None, f"layer normalization before or after a block {both('norm')}", MODEL,
        choices=("pre", "post"))

    epochs: int | None = flag(
        None, f"passes over the training pairs {both('epochs')}", TRAINING, 1)
    lr: float | None = flag(
        None, f"learning rate of Adam {both('lr')}", TRAINING, above=0, high=1000)
    decay: str | None = flag(
        None, "of the learning rate: linear falls from --lr towards 0, scaled up from 0 over the "
        f"first twentieth of the steps {both('decay')}", TRAINING, choices=("none", "linear"))
    spread: int | None = flag(
        None, "spread the positions of a formula over N, for longer formulas than in training; 0 "
        f"counts its tokens {both('spread')}", TRAINING, 0, 10 ** 5)
    batch: int | None = flag(None, f"pairs per step {both('batch')}", TRAINING, 1, 10 ** 6)
    learn: str | None = flag(
        None, "from the labels of a batch's pairs, or from the relations of all its formulas to "
        "each other, by their truth tables; memory then grows with the square of --batch "
        f"{both('learn')}", TRAINING, choices=("pairs", "batch"))

    name: str | None = flag(
        None, "name of the run's folder (logic, with --full logic-full, and what a model of one's "
        "own has)", MACHINE, type=folder_name, metavar="NAME")
    runs: str = flag("runs", "where the runs' folders lie", MACHINE, metavar="DIR")
    device: str = flag("auto", DEVICES, MACHINE)


# Settings that may differ between two runs in one folder. What the data is says its checksum.
FREE = ("full", "models", "seeds", "data", "pairs", "data_seed", "write", "name", "runs", "device")


def completed(settings: Settings) -> Settings:
    """The settings with what the flags left open. Raises UserError for flags that contradict each
    other."""
    usual = tuple(MODELS) if settings.full else ("baseline",)
    values = sized(settings, PAPER if settings.full else SMALL)
    values["models"] = choose(settings, MODELS, usual)
    values["seeds"] = tuple(dict.fromkeys(settings.seeds))
    if settings.name is None:
        parts = ["logic"]
        if settings.full:
            parts.append("full")
        if OWN in values["models"] and own_name(settings):
            parts.append(own_name(settings))
        values["name"] = "-".join(parts)
    return dataclasses.replace(settings, **values)


def configuration(settings: Settings, model: str) -> TransformerConfig:
    """The encoder of a model of Fig. 4, or of the flags for "own"; --agg-at, --reg-at and their
    like apply to both."""
    return encoder_config(settings, MODELS.get(model), len(IDS) + 1)


# ---- The table

def share_of(accuracies: dict, names: list[str], pairs: dict) -> float | None:
    """The accuracy over all pairs of several bins; None where they have none."""
    total = sum(pairs[name] for name in names)
    if not total:
        return None
    return sum(accuracies[name] * pairs[name] for name in names if pairs[name]) / total


def summarize(data: dict, rows: list[dict]) -> dict:
    """Accuracy by number of operators, and over all test pairs of up to 6 and of 7 and more
    operators.

    {"pairs": {bin: n}, "majority": {bin: share}, "models": {name: {bin: {"mean", "spread",
    "seeds"}}}}; a bin is "1" to "12", "<=6" or ">=7"; majority is the share of the most frequent
    relation, which is what a model must beat; spread is the sample standard deviation over the
    seeds, None for one seed. Empty bins have None.
    """
    counts = {}                                          # bin -> pairs of each relation [7]
    for size, examples in data["test"].items():
        counts[str(size)] = torch.bincount(examples.labels, minlength=len(RELATIONS)).cpu()
    groups = {name: [name] for name in counts}
    groups["<=6"] = [str(size) for size in BINS if size in TRAINED]
    groups[">=7"] = [str(size) for size in BINS if size not in TRAINED]

    pairs = {}
    majority = {}
    for group, names in groups.items():
        total = sum(counts[name] for name in names)
        pairs[group] = int(total.sum())
        majority[group] = (total.max() / total.sum()).item() if pairs[group] else None

    models = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        models[model] = {}
        for group, names in groups.items():
            shares = [share_of(row["accuracy"], names, pairs) for row in rows
                      if row["model"] == model]
            cell = {"mean": None, "seeds": len(shares), "spread": None}
            if None not in shares:
                cell["mean"] = statistics.fmean(shares)
                if len(shares) > 1:
                    cell["spread"] = statistics.stdev(shares)
            models[model][group] = cell
    return {"pairs": pairs, "majority": majority, "models": models}


def percent(mean: float | None, spread: float | None = None) -> str:
    """A cell of the table."""
    if mean is None:
        return "-"
    if spread is None:
        return f"{100 * mean:.1f}"
    return f"{100 * mean:.1f} ±{100 * spread:.1f}"


def table(summary: dict) -> str:
    """The summary as text: accuracies in per cent, a row per number of operators, a column per
    model."""
    lines = []
    for group, pairs in summary["pairs"].items():
        label = f"{BINS[-1]}+" if group == str(BINS[-1]) else group
        line = [label, f"{pairs:,}", percent(summary["majority"][group])]
        for cells in summary["models"].values():
            line.append(percent(cells[group]["mean"], cells[group]["spread"]))
        lines.append(line)
    header = ["operators", "pairs", "majority", *summary["models"]]
    return aligned(header, lines, words=0)


def draw(summary: dict, path: Path) -> None:
    """A plot in the manner of Li 2021 Fig. 4: accuracy over the number of operators, a line per
    model."""
    from matplotlib.figure import Figure

    def heights(shares) -> list[float]:
        return [float("nan") if share is None else 100 * share for share in shares]

    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    sizes = [str(size) for size in BINS]
    for marker, (name, cells) in zip("os^Dvx", summary["models"].items()):
        means = heights(cells[size]["mean"] for size in sizes)
        spreads = heights(cells[size]["spread"] for size in sizes)
        bars = None if all(map(math.isnan, spreads)) else spreads    # one seed has no spread
        axes.errorbar(BINS, means, yerr=bars, marker=marker, label=name, capsize=3)
    majority = heights(summary["majority"][size] for size in sizes)
    axes.plot(BINS, majority, "--", color="gray", label="majority class")
    longer_than_trained = TRAINED[-1] + 0.5
    axes.axvline(longer_than_trained, color="lightgray", linewidth=1)
    axes.set_xlabel("operators of the longer formula")
    axes.set_ylabel("accuracy (%)")
    axes.set_xticks(BINS, [*map(str, BINS[:-1]), f"{BINS[-1]}+"])
    axes.legend()
    figure.tight_layout()
    atomic_write(path, lambda file: figure.savefig(file, format="png", dpi=150))


def report(path: Path, data: dict, rows: list[dict], identity: dict) -> None:
    """Prints the table; writes results.json (summary, every seed's row, settings) and accuracy.png.
    """
    summary = summarize(data, rows)
    results = {"kind": "logic", **summary, "runs": rows, "settings": identity}
    atomic_write(path / "results.json", json.dumps(results, indent=1) + "\n")
    say("\naccuracy (%) by number of operators; trained on up to 6\n" + table(summary))
    draw(summary, path / "accuracy.png")
    say(f"\n{path / 'results.json'}, {path / 'accuracy.png'}")


# ---- The command

def write(settings: Settings) -> None:
    """Generates data and writes it in the format of Bowman's files."""
    if settings.data:
        raise UserError("--write writes generated data: leave out --data")
    parts = split(generate(settings.pairs or RAW_PAIRS, settings.data_seed))
    write_files(settings.write, parts)
    counts = [f"{sum(map(len, bins.values())):,} {name}" for name, bins in parts.items()]
    print(f"{settings.write}: {', '.join(counts)}")


def checksum(parts: dict) -> int:
    """A number that tells one set of data from another."""
    lines = []
    for bins in parts.values():
        for size in BINS:
            lines += ["\t".join(pair) for pair in bins[size]]
    return zlib.crc32("\n".join(lines).encode())


def encoded(parts: dict, settings: Settings, device) -> dict:
    """The pairs as tensors: {"train": EncodedFormulas, "valid": EncodedFormulas, "test": {bin:
    EncodedFormulas}}.

    Raises UserError where no pair is left to train on.
    """
    train = [pair for size in TRAINED for pair in parts["train"][size]]
    valid = [pair for size in BINS for pair in parts["valid"][size]]
    if not train:
        raise UserError("no training pairs of 1 to 6 operators: raise --pairs, or name another"
                        " --data folder")
    test = {size: encode(parts["test"][size], device, settings.notation) for size in BINS}
    return {"train": encode(train, device, settings.notation, tables=settings.learn == "batch"),
            "valid": encode(valid, device, settings.notation),
            "test": test}


def infer(settings: Settings) -> None:
    """Trains and tests what is missing of the models x seeds, then prints the table and writes it
    as JSON and plot."""
    if settings.write:
        write(settings)
        return

    # what is compared
    settings = completed(settings)
    device = pick_device(settings.device)
    keep_freed_memory()
    models = dict.fromkeys((*MODELS, *settings.models))
    configs = {model: configuration(settings, model) for model in models}

    # on what data
    if settings.data:
        parts = read_files(settings.data)
    else:
        parts = split(generate(settings.pairs, settings.data_seed))
    data = encoded(parts, settings, device)

    # what identifies the run: models by their configuration, data by its checksum, the rest by name
    identity = {"models": {model: dataclasses.asdict(configs[model]) for model in models},
                "data_checksum": checksum(parts), **other_settings(settings, FREE)}

    path = Path(settings.runs) / settings.name
    younger = {"models": dict.fromkeys((*MODELS, OWN), defaults_of(TransformerConfig))}
    with RunFolder(path, identity, defaults=younger) as folder:
        tested = sum(len(examples.labels) for examples in data["test"].values())
        say(f"{path}: {len(data['train'].labels):,} pairs to train on, "
            f"{len(data['valid'].labels):,} to validate, {tested:,} to test; {device}")
        finished = {(row["model"], row["seed"]): row for row in folder.read_metrics()}
        wanted = [(model, seed) for seed in settings.seeds for model in settings.models]
        for model, seed in wanted:
            if (model, seed) in finished:
                continue
            state = path / f"{model}-seed{seed}.pt"
            try:
                row = train_and_test(configs[model], data, settings, model, seed, state)
            except (KeyboardInterrupt, SystemExit):      # SIGINT, SIGTERM
                say(f"{path}: stopped; the same command goes on after the last whole epoch")
                raise
            folder.append_metrics(row)
            state.unlink()
            finished[model, seed] = row
        report(path, data, [finished[key] for key in wanted], identity)


def train_and_test(config: TransformerConfig, data: dict, settings: Settings, model: str,
                   seed: int, state: Path) -> dict:
    """The row of a model and seed: {"model", "seed", "accuracy": {bin: share, None for an empty
    bin}, ...}, see `fit`.

    state: where `fit` keeps what resuming takes.
    """
    def build():
        return LogicModel(config, settings.spread)

    def log_epoch(text: str):
        say(f"{model}, seed {seed}: {text}")

    decay = settings.decay == "linear"
    trained, history = fit(build, data, settings, seed, state, log_epoch, decay)
    shares = {}
    for size, examples in data["test"].items():
        right, pairs = accuracy(trained, examples)
        shares[str(size)] = right / pairs if pairs else None
    return {"model": model, "seed": seed, "accuracy": shares, **history}


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(infer, Settings, "logic.py",
               "Logical inference (Li 2021 section 4.3): trains the models of Fig. 4 on formulas\n"
               "of at most six operators and prints their accuracy on one to twelve.", argv)


if __name__ == "__main__":
    sys.exit(main())
