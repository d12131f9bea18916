# %% [markdown]
# # Session 7: Both together
#
# Read Li 2021 §3.3 and §4.1, then `transformer.py`, and `train_mt.py` from `learning_rate` to the
# end of `train`.
#
# Disagreement changes the loss, aggregation the network: the two go together (§3.3). We train four
# models for 30 steps, too few to translate anything and enough to see what each term does.
#
# **Goals.** You can read a training from top to bottom, from the loss to the step; say what each
# term does to the loss and to the heads; say what evidence a difference of 0.1 BLEU needs, and what
# a test on a single run leaves out.
#
# **Opening question.** A paper reports +0.1 BLEU from one run of each model. What do you believe?

# %%
import math

from lesson import show
from matplotlib import pyplot
from scipy.stats import nct, t
from training import pairs, tokenizer, train

from nmt.corpus import Pairs
from nmt.encoded import encode_pairs
from nmt.evaluate import disagreement_scores, validate
from papers.tables import TABLES
from train_mt import Training, learning_rate

# %% [markdown]
# ## A corpus and a training step
# `training.py` has 500 pairs of the embedded corpus with one byte-level BPE vocabulary for both
# languages. It calls `train_step` of `train_mt.py`, whose loss is the cross-entropy per target
# token minus $\lambda D$. Li 2021 §4.1.1 has 32K merges "for both language pairs"; it says neither
# whether the vocabulary is joint nor whether it is byte-level.

# %%
few = encode_pairs(tokenizer, Pairs(pairs.source[:50], pairs.target[:50]))
print(pairs.source[0], "->", pairs.target[0])

# %% [markdown]
# ## Four models
# The figure shows $D$ of all three components, $D_{enc} + (D_{cross} + D_{dec}) / 2$, where
# orthogonal heads score $-2/H = -0.5$. It rises to 0 within 20 steps: making heads cancel is easier
# than learning to translate. The table has $\exp(D)$ of the encoder's outputs (Li 2018 §5.5), which
# is 0.779 for four orthogonal heads.
#
# **Predict before you run.** What does $D$ near 0 cost in cross-entropy after 30 steps: less than
# 0.1 or more than 0.5?

# %%
models = {"baseline": {}, "disagreement": {"reg": ("output",)}, "aggregation": {"agg": "em"},
          "both": {"agg": "em", "reg": ("output",)}}
curves = {}
final = {}
print("model         cross-entropy   exp(D)")
for name, mechanisms in models.items():
    model, losses = train(**mechanisms)
    curves[name] = losses
    _, D = validate(model, few, max_tokens=512)
    score = disagreement_scores(D)["enc"]["output"]
    print(f"{name:13} {losses[0][0]:.2f} -> {losses[-1][0]:.2f}   {score:.3f}")
    final[name] = losses[-1][0]
    assert (score > 0.95) == ("reg" in mechanisms)
assert final["disagreement"] - final["baseline"] < 0.1

# %% jupyter={"source_hidden": true}
figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for number, (name, losses) in enumerate(curves.items()):
    color = f"C{number}"
    axes[0].plot([cross_entropy for cross_entropy, _ in losses], color, label=name)
    if "reg" in models[name]:
        axes[1].plot([D for _, D in losses], color, label=name)
axes[0].set(title="cross-entropy per target token", xlabel="step", ylabel="nats")
axes[1].set(title="disagreement", xlabel="step", ylabel="D")
axes[0].legend()
axes[1].legend()
show("session7-training")

# %% [markdown]
# <details><summary>Answer</summary>
#
# Less than 0.1, with and without aggregation. But after 30 steps no model can translate, so there
# is little to lose. With 100 steps (`training.STEPS = 100`) the reward costs 0.05 without
# aggregation and 0.2 with it. In the command of session 2, after 600 steps of a larger model, it
# costs 5.5 BLEU.
#
# </details>

# %% [markdown]
# The learning rate of Vaswani et al. 2017 §5.3, and the linear decay of short runs.

