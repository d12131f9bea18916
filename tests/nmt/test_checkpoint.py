"""checkpoint.py: what a run relies on. Writes are all or nothing, loading runs no code, a folder holds one run."""
import errno
import json
import os
import pickle
import random
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nmt import files
from nmt import run_folder

from nmt.run_folder import RunFolder
from nmt.flags import UserError

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"agg": "em", "reg": ["output"], "model": {"heads": 4, "dropout": 0.1}, "seed": 1}


def refused(*words):
    """Expects a UserError whose text is one line that holds all the words."""
    words = "".join(f"(?=.*{re.escape(str(word))})" for word in words)
    return pytest.raises(UserError, match=rf"\A{words}[^\n]*\Z")


def snapshot(folder):
    """Every file of a folder with its content and time of change."""
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in Path(folder).rglob("*") if path.is_file()}


def python(code, *args, **options):
    """Starts `code` in another Python that can import the project."""
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)


@pytest.mark.parametrize("data", [b"\xc3\xa4", "ä", lambda file: file.write(b"\xc3\xa4")])
def test_atomic_write_replaces_the_file_and_follows_a_link(tmp_path, data):
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        (tmp_path / "file").write_text("old")
        files.atomic_write(tmp_path / name, data)
        assert (tmp_path / "file").read_text(encoding="utf-8") == "ä"
        assert (tmp_path / "link").is_symlink() and sorted(os.listdir(tmp_path)) == ["file", "link"]
    for path in (tmp_path, os.devnull, tmp_path / "missing" / "file"):
        with refused(path):
            files.atomic_write(path, data)


@pytest.mark.parametrize("failure, expected", [
    (OSError(errno.ENOSPC, "No space left on device"), refused("file", "free some space")),
    (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)), (RuntimeError("a bug"), pytest.raises(RuntimeError))])
def test_atomic_write_failing_midway_keeps_the_old_file(tmp_path, failure, expected):
    def half(file):
        file.write(b"ne")
        raise failure

    (tmp_path / "file").write_text("old")
    with expected:
        files.atomic_write(tmp_path / "file", half)
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_atomic_write_syncs_file_then_renames_then_syncs_folder(tmp_path, monkeypatch):
    calls, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("rename"), replace(*names)))
    files.atomic_write(tmp_path / "file", b"x")
    assert calls == [False, "rename", True][:3 if os.name == "posix" else 2]


def test_permissions(tmp_path):
    closed = tmp_path / "closed"
    run_folder.save(tmp_path / "secret.pt", {})
    (tmp_path / "secret.pt").chmod(0)
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write everywhere")
    for attempt in (lambda: run_folder.save(closed / "last.pt", {}), lambda: RunFolder(closed, CONFIG),
                    lambda: RunFolder(closed / "run", CONFIG), lambda: run_folder.load(tmp_path / "secret.pt")):
        with refused("ermission"):
            attempt()
    assert not os.listdir(closed)


FULL_DISK = """
import resource, sys, torch, checkpoint                        # Python itself ignores SIGXFSZ
from nmt.flags import UserError
folder, failures = run_folder.RunFolder(sys.argv[1], {}), 0
state = {"model": {"w": torch.zeros(20_000)}}
run_folder.save(folder.last, {**state, "step": 1})
folder.append_metrics({"step": 1})
for limit in (0, 1, 10, 500, 900, 5_000, 70_000, 81_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for write in (lambda: run_folder.save(folder.last, {**state, "step": 2}),
                  lambda: folder.append_metrics({"step": 2, "text": "x" * limit}),
                  lambda: files.atomic_write(folder.tokenizer, b"x" * (limit + 1))):
        try:
            write()
        except UserError as error:
            failures += 1
            assert "\\n" not in str(error) and "size limit" in str(error) and sys.argv[1] in str(error), error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(failures, run_folder.load(folder.last)["step"], folder.read_metrics(), len(list(folder.path.iterdir())))
"""


def test_a_full_disk_leaves_everything_as_it_was(tmp_path):
    pytest.importorskip("resource")
    out, err = python(FULL_DISK, tmp_path / "run", stderr=subprocess.PIPE).communicate(timeout=60)
    assert out.strip() == "24 1 [{'step': 1}] 4", err


