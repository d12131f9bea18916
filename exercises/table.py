"""Prints the points of a class as CSV, with a row for each folder.

    python -m exercises.table FOLDER... [--session 3] > points.csv
"""
import argparse
import contextlib
import csv
import sys
from pathlib import Path

from exercises.make import TASKS
from exercises.test_tasks import grade


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m exercises.table", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of solutions")
    parser.add_argument("--session", type=int, choices=range(1, 8), help="only its tasks")
    args = parser.parse_args(words)
    tasks = sorted(TASKS.values(), key=lambda task: task.session)
    if args.session:
        tasks = [task for task in tasks if task.session == args.session]
    for folder in args.folders:
        if not folder.is_dir():
            parser.exit(2, f"{folder}: no such folder\n")
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["folder", "points", *(task.name for task in tasks)])
    for folder in args.folders:
        with contextlib.redirect_stdout(sys.stderr):     # what solutions print is no row
            points = [0 if grade(task, folder) else task.points for task in tasks]
        table.writerow([folder.resolve().name, sum(points), *points])


if __name__ == "__main__":
    main()
