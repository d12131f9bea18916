"""The models that probe.py and logic.py compare, and what the settings of both share."""
import dataclasses
from dataclasses import dataclass

from nmt.flags import ModelFlags
from tools.command_line import Flags, command_line, flag, name_run
from tools.files import errors_of
from tools.machine import DEVICES
from transformer import TransformerConfig

# the papers' models: what they change in the baseline
MODELS = {
    "baseline": {},
    "disagreement": {"reg": ("output",)},                                    # Li 2021
    "aggregation": {"agg": "em"},
    "combined": {"agg": "em", "reg": ("output",)},
    "simple": {"agg": "dynamic"},                                            # Li 2019
    "em": {"agg": "em"},
    "uniform": {"agg": "em", "iterations": 1},
}
TRAINING = "training"
FRAME = ("layers", "d_model", "heads", "d_ff", "dropout", "norm")            # alike in all models


def with_default(kind: type, name: str, default, **changed):
    """A flag of another dataclass with another default; changed: of its metadata."""
    metadata = kind.__dataclass_fields__[name].metadata
    return dataclasses.field(default=default, metadata={**metadata, **changed})


@dataclass
class TaskFlags(Flags):
    """The flags of both commands, with the defaults of probe.py."""
    models: tuple[str, ...] = flag(
        ("baseline",), "models of the papers: baseline; of Li 2021 disagreement (of the outputs), "
        "aggregation (by EM routing), combined (both); of Li 2019 simple (dynamic routing), em; "
        "and uniform, aggregation without routing", choices=tuple(MODELS), metavar="MODEL")
    seeds: tuple[int, ...] = flag(
        (1,), "train each model once per seed; the table has mean and standard deviation (1)",
        low=0, high=10 ** 6, metavar="SEED")

    layers: int = with_default(ModelFlags, "layers", 2, help="layers of the encoder")
    d_model: int = with_default(ModelFlags, "d_model", 64)
    heads: int = with_default(ModelFlags, "heads", 4)
    d_ff: int = with_default(ModelFlags, "d_ff", 128)
    dropout: float = with_default(ModelFlags, "dropout", 0.1)
    norm: str = with_default(ModelFlags, "norm", "pre")

    epochs: int = flag(6, "passes over the training examples", TRAINING, 1)
    lr: float = flag(2e-3, "learning rate of Adam", TRAINING, above=0, high=1000)
    batch: int = flag(32, "sentences or pairs per step", TRAINING, 1, 10 ** 6)

    name: str = flag("", "name of the run's folder (made from the other flags)", "machine")
    runs: str = flag("runs", "where the runs' folders are", "machine", metavar="DIR")
    device: str = flag("auto", DEVICES, "machine")


def encoder_config(s, model: str, vocab_size: int, **mechanisms) -> TransformerConfig:
    """The encoder of a model of the papers, with the sizes of the settings. mechanisms: what it
    changes beyond MODELS. Raises UserError."""
    values = {name: getattr(s, name) for name in FRAME}
    values |= MODELS[model] | mechanisms
    with errors_of(f"--models {model}"):
        return ModelFlags(**values).model_config(vocab_size, decoder=False)


def name_task_run(s, parts: list[str], free: tuple[str, ...]) -> str:
    """The name of a run's folder: `parts`, then the given flags that are not in `free`."""
    given = {name: getattr(s, name) for name in s.given - {*free}}
    return name_run([*parts, *command_line(type(s), given)])
