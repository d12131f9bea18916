"""The exercises: the project's own bodies get full marks, stubs get none, and a mistake costs only
the tasks of its body."""
import ast
import errno
import inspect
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from exercises import checks, faults, grade, make
from exercises.checks import CHECKS
from exercises.compare import describe_check, find_error
from exercises.make import FAULTS, ROOT, TABLE, TASKS, find_functions, make_stub
from tools.command_line import parse, shell_line
from tools.files import BYTE_ORDER_MARK

DYNAMIC = [task for task in TASKS.values() if task.file == "routing_dynamic.py"]
BODIES = sorted({(task.file, task.body) for task in TASKS.values()})


def read_solution(file: str) -> str:
    """The project's own file, or the solution of the tasks without one."""
    path = Path(__file__).with_name("solved_faults.py") if file == FAULTS else ROOT / file
    return path.read_text("utf-8")


def write_solution(folder: Path, file: str, mistake: str = "") -> None:
    """Writes a solution, with a mistake at its end."""
    (folder / Path(file).name).write_text(f"{read_solution(file)}\n{mistake}", "utf-8")


def grade_file(folder: Path, file: str) -> dict[str, str]:
    """{task: error} of the tasks of a file that are not passed."""
    tasks = [task for task in TASKS.values() if task.file == file]
    errors = {task.name: find_error(task, folder) for task in tasks}
    return {name: error for name, error in errors.items() if error}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Undoes what the command sets."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("file", TABLE)
def test_own_bodies_pass_and_stubs_do_not(file, tmp_path):
    write_solution(tmp_path, file)
    assert not grade_file(tmp_path, file)
    make.main([str(tmp_path / "mine")])
    errors = grade_file(tmp_path / "mine", file)
    assert list(errors.values()) == ["not written yet"] * len(TABLE[file])


DECORATOR = """
import torch
from torch.utils._pytree import tree_map

def change(x):
    if isinstance(x, torch.Tensor):
        return {tensor}
    return x * 1.01 if isinstance(x, float) else x and x + type(x)(1)

def spoil(function):
    return lambda *args, **settings: tree_map(change, function(*args, **settings))
"""


@pytest.mark.parametrize("tensor", ["x * 1.01 if x.is_floating_point() else ~x", "x.detach()"])
@pytest.mark.parametrize("file, body", BODIES)
def test_a_mistake_costs_only_the_tasks_of_its_body(file, body, tensor, tmp_path):
    own = [task.name for task in TASKS.values() if (task.file, task.body) == (file, body)]
    if "detach" in tensor and (not CHECKS[own[0]][1] or body == "expand"):
        pytest.skip("no gradient is graded")
    source = read_solution(file)
    node = find_functions(ast.parse(source))[body]
    lines = source.splitlines()
    lines.insert(node.lineno - 1, " " * node.col_offset + "@spoil")
    text = "\n".join([DECORATOR.format(tensor=tensor), *lines])
    (tmp_path / Path(file).name).write_text(text, "utf-8")
    assert grade_file(tmp_path, file).keys() == set(own)


@pytest.mark.parametrize("file, body", [
    ("routing_dynamic.py", "squash"),
    ("disagreement.py", "subspace_disagreement"),
    ("attention.py", "MultiHeadAttention.split"),
    ("attention.py", "MultiHeadAttention"),
])
def test_a_deleted_function_costs_only_its_tasks(file, body, tmp_path):
    source = (ROOT / file).read_text("utf-8")
    node = find_functions(ast.parse(source))[body]
    lines = source.splitlines()
    del lines[node.lineno - 1:node.end_lineno]
    (tmp_path / Path(file).name).write_text("\n".join(lines), "utf-8")
    tasks = {task.name for task in TASKS.values()
             if task.file == file and task.body.startswith(body)}
    assert grade_file(tmp_path, file).keys() == tasks


