"""What is measured and drawn of runs (analyze.py, figures.py, measure.py), on tiny models with
random weights. The measurements are held against loops written from their definitions."""

import json
import math
import re
import shutil
from argparse import Namespace
from dataclasses import asdict

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from outside import SHARED

import analyze
from capsule_transformer import horizontal_routing, vertical_routing
from nmt import corpus, run_folder
from nmt.batches import collate
from nmt.corpus import Corpora, Pairs
from nmt.encoded import encode_pairs
from nmt.evaluate import disagreement_scores
from nmt.tokenizer import BOS, EOS, SPECIAL_TOKENS, save_tokenizer, train_tokenizer
from papers import ablation, figures, measure
from papers.run_text import read_text
from papers.tables import TABLES
from transformer import PAD, Transformer, TransformerConfig

PAPER = SHARED / "papers" / "li2018-disagreement.txt"
NOUNS = {"man": "Mann", "dog": "Hund", "boy": "Junge"}
PLACES = {"": "", "in the park": "im Park", "in the park near a house": "im Park bei einem Haus"}
ENGLISH = [
    f"a {noun} {verb} {place} .".replace("  ", " ")
    for noun in NOUNS
    for verb in ("walks", "runs")
    for place in PLACES
]
GERMAN = [
    f"ein {noun} {verb} {place} .".replace("  ", " ")
    for noun in NOUNS.values()
    for verb in ("geht", "rennt")
    for place in PLACES.values()
]
ROUTED = dict(
    agg="em", agg_at=("enc:1", "cross:2"), capsules=4, capsule_attention=("enc:1", "dec:2")
)
PLAIN, GU = {"agg": "linear"}, dict(agg="gu-em", agg_at=("enc:2",))
DYNAMIC = dict(agg="dynamic", agg_at=("dec",), capsules=4)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(ENGLISH + GERMAN, 300, exact=False)


def random_model(tokenizer, flags: dict) -> Transformer:
    """A model whose parameters, biases too, are all drawn at random, so that heads and routings
    differ."""
    torch.manual_seed(1)
    config = TransformerConfig(
        tokenizer.get_vocab_size(), d_model=16, heads=4, layers=2, d_ff=16, **flags
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


@pytest.fixture(scope="module")
def make(tokenizer):
    """A function: the run of a model with such flags, and the small corpus as its text."""
    pairs = Pairs(ENGLISH, GERMAN)

    def run(flags, name="run"):
        text = Corpora("text", "en", "de", None, pairs, pairs, None)
        return measure.Run(
            name,
            random_model(tokenizer, flags),
            tokenizer,
            {"beam": 1},
            text,
            encode_pairs(tokenizer, pairs),
        )

    return run


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory):
    """A folder with the text and two run folders, plain and routed, as train_mt.py writes them."""
    root = tmp_path_factory.mktemp("analyze")
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (root / f"text.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, flags in (("plain", PLAIN), ("routed", ROUTED)):
        model = random_model(tokenizer, flags)
        prefix = str(root / "text")
        settings = {
            "model": asdict(model.config),
            "data": "toy",
            "data_dir": "data",
            "train": prefix,
            "valid": prefix,
            "test": prefix,
            "src": "en",
            "tgt": "de",
            "beam": 1,
            "lenpen": 0.6,
            "lowercase": False,
        }
        with run_folder.RunFolder(root / name, settings) as folder:
            save_tokenizer(tokenizer, folder.tokenizer)
            run_folder.save(folder.best, {"model": model.state_dict()})
    return root


# ---- Disagreement


def published(name: str) -> dict[str, list[float]]:
    """{row: the numbers of a published table}."""
    numbers = {}
    for row in TABLES[name].rows:
        numbers[row.label] = [float(cell) for cell in row.published]
    return numbers


def test_li2018_table5_layers_give_table4():
    """The layers of Table 5, averaged as D and not as exp(D), give Table 4's score of the
    positions."""
    scores = {}
    for row, layers in published("li2018-5").items():
        D = [math.log(x) for x in layers]
        scores[row] = disagreement_scores({"enc": {"position": D}})["enc"]["position"]
    printed = {row: position for row, (_, position, _) in published("li2018-4").items()}
    assert scores["n/a"] == pytest.approx(0.0069, abs=5e-5)
    for row in ("n/a", "subspace", "position"):  # the output row gives 0.0071, and 0.006 is printed
        assert round(scores[row], 3) == pytest.approx(printed[row], abs=1.1e-3), row
    assert round(sum(published("li2018-5")["n/a"]) / 6, 3) != printed["n/a"]


@pytest.mark.skipif(not PAPER.exists(), reason="the papers are not here")
def test_published_numbers_are_the_papers():
    text = PAPER.read_text(encoding="utf-8")
    short = {"n/a": "n/a", "subspace": "Sub.", "position": "Pos.", "output": "Out."}
    for row, numbers in published("li2018-4").items():
        name = row if row == "n/a" else row.capitalize()
        cells = "".join(f"\t{x:.3f}" for x in numbers)
        assert re.search(rf"^{re.escape(name + cells)}", text, re.M), row
    for row, numbers in published("li2018-5").items():
        cells = "".join(f"\t{x:.3f}" for x in numbers)
        assert re.search(rf"^{re.escape(short[row] + cells)}", text, re.M), row


def test_li2018_tables_4_and_5_scores(make):
    """exp(D) of every component, kind and layer by loops over sentences, positions and pairs of
    heads; the position score by the literal sum over a sentence's cells; the mean is that of D over
    the layers."""
    run = make(ROUTED)
    sums = {}
    words = {}

    for i in range(len(run.encoded)):
        heads, _, _, tokens = measure.sentence_heads(run, i)
        for component, (queries, keys) in tokens.items():
            for layer, h in enumerate(heads[component]):
                V, A, O = (x[0].double() for x in (h.values, h.weights, h.outputs))  # [H, L, .]
                V = V / V.norm(dim=-1, keepdim=True)
                O = O / O.norm(dim=-1, keepdim=True)
                totals = {"subspace": 0.0, "output": 0.0, "position": 0.0}
                for a in range(4):
                    for b in range(4):
                        totals["subspace"] += (V[a] * V[b]).sum().item()
                        totals["output"] += (O[a] * O[b]).sum().item()
                        totals["position"] += (A[a] * A[b]).sum().item()
                counts = {"subspace": len(keys), "output": len(queries), "position": 1}
                for kind, total in totals.items():
                    key = component, kind, layer
                    sums[key] = sums.get(key, 0) - total / 16
                    words[key] = words.get(key, 0) + counts[kind]
    found = measure.scores(run, 10**6)
    places = set()
    for component, kinds in found["layers"].items():
        for kind, layers in kinds.items():
            for layer, score in enumerate(layers):
                key = component, kind, layer
                places.add(key)
                assert score == pytest.approx(math.exp(sums[key] / words[key]), abs=1e-5), key
    assert places == set(sums)
    for component, kinds in found["layers"].items():
        for kind, (first, second) in kinds.items():
            assert found["mean"][component][kind] == pytest.approx(math.sqrt(first * second))


# ---- Heads as vectors


@pytest.mark.parametrize("component", ["enc", "cross", "dec"])
def test_li2021_fig3_head_vectors(make, component):
    """The mean over the words, sentence by sentence and word by word, whatever the batches."""
    run = make(ROUTED)
    total, words = torch.zeros(2, 4, 4), 0
    for i in range(len(run.encoded)):
        source, target = collate(run.encoded, [i])
        with torch.no_grad():
            _, heads = run.model(source, target[:, :-1])
        for word in range(source.shape[1] if component == "enc" else target.shape[1] - 1):
            for layer in range(2):
                for h in range(4):
                    total[layer, h] += heads[component][layer].outputs[0, h, word]
            words += 1
    found = measure.head_vectors(run, component, 60)
    assert found.shape == (2, 4, 4)
    torch.testing.assert_close(found.float(), total / words, atol=1e-5, rtol=1e-4)


def test_dispersion():
    found = measure.dispersion(
        torch.diag(torch.tensor([1.0, 2.0]))
    )  # orthogonal heads of length 1 and 2
    assert found == {"cosine": pytest.approx(0), "distance": pytest.approx(math.sqrt(5) / 1.5)}
    assert measure.dispersion(torch.ones(1, 3)) == {"cosine": 0, "distance": 0}
    heads = [[3.0, 4.0], [-5.0, 0.0], [0.0, 2.0]]  # lengths 5, 5, 2; three pairs
    found = measure.dispersion(torch.tensor(heads))
    cosines = [-15 / 25, 8 / 10, 0]
    assert found == {
        "cosine": pytest.approx(sum(cosines) / 3),
        "distance": pytest.approx(
            sum(math.dist(a, b) for a, b in (heads[:2], heads[::2], heads[1:])) / 3 / 4
        ),
    }


def test_few_heads_are_drawn_as_cosines(make, monkeypatch, tmp_path):
    """Below six points a t-SNE shows nothing; the 8 heads of both layers make one of their own."""
    drawn = {}
    for name in ("cosines", "heads"):
        monkeypatch.setattr(figures, name, lambda *given, name=name: drawn.update({name: given}))
    vectors = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-1.0, 0.0]]]).repeat(2, 1, 1)
    monkeypatch.setattr(measure, "head_vectors", lambda *given: vectors)
    monkeypatch.setattr(measure, "project", lambda points: points)
    settings = Namespace(component="enc", max_tokens=9)
    found, text, files = analyze.heads([make(PLAIN)], [], settings, tmp_path)
    assert files == ["cosines.png", "heads.png"] and found["run"]["points"] is None
    ((name, matrix),) = drawn["cosines"][0].items()
    half = math.sqrt(0.5)
    assert name == "run" and matrix[0] == pytest.approx([1, 0, half, -1])
    assert matrix[2] == pytest.approx([half, half, 1, -half])
    assert drawn["heads"][1] is None and len(drawn["heads"][2][0]) == 2


