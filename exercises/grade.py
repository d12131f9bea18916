"""Grades solutions of the exercises.

    python -m exercises.grade FOLDER                       # mistakes and points
    python -m exercises.grade FOLDER --session 3           # one session
    python -m exercises.grade FOLDER --task squash         # one task's check
    python -m exercises.grade FOLDER ... --csv class.csv   # a class's table

Each task is graded by itself (compare.py), so you may do the tasks in any order, and a mistake
costs one task. The checks are in checks.py.
"""
import contextlib
import csv
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    print("error: start it in the project's folder: python -m exercises.grade", file=sys.stderr)
    sys.exit(2)

from tabulate import tabulate

from exercises.make import ROOT, TASKS, Task
from tools.command_line import flag, shell_line
from tools.command_line import run as run_command
from tools.files import UserError, as_user_error

SECONDS = 10                # processor time that a task may take (Linux)
WAIT = 60                   # seconds to wait for a task, for instance on a busy machine
OUTPUT = 100_000            # bytes that a task may print, and of a message
LINUX = sys.platform == "linux"
# Tasks that share a process. Only on Linux can torch be forked; elsewhere each start takes seconds.
SHARE = 1 if LINUX else len(TASKS)
CONTEXT = multiprocessing.get_context("forkserver" if LINUX else "spawn")
if LINUX:
    CONTEXT.set_forkserver_preload(["exercises.compare"])


# ---- Processes: what a solution does to Python must not affect other tasks

def write_errors(tasks: list[Task], folder: Path, place: Path, seconds: int) -> None:
    """Writes the error of each task into a file in `place`, and what solutions print into another.
    Runs in a process of its own."""
    # imported here because the command itself starts without torch
    from exercises.compare import find_error
    if LINUX:
        import resource
        os.setsid()                     # a group with all processes that solutions start
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT, OUTPUT))
    output = os.open(place / "output", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)                  # output of solutions must not get into the table
    os.dup2(output, 2)
    sys.stdout = sys.stderr
    sys.path += [str(folder.resolve()), str(folder.resolve().parent)]    # the student's modules
    for number, task in enumerate(tasks):
        if LINUX:
            end = math.ceil(time.process_time()) + seconds
            resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
        unfinished = place / "unfinished"
        unfinished.write_text(find_error(task, folder), "utf-8")
        unfinished.rename(place / f"error{number}")      # so it is whole where it is there
    sys.stderr.flush()
    os._exit(0)                         # threads that a solution has started do not go on


def start(process) -> None:
    """Starts a process. The server that forks it ends where a solution has written into its pipe;
    Python starts another, but not while the first one is ending."""
    for seconds in (0.1, 0.3, 1, 3):
        try:
            process.start()
            return
        except (ConnectionError, EOFError):
            time.sleep(seconds)
    process.start()


def run(tasks: list[Task], folder: Path) -> list[str]:
    """Returns the errors of the tasks, graded in one process. The last one may be that of a task
    that ended the process or took too long; then later tasks are missing."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        process = CONTEXT.Process(target=write_errors, args=(tasks, folder, place, SECONDS))
        start(process)
        before, count = -1, 0           # tasks that are finished
        while count > before:
            before = count
            process.join(WAIT)          # at once where the process has ended
            count = len([*place.glob("error*")])
        end = "ended Python"
        if process.exitcode is None:
            end = f"did not end within {WAIT} s"
        elif LINUX and process.exitcode == -signal.SIGXCPU:
            end = f"did not end within {SECONDS} s of processor time"
        process.kill()
        if LINUX:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.join()
        output = place / "output"
        if output.exists():
            sys.stderr.write(output.read_bytes()[:OUTPUT].decode(errors="replace"))
        errors = [(place / f"error{number}").read_text("utf-8") for number in range(count)]
    if count < len(tasks):
        errors.append(end)
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

def choose_tasks(session: int | None, text: str | None) -> list[Task]:
    """Returns the tasks of a session; with a text the task of this name, otherwise those with the
    text in their names, or in their files and functions. Raises UserError if there is none."""
    tasks = sorted(TASKS.values(), key=lambda task: task.session)
    if session:
        tasks = [task for task in tasks if task.session == session]
    if text is None:
        return tasks
    names = [task.name for task in tasks]
    if text in names:
        return [TASKS[text]]
    named = [task for task in tasks if text.lower() in task.name.lower()]
    placed = [task for task in tasks
              if text in (Path(task.file).name, task.body.rpartition(".")[2])]
    if named or placed:
        return named or placed
    raise UserError(f"--task {text!r}: no such task; choose from {', '.join(map(repr, names))}")


def describe_missing(folder: Path, tasks: list[Task]) -> str:
    """Returns a warning if none of the tasks' files is in a folder, otherwise ""."""
    names = {Path(task.file).name for task in tasks}
    if any((folder / name).exists() for name in names):
        return ""
    warning = f"warning: {folder}: has no file of these tasks"
    below = sorted(path.parent for path in folder.glob("*/*.py") if path.name in names)
    if below:
        warning += f"; {below[0]} has: grade that folder"
    return warning


