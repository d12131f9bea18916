"""Analyzes trained runs as the papers do: prints tables, writes analysis.json and PNG figures.

    python -m papers.analyze runs/NAME
    python -m papers.analyze runs/A runs/B --labels baseline EM --out FOLDER
    python -m papers.analyze runs/NAME --only attention --sentence "A man."

disagreement: exp(D), Li 2018 Tables 4-5. heads: t-SNE of the head representations, Li 2021 Fig. 3.
attention: heat maps, Duan 2020 Fig. 5. routing: entropy and agreement of the couplings. length:
BLEU by source length, Gu 2019 Fig. 3. ablation: the BLEU lost without each head, Michel et al.
2019; it translates once per head and runs only if it is named. analysis.json keeps what earlier
commands measured. The measurements are in papers/measure.py, the figures in papers/figures.py.
"""
import hashlib
import json
import re
import statistics
import sys
from dataclasses import dataclass, fields
from pathlib import Path

if not __package__:
    print("error: start it in the project's folder: python -m papers.analyze", file=sys.stderr)
    sys.exit(2)

import torch
from filelock import FileLock
from tabulate import tabulate

from disagreement import MEASURED
from nmt.corpus import DataFlags, Pairs, hash_text, load_corpora, read_pairs
from nmt.encoded import encode_pairs
from nmt.flags import ModelFlags
from nmt.run_folder import find_run, load_run
from nmt.tokenizer import prepare_line
from papers import figures, measure
from papers.tables import SCORES, SCORES_BY_LAYER
from tools.command_line import check_given, command_line, flag
from tools.command_line import run as run_command
from tools.files import UserError, as_user_error, atomic_write, read_json
from tools.machine import DEVICES, pick_device
from transformer import COMPONENTS, SIZES

QUICK = ("disagreement", "heads", "attention", "routing", "length")
PARTS = (*QUICK, "ablation")
DRAWN = "what is drawn"
ATTENTIONS = {                  # what each is called, what its queries and keys are
    "enc": ("encoder self-attention", "source token", "source token"),
    "cross": ("decoder to encoder", "last token written", "source token"),
    "dec": ("decoder self-attention", "last token written", "token written so far"),
}


@dataclass
class Settings:
    """The runs, the parts to measure, and what is drawn."""
    runs: tuple[str, ...] = flag((), "run folders, e.g. runs/NAME", metavar="RUN", positional=True)
    only: tuple[str, ...] = flag(QUICK, f"parts to run: {', '.join(PARTS)} (all but ablation)",
                                 choices=PARTS, metavar="PART")
    labels: tuple[str, ...] = flag((), "short names of the runs in tables and figures (those of "
                                   "their folders)", metavar="NAME")
    out: str | None = flag(None, "folder of analysis.json and the figures (the first run's)",
                           metavar="DIR")
    checkpoint: str = flag("best", "which one: best, last, average or step-N", metavar="NAME")
    device: str = flag("auto", DEVICES)
    beam: int | None = flag(None, "beam size (the run's own)", "", 1, 1000)
    valid: str | None = flag(None, "validation text (the run's own)", metavar="PREFIX")
    test: tuple[str, ...] = flag((), "test sets (the run's own)", metavar="PREFIX")
    data_dir: str | None = flag(None, "folder of the downloads (as in training)", metavar="DIR")

    component: str = flag("enc", "enc: encoder self-attention, cross: decoder to encoder, dec: "
                          "decoder self-attention", DRAWN, choices=COMPONENTS)
    layer: int | None = flag(None, "layer of the heat maps, from 1 at the bottom (the top one)",
                             DRAWN, 1, 1000)
    sentence: str | None = flag(None, "source sentence, which the runs translate (a short "
                                "validation pair)", DRAWN, metavar="TEXT")


# ---- Runs and text

