"""The whole model: an encoder-decoder Transformer in which every mechanism of the five papers has its place.

Vaswani et al. 2017, with the aggregation of the heads (aggregation.py), the disagreement between them
(disagreement.py) and the routing of the attention logits (capsule_transformer.py) chosen layer by layer. Its flags
for the command line are defined here, once, beside its configuration.
"""
import argparse
import math
import re
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from aggregation import LinearAggregation, RoutingAggregation
from attention import Cache, Heads, MultiHeadAttention
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import CapsuleRouting
from cli import UserError, real, whole
from disagreement import (output_disagreement, position_disagreement, squared_output_disagreement,
                          squared_position_disagreement, squared_subspace_disagreement, subspace_disagreement)
from routing_em import DENSITIES, GRADIENTS, SCHEDULES

PAD = 0                                                  # the id of padding, as in data.py
COMPONENTS = ("enc", "cross", "dec")                     # encoder self-attention, decoder-encoder, decoder self
KINDS = ("subspace", "position", "output")               # of disagreement, as measured
# as trained with: Li 2018 footnote 2 as well, and the squared cosines of the released code
TRAINED_KINDS = (*KINDS, "squared-subspace", "squared-position", "squared-output")
AGGREGATIONS = ("linear", "dynamic", "em", "gu-dynamic", "gu-em")
SIZES = {"tiny": dict(layers=4, d_model=128, heads=4, d_ff=256),
         "small": dict(layers=6, d_model=256, heads=4, d_ff=1024),
         "base": dict(layers=6, d_model=512, heads=8, d_ff=2048),
         "big": dict(layers=6, d_model=1024, heads=16, d_ff=4096)}


