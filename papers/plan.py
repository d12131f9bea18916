"""From the rows of a table (papers/tables.py) to runs of train_mt.py.

The scale is the flags of train_mt.py that all rows have in common. A run is identified by its
scale, its row's size and flags, and its seed; its folder has the name that train_mt.py gives it.
"""
import shlex
from dataclasses import asdict, fields
from pathlib import Path
from typing import NamedTuple

import train_mt
from nmt.corpus import known_languages
from nmt.flags import OPTIONS, ModelFlags
from nmt.languages import bleu_tokenizer
from papers.tables import Row, Table
from tools.command_line import command_line, parse
from tools.files import UserError
from transformer import SIZES

MECHANISMS = ("agg", "reg", "capsule_attention", *OPTIONS)
SMALL_TEXT = "toy4000"          # a folder in --runs: the text of the tables with {toy4000}
SIZE_FLAGS = {"layers", "d_model", "heads", "d_ff", "dropout"}
MACHINE = {"data_dir", "workers", "compile", "log_every", "save_every"}     # not in a run's key


class PlannedRun(NamedTuple):
    """A run of train_mt.py: a row of a table with a seed."""
    words: list[str]            # the command line
    settings: train_mt.Settings
    scale: str                  # the flags of all rows
    size: str                   # that of its row, with the flags that make it
    flags: str                  # those of its row

    @property
    def key(self) -> tuple:
        """The key of its line, see `results.key_of`."""
        return self.scale, self.size, self.flags, self.settings.seed


def settings_of(words: list[str]) -> train_mt.Settings:
    """Parses a command line of train_mt.py."""
    return parse(train_mt.Settings, words, train_mt.presets)


def mechanism_flags(config: dict) -> str:
    """The flags in a run's config.json that change the model: the mechanisms, and sizes other than
    those of --arch."""
    usual = {field.name: field.default for field in fields(ModelFlags)} | SIZES[config["arch"]]
    values = {}
    for name in (*SIZES["tiny"], *MECHANISMS):
        value = config.get(name, usual[name])
        value = tuple(value) if isinstance(value, list) else value
        if value != usual[name]:
            values[name] = value
    return shlex.join(command_line(ModelFlags, values))


# ---- Rows fitted to the scale

def wider_ffn(s) -> int:
    """The width of the FFN with which the baseline has as many parameters as with EM routing in its
    lowest two encoder layers."""
    d = s.d_model
    added = min(2, s.layers) * (s.heads * d ** 2 + s.heads * d + 4 * d)
    return s.d_ff + round(added / (2 * s.layers * (2 * d + 1)))


def fit_flags(flags: str, s) -> list[str]:
    """The flags of a row; places and sizes in braces are those of the model of the settings s."""
    L = s.layers
    d = s.d_model
    H = s.heads
    return flags.format(
        L=L, lower=f"1-{max(1, L // 2)}", upper=f"{min(L, L // 2 + 1)}-{L}", two=f"1-{min(2, L)}",
        top=f"{max(1, L - 1)}-{L}", ffn=wider_ffn(s), H_8th=H / 8, H_4=max(1, H // 4),
        H_2=max(1, H // 2), H2=min(d, 2 * H), H4=min(d, 4 * H), H8=min(d, 8 * H)).split()


def size_flags(table: Table, size: str, scale: list[str]) -> list[str]:
    """The flags that make a row's size from the scale's: big is twice the width, heads and FFN, as
    in the papers; wide has the heads of base. Raises UserError for --arch big."""
    if size == "base":
        return []
    s = settings_of(scale)
    if s.arch == "big":
        raise UserError("--arch big: this table has rows of twice the size; choose tiny, small or "
                        "base")
    if s.arch == "base" and not s.given & SIZE_FLAGS:
        return [*table.big.split(), *(["--heads", str(s.heads)] if size == "wide" else [])]
    heads = s.heads if size == "wide" else 2 * s.heads
    doubled = {"d_model": 2 * s.d_model, "d_ff": 2 * s.d_ff, "heads": heads}
    return command_line(train_mt.Settings, doubled)


# ---- The plan

def plan(table: Table, given: dict, seeds,
         folder: str = "runs") -> list[tuple[Row, list[PlannedRun]]]:
    """The rows of a table with their runs, one per seed.

    given: {field: value} of train_mt.py's settings for all rows; folder: the parent of the run
    folders. Raises UserError for a setting that the rows set, and for a row that is not a valid
    model at this scale.
    """
    for name in given:
        if name in (*MECHANISMS, "seed", "name"):
            instead = " (several seeds: --seeds 1 2 3)" if name == "seed" else ""
            raise UserError(f"--{name.replace('_', '-')}: the rows of the table set it: leave it "
                            f"out{instead}")
    if "test" in given and "--test" in table.scale:
        raise UserError("--test: the table has its own test set: leave it out")
    small_text = Path(folder).resolve() / SMALL_TEXT
    scale = [word.format(toy4000=small_text) for word in table.scale.split()]
    scale += command_line(train_mt.Settings, given)
    s = settings_of(scale)
    source, _ = known_languages(s)
    language = []
    if bleu_tokenizer(s.src or source) == "zh":
        language = table.chinese.split()
    if table.amp is not None:
        scale = ["--amp" if table.amp else "--no-amp", *scale]
    scale = language + scale                             # a given flag comes later, and counts
    named = {name: value for name, value in given.items() if name not in MACHINE}
    scale_name = " ".join([*language, *table.scale.split(),
                           *command_line(train_mt.Settings, named)])
    rows = []
    for row in table.rows:
        larger = size_flags(table, row.size, scale)
        size = " ".join([row.size, *larger])
        runs = [plan_run(row, scale + larger, seed, scale_name, size) for seed in seeds]
        rows.append((row, runs))
    return rows


def plan_run(row: Row, words: list[str], seed: int, scale: str, size: str) -> PlannedRun:
    """The run of a row with a seed; words: the flags of its scale and size."""
    base = settings_of(words)
    flags = fit_flags(row.flags, base)
    s = settings_of([*words, *flags])
    s.check_model()
    changed = {}                        # a fitted flag may have the default: --reg-weight 1.0
    for name, value in asdict(s).items():
        if name != "name" and value != getattr(base, name):
            changed[name] = value
    words = [*words, *command_line(train_mt.Settings, changed), "--seed", str(seed)]
    return PlannedRun(words, settings_of(words), scale, size, " ".join(flags))
