"""The exercises: stubs and snapshots are those of the modules, every task has tests that only it
fails, plain solutions earn the plain points, and messages name the equation and keep the formula to
themselves."""
import re
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

import routing_dynamic
from exercises import make, test_tasks
from exercises.grade import ours, snapshots
from exercises.make import HERE, ROOT, TABLE, TASKS, functions, stub, stubs

TESTS = {name: test for name, test in vars(test_tasks).items() if name.startswith("test_")}
BODIES = sorted({(task.file, task.body) for task in TASKS.values()})


def of_file(file: str) -> dict:
    """The graded tests of a file's tasks."""
    return {name: test for name, test in TESTS.items() if test.task.file == file}


def outcome(test, folder) -> str:
    """The message of a graded test; "" where it passes."""
    try:
        test(folder)
    except pytest.fail.Exception as failure:
        return failure.msg
    return ""


def failing(file: str, folder) -> dict[str, str]:
    """{test: message} of the tests of a file's tasks that fail."""
    messages = {name: outcome(test, folder) for name, test in of_file(file).items()}
    return {name: message for name, message in messages.items() if message}


def replace(monkeypatch, task, body) -> None:
    """Puts a function in the place of a task's body, in our own module."""
    *owner, name = task.body.split(".")
    place = getattr(ours(task), owner[0]) if owner else ours(task)
    monkeypatch.setattr(place, name, body)


# Stubs and snapshots

def test_stubs_are_those_of_the_modules():
    """Where one differs, `python -m exercises.make` writes them anew."""
    for name, text in stubs().items():
        assert (HERE / name).read_text() == text, name


def test_snapshots_are_those_of_the_modules():
    """As above."""
    found = snapshots()
    assert {path.stem for path in (HERE / "snapshots").iterdir()} == found.keys()
    for name, arrays in found.items():
        recorded = np.load(HERE / "snapshots" / f"{name}.npz")
        assert set(recorded) == set(arrays), name
        for key, array in arrays.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(recorded[key], array, 1e-9, 1e-12, err_msg=name)
            else:
                assert (recorded[key] == array).all(), name


def test_tasks_are_spread_over_seven_sessions():
    assert {task.session for task in TASKS.values()} == set(range(1, 8))
    assert {task.points for task in TASKS.values()} == {1, 2, 3}
    assert {test.task.name for test in TESTS.values()} == TASKS.keys()
    assert len(TASKS) == sum(map(len, TABLE.values()))                       # no name twice


@pytest.mark.parametrize("session", range(1, 8))
def test_the_course_lists_them(session):
    """docs/course.md has a row of every session with its tasks and their points."""
    tasks = [task for task in TASKS.values() if task.session == session]
    file_names = dict.fromkeys(Path(task.file).name for task in tasks)
    files = ", ".join(f"`{name}`" for name in file_names)
    names = "; ".join(f"{task.name} ({task.points})" for task in tasks)
    assert f"| {session} | {files} | {names} |" in (ROOT / "docs" / "course.md").read_text()


# Which tests fail

@pytest.mark.parametrize("file, body", BODIES, ids=lambda word: word)
def test_a_stub_alone_fails_exactly_its_own_tests(file, body, tmp_path):
    text = stub(file, {body})
    assert f"def {body.split('.')[-1]}" in text
    (tmp_path / Path(file).name).write_text(text)
    own = {name for name, test in of_file(file).items() if test.task.body == body}
    messages = failing(file, tmp_path)
    assert messages.keys() == own
    assert all("not written yet" in message for message in messages.values())


@pytest.mark.parametrize("file, body", BODIES, ids=lambda word: word)
def test_our_body_put_back_passes_them(file, body, tmp_path):
    others = {task.body for task in TASKS.values() if task.file == file} - {body}
    text = stub(file, others) if others else (ROOT / file).read_text()
    (tmp_path / Path(file).name).write_text(text)
    others_tests = {name for name, test in of_file(file).items() if test.task.body != body}
    assert failing(file, tmp_path).keys() == others_tests


def pairs_of_cosines(vectors, mask):
    """The double sum of Li 2018 Eq. 1, a pair of heads after the other."""
    heads = F.normalize(vectors, dim=-1).unbind(-3)
    total = sum((x * y).sum(-1) for x in heads for y in heads) / len(heads) ** 2
    return -(total.mean() if mask is None else total[mask].mean())


def pairs_of_positions(weights, mask=None, reduce="mean"):
    """The double sum of Li 2018 Eq. 2, likewise."""
    heads = weights.unbind(-3)
    rows = sum((x * y).sum(-1) for x in heads for y in heads) / len(heads) ** 2
    if reduce == "sum":
        return -(rows if mask is None else rows * mask).sum(-1).mean()
    return -(rows.mean() if mask is None else rows[mask].mean())


def coupled(V, B, normalize=True, mask=None):
    """Li 2019 Eq. 7 as printed."""
    B = B if mask is None else B.masked_fill(~mask.unsqueeze(-2), -torch.inf)
    C = B.softmax(-1)
    s = (C.unsqueeze(-1) * V).sum(-3)
    if normalize:
        s = s / C.sum(-2).unsqueeze(-1)
    return routing_dynamic.squash(s), C


