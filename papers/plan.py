"""From the rows of a table (papers/tables.py) to runs of train_mt.py: their flags and their names.

The scale is the flags of train_mt.py that are alike for every row. A run's folder is named after
the scale and after what its mechanisms do, so that two rows that say the same in different words
share their runs, and so do tables.
"""
import json
import re
import zlib
from dataclasses import asdict, fields
from typing import NamedTuple

import torch

import train_mt
from nmt.corpus import text_name
from nmt.flags import OPTIONS, UserError, command_line, parse
from nmt.machine import Machine
from papers.rows import Row, Table
from transformer import COMPONENTS, PARTS, TransformerConfig

# The fields of TransformerConfig that are a model's size and recipe; all others are mechanisms.
SIZES = ("vocab_size", "d_model", "heads", "layers", "d_ff", "dropout", "norm", "tie", "decoder")
AGGREGATED = {"dynamic": "simple routing", "em": "EM", "gu-dynamic": "Gu's dynamic routing",
              "gu-em": "Gu's EM"}
# Mechanisms that may be given for a whole table; they reach the rows that have a use for them.
FOR_ALL = ("iterations", "reg_weight")


class Job(NamedTuple):
    """A run of a script, in a folder of its own; the last five are of train_mt.py alone."""
    name: str                           # of the folder
    label: str                          # for people: the model and the seed
    flags: list[str]                    # but for --name, --runs and --device
    script: str = "train_mt.py"
    seed: int | None = None
    config: TransformerConfig | None = None
    settings: train_mt.Settings | None = None
    mechanisms: list[str] = []          # the flags that tell it from the baseline of its scale


def completed(words: list[str]) -> train_mt.Settings:
    """The settings that train_mt.py has on a CPU with these words as its command line."""
    settings = parse(train_mt.Settings, words, "train_mt.py", "")
    train_mt.complete(settings, Machine(torch.device("cpu")))
    return settings


def rows_own() -> set[str]:
    """The settings that tell rows and seeds apart, so that nobody else may set them."""
    model = {field.name for field in fields(TransformerConfig)}
    return model - {*SIZES, *FOR_ALL} | {"seed", "name"}


# ---- Rows fitted to the scale

def largest_divisor(n: int, limit: int) -> int:
    """The largest divisor of n that is no larger than the limit, or than n; at least 1."""
    return max([1, *(i for i in range(1, min(limit, n) + 1) if n % i == 0)])


def wider_ffn(config: TransformerConfig) -> int:
    """The FFN's width that gives the baseline as many parameters as EM routing in its lowest two
    encoder layers."""
    d, H = config.d_model, config.heads
    added = min(2, config.layers) * (H * d ** 2 + H * d + 4 * d)
    return config.d_ff + round(added / (2 * config.layers * (2 * d + 1)))


