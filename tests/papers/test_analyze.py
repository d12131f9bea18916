"""analyze.py and its parts in papers/, on tiny models with random weights. Measurements are checked
against loops written from their definitions."""
import hashlib
import itertools
import json
import math
import shutil
import warnings
from argparse import Namespace
from dataclasses import asdict

import pytest
import torch
from matplotlib import font_manager, rcParams

from nmt.batches import collate
from nmt.corpus import Corpora, Pairs, hash_text
from nmt.encoded import encode_pairs
from nmt.evaluate import validate
from nmt.run_folder import RunFolder
from nmt.tokenizer import BOS, EOS, SPECIAL_TOKENS, train_tokenizer
from papers import analyze, figures, measure
from papers.reproduce import settings_of
from routing_em import em_routing
from tools import figure_text
from tools.command_line import parse
from tools.files import UserError
from tools.streams import print_once
from transformer import Transformer

ENGLISH = []
GERMAN = []
for noun, nomen in (("man", "Mann"), ("dog", "Hund"), ("boy", "Junge")):
    for verb, form in (("walks", "geht"), ("runs", "rennt")):
        for place, ort in (("", ""), ("in the park ", "im Park "),
                           ("in the park near a house ", "im Park bei einem Haus ")):
            ENGLISH.append(f"a {noun} {verb} {place}.")
            GERMAN.append(f"ein {nomen} {form} {ort}.")
SIZE = "--layers 2 --d-model 16 --heads 4 --d-ff 16 --beam 1 --seed 3 "
PLAIN = ""
ROUTED = ("--agg em --agg-at enc:1 cross:2 --capsules 4 "
          "--capsule-attention enc:1 dec:2")
DYNAMIC = "--agg dynamic --agg-at dec --capsules 4"
GU = "--agg gu-em --agg-at enc:2"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(ENGLISH + GERMAN, 300, exact=False)


@pytest.fixture(scope="module")
def make_run(tokenizer):
    """A function: the run of a model with these flags, all of its parameters drawn at random."""
    def make(flags: str, name: str = "run") -> measure.TrainedRun:
        settings = settings_of([*SIZE.split(), *flags.split()])
        torch.manual_seed(1)
        model = Transformer(settings.model_config(tokenizer.get_vocab_size())).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.3 * torch.randn_like(weight)
        config = {**asdict(settings), "model": asdict(model.config), "text": {},
                  "languages": ["en", "de"], "longest_source": 50, "length_ratio": 2.5}
        pairs = Pairs(ENGLISH, GERMAN)
        return measure.TrainedRun(name, model, tokenizer, config, pairs, pairs,
                           encode_pairs(tokenizer, pairs))
    return make


@pytest.fixture(scope="module")
def folders(make_run, tokenizer, tmp_path_factory):
    """A folder with the text and two run folders, plain and routed, as train_mt.py writes them."""
    root = tmp_path_factory.mktemp("analyze")
    (root / "text.en").write_text("\n".join([*ENGLISH, ""]), "utf-8")
    (root / "text.de").write_text("\n".join([*GERMAN, ""]), "utf-8")
    prefix = str(root / "text")
    for name, flags in (("plain", PLAIN), ("routed", ROUTED)):
        run = make_run(flags)
        config = {**run.config, "train": prefix, "valid": prefix, "test": [prefix] * 2, "src": "en",
                  "tgt": "de", "text": {"train.en": name}}
        with RunFolder(root / name, config) as folder:
            folder.begin()
            folder.save("best.pt", model=run.model.state_dict())
        tokenizer.save(str(root / name / "tokenizer.json"))
    return root


# ---- Disagreement

