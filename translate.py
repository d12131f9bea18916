"""Translates text with a trained run: one line in, one line out. At a terminal, line by line.

    python translate.py runs/NAME < in.txt > out.txt
    python translate.py runs/NAME --input in.txt --output out.txt --beam 8

To score a translation: sacrebleu REFERENCE -i OUT.
"""
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

from nmt.command_line import UserError, count, flag, nonnegative, run
from nmt.corpus import decode_lines
from nmt.machine import DEVICES, pick_device
from nmt.run_folder import load_run
from nmt.search import translate_lines

WINDOW = 1_000                  # lines that are translated before the first of them is written


@dataclass
class Settings:
    """What is translated, and how."""
    run: str = flag(help="folder of the run, such as runs/NAME", metavar="RUN", positional=True)
    input: str | None = flag(None, "text to translate, UTF-8 (default: standard input)",
                             metavar="FILE")
    output: str | None = flag(None, "where the translations go (default: standard output)",
                              metavar="FILE")
    checkpoint: str = flag("best", "best, last, average or step-N", metavar="NAME")
    beam: int = flag(4, "beam size", type=count)
    lenpen: float = flag(0.6, "length penalty alpha, ((5 + |y|) / 6)^alpha", type=nonnegative)
    device: str = flag("auto", DEVICES)


def translate(s: Settings) -> None:
    """Writes the translation of every line of the input."""
    model, tokenizer, settings = load_run(s.run, s.checkpoint, pick_device(s.device))

    def translate_window(lines: list[str]) -> list[str]:
        return translate_lines(model, tokenizer, lines, s.beam, s.lenpen,
                               length_ratio=settings["length_ratio"], progress=len(lines) > 1)

    if not s.input and sys.stdin.isatty():
        prompt(translate_window)
        return
    with open(s.input, "rb") if s.input else nullcontext(sys.stdin.buffer) as source:
        if s.output and is_same_file(source, s.output):
            raise UserError(f"--output {s.output} is the input")
        lines = decode_lines(source, s.input or "standard input")
        window = translate_window(list(islice(lines, WINDOW)))   # a mistake spares an old output
        with (open(s.output, "w", encoding="utf-8", newline="\n") if s.output
              else nullcontext(sys.stdout)) as target:
            while window:
                target.writelines(f"{line}\n" for line in window)
                window = translate_window(list(islice(lines, WINDOW)))


def is_same_file(file, path: str) -> bool:
    """Whether an open file is that at `path`, also through a link."""
    return os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path))


def prompt(translate_window) -> None:
    """Translates what is typed, line by line, until the end of the input."""
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        print(*translate_window([line]))


def main(argv=None) -> None:
    run(translate, Settings, argv=argv)


if __name__ == "__main__":
    main()
