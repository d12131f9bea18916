"""How every weight starts, in numbers."""
import math

import pytest
from torch import nn

from capsule_aggregation import pose_columns
from transformer import Transformer, TransformerConfig

D = 64
H = 4
D_FF = 160
V = 400
EVERYWHERE = ("enc", "cross", "dec")


def xavier(fan_in, fan_out):
    """Glorot and Bengio 2010: uniform in ±sqrt(6 / (fan_in + fan_out))."""
    return "uniform", math.sqrt(6 / (fan_in + fan_out))


def by_name(config):
    """Ends of parameters' names -> (matrices drawn each by itself, what they are drawn from)."""
    d_k = D // H                                         # and the width of a capsule
    q = pose_columns(d_k, d_k)
    votes = {"gu-dynamic": xavier(d_k, d_k), "gu-em": xavier(d_k // q, d_k // q)}
    return {
        "embedding.weight": (1, ("normal", D**-0.5)),
        "output.weight": (1, xavier(D, D)),              # W^O
        "in_proj.weight": (3, xavier(D, D)),             # W^Q, W^K, W^V
        "hidden.weight": (1, xavier(D, D)),
        "votes.weight": (H, xavier(D, D)),               # W_h of every head
        "aggregation.weight": (1, votes.get(config.agg)),        # W_ij of Gu
        "aggregation.ffn.0.weight": (1, xavier(D, D)),
        "aggregation.ffn.2.weight": (1, xavier(D, D)),
        "ffn.0.weight": (1, xavier(D, D_FF)),
        "ffn.3.weight": (1, xavier(D_FF, D)),
        **{f"norm{i}.weight": (1, ("constant", 1.0)) for i in ("", 1, 2, 3)},
        "bias": (1, ("constant", 0.0)),
        "beta_a": (1, ("constant", 0.0)),
        "beta_mu": (1, ("constant", 0.0)),
        "capsule.weight": (1, ("constant", 0.0)),
    }


def check(name, weight, law):
    """Asserts that the numbers of a weight come from the law."""
    kind, size = law
    weight = weight.double()
    if kind == "constant":
        assert (weight == size).all(), name
        return
    assert len(weight.unique()) > 0.99 * weight.numel(), name  # in float32 a few meet
    largest = weight.abs().max().item()
    spread = weight.square().mean().sqrt().item()
    assert abs(weight.mean().item()) < 5 * size / math.sqrt(weight.numel()), name
    if kind == "uniform":
        assert 0.97 * size < largest <= size, name
        assert spread == pytest.approx(size / math.sqrt(3), rel=0.12), name
    else:
        assert 3 * size < largest < 6 * size, name
        assert spread == pytest.approx(size, rel=0.05), name


@pytest.mark.parametrize("agg", ["linear", "dynamic", "em", "gu-dynamic", "gu-em"])
def test_every_weight_starts_as_it_should(agg):
    places = None if agg == "linear" else EVERYWHERE
    config = TransformerConfig(V, D, H, 2, D_FF, agg=agg, agg_at=places,
                               capsule_attention=("enc", "dec"))
    model = Transformer(config)
    table = by_name(config)
    for name, parameter in model.named_parameters():
        # the longest end of the name in the table: a parameter that is not there is an error
        blocks, law = table[max((end for end in table if name.endswith(end)), key=len)]
        for i, block in enumerate(parameter.chunk(blocks)):
            check(f"{name} {i}", block, law)
    assert all(norm.eps == 1e-5 for norm in model.modules() if isinstance(norm, nn.LayerNorm))