def test_li2018_tables_4_and_5_scores(make_run):
    """exp(D), by layer and of the mean of D over the two layers."""
    run = make_run(ROUTED)
    run = run._replace(encoded=encode_pairs(run.tokenizer, Pairs(ENGLISH[:2], GERMAN[:2])))
    scores = measure.scores(run, 10 ** 6)
    _, D = validate(run.model, run.encoded, 10 ** 6)
    for component, kinds in D.items():
        for kind, (first, second) in kinds.items():
            layers = [math.exp(first), math.exp(second)]
            assert scores["layers"][component][kind] == pytest.approx(layers)
            mean = math.exp((first + second) / 2)
            assert scores["mean"][component][kind] == pytest.approx(mean)


# ---- Heads as vectors

@pytest.mark.parametrize("component", ["enc", "cross", "dec"])
def test_li2021_fig3_head_vectors(make_run, component):
    """The mean over the words, sentence by sentence, whatever the batches."""
    run = make_run(ROUTED)
    total = 0
    words = 0
    for i in range(len(run.encoded)):
        source, target = collate(run.encoded, [i])
        with torch.no_grad():
            _, heads = run.model(source, target[:, :-1])
        outputs = torch.stack([h.outputs[0] for h in heads[component]])      # [layers, H, L, d_k]
        total = total + outputs.sum(2)
        words += outputs.shape[2]
    for max_tokens in (60, 10 ** 6):
        vectors = measure.head_vectors(run, component, max_tokens)
        torch.testing.assert_close(vectors.float(), total / words, atol=1e-5, rtol=1e-4)


def test_the_mean_cosine_of_two_heads():
    heads = torch.tensor([[3.0, 4.0], [-5.0, 0.0], [0.0, 2.0]])      # lengths 5, 5, 2
    assert measure.mean_cosine(heads) == pytest.approx((-15 / 25 + 8 / 10 + 0) / 3)
    assert measure.mean_cosine(torch.ones(1, 3)) == 0


@pytest.mark.parametrize("n, d", [(2, 8), (16, 8), (16, 1)])
def test_plane_of_few_points(n, d):
    points = torch.randn(n, d)
    plane = measure.project(points)
    assert plane.shape == (n, 2) and plane.isfinite().all()
    assert plane.equal(measure.project(points))


# ---- Heads left out

@pytest.mark.parametrize("flags", [PLAIN, ROUTED], ids=["linear", "routed"])
def test_michel2019_a_head_left_out_is_0_for_the_aggregation(make_run, flags):
    """O^h of this head in this place, and nothing remains of it after the block."""
    run = make_run(flags)
    attention = measure.attentions(run.model)["enc:1"]
    seen = []
    attention.aggregation.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    source, target = collate(run.encoded, [0, 2])
    with torch.no_grad():
        run.model(source, target[:, :-1])
        with measure.without_head(attention, 2):
            run.model(source, target[:, :-1])
        run.model(source, target[:, :-1])
    (before, out), (masked, _), (_, after) = seen
    assert masked[:, 2].eq(0).all() and before[:, 2].ne(0).any()
    assert torch.equal(masked[:, [0, 1, 3]], before[:, [0, 1, 3]]) and torch.equal(after, out)


def test_costs_are_the_bleu_that_is_lost(make_run, monkeypatch):
    """Without one head of the encoder 6 of 18 translations are lost, without others none."""
    run = make_run(PLAIN)._replace(test=Pairs(["a"], ["another text"]))
    aggregation = measure.attentions(run.model)["enc:2"].aggregation

    def translate(run, source, beam):
        lost = 0
        for hook in aggregation._forward_pre_hooks.values():
            (O,) = hook(aggregation, (torch.ones(1, 4, 1, 1),))
            lost = 6 if O[0, 1] == 0 else 0
        return ["x"] * lost + GERMAN[lost:]
    monkeypatch.setattr(measure, "translate", translate)
    costs = measure.head_costs(run)
    assert costs["bleu"] == pytest.approx(100) and list(costs["cost"]) == ["enc", "cross", "dec"]
    cost = costs["cost"]["enc"][1][1]
    assert 10 < cost < 90 and costs["mean"] == pytest.approx(cost / 24)
    _, search, *lines = analyze.analyze_ablation([run], None)[1].splitlines()
    assert search == f"beam 1, {costs['signature']}" and "nrefs:1|" in search
    rows = [line.split() for line in lines]
    assert ["mean", "layer", "1", "layer", "2"] in rows
    assert ["run", "enc", f"{cost / 8:.2f}", "0.00", f"{cost / 4:.2f}"] in rows
    assert ["run", "all", f"{cost / 24:.2f}"] in rows


