"""Writes the exercises of a session: the project without the bodies of the session's functions.

    python course/exercises/make.py 3 ../handout           # session 3
    python course/exercises/make.py faults ../faults       # the project, and "name the fault"

Students write the bodies and run the tests that the comments there name.
"""
import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# they have code of the solutions or read such files; the files of a task are copied all the same
LEFT_OUT = ("README.md", "CONTRIBUTING.md", "course/*", "docs/*", "tests/course/*", "tests/docs/*",
            "tests/test_imports.py", "tests/test_summary.py")

ATTENTION = "tests/equations/test_attention.py"
TRANSFORMER = "tests/equations/test_transformer.py"
DISAGREEMENT = "tests/equations/test_disagreement.py"
DYNAMIC = "tests/equations/test_routing_dynamic.py"
EM = "tests/equations/test_routing_em.py"
AGGREGATION = "tests/equations/test_aggregation.py"
CAPSULE = "tests/equations/test_capsule_transformer.py"
TRAIN = "tests/nmt/test_train_mt.py"
FAULTS = "course/exercises/test_faults.py"
FAULTS_FILE = "course/exercises/faults.py"

# session -> [(task, points, file, function, the test that grades it)]
TASKS = {
    "1": [
        ("attention", 3, "attention.py", "MultiHeadAttention.attend_explicitly",
         f'{ATTENTION} -k "eq1_eq2 or causal_hides or dropout"'),
        ("causal mask", 1, "attention.py", "causal_mask",
         f'{ATTENTION} -k "causal_hides and fused"'),
        ("positions", 2, "transformer.py", "positions", f"{TRANSFORMER} -k any_start"),
    ],
    "2": [
        ("cosines of values", 2, "disagreement.py", "subspace_disagreement",
         f'{DISAGREEMENT} -k "subspace and (eq1_eq3 or gradcheck)"'),
        ("cosines of outputs", 1, "disagreement.py", "output_disagreement",
         f'{DISAGREEMENT} -k "output and (eq1_eq3 or gradcheck)"'),
        ("positions", 3, "disagreement.py", "position_disagreement", f"{DISAGREEMENT} -k eq2"),
        ("D of a model", 3, "disagreement.py", "model_disagreement",
         f"{TRANSFORMER} -k disagreement_of_the_model"),
    ],
    "3": [
        ("squash", 2, "routing_dynamic.py", "squash",
         f'{DYNAMIC} -k "li2019_eq8 or any_dimension"'),
        ("weighted votes", 2, "routing_dynamic.py", "weigh_votes", f"{DYNAMIC} -k li2019_eq7"),
        ("agreement", 1, "routing_dynamic.py", "agreement", f"{DYNAMIC} -k gu_eq11"),
        ("dynamic routing", 3, "routing_dynamic.py", "dynamic_routing",
         f'{DYNAMIC} -k "alg1 or did_not_exist"'),
    ],
    "4": [
        ("M-step", 3, "routing_em.py", "m_step", f"{EM} -k m_step"),
        ("E-step", 3, "routing_em.py", "e_step", f"{EM} -k coupling"),
        ("EM routing", 3, "routing_em.py", "em_routing", f'{EM} -k "alg2 or li2019_eq9"'),
    ],
    "5": [
        ("Li's votes", 2, "aggregation.py", "RoutingAggregation.cast_votes",
         f"{AGGREGATION} -k eq5_eq6"),
        ("Gu's votes", 3, "capsule_aggregation.py", "CapsuleAggregation.cast_votes",
         f"{AGGREGATION} -k gu_eq3_votes"),
        ("Gu's aggregation", 2, "capsule_aggregation.py", "CapsuleAggregation.forward",
         f'{AGGREGATION} -k "gu_eq3_to_eq15 or gu_betas"'),
    ],
    "6": [
        ("vertical routing", 3, "capsule_transformer.py", "vertical_routing",
         f"{CAPSULE} -k duan_alg2"),
        ("horizontal routing", 4, "capsule_transformer.py", "horizontal_routing",
         f'{CAPSULE} -k "duan_alg3 or masked_routing"'),
    ],
    "7": [
        ("learning rate", 1, "train_mt.py", "learning_rate", f"{TRAIN} -k learning_rate"),
        ("update", 3, "train_mt.py", "train_step", f'{TRAIN} -k "three_updates or log_line"'),
        ("layer", 3, "transformer.py", "Layer.forward",
         f'{TRANSFORMER} -k "baseline or cache and linear or heads_of_every_layer"'),
    ],
    "faults": [
        ("attention", 2, FAULTS_FILE, "name_attention_fault", f"{FAULTS} -k attention"),
        ("disagreement", 2, FAULTS_FILE, "name_disagreement_fault", f"{FAULTS} -k disagreement"),
        ("dynamic routing", 2, FAULTS_FILE, "name_dynamic_routing_fault", f"{FAULTS} -k dynamic"),
        ("EM routing", 2, FAULTS_FILE, "name_em_routing_fault", f"{FAULTS} -k em_routing"),
        ("aggregation", 2, FAULTS_FILE, "name_aggregation_fault", f"{FAULTS} -k aggregation"),
        ("horizontal routing", 2, FAULTS_FILE, "name_horizontal_routing_fault",
         f"{FAULTS} -k horizontal"),
        ("label smoothing", 2, FAULTS_FILE, "name_label_smoothing_fault", f"{FAULTS} -k smoothing"),
    ],
}

