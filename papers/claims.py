"""The claims of the five papers beside the exploratory measurements in results/. A claim
compares two models by one number per run."""
import statistics
from typing import NamedTuple

from tabulate import tabulate

from papers.differences import Contrast, compare, fit, in_figures
from papers.render import NONE, printed_number
from papers.tables import TABLES

BASE = ""
EM = "--agg em"
SIMPLE = "--agg dynamic"
OUTPUT = "--reg output"
ENCODER = "--reg output --reg-at enc"
BOTH = f"{EM} {OUTPUT}"
GU_EM = "--agg gu-em"
GU_DYNAMIC = "--agg gu-dynamic"
BLEU = "BLEU"
LONG = "BLEU of the longest sentences less that of all"
SCORE = "exp(D) of the encoder's outputs"
COST = "BLEU that a head costs on average"
FORMULAS = "points on seven and more operators"
PROBES = "points on average over the tasks"


ABOUT = """Exploratory: these runs were not planned, and with two to five seeds most differences are
not resolved. Ours: the difference in BLEU, unless another unit is named, and its 95 % interval, by
the linear model of docs/plan.md over all runs of a text and recipe."""


class Claim(NamedTuple):
    """A claim: its text, its place, the published number, and the comparisons made here: pairs
    (model, against), each by the flags of its row, of logic.py and probe.py by its name."""
    text: str
    source: str
    published: str
    compared: tuple[tuple[str, str], ...]
    metric: str = BLEU


def gain(table: str, column: str, label: str, against: str) -> str:
    """How much more a row of a published table has than another."""
    place = TABLES[table].columns.index(column)
    cells = {row.label: row.published[place] for row in TABLES[table].rows if row.published}
    numbers = []
    for name in (label, against):
        numbers.append(printed_number(cells[name].partition(" ")[0]))
    digits = len(cells[label].partition(" ")[0].rstrip("↑⇑*").partition(".")[2])
    return f"{numbers[0] - numbers[1]:+.{digits}f}"


def both_languages(table: str, label: str, against: str = "base") -> str:
    """`gain` in a table of main results."""
    return (f"{gain(table, 'En-De BLEU', label, against)} En-De, "
            f"{gain(table, 'Zh-En BLEU', label, against)} Zh-En")


CLAIMS = (
    Claim("Rewarding the heads' outputs for disagreeing beats the baseline", "Li 2018 Table 3",
          both_languages("li2018-3", "base + Disagreement"), ((OUTPUT, BASE),)),
    Claim("The same in the encoder alone (here with λ = H/8)", "Li 2018 Table 2",
          f"{gain('li2018-2', 'BLEU', 'Enc', 'baseline')} Zh-En",
          ((f"{ENCODER} --reg-weight 0.5", BASE),)),
    Claim("EM routing of the heads beats the baseline, and here its uniform coupling",
          "Li 2019 Table 4", both_languages("li2019-4", "base + Effective Aggregation"),
          ((EM, BASE), (EM, f"{EM} --iterations 1"))),
    Claim("Simple routing beats the baseline", "Li 2019 Table 2",
          f"{gain('li2019-2', 'BLEU', '3  Enc, simple', '2  baseline')} En-De, all layers",
          ((SIMPLE, BASE),)),
    Claim("Disagreement and aggregation together beat the baseline", "Li 2021 Table 5",
          both_languages("li2021-5", "base + Both"), ((BOTH, BASE),)),
    Claim("Gu's capsules with EM routing beat the baseline", "Gu 2019 Tables 1, 2",
          f"{gain('gu-2', 'BLEU', 'base + EM Routing', 'base')} En-De, "
          f"{gain('gu-1', 'AVE.', '+ EM Routing', 'base')} Zh-En", ((GU_EM, BASE),)),
    Claim("Gu's capsules with dynamic routing beat the baseline", "Gu 2019 Tables 1, 2",
          f"{gain('gu-2', 'BLEU', 'base + Dynamic Routing', 'base')} En-De, "
          f"{gain('gu-1', 'AVE.', '+ Dynamic Routing', 'base')} Zh-En", ((GU_DYNAMIC, BASE),)),
    Claim("Capsule attention beats the baseline", "Duan 2020 Table 1",
          both_languages("duan-1", "capsule-Transformer base"),
          (("--capsule-attention enc dec", BASE),)),
    Claim("EM routing beats simple routing", "Li 2019 Table 2",
          f"{gain('li2019-2', 'BLEU', '4  Enc, EM', '3  Enc, simple')} En-De, all layers",
          ((EM, SIMPLE),)),
    Claim("Gu's capsules: EM routing beats dynamic routing", "Gu 2019 Tables 1, 2",
          f"{gain('gu-2', 'BLEU', 'base + EM Routing', 'base + Dynamic Routing')} En-De, "
          f"{gain('gu-1', 'AVE.', '+ EM Routing', '+ Dynamic Routing')} Zh-En",
          ((GU_EM, GU_DYNAMIC),)),
    Claim("Both together beat disagreement alone and aggregation alone", "Li 2021 Table 5",
          f"{gain('li2021-5', 'En-De BLEU', 'base + Both', 'base + Disagreement')} and "
          f"{gain('li2021-5', 'En-De BLEU', 'base + Both', 'base + Aggregation')} En-De",
          ((BOTH, OUTPUT), (BOTH, EM))),
    Claim("EM routing in the lower layers suffices: no worse than in all", "Li 2019 Table 3",
          f"{gain('li2019-3', 'BLEU', '5  [1,2]', '2  [1-6]')} En-De",
          ((EM, "--agg em --agg-at enc"),)),
    Claim("Disagreement of outputs is the best kind: better than of subspaces and of positions",
          "Li 2018 Table 1",
          f"{gain('li2018-1', 'BLEU', '4  output', '2  subspace')} and "
          f"{gain('li2018-1', 'BLEU', '4  output', '3  position')} Zh-En",
          ((ENCODER, "--reg subspace --reg-at enc"), (ENCODER, "--reg position --reg-at enc"))),
    Claim("Rewarding the heads' outputs for disagreeing makes them differ", "Li 2018 Table 4",
          f"exp(D) {gain('li2018-4', 'output', 'output', 'n/a')}", ((OUTPUT, BASE),), SCORE),
    Claim("Heads become less redundant (our reading): leaving one out costs more after "
          "disagreement, after EM routing, after both", "Li 2018 §1, Li 2021 §1", "not measured",
          ((OUTPUT, BASE), (EM, BASE), (BOTH, BASE)), COST),
    Claim("Long sentences gain most from Gu's capsules", "Gu 2019 §5.5, Fig. 3", "a plot",
          ((GU_EM, BASE),), LONG),
    Claim("Logical inference on formulas longer than those trained on: both together beat the "
          "baseline, disagreement and aggregation",
          "Li 2021 Fig. 4", "a plot",
          (("combined", "baseline"), ("combined", "disagreement"), ("combined", "aggregation")),
          FORMULAS),
    Claim("Linguistic probing: both together know more of a sentence than the baseline",
          "Li 2021 Table 7",
          ", ".join(f"{gain('li2021-7', group, 'Combine', 'Baseline')} {group}"
                    for group in ("surface", "syntactic", "semantic")),
          (("combined", "baseline"),), PROBES),
)


