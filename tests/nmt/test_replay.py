"""CUDA graphs without a GPU: steps of fixed shapes that are replayed are the exact ones."""
from types import SimpleNamespace

import pytest
import torch
from small_run import random_pairs

from nmt.batches import Batch, Update, collate, rectangle
from nmt.machine import Machine
from nmt.replay import Replay
from train_mt import Objective, train_step
from transformer import COMPONENTS, PAD, Transformer, TransformerConfig

MECHANISMS = [
    dict(agg="em", agg_at=COMPONENTS, reg=("subspace", "position", "output")),
    dict(agg="dynamic", reg=("output",), norm="post"),
    dict(agg="gu-em", agg_at=COMPONENTS),
    dict(agg="gu-dynamic", reg=("squared-position", "output"), reg_at=("dec", "cross")),
    dict(capsule_attention=("enc", "dec"))]


class ReplayOnCPU(Replay):
    """Its graph runs the function again, on the inputs that it was recorded with."""

    def record(self, function, inputs) -> tuple:
        output = torch.empty(2)
        return SimpleNamespace(replay=lambda: output.copy_(function(*inputs))), inputs, output


def updates(mechanisms: dict, batches: list[Batch], replay=None) -> list:
    """The totals, the norm and all gradients of updates that change no parameter."""
    torch.manual_seed(0)
    config = TransformerConfig(50, 16, 4, 1, 32, dropout=0.0, **mechanisms)
    objective = Objective(Transformer(config), 0.1).double()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0)
    results = []
    for batch in batches:
        update = Update([batch], int((batch.target[:, 1:] != PAD).sum()), (0, 0))
        total, norm = train_step(objective, optimizer, update, Machine(torch.device("cpu")), 0.7,
                                 replay=replay)
        grads = [p.grad.clone() for p in objective.parameters() if p.grad is not None]
        results.append([total, norm, *grads])            # betas of gu-em have no gradient
    return results


@pytest.mark.parametrize("mechanisms", MECHANISMS, ids=str)
def test_fixed_shapes_give_loss_and_gradients_of_exact_ones(mechanisms):
    """Rows and columns of padding count nowhere. Without --clip the gradient stays whole. Batches
    of two shapes and of other numbers of tokens are replayed."""
    batches = [collate(random_pairs(20, longest=6), range(i, i + 3)) for i in range(0, 15, 3)]
    rectangles = [rectangle(batch, 60) for batch in batches]
    assert [x.source.shape[1] for x in rectangles] == [7, 8, 7, 8, 8]
    exact = updates(mechanisms, batches)
    _, norm, *unclipped = exact[0]
    assert norm > 1.4 and torch.cat([x.flatten() for x in unclipped]).norm().allclose(norm)
    torch.testing.assert_close(updates(mechanisms, rectangles, ReplayOnCPU()), exact)
