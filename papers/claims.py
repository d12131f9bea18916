"""The claims of the five papers, and the page docs/claims.md, which compares them with the runs in
results/: the main claims with the planned runs (verdicts.py), the others with all other runs."""
import statistics
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from papers.results import precision_of
from papers.tables import TABLES
from papers.verdicts import (
    MARGIN,
    PLANS,
    Contrast,
    Corpus,
    judge,
    paired_contrast,
    read_corpora,
)
from tools.files import UserError, atomic_write, read_json

BASE = ""
EM = "--agg em --em-gradient last"
SIMPLE = "--agg dynamic"
OUTPUT = "--reg output"
ENCODER = "--reg output --reg-at enc"
BOTH = f"{EM} {OUTPUT}"
GU_EM = "--agg gu-em --em-gradient last"
GATED = "later.GatedAttention"
BLEU = "BLEU"
LONG = "BLEU of the longest sentences minus BLEU of all"
SCORE = "exp(D) of the encoder's outputs"
COST = "BLEU lost without a head, on average"
FORMULAS = "points on seven and more operators"
PROBES = "points on average over the tasks"
SCALE_NAMES = {
    "": "embedded",
    "--data multi30k --vocab-size 6000 (test_2016_flickr)": "Multi30K",
    "--steps 300 --eval-every 300": "embedded, 300 steps"}
ABOUT = """These are further claims. Their runs are exploratory: they were not planned, and with
three to five seeds most differences are not significant. The parentheses have the paper's figures.
The list says what was measured here: the place, the two models, the difference in BLEU or in the
unit that is named, and its 95 % interval by a paired t-test over the seeds. The place is the
embedded corpus, Multi30K, or a file in results/. The runs on these two corpora have 4 heads and
train on all pairs, so they differ from the planned runs. Simple routing is dynamic routing.
`disagreement`, `aggregation` and `combined` are models with output disagreement, with EM routing,
and with both."""

FOREST_PLOT = """![Differences in BLEU with 95 % intervals, by corpus](verdicts.png)

A dot shows a difference in BLEU, a line its 95 % interval, and a diamond the gain over the baseline
that the paper prints for English to German. Only the arms of the paragraphs above have a diamond.
The scales of the panels differ. Where one head does not lose, no claim is judged."""


class Claim(NamedTuple):
    """A claim other than the main ones: its text, its place in the paper, the published gain, and
    the comparisons made here as pairs (model, against). A model is named by the flags of its row,
    or by its name in logic.py and probe.py."""
    text: str
    source: str
    published: str
    compared: tuple[tuple[str, str], ...]
    metric: str = BLEU


class MainClaim(NamedTuple):
    """What a paper claims, the planned arm with its mechanism, the gain in BLEU over the baseline
    that the paper prints for En-De at size base, and the arm that is the control, if any."""
    source: str
    text: str
    arm: str
    printed: float
    control: str | None = None


MAIN_CLAIMS = (
    MainClaim("Li 2018", "rewarding the heads' outputs for disagreeing helps", "output", 0.87),
    MainClaim("Li 2019", "combining the heads by EM routing helps", "em", 0.95, "uniform"),
    MainClaim("Li 2021", "disagreement and EM routing together help", "both", 1.10),
    MainClaim("Gu 2019", "a capsule layer over the heads, with EM routing, helps", "gu-em", 0.43),
    MainClaim("Duan 2020", "routing the attention logits helps", "capsule", 0.61))
