"""Measurements on a trained run: the disagreement, vectors, attention and routing of its heads,
BLEU by length, and BLEU without a head. analyze.py prints and draws them.

The model returns only the last capsules of a routing. To follow the iterations, the routing runs
again on the same votes, with one iteration, with two, and so on.
"""
import copy
import math
import statistics
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from nmt.batches import batches, collate
from nmt.corpus import Pairs
from nmt.encoded import EncodedPairs
from nmt.evaluate import bleu_metric, corpus_bleu, disagreement_scores, validate
from nmt.languages import bleu_tokenizer
from nmt.search import translate_lines
from nmt.significance import bleu_interval
from routing_dynamic import masked_log_softmax, squash, weigh_votes
from transformer import PAD


class TrainedRun(NamedTuple):
    """A trained run and the text that it is measured on."""
    name: str
    model: torch.nn.Module
    tokenizer: object
    config: dict                # its config.json
    valid: Pairs
    test: Pairs                 # all test sets; without any, the validation set
    encoded: EncodedPairs       # the validation set


def translate(run: TrainedRun, lines, beam: int) -> list[str]:
    """Translates with the length penalty that the run was tested with."""
    return translate_lines(run.model, run.tokenizer, lines, beam=beam,
                           lenpen=run.config["lenpen"], max_source=run.config["longest_source"],
                           length_ratio=run.config["length_ratio"])


@torch.no_grad()
def passes(run: TrainedRun, max_tokens: int):
    """Runs the model over the validation set. Yields the heads of every batch, and {component: mask
    of the queries [B, L_q]}: padding does not count, as in `evaluate.validate`."""
    device = next(run.model.parameters()).device
    lengths = run.encoded.source_lengths, run.encoded.target_lengths
    for indices in batches(*lengths, max_tokens, shuffle=False):
        source, target = (x.to(device) for x in collate(run.encoded, indices))
        _, heads = run.model.hidden(source, target[:, :-1])
        target_mask = target[:, 1:] != PAD                           # [B, L_t]
        yield heads, {"enc": source != PAD, "cross": target_mask, "dec": target_mask}


def attentions(model) -> dict:
    """The attention modules of a model by place, {"enc:1": MultiHeadAttention, ...}."""
    enc = {f"enc:{i}": layer.attention for i, layer in enumerate(model.encoder.layers, 1)}
    cross = {f"cross:{i}": layer.cross for i, layer in enumerate(model.decoder.layers, 1)}
    dec = {f"dec:{i}": layer.attention for i, layer in enumerate(model.decoder.layers, 1)}
    return enc | cross | dec


def labels(tokenizer, ids: Tensor) -> list[str]:
    """Tokens as axis labels, each with the characters that begin in it: a character of several
    tokens is at the first, the others are a dot. A blank is a visible sign."""
    tokens = ids.tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    texts = []
    start = 0
    for i in range(1, len(tokens) + 1):                  # an unfinished character counts as one
        end = len(tokenizer.decode(tokens[:i], skip_special_tokens=False))
        if end > start:
            texts.append(text[start:end].strip() or "\u2423")
        else:
            texts.append("·")
        start = end
    return texts


# ---- Disagreement: Li 2018 Tables 4 and 5

def scores(run: TrainedRun, max_tokens: int = 4096) -> dict:
    """exp(D) in (0, 1] on the validation set: {"mean": {component: {kind: x}}, "layers":
    {component: {kind: [x of layer 1, ...]}}}. The mean is that of D over the layers, before the
    exponential (Li 2018 Table 4)."""
    _, D = validate(run.model, run.encoded, max_tokens)
    layers = {}
    for component, kinds in D.items():
        layers[component] = {}
        for kind, values in kinds.items():
            layers[component][kind] = [math.exp(x) for x in values]
    return {"mean": disagreement_scores(D), "layers": layers}


# ---- The heads as vectors, and their attention: Li 2021 Fig. 3, Duan 2020 Fig. 5

def exact(x: Tensor) -> Tensor:
    """x in float64 on the CPU, since Apple's GPU has no float64."""
    return x.cpu().double()


def head_vectors(run: TrainedRun, component: str = "enc", max_tokens: int = 4096) -> Tensor:
    """The heads' outputs O^h averaged over the words of the validation set, [layers, H, d_k] (Li
    2021 §4.1.2.3; its Fig. 3 averages over the layers as well)."""
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
    cosines = torch.cosine_similarity(vectors[:, None], vectors, dim=-1)     # [H, H]
    different = cosines[~torch.eye(len(vectors), dtype=torch.bool)]
    return float(different.mean()) if len(different) else 0.0


