"""The documents against the code: the names, files, commands, flags and links in them exist."""
import ast
import contextlib
import importlib
import io
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest
from project_files import ROOT, project_files

DOCUMENTS = sorted(path for path in project_files() if path.suffix == ".md")
SCRIPTS = ("train_mt", "translate", "probe", "logic", "papers/analyze", "papers/reproduce",
           "papers/bench", "results/summary")
# flags of torchrun, pip, sacrebleu and jupytext
FOREIGN = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--index-url",
           "--paired-ar", "--paired-bs", "--to"}

every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())


def places(name: str) -> list[str]:
    """The files that a name means, by their end: `loss.py` is `nmt/loss.py`."""
    files = [path.relative_to(ROOT).as_posix() for path in project_files()]
    return [file for file in files if f"/{file}".endswith(f"/{name}")]


@cache
def names(file: str) -> set[str]:
    """Functions, classes, methods ("C.method") and constants of a Python file."""
    defined = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
            defined |= {f"{node.name}.{method.name}" for method in methods}
        for target in getattr(node, "targets", ()):
            defined |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return defined


@cache
def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    prose = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}


@cache
def flags(script: str) -> frozenset[str]:
    """The flags in the help of a script."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(script.replace("/", ".")).main(["--help"])
    return frozenset(re.findall(r"--[a-z][a-z0-9-]*", printed.getvalue()))


def commands(document: Path) -> list[tuple[str, str]]:
    """(module, the rest of the line) of every `python SCRIPT.py ...` and `python -m MODULE ...`."""
    command = r"(?:python3?|torchrun)( [^`|]*?)(?:-m ([\w.]+)|([\w/]+)\.py)((?: [^`|]*)?)"
    calls = []
    for line in document.read_text("utf-8").splitlines():
        for match in re.finditer(command, re.split(r"\s#\s", line)[0]):
            before, module, script, after = match.groups()
            calls.append(((module or script).replace(".", "/"), before + after.split(" && ")[0]))
    return calls


@every_document
def test_names_exist(document):
    missing = []
    text = document.read_text("utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", prose):
        named = re.fullmatch(r"([\w/]+\.py)(?:::|: )([\w.]+)", code.strip())
        if named:
            if not any(named[2] in names(place) for place in places(named[1])):
                missing.append(code)
        elif re.fullmatch(r"[\w/.-]+\.(py|md|json|toml|txt|svg|yml)", code.strip()):
            if not places(code.strip()):
                missing.append(code)
    assert not missing


@every_document
def test_links_lead_to_files_headings_and_lines(document):
    broken = []
    text = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        place, _, part = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        if not target.exists():
            broken.append(link)
        elif target.suffix == ".md" and part and part not in anchors(target):
            broken.append(link)
        elif re.fullmatch(r"L\d+", part):
            if int(part[1:]) > len(target.read_text("utf-8").splitlines()):
                broken.append(link)
    assert not broken


@every_document
def test_files_and_flags_of_commands_exist(document):
    """A flag behind a script is one of that script; any other, one of some script."""
    wrong = []
    for module, rest in commands(document):
        if not (places(f"{module}.py") or places(f"{module}/__main__.py") or module == "venv"):
            wrong.append(module)
        if module in SCRIPTS:
            given = set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", rest))
            wrong += [f"{module}.py {flag}" for flag in given - flags(module) - FOREIGN]
    text = document.read_text("utf-8")
    tests = re.findall(r"(?:pytest |\s)(tests/[\w/]+\.py)", text)
    wrong += [file for file in tests if not (ROOT / file).exists()]
    known = frozenset().union(*map(flags, SCRIPTS)) | FOREIGN
    prose = re.sub(r"<!--.*?-->", "", text)
    wrong += set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", prose)) - known
    assert not wrong


def test_the_loop_in_the_readme_is_that_of_the_code():
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"```python\n(for t in .*?)```", readme, flags=re.DOTALL)[1]
    assert textwrap.indent(block, "    ") in (ROOT / "routing_em.py").read_text("utf-8")


def test_the_code_in_contributing_runs():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    alone, training, _ = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(alone, names)
    assert names["y"].shape == names["x"].shape and names["loss"].isfinite()
    losses = []
    noted = training.replace("    loss.backward()", "    note(loss.item())\n    loss.backward()")
    exec(noted, names | {"note": losses.append})
    assert losses[-1] < losses[0] / 2


def test_the_diff_in_contributing_fits_the_code():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    diff, = re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL)
    code = (ROOT / "transformer.py").read_text("utf-8").splitlines()
    for line in re.findall("^[ -](.*)", diff, re.MULTILINE):
        assert line in code


def test_the_flags_in_the_picture_exist():
    picture = (ROOT / "docs" / "heads.svg").read_text("utf-8")
    assert set(re.findall(r"--[a-z][a-z-]*", picture)) <= flags("train_mt")
