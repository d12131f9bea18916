"""From the rows of a table (paper_tables.py) to runs of train_mt.py: places and sizes fitted to the scale, and names.

The scale is the flags of train_mt.py that are alike for every row. A run's folder is named after the scale and what its
mechanisms do, so that two rows that say the same in different words share their runs, and so do tables.
"""
import argparse
import functools
import json
import re
import zlib
from pathlib import Path
from typing import NamedTuple

import torch

import train_mt
from nmt.flags import UserError
from nmt.machine import Machine
from papers.tables import Row, Table
from transformer import COMPONENTS, TransformerConfig

# what tells the rows apart; --iterations and --reg-weight may be given where no row does
ROWS = ("agg", "agg_at", "capsules", "reg", "reg_at", "capsule", "capsule_parts", "em_density", "em_schedule", "em_gradient",
        "em_activations", "coupling", "seed", "name", "average")
MECHANISMS = ("iterations", "reg_weight")


class Run(NamedTuple):
    """A run of a script: its folder's name, its flags but for --name, --runs and --device; and of train_mt.py the seed,
    the model, the settings, and the flags of the mechanisms alone."""
    name: str
    flags: list
    seed: int | None = None
    config: TransformerConfig | None = None
    settings: argparse.Namespace | None = None
    mechanisms: list = []
    script: str = "train_mt.py"


flags_parser = functools.cache(train_mt.parser)          # it is asked for every row


