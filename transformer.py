"""The encoder-decoder Transformer: Vaswani 2017, with every mechanism of the five papers.

Each can be switched on, layer by layer: how the heads are aggregated (aggregation.py,
capsule_aggregation.py), whether they are rewarded for disagreeing (disagreement.py) and whether the
attention logits are routed (capsule_transformer.py). `Transformer` comes first, then its parts, its
configuration last.
"""
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from aggregation import RoutingAggregation
from attention import Cache, LinearAggregation, MultiHeadAttention, init_linear
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import PARTS, CapsuleRouting
from disagreement import KINDS, model_disagreement
from routing_em import check_choice

PAD = 0                                                  # token id of padding


# ---- Model, encoder, decoder

class Memory(NamedTuple):
    """The encoder's output, which the decoder attends to."""
    states: Tensor              # [B, L_s, d]
    mask: Tensor                # [B, L_s], True at a token
    heads: list                 # Heads of every encoder layer

    def select(self, index: Tensor) -> "Memory":
        """Returns the sentences `index` [B'] of the batch, without the heads."""
        return Memory(self.states.index_select(0, index), self.mask.index_select(0, index), [])


class Transformer(nn.Module):
    """An encoder-decoder Transformer; padding (id 0) is on the right."""

    def __init__(self, config: "TransformerConfig"):
        super().__init__()
        if not config.decoder:
            raise ValueError("decoder=False: build an Encoder")
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.d_model, config.dropout)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.output.weight = self.embedding.weight       # one matrix for source, target and output

    def forward(self, source: Tensor, target_in: Tensor, need_weights: bool = False):
        """source [B, L_s], target_in [B, L_t] (BOS first) -> logits [B, L_t, V] and the Heads of
        every layer, {"enc": [...], "cross": [...], "dec": [...]}; A^h in all with need_weights."""
        x, heads = self.hidden(source, target_in, need_weights)
        return self.output(x), heads

    def hidden(self, source: Tensor, target_in: Tensor, need_weights: bool = False):
        """As `forward`, with the vectors [B, L_t, d] before the output matrix for the logits."""
        memory = self.encode(source, need_weights)
        target = self.embedding(target_in)                                   # [B, L_t, d]
        x, own, cross = self.decoder(target, memory, None, need_weights)
        return x, {"enc": memory.heads, "cross": cross, "dec": own}

    def encode(self, source: Tensor, need_weights: bool = False) -> Memory:
        """source [B, L_s] ids -> Memory."""
        mask = source != PAD                                                 # [B, L_s]
        states, heads = self.encoder(self.embedding(source), mask, need_weights)
        return Memory(states, mask, heads)

    def decode(self, target: Tensor, memory: Memory, cache: Cache | None = None) -> Tensor:
        """target [B, L_t] ids, with a cache only the new ones -> logits [B, L_t, V] of the next
        tokens. memory: of B sentences, or of B / k with k hypotheses each, in consecutive rows."""
        start = 0
        if cache is not None:
            start, cache.length = cache.length, cache.length + target.shape[1]
        x, _, _ = self.decoder(self.embedding(target, start), memory, cache)
        return self.output(x)

    def disagreement(self, heads: dict, source_mask: Tensor, target_mask: Tensor,
                     reduce: str = "mean") -> Tensor:
        """`model_disagreement` of the heads that `forward` returned."""
        return model_disagreement(self.config, heads, source_mask, target_mask, reduce)


class Encoder(nn.Module):
    """Embedded source [B, L, d] and mask [B, L] -> ([B, L, d], Heads of every layer)."""

    def __init__(self, config: "TransformerConfig"):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, "enc", i + 1) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor, need_weights: bool = False):
        heads = []
        for layer in self.layers:
            x, own, _ = layer(x, mask[:, None, None, :], need_weights=need_weights)
            heads.append(own)
        return self.norm(x), heads


class Decoder(nn.Module):
    """Embedded target [B, L, d] -> ([B, L, d], Heads of self-attention, of cross-attention)."""

    def __init__(self, config: "TransformerConfig"):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, "dec", i + 1) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Memory, cache: Cache | None = None,
                need_weights: bool = False):
        own_heads, cross_heads = [], []
        for layer in self.layers:       # padding is on the right, so the causal mask hides it too
            x, own, cross = layer(x, None, memory, cache, need_weights)
            own_heads.append(own)
            cross_heads.append(cross)
        return self.norm(x), own_heads, cross_heads


# ---- Layer, embedding

