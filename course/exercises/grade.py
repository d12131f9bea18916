"""Grades a class: runs a session's tests on the files of every student, and writes a table.

    python course/exercises/grade.py 3 ../handed-in/*/ > points.csv

Each folder has a student's files at the places that they have in the handout. The table has a row
per student: the folder's name, the sum of the points, and the points of each task. What pytest says
of a task goes to stderr.
"""
import csv
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from make import ROOT, TASKS, copy, project_files

SECONDS = 120           # for a task


def grade(session: str, student: Path) -> list[int]:
    """The points of each task, in a fresh copy of the project with the student's files."""
    with TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        for name in project_files():
            copy(name, ROOT, project)
        for _, _, file, _, _ in TASKS[session]:
            (project / file).unlink(missing_ok=True)     # a missing file is not the project's
            if (student / file).exists():
                copy(file, student, project)
        points = []
        for task, most, _, _, test in TASKS[session]:
            print(f"{student.name}: {task}", file=sys.stderr)
            points.append(most * passes(project, test))
        return points


def passes(project: Path, test: str) -> bool:
    """Whether the tests of a task ran and passed, none of them skipped."""
    report = project.with_name("report.xml")             # os._exit(0) would leave none
    report.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", f"--junitxml={report}"]
    try:
        run = subprocess.run([*pytest, *shlex.split(test)], cwd=project, timeout=SECONDS,
                             stdout=sys.stderr)
    except subprocess.TimeoutExpired:
        return False
    if run.returncode != 0 or not report.exists():
        return False
    return ElementTree.parse(report).find("testsuite").get("skipped") == "0"


def main(session: str, students: list[Path]) -> None:
    for student in students:
        if not student.is_dir():                         # a shell that leaves in/*/ as it is
            print(f"grade.py: {student} is not a folder", file=sys.stderr)
            sys.exit(2)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["student", "points", *[task for task, *_ in TASKS[session]]])
    for student in students:
        points = grade(session, student)
        table.writerow([student.name, sum(points), *points])


if __name__ == "__main__":
    main(sys.argv[1], [Path(name) for name in sys.argv[2:]])
