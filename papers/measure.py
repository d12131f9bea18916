"""What is measured on a trained run: its heads' disagreement, vectors and attention, its routings' couplings, its BLEU.

The numbers behind the papers' analyses; analyze.py prints and draws them. Li 2018 Tables 4-5, Li 2021 Fig. 3, Duan 2020
Fig. 5, Gu 2019 Fig. 3. The routings return what the model needs, their last capsules; here they run again on the same
votes, with one iteration, two, and so on.
"""
import contextlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

from aggregation import RoutingAggregation, betas, random_coupling
from nmt.batches import batches, collate
from nmt.corpus import Corpora
from nmt.tokenizer import BOS, EOS
from transformer import PAD
from nmt.evaluate import disagreement_scores, validate
from routing_dynamic import dynamic_routing
from routing_em import em_routing
from nmt.evaluate import corpus_bleu
from nmt.search import translate_lines

UNSPACED = ("zh", "ja", "th")   # languages whose length is counted in characters


class Run(NamedTuple):
    """A trained run and the text that it is judged on."""
    name: str
    model: torch.nn.Module
    tokenizer: object
    settings: dict
    corpora: Corpora
    encoded: object             # the validation pairs as token ids


@torch.no_grad()
def passes(run: Run, max_tokens: int):
    """Runs the model over the validation set; yields (heads, {component: [B, L_q], True at a query that counts}), as
    `evaluate.validate` counts them."""
    device, encoded = next(run.model.parameters()).device, run.encoded
    for indices in batches(encoded.source_lengths, encoded.target_lengths, max_tokens, shuffle=False):
        source, target = (x.to(device) for x in collate(encoded, indices))   # [B, L_s], [B, L_t + 1]
        _, heads = run.model(source, target[:, :-1])
        ours, theirs = source != PAD, target[:, 1:] != PAD                   # [B, L_s], [B, L_t]
        yield heads, {"enc": ours, "cross": theirs, "dec": theirs}


def attentions(model) -> dict:
    """Every attention of a model by its place, {"enc:1": MultiHeadAttention, ...}."""
    found = {f"enc:{i}": layer.attention for i, layer in enumerate(model.encoder.layers, 1)}
    for component, name in (("cross", "cross"), ("dec", "attention")):
        found.update({f"{component}:{i}": getattr(layer, name) for i, layer in enumerate(model.decoder.layers, 1)})
    return found


@contextlib.contextmanager
def recorded_logits(model):
    """A block in which a dictionary is filled with the logits E [B, H, L, L] that every capsule attention routes."""
    found, hooks = {}, []
    for place, attention in attentions(model).items():
        if attention.capsule is not None:
            hooks.append(attention.capsule.register_forward_pre_hook(
                lambda module, inputs, place=place: found.update({place: inputs[0]})))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def labels(tokenizer, ids) -> list[str]:
    """Tokens as axis labels: the start of a word bare, its further pieces with a hyphen in front, a blank visible."""
    found, before = [], " "
    for token in ids:
        special = token in (PAD, BOS, EOS)
        text = tokenizer.id_to_token(token) if special else tokenizer.decode([token])
        inside = text[:1].isalnum() and not before.endswith(" ")
        found.append(("-" if inside else "") + (text.strip() or "\u2423"))
        before = " " if special else text
    return found


@torch.no_grad()
def sentence_heads(run: Run, index: int):
    """The model's pass over one validation pair: (heads, logits of the capsule attentions, masks, tokens), the last two
    by component: {"enc": [1, L_q]} and {"enc": (query labels, key labels)}. The target side is the reference."""
    device = next(run.model.parameters()).device
    source, target = (x.to(device) for x in collate(run.encoded, [index]))
    with recorded_logits(run.model) as logits:
        _, heads = run.model(source, target[:, :-1], need_weights=True)
    ours, theirs = (labels(run.tokenizer, x[0].tolist()) for x in (source, target[:, :-1]))
    masks = {"enc": source != PAD, "cross": target[:, 1:] != PAD, "dec": target[:, 1:] != PAD}
    return heads, logits, masks, {"enc": (ours, ours), "cross": (theirs, ours), "dec": (theirs, theirs)}


