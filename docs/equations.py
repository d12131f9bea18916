"""Corrects the line numbers in docs/equations.md.

    python docs/equations.py

A row there is the number of an equation, its formula, and the lines of code whose comments name
this number, as in "# mu_n = ...    Li 2019 Eq. 10, Gu 2019 Eq. 12". The script writes these lines.
It fails if a number in a comment has no row, or a row no such comment.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "equations.md"
FILES = ("attention.py", "disagreement.py", "routing_dynamic.py", "routing_em.py", "aggregation.py",
         "capsule_aggregation.py", "capsule_transformer.py", "train_mt.py")
PAPER = r"(?:Li|Gu|Duan) \d{4}"
NUMBER = r"(?:Eq\.|Alg\.|footnote) \d+(?:-\d+)?|§\d+(?:\.\d+)*"
ROW = rf"\| ({NUMBER}) \| (.*) \| .*\|"


def find_numbers(comment: str) -> list[tuple[str, str]]:
    """("Li 2019", "Eq. 10") for every number in a comment, with the paper named before it."""
    found = []
    paper = None
    for name, number in re.findall(f"({PAPER})|({NUMBER})", comment):
        paper = name or paper
        if not number or not paper:
            continue
        kind, first, last = re.fullmatch(r"(\D+)([\d.]+)-?(\d*)", number).groups()
        if last:
            found += [(paper, f"{kind}{n}") for n in range(int(first), int(last) + 1)]
        else:
            found.append((paper, number))
    return found


def find_lines() -> dict[tuple[str, str], dict[str, list[int]]]:
    """{number: {file: lines of the comments that name it}} of the code."""
    lines = {}
    for file in FILES:
        for line, text in enumerate((ROOT / file).read_text("utf-8").splitlines(), 1):
            for number in find_numbers(text.partition("# ")[2]):
                lines.setdefault(number, {}).setdefault(file, []).append(line)
    return lines


def link(file: str, lines: list[int]) -> str:
    """A file's name, and a link to each of the lines."""
    return f"`{file}` " + ", ".join(f"[{line}](../{file}#L{line})" for line in lines)


def correct(page: str) -> str:
    """The page with the lines of today's code. Raises SystemExit as said above."""
    lines = find_lines()
    rows = []
    corrected = []
    paper = None
    for text in page.splitlines():
        if text.startswith("## "):
            paper = text.removeprefix("## ").partition(":")[0]
        row = re.fullmatch(ROW, text)
        if row:
            number, formula = row.groups()
            rows.append((paper, number))
            links = [link(*place) for place in lines.get(rows[-1], {}).items()]
            text = f"| {number} | {formula} | {', '.join(links)} |"
        corrected.append(text)
    wrong = set(rows) ^ set(lines)
    if wrong:
        sys.exit(f"{PAGE.name}: no row, or no line of code, for {sorted(wrong)}")
    return "\n".join(corrected) + "\n"


if __name__ == "__main__":
    PAGE.write_text(correct(PAGE.read_text("utf-8")), "utf-8")
