"""Writes the embedded corpus as text: FOLDER/train.en, FOLDER/train.de, and valid and test alike.

    python -m toy FOLDER                  # all 30,000 training pairs
    python -m toy FOLDER --pairs 4000     # the first 4,000

The pairs are those of train_mt.py.
"""
import argparse
from pathlib import Path

import toy


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
    parser = argparse.ArgumentParser(prog="python -m toy", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--pairs", type=int, default=toy.PAIRS[0], metavar="N",
                        help="the first N training pairs (%(default)s)")
    arguments = parser.parse_args(words)
    if not 1 <= arguments.pairs <= toy.PAIRS[0]:
        parser.error(f"--pairs {arguments.pairs}: choose from 1 to {toy.PAIRS[0]}")
    try:
        write_text(arguments.folder, arguments.pairs, "x")
    except OSError as error:
        parser.exit(2, f"{error.filename}: {error.strerror}: name another folder\n")


if __name__ == "__main__":
    main()