# ---- Heads left out


@pytest.mark.parametrize("flags", [PLAIN, ROUTED], ids=["linear", "routed"])
def test_michel2019_a_head_left_out_is_0_for_the_aggregation(make, flags):
    """O^h of the one head in the one place; of a linear aggregation the same as without its columns
    of W^O."""
    run, seen = make(flags), {}
    places = measure.attentions(run.model)
    for place, attention in places.items():
        attention.aggregation.register_forward_hook(
            lambda module, given, out, place=place: seen.update({place: (given[0], out)})
        )
    source, target = collate(run.encoded, [0, 2])
    with torch.no_grad():
        run.model(source, target[:, :-1])
        whole = dict(seen)
        with ablation.without_head(places["enc:1"], 2):
            run.model(source, target[:, :-1])
        given, out = seen["enc:1"]
        before = whole["enc:1"][0]
        assert given[:, 2].eq(0).all() and before[:, 2].ne(0).any()
        kept = [0, 1, 3]
        assert torch.equal(given[:, kept], before[:, kept])
        assert seen["cross:2"][0][:, 2].ne(0).any()
        if flags is PLAIN:
            linear = places["enc:1"].aggregation
            O = before.transpose(1, 2).flatten(2)  # [B, L, d]
            O[..., 8:12] = 0  # head 2 of width 4
            torch.testing.assert_close(linear.output(O), out)
        run.model(source, target[:, :-1])
    assert torch.equal(seen["enc:1"][1], whole["enc:1"][1])  # nothing is left behind