def command_line(given: dict) -> list[str]:
    """Parsed flags of train_mt.py, {dest: value}, as a command line."""
    words = []
    for action in flags_parser()._actions:
        if action.dest in given:
            value, option = given[action.dest], action.option_strings[0]
            if isinstance(value, bool):
                words.append(option if value else action.option_strings[-1])
            else:
                words += [option, *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return words


def completed(flags: list[str]) -> argparse.Namespace:
    """The settings that train_mt.py takes from these flags, on a CPU."""
    args = flags_parser().parse_args(flags)
    train_mt.complete(args, Machine(torch.device("cpu")))
    return args


def filled(flags: str, config: TransformerConfig) -> list[str]:
    """A row's flags with its places and capsules fitted to the model; see paper_tables.py."""
    L, d, H = config.layers, config.d_model, config.heads
    divisor = lambda n: max(i for i in range(1, max(1, min(n, d)) + 1) if d % i == 0)
    half = max(1, L // 2)
    return flags.format(L=L, d=d, H=H, lower=f"1-{half}", upper=f"{min(L, L // 2 + 1)}-{L}", two=f"1-{min(2, L)}",
                        top=f"{max(1, L - 1)}-{L}", d_2=divisor(d // 2), d_4=divisor(d // 4), d_16=divisor(d // 16),
                        d_64=divisor(d // 64), H_4=divisor(H // 4), H_2=divisor(H // 2), H2=divisor(2 * H),
                        H4=divisor(4 * H), H8=divisor(8 * H), H_8th=H / 8, ffn=wider_ffn(config)).split()


def wider_ffn(config: TransformerConfig) -> int:
    """The FFN's width that gives the baseline as many parameters as EM routing in its lowest two encoder layers."""
    added = min(2, config.layers) * (config.heads * config.d_model ** 2 + config.heads * config.d_model + 4 * config.d_model)
    return config.d_ff + round(added / (2 * config.layers * (2 * config.d_model + 1)))


def size_flags(table: Table, row: Row, scale: list[str]) -> list[str]:
    """The flags that make the row's size out of the scale's: big is twice the width, heads and FFN, as in the papers.

    Raises UserError where the scale is the largest size already."""
    if row.size == "base":
        return []
    args = completed(scale)
    config = TransformerConfig.from_flags(args, vocab_size=1)
    if args.arch == "big":
        raise UserError("--arch big: this table has rows of twice the size; choose tiny, small or base")
    wide = row.size == "wide"
    if args.arch == "base" and config == TransformerConfig.from_flags(completed(["--arch", "base"]), vocab_size=1):
        return table.big.split() + ["--heads", str(config.heads)] * wide
    return ["--d-model", str(2 * config.d_model), "--d-ff", str(2 * config.d_ff),
            "--heads", str(config.heads * (1 if wide else 2))]


def place_words(places: dict, layers: int) -> list[str]:
    """{component: layers from 0} in the words of the command line: enc, enc:1-2, enc:1,3."""
    words = []
    for component, found in places.items():
        chosen, parts = sorted(found), []
        for i in chosen:
            if parts and parts[-1][1] == i - 1:
                parts[-1][1] = i
            else:
                parts.append([i, i])
        spans = ",".join(str(a + 1) if a == b else f"{a + 1}-{b + 1}" for a, b in parts)
        words.append(component if len(chosen) == layers else f"{component}:{spans}")
    return words


def mechanism_flags(c: TransformerConfig) -> list[str]:
    """The one spelling of a model's mechanisms: two rows whose models do the same share it, and so their runs."""
    words, places = [], {name: c.places(name) for name in ("agg", "reg", "capsule")}
    at = lambda name: place_words({x: places[name][x] for x in COMPONENTS if x in places[name]}, c.layers)
    if at("agg"):
        words += ["--agg", c.agg, "--agg-at", *at("agg")]
        if c.capsules not in (None, c.heads if c.agg.startswith("gu-") else c.d_model):
            words += ["--capsules", str(c.capsules)]
        for name in ("em_density", "em_schedule", "em_gradient", "coupling"):
            if getattr(c, name) != getattr(TransformerConfig, name):
                words += ["--" + name.replace("_", "-"), getattr(c, name)]
        if not c.em_activations:
            words.append("--no-em-activations")
    if at("reg") and c.reg_weight:
        words += ["--reg", *sorted(set(c.reg)), "--reg-at", *at("reg")]
        if isinstance(c.reg_weight, dict):
            words += ["--reg-weight", *(f"{component}={value}" for component, value in c.reg_weight.items())]
        elif c.reg_weight != 1:
            words += ["--reg-weight", str(c.reg_weight)]
    if at("capsule"):
        words += ["--capsule", *at("capsule")]
        if "enc" in places["capsule"] and len(set(c.capsule_parts)) == 1:
            words += ["--capsule-parts", c.capsule_parts[0]]
    if c.iterations != 3 and (at("agg") or at("capsule")):
        words += ["--iterations", str(c.iterations)]
    return words


def data_label(args) -> str:
    """The name of the text that a run is trained on: of --data, or the folder and prefix of --train."""
    if not args.train:
        return args.data
    path = Path(args.train).resolve()
    return path.parent.name if path.name == "train" else f"{path.parent.name}-{path.name}"


def folder(args, config: TransformerConfig, mechanisms: list[str], given: dict) -> str:
    """The name of a run's folder without its seed: text, size, mechanisms, and a checksum of all that matters."""
    out = {*train_mt.FREE, "name", "runs", "seed", "amp", *vars(config), *ROWS} - {k for k in given if k == "amp"}
    matter = {**{key: value for key, value in vars(args).items() if key not in out}, "text": data_label(args),
              "sizes": [getattr(config, x) for x in ("d_model", "heads", "layers", "d_ff", "dropout", "norm", "tie")]}
    number = zlib.crc32(json.dumps([matter, mechanisms], sort_keys=True).encode())
    words = [config.agg if "--agg" in mechanisms else "", *(sorted(set(config.reg)) if "--reg" in mechanisms else ()),
             "capsule" if "--capsule" in mechanisms else ""]
    return "-".join(filter(None, [data_label(args), args.arch, *words, f"{number:08x}"]))


def plan(table: Table, given: dict, seeds) -> list[tuple[Row, list[Run]]]:
    """The rows of a table with their runs, one per seed; none for a row that is only quoted.

    Raises UserError for a flag that the rows set themselves, and where a row is no valid model at this scale.
    """
    for row in table.rows:
        words = (row.flags or "").replace("{", "").replace("}", "")
        for flag in re.findall(r"--(\S+)", words):
            if flag.replace("-", "_") in given:
                raise UserError(f"--{flag}: the rows of {table.source}, {table.title}, set it themselves: leave it out")
    shared = {key: value for key, value in given.items() if key not in MECHANISMS}
    extra = command_line({key: value for key, value in given.items() if key in MECHANISMS})
    scale, found = command_line(shared), []
    args = completed(scale)
    if table.chinese and (args.src or {"wmt17-zh-en": "zh"}.get(args.data)) == "zh":
        flag = table.chinese.split()[0]
        scale += table.chinese.split() if flag[2:].replace("-", "_") not in given else []
    for row in table.rows:
        if row.flags is None:
            found.append((row, []))
            continue
        sized = scale + size_flags(table, row, scale)
        base = TransformerConfig.from_flags(completed(sized), vocab_size=1)
        args = completed(sized + extra + filled(row.flags, base))
        config = TransformerConfig.from_flags(args, vocab_size=1)
        mechanisms = mechanism_flags(config)
        for name in ("heads", "d_ff"):                                       # where a row sets a size of its own
            if getattr(config, name) != getattr(base, name):
                mechanisms += ["--" + name.replace("_", "-"), str(getattr(config, name))]
        name = folder(args, config, mechanisms, given)
        found.append((row, [Run(f"{name}-seed{seed}", [*sized, *mechanisms, "--seed", str(seed)], seed, config, args,
                                mechanisms) for seed in seeds]))
    return found
