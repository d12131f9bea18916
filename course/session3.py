# %% [markdown]
# # Session 3: Dynamic routing
#
# Read Li 2019 §4.1-4.2.1 (Eq. 5-8, Alg. 1), Gu 2019 Eq. 8-11 and Duan 2020 §3.3, then
# `routing_dynamic.py`.
#
# Each of $M$ parts (input capsules) casts a vote $V_{mn}$ for what each of $N$ wholes (output
# capsules) is. In the papers there is one part per head, or per token (Duan). Routing couples the
# parts to the wholes with which their votes agree. The logits $B$ start at 0, and four steps are
# repeated $T$ times. A softmax over the wholes gives the shares $C$ (Alg. 1), and $s_n$ is the mean
# of the votes under these shares (Eq. 7):
#
# $$C_{mn} = \frac{\exp B_{mn}}{\sum_k \exp B_{mk}} \qquad
# s_n = \frac{\sum_m C_{mn} V_{mn}}{\sum_m C_{mn}}$$
#
# The squash gives the wholes $\Omega$ (Eq. 8), and their agreement with the votes is added to the
# logits (Alg. 1):
#
# $$\Omega_n = \frac{\lVert s_n \rVert^2}{1 + \lVert s_n \rVert^2} \frac{s_n}{\lVert s_n \rVert}
# \qquad B_{mn} \leftarrow B_{mn} + \Omega_n \cdot V_{mn}$$
#
# **Goals.** You can route four parts to two wholes by hand, for one iteration; say what the squash
# does to short and to long vectors; say what the division by the shares changes for a capsule that
# few parts choose; explain why $T = 1$ is the control of an experiment with routing.
#
# **Opening question.** Four witnesses describe two events. Who saw the same one?

# %%
import torch
from lesson import play, show
from matplotlib import pyplot

from routing_dynamic import dynamic_routing, squash

torch.manual_seed(1)
T = 6

# %% [markdown]
# ## Squash, Eq. 8
# Sabour et al. 2017 read a capsule's length as the probability that its entity is present. The
# squash maps any length to one below 1 and keeps the direction.
#
# **Predict before you run.** Which lengths do vectors of length 0.1, 1 and 10 have after the
# squash?

# %%
for length in (0.1, 1.0, 10.0):
    after = squash(torch.tensor([length])).item()
    print(f"squash: length {length:4.1f} -> {after:.3f}")
    assert abs(after - length ** 2 / (1 + length ** 2)) < 1e-6

# %% jupyter={"source_hidden": true}
figure, ax = pyplot.subplots(figsize=(4, 3), layout="constrained")
lengths = torch.linspace(0, 6, 100)
ax.plot(lengths, squash(lengths.unsqueeze(-1)))          # vectors of one number
ax.set(title="squash (Eq. 8)", xlabel="length before", ylabel="length after", ylim=(0, 1))
show("session3-squash")

# %% [markdown]
# ## Four parts, two wholes
# Parts 0 and 1 agree on whole 0, parts 2 and 3 on whole 1; all other votes differ. In the first
# iteration the coupling is uniform, whatever the votes: $T = 1$ is the control of every experiment
# with routing.
#
# **Predict before you run.** Which share of part 0 goes to whole 0 for $T = 2$, and for $T = 5$?

# %%
ways = 3 * torch.eye(5)                                  # five directions of length 3
own = [0, 0, 1, 1]                                       # each part's whole
votes = torch.empty(4, 2, 5)                             # [M, N, D]
for m in range(4):
    votes[m] = ways[1 + m]                               # a direction of its own, ...
    votes[m, own[m]] = ways[0]                           # ... but for the whole it belongs to
for t in (1, 2, 3, 5):
    share = dynamic_routing(votes, t).coupling[:, 0]
    print(f"T = {t}: the parts' shares for whole 0", [round(c, 3) for c in share.tolist()])
assert dynamic_routing(votes, 1).coupling.eq(1 / 2).all()
assert share[:2].min() > 0.99 and share[2:].max() < 0.01


