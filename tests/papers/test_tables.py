"""papers/tables.py: rows train the models that they name, and have the numbers that the papers
print."""
import re
from statistics import fmean, geometric_mean

import pytest
from outside import SHARED

from capsule_transformer import PARTS
from disagreement import MEASURED
from papers.reproduce import fit_flags, plan, settings_of
from papers.tables import DEPARTURE, SCORES, SCORES_BY_LAYER, TABLES, Row
from transformer import COMPONENTS, TransformerConfig

PAPERS = SHARED / "papers"
PUBLISHED = [name for name in TABLES if not name.startswith("verdicts")]


@pytest.mark.parametrize("flags, fitted", [
    ("--heads {H}", "--heads 8"), ("{big}", "--arch big"),
    ("--dropout {dropout}", "--dropout 0.1")])
def test_sizes_in_braces_at_size_base(flags, fitted):
    assert fit_flags(Row("", flags), ["--arch", "base"]) == fitted.split()


MAIN_RESULTS = {
    "Disagreement": dict(reg=("output",)), "Aggregation": dict(agg="em"),
    "Both": dict(reg=("output",), agg="em"), "Dynamic Routing": dict(agg="gu-dynamic"),
    "EM Routing": dict(agg="gu-em"), "capsule-Transformer": dict(capsule_attention=("enc", "dec"))}


def model_of(name: str, label: str) -> TransformerConfig:
    """The model that the label of a row names, at size base."""
    for word, changes in MAIN_RESULTS.items():
        if word in label:
            return TransformerConfig(None, **changes)
    if label.endswith(("base", "baseline", "None", "big", "heads)")):
        return TransformerConfig(None)
    words = {"Enc": "enc", "E-D": "cross", "ED": "cross", "Dec": "dec"}      # as in "ED_6, Dec_6"
    at = [words[word] + layer.replace("_", ":")
          for word, layer in re.findall(r"(Enc|E-?D|Dec)(_\d)?", label)]
    at += [f"enc:{layers}" for layers in re.findall(r"\[(.*)\]", label)]     # as in "[1,2]"
    times, part = re.search(r"(\d?)H?/?(\d?)$", label).groups()              # as in "N = H/4"
    return TransformerConfig(None, **{
        "li2018-1": dict(reg=[x for x in MEASURED if x in label or "all" in label], reg_at=["enc"]),
        "li2018-2": dict(reg=["output"], reg_at=at),
        "li2019-2": dict(agg="dynamic" if "simple" in label else "em", agg_at=at),
        "li2019-3": dict(agg="em", agg_at=at), "gu-3": dict(agg="gu-em", agg_at=at),
        "gu-fig2": dict(agg="gu-em", capsules=8 * int(times or 1) // int(part or 1)),
        "duan-2": dict(capsule_attention=at), "duan-4": dict(capsule_attention=at),
        "duan-3": dict(capsule_attention=["enc"],
                       capsule_parts=tuple(x for x in PARTS if x in label or "both" in label)),
    }[name])


def mechanisms(config: TransformerConfig) -> list:
    """All that the tables compare: mechanisms, and the layers that have them."""
    places = config.agg_at, config.reg_at, config.capsule_attention
    layers = [config.layers_at(x, component) for x in places for component in COMPONENTS]
    return [config.agg, {*config.reg}, config.capsules or 8, config.capsule_parts, layers]


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not TABLES[name].probed])
def test_a_row_trains_the_model_that_its_label_names(name):
    commands, folders = plan([name], ["--arch", "base"], [1])
    assert len(commands) == len(TABLES[name].rows)       # every row has a run of its own
    for row in TABLES[name].rows:
        folder, = folders[name, row]
        _, config, _ = settings_of(commands[folder])
        assert mechanisms(config) == mechanisms(model_of(name, row.label)), row


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_cells_fit_their_columns_and_footnotes(name):
    table = TABLES[name]
    cells = " ".join(cell for row in table.rows for cell in row.published)
    assert all(len(row.published) == len(table.columns) for row in table.rows)
    assert (DEPARTURE in table.notes) == name.startswith("gu")
    assert {*cells} & {*"↑⇑*"} == {*" ".join(table.notes)} & {*"↑⇑*"}
    assert {*map(int, re.findall(r"\[(\d+)\]", cells))} <= {*range(1, len(table.notes) + 1)}


def numbers_of(text: str) -> str:
    return " ".join(re.findall(r"\d+\.?\d*", text))


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers are not here")
@pytest.mark.parametrize("name", [name for name in PUBLISHED if " Table" in TABLES[name].source])
def test_published_rows_are_printed_in_the_papers(name):
    """The numbers of a row follow each other there. Li 2021 Table 7 has a row per task."""
    paper = TABLES[name].source.rpartition(" Table")[0].lower().replace(" ", "")     # "li2018"
    text = "".join(path.read_text("utf-8") for path in PAPERS.glob(f"{paper}*.txt"))
    rows = [row.published for row in TABLES[name].rows]
    if name == "li2018-1":
        rows += [*SCORES.values(), *SCORES_BY_LAYER.values()]
    for row in zip(*rows) if name == "li2021-7" else rows:
        cells = re.sub(r"\[\d+\]", "", " ".join(row))
        assert f" {numbers_of(cells)} " in f" {numbers_of(text)} ", row


def test_footnotes_have_the_numbers_of_their_sums():
    H, d = 8, 1024
    assert f"+{2 * (H * d ** 2 + H * d + 4 * d) / 1e6:.1f}M" in TABLES["li2021-6"].notes[0]
    *_, em = TABLES["gu-1"].rows
    mean = fmean(float(cell.rstrip("*")) for cell in em.published[1:6])
    assert f"average {mean:.3f}, a gain of {mean - 44.95:.2f}" in TABLES["gu-1"].notes[1]
    assert f"are {6 * (16 ** 2 + 16):,}" in TABLES["duan-1"].notes[0]
    *_, aggregation, _ = TABLES["li2021-7"].rows
    first, second = aggregation.published[:2]
    mean = fmean((float(first), float(second)))
    assert f"{first} and {second} average {mean:.3f}" in TABLES["li2021-7"].notes[0]


@pytest.mark.parametrize("kind", SCORES)
def test_li2018_table4_is_the_exponential_of_the_mean_D(kind):
    """The D of Table 5 give it within the rounding; the mean of the exponentials is outside."""
    printed = float(SCORES[kind][1])
    layers = [float(x) for x in SCORES_BY_LAYER[kind]]
    low = geometric_mean(x - 5e-4 for x in layers)
    high = geometric_mean(x + 5e-4 for x in layers)
    assert low - 5e-4 <= printed <= high + 5e-4
    assert fmean(layers) - 5e-4 > printed + 5e-4
