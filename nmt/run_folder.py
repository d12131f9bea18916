"""Run folders: settings, metrics, checkpoints; loading that runs no code; one run at a time.

A run folder holds config.json (the settings), metrics.jsonl (one JSON object per line),
tokenizer.json, the checkpoints last.pt, best.pt and step-N.pt, and lock, an empty file on which the
run at work holds the system's lock. No absolute path is stored: a copy on another machine resumes
and translates.
"""
import dataclasses
import json
import math
import os
import random
import re
import warnings
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from nmt.corpus import text_name
from nmt.files import TEMPORARY, atomic_write, reported, sync_folder
from nmt.flags import UserError, command_line
from nmt.tokenizer import load_tokenizer
from transformer import Transformer, TransformerConfig

FORMAT = 2                      # of checkpoints and config.json; counts up when they change


# ---- Checkpoints

def save(path, state: dict) -> None:
    """Writes the checkpoint `state` (tensors and plain Python values) with its format number,
    atomically and durably. Raises UserError where that fails; the old one is then intact."""
    def write(file):
        try:
            torch.save({**state, "format": FORMAT}, file)
        except RuntimeError as error:    # torch closes its archive after a failed write: fails too
            if isinstance(error.__context__, OSError):
                raise error.__context__
            raise
    atomic_write(path, write)


def load(path, device="cpu", needs=(), remedy="delete its folder and train again") -> dict:
    """Reads a checkpoint onto `device`; nothing in the file is executed, whoever wrote it.

    needs: names of entries that must be there. remedy: what to do about a damaged one.
    Raises UserError for a file that is missing, cut short, damaged, no checkpoint, unsafe, or of
    another format.
    """
    advice = "use a checkpoint that a run has written (last.pt, best.pt, step-N.pt)"
    with reported("read", path):
        if not Path(path).is_file():
            raise UserError(f"{path}: no such file: {advice}")
        open(path, "rb").close()                  # a file that may not be read is reported as such
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:     # torch does not look at the checksums it writes
                raise zipfile.BadZipFile
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")       # of torch, about what a foreign file holds
            state = torch.load(path, map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:                    # damage shows as almost any exception
        raise UserError(f"{path}: is cut short, damaged or not safe to load: {remedy}") from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise UserError(f"{path}: is not a checkpoint of this program: {advice}")
    check_format(state["format"], path)
    for name in needs:
        if name not in state:
            raise UserError(f"{path}: holds no {name!r}: {advice}")
    return state


def check_format(number, path) -> None:
    """Raises UserError unless `number` is the format that this version writes and reads."""
    if number != FORMAT:
        raise UserError(f"{path}: has format {number}, and this version reads format {FORMAT}: use"
                        " the version that wrote it, or train again under another --name")


def check_weights(found: dict, wanted: dict, path, whose: str) -> None:
    """Raises UserError at the first weight of `found` whose name or shape departs from `wanted`."""
    def shape(weights: dict, name: str):
        return list(weights[name].shape) if name in weights else "missing"

    for name in {**wanted, **found}:
        here = shape(found, name)
        there = shape(wanted, name)
        if here != there:
            raise UserError(f"{path}: weight {name!r} is {here} here, and {there} in {whose}: use"
                            " checkpoints of one run, with the model flags it was trained with")


def load_model_state(model: torch.nn.Module, state: dict, path) -> None:
    """Copies the weights `state` (of the checkpoint `path`, which errors name) into the model, all
    or nothing. Raises UserError naming the first weight that does not fit."""
    check_weights(state, model.state_dict(), path, "this model")
    model.load_state_dict(state)


def average(paths) -> dict:
    """The mean of the checkpoints' `model` entries, weight by weight, summed in float64; integers
    are the last one's. Raises UserError where there is no path, or names or shapes differ."""
    paths = list(paths)
    if not paths:
        raise UserError("no checkpoints to average: a run writes step-N.pt as it goes")
    total: dict[str, Tensor] = {}
    for path in paths:
        state = load(path, needs=("model",))["model"]
        check_weights(state, total or state, path, str(paths[0]))
        for name, weight in state.items():
            if not weight.is_floating_point():
                total[name] = weight
            elif name in total:
                total[name] = total[name] + weight.double()
            else:
                total[name] = weight.double()
    for name, weight in state.items():
        if weight.is_floating_point():
            total[name] = (total[name] / len(paths)).to(weight.dtype)
    return total


# ---- Random numbers

def seed_all(number: int) -> None:
    """Seeds torch's generators (CPU, every GPU), Python's and numpy's."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2 ** 32)


def random_state() -> dict:
    """The states of torch's (CPU, every GPU), Python's and numpy's generators, as tensors and plain
    numbers."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    return {"torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "mps": [torch.mps.get_rng_state()] if torch.backends.mps.is_available() else [],
            "python": [version, list(words), gauss],
            "numpy": [name, keys.tolist(), *rest]}


