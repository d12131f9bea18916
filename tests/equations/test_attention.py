"""attention.py against Li 2019 Eq. 1-2 (= Gu 2019 Eq. 1-2) term by term, against
torch.nn.MultiheadAttention, and against itself: the fused kernel and the explicit path, the cache
and the full pass."""

import math

import by_hand
import pytest
import torch
from torch import nn

from aggregation import LinearAggregation, RoutingAggregation
from attention import Cache, MultiHeadAttention
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import CapsuleRouting

# B, d, L_q, L_k, H
SIZES = [(1, 1, 1, 1, 1), (2, 4, 3, 6, 2), (2, 6, 4, 5, 3), (1, 8, 1, 1, 8), (3, 4, 5, 2, 1)]
AGGREGATIONS = {"linear": lambda d, heads: LinearAggregation(d),
                "dynamic": lambda d, heads: RoutingAggregation(d, heads, routing="dynamic"),
                "em": lambda d, heads: RoutingAggregation(d, heads, routing="em"),
                "gu-dynamic": lambda d, heads: CapsuleAggregation(d, heads, routing="dynamic"),
                "gu-em": lambda d, heads: CapsuleAggregation(d, heads, routing="em")}


def close(x, y, tolerance=1e-10):
    return x.shape == y.shape and torch.allclose(x, y, rtol=tolerance, atol=tolerance)


def build(d, heads, agg="linear", parts=(), dropout=0.0):
    """A float64 attention whose every parameter is random, so that none of them is at a value that
    hides an error."""
    capsule = CapsuleRouting(heads, parts=parts, iterations=3) if parts else None
    attention = MultiHeadAttention(d, heads, dropout, AGGREGATIONS[agg](d, heads), capsule).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, dtype=torch.float64) / math.sqrt(parameter.shape[-1])
            )
    return attention


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()[None, None]


def literal_heads(attention, query, memory, heads, mask=None):
    """(V, A, O) of the attention's own weights, one number at a time."""
    return by_hand.attention(
        attention.in_proj.weight, attention.in_proj.bias, query, memory, heads, mask
    )


@pytest.mark.parametrize("B,d,L_q,L_k,H", SIZES)
@torch.no_grad()
def test_li2019_eq1_eq2_li2018_background_li2021_eq1_eq2_duan_eq1_eq2_heads(B, d, L_q, L_k, H):
    attention = build(d, H)
    query = torch.randn(B, L_q, d).double()
    memory = torch.randn(B, L_k, d).double()
    out, heads = attention(query, memory, need_weights=True)
    values, weights, outputs = literal_heads(attention, query, memory, H)
    assert close(heads.values, values, 1e-12)
    assert close(heads.weights, weights, 1e-12)
    assert close(heads.outputs, outputs, 1e-12)
    # Eq. 3-4: O = [O^1, ..., O^H] W^O
    concatenated = torch.cat([outputs[:, h] for h in range(H)], dim=-1)  # [B, L_q, d]
    linear = attention.aggregation.output
    assert close(out, nn.functional.linear(concatenated, linear.weight, linear.bias), 1e-12)


@torch.no_grad()
def test_gu_eq1_eq2_masked_heads():
    B = 2
    d = 6
    L_q = 3
    L_k = 4
    H = 3
    attention = build(d, H)
    query = torch.randn(B, L_q, d).double()
    memory = torch.randn(B, L_k, d).double()
    mask = torch.rand(B, 1, L_q, L_k) < 0.6
    mask[..., 0] = True
    _, heads = attention(query, memory, mask=mask, need_weights=True)
    values, weights, outputs = literal_heads(attention, query, memory, H, mask[:, 0])
    assert close(heads.values, values, 1e-12)
    assert close(heads.weights, weights, 1e-12)
    assert close(heads.outputs, outputs, 1e-12)
    assert (heads.weights.masked_select(~mask.expand_as(heads.weights)) == 0).all()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_causal_hides_what_comes_after(padded, need_weights):
    """causal=True is the triangular mask, with and without a mask of keys, whole and step by step
    with a cache."""
    B = 2
    d = 6
    L = 4
    H = 3
    attention = build(d, H)
    x = torch.randn(B, L, d).double()
    keys = (
        (torch.arange(L) < torch.tensor([L, 2])[:, None])[:, None, None] if padded else None
    )  # [B, 1, 1, L]
    seen = causal(L) if keys is None else causal(L) & keys
    want = literal_heads(attention, x, x, H, seen.expand(B, 1, L, L)[:, 0])
    out, heads = attention(x, x, mask=keys, need_weights=need_weights, causal=True)
    assert close(heads.outputs, want[2], 1e-12)
    assert not need_weights or close(heads.weights, want[1], 1e-12)
    for steps in ((1, 1, 1, 1), (2, 2), (1, 3)):
        cache, stop = Cache(), 0
        for step in steps:
            start, stop = stop, stop + step
            new = x[:, start:stop]
            mask = None if keys is None else keys[..., :stop]
            part, _ = attention(new, new, mask, cache, need_weights, causal=True)
            assert close(part, out[:, start:stop])