# ---- Disagreement: Li 2018 Tables 4 and 5

def scores(run: Run, max_tokens: int = 4096) -> dict:
    """exp(D) on the validation set, each in (0, 1]: {"mean": {component: {kind: x}}, "layers": {component: {kind: [x of
    layer 1, ...]}}}; "mean" is the exponential of the mean of D over the layers (Li 2018 Table 4)."""
    _, D = validate(run.model, run.encoded, max_tokens)
    layers = {c: {k: [math.exp(x) for x in values] for k, values in kinds.items()} for c, kinds in D.items()}
    return {"mean": disagreement_scores(D), "layers": layers}


# ---- The heads as vectors, and their attention: Li 2021 Fig. 3, Duan 2020 Fig. 5

def head_vectors(run: Run, component: str = "enc", max_tokens: int = 4096) -> Tensor:
    """The heads' outputs O^h averaged over the words of the validation set, [layers, H, d_k] (Li 2021 section 4.1.2.3;
    its Fig. 3 averages over the layers as well)."""
    total, words = 0, 0
    for heads, masks in passes(run, max_tokens):
        mask = masks[component]                                              # [B, L]
        O = torch.stack([h.outputs for h in heads[component]]).double()      # [layers, B, H, L, d_k]
        total = total + torch.einsum("nbhld,bl->nhd", O, mask.double())      # [layers, H, d_k]
        words += int(mask.sum())
    return (total / words).cpu()


def dispersion(vectors: Tensor) -> dict:
    """How far the heads [H, d_k] lie apart: the mean cosine of two different heads, and their mean distance as a share
    of the heads' mean length. Zeros for a single head."""
    H = len(vectors)
    different = ~torch.eye(H, dtype=torch.bool)
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)    # [H, H]
    distances = (vectors[:, None] - vectors[None]).norm(dim=-1) / vectors.norm(dim=-1).mean()   # [H, H]
    return {"cosine": float(cosines[different].mean()) if H > 1 else 0.0,
            "distance": float(distances[different].mean()) if H > 1 else 0.0}


def perplexity(n: int) -> float:
    """The number of neighbours that t-SNE gives each of n points: 1 for 4 points, 5 for 16, 30 at most."""
    return max(1.0, min(30.0, (n - 1) / 3))


def project(points: Tensor) -> Tensor:
    """t-SNE of the points [n, d_k], [n, 2]; see `perplexity`. Points that are all equal, which t-SNE cannot take, lie
    at 0."""
    from sklearn.manifold import TSNE
    if (points == points[:1]).all():
        return torch.zeros(len(points), 2)
    tsne = TSNE(2, perplexity=perplexity(len(points)), init="pca" if points.shape[1] > 1 else "random", method="exact",
                random_state=0)
    return torch.as_tensor(tsne.fit_transform(points.numpy()))


def attention_map(run: Run, component: str, layer: int | None, index: int) -> dict:
    """A^h of one layer (from 1; None: the top one) for validation pair `index`: weights [H][L_q][L_k], the tokens of
    both axes, and each head's entropy in nats, the mean over the queries."""
    heads, _, _, tokens = sentence_heads(run, index)
    layer = layer or len(heads[component])
    A = heads[component][layer - 1].weights[0]                               # [H, L_q, L_k]
    entropy = -torch.xlogy(A, A).sum(-1).mean(-1)                            # [H]
    queries, keys = tokens[component]
    return {"layer": layer, "queries": queries, "keys": keys, "entropy": entropy.tolist(), "weights": A.tolist()}


# ---- Routing

class Votes(NamedTuple):
    """The votes of P routings that run side by side in one place, and the module they belong to."""
    votes: Tensor               # V [P, M, N, D]
    inputs: Tensor              # [P, M], True for the input capsules that exist
    outputs: Tensor             # [P, N], the same of the output capsules
    module: torch.nn.Module     # RoutingAggregation, CapsuleAggregation or CapsuleRouting


