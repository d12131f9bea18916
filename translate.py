"""Translates text with a trained run: one line in, one line out; scores it, and compares two runs.
Without other input it reads the terminal line by line.

    python translate.py runs/NAME < in.txt > out.txt
    python translate.py runs/NAME --input in.txt --beam 8
    python translate.py runs/NAME --input a.en --reference a.de --compare runs/B

The search itself is nmt/search.py, the scores are nmt/evaluate.py.
"""
import contextlib
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tabulate import tabulate

from nmt.evaluate import (
    NO_4_GRAMS,
    bleu_metric,
    corpus_bleu,
    corpus_chrf,
    has_4_grams,
    reference_warnings,
)
from nmt.run_folder import find_run, load_run, name_runs_beside
from nmt.search import Translation, count_long, describe_long, translate_text
from nmt.significance import bleu_interval, format_p, randomization_test, sign_test
from tools.command_line import check_given, flag, run
from tools.files import UserError, as_user_error, errors_of, read_lines
from tools.machine import DEVICES, pick_device

SEARCH = "beam search"
SCORING = "scoring (on standard error)"
WINDOW = 1_000                  # lines that are translated before the first of them is written


@dataclass
class Settings:
    """What is translated with which run, how, and what it is compared with."""
    run: str | None = flag(None, "run folder, e.g. runs/NAME", metavar="RUN", positional=True)
    input: str | None = flag(None, "text to translate, UTF-8 (standard input)", metavar="FILE")
    output: str | None = flag(
        None, "where the translations go, line by line (standard output)", metavar="FILE")
    checkpoint: str = flag("best", "which one: best, last, average or step-N", metavar="NAME")
    device: str = flag("auto", DEVICES)

    beam: int = flag(4, "hypotheses kept; 1 is greedy search", SEARCH, 1, 1000)
    lenpen: float = flag(0.6, "length penalty; 0 prefers short translations", SEARCH, 0, 100)
    max_tokens: int = flag(8192, "batch size in beams x source tokens", SEARCH, 1)

    reference: str | None = flag(
        None, "reference translations: prints BLEU and chrF with their sacreBLEU signatures",
        SCORING, metavar="FILE")
    lowercase: bool = flag(False, "scores without regard to case", SCORING)
    compare: str | None = flag(
        None, "another run, the baseline: prints an approximate randomization test against it",
        SCORING, metavar="OTHER")
    sign_test: bool = flag(
        False, "with --compare: the sign test of Li 2018 and Gu 2019 as well", SCORING)


def check_flags(settings: Settings, interactive: bool) -> None:
    """Raises UserError for a missing run, and for flags that contradict each other."""
    if not settings.run:
        raise UserError(f"which RUN? Name the folder of one; {name_runs_beside('runs/NAME')}")
    if not settings.reference:
        check_given(settings, dict.fromkeys(("compare", "lowercase"), "--reference FILE"))
    if not settings.compare:
        check_given(settings, {"sign_test": "--compare OTHER"})
    elif Path(settings.compare).resolve() == Path(settings.run).resolve():
        raise UserError(f"--compare {settings.compare} is RUN itself: name another run")
    if interactive and (settings.output or settings.reference):
        raise UserError("--output and --reference need text: name it with --input FILE")
    if settings.output:
        output = Path(settings.output)
        read = [os.fstat(0)]                             # standard input may be a file, too
        read += [os.stat(path) for path in (settings.input, settings.reference)
                 if path and os.path.exists(path)]
        if output.is_file() and any(os.path.samestat(output.stat(), other) for other in read):
            raise UserError(f"--output {settings.output} is read as well; name another file")
        of_run = output.suffix in (".pt", ".json", ".jsonl", ".hyp", ".ref", ".png")
        if of_run and output.exists() and (output.parent / "config.json").exists():
            raise UserError(f"--output {settings.output} belongs to a run; name another file")