@dataclass
class TransformerConfig:
    """Sizes and mechanisms of a model; base size and no mechanism by default.

    Places are written `component[:layers]`, layers counted from 1 at the bottom: "enc", "enc:1-2", "dec:4,6".
    Raises UserError (a ValueError) for a place that does not exist, sizes that do not divide, unknown names.
    """
    vocab_size: int
    d_model: int = 512
    heads: int = 8
    layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    norm: str = "pre"                                    # "pre": x + f(norm(x)); "post": norm(x + f(x))
    tie: str = "all"                                     # share embeddings: "none", "target" with output, "all"
    iterations: int = 3                                  # T of every routing
    capsules: int | None = None                          # N of the aggregation; None: d (Li), heads (Gu)
    agg: str = "linear"
    agg_at: tuple[str, ...] | None = None                # None: the default places of that aggregation
    reg: tuple[str, ...] = ()
    reg_at: tuple[str, ...] | None = None                # None: every component there is
    reg_weight: float | dict[str, float] = 1.0           # lambda of the disagreement, or one per component
    em_density: str = "product"                          # of em and gu-em: see routing_em.py
    em_schedule: str = "hinton"
    em_activations: bool = True
    em_gradient: str = "last"
    coupling: str = "routed"                             # of every aggregation; "random": a control
    capsule: tuple[str, ...] = ()                        # places of the capsule routing of the logits
    capsule_parts: tuple[str, ...] = ("vertical", "horizontal")   # of the encoder; the decoder has only the latter
    decoder: bool = True                                 # False: an encoder alone (probing, logical inference)

    def __post_init__(self):
        for field in fields(self):                       # lists, as JSON gives them back, become tuples
            value = getattr(self, field.name)
            if isinstance(value, list):
                setattr(self, field.name, tuple(value))
        for name, choices in (("norm", ("pre", "post")), ("tie", ("none", "target", "all")), ("agg", AGGREGATIONS),
                              ("em_density", DENSITIES), ("em_schedule", SCHEDULES), ("em_gradient", GRADIENTS),
                              ("coupling", ("routed", "random"))):
            value = getattr(self, name)
            flag = "--" + name.replace("_", "-")
            if value not in choices:
                raise UserError(f"{flag} {value}: choose from {', '.join(choices)}")
            if name.startswith("em_") and value != getattr(type(self), name) and self.agg not in ("em", "gu-em"):
                raise UserError(f"{flag}: choose --agg em or gu-em")
        if not self.em_activations and self.agg not in ("em", "gu-em"):
            raise UserError("--no-em-activations: choose --agg em or gu-em")
        if self.coupling != "routed" and self.agg == "linear":
            raise UserError("--coupling: choose an --agg other than linear")
        for name, choices in (("reg", TRAINED_KINDS), ("capsule_parts", ("vertical", "horizontal"))):
            for value in getattr(self, name):
                if value not in choices:
                    raise UserError(f"--{name.replace('_', '-')} {value}: choose from {', '.join(choices)}")
        if self.d_model % self.heads:
            raise UserError(f"--heads {self.heads} does not divide --d-model {self.d_model}")
        if self.d_model % 2:
            raise UserError(f"--d-model {self.d_model} must be even, for the sine and cosine of the positions")
        if self.capsules is not None and (self.capsules < 1 or self.d_model % self.capsules):
            raise UserError(f"--capsules {self.capsules} does not divide --d-model {self.d_model}")
        if self.capsule and not self.capsule_parts:
            raise UserError("--capsule-parts is empty: choose from vertical, horizontal")
        for unused, needs, flags in ((self.agg_at, self.agg != "linear", "--agg-at: choose an --agg other than linear"),
                                     (self.capsules, self.agg != "linear",
                                      "--capsules: choose an --agg other than linear"),
                                     (self.reg_at, self.reg, "--reg-at: choose what to regularize with --reg")):
            if unused is not None and not needs:
                raise UserError(flags)
        self.places("agg"), self.places("reg"), self.places("capsule")
        self.component_weights()

    def component_weights(self) -> dict[str, float]:
        """Component -> its weight in D, which lambda then multiplies: the encoder counts 1, the decoder's two attentions
        together 1, as the released code averages them; with one lambda per component, that lambda (see `reg_lambda`).
        """
        chosen = self.places("reg")
        if isinstance(self.reg_weight, dict):
            for component in self.reg_weight:
                if component not in chosen:
                    raise UserError(f"--reg-weight {component}=...: the disagreement is taken at "
                                    f"{', '.join(chosen) or 'no place'}; see --reg-at")
            return {component: self.reg_weight.get(component, 0.0) for component in chosen}
        both = "cross" in chosen and "dec" in chosen
        return {component: 0.5 if both and component != "enc" else 1.0 for component in chosen}

    @property
    def reg_lambda(self) -> float:
        """The lambda of all components together; 1 where every component has its own."""
        return 1.0 if isinstance(self.reg_weight, dict) else self.reg_weight

    def components(self) -> tuple[str, ...]:
        """The kinds of attention that the model has."""
        return COMPONENTS if self.decoder else ("enc",)

    def places(self, mechanism: str) -> dict[str, set[int]]:
        """Component -> layers (from 0) where "agg", "reg" or "capsule" acts, defaults filled in."""
        if mechanism == "capsule":
            return self._parse("--capsule", self.capsule, ("enc", "dec"))
        if mechanism == "reg":
            at = self.components() if self.reg_at is None else self.reg_at
            return self._parse("--reg-at", at if self.reg else (), COMPONENTS)
        at = self.agg_at
        if at is None:
            top = self.layers
            li, gu = (f"enc:1-{min(2, top)}",), (f"cross:{top}", f"dec:{top}") if self.decoder else (f"enc:{top}",)
            at = {"linear": (), "dynamic": li, "em": li, "gu-dynamic": gu, "gu-em": gu}[self.agg]
        return self._parse("--agg-at", at, COMPONENTS)

    def _parse(self, flag, places, allowed):
        allowed = tuple(c for c in allowed if c in self.components())
        found = {}
        for place in places:
            component, _, layers = place.partition(":")
            if component not in allowed:
                raise UserError(f"{flag} {place}: no such place here; choose from {', '.join(allowed)}")
            if ":" not in place:
                layers = f"1-{self.layers}"
            for part in layers.split(","):
                span = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
                if not span:
                    raise UserError(f"{flag} {place}: write layers as {component}:1-2 or {component}:1,3")
                first, last = int(span[1]), int(span[2] or span[1])
                if not 1 <= first <= last <= self.layers:
                    raise UserError(f"{flag} {place}: the model has {component}:1 to {component}:{self.layers}")
                found.setdefault(component, set()).update(range(first - 1, last))
        return found

    @classmethod
    def from_flags(cls, args: argparse.Namespace, **overrides) -> "TransformerConfig":
        """The configuration of parsed model flags: the size's defaults, single sizes over them, then overrides."""
        given = {**SIZES[args.arch], "dropout": 0.3 if args.arch == "big" else 0.1}
        for field in fields(cls):
            value = getattr(args, field.name, None)
            if field.name == "reg_weight" and value is not None:
                given["reg_weight"] = reg_weight(value)
            elif value is not None:
                given[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**{**given, **overrides})


