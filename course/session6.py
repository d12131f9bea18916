# %% [markdown]
# # Session 6: Capsule-Transformer
#
# Read Duan 2020 §3-4, then `capsule_transformer.py`.
#
# The Capsule-Transformer routes the attention logits themselves, before mask and softmax. The
# logits of all heads form a cube $E$ of heads, queries and keys. Routing adds two cubes of the same
# shape, a vertical and a horizontal one: $E^\prime = E + \Omega^\uparrow +
# \Omega^\leftrightarrow$ (§3.2). The votes are the rows of $E$: $e_{l,h}$ has the logits of token
# $l$ in head $h$, one for each key. In vertical routing (Alg. 2) heads are the parts and
# tokens are the wholes. In horizontal routing (Alg. 3) tokens are the parts and heads are the
# wholes. It runs once for each token $l$, and only the tokens $t \le l$ take part.
#
# **Goals.** You can read the logits as capsules in two directions: say which index is the part and
# which is the whole; say what a decoder may route, and why a mask must come before the routing; say
# how large the part that routing adds is in a long sentence; say whether the vertical part makes
# the heads' logits more alike, and what $\lambda_h$ has to do with it.
#
# **Opening question.** What does a logit of one head know about the other heads?

# %%
import torch
from lesson import show
from matplotlib import pyplot
from training import pairs, tokenizer, train

from capsule_transformer import CapsuleRouting, horizontal_routing, vertical_routing
from routing_dynamic import dynamic_routing

torch.manual_seed(1)
H, L = 2, 5
E = torch.randn(H, L, L)                                 # logits [H, L_q, L_k] of five tokens
W, b = torch.zeros(H, H), torch.zeros(H)                 # Eq. 11; as in a new model: shares of 1/H


def vertical(E, mask=None):
    """The vertical part with the parameters of a new model."""
    return vertical_routing(E, W, b, mask=mask)


# %% [markdown]
# The figure shows $E$, the vertical part, the horizontal part, and the softmax of $E$ and of the
# sum $E^\prime$ of the three, with a row per head. The first three have one scale. A capsule is
# squashed, so a row of $\Omega$ has a length below 1; vertical rows are short, horizontal ones
# longer, up to 0.97. Routing shifts the softmax but hardly overrules a strong logit.

# %%
up = vertical(E)
across = horizontal_routing(E)
routed = CapsuleRouting(H)(E.unsqueeze(0))[0].detach()
assert torch.allclose(routed, E + up + across)
assert up.norm(dim=-1).max() < 1 and across.norm(dim=-1).max() < 1


# %% jupyter={"source_hidden": true}
def write_numbers(ax, cells):
    """Writes the numbers [L, L] into their cells."""
    rounded = cells.round(decimals=1) + 0                # without -0.0
    for query, row in enumerate(rounded.tolist()):
        for key, number in enumerate(row):
            color = "white" if abs(number) > 0.6 else "black"
            ax.text(key, query, f"{number:.1f}", color=color, size=7.5, ha="center", va="center")


def draw(cubes, name):
    """Draws E, the two parts, and the weights before and after routing: a row per head."""
    H, L, _ = cubes[0].shape
    figure, axes = pyplot.subplots(H, 5, figsize=(8, 1.5 * H + 1.6), layout="compressed",
                                   sharex=True, sharey=True)
    titles = ("logits\n$E$", "vertical routing\nadds $\\Omega^\\uparrow$",
              "horizontal routing\nadds $\\Omega^\\leftrightarrow$",
              "without routing\nsoftmax of $E$", "with routing\nsoftmax of the sum")
    logits = dict(cmap="RdBu_r", vmin=-1, vmax=1)
    weights = dict(cmap="Greys", vmin=0, vmax=1)
    for column, cube, title, look in zip(axes.T, cubes, titles, [logits] * 3 + [weights] * 2):
        column[0].set_title(title, size="medium")
        for h, ax in enumerate(column):
            image = ax.imshow(cube[h], **look)
            ax.set(xlabel="key", ylabel=f"head {h + 1}\nquery", xticks=[], yticks=[])
            if L <= 5:
                write_numbers(ax, cube[h])
                ax.set_xticks(range(L), range(1, L + 1))
                ax.set_yticks(range(L), range(1, L + 1))
            ax.label_outer()
    figure.colorbar(axes[0, 0].images[0], ax=axes[:, :3], location="bottom", aspect=60,
                    extend="both", label="logit, and what is added to it (beyond ±1: as ±1)")
    figure.colorbar(image, ax=axes[:, 3:], location="bottom", label="attention weight")
    show(name)


