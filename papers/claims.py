"""What the five papers claim, beside what was measured here: a page made from results/*.json.

A claim compares two models by one number per run; `RULE` says how a verdict follows.
"""
import re
import statistics
from typing import NamedTuple

from nmt.evaluate import APART, t_interval
from papers.render import NONE, gained, in_p, markdown, printed_number
from papers.tables import TABLES

BASE = ""
EM = "--agg em --agg-at enc:1-2"
SIMPLE = "--agg dynamic --agg-at enc:1-2"
OUTPUT = "--reg output --reg-at enc cross dec"
ENCODER = "--reg output --reg-at enc"
BOTH = f"{EM} {OUTPUT}"
GU_EM = "--agg gu-em --agg-at cross:4 dec:4"
GU_DYNAMIC = "--agg gu-dynamic --agg-at cross:4 dec:4"
BLEU = "BLEU"
LONG = "BLEU of the longest sentences less that of all"
P = "p of the bootstrap against the baseline"
SCORE = "exp(D) of the encoder's outputs"
COST = "BLEU that a head costs on average"
FORMULAS = "points on seven and more operators"
PROBES = "points on average over the tasks"


UNKNOWN = "cannot be told"
HOLDS = "holds"
FAILS = "does not hold"
RULE = f"""Ours: the mean difference between runs of the same seed, in BLEU where nothing else is
said, and its 95 % interval (paired, Student's t over the seeds). Verdicts follow by a rule: a claim
*{HOLDS}* where the interval lies above 0 and *{FAILS}* where it lies below; where the p of the
bootstrap over the test sentences is known, its median must be below 0.05 besides (–: the two are
less than {APART} BLEU apart; the median counts it). Else, and with one seed, it *{UNKNOWN}* at this
size. "No worse" holds where the interval lies above -0.3, and does not where it lies below. Where
the claim holds of a control as well, which lacks the mechanism alone, the verdict names it. Of
twenty such intervals one misses its mean by chance."""


