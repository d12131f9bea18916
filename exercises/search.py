"""A function of nmt/search.py."""
import math

import torch
from torch import Tensor

from nmt.tokenizer import EOS


def expand(logits: Tensor, log_p: Tensor, beam: int, last: Tensor):
    """One step of the search: the best continuations of the live hypotheses, and which of them end.

    logits [B * k, V]: of the next token; log_p [B, k]: of the live hypotheses; last [B]: True where
    a sentence is at its limit, so that every hypothesis has to end. Returns the continued ones,
    best first: log_p [B, k'], the hypothesis each stems from [B, k'] and its new token [B, k']; and
    the log_p of ending each live one [B, k], -inf unless that is among the `beam` best of all
    continuations of the sentence.
    """
    # Wu 2016 §7: step of beam search, 3 points
    raise NotImplementedError("Wu 2016 §7: step of beam search")
