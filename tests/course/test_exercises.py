"""The exercises: a handout has no solution, its tests fail, the project's own bodies pass, and what
grade.py makes of a class."""
import shlex
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
# runs pytest for every argument, and prints the exit statuses
RUN_ALL = """
import shlex, sys, pytest
statuses = [int(pytest.main(["-qx", *shlex.split(test)])) for test in sys.argv[1:]]
print(*statuses)
"""


def write_solution(folder: Path, file: str, text: str = "", faulty: str = "") -> None:
    """A student's folder with the project's own file, in which a text is replaced."""
    source = (ROOT / file).read_text("utf-8")
    assert text in source
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(source.replace(text, faulty, 1), "utf-8")


def code_lines(path: Path) -> set[str]:
    """The longer lines of code in a file, without comments and errors."""
    lines = {line.partition("  # ")[0].strip() for line in path.read_text("utf-8").splitlines()}
    return {line for line in lines if len(line) > 30 and not line.startswith(("#", "raise "))}


def run_tests(folder: Path, session: str) -> tuple[list[str], str]:
    """The exit status of each task's tests in a folder, and what pytest prints."""
    tests = [test for *_, test in make.TASKS[session]]
    run = subprocess.run([sys.executable, "-c", RUN_ALL, *tests], cwd=folder, text=True,
                         capture_output=True)
    return run.stdout.splitlines()[-1].split(), run.stdout


@pytest.mark.parametrize("session", SESSIONS)
def test_a_handout_has_no_solution_and_its_tests_fail(session, tmp_path):
    """With the project's own bodies they pass, as here."""
    handout = tmp_path / "handout"
    make.main(session, handout)
    solution = set()
    for _, _, file, _, test in make.TASKS[session]:
        assert f": pytest {test}\n" in (handout / file).read_text("utf-8")
        solution |= code_lines(ROOT / file) - code_lines(handout / file)
    assert solution
    for path in handout.rglob("*.py"):
        assert not code_lines(path) & solution
    statuses, printed = run_tests(handout, session)
    assert set(statuses) == {"1"} and "NotImplementedError: not written yet" in printed


def test_a_table_of_a_class(tmp_path, monkeypatch, capfd):
    """Right; a mistake; an endless loop."""
    monkeypatch.setattr(grade, "SECONDS", 15)
    monkeypatch.setitem(grade.TASKS, "6", grade.TASKS["6"][:1])
    file = "capsule_transformer.py"
    write_solution(tmp_path / "ann", file)
    write_solution(tmp_path / "bob", file, "(weight * B.sum(-1)", "(weight * B.mean(-1)")
    write_solution(tmp_path / "eve", file, "def vertical_routing(", "while True: pass\ndef v(")
    grade.main("6", [tmp_path / name for name in ("ann", "bob", "eve")])
    assert capfd.readouterr().out.splitlines() == [
        "student,points,vertical routing", "ann,3,3", "bob,0,0", "eve,0,0"]


def test_a_wrong_function_costs_its_task_and_those_that_call_it(tmp_path, capfd):
    write_solution(tmp_path, "routing_dynamic.py", "(length / (1 + ", "(1 / (1 + ")
    assert grade.grade("3", tmp_path) == [0, 2, 1, 0]
    assert "Mismatched elements: 1 / 1 (100.0%)" in capfd.readouterr().err   # pytest's message


@pytest.mark.parametrize("text", [
    "def horizontal_routing(:", "", "import os\nos._exit(0)", "import pytest\npytest.skip()"])
def test_a_file_that_does_not_work_has_no_points(text, tmp_path, monkeypatch):
    """It does not parse, lacks the function, ends Python, or skips the tests."""
    monkeypatch.setitem(grade.TASKS, "6", grade.TASKS["6"][1:])
    (tmp_path / "capsule_transformer.py").write_text(text, "utf-8")
    assert grade.grade("6", tmp_path) == [0]


def test_a_missing_file_has_no_points(tmp_path, monkeypatch):
    monkeypatch.setitem(grade.TASKS, "6", grade.TASKS["6"][1:])
    assert grade.grade("6", tmp_path) == [0]


@pytest.mark.parametrize("task, fault", test_faults.CASES)
def test_every_fault_can_be_named(task, fault, monkeypatch):
    with pytest.raises(AssertionError):                  # nothing is named in the handout
        test_faults.test_the_fault_is_named(task, fault)
    monkeypatch.setattr(test_faults, "faults", solved_faults)
    test_faults.test_the_fault_is_named(task, fault)


def test_the_handout_of_the_faults(tmp_path):
    """It has the project's functions, and no solved faults. A task's words choose its five tests,
    and the docstrings name the faults."""
    handout = tmp_path / "handout"
    make.main("faults", handout)
    assert not list(handout.rglob("solved_faults.py"))
    for *_, function, test in make.TASKS["faults"]:
        _, word = test.split(" -k ")
        tasks = [task for task, _ in test_faults.CASES if word in task]
        (task,) = set(tasks)
        assert len(tasks) == 5 and function == f"name_{task}_fault"
        docstring = getattr(test_faults.faults, function).__doc__
        assert all(f'"{fault}": ' in docstring for fault in test_faults.TASKS[task][1])
    test = make.TASKS["faults"][0][-1]
    run = subprocess.run([sys.executable, "-m", "pytest", "-qx", *shlex.split(test)], cwd=handout,
                         text=True, capture_output=True)
    assert run.returncode == 1 and "NotImplementedError: not written yet" in run.stdout