@pytest.mark.parametrize("masked", ["no mask", "keys", "causal", "full"])
def test_fused_kernel_equals_explicit_path(masked):
    B = 3
    d = 8
    L = 5
    H = 2
    attention = build(d, H)
    x = torch.randn(B, L, d).double()
    keys = torch.arange(L) < torch.tensor([5, 3, 1])[:, None]
    mask = {"no mask": None, "keys": keys[:, None, None], "causal": causal(L),
            "full": keys[:, None, None] & causal(L)}[masked]
    assert attention(x, x, mask=mask)[1].weights is None           # nobody asked
    gradients = []
    for need_weights in (False, True):
        inputs = x.clone().requires_grad_()
        out, heads = attention(inputs, inputs, mask=mask, need_weights=need_weights)
        assert (heads.weights is None) != need_weights
        attention.zero_grad()
        out.square().sum().backward()
        gradients.append([out, heads.values, heads.outputs, inputs.grad]
                         + [p.grad for p in attention.parameters()])
    for fused, explicit in zip(*gradients):
        assert close(fused, explicit)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("agg", list(AGGREGATIONS))
def test_outputs_are_what_the_aggregation_gets(agg, need_weights):
    attention = build(8, 2, agg, dropout=0.4).train()
    x = torch.randn(2, 5, 8).double()
    out, heads = attention(x, x, need_weights=need_weights)
    assert out.shape == (2, 5, 8) and heads.values.shape == heads.outputs.shape == (2, 2, 5, 4)
    assert close(out, attention.aggregation(heads.outputs), 1e-12)


@pytest.mark.parametrize("H", [1, 2, 8])
@pytest.mark.parametrize("need_weights", [False, True])
def test_linear_equals_torch_multihead_attention(H, need_weights):
    B = 3
    d = 8
    L_q = 4
    L_k = 5
    attention = build(d, H)
    theirs = nn.MultiheadAttention(d, H, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(attention.in_proj.weight)
        theirs.in_proj_bias.copy_(attention.in_proj.bias)
        theirs.out_proj.weight.copy_(attention.aggregation.output.weight)
        theirs.out_proj.bias.copy_(attention.aggregation.output.bias)
    query = torch.randn(B, L_q, d).double()
    memory = torch.randn(B, L_k, d).double()
    keys = torch.arange(L_k) < torch.tensor([5, 2, 3])[:, None]
    out, heads = attention(query, memory, mask=keys[:, None, None], need_weights=need_weights)
    want, weights = theirs(
        query, memory, memory, key_padding_mask=~keys, average_attn_weights=False
    )
    assert close(out, want)
    if need_weights:
        assert close(heads.weights, weights)
    out, _ = attention(query, query, mask=causal(L_q), need_weights=need_weights)
    want, _ = theirs(query, query, query, attn_mask=~causal(L_q)[0, 0])
    assert close(out, want)


@pytest.mark.parametrize("steps", [(1,) * 5, (2, 1, 2), (3, 2), (5,)])
@pytest.mark.parametrize("parts", [(), ("horizontal",)])
@pytest.mark.parametrize("agg", list(AGGREGATIONS))
@torch.no_grad()
def test_cache_equals_full_pass(agg, parts, steps):
    B = 2
    d = 8
    L = 5
    H = 2
    attention = build(d, H, agg, parts).eval()
    x = torch.randn(B, L, d).double()
    full, _ = attention(x, x, mask=causal(L))
    cache, start = Cache(), 0
    for step in steps:
        stop = start + step
        new = x[:, start:stop]
        out, _ = attention(new, new, mask=causal(L)[..., start:stop, :stop], cache=cache)
        assert close(out, full[:, start:stop]), f"positions {start} to {stop}"
        start = stop


@torch.no_grad()
def test_cache_of_cross_attention_keeps_the_first_memory():
    attention = build(8, 2).eval()
    query = torch.randn(2, 3, 8).double()
    memory = torch.randn(2, 4, 8).double()
    mask = (torch.arange(4) < torch.tensor([4, 2])[:, None])[:, None, None]
    full, _ = attention(query, memory, mask=mask)
    cache = Cache()
    for l in range(3):
        given = memory if l == 0 else torch.full_like(memory, 7.0)
        out, _ = attention(query[:, l : l + 1], given, mask=mask, cache=cache)
        assert close(out, full[:, l : l + 1])


@pytest.mark.parametrize("index", [[1, 0], [1, 1], [0, 0, 1, 1, 1], [1]])
@pytest.mark.parametrize("parts", [(), ("horizontal",)])
@torch.no_grad()
def test_cache_reorder_follows_the_beams(parts, index):
    attention = build(8, 2, parts=parts).eval()
    x = torch.randn(2, 3, 8).double()
    index = torch.tensor(index)
    cache = Cache()
    for l in range(2):
        new = x[:, l : l + 1]
        attention(new, new, cache=cache)
    cache.reorder(index)
    newest = torch.randn(len(index), 1, 8).double()
    out, _ = attention(newest, newest, cache=cache)
    beams = torch.cat([x[index, :2], newest], dim=1)
    full, _ = attention(beams, beams, mask=causal(3))
    assert close(out, full[:, -1:])


@torch.no_grad()
def test_cache_reorder_follows_the_beams_in_cross_attention():
    attention = build(8, 2).eval()
    query = torch.randn(2, 1, 8).double()
    memory = torch.randn(2, 4, 8).double()
    index = torch.tensor([1, 1, 0])
    cache = Cache()
    attention(query, memory, cache=cache)
    cache.reorder(index)
    out, _ = attention(query[index], memory[index], cache=cache)
    full, _ = attention(query[index], memory[index])
    assert close(out, full)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("parts", [(), ("vertical", "horizontal")])
@pytest.mark.parametrize("agg", list(AGGREGATIONS))
def test_a_sentence_without_any_key_harms_nobody(agg, parts, need_weights):
    attention = build(8, 2, agg, parts)
    x = torch.randn(3, 4, 8).double()
    keys = torch.arange(4) < torch.tensor([4, 0, 2])[:, None]
    inputs = x.clone().requires_grad_()
    out, _ = attention(inputs, inputs, mask=keys[:, None, None], need_weights=need_weights)
    out[keys].square().sum().backward()
    assert out[keys].isfinite().all()
    assert inputs.grad[keys].isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())
    with torch.no_grad():
        for b, length in ((0, 4), (2, 2)):
            sentence = x[b : b + 1, :length]
            assert close(out[b : b + 1, :length], attention(sentence, sentence)[0])


