"""Analyzes trained runs as the papers do: prints tables and draws figures (PNG).

    python -m papers.analyze runs/NAME
    python -m papers.analyze runs/A runs/B --only heads length
    python -m papers.analyze runs/NAME --only attention --sentence "A man."

loss: the curves of the training. disagreement: exp(D), Li 2018 Tables 4-5. heads: cosines, and of
several runs t-SNE, Li 2021 Fig. 3. attention: a heat map with the words, Duan 2020 Fig. 5. routing:
entropy and agreement of the couplings. length: BLEU by source length, Gu 2019 Fig. 3.

loss.png and attention.png go into the folder of each run, heads.png and length.png, which have all
runs, into that of the first.
"""
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from matplotlib import font_manager, rc_context, rcParams
from matplotlib.figure import Figure  # needs no backend, which a notebook may have chosen
from sacrebleu.metrics import BLEU
from tabulate import tabulate
from torch import Tensor

from aggregation import RoutingAggregation
from disagreement import MEASURED
from nmt.batches import batches, collate
from nmt.command_line import UserError, count, flag
from nmt.command_line import run as run_command
from nmt.corpus import Data, DataFlags, Lines, Pairs, load_data
from nmt.encoded import EncodedPairs, encode_pairs
from nmt.evaluate import bleu_tokenizer, validate
from nmt.machine import DEVICES, pick_device
from nmt.run_folder import load_run, read_log
from nmt.search import translate_lines
from nmt.tokenizer import prepare_line
from papers.tables import SCORES, SCORES_BY_LAYER
from routing_dynamic import dynamic_routing, squash, weigh_votes
from routing_em import em_routing
from transformer import COMPONENTS, PAD

PARTS = ("loss", "disagreement", "heads", "attention", "routing", "length")
MAX_TOKENS = 4096               # of a batch of the validation set
# fonts with Chinese, Japanese or Korean letters
CJK = "CJK|WenQuanYi|IPA|Hiragino|PingFang|Arial Unicode|YaHei|Yu Gothic|Malgun"


@dataclass
class Settings:
    """Runs and parts."""
    runs: tuple[str, ...] = flag(help="run folders, e.g. runs/NAME", metavar="RUN", positional=True)
    only: tuple[str, ...] = flag(PARTS, f"parts to run: {', '.join(PARTS)} (default: all)",
                                 choices=PARTS, metavar="PART")
    component: str = flag("enc", "heads and attention of: enc: encoder self-attention, cross: "
                          "decoder to encoder, dec: decoder self-attention", choices=COMPONENTS)
    layer: int | None = flag(None, "layer of the heat maps, from 1 at the bottom (default: the top "
                                   "one)", type=count)
    sentence: str | None = flag(None, "source sentence of the heat maps, which the run translates "
                                "(default: a short validation pair)", metavar="TEXT")
    device: str = flag("auto", DEVICES)


class Run(NamedTuple):
    """A trained run and its text."""
    folder: Path
    model: torch.nn.Module
    config: dict                # its config.json
    data: Data


def load(folder: Path, device) -> Run:
    """The best checkpoint of a run. Raises UserError."""
    model, _, config = load_run(folder, device=device)
    text = DataFlags(**{field.name: config[field.name] for field in fields(DataFlags)})
    data = load_data(text, folder / "tokenizer.json")
    same = data.checksums == config["text"]
    for name, pairs in data.tests.items():
        references = folder / f"{name}.ref"              # an unfinished run has none
        same &= not references.exists() or [*Lines(references)] == pairs.target
    if not same:
        raise UserError(f"{folder}: its text is not the one it was trained and tested on")
    return Run(folder, model, config, data)


def translate(run: Run, lines) -> list[str]:
    """Translates as in the test of the run."""
    return translate_lines(run.model, run.data.tokenizer, lines, beam=run.config["beam"],
                           lenpen=run.config["lenpen"], length_ratio=run.data.length_ratio)


@torch.no_grad()
def passes(run: Run, max_tokens: int = MAX_TOKENS):
    """Runs the model over the validation set. Yields the heads of every batch, and {component: mask
    of the queries [B, L_q]}."""
    device = next(run.model.parameters()).device
    valid = run.data.valid
    for indices in batches(valid.source_lengths, valid.target_lengths, max_tokens, shuffle=False):
        source, target = (x.to(device) for x in collate(valid, indices))
        _, heads = run.model.hidden(source, target[:, :-1])
        target_mask = target[:, 1:] != PAD                           # [B, L_t]
        yield heads, {"enc": source != PAD, "cross": target_mask, "dec": target_mask}


