"""A function of train_mt.py."""
from train_mt import Settings


def learning_rate(step: int, d_model: int, settings: Settings) -> float:
    """The learning rate of step = 1, 2, ...: with --decay sqrt
    `d^-0.5 min(step^-0.5, step warmup^-1.5)` (Vaswani et al. 2017, section 5.3); with --decay
    linear the same rise to the same peak, then a straight line to 0 at the last step."""
    # Vaswani 2017 §5.3: learning rate, 1 point
    raise NotImplementedError("Vaswani 2017 §5.3: learning rate")