CLAIMS = (
    Claim("Output disagreement in the encoder alone beats the baseline", "Li 2018 Table 2",
          "+0.65 Zh-En", ((ENCODER, BASE), (f"{ENCODER} --reg-weight 0.5", BASE))),
    Claim("Disagreement of outputs beats that of subspaces and that of positions",
          "Li 2018 Table 1", "+0.14 and +0.36 Zh-En",
          ((ENCODER, "--reg subspace --reg-at enc"), (ENCODER, "--reg position --reg-at enc"))),
    Claim("Disagreement of subspaces and outputs does not beat that of outputs alone",
          "Li 2018 Table 1", "-0.05 Zh-En", (("--reg subspace output --reg-at enc", ENCODER),)),
    Claim("Rewarding the heads' outputs for disagreeing makes them differ", "Li 2018 Table 4",
          "exp(D) +0.116", ((OUTPUT, BASE),), SCORE),
    Claim("Simple routing beats the baseline; here in two layers", "Li 2019 Table 2",
          "+0.67 En-De, all layers", ((SIMPLE, BASE),)),
    Claim("EM routing beats simple routing; here in two layers", "Li 2019 Table 2",
          "+0.30 En-De, all layers", ((EM, SIMPLE),)),
    Claim("EM routing in the lower encoder layers suffices: it is no worse than in all of them",
          "Li 2019 Table 3", "-0.02 En-De", ((EM, "--agg em --agg-at enc --em-gradient last"),)),
    Claim("The gain is not due to the parameters: EM routing beats wider feed-forward layers",
          "Li 2019 §5.2", "not measured", ((EM, "--d-ff 321"),)),
    Claim("Disagreement and aggregation together beat each of the two", "Li 2021 Table 5",
          "+0.21 and +0.15 En-De", ((BOTH, OUTPUT), (BOTH, EM))),
    Claim("Linguistic probing: both together encode more of a sentence than the baseline",
          "Li 2021 Table 7", "+1.02 surface, +2.01 syntactic, +1.70 semantic",
          (("combined", "baseline"),), PROBES),
    Claim("Logical inference on formulas longer than those trained on: both together beat the "
          "baseline, disagreement and aggregation", "Li 2021 Fig. 4", "only a plot",
          (("combined", "baseline"), ("combined", "disagreement"), ("combined", "aggregation")),
          FORMULAS),
    Claim("Heads become less redundant (our reading): leaving one out costs more with "
          "disagreement, with EM routing, with both", "Li 2018 §1, Li 2021 §1", "not measured",
          ((OUTPUT, BASE), (EM, BASE), (BOTH, BASE)), COST),
    Claim("Gu's capsules: EM routing beats dynamic routing", "Gu 2019 Tables 1, 2",
          "+0.10 En-De, +0.24 Zh-En", ((GU_EM, "--agg gu-dynamic"),)),
    Claim("Long sentences gain most from Gu's capsules", "Gu 2019 §5.5, Fig. 3", "only a plot",
          ((GU_EM, BASE),), LONG),
    # after the five papers: course/later.py
    Claim("Gated heads beat the baseline; compared here also with gates fixed at 1/2",
          "Qiu et al. 2025", "not for translation",
          ((GATED, BASE), (GATED, f"{GATED}, gate fixed at 1/2"))),
    Claim("Talking heads beat the baseline", "Shazeer et al. 2020", "not for translation",
          (("later.TalkingHeads", BASE),)),
)


# ---- Numbers of the runs that are not planned

def collect_scores(lines: list[dict], files: dict[str, dict]) -> dict:
    """The scores as {(place, metric): {model: {seed: score}}}. A place is a text with a recipe, or
    a file; only scores of the same place are compared. lines: of results/runs.jsonl; files: {name:
    contents} of the JSON files in results/."""
    scores = defaultdict(lambda: defaultdict(dict))
    planned = [TABLES[plan.table].scale for plan in PLANS]
    for line in lines:
        if line["scale"] not in planned and line["size"] == "base":
            place = SCALE_NAMES.get(line["scale"], line["scale"])
            if precision_of(line) != "float32":
                place += f", {precision_of(line)}"
            scores[place, BLEU][line["flags"]][line["seed"]] = line["bleu"]
            scores[place, SCORE][line["flags"]][line["seed"]] = line["scores"]["output"]
    for name, stored in files.items():
        add_file(scores, name, stored)
    return scores