@pytest.mark.parametrize("words, tgt, references", [
    ("--lowercase", "de", GERMAN), ("", "ja", ["1234 5678"] * len(GERMAN))])
def test_a_run_is_measured_with_its_own_search_case_and_language(
        make_run, monkeypatch, words, tgt, references):
    """Translations that only this search finds score 100: in other letters without case, with
    other blanks in a language without spaces."""
    def translate_lines(model, tokenizer, lines, beam, lenpen, max_source, length_ratio):
        assert (beam, lenpen, max_source, length_ratio) == (3, 1.5, 50, 2.5)
        return [line.upper().replace(" 5678", "5678") for line in references]

    monkeypatch.setattr(measure, "translate_lines", translate_lines)
    run = make_run(f"--beam 3 --lenpen 1.5 --heads 1 {words}")
    pairs = Pairs(ENGLISH, references)
    run = run._replace(valid=pairs, test=pairs, config=run.config | {"languages": ["en", tgt]})
    assert measure.head_costs(run)["bleu"] == pytest.approx(100)
    lengths = measure.bleu_by_length(run, [4])
    assert [lengths["bleu"], *(x["bleu"] for x in lengths["bins"])] == pytest.approx([100] * 3)


# ---- Attention and routing

def join_labels(labels: list[str]) -> str:
    """The text of axis labels, without blanks."""
    return "".join(labels).replace("\u2423", "")


def test_a_character_of_several_tokens_is_at_its_first(tokenizer):
    """Whatever else is in the last of them."""
    tokens = [BOS, *tokenizer.encode("猫 é.").ids, EOS]
    assert measure.labels(tokenizer, torch.tensor(tokens)) == [
        SPECIAL_TOKENS[BOS], "猫", "·", "·", "\u2423", "é", "·", ".", SPECIAL_TOKENS[EOS]]


@pytest.mark.parametrize("component, layer", [("cross", 1), ("cross", None), ("enc", 1),
                                              ("dec", None)])
def test_attention_map(make_run, component, layer):
    """The model's own weights, of that component and layer, by default the top one; tokens on their
    axes, and what they are."""
    run = make_run(ROUTED)
    heatmap = measure.attention_map(run, component, layer, 1)
    source, target = collate(run.encoded, [1])
    with torch.no_grad():
        _, heads = run.model(source, target[:, :-1], need_weights=True)
    A = heads[component][(layer or 2) - 1].weights[0]                # [H, L_q, L_k]
    torch.testing.assert_close(torch.tensor(heatmap["weights"]), A)
    entropy = [-(a * a.clamp(min=1e-30).log()).sum(-1).mean().item() for a in A]
    assert heatmap["entropy"] == pytest.approx(entropy, abs=1e-5)
    source_text = ENGLISH[1].replace(" ", "") + SPECIAL_TOKENS[EOS]
    target_text = SPECIAL_TOKENS[BOS] + GERMAN[1].replace(" ", "")
    assert join_labels(heatmap["queries"]) == (source_text if component == "enc" else target_text)
    assert join_labels(heatmap["keys"]) == (target_text if component == "dec" else source_text)
    name, query, key = analyze.ATTENTIONS[component]
    assert ("self-attention" in name) == (component != "cross")
    assert query == ("source token" if component == "enc" else "last token written")
    assert key == ("token written so far" if component == "dec" else "source token")


