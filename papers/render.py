"""Tables as text: the runs beside the published numbers."""
import re
import statistics

from tabulate import tabulate

from papers.tables import TABLES, Row, Table
from tasks.classifier import percent

NONE = "–"
MEASURED_COLUMNS = ("seeds", "BLEU", "Δ", "parameters", "tokens/s", "sentences/s")
LEGEND = """BLEU: mean ± standard deviation over the seeds; Δ: difference of means. In parentheses:
differences of parameters and ratios of speed to the baseline, here and in the paper."""


# ---- Numbers as cells

def mean_and_deviation(values: list) -> str:
    """Mean ± sample standard deviation over the seeds; for one seed only the mean."""
    text = f"{statistics.fmean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    return text


def printed_number(text: str | None) -> float | None:
    """The number that a published cell is, without its marks; None for increments, dashes and the
    like."""
    match = re.fullmatch(r"(\d+\.?\d*)[↑⇑*]?(?: \[\d+\])?", text or "")
    return float(match[1]) if match else None


# ---- Rows

def published_cells(table: Table, row: Row, base: Row) -> list[str]:
    """The published cells of a row. In parentheses the ratio of a speed to the baseline's, and the
    gain in BLEU where the paper does not print one."""
    cells = []
    for i, column in enumerate(table.columns if row.published else ()):
        cell = row.published[i] or NONE
        number = printed_number(row.published[i])
        of_base = printed_number(base.published[i])
        if base is not row and number is not None and of_base is not None:
            if column.endswith("/s"):
                cell += f" ({number / of_base:.2f})"
            elif "BLEU" in column and "Δ" not in table.columns:
                cell += f" ({number - of_base:+.2f})"
        cells.append(cell)
    return cells


def speed_cell(lines: list[dict], base: list[dict], key: str, digits: int) -> str:
    """A mean speed over the seeds, and in parentheses its ratio to the baseline's; a dash where a
    run's is not known."""
    speeds = [line.get(key) for line in lines]
    of_base = [line.get(key) for line in base]
    if None in [*speeds, *of_base]:
        return NONE
    text = f"{statistics.fmean(speeds):,.{digits}f}"
    if base:
        text += f" ({statistics.fmean(speeds) / statistics.fmean(of_base):.2f})"
    return text


def measured_cells(lines: list[dict], base: list[dict]) -> list[str]:
    """The cells of MEASURED_COLUMNS; base: the runs of the baseline, none for itself."""
    if not lines:
        return [NONE] * len(MEASURED_COLUMNS)
    bleu = [line["bleu"] for line in lines]
    parameters = f"{lines[0]['parameters']:,}"
    gain = ""
    if base:
        parameters += f" ({lines[0]['parameters'] - base[0]['parameters']:+,})"
        of_base = [line["bleu"] for line in base]
        gain = f"{statistics.fmean(bleu) - statistics.fmean(of_base):+.2f}"
    return [str(len(lines)), mean_and_deviation(bleu), gain, parameters,
            speed_cell(lines, base, "tokens_per_second", 0),
            speed_cell(lines, base, "sentences_per_second", 1)]


def table_cells(table: Table, runs: list[list[dict]]) -> list[list[str]]:
    """The header and the rows of a table; runs: the finished runs of every row, as lines of
    results/runs.jsonl. A row is compared with the one without flags of its size."""
    bases = {row.size: i for i, row in enumerate(table.rows) if row.flags == ""}
    cells = [["", *MEASURED_COLUMNS, *(f"paper: {column}" for column in table.columns)]]
    for i, row in enumerate(table.rows):
        base = bases.get(row.size, i)
        numbers = measured_cells(runs[i], [] if base == i else runs[base])
        cells.append([row.label, *numbers, *published_cells(table, row, table.rows[base])])
    return cells


def probing_cells(name: str, stored: dict) -> list[list[str]]:
    """The rows of probe.py's table with the published accuracies beside the measured ones."""
    table = TABLES[name]
    published = {row.flags: dict(zip(table.columns, row.published)) for row in table.rows}
    models = list(stored["table"][0]["cells"])
    header = ["", ""]
    for model in models:
        header += [model, "paper"] if model in published else [model]
    cells = [header]
    for line in stored["table"]:
        column = line["group"] if line["task"] == "Ave." else line["task"]
        row = [line["group"], line["task"]]
        for model in models:
            row.append(percent(line["cells"][model], 2))
            if model in published:
                row.append(published[model].get(column, NONE))
        cells.append(row)
    return cells


# ---- Text

def table_text(name: str, cells: list[list[str]]) -> str:
    """A table with its heading and footnotes, numbered if a cell refers to them."""
    table = TABLES[name]
    sides = ["left", *["right"] * (len(cells[0]) - 1)]
    rows = tabulate(cells[1:], cells[0], "plain", colalign=sides, disable_numparse=True)
    published_on = f"; published on {table.data}" if table.data else ""
    text = f"{table.source} ({name}): {table.title}{published_on}.\n\n{rows}\n"
    if "BLEU" in cells[0]:
        text += f"\n{LEGEND}"
    printed = " ".join(cell or "" for row in table.rows for cell in row.published)
    for i, note in enumerate(table.notes, 1):
        text += f"\n[{i}] {note}." if f"[{i}]" in printed else f"\n{note}."
    return text
