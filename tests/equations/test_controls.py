"""Tests of the controls that a claim about routing needs, of EM's options in a model, and of the
weights of D."""

import inspect

import pytest
import torch

from aggregation import RoutingAggregation, random_coupling, route_votes
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import CapsuleRouting
from disagreement import output_disagreement
from nmt.flags import UserError, parse
from routing_dynamic import dynamic_routing
from routing_em import em_routing
from train_mt import Settings
from transformer import Transformer, TransformerConfig

ROUTED = ("em", "dynamic", "gu-em", "gu-dynamic")
SMALL = dict(vocab_size=20, d_model=12, heads=3, layers=2, d_ff=8, dropout=0.0)


def small(**changes) -> TransformerConfig:
    """A configuration of a small model."""
    return TransformerConfig(**{**SMALL, **changes})


def parameters(config) -> dict:
    """Name -> shape of a model's parameters."""
    return {name: x.shape for name, x in Transformer(config).named_parameters()}


@pytest.mark.parametrize("agg", ROUTED)
def test_controls_have_the_parameters_of_the_routing(agg):
    routed = parameters(small(agg=agg))
    assert parameters(small(agg=agg, iterations=1)) == routed
    assert parameters(small(agg=agg, coupling="random")) == routed


def test_random_coupling_rows_sum_to_1_and_are_uniform_on_the_simplex():
    """The shares of a row of 3 have mean 1/3 and variance (1/3)(2/3)/4: a Dirichlet distribution
    with ones."""
    C = random_coupling(torch.zeros(20_000, 1, 3, 2)).exp()
    torch.testing.assert_close(C.sum(-1), torch.ones(20_000, 1))
    torch.testing.assert_close(C.mean((0, 1)), torch.full((3,), 1 / 3), atol=0.01, rtol=0)
    torch.testing.assert_close(C.var((0, 1)), torch.full((3,), 2 / 36), atol=0.003, rtol=0)
    assert not torch.equal(C[0], C[1])


@pytest.mark.parametrize("kind", [RoutingAggregation, CapsuleAggregation])
@pytest.mark.parametrize("routing", ["em", "dynamic"])
def test_coupling_random_is_drawn_anew_at_every_call(kind, routing):
    heads = torch.randn(2, 3, 5, 4)
    control = kind(12, 3, routing=routing, coupling="random")
    routed = kind(12, 3, routing=routing)
    assert not torch.allclose(control(heads), control(heads))
    assert torch.equal(routed(heads), routed(heads))
    torch.manual_seed(3)
    first = control(heads)
    torch.manual_seed(3)
    assert torch.equal(control(heads), first)


def test_coupling_random_is_one_m_step_under_the_drawn_coupling():
    """Omega_n = A_n mu_n with mu_n = sum_h C_hn V_hn / sum_h C_hn."""
    aggregation = RoutingAggregation(12, 3, routing="em", coupling="random").double()
    heads = torch.randn(2, 3, 5, 4).double()
    torch.manual_seed(5)
    got = aggregation(heads)
    torch.manual_seed(5)
    V = aggregation.cast_votes(heads)  # [B, L, H, N, D]
    C = random_coupling(V).exp().unsqueeze(-1)
    mu = (C * V).sum(-3) / C.sum(-3)
    A = em_routing(V, torch.zeros(12), torch.zeros(12), 1, start=C.squeeze(-1).log()).activations
    torch.testing.assert_close(got, (A.unsqueeze(-1) * mu).flatten(-2))


@pytest.mark.parametrize("kind", [RoutingAggregation, CapsuleAggregation])
@pytest.mark.parametrize("routing", ["em", "dynamic"])
def test_coupling_random_is_the_drawn_one_and_not_iterated(kind, routing):
    """One iteration from the coupling that was drawn."""
    control = kind(12, 3, routing=routing, iterations=3, coupling="random").double()
    V = torch.randn(2, 5, 3, control.capsules, 4).double()  # [B, L, H, N, D]
    torch.manual_seed(5)
    got = route_votes(control, V)
    torch.manual_seed(5)
    start = random_coupling(V)
    if routing == "em":
        settings = dict(scale_by_activation=kind is RoutingAggregation)
        want = em_routing(V, control.beta_a, control.beta_mu, 1, start=start, **settings)
    else:
        want = dynamic_routing(V, 1, normalize=kind is RoutingAggregation, start=start)
    torch.testing.assert_close(got, want.capsules)


