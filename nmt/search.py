"""Translation: beam search, and lines of text in and out.

Beam search keeps the `beam` best unfinished hypotheses of every sentence and ranks the finished
ones by `score(y) = log P(y|x) / lp(y)`, `lp(y) = ((5 + |y|) / 6)^lenpen` (Wu et al. 2016, Eq. 14,
without the coverage penalty; beam 4 and lenpen 0.6 as in Vaswani et al. 2017). |y| counts the
end-of-sentence token.
"""
import dataclasses
import math
import re
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from attention import Cache
from nmt.tokenizer import BOS, EOS
from transformer import PAD

MAX_SOURCE = 512                # tokens: longer lines are translated in pieces
SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")           # where a long line is cut first
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")   # would break a line in two


class Hypothesis(NamedTuple):
    """A finished translation: tokens without BOS and EOS, and log P(y|x) / lp(y)."""
    tokens: list[int]
    score: float


class Translation(NamedTuple):
    """A translation of a line, and its score: the hypothesis', or the sum of those of its
    pieces."""
    text: str
    score: float


# ---- Beam search

@dataclass
class Beams:
    """The sentences in search, B of them: k live hypotheses each, and the n best finished ones."""
    log_p: Tensor               # [B, k] log P of the live ones, best first
    tokens: Tensor              # [B, k, longest] what they say, EOS from there on
    newest: Tensor              # [B, k] the last token of each
    row: Tensor                 # [B, k] where the one that it continues stood in the batch B * k
    kept: Tensor                # [B, n, longest] tokens of the finished ones
    scores: Tensor              # [B, n] log P / lp of the finished ones, best first; -inf: none yet
    ended: Tensor               # [B] how many hypotheses have finished
    limit: Tensor               # [B] the longest translation, EOS included

    def select(self, left: Tensor) -> "Beams":
        """The sentences `left` [B'] alone."""
        tensors = {}
        for field in dataclasses.fields(self):
            tensors[field.name] = getattr(self, field.name).index_select(0, left)
        return Beams(**tensors)


def first_beams(limit: Tensor, nbest: int, dtype: torch.dtype) -> Beams:
    """Before the first step: one live hypothesis, BOS, and no finished one. limit: [B]."""
    B = len(limit)
    longest = int(limit.max())
    tokens = limit.new_full((B, 1, longest), EOS)
    return Beams(
        log_p=torch.zeros(B, 1, dtype=dtype, device=limit.device),
        tokens=tokens,
        newest=limit.new_full((B, 1), BOS),
        row=torch.arange(B, device=limit.device).unsqueeze(1),
        kept=tokens.expand(-1, nbest, -1),
        scores=torch.full((B, nbest), -math.inf, dtype=dtype, device=limit.device),
        ended=torch.zeros_like(limit),
        limit=limit)


def length_limit(source: Tensor) -> Tensor:
    """The longest translation, EOS included, of sentences [B, L_s]: 1.5 times their tokens (with
    EOS) plus 20, [B]."""
    return (source != PAD).sum(1) * 3 // 2 + 20


def largest(x: Tensor, k: int, group: int = 128) -> tuple[Tensor, Tensor]:
    """`x.topk(k)` of the last dimension (all of it where it has fewer), for long ones faster: the k
    largest lie in the k groups whose own largest are the largest."""
    groups = x.shape[-1] // group
    if groups <= k:
        return x.topk(min(k, x.shape[-1]))
    grouped = x[..., :groups * group].unflatten(-1, (groups, group))         # [..., groups, group]
    best = grouped.amax(-1).topk(k).indices.unsqueeze(-1)                    # [..., k, 1]
    places = best * group + torch.arange(group, device=x.device)             # [..., k, group]
    rest = torch.arange(groups * group, x.shape[-1], device=x.device)        # what fills no group
    places = torch.cat([places.flatten(-2), rest.expand(*x.shape[:-1], -1)], dim=-1)
    values, index = x.gather(-1, places).topk(k)
    return values, places.gather(-1, index)


def expand(logits: Tensor, log_p: Tensor, beam: int, last: Tensor):
    """One step of the search: the best continuations of the live hypotheses, and which of them end.

    logits [B * k, V]: of the next token; log_p [B, k]: of the live hypotheses; last [B]: True where
    a sentence is at its limit, so that every hypothesis has to end. Returns the continued ones,
    best first: log_p [B, k'], the hypothesis each stems from [B, k'] and its new token [B, k']; and
    the log_p of ending each live one [B, k], -inf unless that is among the `beam` best of all
    continuations of the sentence.
    """
    logits = logits.to(log_p.dtype).view(*log_p.shape, -1)                   # [B, k, V]
    ends = log_p + logits.log_softmax(-1)[:, :, EOS]                         # [B, k]
    # log P(y, word) = log P(y) + z_word - logsumexp(z): the best words have the largest z
    so_far = ends - logits[:, :, EOS]                                        # [B, k]
    # padding, BOS and EOS are the first ids: the first two are never produced, EOS is above
    words, ids = largest(logits[:, :, EOS + 1:], beam)
    branches = words.shape[-1]
    ids = ids + EOS + 1
    words = (so_far.unsqueeze(-1) + words).flatten(1)                        # [B, k * branches]
    words = words.masked_fill(last.unsqueeze(1), -math.inf)
    words, best = words.topk(min(beam, words.shape[1]))                      # [B, k']
    rivals = torch.cat([words, ends], dim=1).unsqueeze(1)                    # [B, 1, k' + k]
    better = (rivals > ends.unsqueeze(2)).sum(-1)                            # [B, k]
    ends = ends.masked_fill(better >= beam, -math.inf)
    return words, best // branches, ids.flatten(1).gather(1, best), ends


