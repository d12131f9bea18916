"""The claims of the five papers, but for the main ones (verdicts.py), beside the exploratory
measurements in results/. A claim compares two models by one number per run."""
import statistics
from collections import defaultdict
from typing import NamedTuple

from tabulate import tabulate

from papers.differences import Contrast, contrast_arms, fit_arms, in_figures
from papers.render import NONE
from papers.results import precision_of
from papers.tables import TABLES

BASE = ""
EM = "--agg em --em-gradient last"
SIMPLE = "--agg dynamic"
OUTPUT = "--reg output"
ENCODER = "--reg output --reg-at enc"
SUBSPACE = "--reg subspace --reg-at enc"
POSITION = "--reg position --reg-at enc"
BOTH = f"{EM} {OUTPUT}"
GU_EM = "--agg gu-em --em-gradient last"
GU_DYNAMIC = "--agg gu-dynamic"
GATED = "later.GatedAttention"
BLEU = "BLEU"
LONG = "BLEU of the longest sentences minus that of all"
SCORE = "exp(D) of the encoder's outputs"
COST = "BLEU lost without a head, on average"
FORMULAS = "points on seven and more operators"
PROBES = "points on average over the tasks"
SCALE_NAMES = {"": "embedded",                # of scales
         "--data multi30k --vocab-size 6000 (test_2016_flickr)": "Multi30K",
         "--steps 300 --eval-every 300": "embedded, 300 steps"}
ABOUT = """Claims beside the five above. Exploratory: these runs were not planned, and with three to
five seeds most differences are not significant. Ours: the difference in BLEU, unless another unit
is named, and its 95 % interval, by a paired t-test over the seeds. "Embedded": the embedded corpus.
Other entries under "run here": files in results/."""


class Claim(NamedTuple):
    """A claim: its text, its place, the published gain, and the comparisons made here: pairs
    (model, against), each by the flags of its row, of logic.py and probe.py by its name."""
    text: str
    source: str
    published: str
    compared: tuple[tuple[str, str], ...]
    metric: str = BLEU


CLAIMS = (
    Claim("Output disagreement in the encoder only beats the baseline, with λ = 1; "
          "here also with λ = H/8", "Li 2018 Table 2",
          "+0.65 Zh-En", ((ENCODER, BASE), (f"{ENCODER} --reg-weight 0.5", BASE))),
    Claim("Disagreement of outputs beats that of subspaces and that of positions",
          "Li 2018 Table 1", "+0.14 and +0.36 Zh-En", ((ENCODER, SUBSPACE), (ENCODER, POSITION))),
    Claim("Subspaces and outputs together do not beat only outputs", "Li 2018 Table 1",
          "-0.05 Zh-En", (("--reg subspace output --reg-at enc", ENCODER),)),
    Claim("Rewarding the heads' outputs for disagreeing makes them differ", "Li 2018 Table 4",
          "exp(D) +0.116", ((OUTPUT, BASE),), SCORE),
    Claim("Simple routing beats the baseline; here in two layers", "Li 2019 Table 2",
          "+0.67 En-De, all layers", ((SIMPLE, BASE),)),
    Claim("EM routing beats simple routing; here in two layers", "Li 2019 Table 2",
          "+0.30 En-De, all layers", ((EM, SIMPLE),)),
    Claim("EM routing in the lower layers suffices: no worse than in all (worse here)",
          "Li 2019 Table 3", "-0.02 En-De", ((EM, "--agg em --agg-at enc --em-gradient last"),)),
    Claim("Gains do not come from the parameters: EM routing beats wider feed-forward layers",
          "Li 2019 §5.2", "not measured", ((EM, "--d-ff 321"),)),
    Claim("Disagreement and aggregation together beat each of the two", "Li 2021 Table 5",
          "+0.21 and +0.15 En-De", ((BOTH, OUTPUT), (BOTH, EM))),
    Claim("Linguistic probing: both together encode more of a sentence than the baseline",
          "Li 2021 Table 7", "+1.02 surface, +2.01 syntactic, +1.70 semantic",
          (("combined", "baseline"),), PROBES),
    Claim("Logical inference on formulas longer than those trained on: both together beat the "
          "baseline, disagreement and aggregation", "Li 2021 Fig. 4", "a plot",
          (("combined", "baseline"), ("combined", "disagreement"), ("combined", "aggregation")),
          FORMULAS),
    Claim("Heads become less redundant (our reading): leaving one out costs more with "
          "disagreement, with EM routing, with both", "Li 2018 §1, Li 2021 §1", "not measured",
          ((OUTPUT, BASE), (EM, BASE), (BOTH, BASE)), COST),
    Claim("Gu's capsules: EM routing beats dynamic routing", "Gu 2019 Tables 1, 2",
          "+0.10 En-De, +0.24 Zh-En", ((GU_EM, GU_DYNAMIC),)),
    Claim("Long sentences gain most from Gu's capsules", "Gu 2019 §5.5, Fig. 3", "a plot",
          ((GU_EM, BASE),), LONG),
    # after the five papers: course/later.py
    Claim("Gated heads beat the baseline, and here gates fixed at 1/2", "Qiu et al. 2025",
          "not for translation", ((GATED, BASE), (GATED, f"{GATED}, gate fixed at 1/2"))),
    Claim("Talking heads beat the baseline", "Shazeer et al. 2020", "not for translation",
          (("later.TalkingHeads", BASE),)),
)


