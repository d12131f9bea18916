"""The exercises: handouts, what a right and a wrong body get, and the table of a class."""
import inspect
import shlex
import subprocess
import sys
import textwrap
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
import solved_faults

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "course" / "exercises"))

import grade  # noqa: E402
import make  # noqa: E402

ROWS = {row[3]: row for tasks in make.TASKS.values() for row in tasks}       # by function
FUNCTIONS = {x: attrgetter(x)(import_module(Path(row[2]).stem)) for x, row in ROWS.items()}
SOURCES = {name: textwrap.dedent(inspect.getsource(f)) for name, f in FUNCTIONS.items()}
# (verdict, function, text in its body, what is there instead); without a text, the whole function
BODIES = Path(__file__).with_name("bodies.txt").read_text("utf-8")
CASES = [line.split(" | ") for line in BODIES.splitlines()]
for name in ROWS:
    CASES.append(("wrong", name, "", "def f(*args, **names): raise NotImplementedError"))
    if hasattr(solved_faults, name):
        CASES.append(("right", name, "", inspect.getsource(getattr(solved_faults, name))))


def code_lines(path: Path) -> set[str]:
    """The longer lines of code in a file, without comments and errors."""
    lines = {line.partition("  # ")[0].strip() for line in path.read_text("utf-8").splitlines()}
    return {line for line in lines if len(line) > 30 and not line.startswith(("#", "raise "))}


@pytest.mark.parametrize("session", [name for name in make.TASKS if name != "faults"])
def test_a_handout_has_no_line_of_its_solution(session, tmp_path):
    handout = tmp_path / session
    make.main(session, handout)
    solution = set()
    for _, _, file, _, test in make.TASKS[session]:
        for page in (file, "README.md"):
            assert f" pytest {test}\n" in (handout / page).read_text("utf-8")
        solution |= code_lines(ROOT / file) - code_lines(handout / file)
    assert solution and [*handout.glob("t*/README.md")]  # the corpus has its license
    for path in handout.rglob("*.py"):
        assert not code_lines(path) & solution and path.name != "solved_faults.py"


def test_pytest_collects_in_a_handout_of_all_sessions(tmp_path, monkeypatch):
    monkeypatch.setitem(make.TASKS, "all", [*ROWS.values()])
    make.main("all", tmp_path / "all")
    assert subprocess.call([sys.executable, "-m", "pytest", "--co"], cwd=tmp_path / "all") == 0


@pytest.mark.parametrize("verdict, name, old, new", CASES, ids=[" ".join(x[:2]) for x in CASES])
def test_a_body_gets_its_points_if_it_is_right(verdict, name, old, new, monkeypatch):
    """The other bodies of its session are right, or the project's."""
    session = next(rows for rows in make.TASKS.values() if ROWS[name] in rows)
    others = [x[1:] for x in CASES if x[0] == "right" and x[2] and ROWS[x[1]] in session]
    for function, text, other in [*others, (name, old, new)]:
        assert text in SOURCES[function]
        source = SOURCES[function].replace(text, other) if text else other
        exec(source, {**FUNCTIONS[function].__globals__}, names := {})
        monkeypatch.setattr(FUNCTIONS[function], "__code__", names.popitem()[1].__code__)
    monkeypatch.chdir(ROOT)
    less = "-qx -p no:cacheprovider -p no:unraisableexception".split()
    assert (pytest.main([*less, *shlex.split(ROWS[name][-1])]) == 0) == (verdict == "right")


def test_a_table_of_a_class(tmp_path, monkeypatch, capfd):
    """A project of one function and its test: Ann has it right, the others have no points."""
    students = {
        "ann": "def double(x):\n    return 2 * x",
        "does-not-parse": "def double(:",
        "endless-loop": "while True:\n    pass",
        "ends-python": "import os\nos._exit(0)",
        "skips-the-test": "import pytest\ndef double(x):\n    pytest.skip()",
    }
    for name, text in {"project": students["ann"], **students}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "student.py").write_text(text, "utf-8")
    (tmp_path / "has-nothing").mkdir()
    (tmp_path / "project" / "test_it.py").write_text(
        "from student import double\ndef test_double():\n    assert double(4) == 8", "utf-8")
    monkeypatch.setattr(grade, "ROOT", tmp_path / "project")
    monkeypatch.setattr(grade, "project_files", lambda: ["student.py", "test_it.py"])
    monkeypatch.setitem(grade.TASKS, "1", [("double", 3, "student.py", "double", "test_it.py")])
    monkeypatch.setattr(grade, "SECONDS", 5)
    names = [*students, "has-nothing"]
    grade.main("1", [tmp_path / name for name in names])
    others = [f"{name},0,0" for name in names[1:]]
    assert capfd.readouterr().out.splitlines() == ["student,points,double", "ann,3,3", *others]


def test_a_missing_folder_is_a_mistake(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        grade.main("3", [tmp_path, tmp_path / "no-one"])
    assert capsys.readouterr() == ("", f"grade.py: {tmp_path / 'no-one'} is not a folder\n")