def set_random_state(state: dict) -> None:
    """Puts back what `random_state` returned, but for GPUs that this machine lacks. Raises
    UserError for a state that these versions of torch, Python and numpy do not take."""
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(tuple(state["numpy"]))
        torch.set_rng_state(state["torch"].cpu())        # wherever the checkpoint was loaded to
        for device, generator in zip(range(torch.cuda.device_count()), state["cuda"]):
            torch.cuda.set_rng_state(generator.cpu(), device)
        if torch.backends.mps.is_available():
            for generator in state.get("mps", ()):
                torch.mps.set_rng_state(generator.cpu())
    except Exception as error:                    # each generator errs in its own way
        raise UserError("the checkpoint's random states do not fit these versions of torch, Python"
                        " and numpy: resume with the versions that wrote it") from error


# ---- Settings

def run_name(settings, usual: dict, free) -> str:
    """The name of a run's folder: its text, size and mechanisms, every other setting that is
    neither free nor the usual one, and the seed."""
    told = {"data", "arch", "agg", "reg", "capsule_attention", "seed", "name", "runs", *free}
    words = [text_name(settings)]
    if settings.train:
        told |= {"src", "tgt"}
        words += [language for language in (settings.src, settings.tgt) if language]
    words.append(settings.arch)
    if settings.agg != "linear":
        words.append(settings.agg)
    words += settings.reg
    if settings.capsule_attention:
        words.append("capsule")
        if settings.capsule_attention != ("enc", "dec"):
            words += settings.capsule_attention
    others = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in told and value not in (None, (), usual.get(field.name, field.default)):
            others[field.name] = value
    words += [word.removeprefix("--") for word in command_line(type(settings), others)]
    return "-".join([*words, f"seed{settings.seed}"]).replace(":", "")


def may_change(settings, folder: Path) -> tuple[str, ...]:
    """The names of settings in which a command may depart from the run that the folder holds: the
    steps may grow. What otherwise follows from --steps stays as the run has it.

    Raises UserError for more steps where the learning rate is 0 after the last.
    """
    if not (folder / "config.json").exists():
        return ()
    run = read_config(folder)
    for name in {"warmup", "lr", "eval_every"} - settings.given:
        setattr(settings, name, run.get(name, getattr(settings, name)))
    steps = run.get("steps")
    if not isinstance(steps, int) or settings.steps <= steps:
        return ()
    if settings.decay == "linear":
        raise UserError(f"--steps {settings.steps}: the learning rate of {folder} falls linearly to"
                        f" 0 at step {steps}, so it cannot go on (with --decay sqrt a run can):"
                        " choose another --name")
    return ("steps",)


def read_config(folder) -> dict:
    """The settings in a run folder's config.json. Raises UserError where there are none, or of
    another format."""
    path = Path(folder) / "config.json"
    with reported("read", path):
        if not path.is_file():
            raise UserError(f"{folder}: is no run folder (it has no config.json): name a folder"
                            f" that training wrote; {runs_beside(folder)}")
        content = path.read_bytes()
    try:
        config = json.loads(content)
        number = config.pop("format")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is not a run's configuration (damaged?): put back the one that"
                        " training wrote, or train again under another --name") from error
    check_format(number, path)
    return config


def runs_beside(folder) -> str:
    """In words, the translation models that lie where the folder does and in runs/, the newest
    first."""
    pattern = "*/tokenizer.json"
    tokenizers = {*Path(folder).parent.glob(pattern), *Path("runs").glob(pattern)}
    names = []
    for path in sorted(tokenizers, key=os.path.getmtime, reverse=True):
        if (path.parent / "config.json").exists():
            names.append(str(path.parent))
    if not names:
        return "there are none here"
    more = f", and {len(names) - 10} more" if len(names) > 10 else ""
    return f"there are {', '.join(names[:10])}{more}"


