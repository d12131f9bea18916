"""A dataclass as a command line: its fields are the flags, their defaults the flags' own, their
metadata the help.

A mistake of the user's (a flag, a file, a line of text) is a `UserError`: `run` prints it as one
line on stderr and returns 2. Anything else is a bug and keeps its traceback.
"""
import argparse
import contextlib
import dataclasses
import difflib
import functools
import math
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


class UserError(ValueError):
    """A mistake that the user can mend; its text names the argument or file and what would work."""


# ---- From a dataclass to a parser

LETTERS = {int: "N", float: "X"}        # for numbers in --help, where a flag names no other


def flag(default=MISSING, help: str = "", group: str = "", low=None, high=None, above=None,
         choices=None, metavar: str | None = None, alias: str | None = None, type=None,
         positional: bool = False, empty: bool = False):
    """A dataclass field that is a flag of the same name with dashes.

    default: the field's; None or () where something else decides, which the help then says. group:
    the heading in --help. low, high, above: the range of a number (above: from there, exclusive).
    choices: the words allowed. metavar: the value's name in --help. alias: another spelling, as in
    "--capsule". type: text -> value, where the annotation alone does not say. positional: without
    dashes. empty: may be given without a word. The annotation decides
    the rest: bool gives --name, and --no-name where the default is not False; tuple[...] takes
    several words.
    """
    metadata = dict(help=help, group=group, low=low, high=high, above=above, choices=choices,
                    metavar=metavar, alias=alias, type=type, positional=positional,
                    empty=empty)
    return dataclasses.field(default=default, metadata=metadata)


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that takes no abbreviations and errs in one line."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str):
        words = message.split()
        message = " ".join(words)
        if message.startswith("unrecognized arguments"):
            near = []
            for word in words:
                flag = word.partition("=")[0]
                if flag.startswith("-"):
                    near += difflib.get_close_matches(flag, self._option_string_actions, 1, 0.7)
            if near:
                message += f"; did you mean {', '.join(dict.fromkeys(near))}?"
        self.exit(2, f"{self.prog}: error: {message} (--help lists the arguments)\n")