draw((E, up, across, E.softmax(-1), routed.softmax(-1)), "session6-cubes")

# %% [markdown]
# Vertical routing gives one capsule $\Omega^\uparrow_l$ per token, a row. Every head gets all rows,
# multiplied by the head's share $\lambda_h$ (Eq. 10-11). $B$ are the logits of the routing. $W$ and
# $b$ are learned and start at 0, so $\lambda_h$ is 1/2 here.
#
# $$\Omega^\uparrow_h = \lambda_h [\Omega^\uparrow_1; \ldots; \Omega^\uparrow_L] \qquad
# \lambda = \mathrm{softmax}(\Lambda) \qquad
# \Lambda = W \Big[ \sum_l B_{1 \to l}, \ldots, \sum_l B_{H \to l} \Big] + b$$

# %%
assert torch.allclose(up[0], up[1])
print("longest row:  vertical", f"{up.norm(dim=-1).max():.3f}",
      " horizontal", f"{across.norm(dim=-1).max():.3f}")

# %% [markdown]
# ## Long sentences
# A row of $\Omega$ has L cells and a length below 1, so its cells get smaller as L grows. Vertical
# routing also divides each head's weight of 1 among all L tokens.
#
# **Predict before you run.** By which factor do the cells shrink from L = 25 to L = 100 in
# horizontal routing? Is the factor larger or smaller in vertical routing?

# %%
print("rms of a cell:")
sizes = []
for length in (5, 25, 100):
    torch.manual_seed(1)
    long = torch.randn(20, 4, length, length)            # 20 sentences, H = 4, random logits
    W4, b4 = torch.zeros(4, 4), torch.zeros(4)
    down = vertical_routing(long, W4, b4).square().mean().sqrt()
    along = horizontal_routing(long).square().mean().sqrt()
    print(f"L = {length:3}: vertical {down:.3f}  horizontal {along:.2f}")
    sizes.append((down, along))
assert sizes[1][1] / sizes[2][1] < 2.5 < sizes[1][0] / sizes[2][0]

# %% [markdown]
# <details><summary>Answer</summary>
#
# From 25 tokens on horizontal rows have a length near 1, so their cells shrink by about
# $\sqrt{100/25} = 2$. Vertical cells shrink more, because the rows get shorter too: each whole gets
# a smaller share of the votes, and the squash shortens short vectors most.
#
# </details>

# %% [markdown]
# ## Order
# Vertical routing does not know the order of the tokens: if the tokens are reordered, its result is
# reordered in the same way. For horizontal routing the order matters, because only the tokens
# $t \le l$ take part (§3.4.2).

# %%
order = [4, 2, 0, 3, 1]


def reordered(E):
    """The cube of the tokens in another order: its rows and its columns."""
    return E[:, order][:, :, order]


for name, routing in (("vertical", vertical), ("horizontal", horizontal_routing)):
    same = torch.allclose(routing(reordered(E)), reordered(routing(E)), atol=1e-6)
    print(f"{name}: reordering before or after the routing gives the same:", same)
    assert same == (name == "vertical")

