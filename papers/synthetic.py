"""What bench.py gives every model to do: random tokens in sentences whose lengths are spread like
those of news text."""
import numpy as np
import torch

from nmt import search
from nmt.batches import Batch, Step, batches, collate
from nmt.encoded import EncodedPairs
from nmt.tokenizer import SPECIAL_TOKENS
from transformer import PAD

SPREAD = 0.5            # standard deviation of log(source length)
NOISE = 0.2             # standard deviation of log(target length / source length)
LONGEST = 256
DECODED = 8192          # source tokens of a batch to decode, counted once per hypothesis


def pairs(vocab_size: int, median_length: float, max_tokens: int, at_least: int,
          seed: int) -> EncodedPairs:
    """Sentence pairs for some 40 batches of max_tokens, source lengths log-normal, the target's
    close to them."""
    random = np.random.default_rng(seed)
    count = max(40 * max_tokens // int(median_length) + 1, at_least)
    source = median_length * np.exp(SPREAD * random.standard_normal(count))
    target = source * np.exp(NOISE * random.standard_normal(count))
    longest = min(LONGEST, max_tokens - 2)
    sides = []
    for lengths in (source, target):
        whole = np.clip(np.rint(lengths), 1, longest).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(whole)])
        ids = random.integers(len(SPECIAL_TOKENS), vocab_size, offsets[-1])
        sides += [ids, offsets]
    return EncodedPairs(*sides)


def as_step(batch: Batch, device) -> Step:
    """A batch as an update of its own."""
    if device.type == "cuda":
        batch = Batch(*(x.pin_memory() for x in batch))
    tokens = int((batch.target[:, 1:] != PAD).sum())
    return Step([batch], tokens, (0, 0))


def training(corpus: EncodedPairs, max_tokens: int, count: int, device) -> list[Step]:
    """`count` updates, evenly spread from the shortest sentences to the longest."""
    found = batches(corpus.source_lengths, corpus.target_lengths, max_tokens, shuffle=False)
    chosen = spread(found, count)
    return [as_step(collate(corpus, indices), device) for indices in chosen]


def decoding(corpus: EncodedPairs, count: int, beam: int) -> list[tuple[torch.Tensor, int]]:
    """`count` sources in padded batches [B, L_s], evenly spread over the lengths; and how far to
    decode each batch: the mean length of its targets, with EOS."""
    order = spread(np.argsort(corpus.source_lengths), count)
    tokens = [int(corpus.source_lengths[i] + 1) * beam for i in order]
    work = []
    for batch in search.batches(tokens, DECODED):
        indices = [int(order[i]) for i in batch]
        length = 1 + round(corpus.target_lengths[indices].mean())
        work.append((collate(corpus, indices).source, length))
    return work


def of_length(length: int, tokens: int, vocab_size: int, device) -> Step:
    """An update of `tokens` tokens, in sentences that are all `length` long on both sides, EOS
    included."""
    rows = max(1, tokens // length)
    ids = torch.randint(len(SPECIAL_TOKENS), vocab_size, (rows, length + 1))
    return as_step(Batch(ids[:, 1:].contiguous(), ids), device)


def spread(items, count: int) -> list:
    """`count` items at even distances."""
    return [items[int((i + 0.5) * len(items) / count)] for i in range(count)]
