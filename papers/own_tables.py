"""This project's own tables: every mechanism under one recipe, with the controls that no paper
prints. Rows are read as those of papers/tables.py; here nothing is published."""
from papers.rows import Row, Table

OWN = "this project"
TRIED = "(Li 2019 §5.2.1 tried them and prints none)"
BASELINE = Row("baseline", "")

# The most important first: an interrupted table has the first of them with all their seeds.
CLAIMS = (
    BASELINE,
    Row("EM routing", "--agg em"),
    Row("control: EM, uniform coupling", "--agg em --iterations 1"),
    Row("output disagreement in the encoder, λ = H/8",
        "--reg output --reg-at enc --reg-weight {H_8th}"),
    Row("EM + output disagreement (Li 2021)", "--agg em --reg output"),
    Row("Gu's capsules, EM", "--agg gu-em"),
    Row("Capsule-Transformer", "--capsule enc dec"),
    Row("output disagreement", "--reg output"),
    Row("output disagreement, λ = H/8", "--reg output --reg-weight {H_8th}"),
    Row("output disagreement in the encoder", "--reg output --reg-at enc"),
    Row("EM without activations", "--agg em --no-em-activations"),
    Row("simple routing", "--agg dynamic"),
    Row("control: EM, random coupling", "--agg em --coupling random"),
    Row("control: one head", "--heads 1"),
    Row("control: FFN wider by EM's parameters", "--d-ff {ffn}"),
    Row("EM routing in the whole encoder", "--agg em --agg-at enc"),
    Row("Gu's capsules, dynamic", "--agg gu-dynamic"),
    Row("subspace disagreement in the encoder", "--reg subspace --reg-at enc"),
    Row("position disagreement in the encoder", "--reg position --reg-at enc"))

ALL = (
    *CLAIMS,
    Row("subspace disagreement", "--reg subspace"),
    Row("position disagreement", "--reg position"),
    Row("EM + capsule attention", "--agg em --capsule enc dec"),
    Row("output disagreement + capsule attention", "--reg output --capsule enc dec"),
    Row("Gu's EM + output disagreement", "--agg gu-em --reg output"),
    Row("EM + output disagreement + capsule attention", "--agg em --reg output --capsule enc dec"),
    Row("EM + output disagreement, λ = H/8", "--agg em --reg output --reg-weight {H_8th}"),
    Row("squared output disagreement", "--reg squared-output"),
    Row("control: simple routing, uniform coupling", "--agg dynamic --iterations 1"),
    Row("control: simple routing, random coupling", "--agg dynamic --coupling random"),
    Row("control: Gu's EM, uniform coupling", "--agg gu-em --iterations 1"),
    Row("control: Gu's EM, random coupling", "--agg gu-em --coupling random"),
    Row("control: Gu's dynamic, uniform coupling", "--agg gu-dynamic --iterations 1"),
    Row("control: Gu's dynamic, random coupling", "--agg gu-dynamic --coupling random"))

EM_OPTIONS = (
    Row("baseline", ""),
    Row("EM", "--agg em"),
    Row("EM, full gradient", "--agg em --em-gradient full"),
    Row("EM, released schedule of λ", "--agg em --em-schedule released"),
    Row("Gu's EM", "--agg gu-em"),
    Row("Gu's EM, full gradient", "--agg gu-em --em-gradient full"),
    Row("Gu's EM, released schedule of λ", "--agg gu-em --em-schedule released"),
    Row("EM, no activations", "--agg em --no-em-activations"),
    Row("Gu's EM, no activations", "--agg gu-em --no-em-activations"),
    Row("Gu's EM, sum of the densities", "--agg gu-em --em-density sum"))

CAPSULES = (
    BASELINE,
    Row("N = d/64", "--agg em --capsules {d_64}"),
    Row("N = d/16", "--agg em --capsules {d_16}"),
    Row("N = d/4", "--agg em --capsules {d_4}"),
    Row("N = d/2", "--agg em --capsules {d_2}"),
    Row("N = d", "--agg em --capsules {d}"))

ITERATIONS = (BASELINE, *(Row(f"T = {t}", f"--agg em --iterations {t}") for t in range(1, 6)))

SQUARED = (
    BASELINE,
    Row("product", "--reg position --reg-at enc"),
    Row("squared difference", "--reg squared-position --reg-at enc"))

OWN_TABLES = {
    "claims": Table(
        OWN, "what the five papers claim, and the controls, the most important first", "", (),
        CLAIMS),
    "em-options": Table(
        OWN, "EM routing: density, schedule of λ, gradient, activations", "", (), EM_OPTIONS),
    "all": Table(
        OWN, "every mechanism of the five papers, and the best ones combined, under one recipe", "",
        (), ALL),
    "iterations": Table(OWN, f"routing iterations T, EM routing {TRIED}", "", (), ITERATIONS),
    "capsules": Table(OWN, f"output capsules N, EM routing {TRIED}", "", (), CAPSULES),
    "squared": Table(
        OWN, "attended positions: product (Li 2018 Eq. 2) or squared difference (footnote 2), "
        "encoder", "", (), SQUARED,
        notes=("Li 2018 footnote 2: the squared difference underperforms the product, in "
               "preliminary experiments",)),
}