def print_table(title: str, header: list, rows: list) -> None:
    """Prints rows: numbers have three decimals, None is a dash."""
    print(f"{title}\n{tabulate(rows, header, 'plain', floatfmt='.3f', missingval='-')}\n")


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150)
    print(f"written: {path}\n")


# ---- The training

def draw_loss(folder: Path) -> None:
    """Draws the losses per target token, validation BLEU, and D where it is rewarded. Raises
    UserError for a folder without metrics.jsonl."""
    rows = [row for row in read_log(folder) if row["type"] != "test"]
    if not rows:
        raise UserError(f"{folder} has no metrics.jsonl")
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    losses, scores, disagreement = figure.subplots(1, 3)
    for axes, key, label in ((losses, "loss", "training, smoothed"),
                             (losses, "valid_loss", "validation"),
                             (scores, "valid_bleu", None), (disagreement, "disagreement", None)):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        if points:
            axes.plot(*zip(*points), ".-", label=label)
        axes.set(xlabel="step", xlim=(0, None))
    figure.suptitle(folder.name)
    losses.set(ylabel="loss per token in nats", ylim=(0, None))
    losses.legend()
    scores.set(ylabel="validation BLEU, greedy", ylim=(0, 100))
    disagreement.set(ylabel="D")
    disagreement.set_visible(bool(disagreement.lines))
    save(figure, folder / "loss.png")


# ---- Disagreement: Li 2018 Tables 4 and 5

def print_disagreement(runs: list[Run]) -> None:
    """exp(D) on the validation set by component and kind, of the mean of D over the layers, and
    that of the positions by layer."""
    kinds = []
    layers = []
    for run in runs:
        _, D = validate(run.model, run.data.valid, MAX_TOKENS)
        for component, x in D.items():
            name = f"{run.folder.name} {component}"
            kinds.append([name, *(math.exp(fmean(x[kind])) for kind in MEASURED)])
            layers.append([name, *map(math.exp, x["position"])])
    for published, rows in ((SCORES, kinds), (SCORES_BY_LAYER, layers)):
        for label, cells in published.items():
            rows.append([f"published: {label} (enc)", *cells])
    print_table(
        "exp(D) on the validation set, D averaged over the layers (Li 2018 Table 4).\n"
        "Subspace and output: 0.368 where the heads are alike, exp(-1/H) where they are\n"
        "orthogonal (4 heads: 0.779, 8: 0.882), 1 where they cancel. Published: base, WMT17\n"
        "Zh-En.", ["", *MEASURED], kinds)
    depth = max(map(len, layers))
    print_table(
        "exp(D) of the attended positions by layer (Li 2018 Table 5). It falls with the\n"
        "length of the sentences: compare it only on one text.", ["layer", *range(1, depth)],
        layers)


# ---- The heads as points: Li 2021 Fig. 3

def head_vectors(run: Run, component: str, max_tokens: int = MAX_TOKENS) -> Tensor:
    """The heads' outputs O^h averaged over the words of the validation set, [layers, H, d_k] (Li
    2021 §4.1.2.3; its Fig. 3 averages over the layers as well)."""
    total = 0
    words = 0
    for heads, masks in passes(run, max_tokens):
        mask = masks[component].cpu()                                # [B, L]
        O = torch.stack([h.outputs for h in heads[component]])       # [layers, B, H, L, d_k]
        # in float64 on the CPU, since Apple's GPU has no float64
        total = total + torch.einsum("nbhld,bl->nhd", O.cpu().double(), mask.double())
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
    neighbours = max(1.0, min(30.0, (len(points) - 1) / 3))      # 1 for 4 points, 5 for 16
    tsne = TSNE(2, perplexity=neighbours, method="exact", random_state=0)
    return torch.as_tensor(tsne.fit_transform(points.numpy()))


