"""tasks/classifier.py: batches of like length, the accuracy, the epoch that is kept, the learning
rate, the cells of a table."""
import re
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn as nn

from tasks.classifier import accuracy, fit, like_length_batches, percent, summarize_seeds


class Examples(NamedTuple):
    """Examples in the form that classifier.py asks for."""
    inputs: torch.Tensor        # [n, f]
    lengths: torch.Tensor       # [n]
    labels: torch.Tensor        # [n]

    def batch(self, index):
        return self.inputs[index], self.labels[index]


def examples(inputs, labels):
    """Examples of these inputs [n, f], of lengths that shuffle them."""
    inputs = torch.as_tensor(inputs, dtype=torch.float32)
    lengths = torch.tensor([(7 * i) % 11 + 1 for i in range(len(inputs))])
    return Examples(inputs, lengths, torch.as_tensor(labels))


class Stepping(nn.Module):
    """A model whose one weight grows by the learning rate at every step. An input names the epochs
    at which it is right: its class is input[weight]."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(()) * 1e-3)

    def forward(self, inputs):
        share = inputs[:, round(self.weight.item())]                          # [B], 0 or 1
        return torch.stack([0.5 - share, share - 0.5], -1)

    def loss(self, inputs, labels):
        return 1e4 * (1 - self.weight)


def right_after(*epochs):
    """Examples 1 to 4 of class 1; each argument names those that are right after that epoch."""
    inputs = torch.zeros(5, 1 + len(epochs))
    for epoch, right in enumerate(epochs, 1):
        inputs[list(right), epoch] = 1.0
    return examples(inputs[1:], [1] * 4)


def test_the_first_epoch_of_the_best_validation_accuracy_is_kept(capsys):
    """Not the last, not the last of equals, and not the best on the training examples."""
    valid = right_after((1, 3), (1, 2, 3), (2, 3, 4), (2,), ())
    data = {"train": right_after((), (1, 2, 3, 4), (), (), (1, 2, 3, 4)), "valid": valid}
    model, result = fit(Stepping, data, SimpleNamespace(epochs=5, lr=1.0, batch=4), 1, "x")
    shares = {row["epoch"]: row["valid"] for row in result["history"]}
    assert shares == {1: 0.5, 2: 0.75, 3: 0.75, 4: 0.25, 5: 0.0}
    assert result["valid"] == 0.75 == accuracy(model, valid)
    assert model.weight.item() == pytest.approx(2, abs=0.01)
    assert result["parameters"] == 1
    *_, line, _ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"x: epoch 4/5  loss \S+  validation 25.0%  \d s", line)


@pytest.mark.parametrize("decay", [False, True])
def test_the_learning_rate_stays_or_rises_and_falls_to_0(decay, monkeypatch):
    """30 steps of 4 examples and 30 of 2: a twentieth rise. Adam moves the weight by the learning
    rate at every step."""
    data = {part: examples([[0.0, 1.0]] * 6, [1] * 6) for part in ("train", "valid")}
    weights = []

    class Noting(Stepping):
        def loss(self, inputs, labels):
            weights.append(self.weight.item())
            return super().loss(inputs, labels)
    settings = SimpleNamespace(epochs=30, lr=1e-2, batch=4)
    fit(Noting, data, settings, 1, "x", decay)
    rise = {0: 1 / 3, 1: 2 / 3}
    falling = [1e-2 * rise.get(i, 1) * (1 - i / 60) for i in range(59)]
    rates = torch.tensor(weights).diff().tolist()
    assert rates == pytest.approx(falling if decay else [1e-2] * 59, abs=1e-5)


class Noisy(nn.Module):
    """Class 1 where the first number is positive; its dropout takes most numbers away."""

    def __init__(self, p=0.9):
        super().__init__()
        self.dropout = nn.Dropout(p)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        kept = self.weight * self.dropout(inputs[:, 0])                       # [B]
        return torch.stack([torch.zeros_like(kept), kept], -1)

    def loss(self, inputs, labels):
        return self.dropout(inputs).mean() + 0 * self.weight


@pytest.mark.parametrize("size", [7, 512, 1000])
def test_accuracy_is_of_all_examples_without_dropout(size):
    inputs = torch.randn(600, 5)
    labels = torch.randint(2, (600,))
    right = ((inputs[:, 0] > 0) == labels).sum().item()
    assert accuracy(Noisy().train(), examples(inputs, labels), size) == right / 600


def losses(p, seed):
    """The losses of two epochs over 10 examples in batches of 4, 4 and 2."""
    data = examples(torch.arange(50.0).view(10, 5), [0] * 10)
    settings = SimpleNamespace(epochs=2, lr=0.0, batch=4)
    parts = {"train": data, "valid": examples(torch.ones(3, 5), [0] * 3)}
    _, result = fit(lambda: Noisy(p), parts, settings, seed, "x")
    return [row["loss"] for row in result["history"]]


def test_the_loss_of_an_epoch_is_the_mean_over_the_examples():
    """The seed draws the dropout of every epoch."""
    assert losses(0.0, 3) == pytest.approx([24.5, 24.5])
    assert losses(0.5, 3) == losses(0.5, 3)
    assert len({*losses(0.5, 3), *losses(0.5, 4)}) == 4


def test_batches_hold_every_example_once_by_length():
    lengths = torch.randint(1, 60, (5000,))
    batches = like_length_batches(lengths, 32, seed=1)
    assert torch.cat(batches).sort().values.tolist() == list(range(5000))
    assert max(map(len, batches)) == 32
    widest = [lengths[batch].max().item() for batch in batches]
    assert sum(width * len(batch) for width, batch in zip(widest, batches)) < 1.1 * lengths.sum()
    assert widest != sorted(widest)
    same, other = (torch.cat(like_length_batches(lengths, 32, seed)) for seed in (1, 2))
    assert torch.equal(torch.cat(batches), same) and not torch.equal(same, other)


def test_a_cell_is_the_mean_over_the_seeds():
    assert percent(summarize_seeds([0.6, 0.7, 0.95]), 1) == "75.0 ±18.0"
    assert percent(summarize_seeds([0.6]), 2) == "60.00"
