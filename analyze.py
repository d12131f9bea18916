"""The papers' analyses of trained runs: tables on the screen and in analysis.json, figures as PNG.

    python analyze.py runs/NAME
    python analyze.py runs/BASELINE runs/OTHER --out FOLDER     # in one table, side by side
    python analyze.py runs/NAME --only attention --component cross --sentence "A man walks a dog ."

disagreement: exp(D), Li 2018 Tables 4-5. heads: t-SNE of the head representations, Li 2021 Fig. 3.
attention: heat maps, Duan 2020 Fig. 5. routing: what the routings do. length: BLEU by source
length, Gu 2019 Fig. 3. ablation: what BLEU each head costs that is left out, Michel et al. 2019,
on request. What is measured, and how, is in papers/measure.py; what is drawn, in
papers/figures.py.
"""
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from disagreement import MEASURED
from nmt.corpus import Pairs
from nmt.encoded import encode_pairs, encode_valid
from nmt.files import atomic_write, check_writable, reported
from nmt.flags import UserError, flag, run
from nmt.machine import DEVICES, pick_device
from nmt.progress import aligned
from nmt.run_folder import load_run, without_nan
from nmt.search import translate_lines
from papers import measure, plan
from papers.ablation import cost_table, costs
from papers.run_text import read_text
from papers.tables import TABLES
from transformer import COMPONENTS

LONGEST = 64                    # tokens of the sentence that is drawn
FEW_POINTS = 6                  # below that a t-SNE shows nothing: the heads' cosines are drawn
FEW_HEADS = 8                   # up to here the heads of every layer are drawn as well
QUICK = ("disagreement", "heads", "attention", "routing", "length")
PARTS = (*QUICK, "ablation")
DRAWN = "the heads and the sentence that are drawn"
LENGTH = "BLEU by length"
TEXT = "text, where a run's own is no longer in its place"


@dataclass
class Settings:
    """What is analyzed, and how."""
    runs: tuple[str, ...] = flag((), "run folders, e.g. runs/NAME; the first is the baseline",
                                 metavar="RUN", positional=True)
    only: tuple[str, ...] = flag(QUICK, f"these parts alone, of {', '.join(PARTS)}; analysis.json "
                                 "then holds these alone, too (all but ablation, which translates "
                                 "once per head)", choices=PARTS, metavar="PART")
    out: str | None = flag(None, "where analysis.json and the figures go (the first run's "
                           "folder)", metavar="DIR")
    checkpoint: str = flag("best", "best, last, average, step-N", metavar="NAME")
    device: str = flag("auto", DEVICES)
    max_tokens: int = flag(4096, "batch size in tokens", "", 1, 10 ** 8)

    component: str = flag("enc", "enc: encoder self-attention, cross: decoder to encoder, dec: "
                          "decoder self-attention; of the heat maps and of the heads as points",
                          DRAWN, choices=COMPONENTS)
    layer: int | None = flag(None, "layer of the heat maps, from 1 at the bottom (the top one)",
                             DRAWN, 1, 1000)
    sentence: str | None = flag(None, "validation pair N, from 1, or a source sentence, which "
                                "every run then translates itself (the first pair of 8 to 16 "
                                "tokens a side)", DRAWN, metavar="N|TEXT")

    bins: tuple[int, ...] | None = flag(None, "upper ends of the bins, in source words (up to 7 "
                                        "that fit the text)", LENGTH, 1)
    beam: int | None = flag(None, "beam size, of the ablation too (the run's own)", LENGTH, 1,
                            1000)

    valid: str | None = flag(None, "validation text, PREFIX.SRC and PREFIX.TGT (the run's)", TEXT,
                             metavar="PREFIX")
    test: str | None = flag(None, "test text (the run's; without one, the validation text)", TEXT,
                            metavar="PREFIX")
    src: str | None = flag(None, "source language, the ending of its files (the run's)", TEXT,
                           metavar="SRC")
    tgt: str | None = flag(None, "target language (the run's)", TEXT, metavar="TGT")


# ---- Runs and text

def open_runs(settings: Settings) -> list[measure.Run]:
    """The runs with their text. Raises UserError for a folder that is none or is named twice, or
    missing text."""
    device = pick_device(settings.device)
    found = []
    seen = []
    for folder in settings.runs:
        real = Path(folder).resolve()
        if real in seen:
            raise UserError(f"{folder} is named twice: name each run once")
        same = sum(real.name == other.name for other in seen)
        seen.append(real)
        model, tokenizer, config = load_run(folder, settings.checkpoint, device)
        text = read_text(folder, config, settings)
        name = plan.run_label(real.name, model.config)
        if same:
            name = f"{name} ({same + 1})"
        encoded = encode_valid(tokenizer, text)
        found.append(measure.Run(name, model, tokenizer, config, text, encoded))
    return found