def test_costs_are_the_bleu_that_is_lost(make, monkeypatch):
    """A sentence for every head that is worth one: which hooks are there tells which head is
    masked."""
    run = make(PLAIN)
    places = measure.attentions(run.model)
    worth = {("enc", 2, 1): 6, ("dec", 1, 0): 18}

    def translate_lines(model, tokenizer, source, beam, lenpen):
        lost = 0
        for place, attention in places.items():
            for hook in attention.aggregation._forward_pre_hooks.values():
                (O,) = hook(attention.aggregation, (torch.ones(1, 4, 1, 1),))
                component, _, layer = place.partition(":")
                head = O.flatten().tolist().index(0)
                lost += worth.get((component, int(layer), head), 0)
        assert (beam, lenpen) == (3, 0.6) and source == ENGLISH
        return ["x"] * lost + GERMAN[lost:]

    monkeypatch.setattr(ablation, "translate_lines", translate_lines)
    found = ablation.costs(run._replace(corpora=run.corpora._replace(test=None)), 3)
    assert found["bleu"] == pytest.approx(100) and list(found["cost"]) == ["enc", "cross", "dec"]
    assert found["cost"]["dec"][0][0] == pytest.approx(100)
    assert 10 < found["cost"]["enc"][1][1] < 90
    others = [x for layers in found["cost"].values() for heads in layers for x in heads]
    assert len(others) == 24 and sum(abs(x) > 1e-6 for x in others) == 2
    assert found["mean"] == pytest.approx(sum(others) / 24)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_plane_of_few_points(n):
    points = torch.randn(n, 8)
    found = measure.project(points)
    assert found.shape == (n, 2) and found.isfinite().all()
    if n >= 4:
        assert len(found.unique(dim=0)) == n
    assert torch.equal(measure.project(points[:1].expand(n, -1)), torch.zeros(n, 2))


# ---- Attention and routing


def joined(labels: list[str]) -> str:
    """The text that labels stand for, without blanks."""
    return "".join(label.removeprefix("-").replace("\u2423", "") for label in labels)


@pytest.mark.parametrize(
    "component, layer, taken",
    [("cross", 1, 0), ("cross", 2, 1), ("cross", None, 1), ("enc", 1, 0), ("dec", None, 1)],
)
def test_attention_map(make, component, layer, taken):
    """The weights are the model's own, of that component and layer, the top one by default; tokens
    on their axes."""
    run = make(ROUTED)
    found = measure.attention_map(run, component, layer, 1)
    source, target = collate(run.encoded, [1])
    with torch.no_grad():
        _, heads = run.model(source, target[:, :-1], need_weights=True)
    weights = torch.tensor(found["weights"])  # [H, L_q, L_k]
    torch.testing.assert_close(weights, heads[component][taken].weights[0])
    assert (
        weights.shape == (4, len(found["queries"]), len(found["keys"]))
        and found["layer"] == taken + 1
    )
    for h in range(4):
        rows = []
        for row in weights[h].tolist():
            rows.append(-sum(a * math.log(a) for a in row if a > 0))
        assert found["entropy"][h] == pytest.approx(sum(rows) / len(rows), abs=1e-5)
    for tokens, decoder in (
        (found["queries"], component != "enc"),
        (found["keys"], component == "dec"),
    ):
        if decoder:  # as the decoder reads it
            assert tokens[0] == SPECIAL_TOKENS[BOS] and joined(tokens[1:]) == GERMAN[1].replace(
                " ", ""
            )
        else:
            assert tokens[-1] == SPECIAL_TOKENS[EOS] and joined(tokens[:-1]) == ENGLISH[1].replace(
                " ", ""
            )


@pytest.mark.parametrize("flags", [ROUTED, DYNAMIC, GU], ids=["em", "dynamic", "gu-em"])
def test_votes_and_routing_are_the_modules_own(make, flags):
    """What is traced is what the model computed: votes by a hook on the aggregation, its output
    from the capsules."""
    run = make(flags)
    inputs = {}
    outputs = {}

    def kept_at(place):
        def hook(module, given, out):
            inputs[place] = given[0]
            outputs[place] = out
        return hook

    for place, attention in measure.attentions(run.model).items():
        attention.aggregation.register_forward_hook(kept_at(place))
    with torch.no_grad():
        heads, logits, masks, _ = measure.sentence_heads(run, 2)
        found = {}
        for place, cast in measure.cast_votes(run.model, heads, logits, masks).items():
            if " " not in place:
                found[place] = cast
        places = {"em": {"enc:1", "cross:2"}, "dynamic": {"dec:1", "dec:2"}, "gu-em": {"enc:2"}}
        assert found.keys() == places[flags["agg"]]
        for place, cast in found.items():
            torch.testing.assert_close(
                cast.votes, cast.module.cast_votes(inputs[place])[0], atol=0, rtol=0
            )
            capsules, A, C = measure.route(cast, measure.iterations_of(cast.module))
            if flags["agg"] == "em":
                capsules = capsules * A.unsqueeze(-1)  # Li 2019 Eq. 9
            O = capsules.flatten(1)
            if flags["agg"] == "gu-em":
                O = inputs[place][0].transpose(0, 1).flatten(1) + cast.module.ffn(O)
            torch.testing.assert_close(O, outputs[place][0])
            torch.testing.assert_close(C.sum(-1), torch.ones(C.shape[:-1]))


def test_capsule_attention_votes_are_routed_as_in_the_model(make):
    run = make(ROUTED)
    with torch.no_grad():
        heads, logits, masks, _ = measure.sentence_heads(run, 2)
        found = measure.cast_votes(run.model, heads, logits, masks)
        E, bias = logits["enc:1"], torch.zeros(4)
        capsules = measure.route(found["enc:1 vertical"], 3)[
            0
        ]  # [1, L, L]; with W = 0 a head takes 1/4
        torch.testing.assert_close(capsules / 4, vertical_routing(E, torch.zeros(4, 4), bias)[:, 0])
        capsules = measure.route(found["enc:1 horizontal"], 3)[
            0
        ]  # [1, H, L]: the row that sees all tokens
        torch.testing.assert_close(capsules, horizontal_routing(E)[:, :, -1])
        E = logits["dec:2"]
        capsules = measure.route(found["dec:2 horizontal"], 3)[0]
        causal = torch.ones(E.shape[-2:]).tril().bool()
        torch.testing.assert_close(capsules, horizontal_routing(E, mask=causal)[:, :, -1])


