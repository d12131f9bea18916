"""The whole model: an encoder-decoder Transformer in which every mechanism of the five papers has
its place.

Vaswani et al. 2017, with the aggregation of the heads (aggregation.py, capsule_aggregation.py),
the disagreement between them (disagreement.py) and the routing of the attention logits
(capsule_transformer.py) chosen layer by layer.
"""
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from aggregation import COUPLINGS, LinearAggregation, RoutingAggregation
from attention import Cache, Heads, MultiHeadAttention
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import PARTS, CapsuleRouting
from disagreement import KINDS, model_disagreement
from routing_em import DENSITIES, GRADIENTS, SCHEDULES

PAD = 0                                                  # the id of padding
# encoder self-attention, decoder to encoder, decoder self-attention
COMPONENTS = ("enc", "cross", "dec")
# fields of TransformerConfig that say how a mechanism works, of no use without it
AGG_OPTIONS = ("agg_at", "capsules", "coupling")
EM_OPTIONS = ("em_density", "em_schedule", "em_activations", "em_gradient")
REG_OPTIONS = ("reg_at", "reg_weight")
OPTIONS = (*AGG_OPTIONS, *EM_OPTIONS, *REG_OPTIONS, "iterations", "capsule_parts")
SIZES = {
    "tiny": dict(layers=4, d_model=128, heads=4, d_ff=256),
    "small": dict(layers=6, d_model=256, heads=4, d_ff=1024),
    "base": dict(layers=6, d_model=512, heads=8, d_ff=2048),
    "big": dict(layers=6, d_model=1024, heads=16, d_ff=4096),
}


