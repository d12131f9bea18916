"""Training and testing a classifier, of sentences in probe.py, of pairs of formulas in logic.py.

A model returns logits [B, classes] and has `loss(inputs, labels)`. Examples have `lengths` [n], on
the CPU, `labels` [n], on the device, and `batch(index)`, which returns the inputs and labels of
those examples.
"""
import copy
import math
from typing import NamedTuple

import torch
import torch.nn as nn
from torch import Tensor
from tqdm import tqdm

WARMUP = 0.05       # share of the steps in which a learning rate that falls rises first


class Examples(NamedTuple):
    """Encoded sentences, or their vectors."""
    inputs: Tensor              # [n, L] word ids with padding; [n, d] vectors
    lengths: Tensor             # [n] columns of the inputs without padding
    labels: Tensor              # [n] index of the class

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The examples `index` [B]: inputs [B, L'], cut to the longest of them, and labels [B]."""
        width = int(self.lengths[index].max())
        index = index.to(self.labels.device, non_blocking=True)
        return self.inputs[index, :width], self.labels[index]


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
    """The share of examples that are classified correctly."""
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=examples.labels.device)
    for index in examples.lengths.argsort().split(size):
        inputs, labels = examples.batch(index)
        right += (model(inputs).argmax(-1) == labels).sum()
    return right.item() / len(examples.labels)


def fit(model: nn.Module, train, valid, seed: int, label: str, *, epochs: int, lr: float,
        batch: int, decay: bool = False) -> dict:
    """Trains a model by Adam, and leaves it as it was after the epoch with the best validation
    accuracy. Returns {"valid": that accuracy, "parameters", "history": [{"epoch", "loss", "valid"},
    ...]}.

    train, valid: examples; label: what the line of an epoch begins with; decay: see
    `scheduled_rate`.
    """
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    steps = epochs * math.ceil(len(train.labels) / batch)
    step = 0
    best = -1.0
    history = []
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_seed = seed * 1_000_003 + epoch            # of the order and the dropout
        torch.manual_seed(epoch_seed)
        total = torch.zeros((), device=train.labels.device)
        batches = like_length_batches(train.lengths, batch, epoch_seed)
        for index in tqdm(batches, leave=False, disable=None):
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = scheduled_rate(step, steps, lr, decay)
            loss = model.loss(*train.batch(index))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(index)
        mean_loss = total.item() / len(train.labels)
        valid_accuracy = accuracy(model, valid)
        if valid_accuracy > best:
            best = valid_accuracy
            best_state = copy.deepcopy(model.state_dict())
        history.append({"epoch": epoch, "loss": mean_loss, "valid": valid_accuracy})
        print(f"{label}: epoch {epoch}/{epochs}  loss {mean_loss:.3f}  "
              f"validation {valid_accuracy:.1%}", flush=True)
    model.load_state_dict(best_state)
    parameters = sum(p.numel() for p in model.parameters())
    return {"valid": best, "parameters": parameters, "history": history}
