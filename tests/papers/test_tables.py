"""papers/tables.py: every row of a paper trains the model that its label names, at size base, and
the rows find the stored runs."""
import re
from dataclasses import asdict
from statistics import fmean, geometric_mean

import pytest

from papers.reproduce import plan
from papers.tables import OWN, SCORES, SCORES_BY_LAYER, TABLES
from transformer import COMPONENTS, TransformerConfig

LETTERS = {"Enc": "enc", "E-D": "cross", "ED": "cross", "Dec": "dec"}
BIG = dict(d_model=1024, d_ff=4096)
PROBED = {"Base": "baseline", "Baseline": "baseline", "Simple": "simple", "EM": "em",
          "Disagreement": "disagreement", "Aggregation": "aggregation", "Combine": "combined"}


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
        return dict(reg=tuple(kinds) or "output", reg_at=places)
    if table.source.startswith("Li 2019"):
        return dict(agg="dynamic" if "simple" in label else "em", agg_at=places)
    if table.source.startswith("Li 2021"):
        named = {"Disagreement": dict(reg="output"), "Aggregation": dict(agg="em"),
                 "Both": dict(reg="output", agg="em")}
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


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.kind == "mt"
                                  and table.source != OWN])
def test_a_row_trains_the_model_of_its_label(name):
    for row, (run,) in plan(TABLES[name], {"arch": "base"}, [1]):
        assert facts(run.settings.model_config(9)) == facts(expected(TABLES[name], row)), row.label


def test_a_model_has_one_published_number_in_a_paper():
    """Tables that share a row print the same in the column of that name."""
    published = {}
    for table in TABLES.values():
        for row in table.rows:
            for column, cell in zip(table.columns, row.published):
                pair, quantity = re.fullmatch(r"(Zh-En|En-De|) ?(.*)", column).groups()
                assert pair in table.data
                if quantity in ("BLEU", "steps/s"):
                    data = pair or table.data.split(",")[0]
                    model = table.source[:7], data[-5:], quantity, row.size, row.flags
                    published.setdefault(model, set()).add(re.match(r"[\d.]+", cell)[0])
    assert [model for model, numbers in published.items() if len(numbers) > 1] == []


@pytest.mark.parametrize("name", [name for name, x in TABLES.items() if x.kind == "probe"])
def test_a_row_of_probes_is_the_model_of_its_label(name):
    assert all(row.flags == PROBED[row.label] for row in TABLES[name].rows)


@pytest.mark.parametrize("paper, longest, lowercase", [
    ("Li 2018", 256, False), ("Li 2019", 256, False), ("Li 2021", 50, False),
    ("Duan 2020", 49, False), ("Gu 2019", 256, True)])
def test_chinese_text_has_the_limits_of_its_paper(paper, longest, lowercase):
    """Li 2021: at most 50 tokens a sentence; Duan: less than 50; Gu: BLEU without case."""
    for table in TABLES.values():
        if table.source.startswith(paper) and "Zh" in table.data:
            for data, limits in (("wmt17-zh-en", (longest, lowercase)), ("multi30k", (256, False))):
                for _, (run,) in plan(table, {"arch": "small", "data": data}, [1]):
                    assert (run.settings.max_length, run.settings.lowercase) == limits


def test_only_a_chinese_source_has_limits_which_a_given_flag_replaces():
    (_, (run,)), *_ = plan(TABLES["li2021-5"], {"data": "wmt17-zh-en", "max_length": 80}, [1])
    assert run.settings.max_length == 80
    for languages, chinese in (({"data": "wmt17-zh-en", "tgt": "zh"}, False),
                               ({"train": "x", "valid": "y", "src": "zh-CN", "tgt": "en"}, True)):
        (_, (run,)), *_ = plan(TABLES["gu-1"], languages, [1])
        assert run.settings.lowercase == chinese


def test_footnotes_have_the_numbers_of_their_sums():
    H, d = 8, 1024
    assert f"+{2 * (H * d ** 2 + H * d + 4 * d) / 1e6:.1f}M" in TABLES["li2021-6"].notes[0]
    *_, em = TABLES["gu-1"].rows
    scores = [float(cell.rstrip("*")) for cell in em.published[1:6]]
    assert f"average {fmean(scores):.3f}, a gain of {fmean(scores) - 44.95:.2f}" in " ".join(
        TABLES["gu-1"].notes)
    assert f"are {6 * (16 ** 2 + 16):,}" in TABLES["duan-1"].notes[0]
    *_, aggregation, _ = TABLES["li2021-7"].rows
    first, second = aggregation.published[:2]
    mean = fmean((float(first), float(second)))
    assert f"{first} and {second} average {mean:.3f}" in TABLES["li2021-7"].notes[0]


@pytest.mark.parametrize("kind, expected", [
    ("baseline", 0.0069), ("subspace", 0.0056), ("position", 0.2194), ("output", 0.0071)])
def test_li2018_table4_has_the_exponential_of_the_mean_D_of_table5(kind, expected):
    """Within the rounding of both tables. The mean of the exponentials is outside."""
    printed = float(SCORES[kind][1])
    layers = [float(x) for x in SCORES_BY_LAYER[kind]]
    assert round(geometric_mean(layers), 4) == expected
    low = geometric_mean([x - 5e-4 for x in layers])
    high = geometric_mean([x + 5e-4 for x in layers])
    assert low - 5e-4 <= printed <= high + 5e-4
    assert fmean(layers) - 5e-4 > printed + 5e-4
