"""Tests of fast_routing.py: recomputed and compiled routings equal the plain ones, in values, gradients and memory."""
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import fast_routing
from aggregation import CapsuleAggregation, RoutingAggregation
from capsule_transformer import CapsuleRouting, horizontal_routing, vertical_routing
from fast_routing import compile_routing, routed
from routing_dynamic import dynamic_routing
from routing_em import em_routing

ROOT = Path(__file__).resolve().parents[1]
MASK = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]           # [2, 1, 1, 5]


def normal(*shape):
    """Standard normal numbers that take gradients."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


ROUTINGS = {                    # name -> (the routing of its arguments, the arguments)
    "em": (lambda T, *x: em_routing(*x, iterations=T, coupling=False).capsules, [(6, 3, 4, 2), (4,), (4,)]),
    "em, whole": (lambda T, *x: em_routing(*x, iterations=T).coupling, [(6, 3, 4, 2), (4,), (4,)]),
    "dynamic": (lambda T, *x: dynamic_routing(*x, iterations=T, coupling=False).capsules, [(6, 3, 4, 2)]),
    "vertical": (lambda T, *x: vertical_routing(*x, iterations=T, mask=MASK), [(2, 3, 5, 5), (3, 3), (3,)]),
    "horizontal": (lambda T, *x: horizontal_routing(*x, iterations=T, mask=MASK), [(2, 3, 5, 5)]),
}
MODULES = {
    "em": lambda T: RoutingAggregation(16, 4, routing="em", iterations=T),
    "dynamic": lambda T: RoutingAggregation(16, 4, routing="dynamic", iterations=T),
    "gu-em": lambda T: CapsuleAggregation(16, 4, routing="em", iterations=T),
    "gu-dynamic": lambda T: CapsuleAggregation(16, 4, routing="dynamic", iterations=T),
    "capsule": lambda T: CapsuleRouting(4, iterations=T),
}


def gradients(out, arguments):
    """The output and the gradients of a fixed weighting of it."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), arguments)]


def saved_bytes(f) -> int:
    """Bytes of the tensors that f() keeps for its backward pass, each storage once."""
    storages = {}

    def keep(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = f()
    assert out.requires_grad
    return sum(storages.values())


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("name", ROUTINGS)
def test_recomputed_equals_plain(name, T):
    routing, shapes = ROUTINGS[name]
    arguments = [normal(*shape) for shape in shapes]
    expected, out = routing(T, *arguments), routed(partial(routing, T), *arguments)
    assert torch.equal(out, expected)
    weights = torch.randn_like(out)
    for ours, theirs in zip(torch.autograd.grad((out * weights).sum(), arguments, allow_unused=True),
                            torch.autograd.grad((expected * weights).sum(), arguments, allow_unused=True)):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ROUTINGS)
def test_memory_does_not_grow_with_the_iterations(name):
    routing, shapes = ROUTINGS[name]
    arguments = [normal(*shape) for shape in shapes]
    sizes = [saved_bytes(lambda: routed(partial(routing, T), *arguments)) for T in (2, 3, 10)]
    assert sizes[0] == sizes[1] == sizes[2] <= sum(x.nbytes for x in arguments)
    assert saved_bytes(lambda: routing(10, *arguments)) > 2 * saved_bytes(lambda: routing(2, *arguments))