def token_by_token(E, iterations=3, mask=None, last=None):
    """Duan Algorithm 3, a token after the other."""
    if iterations < 1:
        raise ValueError("no iteration")
    L = E.shape[-2]
    E = E if mask is None else E.masked_fill(~mask, 0)
    rows = torch.ones(E.shape[:-1], dtype=torch.bool)[..., 0, :]
    if mask is not None:
        rows = mask.expand(E.shape).any(-1).any(-2)
    omega = []
    for l in range(L - (last or L), L):
        votes = E[..., :l + 1, :].transpose(-3, -2) * rows[..., :l + 1, None, None]  # [t, H, L_k]
        capsules = routing_dynamic.dynamic_routing(votes, iterations, normalize=False).capsules
        omega.append(capsules * rows[..., l, None, None])
    return torch.stack(omega, dim=-2)


def with_all_logits(hidden, weight, target, smoothing=0.0):
    """Label smoothing as torch has it."""
    return F.cross_entropy(hidden @ weight.T, target, reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("plain, better, body", [
    ("cosines, double sum", "cosines in O(H)", pairs_of_cosines),
    ("positions, double sum", "positions in O(H)", pairs_of_positions),
    ("output capsules", "capsules nobody chooses", coupled),
    ("horizontal, one token", "horizontal, all at once", token_by_token),
    ("label smoothing", "smoothing without logits", with_all_logits),
])
def test_a_plain_solution_earns_the_plain_points(plain, better, body, monkeypatch):
    replace(monkeypatch, TASKS[plain], body)
    messages = {name: outcome(test, None) for name, test in TESTS.items()
                if test.task.name in (plain, better)}
    passed = {TESTS[name].task.name for name, message in messages.items() if not message}
    failed = {TESTS[name].task.name for name, message in messages.items() if message}
    assert plain in passed and failed == {better}, messages


# Messages

def slightly_wrong(x):
    """A result that is not quite the right one."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        return x * 1.01 if x.is_floating_point() else ~x
    return x * 1.01 if isinstance(x, float) else x + type(x)(1)


@pytest.mark.parametrize("file, body", BODIES, ids=lambda word: word)
def test_wrong_results_are_told_by_equation_and_amount(file, body, monkeypatch):
    """...and the message holds no line of the right body."""
    task = next(task for task in TASKS.values() if (task.file, task.body) == (file, body))
    node = functions((ROOT / file).read_text())[body]
    code = (ROOT / file).read_text().splitlines()[node.body[0].end_lineno:node.end_lineno]
    lines = {line.split("  #")[0].strip() for line in code}
    right = attrgetter(body)(ours(task))
    replace(monkeypatch, task, lambda *args, **settings: tree_map(
        slightly_wrong, right(*args, **settings)))
    messages = [outcome(test, None) for test in TESTS.values() if test.task.name == task.name]
    messages = [message for message in messages if message]
    assert messages
    for message in messages:
        assert message.startswith(f"{task.equation}, {task.name}: ")
        assert "off by" in message or "wrong in" in message
        assert not any(line in message for line in lines if len(line) > 9)


@pytest.mark.parametrize("text, told", [
    ("def squash(s, dim=-1):\n    return s / s.size", ": return s / s.size"),
    ("def squash(s, dim=-1):\n    return s.norm(dim=dim)", "has shape [4], expected [4, 3]"),
    ("def squash(s, dim=-1):\n    return s.detach()", "off by"),
    ("def squash(s dim=-1):", "SyntaxError"),
    ("def squeeze(s):\n    return s", "has no attribute 'squash'"),
    (None, "No such file"),
])
def test_a_students_mistakes_are_told_in_a_line(text, told, tmp_path):
    if text is not None:
        whole = (ROOT / "routing_dynamic.py").read_text()
        (tmp_path / "routing_dynamic.py").write_text(f"{whole}\ndel squash\n{text}\n")
    message = outcome(test_tasks.test_li2019_eq8_squash, tmp_path)
    assert told in message and "\n" not in message


def test_the_command_grades_a_folder(tmp_path, capsys):
    """A student's folder with the tasks of session 3 done, but for a mistake in one."""
    folder = tmp_path / "mine"
    make.main([str(folder)])
    solved = (ROOT / "routing_dynamic.py").read_text()
    wrong = solved.replace("return (capsules", "return 2 * (capsules")
    (folder / "routing_dynamic.py").write_text(wrong)
    status = pytest.main([f"--mine={folder}", "-m", "session3", "--report", f"--rootdir={ROOT}",
                          f"--config-file={ROOT / 'pyproject.toml'}", "-p", "no:cacheprovider"])
    printed = capsys.readouterr().out
    assert status == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"^ +all +7 of 8 +4 of 5$", printed, re.MULTILINE)
    assert "\nLi 2019 Alg. 1, Gu 2019 Eq. 11, agreement: the agreement is off by" in printed
    assert "deselected" in printed and "tests/" not in printed


def test_nothing_is_overwritten(tmp_path, capsys):
    """A folder that is there stays as it is, and a file that is no folder is told of."""
    (tmp_path / "routing_em.py").write_text("done")
    with pytest.raises(SystemExit, match="2"):
        make.main([str(tmp_path)])
    assert (tmp_path / "routing_em.py").read_text() == "done"
    assert capsys.readouterr().err == f"{tmp_path}: File exists: name a new folder\n"
