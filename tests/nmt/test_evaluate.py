"""evaluate.py: validation against single sentences, Li 2018 Table 4, scores of lines."""
from argparse import Namespace

import by_hand
import numpy as np
import pytest
import torch
from small_run import random_pairs, small
from torch.nn.functional import cross_entropy

from nmt import evaluate
from nmt.batches import collate
from nmt.corpus import Pairs
from nmt.evaluate import corpus_bleu, validate
from nmt.search import Translation, translate_lines
from nmt.tokenizer import EOS
from tools.files import UserError
from transformer import Transformer, TransformerConfig

CROWDED = 45                                      # tokens of a batch: `corpus` has several


@pytest.fixture
def corpus():
    """Pairs whose sides differ in length from each other and from pair to pair."""
    return random_pairs(17, longest=11)


def model_with_dropout():
    """A float64 model with a dropout of 0.3 whose heads differ, in training mode."""
    torch.manual_seed(3)
    return Transformer(TransformerConfig(30, 8, 2, 2, 16, dropout=0.3)).double().train()


@pytest.mark.parametrize("left_out", [0, 3])             # a batch of three
@torch.no_grad()
def test_li2018_section5_5_validation_is_that_of_single_sentences(left_out, corpus, monkeypatch,
                                                                  capsys):
    """The loss per target token, whatever the batches hold, and D of every layer: positions by the
    literal sum of Eq. 2, averaged over the sentences, the cosines over all valid positions. Pairs
    too long for the memory are left out, as if they were not there."""
    model = model_with_dropout()
    m, n = corpus.source_lengths + 1, corpus.target_lengths + 1
    weights = 2 * 2 * (m * m + n * m + n * n)            # of 2 heads in 2 layers
    monkeypatch.setattr(evaluate, "LONGEST", weights.max() - bool(left_out))
    groups = list(evaluate.validation_batches(corpus, CROWDED, heads=2 * 2))
    kept = np.concatenate(groups)
    assert len(kept) == 17 - left_out and (weights.argmax() in kept) == (left_out == 0)
    assert len({len(group) for group in groups}) > 2
    nll, D = validate(model, corpus, CROWDED)
    warning = "left out of the validation loss and of D: 3 of 17"
    assert (warning in capsys.readouterr().out) == bool(left_out)

    model.eval()
    losses = []
    sentences = []                                       # {component: Heads of every layer} of each
    for i in kept:
        source, target = collate(corpus, [i])
        logits, heads = model(source, target[:, :-1], need_weights=True)
        losses.append(cross_entropy(logits[0], target[0, 1:], reduction="none"))
        sentences.append(heads)
    assert nll == pytest.approx(torch.cat(losses).mean().item(), rel=1e-6)       # float32 there
    assert set(D) == {"enc", "cross", "dec"}
    for component, scores in D.items():
        for n in range(2):
            layers = [heads[component][n] for heads in sentences]
            position = [by_hand.position_double_sum(x.weights, reduce="sum") for x in layers]
            expected = {
                "subspace": by_hand.cosine_double_sum(torch.cat([x.values for x in layers], 2)),
                "position": sum(position) / len(position),
                "output": by_hand.cosine_double_sum(torch.cat([x.outputs for x in layers], 2))}
            layer_scores = {kind: layers[n] for kind, layers in scores.items()}
            assert layer_scores == pytest.approx(expected, abs=1e-10)


def test_validation_leaves_no_trace_and_is_about_the_same_in_bfloat16(corpus):
    model = model_with_dropout().float()
    state = torch.get_rng_state()
    first = validate(model, corpus, CROWDED)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)             # no dropout was drawn
    nll, _ = validate(model, corpus, CROWDED, amp=True)
    assert nll == pytest.approx(first[0], abs=0.02) and nll != first[0]
    assert validate(model.eval(), corpus, CROWDED) == first and not model.training


