# %% [markdown]
# # Session 6: Capsule-Transformer
#
# Read Duan 2020 §3-4, then `capsule_transformer.py`.
#
# Here the attention logits themselves are routed, before mask and softmax:
# $E^\prime = E + \Omega^\uparrow + \Omega^\leftrightarrow$ (§3.2). The votes are the rows of the
# cube: $e_{l,h}$, the logits of token $l$ on head $h$. Vertical routing (Algorithm 2) takes heads
# for parts and tokens for wholes; horizontal routing (Algorithm 3) tokens for parts and heads for
# wholes, and for each $l$ only the tokens $t \le l$.

# %%
import torch
from lesson import show
from matplotlib import pyplot

from capsule_transformer import CapsuleRouting, horizontal_routing, vertical_routing

torch.manual_seed(1)
H, L = 2, 5
E = torch.randn(H, L, L)                                 # logits [H, L_q, L_k] of five tokens
W, b = torch.zeros(H, H), torch.zeros(H)                 # Eq. 11; a new model's: a head takes 1/H


def vertical(E, mask=None):
    """The vertical part with the parameters of a new model."""
    return vertical_routing(E, W, b, mask=mask)


# %% [markdown]
# The four cubes, a row per head. A capsule is squashed: a row of $\Omega$ has a length below 1, so
# that routing can shift the softmax but hardly overrule a strong logit.

# %%
up = vertical(E)
across = horizontal_routing(E)
routed = CapsuleRouting(H)(E.unsqueeze(0))[0].detach()
assert torch.allclose(routed, E + up + across)
assert up.norm(dim=-1).max() < 1 and across.norm(dim=-1).max() < 1

figure, axes = pyplot.subplots(H, 4, figsize=(9, 4.6), layout="constrained")
cubes = {"E": E, "vertical": up, "horizontal": across, "softmax(E')": routed.softmax(-1)}
for column, (name, cube) in zip(axes.T, cubes.items()):
    for h, ax in enumerate(column):
        image = ax.imshow(cube[h], cmap="RdBu_r", vmin=-1, vmax=1)
        ax.set(title=f"{name}, head {h + 1}", xticks=[], yticks=[])
figure.colorbar(image, ax=axes, shrink=0.6)
show("session6-cubes")

# %% [markdown]
# A row of $\Omega^\uparrow$ is one and the same for all heads but for the share $\lambda_h$ that a
# head takes of it (Eq. 10), here 1/2.

# %%
assert torch.allclose(up[0], up[1])
print("longest row:  vertical", f"{up.norm(dim=-1).max():.3f}",
      " horizontal", f"{across.norm(dim=-1).max():.3f}")

# %% [markdown]
# ## Order
# Vertical routing does not know the order of the tokens: the cube of a reordered sentence gives the
# reordered result. For horizontal routing the order matters, by $t \le l$ (§3.4.2).

# %%
order = [4, 2, 0, 3, 1]


def reordered(E):
    """The cube of the tokens in another order: its rows and its columns."""
    return E[:, order][:, :, order]


for name, routing in (("vertical", vertical), ("horizontal", horizontal_routing)):
    same = torch.allclose(routing(reordered(E)), reordered(routing(E)), atol=1e-6)
    print(f"{name}: reordering before or after is the same:", same)
    assert same == (name == "vertical")

# %% [markdown]
# ## What a decoder may see
# A new fifth token changes the fifth row and the fifth column. How much does it change the routed
# logits among the first four? With $t \le l$ horizontal routing leaves the fifth row out, but a
# vote is a whole row, its fifth column too: the dot products $\Omega \cdot V$ read it. The forward
# mask before the routing (§3.4.3) puts 0 there. Vertical routing leaks even so: its softmax over
# the wholes, all tokens, shares out the early rows by what the fifth says.

# %%
other = E.clone()
other[:, 4] = torch.randn(H, L)
other[:, :, 4] = torch.randn(H, L)
causal = torch.ones(L, L, dtype=torch.bool).tril()
for name, routing in (("horizontal", horizontal_routing), ("vertical", vertical)):
    for mask, said in ((None, "no mask"), (causal, "forward mask")):
        change = routing(E, mask=mask) - routing(other, mask=mask)
        early = change[:, :4, :4].abs().max()
        print(f"{name:10} {said:12}  largest change of an early logit {early:.3f}")
        assert (early < 1e-6) == (name == "horizontal" and mask is causal)