def translate_terminal(translate) -> None:
    """Prints the translation of every line as it comes, until Ctrl-D or Ctrl-C. The prompts go to
    standard error."""
    sys.stdin.reconfigure(errors="replace")              # a pasted line may not be UTF-8
    end = "Ctrl-Z and Enter end" if sys.platform == "win32" else "Ctrl-D ends"
    print(f"One sentence per line; {end}.\n> ", end="", file=sys.stderr, flush=True)
    for line in sys.stdin:
        translation, = translate([line])
        print(translation.text, flush=True)
        print("> ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)                               # ends the line of the last prompt


def write_translations(translations, output: str | None) -> list[Translation]:
    """Writes translations line by line as they come, to a file or to standard output, and returns
    them."""
    written = []
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if output:
            stack.enter_context(as_user_error("write", f"--output {output}"))
            file = stack.enter_context(open(output, "w", 1, encoding="utf-8", newline="\n"))
        else:
            file.reconfigure(encoding="utf-8", newline="\n")
        for translation in translations:
            file.write(f"{translation.text}\n")
            written.append(translation)
    return written


def comparison_table(systems: dict, references, metric) -> str:
    """BLEU of systems {name: lines} with its 95 % interval, and p of the difference to the first,
    the baseline."""
    baseline, *_ = systems
    rows = []
    for name, lines in systems.items():
        score, (low, high) = bleu_interval(lines, references, metric)
        p = "baseline"
        if name != baseline:
            p = format_p(randomization_test(systems[baseline], lines, references, metric))
        rows.append([name, f"{score:.2f}", f"[{low:.2f}, {high:.2f}]", p])
    header = ["run", "BLEU", "95 % (bootstrap)", "p against the baseline (randomization)"]
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True)


def print_scores(systems: dict, references: list[str], tgt: str, settings: Settings) -> None:
    """BLEU and chrF of the run, and with --compare the tests against the baseline, on standard
    error; systems: run -> lines."""
    lines = systems[settings.run]
    bleu, signature = corpus_bleu(lines, references, tgt, settings.lowercase)
    print(f"BLEU {bleu:.2f}  {signature}", file=sys.stderr)
    chrf, signature = corpus_chrf(lines, references, settings.lowercase)
    print(f"chrF {chrf:.2f}  {signature}", file=sys.stderr)
    for warning in reference_warnings(references, tgt):
        print(f"warning: {warning}", file=sys.stderr)
    if not has_4_grams(references, tgt):
        print(NO_4_GRAMS, file=sys.stderr)
    metric = bleu_metric(references, tgt, settings.lowercase)
    if settings.compare:
        print(comparison_table(systems, references, metric), file=sys.stderr)
    if settings.sign_test:
        better, worse, p = sign_test(systems[settings.compare], lines, references, metric)
        print(f"sign test: {better} sentences better than the baseline's, {worse} worse, "
              f"p: {format_p(p)}", file=sys.stderr)


def command(settings: Settings) -> None:
    """Reads, translates, writes and, with --reference, scores."""
    settings.run = find_run(settings.run)
    settings.compare = find_run(settings.compare)
    interactive = settings.input is None and sys.stdin.isatty()
    check_flags(settings, interactive)
    device = pick_device(settings.device)
    translators = {}
    languages = []
    for flag_name, folder in (("--compare", settings.compare), ("RUN", settings.run)):
        if folder:
            with errors_of(flag_name):
                model, tokenizer, config = load_run(folder, settings.checkpoint, device)
            translators[folder] = partial(
                translate_text, model, tokenizer, beam=settings.beam, lenpen=settings.lenpen,
                max_tokens=settings.max_tokens, max_source=config["longest_source"],
                length_ratio=config["length_ratio"])
            languages.append(config["languages"])
    if languages[0] != languages[-1]:
        raise UserError(f"--compare {settings.compare}: translates between other languages than "
                        f"{settings.run}")
    _, tgt = languages[-1]
    if interactive:
        translate_terminal(translators[settings.run])
        return
    with errors_of("--input"):
        lines = read_lines(settings.input)
    references = []
    if settings.reference:
        with errors_of("--reference"):
            references = read_lines(settings.reference)
    if settings.reference and len(references) != len(lines):
        raise UserError(f"--reference {settings.reference} has {len(references)} lines and the "
                        f"input {len(lines)}; line i of one must translate line i of the other")
    if settings.reference and not references:
        raise UserError(f"--reference {settings.reference} is empty, as is the input: fill both")
    if settings.output:                                  # so an error comes before the work
        with as_user_error("write", f"--output {settings.output}"):
            open(settings.output, "ab").close()
    systems = dict.fromkeys(translators)                 # the baseline comes first
    progress = bool(settings.output) or not sys.stdout.isatty()
    for folder in reversed(translators):                 # and is translated last
        translations = translators[folder](lines, window=WINDOW, progress=progress)
        if folder == settings.run:
            translations = write_translations(translations, settings.output)
        translations = list(translations)
        for message in describe_long(*count_long(translations)):
            print(f"{folder}: {message}", file=sys.stderr)
        systems[folder] = [translation.text for translation in translations]
    if references:
        print_scores(systems, references, tgt, settings)


def main(argv=None) -> int:
    return run(command, Settings, argv)


if __name__ == "__main__":
    sys.exit(main())
