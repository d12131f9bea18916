"""capsule_transformer.py against Duan 2020 Algorithms 1-3 and Eq. 4-14, written as loops over
heads and tokens."""

import math

import by_hand
import pytest
import torch
from torch.autograd import gradcheck

from attention import MultiHeadAttention
from capsule_transformer import CapsuleRouting, horizontal_routing, vertical_routing

SIZES = [(1, 1, 1), (2, 1, 1), (1, 3, 3), (3, 4, 4), (2, 5, 2), (4, 2, 6)]  # H, L_q, L_k
ROUTINGS = [(*size, T) for size, T in zip(SIZES + SIZES[-2:], (1, 3, 2, 3, 5, 3, 1, 2))]


def close(x, y, tolerance):
    return x.shape == y.shape and torch.allclose(x, y, rtol=tolerance, atol=tolerance)


def inputs(H, L_q, L_k, B=2, scale=2.0):
    return (scale * torch.randn(B, H, L_q, L_k).double(), torch.randn(H, H).double(),
            torch.randn(H).double())


@pytest.mark.parametrize("H,L_q,L_k,T", ROUTINGS)
def test_duan_alg2_eq8_to_eq11_vertical(H, L_q, L_k, T):
    E, weight, bias = inputs(H, L_q, L_k)
    got = vertical_routing(E, weight, bias, iterations=T)
    want = torch.stack([by_hand.vertical_routing(e, weight, bias, T) for e in E])
    assert got.shape == E.shape and got.dtype == torch.float64
    assert close(got, want, 1e-9)


@pytest.mark.parametrize("H,L_q,L_k,T", ROUTINGS)
def test_duan_alg3_eq12_to_eq14_horizontal(H, L_q, L_k, T):
    E, _, _ = inputs(H, L_q, L_k)
    got = horizontal_routing(E, iterations=T)
    assert got.shape == E.shape and got.dtype == torch.float64
    assert close(got, torch.stack([by_hand.horizontal_routing(e, T) for e in E]), 1e-9)


def test_default_is_three_iterations():
    E, weight, bias = inputs(2, 4, 4)
    assert torch.equal(
        vertical_routing(E, weight, bias), vertical_routing(E, weight, bias, iterations=3)
    )
    assert torch.equal(horizontal_routing(E), horizontal_routing(E, iterations=3))


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("garbage", [1.0, 1e4, math.inf])
def test_duan_alg2_alg3_padding(H, garbage):
    """What stands in masked cells is of no account: the valid cells are those of the sentence
    without padding."""
    lengths, L = [5, 3, 1], 5
    E, weight, bias = inputs(H, L, L, B=3)
    keys = torch.arange(L) < torch.tensor(lengths)[:, None]
    mask = keys[:, None, :, None] & keys[:, None, None, :]  # [B, 1, L, L]
    E = torch.where(mask, E, garbage * torch.ones_like(E))
    vertical = vertical_routing(E, weight, bias, mask=mask)
    horizontal = horizontal_routing(E, mask=mask)
    assert vertical.isfinite().all() and horizontal.isfinite().all()
    padded = ~keys[:, None, :, None].expand_as(E)
    # what takes no part comes out as 0
    assert not vertical[padded].any() and not horizontal[padded].any()
    for b, n in enumerate(lengths):
        valid = E[b, :, :n, :n]
        assert close(vertical[b, :, :n, :n], by_hand.vertical_routing(valid, weight, bias, 3), 1e-9)
        assert close(horizontal[b, :, :n, :n], by_hand.horizontal_routing(valid, 3), 1e-9)


def test_duan_alg2_key_mask_keeps_every_query():
    """A mask of keys alone leaves every row a True, so that every query is an output capsule;
    masked cells are 0."""
    E, weight, bias = inputs(2, 4, 4)
    keys = (torch.arange(4) < torch.tensor([4, 2])[:, None])[:, None, None]  # [B, 1, 1, L_k]
    zeroed = E.masked_fill(~keys, 0.0)
    want = torch.stack([by_hand.vertical_routing(e, weight, bias, 3) for e in zeroed])
    assert close(vertical_routing(E, weight, bias, mask=keys), want, 1e-9)
    assert close(vertical_routing(E, weight, bias, mask=keys.expand(2, 1, 4, 4)), want, 1e-9)
    want = torch.stack([by_hand.horizontal_routing(e, 3) for e in zeroed])
    assert close(horizontal_routing(E, mask=keys), want, 1e-9)


def test_duan_alg2_padded_query_is_no_output_capsule():
    """A query in the middle that has no key at all takes no share of the softmax over l and none
    of Σ_l B."""
    E, weight, bias = inputs(3, 4, 4, B=1)
    mask, rest = torch.ones(1, 1, 4, 4, dtype=torch.bool), [0, 1, 3]
    mask[:, :, 2] = False
    got = vertical_routing(E, weight, bias, mask=mask)[0, :, rest]
    assert close(got, by_hand.vertical_routing(E[0, :, rest], weight, bias, 3), 1e-9)


@pytest.mark.parametrize("H,L", [(1, 1), (1, 4), (3, 1), (3, 5)])
def test_duan_masked_routing_in_decoder(H, L):
    """§3.4.3: the forward mask comes before the routing; row l of the output sees rows and keys up
    to l only."""
    E, _, _ = inputs(H, L, L)
    causal = torch.ones(L, L, dtype=torch.bool).tril()[None, None]
    got = horizontal_routing(E, mask=causal)
    want = torch.stack([by_hand.horizontal_routing(e.tril(), 3) for e in E])
    assert close(got, want, 1e-9)
    for l in range(L):
        future = E.clone()
        future[:, :, l + 1 :], future[:, :, :, l + 1 :] = 5.0, 5.0
        assert close(horizontal_routing(future, mask=causal)[:, :, l], got[:, :, l], 1e-12)
        short = horizontal_routing(E[:, :, : l + 1, : l + 1], mask=causal[..., : l + 1, : l + 1])
        assert close(short[:, :, l], got[:, :, l, : l + 1], 1e-12)


