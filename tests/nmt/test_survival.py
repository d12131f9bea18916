"""What a person relies on after starting a long training run: whole runs that are interrupted,
starved of disk space, moved, fed with infinite losses. Each ends bit-identical to one left alone,
or with its last good checkpoint."""
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from soak.survive_kills import content, difference, write_text

import train_mt
import translate
from nmt import run_folder

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="elsewhere os.kill ends the tests themselves"
)
ROOT = Path(__file__).resolve().parents[2]
FLAGS = """--src en --tgt de --device cpu --layers 1 --d-model 16 --heads 2 --d-ff 16
    --vocab-size 300 --max-tokens 160 --dropout 0.1 --accumulate 2 --steps 8 --eval-every 4
    --log-every 3 --warmup 10 --average 2 --beam 1""".split()


@pytest.fixture
def no_figures():
    """Figures are drawn: loss.png is among what must be the same."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The flags of a small parallel corpus."""
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """All that a run leaves which nobody disturbed."""
    runs = tmp_path_factory.mktemp("whole")
    assert train_mt.main([*FLAGS, *text, "--runs", str(runs), "--name", "run"]) == 0
    return content(runs / "run")


@pytest.fixture
def argv(text, tmp_path):
    """The command of the same run in tmp_path/run."""
    return [*FLAGS, *text, "--runs", str(tmp_path), "--name", "run"]


def interrupt(argv, step: int, number, monkeypatch) -> int:
    """Starts a run and sends it a signal in the course of a step; its exit status."""
    sound, left = train_mt.train_step, [*range(step)]

    def train_step(*args):
        left.pop()
        if not left:
            os.kill(os.getpid(), number)
        return sound(*args)
    with monkeypatch.context() as patch:
        patch.setattr(train_mt, "train_step", train_step)
        with pytest.raises(SystemExit) as exit:
            train_mt.main(argv)
    return exit.value.code


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_resumes_exactly(
    argv, whole, tmp_path, monkeypatch, capsys, number, status
):
    before = signal.getsignal(number)
    assert interrupt(argv, 5, number, monkeypatch) == status
    assert "stopped at step 5" in capsys.readouterr().out and signal.getsignal(number) is before
    assert run_folder.load(tmp_path / "run" / "last.pt")["step"] == 5
    assert train_mt.main(argv) == 0
    assert "resumed at step 5" in capsys.readouterr().out
    assert not difference(content(tmp_path / "run"), whole)


def test_signals_to_the_program(argv, tmp_path):
    """The same from outside: the process' exit status, and a second start that goes on where the
    first was."""
    steps = []
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        long = [sys.executable, "train_mt.py", *argv, "--steps", "999999", "--eval-every", "999999"]
        program = subprocess.Popen(
            long,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        while not program.stdout.readline().startswith("step "):
            assert program.poll() is None, program.stderr.read()
        program.send_signal(number)
        output, error = program.communicate(timeout=600)
        assert program.returncode == status and error == "" and "stopped at step" in output
        steps.append(run_folder.load(tmp_path / "run" / "last.pt")["step"])
    assert 0 < steps[0] < steps[1]


def test_killed_before_the_first_checkpoint(argv, whole, tmp_path, monkeypatch):
    """What was logged until then is not there twice after the next start."""
    class Killed(BaseException):
        pass

    def kill(*args):
        raise Killed
    with monkeypatch.context() as patch:
        patch.setattr(train_mt, "save", kill)
        with pytest.raises(Killed):
            train_mt.main(argv)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 3
    assert train_mt.main(argv) == 0
    assert not difference(content(tmp_path / "run"), whole)


def test_a_full_disk_ends_the_run_with_the_last_checkpoint_intact(
    argv, whole, tmp_path, monkeypatch, capsys
):
    """A limit on the size of files stands in for the full disk; with it gone the run goes on,
    exactly."""
    resource = pytest.importorskip("resource")
    last = tmp_path / "run" / "last.pt"
    interrupt(argv, 5, signal.SIGTERM, monkeypatch)
    before = last.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 3, limits[1]))
        status = train_mt.main(argv)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert status == 2
    assert error.count("\n") == 1
    assert "cannot write" in error
    assert "too large" in error
    assert str(tmp_path / "run") in error
    assert last.read_bytes() == before
    assert run_folder.load(last)["step"] == 5
    assert train_mt.main(argv) == 0
    assert not difference(content(tmp_path / "run"), whole)


