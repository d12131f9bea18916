"""The verdicts on the five papers, from the planned runs in results/runs.jsonl by the rules of
docs/plan.md: a linear model of arm and seed, Holm's adjustment, equivalence tests."""
import math
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from papers.differences import (
    LEVEL,
    MARGIN,
    Contrast,
    Model,
    contrast_arms,
    fit_arms,
    holm,
    in_figures,
)
from papers.results import precision_of
from papers.tables import TABLES

MULTI30K = "plan-multi30k"      # tables of papers/tables.py
TOY = "plan-toy"
SEEDS = {MULTI30K: range(1, 7), TOY: range(1, 21)}
CORPUS_NAMES = {MULTI30K: "Multi30K", TOY: "the embedded corpus"}
LEAST_BLOCKS = {MULTI30K: 4, TOY: 20}
CONTRASTS = {MULTI30K: (("wide-ffn", "baseline"), ("em", "baseline"), ("uniform", "baseline"),
                        ("output", "baseline"), ("both", "baseline"), ("em", "uniform"))}
CONTRASTS[TOY] = (*CONTRASTS[MULTI30K],
                  *((arm, "baseline") for arm in ("gu-em", "gu-em-beta", "gu-em-full",
                                                  "gu-dynamic", "capsule")))


class MainClaim(NamedTuple):
    """A paper's main claim: the arm that has its mechanism, what the arm is compared with, and the
    gain in BLEU over the baseline that the paper prints for En-De, size base."""
    paper: str
    text: str
    arm: str
    against: str
    printed: float
    corpora: tuple[str, ...] = (MULTI30K, TOY)


MAIN_CLAIMS = (
    MainClaim("Li 2018", "rewarding outputs for disagreeing helps", "output", "baseline", 0.87),
    MainClaim("Li 2019", "EM routing of the heads helps, more than uniform coupling", "em",
          "uniform", 0.95),
    MainClaim("Li 2021", "disagreement and EM routing together help", "both", "baseline", 1.10),
    MainClaim("Gu 2019", "a capsule layer over the heads helps", "gu-em", "baseline", 0.43, (TOY,)),
    MainClaim("Duan 2020", "routing the logits helps", "capsule", "baseline", 0.61, (TOY,)),
)


def whole_blocks(lines: list[dict], corpus: str) -> list[dict]:
    """The runs of a corpus as {"arm", "seed", "score"}, of the seeds that have all arms."""
    table = TABLES[corpus]
    arms = {row.flags: row.label for row in (*table.rows, *table.ended)}
    blocks = {seed: {} for seed in SEEDS[corpus]}
    precision = "bfloat16" if table.amp else "float32"
    for line in lines:
        if (line["scale"] == table.scale and line["seed"] in blocks and line["flags"] in arms
                and precision_of(line) == precision):
            run = {"arm": arms[line["flags"]], "seed": line["seed"], "score": line["bleu"],
                   "chrf": line["chrf"], "loss": line["valid_loss"]}
            blocks[line["seed"]][run["arm"]] = run
    whole = [runs for runs in blocks.values() if len(runs) == len(arms)]
    return [run for runs in whole for run in runs.values()]


def verdict(contrast: Contrast, printed: float) -> str:
    """The verdict on a mechanism whose paper printed this gain, by the rules of docs/plan.md."""
    if contrast.adjusted < LEVEL:
        return "gain found" if contrast.difference > 0 else "the opposite"
    if contrast.equivalent:
        return f"no different (within {MARGIN} BLEU)"
    if contrast.interval[1] < printed:
        return "a gain as printed is excluded"
    return f"too imprecise (could detect {contrast.detectable:.1f})"


class Corpus(NamedTuple):
    """The result for a corpus: number of whole blocks, runs, model, family of contrasts, and the
    positive control, one head against the baseline."""
    blocks: int
    runs: list[dict]
    model: Model
    contrasts: dict[tuple[str, str], Contrast]
    control: Contrast

    def can_test(self) -> bool:
        """Whether one head loses."""
        return self.control.p < LEVEL and self.control.difference < 0


def analyze(lines: list[dict]) -> dict[str, Corpus]:
    """The corpora with as many whole blocks as the plan asks for; lines: of results/runs.jsonl."""
    corpora = {}
    for corpus, pairs in CONTRASTS.items():
        runs = whole_blocks(lines, corpus)
        blocks = len({run["seed"] for run in runs})
        if blocks >= LEAST_BLOCKS[corpus]:
            model = fit_arms(runs)
            family = holm([contrast_arms(model, *pair, model.unequal) for pair in pairs])
            control = contrast_arms(model, "one-head", "baseline", model.unequal)
            corpora[corpus] = Corpus(blocks, runs, model, dict(zip(pairs, family)), control)
    return corpora