def cast_votes(model, heads, logits, masks) -> dict[str, Votes]:
    """The votes of every routing in a model. Of an aggregation ("enc:1") every word has a routing, M heads to N capsules;
    of a capsule attention every sentence has one, heads to tokens ("enc:1 vertical", Duan Eq. 8) and tokens to heads
    ("enc:1 horizontal", Eq. 12, the last of its partial routings, which sees all tokens)."""
    found = {}
    for place, attention in attentions(model).items():
        component, layer = place.split(":")
        mask, aggregation = masks[component], attention.aggregation          # [B, L]
        if hasattr(aggregation, "cast_votes"):
            V = aggregation.cast_votes(heads[component][int(layer) - 1].outputs)[mask]      # [P, H, N, D]
            found[place] = Votes(V, mask.new_ones(V.shape[:2]), mask.new_ones(V.shape[::2]), aggregation)
        if attention.capsule is not None:
            cells = mask.unsqueeze(1) & mask.unsqueeze(2)                    # [B, L_q, L_k]
            cells = cells.tril() if component == "dec" else cells
            E = logits[place].masked_fill(~cells.unsqueeze(1), 0)            # [B, H, L_q, L_k]
            every = mask.new_ones(E.shape[:2])                               # [B, H]
            if "vertical" in attention.capsule.parts:
                found[f"{place} vertical"] = Votes(E, every, mask, attention.capsule)
            if "horizontal" in attention.capsule.parts:
                found[f"{place} horizontal"] = Votes(E.transpose(1, 2), mask, every, attention.capsule)
    return found


def route(cast: Votes, iterations: int):
    """The routing of that place with so many iterations: (capsules [P, N, D], A [P, N] or None, C [P, M, N])."""
    module = cast.module
    start = random_coupling(cast.votes) if getattr(module, "random", False) else None
    if getattr(module, "routing", "dynamic") == "em":
        settings = {**module.settings, "scale_by_activation": False}
        return em_routing(cast.votes, *betas(module), iterations=iterations, start=start, **settings)
    li = isinstance(module, RoutingAggregation)
    found = dynamic_routing(cast.votes, iterations, normalize=li, mask=cast.outputs, start=start)
    return found.capsules, None, found.coupling


def trace(cast: Votes) -> tuple[Tensor, Tensor | None]:
    """(entropy and agreement after 1, ..., T iterations, means over the input capsules, [T, 2]; EM's A [P, N] or None).

    Entropy of C_m as a share of log N: 1 where a capsule gives to all alike, 0 where it gives all to one. Agreement:
    `sum_n C_mn cos(V_mn, Omega_n)`, in [-1, 1]; with capsules of one dimension the cosine is a sign. After t iterations
    means a routing of t iterations; EM with T > 3 and the released schedule has a slower one of lambda than that.
    """
    rows, V = [], cast.votes
    for t in range(1, cast.module.iterations + 1):
        omega, A, C = route(cast, t)
        entropy = -torch.xlogy(C, C).sum(-1) / cast.outputs.sum(-1, keepdim=True).clamp(min=2).log()       # [P, M]
        agreement = (C * torch.cosine_similarity(V, omega.unsqueeze(-3), dim=-1)).sum(-1)                  # [P, M]
        rows.append(torch.stack([entropy[cast.inputs].mean(), agreement[cast.inputs].mean()]))
    return torch.stack(rows).double().cpu(), A