def load_text(config: dict, settings: Settings) -> tuple[Pairs, Pairs]:
    """The validation pairs, and the pairs of all test sets (without a test set, or if no part reads
    it, the validation pairs). --valid, --test and --data-dir replace the paths in config.json. The
    training text is not read."""
    src, tgt = config["languages"]
    prefix = settings.valid or config["valid"]
    valid = read_pairs(prefix, src, tgt) if prefix else None
    tests = []
    if "length" in settings.only:
        tests = [read_pairs(test, src, tgt) for test in settings.test or config["test"]]
    if not config["train"] and not (valid and tests):    # those of a known corpus
        values = {field.name: config[field.name] for field in fields(DataFlags)}
        values["data_dir"] = settings.data_dir or config["data_dir"]
        corpora = load_corpora(DataFlags(**values))
        valid = valid or corpora.valid
        tests = tests or list(corpora.tests.values())
    test = Pairs([], [])
    for source, target in tests or [valid]:
        test.source.extend(source)
        test.target.extend(target)
    return Pairs(*map(list, valid)), test


def load_runs(settings: Settings) -> list[measure.TrainedRun]:
    """The runs with their text. Raises UserError for a folder that is not a run, two runs of one
    name, more or fewer labels than runs, and missing text. Warns if the texts of two runs differ,
    or if a run's own validation text has changed."""
    device = pick_device(settings.device)
    labels = settings.labels or [Path(folder).resolve().name for folder in settings.runs]
    if len(labels) != len(settings.runs):
        raise UserError(f"--labels has {len(labels)} different names for {len(settings.runs)} runs")
    runs = {}
    for folder, name in zip(settings.runs, labels):
        model, tokenizer, config = load_run(folder, settings.checkpoint, device)
        try:
            valid, test = load_text(config, settings)
        except UserError as error:
            raise UserError(f"{error}; if it is elsewhere: --valid, --test, --data-dir") from error
        if name in runs:
            raise UserError(f"{folder}: two runs are named {name}: give them --labels")
        runs[name] = measure.TrainedRun(name, model, tokenizer, config, valid, test,
                                        encode_pairs(tokenizer, valid))
        hashes = list(map(hash_text, valid))
        if not settings.valid and config.get("valid_text", hashes) != hashes:
            print(f"warning: {name}: its validation text has changed since it was trained",
                  file=sys.stderr)
    first, *others = runs.values()
    for run in others:
        if run.config["text"] != first.config["text"]:
            print(f"warning: {run.name} and {first.name} were trained on different texts",
                  file=sys.stderr)
        if (run.valid, run.test) != (first.valid, first.test):
            print(f"warning: {run.name} and {first.name} are measured on different texts",
                  file=sys.stderr)
    return list(runs.values())


def check_flags(settings: Settings) -> None:
    """Raises UserError for flags that the parts in --only would ignore."""
    drawn = {"heads", "attention"} & {*settings.only}
    if not drawn:
        check_given(settings, {"component": "--only heads or attention"})
    if "attention" not in drawn:
        check_given(settings, dict.fromkeys(("layer", "sentence"), "--only attention"))
    if settings.sentence is not None and not prepare_line(settings.sentence):
        raise UserError("--sentence is empty: give a sentence")
    if re.search("[\ud800-\udfff]", settings.sentence or ""):          # bytes that are no letters
        raise UserError("--sentence is not UTF-8: set the terminal to UTF-8")
    if "length" not in settings.only:
        check_given(settings, {"test": "--only length"})
    if settings.sentence is None and not {"length", "ablation"} & {*settings.only}:
        check_given(settings, {"beam": "--only length or ablation, or --sentence TEXT"})