def five_lines(corpora: dict[str, Corpus]) -> list[list[str]]:
    """A row per paper: the claim, the printed gain, ours, what could be detected, verdict, why.

    The first corpus of a claim that can test it decides.
    """
    rows = []
    for claim in MAIN_CLAIMS:
        read = [corpus for corpus in claim.corpora if corpus in corpora]
        testing = [corpus for corpus in read if corpora[corpus].can_test()]
        where = (testing or read)[0]
        contrasts = corpora[where].contrasts
        contrast = contrasts[claim.arm, claim.against]
        judged = verdict(contrast, claim.printed) if testing else "cannot be tested"
        why = f"{claim.arm} minus {claim.against} on {CORPUS_NAMES[where]}"
        if claim.against != "baseline":
            for arm in (claim.arm, claim.against):
                why += f"; {arm} minus baseline {in_figures(contrasts[arm, 'baseline'])}"
        for corpus in read:
            if corpus not in testing and corpus != where:
                ours = corpora[corpus].contrasts[claim.arm, claim.against]
                why += f"; {CORPUS_NAMES[corpus]}, where one head does not lose: {in_figures(ours)}"
        rows.append([claim.paper, claim.text, f"{claim.printed:+.2f}", in_figures(contrast),
                     f"{contrast.detectable:.2f}", judged, why])
    return rows


def contrast_table(corpus: Corpus) -> str:
    """The contrasts of a corpus as Markdown."""
    header = ["arm", "against", "BLEU [95 %]", "could detect", "p", "p, Holm", f"within {MARGIN}"]
    cells = []
    for x in corpus.contrasts.values():
        p, adjusted = ("< 0.0001" if p < 0.0001 else f"{p:.4f}" for p in (x.p, x.adjusted))
        cells.append([x.arm, x.against, in_figures(x), f"{x.detectable:.2f}", p, adjusted,
                      "yes" if x.equivalent else "no"])
    return tabulate(cells, header, "pipe", disable_numparse=True)


def paragraph(name: str, corpus: Corpus) -> str:
    """The sample and the model behind a corpus's contrasts, and its positive control."""
    words = [f"On {CORPUS_NAMES[name]}: {corpus.blocks} whole blocks of seeds"]
    if corpus.model.unequal:
        words.append("The arms' variances differ (Levene's test, p < 0.01): Welch's test")
    else:
        words.append("One residual deviation for all arms: "
                     f"{math.sqrt(corpus.model.variance):.2f} BLEU")
    words.append(f"The positive control, one head, differs from the baseline by "
                 f"{in_figures(corpus.control)}")
    if not corpus.can_test():
        words[-1] += ": it does not lose, so this setting cannot test the papers"
    means = []
    for arm in corpus.model.scores:
        numbers = [(run["score"], run["chrf"], run["loss"]) for run in corpus.runs
                   if run["arm"] == arm]
        bleu, chrf, loss = np.mean(numbers, axis=0)
        means.append(f"{arm} {bleu:.2f}, {chrf:.2f}, {loss:.3f}")
    return (". ".join(words) + ".\nMeans of test BLEU, chrF and validation loss: "
            + "; ".join(means) + ".")


def page(corpora: dict[str, Corpus]) -> str:
    """The table of five lines and the contrasts behind it, as Markdown."""
    header = ["paper", "claim", "printed gain, En-De", "ours [95 %]", "could detect", "verdict",
              "which difference"]
    parts = [tabulate(five_lines(corpora), header, "pipe", disable_numparse=True)]
    for name, corpus in corpora.items():
        parts += [paragraph(name, corpus), contrast_table(corpus)]
    return "\n\n".join(parts)


def draw(corpora: dict[str, Corpus], path) -> None:
    """A forest plot: the contrasts of each corpus with their intervals; diamonds are the gains over
    the baseline that the papers print for En-De."""
    from matplotlib import pyplot
    printed = {(claim.arm, "baseline"): claim.printed for claim in MAIN_CLAIMS}
    rows = max(len(corpus.contrasts) for corpus in corpora.values())
    figure, axes = pyplot.subplots(1, len(corpora), figsize=(9, 0.5 + 0.25 * rows),
                                   squeeze=False, layout="constrained")
    for ax, (name, corpus) in zip(axes[0], corpora.items()):
        for y, (pair, contrast) in enumerate(corpus.contrasts.items()):
            ax.plot(contrast.interval, [y, y], "-", color="tab:blue")
            ax.plot(contrast.difference, y, "o", color="tab:blue")
            if pair in printed:
                ax.plot(printed[pair], y, "D", color="tab:orange", markerfacecolor="none")
        ax.axvline(0, color="gray", linewidth=0.8)
        ax.set_yticks(range(len(corpus.contrasts)), [" - ".join(x) for x in corpus.contrasts])
        ax.invert_yaxis()
        blocks = f"{corpus.blocks} blocks"
        if not corpus.can_test():
            blocks += "; one head does not lose"
        ax.set_title(f"{CORPUS_NAMES[name]}\n{blocks}", fontsize="medium")
        ax.set_xlabel("difference in BLEU")
    figure.savefig(path)
    pyplot.close(figure)
