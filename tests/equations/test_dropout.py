"""Where dropout acts, at what rate and when: the model against torch.nn.Transformer, site by site.

Chance is taken out: F.dropout becomes a fixed pattern, another one for every shape, that acts only
in training and at the one rate of the configuration. A site that is missing, added, moved, doubled
or has another rate changes the result.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import close
from test_transformer import batch, build, sinusoids, torch_transformer

RATE = 0.3


def pattern(x):
    """What dropout multiplies x with here: numbers around 1, no two alike."""
    return 1 + 0.5 * torch.sin(torch.arange(1, x.numel() + 1, dtype=x.dtype)).view(x.shape)


def fixed_dropout(x, p=0.5, training=True, inplace=False):
    """F.dropout without chance."""
    return x * pattern(x) if training and p == RATE else x


def plain_attention(Q, K, V, attn_mask=None, dropout_p=0.0, is_causal=False, **_):
    """F.scaled_dot_product_attention written out: it calls F.dropout on the weights."""
    logits = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])
    if is_causal:
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        logits = logits.masked_fill(~seen, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask
    return fixed_dropout(logits.softmax(-1), dropout_p) @ V


@pytest.fixture
def no_chance(monkeypatch):
    """Dropout by the pattern, and what was asked of it: (rate, training) by shape."""
    calls = []

    def dropout(x, p=0.5, training=True, inplace=False):
        calls.append((p, training))
        return fixed_dropout(x, p, training)

    monkeypatch.setattr(F, "dropout", dropout)
    monkeypatch.setattr(F, "scaled_dot_product_attention", plain_attention)
    return calls


def embedded(table, ids):
    """The embedding by hand: dropout(sqrt(d) W[id] + PE)."""
    x = table.weight[ids] * math.sqrt(8) + sinusoids(ids.shape[1], 8)
    return x * pattern(x)


def torch_logits(torch_model, model, source, target):
    """The logits of torch.nn.Transformer on the embedding by hand."""
    torch_model.train()
    for module in torch_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = RATE
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = RATE
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    states = torch_model(embedded(model.source_embedding, source),
                         embedded(model.target_embedding, target), tgt_mask=causal,
                         src_key_padding_mask=source == 0, memory_key_padding_mask=source == 0)
    return states @ model.output.weight.T


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_dropout_acts_where_torch_has_it(norm, need_weights, no_chance):
    """On embeddings, attention weights, the FFN's hidden layer, every residual branch."""
    model = build(norm=norm, tie="none", dropout=RATE).train()
    source, target = batch()
    logits, _ = model(source, target, need_weights)
    asked = list(no_chance)
    want = torch_logits(torch_transformer(model), model, source, target)
    assert close(logits[target != 0], want[target != 0])
    # 2 embeddings; per layer 3 in the encoder, 4 in the decoder, and the attention weights where
    # written out
    assert asked == [(RATE, True)] * (2 + 2 * (3 + 4) + need_weights * 2 * (1 + 2))


def test_attention_weights_and_hidden_units_can_have_rates_of_their_own():
    """By default they have the one rate."""
    for rates, want in (((None, None), (0.3, 0.3)), ((0.2, 0.0), (0.2, 0.0)),
                        ((0.0, None), (0.0, 0.3)), ((None, 0.0), (0.3, 0.0))):
        attention_dropout, ffn_dropout = rates
        model = build(dropout=0.3, attention_dropout=attention_dropout, ffn_dropout=ffn_dropout)
        for layer in (*model.encoder.layers, *model.decoder.layers):
            assert (layer.attention.dropout.p, layer.ffn[2].p) == want
            assert layer.dropout.p == 0.3
        assert {layer.cross.dropout.p for layer in model.decoder.layers} == {want[0]}