def add_file(scores: dict, name: str, stored: dict) -> None:
    """Adds the scores of a file of analyze.py, logic.py or probe.py. In a file of probe.py an
    encoder NAME-seed1 is the model NAME with that seed."""
    if stored["kind"] == "analysis":
        for run, x in stored["runs"].items():
            if run in stored.get("ablation", {}):
                scores[name, COST][x["flags"]][x["seed"]] = stored["ablation"][run]["mean"]
            if run in stored.get("length", {}):
                length = stored["length"][run]
                longest = length["bins"][-1]["bleu"]
                scores[name, LONG][x["flags"]][x["seed"]] = longest - length["bleu"]
    if stored["kind"] == "logic":
        pairs = {size: count for size, count in stored["pairs"].items()
                 if size.isdecimal() and int(size) >= 7}
        for run in stored["runs"]:
            right = sum(count * run["accuracy"][size] for size, count in pairs.items())
            scores[name, FORMULAS][run["model"]][run["seed"]] = 100 * right / sum(pairs.values())
    if stored["kind"] == "probing":
        accuracies = defaultdict(list)                   # of every task
        for run in stored["runs"]:
            model, _, seed = run["model"].rpartition("-seed")
            accuracies[model or seed, int(seed) if model else run["seed"]].append(run["accuracy"])
        for (model, seed), of_tasks in accuracies.items():
            scores[name, PROBES][model][seed] = 100 * statistics.fmean(of_tasks)


def compare(claim: Claim, scores: dict) -> list[tuple[str, tuple[str, str], Contrast]]:
    """The differences that a claim is about: (place, models, contrast), place by place."""
    differences = []
    for (place, metric), models in scores.items():
        for pair in claim.compared if metric == claim.metric else ():
            contrast = paired_contrast(*(models.get(model, {}) for model in pair))
            if contrast:
                differences.append((place, pair, contrast))
    return differences


# ---- The page

def in_figures(contrast: Contrast, digits: int = 2) -> str:
    low, high = contrast.interval
    return f"{contrast.difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def table_text(rows: list[dict[str, str]]) -> str:
    return tabulate(rows, "keys", "pipe", disable_numparse=True)


def verdict_text(claim: MainClaim, corpora: list[Corpus]) -> str:
    """A paragraph: what a paper claims, then the measured difference and the verdict on each corpus
    that can test it."""
    sentences = [f"**{claim.source}** claims that {claim.text}. It prints {claim.printed:+.2f} "
                 "BLEU over the baseline."]
    verdicts = set()
    for corpus in corpora:
        if not corpus.can_test() or (claim.arm, "baseline") not in corpus.contrasts:
            continue
        measured = (f"`{claim.arm}` minus `baseline` is "
                    f"{in_figures(corpus.contrasts[claim.arm, 'baseline'])}")
        if claim.control:
            measured += (f", and `{claim.arm}` minus its control `{claim.control}` is "
                         f"{in_figures(corpus.contrasts[claim.arm, claim.control])}")
        words = judge(claim.arm, claim.control, claim.printed, corpus)
        sentences.append(f"On {corpus.plan.corpus} {measured}: **{words}**.")
        verdicts.add(words)
    if len(verdicts) > 1:
        gains = any(words.startswith("it gains") for words in verdicts)
        sentences.append("The corpora disagree." if gains else "No corpus shows a gain.")
    if not verdicts:
        sentences.append("**It cannot be tested here.**")
    return " ".join(sentences)


def contrast_row(pair: tuple[str, str], contrast: Contrast) -> dict[str, str]:
    p, adjusted = ("< 0.0001" if p < 0.0001 else f"{p:.4f}"
                   for p in (contrast.p, contrast.adjusted))
    return {"arm": pair[0], "against": pair[1], "BLEU [95 %]": in_figures(contrast),
            "could detect": f"{contrast.detectable:.2f}", "p": p, "p, Holm": adjusted,
            f"within {MARGIN}": "yes" if contrast.equivalent else "no"}


def describe(corpus: Corpus) -> str:
    """A heading, then the number of seeds, the test used, and the positive control."""
    test = "The arms' variances differ (Levene's test, p < 0.01), so the test is Welch's"
    if corpus.deviation:
        test = f"All arms share one residual standard deviation, {corpus.deviation:.2f} BLEU"
    seeds = len(corpus.lines["baseline"])
    name = corpus.plan.corpus
    return (f"### {name[0].upper()}{name[1:]}\n\nOnly the {seeds} seeds with runs of all arms "
            f"count. {test}. The positive control, one head, differs from the baseline by "
            f"{in_figures(corpus.control)}.")


def means_row(arm: str, lines: list[dict]) -> dict[str, str]:
    bleu = statistics.fmean(line["bleu"] for line in lines)
    chrf = statistics.fmean(line["chrf"] for line in lines)
    loss = statistics.fmean(line["valid_loss"] for line in lines)
    return {"arm": arm, "BLEU": f"{bleu:.2f}", "chrF": f"{chrf:.2f}",
            "validation loss": f"{loss:.3f}"}