def defaults_of(settings: type) -> dict:
    """{field: default} of a dataclass, of the fields that have one."""
    defaults = {}
    for field in dataclasses.fields(settings):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
    return defaults


def as_json(config: dict) -> dict:
    """Settings as JSON gives them back: tuples are lists."""
    return json.loads(json.dumps(config))


def flat(config: dict, prefix: str = "") -> dict:
    """Nested settings as one level, {"model": {"heads": 4}} as {"model.heads": 4}."""
    result = {}
    for name, value in config.items():
        if isinstance(value, dict):
            result.update(flat(value, f"{prefix}{name}."))
        else:
            result[prefix + name] = value
    return result


def changes(old: dict, new: dict, free, defaults: dict | None) -> list[str]:
    """In words, the settings that differ and are not free: `old` from a config.json, `new` of now.
    A setting younger than that config.json had its default then."""
    younger = flat(as_json({"model": defaults_of(TransformerConfig), **(defaults or {})}))
    old = flat(old)
    new = flat(as_json(new))
    found = []
    for name in {**old, **new}:
        was = old.get(name, younger.get(name, "unset"))
        now = new.get(name, "unset")
        if was != now and name not in free:
            found.append(f"{name} was {was!r}, is now {now!r}")
    return found


def check_config(folder: Path, config: dict, free=(), defaults: dict | None = None) -> None:
    """Raises UserError unless the folder is new or empty or holds this very configuration; changes
    nothing."""
    if not folder.exists():
        return
    if not (folder / "config.json").exists():
        for name in sorted(os.listdir(folder)):
            if name != "lock" and not TEMPORARY.fullmatch(name):
                raise UserError(f"{folder}: holds {name!r} but no config.json, so it is no run"
                                " folder: choose another --name")
        return
    found = changes(read_config(folder), config, free, defaults)
    if found:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        raise UserError(f"{folder}: holds a run of another configuration"
                        f" ({'; '.join(found[:3])}{more}): choose another --name, or give the same"
                        " flags to resume that run")


# ---- Metrics

