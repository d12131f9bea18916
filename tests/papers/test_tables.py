"""papers/tables.py: rows train the models that they name, and have the numbers that the papers
print."""
import re
from statistics import fmean, geometric_mean

import pytest
from outside import SHARED

from papers.reproduce import fit_flags, plan, settings_of
from papers.tables import DEPARTURE, SCORES, SCORES_BY_LAYER, TABLES, Row

PAPERS = SHARED / "papers"
PUBLISHED = [name for name in TABLES if not name.startswith("verdicts")]


@pytest.mark.parametrize("flags, fitted", [
    ("--agg-at enc:{lower}", "--agg-at enc:1-3"), ("--agg-at enc:{upper}", "--agg-at enc:4-6"),
    ("--agg-at enc:{two}", "--agg-at enc:1-2"), ("--agg-at enc:{top}", "--agg-at enc:5-6"),
    ("--agg-at dec:{L}", "--agg-at dec:6"), ("--capsules {H}", "--capsules 8"),
    ("--capsules {H_4}", "--capsules 2"), ("--capsules {H_2}", "--capsules 4"),
    ("--capsules {H2}", "--capsules 16"), ("--capsules {H4}", "--capsules 32"),
    ("--capsules {H8}", "--capsules 64"), ("{big}", "--arch big"),
    ("--dropout {dropout}", "--dropout 0.1")])
def test_words_in_braces_at_size_base(flags, fitted):
    """It has 6 layers and 8 heads."""
    assert fit_flags(Row("", flags), ["--arch", "base"]) == fitted.split()


def test_every_row_of_a_table_is_a_model_with_one_run():
    """Tables share the run of a model. At size base no two ranges of layers are the same."""
    names = [name for name in TABLES if not TABLES[name].probed]
    commands, folders = plan(names, ["--arch", "base"], [1])
    models = [str(settings_of(command)[1]) for command in commands.values()]
    assert len({*models}) == len(models)
    for name in names:
        assert len({str(folders[name, row]) for row in TABLES[name].rows}) == len(TABLES[name].rows)


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