def print_heads(runs: list[Run], component: str) -> None:
    """Prints the cosines of the heads; draws those of several runs, if they have one width, as
    points in a plane."""
    vectors = [head_vectors(run, component) for run in runs]
    depth = max(map(len, vectors))
    print_table(
        f"Mean cosine of two heads ({component}) of their outputs, averaged over the words. Mean: "
        "averaged\nover the layers, too, as in Li 2021 Fig. 3.",
        ["", "mean", *(f"layer {i + 1}" for i in range(depth))],
        [[run.folder.name, mean_cosine(v.mean(0)), *map(mean_cosine, v)]
         for run, v in zip(runs, vectors)])
    widths = {v.shape[-1] for v in vectors}
    if len(runs) == 1 or len(widths) > 1:                # the t-SNE of four points says nothing
        return
    means = [v.mean(0) for v in vectors]                             # [H, d_k]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    plane = project(torch.cat(means)).split([len(v) for v in means])
    for run, points in zip(runs, (x.tolist() for x in plane)):                # [H][2]
        axes.scatter(*zip(*points), label=run.folder.name)
        for head, point in enumerate(points, 1):
            axes.annotate(head, point, (6, 4), textcoords="offset points")
    axes.set(title="t-SNE of the heads' outputs, mean over words and layers; numbers: heads",
             xticks=[], yticks=[])
    figure.legend(loc="outside lower center")
    save(figure, runs[0].folder / "heads.png")


# ---- Attention: Duan 2020 Fig. 5

def token_labels(tokenizer, tokens: list[int]) -> list[str]:
    """Tokens as axis labels, each with the characters that begin in it: a character of several
    tokens is at the first, the others are a dot. A blank is a visible sign."""
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    labels = []
    start = 0
    for i in range(1, len(tokens) + 1):                  # an unfinished character counts as one
        end = len(tokenizer.decode(tokens[:i], skip_special_tokens=False))
        label = "·"
        if end > start:
            label = text[start:end].strip() or "\u2423"
        labels.append(label)
        start = end
    return labels


def choose_pair(run: Run, sentence: str | None) -> tuple[EncodedPairs, int]:
    """Encoded pairs, and which of them is drawn: the sentence with the run's translation, or the
    first validation pair with 8 to 16 tokens on both sides, or the shortest."""
    if sentence is not None:
        source = prepare_line(sentence)
        pairs = Pairs([source], translate(run, [source]))
        return encode_pairs(run.data.tokenizer, pairs), 0
    lengths = [*zip(run.data.valid.source_lengths, run.data.valid.target_lengths)]
    short = [i for i, pair in enumerate(lengths) if 8 <= min(pair) and max(pair) <= 16]
    return run.data.valid, [*short, min(range(len(lengths)), key=lambda i: max(lengths[i]))][0]


@torch.no_grad()
def attention_map(run: Run, component: str, layer: int, pairs: EncodedPairs, index: int):
    """A^h [H, L_q, L_k] of a layer, from 1, for a pair; the tokens of the queries, and those of the
    keys."""
    device = next(run.model.parameters()).device
    source, target = (x.to(device) for x in collate(pairs, [index]))
    target = target[:, :-1]
    _, heads = run.model.hidden(source, target, need_weights=True)
    source, target = (token_labels(run.data.tokenizer, x[0].tolist()) for x in (source, target))
    queries = source if component == "enc" else target
    keys = target if component == "dec" else source
    return heads[component][layer - 1].weights[0].cpu(), queries, keys


def print_attention(run: Run, component: str, layer: int, sentence: str | None) -> None:
    """Draws a map per head, queries at the left, keys below; prints the entropy of every head."""
    A, queries, keys = attention_map(run, component, layer, *choose_pair(run, sentence))
    entropy = -torch.xlogy(A, A).sum(-1).mean(-1)                    # [H]
    print_table(
        f"Entropy of the attention in {component}, layer {layer}, in nats, averaged over the "
        f"queries\n(uniform over n tokens: log n). The keys are:\n  {' '.join(keys)}",
        ["head", *range(1, len(A) + 1)], [[run.folder.name, *entropy.tolist()]])
    rows = math.ceil(len(A) / 2)
    size = 2 * (1 + 0.2 * len(keys)), rows * (1 + 0.2 * len(queries))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(f"{run.folder.name}: {component}, layer {layer}")
    for head, weights in enumerate(A, 1):
        axes = figure.add_subplot(rows, 2, head, title=f"head {head}")
        image = axes.imshow(weights.numpy(), "Blues", aspect="auto", vmin=0, vmax=A.max().item())
        axes.set_xticks(range(len(keys)), keys, rotation=90)
        axes.set_yticks(range(len(queries)), queries)
    figure.colorbar(image, ax=figure.axes, label="attention weight")
    save(figure, run.folder / "attention.png")


