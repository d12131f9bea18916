"""The result tables of the five papers, and those of this project: flags and published numbers.

A row has the flags of train_mt.py that make its model from the baseline, in their shortest form,
since a run is named after its flags. A published number is the printed text. In flags, {L} is the
number of layers, {lower} and {upper} the two halves of them, {H2} twice the heads, {H_4} a quarter
of them, and so on: see `reproduce.fit_flags`. Rows that a paper quotes from elsewhere are left out,
and so are Li 2021 Tables 1 to 4, which repeat Li 2018 Tables 1 and 2 and Li 2019 Tables 2 and 3.
"""
from typing import NamedTuple

from tasks.probe_data import TASKS


class Row(NamedTuple):
    """A row of a table. size: the flags that change the size of all rows. It is compared with the
    row of the same size that has no other flags."""
    label: str
    flags: str = ""
    published: tuple = ()       # by column, as printed
    size: str = ""


class Table(NamedTuple):
    """A table: its source, title, data, published columns, rows and footnotes. A published cell
    refers to a footnote, numbered from 1, as in "47.43 (+0.11) [1]"."""
    source: str
    title: str
    data: str
    columns: tuple
    rows: tuple
    notes: tuple = ()
    probed: bool = False        # accuracies, which probe.py measures; flags name the model


ZH_EN = "WMT17 Zh-En"
EN_DE = "WMT14 En-De"
NIST = "NIST Zh-En (LDC, not public)"
BIG = "{big}"
BIG_2021 = "{big} --dropout {dropout}"                   # base's dropout, 0.1
WIDE = "{big} --dropout {dropout} --heads {H}"           # with base's heads
SHORT = "from Chinese, the paper takes sentences of at most 50 tokens: add --max-length 50"
SHORTER = "from Chinese, the paper takes sentences of less than 50 tokens: add --max-length 49"
LOWER = ("from Chinese, the paper counts BLEU without case: `sacrebleu -lc` does, on a run's .ref "
         "and .hyp")
DEPARTURE = ("here EM routing has the gradient of the last iteration only, our default; the paper "
             "refers to Hinton et al. 2018, who backpropagate through all iterations")
TABLES = {}                     # by the name that reproduce.py takes


# ---- The papers

TABLES["li2018-1"] = Table(
    "Li 2018 Table 1", "regularization terms, encoder self-attention only", f"{ZH_EN}, base",
    ("steps/s", "BLEU"),
    (Row("1  baseline", "", ("1.21", "24.13")),
     Row("2  subspace", "--reg subspace --reg-at enc", ("1.15", "24.64")),
     Row("3  position", "--reg position --reg-at enc", ("1.14", "24.42")),
     Row("4  output", "--reg output --reg-at enc", ("1.15", "24.78")),
     Row("5  subspace, output", "--reg subspace output --reg-at enc", ("1.12", "24.73")),
     Row("6  subspace, position", "--reg subspace position --reg-at enc", ("1.11", "24.38")),
     Row("7  all three", "--reg subspace position output --reg-at enc", ("1.05", "24.60"))))

TABLES["li2018-2"] = Table(
    "Li 2018 Table 2", "output disagreement on different attention networks", f"{ZH_EN}, base",
    ("steps/s", "BLEU"),
    (Row("baseline", "", ("1.21", "24.13")),
     Row("Enc", "--reg output --reg-at enc", ("1.15", "24.78")),
     Row("Enc, E-D", "--reg output --reg-at enc cross", ("1.10", "24.67")),
     Row("Enc, Dec", "--reg output --reg-at enc dec", ("1.11", "24.69")),
     Row("Enc, E-D, Dec", "--reg output", ("1.06", "24.85"))))

TABLES["li2018-3"] = Table(
    "Li 2018 Table 3", "main results", f"{ZH_EN} and {EN_DE}",
    ("Zh-En steps/s", "Zh-En BLEU", "En-De steps/s", "En-De BLEU"),
    (Row("base", "", ("1.21", "24.13", "1.28", "27.64")),
     Row("base + Disagreement", "--reg output", ("1.06", "24.85↑", "1.10", "28.51↑")),
     Row("big", "", ("0.58", "24.56", "0.61", "28.58"), BIG),
     Row("big + Disagreement", "--reg output", ("0.47", "25.08↑", "0.51", "29.28↑"), BIG)),
    notes=("↑: significantly better than the baseline of the same size (p < 0.01)",))

