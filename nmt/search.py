"""Translation: beam search, and lines of text in and out.

Beam search keeps the `beam` best unfinished hypotheses of every sentence and ranks the finished ones by
`score(y) = log P(y|x) / lp(y)`, `lp(y) = ((5 + |y|) / 6)^lenpen` (Wu et al. 2016, Eq. 14, without the coverage
penalty; beam 4 and lenpen 0.6 as in Vaswani et al. 2017). |y| counts the end-of-sentence token.
"""
import math
import re
import sys
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from attention import Cache
from nmt.tokenizer import BOS, EOS
from transformer import PAD

MAX_SOURCE = 512            # tokens: longer lines are translated in pieces
MAX_WORD = 1000             # characters: a longer run without a space is no language, and is copied as it stands
SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")                       # where a long line is cut first
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")               # would break "one line in, one line out"


class Hypothesis(NamedTuple):
    """A finished translation: tokens without BOS and EOS, and log P(y|x) / lp(y)."""
    tokens: list[int]
    score: float


class Translation(NamedTuple):
    """A translation of a line, and its score: the hypothesis', or the sum of those of the line's pieces."""
    text: str
    score: float


def length_limit(source: Tensor) -> Tensor:
    """The longest translation, EOS included, of sentences [B, L_s]: 1.5 times their tokens (with EOS) plus 20, [B]."""
    return (source != PAD).sum(1) * 3 // 2 + 20


def expand(logits: Tensor, log_p: Tensor, beam: int, last: Tensor):
    """One step of the search: the best continuations of the live hypotheses, and which of them end here.

    logits [B * k, V]: of the next token; log_p [B, k]: of the live hypotheses; last [B]: True where a sentence is at
    its limit, so that every hypothesis has to end. Returns the continued ones, best first: log_p [B, k'], the
    hypothesis each stems from [B, k'] and its new token [B, k']; and the log_p of ending each live one [B, k], -inf
    unless that is among the `beam` best of all continuations of the sentence.
    """
    next_p = logits.log_softmax(-1, dtype=log_p.dtype).view(*log_p.shape, -1)    # [B, k, V]
    ends = log_p + next_p[:, :, EOS]                                         # [B, k]
    next_p[:, :, :EOS + 1] = -math.inf                                       # padding and BOS are never produced
    words, ids = next_p.topk(b := min(beam, next_p.shape[-1]))               # [B, k, b]
    words = (log_p.unsqueeze(-1) + words).flatten(1)                         # [B, k * b]
    words = words.masked_fill(last.unsqueeze(1), -math.inf)
    words, best = words.topk(min(beam, words.shape[1]))                      # [B, k']
    rivals = torch.cat([words, ends], dim=1).unsqueeze(1)                    # [B, 1, k' + k]
    better = (rivals > ends.unsqueeze(2)).sum(-1)                            # [B, k]
    return words, best // b, ids.flatten(1).gather(1, best), ends.masked_fill(better >= beam, -math.inf)


@torch.inference_mode()
def beam_search(model, source: Tensor, beam: int = 4, lenpen: float = 0.6, max_length: int | None = None,
                nbest: int = 1) -> list[list[Hypothesis]]:
    """The nbest translations of every sentence [B, L_s] (ids, EOS last, padding 0 on the right), best first.

    An ending joins the finished hypotheses if it is among the `beam` best continuations at its step; `beam` others
    live on. The search of a sentence stops when `beam` hypotheses have finished (so beam 1 is greedy search), at
    max_length tokens with EOS (None: see `length_limit`), or when no live hypothesis can beat the worst of the nbest
    kept: log P only falls and lp only grows, so `log P / lp(max_length)` of the best live one bounds all that is to
    come. The last changes no result. A stopped sentence leaves the batch; no result depends on the other sentences.
    Scores are float32 or better. Fewer than nbest come back only where fewer were found within max_length.
    """
    if not 1 <= nbest <= beam or (max_length is not None and max_length < 1):
        raise ValueError(f"needs 1 <= nbest={nbest} <= beam={beam} and max_length={max_length} of 1 or more")
    B, device = len(source), source.device
    limit = length_limit(source) if max_length is None else source.new_full((B,), max_length)
    longest = int(limit.max())
    memory, cache = model.encode(source), Cache()
    dtype = torch.promote_types(memory.states.dtype, torch.float32)
    # lp(y) = ((5 + |y|) / 6)^lenpen
    lp = ((5 + torch.arange(longest + 1, device=device, dtype=dtype)) / 6) ** lenpen
    tokens = source.new_full((B, 1, longest), EOS)                           # [B, k, longest], k = 1 at first
    newest, log_p = source.new_full((B, 1), BOS), lp.new_zeros(B, 1)         # [B * k, 1], [B, k]
    kept, scores = tokens.expand(-1, nbest, -1), lp.new_full((B, nbest), -math.inf)
    ended, alive, found = limit.new_zeros(B), list(range(B)), {}
    take = lambda x, index: x.gather(1, index.unsqueeze(-1).expand(-1, -1, longest))       # [B, n, longest]
    for t in range(1, longest + 1):
        k, logits = log_p.shape[1], model.decode(newest, memory, cache)[:, -1]             # [B * k, V]
        log_p, parent, ids, ends = expand(logits, log_p, beam, limit == t)
        scores, index = torch.cat([scores, ends / lp[t]], dim=1).topk(nbest)               # [B, nbest]
        kept = take(torch.cat([kept, tokens], dim=1), index)                               # [B, nbest, longest]
        tokens = take(tokens, parent)                                                      # [B, k', longest]
        tokens[:, :, t - 1] = ids
        ended = ended + ends.isfinite().sum(1)
        done = (ended >= beam) | (log_p[:, 0] / lp[limit] <= scores[:, -1]) | (limit == t)
        rows = torch.arange(len(alive), device=device).unsqueeze(1) * k + parent           # [B, k']
        done = done.tolist()                                                 # the step's only wait for the device
        found.update((alive[i], (kept[i], scores[i])) for i, stopped in enumerate(done) if stopped)
        left = [i for i, stopped in enumerate(done) if not stopped]
        if not left:
            break
        moved = len(left) < len(alive) or rows.shape[1] != k                 # rows change their sentences
        if len(left) < len(alive):
            alive, left = [alive[i] for i in left], torch.tensor(left, device=device)
            log_p, ids, rows, tokens, kept, scores, ended, limit = (
                x.index_select(0, left) for x in (log_p, ids, rows, tokens, kept, scores, ended, limit))
        if moved:
            memory = memory.select(rows.flatten())
        if moved or beam > 1:
            cache.reorder(rows.flatten(), same_sources=not moved)
        newest = ids.reshape(-1, 1)
    kept, scores = (torch.stack(x).tolist() for x in zip(*(found[i] for i in range(B))))
    return [[Hypothesis(ids[:ids.index(EOS)] if EOS in ids else ids, score)
             for ids, score in zip(*sentence) if score > -math.inf] for sentence in zip(kept, scores)]


