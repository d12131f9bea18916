"""What importing the project's modules does: nothing but define names."""
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
