"""The documents against the code: what they name is there."""

import ast
import importlib
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "README.md").exists()
)
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "RESULTS.md",
    ROOT / "exercises" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SCRIPTS = ("train_mt", "translate", "probe", "logic", "analyze", "reproduce", "bench")
FOREIGN = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint"}  # torchrun's
FOREIGN |= {"--mine", "--report"}  # pytest's, see exercises/grade.py
FOREIGN |= {"--to"}  # jupytext's
MADE = {
    "config.json",
    "tokenizer.json",
    "metrics.jsonl",
    "analysis.json",
    "results.json",
    "last.pt",
    "best.pt",
    "test.hyp",
    "in.txt",
    "out.txt",
    "NAME.pt",
}  # files that commands make or get

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@lru_cache
def files() -> list[str]:
    """The project's files, relative to its root, wherever they lie."""
    found = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = any(
            part.startswith(".") or part in ("runs", "data", "__pycache__") for part in parts
        )
        if path.is_file() and not hidden:
            found.append("/".join(parts))
    return found


def places(name: str) -> list[str]:
    """The files that a name means: `loss.py`, `nmt/loss.py` and `tests/nmt/test_loss.py` are
    looked up by their end."""
    return [file for file in files() if f"/{file}".endswith(f"/{name}")]


@lru_cache
def names(file: str) -> set[str]:
    """Functions, classes and methods of a Python file, and what it assigns at its top: {"f", "C",
    "C.method"}."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found.update(
                f"{node.name}.{child.name}"
                for child in node.body
                if isinstance(child, ast.FunctionDef)
            )
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found.update(part.id for part in ast.walk(target) if isinstance(part, ast.Name))
    return found


def is_there(file: str, name: str) -> bool:
    """Whether one of the files that `file` means has this function, class, method or constant."""
    return any(name in names(place) for place in places(file))


def text(document: Path) -> str:
    """A document without the generated tables and the tree of the README, which `test_the_tree`
    reads."""
    return re.sub(r"```text\nread: .*?```", "", document.read_text(), flags=re.DOTALL)


@lru_cache
def flags(script: str) -> frozenset[str]:
    """The flags in the help of a script, by the name of its module."""
    import contextlib
    import io

    module = importlib.import_module(script)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        module.main(["--help"])
    return frozenset(re.findall(r"--[a-z][a-z0-9-]*", printed.getvalue()))


def commands(document: Path) -> list[tuple[str, str]]:
    """(module, the rest of the line) of every `python SCRIPT.py ...` and `python -m MODULE ...`,
    comments cut off."""
    found = []
    for line in text(document).splitlines():
        line = re.split(r"\s#\s", line)[0]
        for match in re.finditer(
            r"(?:python3?|torchrun)( [^`|]*?)(?:-m ([\w.]+)|([\w/]+)\.py)((?: [^`|]*)?)", line
        ):
            before, module, script, after = match.groups()
            module = (module or script).replace(".", "/")
            found.append((module, before + after.split(" && ")[0]))
    return found


@every_document
def test_names_exist(document):
    """Every file, `file: name` and `test file::test` in code marks."""
    missing = []
    for code in re.findall(
        r"`([^`\n]+)`", re.sub(r"```.*?```", "", text(document), flags=re.DOTALL)
    ):
        code = code.strip()
        named = re.fullmatch(r"([\w/]+\.py)(?:::|: )([\w.]+)", code)
        if named:
            if not is_there(*named.groups()):
                missing.append(code)
        elif re.fullmatch(r"[\w/.-]+\.(py|md|json|toml|txt|svg|yml)", code):
            if not places(code) and Path(code).name not in MADE:
                missing.append(code)
    assert not missing, f"{document.name} names what is not there: {missing}"


@every_document
def test_files_of_commands_exist(document):
    """python SCRIPT.py, python -m MODULE, and pytest FILE, in fenced blocks and in code marks."""
    missing = []
    for module, _ in commands(document):
        if (
            module not in ("venv", "pytest", "zipfile")
            and not places(f"{module.replace('.', '/')}.py")
            and not places(f"{module}/__main__.py")
        ):
            missing.append(module)
    for file in re.findall(r"(?:pytest |\s)(tests/[\w/]+\.py)", text(document)):
        if not (ROOT / file).exists():
            missing.append(file)
    assert not missing, f"{document.name} runs what is not there: {missing}"


@every_document
def test_imports_of_examples_exist(document):
    """from MODULE import NAME, in the Python of fenced blocks."""
    missing = []
    for module, line in re.findall(
        r"^from (\w+(?:\.\w+)*) import ([\w, ]+)$", text(document), flags=re.MULTILINE
    ):
        file = module.replace(".", "/") + ".py"
        if not places(file):
            if module.split(".")[0] not in ("torch", "pathlib", "collections"):
                missing.append(module)
            continue
        loaded = importlib.import_module(module)
        missing += [
            f"{module}.{name.strip()}"
            for name in line.split(",")
            if not hasattr(loaded, name.strip())
        ]
    assert not missing, f"{document.name} imports what is not there: {missing}"


@every_document
def test_flags_exist(document):
    """A flag behind a script is one of that script; any other, one of some script."""
    wrong = []
    for module, rest in commands(document):
        if module in SCRIPTS:
            given = set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", rest))
            wrong += [f"{module}.py {flag}" for flag in given - flags(module) - FOREIGN]
    known = frozenset().union(*map(flags, SCRIPTS)) | FOREIGN
    prose = re.sub(r"<!--.*?-->", "", text(document))
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", prose)) - known:
        wrong.append(flag)
    assert not wrong, f"{document.name} names flags that are not there: {wrong}"


@every_document
def test_links_resolve(document):
    """Relative links lead to a file, and a #part of one to a heading in it."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        path, _, part = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or part and part not in headings(target):
            broken.append(link)
    assert not broken, f"{document.name} has links that lead nowhere: {broken}"


@lru_cache
def headings(document: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", document.read_text(), flags=re.MULTILINE):
        title = re.sub(r"[^\w\- ]", "", title.lower())
        found.add(title.strip().replace(" ", "-"))
    return found


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def tree_of_readme() -> str:
    """The files and folders as the README shows them."""
    readme = (ROOT / "README.md").read_text()
    return re.search(r"```text\n(read: .*?)```", readme, flags=re.DOTALL)[1]


def test_the_tree_names_the_root():
    """The files to read and to run in the README's tree lie in the root."""
    tree = tree_of_readme()
    listed = re.findall(r"^  (?:.*)$", tree, flags=re.MULTILINE)
    scripts = re.findall(
        r"(\w+\.py)", "\n".join(line.split("   ")[0] if "   " in line else line for line in listed)
    )
    assert len(scripts) == 15
    assert [name for name in scripts if not (ROOT / name).exists()] == []


def test_the_tree_names_the_folders():
    tree = tree_of_readme()
    folders = re.findall(r"^(\w+)/ ", tree, flags=re.MULTILINE)
    assert len(folders) == 8
    assert [name for name in folders if not (ROOT / name).is_dir()] == []