def literal_trace(cast, t):
    """(entropy, agreement) of t iterations, cell by cell."""
    omega, _, C = (x if x is None else x.double() for x in measure.route(cast, t))
    votes = cast.votes.double()  # capsules of 1e-25, whose squares float32 does not have
    entropies, agreements = [], []
    for p in range(C.shape[0]):
        N = int(cast.outputs[p].sum())
        for m in range(C.shape[1]):
            if not cast.inputs[p, m]:
                continue
            entropy = agreement = 0.0
            for n in range(C.shape[2]):
                c = C[p, m, n].item()
                V = votes[p, m, n]
                w = omega[p, n]
                entropy -= c * math.log(c) if c > 0 else 0
                agreement += c * (V @ w / (V.norm() * w.norm()).clamp(min=1e-300)).item()
            entropies.append(entropy / math.log(max(N, 2)))
            agreements.append(agreement)
    return sum(entropies) / len(entropies), sum(agreements) / len(agreements)


@pytest.mark.parametrize("place", ["enc:1", "cross:2", "enc:1 vertical", "dec:2 horizontal"])
def test_coupling_entropy_and_agreement(make, place):
    """Against loops over words, heads and capsules, with a batch of unequal sentences and so
    padding."""
    run = make(ROUTED)
    source, target = collate(run.encoded, [0, 2])
    assert (source == PAD).any() and (target == PAD).any()
    with torch.no_grad(), measure.recorded_logits(run.model) as logits:
        _, heads = run.model(source, target[:, :-1])
        masks = {"enc": source != PAD, "cross": target[:, 1:] != PAD, "dec": target[:, 1:] != PAD}
        cast = measure.cast_votes(run.model, heads, logits, masks)[place]
        rows, A = measure.trace(cast)
        assert rows.shape == (3, 2) and rows.isfinite().all()
        assert (A is not None) == (" " not in place)
        for t in (1, 2, 3):
            assert rows[t - 1].tolist() == pytest.approx(literal_trace(cast, t), abs=1e-4)
    if " " in place:  # dynamic routing begins with equal couplings
        assert rows[0, 0].item() == pytest.approx(1, abs=1e-4)


def test_entropy_of_two_capsules():
    """Equal couplings are 1, whatever N; one capsule alone leaves no choice, 0."""
    module = Namespace(routing="dynamic", random=False, settings={"iterations": 1})
    every_head = torch.ones(3, 4, dtype=torch.bool)
    for N, entropy in ((1, 0), (2, 1), (5, 1)):
        votes = torch.randn(3, 4, N, 2)
        every_capsule = torch.ones(3, N, dtype=torch.bool)
        rows, _ = measure.trace(measure.Votes(votes, every_head, every_capsule, module))
        assert rows[0, 0].item() == pytest.approx(entropy)


def test_routing_statistics(make):
    """Means over all routings of the validation set, sentence by sentence, whatever the batches."""
    run = make(ROUTED)
    rows = {}
    counts = {}
    active = {}
    for i in range(len(run.encoded)):
        with torch.no_grad():
            heads, logits, masks, _ = measure.sentence_heads(run, i)
            for place, cast in measure.cast_votes(run.model, heads, logits, masks).items():
                n = int(cast.inputs.sum())
                traced = measure.trace(cast)
                rows[place] = rows.get(place, 0) + n * traced[0]
                counts[place] = counts.get(place, 0) + n
                if traced[1] is not None:
                    active.setdefault(place, []).extend(traced[1].tolist())
    for tokens in (10**6, 40):
        found = measure.routing_statistics(run, tokens)
        assert (
            set(found)
            == set(rows)
            == {"enc:1", "cross:2", "enc:1 vertical", "enc:1 horizontal", "dec:2 horizontal"}
        )
        for place, values in found.items():
            entropy, agreement = (rows[place] / counts[place]).T.tolist()
            assert values["entropy"] == pytest.approx(entropy, abs=1e-4)
            assert values["agreement"] == pytest.approx(agreement, abs=1e-4)
            means = (
                [sum(column) / len(column) for column in zip(*active[place])]
                if place in active
                else None
            )
            assert values["activations"] == (means and pytest.approx(means, abs=1e-4))
    assert {len(active["enc:1"]), len(active["cross:2"])} == {
        int((lengths + 1).sum())
        for lengths in (run.encoded.source_lengths, run.encoded.target_lengths)
    }  # and EOS
    assert measure.routing_statistics(make(PLAIN), 100) == {}


def test_couplings_of_a_sentence(make):
    """A head's share of what a capsule gets, over all words; of a horizontal routing a token's
    coupling to the heads."""
    run = make(ROUTED)
    with torch.no_grad():
        heads, logits, masks, tokens = measure.sentence_heads(run, 2)
        casts = measure.cast_votes(run.model, heads, logits, masks)
        found = measure.sentence_couplings(run, 2)
        assert found.keys() == casts.keys()
        for place, x in found.items():
            C = measure.route(casts[place], 3)[2]  # [P, M, N]
            for h, row in enumerate(x["share"]):
                if place.endswith("horizontal"):
                    assert row == pytest.approx(C[0, :, h].tolist())
                else:
                    assert row == pytest.approx(
                        [(C[:, h, n].sum() / C[:, :, n].sum()).item() for n in range(C.shape[2])],
                        abs=1e-5,
                    )
            assert x["columns"] == (tokens[place[:3]][0] if " " in place else None)
            assert len(x["share"]) == 4 and sum(row[0] for row in x["share"]) == pytest.approx(1)


# ---- BLEU by length