def step(beams: Beams, logits: Tensor, t: int, lp: Tensor, beam: int) -> Tensor:
    """Takes the beams on by the t-th token, t = 1, 2, ..., in place; returns which sentences are
    done [B]. logits [B * k, V]: of that token; lp [longest + 1]: the length penalty of every
    length."""
    def take(hypotheses, index):
        return hypotheses.gather(1, index.unsqueeze(-1).expand(-1, -1, hypotheses.shape[-1]))

    B, k = beams.log_p.shape
    nbest = beams.scores.shape[1]
    log_p, parent, newest, ends = expand(logits, beams.log_p, beam, beams.limit == t)

    # the finished ones: those kept so far and those that end here
    scores = torch.cat([beams.scores, ends / lp[t]], dim=1)                  # [B, n + k]
    beams.scores, index = scores.topk(nbest)                                 # [B, n]
    beams.kept = take(torch.cat([beams.kept, beams.tokens], dim=1), index)   # [B, n, longest]
    beams.ended = beams.ended + ends.isfinite().sum(1)

    # the live ones
    beams.tokens = take(beams.tokens, parent)                                # [B, k', longest]
    beams.tokens[:, :, t - 1] = newest
    beams.newest = newest
    beams.log_p = log_p
    beams.row = torch.arange(B, device=parent.device).unsqueeze(1) * k + parent      # [B, k']

    # log P only falls and lp only grows: this bounds all that is to come
    hopeless = log_p[:, 0] / lp[beams.limit] <= beams.scores[:, -1]          # [B]
    return (beams.ended >= beam) | hopeless | (beams.limit == t)


def finish(beams: Beams, i: int) -> list[Hypothesis]:
    """The finished hypotheses of sentence i, best first."""
    found = []
    for ids, score in zip(beams.kept[i].tolist(), beams.scores[i].tolist()):
        if score > -math.inf:
            end = ids.index(EOS) if EOS in ids else len(ids)
            found.append(Hypothesis(ids[:end], score))
    return found


@torch.inference_mode()
def beam_search(model, source: Tensor, beam: int = 4, lenpen: float = 0.6,
                max_length: int | None = None, nbest: int = 1) -> list[list[Hypothesis]]:
    """The nbest translations of every sentence [B, L_s] (ids, EOS last, padding 0 on the right),
    best first.

    An ending joins the finished hypotheses if it is among the `beam` best continuations at its
    step; `beam` others live on. The search of a sentence stops when `beam` hypotheses have finished
    (so beam 1 is greedy search), at max_length tokens with EOS (None: see `length_limit`), or when
    no live hypothesis can beat the worst of the nbest kept: `log P / lp(max_length)` of the best
    live one bounds all that is to come. The last changes no result. A stopped sentence leaves the
    batch; no result depends on the other sentences. Scores are float32 or better. Fewer than nbest
    come back only where fewer were found within max_length. Raises ValueError for an nbest above
    beam, or a max_length below 1.
    """
    if not 1 <= nbest <= beam:
        raise ValueError(f"needs 1 <= nbest={nbest} <= beam={beam}")
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length={max_length} must be 1 or more")
    device = source.device
    if max_length is None:
        limit = length_limit(source)
    else:
        limit = source.new_full((len(source),), max_length)
    memory = model.encode(source)
    cache = Cache()
    dtype = torch.promote_types(memory.states.dtype, torch.float32)
    beams = first_beams(limit, nbest, dtype)
    lengths = torch.arange(int(limit.max()) + 1, device=device, dtype=dtype)
    # lp(y) = ((5 + |y|) / 6)^lenpen                                         Wu et al. 2016, Eq. 14
    lp = ((5 + lengths) / 6) ** lenpen
    alive = list(range(len(source)))                     # the sentences in the batch
    found = [[] for _ in alive]
    for t in range(1, len(lp)):
        newest = beams.newest.reshape(-1, 1)                                 # [B * k, 1]
        logits = model.decode(newest, memory, cache)[:, -1]                  # [B * k, V]
        done = step(beams, logits, t, lp, beam).tolist()     # the step's only wait for the device
        left = []
        for i, stopped in enumerate(done):
            if stopped:
                found[alive[i]] = finish(beams, i)
            else:
                left.append(i)
        if not left:
            break
        fewer = len(left) < len(alive)
        if fewer:
            alive = [alive[i] for i in left]
            index = torch.tensor(left, device=device)
            beams = beams.select(index)
            memory = memory.select(index)
            cache.select_sources(index)
        if fewer or beam > 1:
            cache.reorder(beams.row.flatten(), shared_sources=True)
    return found


