"""Logical inference: which of seven relations holds between two formulas? (Li 2021 §4.3, Fig. 4)

    python logic.py                       # the baseline, minutes on a CPU
    python logic.py --models baseline disagreement aggregation combined
    python logic.py --full --data DIR     # as in the paper, on Bowman's files

Models are trained on formulas of at most six operators and tested on one to twelve: the answer
depends on how the brackets nest. The table and accuracy.png have the accuracy in per cent by number
of operators, that of the most frequent relation first. The same command trains what is missing in
results.json.
"""
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from tabulate import tabulate

from nmt.command_line import count, flag, natural, run
from nmt.corpus import hash_text
from nmt.machine import DEVICES, keep_freed_memory, pick_device
from tasks.classifier import accuracy, fit
from tasks.logic_data import BINS, IDS, encode_formulas, generate, read_files, split
from tasks.logic_data import relation as relation  # logic.relation
from tasks.logic_model import LogicModel
from tasks.models import MODELS
from tasks.results import add_row, find_row, percent
from transformer import TransformerConfig

TRAINED = tuple(size for size in BINS if size <= 6)      # the operators of the training pairs
# Easier to learn: from every pair of a batch's formulas ("batch"), in a shorter notation, with
# spread positions and a learning rate that rises and falls. The compact notation renames letters,
# so many test pairs of few operators equal a training pair; none of seven or more does.
SMALL = dict(
    models=("baseline",), pairs=600_000, notation="compact", spread=40, learn="batch",
    sizes=dict(layers=2, d_model=128, heads=8, d_ff=256, dropout=0.0, norm="pre"),
    training=dict(epochs=2, lr=1e-3, batch=32, decay=True))
# The paper's layers, width, dropout, epochs and rate. What it leaves open follows the code of Tran
# et al. 2018: d_ff, post-norm, batch; but their two heads, of which EM routing can only take the
# mean, are four.
FULL = dict(
    models=("baseline", "disagreement", "aggregation", "combined"), pairs=500_000,
    notation="brackets", spread=0, learn="pairs",
    sizes=dict(layers=2, d_model=256, heads=4, d_ff=512, dropout=0.2, norm="post"),
    training=dict(epochs=100, lr=1e-4, batch=32, decay=False))


@dataclass
class Settings:
    """Flags."""
    full: bool = flag(False, "the paper's sizes, notation and training")
    data: str = flag("generated", "generated: pairs drawn as Bowman et al. 2015 do; or the folder "
                     "of their files train1..12 and test1..12")
    models: tuple[str, ...] = flag((), f"some of {', '.join(MODELS)} (default: baseline; --full: "
                                   "those of Li 2021)", choices=tuple(MODELS), metavar="MODEL")
    seeds: tuple[int, ...] = flag((1,), "each model is trained once per seed (default: 1)",
                                  type=natural, metavar="N")
    epochs: int = flag(2, "passes over the training pairs", type=count)
    out: str = flag("", "folder of results.json and accuracy.png", metavar="DIR")
    device: str = flag("auto", DEVICES)


def defaults(s, typed) -> dict:
    """The defaults that depend on the setting and the data."""
    setting = FULL if s.full else SMALL
    size = "full" if s.full else "small"
    return {"models": setting["models"], "epochs": setting["training"]["epochs"],
            "out": f"runs/logic-{size}-{Path(s.data).resolve().name}"}


def encode_parts(parts: dict, setting: dict, device) -> dict:
    """The pairs as tensors: {"train": EncodedFormulas, "valid": EncodedFormulas, "test": {bin:
    EncodedFormulas}}."""
    notation = setting["notation"]
    train = [pair for size in TRAINED for pair in parts["train"][size]]
    valid = [pair for size in BINS for pair in parts["valid"][size]]
    test = {size: encode_formulas(parts["test"][size], device, notation) for size in BINS}
    return {"train": encode_formulas(train, device, notation, tables=setting["learn"] == "batch"),
            "valid": encode_formulas(valid, device, notation),
            "test": test}


