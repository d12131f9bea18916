"""docs/equations.md has every numbered equation of the papers and leads to today's lines."""
import re
import runpy

import pytest
from project_files import ROOT

PAGE = (ROOT / "docs" / "equations.md").read_text("utf-8")
correct = runpy.run_path(str(ROOT / "docs" / "equations.py"))["correct"]


def test_the_page_is_what_the_script_writes():
    assert correct(PAGE) == PAGE, "run `python docs/equations.py`"
    assert correct(re.sub(r"#L\d+", "", PAGE)) == PAGE


@pytest.mark.parametrize("paper, last, others", [
    ("Li 2018", 3, ["footnote 2"]), ("Li 2019", 12, ["Alg. 1", "Alg. 2"]), ("Gu 2019", 15, []),
    ("Duan 2020", 14, ["Alg. 1", "Alg. 2", "Alg. 3"])])
def test_every_number_has_a_row_with_a_formula(paper, last, others):
    section = PAGE.split(f"\n## {paper}")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE))
    for number in [f"Eq. {n}" for n in range(1, last + 1)] + others:
        assert re.search(r"\$.+\$|Eq\.", rows[number])


def test_a_number_without_a_row_or_a_line_is_an_error():
    with pytest.raises(SystemExit, match=r"Li 2019.*Eq\. 8"):
        correct(re.sub(r"\| Eq\. 8 .*\n", "", PAGE, count=1))
    with pytest.raises(SystemExit, match=r"Duan 2020.*Eq\. 99"):
        correct(PAGE + "| Eq. 99 | $x$ | |\n")


def test_a_number_belongs_to_the_paper_before_it():
    find_numbers = correct.__globals__["find_numbers"]
    assert find_numbers("s_n    Li 2019 Alg. 1 line 5, Eq. 7, Duan 2020 Eq. 6-7, §3.2") == [
        ("Li 2019", "Alg. 1"), ("Li 2019", "Eq. 7"), ("Duan 2020", "Eq. 6"), ("Duan 2020", "Eq. 7"),
        ("Duan 2020", "§3.2")]


def test_github_shows_every_formula():
    """There a backslash before a punctuation mark is removed before the formula is read, and a bar
    ends the cell of a table."""
    for formula in re.findall(r"\$\$[^$]+\$\$|\$[^$\n]+\$", PAGE):
        assert not re.search(r"\\[^a-zA-Z\s]|\|", formula)
