# %% [markdown]
# # Session 2: Disagreement
#
# Read Li 2018, all of it (Li 2021 §3.1 is the same, shorter), then `disagreement.py`.
#
# Training maximizes $J = \log P(y \mid x) + \lambda D$ (§3.1). Three $D$ measure how much the
# heads differ: in their values (Eq. 1), in the positions they attend to (Eq. 2) and in their
# outputs (Eq. 3).
#
# **Goals.** You can read a score $\exp(D)$: for a given number of heads, say which value means
# heads that are alike, orthogonal or cancelling; say what each of the three terms rewards, and what
# its gradient does to a head; say what the pairs $i = j$ change in each equation; judge from a
# table of $\exp(D)$ whether it supports a sentence of the paper.
#
# **Opening question.** How would you measure whether two heads do the same?

# %%
import math

import torch
from lesson import show
from matplotlib import pyplot

from attention import Heads
from disagreement import model_disagreement, output_disagreement, position_disagreement
from transformer import TransformerConfig

# %% [markdown]
# ## What a score means
# Eq. 1 and 3 are minus the mean cosine over all $H^2$ pairs of heads, $i = j$ included. The paper's
# tables print $\exp(D)$, which is 1 for $D = 0$.
#
# **Predict before you run.** Two heads have one output vector each in the plane. Which $D$ of Eq. 3
# do they have if the vectors are alike, if they are orthogonal, and if they point in opposite
# directions?

# %%
pairs = {"alike": [[1.0, 0.0], [1.0, 0.0]], "orthogonal": [[1.0, 0.0], [0.0, 1.0]],
         "cancelling": [[1.0, 0.0], [-1.0, 0.0]]}
scores = {}
for name, vectors in pairs.items():
    O = torch.tensor(vectors).unsqueeze(1)                                   # [H = 2, L = 1, d_k]
    D = output_disagreement(O).item()
    scores[name] = D
    print(f"two heads, {name:10}  D = {D + 0:5.2f}   exp(D) = {math.exp(D):.3f}")
    mean = O.mean(0)[0]                                                      # [d_k]
    assert math.isclose(D, -mean.square().sum(), abs_tol=1e-6)

# %% jupyter={"source_hidden": true}
figure, axes = pyplot.subplots(1, 3, figsize=(7, 2.6), layout="constrained", sharey=True)
for ax, (name, vectors) in zip(axes, pairs.items()):
    for h, width in enumerate((0.05, 0.02)):             # both show where they are alike
        ax.quiver(0, 0, *vectors[h], color=f"C{h}", width=width, angles="xy", scale=1,
                  scale_units="xy", label=f"head {h + 1}")
    x, y = torch.tensor(vectors).mean(0)
    ax.plot([0, x], [0, y], "k:")
    ax.plot(x, y, "ko", label="mean")
    D = scores[name] + 0                                 # without -0.0
    ax.set_title(f"{name}\nD = {D:.1f}, exp(D) = {math.exp(D):.2f}", size="medium")
    ax.set(xlim=(-1.2, 1.2), ylim=(-0.3, 1.2), aspect="equal", xlabel="first coordinate")
axes[0].set_ylabel("second coordinate")
axes[0].legend(loc="upper left")
figure.suptitle("D is minus the squared length of the mean of the unit vectors", size="medium")
show("session2-scores")

# %% [markdown]
# <details><summary>Answer</summary>
#
# $D$ is minus the squared length of the unit vectors' mean. Heads that are alike have $D = -1$, and
# orthogonal heads have $D = -1/H$. $D = 0$ requires that the unit vectors cancel, as two vectors in
# opposite directions do.
#
# </details>

# %% [markdown]
# Table 4 prints $\exp(D)$ for $H = 8$. The $H$ pairs $i = j$ always have the cosine 1. With $c$ for
# the mean cosine of two different heads, $-D H^2 = H + (H^2 - H) c$, so $c = (-D H - 1)/(H - 1)$.
# The baseline's heads are orthogonal on average. The regularization of the outputs makes them
# nearly cancel: 8 vectors cannot have a mean cosine below $-1/7 = -0.143$.

# %%
H = 8
for name, score in (("baseline", 0.881), ("subspace", 0.935), ("output", 0.997)):
    D = math.log(score)
    cosine = (-D * H - 1) / (H - 1)
    print(f"Table 4, outputs, {name:8}  exp(D) = {score}   mean cosine {cosine:6.3f}")
assert math.isclose(math.exp(-1 / H), 0.882, abs_tol=5e-4)

# %% [markdown]
# ## What the gradient does
# Four vectors climb the gradient of $D$, as in a training that only maximizes $D$.
#
# **Predict before you run.** Which mean cosine do four vectors reach under Eq. 3? Which one do they
# reach if the cosines are squared, as in an early version of the authors' code?

