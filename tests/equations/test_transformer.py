"""transformer.py: the baseline against torch.nn.Transformer, every mechanism in its place, and
what must hold for all of them together: padding, causality, decoding with the cache, the published
parameter counts, training."""
import functools
import math
import warnings
from dataclasses import replace

import by_hand
import pytest
import torch
from helpers import AGGREGATIONS, build_aggregation, close, every_aggregation, normal
from torch import nn

import transformer
from attention import Cache, LinearAggregation
from disagreement import KINDS
from nmt.command_line import parse
from nmt.flags import MODEL
from train_mt import FLAGS, defaults
from transformer import Transformer, TransformerConfig, positions

READ = {"subspace": ["V"], "position": ["Q", "K"], "output": ["Q", "K", "V"],
        "squared-position": ["Q", "K"]}
EVERYWHERE = ("enc", "cross", "dec")
BOTH = ("vertical", "horizontal")
every_combination = pytest.mark.parametrize("capsule", [(), ("enc", "dec")])
SIZES = {"tiny": (128, 4, 4, 256), "small": (256, 4, 6, 1024), "base": (512, 8, 6, 2048),
         "big": (1024, 16, 6, 4096)}                     # d_model, heads, layers, d_ff


def config(**changes):
    """A small configuration."""
    usual = dict(vocab_size=13, d_model=8, heads=4, layers=2, d_ff=12, dropout=0.0)
    return TransformerConfig(**{**usual, **changes})


@torch.no_grad()
def build(**changes):
    """A float64 model of two layers with random parameters everywhere (zeros and ones hide
    errors)."""
    model = Transformer(config(**changes)).double().eval()
    for name, parameter in model.named_parameters():
        noise = normal(*parameter.shape) / math.sqrt(parameter.shape[-1])
        gain = "norm" in name and name.endswith("weight")
        parameter.copy_(1 + 0.1 * noise if gain else noise)
    return model


def batch(source_lengths=(5, 3), target_lengths=(4, 6)):
    """Random ids from 3 on, the target behind BOS (1), padded with 0 on the right."""
    source = torch.zeros(len(source_lengths), max(source_lengths), dtype=torch.long)
    target = torch.zeros(len(target_lengths), max(target_lengths), dtype=torch.long)
    for b, (n, m) in enumerate(zip(source_lengths, target_lengths)):
        source[b, :n] = torch.randint(3, 13, (n,))
        target[b, :m] = torch.cat([torch.tensor([1]), torch.randint(3, 13, (m - 1,))])
    return source, target


def sinusoids(length, d):
    """Vaswani et al. §3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos of the
    same."""
    table = torch.zeros(length, d).double()
    for pos in range(length):
        for i in range(0, d, 2):
            table[pos, i] = math.sin(pos / 10000 ** (i / d))
            table[pos, i + 1] = math.cos(pos / 10000 ** (i / d))
    return table


def torch_transformer(model):
    """torch.nn.Transformer of the same sizes with the model's weights, every one of them."""
    c = model.config
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")             # about its nested tensors, which we do not use
        torch_model = nn.Transformer(c.d_model, c.heads, c.layers, c.layers, c.d_ff, dropout=0.0,
                                     batch_first=True, norm_first=c.norm == "pre").double()
    if c.norm == "post":
        torch_model.encoder.norm = torch_model.decoder.norm = None
    renamed = {}
    for name, parameter in model.state_dict().items():
        for our, their in ((".attention.", ".self_attn."), (".cross.", ".multihead_attn."),
                           ("in_proj.", "in_proj_"), ("aggregation.output.", "out_proj."),
                           ("ffn.0.", "linear1."), ("ffn.3.", "linear2.")):
            name = name.replace(our, their)
        if name.startswith(("encoder.", "decoder.")):
            renamed[name] = parameter
    torch_model.load_state_dict(renamed)
    return torch_model.train()          # train mode without dropout: no inference fast path


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_baseline_equals_torch_transformer(norm, need_weights):
    model = build(norm=norm, layers=3)
    torch_model = torch_transformer(model)
    source, target = batch()
    logits, _ = model(source, target, need_weights)
    embedded = [model.embedding.weight[ids] * math.sqrt(8) + sinusoids(ids.shape[1], 8)
                for ids in (source, target)]
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    states = torch_model(*embedded, tgt_mask=causal, src_key_padding_mask=source == 0,
                         tgt_key_padding_mask=target == 0, memory_key_padding_mask=source == 0)
    memory = model.encode(source)
    assert close(logits[target != 0], (states @ model.embedding.weight.T)[target != 0])
    assert torch.equal(memory.mask, source != 0)
    encoded = torch_model.encoder(embedded[0], src_key_padding_mask=source == 0)
    assert close(memory.states[source != 0], encoded[source != 0])


