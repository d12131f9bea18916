"""The cross-entropy of smoothed targets, from the vectors before the output matrix."""
import torch.nn.functional as F
from torch import Tensor

from routing_dynamic import at_least_float32


def smoothed_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float = 0.0,
                           padding: int = -100) -> Tensor:
    """The cross-entropy of the logits `z = hidden weight^T` and smoothed targets, in nats, summed
    over the tokens whose target is not `padding`.

    hidden [n, d], weight [V, d], target [n] ids in 0..V-1 -> scalar. Smoothing eps divides the
    share eps of a target's probability among all V words (Szegedy et al. 2016 §7).
    """
    z = at_least_float32(hidden @ weight.T)                                  # [n, V]
    return F.cross_entropy(z, target, ignore_index=padding, label_smoothing=smoothing,
                           reduction="sum")