# ---- Routing: does it route?

def attentions(model) -> dict:
    """The attention modules of a model by place, {"enc:1": MultiHeadAttention, ...}."""
    enc = {f"enc:{i}": layer.attention for i, layer in enumerate(model.encoder.layers, 1)}
    cross = {f"cross:{i}": layer.cross for i, layer in enumerate(model.decoder.layers, 1)}
    dec = {f"dec:{i}": layer.attention for i, layer in enumerate(model.decoder.layers, 1)}
    return enc | cross | dec


def trace(aggregation, V: Tensor) -> Tensor:
    """Entropy and agreement in iterations 1, ..., T as means over words and heads, [T, 2]. V: votes
    [P, M, N, D] of P words; aggregation: their module.

    The entropy of C_m is divided by log N: 1 where a head gives the same to all capsules, 0 where
    it gives everything to one. Agreement: `sum_n C_mn cos(V_mn, Omega_n)`, in [-1, 1]. The model
    returns only the last C: that of iteration t + 1 is the result of a routing with t iterations.
    """
    N = V.shape[-2]
    log_C = torch.full_like(V[..., 0], -math.log(N))                 # [P, M, N]
    normalize = isinstance(aggregation, RoutingAggregation)          # Li 2019 Eq. 7
    rows = []
    for t in range(1, aggregation.iterations + 1):
        C = log_C.exp()
        omega = squash(weigh_votes(V, log_C))                        # [P, N, D]
        entropy = -torch.xlogy(C, C).sum(-1) / math.log(max(N, 2))   # [P, M]
        cosine = torch.cosine_similarity(V, omega.unsqueeze(-3), dim=-1)             # [P, M, N]
        rows.append(torch.stack([entropy.mean(), (C * cosine).sum(-1).mean()]))
        if aggregation.routing == "em":
            C = em_routing(V, aggregation.beta_a, aggregation.beta_mu, t).coupling
            log_C = C.clamp(min=torch.finfo(V.dtype).tiny).log()
        else:
            log_C = dynamic_routing(V, t, normalize).logits.log_softmax(-1)
    return torch.stack(rows).cpu().double()


def routing_statistics(run: Run, max_tokens: int = MAX_TOKENS) -> dict[str, Tensor]:
    """`trace` of every routing, averaged over the words of the validation set, by place."""
    totals = {}
    words = {}
    for heads, masks in passes(run, max_tokens):
        for place, attention in attentions(run.model).items():
            component, layer = place.split(":")
            if hasattr(attention.aggregation, "cast_votes"):
                outputs = heads[component][int(layer) - 1].outputs
                V = attention.aggregation.cast_votes(outputs)[masks[component]]     # [P, M, N, D]
                with torch.no_grad():
                    rows = trace(attention.aggregation, V)
                totals[place] = totals.get(place, 0) + len(V) * rows
                words[place] = words.get(place, 0) + len(V)
    return {place: total / words[place] for place, total in totals.items()}


def print_routing(runs: list[Run]) -> None:
    """Prints entropy and agreement of every routing."""
    rows = []
    for run in runs:
        for place, statistics in routing_statistics(run).items():
            cells = [" ".join(f"{x:.3f}" for x in column) for column in statistics.T.tolist()]
            rows.append([f"{run.folder.name} {place}", *cells])
    print_table(
        "Routing on the validation set, iteration by iteration. Entropy: of the couplings, "
        "divided by log N\n(1: the same to all capsules, 0: everything to one). Agreement: the "
        "cosine of votes and capsules,\nweighted by the couplings that the capsules were made "
        "with.", ["", "entropy", "agreement"], rows or [["no run has a routing"]])


# ---- BLEU by source length: Gu 2019 Fig. 3

def source_lengths(lines: list[str], language: str) -> list[int]:
    """The number of words of every line, or of its characters in a text without spaces between
    words; 1 for a blank line."""
    unspaced = bleu_tokenizer(lines, language) != "13a"
    units = [line.replace(" ", "") if unspaced else line.split() for line in lines]
    return [len(line) or 1 for line in units]