def weight(text: str) -> float | tuple[str, float]:
    """A word of --reg-weight: a number, or (component, number) of enc=1. Raises argparse.ArgumentTypeError."""
    component, equals, number = text.rpartition("=")
    value = real(0, 1e6)(number)
    if not equals:
        return value
    if component not in COMPONENTS:
        raise argparse.ArgumentTypeError(f"{text!r}: write one number, or enc=1 cross=0.5 dec=0.5")
    return component, value


def reg_weight(words) -> float | dict[str, float]:
    """The words of --reg-weight as the field of the configuration. Raises UserError for a mixture of both forms."""
    if isinstance(words, (int, float, dict)):
        return words
    if len(words) == 1 and not isinstance(words[0], tuple):
        return words[0]
    if all(isinstance(word, tuple) for word in words) and len(dict(words)) == len(words):
        return dict(words)
    raise UserError("--reg-weight: write one number, or one per component: enc=1 cross=0.5 dec=0.5")


def add_model_flags(parser: argparse.ArgumentParser, arch: str = "tiny", norm: str = "pre") -> None:
    """Adds the model's flags, grouped by paper, to a parser; `TransformerConfig.from_flags` reads them."""
    none = dict(default=argparse.SUPPRESS)               # a flag not given leaves the choice to the size
    group = parser.add_argument_group("model (Vaswani et al. 2017)")
    group.add_argument("--arch", choices=SIZES, default=arch, help="size: " + "; ".join(
        f"{name} {s['layers']} layers, d {s['d_model']}, {s['heads']} heads, FFN {s['d_ff']}" for name, s in SIZES.items()))
    group.add_argument("--layers", type=whole(1, 1000), help="layers of the encoder and of the decoder, over --arch", **none)
    group.add_argument("--d-model", type=whole(2, 65536), help="model width, over --arch", **none)
    group.add_argument("--heads", type=whole(1, 4096), help="attention heads, over --arch", **none)
    group.add_argument("--d-ff", type=whole(1, 10 ** 6), help="width of the feed-forward layer, over --arch", **none)
    group.add_argument("--dropout", type=real(0, 0.99), help="one dropout rate (0.1; big 0.3)", **none)
    group.add_argument("--norm", choices=("pre", "post"), default=norm, help="layer normalization before or after")
    group.add_argument("--tie", choices=("none", "target", "all"), default="all", help="which embeddings are shared: "
                       "none, target with output, or all three")
    group = parser.add_argument_group("aggregation of the heads (Li et al. 2019, 2021; Gu and Feng 2019)")
    group.add_argument("--agg", choices=AGGREGATIONS, default="linear", help="linear: concatenation and W^O; dynamic, "
                       "em: Li's routing-by-agreement; gu-dynamic, gu-em: Gu's capsule layer")
    group.add_argument("--agg-at", nargs="+", metavar="PLACE", help="where: enc, cross, dec with layers, as in enc:1-2 "
                       "cross:6 dec:4,6 (dynamic, em: the lowest two encoder layers; gu-*: the last of cross and dec)", **none)
    group.add_argument("--capsules", type=whole(1, 65536), metavar="N", help="output capsules N, a divisor of the width "
                       "(dynamic, em: the width itself; gu-*: the number of heads)", **none)
    group.add_argument("--iterations", type=whole(1, 100), metavar="T", default=3, help="iterations of every routing")
    group.add_argument("--em-density", choices=DENSITIES, default="product", help="density of a vote in EM routing: the "
                       "product over its dimensions (Hinton et al. 2018) or their sum (Li 2019)")
    group.add_argument("--em-schedule", choices=SCHEDULES, default="hinton", help="lambda of EM's activations: 0.01 (1 - "
                       "0.95^(t+1)), or 1 to 3 as in Li's released code")
    group.add_argument("--em-gradient", choices=GRADIENTS, default="last", help="through the last M-step alone, or "
                       "through the full routing")
    group.add_argument("--em-activations", action=argparse.BooleanOptionalAction, default=True, help="EM routing with "
                       "activations A_n (the released code ran without)")
    group.add_argument("--coupling", choices=("routed", "random"), default="routed", help="random: a control, drawn "
                       "anew for every batch, with the same parameters")
    group = parser.add_argument_group("disagreement of the heads (Li et al. 2018, 2021)")
    group.add_argument("--reg", nargs="+", choices=TRAINED_KINDS, metavar="KIND", help="what the heads are rewarded to "
                       "differ in: subspace, position, output; squared-position: Li 2018 footnote 2; squared-subspace, "
                       "squared-output: orthogonal, rather than cancelling", **none)
    group.add_argument("--reg-at", nargs="+", metavar="PLACE", help="where, as --agg-at (everywhere)", **none)
    group.add_argument("--reg-weight", nargs="+", type=weight, metavar="LAMBDA", help="weight of the reward (1; the "
                       "decoder's two attentions count half each); or one per component: enc=1 cross=0.5 dec=0.5", **none)
    group = parser.add_argument_group("capsule routing of the attention logits (Duan et al. 2020)")
    group.add_argument("--capsule", nargs="+", metavar="PLACE", help="where: enc, dec with layers, as in enc:1-3 dec", **none)
    group.add_argument("--capsule-parts", nargs="+", choices=("vertical", "horizontal"), metavar="PART",
                       default=["vertical", "horizontal"], help="of the encoder: vertical, horizontal "
                       "(the decoder has only the horizontal one)")


