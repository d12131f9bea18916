# %% [markdown]
# # Session 7: Both together
#
# Read Li 2021 §3.3 and §4.1, `docs/readings.md`, then `transformer.py` and, from top to bottom,
# `train_mt.py`.
#
# Disagreement changes the loss, aggregation the network: the two go together (§3.3). We train four
# models for 30 steps, too few to translate anything and enough to see what each term does.

# %%
from itertools import islice

import torch
from lesson import show
from matplotlib import pyplot

import toy
from nmt.batches import training_steps
from nmt.corpus import Pairs
from nmt.encoded import encode_pairs
from nmt.evaluate import disagreement_scores, validate
from nmt.loss import Objective
from nmt.machine import setup_machine
from nmt.tokenizer import train_tokenizer
from papers.tables import LI2021_MAIN
from train_mt import Settings, learning_rate, train_step
from transformer import Transformer

# %% [markdown]
# ## A corpus, a step
# 500 pairs of the embedded grammar, one byte-level BPE vocabulary for both languages (§4.1.1), and
# `train_step` of train_mt.py, whose loss is cross-entropy per target token $- \lambda D$.

# %%
examples = toy.corpus(500)
pairs = Pairs([one.english for one in examples], [one.german for one in examples])
tokenizer = train_tokenizer([*pairs.source, *pairs.target], vocab_size=600)
encoded = encode_pairs(tokenizer, pairs)
few = encode_pairs(tokenizer, Pairs(pairs.source[:50], pairs.target[:50]))
print(pairs.source[0], "->", pairs.target[0])

STEPS = 30
machine = setup_machine("cpu")


def train(**mechanisms):
    """A small model with these mechanisms: it, and [cross-entropy, D] of every step."""
    settings = Settings(steps=STEPS, warmup=20, lr=0.016, layers=2, d_model=32, heads=4, d_ff=64,
                        dropout=0.0, max_tokens=256, **mechanisms)
    torch.manual_seed(1)
    model = Transformer(settings.model_config(tokenizer.get_vocab_size()))
    objective = Objective(model)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step in islice(training_steps(encoded, settings, (0, 0), machine), STEPS):
        optimizer.param_groups[0]["lr"] = learning_rate(len(losses) + 1, settings)
        total, _ = train_step(objective, optimizer, step, settings, machine)
        losses.append((total / step.tokens).tolist())
    return model, losses


# %% [markdown]
# ## Four models
# $D$ of all three components: $D_{enc} + (D_{cross} + D_{dec}) / 2$, where orthogonal heads score
# $-2/H = -0.5$. It is gained within 20 steps: turning the heads against each other is easy beside
# learning to translate. Below, $\exp(D)$ of the encoder's outputs (Li 2018 §5.5), 0.779 for four
# orthogonal heads.

# %%
models = {"baseline": {}, "disagreement": {"reg": ("output",)}, "aggregation": {"agg": "em"},
          "both": {"agg": "em", "reg": ("output",)}}
figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for name, mechanisms in models.items():
    model, losses = train(**mechanisms)
    _, D = validate(model, few, max_tokens=512)
    score = disagreement_scores(D)["enc"]["output"]
    print(f"{name:13} cross-entropy {losses[0][0]:.2f} -> {losses[-1][0]:.2f}   "
          f"exp(D) of the encoder's outputs {score:.3f}")
    axes[0].plot([cross_entropy for cross_entropy, _ in losses], label=name)
    if "reg" in mechanisms:
        axes[1].plot([D for _, D in losses], label=name)
        assert score > 0.95
axes[0].set(title="cross-entropy per target token", xlabel="step")
axes[1].set(title="D", xlabel="step")
axes[0].legend()
axes[1].legend()
show("session7-training")

# %% [markdown]
# The learning rate of Vaswani et al. 2017 §5.3, and the linear decay that short trainings take.

# %%
figure, ax = pyplot.subplots(figsize=(4.2, 3), layout="constrained")
for decay in ("sqrt", "linear"):
    settings = Settings(warmup=4_000, steps=20_000, lr=7.0e-4, decay=decay)
    at = range(1, 20_001, 100)
    ax.plot(at, [learning_rate(step, settings) for step in at], label=decay)
ax.set(title="learning rate of size base", xlabel="step", xticks=[0, 4_000, 20_000])
ax.legend()
show("session7-rate")

# %% [markdown]
# ## How many seeds?
# Table 5: what both together gain over the better of the two alone. To find a true difference
# $\delta$ at the 5 % level with a power of 80 %, where seeds scatter by $s$, takes
# $n = 2 \, (1.96 + 0.84)^2 \, (s / \delta)^2$ seeds of each model. On the embedded corpus seeds
# scatter by 0.2 to 0.9 (`RESULTS.md`); say 0.2.

# %%
rows = [row for row in LI2021_MAIN if row.flags is not None]
for first, size in ((0, "base"), (4, "big ")):
    _, *scores = rows[first:first + 4]                   # without the baseline
    for column, languages in ((1, "En-De"), (3, "Zh-En")):
        one, other, both = (float(row.published[column].rstrip("↑⇑")) for row in scores)
        gain = both - max(one, other)
        seeds = 2 * (1.96 + 0.84) ** 2 * (0.2 / gain) ** 2
        print(f"{size} {languages}: +{gain:.2f} BLEU, {seeds:4.0f} seeds of each model")