def check_runs(runs: list[measure.TrainedRun], settings: Settings) -> None:
    """Raises UserError for flags that do not fit the runs, before anything is measured."""
    for run in runs:
        layers = run.model.config.layers
        if settings.layer and settings.layer > layers:
            raise UserError(f"--layer {settings.layer}: {run.name} has layers 1 to {layers}")
    widths = {run.model.config.d_model // run.model.config.heads for run in runs}
    if "heads" in settings.only and len(widths) > 1:
        raise UserError(f"the runs' heads have {' and '.join(map(str, sorted(widths)))} dimensions "
                        "and do not fit into one plot: name other parts with --only")


def choose_sentence(run: measure.TrainedRun, settings) -> tuple[measure.TrainedRun, int]:
    """The run and the index of the validation pair to draw. For a sentence of the user's, the run
    returned has this sentence and its own translation as its validation set. The default is the
    first pair with 8 to 16 tokens on both sides, or else the shortest."""
    if settings.sentence is None:
        lengths = [*zip(run.encoded.source_lengths, run.encoded.target_lengths)]
        for i, pair in enumerate(lengths):
            if 8 <= min(pair) and max(pair) <= 16:
                return run, i
        return run, min(range(len(lengths)), key=lambda i: max(lengths[i]))
    source = prepare_line(settings.sentence)
    target = measure.translate(run, [source], settings.beam or run.config["beam"])
    return run._replace(encoded=encode_pairs(run.tokenizer, Pairs([source], target))), 0


# ---- The parts: each returns (its entry in analysis.json, the text to print, the figure's path or
# None)

def format_rows(header: list, rows: list) -> str:
    """Rows as text: numbers have three decimals, None is a dash."""
    return tabulate(rows, header, "plain", floatfmt=".3f", missingval="-")


def analyze_disagreement(runs):
    """exp(D) by run, component and kind, and the position score by layer (Li 2018 Tables 4, 5)."""
    scores_by_run = {run.name: measure.scores(run) for run in runs}
    depth = max(6, *(run.model.config.layers for run in runs))
    kinds = []
    layers = []
    for name, scores in scores_by_run.items():
        for component, x in scores["mean"].items():
            kinds.append([f"{name} {component}", *(x[kind] for kind in MEASURED)])
        for component, x in scores["layers"].items():
            layers.append([f"{name} {component}", *x["position"]])
    for published, rows in ((SCORES, kinds), (SCORES_BY_LAYER, layers)):
        for label, cells in published.items():
            rows.append([f"published: {label} (enc)", *cells])
    text = ("exp(D) on the validation set, D averaged over the layers (Li 2018 Table 4).\n"
            "Subspace and output: 0.368 where the heads are alike, exp(-1/H) where they are\n"
            "orthogonal (4 heads: 0.779, 8: 0.882), 1 where they cancel. Published: base, WMT17\n"
            f"Zh-En.\n{format_rows(['', *MEASURED], kinds)}\n\n"
            "exp(D) of the attended positions by layer (Li 2018 Table 5). It falls with the\n"
            "length of the sentences: compare it only on one text.\n"
            f"{format_rows(['layer', *range(1, depth + 1)], layers)}")
    return scores_by_run, text, None


def analyze_heads(runs, component: str, folder: Path):
    """The heads as points in the plane (Li 2021 Fig. 3), and their cosines."""
    vectors = {run.name: measure.head_vectors(run, component) for run in runs}
    heads_by_run = {}
    rows = []
    for name, v in vectors.items():                                  # [layers, H, d_k]
        mean = measure.mean_cosine(v.mean(0))
        layers = [measure.mean_cosine(x) for x in v]
        heads_by_run[name] = {"component": component, "mean": mean, "layers": layers}
        rows.append([name, mean, *layers])
    figure = None
    if len(runs) > 1:                   # the t-SNE of four points says nothing
        means = [v.mean(0) for v in vectors.values()]                # [H, d_k]
        plane = measure.project(torch.cat(means)).split([len(x) for x in means])
        points = [x.tolist() for x in plane]
        figure = figures.draw_heads([*vectors], points, folder / "heads.png")
    depth = max(map(len, vectors.values()))
    text = (f"Mean cosine of two heads ({component}) of their outputs, averaged over the words. "
            "Mean: averaged\nover the layers, too, as in Li 2021 Fig. 3. With several runs, "
            "heads.png is a t-SNE of the heads;\nits axes have no unit.\n"
            + format_rows(["", "mean", *(f"layer {i + 1}" for i in range(depth))], rows))
    return heads_by_run, text, figure


def analyze_attention(pairs, component: str, layer: int | None, folder: Path):
    """Heat maps of a sentence (Duan 2020 Fig. 5), and the entropy of every head's attention."""
    maps = {}
    for run, index in pairs:
        heatmap = measure.attention_map(run, component, layer, index)
        maps[run.name] = {"component": component, **heatmap}
    layers = dict.fromkeys(str(x["layer"]) for x in maps.values())
    where = f"{component}, layer {'/'.join(layers)}"
    name, query, key = ATTENTIONS[component]
    title = f"attention weights, {name}, layer {'/'.join(layers)}"
    figure = figures.draw_attention(maps, title, query, key, folder / "attention.png")
    heads = max(len(x["entropy"]) for x in maps.values())
    rows = [[name, *x["entropy"]] for name, x in maps.items()]
    keys = dict.fromkeys("  " + " ".join(x["keys"]) for x in maps.values())
    heading = (f"Entropy of the attention in {where}, in nats, averaged over the queries\n"
               "(uniform over n tokens: log n). The keys are:")
    text = "\n".join([heading, *keys, format_rows(["head", *range(1, heads + 1)], rows)])
    return maps, text, figure


def analyze_routing(runs):
    """Entropy, agreement, movement and activations of every routing."""
    routing_by_run = {run.name: measure.routing_statistics(run) for run in runs}
    active = {name: places for name, places in routing_by_run.items() if places}
    if not active:
        return routing_by_run, "Routing: no run has a routing.", None
    rows = []
    for name, places in active.items():
        for place, x in places.items():
            cells = [f"{name} {place}"]
            for key in ("entropy", "agreement", "movement"):
                cells.append(" ".join(f"{value:.3f}" for value in x[key]))
            A = x["activations"]
            rows.append([*cells, sum(A) / len(A) if A else None])
    text = ("Routing on the validation set, iteration by iteration. Entropy: of the couplings, "
            "divided by log N\n(1: the same to all capsules, 0: everything to one). Agreement: the "
            "cosine of votes and capsules,\nweighted by the couplings that the capsules were made "
            "with. Movement: distance of the\ncapsules from those of the first iteration, divided "
            "by their norm. Mean A: EM's activations.\n"
            + format_rows(["", "entropy", "agreement", "movement", "mean A"], rows))
    return routing_by_run, text, None


def analyze_length(runs, beam: int | None, folder: Path):
    """BLEU by source length (Gu 2019 Fig. 3), for all runs in the bins of the first."""
    src, _ = runs[0].config["languages"]
    ends = measure.fitting_bins(measure.source_lengths(runs[0].test.source, src))
    bleu_by_run = {}
    for run in runs:
        bleu_by_run[run.name] = {"test": list(map(hash_text, run.test)),
                                 **measure.bleu_by_length(run, ends, beam)}
    figure = figures.draw_lengths(bleu_by_run, folder / "length.png")
    cells = {}                          # label of a bin -> run -> BLEU and sentences
    for name, result in bleu_by_run.items():
        for x in result["bins"]:
            cells.setdefault(figures.bin_label(x), {})[name] = f"{x['bleu']:.2f} ({x['count']})"
    rows = [[label, *map(by_run.get, bleu_by_run)] for label, by_run in cells.items()]
    rows.append(["all", *(f"{result['bleu']:.2f}" for result in bleu_by_run.values())])
    signatures = "; ".join(dict.fromkeys(result["signature"] for result in bleu_by_run.values()))
    text = (f"BLEU (and number of sentences) by source length (Gu 2019 Fig. 3). {signatures}\n"
            + tabulate(rows, ["source length", *bleu_by_run], "plain", missingval="-"))
    return bleu_by_run, text, figure


def analyze_ablation(runs, beam: int | None):
    """The BLEU lost without each head (Michel et al. 2019), by run, component and layer."""
    costs_by_run = {run.name: measure.head_costs(run, beam) for run in runs}
    rows = []
    for name, x in costs_by_run.items():
        for component, layers in x["cost"].items():
            means = [statistics.fmean(layer) for layer in layers]
            rows.append([name, component, statistics.fmean(sum(layers, [])), *means])
        rows.append([name, "all", x["mean"]])
    depth = max(map(len, rows)) - 3
    searches = dict.fromkeys(f"beam {x['beam']}, {x['signature']}" for x in costs_by_run.values())
    text = ("BLEU lost without a head (Michel et al. 2019), means over heads; validation set,\n"
            f"{'; '.join(searches)}\n"
            + tabulate(rows, ["", "", "mean", *(f"layer {i + 1}" for i in range(depth))], "plain",
                       floatfmt=".2f"))
    return costs_by_run, text, None


# ---- The command

def mechanism_flags(config: dict) -> str:
    """The flags in a run's config.json that change the model: the mechanisms, and sizes other than
    those of --arch."""
    values = {}
    for field in fields(ModelFlags):
        usual = SIZES[config["arch"]].get(field.name, field.default)
        value = config[field.name]
        value = tuple(value) if isinstance(value, list) else value
        if field.name not in ("arch", "dropout") and value != usual:         # they are the recipe's
            values[field.name] = value
    return " ".join(command_line(ModelFlags, values))


def describe_runs(runs: list[measure.TrainedRun], settings: Settings) -> dict[str, dict]:
    """What the numbers of a run in analysis.json depend on, by the run's name there."""
    entries = {}
    for folder, run in zip(settings.runs, runs):
        with open(Path(folder) / f"{settings.checkpoint}.pt", "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        entries[run.name] = {"checkpoint": settings.checkpoint, "sha256": checksum,
                             "seed": run.config["seed"], "flags": mechanism_flags(run.config),
                             "valid": list(map(hash_text, run.valid))}
    return entries


def read_earlier(path: Path) -> dict:
    """The content of an earlier analysis.json, {} if there is none. Raises UserError for a file
    that is damaged or no analysis."""
    if not path.exists():
        return {}
    remedy = "delete it, or name another folder with --out"
    earlier = read_json(path, remedy)
    if earlier.get("kind") != "analysis" or not isinstance(earlier.get("runs"), dict):
        raise UserError(f"{path}: is not an analysis: {remedy}")
    return earlier


def remove_changed(earlier: dict, entries: dict[str, dict], path: Path) -> None:
    """Removes the numbers of every run whose entry is not the one in `entries`, with a warning."""
    for name, entry in entries.items():
        if earlier.get("runs", {}).get(name, entry) != entry:
            print(f"warning: {path}: removes earlier numbers of {name}, which are of another "
                  "checkpoint or text", file=sys.stderr)
            for part in PARTS:
                earlier.get(part, {}).pop(name, None)


def analyze(settings: Settings) -> None:
    """Measures the parts of --only, prints them, and adds them to analysis.json. Raises UserError.
    """
    if not settings.runs:
        raise UserError("which run? Name one or more run folders, such as runs/NAME")
    check_flags(settings)
    settings.runs = tuple(map(find_run, settings.runs))
    runs = load_runs(settings)
    check_runs(runs, settings)
    folder = Path(settings.out or settings.runs[0])
    with as_user_error("write", f"--out {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    entries = describe_runs(runs, settings)
    path = folder / "analysis.json"
    read_earlier(path)                  # so an error comes before the work
    written = [path]
    component = settings.component
    for part in settings.only:
        if part == "disagreement":
            numbers, text, figure = analyze_disagreement(runs)
        elif part == "heads":
            numbers, text, figure = analyze_heads(runs, component, folder)
        elif part == "attention":
            pairs = [choose_sentence(run, settings) for run in runs]
            numbers, text, figure = analyze_attention(pairs, component, settings.layer, folder)
        elif part == "routing":
            numbers, text, figure = analyze_routing(runs)
        elif part == "length":
            numbers, text, figure = analyze_length(runs, settings.beam, folder)
        else:
            numbers, text, figure = analyze_ablation(runs, settings.beam)
        print(f"{text}\n", flush=True)
        with FileLock(folder / ".analysis.lock"):        # another program may add its numbers
            result = read_earlier(path)
            remove_changed(result, entries, path)
            result["kind"] = "analysis"
            result["runs"] = result.get("runs", {}) | entries
            result[part] = result.get(part, {}) | numbers
            atomic_write(path, json.dumps(result) + "\n")
        if figure:
            written.append(figure)
    print(f"written: {', '.join(map(str, written))}")


def main(argv=None) -> int:
    return run_command(analyze, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
