"""docs/claims.md has the numbers that papers/claims.py computes."""
import re

from matplotlib.figure import Figure

from papers import claims


def test_the_numbers_on_the_page(tmp_path, monkeypatch, capsys):
    drawn = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **more:
                        drawn.append(figure) or savefig(figure, *args, **more))
    claims.main(tmp_path / "verdicts.png")
    computed = capsys.readouterr().out
    page = re.sub(" +", " ", (claims.ROOT / "docs" / "claims.md").read_text("utf-8"))
    row = r"^\| .*(?:\.\d{3}|yes|no) \|$|^- .*: `.*\]$"             # of a table or list
    assert sorted(re.findall(row, computed, re.M)) == sorted(re.findall(row, page, re.M))
    text = " ".join(page.split())
    assert [phrase for phrase in computed.splitlines() if phrase not in text] == []
    figures = r"[+-]\S+ \[.*?\]"
    assert {*re.findall(figures, text)} == {*re.findall(figures, computed)}
    assert (tmp_path / "verdicts.png").stat().st_size > 5_000

    # filled dots: Holm's p in the tables, and where an interval of one head does not hold 0
    cells = re.findall(r"^\| .* \| (\S+) \[.*\] \| .* \| (?:< )?(\S+) \| \w+ \|$", computed, re.M)
    significant = [difference for difference, p in cells if float(p) < 0.05]
    for difference, low, high in re.findall(r"^one head.* (\S+) \[(\S+), (\S+)\]$", computed, re.M):
        if float(low) * float(high) > 0:
            significant.append(difference)
    filled = [f"{line.get_xdata()[0]:+.2f}" for axes in drawn[0].axes for line in axes.lines
              if line.get_marker() == "o" and line.get_markerfacecolor() != "white"]
    assert sorted(filled) == sorted(significant)
