"""Every coupling shares an input capsule out: its rows sum to 1, in the routing of logits, too."""
import itertools

import pytest
import torch
from helpers import normal
from torch.testing import assert_close

from capsule_transformer import horizontal_routing, vertical_routing
from routing_dynamic import dynamic_routing
from routing_em import DENSITIES, SCHEDULES, em_routing

ITERATIONS = (1, 2, 3, 5)


def assert_shared_out(coupling: torch.Tensor, exists=None) -> None:
    """Asserts that the shares are not negative and sum to 1 for the input capsules that exist, to 0
    for the others."""
    assert (coupling >= 0).all()
    sums = coupling.sum(-1)
    expected = torch.ones_like(sums) if exists is None else exists.expand(sums.shape).double()
    assert_close(sums, expected)


@pytest.mark.parametrize("T", ITERATIONS)
def test_the_coupling_of_votes_sums_to_1(T):
    votes = 3 * normal(2, 5, 4, 3)                                           # [B, M, N, D]
    exists = torch.tensor([[1, 1, 0, 1], [0, 1, 0, 0]]).bool()               # [B, N]
    for normalize in (True, False):
        assert_shared_out(dynamic_routing(votes, T, normalize).coupling)
        assert_shared_out(dynamic_routing(votes, T, normalize, exists).coupling)
    assert_shared_out(em_routing(votes, iterations=T).coupling)
    for density, schedule in itertools.product(DENSITIES, SCHEDULES):
        betas = normal(2, 4)
        result = em_routing(votes, *betas, T, density=density, schedule=schedule)
        assert_shared_out(result.coupling)


def unsquash(capsules: torch.Tensor) -> torch.Tensor:
    """The vectors s of capsules squash(s)."""
    length = capsules.norm(dim=-1, keepdim=True)         # |s|^2 / (1 + |s|^2)
    return capsules * (length / (1 - length)).sqrt() / length


@pytest.mark.parametrize("T", ITERATIONS)
def test_duan_alg2_the_shares_of_a_head_sum_to_1(T):
    """Head h is the only one with a 1 in column 5 + h, so this column of the capsule of token l,
    before the squash, is the share that l has of h."""
    H, L = 3, 5
    E = torch.cat([normal(2, H, L, 5), torch.eye(H).double()[:, None].expand(2, H, L, H)], -1)
    omega = vertical_routing(E, normal(H, H), normal(H), T)                  # [B, H, L, 5 + H]
    capsules = omega.sum(1)              # the heads' factors, softmax(Lambda), sum to 1
    assert_close(capsules, dynamic_routing(E, T, normalize=False).capsules)
    shares = unsquash(capsules)[..., 5:]                                     # [B, L, H]
    assert_shared_out(shares.mT)


@pytest.mark.parametrize("T", ITERATIONS)
def test_duan_alg3_the_shares_of_a_token_sum_to_1(T):
    """Token t is the only one with a 1 in column 2 + t, so this column of the capsule of head h in
    the routing of l, before the squash, is the share that h has of t. Later tokens take no part."""
    H, L = 3, 5
    E = torch.cat([normal(2, H, L, 2), torch.eye(L).double().expand(2, H, L, L)], -1)
    omega = horizontal_routing(E, T)                                         # [B, H, l, 2 + L]
    shares = unsquash(omega)[..., 2:]                                        # [B, H, l, t]
    earlier = torch.ones(L, L).tril().bool()                                 # [l, t]
    assert_shared_out(shares.movedim(1, -1), earlier)
