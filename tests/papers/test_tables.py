"""papers/tables.py: every row of a paper trains the model that its label names, at size base, and
has the numbers that the paper prints."""
import re
from dataclasses import asdict, replace
from statistics import fmean, geometric_mean

import pytest
from outside import SHARED

from papers.reproduce import plan, settings_of
from papers.tables import DEPARTURE, SCORES, SCORES_BY_LAYER, TABLES
from transformer import COMPONENTS, TransformerConfig

PAPERS = SHARED / "papers"
PUBLISHED = [name for name in TABLES if name != "readme"]
LETTERS = {"Enc": "enc", "E-D": "cross", "ED": "cross", "Dec": "dec"}
BIG = dict(d_model=1024, d_ff=4096)


def mechanisms(table, label: str) -> dict:
    """The mechanisms that a paper's label names, as in "Enc, Dec", "ED_5, ED_6" or "[4-6]"; where a
    label has no place, the title of its table may."""
    places = []
    for name, layer in re.findall(r"\b(Enc|E-D|ED|Dec)(?:_(\d))?\b", label):
        places.append(f"{LETTERS[name]}:{layer}" if layer else LETTERS[name])
    places += [f"enc:{span}" for span in re.findall(r"\[([\d,-]+)\]", label)]
    if not places and "encoder" in table.title:
        places = ["enc"]
    places = tuple(places) or None
    if table.source.startswith("Li 2018"):
        kinds = [kind for kind in ("subspace", "position", "output")
                 if kind in label or "all three" in label]
        return dict(reg=tuple(kinds) or ("output",), reg_at=places)
    if table.source.startswith("Li 2019"):
        return dict(agg="dynamic" if "simple" in label else "em", agg_at=places)
    if table.source.startswith("Li 2021"):
        named = {"Disagreement": dict(reg=("output",)), "Aggregation": dict(agg="em"),
                 "Both": dict(reg=("output",), agg="em")}
        return named[label.split()[-1]]
    if table.source.startswith("Gu"):
        found = re.fullmatch(r"N = (\d?)H/?(\d?)", label)
        capsules = 8 * int(found[1] or 1) // int(found[2] or 1) if found else None
        agg = "gu-dynamic" if "Dynamic" in label else "gu-em"
        return dict(agg=agg, agg_at=places, capsules=capsules)
    parts = tuple(part for part in ("vertical", "horizontal") if part in label)
    return dict(capsule_attention=places or ("enc", "dec"),
                capsule_parts=parts or ("vertical", "horizontal"))


def expected(table, row) -> TransformerConfig:
    """The model that a row's label names, with the words of its table's title."""
    label = re.sub(r"^\d +", "", row.label)
    size = {}
    if "big" in label or "big" in table.title:
        dropout = 0.1 if table.source.startswith("Li 2021") else 0.3
        size = BIG | dict(heads=8 if "8 heads" in table.title else 16, dropout=dropout)
    if label in ("baseline", "base", "big", "big (8 heads)", "None"):
        return TransformerConfig(9, **size)
    return TransformerConfig(9, **size, **mechanisms(table, label))


def facts(config: TransformerConfig) -> dict:
    """Its fields; places as layers, and the number of Gu's capsules, also where it is the usual."""
    values = asdict(config)
    for name in ("agg_at", "reg_at", "capsule_attention"):
        values[name] = {x: config.layers_at(getattr(config, name), x) for x in COMPONENTS}
    if config.agg.startswith("gu-"):
        values["capsules"] = config.capsules or config.heads
    return values


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not TABLES[name].probed])
def test_a_row_trains_the_model_of_its_label(name):
    commands, folders = plan([name], ["--arch", "base"], [1])
    for row in TABLES[name].rows:
        folder, = folders[name, row]
        _, config, _ = settings_of(commands[folder])
        assert facts(replace(config, vocab_size=9)) == facts(expected(TABLES[name], row)), row.label


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
    """The numbers of a row one after the other; Li 2021 Table 7 has a row per task."""
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
def test_li2018_table4_has_the_exponential_of_the_mean_D_of_table5(kind):
    """Within the rounding of both tables. The mean of the exponentials is outside."""
    printed = float(SCORES[kind][1])
    layers = [float(x) for x in SCORES_BY_LAYER[kind]]
    low = geometric_mean(x - 5e-4 for x in layers)
    high = geometric_mean(x + 5e-4 for x in layers)
    assert low - 5e-4 <= printed <= high + 5e-4
    assert fmean(layers) - 5e-4 > printed + 5e-4