def project(points: Tensor) -> Tensor:
    """t-SNE of the points [n, d_k], two or more: [n, 2]."""
    from sklearn.manifold import TSNE
    init = "pca" if points.shape[1] > 1 else "random"
    neighbours = max(1.0, min(30.0, (len(points) - 1) / 3))      # 1 for 4 points, 5 for 16
    tsne = TSNE(2, perplexity=neighbours, init=init, method="exact", random_state=0)
    return torch.as_tensor(tsne.fit_transform(points.numpy()))


@torch.no_grad()
def attention_map(run: TrainedRun, component: str, layer: int | None, index: int) -> dict:
    """A^h of one layer (from 1; None: the top one) for validation pair `index`, whose target side
    is the reference: weights [H][L_q][L_k], the tokens of both axes, and each head's entropy in
    nats, averaged over the queries."""
    device = next(run.model.parameters()).device
    source, target = (x.to(device) for x in collate(run.encoded, [index]))
    target = target[:, :-1]
    _, heads = run.model.hidden(source, target, need_weights=True)
    layer = layer or len(heads[component])
    A = heads[component][layer - 1].weights[0]                       # [H, L_q, L_k]
    entropy = -torch.xlogy(A, A).sum(-1).mean(-1)                    # [H]
    queries = source if component == "enc" else target
    keys = target if component == "dec" else source
    return {"layer": layer, "queries": labels(run.tokenizer, queries[0]),
            "keys": labels(run.tokenizer, keys[0]), "entropy": entropy.tolist(),
            "weights": A.tolist()}


# ---- Routing of the heads

def cast_votes(model, heads, masks) -> dict[str, Tensor]:
    """The votes of every aggregation by routing, {"enc:1": V [P, H, N, D]}; P: the words of the
    batch, each of which has its own routing."""
    votes = {}
    for place, attention in attentions(model).items():
        component, _, layer = place.partition(":")
        if hasattr(attention.aggregation, "cast_votes"):
            outputs = heads[component][int(layer) - 1].outputs
            votes[place] = attention.aggregation.cast_votes(outputs)[masks[component]]
    return votes


def trace(module, votes: Tensor) -> tuple[Tensor, Tensor | None]:
    """Entropy, agreement and movement in iterations 1, ..., T as means over words and heads [T, 3],
    and EM's A [P, N] or None. module: an aggregation.

    The entropy of C_m is divided by log N: 1 where a head gives the same to all capsules, 0 where
    it gives everything to one. Agreement: `sum_n C_mn cos(V_mn, Omega_n)`, in [-1, 1]. Movement:
    `|Omega - Omega'| / |Omega'|`, where Omega has all capsules and Omega' is that of the first
    iteration, whose weights are equal. C of iteration t is the result of a routing with t - 1
    iterations. (With the released schedule and T > 3 its lambda rises faster than in the model.)
    """
    rows = []
    N = votes.shape[-2]
    routing = copy.copy(module.routing)
    log_C = torch.full_like(votes[..., 0], -math.log(N))             # [P, H, N]
    for t in range(1, module.routing.iterations + 1):
        C = log_C.exp()
        omega = squash(weigh_votes(votes, log_C))                    # [P, N, D]
        routing.iterations = t
        routed = routing(votes, module.beta_a, module.beta_mu)
        if routing.kind == "em":
            A = routed.activations
            log_C = routed.coupling.clamp(min=torch.finfo(votes.dtype).tiny).log()
        else:
            A = None
            log_C = masked_log_softmax(routed.logits)
        entropy = -torch.xlogy(C, C).sum(-1) / math.log(max(N, 2))   # [P, H]
        cosine = torch.cosine_similarity(votes, omega.unsqueeze(-3), dim=-1)        # [P, H, N]
        agreement = (C * cosine).sum(-1)                             # [P, H]
        capsules = routed.capsules.flatten(-2)                       # [P, N D]
        if t == 1:
            first = capsules
        movement = (capsules - first).norm(dim=-1) / first.norm(dim=-1)              # [P]
        rows.append(torch.stack([entropy.mean(), agreement.mean(), movement.mean()]))
    return exact(torch.stack(rows)), A


