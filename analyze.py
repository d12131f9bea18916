"""The papers' analyses of trained runs: tables on the screen and in analysis.json, figures as PNG.

    python analyze.py runs/NAME
    python analyze.py runs/BASELINE runs/OTHER --out FOLDER       # several runs in one table, side by side in a figure
    python analyze.py runs/NAME --only attention --component cross --layer 2 --sentence "A man walks a dog ."

disagreement: exp(D), Li 2018 Tables 4-5. heads: t-SNE of the head representations, Li 2021 Fig. 3. attention: heat
maps, Duan 2020 Fig. 5. routing: what the routings do. length: BLEU by source length, Gu 2019 Fig. 3. What is measured,
and how, is in measure.py; what is drawn, in figures.py.
"""
import argparse
import json
import sys
from pathlib import Path

import torch

from nmt import flags

from nmt.files import atomic_write, check_writable, reported
from nmt.run_folder import without_nan
from nmt.flags import Parser, UserError, whole
from nmt.encoded import encode_pairs
from nmt.corpus import NAMES, Corpora, Pairs, load_corpora, read_pairs
from nmt.encoded import encode_valid
from nmt.machine import pick_device
from papers.measure import (Run, attention_map, bleu_by_length, dispersion, fitting_bins,
                            head_vectors, project, routing_statistics, scores, sentence_couplings,
                            source_length)
from disagreement import MEASURED
from transformer import COMPONENTS
from nmt.run_folder import load_run
from nmt.search import translate_lines

LONGEST = 64                    # tokens of the sentence that is drawn
FEW_HEADS = 8                   # up to here the heads of every layer are drawn as well

# Published: base, 8 heads, 6 layers, WMT17 Zh-En, encoder. Rows: what was regularized.
TABLE_4 = {"n/a": (0.882, 0.007, 0.881), "Subspace": (0.999, 0.006, 0.935), "Position": (0.882, 0.219, 0.882),
           "Output": (0.989, 0.006, 0.997)}                     # Li 2018 Table 4: subspace, position, output
TABLE_5 = {"n/a": (0.040, 0.009, 0.002, 0.003, 0.008, 0.006), "Subspace": (0.039, 0.009, 0.001, 0.003, 0.006, 0.005),
           "Position": (0.217, 0.167, 0.219, 0.242, 0.233, 0.249),
           "Output": (0.048, 0.009, 0.002, 0.003, 0.008, 0.006)}   # Li 2018 Table 5: position, layers 1 to 6


# ---- Runs and text

def read_text(folder: str, settings: dict, args) -> Corpora:
    """The validation and test text of a run, or what the flags name in its place; no training text.

    Raises UserError where there is no validation text. A test text that is no longer there is None.
    """
    get = lambda name: getattr(args, name) or settings.get(name)
    own, data = settings.get("train"), settings.get("data")
    if not own and data not in NAMES:
        raise UserError(f"{folder}/config.json names no text that is known here: take the one that the run wrote")
    read = lambda prefix, src, tgt: Pairs(*map(list, read_pairs(prefix, src, tgt)))
    if not own and not args.valid:
        found = load_corpora(argparse.Namespace(data=data, data_dir=settings.get("data_dir", "data"), train=None,
                                                valid=None, test=None, src=get("src"), tgt=get("tgt")))
        return found._replace(train=None, test=read(args.test, found.src, found.tgt) if args.test else found.test)
    src, tgt = get("src"), get("tgt")
    if not own:                                          # a named corpus' own order, unless the run was turned round
        first, second = NAMES[data]
        src = src or (second if tgt == first else first)
        tgt = tgt or (second if src == first else first)
    there = lambda prefix: bool(prefix) and all(Path(f"{prefix}.{x}").is_file() for x in (src, tgt))
    valid, test = get("valid"), args.test or settings.get("test")
    if not args.valid and not there(valid):
        raise UserError(f"{valid}.{src}, .{tgt}: the validation text of {folder} is not there: name it with"
                        " --valid PREFIX (and the test text with --test PREFIX)")
    test = read(test, src, tgt) if args.test or (own and there(test)) else None
    return Corpora(own or data, src, tgt, None, read(valid, src, tgt), test, None)


def open_runs(args) -> list[Run]:
    """The runs with their text. Raises UserError for a folder that is none or is named twice, or missing text."""
    device, found, seen = pick_device(args.device), [], []
    for folder in args.runs:
        if (real := Path(folder).resolve()) in seen:
            raise UserError(f"{folder} is named twice: name each run once")
        same = sum(real.name == other.name for other in seen)
        seen.append(real)
        model, tokenizer, settings = load_run(folder, args.checkpoint, device)
        text = read_text(folder, settings, args)
        name = f"{real.name} ({same + 1})" if same else real.name
        found.append(Run(name, model, tokenizer, settings, text, encode_valid(tokenizer, text)))
    return found


