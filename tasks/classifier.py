"""Training and testing a classifier of sentences or pairs, an epoch at a time: what logic.py and probe.py share.

A model has `loss(inputs, labels)` and gives its logits [B, classes] as the first thing it returns; examples have
`lengths` [n], `labels` [n] and `batch(index)`, the inputs and labels of those examples; for `accuracy` the
labels are one per example, in training whatever `loss` takes.
"""
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
from torch import Tensor
from tqdm import tqdm

from nmt.run_folder import check_weights, load, load_model_state, save
from nmt.flags import UserError

WARMUP = 0.05                   # share of the steps over which a learning rate that falls is scaled up


def batches(lengths: Tensor, size: int, seed: int) -> list[Tensor]:
    """Batches of `size` indices of examples of similar lengths [n], in an order drawn from the seed.

    The examples are shuffled, sorted by length within a window of 50 batches and cut; then the batches are shuffled.
    """
    rng = torch.Generator().manual_seed(seed)
    found = []
    for window in torch.randperm(len(lengths), generator=rng).split(50 * size):
        found += window[lengths[window].argsort(stable=True)].split(size)
    return [found[i] for i in torch.randperm(len(found), generator=rng).tolist()]


def train_epoch(model: nn.Module, optimizer, data, size: int, seed: int, scheduler=None) -> float:
    """One pass over the training examples, their order and dropout drawn from the seed; the mean loss. scheduler: of
    the learning rate, moved on after every step."""
    model.train()
    torch.manual_seed(seed)
    total = torch.zeros((), device=data.labels.device)
    for index in tqdm(batches(data.lengths, size, seed), leave=False, disable=not sys.stderr.isatty()):
        loss = model.loss(*data.batch(index))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        total += loss.detach() * len(index)
    return total.item() / max(1, len(data.labels))


@torch.no_grad()
def accuracy(model: nn.Module, data, size: int = 512) -> tuple[int, int]:
    """(examples whose class is found, examples)."""
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=data.labels.device)
    for index in data.lengths.argsort().split(size) if len(data.labels) else ():
        inputs, labels = data.batch(index)
        right += (model(inputs)[0].argmax(-1) == labels).sum()
    return right.item(), len(data.labels)


def take_up(path: Path, model: nn.Module, optimizer, scheduler, fresh: dict) -> dict:
    """What `fit` saved at the path, the weights, the optimizer and the scheduler put in place; fresh: the entries of a
    new start. Raises UserError for a checkpoint of something else."""
    weights = list(model.parameters())
    state = load(path, weights[0].device, needs=("model", "optimizer", "scheduler", *fresh))
    load_model_state(model, state["model"], path)
    check_weights(state["best"], model.state_dict(), path, "this model")
    try:
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        if type(state["epoch"]) is not int or any(
                moment[name].shape != weights[i].shape for name in ("exp_avg", "exp_avg_sq")
                for i, moment in optimizer.state_dict()["state"].items()):
            raise ValueError
    except Exception as error:                           # a foreign state errs in a way of its own
        raise UserError(f"{path}: its optimizer or its counts are not those of this run: delete it, and this model is"
                        " trained from the start") from error
    return state


def fit(build, data: dict, args, seed: int, path: Path, say=print, decay: bool = False) -> tuple[nn.Module, dict]:
    """Trains a model: (the model after the epoch with the best validation accuracy, {"valid": that accuracy,
    "parameters", "seconds", "history": [{"epoch", "loss", "valid"}, ...]}).

    build(): a new model; data: {"train": examples, "valid": examples}; args: epochs, lr, batch; decay: the learning rate
    falls linearly from lr towards 0 after the last step, and over the first twentieth of the steps it is scaled up from 0.
    After every epoch all that resuming takes is saved at `path`; a run taken up there ends as it would have without the
    break, because an epoch draws everything from its own seed.
    """
    torch.manual_seed(seed)
    model = build().to(data["train"].labels.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    steps = max(1, args.epochs * math.ceil(len(data["train"].labels) / args.batch))
    share = lambda step: min(1, (step + 1) / (WARMUP * steps)) * (1 - step / steps) if decay else 1.0
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    state = {"epoch": 0, "history": [], "seconds": 0.0, "best": None, "best_valid": -1.0}
    if path.exists():
        state = take_up(path, model, optimizer, scheduler, state)
    while state["epoch"] < args.epochs:
        started = time.perf_counter()
        state["epoch"] += 1
        loss = train_epoch(model, optimizer, data["train"], args.batch, seed * 1_000_003 + state["epoch"], scheduler)
        right, count = accuracy(model, data["valid"])
        valid = right / max(1, count)
        if valid > state["best_valid"]:
            state["best_valid"] = valid
            state["best"] = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        state["history"].append({"epoch": state["epoch"], "loss": loss, "valid": valid})
        state["seconds"] += time.perf_counter() - started
        save(path, {**state, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict()})
        say(f"epoch {state['epoch']}/{args.epochs}  loss {loss:.3f}  validation {valid:.1%}  {state['seconds']:.0f} s")
    model.load_state_dict(state["best"])
    return model, {"valid": state["best_valid"], "parameters": sum(p.numel() for p in model.parameters()),
                   "seconds": state["seconds"], "history": state["history"]}
