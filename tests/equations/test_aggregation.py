"""aggregation.py against the formulas of Li 2019 Eq. 3-12 and Gu 2019 Eq. 3-15, one capsule at a
time."""
import math

import by_hand
import em_by_hand
import pytest
import torch
from by_hand import joined
from helpers import build_aggregation, close, every_aggregation, normal, randomize

import aggregation
from aggregation import RoutingAggregation
from attention import LinearAggregation
from capsule_aggregation import CapsuleAggregation
from transformer import Transformer, TransformerConfig

# d, H, N, iterations
ROUTINGS = [(1, 1, 1, 3), (4, 1, 4, 2), (4, 2, 4, 3), (6, 3, 2, 1), (6, 2, 1, 5), (8, 4, 8, 3),
            (6, 6, 3, 2)]
GU_ROUTINGS = [(1, 1, 1, 3), (4, 2, 2, 1), (6, 3, 2, 2), (6, 2, 6, 3), (8, 2, 1, 3), (12, 2, 3, 2),
               (4, 4, 4, 3)]
every_routing = pytest.mark.parametrize("agg", ["em", "dynamic", "gu-em", "gu-dynamic"])
every_kind = pytest.mark.parametrize("kind", [RoutingAggregation, CapsuleAggregation])
both_routings = pytest.mark.parametrize("routing", ["em", "dynamic"])


def affine(linear, x):
    """W x + b with x a list of numbers."""
    rows = linear.weight.tolist()
    biases = linear.bias.tolist()
    return [by_hand.dot(row, x) + b for row, b in zip(rows, biases)]


def literal_capsules(module, votes, T):
    """The capsules of Li 2019 Algorithms 1 and 2, and of Gu 2019 Eq. 8-15; votes[m][n] is a list of
    D numbers."""
    of_li = isinstance(module, RoutingAggregation)
    if module.routing == "dynamic":
        return by_hand.dynamic_routing(votes, T, normalize=of_li)[0]
    V = torch.tensor(votes, dtype=torch.float64)
    mu, A, _ = em_by_hand.em_routing(V, module.beta_a, module.beta_mu, T)
    return (A.unsqueeze(-1) * mu if of_li else mu).tolist()


def literal_li_votes(module, u, H, N):
    """Eq. 5-6: Ω_h = f_h(Ô), V_{h→n} = Ω_h W_{h→n}, with f one ReLU layer shared by the heads, on
    the normed Ô."""
    O = joined(u)
    d = len(O)
    mean = sum(O) / d
    variance = sum((v - mean) ** 2 for v in O) / d
    normed = [(v - mean) / math.sqrt(variance + module.norm.eps) * g + b
              for v, g, b in zip(O, module.norm.weight.tolist(), module.norm.bias.tolist())]
    hidden = [max(0.0, v) for v in affine(module.hidden, normed)]
    flat, D = affine(module.votes, hidden), d // N
    votes = []
    for h in range(H):
        votes.append([flat[h * d + n * D : h * d + (n + 1) * D] for n in range(N)])
    return votes


def literal_gu_votes(module, u):
    """Eq. 3: û_{j|i} = W_ij u_i; for EM routing W_ij M_i with M_i [p, q] the pose matrix of head
    i."""
    votes = []
    for u_i, of_head in zip(u, module.weight.tolist()):
        votes_i = []
        for W in of_head:
            q = len(u_i) // len(W[0])                    # 1 for dynamic routing
            # column b of M_i: every q-th number of u_i, from b on
            votes_i.append([by_hand.dot(row, u_i[b::q]) for row in W for b in range(q)])
        votes.append(votes_i)
    return votes


def literal_gu_output(module, u, v):
    """Eq. 5-7: O = u + FFN(v), FFN(x) = max(0, x W_1 + b_1) W_2 + b_2."""
    hidden = [max(0.0, x) for x in affine(module.ffn[0], joined(v))]
    return [a + b for a, b in zip(joined(u), affine(module.ffn[2], hidden))]


def compare(module, outputs, literal, tolerance=1e-7):
    """The module, or a method of it, against literal(u) at every position."""
    with torch.no_grad():
        aggregated = module(outputs)
        assert aggregated.shape[:2] == (outputs.shape[0], outputs.shape[2])
        for b in range(aggregated.shape[0]):
            for l in range(aggregated.shape[1]):
                want = literal(outputs[b, :, l].tolist())
                assert close(aggregated[b, l], torch.tensor(want, dtype=torch.float64), tolerance)


