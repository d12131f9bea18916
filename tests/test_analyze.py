"""What is measured and drawn of runs (analyze.py, figures.py, measure.py), on tiny models with random weights. The
measurements are held against loops written from their definitions."""
import json
import math
import re
import shutil
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import analyze
import checkpoint
import data
import figures
import measure
from capsule_transformer import horizontal_routing, vertical_routing
from corpus_cache import encode_pairs
from data import PAD, Corpora, Pairs
from evaluate import disagreement_scores
from transformer import Transformer, TransformerConfig

PAPER = Path(__file__).resolve().parents[2] / "shared" / "papers" / "li2018-disagreement.txt"
NOUNS = {"man": "Mann", "dog": "Hund", "boy": "Junge"}
PLACES = {"": "", "in the park": "im Park", "in the park near a house": "im Park bei einem Haus"}
ENGLISH = [f"a {noun} {verb} {place} .".replace("  ", " ") for noun in NOUNS for verb in ("walks", "runs")
           for place in PLACES]
GERMAN = [f"ein {noun} {verb} {place} .".replace("  ", " ") for noun in NOUNS.values() for verb in ("geht", "rennt")
          for place in PLACES.values()]
ROUTED = dict(agg="em", agg_at=("enc:1", "cross:2"), capsules=4, capsule=("enc:1", "dec:2"))
PLAIN, GU = {"agg": "linear"}, dict(agg="gu-em", agg_at=("enc:2",))
DYNAMIC = dict(agg="dynamic", agg_at=("dec",), capsules=4)


@pytest.fixture(scope="module")
def tokenizer():
    return data.train_tokenizer(ENGLISH + GERMAN, 300, exact=False)