# Li 2018 Tables 4 and 5, which analyze.py prints: exp(D) of the encoder on the validation set of
# Zh-En, by kind (subspace, position, output), and of the positions by layer.
SCORES = {"baseline": ("0.882", "0.007", "0.881"), "subspace": ("0.999", "0.006", "0.935"),
          "position": ("0.882", "0.219", "0.882"), "output": ("0.989", "0.006", "0.997")}
SCORES_BY_LAYER = {
    "baseline": ("0.040", "0.009", "0.002", "0.003", "0.008", "0.006"),
    "subspace": ("0.039", "0.009", "0.001", "0.003", "0.006", "0.005"),
    "position": ("0.217", "0.167", "0.219", "0.242", "0.233", "0.249"),
    "output": ("0.048", "0.009", "0.002", "0.003", "0.008", "0.006")}

TABLES["li2019-1"] = Table(
    "Li 2019 Table 1", "ten probing tasks, 3 encoder layers, accuracy in per cent", "SentEval",
    TASKS,
    (Row("Base", "baseline",
         ("97.22", "97.92", "44.48", "84.44", "49.30", "84.20", "87.66", "82.94", "50.24",
          "68.77")),
     Row("Simple", "simple",
         ("97.10", "98.85", "43.37", "86.15", "49.87", "88.22", "87.25", "85.07", "48.77",
          "69.12")),
     Row("EM", "em",
         ("96.26", "98.75", "47.72", "87.00", "51.82", "88.17", "89.97", "86.40", "51.55",
          "69.86"))),
    probed=True, notes=("measured by `python probe.py --protocol li2019 --data senteval`",))

TABLES["li2019-2"] = Table(
    "Li 2019 Table 2", "aggregation in different attention components", f"{EN_DE}, base",
    ("parameters", "steps/s", "decoded/s", "BLEU", "Δ"),
    (Row("2  baseline", "", ("88.0M", "1.92", "1.67", "27.31", "-")),
     Row("3  Enc, simple", "--agg dynamic --agg-at enc",
         ("+12.6M", "1.23", "1.66", "27.98", "+0.67")),
     Row("4  Enc, EM", "--agg em --agg-at enc", ("+12.6M", "1.20", "1.65", "28.28", "+0.97")),
     Row("5  E-D, EM", "--agg em --agg-at cross", ("+12.6M", "1.20", "1.21", "27.94", "+0.63")),
     Row("6  Dec, EM", "--agg em --agg-at dec", ("+12.6M", "1.21", "1.21", "28.15", "+0.84")),
     Row("7  Enc, E-D, EM", "--agg em --agg-at enc cross",
         ("+25.2M", "0.87", "1.20", "28.45", "+1.14")),
     Row("8  Enc, E-D, Dec, EM", "--agg em --agg-at enc cross dec",
         ("+37.8M", "0.66", "0.89", "28.47", "+1.16"))))

TABLES["li2019-3"] = Table(
    "Li 2019 Table 3", "EM routing in different encoder layers", f"{EN_DE}, base",
    ("parameters", "steps/s", "BLEU"),
    (Row("1  None", "", ("88.0M", "1.92", "27.31")),
     Row("2  [1-6]", "--agg em --agg-at enc", ("100.6M", "1.20", "28.28")),
     Row("3  [4-6]", "--agg em --agg-at enc:{upper}", ("94.3M", "1.54", "28.26")),
     Row("4  [1-3]", "--agg em --agg-at enc:{lower}", ("94.3M", "1.54", "28.27")),
     Row("5  [1,2]", "--agg em", ("92.2M", "1.67", "28.26")),
     Row("6  [6]", "--agg em --agg-at enc:{L}", ("90.1M", "1.88", "27.68")),
     Row("7  [1]", "--agg em --agg-at enc:1", ("90.1M", "1.88", "27.75"))),
    notes=("[1,2] is what the paper calls Effective Aggregation, and Li 2021 Aggregation",))

