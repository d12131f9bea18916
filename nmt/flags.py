"""Command lines from dataclasses: fields are flags, their metadata is the help.

A user's mistake (a flag, a file, a line of text) raises `UserError`: `run` prints it as one line on
stderr and returns 2. Any other exception is a bug and keeps its traceback.
"""
import argparse
import dataclasses
import functools
import os
import re
import signal
import sys
import types
import typing
from dataclasses import MISSING

from nmt.files import UserError, how_to_write
from nmt.parser import Parser, read_number
from nmt.streams import setup_streams
from transformer import BODY, SIZES, ConfigError, TransformerConfig


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
    for name, value in given.items():
        if isinstance(value, list):                      # a repeated value counts once
            given[name] = tuple(dict.fromkeys(value))
    settings = kind(**given)
    settings.given = frozenset(given)
    for name, value in (presets(settings) if presets else {}).items():
        if name not in given:
            setattr(settings, name, value)
    return settings


def make_parser(kind: type) -> Parser:
    """The parser of a dataclass of `flag` fields; --help leaves out those in its HIDDEN, and shows
    the defaults of its RECIPES {recipe: {field: value}}."""
    module = sys.modules[kind.__module__]
    name = module.__spec__.name if module.__spec__ else module.__name__      # of `python -m`
    script = os.path.basename(getattr(module, "__file__", name))
    parser = Parser(f"python -m {name}" if "." in name else script, module.__doc__ or "",
                    usage="%(prog)s [flags]   (defaults are in parentheses)",
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
        options["nargs"] = "*" if positional else "+"
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
    user's mistake, 130 after Ctrl-C, 141 if its output is closed. SIGTERM raises SystemExit."""
    setup_streams()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
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
        message = f"{error.filename or 'output'}: {error.strerror or error}: {how_to_write(error)}"
    except (MemoryError, RuntimeError) as error:
        words = "allocate memory|not enough memory|out of memory"
        if isinstance(error, RuntimeError) and not re.search(words, str(error)):
            raise
        message = "not enough memory: choose a smaller model or smaller batches"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    print(f"{make_parser(kind).prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


# ---- The model's flags

# options of a mechanism, of no use without it
AGG_OPTIONS = ("agg_at", "capsules")
EM_OPTIONS = ("em_density", "em_schedule", "em_activations", "em_gradient")
REG_OPTIONS = ("reg_at", "reg_weight")
OPTIONS = (*AGG_OPTIONS, *EM_OPTIONS, *REG_OPTIONS, "iterations", "capsule_parts")


def model_config(settings, vocab_size: int, **overrides) -> TransformerConfig:
    """The configuration of the model that the flags describe. Raises UserError."""
    check_used(settings)
    values = {}
    for field in dataclasses.fields(TransformerConfig):
        if hasattr(settings, field.name):
            values[field.name] = getattr(settings, field.name)
    values.update(overrides, vocab_size=vocab_size)
    try:
        return TransformerConfig(**values)
    except ConfigError as error:
        name = error.field.replace("_", "-")
        hint = ""
        if error.field in ("heads", "capsules"):
            width = values["d_model"]
            divisors = [str(n) for n in range(1, width + 1) if width % n == 0]
            hint = f"; choose from {', '.join(divisors)}"
        raise UserError(f"--{name} {error.value}: {error.reason}{hint}") from error


def check_model(settings) -> None:
    """Raises UserError if the flags describe no model."""
    model_config(settings, vocab_size=1)


def model_flags() -> list[tuple]:
    """--arch and the fields of TransformerConfig with a help, as `make_dataclass` takes them, in
    the order of a run's name."""
    arch = flag("tiny", "size: sets the next five flags and the recipe of training", BODY,
                choices=tuple(SIZES))
    declared = [("arch", str, arch)]
    for field in sorted(dataclasses.fields(TransformerConfig), key=lambda f: f.name != "layers"):
        if field.metadata:
            copy = dataclasses.field(default=field.default, metadata=field.metadata)
            declared.append((field.name, field.type, copy))
    return declared


ModelFlags = dataclasses.make_dataclass("ModelFlags", model_flags(),
                                        namespace=dict(model_config=model_config,
                                                       check_model=check_model))


def check_used(settings) -> None:
    """Raises UserError for an option that would be ignored, because its mechanism is not chosen."""
    capsule = settings.capsule_attention
    unused = {}                                          # option -> what it needs
    if settings.agg == "linear":
        unused |= dict.fromkeys(AGG_OPTIONS, "an --agg other than linear, such as em")
    if settings.agg not in ("em", "gu-em"):
        unused |= dict.fromkeys(EM_OPTIONS, "--agg em or --agg gu-em")
    if not settings.reg:
        unused |= dict.fromkeys(REG_OPTIONS, "a --reg, such as output")
    if not any(place.startswith("enc") for place in capsule):
        unused["capsule_parts"] = "--capsule-attention enc"
    if settings.agg == "linear" and not capsule:
        unused["iterations"] = "--agg em or --capsule-attention enc"
    for field in dataclasses.fields(TransformerConfig):
        value = getattr(settings, field.name, field.default)
        if field.name in unused and value != field.default:
            refuse_unused(ModelFlags, field.name, value, unused[field.name])
