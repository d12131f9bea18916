"""Batches: every pair once per epoch, full, of similar lengths; the stream of updates."""
import itertools

import numpy as np
import pytest
import torch
from small_run import random_pairs

from nmt.batches import Batch, batches, collate, rectangle, training_updates
from nmt.encoded import EncodedPairs
from nmt.machine import Machine
from nmt.tokenizer import BOS, EOS
from transformer import PAD


def lengths(count=3000):
    """Correlated source and target lengths, some of them zero."""
    rng = np.random.default_rng(0)
    source = rng.poisson(15, count) * (rng.random(count) > 0.01)
    return source, np.maximum(0, source + rng.integers(-4, 6, count))


def size(source, target, batch) -> int:
    """Rows times the widest row, with BOS and EOS."""
    return len(batch) * max(source[batch].max() + 1, target[batch].max() + 2)


# ---- Splitting a corpus

@pytest.mark.parametrize("max_tokens, shuffle", [(1, True), (40, True), (4096, True),
                                                 (4096, False), (10 ** 6, True)])
def test_every_pair_once_within_max_tokens(max_tokens, shuffle):
    source, target = lengths()
    index_batches = batches(source, target, max_tokens, seed=1, epoch=2, shuffle=shuffle)
    assert np.array_equal(np.sort(np.concatenate(index_batches)), np.arange(len(source)))
    assert all(size(source, target, b) <= max_tokens or len(b) == 1 for b in index_batches)


def test_seed_and_epoch_decide_the_batches_and_their_order():
    source, target = lengths()
    splits = []
    for seed, epoch in ((1, 1), (1, 1), (1, 2), (2, 1)):
        index_batches = batches(source, target, 500, seed, epoch)
        splits.append(frozenset(frozenset(batch) for batch in index_batches))
        means = [target[batch].mean() for batch in index_batches]
        assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5
    assert splits[0] == splits[1] and len({*splits}) == 3


# ---- Padding

def test_collate_pads_on_the_right():
    pairs = EncodedPairs(np.array([7, 8, 9], np.uint16), np.array([0, 2, 2, 3]),
                         np.array([4, 5, 6], np.uint16), np.array([0, 1, 3, 3]))
    source, target = collate(pairs, [2, 1, 0])
    assert source.dtype == target.dtype == torch.int64
    assert source.tolist() == [[9, EOS, PAD], [EOS, PAD, PAD], [7, 8, EOS]]
    assert target.tolist() == [[BOS, EOS, PAD, PAD], [BOS, 5, 6, EOS], [BOS, 4, EOS, PAD]]


def test_rectangles_have_few_shapes_and_the_same_pairs():
    encoded = random_pairs(600, longest=20)
    index_batches = batches(encoded.source_lengths, encoded.target_lengths, 200)
    exact = [collate(encoded, indices) for indices in index_batches]
    padded = [rectangle(batch, 200) for batch in exact]
    shapes = {(batch.source.shape, batch.target.shape) for batch in padded}
    assert len(shapes) <= 20 < len({batch.target.shape for batch in exact})
    for before, after in zip(exact, padded):
        rows, width = after.source.shape
        pairs = len(before.source)
        assert after.source.shape == after.target.shape and 200 - width < rows * width <= 200
        assert after.source[pairs:].tolist() == [[EOS] + [PAD] * (width - 1)] * (rows - pairs)
        assert pairs_of([before]) == pairs_of([Batch(after.source[:pairs], after.target[:pairs])])
        assert not after.target[pairs:].any()
    assert rectangle(exact[0], 1).source.shape[0] == len(exact[0].source)    # a pair too wide


# ---- The stream of updates

@pytest.fixture
def encoded():
    """50 short pairs that all differ."""
    return random_pairs(50, longest=8)


def stream(encoded, accumulate=1, rank=0, world=1, start=(0, 0), **rectangles):
    """The updates of a process."""
    machine = Machine(torch.device("cpu"), rank, world)
    return training_updates(encoded, start, machine, 40, accumulate, seed=1, **rectangles)


def pairs_of(micro_batches) -> list:
    """Their sentence pairs without padding, sorted."""
    return sorted((source[source != PAD].tolist(), target[target != PAD].tolist())
                  for batch in micro_batches for source, target in zip(*batch))


def test_an_epoch_has_every_pair_once_in_an_order_of_its_own(encoded):
    updates = [*itertools.takewhile(lambda update: update.end[0] < 2, stream(encoded))]
    first = [update for update in updates if update.end[0] == 0]
    second = updates[len(first):]
    single = [collate(encoded, [i]) for i in range(50)]
    for epoch in (first, second):
        assert pairs_of(batch for update in epoch for batch in update.batches) == pairs_of(single)
        assert sum(update.tokens for update in epoch) == encoded.target_lengths.sum() + 50
    assert [pairs_of(x.batches) for x in first[:3]] != [pairs_of(x.batches) for x in second[:3]]
    resumed = stream(encoded, start=first[2].end)        # the rest of the first, all of the second
    for expected, update in zip([*first[3:], *second], resumed):
        assert pairs_of(update.batches) == pairs_of(expected.batches) and update[1:] == expected[1:]


@pytest.mark.parametrize("world, accumulate", [(2, 1), (2, 3), (3, 2)])
def test_the_processes_share_the_micro_batches_of_one(encoded, world, accumulate):
    alone = stream(encoded, accumulate=accumulate * world)
    single = stream(encoded)
    shards = [stream(encoded, accumulate, rank, world) for rank in range(world)]
    for _ in range(12):
        whole = next(alone)
        in_turn = [next(single).batches[0] for _ in range(accumulate * world)]
        assert pairs_of(whole.batches) == pairs_of(in_turn)
        parts = [next(shard) for shard in shards]
        assert all(len(part.batches) == accumulate for part in parts)
        assert pairs_of(whole.batches) == pairs_of([b for part in parts for b in part.batches])
        assert {whole[1:]} == {part[1:] for part in parts}               # tokens, end
