"""Tables as text: what was measured, as kept in results/*.json, beside what the papers print (paper_tables.py).

RESULTS.md holds such tables between `<!-- results/NAME.json -->` and `<!-- end -->`; `reproduce.py --write-results`
renews them, so that text and data cannot drift apart. The files may also be what logic.py, probe.py and bench.py write.
"""
import json
import re
import statistics
from pathlib import Path

from nmt.files import atomic_write, reported
from nmt.flags import UserError
from papers.tables import TABLES, Table
from disagreement import MEASURED

MARKED = re.compile(r"^(<!-- (results/[^\s/]+\.json) -->)\n(.*?)^(<!-- end -->)$", re.DOTALL | re.MULTILINE)
OPENING = re.compile(r"^<!-- results/.* -->$", re.MULTILINE)
NONE = "–"


def mean(values) -> float | None:
    """The mean of what is there of the values; None where nothing is."""
    values = [value for value in values if value is not None]
    return statistics.fmean(values) if values else None


def spread(values, digits: int) -> str:
    """Mean ± sample standard deviation over the seeds; the mean alone for one seed."""
    values = [value for value in values if value is not None]
    if not values:
        return NONE
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def number(text: str | None) -> float | None:
    """The number that a published cell is, without its marks; None for increments, dashes and the like."""
    found = re.fullmatch(r"(\d+\.?\d*)[↑⇑*]?(?: \[\d+\])?", text or "")
    return float(found[1]) if found else None


def baselines(rows) -> list[int | None]:
    """For every row the index of the row that it is compared with: the last one above, or itself, of its size without
    mechanisms; None for quoted rows."""
    found, last = [], {}
    for i, row in enumerate(rows):
        if row.flags == "":
            last[row.size] = i
        found.append(None if row.flags is None else last.get(row.size))
    return found


def published(table: Table, i: int, base: int | None) -> list[str]:
    """The published cells of a row; speeds with their ratio to the baseline's, and BLEU with its difference where the
    paper does not print one, in parentheses."""
    cells, own = [], any(column == "Δ" for column in table.columns)
    for j, column in enumerate(table.columns):
        text = table.rows[i].published[j]
        x, y = number(text), number(table.rows[base].published[j]) if base is not None else None
        extra = ""
        if None not in (x, y) and base != i:
            if column.endswith("/s"):
                extra = f" ({x / y:.2f})"
            elif "BLEU" in column and not own and "(" not in text:
                extra = f" ({x - y:+.2f})"
        cells.append((text or NONE) + extra)
    return cells


def relative(row: dict, base: dict | None, key: str, digits: int) -> str:
    """A mean over the seeds, and in parentheses its ratio to the baseline's."""
    x, y = mean(r[key] for r in row["runs"]), mean(r[key] for r in base["runs"]) if base else None
    if x is None:
        return NONE
    return f"{x:,.{digits}f}" + (f" ({x / y:.2f})" if y and row is not base else "")


def measured(row: dict, base: dict | None) -> list[str]:
    """The measured cells of a row: parameters, speeds, BLEU, its difference to the baseline's, p."""
    runs, other = row["runs"], base["runs"] if base and base is not row else []
    count, plain = mean(r["parameters"] for r in runs), mean(r["parameters"] for r in other)
    parameters = NONE if count is None else f"{count:,.0f}" + (f" ({count - plain:+,.0f})" if plain else "")
    theirs = {r["seed"]: r["bleu"] for r in other}
    gains = [r["bleu"] - theirs[r["seed"]] for r in runs if r["seed"] in theirs]
    p = ", ".join("–" if r["p"] is None else f"{r['p']:.3f}" for r in runs if r["seed"] in theirs)
    return [parameters, relative(row, base, "tokens_per_second", 0), relative(row, base, "sentences_per_second", 1),
            spread([r["bleu"] for r in runs], 2), f"{statistics.fmean(gains):+.2f}" if gains else "", p]


def body(stored: dict, table: Table) -> list[list[str]]:
    """The header and the rows of a table, as cells."""
    rows, base = stored["rows"], baselines(table.rows)
    paper = [f"paper: {column}" for column in table.columns]
    if table.kind == "mt":
        header = ["parameters", "tokens/s", "sentences/s", "BLEU", "Δ", "p", *paper]
    elif table.kind == "scores":
        header = [*KINDS, *paper]
    else:
        layers = max((len(r["layers"]) for row in rows for r in row["runs"]), default=0)
        header = [*(f"layer {i}" for i in range(1, layers + 1)), *paper]
    found = [["", "flags", *header]]
    for i, (row, printed) in enumerate(zip(rows, table.rows)):
        if row["flags"] is None:
            cells = [""] * (len(header) - len(paper))
        elif table.kind == "mt":
            cells = measured(row, rows[base[i]] if base[i] is not None else None)
        elif table.kind == "scores":
            cells = [spread([r["scores"][kind] for r in row["runs"]], 3) for kind in KINDS]
        else:
            cells = [spread([r["layers"][n] for r in row["runs"]], 3) for n in range(layers)]
        flags = "quoted" if row["flags"] is None else f"`{row['flags']}`" if row["flags"] else ""
        found.append([row["label"], flags, *cells, *published(table, i, base[i])])
    return found


