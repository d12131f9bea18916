"""Routing converges on toy inputs: dynamic routing settles on votes that agree, EM routing finds
planted clusters, and without activations no iteration lowers its likelihood."""
import math

import pytest
import torch
from helpers import normal
from torch.distributions import Normal
from torch.testing import assert_close

from routing_dynamic import dynamic_routing
from routing_em import em_routing, m_step


@pytest.mark.parametrize("normalize", [True, False], ids=["li2019", "sabour2017"])
def test_dynamic_routing_settles_on_votes_that_agree(normalize):
    """The votes for capsule 0 agree, the others scatter. Capsule 0 takes all input capsules, and
    from iteration to iteration the coupling changes less."""
    votes = normal(50, 8, 4, 16)                                             # [B, M, N, D]
    votes[:, :, 0] = normal(50, 1, 16)
    votes = 2 * votes / votes.norm(dim=-1, keepdim=True)
    couplings = [dynamic_routing(votes, T, normalize).coupling for T in range(1, 13)]
    C = torch.stack(couplings)                                               # [T, B, M, N]
    changes = (C[1:] - C[:-1]).abs().amax((2, 3))                            # [T - 1, B]
    assert (changes[1:] < changes[:-1]).all() and changes[-1].max() < 0.01
    assert (C[0] == 1 / 4).all() and (C[-1, ..., 0] > 0.9).all()


def planted(seed: int) -> torch.Tensor:
    """Votes [M = 12, N = 3, D = 4]. Part m belongs to whole m mod 3 and infers the pose of a whole
    from its place there: the votes of a whole's own parts agree up to noise, all others scatter."""
    torch.manual_seed(seed)
    whole = torch.arange(3).repeat(4)
    poses = torch.randn(3, 4)
    places = 3 * torch.randn(12, 3, 4)                   # of each part in each whole
    parts = poses[whole] + places[range(12), whole] + 0.1 * torch.randn(12, 4)
    return parts.unsqueeze(1) - places


@pytest.mark.parametrize("betas", [(torch.zeros(3), torch.zeros(3)), ()],
                         ids=["activations", "none"])
def test_em_finds_planted_clusters(betas):
    """In more than nine of ten draws every part has its largest share in its own whole."""
    votes = torch.stack([planted(seed) for seed in range(100)])              # [100, M, N, D]
    coupling = em_routing(votes, *betas).coupling                            # [100, M, N]
    found = (coupling.argmax(-1) == torch.arange(3).repeat(4)).all(-1)
    assert found.float().mean() > 0.9


def test_without_activations_the_likelihood_of_em_never_falls():
    """The likelihood of a part is the mean density of its votes under the capsules."""
    votes = normal(50, 12, 3, 4)                                             # [B, M, N, D]
    C = torch.full((50, 12, 3), 1 / 3).double()
    likelihoods = []
    for T in range(1, 11):
        mu, log_sigma, _ = m_step(votes, C.log())
        result = em_routing(votes, iterations=T)
        assert_close(result.capsules, mu)
        gaussians = Normal(mu.unsqueeze(1), log_sigma.exp().unsqueeze(1))
        log_P = gaussians.log_prob(votes).sum(-1)                            # [B, M, N]
        likelihoods.append((log_P.logsumexp(-1) - math.log(3)).sum(-1))      # [B]
        C = result.coupling
    L = torch.stack(likelihoods)                                             # [T, B]
    assert (L[1:] >= L[:-1] - 1e-9).all() and (L[-1] > L[0] + 1).all()