def test_gu_fig3_bleu_by_length(make, monkeypatch):
    """Every sentence is in one bin; bins whose translations are the references score 100, wrong
    ones nothing."""
    run = make(PLAIN)
    asked = []
    scored = measure.corpus_bleu
    interval = measure.bleu_interval

    def translate_lines(model, tokenizer, source, **settings):
        asked.append((source, settings["beam"], settings["lenpen"]))
        return [
            target if len(source.split()) <= 7 else "x" for source, target in zip(ENGLISH, GERMAN)
        ]

    def corpus_bleu(hypotheses, references, lowercase):
        asked.append(lowercase)
        return scored(hypotheses, references, lowercase)

    def bleu_interval(hypotheses, references, lowercase):
        asked.append(lowercase)
        return interval(hypotheses, references, lowercase)

    monkeypatch.setattr(measure, "translate_lines", translate_lines)
    monkeypatch.setattr(measure, "corpus_bleu", corpus_bleu)
    monkeypatch.setattr(measure, "bleu_interval", bleu_interval)
    other = run._replace(
        settings={"beam": 3, "lenpen": 0.25, "lowercase": True},
        corpora=run.corpora._replace(valid=Pairs(ENGLISH[::-1], GERMAN[::-1])),
    )
    for beam in (None, 7):  # the run's own, or what is asked for
        measure.bleu_by_length(other, [99], beam)
        assert asked == [
            (ENGLISH, beam or 3, 0.25),
            True,
            True,
        ]  # the test set, not the validation set
        asked.clear()
    assert measure.bleu_by_length(run._replace(settings={}), [99])["beam"] == 4 and asked[0][
        1:
    ] == (4, 0.6)
    measure.bleu_by_length(run._replace(corpora=run.corpora._replace(test=None)), [99])
    found = measure.bleu_by_length(run, [4, 7])
    assert [(x["low"], x["high"], x["count"]) for x in found["bins"]] == [
        (1, 4, 6),
        (5, 7, 6),
        (8, None, 6),
    ]
    assert [x["bleu"] for x in found["bins"]] == pytest.approx([100, 100, 0], abs=1)
    assert [x["interval"] for x in found["bins"][:2]] == [pytest.approx((100, 100))] * 2
    assert 0 < found["bleu"] < 100 and sum(
        x["count"] for x in measure.bleu_by_length(run)["bins"]
    ) == len(ENGLISH)


def test_bins_fit_the_lengths():
    """At most 7 bins as wide as 1, 2, 5, 10, ...; the open one holds 1 sentence in 20 at least."""
    fitting = measure.fitting_bins
    assert (
        fitting(list(range(1, 8))) == [1, 2, 3, 4, 5]
        and fitting([3] * 40) == [1, 2]
        and fitting([1]) == [1]
    )
    assert fitting([20] * 99 + [500]) == [5, 10, 15] and fitting([36] * 40) == [10, 20, 30]
    assert fitting([7] * 96 + [90] * 4) == [1, 2, 3, 4, 5, 6] and fitting([7] * 94 + [90] * 6) == [
        20, 40, 60, 80,
    ]
    lengths = measure.source_length
    assert [
        lengths("a bc  def", "en"),
        lengths("", "en"),
        lengths("ab cd", "zh"),
        lengths("ab cd", "de"),
    ] == [3, 1, 4, 2]


# ---- The figures: what is handed to matplotlib


@pytest.fixture
def shown(monkeypatch):
    """The figures that are written, as matplotlib holds them; nothing is rendered."""
    found = []
    monkeypatch.setattr(figures, "write", lambda figure, path: found.append(figure))
    yield found
    for figure in found:
        figures.pyplot.close(figure)


def texts(labels) -> list[str]:
    return [label.get_text() for label in labels]


def test_heat_maps_have_queries_at_the_left_and_keys_below(shown):
    """3 heads of 2 queries and 3 keys in one run, 2 heads of 4 queries and 2 keys in the other;
    every cell another number."""
    maps = {
        "one": {
            "weights": (torch.arange(18.0).view(3, 2, 3) / 40).tolist(),
            "queries": ["q1", "q2"],
            "keys": ["k1", "k2", "k3"],
            "entropy": [0.5, 1.25, 2.0],
        },
        "other": {
            "weights": (torch.arange(16.0).view(2, 4, 2) / 20).tolist(),
            "queries": ["u1", "u2", "u3", "u4"],
            "keys": ["v1", "v$"],
            "entropy": [3.0, 4.0],
        },
    }
    figures.attention(maps, "title", None)
    (figure,) = shown
    for block, (name, one) in zip(figure.subfigs, maps.items()):
        panels = [ax for ax in block.axes if ax.images and ax.get_visible()]
        assert block.get_suptitle() == name and len(panels) == len(one["weights"])
        for h, ax in enumerate(panels):
            (image,) = ax.images
            np.testing.assert_allclose(image.get_array(), one["weights"][h])
            assert (image.norm.vmin, image.norm.vmax, image.norm.gamma) == (
                0, 0.75, 0.5,
            ) and image.origin == "upper"
            assert ax.get_title() == f"head {h + 1}, entropy {one['entropy'][h]:.2f}"
            below = [key.replace("$", r"\$") for key in one["keys"]]
            lowest = h + 2 >= len(panels)                # of two columns
            leftmost = h % 2 == 0
            assert texts(ax.get_xticklabels()) == (below if lowest else [])
            assert texts(ax.get_yticklabels()) == (one["queries"] if leftmost else [])
            assert list(ax.get_xticks()) == list(range(len(one["keys"])))


def test_couplings_have_heads_at_the_left_and_sorted_capsules_below(shown):
    """Numbered capsules go by their strongest head, strongest first; tokens stay in their order."""
    share = [[0.1, 0.7, 0.2, 0.6, 0.3], [0.2, 0.1, 0.7, 0.1, 0.2], [0.7, 0.2, 0.1, 0.3, 0.5]]
    figures.couplings(
        {
            "enc:1": {"share": share, "columns": None},
            "enc:1 vertical": {"share": share, "columns": ["a", "b", "c", "d", "e"]},
        },
        3,
        "title",
        None,
    )
    numbered, tokens = (ax for ax in shown[0].axes if ax.images and ax.get_title())
    order = [1, 3, 2, 0, 4]
    np.testing.assert_allclose(numbered.images[0].get_array(), np.array(share)[:, order])
    np.testing.assert_allclose(tokens.images[0].get_array(), share)
    assert list(numbered.images[0].get_extent()) == [0.5, 5.5, 2.5, -0.5]
    assert list(tokens.images[0].get_extent()) == [-0.5, 4.5, 2.5, -0.5]
    assert (numbered.get_title(), tokens.get_title()) == ("enc:1", "enc:1 vertical")
    assert texts(tokens.get_xticklabels()) == ["a", "b", "c", "d", "e"]
    for ax in (numbered, tokens):
        (image,) = ax.images
        assert image.get_clim() == (0, 1) and image.get_cmap().name == "viridis"  # sequential
        assert texts(ax.get_yticklabels()) == ["head 1", "head 2", "head 3"]