def test_validation_batches_have_bounded_attention_weights(corpus, monkeypatch):
    assert (evaluate.WEIGHTS, evaluate.LONGEST) == (2 ** 27, 2 ** 29)
    monkeypatch.setattr(evaluate, "WEIGHTS", 600)        # fewer than the longest pair has
    groups = list(evaluate.validation_batches(corpus, CROWDED, heads=2))
    assert sorted(np.concatenate(groups)) == list(range(len(corpus)))
    for group in groups:
        m = corpus.source_lengths[group].max() + 1
        n = corpus.target_lengths[group].max() + 1
        assert len(group) == 1 or len(group) * 2 * (m * m + m * n + n * n) <= 600
    monkeypatch.undo()
    assert len(list(evaluate.validation_batches(corpus, CROWDED, heads=2))) < len(groups)
    monkeypatch.setattr(evaluate, "LONGEST", 3)
    with pytest.raises(UserError, match="--valid: every pair is too long"):
        validate(model_with_dropout(), corpus, CROWDED)


def test_li2018_table4_scores():
    """exp of the mean of D over the layers, not the mean of exp(D)."""
    D = {"enc": {"subspace": [-0.1, -0.5], "position": [-6.0, -4.0], "output": [0.0, -0.2]},
         "dec": {"subspace": [-1.0, -1.0], "position": [-2.0, -2.0], "output": [-0.25, -0.75]}}
    table = evaluate.score_table(evaluate.disagreement_scores(D))
    assert [line.split() for line in table.splitlines()] == [
        ["subspace", "position", "output"],
        ["enc", "0.741", "0.007", "0.905"],              # exp(-0.3), exp(-5), exp(-0.1)
        ["dec", "0.368", "0.135", "0.607"]]


REFERENCES = [f"the {i} house stands near a large tree in the old town" for i in range(40)]
SMALLER = [line.replace("large", "small") if i % 2 else line for i, line in enumerate(REFERENCES)]


@pytest.mark.parametrize("line, tgt, tokenizer", [
    # unknown and wrong names: the text decides
    ("猫和狗在房子里。", "tgt", "zh"), ("故天将降大任于是人也", "lzh", "zh"),
    ("东京の" + "大学生很多" * 4, "de", "zh"), ("东京の" + "大学生很多" * 3, "de", "char"),
    ("猫が見る。", "jap", "char"),
    ("東京大学へ", "zh", "char"), ("ラーメン、CD", "trg", "char"),
    ("แมวเห็นหมา", "en", "char"), ("ແມວເຫັນໝາ", "x", "char"),
    ("ឆ្មាឃើញឆ្កែ", "x", "char"), ("ကြောင်က ခွေးကို မြင်တယ်", "x", "char"),
    ("བྱི་ལས་ཁྱི་མཐོང་", "dz", "char"), ("고양이가개를본다", "ko", "char"),
    ("고양이가개를 본다.", "ko", "13a"), ("the cat", "zh", "13a"), ("बिल्ली देखती है", "x", "13a"),
    ("Der Hund 犬", "ja", "13a"),
    # no letters: the name decides
    *[("42", code, "13a") for code in ("de", "", "cs")],
    *[("42", code, "zh") for code in "zh ZH zh-CN zho_Hans cmn yue".split()],
    *[("42", code, "char") for code in "ja jpn th tha lo lao km khm my mya.clean bo bod".split()]])
def test_the_text_chooses_the_tokenizer(line, tgt, tokenizer):
    assert f"case:mixed|eff:no|tok:{tokenizer}|" in corpus_bleu([line], [line], tgt)[1]
    assert "case:mixed|" in evaluate.corpus_chrf([line], [line])[1]


@pytest.mark.parametrize("line, warning", [
    ("the o@@ ld wo@@ man", "segmented or tokenized, as in 'the o@@ ld wo@@ man'"),
    ("the old wo@@", "segmented or tokenized"),
    ("▁the ▁old ▁wo man", "segmented or tokenized"),
    ("the old woman " * 9 + ".",
     "segmented or tokenized, as in ' old woman the old woman the old woman .'"),
    ("die mu\u0308de Frau", "1 of 9 references are not in NFC"),
    ("die\u200b Frau", "have invisible characters"), ("the  old woman\xa0sees . . . it.", None),
    ("a@@b @ c", None), ("猫が見る 。", None)])
