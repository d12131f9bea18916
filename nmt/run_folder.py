"""Run folders: settings, metrics, checkpoints; loading that runs no code; one run at a time in a folder.

A run folder holds config.json (the settings), metrics.jsonl (one JSON object per line), tokenizer.json, the checkpoints
last.pt, best.pt and step-N.pt, and lock, an empty file on which the run at work holds the kernel's lock. No absolute
path is stored: a copy on another machine resumes and translates.
"""
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

from nmt.fast_routing import install
from nmt.files import TEMPORARY, atomic_write, reported, sync_folder
from nmt.flags import UserError
from nmt.tokenizer import load_tokenizer
from transformer import Transformer, TransformerConfig

FORMAT = 2                                        # of checkpoints and config.json; counts up when their meaning changes


def save(path, state: dict):
    """Writes the checkpoint `state` (tensors and plain Python values) with its format number, atomically and durably.
    Raises UserError where it cannot be written; the old checkpoint is then intact."""
    def write(file):
        try:
            torch.save({**state, "format": FORMAT}, file)
        except RuntimeError as error:             # torch closes its archive after a failed write, and that fails too
            if isinstance(error.__context__, OSError):
                raise error.__context__
            raise
    atomic_write(path, write)


def load(path, device="cpu", needs=()) -> dict:
    """Reads a checkpoint onto `device`; nothing in the file is executed, whoever wrote it.

    needs: names of entries that must be there.
    Raises UserError for a file that is missing, cut short, damaged, no checkpoint, unsafe, or of another format.
    """
    advice = "use a checkpoint that a run has written (last.pt, best.pt, step-N.pt)"
    with reported("read", path):
        if not Path(path).is_file():
            raise UserError(f"{path}: {'is not a file' if Path(path).exists() else 'no such file'}: {advice}")
        open(path, "rb").close()                  # a file that may not be read is reported as such
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            if sum(member.file_size for member in archive.infolist()) > os.path.getsize(path):
                raise zipfile.BadZipFile          # torch does not compress: this would fill the memory
            if archive.testzip() is not None:     # torch does not look at the checksums that it writes
                raise zipfile.BadZipFile
            warnings.simplefilter("ignore")       # of torch, about what a foreign file holds
            state = torch.load(path, map_location=device, weights_only=True)
    except torch.OutOfMemoryError as error:
        raise UserError(f"{path}: does not fit into the memory of {device}: try --device cpu") from error
    except Exception as error:                    # damage shows as almost any exception: Unicode, key, value, index ...
        raise UserError(f"{path}: is cut short, damaged or not safe to load: {advice}, or train again") from error
    number = state.get("format") if isinstance(state, dict) else None
    if type(number) is not int or not 0 <= number < 10 ** 6:
        raise UserError(f"{path}: is not a checkpoint of this program: {advice}")
    check_format(number, path)
    for name in needs:
        if name not in state:
            raise UserError(f"{path}: holds no {name!r}: {advice}")
    return state


def check_format(number, path):
    """Raises UserError unless `number` is the format that this version writes and reads."""
    if number != FORMAT:
        raise UserError(f"{path}: has format {number}, and this version reads format {FORMAT}:"
                        " use the version that wrote it, or train again under another --name")


def check_weights(found, wanted: dict, path, whose: str):
    """Raises UserError at the first weight in which `found` departs from `wanted`: name, shape, real or whole."""
    def kind(weight):
        if weight is None:
            return "missing"
        return f"{'real' if weight.is_floating_point() else 'whole'} {list(weight.shape)}"

    if not isinstance(found, dict) or not all(isinstance(weight, Tensor) and weight.layout == torch.strided
                                              and not weight.is_meta for weight in found.values()):
        raise UserError(f"{path}: its 'model' is no table of weights: use another checkpoint of the run")
    for name in {**wanted, **found}:
        here, there = kind(found.get(name)), kind(wanted.get(name))
        if here != there:
            raise UserError(f"{path}: weight {name!r} is {here} here, and {there} in {whose}:"
                            " use checkpoints of one run, with the model flags it was trained with")


def load_model_state(model: torch.nn.Module, state: dict, path):
    """Copies the weights `state` (of the checkpoint `path`, which errors name) into the model, all or nothing.

    Raises UserError naming the first weight that is missing, too many, or of another shape.
    """
    check_weights(state, model.state_dict(), path, "this model")
    model.load_state_dict(state)


