"""The mistakes that people make with the scripts: exit code 2, one line on stderr
that names the argument or the file and says what would work, nothing overwritten."""
import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from small_run import TINY, train, write_text

import logic
import probe
import train_mt
import translate
from nmt.run_folder import load_checkpoint

TRAIN = f"--src en --tgt de --train text --valid text {TINY} --vocab-size 270 --steps 1 --name "
NEW = TRAIN + "new "


def damage(name: str, file: str, content: bytes | dict) -> None:
    """A copy of the run `sound`, runs/NAME, with another content of one file."""
    folder = Path("runs") / name
    shutil.copytree("runs/sound", folder)
    if isinstance(content, dict):
        torch.save({**load_checkpoint(folder / file), **content}, folder / file)
    else:
        (folder / file).write_bytes(content)


def edit(name: str, **values) -> None:
    """A copy of the run `sound` with other settings."""
    settings = json.loads(Path("runs/sound/config.json").read_text("utf-8")) | values
    damage(name, "config.json", json.dumps(settings).encode())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of text, good and bad, and of runs, one of them at work."""
    folder = tmp_path_factory.mktemp("place")
    write_text(folder, "text", ["the dog sees a man"] * 40, ["der Hund sieht einen Mann"] * 40)
    write_text(folder, "unequal", ["a", "b"], ["x"])
    write_text(folder, "empty", [], ["x"])
    write_text(folder, "endless", ["1 " * 12_000], ["x"])
    (folder / "latin.en").write_bytes("good\nschön\n".encode("latin-1"))
    (folder / "latin.de").write_text("x\ny\n", "utf-8")
    (folder / "corpus").mkdir()
    write_text(folder / "corpus", "val", ["a"], ["x"])
    (folder / "thesis").mkdir()
    (folder / "thesis" / "thesis.txt").write_text("mine", "utf-8")
    with contextlib.chdir(folder):
        assert train([], TRAIN + "sound") == 0
        damage("cut", "last.pt", Path("runs/sound/last.pt").read_bytes()[:-999])
        averages = load_checkpoint("runs/sound/last.pt")["optimizer"]
        averages["state"][0]["exp_avg"] = torch.zeros(3)
        damage("short", "last.pt", {"optimizer": averages})
        damage("future", "config.json", b'{"format": 99}')
        damage("unmarked", "config.json", b"{}")
        damage("newer", "last.pt", {"format": 99})
        damage("reshaped", "last.pt", {"model": {"w": torch.zeros(3)}})
        damage("garbled", "tokenizer.json", b"{}")
        damage("torn", "config.json", b"{")
        last = bytearray(Path("runs/sound/last.pt").read_bytes())
        last[len(last) // 2] ^= 1
        damage("flipped", "last.pt", bytes(last))
        damage("back", "last.pt", Path("runs/sound/best.pt").read_bytes())
        swapped = Path("runs/sound/tokenizer.json").read_text("utf-8")
        for a, b in ((": 70,", ": 0.5,"), (": 71,", ": 70,"), (": 0.5,", ": 71,")):
            swapped = swapped.replace(a, b)
        damage("swapped", "tokenizer.json", swapped.encode())
        edit("foreign", languages=["en", "fr"])
        edit("distant", languages=["fr", "de"])
        edit("misshapen", model={"heads": 2})
        damage("probed", "config.json", b'{"format": 4}')
        damage("headless", "config.json", b"")
        Path("runs/headless/config.json").unlink()
        write_text(folder, "other", ["the dog"], ["der Hund"])
        write_text(folder, "retold", ["the dog sees a man"] * 40, ["ein Mann"] * 40)
        os.utime("runs/sound/best.pt")                   # the newest is named first
        with FileLock("runs/busy/lock"):
            yield folder


MISTAKES = [
    # flags
    (train_mt, "--lambda=1.23456789 --epochs 3 --batch-size 3 --learning-rate 3 --gpu --routing em "
     "--beem 3",
     "did you mean --reg-weight, --steps, --max-tokens, --lr, --device, --agg, --beam?"),
    (train_mt, "--aggregation --size --config --where --capsule --cpu --beam-size --length-penalty",
     "mean --agg, --arch, --arch, --agg-at, --capsule-attention, --device, --beam, --lenpen?"),
    (train_mt, "--amp yes", "arguments: yes; --amp takes no value"),
    (train_mt, "--agg em dynamic --beam 2", "arguments: dynamic; --agg takes one value"),
    (train_mt, "em", "unrecognized arguments: em (--help lists the arguments)"),
    (train_mt, "--reg output,subspace", "separate several values by spaces"),
    (train_mt, "--data multi30k --data-dir text.en --name new",
     "--data-dir text.en: cannot make the folder", "choose another place"),
    (train_mt, "--device moon", "--device moon: choose auto, cpu, cuda"),
    (train_mt, NEW + "--graphs", "--graphs needs a GPU", "--device is cpu: leave it out"),
    (train_mt, TRAIN + "sound --accumulate 2", "accumulate_times_processes was 1, is now 2"),
    # the model
    (train_mt, NEW + "--heads 3", "--heads 3: does not divide the width 16"),
    (train_mt, NEW + "--agg em --capsules 7", "--capsules 7: does not divide the width 16; choose "
     "from 1, 2, 4, 8, 16"),
    (train_mt, NEW + "--agg em --agg-at enc:9", "--agg-at enc:9: no such place", "from 1 to 1"),
    (train_mt, NEW + "--capsule-attention cross", "--capsule-attention cross: no such place",
     "choose from enc, dec"),
    (train_mt, NEW + "--reg output --heads 1", "--reg output is not used: it needs --heads 2"),
    (train_mt, NEW + "--agg em --no-em-activations --em-schedule released",
     "--em-schedule released is not used: it needs --em-activations"),
    # the text
    (train_mt, NEW + "--train gone", "--train: gone.en does not exist"),
    (train_mt, NEW + "--train corpus/**", "corpus/**.en does not exist", "no files corpus/**"),
    (train_mt, NEW + "--train corpus", "corpus.en does not exist", "there are corpus/val.en"),
    (train_mt, NEW + "--tgt fr --valid no/val --test no/test ./no/test",         # all at once
     "--train: text.fr does not exist", "there are text.de, text.en", "--test: no/test.en does not",
     "--valid: no/val.en does not exist", "no files ./no/test", "--test: two sets are named test"),
    (train_mt, NEW + "--train text.en", "text.en exists: write text, without .en"),
    (train_mt, NEW + "--train gone.en", "gone.en.en does not exist"),
    (train_mt, NEW + "--valid unequal", "--valid: unequal.en has 2 lines and unequal.de has 1"),
    (train_mt, NEW + "--test empty", "--test: empty.en is empty", "one sentence per line"),
    (train_mt, NEW + "--train latin", "latin.en, line 2: not UTF-8 (byte 4 of the line)", "iconv"),
    (train_mt, NEW + "--valid endless", "--valid: every pair is too long", "into sentences"),
    (train_mt, NEW + "--max-length 1", "no training pair of text is left", "--max-length 1"),
    (train_mt, "--train text --name new", "own text needs --valid, --src, --tgt as well",
     "(or none of --train, --valid, --test, to use the corpus that --data names)"),
    (train_mt, "--test text --name new", "own text needs --train, --valid, --src, --tgt"),
    (train_mt, NEW + "--data multi30k", "--data multi30k and --train text: leave out one"),
    *[(train_mt, f"--data toy {flag} fr --max-length 1 --name new",
       "--data toy is between en and de") for flag in ("--src", "--tgt")],
    (train_mt, NEW + "--src de --tgt de", "--src and --tgt are both de"),
    # the run's folder
    # (before it reads the text)
    (train_mt, TRAIN + "sound --train gone --agg em --beam 2 --clip 0 --lr 0.1",
     "(agg was 'linear', is now 'em'; beam was 1, is now 2; clip was 1.0, is now 0.0): choose "
     "another --name or --runs"),
    (train_mt, TRAIN + "busy", "runs/busy: another run is at work", "--name",
     "delete runs/busy/lock"),
    (train_mt, TRAIN + ". --agg em", "runs: is the folder of all runs: name one in it (--name)"),
    (train_mt, TRAIN + "thesis --runs .", "thesis: holds files", "choose another --name"),
    (train_mt, NEW + "--runs text.en", "--runs, --name: text.en/new: cannot open"),
    (train_mt, TRAIN + "cut --steps 1", "cut/last.pt: is cut short", "--name"),
    *[(train_mt, TRAIN + name, f"{name}/last.pt: is not a checkpoint of this model")
      for name in ("reshaped", "short")],
    (train_mt, TRAIN + "future", "future/config.json: has format 99, and this version "
     "reads format 4:", "--name"),
    (train_mt, TRAIN + "unmarked", "unmarked/config.json: has format None", "--name"),
    (train_mt, TRAIN + "torn", "torn/config.json: is damaged: put the run's own back"),
    (train_mt, TRAIN + "newer", "newer/last.pt: has format", "--name"),
    (train_mt, TRAIN + "garbled", "garbled/tokenizer.json is not a tokenizer"),
    (train_mt, TRAIN + "flipped", "flipped/last.pt: is cut short, damaged"),
    (train_mt, TRAIN + "back", "back/last.pt: has only weights, as best.pt does: put the run's"),
    (train_mt, TRAIN + "swapped", "tokenizer.json differs"),
    (train_mt, TRAIN + "sound --train other", "the text of --train differs"),
    (train_mt, TRAIN + "sound --valid retold", "the text of --valid differs"),
    (train_mt, TRAIN + "headless", "headless", "lacks the run's config.json"),
    # translation and analysis
    (translate, "runs/swapped --input text.en", "swapped: tokenizer.json differs"),
    (translate, "runs/misshapen --input text.en", "misshapen/config.json: describes no model",
     "'vocab_size'): put the run's own back"),
    (translate, "runs/probed --input text.en", "probed: is not a translation model", "runs/sound"),
    *[(translate, f"runs/sound --input text.en --reference text.en --compare runs/{name}",
       f"--compare runs/{name}: translates between other languages than runs/sound")
      for name in ("foreign", "distant")],
    (translate, "", "which RUN?", "runs/sound"),
    (translate, "runs/nowhere", "runs/nowhere: is not a run folder", "runs/sound"),
    (translate, "nowhere", "RUN: nowhere: is not a run folder", "there are runs/sound, runs/"),
    (translate, "runs", "runs: is not a run folder", "there are runs/sound"),
    (translate, "runs/sound --checkpoint step-9 --input text.en",
     "step-9.pt does not exist; checkpoints of this run: best, last"),
    (translate, "runs/sound --input gone.txt --output new.txt", "--input: gone.txt: cannot read",
     "check the path"),
    (translate, "runs/sound --input text.en --reference gone", "--reference: gone: cannot read"),
    (translate, "runs/sound --input text.en --reference text.de --compare runs/no",
     "--compare: runs/no: is not a run folder"),
    (translate, "runs/sound --input text.en --reference text.en --compare runs/sound/",
     "--compare runs/sound/ is RUN itself"),
    (translate, "runs/sound --input text.en --lowercase",
     "--lowercase is not used: it needs --reference FILE"),
    (translate, "runs/sound --input text.en --compare runs/back",
     "--compare runs/back is not used: it needs --reference FILE"),
    (translate, "runs/sound --input text.en --reference text.de --sign-test",
     "--sign-test is not used: it needs --compare OTHER"),
    # probing and logical inference
    (probe, "--checkpoint last", "--checkpoint last is not used: it needs --encoder RUN"),
    (logic, "--data x --pairs 300", "--pairs 300 is not used: it needs generated pairs"),
    (logic, "--data x", "--data: x/train1: cannot read"),
    (translate, "runs/sound --input text.en --output ./text.en", "--output ./text.en is read as"),
    (translate, "runs/sound --input text.en --reference text.de --output ./text.de",
     "--output ./text.de is read as"),
    (translate, "runs/sound --input text.en --output runs/sound/best.pt",
     "--output runs/sound/best.pt belongs to a run"),
    (translate, "runs/sound --input text.en --checkpoint ../other/best",
     "--checkpoint ../other/best: is a path: name a checkpoint of runs/sound"),
    (translate, "runs/sound --input text.en --output no/such", "--output no/such: cannot write"),
    (translate, "runs/sound --input text.en --reference unequal.en",
     "--reference unequal.en has 2 lines and the input 40; line i"),
    (translate, "runs/sound --input unequal.en --reference text.en", "text.en has 40 lines"),
    (translate, "runs/sound --input empty.en --reference empty.en",
     "--reference empty.en is empty, as is the input"),
]


def contents(folder) -> dict:
    """Every file below a folder with its content, but for the new run's and for locks, which
    cannot be read in Windows."""
    return {path: path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.parent.name != "new" and path.name != "lock"}


@pytest.mark.parametrize("script, argv, words", [(s, a, w) for s, a, *w in MISTAKES],
                         ids=[words[0] for _, _, *words in MISTAKES])
def test_a_mistake_is_one_line_and_overwrites_nothing(script, argv, words, place, capsys):
    before = contents(place)
    with contextlib.chdir(place):
        try:
            status = script.main(argv.split())
        except SystemExit as exit:                       # of the argument parser
            status = exit.code
    printed, error = capsys.readouterr()
    error = error.replace(os.sep, "/")
    assert status == 2
    assert error.count("\n") == 1
    if any(word in error for word in ("leave out", "as well", "are both", "divide", "no such",
                                      "not used")):
        assert not printed                               # flags are checked before work begins
    name = Path(script.__file__).name
    assert error.startswith(f"{name}: error: ")
    for word in words:
        assert word in error
    assert contents(place) == before
    assert not (place / "runs" / "new" / "config.json").exists()


def test_odd_text_is_trained_on_and_translated(tmp_path, monkeypatch, capsys):
    """Windows line ends, a byte-order mark, NUL, right-to-left text, emoji, other line separators,
    a very long word: as many lines come out as go in."""
    odd = ["\ufeffa man sees\r", "\r", "nul \0 bell \x07\r", "\u05e9\u05dc\u05d5 \u202ea \u0645",
           "\U0001f469\u200d\U0001f467 e\u0301", "a\u2028b\x85c\x0bd", "x" * 4_000, "word " * 150]
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path, "text", odd * 2, odd * 2)
    assert train([], TRAIN + "odd") == 0
    capsys.readouterr()
    assert translate.main("runs/odd --input text.en --beam 1 --device cpu".split()) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert len(lines) == 16
    assert lines[1] == ""
    assert all(len(line.splitlines()) < 2 for line in lines)
