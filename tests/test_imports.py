"""Every module: what importing it does (nothing but define names), and how it opens text."""
import ast
import os
import re
import subprocess
import sys

import pytest
from project_files import ROOT, project_files, python_files

# imports the modules named by the arguments
PROGRAM = """
import importlib, os, sys
sys.path.append("course")
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    assert os.environ[name] == "7"
"""


def test_every_module_imports_without_a_word():
    """Nor does one change a variable that the user has set. (A session is a script.)"""
    names = ["lesson", "training"]
    for folder in ("", "nmt", "tasks", "toy", "papers", "docs"):
        for path in python_files(folder):
            if path.stem != "__main__":
                names.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    own = {"OMP_NUM_THREADS": "7", "TOKENIZERS_PARALLELISM": "7"}
    program = subprocess.run([sys.executable, "-c", PROGRAM, *names], cwd=ROOT,
                             env=os.environ | own, capture_output=True, text=True)
    assert (program.returncode, program.stdout, program.stderr) == (0, "", "")


@pytest.mark.parametrize("folder", ["papers"])
def test_a_program_in_a_folder_says_how_to_start_it(folder):
    """`python papers/bench.py` would not find the other folders."""
    programs = []
    for path in python_files(folder):
        code = path.read_text("utf-8")
        needs_others = re.search(r"^(from|import) (nmt|toy)\b", code, re.M)
        if '\nif __name__ == "__main__":' in code and needs_others:
            programs.append(path)
    assert programs
    for path in programs:
        name = f"{folder}.{path.stem}".removesuffix(".__main__")
        program = subprocess.run([sys.executable, "-S", path], capture_output=True, text=True)
        assert (program.returncode, program.stdout) == (2, "")
        assert program.stderr == f"error: start it in the project's folder: python -m {name}\n"


def test_every_text_is_opened_with_an_encoding():
    """The default is another one in Windows."""
    missing = []
    for path in project_files():
        if path.suffix != ".py":
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
