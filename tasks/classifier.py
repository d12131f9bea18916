"""Training and testing a classifier of sentences or pairs, an epoch at a time: what logic.py and
probe.py share.

A model has `loss(inputs, labels)` and gives its logits [B, classes] as the first thing it returns.
Examples have `lengths` [n], `labels` [n] and `batch(index)`, the inputs and labels of those
examples; for `accuracy` the labels are one per example, in training whatever `loss` takes.
"""
import copy
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
from torch import Tensor
from tqdm import tqdm

from nmt.flags import UserError
from nmt.progress import say
from nmt.run_folder import load, load_model_state, save

WARMUP = 0.05       # share of the steps over which a learning rate that falls is scaled up


def like_length_batches(lengths: Tensor, size: int, seed: int) -> list[Tensor]:
    """Batches of `size` indices of examples of similar lengths [n], in an order drawn from the
    seed.

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


def train_epoch(model: nn.Module, optimizer, examples, size: int, seed: int,
                scheduler=None) -> float:
    """One pass over the training examples, their order and dropout drawn from the seed; the mean
    loss.

    scheduler: of the learning rate, moved on after every step.
    """
    model.train()
    torch.manual_seed(seed)
    total = torch.zeros((), device=examples.labels.device)
    batches = like_length_batches(examples.lengths, size, seed)
    for index in tqdm(batches, leave=False, disable=not sys.stderr.isatty()):
        loss = model.loss(*examples.batch(index))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        total += loss.detach() * len(index)
    return total.item() / max(1, len(examples.labels))


@torch.no_grad()
def accuracy(model: nn.Module, examples, size: int = 512) -> tuple[int, int]:
    """(examples whose class is found, examples)."""
    if not len(examples.labels):
        return 0, 0
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=examples.labels.device)
    for index in examples.lengths.argsort().split(size):
        inputs, labels = examples.batch(index)
        right += (model(inputs)[0].argmax(-1) == labels).sum()
    return right.item(), len(examples.labels)


def learning_rate_schedule(optimizer, steps: int, decay: bool):
    """The scheduler of a learning rate that stays, or (decay) falls linearly from its full value
    towards 0 after the last step and is scaled up from 0 over the first twentieth of the steps."""
    def factor(step: int) -> float:
        if not decay:
            return 1.0
        warmup = min(1, (step + 1) / (WARMUP * steps))
        return warmup * (1 - step / steps)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def resume(path: Path, model: nn.Module, optimizer, scheduler, fresh: dict) -> dict:
    """What `fit` saved at the path, the weights, the optimizer and the scheduler put in place;
    fresh: the entries of a new start. Raises UserError for a checkpoint of something else."""
    device = next(model.parameters()).device
    remedy = "delete it, and this model is trained from the start"
    state = load(path, device, ("model", "optimizer", "scheduler", *fresh), remedy)
    load_model_state(model, state["best"], path)         # told here, not after the last epoch
    load_model_state(model, state["model"], path)
    try:
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
    except Exception as error:                           # a foreign state errs in a way of its own
        raise UserError(f"{path}: its optimizer is not that of this run: {remedy}") from error
    return state


def fit(build, data: dict, settings, seed: int, path: Path, log=say,
        decay: bool = False) -> tuple[nn.Module, dict]:
    """Trains a model: (the model after the epoch with the best validation accuracy, {"valid": that
    accuracy, "parameters", "seconds", "history": [{"epoch", "loss", "valid"}, ...]}).

    build(): a new model; data: {"train": examples, "valid": examples}; settings: epochs, lr, batch;
    decay: see `learning_rate_schedule`. After every epoch all that resuming takes is saved at
    `path`; a run resumed there ends as it would have without the break, because an epoch draws
    everything from its own seed.
    """
    torch.manual_seed(seed)
    model = build().to(data["train"].labels.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=True)
    steps = max(1, settings.epochs * math.ceil(len(data["train"].labels) / settings.batch))
    scheduler = learning_rate_schedule(optimizer, steps, decay)
    state = {"epoch": 0, "history": [], "seconds": 0.0, "best": None, "best_valid": -1.0}
    if path.exists():
        state = resume(path, model, optimizer, scheduler, state)
    for epoch in range(state["epoch"] + 1, settings.epochs + 1):
        started = time.perf_counter()
        epoch_seed = seed * 1_000_003 + epoch
        loss = train_epoch(model, optimizer, data["train"], settings.batch, epoch_seed, scheduler)
        right, count = accuracy(model, data["valid"])
        valid = right / max(1, count)
        if valid > state["best_valid"]:
            state["best_valid"] = valid
            state["best"] = copy.deepcopy(model.state_dict())
        state["epoch"] = epoch
        state["history"].append({"epoch": epoch, "loss": loss, "valid": valid})
        state["seconds"] += time.perf_counter() - started
        save(path, {**state, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict()})
        log(f"epoch {epoch}/{settings.epochs}  loss {loss:.3f}  validation {valid:.1%}"
            f"  {state['seconds']:.0f} s")
    model.load_state_dict(state["best"])
    return model, {
        "valid": state["best_valid"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": state["seconds"],
        "history": state["history"],
    }
