"""run_folder.py: what a run relies on. Loading runs no code, a folder holds one run, nothing is
lost."""
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nmt import run_folder
from nmt.flags import UserError
from nmt.run_folder import RunFolder
from transformer import TransformerConfig

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"agg": "em", "reg": ["output"], "model": {"heads": 4, "dropout": 0.1}, "seed": 1}


def refused(*words):
    """Expects a UserError whose text is one line that holds all the words."""
    words = "".join(f"(?=.*{re.escape(str(word))})" for word in words)
    return pytest.raises(UserError, match=rf"\A{words}[^\n]*\Z")


def snapshot(folder):
    """Every file of a folder with its content and time of change."""
    found = {}
    for path in Path(folder).rglob("*"):
        if path.is_file():
            found[str(path.relative_to(folder))] = (path.read_bytes(), path.stat().st_mtime_ns)
    return found


def python(code, *args, **options):
    """Starts `code` in another Python that can import the project."""
    argv = [sys.executable, "-c", code, *map(str, args)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, env=environment,
                            **options)


def test_permissions(tmp_path):
    closed = tmp_path / "closed"
    secret = tmp_path / "secret.pt"
    run_folder.save(secret, {})
    secret.chmod(0)
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("this user may write everywhere")
    with refused(closed / "last.pt", "ermission"):
        run_folder.save(closed / "last.pt", {})
    for path in (closed, closed / "run"):
        with refused(path, "ermission"):
            RunFolder(path, CONFIG)
    with refused(secret, "ermission"):
        run_folder.load(secret)
    assert not os.listdir(closed)


FULL_DISK = """
import resource, sys, torch                                    # Python itself ignores SIGXFSZ
from nmt.flags import UserError
from nmt.run_folder import RunFolder, load, save
folder, failures = RunFolder(sys.argv[1], {}), 0
state = {"model": {"w": torch.zeros(20_000)}}
save(folder.last, {**state, "step": 1})
folder.append_metrics({"step": 1})
for limit in (0, 1, 10, 500, 900, 5_000, 70_000, 81_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for write in (lambda: save(folder.last, {**state, "step": 2}),
                  lambda: folder.append_metrics({"step": 2, "text": "x" * limit})):
        try:
            write()
        except UserError as error:
            failures += 1
            text = str(error)
            assert "\\n" not in text and "too large" in text and sys.argv[1] in text, error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(failures, load(folder.last)["step"], folder.read_metrics(), len(list(folder.path.iterdir())))
"""


def test_a_full_disk_leaves_everything_as_it_was(tmp_path):
    pytest.importorskip("resource")
    out, err = python(FULL_DISK, tmp_path / "run", stderr=subprocess.PIPE).communicate(timeout=600)
    assert out.strip() == "16 1 [{'step': 1}] 4", err