class Layer(nn.Module):
    """Self-attention, in a decoder cross-attention, feed-forward; each with a residual connection,
    `x + dropout(f(norm(x)))` (pre-norm) or `norm(x + dropout(f(x)))` (post-norm)."""

    def __init__(self, config: "TransformerConfig", component: str, layer: int):
        super().__init__()
        self.pre = config.norm == "pre"
        self.dropout = nn.Dropout(config.dropout)
        self.attention = build_attention(config, component, layer)
        self.norm1 = nn.LayerNorm(config.d_model)
        self.norm2 = nn.LayerNorm(config.d_model)
        if component == "dec":
            self.cross = build_attention(config, "cross", layer)
            self.norm3 = nn.LayerNorm(config.d_model)
        # FFN(x) = max(0, x W_1 + b_1) W_2 + b_2                      Vaswani 2017 Eq. 2
        self.ffn = nn.Sequential(nn.Linear(config.d_model, config.d_ff), nn.ReLU(),
                                 nn.Dropout(config.ffn_dropout),
                                 nn.Linear(config.d_ff, config.d_model)).apply(init_linear)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory | None = None,
                cache: Cache | None = None, need_weights: bool = False):
        """x [B, L, d] -> (x [B, L, d], Heads of self-attention, of cross-attention or None)."""
        decoder = memory is not None
        h = self.norm_input(x, self.norm1)
        y, own = self.attention(h, None, mask, cache, need_weights, causal=decoder)
        x = self.add_residual(x, y, self.norm1)
        cross = None
        if decoder:
            h = self.norm_input(x, self.norm2)
            source_mask = memory.mask[:, None, None, :]                      # [B, 1, 1, L_s]
            # in beam search the k hypotheses of a sentence share its source: [B_s, k L, d]
            queries = h.unflatten(0, (memory.states.shape[0], -1)).flatten(1, 2)
            y, cross = self.cross(queries, memory.states, source_mask, cache, need_weights)
            x = self.add_residual(x, y.reshape(h.shape), self.norm2)
        norm = self.norm3 if decoder else self.norm2
        y = self.ffn(self.norm_input(x, norm))
        return self.add_residual(x, y, norm), own, cross

    def norm_input(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Returns the input of a sub-layer: norm(x), or x in a post-norm layer."""
        return norm(x) if self.pre else x

    def add_residual(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        """Adds the output y of a sub-layer: x + y, or norm(x + y) in a post-norm layer."""
        x = x + self.dropout(y)
        return x if self.pre else norm(x)


def build_attention(config: "TransformerConfig", component: str, layer: int) -> MultiHeadAttention:
    """The attention in one layer (from 1) of a component, with the mechanisms chosen there."""
    if layer in config.layers_at(config.agg_at, component):
        kind = CapsuleAggregation if config.agg.startswith("gu-") else RoutingAggregation
        aggregation = kind(config.d_model, config.heads, config.capsules,
                           config.agg.removeprefix("gu-"), config.iterations, config.em_gradient)
    else:
        aggregation = LinearAggregation(config.d_model)
    capsule = None
    if layer in config.layers_at(config.capsule_attention, component):
        # the decoder has no vertical routing, which would see the future
        parts = config.capsule_parts if component == "enc" else ("horizontal",)
        capsule = CapsuleRouting(config.heads, parts, config.iterations)
    # only D of positions reads A^h, which the fused kernel does not return
    reads_weights = bool({"position", "squared-position"} & {*config.reg})
    explicit = reads_weights and layer in config.layers_at(config.reg_at, component)
    return MultiHeadAttention(config.d_model, config.heads, config.attention_dropout, aggregation,
                              capsule, explicit)


class Embedding(nn.Embedding):
    """Word embeddings times sqrt(d), plus positions, with dropout: ids [B, L] -> [B, L, d]."""

    def __init__(self, vocab_size: int, d_model: int, dropout: float):
        super().__init__(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.weight, std=d_model ** -0.5)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        d = self.embedding_dim
        x = super().forward(ids) * math.sqrt(d)                              # [B, L, d]
        return self.dropout(x + positions(ids.shape[1], d, start, ids.device, self.weight.dtype))


def positions(length: int, d_model: int, start: int = 0, device=None, dtype=None) -> Tensor:
    """Sinusoids [length, d] of the positions p = start, start + 1, ..., in dtype:
    `PE(p, 2i) = sin(p / 10000^(2i/d))`, `PE(p, 2i+1) = cos` of the same (Vaswani et al. §3.5)."""
    exact = torch.promote_types(dtype or torch.float32, torch.float32)       # bfloat16 rounds 257
    p = torch.arange(start, start + length, device=device, dtype=exact).unsqueeze(1)
    even = torch.arange(0, d_model, 2, device=device, dtype=exact)           # 2i
    rate = torch.exp(even * (-math.log(10000.0) / d_model))                  # 10000^(-2i/d)
    return torch.stack([torch.sin(p * rate), torch.cos(p * rate)], dim=-1).flatten(1).to(dtype)


# ---- Configuration

COMPONENTS = ("enc", "cross", "dec")     # in the encoder, from decoder to encoder, in the decoder
AGGREGATIONS = ("linear", "dynamic", "em", "gu-dynamic", "gu-em")
SIZES = {
    "tiny": dict(layers=4, d_model=128, heads=4, d_ff=256),
    "small": dict(layers=6, d_model=256, heads=4, d_ff=1024),
    "base": {},                                                              # the defaults
    "big": dict(layers=6, d_model=1024, heads=16, d_ff=4096),
}


@dataclass
class TransformerConfig:
    """Sizes and mechanisms of the model.

    Places are written `component[:layers]`, layers counted from 1 at the bottom: "enc", "enc:1-2",
    "dec:4,6". Raises ValueError for an unknown name, sizes that do not fit each other, and a place
    that does not exist.
    """
    vocab_size: int | None
    d_model: int = 512
    heads: int = 8
    layers: int = 6                              # of the encoder, and as many of the decoder
    d_ff: int = 2048                             # width of the feed-forward layers
    dropout: float = 0.1                         # of embeddings and residual branches
    norm: str = "pre"                            # layer normalization before ("pre") or after
                                                 # ("post") a sub-layer
    attention_dropout: float | None = None       # of the attention weights; None: dropout
    ffn_dropout: float | None = None             # in the feed-forward layers; None: dropout

    agg: str = "linear"                          # aggregation of the heads: AGGREGATIONS
    agg_at: tuple[str, ...] | None = None        # places; None: `default_places`
    capsules: int | None = None                  # None: d_model (dynamic, em) or heads (gu-*)
    iterations: int = 3                          # T of every routing
    em_gradient: str | None = None               # None: "full"; gu-em: "last", a departure

    reg: tuple[str, ...] = ()                    # kinds of disagreement to reward: KINDS
    reg_at: tuple[str, ...] | None = None        # places; None: every component
    reg_weight: float = 1.0                      # lambda

    capsule_attention: tuple[str, ...] = ()      # places where the logits are routed
    capsule_parts: tuple[str, ...] = PARTS       # of the encoder; the decoder has the horizontal
    decoder: bool = True                         # False: an Encoder alone, places in enc

    def __post_init__(self):
        self.resolve()
        self.check()

    def resolve(self) -> None:
        """Puts the defaults that depend on other fields in the place of None."""
        if self.agg_at is None:
            self.agg_at = default_places(self)
        if self.reg_at is None:
            self.reg_at = self.components()
        if self.attention_dropout is None:
            self.attention_dropout = self.dropout
        if self.ffn_dropout is None:
            self.ffn_dropout = self.dropout
        if self.em_gradient is None:    # with the "full" gradient gu-em loses 8 BLEU
            self.em_gradient = "last" if self.agg == "gu-em" else "full"

    def check(self) -> None:
        """Raises ValueError for an unknown name, and a size or a place that does not fit."""
        check_choice("agg", self.agg, AGGREGATIONS)
        check_choice("norm", self.norm, ("pre", "post"))
        for kind in self.reg:
            check_choice("reg", kind, KINDS)
        if self.agg != "linear" and not self.agg_at:
            raise ValueError(f"agg {self.agg}: agg_at names no place")
        if self.d_model % 2:
            raise ValueError(f"d_model {self.d_model}: must be even")
        for name in ("heads", "capsules"):
            number = getattr(self, name)
            if number is not None and self.d_model % number:
                raise ValueError(f"{name} {number}: does not divide the width {self.d_model}")
        for name in ("agg_at", "reg_at", "capsule_attention"):
            known = [x for x in self.components() if (name, x) != ("capsule_attention", "cross")]
            for place in getattr(self, name):
                if place.partition(":")[0] not in known or not layers_of(place, self.layers):
                    raise ValueError(f"{name}: {place} is not a place: choose {', '.join(known)}, "
                                     f"with layers from 1 to {self.layers}, as in enc:1-2,4")

    def components(self) -> tuple[str, ...]:
        return COMPONENTS if self.decoder else ("enc",)

    def layers_at(self, places: tuple[str, ...], component: str) -> list[int]:
        """Returns the layers (from 1) of a component that its places name."""
        named = [place for place in places if place.partition(":")[0] == component]
        return sorted({layer for place in named for layer in layers_of(place, self.layers)})


def default_places(config: TransformerConfig) -> tuple[str, ...]:
    """Li's aggregation acts in the lowest two encoder layers (Li 2019 Table 3), Gu's in the last
    decoder layer (Gu 2019 Table 3, the best row), or in the last layer of an encoder."""
    if config.agg == "linear":
        return ()
    if config.agg in ("dynamic", "em"):
        return (f"enc:1-{min(2, config.layers)}",)
    components = ("cross", "dec") if config.decoder else ("enc",)
    return tuple(f"{component}:{config.layers}" for component in components)


def layers_of(place: str, layers: int) -> list[int]:
    """Returns the layers (from 1) that a place names: all for "enc", 1, 2 and 4 for "enc:1-2,4"; []
    for another format or a layer above `layers`."""
    _, colon, spans = place.partition(":")
    named = []
    for span in (spans if colon else f"1-{layers}").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", span)
        if not match:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= layers:
            return []
        named += range(first, last + 1)
    return named
