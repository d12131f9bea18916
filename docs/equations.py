"""The entries of equations.md, and the lines of code that they belong to.

    python -m docs.equations    # corrects the lines in its links to code

An entry is a heading, `### Title`, the numbers of the equation in the papers, and the names of its
code and its tests: `file.py: name`, `test_file.py::test_name`. Comments in the code have the same
numbers ("Li 2019 Eq. 10, Gu 2019 Eq. 12").
"""
import ast
import io
import re
import sys
import tokenize
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

if not __package__:
    print("error: start it in the project's folder: python -m docs.equations", file=sys.stderr)
    sys.exit(2)

from exercises.make import find_functions
from tools.command_line import Flags, run

ROOT = Path(__file__).resolve().parent.parent
EQUATIONS = ROOT / "docs" / "equations.md"
EIGHT = ("attention.py", "disagreement.py", "routing_dynamic.py", "routing_em.py", "aggregation.py",
         "capsule_aggregation.py", "capsule_transformer.py", "transformer.py")
YEARS = {"Li": "2019", "Gu": "2019", "Duan": "2020", "Vaswani": "2017", "Hinton": "2018",
         "Sabour": "2017"}                       # where a paper is named without it
PAPER = re.compile(rf"\b({'|'.join(YEARS)})\b(?: and Feng)?(?: et\s+al\.)?(?:,?\s+(\d{{4}})\b)?")
NUMBER = re.compile(r"(Eq\.|Alg\.|Procedure|footnote|§)\s*"
                    r"(\d[\d.]*(?:(?:-|, | and | or )\d[\d.]*)*)")
LINK = re.compile(r"(\[`[\w/]+\.py(?:: |::)([\w.]+)`\])\((.+?\.py)(?:#L\d+)?\)")


@dataclass
class Settings(Flags):
    """There are none."""


class Entry(NamedTuple):
    """An equation in equations.md."""
    title: str
    anchor: str                 # the heading's, on GitHub and on the page
    text: str                   # Markdown below the heading, up to "Code:"
    numbers: tuple              # "Li 2019 Eq. 10", ...; sections only where there is no other
    code: list                  # (file, function or class)
    tests: list                 # (file, test)


def numbers(text: str, paper: str | None = None) -> list[str]:
    """Returns the numbers in a text: "Li Eq. 10-11" -> ["Li 2019 Eq. 10", "Li 2019 Eq. 11"].
    Numbers before the first name of a paper belong to `paper`."""
    references = []
    marks = sorted([*PAPER.finditer(text), *NUMBER.finditer(text)], key=lambda mark: mark.start())
    for mark in marks:
        kind, value = mark.groups()
        if mark.re is PAPER:
            paper = f"{kind} {value or YEARS[kind]}"
        elif paper:
            for part in re.split(", | and | or ", value):
                first, _, last = part.strip(".").partition("-")
                every = [first]
                if first.isdigit() and last.isdigit():                       # not of 5.2-5.3
                    every = range(int(first), int(last) + 1)
                references += [f"{paper} {kind} {number}" for number in every]
    return references


def split_sections(text: str) -> list[str]:
    """Returns equations.md in parts, each of which starts with a heading."""
    return re.split(r"(?m)^(?=##)", text)


def parse_entry(section: str) -> Entry:
    """Returns the equation that a section of equations.md describes."""
    heading, _, text = section.partition("\n\n")
    title = heading.removeprefix("### ")
    all_numbers = numbers(text.split("\n\n")[0])
    printed = [number for number in all_numbers if "§" not in number]
    return Entry(title, re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"),
                 text.partition("\nCode:")[0], tuple(printed or all_numbers),
                 re.findall(r"`([\w/]+\.py): ([\w.]+)`", text),
                 re.findall(r"`(test_\w+\.py)::(\w+)`", text))


def read(path: Path) -> list[Entry]:
    """Returns the entries of equations.md."""
    sections = split_sections(path.read_text("utf-8"))
    return [parse_entry(section) for section in sections if section.startswith("### ")]


def set_lines(text: str) -> str:
    """Returns the text of equations.md with the lines of today's code in its links."""
    sections = []
    for section in split_sections(text):
        if section.startswith("### "):
            section = LINK.sub(partial(link_line, parse_entry(section)), section)
        sections.append(section)
    return "".join(sections)


def link_line(entry: Entry, link: re.Match) -> str:
    """Returns a link of an entry, with the line of its function or class."""
    shown, name, path = link.groups()
    code = module((EQUATIONS.parent / path).resolve().relative_to(ROOT).as_posix())
    return f"{shown}({path}#L{code.place(entry, name)})"


class Module:
    """A file of code, with its functions and the numbers in its comments."""

    def __init__(self, path: Path):
        source = path.read_text("utf-8")
        self.tree = ast.parse(source)
        self.lines = source.splitlines()
        self.nodes = find_functions(self.tree)
        # numbers without a paper are those of the first paper that the file names
        first = PAPER.search(source)
        self.paper = f"{first[1]} {first[2]}" if first else None
        self.numbers = {}                        # line -> the numbers in its comment
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                self.numbers[token.start[0]] = numbers(token.string, self.paper)

    def docstrings(self) -> dict[int, tuple[str, range]]:
        """Returns {first line of a function, class or file: (docstring, its lines)}."""
        starts = {1: self.tree} | {self.start(name): node for name, node in self.nodes.items()}
        texts = {}
        for line, node in starts.items():
            text = ast.get_docstring(node)
            if text:
                texts[line] = text, range(node.body[0].lineno, node.body[0].end_lineno + 1)
        return texts

    def start(self, name: str) -> int:
        """Returns the first line of a function or class, with its decorators."""
        node = self.nodes[name]
        return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])

    def place(self, entry: Entry, name: str) -> int:
        """Returns the line of a function or class where the entry belongs: the comment with most
        of its numbers, or the first of the comments above that. Without such a comment, returns
        the first line of the function or class."""
        best, most = self.start(name), 0
        for line in range(best, self.nodes[name].end_lineno + 1):
            shared = len(set(entry.numbers) & set(self.numbers.get(line, ())))
            if shared > most:
                best, most = line, shared
        while most and self.lines[best - 2].lstrip().startswith("#"):
            best -= 1
        return best


@cache
def module(file: str) -> Module:
    """Reads a file of the project, by its path from the root."""
    return Module(ROOT / file)


def correct_lines(settings: Settings) -> None:
    """Corrects the line numbers in docs/equations.md."""
    EQUATIONS.write_text(set_lines(EQUATIONS.read_text("utf-8")), "utf-8")


def main(argv=None) -> int:
    return run(correct_lines, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
