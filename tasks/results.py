"""results.json of probe.py and logic.py: a row per trained model. The same command goes on after
the last row."""
import json
import statistics
from pathlib import Path

from nmt.command_line import UserError
from nmt.files import write_atomically


def read_rows(path: Path, settings: dict) -> list[dict]:
    """The rows of a results.json; none if it does not exist. Raises UserError if they were measured
    with other settings."""
    if not path.exists():
        return []
    stored = json.loads(path.read_text("utf-8"))
    if stored["settings"] != settings:
        raise UserError(f"{path}: has results of other settings, {stored['settings']}: choose "
                        "another --out")
    return stored["rows"]


def find_row(path: Path, settings: dict, key: dict) -> dict | None:
    """The row that has the entries of `key`; None if it was not measured yet."""
    for row in read_rows(path, settings):
        if key.items() <= row.items():
            return row
    return None


def add_row(path: Path, settings: dict, row: dict) -> None:
    """Adds a row to a results.json, atomically."""
    rows = [*read_rows(path, settings), row]
    text = json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(text.encode()))


def percent(shares: list[float], digits: int) -> str:
    """The mean of one share per seed in per cent; with several seeds, ± their standard
    deviation."""
    text = f"{100 * statistics.fmean(shares):.{digits}f}"
    if len(shares) > 1:
        text += f" ±{100 * statistics.stdev(shares):.{digits}f}"
    return text
