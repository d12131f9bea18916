"""Training and testing a classifier of sentences or pairs: what logic.py and probe.py share.

A model gives logits [B, classes], and has `loss(inputs, labels)`. Examples have `lengths` [n] on
the CPU, `labels` [n] on the device and `batch(index)`, the inputs and labels of those examples; for
`accuracy` the labels are one per example, in training whatever `loss` takes.
"""
import copy
import json
import math
import statistics
import time

import torch
import torch.nn as nn
from torch import Tensor
from tqdm import tqdm

from nmt.run_folder import RunFolder, say
from tools.files import atomic_write

WARMUP = 0.05       # share of the steps in which a learning rate that falls rises first


# ---- Training

def like_length_batches(lengths: Tensor, size: int, seed: int) -> list[Tensor]:
    """Batches of `size` indices of examples of similar lengths [n], in random order.

    The examples are shuffled, sorted by length within a window of 50 batches and cut; then the
    batches are shuffled.
    """
    rng = torch.Generator().manual_seed(seed)
    batches = []
    for window in torch.randperm(len(lengths), generator=rng).split(50 * size):
        by_length = window[lengths[window].argsort(stable=True)]
        batches += by_length.split(size)
    order = torch.randperm(len(batches), generator=rng)
    return [batches[i] for i in order.tolist()]


def scheduled_rate(step: int, steps: int, peak: float, decay: bool) -> float:
    """The learning rate of a step, counted from 1. It is the peak; with `decay` it rises in the
    first twentieth of the steps, and falls linearly to 0 after the last one."""
    if not decay:
        return peak
    return peak * min(1, step / (WARMUP * steps)) * (1 - (step - 1) / steps)


@torch.no_grad()
def accuracy(model: nn.Module, examples, size: int = 512) -> float:
    """Accuracy: the share of examples that are classified correctly."""
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=examples.labels.device)
    for index in examples.lengths.argsort().split(size):
        inputs, labels = examples.batch(index)
        right += (model(inputs).argmax(-1) == labels).sum()
    return right.item() / len(examples.labels)


def fit(build, data: dict, settings, seed: int, label: str, decay: bool = False):
    """Trains a model. Returns it as it was after the epoch with the best validation accuracy, and
    {"valid": that accuracy, "parameters", "seconds", "history": [{"epoch", "loss", "valid"}, ...]}.

    build(): a new model; data: {"train": examples, "valid": examples}; settings: epochs, lr,
    batch; label: what log lines begin with; decay: see `scheduled_rate`.
    """
    torch.manual_seed(seed)
    examples = data["train"]
    device = examples.labels.device
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    steps = settings.epochs * math.ceil(len(examples.labels) / settings.batch)
    step = 0
    started = time.perf_counter()
    history = []
    best = -1.0
    for epoch in range(1, settings.epochs + 1):
        model.train()
        epoch_seed = seed * 1_000_003 + epoch            # for the order and the dropout
        torch.manual_seed(epoch_seed)
        total = torch.zeros((), device=device)
        batches = like_length_batches(examples.lengths, settings.batch, epoch_seed)
        for index in tqdm(batches, leave=False, disable=None):
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = scheduled_rate(step, steps, settings.lr, decay)
            loss = model.loss(*examples.batch(index))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(index)
        mean_loss = total.item() / len(examples.labels)
        valid = accuracy(model, data["valid"])
        if valid > best:
            best = valid
            best_state = copy.deepcopy(model.state_dict())
        history.append({"epoch": epoch, "loss": mean_loss, "valid": valid})
        seconds = time.perf_counter() - started
        say(f"{label}: epoch {epoch}/{settings.epochs}  loss {mean_loss:.3f}  "
            f"validation {valid:.1%}  {seconds:.0f} s")
    model.load_state_dict(best_state)
    parameters = sum(p.numel() for p in model.parameters())
    return model, {"valid": best, "parameters": parameters, "seconds": seconds, "history": history}


# ---- Results

def find_row(folder: RunFolder, key: dict) -> dict | None:
    """The row of metrics.jsonl with these entries; None where there is none."""
    for row in folder.read_metrics():
        if key.items() <= row.items():
            return row
    return None


def summarize_seeds(accuracies: list[float]) -> dict:
    """A cell of a table: mean and sample standard deviation ("spread") over the seeds; the spread
    of one seed is None."""
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    return {"mean": statistics.fmean(accuracies), "seeds": len(accuracies), "spread": spread}


def percent(cell: dict, digits: int) -> str:
    """A cell of a table as text."""
    text = f"{100 * cell['mean']:.{digits}f}"
    if cell["spread"] is not None:
        text += f" ±{100 * cell['spread']:.{digits}f}"
    return text


def write_results(folder: RunFolder, **results) -> None:
    """Writes results.json; it ends with the settings of the run."""
    settings = {name: value for name, value in folder.config.items() if name not in folder.free}
    text = json.dumps({**results, "settings": settings}, indent=1)
    atomic_write(folder.path / "results.json", text + "\n")
