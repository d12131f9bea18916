"""Tables as text: measurements, as kept in results/*.json, beside the published numbers.

Markdown for documents, plain columns for terminals. A file in results/ is what reproduce.py --store
writes (kind "table"), the results.json of probe.py with the name of a published table added, or the
analysis.json of analyze.py.
"""
import re
import shutil
import statistics
import textwrap

from tabulate import tabulate

from disagreement import MEASURED
from nmt.flags import UserError
from papers.ablation import cost_table
from papers.tables import TABLES, Row, Table

NONE = "–"
# headings of columns that hold words
WORDS = ("", "flags", "claim", "printed in", "their number", "run here", "ours", "verdict")
MEASURED_COLUMNS = ("seeds", "BLEU", "Δ", "parameters", "tokens/s", "sentences/s")
LEGEND = ("In parentheses: differences of parameters and ratios of speed to the baseline, here and "
          "in the paper. BLEU: mean ± standard deviation over the seeds; Δ: difference of means.")


# ---- Numbers as cells

def known(values) -> list:
    """The values that are not None."""
    return [value for value in values if value is not None]


def mean_and_deviation(values, digits: int) -> str:
    """Mean ± sample standard deviation over the seeds; for one seed only the mean."""
    values = known(values)
    if not values:
        return NONE
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text


def printed_number(text: str | None) -> float | None:
    """The number that a published cell is, without its marks; None for increments, dashes and the
    like."""
    found = re.fullmatch(r"(\d+\.?\d*)[↑⇑*]?(?: \[\d+\])?", text or "")
    return float(found[1]) if found else None


# ---- Rows

def find_baselines(rows) -> list[int | None]:
    """For every row the index of the row that it is compared with: the last one without flags, of
    its size, or itself; None for quoted rows."""
    found = []
    last = {}
    for i, row in enumerate(rows):
        if row.flags == "":
            last[row.size] = i
        found.append(None if row.flags is None else last.get(row.size))
    return found


def published_cells(table: Table, row: Row, base: Row | None) -> list[str]:
    """The published cells of a row. In parentheses the ratio of a speed to the baseline's, and the
    gain in BLEU where the paper does not print one."""
    cells = []
    for i, column in enumerate(table.columns):
        cell = row.published[i] or NONE
        number = printed_number(row.published[i])
        of_base = printed_number(base.published[i]) if base and base is not row else None
        if number is not None and of_base is not None:
            if column.endswith("/s"):
                cell += f" ({number / of_base:.2f})"
            elif "BLEU" in column and "Δ" not in table.columns:
                cell += f" ({number - of_base:+.2f})"
        cells.append(cell)
    return cells


def speed_cell(runs: list[dict], base: list[dict], key: str, digits: int) -> str:
    """A mean speed over the seeds, and in parentheses its ratio to the baseline's."""
    speeds = known(run[key] for run in runs)
    base_speeds = known(run[key] for run in base)
    if not speeds:
        return NONE
    text = f"{statistics.fmean(speeds):,.{digits}f}"
    if base_speeds:
        text += f" ({statistics.fmean(speeds) / statistics.fmean(base_speeds):.2f})"
    return text


def measured_cells(runs: list[dict], base: list[dict]) -> list[str]:
    """The cells of MEASURED_COLUMNS; base: the runs of the baseline, none for itself."""
    if not runs:
        return [NONE] * len(MEASURED_COLUMNS)
    parameters = f"{runs[0]['parameters']:,}"
    if base:
        parameters += f" ({runs[0]['parameters'] - base[0]['parameters']:+,})"
    gain = ""
    if base:
        means = [statistics.fmean(run["bleu"] for run in of_row) for of_row in (runs, base)]
        gain = f"{means[0] - means[1]:+.2f}"
    return [str(len(runs)), mean_and_deviation([run["bleu"] for run in runs], 2), gain,
            parameters, speed_cell(runs, base, "tokens_per_second", 0),
            speed_cell(runs, base, "sentences_per_second", 1)]


def score_cells(kind: str, header, runs: list[dict]) -> list[str]:
    """exp(D) by kind, or of the positions by layer."""
    cells = []
    for i, name in enumerate(header):
        values = [run["scores"][name] if kind == "scores" else run["layers"][i] for run in runs]
        cells.append(mean_and_deviation(values, 3))
    return cells


def table_cells(stored: dict) -> list[list[str]]:
    """The header and the rows of a table; a row without any number is left out. Raises UserError
    for a file whose rows are not the table's."""
    table = TABLES.get(stored["table"])
    rows = {(row.label, row.size): row for row in table.rows} if table else {}
    if any((row["label"], row["size"]) not in rows for row in stored["rows"]):
        raise UserError(f"table {stored['table']} has other rows in papers/tables.py: measure it "
                        "again")
    rows = [rows[row["label"], row["size"]] for row in stored["rows"]]
    runs = [row["runs"] for row in stored["rows"]]
    header = MEASURED_COLUMNS
    if table.kind == "scores":
        header = MEASURED
    elif table.kind == "layers":
        layers = max(len(run["layers"]) for of_row in runs for run in of_row)
        header = [f"layer {i}" for i in range(1, layers + 1)]
    cells = [["", "flags", *header, *(f"paper: {column}" for column in table.columns)]]
    for i, (row, base) in enumerate(zip(rows, find_baselines(rows))):
        flags = stored["rows"][i]["flags"]
        if flags is None:
            numbers = [""] * len(header)
        elif table.kind == "mt":
            numbers = measured_cells(runs[i], [] if base in (None, i) else runs[base])
        else:
            numbers = score_cells(table.kind, header, runs[i])
        if runs[i] or row.published:
            shown = "quoted" if flags is None else flags and f"`{flags}`"
            published = published_cells(table, row, None if base is None else rows[base])
            cells.append([row.label, shown, *numbers, *published])
    return cells