def test_a_moved_run_resumes_and_translates(text, argv, whole, tmp_path, monkeypatch, capsys):
    """Another folder, another name, other paths of the text, another current directory."""
    interrupt(argv, 3, signal.SIGTERM, monkeypatch)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere" / "moved")
    shutil.copytree(Path(text[1]).parent, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    relative = [x for name in ("train", "valid", "test") for x in (f"--{name}", name)]
    assert train_mt.main([*FLAGS, *relative, "--runs", "../elsewhere", "--name", "moved"]) == 0
    moved = content(tmp_path / "elsewhere" / "moved")
    files = moved.pop("others")
    assert not difference(moved, {name: value for name, value in whole.items() if name != "others"})
    assert files["tokenizer.json"] == whole["others"]["tokenizer.json"]  # config.json has the paths
    capsys.readouterr()
    assert (
        translate.main(
            "../elsewhere/moved --input test.en --checkpoint average --device cpu".split()
        )
        == 0
    )
    assert capsys.readouterr().out.count("\n") == 6


def test_another_training_text_is_refused(text, argv, tmp_path, monkeypatch, capsys):
    """Its place in the data would mean nothing there."""
    interrupt(argv, 3, signal.SIGTERM, monkeypatch)
    before = content(tmp_path / "run")
    capsys.readouterr()
    assert train_mt.main([*argv, "--train", text[3]]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "data_checksum was" in error
    assert not difference(content(tmp_path / "run"), before)


def test_a_step_without_a_finite_loss_is_left_out_and_said_so(argv, tmp_path, monkeypatch, capsys):
    """An infinite loss alone (its gradient would be finite), and a gradient that is not a
    number."""
    sound = train_mt.Objective.forward
    calls = []
    seen = []

    def losses(*args):
        calls.append(1)
        loss, D = sound(*args)
        return (loss + (torch.inf if len(calls) == 5 else 0)) * (
            torch.nan if len(calls) == 11 else 1
        ), D

    def train_step(model, *args):
        before = [weight.clone() for weight in model.parameters()]
        result = step(model, *args)
        seen.append(all(map(torch.equal, before, model.parameters())))
        return result
    step = train_mt.train_step
    monkeypatch.setattr(train_mt.Objective, "forward", losses)
    monkeypatch.setattr(train_mt, "train_step", train_step)
    assert train_mt.main(argv) == 0
    # two micro-batches each
    assert [number for number, unchanged in enumerate(seen, 1) if unchanged] == [3, 6]
    lines = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert [" ".join(line.split()[:6]) for line in lines] == [
        "step 3 epoch 0 batch 6:",
        "step 6 epoch 1 batch 6:",
    ]
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [row["loss"] is None for row in rows if "loss" in row] == [True, False, True, False]


# ---- The source itself

FOLDERS = (ROOT, ROOT / "nmt", ROOT / "papers", ROOT / "tasks", ROOT / "toy")
PATHS = [path for folder in FOLDERS for path in sorted(folder.glob("*.py"))]
SOURCES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
           for path in PATHS}
# The only functions that open a file for writing: under a temporary name that is renamed when it is
# whole, a log, or a corpus.
WRITERS = {
    "nmt/files.py": {"atomic_write", "check_writable"},
    "nmt/run_folder.py": {"append_metrics"},
    "nmt/encoded.py": {"write_arrays"},
    "papers/jobs.py": {"start"},
    "toy/__init__.py": {"write_pairs"},
}


def test_the_sources_are_all_there():
    assert len(SOURCES) > 40
    assert {"train_mt.py", "nmt/files.py", "papers/jobs.py", "tasks/classifier.py"} <= set(SOURCES)


def called(tree):
    """(innermost function around it, name, call) of every call in a source."""
    def walk(node, function):
        if isinstance(node, ast.Call):
            yield function, ast.unparse(node.func), node
        function = node.name if isinstance(node, ast.FunctionDef) else function
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)
    return walk(tree, "")


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_executes_what_a_file_says(name):
    for node in ast.walk(SOURCES[name]):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = {alias.name for alias in node.names} | {getattr(node, "module", "")}
            assert not modules & {
                "pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "yaml",
            }
    for _, function, call in called(SOURCES[name]):
        keywords = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert function not in ("eval", "exec", "__import__") and "allow_pickle" not in keywords
        if function == "torch.load":
            assert name == "nmt/run_folder.py" and keywords["weights_only"] == "True"


@pytest.mark.parametrize("name", SOURCES)
def test_every_file_is_written_atomically(name):
    for around, function, call in called(SOURCES[name]):
        if function == "open":
            mode = ast.unparse(call.args[1]) if len(call.args) > 1 else "'r'"
            writes = mode not in ("'r'", "'rb'")
        elif function == "torch.save":
            writes = name != "nmt/run_folder.py"
        else:
            writes = function.endswith(
                (".write_text", ".write_bytes", ".tofile", ".savez", ".to_csv")
            ) or function in ("np.save", "json.dump")
        assert not writes or around in WRITERS.get(name, ()), f"{around}: {ast.unparse(call)}"
