"""Command lines from dataclasses: fields are flags, their metadata is the help.

A user's mistake (a flag, a file, a line of text) raises `UserError`: `run` prints it as one line on
stderr and returns 2. Any other exception is a bug and keeps its traceback. This module imports no
torch, so that --help and small commands start at once.
"""
import argparse
import dataclasses
import difflib
import functools
import glob
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import types
import typing
import zlib
from dataclasses import MISSING

from tools.files import UserError, describe_error
from tools.signals import SIGNALS, end_program, handle_signals
from tools.streams import setup_streams

# names that people try -> the flags
ALIASES = {"--aggregation": "--agg", "--routing": "--agg", "--size": "--arch", "--config": "--arch",
           "--lambda": "--reg-weight", "--where": "--agg-at", "--capsule": "--capsule-attention",
           "--epochs": "--steps", "--batch-size": "--max-tokens", "--learning-rate": "--lr",
           "--gpu": "--device", "--cpu": "--device", "--beam-size": "--beam",
           "--length-penalty": "--lenpen"}


# ---- The parser

class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` with errors of one line. text: of --help, a docstring, of which the
    indented paragraphs stay as they are."""

    def __init__(self, prog: str, text: str, **options):
        paragraphs = [part if part.startswith("    ") else textwrap.fill(part, 78)
                      for part in text.split("\n\n")]
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=35)
        super().__init__(prog, description="\n\n".join(paragraphs), allow_abbrev=False,
                         formatter_class=formatter, **options)

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


# ---- From a dataclass to a parser

LONGEST_NAME = 100


class Flags:
    """The base of dataclasses of flags."""
    given: typing.ClassVar[frozenset] = frozenset()      # the fields that a command line has set


def flag(default=MISSING, help: str = "", group: str = "", low=None, high=None, above=None,
         positional: bool = False, **options):
    """A dataclass field that is a flag of the same name with dashes.

    group: the heading in --help. low, high, above: the range of a number (above: exclusive).
    options: choices, metavar, type of `add_argument`. A bool is --name and --no-name; a tuple takes
    several words, or is given several times. `transformer.option` gives a field the same metadata.
    """
    metadata = dict(help=help, group=group, positional=positional, low=low, high=high, above=above,
                    options=options)
    return dataclasses.field(default=default, metadata=metadata)


def parse(kind: type, argv=None, presets=None):
    """A dataclass of flags filled from a command line (None: this program's own). presets: a
    function of the settings parsed so far to the defaults that depend on them, {field: value}."""
    given = vars(make_parser(kind).parse_args(argv))
    # argparse converts even its mark for a positional argument that was left out
    given = {name: value for name, value in given.items() if str(value) != argparse.SUPPRESS}
    for name, value in given.items():
        if isinstance(value, list):
            words = itertools.chain.from_iterable(map(expand_pattern, value))
            given[name] = tuple(dict.fromkeys(words))    # a repeated value counts once
    settings = kind(**given)
    settings.given = frozenset(given)
    for name, value in (presets(settings) if presets else {}).items():
        if name not in given:
            setattr(settings, name, value)
    return settings


def expand_pattern(word) -> list:
    """Returns the paths that a pattern with * names, which Windows' shells leave to the program.
    Any other word stays as it is."""
    paths = sorted(glob.glob(str(word))) if "*" in str(word) else []
    return [type(word)(path) for path in paths] or [word]


def shell_line(*words) -> str:
    """A command line that a shell splits into these words, such as paths with blanks."""
    words = list(map(str, words))
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def make_parser(kind: type) -> Parser:
    """The parser of a dataclass of `flag` fields; --help leaves out those in its HIDDEN, and shows
    the defaults of its RECIPES {recipe: {field: value}}."""
    module = sys.modules[kind.__module__]
    name = module.__spec__.name if module.__spec__ else module.__name__      # with `python -m`
    command = os.path.basename(getattr(module, "__file__", name))
    if "." in name:
        command = f"python -m {name.removesuffix('.__main__')}"
    text = (module.__doc__ or "").rstrip()
    if dataclasses.fields(kind):
        text += "\n\nDefaults are in parentheses."
    parser = Parser(command, text,
                    usage=f"%(prog)s [flags]{name_operands(kind)}",
                    argument_default=argparse.SUPPRESS)
    hints = typing.get_type_hints(kind)
    groups = {"": parser}
    for field in dataclasses.fields(kind):
        heading = field.metadata["group"]
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        options = argument_options(field, hints[field.name], getattr(kind, "RECIPES", {}))
        if field.name in getattr(kind, "HIDDEN", ()):
            options["help"] = argparse.SUPPRESS
        groups[heading].add_argument(flag_name(field), **options)
    return parser


def name_operands(kind: type) -> str:
    """The positional fields for the usage line of --help, as in " RUN" or " [TABLE ...]"."""
    text = ""
    for field in dataclasses.fields(kind):
        if field.metadata.get("positional"):
            name = field.metadata["options"].get("metavar", field.name)
            if "tuple" in str(field.type):
                name += " ..."
            text += f" {name}" if field.default is MISSING else f" [{name}]"
    return text


def flag_name(field) -> str:
    """A field's name on the command line."""
    positional = field.metadata.get("positional")
    return field.name if positional else "--" + field.name.replace("_", "-")


def argument_options(field, hint, recipes: dict) -> dict:
    """A field as the arguments of `add_argument`."""
    positional = field.metadata.get("positional")
    options = dict(field.metadata["options"], help=field.metadata["help"].replace("%", "%%"))
    defaults = {}                                        # recipe -> value, as text
    for name, recipe in recipes.items():
        value = recipe.get(field.name, field.default)
        if value not in (None, ()):                      # otherwise it has no such setting
            values = value if isinstance(value, tuple) else (value,)
            defaults[name] = " ".join(map(str, values))
    if len(set(defaults.values())) > 1:                  # they differ
        words = [f"{name} {text}" for name, text in defaults.items()]
        options["help"] += f" ({', '.join(words)})"
    elif type(field.default) in (int, float, str) and field.default != "":
        options["help"] += f" ({field.default})"
    if isinstance(hint, types.UnionType):                # X | None
        hint = typing.get_args(hint)[0]
    if hint is bool:
        return {**options, "action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        options["action"] = "extend"
        options["nargs"] = "*" if positional and field.default is not MISSING else "+"
        hint = typing.get_args(hint)[0]
    elif positional and field.default is not MISSING:
        options["nargs"] = "?"
    options.setdefault("type", hint)
    low, high, above = (field.metadata.get(name) for name in ("low", "high", "above"))
    if low is not None or above is not None:
        options["type"] = functools.partial(read_number, kind=hint, low=low, high=high, above=above)
    options.setdefault("metavar", {int: "N", float: "X"}.get(hint))
    return options


def command_line(kind: type, values: dict) -> list[str]:
    """{field: value} of a dataclass of flags as the words of a command line."""
    words = []
    for field in dataclasses.fields(kind):
        value = values.get(field.name, MISSING)
        name = flag_name(field)
        if isinstance(value, bool):
            words.append(name if value else "--no-" + name.removeprefix("--"))
        elif isinstance(value, (list, tuple)):
            words += [name, *map(str, value)]
        elif value is not MISSING:
            words += [name, str(value)]
    return words


def name_run(words: list[str], ending: str = "") -> str:
    """The name of a run's folder, made of the words of its command line. A path in Windows has at
    most 260 characters: a longer name than LONGEST_NAME is cut, and a checksum replaces the rest.
    """
    name = "-".join(words).replace("--", "").replace(":", "").replace("/", "")
    if len(name) > LONGEST_NAME:
        checksum = zlib.crc32(name.encode(errors="surrogateescape"))
        name = f"{name[:LONGEST_NAME - 9]}-{checksum:08x}"
    return name + ending


def refuse_unused(kind: type, name: str, value, need: str) -> None:
    """Raises UserError for the value of a field that would be ignored without `need`."""
    words = " ".join(command_line(kind, {name: value}))
    raise UserError(f"{words} is not used: it needs {need}")


def check_given(settings, unused: dict[str, str]) -> None:
    """Raises UserError for a field of `unused` {field: what it needs} that the user has given."""
    for name, need in unused.items():
        if name in settings.given:
            refuse_unused(type(settings), name, getattr(settings, name), need)


# ---- Running a command

def run(command, kind: type, argv=None, presets=None) -> int:
    """Calls `command` with the settings from the command line. Returns the status: 0, 2 after a
    user's mistake, 130 after Ctrl-C, 141 if its output is closed. Other signals raise SystemExit.
    """
    setup_streams()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handle_signals(SIGNALS[1:], end_program)
    try:
        command(parse(kind, argv, presets))
        sys.stdout.flush()
        return 0
    except UserError as error:
        message = str(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:                              # `| head` closed our output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        message = describe_error(error)
    except (MemoryError, RuntimeError) as error:
        words = "allocate memory|not enough memory|out of memory"
        message = "not enough memory: choose a smaller model or smaller batches"
        if "Connection closed by peer" in str(error):
            message = "another process of this run has ended: see its message"
        elif isinstance(error, RuntimeError) and not re.search(words, str(error)):
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    print(f"{make_parser(kind).prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
