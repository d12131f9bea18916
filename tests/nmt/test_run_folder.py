"""run_folder.py: files from others are safe to load, nothing is lost, settings stay the same."""
from pathlib import Path

import pytest
import torch
from small_run import train, write_run

from nmt import run_folder
from nmt.command_line import UserError
from nmt.files import write_atomically
from nmt.run_folder import average, drop_log_after, load, load_run, log, read_log, save
from nmt.tokenizer import load_tokenizer

# ---- Checkpoints from others

def test_a_foreign_pickle_is_not_executed(tmp_path, tokenizer):
    class Hostile:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    write_run(tmp_path / "run", tokenizer)
    path = tmp_path / "run" / "best.pt"
    torch.save({"model": Hostile()}, path)
    with pytest.raises(Exception, match="weights_only"):
        load_run(tmp_path / "run")
    assert not (tmp_path / "executed").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "executed").exists()              # the trap works


@pytest.fixture
def adam():
    """Adam of one weight [2, 3], after a step, in its fused form."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = torch.optim.Adam([weight], fused=True)
    weight.sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("shape", [(), (3, 2), (2, 3, 1)])
def test_an_optimizer_of_another_shape_is_refused(name, shape, adam):
    """The fused Adam would write outside of its tensors."""
    saved = adam.state_dict()["state"]
    saved[0][name] = torch.zeros(shape)
    with pytest.raises(UserError, match="not a checkpoint of this model"):
        run_folder.load_optimizer(adam, saved)


def test_an_optimizer_of_another_layout_is_copied(adam):
    """Its memory is laid out as the parameter's, which the fused Adam trusts, too."""
    saved = adam.state_dict()["state"]
    saved[0]["exp_avg"] = torch.full((1, 1), 0.5).expand(2, 3)               # one number
    saved[0]["exp_avg_sq"] = torch.full((3, 2), 0.5).double().T
    run_folder.load_optimizer(adam, saved)
    state, = adam.state.values()
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(state[name], torch.full((2, 3), 0.5))
        assert state[name].is_contiguous() and state[name].dtype == torch.float32


def test_the_average_of_checkpoints(tmp_path):
    paths = []
    for step, number in enumerate((1.0, 2.0 ** -24, 2.0 ** -24)):            # in float32 1 in all
        half = torch.ones(3, dtype=torch.bfloat16)
        paths.append(tmp_path / f"step-{step}.pt")
        save(paths[-1], model={"w": torch.tensor([number]), "half": half})
    mean = average(paths)
    assert torch.equal(mean["w"], torch.tensor([(1 + 2.0 ** -23) / 3]))
    assert mean["half"].dtype == torch.bfloat16


# ---- Nothing is lost

def test_a_write_that_ends_midway_keeps_the_old_file(tmp_path):
    path = tmp_path / "last.pt"
    save(path, step=1)

    def write_half(file):
        file.write(path.read_bytes()[:99])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, write_half)
    assert load(path) == {"step": 1}
    save(path, step=2)
    assert load(path) == {"step": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_a_row_that_a_kill_cut_off_is_dropped(tmp_path):
    rows = [{"type": "train", "step": step, "text": "ä\n\u2028"} for step in (1, 2, 3)]
    for row in rows:
        log(tmp_path, row)
    assert read_log(tmp_path) == rows
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for cut in (2, 20):
        path.write_bytes(whole[:-cut])
        assert read_log(tmp_path) == rows[:2]
        drop_log_after(tmp_path, 2)
        log(tmp_path, rows[2])
        assert read_log(tmp_path) == rows


def test_a_start_that_ended_early_leaves_no_tokenizer_behind(text, tmp_path):
    """It may have learned it from another text."""
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("another", "utf-8")
    assert train(text, "--steps 1 --name a") == 0
    assert load_tokenizer(folder / "tokenizer.json").get_vocab_size() == 290
