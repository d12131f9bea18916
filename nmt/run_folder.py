"""Run folders: settings, metrics and checkpoints; one run at a time in a folder.

A run folder holds config.json (the settings), metrics.jsonl, tokenizer.json, lock, test
translations (*.hyp), and the checkpoints last, best, average and step-N.pt. Loading a checkpoint
executes no code.
"""
import contextlib
import json
import sys
import time
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

from nmt.search import LENGTH_RATIO
from nmt.tokenizer import load_tokenizer
from tools.files import UserError, as_user_error, atomic_write, read_json
from tools.streams import print_once
from transformer import Transformer, TransformerConfig

# the numbers of a row that are printed
SHOWN = {"step": "step {:6}", "epoch": "epoch {:3}", "loss": "loss {:.3f} (smoothed)",
         "disagreement": "D {:.3f}", "lr": "lr {:.2e}",
         "tokens_per_second": "{:,.0f} target tokens/s", "valid_loss": "loss {:.3f}",
         "valid_perplexity": "perplexity {:.2f}", "valid_bleu": "BLEU {:.2f} (greedy)",
         "valid_at_limit": "translations cut at the length limit: {:,}"}
# checksums in config.json, and the message if one differs
CHECKSUMS = {"text": "the text of --train differs", "valid_text": "the text of --valid differs",
             "data_text": "the pairs in the folder of --data differ",
             "tokenizer": "tokenizer.json differs: put its own back"}
RESTORE = "put the run's own back, or train again under another --name"
# the modules and packages whose classes make up a model
PARTS = {"torch", "attention", "aggregation", "capsule_aggregation", "capsule_transformer",
         "transformer"}
FORMAT = 4                      # version of checkpoints and config.json; counts up with changes


def say(text: str) -> None:
    """Prints a line past the progress bar."""
    tqdm.write(text)


def load_checkpoint(path) -> dict:
    """Loads a checkpoint on the CPU. Raises UserError if it is missing, damaged, unsafe, or of
    another version."""
    path = Path(path)
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in path.parent.glob("*.pt"))) or "none"
        raise UserError(f"{path} does not exist; checkpoints of this run: {names}")
    try:
        with as_user_error("read", path):
            with zipfile.ZipFile(path) as archive:       # torch.load ignores its checksums
                if archive.testzip():
                    raise ValueError
            state = torch.load(path, map_location="cpu", weights_only=True)
        version = state["format"]
    except (MemoryError, UserError):
        raise
    except Exception as error:                           # damage shows as almost any exception
        raise UserError(f"{path}: is cut short, damaged or not safe to load: use another "
                        "checkpoint, or train again under another --name") from error
    check_format(version, path)
    return state


def check_format(version, path) -> None:
    """Raises UserError unless this version of the project reads that format."""
    if version != FORMAT:
        raise UserError(f"{path}: has format {version}, and this version reads format {FORMAT}: use"
                        " the version that wrote it, or train again under another --name")


