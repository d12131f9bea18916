"""Grades a task: runs its check on a student's file and on the project's, and compares the results.

The body of the task and all code outside the tasks are the student's. The bodies of the file's
other tasks are the project's.
"""
import ast
import errno
import importlib
import inspect
import traceback
import types
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from exercises.checks import CHECKS, Wrong
from exercises.make import FAULTS, NOT_WRITTEN, ROOT, TASKS, Task, find_functions


def project_module(task: Task):
    """Imports the project's own file of a task."""
    return importlib.import_module(task.file.removesuffix(".py").replace("/", "."))


def load(task: Task, path: Path):
    """Loads the student's module, with the project's functions for the file's other tasks."""
    if not path.exists():
        raise Wrong(f"missing file {path.name}")
    tree = ast.parse(path.read_bytes(), path)
    functions = find_functions(tree)
    own = ast.parse((ROOT / task.file).read_bytes())
    ast.increment_lineno(own, 10 ** 6)                      # no lines of the student's file
    solved = find_functions(own)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    module.__package__ = path.resolve().parent.name         # for `from .my_helpers import ...`
    for other in TASKS.values():
        if other.file != task.file or other.body == task.body:
            continue
        owner = other.body.rpartition(".")[0]               # the class of a method
        if other.body in functions:
            vars(functions[other.body]).update(vars(solved[other.body]))
        elif owner in functions:                            # a deleted method
            functions[owner].body.append(solved[other.body])
        elif not owner:                                     # a deleted function
            setattr(module, other.body, getattr(project_module(task), other.body))
    exec(compile(tree, path, "exec"), vars(module))
    return module


def draw_inputs(task: str) -> dict[str, Tensor]:
    """Draws standard normal numbers as inputs of a task's check, the same at every call."""
    _, shapes = CHECKS[task]
    rng = np.random.default_rng(zlib.crc32(task.encode()))
    inputs = {}
    for name, shape in shapes.items():
        inputs[name] = torch.tensor(rng.standard_normal(shape), requires_grad=True)
    return inputs


def compute_results(module, task: Task) -> dict[str, np.ndarray]:
    """Returns the results of a task's check, and the gradients of their sum by the inputs. In the
    sum the numbers of a tensor are weighted by cos 0, cos 1, cos 2, ..."""
    function, _ = CHECKS[task.name]
    inputs = draw_inputs(task.name)
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
            results[f"the gradient with respect to {name}"] = gradient.numpy()
    return results


def describe_check(task: Task) -> str:
    """Returns the code of a task's check, its inputs, and the masks that it names, as text."""
    function, _ = CHECKS[task.name]
    parts = [f"The check, where module is your {Path(task.file).name}:",
             inspect.getsource(function)]
    inputs = draw_inputs(task.name)
    if inputs:
        parts.append(f"Its inputs, `exercises.compare.draw_inputs({task.name!r})`:")
    for name, value in inputs.items():
        parts.append(f"{name} = {value.detach()}")
    for name in function.__code__.co_names:
        if name.isupper() and name in function.__globals__:                  # a mask of checks.py
            parts.append(f"{name} = {function.__globals__[name]}")
    return "\n\n".join(part.strip() for part in parts)


def check_results(results: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Raises Wrong for the first result that is not the expected one."""
    for name, want in expected.items():
        if name not in results:
            raise Wrong("no gradient flows back to the inputs, as after detach() or item()")
        got = results[name]
        quantity, _, case = name.partition(", ")
        case = f" with {case}" if case else ""
        if got.dtype == object:
            raise Wrong(f"{quantity}{case} is {got}, expected {want.dtype} of shape "
                        f"{list(want.shape)}")
        if got.shape != want.shape:
            raise Wrong(f"{quantity}{case} has shape {list(got.shape)}, expected "
                        f"{list(want.shape)}")
        if got.dtype != want.dtype and want.dtype.kind in "bf":
            raise Wrong(f"{quantity}{case} is {got.dtype}, expected {want.dtype}")
        if want.dtype.kind == "f":
            wrong = ~np.isclose(got, want, rtol=1e-6, atol=1e-9)
        else:
            wrong = got != want
        if wrong.any():
            place = np.unravel_index(wrong.argmax(), wrong.shape)            # the first wrong one
            index = f"[{', '.join(map(str, place))}]" if place else ""
            count = f" (wrong in {wrong.sum()} of {wrong.size} places)" if place else ""
            raise Wrong(f"{quantity}{index}{case} is {got[place]}, expected {want[place]}{count}")


def explain(error: BaseException, path: Path) -> str:
    """Describes an error in one line, with the line of the student's file that raised it."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, Wrong) or text == NOT_WRITTEN:
        return text
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return "prints, or writes into a file, more than 100 kB"
    text = f"{type(error).__name__}: {text}".removesuffix(": ")
    text = ", ".join([text, *getattr(error, "__notes__", [])])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if frame.filename == str(path) and frame.line]
    if frames:
        text += f", in line {frames[-1].lineno}: {frames[-1].line}"
    return text


def find_error(task: Task, folder: Path) -> str:
    """Returns the error of a task in a student's folder as one line, "" if there is none."""
    path = folder / Path(task.file).name
    expected = {}
    if task.file != FAULTS:                                  # its checks compare with nothing
        expected = compute_results(project_module(task), task)
    try:
        check_results(compute_results(load(task, path), task), expected)
    except BaseException as error:                           # SystemExit and KeyboardInterrupt too
        return explain(error, path)
    return ""