def average(paths) -> dict:
    """The mean of the checkpoints' `model` entries, weight by weight, summed in float64.

    Integer buffers are taken from the last path, and names that share one tensor there share one here.
    Raises UserError where there is no path, or names or shapes differ between the files.
    """
    paths = list(paths)
    if not paths:
        raise UserError("no checkpoints to average: a run writes step-N.pt as it goes")
    total: dict[str, Tensor] = {}
    for path in paths:
        state = load(path, needs=("model",))["model"]
        check_weights(state, total or state, path, str(paths[0]))
        for name, weight in state.items():
            total[name] = total.get(name, 0) + weight.double() if weight.is_floating_point() else weight
    shared, result = {}, {}
    for name, weight in state.items():
        key = (weight.data_ptr(), weight.dtype, weight.shape, weight.stride()) if weight.numel() else name
        if weight.is_floating_point() and key not in shared:
            shared[key] = (total[name] / len(paths)).to(weight.dtype)
        result[name] = shared.get(key, weight)
    return result


def seed_all(number: int) -> None:
    """Seeds torch's generators (CPU, every GPU), Python's and numpy's."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2 ** 32)


def random_state() -> dict:
    """The states of torch's (CPU, every GPU), Python's and numpy's generators, as tensors and plain numbers."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    return {"torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "python": [version, list(words), gauss],
            "numpy": [name, keys.tolist(), *rest]}


def set_random_state(state: dict):
    """Puts back what `random_state` returned; states of GPUs that this machine lacks are passed over.
    Raises UserError for a state that these versions of torch, Python and numpy do not take."""
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(tuple(state["numpy"]))
        torch.set_rng_state(state["torch"].cpu())     # the generators want it there, wherever it was loaded to
        for device, generator in zip(range(torch.cuda.device_count()), state["cuda"]):
            torch.cuda.set_rng_state(generator.cpu(), device)
    except Exception as error:                    # each generator errs in its own way on a foreign state
        raise UserError("the checkpoint's random states do not fit these versions of torch, Python and numpy:"
                        " resume with the versions that wrote it") from error


def read_config(folder) -> dict:
    """The settings in a run folder's config.json. Raises UserError where there are none, or of another format."""
    path = Path(folder) / "config.json"
    with reported("read", path):
        if not path.is_file():
            raise UserError(f"{folder}: is no run folder (it has no config.json): name a folder that training wrote")
        try:
            if path.stat().st_size > 1 << 24:     # a few kilobytes in truth
                raise ValueError
            config = json.loads(path.read_bytes())
            number = config.pop("format")
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise UserError(f"{path}: is not a run's configuration (damaged?): choose another --name") from error
    check_format(number, path)
    return config


def flat(config: dict, prefix: str = "") -> dict:
    """Nested settings as one level, {"model": {"heads": 4}} as {"model.heads": 4}."""
    result = {}
    for name, value in config.items():
        result.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value})
    return result


def check_config(folder: Path, config: dict, free=()):
    """Raises UserError unless the folder is new or empty or holds this very configuration; changes nothing."""
    if not folder.exists():
        return
    if not (folder / "config.json").exists():
        foreign = sorted(name for name in os.listdir(folder) if name != "lock" and not TEMPORARY.fullmatch(name))
        if foreign:
            raise UserError(f"{folder}: holds {foreign[0]!r} but no config.json, so it is no run folder:"
                            " choose another --name")
        return
    old, new = flat(read_config(folder)), flat(json.loads(json.dumps(config)))
    pairs = {name: (old.get(name, "unset"), new.get(name, "unset")) for name in {**old, **new} if name not in free}
    changed = [f"{name} was {was!r}, is now {now!r}" for name, (was, now) in pairs.items() if was != now]
    if changed:
        more = f", and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(f"{folder}: holds a run of another configuration ({'; '.join(changed[:3])}{more}):"
                        " choose another --name, or give the same flags to resume that run")


