"""Run folders: settings, log and checkpoints; one run at a time in a folder.

config.json has the settings, metrics.jsonl the log, tokenizer.json the vocabulary, NAME.hyp and
NAME.ref the translations of a test set and its references. last.pt is the checkpoint that a run
resumes from; best.pt, average.pt and step-N.pt have only weights. Loading a checkpoint executes no
code.
"""
import contextlib
import json
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from nmt.command_line import UserError
from nmt.files import write_atomically
from nmt.tokenizer import load_tokenizer
from transformer import Transformer, TransformerConfig

VERSION = 4                     # of the folder


# ---- Settings

def lock(folder: Path) -> FileLock:
    """Makes the folder, and keeps other runs out of it as long as the returned object lives. Raises
    UserError."""
    folder.mkdir(parents=True, exist_ok=True)
    file_lock = FileLock(folder / "lock")
    try:
        file_lock.acquire(blocking=False)
    except Timeout:
        raise UserError(f"{folder}: another run is at work here: choose another --name") from None
    if not (folder / "config.json").exists():            # a start that ended early left it
        (folder / "tokenizer.json").unlink(missing_ok=True)
    return file_lock


def write_config(folder: Path, fixed: dict, free: dict) -> None:
    """Writes config.json. An existing one must have the same `fixed` settings, and stays as it is.
    Raises UserError."""
    settings = json.loads(json.dumps({"version": VERSION, **fixed, **free}, default=str))
    if not (folder / "config.json").exists():
        text = json.dumps(settings, indent=1) + "\n"
        write_atomically(folder / "config.json", lambda file: file.write(text.encode()))
    old = flatten(read_config(folder))
    for name, value in flatten({name: settings[name] for name in fixed}).items():
        if old.get(name) != value:
            raise UserError(f"{folder}: holds a run of another configuration ({name} was "
                            f"{old.get(name)}, is now {value}): choose another --name")


def flatten(settings: dict) -> dict:
    """The settings with those of the model and of the text beside the others."""
    flat = {}
    for name, value in settings.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat


def read_config(folder) -> dict:
    """The settings of a run. Raises UserError for a folder of another version."""
    settings = json.loads((Path(folder) / "config.json").read_text("utf-8"))
    if settings.get("version") != VERSION:
        raise UserError(f"{folder}: another version of this project made it: train again under "
                        "another --name")
    return settings


# ---- The log

def log(folder: Path, row: dict) -> None:
    """Adds a row to metrics.jsonl, and prints its numbers, unless it is a test's."""
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    if row["type"] == "test":
        return
    cells = []
    for name, value in row.items():
        if isinstance(value, int):
            cells.append(f"{name} {value:,}")
        elif isinstance(value, float):
            cells.append(f"{name} {value:.4g}")
    print_above(f"{row['type']:5}  {'  '.join(cells)}")


def print_above(text: str) -> None:
    """Prints above the progress bar. A run outlives its terminal."""
    with contextlib.suppress(OSError):
        tqdm.write(text)


def read_log(folder: Path) -> list[dict]:
    """The rows of metrics.jsonl, without a last line that a killed run cut off."""
    path = Path(folder) / "metrics.jsonl"
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def drop_log_after(folder: Path, step: int) -> None:
    """Drops the rows that a run resumed at `step` writes again: those beyond, and that of a
    test."""
    lines = []
    for row in read_log(folder):
        if row["step"] <= step and row["type"] != "test":
            lines.append(json.dumps(row) + "\n")
    write_atomically(folder / "metrics.jsonl", lambda file: file.write("".join(lines).encode()))


# ---- Checkpoints

def save(path: Path, **state) -> None:
    """Writes a checkpoint (tensors and plain Python values) atomically."""
    write_atomically(path, lambda file: torch.save(state, file))


def load(path: Path) -> dict:
    """Loads a checkpoint on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


def load_optimizer(optimizer, saved: dict) -> None:
    """Copies Adam's averages into memory laid out as the parameters are: its fused kernel trusts
    shapes and strides, and would write outside of other tensors. saved: the "state" of an
    optimizer's state_dict. Raises UserError."""
    own = optimizer.state_dict()
    parameters = optimizer.param_groups[0]["params"]
    for i, values in saved.items():
        own["state"][i] = {"step": torch.tensor(float(values["step"]))}
        for name in ("exp_avg", "exp_avg_sq"):
            if values[name].shape != parameters[i].shape:
                raise UserError("last.pt is not a checkpoint of this model")
            own["state"][i][name] = torch.empty_like(parameters[i]).copy_(values[name])
    optimizer.load_state_dict(own)


def average(paths: list[Path]) -> dict:
    """The mean of the weights of checkpoints of a run, summed in float64."""
    states = [load(path)["model"] for path in paths]
    mean = {}
    for name, weight in states[0].items():
        total = sum(state[name].double() for state in states)
        mean[name] = (total / len(states)).to(weight.dtype)
    return mean


def load_run(folder, name: str = "best", device="cpu"):
    """(model in eval mode, tokenizer, settings) of a run folder: its NAME.pt, tokenizer.json and
    config.json. Raises UserError for a folder of another version."""
    folder = Path(folder)
    settings = read_config(folder)
    model = Transformer(TransformerConfig(**settings["model"])).to(device)
    model.load_state_dict(load(folder / f"{name}.pt")["model"])
    return model.eval(), load_tokenizer(folder / "tokenizer.json"), settings
