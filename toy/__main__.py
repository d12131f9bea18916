"""Writes the embedded corpus as text: FOLDER/train.en, FOLDER/train.de, and valid and test alike.

    python -m toy FOLDER                  # all 30,000 training pairs
    python -m toy FOLDER --pairs 4000     # the first 4,000

The pairs are those of train_mt.py.
"""
import functools
from pathlib import Path

import toy
from nmt.parser import Parser, read_number


def write_text(folder: Path, pairs: int, mode: str = "w") -> None:
    """Writes the first training pairs, the validation and the test pairs into a folder. mode: of
    `open`; with "x" no file is overwritten."""
    parts = toy.splits(*toy.PAIRS)
    parts["train"] = parts["train"][:pairs]
    folder.mkdir(parents=True, exist_ok=True)
    for part, examples in parts.items():
        for language, side in (("en", "english"), ("de", "german")):
            with open(folder / f"{part}.{language}", mode, encoding="utf-8") as file:
                file.writelines(f"{getattr(example, side)}\n" for example in examples)


def main(words: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = Parser("python -m toy", __doc__)
    number = functools.partial(read_number, kind=int, low=1, high=toy.PAIRS[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files go")
    parser.add_argument("--pairs", type=number, default=toy.PAIRS[0], metavar="N",
                        help="the first N training pairs (%(default)s)")
    arguments = parser.parse_args(words)
    try:
        write_text(arguments.folder, arguments.pairs, "x")
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}: name another folder")


if __name__ == "__main__":
    main()