@pytest.mark.parametrize("flags", [ROUTED, DYNAMIC, GU], ids=["em", "dynamic", "gu-em"])
def test_votes_and_routing_are_the_modules_own(make_run, flags):
    """The output of an aggregation follows from its votes and its routing. Entropy, agreement and
    movement are those of loops over words, heads and capsules."""
    run = make_run(flags)
    seen = {}
    for place, attention in measure.attentions(run.model).items():
        def keep(module, given, out, place=place):
            seen[place] = given[0], out
        attention.aggregation.register_forward_hook(keep)
    (heads, masks), = list(measure.passes(run, 10 ** 6))
    with torch.no_grad():
        casts = measure.cast_votes(run.model, heads, masks)
        assert len(casts) == (1 if flags is GU else 2)
        for place, votes in casts.items():
            O, out = seen[place]
            component = place.partition(":")[0]
            module = measure.attentions(run.model)[place].aggregation
            x = module.routing(votes, module.beta_a, module.beta_mu).capsules.flatten(1)
            if flags is GU:
                x = O.transpose(1, 2)[masks[component]].flatten(1) + module.ffn(x)
            torch.testing.assert_close(x, out[masks[component]])
        if flags is not ROUTED:
            return
        votes = casts["cross:2"][:9]
        module = measure.attentions(run.model)["cross:2"].aggregation
        rows, _ = measure.trace(module, votes)
        C = torch.full(votes.shape[:-1], 1 / votes.shape[-2])
        for t in (1, 2, 3):
            routed = em_routing(votes, module.beta_a, module.beta_mu, t)
            omega = routed.capsules.double()
            entropy = agreement = 0.0
            for p, m, n in itertools.product(*map(range, C.shape)):
                c = C[p, m, n].item()
                cosine = torch.cosine_similarity(votes[p, m, n].double(), omega[p, n], dim=0)
                entropy -= c * math.log(c) / math.log(4) if c > 0 else 0
                agreement += c * cosine.item()
            movement = 0.0
            first = em_routing(votes, module.beta_a, module.beta_mu, 1).capsules.double()
            for p in range(len(votes)):
                movement += ((omega[p] - first[p]).norm() / first[p].norm()).item() / len(votes)
            means = [entropy / C[..., 0].numel(), agreement / C[..., 0].numel(), movement]
            assert rows[t - 1].tolist() == pytest.approx(means, abs=1e-4)
            C = routed.coupling                          # of the next iteration


def test_routing_statistics(make_run):
    """Means over the validation set, whatever the batches."""
    run = make_run(ROUTED)
    whole = measure.routing_statistics(run, 10 ** 6)
    (heads, masks), = measure.passes(run, 10 ** 6)
    module = measure.attentions(run.model)["cross:2"].aggregation
    rows, A = measure.trace(module, measure.cast_votes(run.model, heads, masks)["cross:2"])
    x = whole["cross:2"]
    assert [x["entropy"], x["agreement"], x["movement"]] == rows.T.tolist()
    assert x["activations"] == pytest.approx(A.mean(0).tolist())
    for place, x in measure.routing_statistics(run, 40).items():
        for key in ("entropy", "agreement", "movement", "activations"):
            assert x[key] == pytest.approx(whole[place][key], abs=1e-4)
    assert whole.keys() == {"enc:1", "cross:2"}
    assert measure.routing_statistics(make_run(DYNAMIC))["dec:1"]["activations"] is None
    assert measure.routing_statistics(make_run(PLAIN), 100) == {}


# ---- BLEU by length

def test_gu_fig3_bleu_by_length(make_run, tmp_path, monkeypatch):
    """Every sentence is in one bin; right translations score 100, wrong ones nothing."""
    def translate(run, source, beam):
        return [target if len(line.split()) <= 7 else "x" for line, target in zip(ENGLISH, GERMAN)]
    monkeypatch.setattr(measure, "translate", translate)
    run = make_run(PLAIN)
    scores = measure.bleu_by_length(run, [4, 7])
    assert [(x["low"], x["high"], x["count"]) for x in scores["bins"]] == [
        (1, 4, 6), (5, 7, 6), (8, None, 6)]
    assert [x["bleu"] for x in scores["bins"]] == pytest.approx([100, 100, 0], abs=1)
    assert scores["bins"][0]["interval"] == pytest.approx((100, 100)) and 0 < scores["bleu"] < 100
    heading, *_, last = analyze.analyze_length([run], None, tmp_path)[1].splitlines()
    assert heading.endswith(f" {scores['signature']}") and "nrefs:1|" in heading
    assert last.split() == ["all", f"{scores['bleu']:.2f}"]