def fitted(flags: str, config: TransformerConfig) -> list[str]:
    """A row's flags with its places and sizes fitted to the model; see papers/tables.py."""
    L = config.layers
    d = config.d_model
    H = config.heads
    values = {"L": L, "d": d, "H": H, "H_8th": H / 8, "ffn": wider_ffn(config),
              "lower": f"1-{max(1, L // 2)}", "upper": f"{min(L, L // 2 + 1)}-{L}",
              "two": f"1-{min(2, L)}", "top": f"{max(1, L - 1)}-{L}"}
    for part in (2, 4, 16, 64):
        values[f"d_{part}"] = largest_divisor(d, d // part)
    for part in (2, 4):
        values[f"H_{part}"] = largest_divisor(d, H // part)
    for times in (2, 4, 8):
        values[f"H{times}"] = largest_divisor(d, times * H)
    return flags.format(**values).split()


def size_flags(table: Table, size: str, scale: list[str]) -> list[str]:
    """The flags that make a row's size out of the scale's: big is twice the width, heads and FFN,
    as in the papers. Raises UserError where the scale is the largest size already."""
    if size == "base":
        return []
    settings = completed(scale)
    config = settings.model_config(vocab_size=1)
    if settings.arch == "big":
        raise UserError("--arch big: this table has rows of twice the size; choose tiny, small or "
                        "base")
    heads = config.heads if size == "wide" else 2 * config.heads
    if config == completed(["--arch", "base"]).model_config(vocab_size=1):
        return [*table.big.split(), "--heads", str(heads)]
    return ["--d-model", str(2 * config.d_model), "--d-ff", str(2 * config.d_ff),
            "--heads", str(heads)]


# ---- What tells a model from the baseline

def spans(layers: list[int]) -> str:
    """Layers, ascending, in the words of the command line: [1, 2, 4] -> "1-2,4"."""
    words = []
    for layer in layers:
        if layer - 1 in layers:
            first = words[-1].partition("-")[0]
            words[-1] = f"{first}-{layer}"
        else:
            words.append(str(layer))
    return ",".join(words)


def place_words(config: TransformerConfig, places: tuple[str, ...]) -> list[str]:
    """Places in one spelling: enc, enc:1-2, enc:1,3."""
    words = []
    for component in COMPONENTS:
        chosen = config.layers_at(places, component)
        if len(chosen) == config.layers:
            words.append(component)
        elif chosen:
            words.append(f"{component}:{spans(chosen)}")
    return words


def mechanisms(config: TransformerConfig) -> dict:
    """{field: value} of the mechanisms in which a model departs from the baseline, in one spelling:
    two models that do the same have the same. A field that is not named here is taken as it is."""
    found = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in SIZES and value != field.default:
            found[field.name] = value
    if config.agg != "linear":
        found["agg_at"] = place_words(config, config.agg_at)
        if config.capsules == (config.heads if config.agg.startswith("gu-") else config.d_model):
            found.pop("capsules", None)
    else:
        found.pop("agg_at")
    if config.reg and config.reg_weight:
        found["reg"] = sorted(set(config.reg))
        found["reg_at"] = place_words(config, config.reg_at)
    else:
        for name in ("reg", "reg_at", "reg_weight"):
            found.pop(name, None)
    if config.capsule_attention:
        found["capsule_attention"] = place_words(config, config.capsule_attention)
        encoder = config.layers_at(config.capsule_attention, "enc")
        if not encoder or set(config.capsule_parts) == set(PARTS):
            found.pop("capsule_parts", None)
    return found


def flags_of(values: dict) -> list[str]:
    """{field of TransformerConfig: value} as flags of train_mt.py. Raises UserError for a field
    that no flag sets: it would be lost on the way there."""
    known = {field.name for field in fields(train_mt.Settings)}
    for name in values:
        if name not in known:
            raise UserError(f"TransformerConfig.{name} has no flag: add it to ModelFlags in "
                            "nmt/flags.py, so that train_mt.py can be told")
    return command_line(train_mt.Settings, values)


def departures(config: TransformerConfig, base: TransformerConfig | None) -> dict:
    """`mechanisms`, and the sizes in which the model departs from a base."""
    values = mechanisms(config)
    for name in SIZES:
        if base is not None and getattr(config, name) != getattr(base, name):
            values[name] = getattr(config, name)
    return values


def mechanism_flags(config: TransformerConfig, base: TransformerConfig | None = None) -> list[str]:
    """`departures` as flags. Raises UserError; see `flags_of`."""
    return flags_of(departures(config, base))


def in_words(config: TransformerConfig, base: TransformerConfig | None = None) -> str:
    """A model for people, by what it has over the baseline: "EM enc:1-2 + output disagreement enc
    (reg-weight 0.5)"."""
    values = departures(config, base)
    parts = []
    if "agg" in values:
        agg = values.pop("agg")
        parts.append(" ".join([AGGREGATED.get(agg, agg), *values.pop("agg_at")]))
    if "reg" in values:
        kinds = ", ".join(values.pop("reg"))
        places = values.pop("reg_at")
        everywhere = tuple(places) == COMPONENTS
        parts.append(" ".join([kinds, "disagreement", *(() if everywhere else places)]))
    if "capsule_attention" in values:
        parts.append(" ".join(["capsule attention", *values.pop("capsule_attention")]))
    options = []
    for name, value in values.items():
        flag = " ".join(flags_of({name: value})).removeprefix("--")
        if name in OPTIONS or name in SIZES:
            options.append(flag)
        else:
            parts.append(flag)
    text = " + ".join(parts) or "baseline"
    return f"{text} ({', '.join(options)})" if options else text


# ---- Names

def mechanism_words(config: TransformerConfig) -> list[str]:
    """The mechanisms of a model as words of a folder's name."""
    words = []
    for name, value in mechanisms(config).items():
        if name == "agg":
            words.append(value)
        elif name == "reg":
            words += value
        elif name == "capsule_attention":
            words.append("capsule")
        elif name not in OPTIONS:       # they are in a run's checksum, not in its name
            words.append(name.replace("_", "-"))
    return words


def folder(settings: train_mt.Settings, config: TransformerConfig, flags: list[str],
           given: dict) -> str:
    """The name of a run's folder without its seed: text, size, mechanisms, and a checksum of all
    that matters."""
    free = {*train_mt.FREE, *rows_own(), *asdict(config), "runs"}
    for name in ("amp", "average"):     # left to the machine, and off
        if name not in given:
            free.add(name)
    matter = {name: value for name, value in asdict(settings).items() if name not in free}
    matter["text"] = text_name(settings)
    matter["sizes"] = [getattr(config, name) for name in
                       ("d_model", "heads", "layers", "d_ff", "dropout", "norm", "tie")]
    checksum = zlib.crc32(json.dumps([matter, flags], sort_keys=True).encode())
    words = [text_name(settings), settings.arch, *mechanism_words(config)]
    return "-".join([*words, f"{checksum:08x}"])


def run_label(name: str, config: TransformerConfig) -> str:
    """What a run is called in tables and legends: in words where its folder has a name of `folder`,
    else by its folder."""
    made = re.fullmatch(r".*-[0-9a-f]{8}-seed(\d+)", name)
    return f"{in_words(config)}, seed {made[1]}" if made else name


# ---- The plan

def check_given(table: Table, given: dict) -> None:
    """Raises UserError for a given setting that a row of the table sets itself."""
    for row in table.rows:
        for flag in re.findall(r"--(\S+)", row.flags or ""):
            if flag.replace("-", "_") in given:
                raise UserError(f"--{flag}: the rows of {table.source}, {table.title}, set it "
                                "themselves: leave it out")


def scale_flags(table: Table, given: dict) -> list[str]:
    """The flags that all rows have in common: those given, and the paper's own for Chinese."""
    shared = {name: value for name, value in given.items() if name not in FOR_ALL}
    words = command_line(train_mt.Settings, shared)
    settings = completed(words)
    chinese = settings.src == "zh" or (settings.src is None and settings.data == "wmt17-zh-en")
    if table.chinese and chinese:
        flag = table.chinese.split()[0]
        if flag.removeprefix("--").replace("-", "_") not in given:
            words += table.chinese.split()
    return words


def useful(given: dict, config: TransformerConfig) -> dict:
    """Of the settings FOR_ALL that were given, those that a row's model has a use for."""
    routed = config.agg != "linear" and config.coupling == "routed"
    uses = {"iterations": routed or bool(config.capsule_attention), "reg_weight": bool(config.reg)}
    return {name: given[name] for name in FOR_ALL if name in given and uses[name]}


def plan(table: Table, given: dict, seeds) -> list[tuple[Row, list[Job]]]:
    """The rows of a table with their runs, one per seed; none for a row that is only quoted.

    given: {field: value} of train_mt.py's settings for all rows. Raises UserError for a setting
    that the rows set themselves, and where a row is no valid model at this scale.
    """
    check_given(table, given)
    scale = scale_flags(table, given)
    sized = {}                          # size -> its flags, and the baseline of that size
    rows = []
    for row in table.rows:
        if row.flags is None:
            rows.append((row, []))
            continue
        if row.size not in sized:
            words = scale + size_flags(table, row.size, scale)
            sized[row.size] = words, completed(words).model_config(vocab_size=1)
        rows.append((row, row_jobs(row, given, seeds, *sized[row.size])))
    return rows


def row_jobs(row: Row, given: dict, seeds, words: list[str], base: TransformerConfig) -> list[Job]:
    """The runs of a row, one per seed; words: the flags of its size; base: the baseline's model."""
    own = fitted(row.flags, base)
    settings = completed(words + own)
    config = settings.model_config(vocab_size=1)
    extra = useful(given, config)
    if extra:
        settings = completed(words + own + command_line(train_mt.Settings, extra))
        config = settings.model_config(vocab_size=1)
    flags = mechanism_flags(config, base)
    name = folder(settings, config, flags, given)
    size = "" if row.size == "base" else f"{row.size}, "
    jobs = []
    for seed in seeds:
        label = f"{size}{in_words(config, base)}, seed {seed}"
        jobs.append(Job(f"{name}-seed{seed}", label, [*words, *flags, "--seed", str(seed)],
                        seed=seed, config=config, settings=settings, mechanisms=flags))
    return jobs