@torch.no_grad()
def test_dropout_is_where_it_should_be():
    model = build(dropout=0.3, attention_dropout=0.2, ffn_dropout=0.1)
    assert TransformerConfig(9, dropout=0.3).ffn_dropout == 0.3          # by default the one rate
    source, target = batch()
    logits, _ = model(source, target)
    assert close(logits, model(source, target, need_weights=True)[0])
    dropouts = {name: module for name, module in model.named_modules()
                if isinstance(module, nn.Dropout)}
    assert len(dropouts) == 1 + 2 * (3 + 4)
    by_end = {"attention.dropout": 0.2, "cross.dropout": 0.2, "ffn.2": 0.1}
    for name, dropout in dropouts.items():
        assert dropout.p == by_end.get(".".join(name.split(".")[-2:]), 0.3)
        dropout.train()                                  # this one alone
        for need_weights in (False, True):
            assert not close(model(source, target, need_weights)[0], logits)
        dropout.eval()


def test_one_matrix_for_source_target_and_output():
    model = Transformer(config())
    assert model.output.weight is model.embedding.weight and model.output.bias is None
    assert len(model.state_dict()) - len(list(model.parameters())) == 1


def everywhere(agg, capsule):
    """A model with the aggregation in every attention and the capsule attention in every
    self-attention."""
    return build(agg=agg, agg_at=None if agg == "linear" else EVERYWHERE, capsule_attention=capsule)


@every_combination
@every_aggregation
@torch.no_grad()
def test_padding_changes_nothing(agg, capsule):
    model = everywhere(agg, capsule)
    lengths = (5, 3, 1), (1, 6, 3)
    source, target = batch(*lengths)
    logits, _ = model(source, target)
    for b, (n, m) in enumerate(zip(*lengths)):
        assert close(logits[b:b + 1, :m], model(source[b:b + 1, :n], target[b:b + 1, :m])[0])
    wider = torch.cat([source, torch.zeros(3, 4, dtype=torch.long)], dim=1)
    assert close(model(wider, target)[0][target != 0], logits[target != 0])


@every_combination
@every_aggregation
@torch.no_grad()
def test_decoding_with_cache_equals_full_pass(agg, capsule):
    model = everywhere(agg, capsule)
    source, target = batch((5, 3, 4), (6, 6, 6))
    full, _ = model(source, target)
    memory = model.encode(source)
    assert close(model.decode(target, memory), full, 1e-12)
    for steps in ((1,) * 6, (3, 2)):
        cache = Cache()
        stop = 0
        for step in steps:
            start, stop = stop, stop + step
            assert close(model.decode(target[:, start:stop], memory, cache), full[:, start:stop])
    index = torch.tensor([2, 0, 0, 1])                   # of 5 words
    cache.reorder(index)
    cache.select_sources(index)
    assert close(model.decode(target[index, 5:], memory.select(index), cache), full[index, 5:])


def test_batches_that_do_not_match_are_an_error():
    """Their numbers of tokens would fit."""
    model = build()
    for sources, targets, length in ((4, 2, 6), (2, 3, 4)):
        with pytest.raises(RuntimeError):
            model(torch.full((sources, 5), 3), torch.full((targets, length), 3))


@torch.no_grad()
def test_shapes_of_the_heads_of_every_layer():
    model = build(layers=3)
    source, target = batch()
    logits, heads = model(source, target, need_weights=True)
    assert torch.equal(logits, model.output(model.hidden(source, target, need_weights=True)[0]))
    assert [len(heads[component]) for component in EVERYWHERE] == [3, 3, 3]
    for name, (L_q, L_k) in {"enc": (5, 5), "cross": (6, 5), "dec": (6, 6)}.items():
        for layer in heads[name]:
            assert layer.values.shape == (2, 4, L_k, 2) and layer.outputs.shape == (2, 4, L_q, 2)
            assert layer.weights.shape == (2, 4, L_q, L_k)
    _, heads = model(source, target)                     # without need_weights
    assert all(layer.weights is None for layers in heads.values() for layer in layers)


