"""tasks/classifier.py and tasks/results.py: batches, the learning rate, the epoch that is kept,
results that belong to other settings."""
import io
import sys

import pytest
import torch
import torch.nn as nn

from nmt.command_line import UserError
from tasks.classifier import Examples, accuracy, fit, like_length_batches, scheduled_rate
from tasks.results import add_row, find_row, percent


class Stepping(nn.Module):
    """A model whose one weight grows by the learning rate, 1, at every step. An input names the
    epochs at which it is right: its class is input[weight]. drawn: the numbers input[0] of every
    batch, and a random number."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.drawn = []

    def forward(self, inputs):
        share = inputs[:, round(self.weight.item())]                          # [B], 0 or 1
        return torch.stack([0.5 - share, share - 0.5], -1)

    def loss(self, inputs, labels):
        self.drawn.append((*inputs[:, 0].tolist(), torch.rand(()).item()))
        return 1e4 * (2 - self.weight)


def right_after(*epochs):
    """Four examples of class 1, numbered; an argument per epoch has those that are right after
    it."""
    inputs = torch.zeros(4, 1 + len(epochs))
    inputs[:, 0] = torch.arange(4)
    for epoch, right in enumerate(epochs, 1):
        inputs[list(right), epoch] = 1.0
    return Examples(inputs, torch.full((4,), 1 + len(epochs)), torch.ones(4, dtype=torch.long))


def test_the_first_epoch_of_the_best_validation_accuracy_is_kept():
    valid = right_after((0, 2), (0, 1, 2), (1, 2, 3), (1,), ())
    train = right_after((), (), (), (), (0, 1, 2, 3))
    model = Stepping()
    result = fit(model, train, valid, 1, "x", epochs=5, lr=1.0, batch=4)
    assert [row["valid"] for row in result["history"]] == [0.5, 0.75, 0.75, 0.25, 0.0]
    assert [round(row["loss"], -3) for row in result["history"]] == [2e4, 1e4, 0, -1e4, -2e4]
    assert result["valid"] == 0.75 == accuracy(model, valid)
    assert model.weight.item() == pytest.approx(2, abs=0.01)
    assert result["parameters"] == 1


def test_the_line_of_an_epoch_is_written_at_once(monkeypatch):
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file))
    fit(Stepping(), right_after(()), right_after((0,)), 1, "x", epochs=1, lr=1.0, batch=4)
    assert file.getvalue().startswith(b"x: epoch 1/1")


def test_the_learning_rate_stays_or_rises_and_falls_to_0():
    assert [scheduled_rate(step, 60, 0.1, decay=False) for step in (1, 30, 60)] == [0.1] * 3
    rates = [scheduled_rate(step, 60, 0.1, decay=True) for step in (1, 2, 3, 4, 31, 60)]
    assert rates == pytest.approx([0.1 / 3, 0.1 * 2 / 3 * 59 / 60, 0.1 * 58 / 60, 0.1 * 57 / 60,
                                   0.05, 0.1 / 60])


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


def test_order_and_dropout_depend_on_seed_and_epoch():
    examples = right_after((), ())
    drawn = []
    for seed in (1, 1, 2):
        model = Stepping()
        fit(model, examples, examples, seed, "x", epochs=2, lr=1.0, batch=4)
        drawn.append(model.drawn)
    assert drawn[0] == drawn[1]
    *orders, numbers = zip(*drawn[0], *drawn[2])
    assert len({*zip(*orders)}) == len({*numbers}) == 4


def test_accuracy_is_of_all_examples_without_dropout():
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(5, 2))
    inputs = torch.randn(600, 5)
    labels = torch.randint(2, (600,))
    examples = Examples(inputs, torch.full((600,), 5), labels)
    right = (model[1](inputs).argmax(-1) == labels).sum().item()
    assert accuracy(model, examples, size=7) == right / 600


def test_a_batch_is_cut_to_its_longest_example():
    examples = Examples(torch.arange(12).view(3, 4), torch.tensor([1, 3, 2]), torch.arange(3))
    inputs, labels = examples.batch(torch.tensor([2, 0]))
    assert inputs.tolist() == [[8, 9], [0, 1]] and labels.tolist() == [2, 0]


def test_results_are_kept_for_the_same_settings_only(tmp_path):
    path = tmp_path / "new" / "results.json"
    assert find_row(path, {"epochs": 2}, {"seed": 1}) is None
    add_row(path, {"epochs": 2}, {"seed": 1, "accuracy": 0.1})
    add_row(path, {"epochs": 2}, {"seed": 2, "accuracy": 0.7})
    assert find_row(path, {"epochs": 2}, {"seed": 2}) == {"seed": 2, "accuracy": 0.7}
    assert find_row(path, {"epochs": 2}, {"seed": 3}) is None
    with pytest.raises(UserError, match="other settings, {'epochs': 2}: choose another --out"):
        find_row(path, {"epochs": 3}, {"seed": 1})


def test_a_cell_has_mean_and_deviation():
    assert percent([0.5], 2) == "50.00"
    assert percent([0.5, 0.6], 1) == "55.0 ±7.1"
