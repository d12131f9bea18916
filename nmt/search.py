"""Translation: beam search, and lines of text in and out.

Finished hypotheses are ranked by `score(y) = log P(y|x) / lp(y)`, `lp(y) = ((5 + |y|) / 6)^lenpen`
(Wu et al. 2016, Eq. 14, without the coverage penalty; beam 4 and lenpen 0.6 as in Vaswani et al.
2017). |y| counts the end-of-sentence token.
"""
import math
import re
import unicodedata
from itertools import islice
from typing import Iterator, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from attention import Cache
from nmt.batches import batches
from nmt.tokenizer import BOS, EOS, prepare_line
from transformer import PAD

MAX_SOURCE = 512                # tokens: longer lines are translated in pieces
LENGTH_RATIO = 1.5              # the least limit of a translation, in source tokens
LARGEST_RATIO = 5.0             # the largest: an untrained model writes up to the limit
# with Arabic, Indic, Burmese, Khmer, Tibetan, Armenian and Ethiopic marks
SENTENCE_END = re.compile(r"(?<=[.!?…؟۔।॥၊။។།։።])\s+|(?<=[。！？])")
ZERO_WIDTH_JOINERS = "\u200c\u200d"
# would break a line in two, or act on a terminal
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Hypothesis(NamedTuple):
    """A finished translation: tokens without BOS and EOS, and log P(y|x) / lp(y)."""
    tokens: list[int]
    score: float


# ---- Beam search

def length_limit(source: Tensor, ratio: float = LENGTH_RATIO) -> Tensor:
    """Returns the largest length of each translation of sentences [B, L_s], with EOS: `ratio` times
    the source's plus 20, [B]. A ratio below 1.5 or above 5 counts as 1.5 or 5."""
    ratio = min(max(ratio, LENGTH_RATIO), LARGEST_RATIO)
    return ((source != PAD).sum(1) * ratio).long() + 20


