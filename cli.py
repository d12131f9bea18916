"""What every command shares: a parser whose errors are one line, and the types of its numbers.

A mistake of the user's (a flag, a file, a line of text) is a `UserError`: `run` prints it as one line
on stderr and returns 2. Anything else is a bug and keeps its traceback.
"""
import argparse
import math
import os
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
        self.exit(2, f"{self.prog}: error: {message} (--help lists the arguments)\n")


def run(command, parser: Parser, argv=None) -> int:
    """Parses argv, calls `command(args)` and returns the exit status: 0, 2 after a UserError, 130 after Ctrl-C."""
    args = parser.parse_args(argv)
    try:
        command(args)
        sys.stdout.flush()
        return 0
    except UserError as error:
        message = " ".join(str(error).split())
        print(f"{parser.prog}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:                       # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def number(cast, low, high, low_open=False):
    """An argparse type: `cast(text)` within [low, high], or (low, high] with low_open; the error names the range."""
    def parse(text: str):
        try:
            value = cast(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or value > high or value < low or (low_open and value == low):
            kind = "a whole number" if cast is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind} {'above' if low_open else 'from'} {low}"
                                             f" {'up to' if low_open else 'to'} {high}")
        return value
    return parse


def whole(low: int, high: int = 10 ** 9):
    """An argparse type for whole numbers from low to high."""
    return number(int, low, high)


def real(low: float, high: float = 1e9, low_open: bool = False):
    """An argparse type for real numbers from low (above it, with low_open) to high."""
    return number(float, low, high, low_open)