def load_weights(model: torch.nn.Module, state: dict, path, optimizer=None) -> None:
    """Copies the weights of the checkpoint `path` into a model, and its averages of the gradients
    into an optimizer. Raises UserError."""
    if optimizer and "optimizer" not in state:
        raise UserError(f"{path}: has only weights, as best.pt does: {RESTORE}")
    try:
        model.load_state_dict(state["model"])
        if optimizer:
            load_optimizer(optimizer, state["optimizer"]["state"])
    except (IndexError, KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: is not a checkpoint of this model") from error


def load_optimizer(optimizer, saved: dict) -> None:
    """Copies Adam's averages into memory laid out as the parameters are: its fused kernel trusts
    shapes and strides, and would write outside of other tensors. The settings stay the program's
    own. Raises one of the errors that `load_weights` reports."""
    own = optimizer.state_dict()
    parameters = optimizer.param_groups[0]["params"]
    for i, values in saved.items():
        own["state"][i] = {"step": torch.tensor(float(values["step"]))}
        for name in ("exp_avg", "exp_avg_sq"):
            if values[name].shape != parameters[i].shape:
                raise ValueError
            own["state"][i][name] = torch.empty_like(parameters[i]).copy_(values[name])
    optimizer.load_state_dict(own)


def average_checkpoints(paths) -> dict:
    """The mean of the weights of checkpoints of a run, summed in float64. Raises UserError."""
    states = [load_checkpoint(path)["model"] for path in paths]
    mean = {}
    shared = {}                         # tied weights lie in one place, and so do their means
    for name, weight in states[0].items():
        place = weight.data_ptr()
        if place not in shared:
            total = sum(state[name].double() for state in states)
            shared[place] = (total / len(states)).to(weight.dtype)
        mean[name] = shared[place]
    return mean


def tokenizer_checksum(folder: Path) -> int:
    """The checksum that config.json keeps of a run's tokenizer.json."""
    return zlib.crc32((folder / "tokenizer.json").read_bytes())


def read_config(folder) -> dict:
    """The settings in config.json. Raises UserError if it is missing, damaged or of another
    format."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"{folder}: is not a run folder (it has no config.json); "
                        f"{name_runs_beside(folder)}")
    config = read_json(path, RESTORE)
    check_format(config.pop("format", None), path)
    return config


def find_folder(runs: str, name: str) -> Path:
    """The folder of a run for --runs and --name. The name may have the folder of the runs in front,
    as the programs print it. Raises UserError."""
    path = Path(name)
    folder = path if path.is_relative_to(runs) else Path(runs) / path
    if folder.resolve() == Path(runs).resolve():
        raise UserError(f"{folder}: is the folder of all runs: name one in it (--name)")
    return folder


def find_run(name: str | None) -> str | None:
    """The folder of a trained run that is named with or without runs/ in front of it."""
    if name and not Path(name).exists():
        folder = find_folder("runs", name)
        return str(folder) if folder.is_dir() else name
    return name


def name_runs_beside(folder) -> str:
    """A phrase that names the translation models in a folder, beside it and in runs, newest
    first."""
    paths = set()
    for place in (Path(folder), Path(folder).parent, Path("runs")):
        paths.update(place.glob("*/best.pt"))
    newest = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    names = ", ".join(str(path.parent) for path in newest[:10])
    return f"there are {names}" if names else "there are none here; train_mt.py trains one"


def read_metrics(path) -> list[dict]:
    """The rows of a metrics.jsonl, if it exists, without a last line that a killed run cut off.
    Other lines that are not rows are left out with a warning."""
    with as_user_error("read", path):
        lines = Path(path).read_bytes().split(b"\n")[:-1] if Path(path).exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(dict(json.loads(line)))
        except (TypeError, ValueError):
            print_once(f"warning: {path}, line {number}: is not a row, and is left out",
                       file=sys.stderr)
    return rows


def custom_classes(model: Transformer) -> list[str]:
    """The classes in a model that are not this project's: a program may have put them into
    transformer.py's place."""
    classes = {type(module) for module in model.modules()}
    return sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in classes
                  if kind.__module__.partition(".")[0] not in PARTS)


def check_classes(folder, config: dict, classes: list[str]) -> None:
    """Raises UserError unless config.json names the same custom classes; older ones name none."""
    old = config.get("classes", [])
    if old != classes:
        raise UserError(f"{folder}: its model has {', '.join(old) or 'no custom class'}, this "
                        f"program's has {', '.join(classes) or 'none'}: import the same classes "
                        "and put them into `transformer`")


def through_json(values: dict) -> dict:
    """Values as config.json gives them back: tuples are lists."""
    return json.loads(json.dumps(values))


def check_settings(folder, config: dict, free=(), defaults: dict = {}) -> None:
    """Raises UserError unless a folder has the settings `config`, except for those named in `free`.
    Settings that its config.json lacks get their `defaults`."""
    old = through_json(defaults) | read_config(folder)
    config = through_json(config)
    if "classes" in config:
        check_classes(folder, old, config["classes"])
        old["classes"] = config["classes"]
    if "model" in old and "model" in config:
        model = asdict(read_model_config(old, folder))
        old["model"] = through_json(model)
    checked = sorted(config.keys() - {*free})
    changed = [name for name in checked if config[name] != old.get(name)]
    words = [f"{name} was {old.get(name)!r}, is now {config[name]!r}" for name in changed[:3]]
    words = [CHECKSUMS[name] for name in changed if name in CHECKSUMS] or words
    if words:
        raise UserError(f"{folder}: holds a run of another configuration "
                        f"({'; '.join(words)}): choose another --name or --runs, or give "
                        "the same flags to resume that run")


# ---- The folder