def check(runs: list[Run], args) -> None:
    """Raises UserError for flags that do not fit the runs, before anything is measured."""
    for run in runs:
        layers = run.model.config.layers
        if args.layer and args.layer > layers:
            raise UserError(f"--layer {args.layer}: {run.name} has layers 1 to {layers}")
    widths = {run.model.config.d_model // run.model.config.heads for run in runs}
    if "heads" in args.only and len(widths) > 1:
        raise UserError(f"the runs' heads have {' and '.join(map(str, sorted(widths)))} dimensions and fit no common"
                        " plot: leave some runs out, or name the other parts with --only")
    if args.bins and args.bins != sorted(set(args.bins)):
        raise UserError(f"--bins {' '.join(map(str, args.bins))}: give upper ends that rise, as in --bins 10 20 30")


def sentence(run: Run, args) -> tuple[Run, int]:
    """The run, and the index of the pair to draw: of its validation set, or of a set with the one sentence that was
    given and the run's own translation. Raises UserError for a sentence that is empty, too long, or not there."""
    wanted = None if args.sentence is None else " ".join(args.sentence.encode("utf-8", "replace").decode().split())
    if wanted == "":
        raise UserError("--sentence is empty: give a sentence, or the number of a validation pair")
    if wanted is None:
        sides = list(zip(run.encoded.source_lengths.tolist(), run.encoded.target_lengths.tolist()))
        index = next((i for i, pair in enumerate(sides) if 8 <= min(pair) and max(pair) <= 16),
                     min(range(len(sides)), key=lambda i: max(sides[i])))
    elif wanted.isdecimal():
        index = int(wanted[:10]) - 1                     # more digits than any corpus has pairs
        if not 0 <= index < len(run.encoded):
            raise UserError(f"--sentence {wanted[:20]}: {run.name} has validation pairs 1 to {len(run.encoded)}")
    else:
        index, target = 0, [""]
        if len(run.tokenizer.encode(wanted).ids) <= LONGEST:
            target = translate_lines(run.model, run.tokenizer, [wanted], beam=args.beam or run.settings.get("beam", 4),
                                     lenpen=run.settings.get("lenpen", 0.6))
        run = run._replace(encoded=encode_pairs(run.tokenizer, Pairs([wanted], target)))
    for side, lengths in (("", run.encoded.source_lengths), ("the translation of ", run.encoded.target_lengths)):
        if lengths[index] > LONGEST:
            raise UserError(f"--sentence: {side}the sentence has {lengths[index]} tokens in {run.name}, and {LONGEST} "
                            "fit a figure: choose another one")
    return run, index


# ---- The parts: each draws into the folder; returns (what goes into analysis.json, text for the screen, file names)

def table(head: list[str], rows: list[list]) -> str:
    """Rows as text: the first column to the left, the others to the right; real numbers with three decimals."""
    cells = [[f"{x:.3f}" if isinstance(x, float) else "-" if x is None else str(x) for x in row]
             for row in [head, *rows]]
    wide = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(x.rjust(w) if i else x.ljust(w) for i, (x, w) in enumerate(zip(row, wide))).rstrip()
                     for row in cells)


def padded(values, width: int) -> list:
    """The values, and None up to that width."""
    return [*values, *[None] * (width - len(values))]


def disagreement(runs, shown, args, folder):
    """exp(D) by run, component and kind, and the position score by layer (Li 2018 Tables 4 and 5)."""
    found = {run.name: scores(run, args.max_tokens) for run in runs}
    kinds = [[f"{name} {c}", *(x[k] for k in KINDS)] for name, one in found.items() for c, x in one["mean"].items()]
    kinds += [[f"published: {row} (enc)", *values] for row, values in TABLE_4.items()]
    depth = max(6, *(run.model.config.layers for run in runs))
    layers = [[f"{name} {c}", *padded(x["position"], depth)] for name, one in found.items()
              for c, x in one["layers"].items()]
    layers += [[f"published: {row} (enc)", *padded(values, depth)] for row, values in TABLE_5.items()]
    text = ("exp(D) on the validation set, D averaged over the layers (Li 2018 Table 4). Subspace and output: heads\n"
            "that are alike give 0.368, orthogonal ones exp(-1/H) (H = 4: 0.779, 8: 0.882), heads that cancel 1.\n"
            f"Published: base, 8 heads, WMT17 Zh-En.\n{table(['', *KINDS], kinds)}\n\n"
            "exp(D) of the attended positions by layer (Li 2018 Table 5). It falls with the length of the sentences,\n"
            "so it can be compared on one text only.\n"
            f"{table(['layer', *map(str, range(1, depth + 1))], layers)}")
    return {"runs": found, "published": {"Li 2018 Table 4": TABLE_4, "Li 2018 Table 5": TABLE_5}}, text, []


