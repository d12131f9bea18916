"""capsule_transformer.py against Duan 2020 Algorithms 1-3 and Eq. 4-14, written as loops over
heads and tokens."""
import math

import by_hand
import pytest
import torch
from helpers import causal, close, normal, padding, randomize
from torch.autograd import gradcheck

from attention import MultiHeadAttention
from capsule_transformer import CapsuleRouting, horizontal_routing, vertical_routing

# H, L_q, L_k, iterations
ROUTINGS = [(1, 1, 1, 1), (2, 1, 1, 3), (1, 3, 3, 2), (3, 4, 4, 3), (2, 5, 2, 5), (4, 2, 6, 3),
            (2, 5, 2, 1), (4, 2, 6, 2)]


def inputs(H, L_q, L_k, B=2, scale=2.0):
    """Logits [B, H, L_q, L_k], weight and bias of Eq. 11."""
    return scale * normal(B, H, L_q, L_k), normal(H, H), normal(H)


@pytest.mark.parametrize("H, L_q, L_k, T", ROUTINGS)
def test_duan_alg2_eq8_to_eq11_vertical(H, L_q, L_k, T):
    E, weight, bias = inputs(H, L_q, L_k)
    got = vertical_routing(E, weight, bias, iterations=T)
    want = torch.stack([by_hand.vertical_routing(e, weight, bias, T) for e in E])
    assert close(got, want, 1e-9)


@pytest.mark.parametrize("H, L_q, L_k, T", ROUTINGS)
def test_duan_alg3_eq12_to_eq14_horizontal(H, L_q, L_k, T):
    E, _, _ = inputs(H, L_q, L_k)
    got = horizontal_routing(E, iterations=T)
    assert close(got, torch.stack([by_hand.horizontal_routing(e, T) for e in E]), 1e-9)


def assert_padding_takes_no_part(route, by_hand_route, last=5):
    """Whatever the masked cells contain, `route(E, mask)` has the rows of the sentence without
    padding, and 0 in the masked rows. It returns the last rows only."""
    lengths = 5, 3, 1
    keys = padding(*lengths)
    mask = keys & keys.mT                                                    # [B, 1, L, L]
    for garbage in (1.0, math.inf):
        E = normal(3, 3, 5, 5).masked_fill(~mask, garbage)
        want = torch.zeros_like(E)
        for b, n in enumerate(lengths):
            want[b, :, :n, :n] = by_hand_route(E[b, :, :n, :n])
        assert close(route(E, mask), want[:, :, 5 - last:], 1e-9)


def test_duan_alg2_padding():
    _, weight, bias = inputs(3, 5, 5)
    assert_padding_takes_no_part(lambda E, mask: vertical_routing(E, weight, bias, mask=mask),
                                 lambda E: by_hand.vertical_routing(E, weight, bias, 3))


@pytest.mark.parametrize("last", [1, 2, 5])
def test_duan_alg3_padding(last):
    assert_padding_takes_no_part(lambda E, mask: horizontal_routing(E, mask=mask, last=last),
                                 lambda E: by_hand.horizontal_routing(E, 3), last)


@pytest.mark.parametrize("H, L", [(1, 1), (1, 4), (3, 1), (3, 5)])
def test_duan_masked_routing_in_decoder(H, L):
    """Row l sees rows and keys up to l only: the causal mask comes before the routing (§3.4.3)."""
    E, _, _ = inputs(H, L, L)
    got = horizontal_routing(E, mask=causal(L))
    want = torch.stack([by_hand.horizontal_routing(e.tril(), 3) for e in E])
    assert close(got, want, 1e-9)


@pytest.mark.parametrize("parts, in_decoder", [
    (("vertical",), False), (("horizontal",), False), (("vertical", "horizontal"), False),
    (("horizontal",), True)])