@dataclass
class TransformerConfig:
    """Sizes and mechanisms of a model; base size and no mechanism by default.

    Places are written `component[:layers]`, layers counted from 1 at the bottom: "enc", "enc:1-2",
    "dec:4,6".
    Raises ValueError for a place that does not exist, sizes that do not divide, unknown names, and
    options of a mechanism that is not chosen; its text names fields as `field=value`.
    """
    vocab_size: int
    d_model: int = 512
    heads: int = 8
    layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    norm: str = "pre"                                # "pre": x + f(norm(x)); "post": norm(x + f(x))
    tie: str = "all"                                 # embeddings shared: "none", "target", "all"
    iterations: int = 3                              # T of every routing
    capsules: int | None = None                      # N; None: d (Li), the number of heads (Gu)
    agg: str = "linear"                              # see AGGREGATIONS
    agg_at: tuple[str, ...] | None = None            # None: its default places
    em_density: str = "product"                      # of em and gu-em: see routing_em.py
    em_schedule: str = "hinton"
    em_activations: bool = True
    em_gradient: str = "last"
    coupling: str = "routed"                         # "random": a control
    reg: tuple[str, ...] = ()                        # see KINDS of disagreement.py
    reg_at: tuple[str, ...] | None = None            # None: every component there is
    reg_weight: float | dict[str, float] = 1.0       # lambda, or one per component
    capsule_attention: tuple[str, ...] = ()          # places of the routing of the logits
    capsule_parts: tuple[str, ...] = PARTS           # of the encoder; the decoder has no vertical
    decoder: bool = True                             # False: an encoder alone

    def __post_init__(self):
        # lists, as JSON gives them back, become tuples
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                setattr(self, field.name, tuple(value))
        self.check_names()
        self.check_sizes()
        self.check_unused()
        agg_at = self.agg_at
        if agg_at is None:
            agg_at = AGGREGATIONS[self.agg].default_places(self)
        reg_at = self.components() if self.reg_at is None else self.reg_at
        self._places = {
            "agg": self.parse("agg_at", agg_at, COMPONENTS),
            "reg": self.parse("reg_at", reg_at if self.reg else (), COMPONENTS),
            "capsule_attention": self.parse("capsule_attention", self.capsule_attention,
                                            ("enc", "dec")),
        }
        self.component_weights()

    def check_names(self):
        """Raises ValueError for a name that is not among the choices of its field."""
        choices = {
            "norm": ("pre", "post"), "tie": ("none", "target", "all"), "agg": tuple(AGGREGATIONS),
            "em_density": DENSITIES, "em_schedule": SCHEDULES, "em_gradient": GRADIENTS,
            "coupling": COUPLINGS, "reg": tuple(KINDS), "capsule_parts": PARTS,
        }
        for name, known in choices.items():
            value = getattr(self, name)
            values = (value,) if isinstance(value, str) else value
            for one in values:
                if one not in known:
                    raise ValueError(f"{name}={one}: choose from {', '.join(known)}")

    def check_sizes(self):
        """Raises ValueError for sizes that do not fit each other."""
        if self.d_model % self.heads:
            raise ValueError(f"heads={self.heads} does not divide d_model={self.d_model}")
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} must be even, for the sine and cosine of the "
                             "positions")
        if self.capsules is not None and (self.capsules < 1 or self.d_model % self.capsules):
            raise ValueError(f"capsules={self.capsules} does not divide d_model={self.d_model}")

    def check_unused(self):
        """Raises ValueError for an option of a mechanism that is not there: it would be ignored."""
        unused = {}                                      # option -> what would make use of it
        if self.agg == "linear":
            unused.update(dict.fromkeys(AGG_OPTIONS, "agg=em, or another one but linear"))
        if self.agg not in ("em", "gu-em"):
            unused.update(dict.fromkeys(EM_OPTIONS, "agg=em or agg=gu-em"))
        if not self.reg:
            unused.update(dict.fromkeys(REG_OPTIONS, "reg=output, or another kind"))
        if not self.capsule_attention:
            unused["capsule_parts"] = "capsule_attention=enc, or another place"
        if self.agg == "linear" and not self.capsule_attention:
            unused["iterations"] = "agg=em or another one but linear, or capsule_attention=enc"
        for name, remedy in unused.items():
            value = getattr(self, name)
            if value != getattr(type(self), name):
                shown = " ".join(value) if isinstance(value, tuple) else value
                raise ValueError(f"{name}={shown} is not used: it takes {remedy}")
        if not self.capsule_parts:
            raise ValueError(f"capsule_parts= is empty: choose from {', '.join(PARTS)}")
        if self.coupling == "random" and self.iterations != 3 and not self.capsule_attention:
            raise ValueError(f"iterations={self.iterations} is not used: a random coupling is not "
                             "iterated")

    def components(self) -> tuple[str, ...]:
        """The kinds of attention that the model has."""
        return COMPONENTS if self.decoder else ("enc",)

    def places(self, mechanism: str) -> dict[str, set[int]]:
        """Component -> layers (from 0) where "agg", "reg" or "capsule_attention" acts, defaults
        filled in."""
        return self._places[mechanism]

    def parse(self, name: str, places: tuple[str, ...],
              allowed: tuple[str, ...]) -> dict[str, set[int]]:
        """Places as words -> {component: layers from 0}. Raises ValueError for a place that is not
        there."""
        allowed = [component for component in allowed if component in self.components()]
        layers_at = {}
        for place in places:
            component, colon, layers = place.partition(":")
            if component not in allowed:
                raise ValueError(f"{name}={place}: no such place here; choose from "
                                 f"{', '.join(allowed)}")
            if not colon:
                layers = f"1-{self.layers}"
            for part in layers.split(","):
                span = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
                if not span:
                    raise ValueError(f"{name}={place}: write layers as {component}:1-2 or "
                                     f"{component}:1,3")
                first = int(span[1])
                last = int(span[2] or span[1])
                if not 1 <= first <= last <= self.layers:
                    raise ValueError(f"{name}={place}: the model has {component}:1 to "
                                     f"{component}:{self.layers}")
                layers_at.setdefault(component, set()).update(range(first - 1, last))
        return layers_at

    def component_weights(self) -> dict[str, float]:
        """Component -> its weight in D, which lambda then multiplies: the encoder counts 1, the
        decoder's two attentions together 1, the mean that the released code takes of them; with one
        lambda per component, that lambda (see `reg_lambda`).
        """
        chosen = self.places("reg")
        if isinstance(self.reg_weight, dict):
            for component in self.reg_weight:
                if component not in chosen:
                    raise ValueError(f"reg_weight={component}: the disagreement is taken at "
                                     f"{', '.join(chosen) or 'no place'}; see reg_at")
            return {component: self.reg_weight.get(component, 0.0) for component in chosen}
        weights = dict.fromkeys(chosen, 1.0)
        if "cross" in chosen and "dec" in chosen:
            weights.update(cross=0.5, dec=0.5)
        return weights

    @property
    def reg_lambda(self) -> float:
        """The lambda of all components together; 1 where every component has its own."""
        return 1.0 if isinstance(self.reg_weight, dict) else self.reg_weight


# ---- The aggregations of the heads: what builds them, and where they act if nothing else is said

def build_linear(c: TransformerConfig) -> nn.Module:
    """Li 2019 Eq. 3-4."""
    return LinearAggregation(c.d_model)


