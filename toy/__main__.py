"""`python -m toy`: prints pairs of the embedded corpus, or writes them to a parallel corpus."""
import argparse
import os
import random
import sys
from itertools import islice

import toy


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")


def parser() -> Parser:
    """The arguments of `python -m toy`."""
    flags = Parser(prog="python -m toy", description=toy.__doc__.split("\n")[0],
                   allow_abbrev=False)
    flags.add_argument("--count", type=int, default=5, help="number of sentence pairs (default: 5)")
    flags.add_argument("--seed", type=int, default=1,
                       help="the same seed gives the same pairs (default: 1)")
    flags.add_argument("--trees", action="store_true",
                       help="print the English tree and the features as well")
    flags.add_argument("--write", metavar="PREFIX",
                       help="write PREFIX.en and PREFIX.de instead of printing; lines may repeat")
    return flags


def show(count: int, seed: int, trees: bool) -> None:
    """Prints distinct pairs."""
    for pair in islice(toy.distinct(seed), count):
        print(pair.english)
        print(pair.german)
        if trees:
            print(pair.tree)
            print(pair.features)
        print()
    sys.stdout.flush()


def write(prefix: str, count: int, seed: int) -> None:
    """Writes PREFIX.en and PREFIX.de, which appear when both are whole.

    Lines may repeat: a set of all of them would need the memory.
    """
    names = [f"{prefix}.en", f"{prefix}.de"]
    partial = [f"{name}.partial" for name in names]
    rng = random.Random(seed)
    try:
        with open(partial[0], "w", encoding="utf-8", newline="\n") as english, \
                open(partial[1], "w", encoding="utf-8", newline="\n") as german:
            for _ in range(count):
                pair = toy.derive(rng)
                english.write(pair.english + "\n")
                german.write(pair.german + "\n")
        for written, name in zip(partial, names):
            os.replace(written, name)
    finally:
        for name in partial:
            if os.path.exists(name):
                os.remove(name)


def discard_output() -> None:
    """Sends what is still to be printed nowhere, or Python's last flush would fail as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    flags = parser()
    args = flags.parse_args(argv)
    if args.count < 1:
        flags.error(f"--count {args.count} is no number of pairs: give 1 or more")
    if args.seed < 0:
        flags.error(f"--seed {args.seed} is negative: give 0 or more")
    if args.write is not None and not os.path.basename(args.write):
        flags.error(f"--write {args.write!r} names no file: give a prefix such as data/toy")
    if args.write and args.trees:
        flags.error("--trees is for printing: leave it or --write out")
    try:
        if args.write:
            write(args.write, args.count, args.seed)
        else:
            show(args.count, args.seed, args.trees)
    except BrokenPipeError:                    # the reader of the output went away, as `head` does
        discard_output()
    except OSError as error:
        if args.write:
            flags.error(f"--write {args.write}.en: {error.strerror}: choose another place")
        discard_output()
        flags.error(f"standard output: {error.strerror}: choose another place")
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