class Memory(NamedTuple):
    """What the decoder reads of the source."""
    states: Tensor              # [B, L_s, d]
    mask: Tensor                # [B, L_s], True at a token
    heads: list                 # Heads of every encoder layer

    def select(self, index: Tensor) -> "Memory":
        """The rows `index` [B'] of the batch, as Cache.reorder; the heads stay behind."""
        return Memory(self.states.index_select(0, index), self.mask.index_select(0, index), [])


def positions(length: int, d_model: int, start: int = 0, device=None, dtype=None) -> Tensor:
    """Sinusoidal positions [length, d]: `PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos` (Vaswani 3.5)."""
    exact = torch.promote_types(dtype or torch.float32, torch.float32)       # bfloat16 cannot tell 256 from 257
    p = torch.arange(start, start + length, device=device, dtype=exact).unsqueeze(1)
    rate = torch.exp(torch.arange(0, d_model, 2, device=device, dtype=exact) * (-math.log(10000.0) / d_model))
    return torch.stack([torch.sin(p * rate), torch.cos(p * rate)], dim=-1).flatten(1).to(dtype)


class Embedding(nn.Embedding):
    """Word embeddings times sqrt(d), plus positions, with dropout: ids [B, L] -> [B, L, d]."""

    def __init__(self, vocab_size: int, d_model: int, dropout: float):
        super().__init__(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.weight, std=d_model ** -0.5)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        x = super().forward(ids) * math.sqrt(self.embedding_dim)             # [B, L, d]
        return self.dropout(x + self.positions(ids, start))

    def positions(self, ids: Tensor, start: int) -> Tensor:
        """What is added to the words: ids [B, L] -> [L, d], from position `start` on."""
        return positions(ids.shape[1], self.embedding_dim, start, ids.device, self.weight.dtype)


