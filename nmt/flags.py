"""Command lines from dataclasses: fields are flags, their metadata is the help.

A mistake of the user's (a flag, a file, a line of text) is a `UserError`: `run` prints it as one
line on stderr and returns 2. Anything else is a bug and keeps its traceback.
"""
import argparse
import dataclasses
import difflib
import errno
import functools
import os
import re
import signal
import sys
import textwrap
import types
import typing
from dataclasses import MISSING, dataclass

from disagreement import KINDS
from routing_em import DENSITIES, GRADIENTS, SCHEDULES
from transformer import AGGREGATIONS, COUPLINGS, PARTS, SIZES, TransformerConfig

# names that people try -> the flags
ALIASES = {"--aggregation": "--agg", "--size": "--arch", "--config": "--arch",
           "--lambda": "--reg-weight", "--where": "--agg-at"}


class UserError(ValueError):
    """A mistake that the user can fix; its text says what is wrong and what would work."""


def flag(default=MISSING, help: str = "", group: str = "", low=None, high=None, above=None,
         alias: str | None = None, positional: bool = False, **options):
    """A dataclass field that is a flag of the same name with dashes.

    group: the heading in --help. low, high, above: the range of a number (above: exclusive).
    alias: another spelling. options: choices, metavar, type of `add_argument`. A bool is --name and
    --no-name; a tuple takes several words.
    """
    metadata = dict(help=help, group=group, alias=alias, positional=positional,
                    limits=(low, high, above), options=options)
    return dataclasses.field(default=default, metadata=metadata)