def fitting_bins(lengths: list[int]) -> list[tuple]:
    """At most 7 bins (low, high) of one width, which is 1, 2, 5, 10, ... The last one has no upper
    end and holds at least 5 % of the sentences. Empty bins are left out."""
    tail = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    widths = (digit * 10 ** n for n in range(9) for digit in (1, 2, 5))
    width = next(width for width in widths if tail <= 7 * width)
    ends = [width * i for i in range(1, math.ceil(tail / width))] or [width]
    bins = zip([1, *(end + 1 for end in ends)], [*ends, math.inf])
    filled = []
    for low, high in bins:
        if any(low <= length <= high for length in lengths):
            filled.append((low, high))
    return filled


def test_pairs(run: Run) -> Pairs:
    """All test sets together; without any, the validation set."""
    sets = run.data.tests.values() or [run.data.valid_pairs]
    source = [line for pairs in sets for line in pairs.source]
    return Pairs(source, [line for pairs in sets for line in pairs.target])


def bleu_by_length(run: Run, bins: list[tuple]) -> tuple[list[tuple], float, str]:
    """For every bin of source lengths the number of sentences, their BLEU, and half of its 95 %
    interval by bootstrap (NaN without a sentence); BLEU of all, and its signature."""
    source, references = test_pairs(run)
    hypotheses = translate(run, source)
    src, tgt = run.data.languages
    metric = BLEU(tokenize=bleu_tokenizer(references, tgt))
    bleu = metric.corpus_score(hypotheses, [references]).score
    signature = str(metric.get_signature())
    lengths = source_lengths(source, src)
    scores = []
    for low, high in bins:
        inside = [i for i, length in enumerate(lengths) if low <= length <= high]
        score = math.nan, math.nan
        if inside:
            result = metric.corpus_score([hypotheses[i] for i in inside],
                                         [[references[i] for i in inside]], n_bootstrap=1000)
            score = result.score, result._ci
        scores.append((len(inside), *score))
    return scores, bleu, signature


def print_length(runs: list[Run]) -> None:
    """Prints and draws BLEU by source length, for all runs in the bins of the first."""
    bins = fitting_bins(source_lengths(test_pairs(runs[0]).source, runs[0].data.languages[0]))
    labels = [f"{low}-{high}" if high < math.inf else f"{low}+" for low, high in bins]
    rows = [[label] for label in [*labels, "all"]]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        scores, bleu, signature = bleu_by_length(run, bins)
        print(f"{run.folder.name}: {signature}")
        for row, (number, score, _) in zip(rows, scores):
            row.append(f"{score:.2f} ({number})")
        rows[-1].append(f"{bleu:.2f}")
        _, values, intervals = zip(*scores)
        axes.errorbar(labels, values, intervals, capsize=2, marker="o", label=run.folder.name)
    axes.set(xlabel="source length", ylabel="BLEU",
             title="BLEU by source length, 95 % intervals (bootstrap over the sentences)")
    figure.legend(loc="outside lower center")
    print_table("BLEU (and number of sentences) by source length (Gu 2019 Fig. 3).",
                ["source length", *(run.folder.name for run in runs)], rows)
    save(figure, runs[0].folder / "length.png")


# ---- The command

def analyze(settings: Settings) -> None:
    """Measures the parts of --only. Raises UserError."""
    folders = [Path(folder) for folder in settings.runs]
    if "loss" in settings.only:
        for folder in folders:
            draw_loss(folder)
    if settings.only == ("loss",):      # needs no checkpoint
        return
    device = pick_device(settings.device)
    runs = [load(folder, device) for folder in folders]
    layers = min(run.model.config.layers for run in runs)
    if settings.layer and settings.layer > layers:
        raise UserError(f"--layer {settings.layer}: choose from 1 to {layers}")
    if "disagreement" in settings.only:
        print_disagreement(runs)
    if "heads" in settings.only:
        print_heads(runs, settings.component)
    if "attention" in settings.only:
        for run in runs:
            print_attention(run, settings.component, settings.layer or run.model.config.layers,
                            settings.sentence)
    if "routing" in settings.only:
        print_routing(runs)
    if "length" in settings.only:
        print_length(runs)


def main(argv=None) -> None:
    fonts = [name for name in font_manager.get_font_names() if re.search(CJK, name)]
    with rc_context({"font.family": [*rcParams["font.family"], *fonts],
                     "text.parse_math": False}):         # a dollar sign starts no formula
        run_command(analyze, Settings, argv=argv)


if __name__ == "__main__":
    main()
