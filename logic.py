"""Logical inference: which of seven relations holds between two formulas? (Li 2021 §4.3, Fig. 4)

    python logic.py                       # the baseline, minutes on a CPU
    python logic.py --models baseline disagreement aggregation combined
    python logic.py --full --data DIR     # as in the paper, on Bowman's files

The answer depends on how the brackets nest. Models are trained on formulas of at most six operators
and tested on one to twelve. The command prints the accuracy by number of operators. The same
command again trains the models that are missing.

--full is the setting of the paper: 2 layers of width 256, d_ff 512, dropout 0.2, post-norm, 100
epochs at a learning rate of 1e-4. Where the paper leaves a point open it follows the code of Tran
et al. 2018: d_ff = 2d, post-norm, batches of 32 pairs; the epoch with the best validation accuracy,
on one to twelve operators, is tested. Tran et al. have two heads, of which EM routing can only take
the mean; --full has four.

The small setting makes the task easier to learn. It learns from every pair of a batch's formulas
(--learn batch), reads pairs in a shorter, equivalent notation (--notation compact), spreads the
positions (--spread 40) and lets the learning rate rise and fall (--decay linear). The compact
notation renames letters, so many test pairs of few operators equal a training pair; no pair of
seven or more operators does.
"""
import functools
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tabulate import tabulate

from nmt.corpus import hash_text
from nmt.run_folder import RunFolder, find_folder, say
from tasks.classifier import accuracy, find_row, fit, percent, summarize_seeds, write_results
from tasks.logic_data import (
    BINS,
    IDS,
    RAW_PAIRS,
    RELATIONS,
    encode_formulas,
    generate,
    read_files,
    split,
)
from tasks.logic_data import relation as relation  # logic.relation
from tasks.logic_model import LogicModel
from tasks.models import TRAINING, TaskFlags, encoder_config, name_task_run, with_default
from tools.command_line import check_given, flag, run
from tools.files import errors_of
from tools.machine import keep_freed_memory, pick_device
from transformer import BODY

TRAINED = tuple(size for size in BINS if size <= 6)      # the operators of the training pairs
FULL = dict(models=("baseline", "disagreement", "aggregation", "combined"), d_model=256, heads=4,
            d_ff=512, dropout=0.2, norm="post", epochs=100, lr=1e-4, decay="none", pairs=RAW_PAIRS,
            notation="brackets", spread=0, learn="pairs")
# settings that may differ between two runs in one folder
FREE = ("models", "seeds", "name", "runs", "device")
DATA = "data (Bowman et al. 2015)"


@dataclass
class Settings(TaskFlags):
    """Every setting of a run; the defaults are those of the small setting."""
    full: bool = flag(False, "the paper's setting, see above")

    data: str | None = flag(
        None, "folder with train1..12 and test1..12 in Bowman's format, lines `relation TAB left "
        "TAB right` (default: the pairs are generated)", DATA, metavar="DIR")
    pairs: int = flag(600_000, "pairs to draw, duplicates included", DATA, 300, 10 ** 8)
    notation: str = flag(
        "compact", "brackets, as in Bowman's files, or compact: `( a and b )`, letters named in "
        "order of appearance", DATA, choices=("brackets", "compact"))
    data_seed: int = flag(0, "seed of the drawing", DATA, 0)

    d_model: int = with_default(TaskFlags, "d_model", 128)
    heads: int = with_default(TaskFlags, "heads", 8)
    d_ff: int = with_default(TaskFlags, "d_ff", 256)
    dropout: float = with_default(TaskFlags, "dropout", 0.0)
    spread: int = flag(
        40, "spread the positions of a formula over N, for longer formulas than in training; 0 "
        "counts its tokens", BODY, 0, 10 ** 5)

    epochs: int = with_default(TaskFlags, "epochs", 2)
    lr: float = with_default(TaskFlags, "lr", 1e-3)
    decay: str = flag(
        "linear", "how the learning rate falls: not at all (none), or linearly from --lr towards 0 "
        "after a rise in the first twentieth of the steps", TRAINING, choices=("none", "linear"))
    learn: str = flag(
        "batch", "learn from the labels of the pairs (pairs), or from the relations between all "
        "formulas of a batch (batch), whose memory grows with the square of --batch",
        TRAINING, choices=("pairs", "batch"))

    RECIPES = {"small": {}, "--full": FULL}              # for --help


def presets(s: Settings) -> dict:
    """The defaults that depend on the setting and the data."""
    values = dict(FULL) if s.full else {}
    parts = ["logic", "full"] if s.full else ["logic"]
    if s.data:
        parts.append(Path(s.data).resolve().name)
    values["name"] = name_task_run(s, parts, (*FREE, "full", "data"))
    return values


# ---- The table

