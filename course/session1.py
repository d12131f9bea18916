# %% [markdown]
# # Session 1: Heads
#
# Read Li 2019 §2 (Eq. 1-4) or Duan 2020 §2 (Eq. 1-5), then `attention.py`.
#
# Every head has its own projections (Eq. 1) and so attends to the sentence in its own way (Eq. 2).
# We write the projections of two heads by hand: one finds the same word, the other the word before.
#
# **Goals.** You can compute the weights $A^h$ and the output $O^h$ of a head by hand; say what the
# causal mask changes and what it leaves unchanged; show that linear aggregation is a sum to which
# every head adds its part independently of the others.
#
# **Opening question.** What can two heads do that one head of twice the width cannot?

# %%
import torch
from lesson import show
from matplotlib import pyplot

from attention import LinearAggregation, MultiHeadAttention, concatenate
from transformer import positions

torch.manual_seed(1)
words = "the old dog and the young dog".split()
L = len(words)
d_k = 16
vectors = {word: torch.randn(d_k) for word in sorted(set(words))}
embedded = torch.stack([vectors[word] for word in words])                    # [L, 16]
x = torch.cat([embedded, positions(L, d_k)], dim=-1).unsqueeze(0)            # [1, L, d = 32]

# %% [markdown]
# The first half of a token's vector is its word, the second its position. With sines and cosines,
# one matrix maps every position to the one before (Vaswani et al. 2017 §3.5). We find it by least
# squares. With 40 times this matrix in $W^Q$, the query at position $l$ is 40 times the key at
# $l - 1$; the factor makes the weights sharp.

# %%
exact = torch.float64
position = positions(100, d_k, dtype=exact)                                  # [100, 16]
before = torch.linalg.lstsq(position[1:], position[:-1]).solution            # [16, 16]
assert torch.allclose(position[1:] @ before, position[:-1], atol=1e-6)

word, place = torch.eye(2 * d_k).split(d_k)                                  # [16, 32] each
same_word = {"Q": 3 * word, "K": word, "V": word}
word_before = {"Q": 40 * before.T.float() @ place, "K": place, "V": word}
attention = MultiHeadAttention(2 * d_k, heads=2)
rows = [head[name] for name in "QKV" for head in (same_word, word_before)]
attention.in_proj.weight.data = torch.cat(rows)                              # W^Q, W^K, W^V
_, heads = attention(x, x, need_weights=True)

# %% [markdown]
# $A^h = \mathrm{softmax}(Q^h {K^h}^\top / \sqrt{d_k})$, Eq. 2: a row is one query's weights and
# sums to 1.
#
# **Predict before you run.** Where does each head look from the last word? And where does the
# second head look from the first word, which has no word before it?

# %%
A = heads.weights[0].detach()                                                # [H, L_q, L_k]
assert torch.allclose(A.sum(-1), torch.ones(2, L))
print("same word,   query 'dog' (7):", [round(a, 2) for a in A[0, 6].tolist()])
print("word before, query 'dog' (7):", [round(a, 2) for a in A[1, 6].tolist()])
assert torch.allclose(A[0, 6, [2, 6]], torch.tensor(0.5), atol=0.01)     # both places of "dog"
assert A[1, 1:].argmax(-1).tolist() == list(range(L - 1))


# %% jupyter={"source_hidden": true}
def draw(A, title, name):
    """A panel per head: queries at the left, keys below."""
    figure, axes = pyplot.subplots(1, len(A), figsize=(8, 3.6), layout="constrained", sharey=True)
    figure.suptitle(title)
    for ax, weights, head in zip(axes, A, ("head 1: same word", "head 2: word before")):
        image = ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        ax.set(title=head, xlabel="key")
        ax.set_xticks(range(L), words, rotation=90)
        ax.set_yticks(range(L), words)
    axes[0].set_ylabel("query")
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8)
    show(name)


draw(A, "attention weights", "session1-heads")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first head divides its attention between the places of a word that occurs twice. The second
# has nothing before the first word: a softmax must look somewhere, and the nearest position is that
# word's own.
#
# </details>

# %% [markdown]
# **Masks.** A decoder may not look ahead: before the softmax, the causal mask puts $-\infty$ where
# the key's position is after the query's. Then a change of a word does not affect the outputs
# before it.
#
# **Predict before you run.** Which rows of which head does the mask change?

# %%
_, causal = attention(x, x, need_weights=True, causal=True)
assert causal.weights[0].triu(1).max() == 0
changed = x.clone()
changed[:, -1] = torch.randn(2 * d_k)
_, after = attention(changed, changed, need_weights=True, causal=True)
assert torch.equal(causal.outputs[:, :, :-1], after.outputs[:, :, :-1])
print("causal, query 'dog' (3):     ", [round(a, 2) for a in causal.weights[0, 0, 2].tolist()])
draw(causal.weights[0].detach(), "with the causal mask", "session1-causal")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two rows of the first head: the first "the" and the first "dog" no longer see their second
# occurrence. The second head looks back anyway.
#
# </details>

# %% [markdown]
# **The fused kernel** computes the same $O^h$ and never stores $A^h$. Mechanisms that read $A^h$ or
# the logits cannot use it.

# %%
_, fused = attention(x, x)
assert torch.allclose(fused.outputs, heads.outputs, atol=1e-5)
assert fused.weights is None
print("the fused kernel's weights:  ", fused.weights)

# %% [markdown]
# **Aggregation**, Eq. 3-4: $O = [O^1, \ldots, O^H] W^O$. That is a sum over the heads, in which
# each adds its part $O^h W_h^O$, whatever the others do. In sessions 3 to 5 the parts depend on one
# another.

# %%
linear = LinearAggregation(2 * d_k)
O = heads.outputs                                                            # [1, H, L, d_k]
together = linear(O)                                                         # [1, L, d]
parts = 0
for h in range(2):
    one_head = torch.zeros_like(O)
    one_head[:, h] = O[:, h]
    parts = parts + linear(one_head)
assert torch.allclose(together, parts, atol=1e-5)        # W^O has a bias, too, which starts at 0
print("O^h", list(O.shape), "-> [O^1, ..., O^H]", list(concatenate(O).shape),
      "-> O", list(together.shape))

# %% [markdown]
# ## To vary
# The factors 3 and 40 of the queries make a head's attention sharper or flatter. Change the words,
# or let the second head find the word after.

# %% [markdown]
# ## Questions
# 1. A query has the logits 2 and 0, and the values are 10 and 0. Which weights and which output
#    does it get? And with the first key masked?
# 2. Which of these can use the fused kernel: a reward for different $V^h$, for different $A^h$, for
#    different $O^h$; a routing of the $O^h$; a routing of the logits?
# 3. Can linear aggregation leave out a head at one token only?
#
# <details><summary>Answers</summary>
#
# *Opening question.* They have two softmaxes, so they can attend to two places and keep apart what
# they find there. One head of any width has one mean over the tokens.
#
# 1. The weights are 0.88 and 0.12, the output is 8.8. With the first key masked it is 0.
# 2. Those that read only $V^h$ or $O^h$: the first, the third and the fourth. In this course these
#    are disagreement on subspaces and on outputs, and the routing of Li and Gu.
# 3. Only if that head's $O^h$ is 0 there: the head adds $O^h W_h^O$, with the same $W^O$ at every
#    token.
#
# </details>