def without_nan(value):
    """A value of the types that JSON has, with None in place of every NaN and infinity."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_metrics(path: Path) -> list[dict]:
    """The rows of a metrics.jsonl; none where there is no such file.

    A last line without its end, as a killed run leaves it, is no row. Raises UserError naming a
    line that is no JSON object or has no whole step.
    """
    with reported("read", path):
        content = path.read_bytes() if path.exists() else b""
    rows = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            row = dict(json.loads(line))
            if not isinstance(row.get("step", 0), int):
                raise TypeError
        except (RecursionError, TypeError, ValueError) as error:
            raise UserError(f"{path}: line {number} is no JSON object: take it out") from error
        rows.append(row)
    return rows


# ---- The folder

class RunFolder(AbstractContextManager):
    """A run's folder, opened by one process: `with RunFolder(path, config) as folder:`.

    config: the settings, of the types that JSON has. free: names of settings (dotted where nested)
    that may differ when the folder is opened again, as the device may; config.json then holds the
    newer value. defaults: what settings outside config["model"] were before they existed, for runs
    older than a setting.
    Opening creates the folder or checks its configuration, takes the lock, and clears away what a
    killed run left half-written. Raises UserError where another run is at work in the folder, it
    holds another configuration or other files, or cannot be written; nothing in it is then changed.
    """

    def __init__(self, path, config: dict, free=(), defaults: dict | None = None):
        self.path = Path(path)
        self.last = self.path / "last.pt"
        self.best = self.path / "best.pt"
        self.tokenizer = self.path / "tokenizer.json"
        self.metrics = self.path / "metrics.jsonl"
        self.board = None                         # a writer for TensorBoard
        with reported("open", path):
            check_config(self.path, config, free, defaults)
            self.path.mkdir(parents=True, exist_ok=True)
            sync_folder(self.path.parent)
            self.lock = FileLock(self.path / "lock")
            try:
                self.lock.acquire(blocking=False)
                check_config(self.path, config, free, defaults)     # another run may have been here
                self.tidy(as_json(config))
            except Timeout as error:
                raise UserError(f"{path}: another run is at work in this folder: wait for it to"
                                " end, or choose another --name") from error
            except BaseException:
                self.lock.release()
                raise

    def tidy(self, config: dict) -> None:
        """Clears away what a killed run left half-written; writes config.json where it is new."""
        for name in os.listdir(self.path):
            if TEMPORARY.fullmatch(name):
                (self.path / name).unlink()
        path = self.path / "config.json"
        if not path.exists() or read_config(self.path) != config:
            atomic_write(path, json.dumps({"format": FORMAT, **config}, indent=1) + "\n")
        if self.metrics.exists():
            content = self.metrics.read_bytes()
            if not content.endswith(b"\n"):       # a last line that a killed run did not finish
                os.truncate(self.metrics, content.rfind(b"\n") + 1)

    def __exit__(self, *exception):
        self.close()

    def close(self) -> None:
        """Lets go of the folder. (The system does it for a process that dies.)"""
        if self.board:
            self.board.close()
        self.lock.release()

    def append_metrics(self, row: dict) -> None:
        """Adds a line to metrics.jsonl, on the disk when this returns; NaN and infinity, which JSON
        lacks, become null. Raises UserError where it cannot be written.

        Write the rows of a step before its checkpoint: a run resumed there knows them.
        """
        line = (json.dumps(without_nan(row), allow_nan=False) + "\n").encode()
        with reported("write", self.metrics), open(self.metrics, "ab", buffering=0) as file:
            start = file.tell()
            try:
                while line:                       # a disk that fills up takes a part first
                    line = line[file.write(line):]
                os.fsync(file.fileno())
            except BaseException:
                os.truncate(self.metrics, start)
                raise
        if self.board:
            for name, value in row.items():
                if isinstance(value, float) and name != "time":
                    self.board.add_scalar(f"{row['type']}/{name}", value, row["step"])

    def read_metrics(self) -> list[dict]:
        """The rows of metrics.jsonl; see the function of that name."""
        return read_metrics(self.metrics)

    def truncate_metrics(self, step: int) -> None:
        """Drops the rows with a "step" beyond `step`, which a run resumed there writes again."""
        rows = self.read_metrics()
        kept = [row for row in rows if row.get("step", 0) <= step]
        if len(kept) < len(rows):
            atomic_write(self.metrics, "".join(json.dumps(row) + "\n" for row in kept))

    def numbered(self, step: int) -> Path:
        """The path of the checkpoint of that step, step-N.pt."""
        return self.path / f"step-{step}.pt"

    def steps(self) -> list[int]:
        """The steps of which there is a numbered checkpoint, ascending."""
        found = []
        for name in os.listdir(self.path):
            if match := re.fullmatch(r"step-(0|[1-9]\d*)\.pt", name):
                found.append(int(match[1]))
        return sorted(found)

    def keep(self, count: int) -> None:
        """Deletes all numbered checkpoints but the newest `count`. Raises UserError where that is
        not allowed."""
        steps = self.steps()
        for step in steps[:max(0, len(steps) - count)]:
            with reported("delete", self.numbered(step)):
                self.numbered(step).unlink(missing_ok=True)


def load_run(folder, name: str = "best", device="cpu"):
    """(model in eval mode, tokenizer, settings) of a run folder: its NAME.pt, tokenizer.json and
    config.json. Raises UserError for a folder or file that is missing, damaged, or of another
    version or run."""
    folder = Path(folder)
    settings = read_config(folder)
    path = folder / f"{name}.pt"
    there = sorted(file.stem for file in folder.glob("*.pt"))
    if name not in there:
        choices = ", ".join(there) or "given once there is one"
        raise UserError(f"{path} does not exist; --checkpoint can be {choices}")
    try:
        config = TransformerConfig(**settings["model"])
        model = Transformer(config).to(device)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}/config.json describes no model that can be built here ({error}):"
                        " take the one that the run wrote") from error
    state = load(path, needs=("model",), remedy="choose another --checkpoint of the run")
    load_model_state(model, state["model"], path)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise UserError(f"{folder}/tokenizer.json has {tokenizer.get_vocab_size()} tokens and the"
                        f" model of config.json {config.vocab_size}: take both from one run")
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise UserError(f"{path} holds weights that are no finite numbers; use another --checkpoint"
                        " of the run")
    return model.eval(), tokenizer, settings