# %% [markdown]
# ## What a decoder may see
# A decoder must not see later tokens. Another fifth token changes the fifth row and the fifth
# column of $E$. How much does it change $\Omega$ among the first four tokens? The forward mask is
# the causal mask, applied before the routing.
#
# **Predict before you run.** Is the change 0 for horizontal routing, in which only the tokens
# $t \le l$ take part? Is it 0 for vertical routing with the forward mask?

# %%
other = E.clone()
other[:, 4] = torch.randn(H, L)
other[:, :, 4] = torch.randn(H, L)
causal = torch.ones(L, L, dtype=torch.bool).tril()
print("largest change of an early logit:")
for name, routing in (("horizontal", horizontal_routing), ("vertical", vertical)):
    for mask, label in ((None, "no mask"), (causal, "forward mask")):
        change = routing(E, mask=mask) - routing(other, mask=mask)
        early = change[:, :4, :4].abs().max()
        print(f"{name:10} {label:12} {early:.3f}")
        assert (early == 0) == (name == "horizontal" and label == "forward mask")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The rule $t \le l$ keeps the fifth row out of the first four routings. But a vote is a whole row,
# and its fifth cell enters the dot products $\Omega \cdot V$. The forward mask (§3.4.3) sets this
# cell to 0 before the routing. Vertical routing leaks even with the mask: its softmax runs over all
# tokens, so the coupling of the early tokens depends on the fifth.
#
# </details>

# %% [markdown]
# ## A trained model
# So far the logits were random. `training.py` now trains a small model for 30 steps on 500 sentence
# pairs, with routed logits in its encoder. We look at the logits of its first layer for one
# sentence.
#
# **Predict before you run.** All heads start with the same share $\lambda_h = 1/4$ of the vertical
# part. Does each of them keep it?

# %%
model, losses = train(capsule_attention=("enc",))
print(f"cross-entropy {losses[0][0]:.2f} -> {losses[-1][0]:.2f}")
assert losses[-1][0] < losses[0][0] - 1
model.eval()
words = tokenizer.encode(pairs.source[5])
number = 0                              # of the layer, from 0
layer = model.encoder.layers[number]
with torch.no_grad():
    x = model.embedding(torch.tensor([words.ids]))                           # [1, L, d]
    for lower in model.encoder.layers[:number]:
        x, _, _ = lower(x, None)
    x = layer.norm1(x)
    Q, K, _ = layer.attention.split(layer.attention.in_proj(x))
    E = (Q @ K.transpose(-2, -1))[0] / layer.attention.d_k ** 0.5            # [H, L, L]
    capsule = layer.attention.capsule
    up = vertical_routing(E, capsule.weight, capsule.bias)
    across = horizontal_routing(E)
    weights = (E + up + across).softmax(-1)
print(f"L = {len(words.ids)}, trained:")
for name, cube in (("E", E), ("vertical", up), ("horizontal", across)):
    print(f"{name:10} {cube.square().mean().sqrt():.2f}")
for name, cube in (("E", E), ("E + vertical", E + up)):
    unit = torch.nn.functional.normalize(cube.flatten(1), dim=-1)            # [H, L L]
    cosines = unit @ unit.T
    others = (cosines.sum() - len(unit)) / (len(unit) ** 2 - len(unit))
    print(f"mean cosine of two heads' logits, {name}: {others:.2f}")
change = (weights - E.softmax(-1)).abs().max()
print(f"largest change of an attention weight: {change:.2f}")
assert change < 0.2

# %% jupyter={"source_hidden": true}
draw((E[:2], up[:2], across[:2], E[:2].softmax(-1), weights[:2]), "session6-trained")

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: the second head has the whole vertical part. The figure has the first two of the four heads.
# In this model routing adds little: a cell of the vertical or horizontal part is small against a
# logit, and no attention weight changes by more than about 0.1.
#
# The vertical part is white in the first head, and in most rows of the second. The next cell shows
# why: the coupling that a token gets from the four heads together, the length of its row, and what
# $\lambda$ is computed from.
#
# </details>

