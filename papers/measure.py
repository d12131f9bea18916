"""Measurements on a trained run: disagreement, vectors and attention of its heads, the couplings of
its routings, BLEU by length.

analyze.py prints and draws them: Li 2018 Tables 4-5, Li 2021 Fig. 3, Duan 2020 Fig. 5, Gu 2019
Fig. 3. The model needs only the last capsules of a routing; here the routings run again on the same
votes, with one iteration, two, and so on.
"""
import contextlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

from aggregation import RoutingAggregation, random_coupling
from capsule_transformer import CapsuleRouting
from nmt.batches import batches, collate
from nmt.corpus import Pairs
from nmt.encoded import EncodedPairs
from nmt.evaluate import corpus_bleu, disagreement_scores, validate
from nmt.search import translate_lines
from nmt.tokenizer import BOS, EOS
from papers.significance import bleu_interval
from routing_dynamic import dynamic_routing
from routing_em import em_routing
from transformer import PAD

UNSPACED = ("zh", "ja", "th")   # languages whose length is counted in characters


class Run(NamedTuple):
    """A trained run and the text that it is measured on."""
    name: str
    model: torch.nn.Module
    tokenizer: object
    config: dict                # its config.json
    valid: Pairs
    test: Pairs                 # all test sets; without any, the validation set
    encoded: EncodedPairs       # the validation set

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return tuple(self.config["languages"])


def translate(run: Run, lines, beam: int) -> list[str]:
    """The run's translations, with the length penalty of its own test."""
    return translate_lines(run.model, run.tokenizer, lines, beam=beam,
                           lenpen=run.config["lenpen"], max_source=run.config["longest_source"])


def masks_of(source: Tensor, target_out: Tensor) -> dict[str, Tensor]:
    """{component: [B, L_q], True at a query that counts}, as `evaluate.validate` counts them."""
    ours = source != PAD                                             # [B, L_s]
    theirs = target_out != PAD                                       # [B, L_t]
    return {"enc": ours, "cross": theirs, "dec": theirs}


@torch.no_grad()
def passes(run: Run, max_tokens: int):
    """Runs the model over the validation set; yields the heads and `masks_of` every batch."""
    device = next(run.model.parameters()).device
    lengths = run.encoded.source_lengths, run.encoded.target_lengths
    for indices in batches(*lengths, max_tokens, shuffle=False):
        source, target = (x.to(device) for x in collate(run.encoded, indices))
        _, heads = run.model.hidden(source, target[:, :-1])
        yield heads, masks_of(source, target[:, 1:])


def attentions(model) -> dict:
    """Every attention of a model by its place, {"enc:1": MultiHeadAttention, ...}."""
    found = {}
    for i, layer in enumerate(model.encoder.layers, 1):
        found[f"enc:{i}"] = layer.attention
    for i, layer in enumerate(model.decoder.layers, 1):
        found[f"cross:{i}"] = layer.cross
    for i, layer in enumerate(model.decoder.layers, 1):
        found[f"dec:{i}"] = layer.attention
    return found


