"""CUDA graphs without a GPU: a step of fixed shapes is the exact one and never waits for the
device; a stand-in for a graph runs the function again."""
from unittest.mock import Mock

import pytest
import torch
from small_run import random_pairs, rows, train
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

import train_mt
from nmt.batches import Batch, Step, collate, rectangle
from nmt.replay import Replay, check_graphs
from tools.files import UserError
from tools.machine import Machine
from train_mt import Objective, train_step
from transformer import COMPONENTS, Transformer, TransformerConfig

CPU = torch.device("cpu")
MECHANISMS = [
    dict(agg="em", agg_at=COMPONENTS, reg=("subspace", "position", "output")),
    dict(agg="dynamic", reg=("output",), norm="post", tie="none"),
    dict(agg="gu-em", agg_at=COMPONENTS),
    dict(agg="gu-dynamic", reg=("squared-position", "squared-output"), reg_at=("dec", "cross")),
    dict(capsule_attention=("enc", "dec"))]


def small_objective(**mechanisms) -> Objective:
    torch.manual_seed(0)
    return Objective(Transformer(TransformerConfig(50, 16, 4, 1, 32, dropout=0.0, **mechanisms)))


def call(function, *inputs):
    """In place of a Replay: the step has its fixed shapes, and nothing is recorded."""
    return function(*inputs)


def gradients(objective, batch: Batch, replay=None):
    """The totals, the norm and all gradients of an update that changes no parameter."""
    optimizer = torch.optim.SGD(objective.parameters(), lr=0)
    results = train_step(objective, optimizer, Step([batch], 20, (0, 0)), Machine(CPU), 0.1, 0.7,
                         replay=replay)
    return *results, *(p.grad for p in objective.parameters())


@pytest.mark.parametrize("mechanisms", MECHANISMS, ids=str)
def test_fixed_shapes_give_loss_and_gradients_of_exact_ones_and_read_no_value(mechanisms):
    batch = collate(random_pairs(5, longest=6), range(5))
    objective = small_objective(**mechanisms).double()
    exact = gradients(objective, batch)
    _, norm, *unclipped = exact
    unclipped = torch.cat([x.flatten() for x in unclipped if x is not None])
    assert norm > 1.4 and unclipped.norm().item() == pytest.approx(norm.item())
    objective.zero_grad(set_to_none=True)
    for a, b in zip(exact, gradients(objective, rectangle(batch, 60), call)):
        if a is None:                                    # betas of gu-em
            assert b is None
        else:
            rtol = 1e-6 if a.dtype == torch.float32 else 1e-9
            torch.testing.assert_close(a, b, rtol=rtol, atol=1e-11)
    # fake tensors have no value to read; an exact step reads the places of the tokens
    with FakeTensorMode(allow_non_fake_inputs=True):
        objective = small_objective(**mechanisms)
        fake = Batch(*(torch.empty(x.shape, dtype=x.dtype) for x in batch))
        gradients(objective, fake, call)
        with pytest.raises(DynamicOutputShapeException):
            gradients(objective, fake)


class StandIn:
    """For a graph: runs the function again, with its own inputs, into its own output."""

    def __init__(self, function, inputs):
        self.function = function
        self.inputs = inputs
        self.output = torch.zeros(2)

    def replay(self):
        self.output.copy_(self.function(*self.inputs))


class ReplayOnCPU(Replay):
    recorded = 0

    def record(self, function, inputs):
        self.recorded += 1
        graph = StandIn(function, [x.clone() for x in inputs])
        return graph, graph.inputs, graph.output


def test_a_run_with_graphs(text, tmp_path, monkeypatch):
    """Few graphs for all steps, which find the gradients where they left them."""
    replay = ReplayOnCPU()
    places = set()

    def note_places(objective, *args):
        results = train_step(objective, *args)
        places.add(tuple(p.grad.data_ptr() for p in objective.parameters()))
        return results

    monkeypatch.setattr(train_mt, "check_graphs", lambda *args: None)
    monkeypatch.setattr(train_mt, "Replay", lambda: replay)
    words = "--steps 8 --dropout 0 --reg output --accumulate 2 --clip 0.5"
    assert train(text, f"{words} --name plain") == 0
    assert train(text, f"{words} --name plain --graphs") == 0          # the same run: it has ended
    assert not replay.graphs
    monkeypatch.setattr(train_mt, "train_step", note_places)
    assert train(text, f"{words} --name graphs --graphs") == 0
    assert 0 < replay.recorded < 8 and len(places) == 1
    logs = (rows(tmp_path / "runs" / name, "train") for name in ("plain", "graphs"))
    for plain, graphs in zip(*logs):
        for name in ("loss", "disagreement", "gradient_norm"):
            assert graphs[name] == pytest.approx(plain[name], rel=1e-4)


@pytest.mark.parametrize("machine, max_tokens, compiled, message", [
    (Machine(CPU), 512, False, "--device is cpu"),
    (Machine(torch.device("cuda"), world=2), 512, False, "one process"),
    (Machine(torch.device("cuda")), 16384, False, "--max-tokens below 16384"),
    (Machine(torch.device("cuda")), 512, True, "--graphs needs --no-compile")])
def test_where_graphs_cannot_be(machine, max_tokens, compiled, message, monkeypatch):
    """A graph that cannot be recorded is one line."""
    with pytest.raises(UserError, match=message):
        check_graphs(machine, max_tokens, compiled)
    refuse = Mock(side_effect=torch.AcceleratorError("error: operation not permitted\nCompile it"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with pytest.raises(UserError, match=r"recorded \(.* not permitted\): use --no-graphs$"):
        Replay().record(torch.neg, [torch.zeros(1)])