@pytest.mark.parametrize("file, task, solution", [
    # plain solutions, which lose the harder task
    ("disagreement.py", "cosines in O(H)", """
def output_disagreement(outputs, mask=None):
    x = unit(outputs).movedim(-3, 0)
    cosine = torch.vmap(lambda a, b: (a * b).sum(-1), (None, 0))             # of a with every b
    return -masked_mean(torch.vmap(lambda a: cosine(a, x).mean(0))(x).mean(0), mask)
"""),
    ("disagreement.py", "cosines in O(H)", """
def output_disagreement(outputs, mask=None):
    return subspace_disagreement(outputs, mask)
"""),
    ("routing_dynamic.py", "unchosen capsules", """
def weigh_votes(V, log_C, normalize=True, mask=None):
    C = log_C.exp()
    s = (C.unsqueeze(-1) * V).sum(-3)
    s = s / C.sum(-2).unsqueeze(-1) if normalize else s
    return s if mask is None else s.masked_fill(~mask.unsqueeze(-1), 0)
"""),
    ("routing_em.py", "M-step, activations", """
right = m_step
def m_step(V, log_C, beta_a=None, beta_mu=None, lambda_t=1.0, eps=1e-9):
    return right(V, log_C, eps=eps)      # log A = 0
"""),
    ("capsule_transformer.py", "horizontal, all at once", """
right = horizontal_routing
def horizontal_routing(E, T=3, mask=None, last=None):
    mask = torch.ones_like(E, dtype=torch.bool) if mask is None else mask
    L = E.shape[-2]
    rows = range(L - (last or L), L)
    omega = [right(E[..., :l + 1, :], T, mask[..., :l + 1, :], 1) for l in rows]
    return torch.cat(omega, dim=-2)
"""),
    # what a docstring promises: dropout, errors, half precision in float32
    ("attention.py", "attention", """
from torch.nn import Identity
right = MultiHeadAttention.attend_explicitly
def attend_explicitly(self, *arguments):
    self.dropout = Identity()
    return right(self, *arguments)
MultiHeadAttention.attend_explicitly = attend_explicitly
"""),
    ("disagreement.py", "D of a layer", """
right = layer_disagreement
def layer_disagreement(kind, component, heads, *masks, **reduce):
    if getattr(heads, KINDS[kind].reads) is None:
        return torch.zeros(())
    return right(kind, component, heads, *masks, **reduce)
"""),
    ("routing_dynamic.py", "squash", """
right = squash
def squash(s, dim=-1):
    return right(s.double(), dim).to(s.dtype)
"""),
])
def test_an_incomplete_solution_loses_one_task(file, task, solution, tmp_path):
    write_solution(tmp_path, file, solution)
    assert grade_file(tmp_path, file).keys() == {task}


@pytest.mark.parametrize("file, task, solution, message", [
    *(("routing_dynamic.py", "squash",
       f"right = squash\ndef squash(s, dim=-1):\n    {body}", message) for body, message in (
        ("return s / s.size", ": return s / s.size"),
        ("x = right(s, dim); x[0, 0] += 1e-3; return x", "(wrong in 1 of 12 places"),
        ("return 0 * s[..., :2]", "squash(s) has shape [4, 2], expected [4, 3]"),
        ("return right(s, dim).float()", "squash(s) is float32, expected float64"),
        ("return right(s, dim) if dim < 0 else s",
         "squash(s)[0, 0] with dim=0 is -0.4301130238362226, expected -0.184637"),
        ("return s.detach() * (s.norm(dim=dim, keepdim=True) /", "SyntaxError"),
        ("return right(s.detach(), dim)", "no gradient flows back to the inputs"),
        ("raise KeyboardInterrupt(10 ** 5 * 'no\\n')", "KeyboardInterrupt: no no no"),
        ("raise SystemExit", "SystemExit"))),
    ("disagreement.py", "D of a model", "def model_disagreement(*_): D = 0",
     "D with one layer is None, expected float64 of shape []"),
    ("attention.py", "causal mask",
     "def causal_mask(queries, keys, device=None): return torch.ones(queries, keys).tril()",
     "is float32, expected bool"),
    ("routing_dynamic.py", "dynamic routing", "def dynamic_routing(V, *_, **__): return V,",
     "number of results is 1, expected 3: Omega, C, B"),
    *((FAULTS, "horizontal fault", f"def name_horizontal_routing_fault(version): {body}", message)
      for body, message in (
        ("return 'right'", "names 1 of 5 versions; 'later' is called 'right'"),
        ("return 'later'", "names 1 of 5 versions; 'right' is called 'later'"),
        ("raise SystemExit", "SystemExit, with the version 'right', in line"),
        ("pass", "names 0 of 5 versions; 'right' is called None"))),
    # raised in another task's body, which is the project's: the line that calls it
    ("disagreement.py", "D of a layer",
     "def layer_disagreement(*_): return position_disagreement(0)",
     ": def layer_disagreement(*_): return position_disagreement(0)"),
    ("disagreement.py", "D of a layer", # raised in the student's own: the line that raises it
     "def layer_disagreement(*_): return helper()\ndef helper(): return 1 / 0",
     ": def helper(): return 1 / 0"),
])
def test_a_mistake_is_one_line(file, task, solution, message, tmp_path):
    write_solution(tmp_path, file, solution)
    error = find_error(TASKS[task], tmp_path)
    assert message in error and "\n" not in error and len(error) < 500