@pytest.mark.parametrize("H", [1, 2, 4])
def test_duan_eq10_fresh_parameters_share_evenly(H):
    """Zero weight and bias: every head takes 1/H of the capsules."""
    E, _, _ = inputs(H, 3, 3)
    got = vertical_routing(E, torch.zeros(H, H).double(), torch.zeros(H).double())
    for e, o in zip(E, got):
        omega, _, _ = by_hand.dynamic_routing(e.tolist(), 3, normalize=False)
        assert close(o, torch.tensor(omega, dtype=torch.float64).expand(H, 3, 3) / H, 1e-9)


@pytest.mark.parametrize("parts, causal",
                         [
                             (("vertical",), False),
                             (("horizontal",), False),
                             (("vertical", "horizontal"), False),
                             (("horizontal",), True),
                         ])
@torch.no_grad()
def test_duan_eq4_eq5_attention(parts, causal):
    """ATT = softmax(E + Ω↑ + Ω↔), padded keys out of both the routing and the softmax."""
    H = 2
    d = 8
    L = 4
    lengths = [4, 2]
    capsule = CapsuleRouting(H, parts=parts, iterations=3)
    attention = MultiHeadAttention(d, H, capsule=capsule).double().eval()
    weight = torch.zeros(H, H).double()
    bias = torch.zeros(H).double()
    for parameter in attention.parameters():
        parameter.copy_(0.3 * torch.randn_like(parameter))  # small, so that no softmax saturates
    for parameter in capsule.parameters():
        if parameter.dim() == 2:
            weight = parameter
        else:
            bias = parameter
    x = torch.randn(2, L, d).double()
    keys = torch.arange(L) < torch.tensor(lengths)[:, None]
    mask = (keys[:, None, None] & torch.ones(L, L, dtype=torch.bool).tril()
            if causal
            else keys[:, None, None])
    _, heads = attention(x, x, mask=mask, need_weights=True)
    for b, n in enumerate(lengths):
        projection = attention.in_proj
        Q, K, _ = by_hand.projections(projection.weight, projection.bias, x[b, :n], x[b, :n], H)
        E = by_hand.logits(Q, K)
        seen = E.tril() if causal else E
        routed = E.clone()
        if "vertical" in parts:
            routed += by_hand.vertical_routing(seen, weight, bias, 3)
        if "horizontal" in parts:
            routed += by_hand.horizontal_routing(seen, 3)
        if causal:
            routed = routed.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)
        assert close(heads.weights[b, :, :n, :n], routed.softmax(-1), 1e-9)
        assert (heads.weights[b, :, :n, n:] == 0).all()


@pytest.mark.parametrize("H,L", [(1, 1), (2, 3), (3, 2)])
def test_gradcheck_routings(H, L):
    E, weight, bias = (x.requires_grad_() for x in inputs(H, L, L, B=1, scale=1.0))
    assert gradcheck(vertical_routing, (E, weight, bias))
    assert gradcheck(horizontal_routing, (E,))
    keys = torch.arange(L) < max(1, L - 1)
    mask = (keys[:, None] & keys)[None, None]
    assert gradcheck(lambda E, w, b: vertical_routing(E, w, b, mask=mask), (E, weight, bias))
    assert gradcheck(lambda E: horizontal_routing(E, mask=mask), (E,))
    assert gradcheck(
        lambda E: horizontal_routing(E, mask=torch.ones(L, L, dtype=torch.bool).tril()[None, None]),
        (E,),
    )


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("H,L", [(1, 1), (3, 1), (1, 4), (3, 4)])
@pytest.mark.parametrize("hard", ["identical", "zeros", "1e-4", "1e4", "no sentence"])
def test_hard_inputs_stay_finite(hard, H, L, autocast):
    E = torch.randn(2, H, L, L)
    weight = torch.zeros(H, H, requires_grad=True)
    bias = torch.zeros(H, requires_grad=True)
    E = {"identical": torch.ones_like(E), "zeros": 0 * E, "1e-4": 1e-4 * E, "1e4": 1e4 * E}.get(
        hard, E
    )
    E.requires_grad_()
    mask = torch.ones(2, 1, L, L, dtype=torch.bool)
    mask[1] = hard != "no sentence"
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        vertical = vertical_routing(E, weight, bias, mask=mask)
        horizontal = horizontal_routing(E, mask=mask)
    (vertical.float().sum() + horizontal.float().square().sum()).backward()
    for x in (vertical, horizontal, E.grad, weight.grad, bias.grad):
        assert x.isfinite().all()


def test_autocast_computes_in_float32():
    E, weight, bias = inputs(3, 5, 5, scale=0.3)
    exact = vertical_routing(E, weight, bias), horizontal_routing(E)
    E, weight, bias = E.float(), weight.float(), bias.float()
    with torch.autocast("cpu", torch.bfloat16):
        cast = vertical_routing(E, weight, bias), horizontal_routing(E)
    for a, b in zip(exact, cast):
        assert b.dtype == torch.float32
        assert close(a, b.double(), 1e-5)


@pytest.mark.parametrize("parts", [(), ("diagonal",), ("vertical", "diagonal")])
def test_parts_are_vertical_and_horizontal(parts):
    with pytest.raises(ValueError, match="choose from 'vertical' and 'horizontal'"):
        CapsuleRouting(4, parts=parts)


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