@torch.no_grad()
def routing_statistics(run: TrainedRun, max_tokens: int = 4096) -> dict:
    """`trace` of every routing, averaged over the words of the validation set: {place: {"entropy":
    [T], "agreement": [T], "movement": [T], "activations": each capsule's mean A, or None without
    EM}}."""
    totals = {}                         # place -> [sum of rows, of A over the words, their number]
    attentions_by_place = attentions(run.model)
    for heads, masks in passes(run, max_tokens):
        for place, votes in cast_votes(run.model, heads, masks).items():
            rows, A = trace(attentions_by_place[place].aggregation, votes)
            total = totals.setdefault(place, [0, 0, 0])
            total[0] += len(votes) * rows
            total[1] += 0 if A is None else exact(A).sum(0)
            total[2] += len(votes)
    means = {}
    for place, (rows, A, words) in totals.items():
        entropy, agreement, movement = (rows / words).T.tolist()
        activations = (A / words).tolist() if torch.is_tensor(A) else None
        means[place] = {"entropy": entropy, "agreement": agreement, "movement": movement,
                        "activations": activations}
    return means


# ---- BLEU by source length: Gu 2019 Fig. 3

def source_lengths(lines: list[str], language: str) -> list[int]:
    """The number of words of every line, or of its characters in a text without spaces between
    words; 1 for a blank line."""
    unspaced = bleu_tokenizer(lines, language) != "13a"
    units = [line.replace(" ", "") if unspaced else line.split() for line in lines]
    return [len(line) or 1 for line in units]


def fitting_bins(lengths: list[int]) -> list[int]:
    """Upper ends of at most 7 bins of one width, which is 1, 2, 5, 10, ... The last bin has no
    upper end and holds at least 5 % of the sentences."""
    tail = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    widths = (digit * 10 ** n for n in range(9) for digit in (1, 2, 5))
    width = next(width for width in widths if tail <= 7 * width)
    return [width * i for i in range(1, math.ceil(tail / width))] or [width]


def bleu_by_length(run: TrainedRun, ends: list[int], beam: int | None = None) -> dict:
    """BLEU of the test sets by source length: {"bins": [{"low", "high" (None: open), "count",
    "bleu", "interval": 95 % by bootstrap}, ...], "bleu": of all, "beam", "signature"}. ends: see
    `fitting_bins`. Empty bins are left out."""
    source, references = run.test
    src, tgt = run.config["languages"]
    lowercase = run.config["lowercase"]
    beam = beam or run.config["beam"]
    hypotheses = translate(run, source, beam)
    bleu, signature = corpus_bleu(hypotheses, references, tgt, lowercase)
    metric = bleu_metric(references, tgt, lowercase)
    lengths = source_lengths(source, src)
    bins = []
    for low, high in zip([0, *ends], [*ends, math.inf]):
        inside = [i for i, length in enumerate(lengths) if low < length <= high]
        if inside:
            score, interval = bleu_interval([hypotheses[i] for i in inside],
                                            [references[i] for i in inside], metric)
            bins.append({"low": low + 1, "high": None if high == math.inf else high,
                         "count": len(inside), "bleu": score, "interval": interval})
    return {"bins": bins, "bleu": bleu, "beam": beam, "signature": signature}


# ---- Heads left out: Michel, Levy and Neubig 2019, "Are sixteen heads really better than one?", §3

def without_head(attention, head: int):
    """A context in which O^h of one head (from 0) reaches the aggregation as 0. With routing this
    head still casts votes, those of f_h(0)."""
    def mask(module, inputs):
        O = inputs[0].clone()                                        # [B, H, L_q, d_k]
        O[:, head] = 0
        return (O,)

    return attention.aggregation.register_forward_pre_hook(mask)


def head_costs(run: TrainedRun, beam: int | None = None) -> dict:
    """BLEU of the validation set with all heads minus BLEU without one: {"bleu": with all, "cost":
    {component: [layers][H]}, "mean": of all costs, "beam", "signature"}."""
    pairs = run.valid
    beam = beam or run.config["beam"]

    def score() -> tuple[float, str]:
        lines = translate(run, pairs.source, beam)
        return corpus_bleu(lines, pairs.target, run.config["languages"][1], run.config["lowercase"])

    whole, signature = score()
    costs = {}
    by_place = attentions(run.model)
    total = sum(attention.heads for attention in by_place.values())
    with tqdm(total=total, desc=f"{run.name}, heads left out", unit="head", disable=None) as bar:
        for place, attention in by_place.items():
            layer = []
            for head in range(attention.heads):
                with without_head(attention, head):
                    layer.append(whole - score()[0])
                bar.update()
            costs.setdefault(place.partition(":")[0], []).append(layer)
    every = [cost for layers in costs.values() for layer in layers for cost in layer]
    return {"bleu": whole, "cost": costs, "mean": statistics.fmean(every), "beam": beam,
            "signature": signature}
