"""docs/claims.md has the numbers that papers/claims.py computes."""
import re

from papers import claims


def test_the_numbers_on_the_page(tmp_path, capsys):
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
