"""probe.py, probe_data.py, probe_model.py: SentEval's files, the model, the table; runs that are
interrupted and extended, with trained and with frozen encoders."""
import hashlib
import io
import json
import random
import shutil

import pytest
import torch
import torch.nn.functional as F
from small_run import write_run

import probe
from disagreement import output_disagreement
from nmt import download
from nmt.run_folder import RunFolder, load_run
from nmt.tokenizer import train_tokenizer
from tasks import classifier, probe_data, probe_model
from tasks.probe_data import TASKS, Item, detokenize, download_task, read_task
from tools.command_line import parse
from tools.files import UserError, read_lines
from transformer import TransformerConfig

LINES = ["tr\tPAST\tthe dog slept .", "tr\tPRES\the sings", "va\tPAST\tshe saw it .",
         "te\tPRES\tit 's cold ."]
WORDS = "some of these old words are here while another dozen stand there".split()


# ---- SentEval's files

@pytest.fixture
def publish(tmp_path, monkeypatch):
    """A function that makes lines the published file of Tense; returns it and its path."""
    path = tmp_path / "senteval" / "past_present.txt"
    path.parent.mkdir()

    def write(lines):
        content = "".join(f"{line}\n" for line in lines).encode()
        number = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        monkeypatch.setitem(probe_data.FILES, "Tense", (path.name, number))
        path.write_bytes(content)
        return content, path
    return write


def test_a_file_is_read_exactly(publish):
    """If a line has more than three columns, the last one is the sentence. Only training sentences
    are limited."""
    _, path = publish([*LINES, "tr\tPAST\tit rained", "va\tPRES\tmore\tcolumns here\tit counts",
                       "va\tPRES\tyes"])
    assert read_task(read_lines(path), limit=2) == {
        "train": [Item("PAST", ("the", "dog", "slept", ".")), Item("PRES", ("he", "sings"))],
        "valid": [Item("PAST", ("she", "saw", "it", ".")), Item("PRES", ("it", "counts")),
                  Item("PRES", ("yes",))],
        "test": [Item("PRES", ("it", "'s", "cold", "."))],
    }
    with pytest.raises(UserError, match="class PRES is not among the 1 training sentences"):
        read_task(read_lines(path), limit=1)


def test_a_file_is_downloaded_once_and_must_be_the_published_one(publish, monkeypatch):
    content, path = publish(LINES)
    asked = []

    def urlopen(url, timeout):
        asked.append(url)
        return io.BytesIO(content)
    monkeypatch.setattr(download.urllib.request, "urlopen", urlopen)
    path.unlink()
    for _ in range(2):
        assert download_task("Tense", path.parent).read_bytes() == content
    assert asked == [probe_data.URL + path.name]
    path.write_text("other lines", "utf-8")
    with pytest.raises(UserError, match="published file https.*/past_present.txt: delete it"):
        download_task("Tense", path.parent)
    path.unlink()
    content = b"other lines"                             # a page in place of the file
    with pytest.raises(UserError, match=f"is not the published file.*try again, or fetch .* {path}"
                                        ", or use --data toy"):
        download_task("Tense", path.parent)
    assert not path.exists()


def test_tokens_as_ordinary_text():
    tokens = "did n't she say : it 's ( too ) cold , is it ?".split()
    assert detokenize(tokens) == "Didn't she say: it's (too) cold, is it?"
    tokens = "we 'll say ; they 've 9 % [ so ] ! I 'd go , I 'm , you 're .".split()
    assert detokenize(tokens) == "We'll say; they've 9% [so]! I'd go, I'm, you're."


# ---- The model

def build(**other):
    """A small float64 model in evaluation mode."""
    config = TransformerConfig(20, 8, 2, 2, 16, dropout=0.0, decoder=False, **other)
    return probe_model.ProbeModel(config, 3).double().eval()


@pytest.mark.parametrize("agg, capsule", [("linear", ()), ("em", ()), ("dynamic", ()),
                                          ("linear", ("enc",))])
def test_padding_changes_nothing(agg, capsule):
    model = build(agg=agg, capsule_attention=capsule)
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