def summarize(data: dict, rows: list[dict]) -> dict:
    """Accuracy by number of operators, and over all test pairs of up to 6 and of 7 and more
    operators.

    {"pairs": {bin: n}, "majority": {bin: share}, "models": {name: {bin: {"mean", "spread",
    "seeds"}}}}; a bin is "1" to "12", "<=6" or ">=7"; majority is the share of the most frequent
    relation, which is what a model must beat. Empty bins are left out.
    """
    counts = {}                                          # bin -> pairs of each relation [7]
    for size, examples in data["test"].items():
        counts[size] = torch.bincount(examples.labels, minlength=len(RELATIONS)).cpu()
    groups = {str(size): [size] for size in counts}
    groups["<=6"] = [size for size in counts if size in TRAINED]
    groups[">=7"] = [size for size in counts if size not in TRAINED]
    summary = {"pairs": {}, "majority": {}, "models": {row["model"]: {} for row in rows}}
    for group, sizes in groups.items():
        total = sum(counts[size] for size in sizes)      # [7]
        pairs = int(total.sum())
        summary["pairs"][group] = pairs
        summary["majority"][group] = (total.max() / pairs).item()
        for model, cells in summary["models"].items():
            shares = []                                  # one per seed
            for row in rows:
                if row["model"] == model:
                    right = sum(row["accuracy"][str(size)] * int(counts[size].sum())
                                for size in sizes)
                    shares.append(right / pairs)
            cells[group] = summarize_seeds(shares)
    return summary


def table(summary: dict) -> str:
    """The summary as text: accuracies in per cent, a row per number of operators, a column per
    model."""
    lines = [["operators", "pairs", "majority", *summary["models"]]]
    for group, pairs in summary["pairs"].items():
        label = f"{BINS[-1]}+" if group == str(BINS[-1]) else group
        majority = {"mean": summary["majority"][group], "spread": None}
        cells = [cells[group] for cells in summary["models"].values()]
        lines.append([label, f"{pairs:,}", *(percent(cell, 1) for cell in (majority, *cells))])
    return tabulate(lines, tablefmt="plain", stralign="right")


# ---- The command

def infer(s: Settings) -> None:
    """Trains and tests the models that are missing, prints the table, and writes results.json:
    table, every seed's row, settings."""
    if s.data:
        generated = "generated pairs, without --data"
        check_given(s, {"pairs": generated, "data_seed": generated})
    device = pick_device(s.device)
    keep_freed_memory()
    configs = {model: encoder_config(s, model, len(IDS) + 1) for model in s.models}
    if s.data:
        with errors_of("--data"):
            parts = read_files(s.data)
        text = hash_text(map(str, parts.values()))
    else:
        parts = split(generate(s.pairs, s.data_seed))
        text = None
    data = encode_parts(parts, s, device)
    path = find_folder(s.runs, s.name)
    with RunFolder(path, asdict(s), FREE, asdict(Settings())) as folder:
        folder.begin(data_text=text)
        folder.drop_metrics_after(0)                     # a line that was cut off
        say(f"{path}: {len(data['train'].labels):,} pairs to train on, "
            f"{len(data['valid'].labels):,} to validate; {device}")
        rows = []
        for seed in s.seeds:
            for model, config in configs.items():
                key = {"model": model, "seed": seed}
                row = find_row(folder, key)
                if row is None:
                    row = {**key, **train_and_test(config, data, s, seed, f"{model}, seed {seed}")}
                    folder.append_metrics(row)
                rows.append(row)
        summary = summarize(data, rows)
        write_results(folder, kind="logic", **summary, runs=rows)
        say(f"\naccuracy (%) by number of operators; trained on up to 6\n{table(summary)}\n\n"
            f"{path / 'results.json'}")


def encode_parts(parts: dict, s: Settings, device) -> dict:
    """The pairs as tensors: {"train": EncodedFormulas, "valid": EncodedFormulas, "test": {bin:
    EncodedFormulas}}."""
    train = [pair for size in TRAINED for pair in parts["train"][size]]
    valid = [pair for size in BINS for pair in parts["valid"][size]]
    test = {size: encode_formulas(parts["test"][size], device, s.notation)
            for size in BINS if parts["test"][size]}
    return {"train": encode_formulas(train, device, s.notation, tables=s.learn == "batch"),
            "valid": encode_formulas(valid, device, s.notation),
            "test": test}


def train_and_test(config, data: dict, s: Settings, seed: int, label: str) -> dict:
    """{"accuracy": {bin: share}, ...} of a new model, see `fit`."""
    build = functools.partial(LogicModel, config, s.spread)
    model, history = fit(build, data, s, seed, label, s.decay == "linear")
    shares = {str(size): accuracy(model, examples) for size, examples in data["test"].items()}
    return {"accuracy": shares, **history}


def main(argv=None) -> int:
    return run(infer, Settings, argv, presets)


if __name__ == "__main__":
    sys.exit(main())