SAVE_FOREVER = """
import itertools, sys, torch, checkpoint
with run_folder.RunFolder(sys.argv[1], {}) as folder:
    start = run_folder.load(folder.last)["step"] if folder.last.exists() else 0
    for step in itertools.count(start + 1):
        folder.append_metrics({"step": step, "text": "x" * 3000})
        run_folder.save(folder.last, {"step": step, "w": torch.full((200_000,), step)})
        if step == start + 1:
            print("saved", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_killed_while_saving_every_checkpoint_is_whole(tmp_path):
    reached = 0
    for pause in (0.05, 0.12, 0.2):
        child = python(SAVE_FOREVER, tmp_path / "run")
        assert child.stdout.readline() == "saved\n"
        time.sleep(pause)
        child.kill()
        child.communicate()
        with RunFolder(tmp_path / "run", {}) as folder:       # the dead run's lock is gone, its temporary files go now
            state = run_folder.load(folder.last)
            rows = [row["step"] for row in folder.read_metrics()]
            assert (state["w"] == state["step"]).all() and state["step"] > reached
            reached = state["step"]
            assert rows in (list(range(1, reached + 1)), list(range(1, reached + 2)))
            folder.truncate_metrics(reached)
            assert len(os.listdir(folder.path)) == 4          # config.json, last.pt, lock, metrics.jsonl


def test_save_and_load_give_back_every_kind_of_value(tmp_path):
    state = {"model": {"w": torch.randn(3, 4), "n": torch.tensor(7)}, "step": 5, "loss": 0.1,
             "names": ["a", ("b", None)], "bf16": torch.ones(2, dtype=torch.bfloat16)}
    run_folder.save(tmp_path / "a.pt", state)
    read = run_folder.load(tmp_path / "a.pt", needs=("model", "step"))
    assert read.pop("format") == run_folder.FORMAT
    assert read.keys() == state.keys() and (read["step"], read["loss"], read["names"]) == (5, 0.1, ["a", ("b", None)])
    assert torch.equal(read["model"]["w"], state["model"]["w"]) and torch.equal(read["bf16"], state["bf16"])
    with refused("a.pt", "optimizer"):
        run_folder.load(tmp_path / "a.pt", needs=("optimizer",))


def test_hostile_pickles_run_nothing(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    mark, paths = tmp_path / "executed", [tmp_path / name for name in ("zip.pt", "old.pt", "plain.pt")]
    torch.save({"format": 1, "x": Hostile()}, paths[0])
    torch.save({"format": 1, "x": Hostile()}, paths[1], _use_new_zipfile_serialization=False)
    paths[2].write_bytes(pickle.dumps({"format": 1, "x": Hostile()}))
    for path in paths:
        with refused(path, "safe"):
            run_folder.load(path)
        assert not mark.exists()
    torch.load(paths[0], weights_only=False)
    assert mark.exists()                                      # the trap works


def test_truncated_and_damaged_files(tmp_path):
    run_folder.save(tmp_path / "whole.pt", {"model": {"w": torch.arange(300.)}, "step": 3})
    content, path = (tmp_path / "whole.pt").read_bytes(), tmp_path / "bad.pt"
    for length in [*range(0, len(content), 41), len(content) - 1]:
        path.write_bytes(content[:length])
        with refused("bad.pt", "cut short"):
            run_folder.load(path)
    found = 0
    for place in range(0, len(content), 13):                  # another byte: refused, or of no consequence (padding)
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1:])
        try:
            state = run_folder.load(path)
        except UserError:
            found += 1
        else:
            assert torch.equal(state["model"]["w"], torch.arange(300.)) and state["step"] == 3
    assert found > 80


def test_foreign_files(tmp_path):
    for name, content in {"empty": b"", "text": b"Ein Hund.\n" * 9, "number": pickle.dumps(4)}.items():
        (tmp_path / name).write_bytes(content)
    zipfile.ZipFile(tmp_path / "archive", "w").close()
    for name, state in {"tensor": torch.ones(2), "weights": {"w": torch.ones(2)}, "odd": {"format": torch.ones(2)},
                        "huge": {"format": 10 ** 5000}}.items():
        torch.save(state, tmp_path / name)
    for name in ("empty", "text", "number", "archive", "tensor", "weights", "odd", "huge", "", "missing"):
        with refused(tmp_path / name, "last.pt"):
            run_folder.load(tmp_path / name)


@pytest.mark.parametrize("content, word", [
    (b'{"format": 99}', "99"), (b"", ""), (b"{", ""), (b"[]", ""), (b"3", ""), (b'{"a": 1}', ""), (b"\xff\xfe", ""),
    (b"[" * 100_000, "")])
def test_another_format_is_named_and_a_damaged_configuration_refused(tmp_path, content, word):
    torch.save({"format": 99}, tmp_path / "last.pt")
    with refused("last.pt", "99", f"reads format {run_folder.FORMAT}"):
        run_folder.load(tmp_path / "last.pt")
    (tmp_path / "config.json").write_bytes(content)
    before = snapshot(tmp_path)
    with refused("config.json", word):
        RunFolder(tmp_path, CONFIG)
    assert snapshot(tmp_path) == before


class Tied(nn.Module):
    """Two names for one weight, and an integer buffer."""
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight
        self.norm = nn.LayerNorm(3)
        self.register_buffer("count", torch.tensor(0))


def test_average_is_the_mean_with_ties_and_integers(tmp_path):
    models, paths = [Tied() for _ in range(3)], [tmp_path / f"step-{i}.pt" for i in range(3)]
    for number, (model, path) in enumerate(zip(models, paths)):
        nn.init.normal_(model.norm.weight)
        model.count += number
        run_folder.save(path, {"model": model.state_dict()})
    mean = run_folder.average(paths)
    for name in ("embed.weight", "out.weight", "norm.weight"):
        stacked = torch.stack([model.state_dict()[name] for model in models]).double()
        assert mean[name].dtype == torch.float32 and torch.equal(mean[name], stacked.mean(0).float())
    assert mean["embed.weight"].data_ptr() == mean["out.weight"].data_ptr() and mean["count"] == 2
    target = Tied()
    run_folder.load_model_state(target, mean, "average")
    assert target.out.weight is target.embed.weight and torch.equal(target.out.weight, mean["out.weight"])


def test_average_refuses_what_does_not_agree(tmp_path):
    run_folder.save(tmp_path / "first", {"model": {"w": torch.ones(2)}})
    for model, word in (({"v": torch.ones(2)}, "'w' is missing"), ({"w": torch.ones(3)}, "[3]"), (5, "no table"),
                        ({"w": torch.ones(2, device="meta")}, "no table"), ({"w": torch.ones(2, dtype=int)}, "whole"),
                        ({"w": torch.ones(2).to_sparse()}, "no table")):
        run_folder.save(tmp_path / "other", {"model": model})
        with refused(tmp_path / "other", word):
            run_folder.average([tmp_path / "first", tmp_path / "other"])
    with refused("no checkpoints"):
        run_folder.average([])


def test_load_model_state_names_the_first_mismatch_and_changes_nothing():
    model, fresh = Tied(), Tied().state_dict()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name, weight, words in (("norm.bias", None, ("'norm.bias'", "missing here")), ("extra", 5, ("no table",)),
                                ("norm.bias", torch.ones(4), ("'norm.bias'", "[4]", "[3]")),
                                ("extra", torch.ones(1), ("'extra'", "missing in this model"))):
        state = {key: value for key, value in {**fresh, name: weight}.items() if value is not None}
        with refused("runs/x/last.pt", *words):
            run_folder.load_model_state(model, state, "runs/x/last.pt")
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def draw():
    return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(2).tolist(), np.random.randn()


def test_random_states_survive_a_checkpoint(tmp_path):
    random.gauss(0, 1), np.random.randn()                     # leaves half a pair in each generator
    run_folder.save(tmp_path / "a.pt", {"random": run_folder.random_state()})
    first, second = draw(), draw()
    run_folder.set_random_state(run_folder.load(tmp_path / "a.pt")["random"])
    assert draw() == first != second
    if torch.cuda.is_available():
        run_folder.save(tmp_path / "a.pt", {"random": run_folder.random_state()})
        on_gpu = torch.rand(3, device="cuda")
        run_folder.set_random_state(run_folder.load(tmp_path / "a.pt", "cuda")["random"])
        assert torch.equal(torch.rand(3, device="cuda"), on_gpu)
    good = run_folder.random_state()
    for bad in ({}, None, {**good, "python": [9]}, {**good, "torch": torch.zeros(3)}, {**good, "numpy": ["x"]}):
        with refused("random states"):
            run_folder.set_random_state(bad)


def test_opening_creates_and_a_moved_folder_reopens(tmp_path):
    with RunFolder(tmp_path / "runs" / "deep" / "one", {**CONFIG, "reg": ("output",)}) as folder:
        assert sorted(os.listdir(folder.path)) == ["config.json", "lock"]
        assert [path.name for path in (folder.last, folder.best, folder.tokenizer, folder.metrics, folder.numbered(7))
                ] == ["last.pt", "best.pt", "tokenizer.json", "metrics.jsonl", "step-7.pt"]
        run_folder.save(folder.last, {"model": Tied().state_dict()})
        folder.append_metrics({"step": 1})
    before = snapshot(folder.path)
    assert not any(str(tmp_path).encode() in content for content, _ in before.values())      # no path is stored
    shutil.move(folder.path, tmp_path / "there")
    with RunFolder(tmp_path / "there", CONFIG) as folder:
        assert run_folder.read_config(folder.path) == CONFIG and folder.read_metrics() == [{"step": 1}]
        assert {name: content for name, (content, _) in snapshot(folder.path).items()} == {
            name: content for name, (content, _) in before.items()}


def test_another_configuration_is_refused_and_nothing_changes(tmp_path):
    with RunFolder(tmp_path / "run", CONFIG) as folder:
        folder.append_metrics({"step": 1})
    (folder.path / ".last.pt.0123456789abcdef.tmp").write_text("half")
    (folder.path / "mine.tmp").write_text("not a run's")
    folder.metrics.write_text('{"step": 1}\n{"step": 2')      # as a killed run leaves it
    (folder.path / "lock").unlink()
    before = snapshot(folder.path)
    changed = {**CONFIG, "agg": "linear", "model": {"heads": 8, "dropout": 0.1}, "new": None}
    del changed["seed"]
    with refused(folder.path, "agg was 'em', is now 'linear'", "model.heads was 4, is now 8",
             "seed was 1, is now 'unset'", "1 more", "--name"):
        RunFolder(folder.path, changed)
    assert snapshot(folder.path) == before
    with RunFolder(folder.path, CONFIG):                      # the right one: now the remains go, and only they
        assert sorted(os.listdir(folder.path)) == ["config.json", "lock", "metrics.jsonl", "mine.tmp"]
        assert folder.read_metrics() == [{"step": 1}]
    new = {**CONFIG, "model": {"heads": 4, "dropout": 0.3}}
    with RunFolder(folder.path, new, free=("model.dropout",)):
        assert run_folder.read_config(folder.path) == new


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    RunFolder(tmp_path, CONFIG).close()
    (tmp_path / "config.json").rename(tmp_path / ".config.json.0123456789abcdef.tmp")
    RunFolder(tmp_path, CONFIG).close()                       # a run killed before its config.json was there may go on
    (tmp_path / "config.json").rename(tmp_path / "thesis.txt")
    with refused(tmp_path, "thesis.txt", "--name"):
        RunFolder(tmp_path, CONFIG)
    assert sorted(os.listdir(tmp_path)) == ["lock", "thesis.txt"]
    for place in (tmp_path / "thesis.txt", tmp_path / "thesis.txt" / "run", "a\0b"):
        with refused("thesis.txt" if place != "a\0b" else repr(place)):
            RunFolder(place, CONFIG)
    with refused(tmp_path, "no run folder"):
        run_folder.read_config(tmp_path)


@pytest.mark.skipif(checkpoint.fcntl is None, reason="no lock on this system")
def test_two_runs_at_once(tmp_path):
    hold = "import sys, checkpoint\nwith run_folder.RunFolder(sys.argv[1], {}):\n print('open', flush=True)\n input()"
    child = python(hold, tmp_path / "run", stdin=subprocess.PIPE)
    assert child.stdout.readline() == "open\n"
    before = snapshot(tmp_path / "run")
    with refused(tmp_path / "run", "another run"):
        RunFolder(tmp_path / "run", {})
    assert snapshot(tmp_path / "run") == before
    child.kill()
    child.communicate()
    with RunFolder(tmp_path / "run", {}), refused("another run"):
        RunFolder(tmp_path / "run", {})


def test_metrics_cut_and_truncated(tmp_path):
    rows = [{"step": step, "loss": step / 7, "text": "ä\n\u2028"} for step in range(1, 6)]
    with RunFolder(tmp_path / "run", {}) as folder:
        for row in rows:
            folder.append_metrics(row)
        assert folder.read_metrics() == rows
        whole = folder.metrics.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for length in range(last, len(whole)):                    # killed at any byte of the last line
        folder.metrics.write_bytes(whole[:length])
        with RunFolder(tmp_path / "run", {}) as folder:
            assert folder.metrics.read_bytes() == whole[:last] and folder.read_metrics() == rows[:4]
    with RunFolder(tmp_path / "run", {}) as folder:
        folder.truncate_metrics(2)
        for row in rows[2:]:
            folder.append_metrics(row)
        assert folder.metrics.read_bytes() == whole
        folder.append_metrics({"step": 6, "loss": float("nan"), "score": float("inf")})
        assert json.loads(folder.metrics.read_bytes().splitlines()[-1]) == {"step": 6, "loss": None, "score": None}
        folder.metrics.write_text('{"step": 1}\nnonsense\n')
        with refused("metrics.jsonl", "line 2"):
            folder.truncate_metrics(1)


def test_keep_deletes_the_older_numbered_checkpoints(tmp_path):
    with RunFolder(tmp_path / "run", {}) as folder:
        for name in ("step-5.pt", "step-10.pt", "step-100.pt", "step-20.pt", "last.pt", "best.pt", "step-x.pt"):
            run_folder.save(folder.path / name, {})
        assert folder.steps() == [5, 10, 20, 100]
        for count, left in ((9, [5, 10, 20, 100]), (2, [20, 100]), (0, [])):
            folder.keep(count)
            assert folder.steps() == left
        assert {"last.pt", "best.pt", "step-x.pt"} <= set(os.listdir(folder.path))
