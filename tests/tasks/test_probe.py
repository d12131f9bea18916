"""tasks/probe_data.py, tasks/probe_model.py: SentEval's files, models, frozen encoders; probe.py: a
run of each protocol, and the table."""
import json
from dataclasses import asdict
from unittest.mock import Mock, call

import pytest
import torch
import torch.nn.functional as F
from project_files import ROOT

import probe
from disagreement import output_disagreement
from nmt.corpus import hash_text
from nmt.run_folder import load_run, save, write_config
from nmt.tokenizer import train_tokenizer
from tasks.models import MODELS
from tasks.probe_data import FILES, TASKS, Item, detokenize, load_task
from tasks.probe_model import ProbeModel, encode, freeze, majority, vocabulary
from transformer import Transformer, TransformerConfig

# what probe.py calls the text of an embedded task: results/ has accuracies on these sentences
EMBEDDED = {
    "SeLen": "1c5f0dcccf57cd03", "WC": "97146aa7e4b2bdcf", "TrDep": "ef87c53cfe1bebbd",
    "ToCo": "6f7d719af5240d6e", "BShif": "52bdb28836fe237f", "Tense": "0d15599a837a6e5a",
    "SubNm": "d39609147aa32900", "ObjNm": "2565c82600b00b26", "SOMO": "bc7c6beb25eedef7",
    "CoIn": "f91efd0d9490703a",
}

# ---- Data