def build_routing(c: TransformerConfig) -> nn.Module:
    """Li 2019 Eq. 5-6 with Algorithm 1 or 2, Gu 2019 Eq. 3-7 with Eq. 8-11 or 12-15."""
    settings = {"iterations": c.iterations, "coupling": c.coupling}
    routing = c.agg.removeprefix("gu-")
    if routing == "em":
        settings.update(activations=c.em_activations, density=c.em_density,
                        schedule=c.em_schedule, gradient=c.em_gradient)
    kind = CapsuleAggregation if c.agg.startswith("gu-") else RoutingAggregation
    return kind(c.d_model, c.heads, c.capsules, routing, **settings)


def nowhere(c: TransformerConfig) -> tuple[str, ...]:
    """Every attention has the linear map anyway."""
    return ()


def lowest_encoder_layers(c: TransformerConfig) -> tuple[str, ...]:
    """Li 2019 Table 3, "Effective Aggregation"."""
    return (f"enc:1-{min(2, c.layers)}",)


def last_decoder_layer(c: TransformerConfig) -> tuple[str, ...]:
    """Gu 2019 Table 3, the best row; in a model without decoder the last encoder layer."""
    if c.decoder:
        return f"cross:{c.layers}", f"dec:{c.layers}"
    return (f"enc:{c.layers}",)


class Aggregation(NamedTuple):
    """An entry of AGGREGATIONS: configuration -> module [B, H, L, d_k] -> [B, L, d], and ->
    places."""
    build: Callable[[TransformerConfig], nn.Module]
    default_places: Callable[[TransformerConfig], tuple[str, ...]]


AGGREGATIONS = {
    "linear": Aggregation(build_linear, nowhere),
    "dynamic": Aggregation(build_routing, lowest_encoder_layers),
    "em": Aggregation(build_routing, lowest_encoder_layers),
    "gu-dynamic": Aggregation(build_routing, last_decoder_layer),
    "gu-em": Aggregation(build_routing, last_decoder_layer),
}


# ---- The model

class Memory(NamedTuple):
    """What the decoder reads of the source."""
    states: Tensor              # [B, L_s, d]
    mask: Tensor                # [B, L_s], True at a token
    heads: list                 # Heads of every encoder layer

    def select(self, index: Tensor) -> "Memory":
        """The sentences `index` [B'] of the batch; the heads stay behind."""
        return Memory(self.states.index_select(0, index), self.mask.index_select(0, index), [])


def positions(length: int, d_model: int, start: int = 0, device=None, dtype=None) -> Tensor:
    """Sinusoidal positions [length, d]: `PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos`
    (Vaswani et al. 2017, section 3.5)."""
    # Vaswani 2017 §3.5: positions, 2 points
    raise NotImplementedError("Vaswani 2017 §3.5: positions")


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


def build_attention(config: TransformerConfig, component: str, layer: int) -> MultiHeadAttention:
    """The attention of one place, with the aggregation and the capsule routing that the
    configuration puts there."""
    if layer in config.places("agg").get(component, ()):
        aggregation = AGGREGATIONS[config.agg].build(config)
    else:
        aggregation = LinearAggregation(config.d_model)
    capsule = None
    if layer in config.places("capsule_attention").get(component, ()):
        parts = config.capsule_parts if component == "enc" else ("horizontal",)
        capsule = CapsuleRouting(config.heads, parts, config.iterations)
    return MultiHeadAttention(config.d_model, config.heads, config.dropout, aggregation, capsule)


def build_ffn(config: TransformerConfig) -> nn.Sequential:
    """`max(0, x W_1 + b_1) W_2 + b_2` (Vaswani et al. 2017, Eq. 2), with dropout on the hidden
    layer."""
    inner = nn.Linear(config.d_model, config.d_ff)
    outer = nn.Linear(config.d_ff, config.d_model)
    for linear in (inner, outer):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(inner, nn.ReLU(), nn.Dropout(config.dropout), outer)


