"""Tables as text: what was measured, as kept in results/*.json, beside what the papers print.

Markdown for documents, plain columns for terminals. The files may also be what logic.py, probe.py,
bench.py and analyze.py write: these print their tables themselves.
"""
import re
import shutil
import statistics
import textwrap
from typing import NamedTuple

from tabulate import tabulate

from disagreement import MEASURED
from nmt.evaluate import APART, t_interval
from nmt.flags import UserError
from papers.ablation import cost_table
from papers.rows import Row, Table
from papers.tables import TABLES

NONE = "–"
# headings of columns that hold words
WORDS = ("", "flags", "claim", "printed in", "their number", "run here", "ours", "verdict")
LEGEND = ("In parentheses: differences of parameters and ratios of speed to the baseline, here and "
          "in the paper. BLEU: mean ± standard deviation over the seeds; lower-cased: the same "
          "translations scored without case. Δ: mean difference to the baseline of the same seed, "
          "and its 95 % interval (paired, Student's t over the seeds); p: paired bootstrap on the "
          f"test sentences, seed by seed (–: the two are less than {APART} BLEU apart, or no "
          "translations are left to compare).")


# ---- Numbers as cells

def mean(values) -> float | None:
    """The mean of what is there of the values; None where nothing is."""
    values = [value for value in values if value is not None]
    return statistics.fmean(values) if values else None


def spread(values, digits: int) -> str:
    """Mean ± sample standard deviation over the seeds; the mean alone for one seed."""
    values = [value for value in values if value is not None]
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


def baselines(rows) -> list[int | None]:
    """For every row the index of the row that it is compared with: the last one above, or itself,
    of its size without mechanisms; None for quoted rows."""
    found = []
    last = {}
    for i, row in enumerate(rows):
        if row.flags == "":
            last[row.size] = i
        found.append(None if row.flags is None else last.get(row.size))
    return found


def published(table: Table, row: Row, base: Row | None) -> list[str]:
    """The published cells of a row; speeds with their ratio to the baseline's, and BLEU with its
    difference where the paper does not print one, in parentheses."""
    cells = []
    for column, text in zip(table.columns, row.published):
        cell = text or NONE
        ours = printed_number(text)
        theirs = None
        if base is not None and base is not row:
            theirs = printed_number(base.published[table.columns.index(column)])
        if ours is not None and theirs is not None:
            if column.endswith("/s"):
                cell += f" ({ours / theirs:.2f})"
            elif "BLEU" in column and "Δ" not in table.columns:
                cell += f" ({ours - theirs:+.2f})"
        cells.append(cell)
    return cells


def relative(runs: list[dict], others: list[dict], key: str, digits: int) -> str:
    """A mean over the seeds, and in parentheses its ratio to the baseline's."""
    ours = mean(run[key] for run in runs)
    theirs = mean(run[key] for run in others)
    if ours is None:
        return NONE
    ratio = f" ({ours / theirs:.2f})" if theirs else ""
    return f"{ours:,.{digits}f}{ratio}"


def gained(differences: list[float], digits: int = 2) -> str:
    """The mean of differences over the seeds and its 95 % interval; "" for none."""
    if not differences:
        return ""
    text = f"{statistics.fmean(differences):+.{digits}f}"
    interval = t_interval(differences)
    if interval:
        low, high = interval
        text += f" [{low:+.{digits}f}, {high:+.{digits}f}]"
    return text


def in_p(p: float | None, difference: float) -> str:
    """A p of the bootstrap; none of two scores that are as good as equal."""
    if p is None or abs(difference) < APART:
        return NONE
    return f"{p:.3f}"


def measured(runs: list[dict], others: list[dict]) -> list[str]:
    """The measured cells of a row: seeds, BLEU, lower-cased, its difference to the baseline's, p,
    parameters, speeds. others: the baseline's runs; none for the baseline itself."""
    count = mean(run["parameters"] for run in runs)
    base = mean(run["parameters"] for run in others)
    parameters = NONE if count is None else f"{count:,.0f}"
    if count is not None and base:
        parameters += f" ({count - base:+,.0f})"
    theirs = {run["seed"]: run["bleu"] for run in others}
    both = [run for run in runs if run["seed"] in theirs]
    differences = [run["bleu"] - theirs[run["seed"]] for run in both]
    p = [in_p(run["p"], difference) for run, difference in zip(both, differences)]
    lowercased = [run.get("lowercased") for run in runs]
    return [str(len(runs)) if runs else NONE,
            spread([run["bleu"] for run in runs], 2),
            spread(lowercased, 2) if any(lowercased) else "",
            gained(differences), ", ".join(p), parameters,
            relative(runs, others, "tokens_per_second", 0),
            relative(runs, others, "sentences_per_second", 1)]


# ---- Tables