@pytest.mark.parametrize("lengths, ends", [
    (range(1, 8), [1, 2, 3, 4, 5]), ([3] * 40, [1, 2]), ([1], [1]),
    ([20] * 99 + [500], [5, 10, 15]),
    ([36] * 40, [10, 20, 30]), ([7] * 94 + [90] * 6, [20, 40, 60, 80])])
def test_bins_fit_the_lengths(lengths, ends):
    """At most 7 bins as wide as 1, 2, 5, 10, ...; the open one holds 1 sentence in 20 at least."""
    assert measure.fitting_bins(list(lengths)) == ends


@pytest.mark.parametrize("lines, language, lengths", [
    (["a bc  def", ""], "zh", [3, 1]), (["猫 和狗", "", "狗"], "src", [3, 1, 1]),
    (["12 34", "5"], "bo", [4, 1]), (["고양이가 개를 본다"], "ko", [3])])
def test_lengths_of_lines(lines, language, lengths):
    """In words, or in characters where spaces do not separate words."""
    assert measure.source_lengths(lines, language) == lengths


# ---- Figures

def test_figures_draw_the_numbers(monkeypatch):
    """The bars of BLEU by length are the intervals; heads count from 1; all heat maps have the
    shades of the highest weight."""
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, path: drawn.append(figure))
    bins = [{"low": 1, "high": 9, "count": 3, "bleu": 20.0, "interval": (15.0, 22.0)},
            {"low": 10, "high": None, "count": 4, "bleu": 30.0, "interval": (25.0, 32.0)}]
    figures.draw_lengths({"$1": {"bins": bins}, "b": {"bins": bins}}, "length.png")
    figures.draw_heads(["a", "b"], [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], "heads.png")
    maps = {"a": {"weights": [[[0.1, 0.9]], [[0.2, 0.8]]], "queries": ["q"], "keys": ["k", "l"]},
            "b": {"weights": [[[0.05, 0.95]]], "queries": "q", "keys": "kl"}}
    figures.draw_attention(maps, "layer 2", "source token", "word", "attention.png")
    lengths, heads, attention = drawn
    assert [text.get_text() for text in lengths.legends[0].texts] == [" $1", " b"]
    for bars in lengths.axes[0].collections:             # of two runs
        assert [x[:, 1].tolist() for x in bars.get_segments()] == [[15.0, 22.0], [25.0, 32.0]]
    ticks = [text.get_text() for text in lengths.axes[0].get_xticklabels()]
    assert ticks == ["1-9\n(3)", "10+\n(4)"]
    points = {text.xy: text.get_text() for text in heads.axes[0].texts}
    assert points == {(0, 1): "1", (2, 3): "2", (4, 5): "1", (6, 7): "2"}
    images = [panel.images[0] for panel in attention.axes if panel.images]
    assert [image.get_array().tolist() for image in images[:2]] == maps["a"]["weights"]
    assert {image.norm.vmax for image in images} == {0.95}


def test_chinese_letters_have_an_installed_font_or_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["Arial"])
    print_once.cache_clear()
    weights = [[[0.5, 0.5]]]
    maps = {"猫$^$": {"weights": weights, "queries": ["犬"], "keys": ["が", "$_$"]}}
    for name in ("1.png", "2.png"):
        figures.draw_attention(maps, "$^$", "", "", tmp_path / name)
    error = capsys.readouterr().err
    assert "fonts-noto-cjk" in error and error.count("\n") == 1
    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["Arial", "Noto Sans CJK JP"])
    with pytest.warns(UserWarning, match="another"), figure_text.literal_text():
        assert rcParams["font.family"] == ["sans-serif", "Noto Sans CJK JP"]
        warnings.warn("another", stacklevel=1)           # is not lost