@contextlib.contextmanager
def recorded_logits(model):
    """A block in which a dictionary is filled with the logits E [B, H, L, L] that every capsule
    attention routes."""
    found = {}
    hooks = []

    def record(place: str):
        def hook(module, inputs):
            found[place] = inputs[0]
        return hook

    for place, attention in attentions(model).items():
        if attention.capsule is not None:
            hooks.append(attention.capsule.register_forward_pre_hook(record(place)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def labels(tokenizer, ids) -> list[str]:
    """Tokens as axis labels, a blank visible."""
    found = []
    for token in ids:
        special = token in (PAD, BOS, EOS)
        text = tokenizer.id_to_token(token) if special else tokenizer.decode([token])
        found.append(text.strip() or "\u2423")
    return found


@torch.no_grad()
def sentence_heads(run: Run, index: int):
    """The model's pass over one validation pair: (heads, logits of the capsule attentions, masks,
    tokens), the last two by component: {"enc": [1, L_q]} and {"enc": (query labels, key labels)}.
    The target side is the reference."""
    device = next(run.model.parameters()).device
    source, target = (x.to(device) for x in collate(run.encoded, [index]))
    with recorded_logits(run.model) as logits:
        _, heads = run.model.hidden(source, target[:, :-1], need_weights=True)
    ours = labels(run.tokenizer, source[0].tolist())
    theirs = labels(run.tokenizer, target[0, :-1].tolist())
    tokens = {"enc": (ours, ours), "cross": (theirs, ours), "dec": (theirs, theirs)}
    return heads, logits, masks_of(source, target[:, 1:]), tokens


# ---- Disagreement: Li 2018 Tables 4 and 5

def scores(run: Run, max_tokens: int = 4096) -> dict:
    """exp(D) on the validation set, each in (0, 1]: {"mean": {component: {kind: x}}, "layers":
    {component: {kind: [x of layer 1, ...]}}}; "mean" is the exponential of the mean of D over the
    layers (Li 2018 Table 4)."""
    _, D = validate(run.model, run.encoded, max_tokens)
    layers = {}
    for component, kinds in D.items():
        layers[component] = {}
        for kind, values in kinds.items():
            layers[component][kind] = [math.exp(x) for x in values]
    return {"mean": disagreement_scores(D), "layers": layers}


# ---- The heads as vectors, and their attention: Li 2021 Fig. 3, Duan 2020 Fig. 5

def exact(x: Tensor) -> Tensor:
    """x in float64, on the CPU: Apple's GPU has none."""
    return x.cpu().double()


def head_vectors(run: Run, component: str = "enc", max_tokens: int = 4096) -> Tensor:
    """The heads' outputs O^h averaged over the words of the validation set, [layers, H, d_k] (Li
    2021 section 4.1.2.3; its Fig. 3 averages over the layers as well)."""
    total = 0
    words = 0
    for heads, masks in passes(run, max_tokens):
        mask = masks[component]                                      # [B, L]
        O = exact(torch.stack([h.outputs for h in heads[component]]))      # [layers, B, H, L, d_k]
        total = total + torch.einsum("nbhld,bl->nhd", O, exact(mask))       # [layers, H, d_k]
        words += int(mask.sum())
    return total / words


def mean_cosine(vectors: Tensor) -> float:
    """The mean cosine of two different heads of [H, d_k]; 0 for a single head."""
    different = ~torch.eye(len(vectors), dtype=torch.bool)
    unit = torch.nn.functional.normalize(vectors, dim=-1)            # [H, d_k]
    cosines = (unit @ unit.T)[different]
    return float(cosines.mean()) if len(cosines) else 0.0


def project(points: Tensor) -> Tensor:
    """t-SNE of the points [n, d_k], [n, 2]. Points that are all equal, which t-SNE cannot take, lie
    at 0."""
    from sklearn.manifold import TSNE
    if (points == points[:1]).all():
        return torch.zeros(len(points), 2)
    init = "pca" if points.shape[1] > 1 else "random"
    neighbours = max(1.0, min(30.0, (len(points) - 1) / 3))      # 1 for 4 points, 5 for 16
    tsne = TSNE(2, perplexity=neighbours, init=init, method="exact", random_state=0)
    return torch.as_tensor(tsne.fit_transform(points.numpy()))


def attention_map(run: Run, component: str, layer: int | None, index: int) -> dict:
    """A^h of one layer (from 1; None: the top one) for validation pair `index`: weights
    [H][L_q][L_k], the tokens of both axes, and each head's entropy in nats, the mean over the
    queries."""
    heads, _, _, tokens = sentence_heads(run, index)
    layer = layer or len(heads[component])
    A = heads[component][layer - 1].weights[0]                       # [H, L_q, L_k]
    entropy = -torch.xlogy(A, A).sum(-1).mean(-1)                    # [H]
    queries, keys = tokens[component]
    return {"layer": layer, "queries": queries, "keys": keys, "entropy": entropy.tolist(),
            "weights": A.tolist()}


# ---- Routing

class Votes(NamedTuple):
    """The votes of P routings that run side by side in one place, and the module they belong to."""
    votes: Tensor               # V [P, M, N, D]
    inputs: Tensor              # [P, M], True for the input capsules that exist
    outputs: Tensor             # [P, N], the same of the output capsules
    module: torch.nn.Module     # RoutingAggregation, CapsuleAggregation or CapsuleRouting


def cast_votes(model, heads, logits, masks) -> dict[str, Votes]:
    """The votes of every routing in a model.

    Of an aggregation ("enc:1") every word has a routing, M heads to N capsules; of a capsule
    attention every sentence has one, heads to tokens ("enc:1 vertical", Duan Eq. 8) and tokens to
    heads ("enc:1 horizontal", Eq. 12, the last of its partial routings, which sees all tokens).
    """
    found = {}
    for place, attention in attentions(model).items():
        component, _, layer = place.partition(":")
        mask = masks[component]                                      # [B, L]
        aggregation = attention.aggregation
        if hasattr(aggregation, "cast_votes"):
            outputs = heads[component][int(layer) - 1].outputs
            V = aggregation.cast_votes(outputs)[mask]                # [P, H, N, D]
            every_head = mask.new_ones(V.shape[:2])                  # [P, H]
            every_capsule = mask.new_ones(V.shape[::2])              # [P, N]
            found[place] = Votes(V, every_head, every_capsule, aggregation)
        if attention.capsule is not None:
            cells = mask.unsqueeze(1) & mask.unsqueeze(2)            # [B, L_q, L_k]
            if component == "dec":
                cells = cells.tril()
            E = logits[place].masked_fill(~cells.unsqueeze(1), 0)    # [B, H, L_q, L_k]
            every_head = mask.new_ones(E.shape[:2])                  # [B, H]
            if "vertical" in attention.capsule.parts:
                found[f"{place} vertical"] = Votes(E, every_head, mask, attention.capsule)
            if "horizontal" in attention.capsule.parts:
                V = E.transpose(1, 2)                                # [B, L_q, H, L_k]
                found[f"{place} horizontal"] = Votes(V, mask, every_head, attention.capsule)
    return found


def iterations_of(module) -> int:
    """T of an aggregation or a `CapsuleRouting`; a random coupling is not iterated."""
    if isinstance(module, CapsuleRouting):
        return module.iterations
    return 1 if module.random else module.settings["iterations"]


def route(cast: Votes, iterations: int):
    """The routing of that place with so many iterations: (capsules [P, N, D], A [P, N] or None,
    C [P, M, N])."""
    module = cast.module
    start = random_coupling(cast.votes) if getattr(module, "random", False) else None
    if getattr(module, "routing", "dynamic") == "em":
        settings = {**module.settings, "iterations": iterations, "scale_by_activation": False}
        betas = getattr(module, "beta_a", None), getattr(module, "beta_mu", None)
        return em_routing(cast.votes, *betas, start=start, **settings)
    of_li = isinstance(module, RoutingAggregation)
    found = dynamic_routing(cast.votes, iterations, normalize=of_li, mask=cast.outputs, start=start)
    return found.capsules, None, found.coupling


def trace(cast: Votes) -> tuple[Tensor, Tensor | None]:
    """(entropy and agreement after 1, ..., T iterations, means over the input capsules, [T, 2];
    EM's A [P, N] or None).

    Entropy of C_m as a share of log N: 1 where a capsule gives to all alike, 0 where it gives all
    to one. Agreement: `sum_n C_mn cos(V_mn, Omega_n)`, in [-1, 1]; with capsules of one dimension
    the cosine is a sign. After t iterations means a routing of t iterations; EM with T > 3 and the
    released schedule has a slower one of lambda than that.
    """
    rows = []
    most = cast.outputs.sum(-1, keepdim=True).clamp(min=2).log()     # [P, 1]: log N
    for t in range(1, iterations_of(cast.module) + 1):
        omega, A, C = route(cast, t)
        entropy = -torch.xlogy(C, C).sum(-1) / most                  # [P, M]
        cosine = torch.cosine_similarity(cast.votes, omega.unsqueeze(-3), dim=-1)   # [P, M, N]
        agreement = (C * cosine).sum(-1)                             # [P, M]
        rows.append(torch.stack([entropy[cast.inputs].mean(), agreement[cast.inputs].mean()]))
    return exact(torch.stack(rows)), A


@torch.no_grad()
def routing_statistics(run: Run, max_tokens: int = 4096) -> dict:
    """What every routing of the model does on the validation set, see `trace`: {place: {"entropy":
    [T], "agreement": [T], "activations": each capsule's mean A, or None without EM}}."""
    totals = {}                         # place -> sum of rows over the input capsules, their number
    active = {}                         # place -> sum of A over the routings, their number
    with recorded_logits(run.model) as logits:
        for heads, masks in passes(run, max_tokens):
            for place, cast in cast_votes(run.model, heads, logits, masks).items():
                rows, A = trace(cast)
                n = int(cast.inputs.sum())
                total, count = totals.get(place, (0, 0))
                totals[place] = total + n * rows, count + n
                if A is not None:
                    total, count = active.get(place, (0, 0))
                    active[place] = total + exact(A).sum(0), count + len(A)
    found = {}
    for place, (total, count) in totals.items():
        entropy, agreement = (total / count).T.tolist()
        activations = None
        if place in active:
            total, count = active[place]
            activations = (total / count).tolist()
        found[place] = {"entropy": entropy, "agreement": agreement, "activations": activations}
    return found


# ---- BLEU by source length: Gu 2019 Fig. 3

def source_length(line: str, language: str) -> int:
    """Words of a line, or its characters in a language without spaces; 1 for a blank line."""
    units = line.replace(" ", "") if language in UNSPACED else line.split()
    return len(units) or 1


def fitting_bins(lengths: list[int]) -> list[int]:
    """Upper ends of at most 7 bins, all 1, 2, 5, 10, ... wide; the last one, open, holds at least 1
    sentence in 20."""
    tail = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    widths = (digit * 10 ** n for n in range(9) for digit in (1, 2, 5))
    width = next(width for width in widths if tail <= 7 * width)
    return [width * i for i in range(1, math.ceil(tail / width))] or [width]


def bleu_by_length(run: Run, ends: list[int], beam: int | None = None) -> dict:
    """BLEU of the test sets by source length: {"bins": [{"low", "high" (None: open), "count",
    "bleu", "interval": the bootstrap's 95 %}, ...], "bleu": of all, "beam", "signature"}.

    ends: of the bins, see `fitting_bins`; bins without a sentence are left out.
    """
    source, references = run.test
    src, tgt = run.languages
    lowercase = run.config["lowercase"]
    beam = beam or run.config["beam"]
    hypotheses = translate(run, source, beam)
    bleu, signature = corpus_bleu(hypotheses, references, tgt, lowercase)
    lengths = [source_length(line, src) for line in source]
    found = []
    for low, high in zip([0, *ends], [*ends, math.inf]):
        inside = [i for i, length in enumerate(lengths) if low < length <= high]
        if inside:
            score, interval = bleu_interval([hypotheses[i] for i in inside],
                                            [references[i] for i in inside], tgt, lowercase)
            found.append({"low": low + 1, "high": None if high == math.inf else high,
                          "count": len(inside), "bleu": score, "interval": interval})
    return {"bins": found, "bleu": bleu, "beam": beam, "signature": signature}
