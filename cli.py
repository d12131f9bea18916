"""What every command shares: a parser whose errors are one line, and the types of its numbers.

A mistake of the user's (a flag, a file, a line of text) is a `UserError`: `run` prints it as one line
on stderr and returns 2. Anything else is a bug and keeps its traceback.
"""
import argparse
import contextlib
import math
import os
import signal
import sys


class UserError(ValueError):
    """A mistake that the user can mend; its text names the argument or file and what would work."""


class Help(argparse.HelpFormatter):
    """Names a flag's default in --help, where it has one that its text does not explain."""

    def _get_help_string(self, action):
        plain = isinstance(action.default, (str, int, float)) and not isinstance(action.default, bool)
        return action.help + " (default: %(default)s)" if plain and action.default != argparse.SUPPRESS else action.help


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that shows defaults in --help, takes no abbreviations, and errs in one line."""

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("formatter_class", Help)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} (--help lists the arguments)\n")


def run(command, parser: Parser, argv=None) -> int:
    """Parses argv, calls `command(args)` and returns the exit status: 0, 2 after a mistake that the user can mend (a
    UserError, a full disk under the standard output, too little memory), 130 after Ctrl-C. SIGTERM raises
    SystemExit(143), so that files half-written are cleared away."""
    for stream in (sys.stdout, sys.stderr):       # a letter that the terminal's encoding lacks must not end a run
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    for text in sys.argv[1:] if argv is None else argv:
        if "\0" in text:
            parser.error(f"{text[:80]!r} holds a NUL character, which no name of a file can: take it out")
    args = parser.parse_args(argv)
    try:
        with terminable():
            command(args)
        sys.stdout.flush()
        return 0
    except UserError as error:
        message = error
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:                       # the reader of our output went away, as `head` does
        discard_output()
        return 0
    except OSError as error:                      # files that the program opens itself are named closer to the mistake
        message = f"{error.filename or 'standard output'}: {error.strerror or error}: choose another place"
        if not error.filename:
            discard_output()
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        message = "the memory does not suffice: choose a smaller model, or smaller batches (--max-tokens, --batch)"
    print(f"{parser.prog}: error: {' '.join(str(message).split())}", file=sys.stderr)
    return 2


@contextlib.contextmanager
def terminable():
    """A block that SIGTERM leaves by SystemExit(143), through every `finally`; signals reach the main thread only."""
    def leave(number, frame):
        raise SystemExit(128 + number)
    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:                            # another thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def discard_output():
    """Sends what is still to come on standard output nowhere, so that Python's last flush does not fail as well."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that the memory is used up; of the CPU's, torch says it with a plain RuntimeError."""
    return (isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
            or "allocate memory" in str(error) or "not enough memory" in str(error))


def number(cast, low, high, low_open=False):
    """An argparse type: `cast(text)` within [low, high], or (low, high] with low_open; the error names the range."""
    def parse(text: str):
        try:
            value = cast(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (low_open and value == low):      # NaN fails every comparison
            kind = "a whole number" if cast is int else "a number"
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise argparse.ArgumentTypeError(f"{shown!r} is not {kind} {'above' if low_open else 'from'} {low}"
                                             f" {'up to' if low_open else 'to'} {high}")
        return value
    return parse


def folder_name(text: str) -> str:
    """An argparse type for the name of a folder; an empty one, "." and ".." would be a folder that is there already."""
    if not text.strip(" ./\\"):
        raise argparse.ArgumentTypeError(f"{text!r} names no folder: give a name of letters and digits")
    return text


def whole(low: int, high: int = 10 ** 9):
    """An argparse type for whole numbers from low to high."""
    return number(int, low, high)


def real(low: float, high: float = 1e9, low_open: bool = False):
    """An argparse type for real numbers from low (above it, with low_open) to high."""
    return number(float, low, high, low_open)