# ---- Lines of text

def pieces(line: str, tokenizer, limit: int) -> list[tuple[str, list[int]]]:
    """A line as (text, ids) of at most `limit` tokens each; a blank line has no pieces.

    A line that is too long is cut into its sentences, too long a sentence between words, too long a
    word anywhere.
    """
    def encode(text):
        return tokenizer.encode(text).ids

    if not line.strip():
        return []
    ids = encode(line)
    if len(ids) <= limit:
        return [(line, ids)]
    found = []
    for sentence in SENTENCE.split(line):
        text = ""                                        # what has been gathered of the sentence
        ids = []
        for word in sentence.split():
            space = " " if text else ""
            more = encode(space + word)
            if len(ids) + len(more) <= limit:
                text += space + word
                ids = ids + more
                continue
            if text:
                found.append((text, ids))
            text = word
            ids = encode(word)
            if len(ids) > limit:
                size = max(1, limit // 4)                # a character is 4 bytes or tokens at most
                for start in range(0, len(word), size):
                    part = word[start:start + size]
                    found.append((part, encode(part)))
                text = ""
                ids = []
        if text:
            found.append((text, ids))
    return found


def one_line(text: str) -> str:
    """The text without line ends, tabs and other control characters, which a model that spells
    bytes may produce."""
    return UNPRINTABLE.sub(" ", text).strip()


def batches(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Indices sorted by length, longest first, in batches of at most max_tokens with padding (but
    never empty)."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    found = []
    start = 0
    while start < len(order):
        size = max(1, max_tokens // lengths[order[start]])
        found.append(order[start:start + size])
        start += size
    return found


def translate_nbest(model, tokenizer, lines, beam: int = 4, lenpen: float = 0.6,
                    max_tokens: int = 8192, nbest: int = 1, max_source: int = MAX_SOURCE,
                    progress: bool = False) -> list[list[Translation]]:
    """The nbest translations of every line, best first, in the order of the lines; as many lists as
    there are lines.

    A blank line has the one translation "" (score 0). A line of more than max_source tokens is
    translated in pieces (see `pieces`): their n-th translations are joined with spaces and the
    scores added. What is no valid Unicode in a line becomes "?". max_tokens: size of a batch, beams
    x source tokens. Runs on the model's device, in eval mode. Raises TypeError for one str in place
    of the lines.
    """
    if isinstance(lines, str):
        raise TypeError("lines is one str: give a list of lines, [line]")
    sources = []                                         # of all pieces of all lines
    owners = []                                          # the line that each belongs to
    for i, line in enumerate(lines):
        text = line.encode("utf-8", "replace").decode()
        for _, ids in pieces(text, tokenizer, max_source):
            sources.append(torch.tensor(ids + [EOS]))
            owners.append(i)
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    found: list = [None] * len(sources)
    hidden = not (progress and sys.stderr.isatty())
    try:
        with tqdm(total=len(sources), unit="line", leave=None, disable=hidden) as bar:
            for batch in batches([len(ids) * beam for ids in sources], max_tokens):
                rows = [sources[n] for n in batch]
                source = pad_sequence(rows, batch_first=True, padding_value=PAD)     # [B, L_s]
                hypotheses = beam_search(model, source.to(device), beam, lenpen, nbest=nbest)
                for n, best in zip(batch, hypotheses):
                    found[n] = translations_of(best, tokenizer)
                bar.update(len(batch))
    finally:
        model.train(training)
    by_line = [[] for _ in lines]
    for i, translations in zip(owners, found):
        by_line[i].append(translations)
    return [joined(parts) for parts in by_line]


def translate_lines(model, tokenizer, lines, **how) -> list[str]:
    """The best translation of every line, as text; the arguments are those of `translate_nbest`."""
    return [line[0].text for line in translate_nbest(model, tokenizer, lines, **how)]


def translations_of(hypotheses: list[Hypothesis], tokenizer) -> list[Translation]:
    """Hypotheses as text; one empty line where a model's scores are no numbers."""
    if not hypotheses:
        return [Translation("", -math.inf)]
    return [Translation(one_line(tokenizer.decode(h.tokens)), h.score) for h in hypotheses]


def joined(parts: list[list[Translation]]) -> list[Translation]:
    """One line's translations from those of its pieces: the n-th (or last) of each, joined; scores
    added."""
    if not parts:
        return [Translation("", 0.0)]
    found = []
    for n in range(max(map(len, parts))):
        chosen = [part[min(n, len(part) - 1)] for part in parts]
        text = " ".join(translation.text for translation in chosen)
        found.append(Translation(text, sum(translation.score for translation in chosen)))
    return found
