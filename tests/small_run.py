"""A small parallel corpus and tiny runs of train_mt.py on it; a tiny model for text with random
weights, and its run folder as training leaves it."""
import contextlib
import io
import signal
from dataclasses import asdict

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import train_mt
from nmt import run_folder
from nmt.encoded import EncodedPairs
from transformer import Transformer, TransformerConfig

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")
           if hasattr(signal, name)]                     # Windows has no SIGHUP
TEXT = ["a man sees the dog.", "the dog sees a man.", "ein Mann sieht den Hund.",
        "der Hund sieht einen Mann."] * 3
TINY = ("--layers 1 --d-model 16 --heads 2 --d-ff 16 --vocab-size 290 --max-tokens 256 --beam 3 "
        "--log-every 2 --device cpu --no-amp")


# ---- Text

def write_text(folder, name: str, source, target, tgt: str = "de") -> None:
    """The files of a corpus: NAME.en and NAME.TGT."""
    for language, lines in (("en", source), (tgt, target)):
        (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def random_pairs(count: int, longest: int) -> EncodedPairs:
    """Random token ids from 3 to 29, 1 to `longest` on either side of a pair."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, longest + 1, (2, count))
    offsets = [np.append(0, side.cumsum()) for side in lengths]
    ids = [random.integers(3, 30, side.sum()).astype(np.int32) for side in lengths]
    return EncodedPairs(ids[0], offsets[0], ids[1], offsets[1])


def name_files(folder, tgt: str = "de") -> list[str]:
    """The flags that name the files train, valid and test in a folder, and folder/runs."""
    flags = ["--src", "en", "--tgt", tgt, "--runs", str(folder / "runs")]
    for name in ("train", "valid", "test"):
        flags += [f"--{name}", str(folder / name)]
    return flags


def small_corpus(folder) -> list[str]:
    """Writes a corpus in which the source is the target backwards; returns its flags."""
    words = "ein zwei drei vier der die das Haus Baum geht sieht und rot blau klein".split()
    random = np.random.default_rng(0)
    for name, count in (("train", 120), ("valid", 12), ("test", 8)):
        german = [random.choice(words, random.integers(2, 6)) for _ in range(count)]
        source = [" ".join(line[::-1]) for line in german]
        write_text(folder, name, source, [" ".join(line) for line in german])
    return name_files(folder)


# ---- Runs

@contextlib.contextmanager
def program():
    """Undoes what the end of a program would: its handlers of signals."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def train(text: list[str], words: str) -> int:
    """The exit status of train_mt.py with a tiny model; text: the flags of the corpus."""
    with program():
        try:
            train_mt.main([*text, *TINY.split(), *words.split()])
        except SystemExit as exit:
            return exit.code
    return 0


class Killed(BaseException):
    """What `train_until` ends a run with, in place of SIGKILL."""


def train_until(line: str, text: list[str], words: str, number: int | None = None) -> int | None:
    """A run that gets a signal as soon as it prints this line (part of one), or without a signal
    is ended there as if killed. Returns the exit status, if there is one."""
    class Trap(io.StringIO):
        """Standard output."""
        def write(self, text: str) -> None:
            if line in text:
                if number is None:
                    raise Killed
                signal.raise_signal(number)

    with contextlib.redirect_stdout(Trap()), contextlib.suppress(Killed):
        return train(text, words)


def stop_after(step: int, text: list[str], words: str) -> None:
    """A run that SIGTERM stops after this step."""
    assert train_until(f"train  step {step} ", text, words, signal.SIGTERM) == 143


def rows(folder, kind: str) -> list[dict]:
    """The rows of a type in a run's log, without what the clock measures."""
    log = []
    for row in run_folder.read_log(folder):
        if row["type"] == kind:
            row.pop("tokens_per_second", None)
            row.pop("sentences_per_second", None)
            log.append(row)
    return log


def load(folder, name: str = "last") -> dict:
    """A checkpoint of a run, without what the clock measures."""
    state = run_folder.load(folder / f"{name}.pt")
    state.get("progress", {}).pop("seconds", None)
    return state


def same(state: dict, other: dict) -> bool:
    """Whether two checkpoints are equal bit by bit."""
    a = tree_leaves(state)
    b = tree_leaves(other)
    equal = [torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in zip(a, b)]
    return len(a) == len(b) and all(equal)


# ---- A model that was not trained

def small(tokenizer, seed=0):
    """The model, in float32, in eval mode."""
    torch.manual_seed(seed)
    config = TransformerConfig(tokenizer.get_vocab_size(), 16, 2, 1, 32)
    return Transformer(config).eval()


def write_run(folder, tokenizer, seed=0):
    """The folder of such a model, which is returned."""
    model = small(tokenizer, seed)
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_config(folder, fixed={"model": asdict(model.config), "data": "tatoeba"},
                            free={"languages": ["en", "de"], "length_ratio": 3.0})
    run_folder.save(folder / "best.pt", model=model.state_dict())
    tokenizer.save(str(folder / "tokenizer.json"))
    return model