# ---- The command

def test_command_writes_tables_and_figures(folders, tmp_path, monkeypatch, capsys):
    vectors = []
    head_vectors = measure.head_vectors
    monkeypatch.setattr(measure, "head_vectors", lambda *args:
                        vectors.append(head_vectors(*args)) or vectors[-1])
    runs = [str(folders / "plain"), str(folders / "routed")]
    words = f"--out {tmp_path} --device cpu --component cross --layer 2 --sentence"
    assert analyze.main([*runs, *words.split(), ENGLISH[1]]) == 0
    out, error = capsys.readouterr()
    assert "routed and plain were trained on different texts" in error and error.count("\n") == 1
    files = [tmp_path / name for name in ("analysis.json", "heads.png", "attention.png",
                                          "length.png")]
    assert {*tmp_path.glob("[!.]*")} == {*files}
    assert out.splitlines()[-1] == f"written: {', '.join(map(str, files))}"
    analysis = json.loads((tmp_path / "analysis.json").read_text("utf-8"))
    assert analysis.keys() == {"kind", "runs", *analyze.QUICK}
    assert analysis["runs"]["routed"]["flags"].endswith(ROUTED)
    rows = [line.split() for line in out.splitlines()]
    kinds = ["subspace", "position", "output"]
    scores = analysis["disagreement"]["plain"]["mean"]["cross"]
    assert f"(4 heads: {math.exp(-1 / 4):.3f}, 8: {math.exp(-1 / 8):.3f})" in out
    assert "attention in cross, layer 2, in nats" in out
    assert kinds in rows and ["plain", "cross", *(f"{scores[kind]:.3f}" for kind in kinds)] in rows
    table_5 = rows.index(["layer", *"123456"])
    assert "published: output (enc) 0.989 0.006 0.997".split() in rows[:table_5]
    layers = analysis["disagreement"]["plain"]["layers"]["cross"]["position"]
    assert ["plain", "cross", *(f"{x:.3f}" for x in layers)] in [x[:4] for x in rows[table_5:]]
    routing = analysis["routing"]["routed"]["enc:1"]
    mean_A = sum(routing["activations"]) / 4
    columns = [f"{x:.3f}" for x in (*routing["entropy"], *routing["agreement"],
                                    *routing["movement"], mean_A)]
    assert ["routed", "enc:1", *columns] in rows
    assert ["head", *"1234"] in rows and ["mean", "layer", "1", "layer", "2"] in rows
    for name, v in zip(("plain", "routed"), vectors):                        # [layers, H, d_k]
        cosines = [measure.mean_cosine(x) for x in (v.mean(0), *v)]
        assert [name, *(f"{x:.3f}" for x in cosines)] in rows
        assert [name, *(f"{x:.3f}" for x in analysis["attention"][name]["entropy"])] in rows
    assert analysis["attention"]["plain"]["keys"] in rows
    assert "two heads (cross)" in out and analysis["attention"]["plain"]["layer"] == 2
    assert join_labels(analysis["attention"]["routed"]["keys"][:-1]) == ENGLISH[1].replace(" ", "")
    bins = analysis["length"]["plain"]["bins"]
    assert sum(x["count"] for x in bins) == 2 * len(ENGLISH)                 # both test sets
    assert f"{bins[0]['bleu']:.2f} ({bins[0]['count']})" in out
    assert ["source", "length", "plain", "routed"] in rows
    assert analyze.main([runs[0], "--only", "heads", "--out", str(tmp_path / "one")]) == 0
    assert not (tmp_path / "one" / "heads.png").exists()         # of one run, a few points


