"""The parts of the documents that are made from results/*.json: tables, and the page of claims.

The documents have them between `<!-- results/NAME.json -->`, `<!-- claims of results/ -->` or
`<!-- verdicts of results/ -->`, and `<!-- end -->`; `reproduce.py --write-results` renews them.
"""
import json
import re
from pathlib import Path

from nmt.files import atomic_write, reported
from nmt.flags import UserError
from nmt.run_folder import read_metrics
from papers import claims, render, verdicts

CLAIMS = "claims of results/"
VERDICTS = "verdicts of results/"
MARKED = re.compile(rf"^(<!-- ({CLAIMS}|{VERDICTS}|results/[^\s/]+\.json) -->)\n.*?"
                    r"^(<!-- end -->)$", re.DOTALL | re.MULTILINE)
OPENING = re.compile(r"^<!-- (?:claims of |verdicts of )?results/.* -->$", re.MULTILINE)


def read_result(path: Path) -> dict:
    """The contents of a file in results/. Raises UserError."""
    with reported("read", path):
        content = path.read_text("utf-8")
    try:
        return json.loads(content)
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}): measure it again") from error


def write_result(path: Path, stored: dict) -> None:
    """Writes a file of results/: a line per key, of lists a line per item."""
    lines = []
    for key, value in stored.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            items = [json.dumps(item, ensure_ascii=False) for item in value]
            text = "[\n  " + ",\n  ".join(items) + "]"
        lines.append(f" {json.dumps(key)}: {text}")
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, "{\n" + ",\n".join(lines) + "\n}\n")


def join_results(measured: dict, earlier: dict) -> dict:
    """Two measurements of a table as one: other seeds and rows are taken from the earlier one. A
    table measured with another recipe, on another set or with another score is not joined."""
    if claims.recipe_of(measured) != claims.recipe_of(earlier):
        return measured
    for name in ("batch", "average", "set", "signature"):
        if measured[name] != earlier[name]:
            return measured
    before = {(row["label"], row["size"]): row["runs"] for row in earlier["rows"]}
    rows = []
    for row in measured["rows"]:
        runs = {run["seed"]: run for run in before.get((row["label"], row["size"]), [])}
        runs.update((run["seed"], run) for run in row["runs"])
        rows.append({**row, "runs": [runs[seed] for seed in sorted(runs)]})
    seeds = sorted({*measured["seeds"], *earlier["seeds"]})
    machines = {*measured["machine"].split("; "), *earlier["machine"].split("; ")}
    words = " ".join(map(str, seeds))
    return {**measured, "seeds": seeds, "machine": "; ".join(sorted(machines)), "rows": rows,
            "command": re.sub(r"--seeds( \d+)+", f"--seeds {words}", measured["command"])}


def renew(document: str, root: Path) -> str:
    """The document with everything between its markers made again from root/results/. Raises
    UserError naming the file or marker that is wrong."""
    def replace(match) -> str:
        path = root / match[2]
        try:
            if match[2] == CLAIMS:
                files = sorted((root / "results").glob("*.json"))
                text = claims.page({file.name: read_result(file) for file in files})
            elif match[2] == VERDICTS:
                text = verdicts.page(read_metrics(root / "results" / "planned.jsonl"))
            else:
                text = render.to_markdown(read_result(path))
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise UserError(f"{path}: is damaged or of another version ({error!r}): measure it "
                            "again") from error
        return f"{match[1]}\n{text}\n{match[3]}"

    if len(MARKED.findall(document)) != len(OPENING.findall(document)):
        raise UserError("a marker <!-- results/NAME.json --> has no <!-- end -->, both on lines of "
                        "their own: add it")
    return MARKED.sub(replace, document)


def renew_file(path: Path, root: Path) -> int:
    """Renews the tables of a document in its place; returns their number."""
    before = path.read_text("utf-8")
    after = renew(before, root)
    if after != before:
        atomic_write(path, after)
    return len(MARKED.findall(after))