def without_nan(value):
    """A value of the types that JSON has, with None in place of every NaN and infinity."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RunFolder(AbstractContextManager):
    """A run's folder, opened by one process at a time. Use as `with RunFolder(path, config) as folder:`.

    config: the settings, of the types that JSON has; free: names of settings (dotted where nested) that may differ
    when the folder is opened again, as the device may; config.json then holds the newer value.
    Opening creates the folder or checks its configuration, takes the lock, and clears away what a killed run left
    half-written. Raises UserError where another run is at work in the folder, it holds another configuration or other
    files, or cannot be written; nothing in it is then changed.
    """
    def __init__(self, path, config: dict, free=()):
        self.path = Path(path)
        self.last, self.best = self.path / "last.pt", self.path / "best.pt"
        self.tokenizer, self.metrics = self.path / "tokenizer.json", self.path / "metrics.jsonl"
        with reported("open", path):
            check_config(self.path, config, free)
            self.path.mkdir(parents=True, exist_ok=True)
            sync_folder(self.path.parent)
            self.lock = FileLock(self.path / "lock")
            try:
                self._take(config, free)
            except BaseException:
                self.lock.release()
                raise

    def _take(self, config: dict, free):
        """Takes the lock, then puts the folder in order."""
        try:
            self.lock.acquire(blocking=False)
        except Timeout as error:
            raise UserError(f"{self.path}: another run is at work in this folder:"
                            " wait for it to end, or choose another --name") from error
        check_config(self.path, config, free)     # once more: another run may have been here in between
        for name in filter(TEMPORARY.fullmatch, os.listdir(self.path)):
            (self.path / name).unlink()
        path, config = self.path / "config.json", json.loads(json.dumps(config))
        if not path.exists() or read_config(self.path) != config:
            atomic_write(path, json.dumps({"format": FORMAT, **config}, indent=1) + "\n")
        content = self.metrics.read_bytes() if self.metrics.exists() else b"\n"
        if not content.endswith(b"\n"):           # a last line that a killed run did not finish
            os.truncate(self.metrics, content.rfind(b"\n") + 1)

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Lets go of the folder. (The system does it for a process that dies.)"""
        self.lock.release()

    def append_metrics(self, row: dict):
        """Adds a line to metrics.jsonl, on the disk when this returns; NaN and infinity, which JSON lacks, become null.

        Write the rows of a step before its  Raises UserError where it cannot be written.
        """
        with reported("write", self.metrics), open(self.metrics, "ab", buffering=0) as file:
            line, start = (json.dumps(without_nan(row), allow_nan=False) + "\n").encode(), file.tell()
            try:
                while line:                       # a disk that fills up takes a part first and errs on the rest
                    line = line[file.write(line):]
                os.fsync(file.fileno())
            except BaseException:
                os.truncate(self.metrics, start)
                raise

    def read_metrics(self) -> list[dict]:
        """The rows of metrics.jsonl. Raises UserError naming a line that is no JSON object or has no whole step."""
        with reported("read", self.metrics):
            lines = self.metrics.read_bytes().splitlines() if self.metrics.exists() else []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(dict(json.loads(line)))
                if not isinstance(rows[-1].get("step", 0), int):
                    raise TypeError
            except (RecursionError, TypeError, ValueError) as error:
                raise UserError(f"{self.metrics}: line {number} is no JSON object: take it out") from error
        return rows

    def truncate_metrics(self, step: int):
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
        found = (re.fullmatch(r"step-(0|[1-9]\d*)\.pt", name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in found if match)

    def keep(self, count: int):
        """Deletes all numbered checkpoints but the newest `count`. Raises UserError where that is not allowed."""
        for step in self.steps()[:-count or None]:
            with reported("delete", self.numbered(step)):
                self.numbered(step).unlink(missing_ok=True)


def load_run(folder, name: str = "best", device="cpu"):
    """(model in eval mode, tokenizer, settings) of a run folder: its NAME.pt, tokenizer.json and config.json.

    Raises UserError for a folder or file that is missing, damaged, or of another version or run.
    """
    folder = Path(folder)
    settings = read_config(folder)
    path = folder / f"{name}.pt"
    there = sorted(file.stem for file in folder.glob("*.pt"))
    if name not in there:
        raise UserError(f"{path} does not exist; --checkpoint can be {', '.join(there) or 'given once there is one'}")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    state = load(path, needs=("model",))["model"]
    try:
        config = TransformerConfig(**settings["model"])
        with torch.device("meta"):                # it takes memory only where it fits the weights
            shapes = Transformer(config).state_dict() if config.layers <= len(state) else {}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder}/config.json describes no model that can be built here ({error}): take the one that "
                        "the run wrote") from error
    check_weights(state, shapes, path, "the model of config.json")
    model = install(Transformer(config).to(device))
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise UserError(f"{folder}/tokenizer.json has {tokenizer.get_vocab_size()} tokens and the model of config.json "
                        f"{config.vocab_size}: take both from one run")
    model.load_state_dict(state)
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise UserError(f"{path} holds weights that are no finite numbers; use another --checkpoint of the run")
    return model.eval(), tokenizer, settings
