"""Tables as text: what was measured, as kept in results/*.json, beside what the papers print.

RESULTS.md holds such tables between `<!-- results/NAME.json -->` and `<!-- end -->`;
`reproduce.py --write-results` renews them, so that text and data cannot drift apart. The files may
also be what logic.py, probe.py and bench.py write.
"""
import json
import re
import statistics
from pathlib import Path

from tabulate import tabulate

from disagreement import MEASURED
from nmt.files import atomic_write, reported
from nmt.flags import UserError
from papers.tables import TABLES, Row, Table

MARKED = re.compile(r"^(<!-- (results/[^\s/]+\.json) -->)\n(.*?)^(<!-- end -->)$",
                    re.DOTALL | re.MULTILINE)
OPENING = re.compile(r"^<!-- results/.* -->$", re.MULTILINE)
NONE = "–"
LEGEND = ("In parentheses: differences of parameters and ratios of speed to the baseline, here and "
          "in the paper. BLEU: mean ± standard deviation over the seeds; Δ: mean difference to the "
          "baseline of the same seed; p: paired bootstrap on the test sentences, seed by seed.")


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


def measured(runs: list[dict], others: list[dict]) -> list[str]:
    """The measured cells of a row: parameters, speeds, BLEU, its difference to the baseline's, p.
    others: the baseline's runs; none for the baseline itself."""
    count = mean(run["parameters"] for run in runs)
    base = mean(run["parameters"] for run in others)
    parameters = NONE if count is None else f"{count:,.0f}"
    if count is not None and base:
        parameters += f" ({count - base:+,.0f})"
    theirs = {run["seed"]: run["bleu"] for run in others}
    both = [run for run in runs if run["seed"] in theirs]
    gain = mean(run["bleu"] - theirs[run["seed"]] for run in both)
    p = [NONE if run["p"] is None else f"{run['p']:.3f}" for run in both]
    return [parameters, relative(runs, others, "tokens_per_second", 0),
            relative(runs, others, "sentences_per_second", 1),
            spread([run["bleu"] for run in runs], 2),
            "" if gain is None else f"{gain:+.2f}", ", ".join(p)]


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
    """The header and the rows of a table, as cells."""
    base = baselines(rows)
    paper = [f"paper: {column}" for column in table.columns]
    runs = [row["runs"] for row in stored["rows"]]
    layers = max([len(run["layers"]) for of_row in runs for run in of_row if "layers" in run],
                 default=0)
    if table.kind == "mt":
        header = ["parameters", "tokens/s", "sentences/s", "BLEU", "Δ", "p"]
    elif table.kind == "scores":
        header = list(MEASURED)
    else:
        header = [f"layer {i}" for i in range(1, layers + 1)]
    cells = [["", "flags", *header, *paper]]
    for i, row in enumerate(rows):
        flags = stored["rows"][i]["flags"]
        compared = None if base[i] is None else rows[base[i]]
        if flags is None:
            shown = "quoted"
            numbers = [""] * len(header)
        else:
            shown = f"`{flags}`" if flags else ""
            others = runs[base[i]] if base[i] not in (None, i) else []
            numbers = row_numbers(table.kind, runs[i], others, layers)
        cells.append([row.label, shown, *numbers, *published(table, row, compared)])
    return cells


def row_numbers(kind: str, runs: list[dict], others: list[dict], layers: int) -> list[str]:
    """The measured cells of a row of a table of that kind."""
    if kind == "mt":
        return measured(runs, others)
    if kind == "scores":
        return [spread([run["scores"][name] for run in runs], 3) for name in MEASURED]
    return [spread([run["layers"][i] for run in runs], 3) for i in range(layers)]


def markdown(cells: list[list[str]]) -> str:
    """Cells as a Markdown table, aligned to be read as it stands: texts to the left, numbers to the
    right; columns without any content are left out."""
    keep = [j for j in range(len(cells[0])) if j == 0 or any(row[j] for row in cells[1:])]
    header, *rows = [[row[j].replace("|", "\\|") for j in keep] for row in cells]
    sides = ["left" if name in ("", "flags") else "right" for name in header]
    return tabulate(rows, header, "pipe", colalign=sides, disable_numparse=True)


