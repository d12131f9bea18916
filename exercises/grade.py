"""Grades a student's files: `pytest --mine FOLDER [-m session4] [--report]`.

Every task is graded by itself: its body and everything that is not a task come from the student's
file, the bodies of the file's other tasks from the project. So tasks may be done in any order, and
a mistake costs one task. This file is a plugin of pytest; test_tasks.py has the checks.
"""
import ast
import importlib
import signal
import traceback
import types
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tabulate import tabulate
from torch import Tensor

from docs.equations import find_functions
from exercises.make import NOT_WRITTEN, ROOT, TASKS, Task

SECONDS = 10                # a task may take
CHECKS = {}                 # name of a task -> its check, shapes of the check's inputs


class Wrong(AssertionError):
    """A result is not what the equation gives."""


def check(name: str, **shapes):
    """Registers `function(module, **inputs)` as the check of a task; module: the student's or the
    project's, inputs: standard normal tensors of these shapes in float64.

    What it returns, {name: tensor, numbers or words}, and the gradients by its inputs must be the
    same for both modules. It may raise Wrong, for example where a solution does too much work.
    """
    def register(function):
        CHECKS[name] = (function, shapes)
        return function
    return register


# ---- One task

def project_module(task: Task):
    """The project's own module."""
    return importlib.import_module(task.file.removesuffix(".py").replace("/", "."))


def load(task: Task, path: Path):
    """The student's module, with the project's functions for the file's other tasks."""
    tree = ast.parse(path.read_bytes(), path)
    functions = find_functions(tree)
    solved = find_functions(ast.parse((ROOT / task.file).read_bytes()))
    for other in TASKS.values():
        if other.file == task.file and other.body != task.body:
            vars(functions[other.body]).update(vars(solved[other.body]))
    module = types.ModuleType(path.stem)
    exec(compile(tree, path, "exec"), vars(module))
    return module


def draw_inputs(seed: str, shapes: dict) -> dict[str, Tensor]:
    """Standard normal numbers of these shapes, the same for the same seed."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    inputs = {}
    for name, shape in shapes.items():
        inputs[name] = torch.tensor(rng.standard_normal(shape), requires_grad=True)
    return inputs


def compute_results(module, task: Task) -> dict[str, np.ndarray]:
    """What the check of a task returns, and the gradients by its inputs of the sum of all that, the
    numbers of a tensor weighted by cos 0, cos 1, cos 2, ..."""
    function, shapes = CHECKS[task.name]
    inputs = draw_inputs(task.name, shapes)
    results = {}
    total = torch.zeros(())
    for name, value in function(module, **inputs).items():
        if isinstance(value, Tensor):
            if value.requires_grad:
                weights = torch.arange(value.numel()).double().cos().view(value.shape)
                total = total + (weights * value).sum()
            value = value.detach()
        results[name] = np.asarray(value)
    if total.requires_grad:
        gradients = torch.autograd.grad(total, list(inputs.values()), materialize_grads=True)
        for name, gradient in zip(inputs, gradients):
            results[f"the gradient by {name}"] = gradient.numpy()
    return results


def compare(results: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Raises Wrong where a result is not the expected one."""
    for name, want in expected.items():
        if name not in results:
            raise Wrong("no gradient flows back to the inputs")
        got = results[name]
        if got.shape != want.shape:
            raise Wrong(f"{name} has shape {list(got.shape)}, expected {list(want.shape)}")
        if want.dtype.kind == "f":
            wrong = ~np.isclose(got, want, rtol=1e-6, atol=1e-9)
        else:
            wrong = got != want
        if wrong.any():
            place = np.unravel_index(wrong.argmax(), wrong.shape)            # the first wrong one
            index = f"[{', '.join(map(str, place))}]" if place else ""
            raise Wrong(f"{name}{index} is {got[place]}, expected {want[place]} (wrong in "
                        f"{wrong.sum()} of {wrong.size} places, in float64)")


@contextmanager
def time_limit(seconds: float):
    """Raises Wrong in the block after so many seconds; no limit on Windows, which lacks SIGALRM."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_):
        raise Wrong(f"did not end within {seconds} s")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def explain(error: Exception, task: Task, path: Path) -> str:
    """The error in a line, with the line of the student's function where it came up."""
    text = " ".join(str(error).split())
    if isinstance(error, Wrong) or text == NOT_WRITTEN:
        return text
    text = f"{type(error).__name__}: {text}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == str(path) and task.body.endswith(frame.name):
            return f"{text}, in line {frame.lineno}: {frame.line}"
    return text


def grade(task: Task, folder: Path) -> str:
    """What is wrong with a task in a student's folder, in a line; "" where nothing is."""
    path = folder / Path(task.file).name
    expected = compute_results(project_module(task), task)
    try:
        with time_limit(SECONDS):
            compare(compute_results(load(task, path), task), expected)
    except (Exception, SystemExit) as error:
        return f"{task.equation}, {task.name}: {explain(error, task, path)} ({path}: {task.body})"
    return ""


# ---- The plugin

def pytest_addoption(parser):
    """The two flags."""
    group = parser.getgroup("exercises", "grading, see exercises/README.md")
    group.addoption("--mine", metavar="FOLDER", type=Path,
                    help="grade the exercises in this folder; no other test runs")
    group.addoption("--report", action="store_true",
                    help="a table of the exercises, their points and which are passed")


def pytest_configure(config):
    """Refuses a missing folder. The report replaces the list of what failed."""
    folder = config.getoption("mine")
    if folder and not folder.is_dir():
        raise pytest.UsageError(f"--mine {folder}: no such folder; `python -m exercises.make "
                                f"{folder}` makes one")
    if config.getoption("report"):
        config.option.reportchars = ""


def pytest_ignore_collect(collection_path, config):
    """With --mine only the exercises are graded, without it only the project's tests run."""
    left_out = ROOT / ("tests" if config.getoption("mine") else "exercises")
    if left_out in collection_path.parents:
        return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session, config, items):
    """Refuses a -m or -k that selects nothing."""
    if config.getoption("mine") and not items and not session.testsfailed:
        raise pytest.UsageError("no task is selected; the markers are session1 to session7")


def pytest_terminal_summary(terminalreporter, config):
    """The table of --report."""
    passed = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            passed |= {name: outcome == "passed" for _, name in report.user_properties}
    if not config.getoption("report") or not passed:
        return
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