def literal_disagreement(kind, heads, query_mask, key_mask, reduce):
    """Li 2018 Eq. 1-3 and footnote 2 as printed, in one layer."""
    if kind == "subspace":
        return by_hand.cosine_double_sum(heads.values, key_mask)
    if kind == "output":
        return by_hand.cosine_double_sum(heads.outputs, query_mask)
    cell = by_hand.squared_difference if kind == "squared-position" else None
    return by_hand.position_double_sum(heads.weights, query_mask, reduce, cell)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("reg, reg_at, layers", [
    (("output",), ("enc",), {"enc": [1, 2, 3]}),
    (("subspace",), ("cross",), {"cross": [1, 2, 3]}),
    (("position", "position"), ("dec:3",), {"dec": [3]}),
    (("output",), ("enc", "cross"), {"enc": [1, 2, 3], "cross": [1, 2, 3]}),
    (("subspace",), ("cross", "dec:2"), {"cross": [1, 2, 3], "dec": [2]}),
    (("output", "subspace", "position"), ("enc:1-2", "cross:3", "dec:1,3"),
     {"enc": [1, 2], "cross": [3], "dec": [1, 3]}),
    (("output", "position"), None, {"enc": [1, 2, 3], "cross": [1, 2, 3], "dec": [1, 2, 3]}),
    *(((kind,), ("cross:1",), {"cross": [1]}) for kind in KINDS)])
@torch.no_grad()
def test_li2018_disagreement_of_the_model(reg, reg_at, layers, reduce):
    """The mean over the chosen layers of a component, summed over the components and the kinds (one
    named twice counts once); the encoder counts 1, and so do the decoder's two attentions
    together."""
    model = build(layers=3, reg=reg, reg_at=reg_at)
    source, target = batch()
    s, t = source != 0, target != 0
    masks = {"enc": (s, s), "cross": (t, s), "dec": (t, t)}      # of queries, of keys
    _, heads = model(source, target, need_weights=True)
    shared = {"cross", "dec"} <= layers.keys()
    want = 0.0
    for component, chosen in layers.items():
        weight = 0.5 if shared and component != "enc" else 1.0
        for kind in set(reg):
            D = [literal_disagreement(kind, heads[component][i - 1], *masks[component], reduce)
                 for i in chosen]
            want += weight * sum(D) / len(D)
    assert model.disagreement(heads, s, t, reduce).item() == pytest.approx(want, abs=1e-10)


def test_training_computes_the_weights_that_its_D_reads():
    model = build(reg=("position",), reg_at=("enc:2", "dec")).train()
    source, target = batch()
    heads = model(source, target)[1]
    model.disagreement(heads, source != 0, target != 0).backward()
    computed = {}
    for name, layers in heads.items():
        computed[name] = [layer.weights is not None for layer in layers]
    assert computed == {"enc": [False, True], "cross": [False, False], "dec": [True, True]}
    assert model.encoder.layers[1].attention.in_proj.weight.grad.abs().sum() > 0
    embedded = model.embedding(target[:, :1])
    _, own, cross = model.decoder(embedded, model.encode(source), Cache())
    assert all(layer.weights is None for layer in own + cross)


@functools.cache
def count(size, **changes):
    """The parameters of a Transformer of this size, which gets no memory."""
    with torch.device("meta"):
        model = Transformer(TransformerConfig(1000, *SIZES[size], **changes))
    assert all(p.is_meta for p in model.parameters())
    return sum(map(torch.numel, model.parameters()))


def added(size, **changes):
    """The parameters that the changes add to a Transformer of this size."""
    return count(size, **changes) - count(size)


@pytest.mark.parametrize("size, agg, agg_at, places, published", [
    ("base", "em", ("enc:1-6",), 6, 12.6), ("base", "dynamic", ("enc:1-6",), 6, 12.6),
    ("base", "em", ("enc:4-6",), 3, 6.3), ("base", "em", None, 2, 4.2),
    ("base", "em", ("enc:6",), 1, 2.1), ("base", "em", ("enc", "cross"), 12, 25.2),
    ("base", "em", EVERYWHERE, 18, 37.8), ("big", "em", ("enc:1-2",), 2, 33)])
