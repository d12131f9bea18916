"""Tests of fast_routing.py: every fast form equals the routing as it stands, in values, gradients
and memory."""

import functools
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor

from aggregation import RoutingAggregation, random_coupling
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import CapsuleRouting, horizontal_routing, vertical_routing
from nmt import fast_dropout, fast_em, fast_linear, fast_routing
from nmt.fast_routing import can_compile, compile_layers, install, of_logits, of_votes
from routing_dynamic import dynamic_routing
from routing_em import em_routing
from transformer import Transformer, TransformerConfig

ROOT = Path(__file__).resolve().parents[2]
MASK = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]  # [2, 1, 1, 5]


def normal(*shape):
    """Standard normal numbers that take gradients."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def gradients(out, arguments):
    """The output and the gradients of a fixed weighting of it."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), arguments, allow_unused=True)]


def assert_alike(ours, theirs, arguments):
    """The same values and the same gradients of the arguments."""
    for mine, other in zip(gradients(ours, arguments), gradients(theirs, arguments), strict=True):
        if other is None:
            assert mine is None
        else:
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


VOTES = {  # name -> (routing, shapes of its learned arguments, settings)
    "em, full": (em_routing, [(2, 6, 3, 4, 2), (4,), (4,)], dict(gradient="full")),
    "em, last": (em_routing, [(2, 6, 3, 4, 2), (4,), (4,)], dict(gradient="last")),
    "em, means": (
        em_routing,
        [(6, 3, 4, 2), (4,), (4,)],
        dict(gradient="last", scale_by_activation=False),
    ),
    "em, one dimension": (em_routing, [(2, 6, 3, 8, 1), (8,), (8,)], dict(gradient="last")),
    "em, one dimension, means": (
        em_routing,
        [(6, 3, 8, 1), (8,), (8,)],
        dict(gradient="last", scale_by_activation=False, schedule="released"),
    ),
    "em, sum": (em_routing, [(6, 3, 4, 2), (4,), (4,)], dict(density="sum", schedule="released")),
    "em, no activations": (em_routing, [(6, 3, 4, 2)], dict(gradient="last")),
    "dynamic": (dynamic_routing, [(2, 6, 3, 4, 2)], {}),
    "dynamic, not normalized": (dynamic_routing, [(6, 3, 4, 2)], dict(normalize=False)),
}


@pytest.mark.parametrize("T", [1, 2, 3])
@pytest.mark.parametrize("name", VOTES)
def test_fast_votes_equal_the_routing_as_it_stands(name, T):
    routing, shapes, settings = VOTES[name]
    arguments = [normal(*shape) for shape in shapes]
    ours = of_votes(routing)(*arguments, iterations=T, **settings)
    theirs = routing(*arguments, iterations=T, **settings)
    assert_alike(ours.capsules, theirs.capsules, arguments)


def test_capsules_that_hardly_any_vote_chose_are_routed_as_written():
    """Where a sum of couplings has lost its digits the form of nmt/fast_em.py gives up."""
    votes = normal(6, 3, 8, 1)
    beta_a = normal(8)
    beta_mu = normal(8)
    settings = dict(iterations=3, eps=1e-9, schedule="released", gradient="last")
    assert fast_em.covers(votes, (beta_a, beta_mu), None, **settings)
    assert fast_em.em_capsules(votes, beta_a, beta_mu, **settings) is not None
    with torch.no_grad():
        beta_a[3] = -1e5
    assert fast_em.em_capsules(votes, beta_a, beta_mu, **settings) is None
    arguments = [votes, beta_a, beta_mu]
    ours = of_votes(em_routing)(*arguments, **settings).capsules
    assert_alike(ours, em_routing(*arguments, **settings).capsules, arguments)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", VOTES)