def pieces(line: str, tokenizer, limit: int) -> list[tuple[str, list[int] | None]]:
    """A line as (text, ids) of at most `limit` tokens each; ids None is text to copy; a blank line has no pieces.

    A line that is too long is cut into its sentences, too long a sentence between words, too long a word anywhere;
    a run of more than MAX_WORD characters without a space is copied, so that time and memory stay in bounds.
    """
    encode = lambda text: tokenizer.encode(text).ids
    words = line.split()
    if not words:
        return []
    if max(map(len, words)) <= MAX_WORD and len(ids := encode(line)) <= limit:
        return [(line, ids)]
    found = []
    for sentence in SENTENCE.split(line):
        text, ids = "", []                                                   # what has been gathered of the sentence
        for word in sentence.split():
            longer = f"{text} {word}" if text else word
            more = encode(longer[len(text):]) if len(word) <= MAX_WORD else None
            if more is not None and len(ids) + len(more) <= limit:
                text, ids = longer, ids + more
                continue
            found += [(text, ids)] * bool(text)
            text, ids = "", []
            if more is None:
                found.append((word, None))
            elif len(more := encode(word)) <= limit:
                text, ids = word, more
            else:
                step = max(1, limit // 4)                                    # a character is 4 bytes or tokens at most
                found += [(part, encode(part)) for part in (word[i:i + step] for i in range(0, len(word), step))]
        found += [(text, ids)] * bool(text)
    return found


def one_line(text: str) -> str:
    """The text without line ends, tabs and other control characters, which a model that spells bytes may produce."""
    return UNPRINTABLE.sub(" ", text).strip()


def batches(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Indices sorted by length, longest first, in batches of at most max_tokens with padding (but never empty)."""
    order, found, start = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True), [], 0
    while start < len(order):
        found.append(order[start:start + max(1, max_tokens // lengths[order[start]])])
        start += len(found[-1])
    return found


def translate_nbest(model, tokenizer, lines, beam: int = 4, lenpen: float = 0.6, max_tokens: int = 8192,
                    nbest: int = 1, max_source: int = MAX_SOURCE, progress: bool = False) -> list[list[Translation]]:
    """The nbest translations of every line, best first, in the order of the lines; as many lists as there are lines.

    A blank line has the one translation "" (score 0). A line of more than max_source tokens is translated in pieces
    (see `pieces`): their n-th translations are joined with spaces and the scores added. Any str is a line: what is
    no valid Unicode becomes "?". max_tokens: size of a batch, beams x source tokens. Runs on the model's device, in
    eval mode.
    """
    device, training = next(model.parameters()).device, model.training
    lines = [pieces(line.encode("utf-8", "replace").decode(), tokenizer, max_source) for line in lines]
    results = [[[Translation(one_line(text), 0.0)] for text, _ in line] for line in lines]
    places = [(i, j) for i, line in enumerate(lines) for j, (_, ids) in enumerate(line) if ids is not None]
    sources = [torch.tensor(lines[i][j][1] + [EOS]) for i, j in places]
    model.eval()
    try:
        with tqdm(total=len(places), unit="line", disable=not (progress and sys.stderr.isatty())) as bar:
            for batch in batches([len(ids) * beam for ids in sources], max_tokens):
                source = pad_sequence([sources[n] for n in batch], batch_first=True, padding_value=PAD)    # [B, L_s]
                found = beam_search(model, source.to(device), beam, lenpen, nbest=nbest)
                for (i, j), best in zip((places[n] for n in batch), found):
                    results[i][j] = [Translation(one_line(tokenizer.decode(h.tokens)), h.score) for h in best] or \
                        [Translation("", -math.inf)]                         # a model whose scores are no numbers
                bar.update(len(batch))
    finally:
        model.train(training)
    return [joined(line) for line in results]


def translate_lines(model, tokenizer, lines, **how) -> list[str]:
    """The best translation of every line, as text; the arguments are those of `translate_nbest`."""
    return [line[0].text for line in translate_nbest(model, tokenizer, lines, **how)]


def joined(parts: list[list[Translation]]) -> list[Translation]:
    """One line's translations from those of its pieces: the n-th (or last) of each, joined; scores added."""
    chosen = [[part[min(n, len(part) - 1)] for part in parts] for n in range(max(map(len, parts), default=1))]
    return [Translation(" ".join(x.text for x in line), sum(x.score for x in line)) for line in chosen]