SAVE_FOREVER = """
import itertools, sys, torch
from nmt.run_folder import RunFolder, load, save
with RunFolder(sys.argv[1], {}) as folder:
    start = load(folder.last)["step"] if folder.last.exists() else 0
    for step in itertools.count(start + 1):
        folder.append_metrics({"step": step, "text": "x" * 3000})
        save(folder.last, {"step": step, "w": torch.full((200_000,), step)})
        if step == start + 1:
            print("saved", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_killed_while_saving_every_checkpoint_is_whole(tmp_path):
    reached = 0
    for pause in (0.05, 0.15):
        child = python(SAVE_FOREVER, tmp_path / "run")
        assert child.stdout.readline() == "saved\n"
        time.sleep(pause)
        child.kill()
        child.communicate()
        with RunFolder(tmp_path / "run", {}) as folder:       # the dead run's lock is gone
            state = run_folder.load(folder.last)
            rows = [row["step"] for row in folder.read_metrics()]
            assert (state["w"] == state["step"]).all() and state["step"] > reached
            reached = state["step"]
            assert rows in (list(range(1, reached + 1)), list(range(1, reached + 2)))
            folder.truncate_metrics(reached)
            assert len(os.listdir(folder.path)) == 4  # config.json, last.pt, lock, metrics.jsonl


def test_save_and_load_give_back_every_kind_of_value(tmp_path):
    state = {"model": {"w": torch.randn(3, 4), "n": torch.tensor(7)}, "step": 5, "loss": 0.1,
             "names": ["a", ("b", None)], "bf16": torch.ones(2, dtype=torch.bfloat16)}
    run_folder.save(tmp_path / "a.pt", state)
    read = run_folder.load(tmp_path / "a.pt", needs=("model", "step"))
    assert read.pop("format") == run_folder.FORMAT
    assert read.keys() == state.keys()
    assert (read["step"], read["loss"], read["names"]) == (5, 0.1, ["a", ("b", None)])
    assert torch.equal(read["model"]["w"], state["model"]["w"])
    assert torch.equal(read["bf16"], state["bf16"])
    with refused("a.pt", "optimizer"):
        run_folder.load(tmp_path / "a.pt", needs=("optimizer",))


def test_hostile_pickles_run_nothing(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    mark = tmp_path / "executed"
    paths = [tmp_path / name for name in ("zip.pt", "old.pt", "plain.pt")]
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
    for place in range(0, len(content), 13):      # refused, or of no consequence (padding)
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1:])
        try:
            state = run_folder.load(path)
        except UserError:
            found += 1
        else:
            assert torch.equal(state["model"]["w"], torch.arange(300.)) and state["step"] == 3
    assert found > 80


def test_foreign_files(tmp_path):
    for name, content in (("empty", b""), ("text", b"Ein Hund.\n" * 9), ("5", pickle.dumps(4))):
        (tmp_path / name).write_bytes(content)
    zipfile.ZipFile(tmp_path / "archive", "w").close()
    torch.save(torch.ones(2), tmp_path / "tensor")
    torch.save({"w": torch.ones(2)}, tmp_path / "weights")
    torch.save({"format": torch.ones(2)}, tmp_path / "odd")
    for name in ("tensor", "weights", "odd", "", "missing"):
        with refused(tmp_path / name, "last.pt"):
            run_folder.load(tmp_path / name)
    for name in ("empty", "text", "5", "archive"):
        with refused(tmp_path / name, "damaged", "delete it"):
            run_folder.load(tmp_path / name, remedy="delete it")


def test_only_translation_models_are_offered(tmp_path):
    for name, files in (("model", ("config.json", "tokenizer.json")), ("probes", ("config.json",))):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("{}")
    words = run_folder.runs_beside(tmp_path / "misspelt")
    assert str(tmp_path / "model") in words
    assert "probes" not in words


@pytest.mark.parametrize("content, word", [
    (b'{"format": 99}', "99"), (b"", ""), (b"{", ""), (b"[]", ""), (b"3", ""), (b'{"a": 1}', ""),
    (b"\xff\xfe", "")])
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
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight
        self.norm = nn.LayerNorm(3)
        self.register_buffer("count", torch.tensor(0))


def test_average_is_the_mean(tmp_path):
    """In float32; of integers the last; and a weight with two names stays one in the model."""
    models = [Tied() for _ in range(3)]
    paths = [tmp_path / f"step-{i}.pt" for i in range(3)]
    for number, (model, path) in enumerate(zip(models, paths)):
        nn.init.normal_(model.norm.weight)
        model.count += number
        run_folder.save(path, {"model": model.state_dict()})
    mean = run_folder.average(paths)
    assert mean.keys() == models[0].state_dict().keys() and mean["count"] == 2
    for name in ("embed.weight", "out.weight", "norm.weight"):
        stacked = torch.stack([model.state_dict()[name] for model in models]).double()
        assert mean[name].dtype == torch.float32
        assert torch.equal(mean[name], stacked.mean(0).float())
    target = Tied()
    run_folder.load_model_state(target, mean, "average")
    assert target.out.weight is target.embed.weight
    assert torch.equal(target.out.weight, mean["out.weight"])
    (alone,) = [run_folder.average(paths[:1])]
    assert all(torch.equal(alone[name], weight) for name, weight in models[0].state_dict().items())


def test_average_refuses_what_does_not_agree(tmp_path):
    run_folder.save(tmp_path / "first", {"model": {"w": torch.ones(2)}})
    others = ((torch.ones(2), "v", "'w' is missing"), (torch.ones(3), "w", "'w' is [3] here"))
    for weight, name, words in others:
        run_folder.save(tmp_path / "other", {"model": {name: weight}})
        with refused(tmp_path / "other", words, tmp_path / "first"):
            run_folder.average([tmp_path / "first", tmp_path / "other"])
    with refused("no checkpoints"):
        run_folder.average([])


@pytest.mark.parametrize("name, weight, words", [
    ("norm.bias", None, ("'norm.bias'", "missing here")),
    ("norm.bias", torch.ones(4), ("'norm.bias'", "[4]", "[3]")),
    ("extra", torch.ones(1), ("'extra'", "missing in this model"))])
def test_load_model_state_names_the_first_mismatch_and_changes_nothing(name, weight, words):
    model = Tied()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = Tied().state_dict()
    state[name] = weight
    if weight is None:
        del state[name]
    with refused("runs/x/last.pt", *words):
        run_folder.load_model_state(model, state, "runs/x/last.pt")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def draw():
    ours = [random.random(), random.gauss(0, 1)]
    return torch.rand(3).tolist(), ours, np.random.rand(2).tolist(), np.random.randn()


def test_random_states_survive_a_checkpoint(tmp_path):
    random.gauss(0, 1), np.random.randn()                     # leaves half a pair in each generator
    run_folder.save(tmp_path / "a.pt", {"random": run_folder.random_state()})
    first = draw()
    second = draw()
    run_folder.set_random_state(run_folder.load(tmp_path / "a.pt")["random"])
    assert draw() == first != second
    if torch.cuda.is_available():
        run_folder.save(tmp_path / "a.pt", {"random": run_folder.random_state()})
        on_gpu = torch.rand(3, device="cuda")
        run_folder.set_random_state(run_folder.load(tmp_path / "a.pt", "cuda")["random"])
        assert torch.equal(torch.rand(3, device="cuda"), on_gpu)
    good = run_folder.random_state()
    for bad in ({"python": [9]}, {"torch": torch.zeros(3)}, {"numpy": ["x"]}):
        with refused("random states"):
            run_folder.set_random_state({**good, **bad})
    with refused("random states"):
        run_folder.set_random_state({})


def test_opening_creates_and_a_moved_folder_reopens(tmp_path):
    with RunFolder(tmp_path / "runs" / "deep" / "one", {**CONFIG, "reg": ("output",)}) as folder:
        assert sorted(os.listdir(folder.path)) == ["config.json", "lock"]
        assert (folder.last.name, folder.best.name) == ("last.pt", "best.pt")
        assert (folder.tokenizer.name, folder.metrics.name) == ("tokenizer.json", "metrics.jsonl")
        assert folder.numbered(7).name == "step-7.pt"
        run_folder.save(folder.last, {"model": Tied().state_dict()})
        folder.append_metrics({"step": 1})
    before = snapshot(folder.path)
    for content, _ in before.values():            # no path is stored
        assert str(tmp_path).encode() not in content
    shutil.move(folder.path, tmp_path / "there")
    with RunFolder(tmp_path / "there", CONFIG) as folder:
        assert run_folder.read_config(folder.path) == CONFIG
        assert folder.read_metrics() == [{"step": 1}]
        after = snapshot(folder.path)
        assert after.keys() == before.keys()
        assert all(after[name][0] == content for name, (content, _) in before.items())


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
    with RunFolder(folder.path, CONFIG):  # the right one: now the remains go, and only they
        left = ["config.json", "lock", "metrics.jsonl", "mine.tmp"]
        assert sorted(os.listdir(folder.path)) == left
        assert folder.read_metrics() == [{"step": 1}]
    new = {**CONFIG, "model": {"heads": 4, "dropout": 0.3}}
    with RunFolder(folder.path, new, free=("model.dropout",)):
        assert run_folder.read_config(folder.path) == new


def test_a_setting_younger_than_the_run_had_its_default(tmp_path):
    """A field that the configuration got since: resuming is allowed where it still has its
    default."""
    model = asdict(TransformerConfig(9, agg="em"))
    config = {"model": model, "seed": 1, "clip": 0.5}
    old = {"model": {**model}, "seed": 1}
    for name in ("capsule_attention", "em_gradient", "reg"):
        del old["model"][name]
    RunFolder(tmp_path / "run", old).close()
    with refused("clip was 'unset', is now 0.5"):                # nobody says what it was
        RunFolder(tmp_path / "run", config)
    with refused("clip was 0.1, is now 0.5"):
        RunFolder(tmp_path / "run", config, defaults={"clip": 0.1})
    changed = {**config, "model": {**model, "em_gradient": "full"}}
    with refused("model.em_gradient was 'last', is now 'full'"):
        RunFolder(tmp_path / "run", changed, defaults={"clip": 0.5})
    assert run_folder.read_config(tmp_path / "run") == json.loads(json.dumps(old))
    RunFolder(tmp_path / "run", config, defaults={"clip": 0.5}).close()
    assert run_folder.read_config(tmp_path / "run") == json.loads(json.dumps(config))
    del config["seed"]                                           # a setting that is gone differs
    with refused("seed was 1, is now 'unset'"):
        RunFolder(tmp_path / "run", config, defaults={"seed": 1})


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    RunFolder(tmp_path, CONFIG).close()
    (tmp_path / "config.json").rename(tmp_path / ".config.json.0123456789abcdef.tmp")
    RunFolder(tmp_path, CONFIG).close()  # a run killed before its config.json was there may go on
    (tmp_path / "config.json").rename(tmp_path / "thesis.txt")
    with refused(tmp_path, "thesis.txt", "--name"):
        RunFolder(tmp_path, CONFIG)
    assert sorted(os.listdir(tmp_path)) == ["lock", "thesis.txt"]
    for place in (tmp_path / "thesis.txt", tmp_path / "thesis.txt" / "run"):
        with refused("thesis.txt"):
            RunFolder(place, CONFIG)
    with refused(tmp_path, "no run folder"):
        run_folder.read_config(tmp_path)


HOLD = """
import sys
from nmt.run_folder import RunFolder
with RunFolder(sys.argv[1], {}):
    print("open", flush=True)
    input()