def report(tasks: list[Task], messages: list[str], with_advice: bool) -> str:
    """Returns the messages, perhaps how to see more, and a table of the tasks."""
    lines = [message for message in messages if message]
    if lines and with_advice:
        lines.append("--task NAME shows the check of a task, and its inputs")
    rows = []
    for task, message in zip(tasks, messages):
        answer = "no" if message else "yes"
        rows.append([task.session, task.name, task.equation, task.points, answer])
    passed = [task for task, message in zip(tasks, messages) if not message]
    earned = sum(task.points for task in passed)
    points = sum(task.points for task in tasks)
    rows.append(["", "all", "", f"{earned} of {points}", f"{len(passed)} of {len(tasks)}"])
    header = ["session", "task", "equation", "points", "passed"]
    return "\n".join([*lines, "", tabulate(rows, header, "simple")])


@dataclass
class Settings:
    """The solutions, the tasks that are graded, and the table of the points."""
    folders: tuple[Path, ...] = flag(help="folders of solutions", positional=True,
                                     metavar="FOLDER")
    session: int | None = flag(None, "grade only the tasks of this session, 1 to 7",
                               choices=range(1, 8))
    task: str | None = flag(None, "grade only the task NAME, those with NAME in their names, or "
                            "those of the function or file NAME; for a task that is not passed, "
                            "print its check and the inputs", metavar="NAME")
    csv: Path | None = flag(None, "write a table of the points, and print no messages",
                            metavar="FILE")


def print_grades(s: Settings) -> None:
    """Grades the folders. Prints messages and points, or writes the points of all into a table."""
    tasks = choose_tasks(s.session, s.task)
    for folder in s.folders:
        if not folder.is_dir():
            if folder.exists():
                raise UserError(f"{folder}: is a file: name its folder")
            command = shell_line("python", "-m", "exercises.make", folder)
            raise UserError(f"{folder}: no such folder; `{command}` makes one")
        if folder.resolve() == ROOT:
            raise UserError(f"{folder}: is the project itself: name the folder of the solutions")
    os.environ["OMP_NUM_THREADS"] = "1"     # threads do not survive a fork
    if LINUX and len(os.fsencode(tempfile.gettempdir())) > 60:
        tempfile.tempdir = "/tmp"           # the path of a socket has at most 107 bytes
    if s.csv:
        with as_user_error("write", s.csv):              # Excel reads UTF-8 only with this mark
            file = open(s.csv, "w", encoding="utf-8-sig", errors="replace", newline="")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["folder", "points", *(task.name for task in tasks)])
    failed = set()                          # names of tasks
    for folder in s.folders:
        if s.csv:                           # above what the student's code prints
            print(folder, file=sys.stderr)
        messages = grade(tasks, folder)
        failed |= {task.name for task, message in zip(tasks, messages) if message}
        if s.csv:
            points = [0 if message else task.points for task, message in zip(tasks, messages)]
            table.writerow([Path(os.path.abspath(folder)).name, sum(points), *points])
            file.flush()
        else:
            print(report(tasks, messages, with_advice=not s.task))
        warning = describe_missing(folder, tasks)
        if warning:
            print(warning, file=sys.stderr)
    if s.csv:
        points = [task.points for task in tasks]
        table.writerow(["maximum", sum(points), *points])
        file.close()
    elif failed and s.task:
        # imported here because the command itself starts without torch
        from exercises.compare import describe_check
        for task in tasks:
            if task.name in failed:
                print(f"\n{describe_check(task)}")


def main(argv=None) -> int:
    return run_command(print_grades, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
