"""Tests of what reaches what: gradients, masks, options and precisions on their way through the
modules, which the tests of single equations do not see."""

import by_hand
import em_by_hand
import pytest
import torch
from test_attention import build as build_attention
from test_transformer import attentions, batch, build, config
from torch.nn import functional as F

from attention import Cache
from capsule_transformer import CapsuleRouting, horizontal_routing, vertical_routing
from disagreement import KINDS, output_disagreement, subspace_disagreement
from routing_dynamic import dynamic_routing, squash
from routing_em import em_routing
from transformer import positions

READ = {"values": ["V"], "weights": ["Q", "K"], "outputs": ["Q", "K", "V"]}


@pytest.mark.parametrize("component", ["enc", "cross", "dec"])
@pytest.mark.parametrize("kind", KINDS)
def test_li2018_every_kind_trains_the_projections_it_reads(kind, component):
    """Heads carry the graph: D has a gradient in W^Q, W^K, W^V of the attention it is taken of."""
    model = build(reg=(kind,), reg_at=(f"{component}:1",))
    source, target = batch()
    _, heads = model(source, target)
    model.disagreement(heads, source != 0, target != 0).backward()
    parts = attentions(model)[f"{component}:1"].in_proj.weight.grad.chunk(3)
    learns = [name for name, part in zip("QKV", parts) if part.abs().max() > 1e-12]
    assert learns == READ[KINDS[kind].reads]


def literal_disagreement(kind, heads, query_mask, key_mask, reduce):
    squared = kind.startswith("squared-")
    measured = kind.removeprefix("squared-")
    if measured == "position":
        cell = by_hand.squared_difference if squared else None
        return by_hand.position_double_sum(heads.weights, query_mask, reduce, cell)
    power = 2 if squared else 1
    if measured == "subspace":
        return by_hand.cosine_double_sum(heads.values, key_mask, power)
    return by_hand.cosine_double_sum(heads.outputs, query_mask, power)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@torch.no_grad()
def test_disagreement_of_every_kind(kind, reduce):
    model = build(reg=(kind,), reg_at=("cross:1",))
    source, target = batch()
    s, t = source != 0, target != 0
    _, heads = model(source, target)
    want = literal_disagreement(kind, heads["cross"][0], t, s, reduce)
    assert model.disagreement(heads, s, t, reduce).item() == pytest.approx(want, abs=1e-10)


@torch.no_grad()
def test_a_kind_named_twice_counts_once():
    source, target = batch()
    masks = source != 0, target != 0
    model = build(reg=("output",))
    _, heads = model(source, target)
    once = model.disagreement(heads, *masks)
    model.config = config(reg=("output", "output"))
    assert torch.equal(model.disagreement(heads, *masks), once)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(half):
    V = torch.randn(2, 4, 3, 5).to(half)
    for got, want in ((dynamic_routing(V), dynamic_routing(V.float())),
                      (em_routing(V), em_routing(V.float()))):
        for x, y in zip(got, want):
            assert x.dtype == torch.float32
            assert torch.equal(x, y)
    assert squash(V).dtype == torch.float32
    A = torch.rand(2, 4, 3, 5).to(half)
    for kind in KINDS.values():
        D = kind.D(A)
        assert D.dtype == torch.float32
        assert torch.equal(D, kind.D(A.float()))


@pytest.mark.parametrize("gradient", ["full", "last"])
def test_without_gradients_there_is_no_graph(gradient):
    votes = torch.randn(4, 3, 2, requires_grad=True)
    with torch.no_grad():
        result = em_routing(votes, gradient=gradient, scale_by_activation=False)
    assert not any(x.requires_grad for x in result)


@pytest.mark.parametrize("size", [1e-4, 1e-3, 30.0])
def test_li2019_alg2_at_any_size(size):
    votes = size * torch.randn(4, 3, 2, dtype=torch.float64)
    result = em_routing(votes, scale_by_activation=False)
    for got, want in zip(result, em_by_hand.em_routing(votes)):
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-6)


