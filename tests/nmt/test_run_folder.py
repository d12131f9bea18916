"""run_folder.py: loading runs no code, nothing is lost; folders of other runs: test_errors.py."""
import errno
import json
import re
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from small_run import write_run

import transformer
from attention import MultiHeadAttention
from nmt import run_folder
from nmt.run_folder import RunFolder, load_checkpoint, load_run
from tools.files import UserError, atomic_write
from transformer import TransformerConfig


def refused(*words):
    """Expects a UserError of one line that holds the words."""
    words = "".join(f"(?=.*{re.escape(str(word))})" for word in words)
    return pytest.raises(UserError, match=rf"\A{words}[^\n]*\Z")


@pytest.fixture
def folder(tmp_path):
    """A run's folder."""
    with RunFolder(tmp_path / "run", {}) as folder:
        yield folder


def test_a_name_may_have_the_folder_in_front():
    for runs in ("runs", "runs/", "/disk/runs"):
        for name in ("NAME", f"{runs}/NAME"):
            assert run_folder.find_folder(runs, name) == Path(runs) / "NAME"
        for name in ("", ".", runs, "NAME/.."):
            with refused("is the folder of all runs: name one in it"):
                run_folder.find_folder(runs, name)


def test_a_run_without_a_newer_field_is_resumed_with_its_default(tmp_path):
    old = {"steps": 3}
    with RunFolder(tmp_path / "run", old) as folder:
        folder.begin(model={"vocab_size": 9})
    model = asdict(TransformerConfig(9))
    with RunFolder(tmp_path / "run", old | {"newer": (1, 2)}, (), {"newer": (1, 2)}) as folder:
        folder.begin(model=model)
    with refused("newer was [1, 2], is now 3"):
        RunFolder(tmp_path / "run", old | {"newer": 3}, (), {"newer": (1, 2)})
    with RunFolder(tmp_path / "run", old) as folder, refused("model was"):
        folder.begin(model=model | {"norm": "post"})


class OtherAttention(MultiHeadAttention):
    """Of the same shape, so its weights load into the project's own."""


def test_a_model_with_custom_classes_needs_them(tmp_path, tokenizer, monkeypatch):
    """A program that put them into transformer.py's place trained it."""
    with monkeypatch.context() as patch:
        patch.setattr(transformer, "MultiHeadAttention", OtherAttention)
        write_run(tmp_path / "other", tokenizer)
        assert load_run(tmp_path / "other")[2]["classes"] == [f"{__name__}.OtherAttention"]
    message = ("other: its model has test_run_folder.OtherAttention, this program's has none: "
               "import the same classes")
    with refused(message):
        load_run(tmp_path / "other")
    settings = {"data": "toy"}
    with RunFolder(tmp_path / "other", settings) as folder, refused(message):
        folder.begin(model=run_folder.read_config(tmp_path / "other")["model"])
    write_run(tmp_path / "own", tokenizer)
    path = tmp_path / "own" / "config.json"
    config = path.read_text("utf-8").replace('"classes"', '"unused"')        # of an older run
    path.write_text(config, "utf-8")
    assert not load_run(tmp_path / "own")[0].training
    monkeypatch.setattr(transformer, "MultiHeadAttention", OtherAttention)
    with refused("own: its model has no custom class, this program's has test_run_folder.Other"):
        load_run(tmp_path / "own")


# ---- Checkpoints

def test_a_foreign_pickle_is_not_executed(tmp_path, monkeypatch):
    class Hostile:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    path = tmp_path / "best.pt"
    monkeypatch.chdir(tmp_path)
    with refused("it has no config.json); there are none here; train_mt.py trains one"):
        load_run("folder")
    with refused(path, "does not exist; checkpoints of this run: none"):
        load_checkpoint(path)
    torch.save({"format": run_folder.FORMAT, "model": Hostile()}, path)
    with refused(path, "not safe to load"):
        load_checkpoint(path)
    assert not (tmp_path / "executed").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "executed").exists()              # the trap works