def test_li2019_table2_to_table4_parameters(size, agg, agg_at, places, published):
    """Each place trades W^O (d² + d) for a hidden layer (d² + d), the votes (H d² + H d), a
    LayerNorm, and β_A, β_μ."""
    d, H, _, _ = SIZES[size]
    betas = 2 * d if agg == "em" else 0
    new = added(size, agg=agg, agg_at=agg_at)
    assert new == places * (H * d * d + H * d + 2 * d + betas)
    assert new / 1e6 == pytest.approx(published, abs=1 if size == "big" else 0.07)


def test_gu_table2_parameters():
    """Each place trades W^O (d² + d) for the votes' W (d² for N = H; poses need far less) and an
    FFN of 2 (d² + d)."""
    d = 512
    new = added("base", agg="gu-dynamic", agg_at=("cross:6", "dec:6"))
    # published: 60.9M -> 62.0M
    assert new == 2 * (d * d + d * d + d) and round(new / 1e6, 2) == 1.05
    new = added("base", agg="gu-em")
    assert new == 2 * (8 * 8 * 8 * 8 + 2 * 8 + d * d + d) and round(new / 1e6, 2) == 0.53


@pytest.mark.parametrize("places", [("enc",), ("enc", "dec")])
def test_duan_big_parameters(places):
    assert added("big", capsule_attention=places) == 1632 == 6 * (16**2 + 16)  # published: 1.6K
    assert added("big", capsule_attention=places, capsule_parts=("horizontal",)) == 0


def attentions(model):
    """{"enc:1": MultiHeadAttention, ...}, every attention of the model."""
    named = {f"enc:{i}": layer.attention for i, layer in enumerate(model.encoder.layers, 1)}
    for i, layer in enumerate(model.decoder.layers, 1):
        named |= {f"cross:{i}": layer.cross, f"dec:{i}": layer.attention}
    return named


@pytest.mark.parametrize("agg", AGGREGATIONS[1:])
@pytest.mark.parametrize("places, layers, want", [
    (("enc:1-2", "cross:6", "dec:4,6"), 6, {"enc:1", "enc:2", "cross:6", "dec:4", "dec:6"}),
    (("enc:1,3-4",), 4, {"enc:1", "enc:3", "enc:4"}), (("cross",), 2, {"cross:1", "cross:2"}),
    (EVERYWHERE, 1, {"enc:1", "cross:1", "dec:1"}), (None, 6, None), (None, 1, None)])
def test_aggregations_land_where_they_were_asked_for(agg, places, layers, want):
    """By default it is the lowest two encoder layers (Li) or the last decoder layer (Gu)."""
    kind = type(build_aggregation(agg, 8, 2))
    if want is None and agg.startswith("gu"):
        want = {f"cross:{layers}", f"dec:{layers}"}
    elif want is None:
        want = {"enc:1", f"enc:{min(2, layers)}"}
    model = Transformer(config(layers=layers, agg=agg, agg_at=places))
    for place, attention in attentions(model).items():
        assert type(attention.aggregation) is (kind if place in want else LinearAggregation)
        has_betas = getattr(attention.aggregation, "beta_a", None) is not None
        assert has_betas == (place in want and agg.endswith("em"))


@pytest.mark.parametrize("agg, want", [("em", [1, 2]), ("dynamic", [1, 2]), ("gu-em", [5]),
                                       ("gu-dynamic", [5]), ("linear", [])])
def test_places_of_an_encoder_alone(agg, want):
    c = config(agg=agg, layers=5, reg=("output",), decoder=False)
    assert c.layers_at(c.agg_at, "enc") == want
    assert c.layers_at(c.reg_at, "enc") == [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="cross:1"):
        config(agg="em", agg_at=("cross:1",), decoder=False)
    with pytest.raises(ValueError, match="build an Encoder"):
        Transformer(c)


