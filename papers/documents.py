"""The documents that hold what was measured: tables, figures and verdicts from results/*.json.

RESULTS.md and docs/experiments.md have them between `<!-- results/NAME.json -->`, or `<!-- claims
of results/ -->`, and `<!-- end -->`; `reproduce.py --write-results` renews them, so that text and
data cannot drift apart.
"""
import contextlib
import json
import re
from pathlib import Path

from nmt.files import atomic_write, reported
from nmt.flags import UserError
from papers import claims, render
from papers.tables import TABLES

CLAIMS = "claims of results/"
MARKED = re.compile(rf"^(<!-- ({CLAIMS}|results/[^\s/]+\.json) -->)\n(.*?)^(<!-- end -->)$",
                    re.DOTALL | re.MULTILINE)
OPENING = re.compile(r"^<!-- (?:claims of )?results/.* -->$", re.MULTILINE)


def portable(value):
    """A JSON value without histories, and with DIR in place of the folder of every path."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items() if key != "history"}
    if isinstance(value, list):
        return [portable(item) for item in value]
    if isinstance(value, str) and value.startswith("/"):
        return f"DIR/{Path(value).name}"
    return value


def read_result(path: Path) -> dict:
    """The contents of a file in results/. Raises UserError."""
    with reported("read", path):
        if not path.is_file():
            raise UserError(f"{path}: no such file, and a marker names it: reproduce.py --store "
                            "writes it")
        content = path.read_bytes()
    with told(path):
        return json.loads(content)


@contextlib.contextmanager
def told(path: Path):
    """A block that reads what a file of results/ holds: its mistakes become a UserError that names
    the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is damaged or of another version ({error!r}): measure it "
                        "anew") from error


def with_earlier(measured: dict, path: Path) -> dict:
    """A table just measured, and of the one that the file holds the runs that it lacks, of other
    seeds and rows. Nothing of a file that is not there, or measured under another recipe, on
    another set or with another score. Raises UserError for a file that is damaged."""
    if not path.exists():
        return measured
    earlier = read_result(path)
    with told(path):
        return joined(measured, earlier)


def joined(measured: dict, earlier: dict) -> dict:
    """Two measurements of a table as one; where both have a run, the first one's."""
    if claims.scale_of(measured["command"]) != claims.scale_of(earlier["command"]):
        return measured
    for name in ("batch", "average", "set", "signature"):
        if measured[name] != earlier[name]:
            return measured
    before = {(row["flags"], row["size"]): row["runs"] for row in earlier["rows"]}
    rows = []
    for row in measured["rows"]:
        runs = {run["seed"]: run for run in before.get((row["flags"], row["size"]), [])}
        runs.update((run["seed"], run) for run in row["runs"])
        rows.append({**row, "runs": [runs[seed] for seed in sorted(runs)]})
    seeds = sorted({*measured["seeds"], *earlier["seeds"]})
    machines = {*measured["machine"].split("; "), *earlier["machine"].split("; ")}
    words = " ".join(map(str, seeds))
    return {**measured, "seeds": seeds, "machine": "; ".join(sorted(machines)),
            "command": re.sub(r"--seeds( \d+)+", f"--seeds {words}", measured["command"]),
            "date": max(measured["date"], earlier["date"]), "rows": rows}


def renewed(document: str, root: Path) -> str:
    """The document with everything between its markers made anew from root/results/. Raises
    UserError naming the marker or file that is wrong."""
    def replacement(match) -> str:
        path = root / match[2]
        if match[2] == CLAIMS:
            path = root / "results"
            stored = {file.name: read_result(file) for file in sorted(path.glob("*.json"))}
            with told(path):
                return f"{match[1]}\n{claims.page(stored)}\n{match[4]}"
        stored = read_result(path)
        with told(path):
            return f"{match[1]}\n{render.text(stored)}\n{match[4]}"

    if len(MARKED.findall(document)) != len(OPENING.findall(document)):
        raise UserError("a marker <!-- results/NAME.json --> has no <!-- end -->, both on lines of "
                        "their own: add it")
    return MARKED.sub(replacement, document)


def write(path: Path, root: Path) -> int:
    """Renews the tables of a document in its place; returns their number. Nothing is written where
    nothing changes."""
    with reported("read", path):
        if not path.is_file():
            raise UserError(f"{path}: no such file: write it, with lines <!-- results/NAME.json "
                            "--> and <!-- end -->")
        before = path.read_text()
    after = renewed(before, root)
    if after != before:
        atomic_write(path, after)
    return len(MARKED.findall(after))


def draw(root: Path) -> list[Path]:
    """Draws root/docs/NAME.svg of every table of BLEU in root/results/ that has several seeds, and
    of what heads cost; returns the paths."""
    from papers import figures
    drawn = []
    for file in sorted((root / "results").glob("*.json")):
        stored = read_result(file)
        path = root / "docs" / f"{file.stem}.svg"
        with told(file):
            rows = rows_to_draw(stored)
        if rows or "ablation" in stored:
            path.parent.mkdir(exist_ok=True)
            drawn.append(path)
        if rows:
            figures.results(rows, f"{stored['data']}, size {stored['arch']}, "
                            f"{stored['steps']:,} steps", path)
        if "ablation" in stored:
            figures.ablation(stored["ablation"], path)
    return drawn


def rows_to_draw(stored: dict) -> dict:
    """{label: runs} of a table of BLEU with several seeds; none of other files."""
    if stored["kind"] != "table" or TABLES[stored["table"]].kind != "mt":
        return {}
    rows = {row["label"]: row["runs"] for row in stored["rows"] if row["runs"]}
    several = max(map(len, rows.values())) > 1
    return rows if several else {}