def test_eps_reaches_the_variance():
    votes = torch.randn(4, 3, 2, dtype=torch.float64)
    for got, want in zip(em_routing(votes, eps=0.5), em_by_hand.em_routing(votes, eps=0.5)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("last", [1, 2, 5])
def test_duan_alg3_the_last_rows_are_those_of_the_whole(last):
    E = torch.randn(2, 3, 5, 5).double()
    keys = torch.arange(5) < torch.tensor([[5], [3]])
    mask = keys[:, None, :, None] & keys[:, None, None, :]
    whole = horizontal_routing(E, mask=mask)
    assert torch.equal(horizontal_routing(E, mask=mask, last=last), whole[:, :, -last:])


@pytest.mark.parametrize("T", [1, 2, 5])
def test_duan_iterations_reach_both_parts(T):
    E = torch.randn(2, 3, 4, 4).double()
    capsule = CapsuleRouting(3, iterations=T).double()
    vertical = vertical_routing(E, capsule.weight, capsule.bias, T)
    torch.testing.assert_close(capsule(E), E + vertical + horizontal_routing(E, T))


@pytest.mark.parametrize("T", [0, -1])
def test_wrong_iterations(T):
    E = torch.randn(3, 4, 4)
    with pytest.raises(ValueError, match="iterations"):
        vertical_routing(E, torch.zeros(3, 3), torch.zeros(3), T)
    with pytest.raises(ValueError, match="iterations"):
        horizontal_routing(E, T)


@pytest.mark.parametrize("padded", [False, True])
def test_the_fused_kernel_gets_a_mask_or_is_causal_never_both(padded, monkeypatch):
    """CPUs take both; a GPU's kernels do not."""
    kernel = F.scaled_dot_product_attention
    asked = []

    def recorded(*args, **settings):
        asked.append((settings["attn_mask"] is not None, settings["is_causal"]))
        return kernel(*args, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    x = torch.randn(2, 4, 6).double()
    keys = torch.ones(2, 1, 1, 4, dtype=torch.bool) if padded else None
    build_attention(6, 3)(x, x, mask=keys, causal=True)
    assert asked == [(padded, not padded)]


def test_the_shortest_vector_that_has_a_direction():
    for function in (subspace_disagreement, output_disagreement):
        for size, want in ((2e-12, -1.0), (5e-13, -1 / 4)):
            heads = torch.ones(2, 1, 1, dtype=torch.float64)
            heads[1] *= size
            assert function(heads).item() == pytest.approx(want, abs=1e-9)


@torch.no_grad()
def test_capsules_step_by_step_see_no_padding_on_the_left():
    """The logits of hidden keys count as 0 in the routing, from the cache too."""
    attention = build_attention(8, 2, parts=("horizontal",)).eval()
    x = torch.randn(1, 4, 8).double()
    keys = torch.tensor([False, True, True, True])[None, None, None]         # [1, 1, 1, L]
    whole, _ = attention(x, x, mask=keys, causal=True)
    cache = Cache()
    for t in range(4):
        new = x[:, t:t + 1]
        part, _ = attention(new, new, keys[..., :t + 1], cache, causal=True)
        if t > 0:
            torch.testing.assert_close(part, whole[:, t:t + 1])


@torch.no_grad()
def test_decoding_computes_no_weights_for_the_disagreement():
    model = build(reg=("position",))
    source, target = batch()
    _, selves, crosses = model.decoder(model.target_embedding(target[:, :1]),
                                       model.encode(source), Cache())
    assert all(heads.weights is None for heads in selves + crosses)


def test_positions_in_bfloat16_are_those_of_float32_rounded():
    found = positions(600, 8, dtype=torch.bfloat16)
    assert torch.equal(found, positions(600, 8).bfloat16())


def test_masked_keys_have_no_weight_whatever_the_logits():
    attention = build_attention(8, 2)
    x = 1e4 * torch.randn(1, 4, 8).double()
    mask = torch.tensor([True, True, False, False])[None, None, None]
    _, heads = attention(x, x, mask=mask, need_weights=True)
    assert not heads.weights[..., 2:].any()
