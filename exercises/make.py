"""Writes the exercises: the project's own files without the bodies of the tasks.

    python -m exercises.make FOLDER    # a new folder, for a student's solutions

Signatures, docstrings, the checks of arguments and all code outside the tasks stay.
"""
import ast
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

if not __package__:
    print("error: start it in the project's folder: python -m exercises.make", file=sys.stderr)
    sys.exit(2)

from tools.command_line import flag, run, shell_line
from tools.files import new_folder

ROOT = Path(__file__).resolve().parents[1]
NOT_WRITTEN = "not written yet"
FAULTS = "exercises/faults.py"      # tasks whose solutions are not functions of the project

# file -> session of docs/course.md, task, points (difficulty 1 to 3), equation, function whose body
# is taken out. Several tasks may share a body; each has its own check in checks.py.
TABLE = {
    "attention.py": [
        (1, "heads", 1, "Li 2019 Eq. 1", "MultiHeadAttention.split"),
        (1, "attention", 1, "Li 2019 Eq. 2", "MultiHeadAttention.attend_explicitly"),
        (1, "concatenation", 1, "Li 2019 Eq. 3", "concatenate"),
        (1, "causal mask", 1, "Vaswani 2017 §3.2.3", "causal_mask"),
        (1, "masked attention", 2, "Vaswani 2017 §3.2.3", "MultiHeadAttention.attend_explicitly"),
        (6, "routed attention", 1, "Duan 2020 §3.2", "MultiHeadAttention.attend_explicitly"),
    ],
    "aggregation.py": [
        (5, "Li's votes", 2, "Li 2019 Eq. 5-6", "RoutingAggregation.cast_votes"),
    ],
    "transformer.py": [
        (1, "positions", 2, "Vaswani 2017 §3.5", "positions"),
        (7, "layer", 2, "Vaswani 2017 §3.1", "Layer.forward"),
    ],
    "disagreement.py": [
        (2, "cosines, double sum", 1, "Li 2018 Eq. 1", "subspace_disagreement"),
        (2, "cosines in O(H)", 2, "Li 2018 Eq. 3", "output_disagreement"),
        (2, "positions, double sum", 1, "Li 2018 Eq. 2", "position_disagreement"),
        (2, "positions in O(H)", 2, "Li 2018 Eq. 2", "position_disagreement"),
        (2, "squared differences", 1, "Li 2018 footnote 2", "squared_position_disagreement"),
        (2, "squared cosines", 1, "Li 2018, released code", "squared_cosines"),
        (2, "D of a layer", 1, "Li 2018 §3.1", "layer_disagreement"),
        (2, "D of a model", 2, "Li 2018 §3.1", "model_disagreement"),
    ],
    "routing_dynamic.py": [
        (3, "squash", 1, "Li 2019 Eq. 8", "squash"),
        (3, "weighted votes", 2, "Li 2019 Eq. 7, Gu 2019 Eq. 8", "weigh_votes"),
        (3, "unchosen capsules", 2, "Li 2019 Eq. 7", "weigh_votes"),
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
    ],
    "nmt/search.py": [
        (7, "step of beam search", 3, "Wu 2016 §7", "expand"),
    ],
    "tasks/logic_data.py": [
        (7, "seven relations", 2, "Li 2021 §4.3.1", "pattern"),
    ],
    FAULTS: [
        (1, "attention fault", 2, "Vaswani 2017 §3.2", "name_attention_fault"),
        (2, "disagreement fault", 2, "Li 2018 Eq. 1", "name_disagreement_fault"),
        (3, "dynamic routing fault", 2, "Li 2019 Alg. 1, Eq. 7-8", "name_dynamic_routing_fault"),
        (4, "EM routing fault", 2, "Li 2019 Alg. 2, Eq. 10-12", "name_em_routing_fault"),
        (5, "aggregation fault", 2, "Gu 2019 Eq. 3-8", "name_aggregation_fault"),
        (6, "horizontal fault", 2, "Duan 2020 Alg. 3, Eq. 12-14", "name_horizontal_routing_fault"),
        (7, "label smoothing fault", 2, "Szegedy 2016 §7", "name_label_smoothing_fault"),
    ],
}