def test_a_file_is_read_exactly(tmp_path):
    """If a line has more than three columns, the last one is the sentence."""
    lines = ["tr\tPAST\tthe dog slept .", "tr\tPRES\the sings", "va\tPAST\tshe saw it .",
             "te\tPRES\tit 's cold .", "va\tPRES\tmore\tcolumns here\tit counts"]
    (tmp_path / "past_present.txt").write_text("\n".join(lines), "utf-8")
    assert load_task("Tense", str(tmp_path)) == {
        "train": [Item("PAST", ("the", "dog", "slept", ".")), Item("PRES", ("he", "sings"))],
        "valid": [Item("PAST", ("she", "saw", "it", ".")), Item("PRES", ("it", "counts"))],
        "test": [Item("PRES", ("it", "'s", "cold", "."))],
    }
    assert sorted(FILES) == sorted(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_the_embedded_tasks(task):
    assert hash_text(map(str, load_task(task, "embedded").values())) == EMBEDDED[task]


def test_tokens_as_ordinary_text():
    tokens = "did n't she say : it 's ( too ) cold , is it ?".split()
    assert detokenize(tokens) == "Didn't she say: it's (too) cold, is it?"
    tokens = "we 'll say ; they 've 9 % [ so ] ! I 'd go , I 'm , you 're .".split()
    assert detokenize(tokens) == "We'll say; they've 9% [so]! I'd go, I'm, you're."


def test_vocabulary_and_classes_are_those_of_training():
    parts = {
        "train": [Item("no", ("c", "b", "b", "a")), Item("maybe", ("c", "b")), Item("yes", ("b",))],
        "valid": [Item("yes", ("x", "x", "x"))],
        "test": [Item("maybe", ("b", "x", "d", "a"))],
    }
    words = vocabulary(parts["train"])
    assert words == {"b": 2, "c": 3, "a": 4}
    data = encode(parts, words)
    assert data["train"].inputs.tolist() == [[3, 2, 2, 4], [3, 2, 0, 0], [2, 0, 0, 0]]
    assert data["train"].lengths.tolist() == [4, 2, 1]
    assert data["train"].labels.tolist() == [1, 0, 2]
    assert data["test"].inputs.tolist() == [[2, 1, 1, 4]]
    assert majority(parts) == 1                          # "maybe", the first by name
    parts["train"].append(Item("no", ("a",)))
    assert majority(parts) == 0


# ---- The model

def build(**mechanisms):
    """A small float64 model in evaluation mode."""
    config = TransformerConfig(20, 8, 2, 2, 16, dropout=0.0, decoder=False, **mechanisms)
    return ProbeModel(config, 3).double().eval()


@pytest.mark.parametrize("changes", [{}, dict(agg="em"), dict(capsule_attention=("enc",))],
                         ids=str)
def test_padding_changes_nothing(changes):
    model = build(**changes)
    ids = torch.randint(2, 20, (3, 7))
    ids[1, 4:] = 0
    logits = model(ids)
    torch.testing.assert_close(model(F.pad(ids, (0, 5))), logits)
    torch.testing.assert_close(model(ids[1:2, :4]), logits[1:2])


def test_loss_is_cross_entropy_minus_lambda_disagreement():
    model = build(reg=("output",), reg_weight=0.7)
    ids = torch.randint(0, 20, (4, 6))
    labels = torch.tensor([0, 1, 2, 0])
    logits, heads, mask = model.read(ids)
    D = sum(output_disagreement(layer.outputs, mask) for layer in heads["enc"]) / 2
    torch.testing.assert_close(model.loss(ids, labels), F.cross_entropy(logits, labels) - 0.7 * D)


def test_the_models_and_settings_of_the_papers():
    """Li 2019 routes in all layers, Li 2021 in the lowest two."""
    def places(model, layers):
        config = TransformerConfig(9, layers=layers, decoder=False, **MODELS[model])
        return config.agg, config.reg, config.layers_at(config.agg_at, "enc")
    assert places("simple", 3) == ("dynamic", (), [1, 2, 3])
    assert places("em", 3) == ("em", (), [1, 2, 3])
    assert places("disagreement", 6) == ("linear", ("output",), [])
    assert places("aggregation", 6) == ("em", (), [1, 2])
    assert places("combined", 6) == ("em", ("output",), [1, 2])
    for name, layers in (("li2019", 3), ("li2021", 6)):
        assert probe.PROTOCOLS[name]["sizes"] == dict(layers=layers, d_model=512, heads=8,
                                                      d_ff=2048, dropout=0.1)
        assert probe.PROTOCOLS[name]["training"] == dict(epochs=250, lr=5e-4, batch=64)
    for name, file in (("small", "probe-toy"), ("frozen", "probe-frozen-multi30k-toy")):
        path = ROOT / "results" / f"{file}.json"
        stored = json.loads(path.read_text("utf-8"))["settings"]
        assert probe.PROTOCOLS[name]["training"].items() <= stored.items()
    stored = json.loads((ROOT / "results" / "probe-toy.json").read_text("utf-8"))["settings"]
    assert probe.PROTOCOLS["small"]["sizes"].items() <= stored["models"]["baseline"].items()


# ---- The script

def write_tasks(folder, wrong=1):
    """Files of Tense and SubNm. "yes" makes a sentence PRES, "no" PAST, except for `wrong` of the
    five test sentences. Of the training sentences, most are PRES."""
    words = "some of these old words are here while another dozen stand there".split()
    lines = []
    for part, count, exceptions in (("tr", 60, 0), ("va", 20, 0), ("te", 5, wrong)):
        for i in range(count):
            word, label, other = ("no", "PAST", "PRES") if i % 3 else ("yes", "PRES", "PAST")
            if part == "tr" and i % 3 == 1:
                word, label = "yes", "PRES"
            tokens = [*words[i % 7:i % 7 + i % 4 + 1], word, *words[:i % 2]]
            lines.append(f"{part}\t{other if i < exceptions else label}\t{' '.join(tokens)}\n")
    folder.mkdir(exist_ok=True)
    for task in ("Tense", "SubNm"):
        (folder / FILES[task]).write_text("".join(lines), "utf-8")


def write_run(folder, source="en"):
    """The run folder of a translation model with random weights."""
    sentences = [detokenize(item.tokens) for item in load_task("Tense", "embedded")["valid"]]
    tokenizer = train_tokenizer(sentences, 300)
    config = TransformerConfig(tokenizer.get_vocab_size(), 16, 2, 1, 32)
    folder.mkdir()
    write_config(folder, {"model": asdict(config), "languages": [source, "de"]}, {})
    save(folder / "best.pt", model=Transformer(config).state_dict())
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Makes models and training tiny. Returns the folder of two tasks."""
    sizes = dict(layers=1, d_model=16, heads=2, d_ff=16, dropout=0.1)
    monkeypatch.setitem(probe.PROTOCOLS["small"], "sizes", sizes)
    for protocol, epochs in (("small", 6), ("frozen", 20)):
        training = dict(epochs=epochs, lr=1e-2, batch=8)
        monkeypatch.setitem(probe.PROTOCOLS[protocol], "training", training)
    write_tasks(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def seeds(monkeypatch):
    """Records the seeds of torch: of the weights, then that of every epoch."""
    record = Mock(wraps=torch.manual_seed)
    monkeypatch.setattr(torch, "manual_seed", record)
    return record


def run(data, out, flags):
    """The rows of results.json after a run."""
    probe.main(f"--device cpu --data {data} --out {out} {flags}".split())
    return json.loads((out / "results.json").read_text("utf-8"))["rows"]


def test_a_model_is_trained_and_tested(data, tmp_path, capsys):
    """It learns that "yes" is PRES, which 1 of the 5 test sentences contradicts."""
    (row,) = run(data, tmp_path / "out", "--task Tense --models baseline")
    assert (row["task"], row["model"], row["seed"]) == ("Tense", "baseline", 1)
    assert row["valid"] == 1.0 and row["accuracy"] == 4 / 5
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Tense", "20.00", "80.00", "84.57"] in rows  # most frequent class, ours, the paper's


def test_only_a_classifier_is_trained_on_a_frozen_encoder(data, tmp_path, seeds):
    write_run(tmp_path / "mt")
    before = (tmp_path / "mt" / "best.pt").read_bytes()
    flags = f"--task Tense --protocol frozen --seeds 2 --models {tmp_path}/mt"
    (row,) = run(data, tmp_path / "out", flags)
    assert seeds.call_args_list[:2] == [call(2), call(2 * 1_000_003 + 1)]
    assert row["valid"] == 1.0 and row["accuracy"] == 4 / 5
    assert row["parameters"] == 16 * 16 + 16 + 16 * 2 + 2
    assert (tmp_path / "mt" / "best.pt").read_bytes() == before


def test_another_checkpoint_in_a_folder_is_measured_anew(data, tmp_path):
    write_run(tmp_path / "mt")
    flags = f"--task Tense --protocol frozen --models {tmp_path}/mt --epochs 1"
    first, = run(data, tmp_path / "out", flags)
    model, _, _ = load_run(tmp_path / "mt")
    model.encoder.norm.weight.data[:8] = 0
    save(tmp_path / "mt" / "best.pt", model=model.state_dict())
    again, second = run(data, tmp_path / "out", flags)
    assert again == first and second["history"] != first["history"]
    assert run(data, tmp_path / "out", flags) == [first, second]


def test_frozen_vectors_are_standardized_means_over_a_sentence(data, tmp_path):
    """Mean and deviation are those of training; what is the same everywhere becomes 0."""
    write_run(tmp_path / "mt")
    model, tokenizer, _ = load_run(tmp_path / "mt")
    model.encoder.norm.weight.data[0] = 0
    parts = load_task("Tense", data)
    means = {}
    for part, items in parts.items():
        texts = [tokenizer.encode(detokenize(item.tokens)).ids for item in items]
        states = [model.encode(torch.tensor([[*ids, 2]])).states[0] for ids in texts]
        means[part] = torch.stack([x.mean(0) for x in states]).detach()
    center = means["train"].mean(0)
    deviation = means["train"].std(0).clamp(min=1e-6)
    frozen = freeze(parts, model, tokenizer)
    for part, vectors in means.items():
        wanted = (vectors - center) / deviation
        torch.testing.assert_close(frozen[part].inputs, wanted, atol=1e-4, rtol=1e-3)
        inputs, _ = frozen[part].batch(torch.tensor([3]))
        assert torch.equal(inputs, frozen[part].inputs[3:4])


def test_the_same_command_trains_only_what_is_missing(data, tmp_path, capsys, seeds):
    """A model does not depend on those that were trained before it."""
    flags = "--task Tense --epochs 1 --models"
    baseline, combined = run(data, tmp_path / "whole", f"{flags} baseline combined")
    assert run(data, tmp_path / "part", f"{flags} combined") == [combined]
    capsys.readouterr()
    both = f"{flags} combined baseline"
    assert run(data, tmp_path / "part", both) == [combined, baseline]
    assert "Tense, combined" not in capsys.readouterr().out
    rows = run(data, tmp_path / "part", f"{both} --task Tense SubNm --seeds 1 2")
    assert len(rows) == 8 and len({row["history"][0]["loss"] for row in rows}) == 4
    assert seeds.call_args_list[-2:] == [call(2), call(2 * 1_000_003 + 1)]
    write_tasks(data, wrong=2)                           # other sentences are measured again
    assert len(run(data, tmp_path / "part", both)) == 10


@pytest.mark.parametrize("flags, message", [
    ("--models bert", "--models: bert is none of baseline, disagreement, "),
    ("--task WC", "No such file or directory: '{data}/word_content.txt'"),
    ("--task Tense --epochs 2", "other settings"),
    ("--protocol frozen --models {data}/mt", "mt: does not read English, as the tasks do")])
def test_a_mistake_is_one_line(flags, message, data, tmp_path, capsys):
    write_run(data / "mt", source="zh")
    run(data, tmp_path / "out", "--task Tense --models baseline --epochs 1")
    out = tmp_path / ("out" if "other" in message else "new")
    flags = f"--task Tense {flags}".replace("{data}", str(data))
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        run(data, out, flags)
    error = capsys.readouterr().err
    assert message.replace("{data}", str(data)) in error and error.count("\n") == 1


def test_averages_are_means_over_tasks_seed_by_seed():
    accuracies = {}
    for i, task in enumerate(TASKS):
        accuracies[task, "majority"] = [0.5]
        accuracies[task, "em"] = [i / 100, 2 * i / 100]
    published = {"em": {"SeLen": "97.22", "surface": "96.69"}}
    text = probe.table(["em"], accuracies, published)
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows] == [
        "majority", "SeLen", "WC", "surface", "TrDep", "ToCo", "BShif", "syntactic", "Tense",
        "SubNm", "ObjNm", "SOMO", "CoIn", "semantic", "all"]
    assert rows[1] == ["SeLen", "50.00", "0.00", "±0.00", "97.22"]
    assert rows[3] == ["surface", "50.00", "0.75", "±0.35", "96.69"]         # 0.5 and 1.0
    assert rows[-1] == ["all", "50.00", "6.75", "±3.18"]                     # 4.5 and 9.0
    assert probe.published_accuracies("li2021-7")["aggregation"]["surface"] == "97.15"
