"""Translates text with a trained run: one line in, one line out; scores it, and compares two runs.

    python translate.py runs/NAME < in.txt > out.txt
    python translate.py runs/NAME --input in.txt --beam 4 --nbest 3 --scores
    python translate.py runs/NAME --input test.en --reference test.de --compare runs/OTHER

The search itself is nmt/search.py, the scores are nmt/evaluate.py.
"""
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from nmt.evaluate import corpus_bleu, paired_bootstrap, sign_test
from nmt.files import atomic_write, check_writable, read_lines
from nmt.flags import UserError, flag, run
from nmt.machine import DEVICES, memory, pick_device
from nmt.run_folder import load_run, runs_beside
from nmt.search import Translation, translate_nbest

DESCRIPTION = ("Translates text with a trained run: one line in, one line out. Reads the terminal "
               "line by line where there is no other input.")
SEARCH = "beam search"
SCORING = "scoring (on standard error)"


@dataclass
class Settings:
    """The flags of translate.py."""
    run: str | None = flag(None, "run folder, e.g. runs/NAME", metavar="RUN", positional=True)
    input: str | None = flag(None, "text to translate, UTF-8 (standard input)", metavar="FILE")
    output: str | None = flag(
        None, "where the translations go, at the end (standard output)", metavar="FILE")
    checkpoint: str = flag("best", "best, last, average, step-N", metavar="NAME")
    device: str = flag("auto", DEVICES)

    beam: int = flag(4, "hypotheses kept; 1 is greedy search", SEARCH, 1, 1000)
    lenpen: float = flag(0.6, "length penalty; 0 prefers short translations", SEARCH, 0, 10)
    nbest: int = flag(
        1, "translations per line; more than 1 adds a first column, the line's number", SEARCH, 1,
        1000)
    scores: bool = flag(False, "adds a column before the text: log P / length penalty", SEARCH)
    max_tokens: int = flag(8192, "batch size in beams x source tokens", SEARCH, 1)

    reference: str | None = flag(
        None, "reference translations: prints sacreBLEU and its signature", SCORING, metavar="FILE")
    lowercase: bool = flag(False, "scores without regard to case", SCORING)
    compare: str | None = flag(
        None, "another run: prints a paired bootstrap test against it", SCORING, metavar="OTHER")
    sign_test: bool = flag(
        False, "with --compare: the sign test of Li 2018 and Gu 2019 as well", SCORING)


def check_flags(settings: Settings, interactive: bool) -> None:
    """Raises UserError for a missing run, flags that contradict each other, or an --output that
    cannot be written."""
    if settings.run is None:
        raise UserError(f"which RUN? Name the folder of one; {runs_beside('runs/NAME')}")
    if settings.nbest > settings.beam:
        raise UserError(f"--nbest {settings.nbest} needs a --beam of {settings.nbest} or more")
    if not settings.reference:
        for name in ("compare", "lowercase"):
            if getattr(settings, name):
                raise UserError(f"--{name} is about scores: it needs --reference FILE")
    if settings.sign_test and not settings.compare:
        raise UserError("--sign-test compares two runs: it needs --compare OTHER")
    if interactive:
        for name in ("reference", "output"):
            if getattr(settings, name):
                raise UserError(f"--{name} needs text from --input or a pipe")
    if settings.compare and os.path.realpath(settings.compare) == os.path.realpath(settings.run):
        raise UserError(f"--compare {settings.compare} is the run itself; name another one")
    if settings.output:
        read = [Path(other).resolve() for other in (settings.input, settings.reference) if other]
        if Path(settings.output).resolve() in read:
            raise UserError(f"--output {settings.output} is read as well; name another file")
        check_writable(Path(settings.output), "--output")


def formatted(translations: list[list[Translation]], settings: Settings) -> str:
    """The output: a line per translation, columns separated by tabs: line number (--nbest), score
    (--scores), text."""
    rows = []
    for number, line in enumerate(translations, start=1):
        for translation in line:
            columns = [translation.text]
            if settings.scores:
                columns.insert(0, f"{translation.score:.4f}")
            if settings.nbest > 1:
                columns.insert(0, str(number))
            rows.append("\t".join(columns) + "\n")
    return "".join(rows)


def interact(translate, settings: Settings) -> None:
    """Asks for a line and prints its translation until the input ends (Ctrl-D)."""
    print("One sentence per line; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            print(formatted(translate([input("> ")]), settings), end="", flush=True)
        except UnicodeDecodeError:
            print("that was not UTF-8", file=sys.stderr)
        except EOFError:
            print()
            return


def translation_of(folder: str, settings: Settings, device: torch.device):
    """A function that translates lines with the run in a folder: lines -> nbest translations of
    each."""
    model, tokenizer, _ = load_run(folder, settings.checkpoint, device)
    search = partial(translate_nbest, model, tokenizer, beam=settings.beam, lenpen=settings.lenpen,
                     max_tokens=settings.max_tokens, nbest=settings.nbest)

    def translate(lines, progress=False):
        try:
            return search(lines, progress=progress)
        except torch.OutOfMemoryError:
            raise UserError(f"--max-tokens {settings.max_tokens} is too much for the memory of "
                            f"{device}") from None
    return translate


def print_scores(found: dict, references: list[str], settings: Settings) -> None:
    """BLEU of the run, and with --compare the tests against the other, on standard error; found:
    run -> translations."""
    texts = {}
    for folder, lines in found.items():
        texts[folder] = [line[0].text for line in lines]
    score, signature = corpus_bleu(texts[settings.run], references, settings.lowercase)
    print(f"BLEU {score:.2f}  {signature}", file=sys.stderr)
    if settings.compare:
        systems = [(folder, texts[folder]) for folder in (settings.compare, settings.run)]
        print(paired_bootstrap(systems, references, settings.lowercase), file=sys.stderr)
    if settings.sign_test:
        better, worse, p = sign_test(texts[settings.compare], texts[settings.run], references,
                                     settings.lowercase)
        print(f"sign test: {better} sentences better, {worse} worse, p = {p:.4f}", file=sys.stderr)


def command(settings: Settings) -> None:
    """Reads, translates, writes and, with --reference, scores."""
    interactive = settings.input is None and sys.stdin.isatty()
    check_flags(settings, interactive)
    device = pick_device(settings.device)
    folders = [folder for folder in (settings.compare, settings.run) if folder]
    translators = {folder: translation_of(folder, settings, device) for folder in folders}
    if interactive:
        interact(translators[settings.run], settings)
        return
    largest = memory(torch.device("cpu")) // 4
    lines = read_lines(settings.input, largest)
    references = read_lines(settings.reference, largest) if settings.reference else []
    if references and len(references) != len(lines):
        raise UserError(f"--reference {settings.reference} has {len(references)} lines and the "
                        f"input {len(lines)}; line i of the one must translate line i of the other")
    found = {folder: translate(lines, progress=True) for folder, translate in translators.items()}
    text = formatted(found[settings.run], settings)
    if settings.output:
        atomic_write(settings.output, text)
    else:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        sys.stdout.write(text)
    if references:
        print_scores(found, references, settings)


def main(argv=None) -> int:
    """Runs the command line; returns the exit status."""
    return run(command, Settings, "translate.py", DESCRIPTION, argv)


if __name__ == "__main__":
    sys.exit(main())