def label_without_seed(one: measure.Run) -> str:
    """What runs of a model share in tables over several seeds."""
    return one.name.partition(", seed ")[0]


def check(runs: list[measure.Run], settings: Settings) -> None:
    """Raises UserError for flags that do not fit the runs, before anything is measured."""
    for one in runs:
        layers = one.model.config.layers
        if settings.layer and settings.layer > layers:
            raise UserError(f"--layer {settings.layer}: {one.name} has layers 1 to {layers}")
    widths = {one.model.config.d_model // one.model.config.heads for one in runs}
    if "heads" in settings.only and len(widths) > 1:
        raise UserError(f"the runs' heads have {' and '.join(map(str, sorted(widths)))} dimensions "
                        "and fit no common plot: leave some runs out, or name the other parts with "
                        "--only")
    bins = list(settings.bins or ())
    if bins != sorted(set(bins)):
        raise UserError(f"--bins {' '.join(map(str, bins))}: give upper ends that rise, as in "
                        "--bins 10 20 30")


# ---- The sentence that is drawn

def fitting_pair(one: measure.Run) -> int:
    """The index of the first validation pair of 8 to 16 tokens a side; where there is none, of the
    pair whose longer side is shortest."""
    pairs = list(zip(one.encoded.source_lengths.tolist(), one.encoded.target_lengths.tolist()))
    for i, pair in enumerate(pairs):
        if 8 <= min(pair) and max(pair) <= 16:
            return i
    longer = [max(pair) for pair in pairs]
    return longer.index(min(longer))


def own_translation(one: measure.Run, source: str, beam: int | None) -> measure.Run:
    """The run with one pair in place of its validation set: the sentence and its translation."""
    target = [""]
    if len(one.tokenizer.encode(source).ids) <= LONGEST:
        target = translate_lines(one.model, one.tokenizer, [source],
                                 beam=beam or one.settings.get("beam", 4),
                                 lenpen=one.settings.get("lenpen", 0.6))
    return one._replace(encoded=encode_pairs(one.tokenizer, Pairs([source], target)))


def sentence(one: measure.Run, settings) -> tuple[measure.Run, int]:
    """The run, and the index of the pair to draw: of its validation set, or of a set with the one
    sentence that was given and the run's own translation. Raises UserError for a sentence that is
    empty, too long, or not there."""
    if settings.sentence is None:
        index = fitting_pair(one)
    else:
        wanted = " ".join(settings.sentence.encode("utf-8", "replace").decode().split())
        if not wanted:
            raise UserError("--sentence is empty: give a sentence, or the number of a validation "
                            "pair")
        if wanted.isdecimal():
            index = int(wanted[:10]) - 1                 # more digits than any corpus has pairs
            if not 0 <= index < len(one.encoded):
                raise UserError(f"--sentence {wanted[:20]}: {one.name} has validation pairs 1 to "
                                f"{len(one.encoded)}")
        else:
            one = own_translation(one, wanted, settings.beam)
            index = 0
    for side, lengths in (("", one.encoded.source_lengths),
                          ("the translation of ", one.encoded.target_lengths)):
        if lengths[index] > LONGEST:
            raise UserError(f"--sentence: {side}the sentence has {lengths[index]} tokens in "
                            f"{one.name}, and {LONGEST} fit a figure: choose another one")
    return one, index


# ---- Tables on the screen

def shown(value) -> str:
    """A cell: real numbers with three decimals, a dash for None."""
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def table(header: list[str], rows: list[list]) -> str:
    """Rows as text, see `shown`."""
    return aligned(header, [list(map(shown, row)) for row in rows])


def padded(values, width: int) -> list:
    """The values, and None up to that width."""
    return [*values, *[None] * (width - len(values))]


def numbered(word: str, count: int) -> list[str]:
    """Headings: "word 1", "word 2", ..."""
    return [f"{word} {i}".strip() for i in range(1, count + 1)]


# ---- The parts: each draws into the folder; returns (what goes into analysis.json, text for the
# screen, file names)

def disagreement(runs, pairs, settings, folder):
    """exp(D) by run, component and kind, and the position score by layer (Li 2018 Tables 4 and
    5)."""
    found = {one.name: measure.scores(one, settings.max_tokens) for one in runs}
    depth = max(6, *(one.model.config.layers for one in runs))
    kinds = []
    layers = []
    for name, one in found.items():
        for component, x in one["mean"].items():
            kinds.append([f"{name} {component}", *(x[kind] for kind in MEASURED)])
        for component, x in one["layers"].items():
            layers.append([f"{name} {component}", *padded(x["position"], depth)])
    printed = {}
    for key, rows in (("li2018-4", kinds), ("li2018-5", layers)):
        source = TABLES[key].source
        printed[source] = {}
        for row in TABLES[key].rows:
            printed[source][row.label] = [float(cell) for cell in row.published]
            rows.append(padded([f"published: {row.label} (enc)", *row.published], len(rows[0])))
    text = ("exp(D) on the validation set, D averaged over the layers (Li 2018 Table 4).\n"
            "Subspace and output: heads that are alike give 0.368, orthogonal ones exp(-1/H)\n"
            "(4 heads: 0.779, 8: 0.882), heads that cancel 1. Published: base, WMT17 Zh-En.\n"
            f"{table(['', *MEASURED], kinds)}\n\n"
            "exp(D) of the attended positions by layer (Li 2018 Table 5). It falls with the\n"
            "length of the sentences, so it can be compared on one text only.\n"
            f"{table(['layer', *numbered('', depth)], layers)}")
    return {"runs": found, "published": printed}, text, []


def heads(runs, pairs, settings, folder):
    """The heads as points (Li 2021 Fig. 3), and how far apart they lie before the projection."""
    from papers import figures
    names = [one.name for one in runs]
    vectors = [measure.head_vectors(one, settings.component, settings.max_tokens) for one in runs]
    means = [v.mean(0) for v in vectors]                             # [H, d_k]
    files = []
    together = None
    if sum(map(len, means)) >= FEW_POINTS:
        points = measure.project(torch.cat(means)).split([len(x) for x in means])
        together = [x.tolist() for x in points]
    else:
        drawn = {name: measure.head_cosines(x).tolist() for name, x in zip(names, means)}
        figures.cosines(drawn, folder / "cosines.png")
        files.append("cosines.png")
    apart = None
    every = [v.flatten(0, 1) for v in vectors]                       # [layers H, d_k]
    if max(map(len, means)) <= FEW_HEADS and sum(map(len, every)) >= FEW_POINTS:
        points = measure.project(torch.cat(every)).split([len(x) for x in every])
        apart = [x.unflatten(0, v.shape[:2]).tolist() for x, v in zip(points, vectors)]
    if together or apart:
        figures.heads(names, together, apart, folder / "heads.png")
        files.append("heads.png")
    found = {}
    rows = []
    for i, (name, v) in enumerate(zip(names, vectors)):
        mean = measure.dispersion(v.mean(0))
        layers = [measure.dispersion(x) for x in v]
        found[name] = {"mean": mean, "layers": layers, "points": together and together[i]}
        rows.append([f"{name} mean", mean["cosine"], mean["distance"]])
        for layer, x in enumerate(layers, 1):
            rows.append([f"{name} layer {layer}", x["cosine"], x["distance"]])
    text = (f"Head representations ({settings.component}) averaged over words; mean: over layers "
            "too, as Li 2021\nFig. 3. Mean cosine of two heads, and their mean distance as a share "
            "of the mean length. In\nheads.png (t-SNE) the axes have no unit, and how far two runs "
            "lie apart says nothing.\n" + table(["", "cosine", "distance"], rows))
    return found, text, files


def attention(runs, pairs, settings, folder):
    """The heat maps of the first two runs (Duan 2020 Fig. 5), and every run's entropy of attention
    per head."""
    from papers import figures
    maps = {}
    for one, index in pairs:
        maps[one.name] = measure.attention_map(one, settings.component, settings.layer, index)
    layers = dict.fromkeys(str(one["layer"]) for one in maps.values())
    where = f"{settings.component}, layer {'/'.join(layers)}"
    first_two = dict(list(maps.items())[:2])
    figures.attention(first_two, f"attention, {where}", folder / "attention.png")
    most = max(len(one["entropy"]) for one in maps.values())
    rows = [[name, *padded(one["entropy"], most)] for name, one in maps.items()]
    keys = dict.fromkeys("  " + " ".join(one["keys"]) for one in maps.values())
    lines = ["Entropy of the attention (nats; uniform over n tokens is log n) in "
             f"{where}, mean over queries; keys:", *keys,
             table(["head", *numbered("", most)], rows)]
    if len(maps) > 2:
        lines.append("attention.png shows the first two runs")
    return maps, "\n".join(lines), ["attention.png"]


def routing(runs, pairs, settings, folder):
    """Entropy, agreement and activations of every routing, and the couplings of the sentence."""
    from papers import figures
    found = {one.name: measure.routing_statistics(one, settings.max_tokens) for one in runs}
    active = {name: places for name, places in found.items() if places}
    couplings = {}
    for one, index in pairs:
        if one.name in active:
            couplings[one.name] = measure.sentence_couplings(one, index)
    result = {"statistics": found, "couplings": couplings}
    if not active:
        return result, "Routing: none of the runs has any.", []
    names = ["routing.png"]
    figures.routing(active, folder / "routing.png")
    for one in runs:
        if one.name in couplings:
            names.append(f"coupling-{re.sub(r'[^A-Za-z0-9_.]+', '-', one.name)}.png")
            title = f"couplings of the sentence, columns sum to 1: {one.name}"
            figures.couplings(couplings[one.name], one.model.config.heads, title,
                              folder / names[-1])
    T = max(len(x["entropy"]) for places in active.values() for x in places.values())
    rows = []
    for name, places in active.items():
        for place, x in places.items():
            A = x["activations"]
            mean = sum(A) / len(A) if A else None
            rows.append([f"{name} {place}", *padded(x["entropy"], T), *padded(x["agreement"], T),
                         mean])
    text = ("Routing after 1, 2, ... iterations on the validation set: the couplings' entropy / "
            "log N (1: all\nalike, 0: all to one capsule), the cosine of votes and capsules "
            "weighted by the couplings, EM's\nmean A. The couplings are those a routing ends with: "
            "dynamic routing's first are alike, EM's\nfollow an E-step.\n"
            + table(["", *numbered("entropy", T), *numbered("agree", T), "mean A"], rows))
    return result, text, names


def length(runs, pairs, settings, folder):
    """BLEU by source length (Gu 2019 Fig. 3), all runs in the bins of the first."""
    from papers import figures
    first = runs[0].corpora
    lines = (first.test or first.valid).source
    lengths = [measure.source_length(line, first.src) for line in lines]
    ends = settings.bins or measure.fitting_bins(lengths)
    found = {}
    bins = {}                           # their start and label -> run -> BLEU and sentences
    for one in runs:
        part = "test" if one.corpora.test else "validation"
        found[one.name] = {**measure.bleu_by_length(one, ends, settings.beam), "set": part}
        for x in found[one.name]["bins"]:
            cell = f"{x['bleu']:.2f} ({x['count']})"
            bins.setdefault((x["low"], figures.bin_label(x)), {})[one.name] = cell
    figures.lengths(found, folder / "length.png")
    rows = []
    for low, label in sorted(bins):
        rows.append([label, *(bins[low, label].get(name) for name in found)])
    everything = ["all"]
    how = ["set, beam"]
    for one in found.values():
        count = sum(x["count"] for x in one["bins"])
        everything.append(f"{one['bleu']:.2f} ({count})")
        how.append(f"{one['set']}, {one['beam']}")
    signatures = "; ".join(dict.fromkeys(one["signature"] for one in found.values()))
    heading = f"BLEU (and number of sentences) by source length (Gu 2019 Fig. 3). {signatures}\n"
    text = heading + table(["source length", *found], [*rows, everything, how])
    return found, text, ["length.png"]


def ablation(runs, pairs, settings, folder):
    """The BLEU that every head costs (Michel et al. 2019)."""
    from papers import figures
    found = {}
    for one in runs:
        found[one.name] = {"label": label_without_seed(one), **costs(one, settings.beam)}
    figures.ablation(found, folder / "ablation.png")
    return found, cost_table(found), ["ablation.png"]


MEASURES = {"disagreement": disagreement, "heads": heads, "attention": attention,
            "routing": routing, "length": length, "ablation": ablation}


# ---- The command

def analyze(settings: Settings) -> None:
    """Measures the parts asked for, prints the tables, writes analysis.json and the figures."""
    if not settings.runs:
        raise UserError("which run? Name one or several run folders, as in runs/NAME")
    runs = open_runs(settings)
    check(runs, settings)
    pairs = []                          # the runs with the sentence that is drawn
    if "attention" in settings.only or "routing" in settings.only:
        pairs = [sentence(one, settings) for one in runs]
    folder = Path(settings.out or settings.runs[0])
    with reported("make the folder", f"--out {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "analysis.json", "--out")

    result = {"kind": "analysis", "runs": {}}
    for path, one in zip(settings.runs, runs):
        result["runs"][one.name] = {"folder": Path(path).name, "checkpoint": settings.checkpoint,
                                    "text": one.corpora.name,
                                    "seed": one.settings.get("seed"),
                                    "flags": " ".join(plan.mechanism_flags(one.model.config))}
    written = ["analysis.json"]
    for part in dict.fromkeys(settings.only):
        result[part], text, names = MEASURES[part](runs, pairs, settings, folder)
        written += names
        print(f"{text}\n", flush=True)
    content = json.dumps(without_nan(result), indent=1, ensure_ascii=False)
    atomic_write(folder / "analysis.json", content + "\n")
    print(f"{folder}: {', '.join(written)}")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(analyze, Settings, "analyze.py", "The papers' analyses of trained runs: "
               "disagreement scores, heads as points, attention heat maps, what routing does, BLEU "
               "by length. Tables go to the screen and to analysis.json, figures are PNG.", argv)


if __name__ == "__main__":
    sys.exit(main())