def footnotes(table: Table) -> list[str]:
    """The footnotes of a table, numbered."""
    return [f"[{i}] {note}." for i, note in enumerate(table.notes, 1)]


def table_text(stored: dict) -> str:
    """A table of train_mt.py's runs with its heading, footnotes and circumstances, as Markdown."""
    table = TABLES.get(stored.get("table"))
    if table is None:
        raise UserError(f"holds a table {stored.get('table')!r} that papers/tables.py does not "
                        "know: measure it anew")
    rows = stored_rows(stored, table)
    where = f"; published on {table.data}" if table.data else ""
    notes = footnotes(table)
    if table.kind == "mt":
        notes.append(LEGEND)
    seeds = ", ".join(map(str, stored["seeds"]))
    plural = "s" if len(stored["seeds"]) > 1 else ""
    parts = [
        f"**{table.source}** ({stored['table']}): {table.title}{where}.",
        markdown(body(stored, table, rows)),
        "\n".join(notes),
        f"Measured on {stored['data']}, size {stored['arch']}, {stored['steps']:,} steps of at "
        f"most {stored['batch']:,} tokens; seed{plural} {seeds}; {stored['set']} set, "
        f"`{stored['signature']}`; {stored['machine']}; torch {stored['torch']}; "
        f"{stored['date']}.",
        f"    {stored['command']}"]
    return "\n\n".join(part for part in parts if part)


def probe_text(stored: dict) -> str:
    """probe.py's table with the published accuracies beside the measured ones, as Markdown."""
    table = TABLES[stored["published"]]
    lines = stored["table"]
    models = {row.flags: row for row in table.rows}
    names = list(lines[0]["cells"])
    header = ["", ""]
    for name in names:
        header += [name, "paper"] if name in models else [name]
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
    parts = [heading, markdown(cells), "\n".join(footnotes(table))]
    return "\n\n".join(part for part in parts if part)


def text(stored: dict) -> str:
    """The contents of a file in results/ as text: a table of runs, or what logic.py, probe.py or
    bench.py print."""
    if stored.get("kind") == "table":
        return table_text(stored)
    if "majority" in stored and "models" in stored:
        import logic
        return f"```\n{logic.table(stored)}\n```"
    if "table" in stored and "runs" in stored:
        if "published" in stored:
            return probe_text(stored)
        import probe
        return f"```\n{probe.table(stored['table'], list(stored['table'][0]['cells']))}\n```"
    if stored.get("kind") == "bench":
        import bench
        return f"```\n{bench.report(stored)}\n```"
    raise UserError("holds no results known here: reproduce.py --store, logic.py, probe.py and "
                    "bench.py write them")


# ---- Files

def portable(value):
    """A JSON value without histories, and with DIR in place of the folder of every path."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items() if key != "history"}
    if isinstance(value, list):
        return [portable(item) for item in value]
    if isinstance(value, str) and value.startswith("/"):
        return f"DIR/{Path(value).name}"
    return value


def renewed(document: str, root: Path) -> str:
    """The document with everything between its markers made anew from root/results/NAME.json.

    Raises UserError naming the marker or file that is wrong.
    """
    def replacement(match) -> str:
        path = root / match[2]
        with reported("read", path):
            if not path.is_file():
                raise UserError(f"{path}: no such file, and a marker names it: reproduce.py "
                                "--store writes it")
            content = path.read_bytes()
        try:
            return f"{match[1]}\n{text(json.loads(content))}\n{match[4]}"
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(f"{path}: is damaged or of another version ({error!r}): measure it "
                            "anew") from error

    if len(MARKED.findall(document)) != len(OPENING.findall(document)):
        raise UserError("a marker <!-- results/NAME.json --> has no <!-- end -->, both on lines of "
                        "their own: add it")
    return MARKED.sub(replacement, document)


def write(path: Path) -> int:
    """Renews the tables of a document in its place; returns their number. Nothing is written where
    nothing changes."""
    with reported("read", path):
        if not path.is_file():
            raise UserError(f"{path}: no such file: write it, with lines <!-- results/NAME.json "
                            "--> and <!-- end -->")
        before = path.read_text()
    after = renewed(before, path.parent)
    if after != before:
        atomic_write(path, after)
    return len(MARKED.findall(after))
