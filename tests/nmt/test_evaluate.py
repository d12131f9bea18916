"""evaluate.py: validation against single sentences, Li 2018 Table 4, BLEU as the script asks."""
from types import SimpleNamespace

import by_hand
import pytest
import torch
from small_run import TEXT, random_pairs, small
from torch.nn.functional import cross_entropy

from nmt import evaluate
from nmt.batches import collate
from nmt.corpus import Pairs
from nmt.evaluate import corpus_bleu, corpus_chrf, score_sets, validate
from nmt.search import translate_lines
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


@torch.no_grad()
def test_validation_is_that_of_single_sentences(corpus):
    """Li 2018 §5.5: D of positions is the literal sum of Eq. 2, averaged over the sentences; the
    cosines are averaged over all valid positions."""
    model = model_with_dropout()
    nll, D = validate(model, corpus, CROWDED)

    model.eval()
    losses = []
    sentences = []                                       # {component: Heads of every layer} of each
    for i in range(len(corpus)):
        source, target = collate(corpus, [i])
        logits, heads = model(source, target[:, :-1], need_weights=True)
        losses.append(cross_entropy(logits[0], target[0, 1:], reduction="none"))
        sentences.append(heads)
    assert nll == pytest.approx(torch.cat(losses).mean().item(), rel=1e-6)
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


def test_validation_leaves_no_trace_also_in_bfloat16(corpus):
    model = model_with_dropout().float()
    state = torch.get_rng_state()
    first = validate(model, corpus, CROWDED)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)             # no dropout was drawn
    nll, _ = validate(model, corpus, CROWDED, amp=True)
    assert nll == pytest.approx(first[0], abs=0.02) and nll != first[0]
    assert validate(model.eval(), corpus, CROWDED) == first and not model.training


def test_li2018_table4_scores():
    """They are exp of the mean of D over the layers, not the mean of exp(D)."""
    D = {"enc": {"subspace": [-0.1, -0.5], "position": [-6.0, -4.0], "output": [0.0, -0.2]},
         "dec": {"subspace": [-1.0, -1.0], "position": [-2.0, -2.0], "output": [-0.25, -0.75]}}
    table = evaluate.score_table(evaluate.disagreement_scores(D))
    assert [line.split() for line in table.splitlines()] == [
        ["subspace", "position", "output"],
        ["enc", "0.741", "0.007", "0.905"],              # exp(-0.3), exp(-5), exp(-0.1)
        ["dec", "0.368", "0.135", "0.607"]]


# ---- BLEU and chrF

def test_bleu_and_chrf_of_a_line():
    """Of 6 words, 5, 4 and 3 n-grams 5, 3, 1 and none match; none counts as 1/2."""
    lines, references = ["the old man sees the dog"], ["the old woman sees the dog"]
    bleu = 100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** (1 / 4)
    assert corpus_bleu(lines, references)[0] == pytest.approx(bleu)
    assert corpus_chrf(lines, references) == pytest.approx(76.24, abs=0.005)


@pytest.mark.parametrize("line, tgt, tokenizer", [
    ("猫和狗在房子里。", "tgt", "zh"), ("东京の" + "大学生很多" * 4, "de", "zh"),
    ("猫が見る。", "jap", "char"), ("東京大学へ", "zh", "char"), ("東京大学", "ja", "char"),
    ("แมวเห็นหมา", "en", "char"), ("고양이가 개를 본다.", "ko", "13a"), ("the cat", "zh", "13a"),
    ("Der Hund 犬", "ja", "13a"), ("42", "de", "13a")])
def test_the_script_of_the_references_chooses_the_tokenizer(line, tgt, tokenizer):
    assert f"case:mixed|eff:no|tok:{tokenizer}|" in corpus_bleu([line], [line], tgt)[1]


def test_case_counts():
    reference = "the old woman sees the dog"
    assert corpus_bleu([reference.upper()], [reference])[0] < 10
    assert corpus_chrf([reference.upper()], [reference]) < 10


def test_translations_are_as_long_as_the_training_text_asks(tokenizer):
    """A model that was not trained writes up to the limit."""
    model = small(tokenizer)
    data = SimpleNamespace(tokenizer=tokenizer, length_ratio=3.0, languages=("en", "de"))
    long, short = (translate_lines(model, tokenizer, TEXT[:2], beam=2, length_ratio=ratio)
                   for ratio in (3.0, 1.5))
    sets = {"test": Pairs(TEXT[:2], [long[0], TEXT[3]])}
    translations, scores = score_sets(model, data, sets, beam=2, lenpen=0.6)
    assert translations["test"] == long != short
    bleu, chrf = corpus_bleu(long, sets["test"].target)[0], corpus_chrf(long, sets["test"].target)
    assert (scores["bleu"], scores["chrf"]) == (bleu, chrf) != (chrf, bleu)
    assert scores["sets"] == {"test": {"bleu": bleu, "chrf": chrf}}