@torch.no_grad()
def test_duan_eq4_eq5_attention(parts, in_decoder):
    """ATT = softmax(E + Ω↑ + Ω↔), padded keys out of both the routing and the softmax."""
    H = 2
    L = 4
    capsule = CapsuleRouting(H, parts=parts, iterations=3)
    attention = randomize(MultiHeadAttention(8, H, capsule=capsule)).eval()
    for parameter in attention.parameters():
        parameter *= 0.8                                 # small, so that no softmax saturates
    x = normal(2, L, 8)
    lengths = 4, 2
    mask = padding(*lengths)
    _, heads = attention(x, mask=mask, need_weights=True, causal=in_decoder)
    projection = attention.in_proj
    for b, n in enumerate(lengths):
        Q, K, _ = by_hand.projections(projection.weight, projection.bias, x[b, :n], x[b, :n], H)
        E = by_hand.logits(Q, K)
        seen = E.tril() if in_decoder else E
        routed = E.clone()
        if "vertical" in parts:
            routed += by_hand.vertical_routing(seen, capsule.weight, capsule.bias, 3)
        if "horizontal" in parts:
            routed += by_hand.horizontal_routing(seen, 3)
        if in_decoder:
            routed = routed.masked_fill(~causal(n)[0], -math.inf)
        assert close(heads.weights[b, :, :n, :n], routed.softmax(-1), 1e-9)
        assert not heads.weights[b, :, :n, n:].any()
    _, unasked = attention(x, mask=mask, causal=in_decoder)      # routed without need_weights, too
    assert torch.equal(unasked.outputs, heads.outputs)


@pytest.mark.parametrize("H, L", [(1, 1), (2, 3), (3, 2)])
def test_gradcheck_routings(H, L):
    keys = torch.arange(L) < max(1, L - 1)
    padded = keys[:, None] & keys
    leaves = [x.requires_grad_() for x in inputs(H, L, L, B=1, scale=1.0)]
    for mask in (None, padded):
        assert gradcheck(lambda *x: vertical_routing(*x, mask=mask), leaves, fast_mode=True)
    for mask in (None, padded, causal(L)):
        assert gradcheck(lambda E: horizontal_routing(E, mask=mask), leaves[:1], fast_mode=True)


@pytest.mark.parametrize("hard", ["identical", "zeros", "1e-4", "1e4", "no sentence"])
def test_hard_inputs_stay_finite(hard):
    H = 3
    L = 4
    E = torch.randn(2, H, L, L)
    weight = torch.zeros(H, H, requires_grad=True)
    bias = torch.zeros(H, requires_grad=True)
    E = {"identical": torch.ones_like(E), "zeros": 0 * E, "1e-4": 1e-4 * E, "1e4": 1e4 * E,
         "no sentence": E}[hard].requires_grad_()
    mask = torch.ones(2, 1, L, L, dtype=torch.bool)
    mask[1] = hard != "no sentence"
    vertical = vertical_routing(E, weight, bias, mask=mask)
    horizontal = horizontal_routing(E, mask=mask)
    (vertical.sum() + horizontal.square().sum()).backward()
    for x in (vertical, horizontal, E.grad, weight.grad, bias.grad):
        assert x.isfinite().all()


def test_autocast_computes_in_float32():
    E, weight, bias = inputs(3, 5, 5, scale=0.3)
    with torch.autocast("cpu", torch.bfloat16):
        vertical = vertical_routing(E.float(), weight.float(), bias.float())
        horizontal = horizontal_routing(E.float())
    assert close(vertical, vertical_routing(E, weight, bias).float(), 1e-5)
    assert close(horizontal, horizontal_routing(E).float(), 1e-5)


@pytest.mark.parametrize("T", [1, 2, 5])
def test_duan_iterations_reach_both_parts(T):
    E = normal(2, 3, 4, 4)
    capsule = CapsuleRouting(3, iterations=T).double()
    vertical = vertical_routing(E, capsule.weight, capsule.bias, T)
    torch.testing.assert_close(capsule(E), E + vertical + horizontal_routing(E, T))


@pytest.mark.parametrize("route, message", [
    (lambda E: CapsuleRouting(3)(E, last=1), r"a decoder takes parts=\('horizontal',\)"),
    (lambda E: CapsuleRouting(3)(E, causal=True), r"a decoder takes parts=\('horizontal',\)"),
    (lambda E: CapsuleRouting(3)(E, E[:, None] > 0), "causal=True hides later keys"),
    (lambda E: CapsuleRouting(3, parts=("vertical", "diagonal")), "choose from 'vertical'")])
def test_a_vertical_part_in_a_decoder_or_other_keys_are_an_error(route, message):
    with pytest.raises(ValueError, match=message):
        route(torch.randn(3, 4, 4))