def test_routing_has_entropy_agreement_and_activations_in_panels_of_their_own(shown):
    places = {
        "enc:1": {
            "entropy": [0.9, 0.5],
            "agreement": [0.1, 0.2],
            "activations": [0.3, 0.8, 0.6, 0.1],
        },
        "enc:2": {"entropy": [1.0, 0.4, 0.3], "agreement": [-0.2, 0.7, 0.75], "activations": None},
    }
    figures.routing({"run": places}, None)
    entropy, agreement, activations = shown[0].axes
    for ax, key, label in (
        (entropy, "entropy", "entropy of the couplings, share of log N"),
        (agreement, "agreement", "cosine of votes and capsules"),
    ):
        assert ax.get_ylabel() == label and ax.get_xlabel() == "iterations"
        assert ax.get_ylim() == activations.get_ylim() == (-0.23, 1.03)
        assert {
            line.get_label(): (
                line.get_xdata().tolist()
                if hasattr(line.get_xdata(), "tolist")
                else list(line.get_xdata()),
                list(line.get_ydata()),
            )
            for line in ax.lines
        } == {place: ([*range(1, len(x[key]) + 1)], x[key]) for place, x in places.items()}
    (line,) = activations.lines
    assert list(line.get_ydata()) == [0.8, 0.6, 0.3, 0.1] and line.get_label() == "enc:1"
    assert (
        list(line.get_xdata()) == [0.125, 0.375, 0.625, 0.875]
        and "activations" in activations.get_title()
    )