# ---- Measurements

class Pool(NamedTuple):
    """Runs that can be compared with each other: the text and recipe, and their numbers by
    (metric, model) and seed."""
    where: str
    values: dict[tuple[str, str], dict[int, float]]

    def add(self, metric: str, model: str, seed: int, value: float) -> None:
        """Adds a number of a run."""
        self.values.setdefault((metric, model), {})[seed] = value


def pools_from_lines(lines: list[dict]) -> list[Pool]:
    """The runs of train_mt.py, those of one scale together, without the planned ones."""
    planned = [TABLES["plan-toy"].scale, TABLES["plan-multi30k"].scale]
    pools = {}
    for line in lines:
        scale = line["scale"]
        if scale not in planned and line["size"] == "base":
            pool = pools.setdefault(scale, Pool(scale or "embedded corpus", {}))
            pool.add(BLEU, line["flags"], line["seed"], line["bleu"])
            pool.add(SCORE, line["flags"], line["seed"], line["scores"]["output"])
    return list(pools.values())


def pool_from_file(name: str, stored: dict) -> Pool:
    """The runs of analyze.py, logic.py or probe.py. In a file of probe.py an encoder of a run
    NAME-seed1 is the model NAME with that seed."""
    pool = Pool(name, {})
    if stored["kind"] == "analysis":
        for run_name, run in stored["runs"].items():
            if run_name in stored.get("ablation", {}):
                pool.add(COST, run["flags"], run["seed"], stored["ablation"][run_name]["mean"])
            if run_name in stored.get("length", {}):
                length = stored["length"][run_name]
                longest = length["bins"][-1]["bleu"]
                pool.add(LONG, run["flags"], run["seed"], longest - length["bleu"])
    if stored["kind"] == "logic":
        pairs = {size: count for size, count in stored["pairs"].items()
                 if size.isdecimal() and int(size) >= 7}
        for run in stored["runs"] if any(pairs.values()) else ():
            right = sum(count * run["accuracy"][size] for size, count in pairs.items() if count)
            pool.add(FORMULAS, run["model"], run["seed"], 100 * right / sum(pairs.values()))
    if stored["kind"] == "probing":
        accuracies = {}                                  # (model, seed) -> of every task
        for run in stored["runs"]:
            model, _, seed = run["model"].rpartition("-seed")
            key = (model, int(seed)) if model else (run["model"], run["seed"])
            accuracies.setdefault(key, []).append(run["accuracy"])
        for (model, seed), of_tasks in accuracies.items():
            pool.add(PROBES, model, seed, 100 * statistics.fmean(of_tasks))
    return pool


def comparisons(claim: Claim, pool: Pool) -> list[Contrast | None]:
    """The differences that a claim is about; None for a model with fewer than two seeds."""
    runs = []
    for (metric, model), scores in pool.values.items():
        if metric == claim.metric and len(scores) > 1:
            runs += [{"arm": model, "seed": seed, "score": x} for seed, x in scores.items()]
    trained = {run["arm"] for run in runs}
    found = []
    for pair in claim.compared:
        found.append(compare(fit(runs), *pair) if {*pair} <= trained else None)
    return found


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
            found = comparisons(claim, pool)
            if any(found):
                numbers = [in_figures(one, digits) if one else NONE for one in found]
                rows.append([pool.where, what + "; ".join(numbers)])
        first = [claim.text, claim.source, claim.published]
        for row in rows or [[NONE, "not run"]]:
            cells.append([*first, *row])
            first = ["", "", ""]
    table = tabulate(cells[1:], cells[0], "pipe", disable_numparse=True)
    return f"{ABOUT}\n\n{table}"