def test_unusual_references_are_one_warning(line, warning):
    """Each kind, in a text of nine lines; the Japanese one is scored by characters."""
    references = [line, *([line[-4:] if "猫" in line else "the dog"] * 8)]
    warnings = evaluate.reference_warnings(references, "de")
    assert len(warnings) == (warning is not None)
    assert not warning or warning in warnings[0]
    if warning and "segmented" in warning:               # a tenth of the lines, not fewer
        assert len(evaluate.reference_warnings([*references, "the dog"], "de")) == 1
        assert not evaluate.reference_warnings([*references, "the dog", "the dog"], "de")


@pytest.mark.parametrize("lines, references", [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], [])])
@pytest.mark.parametrize("score_lines", [corpus_bleu, evaluate.corpus_chrf])
def test_every_translation_needs_one_reference(score_lines, lines, references):
    with pytest.raises(UserError, match="one reference for each translation"):
        score_lines(lines, references)


def test_a_test_set_may_have_the_name_of_the_validation_set():
    data = Namespace(pairs=1, train=[0], valid=Namespace(source_lengths=np.array([1])), tgt="de",
                     longest_source=1, valid_pairs=Pairs(["a"], ["das Ha@@ us"]),
                     tests={"valid": Pairs(["a"], ["das Haus"])})
    warning, = evaluate.text_warnings(data, max_length=9)
    assert warning.startswith("valid: the references are segmented or tokenized")


def score(sets: dict, model=None, tokenizer=None, beam=1, longest_source=99, tgt="de", **settings):
    """`score_sets` with these settings."""
    data = Namespace(tokenizer=tokenizer, longest_source=longest_source, length_ratio=3.0, tgt=tgt)
    return evaluate.score_sets(model, data, sets, beam, **settings)


def test_case_and_language_reach_every_score(monkeypatch):
    """Right words in other letters or with other blanks score 100 without case, or in a language
    without spaces: in each test set and in all as one. 80 sentences in 2 s are 40 per second."""
    monkeypatch.setattr(evaluate, "translate_text", lambda model, tokenizer, lines, **_: [
        Translation(line.upper().replace(" 5678", "5678"), 1, False) for line in lines])
    words = {"old": Pairs(SMALLER, SMALLER), "new": Pairs(REFERENCES, REFERENCES)}
    digits = {name: Pairs(["1234 5678"] * 40, ["1234 5678"] * 40) for name in words}
    for sets, lowercase, tgt in ((words, True, "de"), (digits, False, "ja"), (words, False, "de")):
        monkeypatch.setattr(evaluate, "time", Namespace(perf_counter=iter((5.0, 7.0)).__next__))
        scores = score(sets, tgt=tgt, lenpen=0.6, lowercase=lowercase)
        numbers = [scores.bleu, scores.chrf]
        for x in scores.sets.values():
            numbers += x.values()
        assert len(numbers) == 6 and scores.sentences_per_second == 40
        right = lowercase or tgt == "ja"
        assert numbers == pytest.approx([100] * 6) if right else max(numbers) < 10


def test_lines_longer_than_those_of_training_are_cut(tokenizer):
    """Translations that never end are as long as the training text allows; the length penalty makes
    others longer."""
    model = small(tokenizer)
    lines = ["a man sees the dog. " * 4]
    scores = score({"test": Pairs(lines, lines)}, model, tokenizer, longest_source=20, lenpen=0.6,
                   lowercase=False)
    pieces, whole = (translate_lines(model, tokenizer, lines, 1, max_source=n, length_ratio=3.0)
                     for n in (20, 99))
    assert scores.translations["test"] == pieces != whole
    assert scores.in_pieces == scores.at_limit == 1
    model.output.weight.data[EOS] *= 4                   # so that some translations end
    lengths = []
    for lenpen in (0.0, 5.0):
        scores = score({"test": Pairs(["the dog", "a man sees"], ["der Hund", "ein Mann sieht"])},
                       model, tokenizer, 4, lenpen=lenpen, lowercase=False)
        lengths.append(sum(map(len, scores.translations["test"])))
    assert lengths[0] < lengths[1]