# %%
def uphill(D, start):
    """Returns the vectors that Adam reaches when it maximizes D from `start`."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (-D(x)).backward()
        optimizer.step()
    return x.detach()


def cosines(vectors):
    """The cosines of all pairs of vectors [H, 1, d_k], as [H, H]."""
    unit = torch.nn.functional.normalize(vectors[:, 0], dim=-1)
    return unit @ unit.T


def squared_cosines(outputs):
    """The authors' early D: -(1/H^2) sum_i sum_j cos(O^i, O^j)^2, for outputs [H, 1, d_k]."""
    return -cosines(outputs).square().mean()


torch.manual_seed(1)
H = 4
start = torch.randn(H, 1, 8) + 1                                             # [H, L = 1, d_k]
ends = {"start": start, "output": uphill(output_disagreement, start),
        "squared output": uphill(squared_cosines, start)}
for name, vectors in ends.items():
    others = (cosines(vectors).sum() - H) / (H ** 2 - H)
    print(f"{name:15} D = {output_disagreement(vectors):6.3f}   mean cosine {others:6.3f}")
    expected = {"start": others, "output": -1 / 3, "squared output": 0}[name]
    assert math.isclose(others, expected, abs_tol=0.01)

# %% jupyter={"source_hidden": true}
figure, axes = pyplot.subplots(1, 3, figsize=(8, 2.9), layout="constrained")
for ax, (name, vectors) in zip(axes, ends.items()):
    image = ax.imshow(cosines(vectors), cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set(title=name, xlabel="head", xticks=range(H), xticklabels=range(1, H + 1),
           yticks=range(H), yticklabels=range(1, H + 1))
axes[0].set_ylabel("head")
figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
show("session2-uphill")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Under Eq. 3 the mean cosine ends at $-1/3$: the heads cancel. With squared cosines, the cosine of
# any two heads ends at 0: the heads are orthogonal.
#
# </details>

# %% [markdown]
# How large is the gradient where the heads are orthogonal? For unit vectors its length is
# $2 \sqrt{H - 1} / H^2$ per head: the same $\lambda$ pulls more with fewer heads.

# %%
for H in (4, 8):
    orthogonal = torch.eye(H).unsqueeze(1).requires_grad_()                  # [H, L = 1, d_k]
    output_disagreement(orthogonal).backward()
    pull = orthogonal.grad[0].norm()
    print(f"orthogonal heads, H = {H}: |gradient| {pull:.4f}")
    assert math.isclose(pull, 2 * math.sqrt(H - 1) / H ** 2, rel_tol=1e-5)

# %% [markdown]
# Eq. 2 multiplies the weights of two heads cell by cell and sums the products over the positions:
#
# $$D_{position} = -\frac{1}{H^2} \sum_{i=1}^{H} \sum_{j=1}^{H} \left| A^i \odot A^j \right|$$
#
# **Predict before you run.** Four heads attend to four positions, with random logits, and climb the
# gradient of Eq. 2. Which mean weight does each position get? Must the heads end at four different
# positions?

# %%
def position_of_logits(logits):
    """D_position of the heads' logits [H, L_q, L_k]."""
    return position_disagreement(logits.softmax(-1))


start = torch.randn(4, 1, 4)
ends = {}
for name, size in (("large", 2), ("small", 0.1)):
    A = uphill(position_of_logits, size * start).softmax(-1)                 # [H, L_q = 1, L_k]
    ends[name] = A
    mean = [round(a, 3) for a in A.mean(0)[0].tolist()]
    print(f"{name} logits at the start: mean of the heads {mean}, D = "
          f"{position_disagreement(A):.3f}")
    assert torch.allclose(A.mean(0), torch.tensor(1 / 4), atol=0.01)

# %% jupyter={"source_hidden": true}
figure, axes = pyplot.subplots(1, 2, figsize=(6, 2.9), layout="constrained", sharey=True)
for ax, (name, A) in zip(axes, ends.items()):
    image = ax.imshow(A[:, 0], cmap="Blues", vmin=0, vmax=1)
    ax.set(title=f"{name} logits at the start", xlabel="position", xticks=range(4),
           xticklabels=range(1, 5), yticks=range(4), yticklabels=range(1, 5))
axes[0].set_ylabel("head")
figure.colorbar(image, ax=axes, label="attention weight after Eq. 2")
show("session2-positions")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each position gets a mean weight of 1/4. Where each head ends depends on its start, because Eq. 2
# depends only on the mean of the heads: $\frac{1}{H^2}\sum_i\sum_j A^i \odot A^j =
# (\frac{1}{H}\sum_h A^h)^2$. Four heads at four different positions have the same $D$ as four heads
# that attend to all positions alike.
#
# </details>

# %%
apart = torch.eye(4).unsqueeze(1)                                            # [H, L_q = 1, L_k]
alike = torch.full((4, 1, 4), 1 / 4)
assert position_disagreement(apart) == position_disagreement(alike) == -1 / 4

# %% [markdown]
# ## What i = j does
# With one head, only the pair $i = j$ is left. A vector's cosine with itself is always 1, so these
# pairs change the value of Eq. 1 and 3 but not their gradient. In Eq. 2 such a pair is
# $|A \odot A|$, which falls as the head spreads its weights: its gradient pulls every head towards
# even weights. The pairs $i \neq j$ pull against it; together only the mean of the heads counts.

# %%
one_output = torch.randn(1, 1, 8, requires_grad=True)
output_disagreement(one_output).backward()
print(f"one head, output:    |gradient| {one_output.grad.norm():.3f}")
assert one_output.grad.norm() < 1e-6

one_head = torch.tensor([[[3.0, 0.0, 0.0]]], requires_grad=True)
position_of_logits(one_head).backward()
print(f"one head, positions: |gradient| {one_head.grad.norm():.3f}")
assert one_head.grad[0, 0, 0] < 0                        # uphill, the largest logit falls

# %% [markdown]
# ## In a model
# $D$ of the model is a sum over the three attentions: the encoder's has weight 1, and the decoder's
# two have weight 1/2 each (`docs/readings.md`). If all three have the same heads, as here, the
# model's $D$ is twice that of a layer.

# %%
config = TransformerConfig(vocab_size=100, layers=1, reg=("output",))
values = outputs = torch.randn(1, 8, 5, 64)                                  # [B, H, L, d_k]
heads = {component: [Heads(values, None, outputs)] for component in ("enc", "cross", "dec")}
mask = torch.ones(1, 5, dtype=torch.bool)
D_layer = output_disagreement(outputs)
D = model_disagreement(config, heads, mask, mask)
print(f"a layer: D = {D_layer:.4f}; the model: D = {D:.4f}")
assert torch.isclose(D, 2 * D_layer)

# %% [markdown]
# ## To vary
# The number of heads (`H = 4`). In `start`, the width (8) and the 1 that is added, which makes the
# vectors similar. In which widths do 4 heads come to cancel, and in which can they be orthogonal?
# (From 2 on, and from 4 on. In width 1 the gradient is 0.)
#
# Train models of 4 heads with three values of $\lambda$, a few minutes each, and each student with
# another `--seed`. Orthogonal heads have $\exp(D)$ = 0.779.
#
#     python train_mt.py --steps 600 --eval-every 600
#     python train_mt.py --steps 600 --eval-every 600 --reg output --reg-weight 0.1
#     python train_mt.py --steps 600 --eval-every 600 --reg output
#
# Compare test BLEU and $\exp(D)$ of the encoder's outputs, also with your neighbours' seeds.

# %% [markdown]
# ## Questions
# 1. With 16 heads one layer has $\exp(D)$ = 0.94, another 1.00. What does each mean?
# 2. What would change in training and in the scores if the pairs $i = j$ were left out, and the sum
#    still divided by $H^2$?
# 3. Li 2018 §5.5 concludes from $\exp(D)$ = 0.007 in Eq. 2 that "almost all the heads attend to the
#    same positions". Does that follow?
# 4. $\lambda = 1$ was found with 8 heads. What changes if it is used with 4 heads?
# 5. After 600 steps the model with $\lambda = 1$ has less BLEU than that without a reward. Is the
#    cause $D$ itself, or the size of $\lambda$?
#
# <details><summary>Answers</summary>
#
# *Opening question.* By what they read (values), where they look (weights), or what they return
# (outputs): Eq. 1, 2 and 3.
#
# 1. 0.94 is $\exp(-1/16)$: the heads are orthogonal, on average. At 1.00 their unit vectors cancel,
#    and the mean cosine of two heads is -1/15.
# 2. With Eq. 1 and 3 nothing in training, since these terms are constant; $\exp(D)$ of 8 cancelling
#    heads would be 1.13 in place of 1. With Eq. 2 these terms are a head's squared weights. Over
#    four positions, four heads with even weights and four heads at different positions both score
#    -0.25; without these terms -0.19 and 0, so Eq. 2 would push the heads apart.
# 3. No. §3.2 adds up all cells of the matrix, so the sum grows with the sentence. 0.007 is
#    $\exp(-5)$, which is -0.2 per query in a sentence of 25 tokens. Per query, 8 heads at 8
#    different positions score -0.125, and 8 heads at the same position score -1
#    (`docs/readings.md`).
# 4. From orthogonal to cancelling heads, $D$ rises by 1/4 with 4 heads and by 1/8 with 8 heads. The
#    gradient at orthogonal heads is 2.6 times as large with 4.
# 5. These runs cannot say: at $\lambda = 0.1$ both $\lambda$ and $D$ are smaller. Full training
#    can. With $\lambda = 1$ it also ends with an $\exp(D)$ near 1 and regains most of the BLEU
#    (`results/README.md`). So cancelling heads do not prevent translation; early in training the
#    reward outweighs the cross-entropy.
#
# </details>
