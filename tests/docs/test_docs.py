"""The documents against the code: the names, files, commands, flags and links in them exist."""
import ast
import contextlib
import importlib
import io
import re
import sys
import textwrap
import types
from functools import cache
from pathlib import Path

import pytest
import torch
from project_files import project_files

import transformer
from attention import MultiHeadAttention
from docs import heads
from docs.equations import ROOT
from exercises.make import find_functions
from nmt.run_folder import custom_classes

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "exercises" / "README.md",
             ROOT / "results" / "README.md",
             *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = ("train_mt", "translate", "probe", "logic", "papers/analyze", "papers/reproduce",
           "papers/bench", "results/summary", "toy/__main__", "exercises/grade", "course/notebooks")
# flags of torchrun, pip, docker, Slurm and sacrebleu
FOREIGN = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--index-url",
           "--no-deps", "--shm-size", "--signal", "--paired-ar"}

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def places(name: str) -> list[str]:
    """The files that a name means, by their end: `loss.py` is `nmt/loss.py`."""
    files = [path.relative_to(ROOT).as_posix() for path in project_files()]
    return [file for file in files if f"/{file}".endswith(f"/{name}")]


@cache
def names(file: str) -> set[str]:
    """Functions, classes, methods ("C.method") and constants of a Python file."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    defined = set(find_functions(tree))
    for node in tree.body:
        for target in getattr(node, "targets", ()):
            defined |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return defined


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
    """Every file, `file: name` and `test_file::test` in code marks, with a link to the file if with
    one: [`routing_em.py: m_step`](../routing_em.py)."""
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
    links = re.findall(r"\[`([\w/]+\.py)(?:(?:::|: )[\w.]+)?`\]\((.*?)\)", text)
    for file, link in links:
        path = (document.parent / link.partition("#")[0]).resolve()
        if not (path.is_file() and path.as_posix().endswith(f"/{file}")):
            missing.append(link)
    assert not missing


@every_document
def test_files_and_flags_of_commands_exist(document):
    """A flag behind a script is one of that script; any other, one of some script."""
    wrong = []
    for module, rest in commands(document):
        if not (places(f"{module}.py") or places(f"{module}/__main__.py") or module == "venv"):
            wrong.append(module)
        module = "toy/__main__" if module == "toy" else module
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


@every_document
def test_every_row_belongs_to_a_table(document):
    """A blank line within a table would show the rows below it as text."""
    prose = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)
    starts = re.findall(r"\n\n([^\n]* \| [^\n]* \| [^\n]*)\n(.*)", prose)
    assert [row for row, below in starts if not re.fullmatch(r"[|:-]+", below)] == []


def test_the_loop_in_the_readme_is_that_of_the_code():
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"```python\n(for t in .*?)```", readme, flags=re.DOTALL)[1]
    assert textwrap.indent(block, "    ") in (ROOT / "routing_em.py").read_text("utf-8")


def test_the_code_in_readme_and_contributing_runs(monkeypatch):
    """The mechanism alone, with torch's weights, and one from outside. The lines that a diff
    changes exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    alone, copied, mean, own = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    readme = (ROOT / "README.md").read_text("utf-8")
    exec(re.search(r"```python\n(import torch\n.*?)```", readme, flags=re.DOTALL)[1], names)
    assert names["y"].shape == (2, 7, 512)
    exec(alone, names)
    assert names["y"].shape == names["x"].shape
    trained = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    attention = MultiHeadAttention(8, 2)
    exec(copied, {"attention": attention, "trained": trained})
    x = torch.randn(2, 3, 8)
    assert torch.allclose(attention(x)[0], trained(x, x, x)[0], atol=1e-6)
    module = types.ModuleType("mean")
    exec(mean, vars(module))
    monkeypatch.setitem(sys.modules, "mean", module)
    monkeypatch.setattr(transformer, "MultiHeadAttention", transformer.MultiHeadAttention)
    exec(own, {"__name__": "own"})
    model = transformer.Transformer(transformer.TransformerConfig(20, 8, 2, 1, 8))
    assert custom_classes(model) == ["mean.MeanAggregation", "own.MeanAttention"]
    assert model(*torch.ones(2, 3, 4, dtype=torch.long))[0].shape == (3, 4, 20)
    diff, = re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL)
    code = (ROOT / "transformer.py").read_text("utf-8")
    assert [line for line in diff.splitlines() if line[0] in " -" and line[1:] not in code] == []


def test_the_picture_of_the_papers_is_that_of_its_script(tmp_path):
    """The text is, which matplotlib repeats in comments: the shapes differ between versions."""
    heads.draw(tmp_path / "heads.svg")
    drawn, stored = ((folder / "heads.svg").read_text("utf-8")
                     for folder in (tmp_path, ROOT / "docs"))
    assert re.findall("<!-- (.*?) -->", drawn) == re.findall("<!-- (.*?) -->", stored)
    assert "date" not in drawn                           # drawn again it has the same bytes
    assert {paper[-1].split()[0] for paper in heads.PAPERS} <= flags("train_mt")


def test_there_is_one_version(capsys):
    with pytest.raises(SystemExit) as exit:
        importlib.import_module("train_mt").main(["--version"])
    version = capsys.readouterr().out.strip()
    assert exit.value.code == 0 and re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f'\nversion: "{version}"\n' in (ROOT / "CITATION.cff").read_text("utf-8")
    newest = re.search(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest[1] == version
