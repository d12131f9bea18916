"""docs/claims.md, statistics.md and results.md have the numbers that papers/claims.py
computes."""
import contextlib
import io
import re

import pytest

from papers import claims
from papers.reproduce import printed_number
from papers.tables import TABLES
from tools.files import UserError


@pytest.fixture(scope="module")
def claims_run(tmp_path_factory):
    """What the command prints, its figure, and the file of the figure."""
    path = tmp_path_factory.mktemp("claims") / "verdicts.png"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        figure = claims.print_claims(path)
    return printed.getvalue(), figure, path


def test_the_numbers_on_the_page(claims_run):
    computed, _, _ = claims_run
    docs = claims.ROOT / "docs"
    pages = [(docs / name).read_text("utf-8") for name in ("claims.md", "statistics.md")]
    page = re.sub(" +", " ", "".join(pages))
    further = (docs / "results.md").read_text("utf-8").partition("## Further claims\n")[2]
    planned, _, more = computed.partition("## Further claims\n")
    row = r"^\| .*\.\d{3,4} \|$"
    assert re.findall(row, planned, re.M) == re.findall(row, page, re.M)
    row = r"`\S+` minus `\S+` \| .*\] \| [a-z ]+"
    assert more.splitlines() == [found.strip() for found in re.findall(row, further)]
    assert {*re.findall(r"[a-z ]+$", more, re.M)} == {" for", " against", " open", " not judged"}
    text = " ".join(page.split())
    lines = [line for line in planned.splitlines() if not line.startswith("## ")]
    phrases = [" ".join(line.split()) for line in lines]
    assert [phrase for phrase in phrases if phrase not in text] == []
    rows = [re.sub(" +", " ", line) for line in planned.splitlines() if " | " in line]
    assert [row for row in rows if row not in page.splitlines()] == []
    for phrase in ("exp(D) of the encoder's outputs from", "BLEU on average", "differences changed",
                   "6 seeds, 11 tests", "seeds with runs of all arms",
                   "residual standard deviation", "differ by less than"):
        assert phrase in computed
    figures = r"[+-]\d\S+ \[[+-].*?\]"
    found = {*re.findall(figures, text)}
    assert {*re.findall(figures, planned)} <= found <= {*re.findall(figures, computed)}


def test_the_readme_has_the_planned_differences(claims_run):
    """Its table has rows of that of docs/claims.md: the gain of the paper, the first runs on the
    real text, and those on the generated text."""
    computed, _, _ = claims_run
    arms = ("output", "em", "uniform", "both", "gu-em", "capsule", "one-head")
    wanted = []
    for arm in arms:
        row, = [line for line in computed.splitlines() if f", `{arm}` | " in line]
        cells = row.split("|")
        _, gain, real, _, generated, *_ = map(str.strip, cells)
        wanted.append([gain, real, generated])
    readme = (claims.ROOT / "README.md").read_text("utf-8")
    table = readme.partition("\nTransformer |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines()[1:]]
    assert [[*map(str.strip, row)] for row in rows] == wanted


def test_the_picture_has_every_difference_at_its_row(claims_run):
    """Those of two texts. A dot is filled by Holm's p, for one head by its interval; those of
    repeated runs only where they are alone."""
    computed, figure, path = claims_run
    assert path.stat().st_size > 5_000
    rows = [*claims.ROWS]
    two_texts = computed.partition("### Multi30K")[0]
    wanted = set()                                       # (row, difference, filled)
    cells = r"^\| (\S+) \| (\S+) \| (\S+) \[.*\] \| .* \| (?:< )?(\S+) \|$"
    for arm, against, difference, p in re.findall(cells, two_texts, re.M):
        if arm != "gu-em-beta":                          # it cannot be started any more
            wanted.add((rows.index((arm, against)), difference, float(p) < 0.05))
    one_head = r"^one head.* (\S+) \[(\S+), (\S+)\]$"
    one_head_row = rows.index(claims.ONE_HEAD)
    for difference, low, high in re.findall(one_head, two_texts, re.M):
        wanted.add((one_head_row, difference, float(low) * float(high) > 0))
    wanted.remove((one_head_row, "-0.92", True))         # on 6 seeds of the 8
    again = computed.partition("### The real text, repeated\n")[2].partition("### ")[0]
    for row, difference, filled in sorted(wanted):
        alone = rows[row][0] in ("output-enc", "both-enc")
        if filled and f" {difference} [" in again and not alone:
            wanted.remove((row, difference, True))
            wanted.add((row, difference, False))
    dots, marks = {}, set()
    for axes in figure.axes:
        for line in axes.lines:
            for x, y in line.get_xydata() if line.get_marker() in "osD|" else ():
                place = round(y), f"{x:+z.2f}"
                if line.get_marker() == "|":
                    marks.add(place)
                else:
                    dots[place] = line.get_markerfacecolor() != "white"
        for text in axes.texts:                          # to the left of the panel
            if text.get_text() != "not run":
                dots[round(text.get_position()[1]), text.get_text().split()[1]] = True
    assert {(*place, filled) for place, filled in dots.items()} == wanted
    assert marks == {(rows.index((arm, "baseline")), gain.split()[0])
                     for arm, gain in claims.PRINTED.items()}
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [*claims.ROWS.values()]
    box = figure.get_tightbbox()                         # inches; no letter is cut off
    width, height = figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0
    assert box.x1 <= width and box.y1 <= height


@pytest.mark.parametrize("arm, table, label", [
    ("output", "li2018-3", "base + Disagreement"), ("both", "li2021-5", "base + Both"),
    ("em", "li2019-4", "base + Effective Aggregation"), ("gu-em", "gu-2", "base + EM Routing"),
    ("gu-dynamic", "gu-2", "base + Dynamic Routing"),
    ("capsule", "duan-1", "capsule-Transformer base")])
def test_a_gain_is_that_of_the_papers_table(arm, table, label):
    paper, columns = TABLES[table].source.partition(" Table")[0], TABLES[table].columns
    column = columns.index("En-De BLEU" if "En-De BLEU" in columns else "BLEU")
    cells = {row.label: row.published[column] for row in TABLES[table].rows}
    gain = printed_number(cells[label]) - printed_number(cells["base"])
    assert claims.PRINTED[arm] == f"{gain:+.2f}"
    label = claims.ROWS[arm, "baseline"]
    if arm == "gu-dynamic":                              # a row below that of its paper
        assert label == "dynamic routing"
    else:
        assert label.startswith(f"{paper}: ")


def test_a_run_that_is_not_stored_is_named():
    with pytest.raises(UserError, match="no run of baseline with seed 2 for the table plan-enja"):
        claims.read_arms({}, "plan-enja", [2])


def test_two_one_sided_tests_place_a_difference_within_the_margin():
    """At 0.05: of a difference of 0, t is 0.3 / error, and 1.66 is significant."""
    assert claims.make_contrast(0, 0.3 / 1.7, 100).outside_p < 0.05
    assert claims.make_contrast(0, 0.3 / 1.6, 100).outside_p > 0.05