def test_a_docstring_lists_the_faults(monkeypatch):
    """The right version is one of five. A text that is not in the file once is an error."""
    listed = []
    monkeypatch.setattr(checks, "name_versions", lambda *arguments: listed.append(arguments))
    for task in TASKS.values():
        if task.file == FAULTS:
            CHECKS[task.name][0](faults)
    monkeypatch.undo()
    assert len(listed) == 7
    for name_fault, function, texts in listed:
        assert re.findall(r'^ +"(\w+)": ', name_fault.__doc__, re.M) == [*texts]
        with pytest.raises(checks.Wrong, match="names 1 of 5 versions"):
            checks.name_versions(lambda version: "right", function, texts)
    with pytest.raises(LookupError, match="routing_dynamic has 0 times 'no such text'"):
        checks.name_versions(str, checks.dynamic_routing, {"gone": ("no such text", "")})


def test_the_command_grades_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    write_solution(tmp_path, "routing_dynamic.py", "def agreement(V, capsules):\n    return V\n")
    write_solution(tmp_path, FAULTS, "def name_dynamic_routing_fault(_):\n    return 'right'\n")
    grade.main([str(tmp_path), "--session", "3"])
    assert os.environ["OMP_NUM_THREADS"] == "1"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Li 2019 Alg. 1, Gu 2019 Eq. 11, agreement: agreement has shape")
    assert lines[1].startswith("Li 2019 Alg. 1, Eq. 7-8, dynamic routing fault: names 1 of 5 ver")
    assert lines[-1].split() == "all 7 of 10 4 of 6".split()
    assert [line.split()[-1] for line in lines[-7:-1]] == ["yes", "yes", "yes", "no", "yes", "no"]
    assert lines[-9].split() == "session task equation points passed".split()
    assert lines[-7].split() == "3 squash Li 2019 Eq. 8 1 yes".split()
    assert lines[2].startswith("--task NAME")
    assert "--task" not in grade.report(DYNAMIC, [""] * 5, True)
    assert find_error(TASKS["E-step"], tmp_path) == "missing file routing_em.py"
    assert grade.main(["none"]) == 2
    assert "python -m exercises.grade: error: none: no such folder" in capsys.readouterr().err
    assert grade.main([str(ROOT)]) == 2 and "is the project itself" in capsys.readouterr().err


def test_the_command_shows_the_inputs_of_a_task(tmp_path, capsys):
    write_solution(tmp_path, "routing_dynamic.py", "def squash(s, dim=-1): return 2 * s\n")
    grade.main([str(tmp_path), "--task", "squash"])
    out = capsys.readouterr().out
    assert out.startswith("Li 2019 Eq. 8, squash: ") and "0 of 1" in out
    assert '"squash(s), dim=0": module.squash(s, 0)' in out and "\ns = tensor([[-0.43" in out
    assert "TARGET = tensor" in describe_check(TASKS["squared cosines"])      # its mask
    grade.main([str(tmp_path), "--task", "agreement"])
    assert "tensor" not in capsys.readouterr().out       # it is passed
    grade.main([str(tmp_path), "--task", "routing_dynamic.py"])
    out = capsys.readouterr().out
    assert "4 of 5" in out and out.count("tensor") == 1 and "--task NAME" not in out


def names_of(text: str | None) -> list[str]:
    return [task.name for task in grade.choose_tasks(None, text)]


def test_a_task_is_chosen_by_its_name_a_part_of_it_or_its_function():
    assert sorted(names_of(None)) == sorted(TASKS)
    sessions = [task.session for task in grade.choose_tasks(None, None)]
    assert sessions == sorted(sessions)
    assert parse(grade.Settings, ["folder", "--session", "7"]).session == 7        # the last one
    assert names_of("attention") == ["attention"]        # not the two that end in it
    assert names_of("m-step") == ["M-step, mean and deviation", "M-step, activations"]
    assert names_of("weigh_votes") == ["weighted votes", "unchosen capsules"]
    assert names_of("routing_dynamic.py") == [task.name for task in DYNAMIC]
    assert names_of("loss.py") == ["label smoothing"]


@pytest.mark.parametrize("words, error", [
    ("sqash", "--task 'sqash': no such task; choose from 'heads', "),
    ("squash --session 4", "--task 'squash': no such task; choose from 'M-step, mean")])