@pytest.mark.parametrize("d,H", [(1, 1), (6, 1), (6, 2), (4, 4)])
def test_li2019_eq3_eq4_li2021_eq3_eq4_duan_eq3_linear(d, H):
    module = randomize(LinearAggregation(d))
    compare(module, normal(2, H, 3, d // H), lambda u: affine(module.output, joined(u)))


@pytest.mark.parametrize("d, H, N, T", ROUTINGS)
def test_li2019_eq5_eq6_li2021_eq8_eq9_votes(d, H, N, T):
    module = randomize(RoutingAggregation(d, H, capsules=N))
    compare(module.cast_votes, normal(2, H, 3, d // H),
            lambda u: literal_li_votes(module, u, H, N))


@both_routings
@pytest.mark.parametrize("d, H, N, T", ROUTINGS)
def test_li2019_alg1_alg2_routing(d, H, N, T, routing):
    module = randomize(RoutingAggregation(d, H, N, routing, T))
    compare(module, 2 * normal(2, H, 2, d // H),
            lambda u: joined(literal_capsules(module, literal_li_votes(module, u, H, N), T)))


@both_routings
@pytest.mark.parametrize("d, H, N, T", GU_ROUTINGS)
def test_gu_eq3_votes(d, H, N, T, routing):
    module = randomize(CapsuleAggregation(d, H, capsules=N, routing=routing))
    compare(module.cast_votes, normal(2, H, 2, d // H), lambda u: literal_gu_votes(module, u))


@both_routings
@pytest.mark.parametrize("d, H, N, T", GU_ROUTINGS)
def test_gu_eq3_to_eq15_routing(d, H, N, T, routing):
    module = randomize(CapsuleAggregation(d, H, N, routing, T))

    def literal(u):
        v = literal_capsules(module, literal_gu_votes(module, u), T)
        return literal_gu_output(module, u, v)

    compare(module, 2 * normal(2, H, 2, d // H), literal)


@pytest.mark.parametrize("d, H, N, shape", [
    (512, 8, 8, (8, 8)),         # d_k = d/N = 64: q = 8, as in Hinton et al. 2018
    (24, 2, 3, (2, 3)),          # 12 and 8: q of 1, 2, 4; 4 is nearest to sqrt(12)
    (36, 1, 4, (3, 12)),         # 36 and 9: q of 1, 3, 9; 3 and 9 are as near to 6
    (2, 2, 2, (1, 1)),
    (12, 4, 2, (6, 3)),          # 3 and 6: q of 1, 3; 1 is nearest to sqrt(3)
])
def test_gu_shapes_of_the_pose_matrices(d, H, N, shape):
    assert CapsuleAggregation(d, H, capsules=N, routing="em").weight.shape == (H, N) + shape


@pytest.mark.parametrize("option", ["routing", "gradient"])
@every_kind
def test_a_wrong_option_is_refused_when_the_layer_is_built(kind, option):
    with pytest.raises(ValueError, match=f"{option}='simple': choose from"):
        kind(16, 2, **{option: "simple"})


@every_aggregation
def test_gradcheck_aggregation(agg):
    module = randomize(build_aggregation(agg, 4, 2))
    names, parameters = zip(*module.named_parameters())
    outputs = normal(1, 2, 2, 2).requires_grad_()

    def aggregate(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters)), (x,))

    assert torch.autograd.gradcheck(aggregate, (outputs, *parameters), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("option, learned", [({"gradient": "last"}, False), ({}, True)], ids=str)
def test_gu_betas_learn_unless_the_e_steps_are_constants(option, learned):
    """A_n is not in Gu's result: beta acts in the E-steps, which "last" takes as constants."""
    layer = CapsuleAggregation(8, 2, routing="em", **option).double()
    layer(normal(3, 2, 5, 4)).square().sum().backward()
    for beta in (layer.beta_a, layer.beta_mu):
        assert (beta.grad is not None and bool(beta.grad.any())) == learned


# Controls and options


def small(**changes) -> TransformerConfig:
    """A configuration of a small model."""
    return TransformerConfig(20, d_model=12, heads=3, layers=2, d_ff=8, dropout=0.0, **changes)


@every_routing
def test_a_control_of_one_iteration_has_parameters_of_the_same_shapes(agg):
    routed, control = [Transformer(small(agg=agg, iterations=T)).state_dict() for T in (3, 1)]
    assert {name: x.shape for name, x in routed.items()} == {
        name: x.shape for name, x in control.items()}


@pytest.mark.parametrize("gradient", [None, "full", "last"])
@every_routing
def test_the_configuration_reaches_the_routing(agg, gradient):
    model = Transformer(small(agg=agg, iterations=2, capsules=4, em_gradient=gradient))
    layers = [module for module in model.modules() if hasattr(module, "cast_votes")]
    assert layers
    gradient = gradient or ("last" if agg == "gu-em" else "full")
    for layer in layers:
        assert (layer.routing, layer.iterations) == (agg.removeprefix("gu-"), 2)
        assert (layer.capsules, layer.gradient) == (4, gradient)


@every_kind
def test_many_votes_are_routed_again_in_the_backward_pass(kind, monkeypatch):
    layer = randomize(kind(12, 3, routing="em", gradient="full"))
    heads = normal(2, 3, 5, 4).requires_grad_()
    gradients = []
    kept = []
    for large in (aggregation.LARGE, 0):
        monkeypatch.setattr(aggregation, "LARGE", large)
        tensors = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: tensors.append(x) or x,
                                                      lambda x: x):
            out = layer(heads)
        gradients += torch.autograd.grad(out.square().sum(), heads)
        kept.append(len(tensors))
    assert torch.equal(*gradients) and kept[1] < kept[0] / 2
