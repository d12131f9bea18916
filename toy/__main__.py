"""Writes the embedded corpus as text: FOLDER/train.en, FOLDER/train.de, and valid and test alike.

    python -m toy FOLDER                  # all 30,000 training pairs
    python -m toy FOLDER --pairs 4000     # the first 4,000

The pairs are those of train_mt.py.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    print("error: start it in the project's folder: python -m toy", file=sys.stderr)
    sys.exit(2)

import toy
from tools.command_line import flag, run
from tools.files import UserError, atomic_write


@dataclass
class Settings:
    """The folder, and how much training text it gets."""
    folder: Path = flag(help="where the files go", positional=True, metavar="FOLDER")
    pairs: int = flag(toy.PAIRS[0], "the first N training pairs", low=1, high=toy.PAIRS[0])


def write_corpus(folder: Path, pairs: int) -> None:
    """Writes the first training pairs, the validation and the test pairs into a folder. A file that
    has its text stays as it is, because a training may be reading it. Raises UserError if it has
    another."""
    parts = toy.splits(*toy.PAIRS)
    parts["train"] = parts["train"][:pairs]
    folder.mkdir(parents=True, exist_ok=True)
    for part, examples in parts.items():
        for language, side in (("en", "english"), ("de", "german")):
            path = folder / f"{part}.{language}"
            text = "".join(f"{getattr(example, side)}\n" for example in examples)
            if not path.exists():
                atomic_write(path, text)
            elif path.read_bytes() != text.encode():
                raise UserError(f"{path}: has another text: choose another folder, or delete it")


def main(argv=None) -> int:
    return run(lambda s: write_corpus(s.folder, s.pairs), Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