class Layer(nn.Module):
    """One layer: self-attention, in a decoder attention to the source, feed-forward; a residual
    around each."""

    def __init__(self, config: TransformerConfig, layer: int, decoder: bool):
        super().__init__()
        self.pre = config.norm == "pre"
        self.dropout = nn.Dropout(config.dropout)
        self.component = "dec" if decoder else "enc"
        # D_position reads A^h, which only the explicit path has
        reads_weights = any(KINDS[kind].reads == "weights" for kind in config.reg)
        self.weights_at = set()
        for component, layers in config.places("reg").items():
            if reads_weights and layer in layers:
                self.weights_at.add(component)
        self.attention = build_attention(config, self.component, layer)
        if decoder:
            self.cross = build_attention(config, "cross", layer)
        self.ffn = build_ffn(config)
        self.norm1 = nn.LayerNorm(config.d_model)
        self.norm2 = nn.LayerNorm(config.d_model)
        if decoder:
            self.norm3 = nn.LayerNorm(config.d_model)

    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        """What a block reads: norm(x) in a pre-norm layer, x in a post-norm one."""
        return norm(x) if self.pre else x

    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        """The residual around a block that gave y: x + y, or norm(x + y)."""
        x = x + self.dropout(y)
        return x if self.pre else norm(x)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory | None = None,
                cache: Cache | None = None, need_weights: bool = False):
        """x [B, L, d] -> (x [B, L, d], Heads of self-attention, Heads of cross-attention or
        None)."""
        # Vaswani 2017 §3.1: layer, 2 points
        raise NotImplementedError("Vaswani 2017 §3.1: layer")


class Encoder(nn.Module):
    """The encoder on embedded input: [B, L, d] with mask [B, L] -> ([B, L, d], Heads of every
    layer)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, i, decoder=False) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor,
                need_weights: bool = False) -> tuple[Tensor, list[Heads]]:
        heads = []
        for layer in self.layers:
            x, own, _ = layer(x, mask[:, None, None, :], need_weights=need_weights)
            heads.append(own)
        return self.norm(x), heads


class Decoder(nn.Module):
    """The decoder on embedded input: [B, L, d] -> ([B, L, d], Heads of self-attention, Heads of
    cross-attention)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, i, decoder=True) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Memory, cache: Cache | None = None,
                need_weights: bool = False):
        selves, crosses = [], []
        for layer in self.layers:
            # padding on the right: causal is enough
            x, own, cross = layer(x, None, memory, cache, need_weights)
            selves.append(own)
            crosses.append(cross)
        return self.norm(x), selves, crosses


def disagreement_of(config: TransformerConfig, heads: dict, source_mask: Tensor,
                    target_mask: Tensor | None = None, reduce: str = "mean") -> Tensor:
    """The D of the training loss for the places, weights and kinds of a configuration, see
    `model_disagreement`; 0 if it has none. heads: {component: Heads of every layer}; masks [B, L],
    True at a token."""
    return model_disagreement(heads, config.places("reg"), config.component_weights(), config.reg,
                              source_mask, target_mask, reduce)


class Transformer(nn.Module):
    """An encoder-decoder Transformer; ids 0 are padding, on the right."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        if not config.decoder:
            raise ValueError("config.decoder=False describes an encoder alone: build "
                             "Encoder(config)")
        self.config = config
        self.source_embedding = Embedding(config.vocab_size, config.d_model, config.dropout)
        if config.tie == "all":
            self.target_embedding = self.source_embedding
        else:
            self.target_embedding = Embedding(config.vocab_size, config.d_model, config.dropout)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
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
        """target [B, L_t] ids, with a cache only the new ones -> logits [B, L_t, V] of the tokens
        that follow. memory: of B sentences, or of fewer, B_s, each of which then has B / B_s
        hypotheses in the target, one below the other."""
        start = 0
        if cache is not None:
            start, cache.length = cache.length, cache.length + target.shape[1]
        return self.output(self.decoder(self.target_embedding(target, start), memory, cache)[0])

    def hidden(self, source: Tensor, target_in: Tensor,
               need_weights: bool = False) -> tuple[Tensor, dict]:
        """As `forward`, with the vectors [B, L_t, d] before the output matrix in place of the
        logits."""
        memory = self.encode(source, need_weights)
        target = self.target_embedding(target_in)                            # [B, L_t, d]
        x, selves, crosses = self.decoder(target, memory, None, need_weights)
        return x, {"enc": memory.heads, "cross": crosses, "dec": selves}

    def forward(self, source: Tensor, target_in: Tensor,
                need_weights: bool = False) -> tuple[Tensor, dict]:
        """source [B, L_s], target_in [B, L_t] (BOS first) -> logits [B, L_t, V] and the Heads of
        every layer, {"enc": [...], "cross": [...], "dec": [...]}. need_weights: A^h in all of
        them, not only where a kind in `reg` reads it."""
        x, heads = self.hidden(source, target_in, need_weights)
        return self.output(x), heads

    def disagreement(self, heads: dict, source_mask: Tensor, target_mask: Tensor,
                     reduce: str = "mean") -> Tensor:
        """The D of the training loss. heads: as `forward` gives them; masks [B, L], True at a
        token."""
        return disagreement_of(self.config, heads, source_mask, target_mask, reduce)