def test_a_task_that_does_not_exist_is_an_error(words, error, tmp_path, capsys):
    assert grade.main([str(tmp_path), "--task", *words.split()]) == 2
    assert error in capsys.readouterr().err


def test_a_folder_without_files_is_a_warning(tmp_path, capsys):
    """Which names the folder that has them, as a student hands them in."""
    below = tmp_path / "mine"
    below.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "other.py").touch()
    warning = f"warning: {tmp_path}: has no file of these tasks"
    assert grade.describe_missing(tmp_path, DYNAMIC) == warning
    write_solution(below, "routing_dynamic.py")
    grade.main([str(tmp_path), "--task", "squash", "--csv", str(tmp_path / "class.csv")])
    table = (tmp_path / "class.csv").read_text("utf-8")
    assert table.splitlines()[1] == f"{tmp_path.name},0,0"
    captured = capsys.readouterr().err
    assert captured == f"{tmp_path}\n{warning}; {below} has: grade that folder\n"
    assert grade.main([str(tmp_path / "class.csv")]) == 2
    assert "class.csv: is a file: name its folder" in capsys.readouterr().err
    assert grade.describe_missing(below, [*TASKS.values()]) == ""            # of several files


@pytest.mark.parametrize("file, kept, taken_out", [
    ("routing_em.py", "if gradient not in GRADIENTS:", "for t in range"),
    ("routing_em.py", "check_votes(votes, ", "for t in range"),
    ("routing_em.py", "    #   without beta_a and beta_mu log A is 0\n", "logsigmoid"),
    ("routing_dynamic.py", "    # Session 3, Li 2019 Eq. 8: squash, 1 point\n", "length ="),
    ("routing_dynamic.py", "    #   at s = 0 the result and its gradient are 0", "length ="),
    ("attention.py", "# Session 6, Duan 2020 §3.2: routed attention, 1 point", "E.softmax"),
    ("transformer.py", "# Session 1, Vaswani 2017 §3.5: positions, 2 points\n", "torch.sin"),
    ("nmt/loss.py", "the share eps", "softmax"),
    ("nmt/loss.py", "the share eps", "(1 - eps)"),
    ("nmt/loss.py", "the share eps", "def fused_piece_loss"),
])
def test_a_stub_keeps_checks_and_hides_the_solution(file, kept, taken_out):
    stub = make_stub(file)
    assert kept in stub and taken_out not in stub


def test_a_task_has_the_session_and_equations_of_its_check():
    """Sessions are headings in checks.py, equations are in the names of its functions. The README
    has their number and the points."""
    source = inspect.getsource(checks)
    for task in TASKS.values():
        name = CHECKS[task.name][0].__name__
        sessions = re.findall(r"# ---- Session (\d)", source[:source.index(f"def {name}(")])
        assert sessions[-1] == str(task.session), task
        printed = re.findall(r"(?<=Eq. )\d+|(?<=\d-)\d+", task.equation)
        assert {*printed} <= {*re.findall(r"eq(\d+)", name)}, task
    readme = " ".join((ROOT / "exercises" / "README.md").read_text("utf-8").split())
    points = sum(task.points for task in TASKS.values())
    for phrase in (f"{len(TASKS)} tasks", f"{points} points", f"take {grade.SECONDS} seconds",
                   f"waits {grade.WAIT} seconds for a task"):
        assert phrase in readme