def read_number(text: str, kind: type, low, high, above):
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
    span = f"from {lowest}" if above is None else f"above {above}"
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {name} {span} to {highest}")


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` with errors of one line."""

    def error(self, message: str):
        suggestions = []
        if message.startswith("unrecognized arguments"):
            names = [*self._option_string_actions, *ALIASES]
            for word in message.split():
                matches = difflib.get_close_matches(word.partition("=")[0], names, 1, 0.85)
                suggestions += [ALIASES.get(name, name) for name in matches]
        suggestions = [name for name in suggestions if name in self._option_string_actions]
        hint = f"; did you mean {', '.join(suggestions)}?" if suggestions else ""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}{hint} (--help lists the "
                     "arguments)\n")


def parse(kind: type, argv=None, presets=None):
    """A dataclass of flags filled from a command line (None: this program's own); its attribute
    `given` names the fields that are set there. presets: a function of the settings parsed so far
    to the defaults that depend on them, {field: value}."""
    given = vars(make_parser(kind).parse_args(argv))
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
    settings = kind(**given)
    settings.given = frozenset(given)
    for name, value in (presets(settings) if presets else {}).items():
        if name not in given:
            setattr(settings, name, value)
    return settings


def make_parser(kind: type) -> Parser:
    """The parser of a dataclass of `flag` fields; --help leaves out those in its HIDDEN."""
    module = sys.modules[kind.__module__]
    paragraphs = [text if text.startswith("    ") else textwrap.fill(text, 78)
                  for text in (module.__doc__ or "").split("\n\n")]
    parser = Parser(prog=os.path.basename(getattr(module, "__file__", kind.__module__)),
                    usage="%(prog)s [flags]   (defaults are in parentheses)",
                    description="\n\n".join(paragraphs), allow_abbrev=False,
                    argument_default=argparse.SUPPRESS,
                    formatter_class=functools.partial(
                        argparse.RawDescriptionHelpFormatter, max_help_position=35))
    hints = typing.get_type_hints(kind)
    groups = {"": parser}
    for field in dataclasses.fields(kind):
        heading = field.metadata["group"]
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        options = argument_options(field, hints[field.name])
        if field.name in getattr(kind, "HIDDEN", ()):
            options["help"] = argparse.SUPPRESS
        names = [flag_name(field), field.metadata["alias"]]
        groups[heading].add_argument(*filter(None, names), **options)
    return parser


def flag_name(field) -> str:
    """A field's name on the command line."""
    return field.name if field.metadata["positional"] else "--" + field.name.replace("_", "-")


def argument_options(field, hint) -> dict:
    """A field as the arguments of `add_argument`."""
    positional = field.metadata["positional"]
    options = dict(field.metadata["options"], help=field.metadata["help"].replace("%", "%%"))
    if type(field.default) in (int, float, str) and field.default != "":
        options["help"] += f" ({field.default})"
    if isinstance(hint, types.UnionType):                # X | None
        hint = typing.get_args(hint)[0]
    if hint is bool:
        return {**options, "action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        options["nargs"] = "*" if positional else "+"
        hint = typing.get_args(hint)[0]
    elif positional and field.default is not MISSING:
        options["nargs"] = "?"
    options.setdefault("type", hint)
    if field.metadata["limits"] != (None, None, None):
        low, high, above = field.metadata["limits"]
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


# ---- Running a command

def how_to_write(error: OSError) -> str:
    """What helps against an error in writing a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space; the same command goes on from there"
    return "choose another place"


def run(command, kind: type, argv=None, presets=None) -> int:
    """Calls `command` with the settings from the command line. Returns the status: 0, 2 after a
    user's mistake, 130 after Ctrl-C, 141 if its output is closed. SIGTERM raises SystemExit."""
    if hasattr(sys.stdout, "reconfigure"):               # "?" for what a terminal cannot show
        sys.stdout.reconfigure(errors="replace")
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
        message = "not enough memory: choose a smaller model or smaller --max-tokens"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    print(f"{make_parser(kind).prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


# ---- The model's flags

MODEL = "model (Vaswani et al. 2017)"
AGGREGATION = "aggregation of the heads (Li 2019, Li 2021, Gu 2019)"
DISAGREEMENT = "disagreement of the heads (Li 2018, Li 2021)"
CAPSULE = "capsule routing of the attention logits (Duan 2020)"
# options of a mechanism, of no use without it
AGG_OPTIONS = ("agg_at", "capsules", "coupling")
EM_OPTIONS = ("em_density", "em_schedule", "em_activations", "em_gradient")
REG_OPTIONS = ("reg_at", "reg_weight")
OPTIONS = (*AGG_OPTIONS, *EM_OPTIONS, *REG_OPTIONS, "iterations", "capsule_parts")


@dataclass
class ModelFlags:
    """The flags of a model, by paper: the fields of TransformerConfig but for vocab_size."""
    arch: str = flag("tiny", "size: the next five, and training", MODEL, choices=tuple(SIZES))
    layers: int = flag(4, "layers of encoder and of decoder", MODEL, 1, 1000)
    d_model: int = flag(128, "width of the model", MODEL, 2, 65536)
    heads: int = flag(4, "attention heads", MODEL, 1, 4096)
    d_ff: int = flag(256, "width of the feed-forward layers", MODEL, 1, 10 ** 6)
    dropout: float = flag(0.1, "one dropout rate", MODEL, 0, 0.99)
    norm: str = flag("pre", "layer normalization", MODEL, choices=("pre", "post"))
    tie: str = flag("all", "shared embeddings", MODEL, choices=("none", "target", "all"))

    agg: str = flag("linear", "dynamic, em: Li's; gu-*: Gu's", AGGREGATION, choices=AGGREGATIONS)
    agg_at: tuple[str, ...] | None = flag(
        None, "as in enc:1-2 cross dec:4,6 (the paper's)", AGGREGATION, metavar="PLACE")
    capsules: int | None = flag(None, "capsules (Li: width; Gu: heads)", AGGREGATION, 1, 65536)
    iterations: int = flag(3, "iterations of every routing", AGGREGATION, 1, 100, metavar="T")
    em_density: str = flag("product", "over the dimensions", AGGREGATION, choices=DENSITIES)
    em_schedule: str = flag("hinton", "lambda: near 0.001, or 1-3", AGGREGATION, choices=SCHEDULES)
    em_gradient: str | None = flag(None, "iterations (em: full, gu-em: last)", AGGREGATION,
                                   choices=GRADIENTS)
    em_activations: bool = flag(True, "activations A_n in EM routing (yes)", AGGREGATION)
    coupling: str = flag("routed", "random: a control", AGGREGATION, choices=COUPLINGS)

    reg: tuple[str, ...] = flag((), ", ".join(KINDS), DISAGREEMENT, choices=tuple(KINDS),
                                metavar="KIND")
    reg_at: tuple[str, ...] | None = flag(None, "as --agg-at (everywhere)", DISAGREEMENT,
                                          metavar="PLACE")
    reg_weight: float = flag(1.0, "weight of the reward", DISAGREEMENT, 0, 1e6, metavar="LAMBDA")

    capsule_attention: tuple[str, ...] = flag(
        (), "enc, dec with layers, as in enc:1-3 dec", CAPSULE, metavar="PLACE", alias="--capsule")
    capsule_parts: tuple[str, ...] = flag(PARTS, f"in enc: {', '.join(PARTS)} (both)", CAPSULE,
                                          choices=PARTS, metavar="PART")

    def model_config(self, vocab_size: int, **overrides) -> TransformerConfig:
        """The configuration of the model that the flags describe. Raises UserError."""
        check_used(self)
        values = {}
        for field in dataclasses.fields(TransformerConfig):
            if hasattr(self, field.name):
                values[field.name] = getattr(self, field.name)
        values.update(overrides, vocab_size=vocab_size)
        try:
            return TransformerConfig(**values)
        except ValueError as error:                      # its text has fields as `field=value`
            flags = re.sub(r"\b([a-z_]+)=", lambda m: f"--{m[1].replace('_', '-')} ", str(error))
            raise UserError(flags) from error


def check_used(settings) -> None:
    """Raises UserError for an option that would be ignored, because its mechanism is not chosen."""
    capsule = settings.capsule_attention
    unused = {}                                          # option -> what it takes
    if settings.agg == "linear":
        unused |= dict.fromkeys(AGG_OPTIONS, "--agg em, or another one but linear")
    if settings.agg not in ("em", "gu-em"):
        unused |= dict.fromkeys(EM_OPTIONS, "--agg em or --agg gu-em")
    if not settings.reg:
        unused |= dict.fromkeys(REG_OPTIONS, "--reg output, or another kind")
    if not any(place.startswith("enc") for place in capsule):
        unused["capsule_parts"] = "--capsule-attention enc"
    if (settings.agg == "linear" or settings.coupling == "random") and not capsule:
        unused["iterations"] = "--agg em without --coupling random, or --capsule-attention enc"
    for field in dataclasses.fields(ModelFlags):
        value = getattr(settings, field.name)
        if field.name in unused and value != field.default:
            words = " ".join(command_line(ModelFlags, {field.name: value}))
            raise UserError(f"{words} is not used: it takes {unused[field.name]}")
