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

# %% jupyter={"source_hidden": true}
figure, ax = pyplot.subplots(figsize=(4, 3), layout="constrained")
for name in lengths:
    ax.plot(range(1, T + 1), lengths[name], marker="o", label=name)
ax.set(title="a whole that no part chooses", xlabel="T", ylabel="length", ylim=(0, 1))
ax.legend()
show("session3-length")

# %% [markdown]
# **Answer.** With the division whole 1 stays the mean of its votes, and its length does not show
# how little is coupled to it. Without, its length goes to 0.

# %% [markdown]
# ## What the routing cannot see
# If the votes for both wholes are the same, the shares stay at $1/N$ in every iteration. The
# matrices $W_{h \to n}$ of Eq. 6 make the votes differ.

# %%
same = torch.randn(4, 1, 5).expand(4, 2, 5)
coupling = dynamic_routing(same, 50).coupling
assert torch.allclose(coupling, torch.tensor(1 / 2))
print("equal votes, T = 50: the parts' shares for whole 0", coupling[:, 0].tolist())