# %% jupyter={"source_hidden": true}
def draw_coupling(ax, t):
    """The coupling in iteration t + 1."""
    C = dynamic_routing(votes, t + 1).coupling           # [M, N]
    image = ax.imshow(C, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set(title=f"iteration {t + 1}", xlabel="whole", ylabel="part")
    ax.set(xticks=range(2), yticks=range(4))
    return image


play(draw_coupling, 4, "session3-iterations", "share $C_{mn}$")

# %% [markdown]
# How fast the shares harden depends on the length of the votes: a capsule is shorter than 1, so
# $\Omega_n \cdot V_{mn}$ adds at most the vote's length to a logit. For unit votes it "saturates at
# 1", so a good and a very good agreement differ little. Li 2019 (end of §4.2.1) gives this as the
# reason for EM routing.

# %%
shares = {}
for size in (1, 2, 3):
    scaled = size * votes / votes[0, 0].norm()
    couplings = [dynamic_routing(scaled, t).coupling for t in range(1, T + 1)]
    shares[size] = torch.stack(couplings)[:, 0, 0]                           # [T]
    assert (shares[size].diff() >= 0).all()

# %% jupyter={"source_hidden": true}
figure, ax = pyplot.subplots(figsize=(5.2, 3), layout="constrained")
for size in shares:
    ax.plot(range(1, T + 1), shares[size], marker="o", label=f"length {size}")
ax.set(title="part 0 and its own whole", xlabel="iteration", ylabel="share $C_{00}$",
       ylim=(0.45, 1.02))
ax.legend(title="votes", loc="center left", bbox_to_anchor=(1, 0.5))
show("session3-coupling")

# %% [markdown]
# ## A whole that no part chooses
# Now all four agree on whole 0, and their votes for whole 1 differ. Li's Eq. 7 divides by
# $\sum_m C_{mn}$; Gu's Eq. 8 and Duan's Eq. 7 do not.
#
# **Predict before you run.** The shares of whole 1 go to 0. Does its length, with the division and
# without?

# %%
votes[:, 0] = ways[0]
for m in range(4):
    votes[m, 1] = ways[1 + m]
lengths = {}
for normalize, name in ((True, "Li Eq. 7: divided"), (False, "Gu Eq. 8: a sum")):
    lengths[name] = []
    for t in range(1, T + 1):
        routed = dynamic_routing(votes, t, normalize=normalize)
        lengths[name].append(routed.capsules[1].norm().item())
    print(f"{name}, T = {T}: coupling {routed.coupling[0, 1]:.4f}, length {lengths[name][-1]:.4f}")
    assert routed.coupling[0, 1] < 0.001 and (lengths[name][-1] > 0.6) == normalize

# %% jupyter={"source_hidden": true}
figure, ax = pyplot.subplots(figsize=(4, 3), layout="constrained")
for name in lengths:
    ax.plot(range(1, T + 1), lengths[name], marker="o", label=name)
ax.set(title="a whole that no part chooses", xlabel="T", ylabel="length", ylim=(0, 1))
ax.legend()
show("session3-length")

# %% [markdown]
# <details><summary>Answer</summary>
#
# With the division whole 1 stays the mean of its votes, and its length does not show how little is
# coupled to it. Without, its length goes to 0.
#
# </details>

# %% [markdown]
# ## What the routing cannot see
# If the votes for both wholes are the same, the shares stay at $1/N$ in every iteration. The
# matrices $W_{h \to n}$ of Eq. 6 make the votes differ.

# %%
same = torch.randn(4, 1, 5).expand(4, 2, 5)
coupling = dynamic_routing(same, 50).coupling
assert torch.allclose(coupling, torch.tensor(1 / 2))
print("equal votes, T = 50: the parts' shares for whole 0", coupling[:, 0].tolist())

# %% [markdown]
# ## To vary
# The length of the votes (`3 * torch.eye(5)`), the number of iterations $T$, and `own`, to which
# whole each part belongs: what happens with three parts for one whole and one for the other? (The
# single part goes to its whole, too, but later: its share for whole 0 is 0.44, 0.16 and 0.00 with
# $T$ = 2, 3 and 5.) Add noise to the votes.

# %% [markdown]
# ## Questions
# 1. Compute the first iteration of "Four parts, two wholes" by hand. Which share of part 0 goes to
#    whole 0 in the second?
# 2. Sabour et al. read a capsule's length as the probability that its entity is present. Does this
#    hold with Li's Eq. 7? With Gu's Eq. 8?
# 3. A model with routing gains 1 BLEU over linear aggregation. With $T = 1$ it gains 1 BLEU, too:
#    what do you conclude? And if it gained nothing?
# 4. Algorithm 1 takes the softmax over the output capsules. What if it ran over the input capsules?
#
# <details><summary>Answers</summary>
#
# *Opening question.* Those whose reports agree. But to compare the reports one must know who saw
# which event: a routing guesses it, compares, and guesses again.
#
# 1. $s_0 = (1.5, 0, 0, 0.75, 0.75)$ is 1.84 long, and $\Omega_0$ 0.77. $\Omega_0$ adds 1.89 to the
#    logits of parts 0 and 1 and 0.94 to those of parts 2 and 3, $\Omega_1$ the reverse. The
#    difference of 0.94 makes a share of 0.72.
# 2. Not with Eq. 7: the length says how far the votes agree, even if next to nothing is coupled to
#    the capsule. With Eq. 8 a capsule that few parts choose is short, as in Sabour et al. 2017.
# 3. With $T = 1$ the coupling is $1/N$: the same parameters without agreement. So the gain is due
#    to the layers around the routing, as it was here (`results/README.md`). If $T = 1$ gained
#    nothing, the gain would be due to the agreement.
# 4. Wholes would not compete for a part. Li's released code runs its softmax this way.
#
# </details>