# %%
omega, C, B = dynamic_routing(E, normalize=False)        # [L, L_k], [H, L], [H, L]
coupling = C.sum(0)                                      # [L]
most = coupling.argsort(descending=True)[:6]
print("the six tokens with the most coupling:")
print("coupling  ", *(f"{c:.2f}" for c in coupling[most]))
print("length    ", *(f"{length:.2f}" for length in omega[most].norm(dim=-1)))
sums = B.sum(-1)                                         # [H]
Lambda = capsule.weight @ sums + capsule.bias
shares = Lambda.softmax(-1)
assert torch.allclose(up, shares[:, None, None] * omega)
print(f"a cell of W is at most {capsule.weight.abs().max():.2f}; the four heads:")
print("sum of B  ", *(f"{x:4.0f}" for x in sums))
print("Lambda    ", *(f"{x:4.0f}" for x in Lambda))
print("lambda    ", *(f"{share:.2f}" for share in shares))
assert shares.max() > 0.9

# %% [markdown]
# Every head divides a coupling of 1 among the 16 tokens, so the four heads have 4 to give. Every
# iteration gives more of it to the tokens whose capsules agree with the votes, until three tokens
# have nearly all. Their rows have a length near 1, and the others are short. With longer votes, so
# with larger logits, this takes fewer iterations (session 3).
#
# $W$ is small, but it multiplies sums over all tokens. So the numbers in $\Lambda$ lie far apart,
# the softmax gives nearly everything to the largest, and only that head gets the vertical part.

# %% [markdown]
# ## To vary
# The size of the logits, from `E = 0.5 * torch.randn(H, L, L)` to `10 * torch.randn(H, L, L)`: when
# can routing overrule a logit? (The smaller they are, down to about 0.5, the more often: a row of
# $\Omega$ is shorter than 1.) In "Long sentences", the size of the logits again (with `2 *
# torch.randn` a vertical cell at L = 100 is 0.007 in place of 0.001), the lengths (5, 25, 100) and
# the iterations of `vertical_routing`. In the trained model, the sentence (`pairs.source[5]`), the
# layer (`number`), and the model: train one with `python train_mt.py --capsule-attention enc`, and
# write `from nmt.run_folder import load_run`, `model, tokenizer, _ = load_run("runs/NAME")` in
# place of the line with `train` and the two below it.

# %% [markdown]
# ## Questions
# 1. The decoder has no vertical part. How would it have to change to run there, and what would it
#    cost?
# 2. Why does the Capsule-Transformer have next to no new parameters?
# 3. How many routings does Algorithm 3 run for L tokens, and how does the code avoid the loop?
# 4. $\Omega^\uparrow$ adds the same rows to every head, up to the factor $\lambda_h$. Does that
#    make heads more alike?
#
# <details><summary>Answers</summary>
#
# *Opening question.* Nothing. A head computes its logits from its own queries and keys; heads meet
# only in $W^O$.
#
# 1. Its output capsules are all tokens, and the softmax runs over them: early tokens depend on late
#    ones (§3.4.3). For every token l, a routing of its own to the tokens 1 to l would not; these
#    are L routings in place of one, as in the horizontal part.
# 2. The votes are the logits themselves. Only $W$ and $b$ of Eq. 11 are new, $H^2 + H$ parameters a
#    layer. Votes cannot have a matrix of their own, because the length of a row is that of the
#    sentence.
# 3. L. The code keeps the routing of token l in row l of one matrix $B$ per head; an iteration is
#    two batched matrix products.
# 4. With equal $\lambda_h$, as at the start, yes: it adds a part that all heads share and leaves
#    their differences as they are. In the session's model training has moved $\lambda$ to a single
#    head: only that head gets $\Omega^\uparrow$, and the mean cosine of two heads' logits hardly
#    changes, since $\Omega^\uparrow$ is small against $E$.
#
# </details>
