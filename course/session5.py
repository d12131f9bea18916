# %% [markdown]
# # Session 5: Aggregation
#
# Read Li 2019 §4.1 (Eq. 5-6) and §5.2, Gu 2019 §4 (Eq. 3-7) and §5.2-5.4, then `aggregation.py` and
# `capsule_aggregation.py`.
#
# Three ways lead from the heads' outputs $O^h$ to one vector: the linear map (Eq. 3-4), Li's
# routing in its place (Eq. 5-6 with Alg. 1 or 2), and Gu's capsules, which are added to the
# outputs, $u + \mathrm{FFN}(v)$.
#
# **Goals.** You can compare three ways from heads to one vector: what they read, where they act,
# what they cost; say which part of a head's varying influence is due to the routing, and which to
# the layers around it; check a published number of parameters against a reading of the paper.
#
# **Opening question.** What should decide how much of a head arrives at a token?

# %%
import torch
from lesson import show
from matplotlib import pyplot

from aggregation import RoutingAggregation
from attention import LinearAggregation
from capsule_aggregation import CapsuleAggregation
from transformer import SIZES, Transformer, TransformerConfig

H = 4
L = 12
d = 16

# %% [markdown]
# ## How much of a head arrives
# The Jacobian $\partial O / \partial O^h$ of a token measures how much the result changes with head
# $h$. If it varies from token to token, is that due to the routing? The control is $T = 1$, a
# uniform coupling: what still varies then comes from the layers around the routing, Li's $f_h$ and
# Gu's FFN.
#
# **Predict before you run.** In which of the three ways is a head's share the same at every token?
# For which of the two layers, Li's or Gu's, does $T = 1$ take away most of the variation?

# %%
def aggregation(kind, **settings):
    """An aggregation of the heads with the same random numbers as the others."""
    torch.manual_seed(1)
    return kind(d, H, **settings)