def measure(s: Settings, setting: dict, name: str, seed: int, data: dict, device) -> dict:
    """{"accuracy": {bin: share}, ...} of a new model on the test pairs, see `fit`."""
    config = TransformerConfig(len(IDS) + 1, decoder=False, **setting["sizes"], **MODELS[name])
    torch.manual_seed(seed)
    model = LogicModel(config, setting["spread"]).to(device)
    training = {**setting["training"], "epochs": s.epochs}
    result = fit(model, data["train"], data["valid"], seed, f"{name}, seed {seed}", **training)
    shares = {str(size): accuracy(model, test) for size, test in data["test"].items()}
    return {"accuracy": shares, **result}


# ---- Results

def summarize(labels: dict, accuracies: dict) -> dict:
    """{bin: {"pairs", "majority": [share], model: [share of every seed]}}, where a bin is "1" to
    "11", "12+", "<=6" or ">=7".

    labels: {bin: [n]} of the test pairs; accuracies: {model: [{bin: share} of every seed]};
    majority: the share of the most frequent relation.
    """
    groups = {str(size): [size] for size in BINS[:-1]}
    groups["12+"] = [BINS[-1]]
    groups["<=6"] = TRAINED
    groups[">=7"] = [size for size in BINS if size not in TRAINED]
    summary = {}
    for group, sizes in groups.items():
        all_labels = torch.cat([labels[size] for size in sizes])
        pairs = len(all_labels)
        cells = {"pairs": pairs, "majority": [all_labels.bincount().max().item() / pairs]}
        for model, by_seed in accuracies.items():
            cells[model] = []
            for shares in by_seed:
                right = sum(shares[str(size)] * len(labels[size]) for size in sizes)
                cells[model].append(right / pairs)
        summary[group] = cells
    return summary


def table(summary: dict) -> str:
    """The summary as text, a row per number of operators."""
    rows = []
    for group, cells in summary.items():
        row = {"operators": group}
        for name, value in cells.items():
            row[name] = f"{value:,}" if name == "pairs" else percent(value, 1)
        rows.append(row)
    return tabulate(rows, headers="keys", tablefmt="plain", disable_numparse=True,
                    stralign="right")


def draw(summary: dict, path: Path) -> None:
    """Draws Fig. 4 of Li 2021: accuracy by number of operators, a line per model."""
    bins = list(summary)[:len(BINS)]
    figure = Figure(layout="constrained")
    axes = figure.add_subplot(xlabel="operators; trained on up to 6", ylabel="accuracy (%)")
    for name in summary[bins[0]]:
        if name != "pairs":
            shares = torch.tensor([summary[group][name] for group in bins])  # [bins, seeds]
            axes.plot(bins, 100 * shares.mean(1), marker="o", label=name)
    axes.legend()
    figure.savefig(path)


# ---- The command

def infer(s: Settings) -> None:
    """Trains and tests models x seeds, prints the table, and draws the figure."""
    setting = FULL if s.full else SMALL
    device = pick_device(s.device)
    keep_freed_memory()
    if s.data == "generated":
        parts = split(generate(setting["pairs"]))
    else:
        parts = read_files(s.data)
    data = encode_parts(parts, setting, device)
    path = Path(s.out) / "results.json"
    settings = {"full": s.full, "data": s.data, "text": hash_text(map(str, parts.values())),
                "epochs": s.epochs}
    accuracies = {}                                      # {model: [{bin: share} of every seed]}
    for name in s.models:
        accuracies[name] = []
        for seed in s.seeds:
            key = {"model": name, "seed": seed}
            row = find_row(path, settings, key)
            if row is None:
                row = {**key, **measure(s, setting, name, seed, data, device)}
                add_row(path, settings, row)
            accuracies[name].append(row["accuracy"])
    labels = {size: test.labels.cpu() for size, test in data["test"].items()}
    summary = summarize(labels, accuracies)
    figure = path.with_name("accuracy.png")
    draw(summary, figure)
    print(f"\n{table(summary)}\n\n{path}\n{figure}")


def main(argv=None) -> None:
    run(infer, Settings, argv=argv, defaults=defaults)


if __name__ == "__main__":
    main()
