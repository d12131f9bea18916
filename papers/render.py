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
    """The number in a published cell, without marks of significance and footnotes; None if the cell
    is not a plain number."""
    match = re.fullmatch(r"(\d+\.?\d*)[↑⇑*]?(?: \[\d+\])?", text or "")
    return float(match[1]) if match else None


# ---- Rows

def published_cells(table: Table, row: Row, base: Row) -> dict[str, str]:
    """The published cells of a row by column. A speed has its ratio to the baseline's in
    parentheses, and BLEU its gain, if the paper does not print gains."""
    cells = {}
    for column, text, base_text in zip(table.columns, row.published, base.published):
        cell = text or NONE
        number, of_base = printed_number(text), printed_number(base_text)
        if base is not row and number is not None and of_base is not None:
            if column.endswith("/s"):
                cell += f" ({number / of_base:.2f})"
            elif "BLEU" in column and "Δ" not in table.columns:
                cell += f" ({number - of_base:+.2f})"
        cells[f"paper: {column}"] = cell
    return cells


def speed_cell(lines: list[dict], base: list[dict], key: str, digits: int) -> str:
    """The mean speed over the seeds, and its ratio to the baseline's in parentheses; a dash if the
    speed of a run is unknown."""
    speeds = [line.get(key) for line in lines]
    of_base = [line.get(key) for line in base]
    if None in [*speeds, *of_base]:
        return NONE
    text = f"{statistics.fmean(speeds):,.{digits}f}"
    if base:
        text += f" ({statistics.fmean(speeds) / statistics.fmean(of_base):.2f})"
    return text


def measured_cells(lines: list[dict], base: list[dict]) -> dict[str, str]:
    """The measured cells of a row by column; base: the runs of the baseline, empty for its own
    row."""
    if not lines:
        return dict.fromkeys(MEASURED_COLUMNS, NONE)
    bleu = [line["bleu"] for line in lines]
    parameters = f"{lines[0]['parameters']:,}"
    gain = ""
    if base:
        parameters += f" ({lines[0]['parameters'] - base[0]['parameters']:+,})"
        gain = f"{statistics.fmean(bleu) - statistics.fmean(line['bleu'] for line in base):+.2f}"
    return {"seeds": str(len(lines)), "BLEU": mean_and_deviation(bleu), "Δ": gain,
            "parameters": parameters, "tokens/s": speed_cell(lines, base, "tokens_per_second", 0),
            "sentences/s": speed_cell(lines, base, "sentences_per_second", 1)}


def table_rows(table: Table, runs: list[list[dict]]) -> list[dict[str, str]]:
    """The rows of a table by column. runs: the finished runs of every row, as lines of
    results/runs.jsonl. A row is compared with the row of its size that has no flags."""
    bases = {row.size: i for i, row in enumerate(table.rows) if row.flags == ""}
    rows = []
    for i, row in enumerate(table.rows):
        base = bases.get(row.size, i)
        measured = measured_cells(runs[i], [] if base == i else runs[base])
        rows.append({"": row.label, **measured, **published_cells(table, row, table.rows[base])})
    return rows


def probing_rows(table: Table, stored: dict) -> list[dict[str, str]]:
    """The rows of probe.py's table with the published accuracies beside the measured ones."""
    published = {row.flags: dict(zip(table.columns, row.published)) for row in table.rows}
    rows = []
    for line in stored["table"]:
        row = {"group": line["group"], "task": line["task"]}
        for model, cell in line["cells"].items():
            row[model] = percent(cell, 2)
            if model in published:
                column = line["group"] if line["task"] == "Ave." else line["task"]
                row[f"{model}, paper"] = published[model].get(column, NONE)
        rows.append(row)
    return rows


# ---- Text

def table_text(name: str, rows: list[dict[str, str]]) -> str:
    """A table with its heading and footnotes. A footnote has a number if a cell refers to it."""
    table = TABLES[name]
    sides = ["left", *["right"] * (len(rows[0]) - 1)]
    cells = tabulate(rows, "keys", "plain", colalign=sides, disable_numparse=True)
    published_on = f"; published on {table.data}" if table.data else ""
    text = f"{table.source} ({name}): {table.title}{published_on}.\n\n{cells}\n"
    if table.kind == "mt":
        text += f"\n{LEGEND}"
    printed = " ".join(cell or "" for row in table.rows for cell in row.published)
    for i, note in enumerate(table.notes, 1):
        text += f"\n[{i}] {note}." if f"[{i}]" in printed else f"\n{note}."
    return text