def test_lengths_have_every_run_at_its_bins(shown):
    def bins(*found):
        names = ("low", "high", "count", "bleu", "interval")
        return {"bins": [dict(zip(names, x)) for x in found]}

    figures.lengths(
        {
            "one": bins(
                (1, 5, 7, 30.0, (29, 32)), (6, 10, 4, 20.0, (18, 21)), (11, None, 2, 27.0, (26, 28))
            ),
            "other": bins((1, 5, 7, 31.0, (30, 32)), (11, None, 2, 25.0, (24, 27))),
        },
        None,
    )
    (ax,) = shown[0].axes
    one, other = ax.containers
    for container, places, values in ((one, [0, 1, 2], [30, 20, 27]), (other, [0, 2], [31, 25])):
        line, _, (bars,) = container
        assert [round(x) for x in line.get_xdata()] == places
        assert list(line.get_ydata()) == values
    ends = [bar[:, 1].tolist() for bar in bars.get_segments()]
    assert ends == [[30, 32], [24, 27]]
    assert texts(ax.get_xticklabels()) == ["1-5\n(7)", "6-10\n(4)", "11+\n(2)"]
    assert [container.get_label() for container in ax.containers] == ["one", "other"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("source length (number of sentences)", "BLEU")
    assert ax.get_ylim()[0] == 10 and ax.get_title()  # the tens below 18


def test_results_have_their_seeds_intervals_and_curves(shown):
    rows = {
        "baseline": [{"bleu": 20.0, "curve": {"5": 1.0, "10": 2.0}}],
        "EM": [
            {"bleu": 21.0, "curve": {"5": 3.0, "10": 6.0}},
            {"bleu": 23.0, "curve": {"5": 5.0, "10": 8.0}},
        ],
    }
    figures.results(rows, "title", None)
    left, right = shown[0].axes
    dots = [line for line in left.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in dots] == [[20.0], [21.0, 23.0]]
    (bar,) = [line for line in left.lines if line.get_marker() == "None" and line.get_ydata()[0]]
    half = 12.7062  # t of one degree of freedom times the standard error, 1
    assert list(bar.get_xdata()) == pytest.approx([22 - half, 22 + half], abs=1e-3)
    assert texts(left.get_yticklabels()) == ["baseline", "EM"]
    assert [list(line.get_xdata()) for line in right.lines] == [[5, 10]] * 2
    assert [list(line.get_ydata()) for line in right.lines] == [[1.0, 2.0], [4.0, 7.0]]
    figures.results({"EM": [{"bleu": 21.0}, {"bleu": 22.0}]}, "title", None)  # without curves
    assert len(shown[1].axes) == 1


def test_heads_left_out_are_dots_over_their_layers(shown):
    runs = {
        "one, seed 1": {"label": "one", "cost": {"enc": [[1.0, 2.0]], "dec": [[0.0, -1.0]]}},
        "one, seed 2": {"label": "one", "cost": {"enc": [[3.0, 6.0]], "dec": [[0.5, 0.5]]}},
    }
    figures.ablation(runs, None)
    encoder, decoder = shown[0].axes
    for ax, costs in ((encoder, [1.0, 2.0, 3.0, 6.0]), (decoder, [0.0, -1.0, 0.5, 0.5])):
        dots, mean = (line for line in ax.lines if line.get_marker() in (".", "_"))
        assert list(dots.get_ydata()) == costs
        assert list(mean.get_ydata()) == [sum(costs) / 4]
    assert (encoder.get_title(), decoder.get_title()) == ("encoder", "decoder")


def test_heads_are_points_with_their_numbers(shown):
    together = [[[0.0, 1.0], [2.0, 5.0]], [[3.0, 7.0], [4.0, 9.0]]]  # [runs][H]
    apart = []  # [runs][layers][H]
    for i in range(2):
        apart.append([[[i + 0.0, j + 10.0], [i + 0.5, j + 20.0]] for j in range(3)])
    figures.heads(["one", "other"], together, apart, None)
    left, right = shown[0].axes
    assert [points.get_offsets().tolist() for points in left.collections] == together
    assert [points.get_offsets().tolist() for points in right.collections] == [
        layer for run in apart for layer in run
    ]
    assert [points.get_label() for points in left.collections] == ["one", "other"]
    assert [(text.get_text(), list(text.xy)) for text in left.texts] == [
        (str(h), point) for run in together for h, point in enumerate(run, 1)
    ]
    assert [(text.get_text(), list(text.get_position())) for text in right.texts] == [
        (str(layer), point)
        for run in apart
        for layer, points in enumerate(run, 1)
        for point in points
    ]
    assert "words and layers" in left.get_title() and "numbers: layers" in right.get_title()


# ---- The command


def drawn(path) -> bool:
    """Whether a PNG is there and holds more than one colour in more than a hundredth of its
    area."""
    pixels = np.round(255 * imread(path)[..., :3])
    return min(pixels.shape[:2]) > 200 and ((pixels != pixels[0, 0]).any(-1)).mean() > 0.01


def columns(text: str, row: str) -> list[str]:
    """The cells of the line of a printed table that begins with this label."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"{row}  "))
    return line.removeprefix(row).split()


def test_tables_on_the_screen_have_every_number_in_its_place(monkeypatch, tmp_path):
    """Parts of analyze.py with measurements that are made up, every number another."""
    handed = {}
    for name in ("heads", "attention", "routing", "couplings", "lengths", "ablation", "cosines"):
        monkeypatch.setattr(figures, name, lambda *given, name=name: handed.update({name: given}))
    model = Namespace(config=Namespace(layers=2, heads=2))
    text = Corpora("text", "en", "de", None, Pairs(ENGLISH, GERMAN), None, None)
    runs = [measure.Run(name, model, None, {}, text, None) for name in ("one", "other")]
    args = Namespace(max_tokens=9, component="cross", layer=2, bins=[4, 9], beam=None)
    vectors = torch.arange(8.0).view(2, 2, 2)  # [layers, H, d_k]
    monkeypatch.setattr(analyze, "FEW_POINTS", 4)  # two runs of two heads
    entropies = {"one": [0.125, 0.25, 0.5], "other": [1.5, 2.5]}
    scores = {
        "mean": {"enc": {"subspace": 0.1, "position": 0.2, "output": 0.3}},
        "layers": {"enc": {"subspace": [0.4, 0.5], "position": [0.6, 0.7], "output": [0.8, 0.9]}},
    }
    places = {
        "enc:1": {"entropy": [0.9, 0.5], "agreement": [0.1, 0.2], "activations": [0.25, 0.5]},
        "enc:2": {"entropy": [1.0], "agreement": [0.3], "activations": None},
    }
    lengths = {
        "bins": [
            {"low": 1, "high": 4, "count": 5, "bleu": 30.0},
            {"low": 10, "high": None, "count": 7, "bleu": 9.5},
        ],
        "bleu": 20.25,
        "beam": 3,
        "signature": "nrefs:1",
    }
    asked = []
    for name, value in (
        ("scores", scores),
        ("head_vectors", vectors),
        ("routing_statistics", places),
        ("bleu_by_length", lengths),
        ("sentence_couplings", {"enc:1": "shares"}),
    ):
        monkeypatch.setattr(
            measure,
            name,
            lambda run, *given, name=name, value=value: (
                asked.append((name, run.name, *given)) or value
            ),
        )
    monkeypatch.setattr(
        measure,
        "attention_map",
        lambda run, *given: (
            asked.append(("attention_map", run.name, *given))
            or {
                "layer": 2,
                "queries": ["q"],
                "keys": ["k"],
                "entropy": entropies[run.name],
                "weights": [],
            }
        ),
    )
    monkeypatch.setattr(measure, "project", lambda points: 10 * points)
    shown = [(runs[0], 5), (runs[1], 6)]
    left_out = {
        "one": {"enc": [[1.0, 2.0], [0.0, 0.5]], "dec": [[3.0, 4.0], [7.0, -0.5]]},
        "other": {"enc": [[0.25, 0.25], [0.75, 0.75]], "dec": [[5.0, 5.0], [0.0, 2.0]]},
    }
    monkeypatch.setattr(
        analyze,
        "costs",
        lambda run, beam: (
            asked.append(("costs", run.name, beam))
            or {"cost": left_out[run.name], "bleu": 20.5, "beam": 3, "signature": "nrefs:1"}
        ),
    )
    found = {
        part: function(runs, shown, args, tmp_path) for part, function in analyze.MEASURES.items()
    }

    out = found["disagreement"][1]
    assert out.splitlines()[3].split() == ["subspace", "position", "output"]
    kinds, layers = out.split("\n\n")
    assert columns(kinds, "other enc") == ["0.100", "0.200", "0.300"]
    assert columns(layers, "layer") == ["1", "2", "3", "4", "5", "6"]
    assert columns(layers, "other enc") == ["0.600", "0.700", "-", "-", "-", "-"]
    for row in TABLES["li2018-4"].rows:
        assert columns(kinds, f"published: {row.label} (enc)") == list(row.published)
    for row in TABLES["li2018-5"].rows:
        assert columns(layers, f"published: {row.label} (enc)") == list(row.published)

    out = found["heads"][1]
    means = vectors.mean(0)  # [H, d_k]
    assert ["cosine", "distance"] in [line.split() for line in out.splitlines()]
    for row, heads in (
        ("one mean", means),
        ("one layer 1", vectors[0]),
        ("other layer 2", vectors[1]),
    ):
        distance = math.dist(*heads.tolist()) / heads.norm(dim=-1).mean().item()
        cosine = torch.cosine_similarity(heads[0], heads[1], dim=0).item()
        assert columns(out, row) == [f"{cosine:.3f}", f"{distance:.3f}"]
    names, together, apart, _ = handed["heads"]
    assert (
        names == ["one", "other"]
        and together == [(10 * means).tolist()] * 2
        and apart == [(10 * vectors).tolist()] * 2
    )

    out = found["attention"][1]
    assert columns(out, "head") == ["1", "2", "3"] and "in cross, layer 2" in out
    assert columns(out, "one") == ["0.125", "0.250", "0.500"] and columns(out, "other") == [
        "1.500", "2.500", "-",
    ]
    assert ("attention_map", "one", "cross", 2, 5) in asked and (
        "attention_map", "other", "cross", 2, 6,
    ) in asked

    out = found["routing"][1]
    header = next(line for line in out.splitlines() if "mean A" in line and "agree 1" in line)
    assert header.split() == [
        "entropy", "1", "entropy", "2", "agree", "1", "agree", "2", "mean", "A",
    ]
    assert columns(out, "one enc:1") == ["0.900", "0.500", "0.100", "0.200", "0.375"]
    assert columns(out, "other enc:2") == ["1.000", "-", "0.300", "-", "-"]
    assert ("sentence_couplings", "other", 6) in asked and handed["couplings"][:2] == (
        {"enc:1": "shares"},
        2,
    )

    out = found["length"][1]
    assert (
        columns(out, "1-4") == ["30.00", "(5)"] * 2 and columns(out, "10+") == ["9.50", "(7)"] * 2
    )
    assert columns(out, "all") == ["20.25", "(12)"] * 2 and "validation, 3" in out
    assert ("bleu_by_length", "one", [4, 9], None) in asked

    out = found["ablation"][1]
    assert columns(out, "one, BLEU 20.50") == ["enc", "1.50", "0.25", "0.88", "0.00", "2.00"]
    lines = [line.split() for line in out.splitlines()]
    assert ["dec", "5.00", "1.00", "3.00", "0.00", "5.00"] in lines  # of the other run
    assert ["all", "2.12", "-0.50", "7.00"] in lines and "beam 3, nrefs:1" in out
    assert ("costs", "other", None) in asked


def test_command_writes_tables_and_figures(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figures, "DPI", 75)
    assert (
        analyze.main(
            [
                str(folders / "plain"),
                str(folders / "routed"),
                "--out",
                str(tmp_path / "new"),
                "--device",
                "cpu",
                "--bins",
                "4",
                "7",
                "--component",
                "cross",
                "--layer",
                "1",
                "--sentence",
                "2",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    names = {"heads.png", "attention.png", "routing.png", "coupling-routed.png", "length.png"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"analysis.json", *names}
    assert all(drawn(tmp_path / "new" / name) for name in names)
    found = json.loads((tmp_path / "new" / "analysis.json").read_text(encoding="utf-8"))
    assert found["kind"] == "analysis" and found.keys() == {"kind", "runs", *analyze.QUICK}
    assert f"{found['disagreement']['runs']['plain']['mean']['cross']['output']:.3f}" in out
    assert "published: output (enc)" in out and "routed enc:1 vertical" in out
    assert np.array(found["heads"]["plain"]["points"]).shape == (4, 2)
    one = found["attention"]["routed"]
    assert (
        np.array(one["weights"]).shape == (4, len(one["queries"]), len(one["keys"]))
        and one["layer"] == 1
    )
    assert joined(one["keys"][:-1]) == ENGLISH[1].replace(" ", "") and "in cross, layer 1" in out
    assert sum(x["count"] for x in found["length"]["plain"]["bins"]) == len(ENGLISH)


def test_sentence_that_nobody_chose(make):
    """The first pair of 8 to 16 tokens a side; where there is none, the pair whose longer side is
    shortest."""
    run = make(PLAIN)

    def choose(source, target):
        return analyze.sentence(
            run._replace(
                encoded=encode_pairs(
                    run.tokenizer, Pairs(["z" * n for n in source], ["z" * n for n in target])
                )
            ),
            Namespace(sentence=None, beam=1),
        )[1]

    assert choose([3, 12, 9, 10], [9, 20, 8, 10]) == 2 and choose([30, 20, 18], [2, 20, 28]) == 1


def test_sentence_of_ones_own_gets_the_runs_translation(make, monkeypatch):
    monkeypatch.setattr(analyze, "translate_lines", lambda *_, **__: ["ein Hund ."])
    run, index = analyze.sentence(make(PLAIN), Namespace(sentence=" a  cat$ <b> ", beam=1))
    found = measure.attention_map(run, "cross", 2, index)
    assert joined(found["keys"]).startswith("acat$<b>") and joined(found["queries"]).endswith(
        "einHund."
    )


# ---- Text


def test_a_run_whose_text_is_gone(folders, tmp_path, capsys):
    run = shutil.copytree(folders / "plain", tmp_path / "copy")
    config = json.loads((run / "config.json").read_text())
    gone = {name: str(tmp_path / "gone") for name in ("train", "valid", "test")}
    (run / "config.json").write_text(json.dumps({**config, **gone}))
    argv = [str(run), "--only", "disagreement", "--device", "cpu"]
    assert analyze.main(argv) == 2
    assert "--valid PREFIX" in capsys.readouterr().err
    assert analyze.main([*argv, "--valid", str(folders / "text")]) == 0
    assert json.loads((run / "analysis.json").read_text())["disagreement"]
    flags = Namespace(valid=str(folders / "text"), test=None, src=None, tgt=None)
    assert read_text(str(run), {**config, **gone}, flags).test is None


def test_text_of_known_corpora(folders, monkeypatch):
    for size in ("TOY_TRAIN", "TOY_VALID", "TOY_TEST"):
        monkeypatch.setattr(corpus, size, 20)
    flags = Namespace(valid=None, test=None, src=None, tgt=None)
    prefix = str(folders / "text")
    toy = read_text(
        "run", {"data": "toy", "src": "de"}, flags
    )  # embedded: there on every machine
    assert (toy.src, toy.tgt) == ("de", "en") and len(toy.test.source) == 20 and toy.train is None
    flags.valid = prefix
    for settings, order in (
        ({}, ("en", "de")),
        ({"src": "de"}, ("de", "en")),
        ({"tgt": "en"}, ("de", "en")),
    ):
        found = read_text("run", {"data": "multi30k", **settings}, flags)
        assert (
            (found.src, found.tgt) == order
            and found.test is None
            and len(found.valid.source) == len(ENGLISH)
        )