def _attention(config: TransformerConfig, component: str, layer: int) -> MultiHeadAttention:
    """The attention of one place, with the aggregation and the capsule routing that the configuration puts there."""
    c, at = config, lambda mechanism: layer in config.places(mechanism).get(component, ())
    if not at("agg"):
        aggregation = LinearAggregation(c.d_model)
    else:
        routing = c.agg.removeprefix("gu-")
        settings = {"iterations": c.iterations, "coupling": c.coupling}
        if routing == "em":
            settings.update(activations=c.em_activations, density=c.em_density, schedule=c.em_schedule,
                            gradient=c.em_gradient)
        kind = CapsuleAggregation if c.agg.startswith("gu-") else RoutingAggregation
        aggregation = kind(c.d_model, c.heads, c.capsules, routing, **settings)
    parts = c.capsule_parts if component == "enc" else ("horizontal",)
    capsule = CapsuleRouting(c.heads, parts, c.iterations) if at("capsule") else None
    return MultiHeadAttention(c.d_model, c.heads, c.dropout, aggregation, capsule)


class Layer(nn.Module):
    """One layer: self-attention, in a decoder attention to the source, feed-forward; a residual around each."""

    def __init__(self, config: TransformerConfig, layer: int, decoder: bool):
        super().__init__()
        self.pre, self.dropout = config.norm == "pre", nn.Dropout(config.dropout)
        reading = {"position", "squared-position"} & set(config.reg)         # they read A^h: the explicit path runs
        self.weights_at = {c for c, layers in config.places("reg").items() if layer in layers and reading}
        self.attention = _attention(config, "dec" if decoder else "enc", layer)
        if decoder:
            self.cross = _attention(config, "cross", layer)
        self.ffn = nn.Sequential(nn.Linear(config.d_model, config.d_ff), nn.ReLU(), nn.Dropout(config.dropout),
                                 nn.Linear(config.d_ff, config.d_model))
        self.norm1, self.norm2 = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        if decoder:
            self.norm3 = nn.LayerNorm(config.d_model)
        for linear in (self.ffn[0], self.ffn[3]):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def residual(self, x: Tensor, norm: nn.Module, f):
        """x + f(norm(x)), or norm(x + f(x)); f returns (output, Heads)."""
        y, heads = f(norm(x) if self.pre else x)
        x = x + self.dropout(y)
        return x if self.pre else norm(x), heads

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory | None = None, cache: Cache | None = None,
                need_weights: bool = False):
        """x [B, L, d] -> (x [B, L, d], Heads of self-attention, Heads of cross-attention or None)."""
        decoder = memory is not None
        need = lambda component: need_weights or (component in self.weights_at and cache is None)
        x, own = self.residual(x, self.norm1, lambda y: self.attention(
            y, y, mask, cache, need("dec" if decoder else "enc"), causal=decoder))
        cross = None
        if decoder:
            x, cross = self.residual(x, self.norm2, lambda y: self.cross(
                y, memory.states, memory.mask[:, None, None, :], cache, need("cross")))
        x, _ = self.residual(x, self.norm3 if decoder else self.norm2, lambda y: (self.ffn(y), None))
        return x, own, cross


class Encoder(nn.Module):
    """The encoder on embedded input: [B, L, d] with mask [B, L] -> ([B, L, d], Heads of every layer)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, i, decoder=False) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor, need_weights: bool = False) -> tuple[Tensor, list[Heads]]:
        heads = []
        for layer in self.layers:
            x, own, _ = layer(x, mask[:, None, None, :], need_weights=need_weights)
            heads.append(own)
        return self.norm(x), heads


class Decoder(nn.Module):
    """The decoder on embedded input: [B, L, d] -> ([B, L, d], Heads of self-attention, Heads of cross-attention)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, i, decoder=True) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Memory, cache: Cache | None = None, need_weights: bool = False):
        selves, crosses = [], []
        for layer in self.layers:
            x, own, cross = layer(x, None, memory, cache, need_weights)      # padding on the right: causal is enough
            selves.append(own)
            crosses.append(cross)
        return self.norm(x), selves, crosses


