"""docs/equations.md against the code: every number in a comment has its LaTeX, every LaTeX its
line and its test."""

import re

import pytest

from docs.equations import EIGHT, EQUATIONS, ROOT, module, numbers, read, set_lines, split_sections

ENTRIES = read(EQUATIONS)


@pytest.mark.parametrize("file", EIGHT)
def test_every_number_has_its_latex(file):
    """For one in a comment an entry with LaTeX has it, and its code is the function around the
    comment. One in a docstring is in some entry."""
    code = module(file)
    known = {number for entry in ENTRIES for number in entry.numbers}
    named = numbers("\n".join(code.lines), code.paper)
    missing = [number for number in named if "§" not in number and number not in known]
    for line, references in code.numbers.items():
        for number in references:
            if not any(covers(entry, file, line, number) for entry in ENTRIES):
                missing.append(f"line {line}: {number}")
    assert not missing, f"{file}: no LaTeX in docs/equations.md for {missing}"


def covers(entry, file: str, line: int, number: str) -> bool:
    """Whether an entry gives a number's LaTeX, for code that holds this line."""
    if "§" in number:
        paper, _, section = number.partition("§")
        printed = re.search(rf"{paper.split()[0]}.*§{section.strip()}\b", entry.text)
    else:
        printed = number in entry.numbers
    nodes = module(file).nodes
    around = [nodes[name] for where, name in entry.code if where == file]
    inside = any(node.lineno <= line <= node.end_lineno for node in around)
    return bool(printed and "$$" in entry.text and inside)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.title)
def test_every_latex_has_its_line_and_its_test(entry):
    assert entry.code and entry.tests
    for file, name in entry.code:
        if "$$" in entry.text and entry.numbers and file in (*EIGHT, "train_mt.py"):
            code = module(file)
            text = "\n".join(code.lines[code.start(name) - 1:code.nodes[name].end_lineno])
            named = set(numbers(text, code.paper))       # in comments and docstrings
            assert named & set(entry.numbers), f"{file}: {name} names none of {entry.numbers}"
    tested = named_by_tests(entry)
    for number in entry.numbers:
        if number.startswith(("Li", "Gu", "Duan")) and "Eq." in number:
            assert number in tested, f"no test of {entry.title} is named after {number}: {tested}"


def test_every_name_is_a_link_to_its_line_and_every_heading_its_own():
    """GitHub shows the document as it is."""
    text = EQUATIONS.read_text("utf-8")
    headings = re.findall(r"^##+ (.*)", text, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert not re.findall(r"(?<!\[)`[\w/]+\.py(?:::|: )[\w.]+`", text)
    same = set_lines(re.sub(r"#L\d+", "", text)) == text
    assert same, "links lead to other lines by now: run `python -m docs.equations`"


@pytest.mark.parametrize("document", ["README.md", "docs/equations.md", "docs/course.md"])
def test_github_shows_every_formula(document):
    """There a backslash before a punctuation mark goes before the formula is read."""
    text = re.sub(r"```.*?```|`.*?`", "", (ROOT / document).read_text("utf-8"), flags=re.DOTALL)
    formulas = re.findall(r"\$\$?[^$]+\$", text)
    assert not [formula for formula in formulas if re.search(r"\\[^a-zA-Z\s]", formula)]


def named_by_tests(entry) -> set[str]:
    """The numbers in the names of an entry's tests: test_gu_eq3_to_eq5 -> Gu 2019 Eq. 3, 4, 5."""
    references = set()
    for _, test in entry.tests:
        text = re.sub(r"eq(\d+)_to_eq(\d+)", r"Eq. \1-\2", test)
        text = re.sub(r"eq(\d+)", r"Eq. \1", text)
        text = re.sub(r"(li|gu|duan)(\d{4})?(?=_)", lambda m: f"{m[1].title()} {m[2] or ''}", text)
        references.update(numbers(re.sub("_+", " ", text)))
    return references


def test_the_index_leads_to_every_number():
    """To every equation and algorithm of the five papers."""
    entries = {entry.anchor: entry for entry in ENTRIES}
    index = set()
    _, section, *_ = split_sections(EQUATIONS.read_text("utf-8"))
    for row in re.findall(r"^\| (\w+ \d{4}) \|(.*)\|(.*)\|(.*)\|$", section, re.MULTILINE):
        for kind, links in zip(("Eq.", "Alg.", ""), row[1:]):
            for shown, anchor in re.findall(r"\[(.*?)\]\(#(.*?)\)", links):
                number, = numbers(f"{row[0]} {kind} {shown}")
                entry = entries[anchor]
                assert number in (*entry.numbers, *numbers(entry.text))
                index.add(number)
    of_papers = {number for entry in ENTRIES for number in entry.numbers
                 if number.startswith(("Li", "Gu", "Duan")) and "§" not in number}
    assert of_papers == {number for number in index if "§" not in number}