def test_analysis_json_keeps_what_was_measured_before(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(analyze, "find_run", lambda name: str(folders / name))

    def analyze_part(part: str, words: str = "") -> dict:
        argv = ["plain", *f"--only {part} --out {tmp_path} {words}".split()]
        assert analyze.main([*argv, "--device", "cpu"]) == 0
        return json.loads((tmp_path / "analysis.json").read_text("utf-8"))

    before = analyze_part("disagreement", "--labels before")
    both = analyze_part("disagreement routing", "--labels after")
    assert both["disagreement"] == {name: before["disagreement"]["before"]
                                    for name in ("before", "after")}
    checksum = hashlib.sha256((folders / "plain" / "best.pt").read_bytes()).hexdigest()
    entry = {"checkpoint": "best", "sha256": checksum, "seed": 3,
             "flags": "--layers 2 --d-model 16 --d-ff 16",
             "valid": [hash_text(ENGLISH), hash_text(GERMAN)]}
    assert both["runs"] == {"before": entry, "after": entry}
    assert both["routing"].keys() == {"after"}
    out, error = capsys.readouterr()
    assert "Routing: no run has a routing.\n" in out and "removes" not in error
    earlier = json.dumps({**both, "ablation": {"after": {}}})
    (tmp_path / "analysis.json").write_text(earlier, "utf-8")
    text = tmp_path / "text"
    for suffix, lines in ((".en", ENGLISH), (".de", GERMAN)):
        text.with_suffix(suffix).write_text("\n".join([*lines[1:], ""]), "utf-8")
    other = analyze_part("heads", f"--labels after --valid {text}")
    assert other["routing"] == other["ablation"] == {}
    assert other["disagreement"] == before["disagreement"]
    assert other["heads"]["after"]["component"] == "enc"
    error = capsys.readouterr().err
    assert "removes earlier numbers of after" in error and error.count("\n") == 1
    assert analyze_part("routing", f"--labels after --valid {text}")["heads"] == other["heads"]
    assert not capsys.readouterr().err                           # a file is what it contains
    for suffix, lines in ((".en", ENGLISH), (".de", GERMAN)):
        text.with_suffix(suffix).write_text("\n".join([*lines[2:], ""]), "utf-8")
    assert analyze_part("routing", f"--labels after --valid {text}")["heads"] == {}
    assert "removes earlier numbers of after" in capsys.readouterr().err
    for damaged, message in (("{", "is damaged"), ("{}", "is not an analysis"),
                             ('{"kind": "analysis"}', "is not an analysis")):
        (tmp_path / "analysis.json").write_text(damaged, "utf-8")
        assert analyze.main([str(folders / "plain"), "--out", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
        assert (tmp_path / "analysis.json").read_text("utf-8") == damaged


def test_the_beam_reaches_every_search(folders, tmp_path, monkeypatch):
    """That of the run, or the one given."""
    beams = set()
    monkeypatch.setattr(measure, "translate", lambda run, lines, beam: beams.add(beam) or lines)
    for part in ("length", "ablation", "attention --sentence dog"):
        for flag, beam in (("", 1), ("--beam 7", 7)):
            words = f"{folders / 'plain'} --only {part} --out {tmp_path} --device cpu {flag}"
            assert analyze.main(words.split()) == 0
            assert beams == {beam}, words
            beams.clear()


def test_heads_of_other_widths_do_not_fit_into_one_plot(make_run):
    runs = [make_run(PLAIN), make_run("--heads 2")]
    with pytest.raises(UserError, match="the runs' heads have 4 and 8 dimensions"):
        analyze.check_runs(runs, parse(analyze.Settings, ["run"]))
    analyze.check_runs(runs, parse(analyze.Settings, ["run", "--only", "attention"]))


def test_text_that_is_elsewhere(folders, tmp_path, monkeypatch, capsys):
    run, = analyze.load_runs(parse(analyze.Settings, [str(folders / "plain"), "--device", "cpu"]))
    assert len(run.encoded) == len(run.valid.source) == len(run.test.source) / 2
    text = str(folders / "text")
    shutil.copytree(folders / "plain", tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(config | {"valid_text": ["0", "0"], "test": []}), "utf-8")
    both = parse(analyze.Settings, [str(tmp_path / "run"), str(folders / "plain")])
    analyze.load_runs(both)
    assert capsys.readouterr().err.splitlines() == [
        "warning: run: its validation text has changed since it was trained",
        "warning: plain and run are measured on different texts"]
    config |= dict.fromkeys(("train", "valid"), "gone")
    path.write_text(json.dumps(config), "utf-8")
    words = f"{tmp_path / 'run'} --only length --device cpu"
    assert analyze.main(words.split()) == 2
    error = capsys.readouterr().err
    assert "gone.en does not exist" in error and "--valid, --test" in error
    path.write_text(json.dumps(config | {"test": ["gone"]}), "utf-8")
    only = f"{tmp_path / 'run'} --only disagreement --device cpu --valid {text}"
    assert analyze.main(only.split()) == 0               # no part reads a test set
    assert analyze.main([*words.split(), "--valid", text, "--test", text]) == 0
    analysis = json.loads((tmp_path / "run" / "analysis.json").read_text("utf-8"))
    assert sum(x["count"] for x in analysis["length"]["run"]["bins"]) == len(ENGLISH)

    monkeypatch.setattr(analyze, "load_corpora", lambda flags:       # downloads
                        Corpora("en", "de", None, None, {"test": Pairs([flags.data_dir], ["b"])}))
    settings = parse(analyze.Settings, f"run --data-dir moved --valid {text}".split())
    known = config | {"train": None, "valid": None, "test": []}
    assert analyze.load_text(known, settings)[1] == (["moved"], ["b"])


@pytest.mark.parametrize("words, message", [
    ("", "which run?"), ("plain ./plain", "two runs are named plain"),
    ("plain --checkpoint last", "last.pt does not exist"),
    ("plain --layer 3", "has layers 1 to 2"),
    ("plain --out text.en", "--out text.en: cannot write"),
    ("plain routed --labels one", "--labels has 1 different names for 2 runs"),
    ("plain --only heads --sentence 2", "--sentence 2 is not used: it needs --only attention"),
    ("plain --only attention --sentence=", "--sentence is empty: give a sentence"),
    ("plain --only heads attention --beam 2", "--beam 2 is not used: it needs"),
    ("plain --only heads --test text", "--test text is not used: it needs --only length"),
    ("plain --only attention --sentence caf\udcff", "--sentence is not UTF-8"),
    ("plain --only routing --component dec", "--component dec is not used: it needs")])
def test_mistakes_are_one_line(folders, monkeypatch, capsys, words, message):
    monkeypatch.chdir(folders)
    assert analyze.main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_sentence_that_is_drawn(make_run, monkeypatch):
    """By default the first pair of 8 to 16 tokens a side, or the shortest; or the user's sentence
    with the run's translation."""
    run = make_run(PLAIN)

    def choose(source, target):
        pairs = Pairs(["z" * n for n in source], ["z" * n for n in target])
        run_of_pairs = run._replace(encoded=encode_pairs(run.tokenizer, pairs))
        return analyze.choose_sentence(run_of_pairs, Namespace(sentence=None))[1]
    assert choose([3, 12, 9, 10], [9, 20, 8, 10]) == 2
    assert choose([10, 17, 16, 9], [7, 10, 16, 9]) == 2
    assert choose([30, 20, 18], [2, 20, 28]) == 1
    monkeypatch.setattr(measure, "translate", lambda run, source, beam: ["ein Hund ."])
    own, index = analyze.choose_sentence(run, Namespace(sentence=" a  cat$ <b> ", beam=1))
    heatmap = measure.attention_map(own, "cross", 2, index)
    assert join_labels(heatmap["keys"]).startswith("acat$<b>")
    assert join_labels(heatmap["queries"]).endswith("einHund.")
