"""Command lines from dataclasses: a field with a help is a flag.

Python's argparse reads them. A mistake is one line on stderr and exit status 2; any other exception
is a bug and keeps its traceback.
"""
import argparse
import contextlib
import math
import sys
import types
import typing
from dataclasses import MISSING, field, fields
from types import SimpleNamespace
from typing import NamedTuple


class UserError(ValueError):
    """A mistake that the user can fix; its text says what is wrong."""


def flag(default=MISSING, help: str = "", **options):
    """A field that is a flag of the same name, with dashes. options: of `add_argument`, and
    positional=True for a word without a flag."""
    return field(default=default, metadata={"help": help, **options})


class Number(NamedTuple):
    """The numbers that a flag takes, as its type: low <= number < high."""
    kind: type
    name: str
    low: float
    high: float = math.inf

    def __call__(self, word: str):
        with contextlib.suppress(ValueError):
            if self.low <= self.kind(word) < self.high:
                return self.kind(word)
        raise argparse.ArgumentTypeError(f"{word} is not {self.name}")


count = Number(int, "a whole number from 1 on", 1)
natural = Number(int, "a whole number from 0 on", 0)
share = Number(float, "from 0 to below 1", 0, 1)
positive = Number(float, "a number above 0", math.ulp(0.0))
nonnegative = Number(float, "a number from 0 on", 0)


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        """Prints the message as one line, and exits with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def make_parser(description: str, kinds, help: dict, defaults: dict) -> Parser:
    """A parser that keeps only what is typed. Each dataclass is a group of --help, headed by its
    docstring. help: see `parse`; defaults: the values that --help shows, by field."""
    parser = Parser(description=description, allow_abbrev=False, usage="%(prog)s [flags]",
                    argument_default=argparse.SUPPRESS,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        group = parser.add_argument_group(kind.__doc__.split("\n")[0].rstrip("."))
        for f in fields(kind):
            options = f.metadata or help.get(f.name)
            if options:
                name, options = argument(f.name, hints[f.name], options, defaults[f.name])
                if not name.startswith("--"):
                    parser.usage += f" {options['metavar']}"
                group.add_argument(name, **options)
    return parser


def argument(name: str, hint, options: dict, default) -> tuple[str, dict]:
    """A field as the arguments of `add_argument`."""
    options = {**options}
    if default not in (None, "", MISSING) and not isinstance(default, tuple):
        options["help"] += f" (default: {default})"
    if isinstance(hint, types.UnionType):                # X | None
        hint = typing.get_args(hint)[0]
    if hint is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif typing.get_origin(hint) is tuple:
        options.setdefault("nargs", "+")
        hint = typing.get_args(hint)[0]
    if hint is not bool:
        options.setdefault("type", hint)
    if hint in (int, float):
        options.setdefault("metavar", "N" if hint is int else "X")
    if options.pop("positional", False):
        return name, options
    return "--" + name.replace("_", "-"), options


def parse(description: str, *kinds: type, argv=None, help: dict = {}, defaults=None,
          others: bool = False) -> list:
    """An object of each dataclass. help: {field: its options} of fields that are not made by
    `flag`. defaults: a function of all values and of those that were typed, {field: value}, to the
    defaults that depend on others, such as on the model's size; it may raise UserError. others:
    adds the list of all other words."""
    plain = {}
    for kind in kinds:
        plain |= {f.name: f.default for f in fields(kind) if f.metadata or f.name in help}

    def complete(typed: dict) -> dict:
        """The defaults of the classes, then those of `defaults`, then what was typed."""
        values = {**plain, **typed}
        if defaults:
            values |= defaults(SimpleNamespace(**values), typed)
        return {**values, **typed}

    parser = make_parser(description, kinds, help, complete({}))
    parsed, words = parser.parse_known_args(argv)
    if words and not others:
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    typed = {}
    for name, value in vars(parsed).items():
        typed[name] = tuple(value) if isinstance(value, list) else value
    try:
        values = complete(typed)
        objects = []
        for kind in kinds:
            named = {f.name: values[f.name] for f in fields(kind) if f.name in values}
            objects.append(kind(**named))
        return [*objects, words] if others else objects
    except ValueError as error:                          # sizes that do not fit each other
        parser.error(str(error))


def run(command, *kinds: type, argv=None, **options) -> None:
    """Calls `command` with the objects from the command line. A mistake is one line. options: of
    `parse`."""
    description = sys.modules[command.__module__].__doc__
    if hasattr(sys.stdout, "reconfigure"):               # a test may have replaced it
        sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    try:
        command(*parse(description, *kinds, argv=argv, **options))
    except (UserError, FileNotFoundError) as error:
        Parser().error(str(error))