@pytest.mark.parametrize("agg", ROUTED)
@pytest.mark.parametrize("coupling", ["routed", "random"])
def test_the_configured_coupling_reaches_the_aggregation(agg, coupling):
    model = Transformer(small(agg=agg, coupling=coupling))
    routings = [module for module in model.modules() if hasattr(module, "routing")]
    assert routings
    assert all(module.random == (coupling == "random") for module in routings)


# of the routing functions themselves the tests of their files say it
@pytest.mark.parametrize(
    "routing", [RoutingAggregation, CapsuleAggregation, CapsuleRouting, TransformerConfig]
)
def test_three_iterations_are_the_default(routing):
    """T = 3, as Gu 2019 (section 5.1) and Li 2021 (section 4.1) have it."""
    assert inspect.signature(routing).parameters["iterations"].default == 3


def test_one_iteration_is_uniform_coupling():
    """--iterations 1: every head counts alike, mu is the plain mean of the votes (times A)."""
    aggregation = RoutingAggregation(12, 3, routing="em", iterations=1, activations=False)
    heads = torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(
        aggregation(heads), aggregation.cast_votes(heads).mean(-3).flatten(-2)
    )


@pytest.mark.parametrize("agg", ["em", "gu-em"])
@pytest.mark.parametrize(
    "options, passed",
    [
        ({}, dict(density="product", schedule="hinton", gradient="last")),
        (
            dict(em_density="sum", em_schedule="released", em_gradient="full"),
            dict(density="sum", schedule="released", gradient="full"),
        ),
    ],
    ids=["defaults", "others"],
)
def test_em_options_reach_the_routing(agg, options, passed):
    model = Transformer(small(agg=agg, **options))
    routing = [module for module in model.modules() if hasattr(module, "routing")]
    assert routing
    for module in routing:
        assert {name: module.settings[name] for name in passed} == passed


@pytest.mark.parametrize("agg", ["em", "gu-em"])
def test_without_activations_there_are_no_betas(agg):
    assert not [name for name in parameters(small(agg=agg, em_activations=False)) if "beta" in name]
    assert [name for name in parameters(small(agg=agg)) if "beta" in name]


@pytest.mark.parametrize(
    "wrong, named",
    [
        (dict(em_density="mean", agg="em"), "em_density="),
        (dict(em_schedule="x", agg="em"), "em_schedule="),
        (dict(em_gradient="x", agg="em"), "em_gradient="),
        (dict(coupling="x", agg="em"), "coupling="),
    ],
    ids=str,
)
def test_an_unknown_option_is_an_error(wrong, named):
    with pytest.raises(ValueError, match=named):
        small(**wrong)


# The weights of D over the components


@pytest.mark.parametrize(
    "reg_at, want",
    [
        (None, dict(enc=1.0, cross=0.5, dec=0.5)),
        (("enc", "cross"), dict(enc=1.0, cross=1.0)),
        (("dec",), dict(dec=1.0)),
        (("cross", "dec"), dict(cross=0.5, dec=0.5)),
    ],
    ids=str,
)
def test_li2018_weights_of_the_components(reg_at, want):
    """The encoder counts 1 and the decoder's two attentions together 1, as the released code
    averages them; D of a component is the mean over its layers."""
    model = Transformer(small(reg=("output",), reg_at=reg_at))
    ids = torch.randint(4, 20, (2, 6))
    _, heads = model(ids, ids)
    total = 0.0
    for component, weight in want.items():
        D = [output_disagreement(layer.outputs).item() for layer in heads[component]]
        total += weight * sum(D) / len(D)
    mask = ids != 0
    assert model.disagreement(heads, mask, mask).item() == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(
    "words, named",
    [
        ("--em-density sum", "--em-density sum"),
        ("--agg dynamic --em-gradient full", "--em-gradient full"),
        ("--agg gu-dynamic --no-em-activations", "--no-em-activations"),
        ("--coupling random", "--coupling random"),
        ("--capsules 4", "--capsules 4"),
        ("--agg-at enc", "--agg-at enc"),
        ("--reg-weight 0.5", "--reg-weight 0.5"),
        ("--reg-at enc", "--reg-at enc"),
        ("--iterations 2", "--iterations 2"),
        ("--agg em --capsule-parts vertical", "--capsule-parts vertical"),
    ],
)
def test_an_option_without_its_mechanism_is_an_error(words, named):
    settings = parse(Settings, words.split())
    with pytest.raises(UserError, match=f"{named} is not used"):
        settings.model_config(vocab_size=20)