class Claim(NamedTuple):
    """A claim: what is said and where, what is printed for it, and what is compared for it here.

    compared: pairs (model, against), each by its flags at size tiny, of logic.py and probe.py by
    its name; all of them have to hold. margin: how much worse a model may be that has to be no
    worse; None where it has to be better. control: a model that has all but the mechanism, for a
    claim with one comparison, by its name and its flags.
    """
    text: str
    source: str
    published: str
    compared: tuple[tuple[str, str], ...]
    metric: str = BLEU
    margin: float | None = None
    control: tuple[str, str] | None = None


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
    Claim("EM routing of the heads beats the baseline", "Li 2019 Table 4",
          both_languages("li2019-4", "base + Effective Aggregation"), ((EM, BASE),),
          control=("a uniform coupling", f"{EM} --iterations 1")),
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
          ((EM, "--agg em --agg-at enc"),), margin=0.3),
    Claim("Routing beats a uniform coupling", "Li 2019, implied", "not printed",
          ((EM, f"{EM} --iterations 1"),)),
    Claim("Disagreement of outputs is the best kind: better than of subspaces and of positions",
          "Li 2018 Table 1",
          f"{gain('li2018-1', 'BLEU', '4  output', '2  subspace')} and "
          f"{gain('li2018-1', 'BLEU', '4  output', '3  position')} Zh-En",
          ((ENCODER, "--reg subspace --reg-at enc"), (ENCODER, "--reg position --reg-at enc"))),
    Claim("Rewarding the heads' outputs for disagreeing makes them differ", "Li 2018 Table 4",
          f"exp(D) {gain('li2018-4', 'output', 'output', 'n/a')}", ((OUTPUT, BASE),), SCORE),
    Claim("Heads become less redundant: leaving one out costs more after disagreement, after EM "
          "routing, after both", "Li 2018 §1, Li 2021 §1", "not measured",
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


# ---- What was measured

class Pool(NamedTuple):
    """Runs that can be compared with each other: what they were measured on, and {metric: {model:
    {seed: value}}}."""
    where: str
    values: dict


def add(pool: Pool, metric: str, model: str, seed: int, value: float) -> None:
    """Puts a run's number into a pool."""
    pool.values.setdefault(metric, {}).setdefault(model, {})[seed] = value


def scale_of(command: str) -> str:
    """What a command of reproduce.py says of the recipe: all but the table and the seeds."""
    recipe = command.partition("reproduce.py ")[2].partition(" ")[2]
    return re.sub(r"--seeds( \d+)+", "", recipe).strip()


def of_tables(results: dict) -> list[Pool]:
    """The runs of reproduce.py's tables, those of one text, size and recipe together; most steps
    first."""
    found = {}
    for stored in results.values():
        if stored["kind"] != "table":
            continue
        key = stored["steps"], stored["data"], stored["arch"], scale_of(stored["command"])
        where = f"{stored['data']}, {stored['arch']}, {stored['steps']:,} steps"
        pool = found.setdefault(key, Pool(where, {}))
        for row in stored["rows"]:
            if row.get("size", "base") != "base":
                continue
            for run in row["runs"]:
                add(pool, BLEU, row["flags"], run["seed"], run["bleu"])
                add(pool, SCORE, row["flags"], run["seed"], run["scores"]["output"])
                if run["p"] is not None:
                    add(pool, P, row["flags"], run["seed"], run["p"])
    return [found[key] for key in sorted(found, reverse=True)]


def of_analyses(results: dict) -> list[Pool]:
    """The runs of analysis.json files that are kept in results/: every file a pool."""
    found = []
    for file, stored in results.items():
        if stored["kind"] != "analysis":
            continue
        pool = Pool(file.removesuffix(".json"), {})
        for name, run in stored["runs"].items():
            if name in stored.get("ablation", {}):
                cost = stored["ablation"][name]["mean"]
                add(pool, COST, run["flags"], run["seed"], cost)
            if name in stored.get("length", {}):
                measured = stored["length"][name]
                longest = measured["bins"][-1]["bleu"]
                add(pool, LONG, run["flags"], run["seed"], longest - measured["bleu"])
        found.append(pool)
    return found


def of_logic(results: dict) -> list[Pool]:
    """The runs of logic.py, every file a pool."""
    found = []
    for file, stored in results.items():
        if stored["kind"] != "logic":
            continue
        pool = Pool(file.removesuffix(".json"), {})
        long = {size: count for size, count in stored["pairs"].items()
                if size.isdecimal() and int(size) >= 7 and count}
        if not long:
            continue
        for run in stored["runs"]:
            right = sum(count * run["accuracy"][size] for size, count in long.items())
            add(pool, FORMULAS, run["model"], run["seed"], 100 * right / sum(long.values()))
        found.append(pool)
    return found


def of_probing(results: dict) -> list[Pool]:
    """The models of probe.py, every file a pool; a frozen encoder of a run NAME-seed1 is the model
    NAME with that seed."""
    found = []
    for file, stored in results.items():
        if stored["kind"] != "probing":
            continue
        accuracies = {}                                  # (model, seed) -> of every task
        for run in stored["runs"]:
            model, _, seed = run["model"].rpartition("-seed")
            key = (model, int(seed)) if model else (run["model"], run["seed"])
            accuracies.setdefault(key, []).append(run["accuracy"])
        pool = Pool(file.removesuffix(".json"), {})
        for (model, seed), of_tasks in accuracies.items():
            add(pool, PROBES, model, seed, 100 * statistics.fmean(of_tasks))
        found.append(pool)
    return found


class Comparison(NamedTuple):
    """The differences between two models by the seeds that both have, and the p of the bootstrap of
    each, None where it is not known; of BLEU against the baseline."""
    differences: list[float]
    p: list[float | None]


def compared(claim: Claim, pool: Pool) -> list[Comparison | None]:
    """The comparisons of a claim, None for one that lacks its runs."""
    models = pool.values.get(claim.metric, {})
    found = []
    for ours, against in claim.compared:
        one = models.get(ours, {})
        other = models.get(against, {})
        seeds = [seed for seed in sorted(one) if seed in other]
        p = {}
        if claim.metric == BLEU and against == BASE:
            p = pool.values.get(P, {}).get(ours, {})
        differences = [one[seed] - other[seed] for seed in seeds]
        found.append(Comparison(differences, [p.get(seed) for seed in seeds]) if seeds else None)
    return found


# ---- Verdicts

def verdict(found: Comparison | None, margin: float | None = None) -> str:
    """What the runs say of a comparison: RULE."""
    interval = t_interval(found.differences) if found else None
    if interval is None:
        return UNKNOWN
    known = [p for p in found.p if p is not None]
    if known and statistics.median(known) >= 0.05:
        return UNKNOWN
    low, high = interval
    least = -(margin or 0)
    if low > least:
        return HOLDS
    return FAILS if high < least else UNKNOWN


def of_all(verdicts: list[str]) -> str:
    """The verdict of a claim all of whose comparisons have to hold."""
    for word in (FAILS, UNKNOWN):
        if word in verdicts:
            return word
    return HOLDS


def verdict_of(claim: Claim, pool: Pool) -> str:
    """The verdict of a claim over all of its comparisons; where it holds, and of the control too,
    with that said."""
    word = of_all([verdict(found, claim.margin) for found in compared(claim, pool)])
    if word != HOLDS or claim.control is None:
        return word
    name, flags = claim.control
    against = claim.compared[0][1]
    of_control = compared(claim._replace(compared=((flags, against),)), pool)[0]
    if verdict(of_control, claim.margin) == HOLDS:
        return f"{HOLDS}, also with {name}"
    return word


def in_figures(found: Comparison | None, digits: int) -> str:
    """The mean difference and its interval, the number of seeds, p."""
    if found is None:
        return NONE
    count = len(found.differences)
    about = ["1 seed" if count == 1 else f"{count} seeds"]
    if any(p is not None for p in found.p):
        about.append("p " + ", ".join(map(in_p, found.p, found.differences)))
    return f"{gained(found.differences, digits)} ({'; '.join(about)})"


def page(results: dict) -> str:
    """The table of claims and the rule of its verdicts as Markdown; results: {file name: contents}
    of results/."""
    pools = [*of_tables(results), *of_analyses(results), *of_logic(results), *of_probing(results)]
    cells = [["claim", "printed in", "their number", "run here", "ours", "verdict"]]
    for claim in CLAIMS:
        first = [claim.text, claim.source, claim.published]
        what = "" if claim.metric == BLEU else f"{claim.metric}: "
        digits = 3 if claim.metric == SCORE else 2
        rows = []
        for pool in pools:
            found = compared(claim, pool)
            if any(found):
                numbers = "; ".join(in_figures(one, digits) for one in found)
                rows.append([pool.where, what + numbers, verdict_of(claim, pool)])
        if not rows:
            rows.append([NONE, NONE, "not run"])
        for row in rows:
            cells.append([*first, *row])
            first = ["", "", ""]
    return f"{RULE}\n\n{markdown(cells)}"