PIECEWISE = {                   # name -> (the routing, its arguments, its settings)
    "em": (em_routing, [normal(6, 3, 4, 2), normal(4), normal(4)], dict(coupling=False)),
    "em, coupling": (em_routing, [normal(6, 3, 4, 2)], {}),
    "dynamic, 4 rows of coupling": (dynamic_routing, [normal(4, 4, 4, 2)], {}),
    "vertical": (vertical_routing, [normal(2, 3, 5, 5), normal(3, 3), normal(3), 3, MASK], {}),
    "horizontal": (horizontal_routing, [normal(2, 3, 5, 5), 3, MASK, 2], {}),
    "horizontal, one mask for all": (horizontal_routing, [normal(2, 3, 5, 5), 3, MASK[1:]], {}),
}


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("name", PIECEWISE)
def test_in_pieces_equals_whole(name, rows, monkeypatch):
    """A piece is some rows of the batch; every routing sees each row by itself, and its mask with it."""
    routing, arguments, settings = PIECEWISE[name]
    votes, learned = arguments[0], [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
    seen = []

    def watched(piece, *others, **settings):
        seen.append(len(piece))
        return routing(piece, *others, **settings)
    threads = torch.get_num_threads()
    monkeypatch.setattr(fast_routing, "PIECE", rows * votes[0].numel() / threads)
    ours, theirs = routed(watched, *arguments, **settings), routing(*arguments, **settings)
    assert sum(seen) == len(votes) and max(seen) <= rows
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        ours, theirs = [ours], [theirs]
    assert [x is None for x in ours] == [x is None for x in theirs]
    for mine, other in zip(ours, theirs):
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
    for mine, other in zip(gradients(ours[0], learned), gradients(theirs[0], learned)):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def test_votes_of_which_more_varies_go_whole(monkeypatch):
    """Logits, of which the lengths vary too: a piece of one row would be another compiled form for every length."""
    monkeypatch.setattr(fast_routing, "PIECE", 1)
    seen = []
    routed(lambda votes: seen.append(len(votes)) or votes, torch.randn(6, 3, 4, 4), varying=(0, 2, 3))
    assert seen == [6]


def test_pieces_keep_nothing_but_the_arguments(monkeypatch):
    monkeypatch.setattr(fast_routing, "PIECE", 1)
    votes = normal(6, 3, 4, 2)
    sizes = [saved_bytes(lambda: routed(em_routing, votes, iterations=T, coupling=False).capsules) for T in (2, 10)]
    assert sizes[0] == sizes[1] <= votes.nbytes


@pytest.mark.parametrize("name", MODULES)
def test_memory_of_the_modules_does_not_grow_with_the_iterations(name):
    heads = torch.randn(2, 4, 5, 5 if name == "capsule" else 4, requires_grad=True)
    sizes = [saved_bytes(lambda: MODULES[name](T)(heads)) for T in (1, 3, 10)]
    assert sizes[0] == sizes[1] == sizes[2]


def test_without_gradients_nothing_is_computed_twice():
    calls = []

    def routing(x):
        calls.append(1)
        return x * x
    votes = normal(2, 3)
    with torch.no_grad():
        routed(routing, votes)
    routed(routing, votes.detach())
    assert len(calls) == 2
    routed(routing, votes).sum().backward()
    assert len(calls) == 4
    assert torch.equal(votes.grad, 2 * votes)


@pytest.fixture
def compiling():
    """Routing that is compiled; skips the test on a machine without a compiler."""
    if not compile_routing():
        pytest.skip("no compiler here")
    yield
    compile_routing(on=False)


def test_compiled_equals_eager(compiling):
    """One compiled form of EM serves every number of tokens, and gives the eager values and gradients."""
    settings = dict(iterations=3, coupling=False)
    torch._dynamo.utils.counters.clear()
    for tokens in (7, 12, 5):
        arguments = [normal(tokens, 3, 16, 1), normal(16), normal(16)]
        ours, theirs = routed(em_routing, *arguments, **settings), em_routing(*arguments, **settings)
        for ours, theirs in zip(gradients(ours.capsules, arguments), gradients(theirs.capsules, arguments)):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compiled_capsule_attention_takes_a_batch_of_one_sentence(compiling):
    """After a larger one: torch.compile makes a form of its own for a dimension of 1."""
    for B, L in ((3, 6), (1, 5)):
        E = normal(B, 2, L, L)
        ours, theirs = routed(horizontal_routing, E, 2, None, L, varying=(0, 2, 3)), horizontal_routing(E, 2)
        for x, y in zip(gradients(ours, [E]), gradients(theirs, [E])):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_without_a_compiler_one_line_and_the_eager_routing(tmp_path):
    code = ("import torch, fast_routing as f, routing_dynamic as r\n"
            "assert not f.compile_routing()\n"
            "x = torch.randn(5, 3, 4, 2)\n"
            "assert torch.equal(f.routed(r.dynamic_routing, x).capsules, r.dynamic_routing(x).capsules)\n")
    environment = {**os.environ, "CXX": str(tmp_path / "none"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("--compile: this machine cannot compile")
