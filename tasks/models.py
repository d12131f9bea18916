"""The models that a table compares: those that a paper names, and one of one's own by the flags of
train_mt.py.

What a model of one's own is and what it is called follows from its fields that differ from their
defaults, whichever these are: a mechanism that is not listed here makes a model of one's own, never
a baseline.
"""
import dataclasses
import re

from nmt.flags import (
    AGG_OPTIONS,
    EM_OPTIONS,
    OPTIONS,
    REG_OPTIONS,
    ModelFlags,
    UserError,
    command_line,
)
from transformer import SIZES, TransformerConfig

OWN = "own"
# what all models of a table share
FRAME = ("arch", "layers", "d_model", "heads", "d_ff", "dropout", "norm", "tie")


def in_words(setting: dict) -> str:
    """A setting, {field: value}, for --help."""
    return ", ".join(f"{name} {value}" for name, value in setting.items())


def model_fields(settings) -> list:
    """The fields of a command's settings that describe a model."""
    names = {field.name for field in dataclasses.fields(ModelFlags)}
    names.update(field.name for field in dataclasses.fields(TransformerConfig))
    return [field for field in dataclasses.fields(settings) if field.name in names]


def other_settings(settings, free: tuple[str, ...]) -> dict:
    """{field: value} of what is neither a model's nor free to differ between two runs in one
    folder."""
    left_out = {*free, *(field.name for field in model_fields(settings))}
    values = dataclasses.asdict(settings)
    return {name: value for name, value in values.items() if name not in left_out}


def departures(settings) -> dict:
    """{field: value} of the fields of a model, but for its frame, that differ from their defaults.
    """
    different = {}
    for field in model_fields(settings):
        value = getattr(settings, field.name)
        if value != field.default and field.name not in FRAME:
            different[field.name] = value
    return different


def options_of(mechanisms: dict) -> tuple[str, ...]:
    """The options that a model with these mechanisms ({"agg": "em", "reg": ("output",)}) takes."""
    options = ()
    if "agg" in mechanisms:
        options += (*AGG_OPTIONS, "iterations")
    if mechanisms.get("agg") == "em":
        options += EM_OPTIONS
    if "reg" in mechanisms:
        options += REG_OPTIONS
    return options


def sized(settings, setting: dict) -> dict:
    """The fields that a setting, {field: value}, fills: what no flag gave; --arch brings
    sizes of its own."""
    values = {}
    for name, value in setting.items():
        of_arch = settings.arch is not None and name in SIZES[settings.arch]
        if getattr(settings, name) is None and not of_arch:
            values[name] = value
    if settings.arch is None:
        values["arch"] = "tiny"                          # its sizes are all overridden
    return values


def choose(settings, known: dict[str, dict], usual: tuple[str, ...]) -> tuple[str, ...]:
    """The models to train: --models; without it `own` where flags describe one, else the usual
    ones.

    known: {name: mechanisms} of the papers' models. Raises UserError for flags that no chosen model
    has or uses.
    """
    own_flags = [name for name in departures(settings) if name not in OPTIONS]
    models = settings.models
    if models is None:
        models = (OWN,) if own_flags else usual
    if OWN in models:
        return tuple(dict.fromkeys(models))
    if own_flags:
        words = command_line(type(settings), {name: getattr(settings, name) for name in own_flags})
        raise UserError(f"{' '.join(words)} describes the model {OWN}: add it to --models")
    used = {option for name in models for option in options_of(known[name])}
    for name, value in departures(settings).items():
        if name not in used:
            words = command_line(type(settings), {name: value})
            raise UserError(f"{' '.join(words)} is not used by {', '.join(models)}: leave it out,"
                            " or choose --models that use it")
    return tuple(dict.fromkeys(models))


def encoder_config(settings, mechanisms: dict | None, vocab_size: int) -> TransformerConfig:
    """The encoder of a paper's model by its mechanisms, or with None that of one's own, by all
    flags.

    A paper's model takes of the other flags its frame and the options that it uses. Raises
    UserError.
    """
    if mechanisms is None:
        return settings.model_config(vocab_size, decoder=False)
    kept = (*FRAME, *options_of(mechanisms))
    values = {field.name: field.default for field in model_fields(settings)
              if field.name not in kept}
    values.update(mechanisms)
    papers = dataclasses.replace(settings, **values)
    return papers.model_config(vocab_size, decoder=False)


def own_name(settings) -> str:
    """What a model of one's own is called in a folder's name: em-output-agg-at-enc2, say; ""
    without a mechanism."""
    parts = []
    for name, value in departures(settings).items():
        flag, *values = command_line(type(settings), {name: value})
        if name not in ("agg", "reg"):                   # the values of these two say what they are
            parts.append(flag.removeprefix("--"))
        parts += values
    return re.sub(r"[^\w.=-]", "", "-".join(parts))