# ---- Measurements

class Pool(NamedTuple):
    """Runs that can be compared with each other: the text and recipe, and their numbers by
    (metric, model) and seed."""
    where: str
    values: defaultdict[tuple[str, str], dict[int, float]]


def pools_from_lines(lines: list[dict]) -> list[Pool]:
    """The runs of train_mt.py, those of one scale and precision together, without the planned
    ones."""
    planned = [TABLES["plan-toy"].scale, TABLES["plan-multi30k"].scale]
    pools = {}
    for line in lines:
        scale = line["scale"]
        if scale not in planned and line["size"] == "base":
            name = SCALE_NAMES.get(scale, scale)
            if precision_of(line) != "float32":
                name += f", {precision_of(line)}"
            pool = pools.setdefault(name, Pool(name, defaultdict(dict)))
            pool.values[BLEU, line["flags"]][line["seed"]] = line["bleu"]
            pool.values[SCORE, line["flags"]][line["seed"]] = line["scores"]["output"]
    return list(pools.values())


def pool_from_file(name: str, stored: dict) -> Pool:
    """The runs of analyze.py, logic.py or probe.py. In a file of probe.py an encoder of a run
    NAME-seed1 is the model NAME with that seed."""
    pool = Pool(name, defaultdict(dict))
    if stored["kind"] == "analysis":
        for run_name, run in stored["runs"].items():
            if run_name in stored.get("ablation", {}):
                pool.values[COST, run["flags"]][run["seed"]] = stored["ablation"][run_name]["mean"]
            if run_name in stored.get("length", {}):
                length = stored["length"][run_name]
                longest = length["bins"][-1]["bleu"]
                pool.values[LONG, run["flags"]][run["seed"]] = longest - length["bleu"]
    if stored["kind"] == "logic":
        pairs = {size: count for size, count in stored["pairs"].items()
                 if size.isdecimal() and int(size) >= 7}
        for run in stored["runs"]:
            right = sum(count * run["accuracy"][size] for size, count in pairs.items())
            pool.values[FORMULAS, run["model"]][run["seed"]] = 100 * right / sum(pairs.values())
    if stored["kind"] == "probing":
        accuracies = {}                                  # (model, seed) -> of every task
        for run in stored["runs"]:
            model, _, seed = run["model"].rpartition("-seed")
            key = (model, int(seed)) if model else (run["model"], run["seed"])
            accuracies.setdefault(key, []).append(run["accuracy"])
        for (model, seed), of_tasks in accuracies.items():
            pool.values[PROBES, model][seed] = 100 * statistics.fmean(of_tasks)
    return pool


def comparisons(claim: Claim, pool: Pool) -> list[Contrast | None]:
    """The differences that a claim is about; None for models without two seeds in common."""
    contrasts = []
    for pair in claim.compared:
        scores = {model: pool.values.get((claim.metric, model), {}) for model in pair}
        shared = scores[pair[0]].keys() & scores[pair[1]].keys()
        runs = []
        for model in pair:
            runs += [{"arm": model, "seed": i, "score": scores[model][i]} for i in sorted(shared)]
        contrasts.append(contrast_arms(fit_arms(runs), *pair) if len(shared) > 1 else None)
    return contrasts


def page(lines: list[dict], measurements: dict) -> str:
    """The table of claims as Markdown; lines: of results/runs.jsonl; measurements: {name: contents}
    of the JSON files in results/."""
    pools = pools_from_lines(lines)
    pools += [pool_from_file(name, stored) for name, stored in measurements.items()]
    cells = [["claim", "printed in", "their number", "run here", "ours"]]
    for claim in CLAIMS:
        what = "" if claim.metric == BLEU else f"{claim.metric}: "
        digits = 3 if claim.metric == SCORE else 2
        rows = []
        for pool in pools:
            contrasts = comparisons(claim, pool)
            if any(contrasts):
                numbers = [in_figures(x, digits) if x else NONE for x in contrasts]
                rows.append([pool.where, what + "; ".join(numbers)])
        first = [claim.text, claim.source, claim.published]
        for row in rows or [[NONE, "not run"]]:
            cells.append([*first, *row])
            first = ["", "", ""]
    table = tabulate(cells[1:], cells[0], "pipe", disable_numparse=True)
    return f"{ABOUT}\n\n{table}"