class RunFolder(contextlib.AbstractContextManager):
    """A run's folder, which only this process writes to.

    config: the settings, which must match the folder's, except for those named in `free`. Settings
    that an older folder lacks get their `defaults`. Raises UserError if another run is at work
    there, or if the folder belongs to another run or to none.
    """

    def __init__(self, path, config: dict, free=(), defaults: dict = {}):
        self.path = Path(path)
        self.metrics = self.path / "metrics.jsonl"
        self.config = through_json(config)
        self.defaults = defaults
        self.free = free
        self.lock = FileLock(self.path / "lock")
        with as_user_error("open", f"--runs, --name: {path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            names = {file.name for file in self.path.iterdir() if file.suffix != ".tmp"}
            if "config.json" not in names and names - {"lock", "tokenizer.json"}:
                raise UserError(f"{path}: holds files that are not a run's, or lacks the run's "
                                "config.json: put it back, or choose another --name")
            try:
                self.lock.acquire(blocking=False)
            except Timeout:
                raise UserError(f"{path}: another run is at work in this folder: wait for its end, "
                                "or choose another --name; if there is none, delete "
                                f"{self.path / 'lock'}") from None
        self.check()

    def __exit__(self, *_):
        self.lock.release()

    def check(self) -> None:
        """Raises UserError unless the folder has the same settings, or none yet."""
        if (self.path / "config.json").exists():
            check_settings(self.path, self.config, self.free, self.defaults)

    def begin(self, **more) -> None:
        """Writes config.json with `more` settings; an existing one must match."""
        self.config |= through_json(more)
        small = dict(vocab_size=1, d_model=2, heads=1, layers=1)
        with torch.device("meta"):                       # takes no memory
            model = Transformer(TransformerConfig(**more.get("model", small)))
        self.config["classes"] = custom_classes(model)
        if (self.path / "tokenizer.json").exists():
            self.config["tokenizer"] = tokenizer_checksum(self.path)
        self.check()
        for half_written in self.path.glob(".*.tmp"):    # by a run that was killed
            half_written.unlink()
        path = self.path / "config.json"
        if not path.exists():
            atomic_write(path, json.dumps({"format": FORMAT, **self.config}, indent=1) + "\n")

    def log(self, type: str, **numbers) -> dict:
        """Adds a row to metrics.jsonl and prints its numbers, except for a test row."""
        row = {"type": type, "time": time.time(), **numbers}
        self.append_metrics(row)
        if type != "test":
            words = [SHOWN[name].format(value) for name, value in numbers.items()
                     if name in SHOWN and value is not None]
            say(f"{type:5} {'  '.join(words)}")
        return row

    def append_metrics(self, row: dict) -> None:
        """Adds a row to metrics.jsonl."""
        with as_user_error("write", self.metrics), open(self.metrics, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def save(self, name: str, **state) -> None:
        """Writes a checkpoint (tensors and plain Python values) atomically."""
        atomic_write(self.path / name, lambda file: torch.save({**state, "format": FORMAT}, file))

    def read_metrics(self) -> list[dict]:
        """The rows of metrics.jsonl."""
        return read_metrics(self.metrics)

    def drop_metrics_after(self, step: int, unvalidated: bool = False) -> None:
        """Drops the rows that a run resumed at `step` writes again: those beyond, and, where it
        resumes in a validation, that of the validation."""
        rows = []
        for row in self.read_metrics():
            at = row.get("step", 0)
            if at < step or (at == step and not (unvalidated and row.get("type") == "valid")):
                rows.append(row)
        atomic_write(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def numbered(self) -> list[Path]:
        """The checkpoints step-N.pt, ascending."""
        paths = [path for path in self.path.glob("step-*.pt") if path.stem[5:].isdecimal()]
        return sorted(paths, key=lambda path: int(path.stem[5:]))


def read_model_config(config: dict, folder) -> TransformerConfig:
    """The model's configuration in a config.json; fields that are newer have their defaults."""
    try:
        return TransformerConfig(**config["model"])
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{folder}/config.json: describes no model ({error}): {RESTORE}") from error


def load_run(folder, name: str = "best", device="cpu"):
    """(model in eval mode, tokenizer, settings) of a run folder: its NAME.pt, tokenizer.json and
    config.json. Raises UserError for files that are missing, damaged or not of this run."""
    folder = Path(folder)
    settings = read_config(folder)
    if "model" not in settings:
        raise UserError(f"{folder}: is not a translation model; {name_runs_beside(folder)}")
    model = Transformer(read_model_config(settings, folder)).to(device)
    check_classes(folder, settings, custom_classes(model))
    path = folder / f"{name}.pt"
    if path.parent != folder:
        raise UserError(f"--checkpoint {name}: is a path: name a checkpoint of {folder}, such as "
                        "best")
    load_weights(model, load_checkpoint(path), path)
    settings.setdefault("length_ratio", LENGTH_RATIO)    # older runs lack it
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    checksum = tokenizer_checksum(folder)
    if settings.get("tokenizer", checksum) != checksum:
        raise UserError(f"{folder}: {CHECKSUMS['tokenizer']}")
    return model.eval(), tokenizer, settings