torch.manual_seed(0)
O = torch.randn(1, H, L, d // H)                         # the heads' outputs O^h
linear = LinearAggregation(d)
li = aggregation(RoutingAggregation, routing="em")
gu = aggregation(CapsuleAggregation, routing="em")
aggregations = {"linear": linear,
                "Li, EM": li, "Li, T = 1": aggregation(RoutingAggregation, iterations=1),
                "Gu, EM": gu,
                "Gu, T = 1": aggregation(CapsuleAggregation, routing="em", iterations=1)}
shares = {}
varies = {}
for name, aggregate in aggregations.items():
    assert aggregate(O).shape == (1, L, d)
    J = torch.autograd.functional.jacobian(aggregate, O)                # [1, L, d, 1, H, L, d_k]
    J = J[0, :, :, 0].diagonal(dim1=0, dim2=3)           # of a token by itself: [d, H, d_k, L]
    size = J.square().sum((0, 2)).sqrt()                                     # [H, L]
    shares[name] = size / size.sum(0)
    varies[name] = shares[name].std(1).mean().item()     # of shares of about 1/4
    print(f"{name:10} a head's share varies by {varies[name]:.1%}")
assert varies["linear"] < 1e-6
assert abs(varies["Li, EM"] - varies["Li, T = 1"]) < 0.01 < varies["Gu, EM"] - varies["Gu, T = 1"]

# %% jupyter={"source_hidden": true}
figure, axes = pyplot.subplots(5, 1, figsize=(6, 7), layout="constrained", sharex=True)
for ax, (name, share) in zip(axes, shares.items()):
    image = ax.imshow(share, cmap="viridis", vmin=0.1, vmax=0.55, aspect="auto")
    ax.set(title=name, ylabel="head", xticks=[], yticks=[])
axes[-1].set_xlabel("token")
figure.colorbar(image, ax=axes, label="a head's share of the change", shrink=0.5)
show("session5-shares")

# %% [markdown]
# ## Votes
# Li's votes (Eq. 6) come from all heads together: $f_h$ reads the concatenation $\hat O$, so input
# capsule $h$ is not head $h$. The paper says only that $f_h$ is not linear. As in the released code
# all $h$ share one, $f(x) = \max(0, \mathrm{LN}(x) W + b)$ with a layer normalization LN. Gu's vote
# $W_{ij} u_i$ (Eq. 3) reads only head $i$.

# %%
without_first = O.clone()
without_first[:, 0] = 0
for name, cast in (("Li", li.cast_votes), ("Gu", gu.cast_votes)):
    change = (cast(O) - cast(without_first)).abs().amax((1, 3, 4))[0]        # [H]
    changed = [h + 1 for h in range(H) if change[h] > 0]
    print(f"{name}: votes {list(cast(O).shape)}; those of {changed} change with head 1")
    assert changed == ([1, 2, 3, 4] if name == "Li" else [1])

# %% [markdown]
# ## Places
# Li keeps the lowest two layers of the encoder (Table 3), Gu the last layer of the decoder (Table
# 3), next to what is to be predicted.

# %%
for agg in ("em", "gu-em"):
    config = TransformerConfig(32_000, agg=agg)
    print(f"{agg:6} acts at", ", ".join(config.agg_at))

# %% [markdown]
# ## Parameters
# The cell counts the parameters that each mechanism adds to the base and the big model. On torch's
# meta device nothing is allocated. `docs/readings.md` compares all published counts. Which forms of
# $f_h$ fit +12.6M?

# %%
def count(size, **changes):
    """Parameters of a model with a vocabulary of 32,000."""
    with torch.device("meta"):
        config = TransformerConfig(32_000, **{**SIZES[size], **changes})
        return sum(p.numel() for p in Transformer(config).parameters())


plain = {size: count(size) for size in ("base", "big")}
for size, parameters in plain.items():
    print(f"{parameters:>13,}  {size}")
for size, agg, places, published in [
        ("base", "dynamic", "enc:1-6", "+12.6M"),
        ("base", "em", "enc", "+12.6M"),
        ("base", "em", "enc cross dec", "+37.8M"),
        ("base", "em", "enc:1-2", "+4.2M"),
        ("big", "em", "enc:1-2", "+33M"),
        ("base", "gu-dynamic", "cross:6 dec:6", "+1.1M"),
        ("base", "gu-em", "cross:6 dec:6", "+0.7M")]:
    added = count(size, agg=agg, agg_at=places.split()) - plain[size]
    print(f"{added:>+13,}  {size} {agg} {places}; published {published}")
    if agg != "gu-em" and places != "enc cross dec":     # question 4
        assert abs(added / 1e6 - float(published.strip("+M"))) < 0.6
everywhere = ["enc", "cross", "dec"]
added = count("base", agg="dynamic", agg_at=everywhere) - plain["base"]
print(f"{added:>+13,}  without activations, as with dynamic routing")
assert round(added / 1e6, 1) == 37.8
assert count("base", reg=["output"]) == plain["base"]    # Li 2018 §3.1: no new parameters

# %% [markdown]
# ## To vary
# The number of heads H, of capsules (`capsules=`) and of iterations (`iterations=`);
# `routing="dynamic"` in place of "em".

# %% [markdown]
# ## Questions
# 1. Which forms of $f_h$ fit the published +12.6M?
# 2. Li keeps the bottom of the encoder, Gu the top of the decoder: what differs between their
#    layers?
# 3. A head's share varies from token to token in Li's layer also with $T = 1$, in Gu's mostly with
#    $T = 3$. What does that say about routing?
# 4. Two counts do not fit what is published: +37,859,328 and +533,536. Which reading would make
#    each fit?
# 5. Which control would you run for each mechanism?
#
# <details><summary>Answers</summary>
#
# *Opening question.* With $W^O$ nothing does: it is the same at every token. With routing the
# agreement of the votes decides.
#
# 1. The votes add $6 (H d^2 + H d)$ parameters, and $W^O$ takes away $6 (d^2 + d)$. That leaves
#    room for one shared layer d → d. One layer per head gives 23.6M, none gives 11.0M. One layer
#    $d_k$ → d per head would fit, but the input of $f_h$ in Eq. 5 is the concatenation.
# 2. Li replaces $W^O$ by d capsules of width 1, whose votes read all heads; more layers gain little
#    (28.28 against 28.26 BLEU). Gu adds capsules to the heads; each vote reads one head. §5.3
#    guesses that routing should be near the supervision, and that information is lost without
#    Sabour's reconstruction loss. Neither paper compares the two layers.
# 3. Before training, Li's variation comes from $f_h$ (LayerNorm and ReLU), Gu's from the routing.
# 4. +37.8M fits without activations, as the last line shows, or without biases in the votes. +0.7M
#    fits no form that we tried; with $W^O$ it is 1.06M (`docs/readings.md`).
# 5. For a routing, the same layers with $T = 1$ (`--iterations 1`).
#
# </details>