def layer_disagreement(kind: str, component: str, heads: Heads, source_mask: Tensor, target_mask: Tensor | None = None,
                       reduce: str = "mean") -> Tensor:
    """D of one kind in one layer of a component; masks [B, L], True at a token."""
    if kind in ("position", "squared-position"):
        if heads.weights is None:
            raise ValueError("the position disagreement reads the attention weights: run with need_weights=True")
        D = position_disagreement if kind == "position" else squared_position_disagreement
        return D(heads.weights, source_mask if component == "enc" else target_mask, reduce)
    if kind in ("subspace", "squared-subspace"):
        D = subspace_disagreement if kind == "subspace" else squared_subspace_disagreement
        return D(heads.values, target_mask if component == "dec" else source_mask)
    D = output_disagreement if kind == "output" else squared_output_disagreement
    return D(heads.outputs, source_mask if component == "enc" else target_mask)


def disagreement(config: TransformerConfig, heads: dict[str, list[Heads]], source_mask: Tensor,
                 target_mask: Tensor | None = None, reduce: str = "mean") -> Tensor:
    """The D of the training loss (Li 2018 section 3.1): the mean over the chosen layers of a component, weighted and
    summed over the chosen components (`TransformerConfig.component_weights`) and kinds; 0 without --reg. heads: as
    `Transformer.forward` gives them."""
    total = source_mask.new_zeros((), dtype=heads["enc"][0].values.dtype)
    weights = config.component_weights()
    for component, layers in config.places("reg").items():
        for kind in dict.fromkeys(config.reg):
            D = [layer_disagreement(kind, component, heads[component][i], source_mask, target_mask, reduce)
                 for i in sorted(layers)]
            total = total + weights[component] * torch.stack(D).mean()
    return total


class Transformer(nn.Module):
    """An encoder-decoder Transformer; ids 0 are padding, on the right."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        if not config.decoder:
            raise ValueError("config.decoder=False describes an encoder alone: build Encoder(config)")
        self.config = config
        self.source_embedding = Embedding(config.vocab_size, config.d_model, config.dropout)
        self.target_embedding = self.source_embedding if config.tie == "all" else \
            Embedding(config.vocab_size, config.d_model, config.dropout)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie == "none":
            nn.init.normal_(self.output.weight, std=config.d_model ** -0.5)
        else:
            self.output.weight = self.target_embedding.weight

    def encode(self, source: Tensor, need_weights: bool = False) -> Memory:
        """source [B, L_s] ids -> Memory."""
        mask = source != PAD                                                 # [B, L_s]
        states, heads = self.encoder(self.source_embedding(source), mask, need_weights)
        return Memory(states, mask, heads)

    def decode(self, target: Tensor, memory: Memory, cache: Cache | None = None) -> Tensor:
        """target [B, L_t] ids, with a cache only the new ones -> logits [B, L_t, V] of the tokens that follow."""
        start = 0
        if cache is not None:
            start, cache.length = cache.length, cache.length + target.shape[1]
        return self.output(self.decoder(self.target_embedding(target, start), memory, cache)[0])

    def hidden(self, source: Tensor, target_in: Tensor, need_weights: bool = False) -> tuple[Tensor, dict]:
        """As `forward`, with the vectors [B, L_t, d] before the output matrix in place of the logits."""
        memory = self.encode(source, need_weights)
        x, selves, crosses = self.decoder(self.target_embedding(target_in), memory, None, need_weights)
        return x, {"enc": memory.heads, "cross": crosses, "dec": selves}

    def forward(self, source: Tensor, target_in: Tensor, need_weights: bool = False) -> tuple[Tensor, dict]:
        """source [B, L_s], target_in [B, L_t] (BOS first) -> logits [B, L_t, V] and the Heads of every layer,
        {"enc": [...], "cross": [...], "dec": [...]}. need_weights: A^h in all of them, not only where --reg position
        asks for it."""
        x, heads = self.hidden(source, target_in, need_weights)
        return self.output(x), heads

    def disagreement(self, heads: dict, source_mask: Tensor, target_mask: Tensor, reduce: str = "mean") -> Tensor:
        """The D of the training loss for this model's --reg and --reg-at: see `disagreement`. Masks [B, L]."""
        return disagreement(self.config, heads, source_mask, target_mask, reduce)
