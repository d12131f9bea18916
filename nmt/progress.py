"""What a person sees: lines beside the bar, tables, and of a run its learning rate in words, steps
left out, loss.png in its folder, TensorBoard."""
import math
import sys

from tabulate import tabulate
from tqdm import tqdm

from nmt.files import atomic_write
from nmt.flags import UserError

PATIENCE = 5                # steps in a row without a finite gradient, after which the run gives up
TINY = 3e-5                 # a peak rate below this hardly moves a model that starts from noise


def say(text: str) -> None:
    """Prints past the progress bar."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


def aligned(header: list[str], rows: list[list[str]], words: int = 1) -> str:
    """A table for a terminal: its first `words` columns stand at the left, the others, numbers, at
    the right."""
    sides = ["left"] * words + ["right"] * (len(header) - words)
    return tabulate([header, *rows], tablefmt="plain", colalign=sides, disable_numparse=True)


def rate_in_words(d_model: int, settings) -> str:
    """What `learning_rate` of train_mt.py comes to: its peak and how it falls from there; warnings
    where that peak is never reached or hardly trains."""
    warmup = settings.warmup
    steps = settings.steps
    factor = settings.lr
    peak = factor * (d_model * warmup) ** -0.5
    formula = f"--lr {factor:g} x (d_model {d_model} x --warmup {warmup})^-0.5"
    falls = "linearly to 0" if settings.decay == "linear" else "with step^-0.5"
    text = f"learning rate: peak {peak:.2e} at step {warmup:,} = {formula}; falls {falls}"
    if warmup > steps:
        text += (f"\nwarning: --steps {steps} end before --warmup {warmup}: that peak is never "
                 f"reached; choose a --warmup of {steps} at most")
    if peak < TINY:
        text += (f"\nwarning: a peak rate of {peak:.2e} hardly trains: --lr is a factor on the "
                 "schedule, not the rate itself; the recipes have 0.4 to 1")
    return text


def check_finite(job, norms: list[float]) -> None:
    """Names every step of a `Training` since the last log line that was left out. Raises UserError
    after PATIENCE of them in a row."""
    first = job.step - len(norms) + 1
    for step, norm, (_, (epoch, batch)) in zip(range(first, job.step + 1), norms, job.norms):
        job.bad = 0 if math.isfinite(norm) else job.bad + 1
        if job.bad and job.where.first:
            say(f"step {step:6}  epoch {epoch:3}  batch {batch}: the loss or its gradient is not "
                "finite: step left out")
        if job.bad == PATIENCE:
            raise UserError(f"steps {step - PATIENCE + 1} to {step}, up to batch {batch} of epoch "
                            f"{epoch}: the loss or its gradient is not finite; the last checkpoint "
                            "is intact: translate with it, or train again under another --name "
                            "with a lower --lr or with --clip 1")


def draw(rows: list[dict], path) -> None:
    """Draws the rows of a metrics.jsonl as PNG: the losses per target token and the validation BLEU
    at every step; a tenth of a second."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(9, 3.2))
    figure.subplots_adjust(0.07, 0.15, 0.98, 0.97)
    losses, scores = figure.subplots(1, 2)
    curves = (("loss", "training (label-smoothed)", losses), ("valid_loss", "validation", losses),
              ("valid_bleu", "validation BLEU (greedy)", scores))
    for name, label, axes in curves:
        told = [row for row in rows if row.get(name) is not None]
        axes.plot([row["step"] for row in told], [row[name] for row in told], ".-", label=label)
        axes.set_xlabel("step")
        axes.legend()
    losses.set_ylabel("nats per target token")
    atomic_write(path, lambda file: figure.savefig(file, format="png"))


def summary_writer() -> type:
    """torch's own writer for TensorBoard. Raises UserError where TensorBoard is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("--tensorboard needs a package of that name: pip install tensorboard, or "
                        "leave the flag out (metrics.jsonl has the same numbers)") from error
    return SummaryWriter