def stored_rows(stored: dict, table: Table) -> list[Row]:
    """The rows of the table that a file holds, in its order: all, or those there were when it was
    measured. Raises UserError for rows that the table does not have."""
    known = {(row.label, row.size): row for row in table.rows}
    rows = [known.get((row["label"], row["size"])) for row in stored["rows"]]
    if None in rows or not rows:
        raise UserError(f"holds table {stored['table']} with other rows than papers/tables.py: "
                        "measure it anew")
    return rows


def body(stored: dict, table: Table, rows: list[Row]) -> list[list[str]]:
    """The header and the rows of a table, as cells; a row without any number is left out."""
    base = baselines(rows)
    paper = [f"paper: {column}" for column in table.columns]
    runs = [row["runs"] for row in stored["rows"]]
    header = measured_columns(table.kind, runs)
    cells = [["", "flags", *header, *paper]]
    for i, row in enumerate(rows):
        flags = stored["rows"][i]["flags"]
        if not runs[i] and not row.published:
            continue
        compared = None if base[i] is None else rows[base[i]]
        if flags is None:
            shown = "quoted"
            numbers = [""] * len(header)
        else:
            shown = f"`{flags}`" if flags else ""
            others = []
            if base[i] not in (None, i):
                others = runs[base[i]]
            numbers = row_numbers(table.kind, header, runs[i], others)
        cells.append([row.label, shown, *numbers, *published(table, row, compared)])
    left_out = []
    if len({len(of_row) for of_row in runs if of_row}) < 2:
        left_out.append("seeds")
    if stored.get("data") == "toy":
        # scored for the published figures of other texts
        left_out.append("lower-cased")
    return columns(cells, [j for j, name in enumerate(cells[0]) if name not in left_out])


def measured_columns(kind: str, runs: list[list[dict]]) -> list[str]:
    """The names of the measured columns of a table of that kind; runs: of every row."""
    if kind == "mt":
        return ["seeds", "BLEU", "lower-cased", "Δ", "p", "parameters", "tokens/s", "sentences/s"]
    if kind == "scores":
        return list(MEASURED)
    layers = 0
    for of_row in runs:
        for run in of_row:
            layers = max(layers, len(run["layers"]))
    return [f"layer {i}" for i in range(1, layers + 1)]


def row_numbers(kind: str, header: list[str], runs: list[dict], others: list[dict]) -> list[str]:
    """The measured cells of a row below the `measured_columns`; others: the baseline's runs."""
    if kind == "mt":
        return measured(runs, others)
    numbers = []
    for i, name in enumerate(header):
        if kind == "scores":
            values = [run["scores"][name] for run in runs]
        else:
            values = [run["layers"][i] for run in runs]
        numbers.append(spread(values, 3))
    return numbers


def filled(cells: list[list[str]]) -> list[int]:
    """The columns with any content but dashes, and those of the labels."""
    header, *rows = cells
    found = []
    for j, name in enumerate(header):
        content = {row[j] for row in rows}
        if name == "" or content - {"", NONE}:
            found.append(j)
    return found


def columns(cells: list[list[str]], kept: list[int]) -> list[list[str]]:
    """The cells with the columns `kept` alone."""
    found = []
    for row in cells:
        found.append([row[j] for j in kept])
    return found


def width_of(cells: list[list[str]], j: int) -> int:
    """Of column j on the screen, with the space before it."""
    return 2 + max(len(row[j]) for row in cells)


def sides(header: list[str]) -> list[str]:
    """Texts stand at the left, numbers at the right."""
    return ["left" if name in WORDS else "right" for name in header]


def markdown(cells: list[list[str]]) -> str:
    """Cells as a Markdown table, aligned to be read as it stands; columns without any content are
    left out."""
    escaped = []
    for row in columns(cells, filled(cells)):
        escaped.append([cell.replace("|", "\\|") for cell in row])
    header, *rows = escaped
    return tabulate(rows, header, "pipe", colalign=sides(header), disable_numparse=True)


def on_screen(cells: list[list[str]], width: int) -> str:
    """Cells for a terminal, without the flags: as many columns side by side as its width holds, the
    others below, with the labels again."""
    header = cells[0]
    labels = [j for j, name in enumerate(header) if name == ""]
    used = sum(width_of(cells, j) for j in labels)
    blocks = [[]]
    room = width - used
    for j in filled(cells):
        wide = width_of(cells, j)
        if header[j] in ("", "flags"):
            continue
        if blocks[-1] and wide > room:
            blocks.append([])
            room = width - used
        blocks[-1].append(j)
        room -= wide
    texts = []
    for block in blocks:
        head, *rows = columns(cells, [*labels, *block])
        texts.append(tabulate(rows, head, "plain", colalign=sides(head), disable_numparse=True))
    return "\n\n".join(texts)