def trivial(count, rng=random.Random(3)):
    """Sentences of class A have the word "yes", those of class B "no"."""
    return [Item(label, (*rng.choices(WORDS, k=4), word, *rng.choices(WORDS, k=rng.randint(0, 3))))
            for label, word in (("A", "yes"), ("B", "no")) * (count // 2)]


def test_vocabulary_and_classes_are_those_of_training(monkeypatch):
    """The most frequent words of the training sentences from id 2 on; all others are unknown, 1;
    classes sorted."""
    monkeypatch.setattr(probe_model, "VOCABULARY", 3)
    parts = {
        "train": [Item("no", ("c", "b", "b", "a")), Item("maybe", ("c", "b")), Item("yes", ("d",))],
        "valid": [Item("yes", ("x", "x", "x"))],
        "test": [Item("maybe", ("b", "x", "d", "a"))],
    }
    words = probe_model.vocabulary(parts)
    assert words == {"b": 2, "c": 3, "a": 4}
    data = probe_model.encode(parts, words)
    assert data["train"].inputs.tolist() == [[3, 2, 2, 4], [3, 2, 0, 0], [1, 0, 0, 0]]
    assert data["train"].labels.tolist() == [1, 0, 2]
    assert data["test"].inputs.tolist() == [[2, 1, 1, 4]]
    inputs, labels = data["train"].batch(torch.tensor([2, 1]))
    assert inputs.tolist() == [[1, 0], [3, 2]] and labels.tolist() == [2, 0]
    assert probe_model.majority(parts) == 1              # "maybe", the first by name
    parts["train"].append(Item("no", ("a",)))
    assert probe_model.majority(parts) == 0


# ---- The command

def command(folder, flags):
    """The command with a model of seconds; returns its exit status."""
    small = "--device cpu --sentences 200 --epochs 2 --name x"
    return probe.main(f"--runs {folder} {small} {flags}".split())


def results(folder):
    return json.loads((folder / "x" / "results.json").read_text("utf-8"))


TINY = "--d-model 8 --d-ff 8 --heads 2 --task Tense"


def test_a_column_named_like_a_number_has_two_digits():
    cells = {"7": {"mean": 0.5, "spread": None}}
    assert probe.table([{"group": "syntactic", "task": "BShif", "cells": cells}])[-5:] == "50.00"


def test_a_table_is_kept_and_extended(tmp_path, monkeypatch, capsys):
    """After Ctrl-C in the second model, that model is trained again and the first one is kept: the
    results are those of a run without a break."""
    flags = f"{TINY} --models baseline combined"
    assert command(tmp_path / "whole", flags) == 0
    out = capsys.readouterr().out
    assert "x: 1 tasks, majority, bag of words, baseline, combined; cpu\n" in out
    assert "Tense, combined, seed 1: epoch 2/2" in out
    assert command(tmp_path / "whole", f"{flags} --sentences 70") == 2
    accuracy = classifier.accuracy
    calls = []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return accuracy(*arguments)
    with monkeypatch.context() as patch:
        patch.setattr(classifier, "accuracy", interrupted)
        assert command(tmp_path / "broken", flags) == 130
        assert command(tmp_path / "broken", flags) == 0
    assert len(calls) == 5                               # two epochs of one model
    whole, broken = results(tmp_path / "whole"), results(tmp_path / "broken")
    for row in (*whole["runs"], *broken["runs"]):
        row.pop("seconds", None)
    assert whole == broken
    capsys.readouterr()
    more = f"{TINY} SeLen WC --models baseline --seeds 1 2 --device auto"
    assert command(tmp_path / "whole", more) == 0
    text = capsys.readouterr().out
    assert "Tense, baseline, seed 2: epoch 2/2" in text and "Tense, baseline, seed 1" not in text
    extended = results(tmp_path / "whole")
    rows = [row for row in extended["runs"] if row["model"] == "baseline"]
    assert len({row["history"][0]["loss"] for row in rows}) == 6
    assert [(line["group"], line["task"]) for line in extended["table"]] == [
        ("surface", "SeLen"), ("surface", "WC"), ("surface", "Ave."), ("semantic", "Tense")]
    assert extended["table"][0]["cells"]["baseline"]["seeds"] == 2


def test_the_model_is_tested_on_the_test_part(tmp_path, publish, capsys):
    """Class A is 40 of the 60 sentences to train on, of which there are 150, 1 of 4 in validation,
    1 of 5 in the test. The word "yes" means A but in the test, where it means B except once. So
    every part would give other numbers."""
    kinds = ["tr A yes"] * 40 + ["tr B no"] * 110 + ["va A yes"] + ["va B no"] * 3
    kinds += ["te A yes"] + ["te B yes"] * 3 + ["te B no"]
    publish("\t".join(kind.split()) + f" {i}" for i, kind in enumerate(kinds))
    flags = (f"{TINY} --data senteval --data-dir {tmp_path} --models baseline --lr 1e-9 "
             "--sentences 60")
    assert command(tmp_path / "runs", flags) == 0
    by_model = {row["model"]: row for row in results(tmp_path / "runs")["runs"]}
    assert by_model["majority"]["accuracy"] == 1 / 5
    assert by_model["bag of words"]["accuracy"] == 2 / 5
    assert by_model["baseline"]["valid"] in (1 / 4, 3 / 4)           # one class for all sentences
    assert by_model["baseline"]["accuracy"] in (1 / 5, 4 / 5)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Semantic", "Tense", "20.00", "40.00"] in [row[:4] for row in rows]
    (tmp_path / "senteval" / "sentence_length.txt").touch()          # not the published file
    assert command(tmp_path / "both", f"{flags} --task Tense SeLen") == 2
    assert "epoch" not in capsys.readouterr().out        # files are checked before training


def test_sentences_are_the_first_training_sentences():
    whole, parts = (probe.load_task(parse(probe.Settings, flags.split()), "BShif")
                    for flags in ("", "--sentences 70"))
    assert [len(items) for items in whole.values()] == [4_000, 1_000, 2_000]
    assert parts == {**whole, "train": whole["train"][:70]}


# ---- Frozen encoders

@pytest.fixture
def translation_run(tmp_path):
    """The run folder of an untrained translation model."""
    tokenizer = train_tokenizer([detokenize(item.tokens) for item in trivial(50)], 300, exact=False)
    write_run(tmp_path / "mt-seed1", tokenizer)
    return tmp_path / "mt-seed1"


def test_vectors_are_standardized_means_over_a_sentence(translation_run, monkeypatch):
    """Of its first tokens; what is the same in all sentences becomes 0."""
    monkeypatch.setattr(probe_model, "MOST_TOKENS", 9)
    model, tokenizer, _ = load_run(translation_run)
    model.encoder.norm.weight.data[0] = 0
    parts = {"train": trivial(30), "test": trivial(10)}
    data = probe_model.freeze(parts, model, tokenizer)
    means = {}
    for part, items in parts.items():
        texts = [tokenizer.encode(detokenize(item.tokens)).ids for item in items]
        states = [model.encode(torch.tensor([ids[:8] + [2]])).states[0] for ids in texts]
        means[part] = torch.stack([x.mean(0) for x in states]).detach()
    center = means["train"].mean(0)
    deviation = means["train"].std(0).clamp(min=1e-6)
    for part, vectors in means.items():                  # all parts by training's mean
        wanted = (vectors - center) / deviation
        torch.testing.assert_close(data[part].inputs, wanted, atol=1e-4, rtol=1e-3)
        assert data[part].labels.tolist() == ["AB".index(item.label) for item in parts[part]]


def test_frozen_encoders_are_probed_again_after_training(tmp_path, capsys, monkeypatch,
                                                         translation_run):
    """They are tested on the test part, which has 2,000 sentences."""
    monkeypatch.setattr(probe, "accuracy", lambda model, examples: len(examples.labels) / 4_000)
    flags = (f"--task Tense --encoder {translation_run} {translation_run}/ --checkpoint last "
             "--seeds 1 2")
    checkpoint = (translation_run / "best.pt").rename(translation_run / "last.pt")
    before = checkpoint.read_bytes()
    assert command(tmp_path / "runs", flags) == 0
    assert checkpoint.read_bytes() == before
    (line,) = results(tmp_path / "runs")["table"]
    assert list(line["cells"]) == ["majority", "bag of words", "mt"]
    assert line["cells"]["mt"]["mean"] == 1 / 2 and line["cells"]["mt"]["seeds"] == 2
    with RunFolder(translation_run, {}) as folder:
        model, _, _ = load_run(translation_run, "last")
        folder.save("last.pt", model={name: x + 1 for name, x in model.state_dict().items()})
    assert command(tmp_path / "runs", flags) == 0
    rows = (tmp_path / "runs" / "x" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(row)["model"] for row in rows].count("mt-seed1") == 4
    assert command(tmp_path / "runs", f"{flags} --checkpoint best") == 2
    assert "best.pt does not exist" in capsys.readouterr().err


def test_an_encoder_has_to_read_english(tmp_path, translation_run, monkeypatch, capsys):
    shutil.copytree(translation_run, tmp_path / "other" / "mt-seed1")
    assert command(tmp_path / "runs", f"--encoder {translation_run} {tmp_path}/other/mt-seed1") == 2
    assert "two runs are called mt-seed1: rename" in capsys.readouterr().err
    config = translation_run / "config.json"
    config.write_text(config.read_text("utf-8").replace('"en"', '"zh"'), "utf-8")
    monkeypatch.setattr(probe, "find_run", {"NAME": str(translation_run)}.get)
    assert command(tmp_path / "runs", "--encoder NAME") == 2
    assert "does not read English" in capsys.readouterr().err


# ---- The table

def test_averages_are_means_over_tasks_seed_by_seed():
    """Ten tasks, two seeds, which are in another order in every second task. Runs NAME-seed1 and
    NAME-seed2 share a column."""
    share = {}
    rows = []
    for i, task in enumerate(TASKS):
        for seed in (1, 2) if i % 2 else (2, 1):
            share[task, seed] = (i + 1) ** 2 / 200 + 0.03 * (i % 3) * (seed == 2)
            rows.append({"task": task, "model": f"em-seed{seed}", "seed": 1,
                         "accuracy": share[task, seed]})
    lines = probe.summarize(rows)
    groups = {"surface": TASKS[:2], "syntactic": TASKS[2:5], "semantic": TASKS[5:], "all": TASKS}
    averages = {line["group"]: line["cells"]["em"] for line in lines if line["task"] == "Ave."}
    for group, tasks in groups.items():
        one = sum(share[task, 1] for task in tasks) / len(tasks)
        two = sum(share[task, 2] for task in tasks) / len(tasks)
        assert averages[group]["mean"] == pytest.approx((one + two) / 2)
        assert averages[group]["spread"] == pytest.approx(abs(one - two) / 2 ** 0.5)
    text = [line.split() for line in probe.table(lines).splitlines()]
    assert text[0] == ["em"] and text[1][:3] == ["Surface", "SeLen", "0.50"]
    assert len(text) == 1 + len(lines) == 15