def test_nothing_is_overwritten(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "a new one"
    assert make.main([str(folder)]) == 0
    assert capsys.readouterr().out == (
        f"{folder}: 13 files with 47 tasks\n"
        f"grade them: {shell_line('python', '-m', 'exercises.grade', folder)}\n")
    assert make.main([str(tmp_path)]) == 2
    error = f"{tmp_path}: cannot write (File exists): choose another place\n"
    assert capsys.readouterr().err == f"python -m exercises.make: error: {error}"
    monkeypatch.setattr(make, "make_stub", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    assert make.main([str(tmp_path / "half written")]) == 2
    assert "free some space and repeat the command" in capsys.readouterr().err
    assert not (tmp_path / "half written").exists()


NO_TENSOR = "agreement is None, expected float64 of shape [2, 4, 3]"
WRITE_EVERYWHERE = """
import contextlib, os, threading, time
def write_everywhere():
    for number in range(3, 99):
        with contextlib.suppress(OSError):
            os.set_blocking(number, False)
            os.write(number, b"x" * 9)
"""


@pytest.mark.parametrize("agreement, share, error", [
    ("os._exit(0)", 1, "ended Python"),
    ("os._exit(0)", 5, "ended Python"),
    pytest.param("while True: pass", 5, "did not end within 1 s of processor time",
                 marks=pytest.mark.skipif(not grade.LINUX, reason="elsewhere there is no limit")),
    ("time.sleep(99)", 1, "did not end within 3 s"),
    ("os.closerange(3, 99)", 5, NO_TENSOR),
    ("write_everywhere()", 5, NO_TENSOR),
    ("threading.Thread(target=time.sleep, args=(99,)).start()", 1, NO_TENSOR),
    ("V.__class__.log_softmax = None; raise Exception('not written yet')", 1, "not written yet"),
])
def test_the_other_tasks_survive(agreement, share, error, tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "SECONDS", 1)
    monkeypatch.setattr(grade, "WAIT", 3 if "sleep" in agreement else 60)
    monkeypatch.setattr(grade, "SHARE", share)
    write_solution(tmp_path, "routing_dynamic.py",
                   f"{WRITE_EVERYWHERE}\ndef agreement(V, capsules):\n    {agreement}\n")
    place = tmp_path / "routing_dynamic.py"
    line = f"Li 2019 Alg. 1, Gu 2019 Eq. 11, agreement: {error} ({place}: agreement)"
    assert grade.grade(DYNAMIC, tmp_path) == ["", "", "", line, ""]


def test_a_server_that_is_ending_is_waited_for(monkeypatch):
    """It refuses connections."""
    calls = []

    def refuse_twice():
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionRefusedError

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    grade.start(SimpleNamespace(start=refuse_twice))
    assert len(calls) == 3


@pytest.mark.skipif(not grade.LINUX, reason="elsewhere files have no limit")
def test_what_a_solution_prints_and_starts_has_an_end(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(grade, "SECONDS", 1)
    code = f"""import os, subprocess
def agreement(V, capsules):
    child = subprocess.Popen(["sleep", "77"])
    open("{tmp_path}/child", "w").write(str(child.pid))
    while True:
        os.write(2, b"hello" * 99)
"""
    write_solution(tmp_path, "routing_dynamic.py", code)
    message = grade.grade(DYNAMIC, tmp_path)[3]
    assert "prints, or writes into a file, more than 100 kB" in message
    assert grade.OUTPUT == 100_000
    assert len(capfd.readouterr().err) == grade.OUTPUT
    child = Path("/proc") / (tmp_path / "child").read_text("utf-8") / "stat"
    deadline = time.monotonic() + 9
    while child.exists() and ") Z " not in child.read_text("utf-8") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.exists() or ") Z " in child.read_text("utf-8")


@pytest.mark.parametrize("module", ["my_helpers", ".my_helpers"])
def test_a_helper_module_beside_a_file_is_found(module, tmp_path):
    (tmp_path / "my_helpers.py").write_text("def double(x):\n    return 2 * x\n", "utf-8")
    write_solution(tmp_path, "routing_dynamic.py",
                   f"from {module} import double\ndef squash(s, dim=-1): return double(s)\n")
    lines = grade.grade(DYNAMIC, tmp_path)
    assert "squash(s)[0, 0] is" in lines[0] and lines[1:] == 4 * [""]


def test_a_class_is_a_table_with_a_row_for_each_folder(tmp_path, capfd):
    """What solutions print is not in it; one that ends Python loses only its tasks."""
    bob = "Łukasz" if sys.getfilesystemencoding() == "utf-8" else "bob"
    for name, mistake in ((bob, "import os\nos.system('echo hello')\nprint('hello')\n"
                                "def squash(s, dim=-1): return s"),
                          ("dan", "import os\nos._exit(0)"),
                          ("eve", "")):
        (tmp_path / name).mkdir()
        write_solution(tmp_path / name, "routing_dynamic.py", mistake)
    write_solution(tmp_path / "eve", FAULTS)
    folders = [str(tmp_path / name) for name in (bob, "dan", "eve")]
    grade.main([*folders, "--session", "3", "--csv", str(tmp_path / "class.csv")])
    content = (tmp_path / "class.csv").read_bytes()
    rows = [line.split(",") for line in content.removeprefix(BYTE_ORDER_MARK).decode().splitlines()]
    assert rows[0][:3] == ["folder", "points", "squash"]
    assert [" ".join(row[:3]) for row in rows[1:]] == [f"{bob} 7 0", "dan 0 0", "eve 10 1",
                                                       "maximum 10 1"]
    assert content.startswith(BYTE_ORDER_MARK) and not capfd.readouterr().out
