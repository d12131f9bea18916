"""evaluate.py: validation against single sentences, Li 2018 Table 4, what BLEU is called with."""
import copy
import math

import by_hand
import numpy as np
import pytest
import torch

from nmt import evaluate
from nmt.batches import batches
from nmt.corpus import Pairs
from nmt.encoded import EncodedPairs
from nmt.evaluate import (
    bleu_interval,
    corpus_bleu,
    disagreement_scores,
    score_table,
    t_interval,
    validate,
)
from nmt.tokenizer import BOS, EOS
from transformer import Transformer, TransformerConfig

CROWDED = 60                                      # tokens of a batch: `corpus` has several


def corpus(n=17, seed=5):
    """Pairs whose sides differ in length from each other and from pair to pair."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 12, (2, n))
    offsets = [np.concatenate(([0], side.cumsum())) for side in lengths]
    ids = [random.integers(3, 30, side.sum()).astype(np.int32) for side in lengths]
    return EncodedPairs(ids[0], offsets[0], ids[1], offsets[1])


def model_with_dropout():
    """A float64 model with a dropout of 0.3 whose heads differ, in training mode."""
    torch.manual_seed(3)
    return Transformer(TransformerConfig(30, 8, 2, 2, 16, dropout=0.3)).double().train()


def sentence(encoded, i):
    """Pair i as (source [1, L_s] with EOS, target [1, L_t] with BOS and EOS)."""
    source = encoded.source(i).tolist()
    target = encoded.target(i).tolist()
    return torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target, EOS]])


def found_alone(model, source, target):
    """(-log P of every target token, {component: Heads of every layer}) of one sentence."""
    logits, heads = model(source, target[:, :-1], need_weights=True)
    log_p = logits[0].log_softmax(-1)
    return [-log_p[i, token].item() for i, token in enumerate(target[0, 1:])], heads


def cosine_sum(vectors):
    """(Σ_l -1/H² Σ_i Σ_j cos, number of l) of one sentence's [1, H, L, d_k]."""
    return by_hand.cosine_double_sum(vectors) * vectors.shape[2], vectors.shape[2]


@torch.no_grad()
def test_li2018_section5_5_validation_is_that_of_single_sentences():
    """The loss per target token, whatever the batches hold, and D of every layer.

    Positions by the literal sum of Eq. 2, averaged over the sentences, the cosines over all
    valid positions.
    """
    model = model_with_dropout()
    encoded = corpus()
    groups = batches(encoded.source_lengths, encoded.target_lengths, CROWDED, shuffle=False)
    assert len({len(group) for group in groups}) > 2
    nll, D = validate(model, encoded, CROWDED)
    assert model.training                         # as it came

    still = copy.deepcopy(model).eval()
    tokens = []
    position = {}
    cosines = {}
    for i in range(len(encoded)):
        losses, heads = found_alone(still, *sentence(encoded, i))
        tokens += losses
        for component, layers in heads.items():
            for n, layer in enumerate(layers):
                total = by_hand.position_double_sum(layer.weights, reduce="sum")
                position[component, n] = position.get((component, n), 0) + total
                for kind, vectors in (("subspace", layer.values), ("output", layer.outputs)):
                    total, count = cosine_sum(vectors)
                    before = cosines.get((component, kind, n), (0, 0))
                    cosines[component, kind, n] = before[0] + total, before[1] + count

    assert len(tokens) == encoded.target_lengths.sum() + len(encoded)        # EOS counts
    assert nll == pytest.approx(sum(tokens) / len(tokens), rel=1e-6)             # float32 there
    assert set(D) == {"enc", "cross", "dec"}
    for component, kinds in D.items():
        assert set(kinds) == {"subspace", "position", "output"}
        for n in range(2):
            want = position[component, n] / len(encoded)
            assert kinds["position"][n] == pytest.approx(want, abs=1e-10)
            for kind in ("subspace", "output"):
                total, count = cosines[component, kind, n]
                assert kinds[kind][n] == pytest.approx(total / count, abs=1e-10), (component, kind)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("amp", [False, True])
