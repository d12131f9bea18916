"""Shared by the tests: the project root on sys.path, one thread, the same random numbers, hard
inputs for routing."""

import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "equations")]
torch.set_num_threads(1)  # the tensors are too small to share out

HARD_VOTES = ["identical", "identical over the parts", "one part", "zeros", "1e-4", "1e4",
              "1e4, identical", "1e4, one part", "1e-4 and 1e4"]


@pytest.fixture(autouse=True)
def seed():
    """Seeds torch before each test, so that a test alone draws what it draws in the whole run."""
    torch.manual_seed(0)


@pytest.fixture(params=[*((kind, 3, 4) for kind in HARD_VOTES), ("1e4", 1, 3), ("1e4", 5, 1)],
                ids=str)
def hard_votes(request, seed):
    """Votes [2, M, N, D] in float32 that strain a routing; they take gradients."""
    kind, N, D = request.param
    votes = torch.randn(2, 4, N, D)
    if "one part" in kind:
        votes = votes[:, :1]
    elif "over the parts" in kind:
        votes = votes[:, :1].expand(2, 4, N, D)
    elif "identical" in kind:
        votes = votes[0, 0, 0].expand(2, 4, N, D)
    if kind == "1e-4 and 1e4":
        votes = votes * torch.tensor([1e-4, 1e4, 1e-4, 1e4]).view(4, 1, 1)
    elif "1e" in kind:
        votes = votes * float(kind.partition(",")[0])
    elif kind == "zeros":
        votes = 0 * votes
    return votes.clone().requires_grad_()


@pytest.fixture(params=[False, True], ids=["float32", "autocast"])
def precision(request):
    """A context: plain float32, then bf16 autocast."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=request.param)
