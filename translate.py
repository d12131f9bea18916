"""Translation with a trained run: beam search and the command line.

    python translate.py runs/NAME < in.txt > out.txt

Beam search keeps the `beam` best unfinished hypotheses of every sentence and ranks the finished ones by
`score(y) = log P(y|x) / lp(y)`, `lp(y) = ((5 + |y|) / 6)^lenpen` (Wu et al. 2016, Eq. 14, without the coverage
penalty; beam 4 and lenpen 0.6 as in Vaswani et al. 2017). |y| counts the end-of-sentence token.
"""
import math
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from nmt import files

from attention import Cache
from nmt.flags import Parser, UserError, real, run, whole
from nmt.tokenizer import BOS, EOS, load_tokenizer
from transformer import PAD
from nmt.fast_routing import install
from nmt.machine import memory, pick_device
from transformer import Transformer, TransformerConfig

MAX_SOURCE = 512            # tokens: longer lines are translated in pieces
MAX_WORD = 1000             # characters: a longer run without a space is no language, and is copied as it stands
SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")                       # where a long line is cut first
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")               # would break "one line in, one line out"






# Beam search







# Lines of text













# Runs and scores









# The command

def parser() -> Parser:
    """The command line of translate.py."""
    p = Parser(prog="translate.py", description="Translates text with a trained run: one line in, one line out. "
               "Reads the terminal line by line where there is no other input.")
    p.add_argument("run", metavar="RUN", help="run folder, e.g. runs/NAME")
    p.add_argument("--input", metavar="FILE", help="text to translate, UTF-8 (standard input)")
    p.add_argument("--output", metavar="FILE", help="where the translations go, at the end (standard output)")
    p.add_argument("--checkpoint", default="best", metavar="NAME", help="best, last, average, step-N")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group = p.add_argument_group("beam search")
    group.add_argument("--beam", type=whole(1, 1000), default=4, help="hypotheses kept; 1 is greedy search")
    group.add_argument("--lenpen", type=real(0, 10), default=0.6, help="length penalty; 0 prefers short translations")
    group.add_argument("--nbest", type=whole(1, 1000), default=1, help="translations per line; more than 1 adds a "
                       "first column, the line's number")
    group.add_argument("--scores", action="store_true", help="adds a column before the text: log P / length penalty")
    group.add_argument("--max-tokens", type=whole(1), default=8192, help="batch size in beams x source tokens")
    group = p.add_argument_group("scoring (on standard error)")
    group.add_argument("--reference", metavar="FILE", help="reference translations: prints sacreBLEU and its signature")
    group.add_argument("--lowercase", action="store_true", help="scores without regard to case")
    group.add_argument("--compare", metavar="OTHER", help="another run: prints a paired bootstrap test against it")
    group.add_argument("--sign-test", action="store_true", help="with --compare: the sign test of Li 2018 and Gu 2019 "
                       "as well")
    return p


def read_lines(path: str | None) -> list[str]:
    """The lines of a UTF-8 file (None: of standard input), which end with \\n or \\r\\n; a byte-order mark is skipped.

    Raises UserError for a file that is missing, unreadable, empty, or not UTF-8 (naming the line).
    """
    with files.reported("read", name := path or "standard input"):
        if path and os.path.getsize(path) > memory(torch.device("cpu")) // 4:
            raise UserError(f"{path} is too large to be translated in one go: split it, e.g. with split -l 1000000")
        content = sys.stdin.buffer.read() if path is None else Path(path).read_bytes()
    if path and not content:
        raise UserError(f"{path} is empty; it should hold one sentence per line")
    lines = content.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n") if content else []
    for i, line in enumerate(lines):
        try:
            lines[i] = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {i + 1}: not UTF-8; convert it, e.g. with iconv -t UTF-8") from None
    return lines


def check_flags(args, interactive: bool) -> None:
    """Raises UserError for flags that contradict each other, or an --output that cannot be written."""
    if args.nbest > args.beam:
        raise UserError(f"--nbest {args.nbest} needs a --beam of {args.nbest} or more")
    if (args.compare or args.lowercase) and not args.reference:
        raise UserError(f"--{'compare' if args.compare else 'lowercase'} is about scores: it needs --reference FILE")
    if args.sign_test and not args.compare:
        raise UserError("--sign-test compares two runs: it needs --compare OTHER")
    if interactive and (args.reference or args.output):
        raise UserError(f"--{'reference' if args.reference else 'output'} needs text from --input or a pipe")
    if args.compare and os.path.realpath(args.compare) == os.path.realpath(args.run):
        raise UserError(f"--compare {args.compare} is the run itself; name another one")
    if args.output:
        path, read = Path(args.output), [Path(other).resolve() for other in (args.input, args.reference) if other]
        if path.resolve() in read:
            raise UserError(f"--output {args.output} is read as well; name another file")
        files.check_writable(path, "--output")


def formatted(translations: list[list[Translation]], args) -> str:
    """The output: a line per translation, columns separated by tabs: line number (--nbest), score (--scores), text."""
    return "".join("\t".join([str(number)] * (args.nbest > 1) + [f"{x.score:.4f}"] * args.scores + [x.text]) + "\n"
                   for number, line in enumerate(translations, start=1) for x in line)


def interact(translate, args) -> None:
    """Asks for a line and prints its translation until the input ends (Ctrl-D)."""
    print("One sentence per line; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            print(formatted(translate([input("> ")]), args), end="", flush=True)
        except UnicodeDecodeError:
            print("that was not UTF-8", file=sys.stderr)
        except EOFError:
            return print()


def command(args) -> None:
    """Reads, translates, writes and, with --reference, scores."""
    interactive = args.input is None and sys.stdin.isatty()
    check_flags(args, interactive)
    device = pick_device(args.device)
    runs = {folder: load_run(folder, args.checkpoint, device)[:2] for folder in filter(None, [args.compare, args.run])}
    lines = [] if interactive else read_lines(args.input)
    references = read_lines(args.reference) if args.reference else []
    if references and len(references) != len(lines):
        raise UserError(f"--reference {args.reference} has {len(references)} lines and the input {len(lines)}; "
                        "line i of the one must translate line i of the other")

    def translate(lines, folder=args.run, progress=False):
        try:
            return translate_nbest(*runs[folder], lines, args.beam, args.lenpen, args.max_tokens, args.nbest,
                                   progress=progress)
        except torch.OutOfMemoryError:
            raise UserError(f"--max-tokens {args.max_tokens} is too much for the memory of {device}") from None

    if interactive:
        return interact(translate, args)
    found = {folder: translate(lines, folder, progress=True) for folder in runs}
    text = formatted(found[args.run], args)
    if args.output:
        files.atomic_write(args.output, text)
    else:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        sys.stdout.write(text)
    if references:
        systems = [(folder, [line[0].text for line in found[folder]]) for folder in runs]
        score, signature = corpus_bleu(systems[-1][1], references, args.lowercase)
        print(f"BLEU {score:.2f}  {signature}", file=sys.stderr)
        if args.compare:
            print(paired_bootstrap(systems, references, args.lowercase), file=sys.stderr)
        if args.sign_test:
            better, worse, p = sign_test(systems[0][1], systems[1][1], references, args.lowercase)
            print(f"sign test: {better} sentences better, {worse} worse, p = {p:.4f}", file=sys.stderr)


def main(argv=None) -> int:
    """Runs the command line; returns the exit status."""
    return run(command, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
