"""Batches: every pair exactly once, full, of similar lengths, padded as the model wants it."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from outside import SHARED

import toy
from nmt.batches import batches, collate, micro_batches, padding_share
from nmt.corpus import Pairs, read_pairs
from nmt.encoded import encode_pairs
from nmt.tokenizer import BOS, EOS, train_tokenizer
from transformer import PAD

MULTI30K = SHARED / "data" / "multi30k"


def lengths(count=3000, seed=0):
    """Correlated source and target lengths, some of them zero."""
    rng = np.random.default_rng(seed)
    source = rng.poisson(15, count) * (rng.random(count) > 0.01)
    return source, np.maximum(0, source + rng.integers(-4, 6, count))


@pytest.mark.parametrize("max_tokens", [1, 40, 333, 4096, 10 ** 6])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_once_and_size_rule(max_tokens, shuffle):
    """Rows times the widest row of the collated batch stay within max_tokens, but for a pair that
    is wider alone."""
    source, target = lengths()
    found = batches(source, target, max_tokens, seed=1, epoch=2, shuffle=shuffle)
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(source)))
    for batch in found:
        widest = max(source[batch].max() + 1, target[batch].max() + 2)
        assert len(batch) * widest <= max_tokens or len(batch) == 1


def test_batches_are_full():
    """No neighbours in length order fit into one batch."""
    source, target = lengths()
    found = batches(source, target, 400, shuffle=False)
    for first, second in zip(found, found[1:]):
        both = np.concatenate([first, second[:1]])
        assert len(both) * max(source[both].max() + 1, target[both].max() + 2) > 400


def test_batches_are_sorted_by_length():
    """Target lengths rise; within one target length, source lengths run upwards and downwards in
    turn."""
    source, target = lengths()
    order = np.concatenate(batches(source, target, 500, shuffle=False))
    assert (np.diff(target[order]) >= 0).all()
    for rank, length in enumerate(np.unique(target)):
        run = source[order][target[order] == length]
        assert (np.diff(run) * (-1) ** rank >= 0).all()


def test_order_depends_on_seed_and_epoch_alone():
    source, target = lengths()

    def made(seed, epoch):
        return [tuple(batch) for batch in batches(source, target, 500, seed, epoch)]

    assert made(1, 1) == made(1, 1)
    others = [made(1, 2), made(2, 1), made(2, 2), made(0, 0)]
    assert all(other != made(1, 1) for other in others)
    # Not the order alone: the batches themselves are put together anew.
    assert all(set(map(frozenset, other)) != set(map(frozenset, made(1, 1))) for other in others)


def test_batch_order_is_shuffled():
    source, target = lengths()
    means = [target[batch].mean() for batch in batches(source, target, 500, seed=1)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5


def test_padding_share(toy_encoded):
    """Against counting the zeros of the collated batches."""
    found = batches(toy_encoded.source_lengths, toy_encoded.target_lengths, 512)
    tensors = [tensor for batch in found for tensor in collate(toy_encoded, batch)]
    zeros = sum(int((t == PAD).sum()) for t in tensors)
    cells = sum(t.numel() for t in tensors)
    share = padding_share(toy_encoded.source_lengths, toy_encoded.target_lengths, found)
    assert share == pytest.approx(zeros / cells) and 0 < share
    assert padding_share([3, 3], [4, 4], [np.array([0, 1])]) == 0 == padding_share([], [], [])


def test_padding_on_toy():
    """Under 6 % on both sides together, of the embedded corpus at a tenth of its size and of the
    batches' size."""
    found = toy.splits(3000, 1, 1, seed=1)["train"]
    pairs = Pairs([pair.english for pair in found], [pair.german for pair in found])
    encoded = encode_pairs(train_tokenizer([*pairs.source, *pairs.target], 1000), pairs)
    sides = encoded.source_lengths, encoded.target_lengths
    assert padding_share(*sides, batches(*sides, 410)) < 0.06


@pytest.mark.skipif(not MULTI30K.exists(), reason="needs the Multi30K files")
def test_padding_on_multi30k():
    """Under 6 % on both sides together at 4,096 tokens."""
    pairs = read_pairs(MULTI30K / "train", "en", "de")
    tokenizer = train_tokenizer((line for side in pairs for line in side), 10_000)
    encoded = encode_pairs(tokenizer, pairs, max_length=256)
    assert len(encoded) == 29_000 and tokenizer.get_vocab_size() == 10_000
    sides = encoded.source_lengths, encoded.target_lengths
    for epoch in range(2):
        assert padding_share(*sides, batches(*sides, 4096, epoch=epoch)) < 0.06


def test_collate(toy_encoded, toy_tokenizer, english):
    """Row by row: source, EOS; BOS, target, EOS; zeros to the right."""
    indices = np.array([5, 0, 300, 17])
    batch = collate(toy_encoded, indices)
    assert batch.source.dtype == batch.target.dtype == torch.int64
    for row, i in enumerate(indices):
        source = [*toy_tokenizer.encode(english.source[i]).ids, EOS]
        target = [BOS, *toy_tokenizer.encode(english.target[i]).ids, EOS]
        assert batch.source[row].tolist() == source + [PAD] * (batch.source.shape[1] - len(source))
        assert batch.target[row].tolist() == target + [PAD] * (batch.target.shape[1] - len(target))
    assert (batch.source[:, -1] == EOS).any() and (batch.target[:, -1] == EOS).any()


def test_collate_empty_sentences(toy_tokenizer):
    encoded = encode_pairs(toy_tokenizer, Pairs(["", "a"], ["b", ""]))
    batch = collate(encoded, [0, 1])
    assert batch.source[0].tolist() == [EOS, PAD] and batch.target[1].tolist() == [BOS, EOS, PAD]
    only = collate(encode_pairs(toy_tokenizer, Pairs([""], [""])), [0])
    assert only.source.tolist() == [[EOS]] and only.target.tolist() == [[BOS, EOS]]


@pytest.mark.parametrize("workers", [0, 2])
def test_micro_batches(toy_encoded, workers):
    """An epoch's batches in their order, with and without worker processes."""
    found = batches(toy_encoded.source_lengths, toy_encoded.target_lengths, 2000, seed=3, epoch=1)
    settings = SimpleNamespace(max_tokens=2000, seed=3, workers=workers)
    stream = micro_batches(toy_encoded, settings, (1, 0), 0, 1, False)
    for indices, (batch, _, _) in zip(found, stream):
        expected = collate(toy_encoded, indices)
        assert torch.equal(batch.source, expected.source)
        assert torch.equal(batch.target, expected.target)
