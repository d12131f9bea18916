"""Beam search against a slow twin; lines of any kind in, as many out."""
import inspect
import random
import unicodedata
from unittest.mock import Mock

import pytest
import torch

from nmt import search
from nmt.search import beam_search, translate_lines
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
    config = TransformerConfig(vocab_size, 16, 2, 2, 32, dropout=0.1, tie="none", **flags)
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


# Beam search

@torch.no_grad()
@pytest.mark.parametrize("agg", ["linear", "em"])
@pytest.mark.parametrize("beam, nbest, lenpen", [(1, 1, 0.6), (2, 1, 0.6), (3, 3, 0.0),
                                                 (6, 3, 0.6), (4, 1, 8.0)])
def test_beam_search_against_its_slow_twin(agg, beam, nbest, lenpen):
    """With EM routing everywhere and capsule attention two sentences must do: its passes are
    slow."""
    routed = dict(agg="em", agg_at=("enc", "cross", "dec"), capsule_attention=("enc", "dec"))
    model = tiny(**(routed if agg == "em" else {}))
    source = sentences(count=2 if agg == "em" else 5)
    results = beam_search(model, source, beam, lenpen, max_length=8, nbest=nbest)
    for sentence, hypotheses in zip(source, results):
        expected = slow_beam_search(model, sentence, beam, lenpen, 8, nbest)
        assert [h.tokens for h in hypotheses] == [words for _, words in expected]
        assert [h.score for h in hypotheses] == pytest.approx([s for s, _ in expected], abs=1e-9)


def test_the_search_stops_as_soon_as_nothing_better_can_come(monkeypatch):
    """The empty translation has almost all of P, and no other one ever ends: one step settles it.
    It copies the endings from the device at once, besides them only the scores and their bounds."""
    model = tiny(plan=lambda n: 0 * n)
    steps, copies = [], []
    decode, to_list = model.decode, torch.Tensor.tolist
    monkeypatch.setattr(model, "decode", lambda *args: steps.append(1) or decode(*args))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: copies.append(x.shape) or to_list(x))
    results = beam_search(model, sentences(), 4, 0.6, max_length=14)
    assert (len(steps), len(copies)) == (1, 3)
    assert all(best.tokens == [] for best, in results)
    next(model.parameters()).data.fill_(torch.nan)       # no score is a number
    assert beam_search(model, sentences(count=2), 4) == [[([], -torch.inf)]] * 2


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
    """1.5 times the source's tokens, EOS among them, plus 20, or more in a text whose targets are
    longer, or max_length; the translation's EOS counts."""
    source = torch.zeros(4, 10, dtype=torch.long)
    for row, length in zip(source, (0, 1, 2, 9)):
        row[:length] = 3
        row[length] = EOS
    for ratio, want in ((1.5, [21, 23, 24, 35]), (0.7, [21, 23, 24, 35]), (3.1, [23, 26, 29, 51]),
                        (99.0, [25, 30, 35, 70])):
        assert search.length_limit(source, ratio).tolist() == want
    model = tiny(plan=lambda n: 0 * n - 1)
    for beam in (1, 2):
        for limit, want in ((None, [20, 22, 23, 34]), (5, [4] * 4), (1, [0] * 4)):
            results = beam_search(model, source, beam, max_length=limit)
            assert [len(hypotheses[0].tokens) for hypotheses in results] == want
        results = beam_search(model, source, beam, length_ratio=3.1)
        assert [len(hypotheses[0].tokens) for hypotheses in results] == [22, 25, 28, 50]
    with pytest.raises(ValueError, match="nbest=3"):
        beam_search(model, source, beam=2, nbest=3)
    with pytest.raises(ValueError, match="lenpen=-1"):   # a longer hypothesis could still win
        beam_search(model, source, lenpen=-1)


@pytest.mark.parametrize("function", [beam_search, translate_lines, search.translate_text])
def test_the_search_has_the_defaults_of_vaswani_2017(function):
    """As the flags of translate.py have them."""
    defaults = {x.name: x.default for x in inspect.signature(function).parameters.values()}
    assert (defaults["beam"], defaults["lenpen"], defaults["length_ratio"]) == (4, 0.6, 1.5)
    assert (defaults.get("max_tokens", 8192), defaults.get("max_source", 512)) == (8192, 512)


# Lines of text