def footnotes(table: Table) -> list[str]:
    """The notes below a table, those numbered that a cell refers to."""
    printed = " ".join(cell or "" for row in table.rows for cell in row.published)
    found = []
    for i, note in enumerate(table.notes, 1):
        mark = f"[{i}]"
        found.append(f"{mark} {note}." if mark in printed else f"{note}.")
    return found


class Parts(NamedTuple):
    """A table with what stands around it."""
    heading: str
    cells: list[list[str]]
    notes: list[str]
    where: str = ""             # it was measured
    command: str = ""
    legend: str = ""            # of the columns; in a document it stands once, at the top

    def as_markdown(self) -> str:
        """For a document."""
        command = f"    {self.command}" if self.command else ""
        notes = "\n".join(self.notes)
        parts = [self.heading, markdown(self.cells), notes, self.where, command]
        return "\n\n".join(part for part in parts if part)

    def as_screen(self) -> str:
        """For a terminal."""
        width = shutil.get_terminal_size().columns
        lines = [line for line in (*self.notes, self.legend, self.where) if line]
        notes = [textwrap.fill(line.replace("`", ""), width) for line in lines]
        heading = textwrap.fill(self.heading.replace("**", ""), width)
        return "\n\n".join([heading, on_screen(self.cells, width), "\n".join(notes)])


def table_parts(stored: dict) -> Parts:
    """A table of train_mt.py's runs with its heading, footnotes and circumstances."""
    table = TABLES.get(stored.get("table"))
    if table is None:
        raise UserError(f"holds a table {stored.get('table')!r} that papers/tables.py does not "
                        "know: measure it anew")
    rows = stored_rows(stored, table)
    published_on = f"; published on {table.data}" if table.data else ""
    legend = LEGEND if table.kind == "mt" else ""
    seeds = ", ".join(map(str, stored["seeds"]))
    plural = "s" if len(stored["seeds"]) > 1 else ""
    averaged = ""
    if stored.get("average"):
        averaged = f"average of the last {stored['average']} checkpoints; "
    where = (
        f"Measured on {stored['data']}, size {stored['arch']}, {stored['steps']:,} steps of at "
        f"most {stored['batch']:,} tokens; seed{plural} {seeds}; {averaged}{stored['set']} set, "
        f"`{stored['signature']}`; {stored['machine']}; torch {stored['torch']}; "
        f"{stored['date']}.")
    heading = f"**{table.source}** ({stored['table']}): {table.title}{published_on}."
    cells = body(stored, table, rows)
    return Parts(heading, cells, footnotes(table), where, stored["command"], legend)


def probe_parts(stored: dict) -> Parts:
    """probe.py's table with the published accuracies beside the measured ones."""
    table = TABLES[stored["published"]]
    lines = stored["table"]
    models = {row.flags: row for row in table.rows}
    names = list(lines[0]["cells"])
    header = ["", ""]
    for name in names:
        header.append(name)
        if name in models:
            header.append("paper")
    cells = [header]
    for line in lines:
        column = line["group"] if line["task"] == "Ave." else line["task"]
        row = [line["group"], line["task"]]
        for name in names:
            cell = line["cells"][name]
            deviation = "" if cell["spread"] is None else f" ± {100 * cell['spread']:.2f}"
            row.append(f"{100 * cell['mean']:.2f}{deviation}")
            if name in models:
                known = dict(zip(table.columns, models[name].published))
                row.append(known.get(column, NONE))
        cells.append(row)
    heading = (f"**{table.source}** ({stored['published']}): {table.title}; published on "
               f"{table.data}, measured on {stored['settings']['data']}.")
    return Parts(heading, cells, footnotes(table))


def parts_of(stored: dict) -> Parts | None:
    """A table of reproduce.py's with what stands around it; None for what other scripts print.
    Raises UserError for contents of no known kind."""
    kind = stored.get("kind")
    if kind not in ("table", "logic", "probing", "bench", "analysis"):
        raise UserError("holds no results known here: reproduce.py --store, logic.py, probe.py, "
                        "bench.py and analyze.py write them")
    if kind == "table":
        return table_parts(stored)
    if kind == "probing" and "published" in stored:
        return probe_parts(stored)
    return None


def text(stored: dict) -> str:
    """The contents of a file in results/ as Markdown."""
    parts = parts_of(stored)
    if parts:
        return parts.as_markdown()
    return f"```\n{printed(stored)}\n```"


def on_terminal(stored: dict) -> str:
    """The contents of a file in results/ for a terminal."""
    parts = parts_of(stored)
    return parts.as_screen() if parts else printed(stored)


def printed(stored: dict) -> str:
    """What the script that wrote a file prints of it."""
    import bench  # here, for bench.py imports this package
    import logic
    import probe
    kind = stored["kind"]
    if kind == "logic":
        return logic.table(stored)
    if kind == "probing":
        return probe.table(stored["table"])
    if kind == "bench":
        return bench.report(stored)
    return cost_table(stored["ablation"])
