"""What a person watches while a run goes on: loss.png in its folder, and TensorBoard."""
from nmt.files import atomic_write
from nmt.flags import UserError


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
