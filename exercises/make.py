"""Makes the exercises out of the project's own files.

    python -m exercises.make              # the stubs and snapshots of this folder, anew
    python -m exercises.make FOLDER       # the stubs alone, into a new folder: a student's

A stub is a file as it stands with the bodies of its tasks taken out. Signatures, docstrings and all
that is no task stay, so that every stub works by itself, and the solutions are the files.
"""
import argparse
import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "exercises"

# file -> session of docs/course.md, task, points (difficulty 1 to 3), equation, body taken out.
# Tasks with one body are parts of it, each with tests of its own.
TABLE = {
    "attention.py": [
        (1, "heads", 1, "Li 2019 Eq. 1", "MultiHeadAttention.split"),
        (1, "attention", 1, "Li 2019 Eq. 2", "MultiHeadAttention.attend_explicitly"),
        (1, "causal mask", 1, "Vaswani 2017 §3.2.3", "causal_mask"),
        (1, "masked attention", 2, "Vaswani 2017 §3.2.3", "MultiHeadAttention.attend_explicitly"),
        (6, "routed attention", 1, "Duan 2020 §3.2", "MultiHeadAttention.attend_explicitly"),
    ],
    "aggregation.py": [
        (1, "concatenation", 1, "Li 2019 Eq. 3", "concatenate"),
        (5, "Li's votes", 2, "Li 2019 Eq. 5-6", "RoutingAggregation.cast_votes"),
    ],
    "transformer.py": [
        (1, "positions", 2, "Vaswani 2017 §3.5", "positions"),
        (7, "layer", 2, "Vaswani 2017 §3.1", "Layer.forward"),
    ],
    "disagreement.py": [
        (2, "cosines, double sum", 1, "Li 2018 Eq. 1 and 3", "_cosine_disagreement"),
        (2, "cosines in O(H)", 2, "Li 2018 Eq. 1 and 3", "_cosine_disagreement"),
        (2, "positions, double sum", 1, "Li 2018 Eq. 2", "position_disagreement"),
        (2, "positions in O(H)", 2, "Li 2018 Eq. 2", "position_disagreement"),
        (2, "squared differences", 1, "Li 2018 footnote 2", "squared_position_disagreement"),
        (2, "squared cosines", 1, "Li 2018, released code", "_squared_cosine_disagreement"),
        (2, "D of a layer", 1, "Li 2018 §3.1", "layer_disagreement"),
        (2, "D of a model", 2, "Li 2018 §3.1", "model_disagreement"),
    ],
    "routing_dynamic.py": [
        (3, "squash", 1, "Li 2019 Eq. 8", "squash"),
        (3, "output capsules", 2, "Li 2019 Eq. 7, Gu 2019 Eq. 8-9", "combine"),
        (3, "capsules nobody chooses", 2, "Li 2019 Eq. 7", "combine"),
        (3, "agreement", 1, "Li 2019 Alg. 1, Gu 2019 Eq. 11", "agreement"),
        (3, "dynamic routing", 2, "Li 2019 Alg. 1", "dynamic_routing"),
    ],
    "routing_em.py": [
        (4, "M-step, mean and deviation", 2, "Li 2019 Eq. 10-11", "m_step"),
        (4, "M-step, activations", 2, "Li 2019 Alg. 2, Gu 2019 Eq. 13", "m_step"),
        (4, "E-step", 2, "Li 2019 Eq. 12", "e_step"),
        (4, "E-step, far votes", 2, "Li 2019 Eq. 12", "e_step"),
        (4, "E-step, sum of densities", 2, "Li 2019 Alg. 2", "e_step"),
        (4, "EM routing", 3, "Li 2019 Alg. 2, Eq. 9", "em_routing"),
        (4, "EM routing, last gradient", 2, "Li 2019 Alg. 2", "em_routing"),
    ],
    "capsule_aggregation.py": [
        (5, "Gu's votes", 1, "Gu 2019 Eq. 3", "CapsuleAggregation.cast_votes"),
        (5, "Gu's pose votes", 3, "Gu 2019 Eq. 3, §4", "CapsuleAggregation.cast_votes"),
        (5, "Gu's aggregation", 2, "Gu 2019 Eq. 4-7", "CapsuleAggregation.forward"),
    ],
    "capsule_transformer.py": [
        (6, "vertical routing", 3, "Duan 2020 Alg. 2, Eq. 8-11", "vertical_routing"),
        (6, "horizontal, one token", 2, "Duan 2020 Alg. 3, Eq. 12-14", "horizontal_routing"),
        (6, "horizontal, all at once", 3, "Duan 2020 Alg. 3, Eq. 12-14", "horizontal_routing"),
        (6, "masks of the routing", 2, "Duan 2020 §3.2, §3.4.3", "CapsuleRouting.forward"),
    ],
    "train_mt.py": [
        (7, "learning rate", 1, "Vaswani 2017 §5.3", "learning_rate"),
    ],
    "nmt/loss.py": [
        (7, "label smoothing", 1, "Szegedy 2016 §7", "smoothed_cross_entropy"),
        (7, "smoothing without logits", 3, "Szegedy 2016 §7", "smoothed_cross_entropy"),
    ],
    "nmt/search.py": [
        (7, "step of beam search", 3, "Wu 2016 §7", "expand"),
    ],
    "tasks/probe_toy.py": [
        (7, "probing label", 1, "Conneau 2018 §3, TrDep", "depth"),
    ],
    "tasks/logic_data.py": [
        (7, "seven relations", 2, "Li 2021 §4.3.1", "relation"),
    ],
}

