"""Translation: beam search, and lines of text in and out.

Finished hypotheses are ranked by `score(y) = log P(y|x) / lp(y)`, `lp(y) = ((5 + |y|) / 6)^lenpen`
(Wu et al. 2016, Eq. 14, without the coverage penalty; beam 4 and lenpen 0.6 as in Vaswani et al.
2017). |y| counts the end-of-sentence token.
"""
import math
import re
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from attention import Cache
from nmt.batches import batches
from nmt.tokenizer import BOS, EOS, prepare_line
from transformer import PAD

LENGTH_RATIO = 1.5              # the least limit of a translation, in source tokens
# would break a line in two, or act on a terminal
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Hypothesis(NamedTuple):
    """A finished translation: tokens without BOS and EOS, and log P(y|x) / lp(y)."""
    tokens: list[int]
    score: float


# ---- Beam search

def length_limit(source: Tensor, ratio: float = LENGTH_RATIO) -> Tensor:
    """Returns the largest length of each translation of sentences [B, L_s], with EOS: `ratio` times
    the source's plus 20, [B]. A ratio below 1.5 counts as 1.5."""
    return ((source != PAD).sum(1) * max(ratio, LENGTH_RATIO)).long() + 20


def expand(logits: Tensor, log_p: Tensor, beam: int, last: Tensor):
    """The 2 x beam best continuations of the live hypotheses of every sentence, of which at most
    `beam` end: log_p [B, 2 beam], best first, the hypothesis each stems from and its new token.
    logits [B * k, V]: of the next token; log_p [B, k]: of the live hypotheses; last [B]: True where
    a sentence is at its limit, so that only EOS may follow."""
    V = logits.shape[-1]
    words = logits.to(log_p.dtype).log_softmax(-1).view(*log_p.shape, V)     # [B, k, V]
    # log P(y, word) = log P(y) + log P(word | y)
    words += log_p.unsqueeze(-1)
    words[:, :, :EOS] = -math.inf                        # padding and BOS are never produced
    words[:, :, EOS + 1:].masked_fill_(last[:, None, None], -math.inf)
    best, index = words.flatten(1).topk(min(2 * beam, log_p.shape[1] * V))
    return best, index // V, index % V


def is_done(finished: list[Hypothesis], bound: float, beam: int, nbest: int) -> bool:
    """Whether `beam` hypotheses have finished (best first), or no score up to `bound` would be
    among the nbest."""
    worst = finished[nbest - 1].score if len(finished) >= nbest else -math.inf
    return len(finished) >= beam or bound <= worst