def heads(runs, shown, args, folder):
    """The heads as points (Li 2021 Fig. 3), and how far apart they lie before the projection."""
    import figures
    vectors = {run.name: head_vectors(run, args.component, args.max_tokens) for run in runs}     # [layers, H, d_k]
    means = [v.mean(0) for v in vectors.values()]                            # [H, d_k]
    together, apart = [x.tolist() for x in project(torch.cat(means)).split([len(x) for x in means])], None
    if max(map(len, means)) <= FEW_HEADS:
        every = [v.flatten(0, 1) for v in vectors.values()]                  # [layers H, d_k]
        points = project(torch.cat(every)).split([len(x) for x in every])
        apart = [x.unflatten(0, v.shape[:2]).tolist() for x, v in zip(points, vectors.values())]
    figures.heads(list(vectors), together, apart, folder / "heads.png")
    found = {name: {"mean": dispersion(v.mean(0)), "layers": [dispersion(x) for x in v], "points": points}
             for (name, v), points in zip(vectors.items(), together)}
    rows = [[f"{name} {label}", x["cosine"], x["distance"]] for name, one in found.items() for label, x in
            [("mean", one["mean"]), *((f"layer {i}", x) for i, x in enumerate(one["layers"], 1))]]
    text = (f"Head representations ({args.component}) averaged over words; mean: over layers too, as Li 2021 Fig. 3.\n"
            "Mean cosine of two heads, and their mean distance as a share of the mean length. In heads.png (t-SNE)\n"
            "the axes have no unit, and how far two runs lie apart says nothing.\n"
            + table(["", "cosine", "distance"], rows))
    return found, text, ["heads.png"]


def attention(runs, shown, args, folder):
    """The heat maps of the first two runs (Duan 2020 Fig. 5), and every run's entropy of attention per head."""
    import figures
    maps = {run.name: attention_map(run, args.component, args.layer, index) for run, index in shown}
    where = f"{args.component}, layer " + "/".join(dict.fromkeys(str(one["layer"]) for one in maps.values()))
    figures.attention(dict(list(maps.items())[:2]), f"attention, {where}", folder / "attention.png")
    most = max(len(one["entropy"]) for one in maps.values())
    rows = [[name, *padded(one["entropy"], most)] for name, one in maps.items()]
    text = (f"Entropy of the attention (nats; uniform over n tokens is log n) in {where}, mean over queries; keys:\n"
            + "\n".join(f"  {line}" for line in dict.fromkeys(" ".join(one["keys"]) for one in maps.values())) + "\n"
            + table(["head", *map(str, range(1, most + 1))], rows))
    if len(maps) > 2:
        text += "\nattention.png shows the first two runs"
    return maps, text, ["attention.png"]


def routing(runs, shown, args, folder):
    """Entropy, agreement and activations of every routing, and the couplings of the sentence."""
    import figures
    found = {run.name: routing_statistics(run, args.max_tokens) for run in runs}
    active = {name: one for name, one in found.items() if one}
    couplings = {run.name: sentence_couplings(run, index) for run, index in shown if found[run.name]}
    if not active:
        return {"statistics": found, "couplings": couplings}, "Routing: none of the runs has any.", []
    figures.routing(active, folder / "routing.png")
    names = ["routing.png"]
    for run in runs:
        if run.name in couplings:
            names.append(f"coupling-{run.name.replace(' ', '-')}.png")
            figures.couplings(couplings[run.name], run.model.config.heads,
                              f"couplings of the sentence, columns sum to 1: {run.name}", folder / names[-1])
    T = max(len(x["entropy"]) for one in active.values() for x in one.values())
    rows = [[f"{name} {place}", *padded(x["entropy"], T), *padded(x["agreement"], T),
             sum(x["activations"]) / len(x["activations"]) if x["activations"] else None]
            for name, one in active.items() for place, x in one.items()]
    head = ["", *(f"entropy {t}" for t in range(1, T + 1)), *(f"agree {t}" for t in range(1, T + 1)), "mean A"]
    text = ("Routing after 1, 2, ... iterations on the validation set: the couplings' entropy / log N (1: all alike,\n"
            "0: all to one capsule), the cosine of votes and capsules weighted by the couplings, EM's mean A. The\n"
            "couplings are those a routing ends with: dynamic routing's first are alike, EM's follow an E-step.\n"
            + table(head, rows))
    return {"statistics": found, "couplings": couplings}, text, names