def markdown(cells: list[list[str]]) -> str:
    """Cells as a Markdown table, aligned to be read as it stands; the first two columns to the left."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    keep = [j for j in range(len(cells[0])) if j == 0 or any(row[j] for row in cells[1:])]
    left = [cells[0][j] in ("", "flags") for j in keep]
    wide = [max(3, *(len(row[j]) for row in cells)) for j in keep]
    line = lambda row: "| " + " | ".join(row[j].ljust(w) if l else row[j].rjust(w)
                                        for j, w, l in zip(keep, wide, left)) + " |"
    rule = "|" + "|".join("-" * (w + 2) if l else "-" * (w + 1) + ":" for w, l in zip(wide, left)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


LEGEND = ("In parentheses: differences of parameters and ratios of speed to the baseline, here and in the paper. "
          "BLEU: mean ± standard deviation over the seeds; Δ: mean difference to the baseline of the same seed; "
          "p: paired bootstrap on the test sentences, seed by seed.")


def table_text(stored: dict) -> str:
    """A table of train_mt.py's runs with its heading, footnotes and circumstances, as Markdown."""
    table = TABLES.get(stored.get("table"))
    if table is None:
        raise UserError(f"holds a table {stored.get('table')!r} that paper_tables.py does not know: measure it anew")
    if [(row["label"], row["size"]) for row in stored["rows"]] != [(row.label, row.size) for row in table.rows]:
        raise UserError(f"holds table {stored['table']} with other rows than paper_tables.py: measure it anew")
    where = f"; published on {table.data}" if table.data else ""
    notes = [f"[{i}] {note}." for i, note in enumerate(table.notes, 1)] + ([LEGEND] if table.kind == "mt" else [])
    seeds = ("seeds " if len(stored["seeds"]) > 1 else "seed ") + ", ".join(map(str, stored["seeds"]))
    return (f"**{table.source}** ({stored['table']}): {table.title}{where}.\n\n{markdown(body(stored, table))}\n\n"
            + "\n".join(notes) + ("\n\n" if notes else "")
            + f"Measured on {stored['data']}, size {stored['arch']}, {stored['steps']:,} steps of at most "
              f"{stored['batch']:,} tokens; {seeds}; {stored['set']} set, `{stored['signature']}`; "
              f"{stored['machine']}; torch {stored['torch']}; {stored['date']}.\n\n    {stored['command']}")


def probe_text(stored: dict) -> str:
    """probe.py's table with the published accuracies beside the measured ones, as Markdown."""
    table, lines = TABLES[stored["published"]], stored["table"]
    models = {row.flags: row for row in table.rows}
    names = [name for name in lines[0]["cells"]]
    header = ["", "", *(x for name in names for x in ([name, "paper"] if name in models else [name]))]
    cells = [header]
    for line in lines:
        column = line["group"] if line["task"] == "Ave." else line["task"]
        cells.append([line["group"], line["task"]])
        for name in names:
            cell = line["cells"][name]
            deviation = "" if cell["spread"] is None else f" ± {100 * cell['spread']:.2f}"
            cells[-1].append(f"{100 * cell['mean']:.2f}{deviation}")
            if name in models:
                known = column in table.columns
                cells[-1].append(models[name].published[table.columns.index(column)] if known else NONE)
    notes = "".join(f"\n[{i}] {note}." for i, note in enumerate(table.notes, 1))
    return (f"**{table.source}** ({stored['published']}): {table.title}; published on {table.data}, measured on "
            f"{stored['settings']['data']}.\n\n{markdown(cells)}" + ("\n" + notes if notes else ""))


def portable(value):
    """A JSON value without histories, and with DIR in place of the folder of every path."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items() if key != "history"}
    if isinstance(value, list):
        return [portable(item) for item in value]
    return f"DIR/{Path(value).name}" if isinstance(value, str) and value.startswith("/") else value


def text(stored: dict) -> str:
    """The contents of a file in results/ as text: a table of runs, or what logic.py, probe.py or bench.py print."""
    if stored.get("kind") == "table":
        return table_text(stored)
    if "majority" in stored and "models" in stored:
        import logic
        return f"```\n{logic.table(stored)}\n```"
    if "table" in stored and "runs" in stored:
        import probe
        return probe_text(stored) if "published" in stored else \
            f"```\n{probe.table(stored['table'], list(stored['table'][0]['cells']))}\n```"
    if "growth" in stored and "summary" in stored:
        import bench
        lengths = stored["settings"].get("lengths")
        growth = f"\n\n{bench.growth_table(stored['growth'], lengths)}" if stored["growth"] else ""
        return f"```\n{stored['machine']}\n\n{bench.speed_table(stored['summary'])}{growth}\n```"
    raise UserError("holds no results known here: reproduce.py --store, logic.py, probe.py and bench.py write them")


def renewed(document: str, root: Path) -> str:
    """The document with everything between its markers made anew from root/results/NAME.json.

    Raises UserError naming the marker or file that is wrong.
    """
    def replacement(match) -> str:
        path = root / match[2]
        with reported("read", path):
            if not path.is_file():
                raise UserError(f"{path}: no such file, and a marker names it: reproduce.py --store writes it")
            content = path.read_bytes()
        try:
            return f"{match[1]}\n{text(json.loads(content))}\n{match[4]}"
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(f"{path}: is damaged or of another version ({error!r}): measure it anew") from error

    if len(MARKED.findall(document)) != len(OPENING.findall(document)):
        raise UserError("a marker <!-- results/NAME.json --> has no <!-- end -->, both on lines of their own: add it")
    return MARKED.sub(replacement, document)


def write(path: Path) -> int:
    """Renews the tables of a document in its place; returns their number. Nothing is written where nothing changes."""
    with reported("read", path):
        if not path.is_file():
            raise UserError(f"{path}: no such file: write it, with lines <!-- results/NAME.json --> and <!-- end -->")
        before = path.read_text()
    after = renewed(before, path.parent)
    if after != before:
        atomic_write(path, after)
    return len(MARKED.findall(after))
