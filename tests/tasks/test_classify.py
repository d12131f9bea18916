"""tasks/classifier.py: batches of like length, one epoch, the accuracy, which epoch's model is
given back. Resuming: test_logic.py, test_probe.py."""
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn as nn

from tasks import classifier
from tasks.classifier import like_length_batches

# validation accuracy after epoch 1, 2, ...: it peaks in the middle, twice, and ends at its worst
CURVE = [
    (1, 3),
    (1, 2, 3),
    (2, 3, 4),
    (2,),
    (),
]  # validation examples that are right after each epoch


class Examples(NamedTuple):
    """Examples in the form that classifier.py asks for: an input is a list of numbers, its length
    theirs."""
    inputs: torch.Tensor        # [n, 5]
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
    """A model whose one weight grows by the learning rate at every step. An input [6] names the
    epochs at which it is right: its class is input[weight]."""
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(()) * 1e-3)
        self.spare = nn.Parameter(torch.zeros(7))

    def forward(self, inputs):
        found = inputs[:, round(self.weight.item())]                          # [B], 0 or 1
        return torch.stack([0.5 - found, found - 0.5], -1), "more"

    def loss(self, inputs, labels):
        return (1e4 * (1 - self.weight) + self.spare.sum() * 0).sum()


def curve(right):
    """Examples 1 to 4, of class 1, that are right after these epochs."""
    rows = []
    for i in range(1, 5):
        rows.append([0.0] + [float(i in epoch) for epoch in right])
    return examples(rows, [1] * 4)


def settings(epochs, **other):
    return SimpleNamespace(**{"epochs": epochs, "lr": 1.0, "batch": 4, **other})


def test_fit_gives_back_the_first_epoch_of_the_best_validation_accuracy(tmp_path):
    """Not the last, not the last of equals, and not the best on the training examples."""
    data = {"train": curve([(), (1, 2, 3, 4), (), (), (1, 2, 3, 4)]), "valid": curve(CURVE)}
    model, found = classifier.fit(
        Stepping, data, settings(5), 1, tmp_path / "state.pt", lambda text: None
    )
    assert [row["valid"] for row in found["history"]] == [0.5, 0.75, 0.75, 0.25, 0.0]
    assert [row["epoch"] for row in found["history"]] == [1, 2, 3, 4, 5]
    assert found["valid"] == 0.75 and model.weight.item() == pytest.approx(2, abs=0.01)
    assert found["parameters"] == 8 and classifier.accuracy(model, data["valid"]) == (3, 4)


def test_a_run_taken_up_again_gives_back_the_best_epoch_of_both_sittings(tmp_path):
    for epochs, best in ((4, 2), (5, 2)):
        model, found = classifier.fit(
            Stepping,
            {"train": curve(CURVE), "valid": curve(CURVE)},
            settings(epochs),
            1,
            tmp_path / "state.pt",
            lambda text: None,
        )
        assert (
            round(model.weight.item()) == best
            and found["valid"] == 0.75
            and len(found["history"]) == epochs
        )


class Noisy(nn.Module):
    """Class 1 where the first number is positive; dropout, where it is on, takes most numbers away.
    """
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.9)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        kept = self.weight * self.dropout(inputs[:, 0])                       # [B]
        return torch.stack([torch.zeros_like(kept), kept], -1),

    def loss(self, inputs, labels):
        return self.dropout(inputs).mean() + 0 * self.weight


def test_accuracy_is_of_all_examples_without_dropout():
    """Against a loop, in batches that do not divide the examples, on a model that was in training.
    """
    inputs = torch.randn(600, 5)
    labels = torch.randint(2, (600,))
    right = sum(int((x[0] > 0) == y) for x, y in zip(inputs.tolist(), labels.tolist()))
    for size in (7, 512, 1000):
        assert classifier.accuracy(Noisy().train(), examples(inputs, labels), size) == (right, 600)
    assert classifier.accuracy(Noisy(), examples(torch.zeros(0, 5), [])) == (0, 0)


def test_an_epoch_is_with_dropout_and_its_loss_the_mean_over_the_examples():
    """10 examples in batches of 4, 4 and 2: every example counts alike. The seed draws order and
    dropout."""
    data = examples(torch.arange(50.0).view(10, 5), [0] * 10)
    model = Noisy().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.dropout.p = 0.0
    assert classifier.train_epoch(model, optimizer, data, 4, 3) == pytest.approx(24.5)
    model.eval().dropout.p = 0.5
    losses = [classifier.train_epoch(model, optimizer, data, 4, seed) for seed in (3, 3, 4)]
    assert losses[0] == losses[1] != losses[2] and losses[0] != pytest.approx(24.5)
    assert model.training


def test_every_epoch_of_every_seed_is_drawn_anew(tmp_path, monkeypatch):
    """A seed draws the first weights and each epoch's order; no two epochs and no two seeds share
    one."""
    seeds, first = [], []

    def epoch(model, optimizer, data, size, seed, scheduler):
        seeds.append(seed)
        first.append(model.weight.item())
        return 0.0
    monkeypatch.setattr(classifier, "train_epoch", epoch)
    for i, seed in enumerate((1, 2, 1)):
        classifier.fit(
            Stepping,
            {"train": curve(CURVE), "valid": curve(CURVE)},
            settings(3),
            seed,
            tmp_path / f"{i}.pt",
            lambda text: None,
        )
    assert len(set(seeds[:6])) == 6 and seeds[6:] == seeds[:3]
    assert first[0] == first[6] != first[3]


def test_batches_hold_every_example_once_and_examples_of_like_length():
    lengths = torch.randint(1, 60, (5000,))
    found = like_length_batches(lengths, 32, seed=1)
    assert sorted(torch.cat(found).tolist()) == list(range(5000)) and max(map(len, found)) == 32
    assert [b.tolist() for b in like_length_batches(lengths, 32, seed=1)] == [
        b.tolist() for b in found
    ]
    assert [b.tolist() for b in like_length_batches(lengths, 32, seed=2)] != [
        b.tolist() for b in found
    ]
    assert sum(lengths[b].max().item() * len(b) for b in found) < 1.1 * lengths.sum()
    firsts = [lengths[b].max().item() for b in found]
    assert firsts != sorted(firsts)
