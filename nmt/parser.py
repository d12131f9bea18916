"""An argument parser whose errors are one line, with what the user may have meant. It imports no
torch: some commands start without."""
import argparse
import difflib
import functools
import re
import sys
import textwrap
import tomllib
from pathlib import Path

# names that people try -> the flags
ALIASES = {"--aggregation": "--agg", "--routing": "--agg", "--size": "--arch", "--config": "--arch",
           "--lambda": "--reg-weight", "--where": "--agg-at", "--capsule": "--capsule-attention",
           "--epochs": "--steps", "--batch-size": "--max-tokens", "--learning-rate": "--lr",
           "--gpu": "--device", "--cpu": "--device", "--beam-size": "--beam",
           "--length-penalty": "--lenpen"}


@functools.cache
def read_version() -> str:
    """Returns the project's version from pyproject.toml."""
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    return tomllib.loads(project.read_text())["project"]["version"]


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` with errors of one line. text: of --help, a docstring, of which the
    indented paragraphs stay as they are."""

    def __init__(self, prog: str, text: str, **options):
        paragraphs = [part if part.startswith("    ") else textwrap.fill(part, 78)
                      for part in text.split("\n\n")]
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=35)
        super().__init__(prog, description="\n\n".join(paragraphs), allow_abbrev=False,
                         formatter_class=formatter, **options)
        self.add_argument("--version", action="version", version=read_version(),
                          help="show the project's version and exit")

    def parse_args(self, args=None, namespace=None):
        words = sys.argv[1:] if args is None else list(args)
        settings, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}"
                       f"{self.find_hint(words, unknown)} (--help lists the arguments)")
        return settings

    def error(self, message: str):
        """Prints the message as one line, and exits with status 2."""
        name, _, reason = message.removeprefix("argument ").partition(": ")
        action = self._option_string_actions.get(name)
        if name.endswith("are required"):
            message += " (--help lists the arguments)"
        if action and action.nargs == "+" and re.search(r"'\S+,\S+'", reason):
            message += "; separate several values by spaces"
        # --amp=yes
        message = message.replace("ignored explicit argument", "takes no value such as")
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")

    def find_hint(self, words: list[str], unknown: list[str]) -> str:
        """Suggests what the user meant by the words that are not arguments."""
        flags = self._option_string_actions
        if not unknown[0].startswith("-"):
            before = [word for word in words[:words.index(unknown[0])] if word in flags]
            if not before:
                return ""
            takes = "no value" if flags[before[-1]].nargs == 0 else "one value"
            return f"; {before[-1]} takes {takes}"
        suggestions = []
        for word in unknown:
            word = word.partition("=")[0]
            matches = difflib.get_close_matches(word, [*flags, *ALIASES], 1, 0.75)
            if word in ALIASES:
                matches = [word]
            if not matches:
                matches = [flag for flag in flags if flag.startswith(word)]
            suggestions += [ALIASES.get(name, name) for name in matches]
        suggestions = [name for name in suggestions if name in flags]
        return f"; did you mean {', '.join(suggestions)}?" if suggestions else ""


def read_number(text: str, kind: type, low=None, high=None, above=None):
    """A number from the command line; kind: int or float. Raises ArgumentTypeError."""
    lowest = above if low is None else low
    highest = 10 ** 9 if high is None else high
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is not None and lowest <= value <= highest and value != above:
        return value
    name = "a whole number" if kind is int else "a number"
    span = f"from {lowest} to" if above is None else f"above {above}, at most"
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {name} {span} {highest}")
