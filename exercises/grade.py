"""Grades solutions of the exercises.

    python -m exercises.grade FOLDER [--session 3]         # mistakes and points
    python -m exercises.grade FOLDER... --csv > class.csv  # a row for each

Each task is graded separately (compare.py), so tasks may be done in any order, and a mistake costs
one task. The checks are in checks.py.
"""
import csv
import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from exercises.make import TASKS, Task
from tools.command_line import flag
from tools.command_line import run as run_command
from tools.files import UserError

SECONDS = 10                # limit for a task
LINUX = sys.platform == "linux"
# Tasks that share a process. Only on Linux can torch be forked; elsewhere each start takes seconds.
SHARE = 1 if LINUX else len(TASKS)
CONTEXT = multiprocessing.get_context("forkserver" if LINUX else "spawn")
if LINUX:
    CONTEXT.set_forkserver_preload(["exercises.compare"])


# ---- Processes: what a solution does to Python must not affect other tasks

def send_errors(sender, tasks: list[Task], folder: Path) -> None:
    """Sends "ready", then the error of each task. Runs in a process of its own."""
    # imported here because the command itself starts without torch
    from exercises.compare import find_error
    os.dup2(2, 1)                       # output of solutions must not get into the table
    sys.stdout = sys.stderr
    sys.path += [str(folder.resolve()), str(folder.resolve().parent)]    # the student's modules
    sender.send("ready")
    for task in tasks:
        sender.send(find_error(task, folder))


def run(tasks: list[Task], folder: Path) -> list[str]:
    """Returns the errors of the tasks, graded in one process. The last one may be that of a task
    that ended the process or took too long; then later tasks are missing."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=send_errors, args=(sender, tasks, folder))
    process.start()
    sender.close()
    receiver.recv()                     # the limit excludes the import of torch
    errors = []
    try:
        while len(errors) < len(tasks):
            if not receiver.poll(SECONDS):
                return [*errors, f"did not end within {SECONDS} s"]
            errors.append(receiver.recv())
    except EOFError:
        errors.append("ended Python")
    finally:
        process.kill()
        process.join()
    return errors


def grade(tasks: list[Task], folder: Path) -> list[str]:
    """Returns a message for each task of a student's folder, "" for a task that is passed."""
    messages = []
    while len(messages) < len(tasks):
        rest = tasks[len(messages):]
        for task, error in zip(rest, run(rest[:SHARE], folder)):
            place = f"{folder / Path(task.file).name}: {task.body}"
            messages.append(error and f"{task.equation}, {task.name}: {error} ({place})")
    return messages


# ---- The command

def report(tasks: list[Task], messages: list[str]) -> str:
    """Returns the messages, and a table of the tasks."""
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


@dataclass
class Settings:
    folders: tuple[Path, ...] = flag(help="folders of solutions", positional=True,
                                     metavar="FOLDER")
    session: int | None = flag(None, "only its tasks", choices=range(1, 8))
    csv: bool = flag(False, "print the points as CSV")


def print_grades(s: Settings) -> None:
    tasks = sorted(TASKS.values(), key=lambda task: task.session)
    if s.session:
        tasks = [task for task in tasks if task.session == s.session]
    for folder in s.folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; `python -m exercises.make {folder}` makes "
                            "one")
    os.environ["OMP_NUM_THREADS"] = "1"     # threads do not survive a fork
    table = csv.writer(sys.stdout, lineterminator="\n")
    if s.csv:
        table.writerow(["folder", "points", *(task.name for task in tasks)])
    for folder in s.folders:
        messages = grade(tasks, folder)
        if s.csv:
            points = [0 if message else task.points for task, message in zip(tasks, messages)]
            table.writerow([folder.resolve().name, sum(points), *points])
        else:
            print(report(tasks, messages))
    if s.csv:
        points = [task.points for task in tasks]
        table.writerow(["maximum", sum(points), *points])


def main(argv=None) -> int:
    return run_command(print_grades, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