# Of these files a stub holds the task's function alone, below these lines
EXCERPTS = {
    "train_mt.py": ["from train_mt import Settings"],
    "nmt/loss.py": ["import torch", "import torch.nn.functional as F", "from torch import Tensor"],
    "nmt/search.py": ["import math", "", "import torch", "from torch import Tensor", "",
                      "from nmt.tokenizer import EOS"],
    "tasks/probe_toy.py": ["from toy import Tree"],
    "tasks/logic_data.py": ["from tasks.logic_data import EVERY, truth_table"],
}


class Task(NamedTuple):
    """A row of the table, with its file."""
    session: int
    name: str
    points: int
    equation: str
    body: str
    file: str


TASKS = {}
for file, rows in TABLE.items():
    for row in rows:
        TASKS[row[1]] = Task(*row, file)


# ---- Stubs

def functions(source: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file and the methods of its classes, {"f": ..., "C.method": ...}."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef):
                    found[f"{node.name}.{child.name}"] = child
    return found


def stub(file: str, bodies: set[str]) -> str:
    """The text of a file with these bodies taken out; of one in EXCERPTS this function alone."""
    source = (ROOT / file).read_text("utf-8")
    lines = source.splitlines()
    excerpt = []
    for name, node in reversed(functions(source).items()):       # from the end: line numbers hold
        if name not in bodies:
            continue
        docstring, first = node.body[0], node.body[1]            # every task has a docstring
        tasks = [task for task in TASKS.values() if (task.file, task.body) == (file, name)]
        hole = []
        for task in tasks:
            points = "1 point" if task.points == 1 else f"{task.points} points"
            hole.append(f"# {task.equation}: {task.name}, {points}")
        hole.append(f'raise NotImplementedError("{tasks[0].equation}: {tasks[0].name}")')
        lines[docstring.end_lineno:node.end_lineno] = [" " * first.col_offset + x for x in hole]
        excerpt = lines[node.lineno - 1:docstring.end_lineno + len(hole)]
    if file in EXCERPTS:
        lines = [f'"""A function of {file}."""', *EXCERPTS[file], "", "", *excerpt]
    return "\n".join(lines) + "\n"


def stubs() -> dict[str, str]:
    """The texts of all stubs, by the names of their files in a student's folder."""
    texts = {}
    for file, rows in TABLE.items():
        texts[Path(file).name] = stub(file, {body for *_, body in rows})
    return texts


def write(folder: Path | None) -> None:
    """Writes the stubs into a new folder; without one, stubs and snapshots into this one."""
    if folder:
        folder.mkdir(parents=True)
    for name, text in stubs().items():
        (folder or HERE).joinpath(name).write_text(text, "utf-8")
    if not folder:
        from exercises.grade import record
        record()


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m exercises.make", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="a new folder, for the stubs alone")
    folder = parser.parse_args(words).folder
    try:
        write(folder)
    except OSError as error:
        parser.exit(2, f"{error.filename}: {error.strerror}: name a new folder\n")
    print(f"{folder or HERE}: {len(TABLE)} files with {len(TASKS)} tasks")
    if folder:
        print(f"grade them: pytest --mine={folder} --report")


if __name__ == "__main__":
    main()