TABLES["li2019-4"] = Table(
    "Li 2019 Table 4", "main results", f"{EN_DE} and {ZH_EN}",
    ("En-De parameters", "En-De BLEU", "Zh-En parameters", "Zh-En BLEU"),
    (Row("base", "", ("88M", "27.31", "108M", "24.13")),
     Row("base + Effective Aggregation", "--agg em", ("92M", "28.26⇑", "112M", "24.68⇑")),
     Row("big", "", ("264M", "28.58", "304M", "24.56"), BIG),
     Row("big + Effective Aggregation", "--agg em", ("297M", "28.96↑", "337M", "25.00↑"), BIG)),
    notes=("↑, ⇑: significantly better than the baseline of the same size (p < 0.05, "
           "p < 0.01)",))

TABLES["li2021-5"] = Table(
    "Li 2021 Table 5", "main results", f"{EN_DE} and {ZH_EN}",
    ("En-De parameters", "En-De BLEU", "Zh-En parameters", "Zh-En BLEU"),
    (Row("base", "", ("88M", "27.31", "108M", "24.13")),
     Row("base + Disagreement", "--reg output", ("88M", "28.20↑", "108M", "24.85↑")),
     Row("base + Aggregation", "--agg em", ("92M", "28.26↑", "112M", "24.68↑")),
     Row("base + Both", "--agg em --reg output", ("92M", "28.41↑", "112M", "24.90↑")),
     Row("big", "", ("264M", "28.58", "304M", "24.56"), BIG_2021),
     Row("big + Disagreement", "--reg output", ("264M", "28.96↑", "304M", "25.08↑"), BIG_2021),
     Row("big + Aggregation", "--agg em", ("297M", "28.96↑", "337M", "25.00↑"), BIG_2021),
     Row("big + Both", "--agg em --reg output", ("297M", "29.09↑", "337M", "25.12↑"), BIG_2021)),
    notes=("↑: significantly better than the baseline of the same size (p < 0.05 or p < 0.01)",
           "base + Disagreement and big + Disagreement have 28.51 and 29.28 En-De in Li 2018 "
           "Table 3", SHORT))

TABLES["li2021-6"] = Table(
    "Li 2021 Table 6", "big with 8 heads", EN_DE, ("parameters", "BLEU", "Δ"),
    (Row("big (8 heads)", "", ("264M", "28.10", "-"), WIDE),
     Row("+ Disagreement", "--reg output", ("264M", "28.63", "+0.53"), WIDE),
     Row("+ Aggregation", "--agg em", ("288M [1]", "28.65", "+0.55"), WIDE),
     Row("+ Both", "--agg em --reg output", ("288M [1]", "28.94", "+0.84"), WIDE)),
    notes=("not by the equations: 2 (H d² + H d + 4d) is +16.8M for 8 heads, not +24M",))

TABLES["li2021-7"] = Table(
    "Li 2021 Table 7", "ten probing tasks, 6 encoder layers, accuracy in per cent", "SentEval",
    (*TASKS, "surface", "syntactic", "semantic"),
    # the ten tasks, then the averages of the first two, the next three and the last five
    (Row("Baseline", "baseline",
         ("95.35", "98.03", "44.40", "83.48", "51.45", "84.57", "82.80", "80.31", "49.87",
          "69.39", "96.69", "59.77", "73.38")),
     Row("Disagreement", "disagreement",
         ("96.47", "98.65", "46.54", "84.24", "53.54", "85.03", "83.15", "80.49",
          "49.58", "68.48", "97.56", "61.44", "73.34")),
     Row("Aggregation", "aggregation",
         ("96.02", "98.31", "45.77", "84.05", "50.97", "85.56", "85.47", "82.46", "50.09",
          "70.21", "97.15 [1]", "60.26", "74.76")),
     Row("Combine", "combined",
         ("96.55", "98.87", "46.93", "84.17", "54.26", "86.07", "85.84", "83.38", "50.13",
          "69.99", "97.71", "61.78", "75.08"))),
    probed=True,
    notes=("misprint: 96.02 and 98.31 average 97.165; the other averages are off by 0.01 at "
           "most", "measured by `python probe.py --protocol li2021 --data senteval`"))