HALF = "half precision is computed in float32: at_least_float32"
# What a task asks for, where its name and the docstring do not say it
HINTS = {
    "attention": "self.dropout acts on the A^h that weights V^h, not on the A^h returned",
    "masked attention": "with causal, the queries are the last positions; a row whose keys are all "
                        "masked is uniform",
    "routed attention": "with self.capsule, call self.routed_logits(E, mask, causal, cache) before "
                        "masking",
    "positions": "row i is the position start + i; dtype None means float32",
    "cosines in O(H)": "as Eq. 1, but in time proportional to H, not H^2, and without "
                       "subspace_disagreement",
    "positions in O(H)": "the same, in time proportional to H, not H^2",
    "squash": "at s = 0 the result and its gradient are 0: rearrange Eq. 8 so that nothing is "
              f"divided by ||s|| (torch.where passes on the nan of a gradient); {HALF}",
    "weighted votes": "s is 0 where mask is False",
    "unchosen capsules": "Eq. 7 stays exact where C_mn underflows to 0 for every m",
    "M-step, mean and deviation": "without beta_a and beta_mu log A is 0",
    "M-step, activations": "log A with beta_a and beta_mu",
    "E-step, far votes": "log C stays exact where every density underflows to 0",
    "E-step, sum of densities": 'density="sum"',
    "dynamic routing": HALF,
    "EM routing": HALF,
    "EM routing, last gradient": 'gradient="last"',
    "Gu's votes": 'routing="dynamic", where q = 1; the shapes are in the docstring of the class',
    "Gu's pose votes": 'routing="em", where q is the number of columns of M_i',
    "horizontal, one token": "only for last=1",
    "horizontal, all at once": "for every value of last, without a loop over the tokens",
    "step of beam search": "PAD and BOS are never produced; EOS only ends a hypothesis",
    "layer": "also handle cache and need_weights",
    "learning rate": "the linear decay reaches 0 at step steps + 1",
}

# What would reveal a solution
LEFT_OUT = ("_SmoothedCrossEntropy", "piece_loss", "fused_piece_loss", "padded_cross_entropy")


class Task(NamedTuple):
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


def find_functions(tree: ast.Module) -> dict[str, ast.AST]:
    """Returns the functions, classes and methods of a file: {"f": ..., "C": ..., "C.f": ...}."""
    nodes = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            nodes[node.name] = node
        if isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
            nodes |= {f"{node.name}.{method.name}": method for method in methods}
    return nodes


def last_kept(function: ast.FunctionDef) -> ast.stmt:
    """Returns the last statement of a stub: the docstring, or a check of arguments below it."""
    kept, *rest = function.body
    for statement in rest:
        if not is_check(statement):
            break
        kept = statement
    return kept


def is_check(statement: ast.stmt) -> bool:
    """Whether a statement checks arguments: an if that raises, or a call of a check_ function."""
    if isinstance(statement, ast.If):
        return isinstance(statement.body[0], ast.Raise)
    return ast.unparse(statement).startswith("check_")


def describe_tasks(tasks: list[Task]) -> list[str]:
    """Returns the lines that replace a body."""
    lines = []
    for task in tasks:
        points = "1 point" if task.points == 1 else f"{task.points} points"
        lines.append(f"# Session {task.session}, {task.equation}: {task.name}, {points}")
        lines += [f"#   {line}" for line in textwrap.wrap(HINTS.get(task.name, ""), 88)]
    return [*lines, f'raise NotImplementedError("{NOT_WRITTEN}")']


def make_stub(file: str) -> str:
    """Returns the text of a file without the bodies of its tasks."""
    source = (ROOT / file).read_text("utf-8")
    lines = source.splitlines()
    functions = find_functions(ast.parse(source))
    for name, node in reversed(functions.items()):       # from the end: line numbers above it hold
        if name in LEFT_OUT:
            del lines[node.lineno - 1:node.end_lineno]
        tasks = [task for task in TASKS.values() if (task.file, task.body) == (file, name)]
        if not tasks:
            continue
        kept = last_kept(node)
        hole = [" " * kept.col_offset + line for line in describe_tasks(tasks)]
        lines[kept.end_lineno:node.end_lineno] = hole
    return "\n".join(lines) + "\n"


@dataclass
class Settings:
    folder: Path = flag(help="a new folder", positional=True, metavar="FOLDER")


def make(s: Settings) -> None:
    """Writes all stubs into a new folder."""
    with new_folder(s.folder):
        for file in TABLE:
            (s.folder / Path(file).name).write_text(make_stub(file), "utf-8")
    print(f"{s.folder}: {len(TABLE)} files with {len(TASKS)} tasks")
    print(f"grade them: {shell_line('python', '-m', 'exercises.grade', s.folder)}")


def main(argv=None) -> int:
    return run(make, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