def test_validation_runs_in_eval_mode_and_leaves_no_trace(training, amp, monkeypatch):
    model = model_with_dropout().float().train(training)
    encoded = corpus()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    seen, hidden = [], model.hidden

    def spy(source, *args, **options):
        autocast = torch.is_autocast_enabled("cpu")
        gradient = torch.is_grad_enabled()
        seen.append((model.training, autocast, gradient, len(source)))
        return hidden(source, *args, **options)
    monkeypatch.setattr(model, "hidden", spy)
    nll, D = validate(model, encoded, CROWDED, amp)
    groups = batches(encoded.source_lengths, encoded.target_lengths, CROWDED, shuffle=False)
    assert seen == [(False, amp, False, len(group)) for group in groups]
    assert model.training == training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    exact, _ = validate(model, encoded, CROWDED)
    assert nll == pytest.approx(exact, abs=0.02) and math.isfinite(nll)


def test_li2018_table4_scores():
    """exp of the mean of D over the layers, not the mean of exp(D)."""
    D = {"enc": {"subspace": [-0.1, -0.5], "position": [-6.0, -4.0], "output": [0.0, -0.2]},
         "dec": {"subspace": [-1.0, -1.0], "position": [-2.0, -2.0], "output": [-0.25, -0.75]}}
    want = {"enc": {"subspace": math.exp(-0.3), "position": math.exp(-5), "output": math.exp(-0.1)},
            "dec": {"subspace": math.exp(-1), "position": math.exp(-2), "output": math.exp(-0.5)}}
    found = disagreement_scores(D)
    assert {c: pytest.approx(kinds) for c, kinds in want.items()} == found
    assert [line.split() for line in score_table(found).splitlines()] == [
        ["subspace", "position", "output"],
        ["enc", "0.741", "0.007", "0.905"],
        ["dec", "0.368", "0.135", "0.607"]]


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_searches_and_scores_as_it_was_told(lowercase, amp, monkeypatch):
    """The search gets the sources, the beam and the length penalty, sacreBLEU what was found."""
    model, calls = model_with_dropout(), []
    pairs = Pairs(["ein Hund", "der Hund sieht", ""], ["a dog", "The dog sees it all day", "x"])
    translations = ["a dog", "the dog sees it all", ""]

    def search(*args, **options):
        calls.append((args, options, torch.is_autocast_enabled("cpu")))
        return translations
    clock = iter([100.0, 101.5])
    monkeypatch.setattr(evaluate, "translate_lines", search)
    monkeypatch.setattr(evaluate.time, "perf_counter", lambda: next(clock))
    found = evaluate.bleu(model, "tokenizer", pairs, 3, 1.25, lowercase, amp)
    hypotheses, score, signature, speed = found
    how = dict(beam=3, lenpen=1.25, progress=True)
    assert calls == [((model, "tokenizer", pairs.source), how, amp)]
    assert hypotheses == translations and speed == 2.0
    from sacrebleu import corpus_bleu
    want = corpus_bleu(translations, [pairs.target], lowercase=lowercase, force=True)
    assert score == want.score > 0
    assert f"case:{'lc' if lowercase else 'mixed'}|" in signature


def test_t_interval():
    """Against the quantile of a table: 4.3027 at two degrees of freedom, 97.5 %."""
    low, high = t_interval([1.0, 2.0, 3.0])
    half = 4.3027 / math.sqrt(3)  # a standard deviation of 1
    assert (low, high) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert t_interval([2.0, 2.0]) == (2.0, 2.0)
    assert t_interval([2.0]) is None and t_interval([]) is None


def test_bleu_interval_holds_the_score():
    """It is wide where sentences differ, and a point where all are right."""
    references = [f"the {i} house stands near a large tree in the old town" for i in range(20)]
    lines = [line if i % 2 else line[:20] for i, line in enumerate(references)]
    score, (low, high) = bleu_interval(lines, references)
    assert score == pytest.approx(corpus_bleu(lines, references)[0])
    assert 5 < high - low < 60 and low < score < high
    assert bleu_interval(references, references)[1] == pytest.approx((100, 100))
