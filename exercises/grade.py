"""Grades a student's files: `pytest --mine FOLDER [-m session4] [--report]`.

Every task is graded by itself: of the student's file it takes that one body and all that is no
task; the bodies of the file's other tasks are ours, and so is what it imports. So tasks may be done
in any order, and a mistake costs one task. This file is a plugin of pytest; test_tasks.py has the
tests.
"""
import importlib
import traceback
import types
import zlib
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from tabulate import tabulate
from torch import Tensor

from exercises.make import HERE, ROOT, TASKS, Task

SNAPSHOTS = HERE / "snapshots"


class Wrong(AssertionError):
    """A result is not what the equation gives."""


# ---- The module that is graded

def ours(task: Task):
    """The project's own module."""
    return importlib.import_module(task.file.removesuffix(".py").replace("/", "."))


def path_of(task: Task, folder: Path | None) -> Path:
    """The file of a task in a student's folder; without a folder, ours."""
    return folder / Path(task.file).name if folder else ROOT / task.file


def load(task: Task, folder: Path | None):
    """The module that is graded: the student's, in which the bodies of other tasks are ours."""
    if folder is None:
        return ours(task)
    path = path_of(task, folder)
    module = types.ModuleType(path.stem)
    exec(compile(path.read_bytes(), path, "exec"), vars(module))
    for other in TASKS.values():
        if other.file == task.file and other.body != task.body:
            # the code alone: who holds the function already, as KINDS does, has the right one too
            attrgetter(other.body)(module).__code__ = attrgetter(other.body)(ours(task)).__code__
    return module


# ---- Snapshots

def draw(seed: str, shapes: dict) -> dict[str, np.ndarray]:
    """Standard normal numbers of these shapes, the same for the same seed."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def results(check, module, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a check returns, and the gradients by its inputs of the sum of all that, the numbers of
    a tensor weighted by cos 0, cos 1, cos 2, ..."""
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in inputs.items()}
    found = {}
    total = torch.zeros(())
    for name, value in (check(module, **tensors) or {}).items():
        if isinstance(value, Tensor):
            if value.requires_grad:
                weights = torch.arange(value.numel()).double().cos().view(value.shape)
                total = total + (weights * value).sum()
            value = value.detach()
        found[name] = np.asarray(value)
    if total.requires_grad:
        gradients = torch.autograd.grad(total, list(tensors.values()), materialize_grads=True)
        for name, gradient in zip(tensors, gradients):
            found[f"the gradient by {name}"] = gradient.numpy()
    return found


def compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Raises Wrong where the results are not those of the snapshot."""
    if found and not expected:
        raise Wrong("has no snapshot: `python -m exercises.make` makes it")
    for name, want in expected.items():
        if name not in found:
            raise Wrong("no gradient flows back to the inputs")
        got = found[name]
        if got.shape != want.shape:
            raise Wrong(f"{name} has shape {list(got.shape)}, expected {list(want.shape)}")
        if want.dtype.kind == "f":
            wrong = ~np.isclose(got, want, rtol=1e-6, atol=1e-9)
            with np.errstate(invalid="ignore"):
                distance = np.where(wrong, np.abs(got - want), 0)
            distance[np.isnan(distance)] = np.inf
            by = f"off by {distance.max(initial=0):.2g}"
            shown = ".6g"
        else:
            wrong = got != want
            distance = wrong
            by = f"wrong in {wrong.sum()} of {wrong.size}"
            shown = ""
        if wrong.any():
            worst = np.unravel_index(distance.argmax(), wrong.shape)
            place = f"[{', '.join(map(str, worst))}] is " if worst else ""
            raise Wrong(f"{name} is {by}: {place}{got[worst]:{shown}}, expected "
                        f"{want[worst]:{shown}}")


def small(error, claim: str, tolerance: float = 1e-9) -> None:
    """Raises Wrong unless the errors (numbers or a tensor) are within the tolerance; claim: what
    holds where they are."""
    largest = torch.as_tensor(error).abs().max().item()
    if not largest <= tolerance:
        raise Wrong(f"does not hold: {claim} (off by {largest:.2g})")


# ---- Graded tests

def task(name: str, **shapes):
    """Makes a graded test of `check(module, **inputs)`: of the module under test and standard
    normal tensors of these shapes.

    What it returns, {name: tensor, numbers or words}, and the gradients by its inputs have to be
    those of the snapshot. One that returns nothing looks at a property, and raises Wrong.
    """
    of = TASKS[name]

    def graded_test(check):
        def graded(mine):
            inputs, expected = recorded(check, shapes)
            wrong = ""
            try:
                compare(results(check, load(of, mine), inputs), expected)
            except Exception as error:
                wrong = explain(error, of, path_of(of, mine))
            if wrong:
                pytest.fail(wrong, pytrace=False)

        graded.task = of
        graded.check = check
        graded.shapes = shapes
        return graded
    return graded_test


def recorded(check, shapes: dict) -> tuple[dict, dict]:
    """The inputs of a check, and the results that it should have: none, if it has no snapshot."""
    path = SNAPSHOTS / f"{check.__name__}.npz"
    if not path.exists():
        return draw(check.__name__, shapes), {}
    arrays = dict(np.load(path))
    inputs = {name: arrays.pop(f"input {name}") for name in shapes}
    return inputs, arrays


def explain(error: Exception, task: Task, path: Path) -> str:
    """What is wrong with which equation, in words that show nothing of our code."""
    what = " ".join(str(error).split())
    if isinstance(error, NotImplementedError):
        what = "not written yet"
    elif not isinstance(error, Wrong):
        what = f"{type(error).__name__}: {what}"
        lines = [frame for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == str(path)]
        if lines:
            what += f", in line {lines[-1].lineno}: {lines[-1].line}"
    return f"{task.equation}, {task.name}: {what} ({path}: {task.body})"


def snapshots() -> dict[str, dict[str, np.ndarray]]:
    """What our own modules give: {test: inputs and results}."""
    from exercises import test_tasks

    found = {}
    for name, test in vars(test_tasks).items():
        if name.startswith("test_"):
            inputs = draw(name, test.shapes)
            arrays = results(test.check, ours(test.task), inputs)
            if arrays:
                found[name] = {**{f"input {x}": inputs[x] for x in inputs}, **arrays}
    return found


def record() -> None:
    """Writes the snapshots anew."""
    found = snapshots()                     # first: an error leaves the old ones where they are
    SNAPSHOTS.mkdir(exist_ok=True)
    for path in SNAPSHOTS.glob("*.npz"):
        path.unlink()
    for name, arrays in found.items():
        np.savez_compressed(SNAPSHOTS / name, **arrays)


# ---- The plugin

def pytest_addoption(parser):
    """The two flags."""
    group = parser.getgroup("exercises", "grading, see exercises/README.md")
    group.addoption("--mine", metavar="FOLDER", type=Path,
                    help="grade the files in this folder in place of our own; no other test runs")
    group.addoption("--report", action="store_true",
                    help="a table of the exercises, their points and which are passed")


def pytest_configure(config):
    """A wrong folder is told before anything runs; the report takes the place of the list of what
    failed."""
    folder = config.getoption("mine")
    if config.getoption("report"):
        config.option.reportchars = ""
    if folder and not folder.is_dir():
        raise pytest.UsageError(f"--mine {folder}: no such folder; `python -m exercises.make "
                                f"{folder}` makes one")


def pytest_ignore_collect(collection_path, config):
    """With --mine the project's own tests stay out."""
    if config.getoption("mine") and (ROOT / "tests") in collection_path.parents:
        return True


@pytest.fixture
def mine(request) -> Path | None:
    """The student's folder; None: our own modules."""
    return request.config.getoption("mine")


def pytest_itemcollected(item):
    """A graded test bears the marker of its session, and tells the report its task."""
    task = getattr(getattr(item, "obj", None), "task", None)
    if isinstance(task, Task):
        item.add_marker(f"session{task.session}")
        item.user_properties.append(("task", task.name))


def pytest_terminal_summary(terminalreporter, config):
    """The table of --report: a task is passed when all of its tests are."""
    if not config.getoption("report"):
        return
    passed = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            name = dict(report.user_properties).get("task")
            if name:
                passed[name] = passed.get(name, True) and outcome == "passed"
    graded = [task for task in TASKS.values() if task.name in passed]
    rows = []
    for task in sorted(graded, key=lambda task: task.session):
        answer = "yes" if passed[task.name] else "no"
        rows.append([task.session, task.name, task.equation, task.points, answer])
    points = sum(task.points for task in graded)
    earned = sum(task.points for task in graded if passed[task.name])
    done = sum(passed.values())
    rows.append(["", "all", "", f"{earned} of {points}", f"{done} of {len(graded)}"])
    terminalreporter.section("exercises")
    terminalreporter.write_line(
        tabulate(rows, ["session", "task", "equation", "points", "passed"], "simple"))