@torch.inference_mode()
def beam_search(model, source: Tensor, beam: int = 4, lenpen: float = 0.6,
                max_length: int | None = None, nbest: int = 1,
                length_ratio: float = LENGTH_RATIO) -> list[list[Hypothesis]]:
    """Returns the nbest translations, best first, of every sentence [B, L_s]: ids, EOS, then 0.

    An ending joins the finished hypotheses if it is among the `beam` best continuations at its
    step; `beam` others live on. The search of a sentence stops when `beam` hypotheses have finished
    (so beam 1 is greedy search), at max_length tokens with EOS (None: `length_limit` of
    length_ratio), or when no live hypothesis can be among the nbest. Raises ValueError for an nbest
    above beam, a max_length below 1, or a negative lenpen.

    B: sentences not done; k: their live hypotheses.
    """
    if not 1 <= nbest <= beam or (max_length is not None and max_length < 1) or lenpen < 0:
        raise ValueError(f"needs 1 <= nbest={nbest} <= beam={beam}, max_length={max_length} > 0 "
                         f"and lenpen={lenpen} >= 0")
    device = source.device
    limit = length_limit(source, length_ratio)                               # [B]
    if max_length is not None:
        limit = torch.full_like(limit, max_length)
    memory = model.encode(source)
    cache = Cache()
    dtype = torch.promote_types(memory.states.dtype, torch.float32)
    # lp(y) = ((5 + |y|) / 6)^lenpen                                         Wu et al. 2016, Eq. 14
    lengths = torch.arange(int(limit.max()) + 1, dtype=dtype, device=device)
    lp = ((5 + lengths) / 6) ** lenpen

    alive = list(range(len(source)))                     # the sentences in the batch
    finished: list[list[Hypothesis]] = [[] for _ in alive]
    log_p = torch.zeros(len(source), 1, dtype=dtype, device=device)          # [B, k]
    tokens = source.new_full((len(source), 1, 1), BOS)                       # [B, k, t]
    while True:
        k, t = tokens.shape[1:]
        newest = tokens[:, :, -1].reshape(-1, 1)                             # [B * k, 1]
        logits = model.decode(newest, memory, cache)[:, -1]                  # [B * k, V]
        best, parent, words = expand(logits, log_p, beam, limit == t)        # [B, 2 beam]

        # hypotheses that end with the t-th token: EOS is among the `beam` best
        ends = words == EOS
        rows, ranks = (ends[:, :beam] & (best[:, :beam] > -math.inf)).nonzero(as_tuple=True)
        scores = (best[rows, ranks] / lp[t]).tolist()
        ended = tokens[rows, parent[rows, ranks], 1:].tolist()
        for i, ids, score in zip(rows.tolist(), ended, scores):
            hypotheses = finished[alive[i]]
            hypotheses.append(Hypothesis(ids, score))
            hypotheses.sort(key=lambda hypothesis: hypothesis.score, reverse=True)

        # those that live on: the best others
        log_p, order = best.masked_fill(ends, -math.inf).topk(min(beam, best.shape[1]))  # [B, k']
        parent = parent.gather(1, order)
        words = words.gather(1, order)

        # log P only falls and lp only grows: this bounds the scores to come; -inf at the limit
        bounds = (log_p[:, 0] / lp[limit]).tolist()
        left = [i for i, bound in enumerate(bounds)
                if not is_done(finished[alive[i]], bound, beam, nbest)]
        if not left:
            nothing = [Hypothesis([], -math.inf)]        # where the model's scores are NaN
            return [hypotheses[:nbest] or nothing for hypotheses in finished]

        # hypotheses that live on
        rows = torch.arange(len(alive), device=device).unsqueeze(1) * k + parent     # [B, k']
        tokens = torch.cat([tokens.flatten(0, 1)[rows], words.unsqueeze(-1)], dim=-1)
        fewer = len(left) < len(alive)
        if fewer:
            alive = [alive[i] for i in left]
            index = torch.tensor(left, device=device)
            log_p, tokens, rows, limit = (x[index] for x in (log_p, tokens, rows, limit))
            memory = memory.select(index)
            cache.select_sources(index)
        if fewer or beam > 1:
            cache.reorder(rows.flatten())


# ---- Lines of text

def to_line(tokens: list[int], tokenizer) -> str:
    """Tokens as text without the control characters that a model may produce from bytes."""
    return UNPRINTABLE.sub(" ", tokenizer.decode(tokens)).strip()


def search_all(model, sources: list[Tensor], beam: int, lenpen: float, max_tokens: int,
               length_ratio: float, bar) -> list[list[int]]:
    """The tokens of the best translation of every sentence, in batches of similar lengths. bar:
    counts the sentences."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    results: list = [None] * len(sources)
    lengths = np.array([len(ids) - 1 for ids in sources])            # `batches` counts BOS and EOS
    for batch in reversed(batches(lengths, lengths - 1, max_tokens // beam, shuffle=False)):
        rows = [sources[n] for n in batch]
        source = pad_sequence(rows, batch_first=True, padding_value=PAD)             # [B, L_s]
        hypotheses = beam_search(model, source.to(device), beam, lenpen,
                                 length_ratio=length_ratio)
        for n, (best,) in zip(batch, hypotheses):
            results[n] = best.tokens
        bar.update(len(batch))
    model.train(training)
    return results


def translate_lines(model, tokenizer, lines, beam: int = 4, lenpen: float = 0.6,
                    max_tokens: int = 8192, length_ratio: float = LENGTH_RATIO,
                    progress: bool = False) -> list[str]:
    """The best translation of every line; that of a blank line is "". max_tokens: size of a batch,
    beams x source tokens; length_ratio: see `length_limit`."""
    lines = [prepare_line(line) for line in lines]
    sources = [torch.tensor([*tokenizer.encode(line).ids, EOS]) for line in lines if line]
    disable = None if progress else True                 # None: unless stderr is a terminal
    with tqdm(total=len(sources), unit="line", leave=None, disable=disable) as bar:
        results = iter(search_all(model, sources, beam, lenpen, max_tokens, length_ratio, bar))
    return [to_line(next(results), tokenizer) if line else "" for line in lines]
