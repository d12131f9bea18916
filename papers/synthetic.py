"""The work of bench.py: random tokens in sentences of realistic lengths."""
import numpy as np
import torch

from nmt.batches import Batch, Step, batches, collate
from nmt.encoded import EncodedPairs
from nmt.tokenizer import SPECIAL_TOKENS

MEDIAN = 24             # tokens of a source sentence
SPREAD = 0.5            # standard deviation of log(source length)
NOISE = 0.2             # standard deviation of log(target length / source length)
LONGEST = 256
DECODED = 8192          # source tokens of a batch to decode, counted once per hypothesis


def make_pairs(vocab_size: int, max_tokens: int, at_least: int) -> EncodedPairs:
    """Sentence pairs for about 40 batches of max_tokens. Source lengths are log-normal, target
    lengths close to them."""
    random = np.random.default_rng(1)
    count = max(40 * max_tokens // MEDIAN, at_least)
    source = MEDIAN * np.exp(SPREAD * random.standard_normal(count))
    target = source * np.exp(NOISE * random.standard_normal(count))
    sides = []
    for lengths in (source, target):
        lengths = np.rint(lengths).clip(1, min(LONGEST, max_tokens - 2)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        sides += [random.integers(len(SPECIAL_TOKENS), vocab_size, offsets[-1]), offsets]
    return EncodedPairs(*sides)


def training_work(corpus: EncodedPairs, max_tokens: int, count: int) -> list[Step]:
    """`count` updates of one batch each, from short sentences to long ones."""
    found = batches(corpus.source_lengths, corpus.target_lengths, max_tokens, shuffle=False)
    steps = []
    for indices in pick_evenly(found, count):
        tokens = int(corpus.target_lengths[indices].sum()) + len(indices)    # EOS counts
        batch = collate(corpus, indices)
        if torch.cuda.is_available():                    # as the DataLoader of training does
            batch = Batch(*(x.pin_memory() for x in batch))
        steps.append(Step([batch], tokens, (0, 0)))
    return steps


def decoding_work(corpus: EncodedPairs, count: int, beam: int) -> list[tuple[torch.Tensor, int]]:
    """`count` sources of all lengths in batches [B, L_s], each with the number of tokens to decode:
    the mean length of its targets, with EOS."""
    order = np.array(pick_evenly(np.argsort(corpus.source_lengths), count))
    work = []
    lengths = corpus.source_lengths[order]
    for batch in batches(lengths, lengths, DECODED // beam, shuffle=False):
        indices = order[batch]
        length = 1 + round(corpus.target_lengths[indices].mean())
        work.append((collate(corpus, indices).source, length))
    return work


def pick_evenly(items, count: int) -> list:
    """`count` items at even distances."""
    return [items[int((i + 0.5) * len(items) / count)] for i in range(count)]