def expand(logits: Tensor, log_p: Tensor, beam: int, last: Tensor):
    """One step of the search: the best continuations of the live hypotheses, and which of them end.
    logits [B * k, V]: of the next token; log_p [B, k]: of the live hypotheses; last [B]: True where
    a sentence is at its limit, so that every hypothesis has to end. Returns the continued ones,
    best first: log_p [B, k'], the hypothesis each stems from [B, k'] and its new token [B, k']; and
    the log_p of ending each live one [B, k], -inf unless that is among the `beam` best of all
    continuations of the sentence.
    """
    logits = logits.to(log_p.dtype).view(*log_p.shape, -1)                   # [B, k, V]
    # logsumexp(z) = max(z) - log max(softmax(z)), in half the time of torch.logsumexp
    logsumexp = logits.amax(-1) - logits.softmax(-1).amax(-1).log()          # [B, k]
    # log P(y, word) = log P(y) + z_word - logsumexp(z): the best words have the largest z
    so_far = log_p - logsumexp                                               # [B, k]
    ends = so_far + logits[:, :, EOS]                                        # [B, k]
    # padding, BOS and EOS are the first ids: the first two are never produced, EOS is above
    others = logits[:, :, EOS + 1:]
    branches = min(beam, others.shape[-1])
    words, ids = others.topk(branches)                                       # [B, k, branches]
    ids = ids + EOS + 1
    words = (so_far.unsqueeze(-1) + words).flatten(1)                        # [B, k * branches]
    words = words.masked_fill(last.unsqueeze(1), -math.inf)
    words, best = words.topk(min(beam, words.shape[1]))                      # [B, k']
    rivals = torch.cat([words, ends], dim=1).unsqueeze(1)                    # [B, 1, k' + k]
    better = (rivals > ends.unsqueeze(2)).sum(-1)                            # [B, k]
    ends = ends.masked_fill(better >= beam, -math.inf)
    return words, best // branches, ids.flatten(1).gather(1, best), ends


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
        log_p, parent, words, ends = expand(logits, log_p, beam, limit == t)

        # hypotheses that end with the t-th token: one copy from the device
        scores = (ends / lp[t]).flatten().tolist()                           # [B * k]
        ended = [n for n, score in enumerate(scores) if score > -math.inf]
        for n, ids in zip(ended, tokens.flatten(0, 1)[ended, 1:].tolist()):
            hypotheses = finished[alive[n // k]]
            hypotheses.append(Hypothesis(ids, scores[n]))
            hypotheses.sort(key=lambda hypothesis: hypothesis.score, reverse=True)

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

def find_cuts(line: str) -> list[int]:
    """Where a long sentence may be cut: at its spaces, or, if it has none, before every letter that
    no zero-width joiner joins to the one before."""
    spaces = [match.start() for match in re.finditer(r"\s", line)]
    if spaces:
        return spaces
    letters = []
    for i in range(1, len(line)):
        is_mark = unicodedata.category(line[i]).startswith("M")
        if not is_mark and not set(ZERO_WIDTH_JOINERS) & set(line[i - 1:i + 1]):
            letters.append(i)
    return letters


def pieces(line: str, tokenizer, limit: int) -> list[list[int]]:
    """Splits a line into pieces of at most `limit` token ids; a blank line has none. A long line is
    cut into its sentences, a long sentence at the space nearest to its middle, a long word near its
    middle, between letters with their marks."""
    line = prepare_line(line)
    if not line:
        return []
    ids = tokenizer.encode(line).ids
    if len(ids) <= limit or len(line) == 1:
        return [ids]
    parts = [part for part in SENTENCE_END.split(line) if part]
    if len(parts) == 1:
        middle = len(line) // 2
        cut = min(find_cuts(line), key=lambda i: abs(i - middle), default=middle)
        parts = [line[:cut], line[cut:]]
    return [ids for part in parts for ids in pieces(part, tokenizer, limit)]


def to_line(tokens: list[int], tokenizer) -> str:
    """Tokens as text without the control characters that a model may produce from bytes."""
    return UNPRINTABLE.sub(" ", tokenizer.decode(tokens)).strip()


class Translation(NamedTuple):
    """The translation of a line."""
    text: str
    pieces: int                 # pieces of the line; 0 if it is blank
    at_limit: bool              # whether that of a piece reached the length limit


def search_all(model, sources: list[Tensor], beam: int, lenpen: float, max_tokens: int,
               length_ratio: float, bar) -> list[tuple[list[int], bool]]:
    """(tokens, whether they reached the length limit) of the best translation of every sentence,
    in batches of similar lengths. bar: counts the sentences."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    results: list = [None] * len(sources)
    lengths = np.array([len(ids) - 1 for ids in sources])            # `batches` counts BOS and EOS
    for batch in reversed(batches(lengths, lengths - 1, max_tokens // beam, shuffle=False)):
        rows = [sources[n] for n in batch]
        source = pad_sequence(rows, batch_first=True, padding_value=PAD)             # [B, L_s]
        limits = length_limit(source, length_ratio).tolist()
        hypotheses = beam_search(model, source.to(device), beam, lenpen,
                                 length_ratio=length_ratio)
        for n, limit, (best,) in zip(batch, limits, hypotheses):
            results[n] = best.tokens, len(best.tokens) + 1 >= limit
        bar.update(len(batch))
    model.train(training)
    return results


def translate_text(model, tokenizer, lines, beam: int = 4, lenpen: float = 0.6,
                   max_tokens: int = 8192, max_source: int = MAX_SOURCE,
                   length_ratio: float = LENGTH_RATIO, window: int | None = None,
                   progress: bool = False) -> Iterator[Translation]:
    """Yields the best translation of every line. That of a blank line is "". A line of more than
    max_source tokens is translated in pieces, which are joined with spaces.

    max_tokens: size of a batch, beams x source tokens; length_ratio: see `length_limit`; window:
    lines that are translated before the first of them is yielded (None: all).
    """
    lines = list(lines)
    window = window or len(lines) or 1
    disable = None if progress else True                 # None: unless stderr is a terminal
    with tqdm(total=len(lines), unit="line", leave=None, disable=disable) as bar:
        for start in range(0, len(lines), window):
            sources = []                                 # all pieces of the window's lines
            counts = []                                  # the pieces of each line
            for line in lines[start:start + window]:
                parts = pieces(line, tokenizer, max_source)
                sources += [torch.tensor(ids + [EOS]) for ids in parts]
                counts.append(len(parts))
            bar.total += len(sources) - len(counts)
            results = iter(search_all(model, sources, beam, lenpen, max_tokens, length_ratio, bar))
            for count in counts:
                parts = list(islice(results, count))
                text = " ".join(to_line(tokens, tokenizer) for tokens, _ in parts)
                yield Translation(text, count, any(at_limit for _, at_limit in parts))


def translate_lines(model, tokenizer, lines, beam: int = 4, lenpen: float = 0.6,
                    max_tokens: int = 8192, max_source: int = MAX_SOURCE,
                    progress: bool = False, length_ratio: float = LENGTH_RATIO) -> list[str]:
    """The text of the best translation of every line, see `translate_text`. Raises ValueError for
    a string."""
    if isinstance(lines, str):
        raise ValueError("lines is one string, which would be read letter by letter: give a list")
    translations = translate_text(model, tokenizer, lines, beam, lenpen, max_tokens, max_source,
                                  length_ratio, progress=progress)
    return [translation.text for translation in translations]


def count_long(translations) -> tuple[int, int]:
    """How many lines were translated in pieces, and how many translations reached the limit."""
    in_pieces = sum(translation.pieces > 1 for translation in translations)
    return in_pieces, sum(translation.at_limit for translation in translations)


def describe_long(in_pieces: int, at_limit: int) -> list[str]:
    """Messages about lines that were translated in pieces, and translations that may be cut."""
    messages = []
    if in_pieces:
        messages.append(f"lines longer than any training source, translated in pieces: "
                        f"{in_pieces:,}")
    if at_limit:
        messages.append(f"translations that reached the length limit and may be cut: {at_limit:,}")
    return messages