def test_in_pieces_equals_whole(name, rows, monkeypatch):
    """A piece is some items of the batch: every item is routed by itself, from where it starts."""
    routing, shapes, settings = VOTES[name]
    arguments = [normal(*shape) for shape in shapes]
    start = random_coupling(arguments[0]).double()
    seen = []
    form = fast_routing.SHORTER[routing]

    def watched(piece, *others, **settings):
        seen.append(len(piece))
        return form(piece, *others, **settings)

    monkeypatch.setitem(fast_routing.SHORTER, routing, watched)
    monkeypatch.setattr(fast_routing, "PIECE", rows * 24 / torch.get_num_threads())
    ours = of_votes(routing)(*arguments, start=start, **settings).capsules
    assert sum(seen) == arguments[0].shape[:-3].numel() and max(seen) <= rows
    assert_alike(ours, routing(*arguments, start=start, **settings).capsules, arguments)


@pytest.mark.parametrize("T", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("scale", [True, False])
def test_em_of_one_dimension_in_pieces(scale, rows, T, monkeypatch):
    """12 items, of which `rows` go through at a time."""
    monkeypatch.setattr(fast_em, "PIECE", rows * 24 / torch.get_num_threads())
    arguments = [normal(2, 6, 3, 8, 1), normal(8), normal(8)]
    cuts = fast_em.pieces(arguments[0].flatten(0, 1))
    assert len(cuts) == -(-12 // rows)
    settings = dict(iterations=T, gradient="last", scale_by_activation=scale)
    ours = of_votes(em_routing)(*arguments, **settings).capsules
    assert_alike(ours, em_routing(*arguments, **settings).capsules, arguments)


@pytest.mark.parametrize("T", [1, 3])
def test_fast_logits_equal_the_routing_as_it_stands(T):
    E = normal(2, 3, 5, 5)
    weight = normal(3, 3)
    bias = normal(3)
    assert_alike(
        of_logits(vertical_routing)(E, weight, bias, T, MASK),
        vertical_routing(E, weight, bias, T, MASK),
        [E, weight, bias],
    )
    assert_alike(
        of_logits(horizontal_routing)(E, T, MASK, 2), horizontal_routing(E, T, MASK, 2), [E]
    )


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


MODULES = {
    "em": lambda T: RoutingAggregation(16, 4, routing="em", iterations=T, gradient="last"),
    "em, full": lambda T: RoutingAggregation(16, 4, routing="em", iterations=T, gradient="full"),
    "dynamic": lambda T: RoutingAggregation(16, 4, routing="dynamic", iterations=T),
    "gu-em": lambda T: CapsuleAggregation(16, 4, routing="em", iterations=T, gradient="last"),
    "gu-dynamic": lambda T: CapsuleAggregation(16, 4, routing="dynamic", iterations=T),
    "capsule": lambda T: CapsuleRouting(4, iterations=T),
}


@pytest.mark.parametrize("name", MODULES)
def test_memory_does_not_grow_with_the_iterations(name):
    """As the modules stand it does, but for EM whose gradient runs through the last M-step
    alone."""
    heads = torch.randn(2, 4, 5, 5 if name == "capsule" else 4, requires_grad=True)
    sizes = [saved_bytes(lambda: install(MODULES[name](T))(heads)) for T in (2, 3, 10)]
    assert sizes[0] == sizes[1] == sizes[2]
    plain = [saved_bytes(lambda: MODULES[name](T)(heads)) for T in (2, 10)]
    assert plain[0] < plain[1] or name in ("em", "gu-em")


@pytest.mark.parametrize("agg", ["em", "dynamic", "gu-em", "gu-dynamic"])
@pytest.mark.parametrize("coupling", ["routed", "random"])
def test_install_changes_no_number_of_a_model(agg, coupling):
    config = TransformerConfig(
        20,
        d_model=8,
        heads=2,
        layers=2,
        d_ff=8,
        agg=agg,
        coupling=coupling,
        capsule_attention=("enc", "dec"),
    )
    model = Transformer(config).double().eval()
    ids = torch.randint(4, 20, (3, 7))
    torch.manual_seed(1)  # of the random coupling
    want = model(ids, ids)[0]
    assert install(model) is model
    routing = [module for module in model.modules() if hasattr(module, "route")]
    assert routing and all(module.route.__module__ == "nmt.fast_routing" for module in routing)
    torch.manual_seed(1)
    torch.testing.assert_close(model(ids, ids)[0], want)


def test_without_gradients_nothing_is_computed_twice():
    calls = []

    def routing(x):
        calls.append(1)
        return x * x

    votes = normal(2, 3)
    with torch.no_grad():
        fast_routing.recomputed(routing, votes)
    fast_routing.recomputed(routing, votes.detach())
    assert len(calls) == 2
    fast_routing.recomputed(routing, votes).sum().backward()
    assert len(calls) == 4
    assert torch.equal(votes.grad, 2 * votes)


@pytest.fixture
def compiling():
    """Skips the test on a machine without a compiler. The compiler trusts the processor's word on
    what it can do: otherwise it compiles a program for every set of instructions, to see."""
    with inductor.patch({"cpp.vec_isa_ok": True}):
        if not can_compile():
            pytest.skip("no compiler here")
        yield


def test_compiled_equals_eager(compiling):
    """One compiled form of EM serves every number of tokens, and gives the eager values and
    gradients; capsule attention takes a batch of one sentence after a larger one: torch.compile
    makes a form of its own for a dimension of 1."""
    torch._dynamo.utils.counters.clear()
    fast = of_votes(em_routing, compiled=True)
    for tokens in (7, 12, 5):
        arguments = [normal(tokens, 3, 16, 1), normal(16), normal(16)]
        ours = fast(*arguments, iterations=3, gradient="last").capsules
        assert_alike(
            ours, em_routing(*arguments, iterations=3, gradient="last").capsules, arguments
        )
    # the couplings, and the last M-step
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    for B, L in ((3, 6), (1, 5)):
        E = normal(B, 2, L, L)
        ours = of_logits(horizontal_routing, compiled=True)(E, 2, None, L)
        assert_alike(ours, horizontal_routing(E, 2), [E])


def test_layers_are_compiled_in_training_alone(monkeypatch):
    """tests/soak/compile_model.py holds their losses against the eager ones, in a minute or two."""
    ran = []

    def compiler(forward, dynamic):
        def compiled(*arguments, **settings):
            ran.append(dynamic)
            return forward(*arguments, **settings)
        return compiled

    monkeypatch.setattr(torch, "compile", compiler)
    config = TransformerConfig(50, d_model=8, heads=2, layers=2, d_ff=16, dropout=0.0)
    model = compile_layers(install(Transformer(config)))
    source = torch.randint(3, 50, (3, 7))
    target = torch.randint(3, 50, (3, 5))
    trained, _ = model(source, target)
    assert ran == [True] * 4
    tested, _ = model.eval()(source, target)
    assert ran == [True] * 4
    torch.testing.assert_close(tested, trained)


def test_the_fast_forms_leave_a_layer_in_one_graph(monkeypatch):
    """One form for all layers of a kind: more would end at the limit of recompilations, uncompiled;
    fullgraph raises where a graph breaks."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward
    compiler = functools.partial(torch.compile, backend=backend, fullgraph=True)
    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr(fast_linear, "faster", lambda: True)
    torch._dynamo.reset()
    config = TransformerConfig(50, d_model=8, heads=2, layers=5, d_ff=16, dropout=0.1)
    model = fast_linear.install(fast_dropout.install(Transformer(config)))
    compile_layers(model).train()
    for B, L_s, L_t in ((3, 7, 5), (4, 6, 9), (2, 8, 6)):
        source = torch.randint(3, 50, (B, L_s))
        target = torch.randint(3, 50, (B, L_t))
        model(source, target)
    # the encoder's and the decoder's
    assert len(graphs) == 2


def test_without_a_compiler_one_line_and_the_eager_routing(monkeypatch, capsys):
    def fails(function):
        raise RuntimeError("Compiler: none is not found.\nAnd much more")
    monkeypatch.setattr(torch, "compile", fails)
    compiled = can_compile()
    assert not compiled
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("--compile: this machine cannot compile (Compiler: none is not found.")
    votes = torch.randn(5, 3, 4, 2)
    capsules = of_votes(dynamic_routing, compiled)(votes).capsules
    torch.testing.assert_close(capsules, dynamic_routing(votes).capsules)