@torch.no_grad()
def test_order_is_kept_and_blank_lines_stay_blank(model, tokenizer):
    """Lines that are longer than max_source are translated in pieces."""
    lines = ["the dog", "", "a man sees the dog. " * 2 + "a man.", " \t\u3000", "a"]
    translations = translate_lines(model, tokenizer, lines, beam=2, max_tokens=30, lenpen=1.5)
    for line, translation in zip(lines, translations, strict=True):
        want = ""
        if line.strip():
            source = torch.tensor([*tokenizer.encode(line).ids, EOS])        # as in training
            limit = len(source) * 3 // 2 + 20
            (_, words), = slow_beam_search(model, source, 2, 1.5, limit, 1)
            want = search.to_line(words, tokenizer)
        assert translation == want
    assert translate_lines(model.train(), tokenizer, lines, beam=2, lenpen=1.5) == translations
    assert model.training                                # as it was
    model.eval()
    assert translate_lines(model, tokenizer, []) == []
    with pytest.raises(ValueError, match="give a list"):
        translate_lines(model, tokenizer, "a man sees the dog.")
    length = len(tokenizer.encode("a man sees the dog.").ids)
    part, = translate_lines(model, tokenizer, ["a man sees the dog."], beam=3)
    whole, = translate_lines(model, tokenizer, ["a man sees the dog. " * 4], 3, max_source=length)
    assert whole == " ".join([part] * 4)


def test_a_batch_has_at_most_max_tokens_in_all_beams(model, tokenizer, monkeypatch):
    search_batch = Mock(wraps=beam_search)
    monkeypatch.setattr(search, "beam_search", search_batch)
    translate_lines(model, tokenizer, ["a dog"] * 30, beam=3, max_tokens=100)
    assert 50 < max(3 * call.args[1].numel() for call in search_batch.call_args_list) <= 100


def test_long_translations_are_counted(tokenizer):
    """Three words for one are whole only if the limit allows them; pieces count once per line."""
    model = tiny(tokenizer.get_vocab_size(), plan=lambda n: 3 * n)
    words = " ".join("abcdefghij" * 3)
    lines = ["a", words, "", f"{words}. {words}."]
    for ratio, at_limit in ((1.5, [False, True, False, True]), (3.0, [False] * 4)):
        translations = list(search.translate_text(model, tokenizer, lines, 1, max_source=70,
                                                  length_ratio=ratio))
        assert [translation.pieces for translation in translations] == [1, 1, 0, 2]
        assert [translation.at_limit for translation in translations] == at_limit
        assert search.count_long(translations) == (1, sum(at_limit))
    assert search.describe_long(0, 0) == []
    assert [message[-3:] for message in search.describe_long(1, 2)] == [": 1", ": 2"]


def cut(line, tokenizer, limit=20):
    """The pieces of a line as text."""
    return [tokenizer.decode(ids) for ids in search.pieces(line, tokenizer, limit)]


def test_pieces_are_short_and_lose_nothing(tokenizer):
    for line in ("The dog sees. A man sees! " * 9, "a man sees the dog " * 1_000, "x" * 9_000,
                 "猫が見る。犬が見る。" * 8, "😀 " * 30, "a dog " + "A" * 99 + " a man",
                 "x" + "\u0301" * 99):
        assert "".join(cut(line, tokenizer)).replace(" ", "") == line.replace(" ", "")
        assert all(0 < len(ids) <= 20 for ids in search.pieces(line, tokenizer, 20))
    assert cut("😀😀", tokenizer, 2) == ["😀", "😀"]       # a letter of four tokens stays whole


def test_a_long_line_is_cut_at_sentences_then_at_spaces(tokenizer):
    line = "The dog sees it. A man sees! " * 2
    assert cut(line, tokenizer) == ["The dog sees it.", "A man sees!"] * 2
    assert cut("the dog sees a man", tokenizer) == ["the dog sees a man"]
    assert cut("AAAAAAA BBBBB CCCCCC DDDDD", tokenizer) == ["AAAAAAA BBBBB", "CCCCCC DDDDD"]
    assert cut(" \t\u3000", tokenizer) == []
    assert cut("  the dog \t", tokenizer) == ["the dog"]
    assert cut("किताब यहाँ है। कलम है।", tokenizer, 40) == ["किताब यहाँ है।", "कलम है।"]


@pytest.mark.parametrize("end", ".!?…؟۔।॥၊။།։።。！？")
def test_a_sentence_ends_at_its_mark(end, tokenizer):
    """Not in the middle of the line."""
    short, long = f"A dog{end}", f"It sees a man sees{end}"
    limit = len(tokenizer.encode(long).ids) + 2
    assert cut(f"{short} {long}", tokenizer, limit) == [short, long]


def test_a_long_word_is_cut_between_letters(tokenizer):
    """Not before a mark, nor at a joiner."""
    for line in ("ไม้เท้าไม้เท้า" * 9, "ක්‍රියා" * 20):
        parts = cut(line, tokenizer)
        assert "".join(parts) == line and len(parts) > 8
        assert not [part for part in parts if unicodedata.category(part[0]) in ("Mn", "Mc", "Cf")]
    assert search.find_cuts("क्‍षक्‍ष") == [4]             # not behind a joiner either


def test_a_translation_is_one_line(tokenizer):
    tokens = tokenizer.encode(" a\nb\u2028\x9bc\x07 \t").ids
    assert search.to_line(tokens, tokenizer) == "a b c"
