"""The mistakes that people make: one line on stderr, exit status 2, and nothing overwritten."""
import contextlib
import json
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from small_run import TINY, train, write_text

TRAIN = f"--src en --tgt de --train text --valid text {TINY} --vocab-size 270 --steps 1 --name "
NEW = TRAIN + "new "


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of text, good and bad, and of runs, one of them at work."""
    folder = tmp_path_factory.mktemp("place")
    write_text(folder, "text", ["the dog sees a man"] * 40, ["der Hund sieht einen Mann"] * 40)
    write_text(folder, "other", ["the dog"], ["der Hund"])
    write_text(folder, "unequal", ["a", "b"], ["x"])
    (folder / "latin.en").write_bytes("good\nschön\n".encode("latin-1"))
    (folder / "latin.de").write_text("x\ny\n", "utf-8")
    with contextlib.chdir(folder):
        assert train([], TRAIN + "sound") == 0
        shutil.copytree("runs/sound", "runs/older")
        config = json.loads(Path("runs/older/config.json").read_text("utf-8"))
        Path("runs/older/config.json").write_text(json.dumps(config | {"version": 2}), "utf-8")
        with FileLock("runs/busy/lock"):
            yield folder


MISTAKES = [
    # names, choices and numbers
    ("--lamda 1", "unrecognized arguments: --lamda 1"),
    ("--agg capsules", "--agg: invalid choice: 'capsules'"),
    ("--reg output subspaces", "--reg: invalid choice: 'subspaces'"),
    ("--steps 0", "--steps: 0 is not a whole number from 1 on"),
    ("--beam 2.5", "--beam: 2.5 is not a whole number from 1 on"),
    ("--seed -1", "--seed: -1 is not a whole number from 0 on"),
    ("--dropout 1", "--dropout: 1 is not from 0 to below 1"),
    ("--lr 0", "--lr: 0 is not a number above 0"),
    ("--clip nan", "--clip: nan is not a number from 0 on"),
    ("--decay cosine", "--decay: invalid choice: 'cosine'"),
    ("--device moon", "--device moon: choose auto, cpu, cuda"),
    # the model
    ("--heads 3", "heads 3: does not divide the width 16"),
    ("--agg em --agg-at enc:9", "agg_at: enc:9 is not a place"),
    ("--capsule-attention cross", "capsule_attention: cross is not a place"),
    # options whose mechanism is off
    ("--agg-at enc", "--agg-at is not used: it needs --agg"),
    ("--reg output --heads 1", "--reg is not used: it needs --heads 2"),
    ("--agg dynamic --em-gradient last", "--em-gradient is not used: it needs --agg em"),
    ("--iterations 2", "--iterations is not used"),
    ("--reg-weight 2", "--reg-weight is not used: it needs --reg"),
    ("--capsule-attention dec --capsule-parts vertical", "--capsule-parts is not used"),
    # the text
    ("--train gone", "No such file or directory: 'gone.en'"),
    ("--valid unequal", "unequal.en has 2 lines and unequal.de has 1"),
    ("--test latin", "latin.en, line 2: not UTF-8"),
    ("--test text text", "--test: two sets have the same name"),
    # the run's folder
    ("--name sound --clip 0.5", "holds a run of another configuration (clip was 1.0, is now 0.5)"),
    ("--name sound --amp", "(amp was False, is now True)"),
    ("--name sound --src de --tgt en", "(languages was ['en', 'de'], is now ['de', 'en'])"),
    ("--name sound --agg em", "(agg was linear, is now em)"),
    ("--name sound --accumulate 2", "(micro_batches was 1, is now 2)"),
    ("--name sound --train other", "(train.en was"),
    ("--name older", "another version of this project made it"),
    ("--name busy", "another run is at work here"),
]


@pytest.mark.parametrize("words, message", MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line(words, message, place, capsys):
    files = [path for path in place.rglob("*") if path.is_file() and path.name != "lock"]
    before = [path.read_bytes() for path in files]
    with contextlib.chdir(place):
        assert train([], NEW + words) == 2
    error = capsys.readouterr().err.replace("\\", "/")
    assert error.count("\n") == 1
    assert message in error
    assert [path.read_bytes() for path in files] == before
    assert not (place / "runs" / "new" / "config.json").exists()
