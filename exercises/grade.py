"""Grades solutions of the exercises.

    python -m exercises.grade FOLDER [--session 3]                  # a table, and what is wrong
    python -m exercises.grade FOLDER... --csv > points.csv          # a class: a row for each folder

Every task is graded on its own (compare.py), so tasks may be done in any order, and a mistake costs
one task. The checks are in checks.py.
"""
import argparse
import contextlib
import csv
import sys
from pathlib import Path

from tabulate import tabulate

from exercises.compare import grade
from exercises.make import TASKS, Task


def report(tasks: list[Task], messages: list[str]) -> str:
    """The messages, and a table of the tasks."""
    rows = []
    for task, message in zip(tasks, messages):
        answer = "no" if message else "yes"
        rows.append([task.session, task.name, task.equation, task.points, answer])
    passed = [task for task, message in zip(tasks, messages) if not message]
    earned = sum(task.points for task in passed)
    points = sum(task.points for task in tasks)
    rows.append(["", "all", "", f"{earned} of {points}", f"{len(passed)} of {len(tasks)}"])
    header = ["session", "task", "equation", "points", "passed"]
    return "\n".join([*filter(None, messages), "", tabulate(rows, header, "simple")])


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m exercises.grade", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of solutions")
    parser.add_argument("--session", type=int, choices=range(1, 8), help="only its tasks")
    parser.add_argument("--csv", action="store_true", help="print the points as CSV")
    args = parser.parse_args(words)
    tasks = sorted(TASKS.values(), key=lambda task: task.session)
    if args.session:
        tasks = [task for task in tasks if task.session == args.session]
    for folder in args.folders:
        if not folder.is_dir():
            parser.exit(2, f"{folder}: no such folder; `python -m exercises.make {folder}` makes"
                           " one\n")
    table = csv.writer(sys.stdout, lineterminator="\n")
    if args.csv:
        table.writerow(["folder", "points", *(task.name for task in tasks)])
    for folder in args.folders:
        with contextlib.redirect_stdout(sys.stderr):     # solutions may print
            messages = [grade(task, folder) for task in tasks]
        if args.csv:
            points = [0 if message else task.points for task, message in zip(tasks, messages)]
            table.writerow([folder.resolve().name, sum(points), *points])
        else:
            print(report(tasks, messages))


if __name__ == "__main__":
    main()
