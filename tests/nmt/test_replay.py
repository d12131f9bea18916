"""What CUDA graphs need, without a GPU: a step of fixed shapes is the exact one."""
import pytest
import torch
from small_run import random_pairs

from nmt.batches import Batch, Update, collate, rectangle
from nmt.machine import Machine
from train_mt import Objective, train_step
from transformer import COMPONENTS, Transformer, TransformerConfig

MECHANISMS = [
    dict(agg="em", agg_at=COMPONENTS, reg=("subspace", "position", "output")),
    dict(agg="dynamic", reg=("output",), norm="post"),
    dict(agg="gu-em", agg_at=COMPONENTS),
    dict(agg="gu-dynamic", reg=("squared-position", "output"), reg_at=("dec", "cross")),
    dict(capsule_attention=("enc", "dec"))]


def call(function, *inputs):
    """In place of a Replay: the step has its fixed shapes, and nothing is recorded."""
    return function(*inputs)


def gradients(mechanisms: dict, batch: Batch, replay=None):
    """The totals, the norm and all gradients of an update that changes no parameter."""
    torch.manual_seed(0)
    config = TransformerConfig(50, 16, 4, 1, 32, dropout=0.0, **mechanisms)
    objective = Objective(Transformer(config), 0.1).double()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0)
    results = train_step(objective, optimizer, Update([batch], 20, (0, 0)),
                         Machine(torch.device("cpu")), 0.7, replay=replay)
    grads = [p.grad for p in objective.parameters() if p.grad is not None]   # betas of gu-em: None
    return *results, *grads


@pytest.mark.parametrize("mechanisms", MECHANISMS, ids=str)
def test_fixed_shapes_give_loss_and_gradients_of_exact_ones(mechanisms):
    """Rows and columns of padding count nowhere. Without --clip the gradient stays whole."""
    batch = collate(random_pairs(5, longest=6), range(5))
    exact = gradients(mechanisms, batch)
    _, norm, *unclipped = exact
    assert norm > 1.4 and torch.cat([x.flatten() for x in unclipped]).norm().allclose(norm)
    for a, b in zip(exact, gradients(mechanisms, rectangle(batch, 60), call), strict=True):
        rtol = 1e-6 if a.dtype == torch.float32 else 1e-9
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-11)
