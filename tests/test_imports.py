"""Importing a module defines names, and does nothing else."""
import os
import subprocess
import sys

from project_files import ROOT, project_files

# imports the modules named by the arguments
PROGRAM = """
import importlib, os, sys
sys.path.append("course")
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    assert os.environ[name] == "7"
"""


def test_a_module_prints_nothing_and_keeps_the_environment():
    """A session of the course is a script."""
    names = ["lesson", "training"]
    folders = [ROOT / name for name in ("", "nmt", "tasks", "tatoeba", "papers", "docs")]
    for path in project_files():
        if path.suffix == ".py" and path.parent in folders:
            names.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    own = {"OMP_NUM_THREADS": "7", "TOKENIZERS_PARALLELISM": "7"}
    program = subprocess.run([sys.executable, "-c", PROGRAM, *names], cwd=ROOT,
                             env=os.environ | own, capture_output=True, text=True)
    assert (program.returncode, program.stdout, program.stderr) == (0, "", "")