TABLES["duan-1"] = Table(
    "Duan 2020 Table 1", "main results", f"{ZH_EN} and {EN_DE}", ("Zh-En BLEU", "En-De BLEU"),
    (Row("base", "", ("24.28", "27.43")),
     Row("capsule-Transformer base", "--capsule-attention enc dec", ("25.02", "28.04")),
     Row("big", "", ("24.71", "28.42"), BIG),
     Row("capsule-Transformer big", "--capsule-attention enc dec", ("25.14", "28.71"), BIG)),
    notes=("§4.2 gives 1.6K new parameters for the big model; by the equations they are 1,632",
           SHORTER))

TABLES["duan-2"] = Table(
    "Duan 2020 Table 2", "capsule routing in encoder and decoder", f"{ZH_EN}, base", ("BLEU",),
    (Row("1  baseline", "", ("24.28",)),
     Row("2  Enc", "--capsule-attention enc", ("24.87",)),
     Row("3  Dec", "--capsule-attention dec", ("24.65",)),
     Row("4  Enc, Dec", "--capsule-attention enc dec", ("25.02",))),
    notes=(SHORTER,))

TABLES["duan-3"] = Table(
    "Duan 2020 Table 3", "vertical and horizontal routing, encoder", f"{ZH_EN}, base", ("BLEU",),
    (Row("1  baseline", "", ("24.28",)),
     Row("2  vertical", "--capsule-attention enc --capsule-parts vertical", ("24.74",)),
     Row("3  horizontal", "--capsule-attention enc --capsule-parts horizontal", ("24.76",)),
     Row("4  both", "--capsule-attention enc", ("24.87",))),
    notes=(SHORTER,))

TABLES["duan-4"] = Table(
    "Duan 2020 Table 4", "capsule routing in different encoder layers", f"{ZH_EN}, base", ("BLEU",),
    (Row("1  baseline", "", ("24.28",)),
     Row("2  [1-3]", "--capsule-attention enc:{lower}", ("24.64",)),
     Row("3  [4-6]", "--capsule-attention enc:{upper}", ("24.48",)),
     Row("4  [1-6]", "--capsule-attention enc", ("24.87",))),
    notes=(SHORTER,))

TABLES["gu-1"] = Table(
    "Gu 2019 Table 1", "main results, base", NIST,
    ("parameters", "MT03", "MT04", "MT05", "MT06", "MT08", "AVE."),
    (Row("base", "", ("84.6M", "46.70", "47.68", "47.04", "46.16", "37.19", "44.95")),
     Row("+ Dynamic Routing", "--agg gu-dynamic",
         ("92.2M [1]", "47.60", "48.04", "47.30", "46.56", "37.80", "45.46 (+0.51)")),
     Row("+ EM Routing", "--agg gu-em",
         ("91.7M [1]", "47.62", "48.07", "47.97*", "46.80", "38.01*", "45.70 (+0.75) [2]"))),
    notes=("not by the equations: the same layers add +1.0M and +0.5M in any language; the "
           "paper's own En-De rows say +1.1M and +0.7M",
           "the five scores average 45.694, a gain of 0.74",
           "*: significantly better than the baseline (p < 0.05)", DEPARTURE, LOWER))

TABLES["gu-2"] = Table(
    "Gu 2019 Table 2", "main results", EN_DE, ("parameters", "BLEU"),
    (Row("base", "", ("60.9M", "27.34")),
     Row("base + Dynamic Routing", "--agg gu-dynamic", ("62.0M", "27.67")),
     Row("base + EM Routing", "--agg gu-em", ("61.6M [1]", "27.77")),
     Row("big", "", ("209.9M", "28.43"), BIG),
     Row("big + Dynamic Routing", "--agg gu-dynamic", ("216.2M [1]", "28.65"), BIG),
     Row("big + EM Routing", "--agg gu-em", ("214.2M [1]", "28.71"), BIG)),
    notes=("not by the equations, which give +0.53M (base, EM), +4.2M and +2.1M (big); the big "
           "rows fit with W^O kept, where the base row with dynamic routing would not", DEPARTURE))

