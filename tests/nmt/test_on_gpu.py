"""Every mechanism on a GPU, where there is one: training with CUDA graphs, and search."""
import pytest
import torch

import aggregation
from disagreement import KINDS
from nmt.batches import Batch, Update
from nmt.machine import Machine, pick_device
from nmt.replay import Replay
from nmt.search import beam_search
from train_mt import Objective, train_step
from transformer import COMPONENTS, PAD, Transformer, TransformerConfig


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("mechanisms", [
    dict(agg="em", reg=("output",)),
    dict(agg="em", agg_at=COMPONENTS, capsule_attention=("enc", "dec")),
    dict(agg="dynamic", agg_at=COMPONENTS, reg=tuple(KINDS)),
    dict(agg="gu-dynamic", agg_at=COMPONENTS),
    dict(agg="gu-em", agg_at=COMPONENTS, em_gradient="full")], ids=str)
def test_replayed_updates_are_the_updates(mechanisms, monkeypatch):
    """Of six updates with dropout, on batches of two shapes, four are replayed. The votes are many:
    their routing is computed again in the backward pass. Then the model translates."""
    monkeypatch.setattr(aggregation, "LARGE", 0)
    device = pick_device("cuda")
    updates = []
    for i in range(6):
        batch = Batch(*torch.randint(3, 300, (2, 4, 7 + i % 2)))
        batch.target[0, -1 - i:] = PAD
        updates.append(Update([batch], int((batch.target[:, 1:] != PAD).sum()), (0, 0)))
    config = TransformerConfig(300, d_model=16, heads=2, layers=1, d_ff=8, **mechanisms)
    results = []
    for replay in (lambda function, *inputs: function(*inputs), Replay()):
        torch.manual_seed(0)
        objective = Objective(Transformer(config).to(device), 0.1)
        optimizer = torch.optim.Adam(objective.parameters(), lr=0.01, fused=True)
        for seed, update in enumerate(updates):
            torch.manual_seed(seed)
            total, norm = train_step(objective, optimizer, update, Machine(device), 1.0, 1.0, True,
                                     replay)
            results.append([*total.tolist(), norm.item()])
        source = torch.ones(3, 6, dtype=torch.long, device=device)
        assert len(beam_search(objective.model.eval(), source, beam=2)) == 3
    torch.testing.assert_close(results[:6], results[6:], rtol=1e-3, atol=1e-3)