"""


def test_two_runs_at_once(tmp_path):
    child = python(HOLD, tmp_path / "run", stdin=subprocess.PIPE)
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
        last_row = json.loads(folder.metrics.read_bytes().splitlines()[-1])
        assert last_row == {"step": 6, "loss": None, "score": None}
        folder.metrics.write_text('{"step": 1}\nnonsense\n')
        with refused("metrics.jsonl", "line 2"):
            folder.truncate_metrics(1)


def test_metrics_are_read_without_opening_the_run(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert run_folder.read_metrics(path) == []
    path.write_text('{"step": 1}\n{"loss": null}\n{"step": 2')              # being written
    assert run_folder.read_metrics(path) == [{"step": 1}, {"loss": None}]
    for line in ("nonsense", "[1]", "3", '{"step": "many"}', '{"step": 1.5}'):
        path.write_text(f'{{"step": 1}}\n{line}\n')
        with refused("metrics.jsonl", "line 2", "take it out"):
            run_folder.read_metrics(path)


def test_keep_deletes_the_older_numbered_checkpoints(tmp_path):
    with RunFolder(tmp_path / "run", {}) as folder:
        for name in ("step-5", "step-10", "step-100", "step-20", "last", "best", "step-x"):
            run_folder.save(folder.path / f"{name}.pt", {})
        assert folder.steps() == [5, 10, 20, 100]
        for count, left in ((9, [5, 10, 20, 100]), (2, [20, 100]), (0, [])):
            folder.keep(count)
            assert folder.steps() == left
        assert {"last.pt", "best.pt", "step-x.pt"} <= set(os.listdir(folder.path))
