"""Every module: what importing it does (nothing but define names), and how it opens text."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ("markdown_it", "mdit_py_plugins", "latex2mathml", "jupytext", "nbclient", "nbformat",
            "ipykernel")        # of requirements-docs.txt
# imports the modules named by the arguments as if the optional packages were not installed
PROGRAM = f"""
import importlib, sys
sys.path.append("course")
sys.modules.update(dict.fromkeys({OPTIONAL}))
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_module_imports_without_a_word():
    """Nor does one need a package that requirements.txt lacks. (A session is a script.)"""
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted(ROOT.glob("*.py"))]
    for folder in ("tools", "nmt", "tasks", "toy", "papers", "docs", "exercises"):
        paths += [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob(f"{folder}/*.py")]
    names = [".".join(path.parts) for path in paths if path.name != "__main__"]
    names += ["course.notebooks", "lesson", "later", "training"]
    program = subprocess.run([sys.executable, "-c", PROGRAM, *names], cwd=ROOT,
                             capture_output=True, text=True)
    assert (program.returncode, program.stdout, program.stderr) == (0, "", "")


@pytest.mark.parametrize("path", sorted((ROOT / "tools").glob("*.py")), ids=lambda path: path.name)
def test_tools_know_no_model_and_no_text(path):
    """An import of the project is one of tools/; torch is imported by machine.py only."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    allowed = sys.stdlib_module_names | {"tools", "matplotlib"}
    if path.name == "machine.py":
        allowed |= {"torch", "numpy"}
    assert names <= allowed


def test_every_text_is_opened_with_an_encoding():
    """The default is another one in Windows."""
    missing = []
    for path in ROOT.rglob("*.py"):
        if "site-packages" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and not has_encoding(node):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not missing


def has_encoding(call: ast.Call) -> bool:
    """False for a call of open, read_text or write_text that leaves the encoding to the system."""
    named = {keyword.arg for keyword in call.keywords}
    if isinstance(call.func, ast.Name) and call.func.id == "open":
        mode = ast.unparse(call.args[1]) if len(call.args) > 1 else "r"
        return "b" in mode or "encoding" in named
    attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if attribute in ("read_text", "write_text"):
        return len(call.args) > (attribute == "write_text") or "encoding" in named
    return True
