"""What the tests share: the project root on sys.path, one thread, the same random numbers, hard
inputs for routing."""

import signal
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]
torch.set_num_threads(1)  # the tensors are too small to share out

HARD_VOTES = {  # [2, M, N, D] of the given N and D
    "identical": lambda N, D: torch.randn(D).expand(2, 4, N, D),
    "identical over the parts": lambda N, D: torch.randn(2, 1, N, D).expand(2, 4, N, D),
    "one part": lambda N, D: torch.randn(2, 1, N, D),
    "zeros": lambda N, D: torch.zeros(2, 4, N, D),
    "1e-4": lambda N, D: 1e-4 * torch.randn(2, 4, N, D),
    "1e4": lambda N, D: 1e4 * torch.randn(2, 4, N, D),
    "1e4, identical": lambda N, D: 1e4 * torch.randn(D).expand(2, 4, N, D),
    "1e4, one part": lambda N, D: 1e4 * torch.randn(2, 1, N, D),
    "1e-4 and 1e4": lambda N, D: (
        torch.randn(2, 4, N, D) * torch.tensor([1e-4, 1e4, 1e-4, 1e4]).view(4, 1, 1)
    ),
}


@pytest.fixture(autouse=True)
def seed():
    """Seeds torch before each test, so that a test alone draws what it draws in the whole run."""
    torch.manual_seed(0)


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt, also where a script started the tests in the background,
    which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(
    params=[(kind, N, D) for kind in HARD_VOTES for N, D in ((1, 3), (5, 1), (3, 4))], ids=str
)
def hard_votes(request, seed):
    """Votes [2, M, N, D] in float32 that strain a routing, one kind and size after the other; they
    take gradients."""
    kind, N, D = request.param
    return HARD_VOTES[kind](N, D).clone().requires_grad_()


@pytest.fixture(params=[False, True], ids=["float32", "autocast"])
def precision(request):
    """A context: plain float32, then bf16 autocast."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=request.param)