@torch.no_grad()
def routing_statistics(run: Run, max_tokens: int = 4096) -> dict:
    """What every routing of the model does on the validation set, see `trace`: {place: {"entropy": [T], "agreement": [T],
    "activations": each capsule's mean A, or None without EM}}."""
    totals, counts, sums, words = {}, {}, {}, {}
    with recorded_logits(run.model) as logits:
        for heads, masks in passes(run, max_tokens):
            for place, cast in cast_votes(run.model, heads, logits, masks).items():
                rows, A = trace(cast)
                n = int(cast.inputs.sum())
                totals[place], counts[place] = totals.get(place, 0) + rows * n, counts.get(place, 0) + n
                if A is not None:
                    sums[place] = sums.get(place, 0) + A.double().sum(0).cpu()
                    words[place] = words.get(place, 0) + len(A)
    return {place: dict(zip(("entropy", "agreement"), (total / counts[place]).T.tolist()),
                        activations=(sums[place] / words[place]).tolist() if place in sums else None)
            for place, total in totals.items()}


@torch.no_grad()
def sentence_couplings(run: Run, index: int) -> dict:
    """Which head feeds which capsule in validation pair `index`: {place: {"share": [H][columns], "columns": labels or
    None}}; a column sums to 1.

    A column is a capsule, and its numbers are the heads' shares of what it gets, C_mn / sum_m C_mn, with C summed over
    the words (an aggregation) or of the one routing (vertical, where the capsules are tokens); all 0 where nothing
    reaches it. In a horizontal routing a column is a token and its coupling to the heads.
    """
    heads, logits, masks, tokens = sentence_heads(run, index)
    found = {}
    for place, cast in cast_votes(run.model, heads, logits, masks).items():
        C = route(cast, cast.module.iterations)[2]                           # [P, M, N]
        if place.endswith("horizontal"):
            share = C[0].T                                                   # [H, L]
        else:
            C = C.double().sum(0)                                            # [H, N]
            share = C / C.sum(0).clamp(min=1e-300)                           # [H, N]
        columns = tokens[place.split(":")[0]][0] if " " in place else None
        found[place] = {"share": share.tolist(), "columns": columns}
    return found


# ---- BLEU by source length: Gu 2019 Fig. 3

def source_length(line: str, language: str) -> int:
    """Words of a line, or its characters in a language without spaces; 1 for a blank line."""
    return len(line.replace(" ", "") if language in UNSPACED else line.split()) or 1


def fitting_bins(lengths: list[int]) -> list[int]:
    """Upper ends of at most 7 bins, all 1, 2, 5, 10, ... wide; the last one, open, holds at least 1 sentence in 20."""
    tail = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    width = next(w for n in range(9) for w in (10 ** n, 2 * 10 ** n, 5 * 10 ** n) if tail <= 7 * w)
    return [width * i for i in range(1, -(-tail // width))] or [width]


def bleu_by_length(run: Run, bins: list[int] | None = None, beam: int | None = None) -> dict:
    """BLEU of the test set (without one, the validation set) by source length: {"bins": [{"low", "high" (None: open),
    "count", "bleu"}, ...], "bleu": of all, "signature"}. bins: upper ends, see `fitting_bins`; bins without a sentence
    are left out. Case and length penalty as in the run's own test."""
    pairs, lowercase = run.corpora.test or run.corpora.valid, bool(run.settings.get("lowercase"))
    beam, lenpen = beam or run.settings.get("beam", 4), run.settings.get("lenpen", 0.6)
    hypotheses = translate_lines(run.model, run.tokenizer, pairs.source, beam=beam, lenpen=lenpen, progress=True)
    lengths = [source_length(line, run.corpora.src) for line in pairs.source]
    bleu, signature = corpus_bleu(hypotheses, pairs.target, lowercase)
    found, ends = [], bins or fitting_bins(lengths)
    for low, high in zip([0, *ends], [*ends, math.inf]):
        inside = [i for i, n in enumerate(lengths) if low < n <= high]
        if inside:
            score, _ = corpus_bleu([hypotheses[i] for i in inside], [pairs.target[i] for i in inside], lowercase)
            found.append({"low": low + 1, "high": None if high == math.inf else high, "count": len(inside), "bleu": score})
    return {"bins": found, "bleu": bleu, "beam": beam, "signature": signature}