def random_model(tokenizer, flags: dict) -> Transformer:
    """A model whose parameters, biases too, are all drawn at random, so that heads and routings differ."""
    torch.manual_seed(1)
    config = TransformerConfig(tokenizer.get_vocab_size(), d_model=16, heads=4, layers=2, d_ff=16, **flags)
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
        return measure.Run(name, random_model(tokenizer, flags), tokenizer, {"beam": 1}, text,
                           encode_pairs(tokenizer, pairs))
    return run


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory):
    """A folder with the text and two run folders, plain and routed, as train_mt.py writes them."""
    root = tmp_path_factory.mktemp("analyze")
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (root / f"text.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, flags in (("plain", PLAIN), ("routed", ROUTED)):
        model, prefix = random_model(tokenizer, flags), str(root / "text")
        settings = {"model": asdict(model.config), "data": "toy", "data_dir": "data", "train": prefix, "valid": prefix,
                    "test": prefix, "src": "en", "tgt": "de", "beam": 1, "lenpen": 0.6, "lowercase": False}
        with checkpoint.RunFolder(root / name, settings) as folder:
            data.save_tokenizer(tokenizer, folder.tokenizer)
            checkpoint.save(folder.best, {"model": model.state_dict()})
    return root


# ---- Disagreement

def test_li2018_table5_layers_give_table4():
    """The layers of Table 5, averaged as D and not as exp(D), give Table 4's score of the positions."""
    scores = {row: disagreement_scores({"enc": {"position": [math.log(x) for x in layers]}})["enc"]["position"]
              for row, layers in analyze.TABLE_5.items()}
    assert scores["n/a"] == pytest.approx(0.0069, abs=5e-5)
    for row in ("n/a", "Subspace", "Position"):           # the Output row gives 0.0071, and 0.006 is printed
        assert round(scores[row], 3) == pytest.approx(analyze.TABLE_4[row][1], abs=1.1e-3), row
    assert round(sum(analyze.TABLE_5["n/a"]) / 6, 3) != analyze.TABLE_4["n/a"][1]


@pytest.mark.skipif(not PAPER.exists(), reason="the papers are not here")
def test_published_numbers_are_the_papers():
    text = PAPER.read_text(encoding="utf-8")
    for row, numbers in analyze.TABLE_4.items():
        assert re.search(rf"^{row}\t" + r"\t".join(f"{x:.3f}" for x in numbers), text, re.M), row
    for row, numbers in analyze.TABLE_5.items():
        name = row if row == "n/a" else f"{row[:3]}."
        assert re.search(rf"^{re.escape(name)}\t" + r"\t".join(f"{x:.3f}" for x in numbers), text, re.M), row


def test_scores_are_within_their_bounds(make):
    found = measure.scores(make(ROUTED), 60)
    for component in ("enc", "cross", "dec"):             # all there are
        for kind, low in (("subspace", math.exp(-1)), ("output", math.exp(-1)), ("position", 0)):
            layers = found["layers"][component][kind]
            assert len(layers) == 2 and all(low - 1e-6 <= x <= 1 + 1e-6 for x in layers)
            mean = math.exp(sum(map(math.log, layers)) / 2)
            assert found["mean"][component][kind] == pytest.approx(mean)


# ---- Heads as vectors

@pytest.mark.parametrize("component", ["enc", "cross", "dec"])
def test_li2021_fig3_head_vectors(make, component):
    """The mean over the words, sentence by sentence and word by word, whatever the batches."""
    run = make(ROUTED)
    total, words = torch.zeros(2, 4, 4), 0
    for i in range(len(run.encoded)):
        source, target = data.collate(run.encoded, [i])
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
    found = measure.dispersion(torch.diag(torch.tensor([1.0, 2.0])))         # orthogonal heads of length 1 and 2
    assert found == {"cosine": pytest.approx(0), "distance": pytest.approx(math.sqrt(5) / 1.5)}
    assert measure.dispersion(torch.ones(1, 3)) == {"cosine": 0, "distance": 0}


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
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


def test_attention_map(make):
    found = measure.attention_map(make(ROUTED), "cross", 1, 1)
    weights = torch.tensor(found["weights"])
    assert weights.shape == (4, len(found["queries"]), len(found["keys"]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    for h in range(4):
        rows = [-sum(a * math.log(a) for a in row if a > 0) for row in weights[h].tolist()]
        assert found["entropy"][h] == pytest.approx(sum(rows) / len(rows), abs=1e-5)
    assert joined(found["keys"][:-1]) == ENGLISH[1].replace(" ", "")
    assert found["queries"][0] == data.SPECIAL_TOKENS[data.BOS]


@pytest.mark.parametrize("flags", [ROUTED, DYNAMIC, GU], ids=["em", "dynamic", "gu-em"])
def test_votes_and_routing_are_the_modules_own(make, flags):
    """What is traced is what the model computed: votes by a hook on the aggregation, its output from the capsules."""
    run, inputs, outputs = make(flags), {}, {}
    for place, attention in measure.attentions(run.model).items():
        attention.aggregation.register_forward_hook(
            lambda _, given, out, place=place: inputs.update({place: given[0]}) or outputs.update({place: out}))
    with torch.no_grad():
        heads, logits, masks, _ = measure.sentence_heads(run, 2)
        found = {place: cast for place, cast in measure.cast_votes(run.model, heads, logits, masks).items()
                 if " " not in place}
        assert found.keys() == {"em": {"enc:1", "cross:2"}, "dynamic": {"dec:1", "dec:2"},
                                "gu-em": {"enc:2"}}[flags["agg"]]
        for place, cast in found.items():
            torch.testing.assert_close(cast.votes, cast.module.cast_votes(inputs[place])[0], atol=0, rtol=0)
            capsules, A, C = measure.route(cast, cast.module.iterations)
            if flags["agg"] == "em":
                capsules = capsules * A.unsqueeze(-1)                        # Li 2019 Eq. 9
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
        capsules = measure.route(found["enc:1 vertical"], 3)[0]              # [1, L, L]; with W = 0 a head takes 1/4
        torch.testing.assert_close(capsules / 4, vertical_routing(E, torch.zeros(4, 4), bias)[:, 0])
        capsules = measure.route(found["enc:1 horizontal"], 3)[0]            # [1, H, L]: the row that sees all tokens
        torch.testing.assert_close(capsules, horizontal_routing(E)[:, :, -1])
        E = logits["dec:2"]
        capsules, causal = measure.route(found["dec:2 horizontal"], 3)[0], torch.ones(E.shape[-2:]).tril().bool()
        torch.testing.assert_close(capsules, horizontal_routing(E, mask=causal)[:, :, -1])


def literal_trace(cast, t):
    """(entropy, agreement) of t iterations, cell by cell."""
    omega, _, C = (x if x is None else x.double() for x in measure.route(cast, t))
    votes = cast.votes.double()                           # capsules of 1e-25, whose squares float32 does not have
    entropies, agreements = [], []
    for p in range(C.shape[0]):
        N = int(cast.outputs[p].sum())
        for m in range(C.shape[1]):
            if not cast.inputs[p, m]:
                continue
            entropy = agreement = 0.0
            for n in range(C.shape[2]):
                c, V, w = C[p, m, n].item(), votes[p, m, n], omega[p, n]
                entropy -= c * math.log(c) if c > 0 else 0
                agreement += c * (V @ w / (V.norm() * w.norm()).clamp(min=1e-300)).item()
            entropies.append(entropy / math.log(max(N, 2)))
            agreements.append(agreement)
    return sum(entropies) / len(entropies), sum(agreements) / len(agreements)


@pytest.mark.parametrize("place", ["enc:1", "cross:2", "enc:1 vertical", "dec:2 horizontal"])
def test_coupling_entropy_and_agreement(make, place):
    """Against loops over words, heads and capsules, with a batch of unequal sentences and so padding."""
    run = make(ROUTED)
    source, target = data.collate(run.encoded, [0, 2])
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
    if " " in place:                                      # dynamic routing begins with equal couplings
        assert rows[0, 0].item() == pytest.approx(1, abs=1e-4)


def test_entropy_of_two_capsules():
    """Equal couplings are 1, whatever N; one capsule alone leaves no choice, 0."""
    module = Namespace(routing="dynamic", iterations=1)
    for N, entropy in ((1, 0), (2, 1), (5, 1)):
        votes, every = torch.randn(3, 4, N, 2), lambda n: torch.ones(3, n, dtype=torch.bool)
        assert measure.trace(measure.Votes(votes, every(4), every(N), module))[0][0, 0].item() == pytest.approx(entropy)


def test_routing_statistics_are_the_same_in_any_batches(make):
    run = make(ROUTED)
    one, many = measure.routing_statistics(run, 10 ** 6), measure.routing_statistics(run, 40)
    assert one.keys() == many.keys() and "dec:2 horizontal" in one
    for place, values in one.items():
        for key in ("entropy", "agreement"):
            assert many[place][key] == pytest.approx(values[key], abs=1e-4) and len(values[key]) == 3
        assert len(values["activations"] or "1234") == 4 and all(0 <= x <= 1 for x in values["activations"] or ())
    assert measure.routing_statistics(make(PLAIN), 100) == {}


def test_couplings_of_a_sentence(make):
    for place, x in measure.sentence_couplings(make(ROUTED), 2).items():
        share = torch.tensor(x["share"])                                     # [H, columns]
        assert share.shape[0] == 4 and share.min() >= 0
        torch.testing.assert_close(share.sum(0), torch.ones(share.shape[1]))
        assert (x["columns"] is None) == (" " not in place)
        assert share.shape[1] == (len(x["columns"]) if x["columns"] else 4)


# ---- BLEU by length

def test_gu_fig3_bleu_by_length(make, monkeypatch):
    """Every sentence is in one bin; bins whose translations are the references score 100, wrong ones nothing."""
    run = make(PLAIN)
    monkeypatch.setattr(measure, "translate_lines", lambda *_, **__: [
        target if len(source.split()) <= 7 else "x" for source, target in zip(ENGLISH, GERMAN)])
    found = measure.bleu_by_length(run, [4, 7])
    assert [(x["low"], x["high"], x["count"]) for x in found["bins"]] == [(1, 4, 6), (5, 7, 6), (8, None, 6)]
    assert [x["bleu"] for x in found["bins"]] == pytest.approx([100, 100, 0], abs=1)
    assert 0 < found["bleu"] < 100 and sum(x["count"] for x in measure.bleu_by_length(run)["bins"]) == len(ENGLISH)


# ---- The command

def drawn(path) -> bool:
    """Whether a PNG is there and holds more than one colour in more than a hundredth of its area."""
    pixels = np.round(255 * imread(path)[..., :3])
    return min(pixels.shape[:2]) > 200 and ((pixels != pixels[0, 0]).any(-1)).mean() > 0.01


def test_heat_maps_show_their_numbers(tmp_path, monkeypatch):
    """Other numbers, other colours, in much of the picture."""
    monkeypatch.setattr(figures, "DPI", 50)
    for i, A in enumerate(([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])):
        one = {"weights": [A], "queries": ["a", "b"], "keys": ["a", "b"], "entropy": [0.0]}
        figures.attention({"run": one}, "x", tmp_path / f"attention{i}.png")
        figures.couplings({"enc:1": {"share": A, "columns": ["a", "b"]}}, 2, "x", tmp_path / f"coupling{i}.png")
    for name in ("attention", "coupling"):
        first, second = (imread(tmp_path / f"{name}{i}.png") for i in (0, 1))
        assert (abs(first - second) > 0.3).any(-1).mean() > 0.2, name


def test_command_writes_tables_and_figures(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figures, "DPI", 75)
    assert analyze.main([str(folders / "plain"), str(folders / "routed"), "--out", str(tmp_path / "new"), "--device",
                         "cpu", "--bins", "4", "7", "--component", "cross", "--layer", "1", "--sentence", "2"]) == 0
    out = capsys.readouterr().out
    names = {"heads.png", "attention.png", "routing.png", "coupling-routed.png", "length.png"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"analysis.json", *names}
    assert all(drawn(tmp_path / "new" / name) for name in names)
    found = json.loads((tmp_path / "new" / "analysis.json").read_text(encoding="utf-8"))
    assert found.keys() == {"runs", *analyze.PARTS}
    assert f"{found['disagreement']['runs']['plain']['mean']['cross']['output']:.3f}" in out
    assert "published: Output (enc)" in out and "routed enc:1 vertical" in out
    assert np.array(found["heads"]["plain"]["points"]).shape == (4, 2)
    one = found["attention"]["routed"]
    assert np.array(one["weights"]).shape == (4, len(one["queries"]), len(one["keys"])) and one["layer"] == 1
    assert joined(one["keys"][:-1]) == ENGLISH[1].replace(" ", "") and "in cross, layer 1" in out
    assert sum(x["count"] for x in found["length"]["plain"]["bins"]) == len(ENGLISH)


def test_sentence_that_nobody_chose(make):
    """The first pair of 8 to 16 tokens a side; where there is none, the pair whose longer side is shortest."""
    run = make(PLAIN)
    choose = lambda source, target: analyze.sentence(run._replace(encoded=encode_pairs(run.tokenizer, Pairs(
        ["z" * n for n in source], ["z" * n for n in target]))), Namespace(sentence=None, beam=1))[1]
    assert choose([3, 12, 9, 10], [9, 20, 8, 10]) == 2 and choose([30, 20, 18], [2, 20, 28]) == 1


def test_sentence_of_ones_own_gets_the_runs_translation(make, monkeypatch):
    monkeypatch.setattr(analyze, "translate_lines", lambda *_, **__: ["ein Hund ."])
    run, index = analyze.sentence(make(PLAIN), Namespace(sentence=" a  cat$ <b> ", beam=1))
    found = measure.attention_map(run, "cross", 2, index)
    assert joined(found["keys"]).startswith("acat$<b>") and joined(found["queries"]).endswith("einHund.")


@pytest.mark.parametrize("argv, words", [
    (["{root}/none"], "is no run folder"), (["{root}/plain", "{root}/plain"], "named twice"),
    (["{root}/plain", "--layer", "9"], "layers 1 to 2"), (["{root}/plain", "--sentence", " "], "--sentence is empty"),
    (["{root}/plain", "--sentence", "99"], "validation pairs 1 to 18"),
    (["{root}/plain", "--sentence", "0"], "validation pairs 1 to 18"),
    (["{root}/plain", "--sentence", "9" * 9999], "validation pairs 1 to 18"),
    (["{root}/plain", "--sentence", "dog " * 80], "64 fit a figure"), (["{root}/plain", "--bins", "5", "5"], "--bins"),
    (["{root}/plain", "--checkpoint", "last"], "--checkpoint"), (["{root}/plain", "--test", "nowhere"], "nowhere.en"),
    (["{root}/plain", "--valid", "nowhere"], "nowhere.en"), (["{root}/plain", "--device", "tpu"], "--device")])
def test_mistakes_are_told_in_one_line(folders, tmp_path, capsys, argv, words):
    out = tmp_path / "out"
    assert analyze.main([*(x.replace("{root}", str(folders)) for x in argv), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("analyze.py: error: ") and error.count("\n") == 1 and words in error
    assert not out.exists()


@pytest.mark.parametrize("argv", [[], ["run", "--only", "poem"], ["run", "--layer", "0"], ["run", "--component", "x"]])
def test_wrong_flags_are_told_in_one_line(capsys, argv):
    with pytest.raises(SystemExit, match="2"):
        analyze.main(argv)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_is_a_file(folders, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert analyze.main([str(folders / "plain"), "--out", str(tmp_path / "out"), "--only", "heads"]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and (tmp_path / "out").read_text() == "mine"


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
    assert analyze.read_text(str(run), {**config, **gone}, flags).test is None


def test_text_of_known_corpora(folders, monkeypatch):
    for size in ("TOY_TRAIN", "TOY_VALID", "TOY_TEST"):
        monkeypatch.setattr(data, size, 20)
    flags, prefix = Namespace(valid=None, test=None, src=None, tgt=None), str(folders / "text")
    toy = analyze.read_text("run", {"data": "toy", "src": "de"}, flags)      # embedded: there on every machine
    assert (toy.src, toy.tgt) == ("de", "en") and len(toy.test.source) == 20 and toy.train is None
    flags.valid = prefix
    for settings, order in (({}, ("en", "de")), ({"src": "de"}, ("de", "en")), ({"tgt": "en"}, ("de", "en"))):
        found = analyze.read_text("run", {"data": "multi30k", **settings}, flags)
        assert (found.src, found.tgt) == order and found.test is None and len(found.valid.source) == len(ENGLISH)