@pytest.mark.parametrize("capsule, parts, want", [
    (("enc",), BOTH, {"enc:1", "enc:2", "enc:3"}),
    (("dec",), ("vertical",), {"dec:1", "dec:2", "dec:3"}),
    (("enc:1-2", "dec:3"), BOTH, {"enc:1", "enc:2", "dec:3"}),
    (("enc:2",), ("horizontal",), {"enc:2"}), ((), BOTH, set())])
def test_capsule_attention_lands_where_it_was_asked_for(capsule, parts, want):
    model = Transformer(config(layers=3, capsule_attention=capsule, capsule_parts=parts,
                               iterations=2))
    for place, attention in attentions(model).items():
        assert (attention.capsule is not None) == (place in want)
        if place in want:
            expected = parts if place.startswith("enc") else ("horizontal",)
            assert attention.capsule.parts == expected and attention.capsule.iterations == 2


@pytest.mark.parametrize("changes, message", [
    (dict(agg="em", agg_at=("enc:9",)), "enc:9 is not a place: .* layers from 1 to 2"),
    (dict(agg="em", agg_at=("encoder",)), "encoder is not a place: choose enc, cross, dec"),
    (dict(agg="em", agg_at=("enc:1,2-1",)), "enc:1,2-1 is not a place"),
    (dict(capsule_attention=("cross",)), "cross is not a place: choose enc, dec"),
    (dict(heads=3), "heads 3: does not divide the width 8"),
    (dict(d_model=9, heads=3), "d_model 9: must be even"),
    (dict(agg="nonsense"), "agg='nonsense': choose from linear, .*, gu-em"),
    (dict(norm="middle"), "norm='middle': choose from pre, post"),
    (dict(agg="em", agg_at=()), "agg em: agg_at names no place")], ids=str)
def test_what_does_not_exist_is_one_clear_error(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def flags(words: str) -> TransformerConfig:
    """The model that the flags of train_mt.py describe."""
    _, found, _ = parse("", *FLAGS, argv=words.split(), help=MODEL, defaults=defaults)
    return replace(found, vocab_size=13)


def test_flags_reach_the_configuration():
    config = flags(
        "--arch tiny --heads 8 --layers 3 --dropout 0.25 --norm post --iterations 2 "
        "--capsules 16 --agg em --agg-at enc:1-2 cross:3 --reg output position "
        "--reg-at enc dec:2 --reg-weight 0.5 --capsule-attention enc:1-3 dec "
        "--capsule-parts horizontal")
    assert config == TransformerConfig(
        13, 128, 8, 3, 256, 0.25, "post", iterations=2, capsules=16, agg="em",
        agg_at=("enc:1-2", "cross:3"), reg=("output", "position"),
        reg_at=("enc", "dec:2"), reg_weight=0.5, capsule_attention=("enc:1-3", "dec"),
        capsule_parts=("horizontal",))
    assert flags("--agg gu-em --em-gradient full").em_gradient == "full"     # not our default


@pytest.mark.parametrize("component", ["enc", "cross", "dec"])
@pytest.mark.parametrize("kind", KINDS)
def test_li2018_every_kind_trains_the_projections_it_reads(kind, component):
    model = build(reg=(kind,), reg_at=(f"{component}:1",))
    source, target = batch()
    _, heads = model(source, target)
    model.disagreement(heads, source != 0, target != 0).backward()
    parts = attentions(model)[f"{component}:1"].in_proj.weight.grad.chunk(3)
    learns = [name for name, part in zip("QKV", parts) if part.abs().max() > 1e-12]
    assert learns == READ[kind]


def test_positions_from_any_start():
    assert close(positions(3, 8, 2, dtype=torch.float64), sinusoids(5, 8)[2:])


def test_positions_in_bfloat16_are_those_of_float32_rounded():
    rounded = positions(600, 8, dtype=torch.bfloat16)
    assert torch.equal(rounded, positions(600, 8).bfloat16())


def test_the_defaults_of_the_configuration_are_the_papers():
    assert TransformerConfig(9) == TransformerConfig(
        9, 512, 8, 6, 2048, 0.1, "pre", 0.1, 0.1, "linear", (), None, 3, "full", (), EVERYWHERE,
        1.0, (), BOTH, True)
    for name, sizes in SIZES.items():
        c = TransformerConfig(9, **transformer.SIZES[name])
        assert (c.d_model, c.heads, c.layers, c.d_ff) == sizes
