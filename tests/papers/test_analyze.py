"""papers/analyze.py on two tiny runs. Measurements are checked against loops written from their
definitions."""
import contextlib
import io
import itertools
import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_run import small_corpus, train

from capsule_aggregation import CapsuleAggregation
from nmt.batches import collate
from nmt.command_line import UserError
from nmt.corpus import Pairs
from nmt.evaluate import validate
from nmt.tokenizer import BOS, EOS, SPECIAL_TOKENS
from papers import analyze
from routing_dynamic import dynamic_routing
from routing_em import em_routing

ROUTED = ("--agg em --agg-at enc cross --capsules 4 --reg output --beam 3 --lenpen 2 --lr 0.1 "
          "--clip 0 --name routed")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of two runs, without and with routing, whose layers differ."""
    root = tmp_path_factory.mktemp("analyze")
    text = small_corpus(root)
    with contextlib.redirect_stdout(io.StringIO()):
        for words in ("--heads 4 --name plain", ROUTED):
            train(text, f"--steps 4 --layers 2 --eval-every 2 {words}")
    return [root / "runs" / name for name in ("plain", "routed")]


@pytest.fixture(scope="module")
def run(folders):
    return analyze.load(folders[1], "cpu")


@pytest.mark.parametrize("name", ["train.en", "valid.de", "test.de"])
def test_another_text_than_that_of_the_training_is_refused(folders, name):
    """Of a test set, the references are compared."""
    path = folders[0].parents[1] / name
    content = path.read_bytes()
    path.write_bytes(content.replace(b"a", b"o"))
    with pytest.raises(UserError, match="plain: its text is not the one"):
        analyze.load(folders[0], "cpu")
    path.write_bytes(content)


# ---- Heads

@pytest.mark.parametrize("component", ["enc", "cross", "dec"])
def test_li2021_fig3_head_vectors(run, component):
    total = 0
    words = 0
    for i in range(len(run.data.valid)):
        source, target = collate(run.data.valid, [i])
        with torch.no_grad():
            _, heads = run.model(source, target[:, :-1])
        outputs = torch.stack([h.outputs[0] for h in heads[component]])      # [layers, H, L, d_k]
        total = total + outputs.sum(2)
        words += outputs.shape[2]
    for max_tokens in (30, 10 ** 6):
        vectors = analyze.head_vectors(run, component, max_tokens)
        torch.testing.assert_close(vectors.float(), total / words, atol=1e-5, rtol=1e-4)


def test_the_mean_cosine_of_two_heads():
    heads = torch.tensor([[3.0, 4.0], [-5.0, 0.0], [0.0, 2.0]])      # lengths 5, 5, 2
    assert analyze.mean_cosine(heads) == pytest.approx((-15 / 25 + 8 / 10 + 0) / 3)
    assert analyze.mean_cosine(torch.ones(1, 3)) == 0


def test_a_plane_of_few_points():
    points = torch.randn(2, 8)
    plane = analyze.project(points)
    assert plane.shape == (2, 2) and plane.isfinite().all()
    assert plane.equal(analyze.project(points))


# ---- Attention

def test_a_character_of_several_tokens_is_at_its_first(run):
    tokens = [BOS, *run.data.tokenizer.encode("猫 é.").ids, EOS]
    assert analyze.token_labels(run.data.tokenizer, tokens) == [
        SPECIAL_TOKENS[BOS], "猫", "·", "·", "\u2423", "é", "·", ".", SPECIAL_TOKENS[EOS]]


@pytest.mark.parametrize("component, layer", [("cross", 1), ("enc", 2), ("dec", 2)])
def test_attention_map(run, component, layer):
    A, queries, keys = analyze.attention_map(run, component, layer, run.data.valid, 1)
    source, target = collate(run.data.valid, [1])
    with torch.no_grad():
        _, heads = run.model(source, target[:, :-1], need_weights=True)
    torch.testing.assert_close(A, heads[component][layer - 1].weights[0])
    sides = [lines[1].replace(" ", "") for lines in run.data.valid_pairs]
    source_text, target_text = sides[0] + SPECIAL_TOKENS[EOS], SPECIAL_TOKENS[BOS] + sides[1]
    texts = ["".join(labels).replace("\u2423", "") for labels in (queries, keys)]
    assert texts == [source_text if component == "enc" else target_text,
                     target_text if component == "dec" else source_text]


def test_the_pair_that_is_drawn(run):
    def choose(source, target):
        valid = SimpleNamespace(source_lengths=np.array(source), target_lengths=np.array(target))
        return analyze.choose_pair(run._replace(data=SimpleNamespace(valid=valid)), None)[1]
    assert choose([3, 12, 9, 10], [9, 20, 8, 10]) == 2
    assert choose([30, 20, 18], [2, 20, 28]) == 1


def test_a_users_sentence_is_drawn_with_its_translation(run, monkeypatch):
    translate_lines = Mock(return_value=["ein Haus"])
    monkeypatch.setattr(analyze, "translate_lines", translate_lines)
    pairs, index = analyze.choose_pair(run, " a  cat")
    assert translate_lines.call_args.args == (run.model, run.data.tokenizer, ["a cat"])
    assert translate_lines.call_args.kwargs == dict(beam=3, lenpen=2,
                                                    length_ratio=run.data.length_ratio)
    _, queries, keys = analyze.attention_map(run, "cross", 1, pairs, index)
    assert "".join(keys).replace("\u2423", "") == "acat" + SPECIAL_TOKENS[EOS]
    assert "".join(queries).replace("\u2423", "") == SPECIAL_TOKENS[BOS] + "einHaus"


# ---- Routing

@pytest.mark.parametrize("kind", ["em", "dynamic", "gu-dynamic"])
def test_trace(run, kind, monkeypatch):
    module = run.model.decoder.layers[1].cross.aggregation
    monkeypatch.setattr(module, "routing", kind)
    if kind == "gu-dynamic":
        module = CapsuleAggregation(16, 2, capsules=4, routing="dynamic")
    (heads, masks), = analyze.passes(run, 10 ** 6)
    with torch.no_grad():
        V = module.cast_votes(heads["cross"][1].outputs)[masks["cross"]][:5]         # [P, M, N, D]
        rows = analyze.trace(module, V)
        C = torch.full(V.shape[:-1], 1 / V.shape[-2])
        for t in (1, 2, 3):
            if kind == "em":
                routed = em_routing(V, module.beta_a, module.beta_mu, t)
                following = routed.coupling
            else:
                routed = dynamic_routing(V, t, normalize=kind == "dynamic")
                following = routed.logits.softmax(-1)
            entropy = agreement = 0.0
            for p, m, n in itertools.product(*map(range, C.shape)):
                c = C[p, m, n].item()
                cosine = torch.cosine_similarity(V[p, m, n].double(),
                                                 routed.capsules[p, n].double(), dim=0)
                entropy -= c * math.log(c) / math.log(4) if c > 0 else 0
                agreement += c * cosine.item()
            means = [entropy / C[..., 0].numel(), agreement / C[..., 0].numel()]
            assert rows[t - 1].tolist() == pytest.approx(means, abs=1e-4)
            C = following


def test_routing_statistics(run):
    whole = analyze.routing_statistics(run, 10 ** 6)
    assert whole.keys() == {"enc:1", "enc:2", "cross:1", "cross:2"}
    (heads, masks), = analyze.passes(run, 10 ** 6)
    for i, layer in enumerate(run.model.decoder.layers, 1):
        V = layer.cross.aggregation.cast_votes(heads["cross"][i - 1].outputs)[masks["cross"]]
        assert whole[f"cross:{i}"].equal(analyze.trace(layer.cross.aggregation, V))
    for place, x in analyze.routing_statistics(run, 40).items():
        torch.testing.assert_close(x, whole[place], atol=1e-4, rtol=0)


# ---- BLEU by length

@pytest.mark.parametrize("lengths, bins", [
    (range(1, 6), [(1, 1), (2, 2), (3, 3), (4, math.inf)]), ([3] * 40, [(3, math.inf)]),
    ([20] * 99 + [500], [(16, math.inf)]),
    ([7] * 94 + [90] * 6, [(1, 20), (81, math.inf)])])
def test_bins_fit_the_lengths(lengths, bins):
    assert analyze.fitting_bins(list(lengths)) == bins


def test_lengths_of_lines():
    assert analyze.source_lengths(["a bc  def", ""], "en") == [3, 1]
    assert analyze.source_lengths(["猫 和狗", "", "狗"], "src") == [3, 1, 1]


def test_every_run_has_its_signature(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(analyze, "translate", lambda run, source: source)
    data = run.data._replace(tests={"test": Pairs(["a b"], ["狗看见猫"])})
    chinese = run._replace(folder=tmp_path, data=data)
    analyze.print_length([chinese, run._replace(folder=tmp_path)])
    out = capsys.readouterr().out
    assert out.count("tok:zh") == 1 and out.count("tok:13a") == 1


def test_gu_fig3_bleu_by_length(run, monkeypatch):
    """Right translations score 100, wrong ones nothing: with one of each, a quarter of the samples
    has 100 and a quarter 0, and half of the interval is 50."""
    lines = ["a b c d", "e f g h i", "j k l m n o"]
    data = run.data._replace(tests={"one": Pairs(lines[:1], lines[:1]),
                                    "two": Pairs(lines[1:], lines[1:])})
    monkeypatch.setattr(analyze, "translate", lambda run, source: [*source[:2], "x"])
    scores, bleu, signature = analyze.bleu_by_length(run._replace(data=data),
                                                     [(1, 4), (5, math.inf), (9, 9)])
    assert scores[0] == pytest.approx((1, 100, 0))
    assert 0 < scores[1][1] < 100 and scores[1][::2] == pytest.approx((2, 50))
    assert scores[2][0] == 0 and math.isnan(scores[2][1])
    assert 0 < bleu < 100 and "tok:13a" in signature


# ---- The command

def test_every_part_prints_or_draws(folders, capsys):
    """exp(D) of a layer is that of the validation; the heads of the same width are one figure."""
    plain, routed = folders
    analyze.main([str(plain), str(routed), f"{plain}/", "--device", "cpu", "--component", "cross",
                  "--sentence", "geht das Haus"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    run = analyze.load(routed, "cpu")
    _, D = validate(run.model, run.data.valid, 10 ** 6)
    kinds = [f"{math.exp((first + second) / 2):.3f}" for first, second in D["dec"].values()]
    assert ["routed", "dec", *kinds] in rows
    layers = [f"{math.exp(x):.3f}" for x in D["dec"]["position"]]
    assert ["routed", "dec", *layers, "-", "-", "-", "-"] in rows
    assert "published: output (enc) 0.989 0.006 0.997".split() in rows
    vectors = analyze.head_vectors(run, "cross")
    cosines = [analyze.mean_cosine(x) for x in (vectors.mean(0), *vectors)]
    assert ["routed", *(f"{x:.3f}" for x in cosines)] in rows
    pair = analyze.choose_pair(run, "geht das Haus")
    A, queries, keys = analyze.attention_map(run, "cross", 2, *pair)
    entropies = [sum(-a * math.log(a) for a in head.flatten().tolist()) / len(queries)
                 for head in A]
    assert ["routed", *(f"{x:.3f}" for x in entropies)] in rows and len(queries) < len(keys)
    analyze.main([str(plain), f"{plain}/", "--device", "cpu", "--only", "heads"])
    for name in ("loss", "heads", "attention", "length"):
        assert (plain / f"{name}.png").stat().st_size > 5_000


@pytest.mark.parametrize("words, message", [
    ("gone", "gone"), ("plain --layer 3", "choose from 1 to 2")])
def test_a_mistake_is_one_line(folders, monkeypatch, capsys, words, message):
    monkeypatch.chdir(folders[0].parent)
    with pytest.raises(SystemExit, match="2"):
        analyze.main(words.split())
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