def length(runs, shown, args, folder):
    """BLEU by source length (Gu 2019 Fig. 3), all runs in the bins of the first."""
    import figures
    text = runs[0].corpora
    ends = args.bins or fitting_bins([source_length(line, text.src) for line in (text.test or text.valid).source])
    found = {run.name: {**bleu_by_length(run, ends, args.beam), "set": "test" if run.corpora.test else "validation"}
             for run in runs}
    figures.lengths(found, folder / "length.png")
    bins = [{(x["low"], x["high"]): (x["count"], x["bleu"]) for x in one["bins"]} for one in found.values()]
    cell = lambda one, key: f"{one[key][1]:.2f} ({one[key][0]})" if key in one else "-"
    rows = [[f"{low}-{high}" if high else f"{low}+", *(cell(one, (low, high)) for one in bins)]
            for low, high in sorted({key for one in bins for key in one}, key=lambda key: key[0])]
    rows.append(["all", *(f"{one['bleu']:.2f} ({sum(x['count'] for x in one['bins'])})" for one in found.values())])
    rows.append(["set, beam", *(f"{one['set']}, {one['beam']}" for one in found.values())])
    signatures = "; ".join(dict.fromkeys(one["signature"] for one in found.values()))
    return found, (f"BLEU (and number of sentences) by source length (Gu 2019 Fig. 3). {signatures}\n"
                   + table(["source length", *found], rows)), ["length.png"]


PARTS = {"disagreement": disagreement, "heads": heads, "attention": attention, "routing": routing, "length": length}


# ---- The command

def parser() -> Parser:
    """The command line."""
    p = Parser(prog="analyze.py", description="The papers' analyses of trained runs: disagreement scores, heads as "
               "points, attention heat maps, what routing does, BLEU by length. Tables go to the screen and to "
               "analysis.json, figures are PNG.")
    p.add_argument("runs", nargs="+", metavar="RUN", help="run folders, e.g. runs/NAME; the first is the baseline")
    p.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", default=list(PARTS), help="these parts alone, "
                   f"of {', '.join(PARTS)}; analysis.json then holds these alone, too (all)")
    p.add_argument("--out", metavar="DIR", help="where analysis.json and the figures go (the first run's folder)")
    p.add_argument("--checkpoint", default="best", metavar="NAME", help="best, last, average, step-N")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--max-tokens", type=whole(1, 10 ** 8), default=4096, metavar="N", help="batch size in tokens")
    g = p.add_argument_group("the heads and the sentence that are drawn")
    g.add_argument("--component", choices=COMPONENTS, default="enc", help="enc: encoder self-attention, cross: decoder "
                   "to encoder, dec: decoder self-attention; of the heat maps and of the heads as points")
    g.add_argument("--layer", type=whole(1, 1000), metavar="N", help="layer of the heat maps, from 1 at the bottom "
                   "(the top one)")
    g.add_argument("--sentence", metavar="N|TEXT", help="validation pair N, from 1, or a source sentence, which every "
                   "run then translates itself (the first pair of 8 to 16 tokens a side)")
    g = p.add_argument_group("BLEU by length")
    g.add_argument("--bins", nargs="+", type=whole(1), metavar="N", help="upper ends of the bins, in source words (up "
                   "to 7 that fit the text)")
    g.add_argument("--beam", type=whole(1, 1000), metavar="N", help="beam size (the run's own)")
    g = p.add_argument_group("text, where a run's own is no longer in its place")
    g.add_argument("--valid", metavar="PREFIX", help="validation text, PREFIX.SRC and PREFIX.TGT (the run's)")
    g.add_argument("--test", metavar="PREFIX", help="test text (the run's; without one, the validation text)")
    g.add_argument("--src", metavar="SRC", help="source language, the ending of its files (the run's)")
    g.add_argument("--tgt", metavar="TGT", help="target language (the run's)")
    return p


def command(args) -> None:
    """Measures the parts asked for, prints the tables, writes analysis.json and the figures."""
    runs = open_runs(args)
    check(runs, args)
    shown = [sentence(run, args) for run in runs] if {"attention", "routing"} & set(args.only) else []
    folder = Path(args.out or args.runs[0])
    with reported("make the folder", f"--out {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "analysis.json", "--out")
    try:
        import figures  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install -r requirements.txt") from None
    result = {"runs": {run.name: {"folder": str(path), "checkpoint": args.checkpoint, "text": run.corpora.name}
                       for path, run in zip(args.runs, runs)}}
    written = ["analysis.json"]
    for part in dict.fromkeys(args.only):
        result[part], text, names = PARTS[part](runs, shown, args, folder)
        written += names
        print(f"{text}\n", flush=True)
    atomic_write(folder / "analysis.json", json.dumps(without_nan(result), indent=1, ensure_ascii=False) + "\n")
    print(f"{folder}: {', '.join(written)}")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return flags.run(command, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