@functools.cache
def parser_of(settings: type, prog: str, description: str) -> Parser:
    """The parser of a dataclass of `flag` fields; what it parses holds only what was given.

    --help has the class's own flags first, then those it inherits, and at the end the examples: the
    indented lines of the docstring of its module. Fields that the class names in HIDDEN are left
    out.
    """
    hidden = getattr(settings, "HIDDEN", ())
    fields = dataclasses.fields(settings)
    positional = [field for field in fields if field.metadata["positional"]]
    named = [field for field in fields if not field.metadata["positional"]]
    bases = [base for base in settings.__bases__ if dataclasses.is_dataclass(base)]
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    own_first = sorted(named, key=lambda field: field.name in inherited)
    hints = typing.get_type_hints(settings)
    usage = ["%(prog)s"]
    for field in positional:
        several = " ..." if typing.get_origin(hints[field.name]) is tuple else ""
        usage.append((field.metadata["metavar"] or field.name) + several)
    document = sys.modules[settings.__module__].__doc__ or ""
    examples = [line for line in document.splitlines() if line.startswith("    ")]
    parser = Parser(
        prog=prog, usage=" ".join([*usage, "[flags]"]), description=textwrap.fill(description, 80),
        epilog="\n".join(["examples:", *examples]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS)
    groups = {"": parser}
    for field in positional + own_first:
        heading = field.metadata["group"]
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        options = options_of(field, hints[field.name])
        if field.name in hidden:
            options["help"] = argparse.SUPPRESS
        groups[heading].add_argument(*names_of(field), **options)
    return parser


def names_of(field) -> list[str]:
    """How a field is written on the command line."""
    if field.metadata["positional"]:
        return [field.name]
    alias = field.metadata["alias"]
    return ["--" + field.name.replace("_", "-")] + ([alias] if alias else [])


def options_of(field, hint) -> dict:
    """A field as the arguments of argparse's `add_argument`."""
    given = field.metadata
    default = field.default
    text = given["help"].replace("%", "%%")
    if isinstance(default, (int, float, str)) and not isinstance(default, bool):
        text += f" (default: {default})"
    options = {"help": text}
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
    kind = kinds[0] if typing.get_origin(hint) in (types.UnionType, typing.Union) else hint
    if kind is bool:
        yes_or_no = argparse.BooleanOptionalAction
        return {**options, "action": "store_true" if default is False else yes_or_no}
    if typing.get_origin(kind) is tuple:
        options["nargs"] = "*" if given["positional"] or given["empty"] else "+"
        kind = typing.get_args(kind)[0]
    elif given["positional"] and default is not MISSING:
        options["nargs"] = "?"
    if given["choices"]:
        options["choices"] = given["choices"]
        options["metavar"] = given["metavar"]
    elif given["metavar"] or kind in LETTERS:
        options["metavar"] = given["metavar"] or LETTERS[kind]
    if given["type"]:
        options["type"] = given["type"]
    elif kind in (int, float) and not given["choices"]:
        options["type"] = number(kind, given["low"], given["high"], given["above"])
    elif kind is not str:
        options["type"] = kind
    return options


def number(cast, low=None, high=None, above=None):
    """An argparse type: `cast(text)` from low (or above `above`) to high; the error names the
    range."""
    lowest = above if above is not None else low
    lowest = -math.inf if lowest is None else lowest
    highest = 10 ** 9 if high is None else high

    def parse(text: str):
        try:
            value = cast(text)
        except ValueError:
            value = math.nan
        if lowest <= value <= highest and value != above:               # NaN fails every comparison
            return value
        kind = "a whole number" if cast is int else "a number"
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        span = f"from {lowest} to {highest}" if above is None else f"above {above} up to {highest}"
        raise argparse.ArgumentTypeError(f"{shown!r} is not {kind} {span}")
    return parse


def folder_name(text: str) -> str:
    """An argparse type for the name of a folder; an empty one, "." and ".." would be a folder that
    is there already."""
    if not text.strip(" ./\\"):
        raise argparse.ArgumentTypeError(f"{text!r} names no folder: give a name of letters and "
                                         "digits")
    return text


def parse(settings: type, argv, prog: str, description: str):
    """The dataclass filled from a command line; its `given` names the fields that were on it."""
    words = sys.argv[1:] if argv is None else argv
    parser = parser_of(settings, prog, description)
    for word in words:
        if "\0" in word:
            parser.error(f"{word[:80]!r} holds a NUL character, which no name of a file can: take "
                         "it out")
    found = vars(parser.parse_args(words))
    for name, value in found.items():
        if isinstance(value, list):
            found[name] = tuple(value)
    filled = settings(**found)
    filled.given = frozenset(found)
    return filled


def command_line(settings: type, values: dict) -> list[str]:
    """{field: value} of a dataclass of flags as the words of a command line."""
    words = []
    for field in dataclasses.fields(settings):
        if field.name not in values:
            continue
        value = values[field.name]
        name = names_of(field)[0]
        if value is True:
            words.append(name)
        elif value is False:
            if field.default is not False:
                words.append("--no-" + name.removeprefix("--"))
        elif isinstance(value, dict):
            words += [name, *(f"{key}={x}" for key, x in value.items())]
        elif isinstance(value, (list, tuple)):
            words += [name, *map(str, value)]
        else:
            words += [name, str(value)]
    return words


# ---- Running a command

def run(command, settings: type, prog: str, description: str, argv=None) -> int:
    """Parses argv, calls `command(settings)` and returns the exit status: 0, 2 after a mistake
    that the user can mend (a UserError, a full disk, too little memory), 130 after Ctrl-C. SIGTERM
    raises SystemExit(143), so that files half-written are cleared away."""
    # a letter that the terminal's encoding lacks must not end a run
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    filled = parse(settings, argv, prog, description)
    try:
        with terminable():
            command(filled)
        sys.stdout.flush()
        return 0
    except UserError as error:
        message = error
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:                     # the reader of our output went away, as `head` does
        discard_output()
        return 0
    except OSError as error:   # files that the program opens itself are named closer to the mistake
        place = error.filename or "standard output"
        message = f"{place}: {error.strerror or error}: choose another place"
        if not error.filename:
            discard_output()
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        message = ("the memory does not suffice: choose a smaller model, or smaller batches "
                   "(--max-tokens, --batch)")
    print(f"{prog}: error: {' '.join(str(message).split())}", file=sys.stderr)
    return 2


@contextlib.contextmanager
def terminable():
    """A block that SIGTERM leaves by SystemExit(143), through every `finally`; signals reach the
    main thread only."""
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


def discard_output() -> None:
    """Sends what is still to come on standard output nowhere, so that Python's last flush does not
    fail as well."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that the memory is used up; of the CPU's, torch says it with a
    plain RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("allocate memory", "not enough memory", "out of memory")        # CPU, Apple's GPU
    return any(word in str(error) for word in words)


# ---- The model's flags

# options of a mechanism, of no use without it
AGG_OPTIONS = ("agg_at", "capsules", "coupling")
EM_OPTIONS = ("em_density", "em_schedule", "em_activations", "em_gradient")
REG_OPTIONS = ("reg_at", "reg_weight")
OPTIONS = (*AGG_OPTIONS, *EM_OPTIONS, *REG_OPTIONS, "iterations", "capsule_parts")


def check_used(settings) -> None:
    """Raises UserError for an option whose mechanism is not chosen: it would be ignored."""
    aggregated = settings.agg != "linear"
    capsule = bool(settings.capsule_attention)
    for options, used, remedy in (
        (AGG_OPTIONS, aggregated, "--agg em, or another one but linear"),
        (EM_OPTIONS, settings.agg in ("em", "gu-em"), "--agg em or --agg gu-em"),
        (REG_OPTIONS, bool(settings.reg), "--reg output, or another kind"),
        (("capsule_parts",), capsule, "--capsule-attention enc, or another place"),
        (("iterations",), aggregated or capsule, "--agg em or --capsule-attention enc"),
    ):
        for field in dataclasses.fields(ModelFlags):
            value = getattr(settings, field.name)
            if field.name in options and not used and value != field.default:
                words = " ".join(command_line(ModelFlags, {field.name: value}))
                raise UserError(f"{words} is not used: it takes {remedy}")


def as_flags(message: str) -> str:
    """A message of TransformerConfig, which names fields as `field=value`, in the words of the
    command line."""
    return re.sub(r"\b([a-z][a-z_]*)=", lambda found: f"--{found[1].replace('_', '-')} ", message)


MODEL = "model (Vaswani et al. 2017)"
AGGREGATION = "aggregation of the heads (Li et al. 2019, 2021; Gu and Feng 2019)"
DISAGREEMENT = "disagreement of the heads (Li et al. 2018, 2021)"
CAPSULE = "capsule routing of the attention logits (Duan et al. 2020)"


def sizes_in_words() -> str:
    """What --arch can be, in words."""
    words = []
    for name, size in SIZES.items():
        words.append(f"{name} {size['layers']} layers, d {size['d_model']}, {size['heads']} heads, "
                     f"FFN {size['d_ff']}")
    return "; ".join(words)


@dataclass
class ModelFlags:
    """The flags of a model, by paper: the fields of TransformerConfig, of which None leaves the
    choice to the size."""
    arch: str = flag(
        "tiny", f"size: {sizes_in_words()}", MODEL, choices=tuple(SIZES), metavar="SIZE")
    layers: int | None = flag(
        None, "layers of the encoder and of the decoder, over --arch", MODEL, 1, 1000)
    d_model: int | None = flag(None, "model width, over --arch", MODEL, 2, 65536)
    heads: int | None = flag(None, "attention heads, over --arch", MODEL, 1, 4096)
    d_ff: int | None = flag(None, "width of the feed-forward layer, over --arch", MODEL, 1, 10 ** 6)
    dropout: float | None = flag(None, "one dropout rate", MODEL, 0, 0.99)
    norm: str = flag(
        "pre", "layer normalization before or after a block", MODEL, choices=("pre", "post"))
    tie: str = flag(
        "all", "which embeddings are shared: none, target with output, or all three", MODEL,
        choices=("none", "target", "all"))

    agg: str = flag(
        "linear", "linear: concatenation and W^O; dynamic, em: Li's routing-by-agreement; "
        "gu-dynamic, gu-em: Gu's capsule layer", AGGREGATION, choices=AGGREGATIONS)
    agg_at: tuple[str, ...] | None = flag(
        None, "where: enc, cross, dec with layers, as in enc:1-2 cross:6 dec:4,6 (dynamic, em: the "
        "lowest two encoder layers; gu-*: the last of cross and dec)", AGGREGATION, metavar="PLACE")
    capsules: int | None = flag(
        None, "output capsules N, a divisor of the width (dynamic, em: the width itself; gu-*: the "
        "number of heads)", AGGREGATION, 1, 65536)
    iterations: int = flag(3, "iterations of every routing", AGGREGATION, 1, 100, metavar="T")
    em_density: str = flag(
        "product", "density of a vote in EM routing: the product over its dimensions (Hinton et "
        "al. 2018) or their sum (Li 2019)", AGGREGATION, choices=DENSITIES)
    em_schedule: str = flag(
        "hinton", "lambda of EM's activations: 0.01 (1 - 0.95^(t+1)), or 1 to 3 as in Li's "
        "released code", AGGREGATION, choices=SCHEDULES)
    em_gradient: str = flag(
        "last", "full: through all iterations; last: through the last M-step alone", AGGREGATION,
        choices=GRADIENTS)
    em_activations: bool = flag(
        True, "EM routing with activations A_n, the default (the released code ran without)",
        AGGREGATION)
    coupling: str = flag(
        "routed", "random: a control with the same parameters, drawn anew for every batch",
        AGGREGATION, choices=COUPLINGS)

    reg: tuple[str, ...] = flag(
        (), "what the heads are rewarded to differ in: subspace, position, output; "
        "squared-position: Li 2018 footnote 2; squared-subspace, squared-output: orthogonal rather "
        "than cancelling", DISAGREEMENT, choices=tuple(KINDS), metavar="KIND")
    reg_at: tuple[str, ...] | None = flag(
        None, "where, as --agg-at (everywhere)", DISAGREEMENT, metavar="PLACE")
    reg_weight: float = flag(
        1.0, "lambda, the weight of the reward (the decoder's two attentions count half each)",
        DISAGREEMENT, 0, 1e6, metavar="LAMBDA")

    capsule_attention: tuple[str, ...] = flag(
        (), "where: enc, dec with layers, as in enc:1-3 dec", CAPSULE, metavar="PLACE",
        alias="--capsule")
    capsule_parts: tuple[str, ...] = flag(
        PARTS, "of the encoder: vertical, horizontal or both (the decoder has only the horizontal "
        "one)", CAPSULE, choices=PARTS, metavar="PART")

    def model_config(self, vocab_size: int, **overrides) -> TransformerConfig:
        """The configuration: the size's defaults, these flags over them, then overrides. Raises
        UserError."""
        check_used(self)
        values = {**SIZES[self.arch], "dropout": 0.3 if self.arch == "big" else 0.1}
        for field in dataclasses.fields(TransformerConfig):
            value = None if field.name == "vocab_size" else getattr(self, field.name, None)
            if value is not None:
                values[field.name] = value
        values.update(overrides)
        try:
            return TransformerConfig(vocab_size=vocab_size, **values)
        except ValueError as error:
            raise UserError(as_flags(str(error))) from error