def test_averages_of_gradients_get_memory_of_their_own():
    """One number repeated by a stride of 0, into which the fused Adam would write a tensor."""
    model = torch.nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    state = {"step": torch.ones(()), "exp_avg": torch.ones(()).expand(2, 3),
             "exp_avg_sq": torch.ones(3, 2).T}
    groups = [{"params": [0], "betas": None}]            # not those of the program
    saved = {"model": model.state_dict(), "optimizer": {"state": {0: state},
                                                        "param_groups": groups}}
    run_folder.load_weights(model, saved, "last.pt", optimizer)
    loaded = optimizer.state[model.weight]
    assert loaded["exp_avg"].stride() == loaded["exp_avg_sq"].stride() == (3, 1)
    assert torch.equal(loaded["exp_avg"], state["exp_avg"]) and loaded["step"] == 1
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_the_average_of_checkpoints(folder):
    """In float64, in the type of the weights. They are in the order of their steps."""
    half = torch.ones(3, dtype=torch.bfloat16)
    for name in ("step-5", "step-100", "step-20", "step-20-copy"):           # a copy by hand
        w = torch.tensor([1.0 if name == "step-5" else 2.0 ** -24])          # in float32 1 in all
        folder.save(f"{name}.pt", model={"w": w, "tied": w, "half": half})
    assert [path.stem for path in folder.numbered()] == ["step-5", "step-20", "step-100"]
    mean = run_folder.average_checkpoints(folder.numbered())
    assert torch.equal(mean["w"], torch.tensor([(1 + 2.0 ** -23) / 3]))
    assert mean["half"].dtype == torch.bfloat16
    assert mean["tied"].data_ptr() == mean["w"].data_ptr()                   # stored once


# ---- The folder

def test_half_written_files_of_a_killed_run_go(folder):
    """It stays a run's without its lock, which some versions of filelock delete at the end."""
    unfinished = []
    atomic_write(folder.path / "last.pt", lambda file: unfinished.append(Path(file.name)))
    (folder.path / "last.pt").rename(*unfinished)
    folder.begin()
    assert {path.name for path in folder.path.iterdir()} == {"config.json", "lock"}
    folder.lock.release()
    (folder.path / "lock").unlink(missing_ok=True)
    with RunFolder(folder.path, {}):
        pass
    (folder.path / "config.json").rename(*unfinished)
    with RunFolder(folder.path, {}):                     # killed as it began
        pass


# ---- Metrics

def test_files_that_cannot_be_read_are_not_taken_for_files_to_write(folder, monkeypatch):
    (folder.path / "best.pt").touch()
    folder.append_metrics({})
    deny = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr("zipfile.ZipFile", deny)
    monkeypatch.setattr(Path, "read_bytes", deny)
    for read in (lambda: load_checkpoint(folder.path / "best.pt"), folder.read_metrics):
        with refused("cannot read (Permission denied): check the path"):
            read()


def test_a_row_that_was_cut_off_is_dropped(folder, capsys):
    """By a kill at any byte; rows beyond the checkpoint are dropped, too. Other lines that are not
    rows, by an editor or a power failure, are left out with a warning."""
    rows = [{"step": step, "text": "ä\n\u2028"} for step in (1, 2, 3)]
    for row in rows:
        folder.append_metrics(row)
    assert folder.read_metrics() == rows
    whole = folder.metrics.read_bytes()
    last = len(whole) - len(json.dumps(rows[2])) - 1
    for length in range(last, len(whole)):
        folder.metrics.write_bytes(whole[:length])
        assert folder.read_metrics() == rows[:2]
    assert capsys.readouterr().err == ""
    folder.drop_metrics_after(1)
    folder.append_metrics(rows[1])
    assert folder.metrics.read_bytes() == whole[:last]
    folder.append_metrics({"step": 2, "type": "valid"})
    for unvalidated, left in ((False, 3), (True, 2)):    # a validation that is to be repeated
        folder.drop_metrics_after(2, unvalidated)
        assert len(folder.read_metrics()) == left
    folder.metrics.write_bytes(b'{"step": 1}\n{"step": 2{"step": 3}\n\n\0\0\n7\n{"step": 4}\n')
    for _ in range(2):
        assert folder.read_metrics() == [{"step": 1}, {"step": 4}]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 4 and f"{folder.metrics}, line 2: is not a row" in warnings[0]
