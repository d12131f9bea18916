"""Files that are wrong in every way, for test_errors.py: text, run folders, formulas, probing
tasks."""
import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, models

from nmt import run_folder
from nmt.tokenizer import SPECIAL_TOKENS

TEXTS = {  # NAME.en, NAME.de
    "good": (
        "the dog sees a man\n" * 20 + "a man sees the dog\n" * 20,
        "der Hund sieht einen Mann\n" * 20 + "ein Mann sieht den Hund\n" * 20,
    ),
    "empty": ("", "x\n"),
    "unequal": ("a\nb\n", "x\n"),
    "blank": ("\n \n\t\n", "x\ny\nz\n"),
    "latin": ("good\nsch\xf6n\n".encode("latin-1"), "x\ny\n"),
    "wide": ("a\n".encode("utf-16"), "x\n".encode("utf-16")),
    "overlong": ("word " * 200_000 + "\n", "x\n"),  # a million characters
}


class Hostile:
    """Creates the file "executed" where something unpickles it."""
    def __reduce__(self):
        return open, ("executed", "w")


def edited(path: Path, **changes) -> None:
    """Changes entries of a checkpoint, or with None takes them out."""
    state = {**run_folder.load(path), **changes}
    torch.save({name: value for name, value in state.items() if value is not None}, path)


def configured(folder: Path, **changes) -> None:
    """Changes settings in config.json: those of the model, but for its format."""
    path = folder / "config.json"
    here = {name: changes.pop(name) for name in ("format",) if name in changes}
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **here, "model": {**config["model"], **changes}}))


def word_level(path: Path) -> None:
    """Another library user's tokenizer, with our special tokens."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, "the", "dog"])}
    Tokenizer(models.WordLevel(vocabulary, unk_token="the")).save(str(path))


def huge(path: Path) -> None:
    """Four terabytes that take no room on the disk."""
    try:
        path.touch()
        os.truncate(path, 2 ** 42)
    except OSError:
        path.unlink()                             # this disk does not hold such files


def both(damage):
    """The damage done to the checkpoint that training goes on from and to the one that translation
    reads."""
    return lambda folder: [damage(folder / name) for name in ("last.pt", "best.pt")]


NOT_READ = Path("/proc/self/mem")                 # may be opened and not be read, not even by root
WEIGHT = {"weight": torch.zeros(3, 3)}
DAMAGE = {  # what happened to a copy of the run runs/sound
    "cut": both(lambda path: os.truncate(path, path.stat().st_size - 999)),
    "emptied": both(lambda path: path.write_bytes(b"")),
    "foreign": both(lambda path: path.write_text("Ein Hund sieht einen Mann.\n" * 99)),
    "hostile": both(
        lambda path: torch.save({"format": run_folder.FORMAT, "model": Hostile()}, path)
    ),
    "pickled": both(
        lambda path: path.write_bytes(
            pickle.dumps({"format": run_folder.FORMAT, "model": Hostile()})
        )
    ),
    "huge": both(huge),
    "newer": both(lambda path: edited(path, format=run_folder.FORMAT + 1)),
    "reshaped": both(lambda path: edited(path, model=WEIGHT)),
    "unstepped": lambda folder: edited(
        folder / "last.pt", optimizer={"state": {}, "param_groups": []}
    ),
    "unrandom": lambda folder: edited(folder / "last.pt", random={"torch": torch.zeros(3)}),
    "partial": lambda folder: edited(folder / "last.pt", optimizer=None),
    "nan": lambda folder: edited(
        folder / "best.pt",
        model={
            name: weight * torch.nan
            for name, weight in run_folder.load(folder / "best.pt")["model"].items()
        },
    ),
    "unconfigured": lambda folder: (folder / "config.json").write_text("{"),
    "future": lambda folder: configured(folder, format=99),
    "winged": lambda folder: configured(folder, wings=2),
    "modelless": lambda folder: (folder / "config.json").write_text(
        json.dumps({"format": run_folder.FORMAT})
    ),
    "lettered": lambda folder: configured(folder, layers="x"),
    "metrics": lambda folder: (folder / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n'),
    "metrics-step": lambda folder: (folder / "metrics.jsonl").write_text('{"step": "many"}\n'),
    "words": lambda folder: word_level(folder / "tokenizer.json"),
    "untokenized": lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff\xfe{"),
    "busy": lambda folder: None,
}


def write_tasks(folder: Path) -> None:
    """Folders of formulas in the format of Bowman et al. and probing files in SentEval's, each with
    one mistake."""
    wrong = {
        "relation": b"x\ta\tb\n",
        "columns": b"#\ta b\n",
        "formula": b"#\t( a ( xor b ) )\tc\n",
        "bytes": b"\xff\n",
        "missing": b"#\ta\tb\n",
        "nothing": b"",
        "nul": b"#\ta\t\0\n",
        "emoji": "#\t\u202e\u05d0\t\U0001f600\n".encode(),
        "endless": b"#\ta\t" + b"( a ( and " * 10**5 + b"\n",
        "deep-formula": b"#\ta\t" + b"( not " * 10**5 + b"a" + b" )" * 10**5 + b"\n",
        "huge-formula": b"#\ta\tb\n",
    }
    for name, text in wrong.items():
        (folder / name).mkdir()
        for part in ("train", "test"):
            for size in range(1, 13):
                sound = name != "nothing" and (part, size) != ("train", 1)
                (folder / name / f"{part}{size}").write_bytes(b"#\ta\tb\n" if sound else text)
    (folder / "missing" / "test7").unlink()
    (folder / "past_present.txt").write_text("tr\tPAST\tA man saw .\ntr\tPAST A man saw .\n")
    (folder / "subj_number.txt").write_bytes(b"tr\tNN\tA man saw .\ntr\tNN\t\xff\n")
    (folder / "obj_number.txt").write_text("tr\tNN\tA man saw .\ntr\tNNS\tA man saw it .\n")
    huge(folder / "huge-formula" / "train1")


def traces(folder: Path) -> dict:
    """The files below the folder, with their sizes and the times of their last changes, which no
    write leaves alone; without the lock files of downloads."""
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            if name != ".lock":
                stat = os.lstat(os.path.join(here, name))
                times = (stat.st_mtime_ns, stat.st_ctime_ns)
                found[os.path.join(here, name)] = (stat.st_size, *times)
    return found


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of these files; of a huge one, over its size."""
    total = hashlib.sha256()
    for path in sorted(traces(folder)):
        if not os.path.islink(path):
            size = os.path.getsize(path)
            total.update(f"{path} {size}".encode())
            if size < 10 ** 8:
                total.update(Path(path).read_bytes())
    return total.hexdigest()


def make(folder: Path, train) -> None:
    """Fills the folder, which is the current one; `train(name)` makes the sound run, runs/NAME."""
    for name, sides in TEXTS.items():
        for language, text in zip(("en", "de"), sides):
            (folder / f"{name}.{language}").write_bytes(
                text if isinstance(text, bytes) else text.encode()
            )
    (folder / "folder.en").mkdir()
    if NOT_READ.exists():
        for name in ("unreadable.en", "unreadable.de"):
            (folder / name).symlink_to(NOT_READ)
    train("sound")
    for name, damage in DAMAGE.items():
        shutil.copytree("runs/sound", f"runs/{name}")
        damage(folder / "runs" / name)
    (folder / "runs" / "thesis").mkdir()
    (folder / "runs" / "thesis" / "thesis.txt").write_text("mine")
    huge(folder / "huge.txt")
    write_tasks(folder)
