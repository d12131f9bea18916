"""classify.py: batches of examples of similar lengths. Training and testing: test_logic.py, test_probe.py."""
import torch

from classify import batches


def test_batches_hold_every_example_once_and_examples_of_like_length():
    lengths = torch.randint(1, 60, (5000,))
    found = batches(lengths, 32, seed=1)
    assert sorted(torch.cat(found).tolist()) == list(range(5000)) and max(map(len, found)) == 32
    assert [b.tolist() for b in batches(lengths, 32, seed=1)] == [b.tolist() for b in found]
    assert [b.tolist() for b in batches(lengths, 32, seed=2)] != [b.tolist() for b in found]
    assert sum(lengths[b].max().item() * len(b) for b in found) < 1.1 * lengths.sum()
    firsts = [lengths[b].max().item() for b in found]
    assert firsts != sorted(firsts)