def verdict_page(corpora: list[Corpus]) -> str:
    """The verdicts on the main claims and the contrasts behind them, as Markdown."""
    parts = [verdict_text(claim, corpora) for claim in MAIN_CLAIMS]
    for corpus in corpora:
        if not corpus.can_test():
            parts.append(f"On {corpus.plan.corpus} one head is not significantly worse than several"
                         f" ({in_figures(corpus.control)}), so no claim about several heads is "
                         "judged there.")
    parts.append(FOREST_PLOT)
    for corpus in corpora:
        contrasts = [contrast_row(*item) for item in corpus.contrasts.items()]
        means = [means_row(arm, lines) for arm, lines in corpus.lines.items()]
        parts += [describe(corpus), table_text(contrasts), "Means over the seeds:",
                  table_text(means)]
    return "\n\n".join(parts)


def claim_page(scores: dict) -> str:
    """The other claims with the measured differences, as Markdown."""
    parts = [ABOUT]
    for claim in CLAIMS:
        lines = []
        for place, pair, contrast in compare(claim, scores):
            model, against = (name or "baseline" for name in pair)
            figures = in_figures(contrast, 3 if claim.metric == SCORE else 2)
            lines.append(f"- {place}: `{model}` minus `{against}`: {figures}")
        title = f"**Claim: {claim.text}** ({claim.source}: {claim.published})"
        if claim.metric != BLEU:
            title += f", in {claim.metric}"
        parts.append("\n".join([f"{title}\n", *(lines or ["- not run"])]))
    return "\n\n".join(parts)


def draw(corpora: list[Corpus], path) -> None:
    """The forest plot: a panel per corpus with its contrasts and their intervals. Diamonds are the
    gains over the baseline that the papers print for En-De."""
    from matplotlib import pyplot
    printed = {(claim.arm, "baseline"): claim.printed for claim in MAIN_CLAIMS}
    rows = max(len(corpus.contrasts) for corpus in corpora)
    size = max(9, 3.3 * len(corpora)), 0.7 + 0.25 * rows
    figure, axes = pyplot.subplots(1, len(corpora), figsize=size, squeeze=False,
                                   layout="constrained")
    for ax, corpus in zip(axes[0], corpora):
        for y, (pair, contrast) in enumerate(corpus.contrasts.items()):
            ax.plot(contrast.interval, [y, y], "-", color="tab:blue")
            ax.plot(contrast.difference, y, "o", color="tab:blue")
            if pair in printed:
                ax.plot(printed[pair], y, "D", color="tab:orange", markerfacecolor="none")
        ax.axvline(0, color="gray", linewidth=0.8)
        ax.set_yticks(range(len(corpus.contrasts)), [" - ".join(x) for x in corpus.contrasts])
        ax.invert_yaxis()
        control = "" if corpus.can_test() else "; one head does not lose"
        name = textwrap.fill(corpus.plan.corpus, 28)
        ax.set_title(f"{name}\n{len(corpus.lines['baseline'])} seeds{control}", fontsize="medium")
        ax.set_xlabel("difference in BLEU")
    figure.savefig(path)
    pyplot.close(figure)


def write_page(root: Path, lines: list[dict]) -> None:
    """Writes the generated parts of docs/claims.md, and the forest plot; lines: of
    results/runs.jsonl."""
    corpora = read_corpora(lines)
    if "plan-toy" not in [corpus.plan.table for corpus in corpora]:
        raise UserError("results/runs.jsonl: lacks runs of plan-toy: restore it")
    files = {}
    for path in sorted((root / "results").glob("*.json")):
        files[path.stem] = read_json(path, "restore it")
    page = root / "docs" / "claims.md"
    text = page.read_text("utf-8")
    for name, part in (("verdicts", verdict_page(corpora)),
                       ("claims", claim_page(collect_scores(lines, files)))):
        head, start, old = text.partition(f"<!-- {name} -->\n")
        _, end, tail = old.partition("\n<!-- end -->")
        text = head + start + part + end + tail
    atomic_write(page, text)
    draw(corpora, root / "docs" / "verdicts.png")
    print(f"updated: {page.relative_to(root)}")
