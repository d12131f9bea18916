"""The exercises: a handout has no solution, its tests fail, the project's own bodies pass, and what
grade.py makes of a class."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
import solved_faults

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "course" / "exercises"))

import grade  # noqa: E402
import make  # noqa: E402
import test_faults  # noqa: E402

SESSIONS = [session for session in make.TASKS if session != "faults"]
# runs the tests of every session in its handout, and prints their exit statuses
RUN_ALL = """
import os, shlex, sys
import pytest
import make
for session, tasks in make.TASKS.items():
    os.chdir(os.path.join(sys.argv[1], session))
    sys.path.insert(0, os.getcwd())
    statuses = []
    for *_, test in tasks:
        words = ["-qx", "-p", "no:unraisableexception", *shlex.split(test)]  # it collects garbage
        statuses.append(int(pytest.main(words)))
    print("\\nstatuses", session, *statuses)
    for name, module in [*sys.modules.items()]:          # the next handout has its own
        if (getattr(module, "__file__", None) or "").startswith(os.getcwd()):
            del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.startswith(os.getcwd())]
"""


# ---- Handouts

@pytest.fixture(scope="module")
def handouts(tmp_path_factory):
    """The folder of all handouts, each under the name of its session."""
    folder = tmp_path_factory.mktemp("handouts")
    for session in make.TASKS:
        make.main(session, folder / session)
    return folder


def code_lines(path: Path) -> set[str]:
    """The longer lines of code in a file, without comments and errors."""
    lines = {line.partition("  # ")[0].strip() for line in path.read_text("utf-8").splitlines()}
    return {line for line in lines if len(line) > 30 and not line.startswith(("#", "raise "))}


@pytest.mark.parametrize("session", SESSIONS)
def test_a_handout_has_no_line_of_its_solution(session, handouts):
    handout = handouts / session
    solution = set()
    for _, _, file, _, test in make.TASKS[session]:
        assert f": pytest {test}\n" in (handout / file).read_text("utf-8")
        solution |= code_lines(ROOT / file) - code_lines(handout / file)
    assert solution
    for path in handout.rglob("*.py"):
        assert not code_lines(path) & solution


def test_every_task_of_a_handout_fails(handouts):
    """With the project's own bodies the same tests pass, as here."""
    run = subprocess.run([sys.executable, "-c", RUN_ALL, str(handouts)], text=True,
                         errors="replace", capture_output=True, cwd=ROOT / "course" / "exercises")
    rows = [line.split() for line in run.stdout.splitlines() if line.startswith("statuses ")]
    expected = []
    for session, tasks in make.TASKS.items():
        expected.append(["statuses", session, *"1" * len(tasks)])
    assert rows == expected
    errors = re.findall("^E +NotImplementedError: not written yet$", run.stdout, re.MULTILINE)
    assert len(errors) == sum(map(len, make.TASKS.values()))


# ---- Grades

STUDENTS = {
    "ann": "def double(x):\n    return 2 * x",
    "bob": "def double(x):\n    return 3 * x",
    "no-function": "",
    "does-not-parse": "def double(:",
    "endless-loop": "while True:\n    pass",
    "ends-python": "import os\nos._exit(0)",
    "skips-the-test": "import pytest\ndef double(x):\n    pytest.skip()",
}


def test_a_table_of_a_class(tmp_path, monkeypatch, capfd):
    """A project of one function and its test: one student has it right, the others have no
    points. The last one has handed in nothing."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "student.py").write_text(STUDENTS["ann"], "utf-8")
    (project / "test_it.py").write_text(
        "from student import double\ndef test_double():\n    assert double(4) == 8", "utf-8")
    monkeypatch.setattr(grade, "ROOT", project)
    monkeypatch.setattr(grade, "project_files", lambda: ["student.py", "test_it.py"])
    monkeypatch.setitem(grade.TASKS, "1", [("double", 3, "student.py", "double", "test_it.py")])
    monkeypatch.setattr(grade, "SECONDS", 5)
    for name, text in STUDENTS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "student.py").write_text(text, "utf-8")
    names = [*STUDENTS, "nothing"]
    grade.main("1", [tmp_path / name for name in names])
    points = {"ann": 3}
    assert capfd.readouterr().out.splitlines() == [
        "student,points,double", *(f"{x},{points.get(x, 0)},{points.get(x, 0)}" for x in names)]


def test_a_mistake_costs_the_points_of_its_task(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(grade.TASKS, "3", grade.TASKS["3"][:2])
    source = (ROOT / "routing_dynamic.py").read_text("utf-8")
    wrong = source.replace("(length / (1 + ", "(1 / (1 + ")
    assert wrong != source
    (tmp_path / "routing_dynamic.py").write_text(wrong, "utf-8")
    assert grade.grade("3", tmp_path) == [0, 2]
    assert "Mismatched elements: 1 / 1 (100.0%)" in capfd.readouterr().err   # pytest's message


# ---- Name the fault

@pytest.mark.parametrize("task, fault", test_faults.CASES)
def test_every_fault_can_be_named(task, fault, monkeypatch):
    with pytest.raises(AssertionError):                  # nothing is named in the handout
        test_faults.test_the_fault_is_named(task, fault)
    monkeypatch.setattr(test_faults, "faults", solved_faults)
    test_faults.test_the_fault_is_named(task, fault)


def test_the_words_of_a_task_choose_its_five_versions(handouts):
    """Its docstring names the faults; the handout has no solution."""
    assert not list((handouts / "faults").rglob("solved_faults.py"))
    for *_, function, test in make.TASKS["faults"]:
        _, word = test.split(" -k ")
        tasks = [task for task, _ in test_faults.CASES if word in task]
        (task,) = set(tasks)
        assert len(tasks) == 5 and function == f"name_{task}_fault"
        docstring = getattr(test_faults.faults, function).__doc__
        assert all(f'"{fault}": ' in docstring for fault in test_faults.TASKS[task][1])