# %% jupyter={"source_hidden": true}
figure, ax = pyplot.subplots(figsize=(4.2, 3), layout="constrained")
for decay in ("sqrt", "linear"):
    settings = Training(warmup=4_000, steps=20_000, lr=7.0e-4, decay=decay)
    at = range(1, 20_001, 100)
    ax.plot(at, [learning_rate(step, settings) for step in at], label=decay)
ax.set(title="size base", xlabel="step", ylabel="learning rate", xticks=[0, 4_000, 20_000])
ax.legend()
show("session7-rate")

# %% [markdown]
# ## How many seeds?
# Table 5 shows what both together gain over the better of the two. To find a true difference
# $\delta$ at the 5 % level with a power of 80 %, if the spread between seeds is $s$, takes
# about $n = 2 \, (1.96 + 0.84)^2 \, (s / \delta)^2$ seeds of each model; the t test, whose power
# we compute, takes one or two more. The spread between seeds was 0.1 to 0.4 on English-Japanese and
# 0.4 to 1.0 on English-German (`results/summary.txt`); we take 0.2.
#
# **Predict before you run.** How many runs of each model does a gain of 0.15 take, and one of 0.05?

# %%
def seeds_needed(effect):
    """Runs of each of two models for which the t test has a power of 80 %; effect: delta / s."""
    n = 2
    while True:
        free = 2 * n - 2
        if nct.sf(t.ppf(0.975, free), free, effect * math.sqrt(n / 2)) >= 0.8:
            return n
        n += 1


for first, size in ((0, "base"), (4, "big ")):
    _, *scores = TABLES["li2021-5"].rows[first:first + 4]      # without the baseline
    for column, languages in ((1, "En-De"), (3, "Zh-En")):
        published = [float(row.published[column].rstrip("↑⇑")) for row in scores]
        disagreement, aggregation, both = published
        gain = both - max(disagreement, aggregation)
        seeds = seeds_needed(gain / 0.2)
        print(f"{size} {languages}: +{gain:.2f} BLEU, {seeds:4} seeds")
        assert abs(seeds - 2 * (1.96 + 0.84) ** 2 * (0.2 / gain) ** 2) < 3

# %% [markdown]
# <details><summary>Answer</summary>
#
# 29 and 253. A third of the gain takes about nine times as many runs, because their number grows
# with $(s / \delta)^2$. A spread of 0.4 would take four times as many again.
#
# </details>

# %% [markdown]
# ## To vary
# The number of steps and the peak learning rate in `training.py`; $\lambda$ (`reg_weight=`); the
# spread between seeds that "How many seeds?" assumes (0.2): what if it is 1.0?
#
# Two full trainings:
#
#     python train_mt.py
#     python train_mt.py --agg em --reg output

# %% [markdown]
# ## Questions
# 1. In Li 2021 Table 5 both together gain 0.04 to 0.15 BLEU over the better of the two. How many
#    runs would show such a gain if the spread between seeds were 0.4 BLEU?
# 2. A randomization test on one run of each model gives p < 0.05. What has it not tested?
# 3. An update may compute its sentences in several parts, the micro-batches. Why are these weighted
#    by target tokens?
# 4. After 30 steps the regularized models have a higher cross-entropy. Is that a result?
# 5. Read what `results/README.md` says about Li 2019 and Gu 2019. Which control shows whether the
#    routing causes a gain of EM routing? How firm is the verdict on Gu 2019?
#
# <details><summary>Answers</summary>
#
# *Opening question.* Nothing yet: question 1 says how many runs it takes, question 2 what one run
# cannot show.
#
# 1. About four times the 29 to 394 runs of each model that the session prints for 0.2 BLEU: the
#    number grows with the square of the spread.
# 2. The seeds: whether retraining gives similar models.
# 3. Then the likelihood of an update is that of its target tokens, however they are divided, and
#    the same micro-batches have the same objective on any number of GPUs. A different division
#    still changes a $D$ that is a mean over source tokens.
# 4. No: first steps of one seed. `results/README.md` has full trainings over seeds.
# 5. The same layers without routing, which gain as much. On English-Japanese the verdict on Gu 2019
#    is close: with other seeds or by another test it loses.
#
# </details>
