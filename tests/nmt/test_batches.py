"""Batches: every pair once per epoch, full, of similar lengths; the stream of updates."""
import itertools
import multiprocessing
import signal
import sys
from collections import deque
from multiprocessing import forkserver
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_run import random_pairs

from nmt.batches import Batch, batches, collate, rectangle, setup_worker, training_steps
from nmt.encoded import EncodedPairs
from nmt.tokenizer import BOS, EOS
from tools.files import UserError
from tools.machine import Machine
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

@pytest.mark.parametrize("max_tokens", [1, 40, 4096, 10 ** 6])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_once_within_max_tokens(max_tokens, shuffle):
    """A wider pair is a batch by itself."""
    source, target = lengths()
    index_batches = batches(source, target, max_tokens, seed=1, epoch=2, shuffle=shuffle)
    assert np.array_equal(np.sort(np.concatenate(index_batches)), np.arange(len(source)))
    assert all(size(source, target, b) <= max_tokens or len(b) == 1 for b in index_batches)


def test_batches_are_full_and_have_little_padding():
    """The next pair by length does not fit in."""
    source, target = lengths()
    index_batches = batches(source, target, 400, shuffle=False)
    for first, second in zip(index_batches, index_batches[1:]):
        assert size(source, target, np.concatenate([first, second[:1]])) > 400
    cells = 0
    for batch in batches(source, target, 1000):
        cells += len(batch) * (source[batch].max() + target[batch].max())
    assert (source + target).sum() > 0.94 * cells


def test_seed_and_epoch_put_the_batches_together_anew_in_random_order():
    source, target = lengths()
    splits = []
    for seed, epoch in ((1, 1), (1, 1), (1, 2), (2, 1)):
        index_batches = batches(source, target, 500, seed, epoch)
        splits.append({frozenset(batch) for batch in index_batches})
        means = [target[batch].mean() for batch in index_batches]
        assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5
    assert splits[0] == splits[1]
    assert splits[0] not in splits[2:]


# ---- Padding

def test_collate_pads_on_the_right():
    """Source, EOS; BOS, target, EOS; zeros. Sentences may be empty."""
    pairs = EncodedPairs(np.array([7, 8, 9], np.uint16), np.array([0, 2, 2, 3]),
                         np.array([4, 5, 6], np.uint16), np.array([0, 1, 3, 3]))
    source, target = collate(pairs, [2, 1, 0])
    assert source.dtype == target.dtype == torch.int64
    assert source.tolist() == [[9, EOS, PAD], [EOS, PAD, PAD], [7, 8, EOS]]
    assert target.tolist() == [[BOS, EOS, PAD, PAD], [BOS, 5, 6, EOS], [BOS, 4, EOS, PAD]]


def test_rectangles_have_few_shapes_and_the_same_pairs():
    """A row that was added has EOS as source and an empty target."""
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


def stream(encoded, accumulate=1, rank=0, world=1, place=(0, 0), workers=0):
    """The updates of a process."""
    machine = Machine(torch.device("cpu"), rank, world)
    return training_steps(encoded, place, machine, 40, accumulate, seed=1, workers=workers)


def pairs_of(micro_batches) -> list:
    """Their sentence pairs without padding, sorted."""
    return sorted((source[source != PAD].tolist(), target[target != PAD].tolist())
                  for batch in micro_batches for source, target in zip(*batch))


def test_an_epoch_has_every_pair_once_in_an_order_of_its_own(encoded):
    updates = [*itertools.takewhile(lambda update: update.place[0] < 2, stream(encoded))]
    first = [update for update in updates if update.place[0] == 0]
    second = updates[len(first):]
    single = [collate(encoded, [i]) for i in range(50)]
    for epoch in (first, second):
        assert pairs_of(batch for update in epoch for batch in update.batches) == pairs_of(single)
        assert sum(update.tokens for update in epoch) == encoded.target_lengths.sum() + 50
    assert [pairs_of(x.batches) for x in first[:3]] != [pairs_of(x.batches) for x in second[:3]]
    resumed = stream(encoded, place=first[2].place)      # the rest of the first, all of the second
    for expected, update in zip([*first[3:], *second], resumed):
        assert pairs_of(update.batches) == pairs_of(expected.batches) and update[1:] == expected[1:]


@pytest.mark.parametrize("world, accumulate", [(2, 1), (2, 3), (3, 2)])
def test_the_processes_share_the_micro_batches_of_one(encoded, world, accumulate):
    """Over the ends of several epochs."""
    alone = stream(encoded, accumulate=accumulate * world)
    shards = [stream(encoded, accumulate, rank, world) for rank in range(world)]
    for _ in range(12):
        whole = next(alone)
        parts = [next(shard) for shard in shards]
        assert all(len(part.batches) == accumulate for part in parts)
        assert pairs_of(whole.batches) == pairs_of([b for part in parts for b in part.batches])
        assert {whole[1:]} == {part[1:] for part in parts}               # tokens, place


def test_the_processes_of_workers_start_once(encoded):
    """Over three epochs; the batches are those without workers."""
    updates = training_steps(encoded, (0, 0), Machine(torch.device("cpu")), 40, workers=2)
    workers = set()
    for update, alone in zip(updates, stream(encoded)):
        assert pairs_of(update.batches) == pairs_of(alone.batches) and update[1:] == alone[1:]
        workers |= {process.pid for process in multiprocessing.active_children()}
        if update.place[0] == 2:
            break
    assert len(workers) == 2


def test_a_killed_worker_is_one_line_and_its_siblings_end(encoded, monkeypatch):
    """They ignore SIGTERM, with which Python would end them and wait for ever. So is a process that
    cannot start; any other error is a bug."""
    steps = stream(encoded, workers=2)
    next(steps)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(UserError, match="a process of --workers ended"):
        deque(steps)
    for worker in multiprocessing.active_children():
        worker.join(timeout=9)
        assert not worker.is_alive()
    for error, expected in ((OSError("fork"), UserError), (RuntimeError(), RuntimeError)):
        monkeypatch.setattr("nmt.batches.collate", Mock(side_effect=error))
        with pytest.raises(expected):
            next(stream(encoded))


def setup_without_room(worker: int) -> None:
    """Starts a worker whose files, and so its parts of /dev/shm, have at most 100 bytes."""
    import resource  # Windows has none
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    setup_worker(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")
def test_a_full_shared_memory_is_one_line(encoded, monkeypatch):
    monkeypatch.setattr("nmt.batches.setup_worker", setup_without_room)
    with pytest.raises(UserError, match="/dev/shm is full.*--workers 0"):
        next(stream(encoded, workers=2))


def setup_late(worker: int) -> None:
    """What starts a worker, to which a signal comes before."""
    signal.raise_signal(signal.SIGTERM)
    setup_worker(worker)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows holds no signal back")
def test_workers_survive_a_signal_while_they_start(encoded, monkeypatch):
    # a forkserver that another test started would let signals through
    forkserver._forkserver._stop()
    monkeypatch.setattr("nmt.batches.setup_worker", setup_late)
    steps = stream(encoded, workers=2)
    assert len(next(steps).batches) == 1
    assert {worker.is_alive() for worker in multiprocessing.active_children()} == {True}