# not graded, but taken out: they have the same sum (Li 2019 Eq. 7 and Eq. 10)
ALIKE = {"3": [("routing_em.py", "m_step"), ("capsule_transformer.py", "horizontal_routing")],
         "4": [("routing_dynamic.py", "weigh_votes")]}


def main(session: str, folder: Path) -> None:
    folder.mkdir(parents=True)                           # a new one: nothing is overwritten
    needed = set()
    for _, _, file, _, test in TASKS[session]:
        needed |= {file, test.split()[0]}
    for name in project_files():
        if name in needed or not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
            copy(name, ROOT, folder)
    for task, points, file, function, test in TASKS[session]:
        blank(folder / file, function, f"{task} (points: {points}): pytest {test}")
    for file, function in ALIKE.get(session, []):
        blank(folder / file, function, "left out: it has code of a task")
    sheet = describe_tasks(session)
    (folder / "README.md").write_text(sheet, "utf-8")
    print(sheet)


def describe_tasks(session: str) -> str:
    """The exercise sheet: tasks, points, commands, what to hand in."""
    total = sum(points for _, points, _, _, _ in TASKS[session])
    lines = [f"# Exercises {session} (points: {total})", "",
             "Write the bodies of these functions. Run the commands in this folder: each passes if",
             "the body is right."]
    for task, points, file, function, test in TASKS[session]:
        lines += ["", f"- {task} (points: {points}): `{function}` in {file}",
                  "", f"      pytest {test}"]
    files = dict.fromkeys(file for _, _, file, _, _ in TASKS[session])
    lines += ["", f"Hand in a folder with your name that has {', '.join(files)}.", ""]
    return "\n".join(lines)


def project_files() -> list[str]:
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return git.stdout.splitlines()


def copy(name: str, source: Path, target: Path) -> None:
    """Copies the file `name` from a folder to the same place in another."""
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).write_bytes((source / name).read_bytes())


def blank(file: Path, function: str, comment: str) -> None:
    """Replaces the body of a function, below its docstring, by a comment and a `raise`."""
    source = file.read_text("utf-8")
    node = ast.parse(source)
    for name in function.split("."):
        node = next(child for child in node.body if getattr(child, "name", "") == name)
    kept = node.body[0]
    indent = " " * kept.col_offset
    lines = source.split("\n")
    lines[kept.end_lineno:node.end_lineno] = [
        f"{indent}# {comment}", f'{indent}raise NotImplementedError("not written yet")']
    file.write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
