"""Beam search against a slow twin; a line out for every line in."""
import random
import re

import pytest
import torch
import torch.nn.functional as F

from nmt.search import beam_search, length_limit, translate_lines
from nmt.tokenizer import BOS, EOS
from transformer import PAD, Transformer, TransformerConfig


class Planned(Transformer):
    """A model whose translations end where the plan says, whatever its weights: after
    plan(words of the source [B, 1]) words; never at -1."""
    plan = None

    def decode(self, target, memory, cache=None):
        words = torch.arange(target.shape[1]) + (0 if cache is None else cache.length)
        logits = super().decode(target, memory, cache)
        if self.plan:
            ends = words == self.plan(memory.mask.sum(1, keepdim=True) - 1)  # [B, L]
            ends = ends.repeat_interleave(len(target) // len(ends), dim=0)   # of every hypothesis
            logits[..., EOS] += torch.where(ends, 50.0, -50.0)
        return logits


def tiny(vocab_size=7, plan=None, **flags):
    """A random model in float64, its weights made larger so that its choices differ from step to
    step."""
    config = TransformerConfig(vocab_size, 16, 2, 2, 32, dropout=0.1, **flags)
    model = Planned(config).double().eval()
    model.plan = plan
    for name, weight in model.named_parameters():
        if "norm" not in name:
            weight.data.mul_(3 if "embedding" in name else 2)
    return model


def sentences(count=6):
    """Random padded sentences [B, L_s] of different lengths."""
    pick = random.Random(1)
    rows = [pick.choices((3, 4, 5, 6), k=pick.randint(1, 9)) + [EOS] for _ in range(count)]
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def lp(length, lenpen):
    return ((5 + length) / 6) ** lenpen


def slow_beam_search(model, sentence, beam, lenpen, limit, nbest):
    """The same search for one sentence: plain lists, full passes, no cache, no early stop."""
    memory = model.encode(sentence[sentence != PAD].unsqueeze(0))
    live = [(0.0, [])]
    ended = []
    for t in range(1, limit + 1):
        candidates = []
        for total, words in live:
            logits = model.decode(torch.tensor([[BOS, *words]]), memory)
            for token, p in enumerate(logits[0, -1].log_softmax(-1).tolist()):
                if token not in (PAD, BOS) and (token == EOS or t < limit):
                    candidates.append((total + p, [*words, token]))
        candidates.sort(reverse=True)
        ended += [(p / lp(t, lenpen), words[:-1])
                  for p, words in candidates[:beam] if words[-1] == EOS]
        live = [x for x in candidates if x[1][-1] != EOS][:beam]
        if len(ended) >= beam:
            break
    return sorted(ended, reverse=True)[:nbest]


# ---- Beam search

@torch.no_grad()
@pytest.mark.parametrize("agg", ["linear", "em"])
@pytest.mark.parametrize("beam, nbest, lenpen", [(1, 1, 0.6), (2, 1, 0.6), (3, 3, 0.0),
                                                 (6, 3, 0.6), (4, 1, 8.0)])
def test_beam_search_against_its_slow_twin(agg, beam, nbest, lenpen):
    """The twin is slow with EM routing everywhere and capsule attention: it has two sentences."""
    routed = dict(agg="em", agg_at=("enc", "cross", "dec"), capsule_attention=("enc", "dec"))
    model = tiny(**(routed if agg == "em" else {}))
    source = sentences(count=2 if agg == "em" else 5)
    results = beam_search(model, source, beam, lenpen, max_length=8, nbest=nbest)
    for sentence, hypotheses in zip(source, results):
        expected = slow_beam_search(model, sentence, beam, lenpen, 8, nbest)
        assert [h.tokens for h in hypotheses] == [words for _, words in expected]
        assert [h.score for h in hypotheses] == pytest.approx([s for s, _ in expected], abs=1e-9)


@pytest.mark.parametrize("plan", [None, lambda n: n])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_does_not_depend_on_its_batch(beam, plan):
    """With the plan, sentences of 1 to 9 words leave the batch when they are done."""
    model = tiny(plan=plan)
    source = sentences(count=12)
    lengths = (source != PAD).sum(1).tolist()
    together = beam_search(model, source, beam, nbest=beam)
    assert plan is None or [len(hypotheses[0].tokens) + 1 for hypotheses in together] == lengths
    for i, length in enumerate(lengths):
        alone, = beam_search(model, source[i:i + 1, :length], beam, nbest=beam)
        assert [h.tokens for h in alone] == [h.tokens for h in together[i]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[i]], abs=1e-9)


def test_length_limits():
    """They are 1.5 times the source's tokens, EOS among them, plus 20, or more in a text whose
    targets are longer, or max_length. The translation's EOS counts."""
    source = torch.zeros(4, 10, dtype=torch.long)
    for row, length in zip(source, (0, 1, 2, 9)):
        row[:length] = 3
        row[length] = EOS
    for ratio, want in ((1.5, [21, 23, 24, 35]), (0.7, [21, 23, 24, 35]), (3.1, [23, 26, 29, 51]),
                        (9.5, [29, 39, 48, 115])):
        assert length_limit(source, ratio).tolist() == want
    model = tiny(plan=lambda n: 0 * n - 1)
    for beam in (1, 2):
        for limit, want in ((None, [20, 22, 23, 34]), (5, [4] * 4), (1, [0] * 4)):
            results = beam_search(model, source, beam, max_length=limit)
            assert [len(hypotheses[0].tokens) for hypotheses in results] == want
        results = beam_search(model, source, beam, length_ratio=3.1)
        assert [len(hypotheses[0].tokens) for hypotheses in results] == [22, 25, 28, 50]


# ---- Lines of text

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@torch.no_grad()
def test_a_line_out_for_every_line_in(model, tokenizer):
    lines = ["the dog", "", "a man sees the dog. " * 2 + "a man.", " \t\u3000", "a"]
    translations = translate_lines(model, tokenizer, lines, beam=2, max_tokens=30, lenpen=1.5)
    for line, translation in zip(lines, translations, strict=True):
        want = ""
        if line.strip():
            source = torch.tensor([*tokenizer.encode(line).ids, EOS])        # as in training
            limit = len(source) * 3 // 2 + 20
            (_, words), = slow_beam_search(model, source, 2, 1.5, limit, 1)
            want = CONTROLS.sub(" ", tokenizer.decode(words)).strip()
        assert translation == want
    assert translate_lines(model.train(), tokenizer, lines, beam=2, lenpen=1.5) == translations
    assert model.training                                # as it was
    model.eval()
    assert translate_lines(model, tokenizer, []) == []


def test_a_line_is_read_in_the_form_of_training(model, tokenizer):
    lines = ["Müde  Hunde", " Mu\u0308de\u3000Hun\u200bde\ufeff"]
    first, second = translate_lines(model, tokenizer, lines, beam=1)
    assert first == second


def test_a_translation_is_one_line(tokenizer):
    model = tiny(tokenizer.get_vocab_size())
    words = [*tokenizer.encode(" a\nb\u2028\x9bc\x07 \t").ids, EOS]

    def decode(target, memory, cache):
        word = words[cache.length]
        cache.length += 1
        return 50.0 * F.one_hot(torch.full_like(target, word), tokenizer.get_vocab_size())

    model.decode = decode
    assert translate_lines(model, tokenizer, ["x"], beam=1) == ["a b c"]
