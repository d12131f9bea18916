"""machine.py: seeds, and a device that would give wrong numbers."""
import itertools

import pytest
import torch

from nmt import machine
from nmt.command_line import UserError
from nmt.machine import pick_device, seed_torch


def test_seed_process_and_step_draw_other_numbers():
    """Their order counts."""
    drawn = set()
    for numbers in itertools.permutations((0, 1, 2)):
        seed_torch(*numbers)
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 6


def test_apples_gpu_needs_a_torch_that_applies_its_masks(monkeypatch):
    monkeypatch.setattr(machine.torch, "__version__", "2.12.1")
    with pytest.raises(UserError, match="needs torch 2.13"):
        pick_device("mps")
    assert pick_device("cpu").type == "cpu"