TABLES["gu-3"] = Table(
    "Gu 2019 Table 3", "EM routing in different places", f"{NIST}, MT04, base", ("BLEU",),
    (Row("base", "", ("47.68",)),
     Row("Enc_1", "--agg gu-em --agg-at enc:1", ("47.25 (-0.43)",)),
     Row("Enc_1, Enc_2", "--agg gu-em --agg-at enc:{two}", ("47.19 (-0.49)",)),
     Row("Enc_5, Enc_6", "--agg gu-em --agg-at enc:{top}", ("47.64 (-0.04)",)),
     Row("ED_1", "--agg gu-em --agg-at cross:1", ("47.38 (-0.30)",)),
     Row("ED_6", "--agg gu-em --agg-at cross:{L}", ("47.98 (+0.30)",)),
     Row("ED_5, ED_6", "--agg gu-em --agg-at cross:{top}", ("47.43 (+0.11) [1]",)),
     Row("Dec_1", "--agg gu-em --agg-at dec:1", ("47.45 (-0.23)",)),
     Row("Dec_6", "--agg gu-em --agg-at dec:{L}", ("48.03 (+0.35)",)),
     Row("Dec_5, Dec_6", "--agg gu-em --agg-at dec:{top}", ("47.83 (+0.15)",)),
     Row("ED_6, Dec_6", "--agg gu-em", ("48.07 (+0.39)",)),
     Row("ED_5, ED_6, Dec_5, Dec_6", "--agg gu-em --agg-at cross:{top} dec:{top}",
         ("47.99 (+0.31)",))),
    notes=("misprint: 47.43 is -0.25 against 47.68; +0.11 would be 47.79", DEPARTURE, LOWER))

TABLES["gu-fig2"] = Table(
    "Gu 2019 Fig. 2", "number of output capsules, EM routing", f"{NIST}, MT04, base", (),
    (Row("baseline"),
     Row("N = H/4", "--agg gu-em --capsules {H_4}"),
     Row("N = H/2", "--agg gu-em --capsules {H_2}"),
     Row("N = H", "--agg gu-em"),
     Row("N = 2H", "--agg gu-em --capsules {H2}"),
     Row("N = 4H", "--agg gu-em --capsules {H4}"),
     Row("N = 8H", "--agg gu-em --capsules {H8}")),
    notes=("the paper prints a plot without numbers; it finds N = H, as many output as input "
           "capsules, the best", DEPARTURE, LOWER))


# ---- This project

BASELINE = Row("Transformer")
ONE_HEAD = Row("control: one head", "--heads 1")
REWARD = Row("Li 2018", "--reg output")
EM = Row("Li 2019", "--agg em")
BOTH = Row("Li 2021", "--agg em --reg output")

# README.md and results/README.md
TABLES["verdicts"] = Table(
    "Verdicts", "does it help, and what does it cost", "", (),
    (BASELINE, ONE_HEAD, REWARD,
     Row("half the reward", "--reg output --reg-weight 0.5"),
     Row("a tenth of the reward", "--reg output --reg-weight 0.1"),
     EM,
     Row("the same without routing", "--agg em --iterations 1"),
     BOTH,
     Row("Gu 2019", "--agg gu-em"),
     Row("gradient of all iterations", "--agg gu-em --em-gradient full"),
     Row("Duan 2020", "--capsule-attention enc dec")))

TABLES["verdicts-more"] = Table(
    "Verdicts, second family", "dynamic routing, and wider layers", "", (),
    (BASELINE,
     Row("Li 2019, simple routing", "--agg dynamic"),
     Row("Gu 2019, dynamic routing", "--agg gu-dynamic"),
     Row("control: as many parameters as em", "--d-ff 321")))

TABLES["verdicts-long"] = Table(
    "Verdicts, third family", "at four times the steps", "", (),
    (BASELINE, ONE_HEAD, REWARD, EM, BOTH))