@pytest.mark.parametrize("parts", [(), ("vertical",), ("horizontal",), ("vertical", "horizontal")])
@pytest.mark.parametrize("agg", list(AGGREGATIONS))
@torch.no_grad()
def test_padding_changes_nothing(agg, parts):
    attention = build(8, 2, agg, parts).eval()
    x = torch.randn(3, 5, 8).double()
    lengths = [5, 1, 3]
    keys = torch.arange(5) < torch.tensor(lengths)[:, None]
    padded, _ = attention(x, x, mask=keys[:, None, None])
    for b, length in enumerate(lengths):
        sentence = x[b : b + 1, :length]
        alone, _ = attention(sentence, sentence)
        assert close(padded[b : b + 1, :length], alone)


BOTH_PARTS = ("vertical", "horizontal")


@pytest.mark.parametrize("agg, parts, need_weights",
                         [
                             ("linear", (), False),
                             ("linear", (), True),
                             ("linear", BOTH_PARTS, True),
                             ("em", (), False),
                             ("gu-em", BOTH_PARTS, False),
                         ])
def test_gradcheck_attention(agg, parts, need_weights):
    """The fused and the explicit path; every aggregation has a gradcheck of its own."""
    attention = build(4, 2, agg, parts)
    x = torch.randn(1, 3, 4).double().requires_grad_()
    mask = torch.tensor([[True, True, False]])[:, None, None]
    names, parameters = zip(*attention.named_parameters())

    def outputs(x, *parameters):
        out, heads = torch.func.functional_call(
            attention,
            dict(zip(names, parameters)),
            (x, x),
            {"mask": mask, "need_weights": need_weights},
        )
        return (out[:, :2],) + ((heads.weights[:, :, :2],) if need_weights else ())

    assert torch.autograd.gradcheck(outputs, (x,) + parameters, atol=1e-6)


def test_heads_must_divide_the_model():
    with pytest.raises(ValueError, match="heads"):
        MultiHeadAttention(8, 3)


@pytest.mark.parametrize("padded", [False, True])
def test_the_fused_kernel_gets_a_mask_or_is_causal_never_both(padded, monkeypatch):
    """CPUs take both; a GPU's kernels do not."""
    kernel = nn.functional.scaled_dot_product_attention
    asked = []

    def recorded(*args, **settings):
        asked.append((settings["attn_mask"] is not None, settings["is_causal"]))
        return kernel(*args, **settings)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", recorded)
    x = torch.randn(2, 4, 6).double()
    keys = torch.ones(2, 1, 1, 4, dtype=torch.bool) if padded else None
    build(6, 3)(x, x, mask=keys, causal=True)
    assert asked == [(padded, not padded)]


@torch.no_grad()
def test_capsules_step_by_step_see_no_padding_on_the_left():
    """The logits of hidden keys count as 0 in the routing, from the cache too."""
    attention = build(8, 2, parts=("horizontal",)).eval()
    x = torch.randn(1, 4, 8).double()
    keys = torch.tensor([False, True, True, True])[None, None, None]         # [1, 1, 1, L]
    whole, _ = attention(x, x, mask=keys, causal=True)
    cache = Cache()
    for t in range(4):
        new = x[:, t:t + 1]
        part, _ = attention(new, new, keys[..., :t + 1], cache, causal=True)
        if t > 0:
            torch.testing.assert_close(part, whole[:, t:t + 1])


def test_masked_keys_have_no_weight_whatever_the_logits():
    attention = build(8, 2)
    x = 1e4 * torch.randn(1, 4, 8).double()
    mask = torch.tensor([True, True, False, False])[None, None, None]
    _, heads = attention(x, x, mask=mask, need_weights=True)
    assert not heads.weights[..., 2:].any()