def probing_cells(stored: dict) -> list[list[str]]:
    """The rows of probe.py's table with the published accuracies beside the measured ones."""
    table = TABLES[stored["published"]]
    published = {row.flags: dict(zip(table.columns, row.published)) for row in table.rows}
    names = list(stored["table"][0]["cells"])
    header = ["", ""]
    for name in names:
        header += [name, "paper"] if name in published else [name]
    cells = [header]
    for line in stored["table"]:
        column = line["group"] if line["task"] == "Ave." else line["task"]
        row = [line["group"], line["task"]]
        for name in names:
            cell = line["cells"][name]
            deviation = "" if cell["spread"] is None else f" ± {100 * cell['spread']:.2f}"
            row.append(f"{100 * cell['mean']:.2f}{deviation}")
            if name in published:
                row.append(published[name].get(column, NONE))
        cells.append(row)
    return cells


# ---- Text

def keep_columns(cells: list[list[str]], kept: list[int]) -> list[list[str]]:
    """The cells of these columns."""
    return [[row[i] for i in kept] for row in cells]


def drop_empty(cells: list[list[str]]) -> list[list[str]]:
    """The cells without the columns that hold nothing but dashes, and the number of seeds where all
    rows have the same."""
    kept = []
    for i, (name, *column) in enumerate(zip(*cells)):
        content = {*column} - {"", NONE}
        if name == "" or len(content) > (name == "seeds"):
            kept.append(i)
    return keep_columns(cells, kept)


def format_table(cells: list[list[str]], style: str) -> str:
    """Cells as a table of tabulate's style; words are at the left, numbers at the right."""
    header, *rows = drop_empty(cells)
    if style == "pipe":
        rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    sides = ["left" if name in WORDS else "right" for name in header]
    return tabulate(rows, header, style, colalign=sides, disable_numparse=True)


def footnotes(table: Table) -> list[str]:
    """The notes below a table, numbered if a cell refers to them."""
    cells = " ".join(cell or "" for row in table.rows for cell in row.published)
    return [f"[{i}] {note}." if f"[{i}]" in cells else f"{note}."
            for i, note in enumerate(table.notes, 1)]


def circumstances(stored: dict) -> str:
    """Where and how a table was measured."""
    seeds = ", ".join(map(str, stored["seeds"]))
    averaged = ""
    if stored["average"]:
        averaged = f"average of the last {stored['average']} checkpoints; "
    return (f"Measured on {stored['data']}, size {stored['arch']}, {stored['steps']:,} steps of at "
            f"most {stored['batch']:,} tokens; seed{'s' * (',' in seeds)} {seeds}; "
            f"{averaged}{stored['set']}, `{stored['signature']}`; {stored['machine']}; torch "
            f"{stored['torch']}; {stored['date']}.")


def parts_of(stored: dict) -> tuple[str, list[list[str]], list[str]]:
    """(heading, cells, the paragraphs below) of a table of reproduce.py or probe.py."""
    if stored["kind"] == "table":
        cells = table_cells(stored)
        below = [circumstances(stored), f"    {stored['command']}"]
        name = stored["table"]
        measured_on = ""
    else:
        cells = probing_cells(stored)
        below = []
        name = stored["published"]
        measured_on = f", measured on {stored['settings']['data']}"
    table = TABLES[name]
    published_on = f"; published on {table.data}{measured_on}" if table.data else ""
    heading = f"**{table.source}** ({name}): {table.title}{published_on}."
    return heading, cells, ["\n".join(footnotes(table)), *below]


def to_markdown(stored: dict) -> str:
    """The contents of a file in results/ as Markdown."""
    if stored["kind"] == "analysis":
        return f"```\n{cost_table(stored['ablation'])}\n```"
    heading, cells, below = parts_of(stored)
    return "\n\n".join(filter(None, [heading, format_table(cells, "pipe"), *below]))


def to_screen(stored: dict) -> str:
    """A table of reproduce.py or probe.py for a terminal; published columns are in a table of their
    own below the measured ones where both together are too wide."""
    width = shutil.get_terminal_size().columns
    heading, cells, below = parts_of(stored)
    names = cells[0]
    kept = [i for i, name in enumerate(names) if name != "flags"]
    text = format_table(keep_columns(cells, kept), "plain")
    if stored["kind"] == "table" and max(map(len, text.splitlines())) > width:
        measured = [i for i in kept if not names[i].startswith("paper:")]
        published = [i for i in kept if names[i] == "" or names[i].startswith("paper:")]
        text = format_table(keep_columns(cells, measured), "plain")
        if len(published) > 1:
            text += "\n\n" + format_table(keep_columns(cells, published), "plain")
    if "BLEU" in names:
        below.insert(1, LEGEND)
    notes = [textwrap.fill(note.strip().replace("`", ""), width) for note in below if note]
    return "\n\n".join([textwrap.fill(heading.replace("**", ""), width), text, "\n".join(notes)])
