"""docs/claims.md has the numbers that papers/claims.py computes."""
import re

import pytest
from matplotlib.figure import Figure

from papers import claims
from papers.reproduce import printed_number
from papers.tables import TABLES


def test_the_numbers_on_the_page(tmp_path, monkeypatch, capsys):
    drawn = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **more:
                        drawn.append(figure) or savefig(figure, *args, **more))
    claims.main(tmp_path / "verdicts.png")
    computed = capsys.readouterr().out
    page = re.sub(" +", " ", (claims.ROOT / "docs" / "claims.md").read_text("utf-8"))
    row = r"^\| .*\.\d{3,4} \|$|`\S+` minus .*\] \| \w+"         # of a family; of a further claim
    assert re.findall(row, computed, re.M) == re.findall(row, page, re.M)
    assert {*re.findall(r"\] \| ([a-z]+)$", computed, re.M)} == {"for", "against", "open"}
    text = " ".join(page.split())
    assert [phrase for phrase in computed.splitlines() if phrase not in text] == []
    for phrase in ("exp(D) of the encoder's outputs from", "BLEU on average", "`uniform` gains",
                   "seeds with runs of all arms", "residual standard deviation",
                   "differ by less than", "the first is"):
        assert phrase in computed
    figures = r"[+-]\S+ \[.*?\]"
    assert {*re.findall(figures, text)} == {*re.findall(figures, computed)}
    assert (tmp_path / "verdicts.png").stat().st_size > 5_000

    # every difference of the tables at its row; filled by Holm's p, for one head by its interval
    wanted = set()                                       # (label of the row, difference, filled)
    cells = r"^\| (\S+) \| (\S+) \| (\S+) \[.*\] \| .* \| (?:< )?(\S+) \|$"
    for arm, against, difference, p in re.findall(cells, computed, re.M):
        if arm != "gu-em-beta":                          # it cannot be started any more
            wanted.add((claims.ROWS[arm, against], difference, float(p) < 0.05))
    for difference, low, high in re.findall(r"^one head.* (\S+) \[(\S+), (\S+)\]$", computed, re.M):
        wanted.add(("positive control: one-head", difference, float(low) * float(high) > 0))
    labels = [text.get_text() for text in drawn[0].axes[0].get_yticklabels()]
    dots = {}
    for axes in drawn[0].axes:
        assert axes.get_xlabel() == "difference in BLEU"
        for line in axes.lines:
            for x, y in line.get_xydata() if line.get_marker() == "o" else ():
                place = labels[round(y)], f"{x:+.2f}"
                dots[place] = line.get_markerfacecolor() != "white"
        for text in axes.texts:                          # to the left of the panel
            if text.get_text() != "not run":
                dots[labels[round(text.get_position()[1])], text.get_text()[2:]] = True
    assert {(*place, filled) for place, filled in dots.items()} == wanted
    assert len({bars[0].get_color() for axes in drawn[0].axes for bars in axes.containers}) == 4
    assert drawn[0].axes[0].get_xlim() == drawn[0].axes[1].get_xlim()
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["not run"]
    titles = [axes.get_title() for axes in drawn[0].axes]
    assert titles == ["Real text (English to Japanese),\nBLEU over characters",
                      "Generated text and Multi30K\n(English to German), BLEU over words"]
    diamonds, = [line for line in drawn[0].axes[0].lines if line.get_marker() == "D"]
    assert diamonds.get_xdata().tolist() == [*claims.PRINTED.values()]
    for arm, row in zip(claims.PRINTED, diamonds.get_ydata()):
        assert [*claims.ROWS][round(row)] == (arm, "baseline")
    legend, = drawn[0].legends
    assert "filled: significant (Holm)" in legend.get_title().get_text()
    legend = [text.get_text() for text in legend.texts]
    assert legend[:-1] == ["real text (8 seeds)", "its second part (6 seeds)",
                           "generated text (20 seeds)",
                           "Multi30K, where one head does not lose (4 seeds)"]


@pytest.mark.parametrize("arm, table, label", [
    ("output", "li2018-3", "base + Disagreement"), ("both", "li2021-5", "base + Both"),
    ("em", "li2019-4", "base + Effective Aggregation"), ("gu-em", "gu-2", "base + EM Routing"),
    ("capsule", "duan-1", "capsule-Transformer base")])
def test_a_gain_is_that_of_the_papers_table(arm, table, label):
    paper, columns = TABLES[table].source.partition(" Table")[0], TABLES[table].columns
    column = columns.index("En-De BLEU" if "En-De BLEU" in columns else "BLEU")
    cells = {row.label: row.published[column] for row in TABLES[table].rows}
    gain = printed_number(cells[label]) - printed_number(cells["base"])
    assert claims.PRINTED[arm] == pytest.approx(gain)
    assert claims.ROWS[arm, "baseline"] == f"{paper}: {arm}"


def test_two_one_sided_tests_place_a_difference_within_the_margin():
    """At 0.05: of a difference of 0, t is 0.3 / error, and 1.66 is significant."""
    assert claims.make_contrast(0, 0.3 / 1.7, 100).equivalent
    assert not claims.make_contrast(0, 0.3 / 1.6, 100).equivalent
