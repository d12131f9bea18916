"""Command lines from dataclasses: a field with a help is a flag.

Python's argparse reads them. A mistake is one line on stderr and exit status 2; any other exception
is a bug and keeps its traceback.
"""
import argparse
import sys
import types
import typing
from dataclasses import MISSING, field, fields


class UserError(ValueError):
    """A mistake that the user can fix; its text says what is wrong."""


def flag(default=MISSING, help: str = "", **options):
    """A field that is a flag of the same name, with dashes. options: of `add_argument`, and
    positional=True for a word without a flag."""
    return field(default=default, metadata={"help": help, **options})


def count(text: str) -> int:
    """A whole number from 1 on, as the type of a flag."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def natural(text: str) -> int:
    """A whole number from 0 on."""
    if int(text) < 0:
        raise ValueError
    return int(text)


def share(text: str) -> float:
    """A number from 0 to below 1."""
    if not 0 <= float(text) < 1:
        raise ValueError
    return float(text)


def positive(text: str) -> float:
    """A number above 0."""
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def nonnegative(text: str) -> float:
    """A number from 0 on."""
    if not 0 <= float(text) < float("inf"):
        raise ValueError
    return float(text)


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the defaults, where there are any, and the text as it is."""

    def _get_help_string(self, action):
        if action.default in (None, "") or isinstance(action.default, tuple):
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        """Prints the message as one line, and exits with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def make_parser(text: str, *kinds: type, help: dict = {}, defaults: bool = True) -> Parser:
    """The parser of dataclasses, each a group of --help, headed by its docstring. text: the
    description. help: {field: its options} of fields that are not made by `flag`. defaults: False
    leaves out what is not typed."""
    parser = Parser(description=text, formatter_class=Help, allow_abbrev=False,
                    usage="%(prog)s [flags]")
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        group = parser.add_argument_group(kind.__doc__.split("\n")[0].rstrip("."))
        for f in fields(kind):
            options = f.metadata or help.get(f.name)
            if options:
                name, options = argument(f, hints[f.name], options)
                if not defaults:
                    options["default"] = argparse.SUPPRESS
                if not name.startswith("--"):
                    parser.usage += f" {options['metavar']}"
                group.add_argument(name, **options)
    return parser


def argument(f, hint, options: dict) -> tuple[str, dict]:
    """A field as the arguments of `add_argument`."""
    options = {"default": f.default, **options}
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
        return f.name, options
    return "--" + f.name.replace("_", "-"), options


def parse(text: str, *kinds: type, argv=None, help: dict = {}, defaults=None,
          others: bool = False) -> list:
    """An object of each dataclass. help: see `make_parser`. defaults: a function of what was parsed
    so far, and of the names that were typed, to {flag: its default}, such as those that depend on
    the model's size; it may raise UserError. others: adds the list of all other words."""
    parser = make_parser(text, *kinds, help=help)
    try:
        if defaults:
            if {"-h", "--help"} & {*(sys.argv if argv is None else argv)}:
                parser.set_defaults(**defaults(parser.parse_args([]), ()))
            parsed = parser.parse_args(argv)
            typed = vars(make_parser(text, *kinds, help=help, defaults=False).parse_args(argv))
            parser.set_defaults(**defaults(parsed, typed.keys()))
        parsed, words = parser.parse_known_args(argv)
        if words and not others:
            parser.error(f"unrecognized arguments: {' '.join(words)}")
        values = vars(parsed)
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
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
    text = sys.modules[command.__module__].__doc__
    if hasattr(sys.stdout, "reconfigure"):               # a test may have replaced it
        sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    try:
        command(*parse(text, *kinds, argv=argv, **options))
    except (UserError, FileNotFoundError) as error:
        make_parser(text).error(str(error))
