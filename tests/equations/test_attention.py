"""attention.py against Li 2019 Eq. 1-4 (Gu 2019 Eq. 1-2) term by term, and against itself: the
fused kernel and the explicit path, the cache and the full pass."""
import by_hand
import pytest
import torch
from helpers import build_aggregation, causal, close, normal, padding, randomize

from attention import Cache, MultiHeadAttention
from capsule_transformer import CapsuleRouting

# B, d, L_q, L_k, H
SIZES = [(1, 1, 1, 1, 1), (2, 4, 3, 6, 2), (2, 6, 4, 5, 3), (1, 8, 1, 1, 8), (3, 4, 5, 2, 1)]
BOTH = ("vertical", "horizontal")
both_paths = pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])


def build(d, heads, agg="linear", parts=()):
    """A float64 attention with random parameters."""
    capsule = CapsuleRouting(heads, parts=parts, iterations=3) if parts else None
    aggregation = build_aggregation(agg, d, heads)
    return randomize(MultiHeadAttention(d, heads, 0.0, aggregation, capsule))


def literal_heads(attention, query, memory, mask=None):
    """(V, A, O) of the attention's own weights, one number at a time."""
    linear = attention.in_proj
    return by_hand.attention(linear.weight, linear.bias, query, memory, attention.heads, mask)


# The equations


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("B, d, L_q, L_k, H", SIZES)
@torch.no_grad()
def test_li2019_eq1_to_eq4_duan_eq1_to_eq3_gu_eq1_eq2_heads_of_any_shape(B, d, L_q, L_k, H, masked):
    attention = build(d, H)
    query = normal(B, L_q, d)
    memory = normal(B, L_k, d)
    mask = torch.rand(B, 1, L_q, L_k) < 0.6 if masked else torch.ones(B, 1, L_q, L_k).bool()
    mask[..., 0] = True
    out, heads = attention(query, memory, mask if masked else None, need_weights=True)
    for tensor, expected in zip(heads, literal_heads(attention, query, memory, mask[:, 0])):
        assert close(tensor, expected, 1e-12)
    # Eq. 3-4: O = [O^1, ..., O^H] W^O
    concatenated = torch.cat([heads.outputs[:, h] for h in range(H)], dim=-1)    # [B, L_q, d]
    assert close(out, attention.aggregation.output(concatenated), 1e-12)


@both_paths
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_causal_hides_what_comes_after(padded, need_weights):
    attention = build(6, 3)
    x = normal(2, 4, 6)
    keys = padding(4, 2) if padded else padding(4, 4)
    _, A, O = literal_heads(attention, x, x, (causal(4) & keys)[:, 0])
    mask = keys if padded else None
    out, heads = attention(x, mask=mask, need_weights=need_weights, causal=True)
    assert close(heads.outputs, O, 1e-12)
    assert not need_weights or close(heads.weights, A, 1e-12)
    by_mask, _ = attention(x[:1], mask=causal(4)[0, 0], need_weights=need_weights)
    assert close(by_mask, out[:1])
    for stops in ((1, 2, 3, 4), (2, 4), (1, 4)):
        cache = Cache()
        start = 0
        for stop in stops:
            mask = keys[..., :stop] if padded else None
            part, _ = attention(x[:, start:stop], None, mask, cache, need_weights, causal=True)
            assert close(part, out[:, start:stop])
            start = stop


def test_dropout_is_on_the_weights_of_the_values():
    """With one key, every query has the weight 1, which is dropped or doubled."""
    attention = build(8, 2)
    attention.dropout.p = 0.5
    _, heads = attention(normal(1, 20, 8), normal(1, 1, 8), need_weights=True)
    factor = heads.outputs / heads.values                                    # [1, H, L_q, d_k]
    assert (heads.weights == 1).all()                                        # before dropout
    assert factor.unique().tolist() == [0, 2]
    assert (factor == factor[..., :1]).all() and (factor != factor[:, :, :1]).any()


def test_masked_keys_have_no_weight_whatever_the_logits():
    x = 1e4 * normal(1, 4, 8)
    mask = torch.tensor([True, True, False, False])[None, None, None]
    _, heads = build(8, 2)(x, mask=mask, need_weights=True)
    assert not heads.weights[..., 2:].any()


# The fused kernel and the explicit path


@pytest.mark.parametrize("mask", [None, padding(5, 3, 1), causal(5), padding(5, 3, 1) & causal(5)],
                         ids=["no mask", "keys", "causal", "both"])
def test_fused_kernel_equals_explicit_path(mask):
    attention = build(8, 2)
    x = normal(3, 5, 8)
    gradients = []
    for need_weights in (False, True):
        inputs = x.clone().requires_grad_()
        out, heads = attention(inputs, mask=mask, need_weights=need_weights)
        assert (heads.weights is None) != need_weights
        attention.zero_grad()
        out.square().sum().backward()
        gradients.append([out, heads.values, heads.outputs, inputs.grad]
                         + [p.grad for p in attention.parameters()])
    for fused, explicit in zip(*gradients):
        assert close(fused, explicit)


# The cache


@torch.no_grad()
def test_cross_attention_keeps_the_memory_of_its_first_step():
    attention = build(8, 2).eval()
    x = normal(2, 4, 8)
    full, _ = attention(x, x, mask=padding(4, 2))
    cache = Cache()
    attention(x, x, mask=padding(4, 2), cache=cache)
    for l in range(4):
        other = torch.full_like(x, 7.0)
        out, _ = attention(x[:, l:l + 1], other, mask=padding(4, 2), cache=cache)
        assert close(out, full[:, l:l + 1])


# Padding and gradients


@both_paths
@pytest.mark.parametrize("parts", [(), BOTH])
def test_padding_changes_nothing(parts, need_weights):
    """The second sentence has no key at all, and harms no other."""
    attention = build(8, 2, "em", parts)
    x = normal(4, 5, 8).requires_grad_()
    lengths = 5, 0, 1, 3
    keys = padding(*lengths)
    out, _ = attention(x, mask=keys, need_weights=need_weights)
    for b, length in enumerate(lengths):
        if length > 0:
            sentence = x[b:b + 1, :length]
            assert close(out[b:b + 1, :length], attention(sentence)[0])
    out[keys[:, 0, 0]].square().sum().backward()
    assert x.grad[keys[:, 0, 0]].isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize("mask, message", [
    (padding(4, 2).double(), "boolean"),
    (torch.ones(3, 4, 4).bool(), r"give \[B, 1, L_q, L_k\], here \[2, 1, 4, 4\]"),  # as the heads
    (torch.ones(2, 1, 1, 5).bool(), r"here \[2, 1, 4, 4\]")], ids=["type", "batch", "keys"])
def test_a_mask_of_another_type_or_shape_is_an_error(mask, message):
    with pytest.raises(ValueError, match=message):
        build(6, 3)(normal(2, 4, 6), mask=mask)


def test_a_capsule_takes_no_memory():
    x = normal(2, 4, 6)
    with pytest.raises(ValueError, match="self-attention only"):
        build(6, 3, parts=BOTH)(x, memory=x)
