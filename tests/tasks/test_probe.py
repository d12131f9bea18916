"""probe.py, probe_data.py, probe_model.py: SentEval's files, plain text, the model, and runs that
are interrupted, resumed and extended, with encoders of their own and with frozen ones."""
import dataclasses
import hashlib
import io
import json
import os
import random
import re
import signal

import pytest
import torch
import torch.nn.functional as F

import probe
from disagreement import output_disagreement
from nmt import files, run_folder
from nmt.flags import UserError, parse
from nmt.tokenizer import save_tokenizer, train_tokenizer
from tasks import classifier, probe_data, probe_model
from tasks.probe_data import (
    FILES,
    TASKS,
    Item,
    detokenize,
    fill,
    read_task,
    read_text,
    shifted,
    text_task,
)
from transformer import Transformer, TransformerConfig

LINES = [
    "tr\tPAST\tthe dog slept .",
    "tr\tPRES\the sings",
    "va\tPAST\tshe saw it .",
    "te\tPRES\tit 's cold .",
]
WORDS = "some of these old words are here while another dozen stand there".split()


# ---- SentEval's files

def write(path, lines):
    path.write_bytes("\n".join(lines).encode() + b"\n")
    return path


def test_a_file_is_read_exactly(tmp_path):
    parts = read_task(
        write(
            tmp_path / "past_present.txt", [*LINES, "tr\tPRES\tmore\tcolumns here\tthe last counts"]
        )
    )
    assert parts == {
        "train": [
            Item("PAST", ("the", "dog", "slept", ".")),
            Item("PRES", ("he", "sings")),
            Item("PRES", ("the", "last", "counts")),
        ],
        "valid": [Item("PAST", ("she", "saw", "it", "."))],
        "test": [Item("PRES", ("it", "'s", "cold", "."))],
    }
    assert [len(items) for items in read_task(tmp_path / "past_present.txt", limit=2).values()] == [
        2, 1, 1,
    ]
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(LINES).encode())
    assert read_task(tmp_path / "windows.txt")["train"] == parts["train"][:2]


@pytest.mark.parametrize(
    "line",
    [
        b"tr\tPAST",
        b"",
        b"xx\tPAST\ta b",
        b"tr\t\ta b",
        b"tr\tPAST\t  ",
        b"tr PAST a b",
        b"tr\tPAST\t\xff\xfe",
        b"tr\tPAST\t" + b"a " * 600,
    ],
)
def test_a_malformed_line_is_named_by_file_and_line(tmp_path, line):
    path = tmp_path / "past_present.txt"
    path.write_bytes(
        "\n".join(LINES[:2]).encode() + b"\n" + line + b"\n" + "\n".join(LINES[2:]).encode() + b"\n"
    )
    with pytest.raises(UserError) as error:
        read_task(path)
    assert f"{path}, line 3" in str(error.value) and "\n" not in str(error.value)


def test_files_that_cannot_serve_are_named(tmp_path):
    for name, lines, message in (
        ("a", LINES[:3], "begins with te"),
        ("b", [*LINES, "te\tNEW\ta b"], "class NEW"),
        ("c", [LINES[0], *LINES[2:3], "te\tPAST\ta"], "one class"),
    ):
        with pytest.raises(UserError, match=message):
            read_task(write(tmp_path / name, lines))
    with pytest.raises(UserError, match="none.txt: no such file"):
        read_task(tmp_path / "none.txt")


@pytest.fixture
def served(monkeypatch):
    """`urlopen` that serves a content of each of the ten files; the ids of two fit."""
    asked, content = [], {name: f"tr\tA\t{task}\n".encode() for task, (name, _) in FILES.items()}

    def urlopen(url, timeout):
        asked.append(url)
        name = url.rpartition("/")[2]
        if name not in content:
            raise OSError("network is unreachable")
        return io.BytesIO(content[name])
    for task in ("Tense", "SOMO"):
        name = FILES[task][0]
        number = hashlib.sha1(b"blob %d\0" % len(content[name]) + content[name]).hexdigest()
        monkeypatch.setitem(probe_data.FILES, task, (name, number))
    monkeypatch.setattr(probe_data.urllib.request, "urlopen", urlopen)
    return asked, content


def test_download_once_and_as_published(served, tmp_path):
    asked, content = served
    path = probe_data.download_task("Tense", tmp_path / "senteval")
    assert path.read_bytes() == content["past_present.txt"] and len(asked) == 1
    assert probe_data.download_task("Tense", tmp_path / "senteval") == path and len(asked) == 1
    with pytest.raises(UserError, match="not what was published") as error:
        probe_data.download_task("WC", tmp_path / "senteval")
    assert str(tmp_path / "senteval" / "word_content.txt") in str(error.value)
    del content["odd_man_out.txt"]
    with pytest.raises(UserError, match="network is unreachable.*put it at .*odd_man_out.txt"):
        probe_data.download_task("SOMO", tmp_path / "senteval")
    assert [file.name for file in (tmp_path / "senteval").iterdir()] == ["past_present.txt"]


def test_the_ten_tasks_and_their_files():
    assert TASKS == (
        "SeLen", "WC", "TrDep", "ToCo", "BShif", "Tense", "SubNm", "ObjNm", "SOMO", "CoIn",
    )
    assert set(FILES) == set(TASKS) and len({name for name, _ in FILES.values()}) == 10


# ---- Plain text

def sentences(count):
    rng = random.Random(1)
    return [
        " ".join(rng.sample(WORDS, rng.randint(5, 11))).capitalize() + "." for _ in range(count)
    ]


def test_text_tasks_have_the_labels_of_their_definitions(tmp_path):
    path = write(tmp_path / "text", [*sentences(3000), "too short.", "a " * 40, ""])
    counts, found = {"train": 120, "valid": 20, "test": 40}, read_text(path)
    assert len(set(found)) == len(found) and {len(tokens) - 1 for tokens in found} == set(
        range(5, 12)
    )
    for item in (item for items in text_task("SeLen", found, counts, 1).values() for item in items):
        low, high = map(int, item.label.split("-"))
        assert low <= len(item.tokens) - 1 <= high
    for item in (item for items in text_task("BShif", found, counts, 1).values() for item in items):
        assert (item.tokens in set(found)) == (item.label == "O")
    parts = text_task("WC", found, {"train": 60, "valid": 10, "test": 10}, 1)
    targets = {item.label for item in parts["train"]}
    assert len(targets) > 1
    for item in parts["train"]:
        assert [token.lower() for token in item.tokens if token.lower() in targets] == [item.label]
    with pytest.raises(UserError, match="--sentences"):
        text_task("SeLen", found, {"train": 10 ** 6, "valid": 1, "test": 1}, 1)


def test_a_shift_exchanges_two_neighbours_or_nothing():
    tokens = ("a", "b", "c", ".", "d")
    rng = random.Random(2)
    found = set()
    for _ in range(60):
        item = shifted(Item("", tokens), rng)
        found.add((item.label, item.tokens))
    assert found == {("O", tokens), ("I", ("a", "c", "b", ".", "d"))}
    assert shifted(Item("", ("a", "b", ".", "c")), rng) is None


def test_plain_text_of_tokens():
    assert (
        detokenize(("he", "does", "n't", "see", "it", ",", "does", "she", "?"))
        == "He doesn't see it, does she?"
    )


def test_fill_balances_and_says_what_lacks():
    items = [Item("AB"[i % 3 == 0], (str(i),)) for i in range(90)]
    parts = fill(iter(items), [("A", None), ("B", None)], {"train": 40, "valid": 6, "test": 7}, 0)
    counts = []
    for found in parts.values():
        counts.append(sum(item.label == "A" for item in found))
    assert counts == [20, 3, 3]
    assert len({item for found in parts.values() for item in found}) == 52
    with pytest.raises(UserError, match="30 sentences of class B and 31 are needed"):
        fill(iter(items), [("A", None), ("B", None)], {"train": 62}, 0)


# ---- The model

def filled(*flags):
    """The settings that a command line gives."""
    return probe.completed(parse(probe.Settings, flags, "probe.py", ""))


def build(classes=3, d=8, **other):
    return (
        probe_model.ProbeModel(
            TransformerConfig(
                20, d_model=d, heads=2, layers=2, d_ff=16, dropout=0.0, decoder=False, **other
            ),
            classes,
        )
        .double()
        .eval()
    )


@pytest.mark.parametrize(
    "agg, capsule", [("linear", ()), ("em", ()), ("dynamic", ()), ("linear", ("enc",))]
)
def test_mean_pooling_ignores_padding(agg, capsule):
    states = torch.randn(2, 5, 4)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    wanted = torch.stack([states[0].mean(0), states[1, :2].mean(0)])
    torch.testing.assert_close(
        probe_model.mean_pool(states.masked_fill(~mask[..., None], torch.nan), mask), wanted
    )
    model = build(agg=agg, capsule_attention=capsule)
    ids = torch.randint(2, 20, (3, 7))
    ids[1, 4:] = 0
    logits = model(ids)[0]
    torch.testing.assert_close(model(F.pad(ids, (0, 5)))[0], logits)
    torch.testing.assert_close(model(ids[1:2, :4])[0], logits[1:2])


def test_loss_is_cross_entropy_minus_lambda_disagreement():
    model = build(reg=("output",), reg_weight=0.7)
    ids = torch.randint(0, 20, (4, 6))
    labels = torch.tensor([0, 1, 2, 0])
    logits, heads, mask = model(ids)
    D = sum(output_disagreement(layer.outputs, mask) for layer in heads["enc"]) / 2
    torch.testing.assert_close(model.loss(ids, labels), F.cross_entropy(logits, labels) - 0.7 * D)


def trivial(count, rng=random.Random(3)):
    """Sentences of class A hold the word "yes", those of class B "no"."""
    return [Item(label, (*rng.choices(WORDS, k=4), word, *rng.choices(WORDS, k=rng.randint(0, 3))))
            for label, word in (("A", "yes"), ("B", "no")) * (count // 2)]


def test_the_loop_learns_a_trivial_task_to_100_per_cent(tmp_path):
    parts = {"train": trivial(200), "valid": trivial(40), "test": trivial(60)}
    args = filled("--epochs", "6", "--lr", "0.005", "--batch", "16")
    data = probe_model.encode(parts, words := probe_model.vocabulary(parts))
    config = TransformerConfig(
        len(words) + 2, d_model=16, heads=2, layers=1, d_ff=16, dropout=0.1, decoder=False
    )

    def build():
        return probe_model.ProbeModel(config, 2)

    model, found = classifier.fit(build, data, args, 1, tmp_path / "state.pt", lambda text: None)
    assert (
        classifier.accuracy(model, data["test"]) == (60, 60)
        and found["valid"] == 1.0
        and found["history"][0]["loss"] > 0.3
    )
    assert probe_model.bag_of_words(parts) == 1.0 and probe_model.majority(parts) == 0.5


# ---- The command

def command(tmp_path, *flags):
    """The command with a model of seconds; returns its exit status."""
    return probe.main(
        ["--runs", str(tmp_path), "--device", "cpu", "--sentences", "60", "--epochs", "2", *flags]
    )


TINY = ("--d-model", "8", "--d-ff", "8", "--heads", "2", "--task", "tense")


def test_a_table_is_kept_and_goes_on(tmp_path, capsys):
    assert command(tmp_path, *TINY, "--models", "baseline", "combined") == 0
    text = capsys.readouterr().out
    assert (
        "bag of words" in text
        and "combined" in text
        and re.search("Semantic +Tense", text)
        and "Ave." not in text
    )
    assert command(tmp_path, *TINY, "SeLen", "WC", "--models", "baseline", "--seeds", "1", "2") == 0
    text = capsys.readouterr().out
    assert (
        "Tense, baseline, seed 2: epoch 2/2" in text
        and "Tense, baseline, seed 1" not in text
        and "Ave." in text
    )
    results = json.loads((tmp_path / "probe" / "results.json").read_text())
    assert [(line["group"], line["task"]) for line in results["table"]] == [
        ("surface", "SeLen"), ("surface", "WC"), ("surface", "Ave."), ("semantic", "Tense")]
    assert results["table"][0]["cells"]["baseline"]["seeds"] == 2
    assert sorted(path.name for path in (tmp_path / "probe").iterdir()) == [
        "config.json", "lock", "metrics.jsonl", "results.json", "table.txt"]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere os.kill ends the tests themselves")
def test_an_interrupted_run_ends_as_one_without_a_break(tmp_path, monkeypatch, capsys, ctrl_c):
    """SIGTERM, then SIGINT, both in the second epoch; in between a foreign checkpoint is refused.
    """
    assert command(tmp_path / "whole", *TINY, "--models", "combined") == 0
    train_epoch, calls = classifier.train_epoch, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) in (2, 3):
            os.kill(os.getpid(), {2: signal.SIGTERM, 3: signal.SIGINT}[len(calls)])
        return train_epoch(*arguments)
    monkeypatch.setattr(classifier, "train_epoch", interrupted)
    with pytest.raises(SystemExit) as exit:
        command(tmp_path / "broken", *TINY, "--models", "combined")
    assert exit.value.code == 143 and "stopped; the same command goes on" in capsys.readouterr().out
    path, = (tmp_path / "broken" / "probe").glob("*.pt")
    saved = run_folder.load(path)
    run_folder.save(path, {**saved, "model": {}})
    assert command(tmp_path / "broken", *TINY, "--models", "combined") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(path) in error and "weight" in error
    run_folder.save(path, saved)
    assert command(tmp_path / "broken", *TINY, "--models", "combined") == 130
    assert command(tmp_path / "broken", *TINY, "--models", "combined") == 0 and len(calls) == 4
    runs = [json.loads((tmp_path / which / "probe" / "results.json").read_text())["runs"]
            for which in ("whole", "broken")]
    assert all(run[-1].pop("seconds") > 0 for run in runs) and runs[0] == runs[1]


@pytest.fixture
def translation_run(tmp_path):
    """A run folder of an untrained translation model."""
    folder = tmp_path / "mt"
    folder.mkdir()
    tokenizer = train_tokenizer([detokenize(item.tokens) for item in trivial(50)], 300, exact=False)
    config = TransformerConfig(tokenizer.get_vocab_size(), d_model=8, heads=2, layers=1, d_ff=8)
    save_tokenizer(tokenizer, folder / "tokenizer.json")
    run_folder.save(folder / "best.pt", {"model": Transformer(config).state_dict()})
    files.atomic_write(
        folder / "config.json",
        json.dumps({"format": run_folder.FORMAT, "model": dataclasses.asdict(config)}),
    )
    return folder


def test_frozen_encoders(tmp_path, translation_run, capsys):
    """Vectors are the mean over a sentence's tokens and its end; the encoder does not change; a
    column per run."""
    write(
        tmp_path / "past_present.txt",
        [
            f"{part}\t{item.label}\t{' '.join(item.tokens)}"
            for part, n in (("tr", 60), ("va", 20), ("te", 20))
            for item in trivial(n)
        ],
    )
    before = (translation_run / "best.pt").read_bytes()
    for data in (("--data", str(tmp_path)), ()):
        assert (
            command(tmp_path / "runs", "--task", "Tense", "--encoder", str(translation_run), *data)
            == 0
        )
        assert re.search("bag of words +mt", capsys.readouterr().out)
    assert (translation_run / "best.pt").read_bytes() == before
    model, tokenizer, _ = probe.load_run(translation_run)
    parts = {"train": trivial(30), "valid": trivial(6), "test": trivial(10)}
    data, means = probe_model.freeze(parts, model, tokenizer, size=4), {}
    with torch.no_grad():
        for part, items in parts.items():
            ids = [
                torch.tensor([tokenizer.encode(detokenize(item.tokens)).ids + [2]])
                for item in items
            ]
            means[part] = torch.stack(
                [model.encode(sentence).states[0].mean(0) for sentence in ids]
            )
    center = means["train"].mean(0)
    deviation = means["train"].std(0)
    for part, found in means.items():  # all parts by training's mean and deviation
        torch.testing.assert_close(
            data[part].inputs, (found - center) / deviation, atol=1e-4, rtol=1e-3
        )
        assert data[part].labels.tolist() == ["AB".index(item.label) for item in parts[part]]


def test_what_another_checkpoint_began_is_not_resumed(tmp_path, translation_run, monkeypatch):
    """Stopped in the second epoch; then the encoder is trained on."""
    def probed(runs):
        status = command(tmp_path / runs, "--task", "SeLen", "--encoder", str(translation_run))
        assert status == 0
        results = json.loads((tmp_path / runs / "probe-frozen" / "results.json").read_text())
        return results["runs"][-1]["accuracy"], results["runs"][-1]["history"]

    def interrupted(*arguments):
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return train_epoch(*arguments)

    train_epoch, epochs = classifier.train_epoch, []
    with monkeypatch.context() as patch:
        patch.setattr(classifier, "train_epoch", interrupted)
        assert command(tmp_path / "broken", "--task", "SeLen", "--encoder", str(translation_run)) \
            == 130
    weights = run_folder.load(translation_run / "best.pt")["model"]
    later = {key: value + 0.5 * torch.randn_like(value) for key, value in weights.items()}
    run_folder.save(translation_run / "best.pt", {"model": later})
    assert probed("broken") == probed("whole")


def test_runs_of_several_seeds_are_one_column():
    """Runs NAME-seed1 and NAME-seed2 share a column, whose mean and deviation are over both; a run
    alone keeps its name, and so do the baselines."""
    accuracies = {"majority": 0.5, "a-seed1": 0.6, "a-seed2": 0.8, "b-seed1": 0.7}
    rows = [{"task": "Tense", "model": name, "seed": 1, "accuracy": accuracy}
            for name, accuracy in accuracies.items()]
    rows, columns = probe.over_runs(rows, ["a-seed1", "a-seed2", "b-seed1"])
    assert columns == ["a", "b-seed1"]
    (line,) = probe.summarize(rows, ["majority", *columns])
    assert line["cells"] == {
        "majority": {"mean": 0.5, "seeds": 1, "spread": None},
        "a": {"mean": pytest.approx(0.7), "seeds": 2, "spread": pytest.approx(0.02 ** 0.5)},
        "b-seed1": {"mean": 0.7, "seeds": 1, "spread": None},
    }
    apart = ["a", "a-seed1", "a-seed2"]                  # no column can be called a, too
    assert probe.over_runs([], apart) == ([], apart)


def test_protocols_and_models_of_the_papers():
    def configs(*flags):
        args = filled(*flags)
        return args, {name: probe.configuration(args, name) for name in args.models}
    args, found = configs("--protocol", "li2019")
    assert {name: (c.agg, c.layers, c.d_model, c.agg_at) for name, c in found.items()} == {
        "baseline": ("linear", 3, 512, ()), "simple": ("dynamic", 3, 512, ("enc",)),
        "em": ("em", 3, 512, ("enc",))}
    assert (args.epochs, args.lr) == (250, 5e-4)
    args, found = configs("--protocol", "li2021")
    assert {name: (c.agg, c.reg, c.layers, c.agg_at) for name, c in found.items()} == {
        "baseline": ("linear", (), 6, ()),
        "disagreement": ("linear", ("output",), 6, ()),
        "aggregation": ("em", (), 6, ("enc:1-2",)),
        "combined": ("em", ("output",), 6, ("enc:1-2",)),
    }
    args, found = configs(
        "--agg", "dynamic", "--reg", "subspace", "--agg-at", "enc:2", "--arch", "tiny"
    )
    assert args.name == "probe-dynamic-agg-at-enc2-subspace" and found["own"].agg_at == ("enc:2",)
    assert (found["own"].layers, found["own"].d_model) == (4, 128)


# ---- Which part, which seed, which mean

class Always(torch.nn.Module):
    """A model that gives every sentence the first class."""
    def forward(self, inputs):
        return F.one_hot(torch.zeros(len(inputs), dtype=torch.long), 2).double(),


def test_tested_on_the_test_part(tmp_path, monkeypatch, capsys):
    """Shares of class A: 5 of 8 in training, 1 of 4 in validation, 1 of 5 in the test. The word
    "yes" stands for A in training and validation, for B in the test, but for one sentence. So every
    part would give every column another number."""
    lines = [
        (part, label, word)
        for part, words in (
            ("tr", (("A", "yes"),) * 5 + (("B", "no"),) * 3),
            ("va", (("A", "yes"), ("B", "no"), ("B", "no"), ("B", "no"))),
            ("te", (("A", "yes"), ("B", "yes"), ("B", "yes"), ("B", "yes"), ("B", "no"))),
        )
        for label, word in words
    ]
    write(
        tmp_path / "past_present.txt",
        [f"{part}\t{label}\t{word} {i}" for i, (part, label, word) in enumerate(lines)],
    )
    seen = []

    def fit(build, data, args, seed, path, log):
        seen.append((data, args, seed))
        path.touch()
        return Always(), {"valid": 0.25, "parameters": 1, "seconds": 0.0, "history": []}
    monkeypatch.setattr(probe, "fit", fit)
    assert (
        command(
            tmp_path / "runs",
            "--task",
            "Tense",
            "--data",
            str(tmp_path),
            "--models",
            "baseline",
            "--seeds",
            "4",
            "8",
            "--lr",
            "0.25",
            "--name",
            "x",
        )
        == 0
    )
    runs = json.loads((tmp_path / "runs" / "x" / "results.json").read_text())["runs"]
    assert [(run["model"], run["seed"], run["accuracy"]) for run in runs] == [
        ("majority", 0, 1 / 5),
        ("bag of words", 0, 2 / 5),
        ("baseline", 4, 1 / 5),
        ("baseline", 8, 1 / 5),
    ]
    assert [seed for _, _, seed in seen] == [4, 8] and runs[2]["valid"] == 0.25
    data, args, _ = seen[0]
    assert {part: x.labels.tolist() for part, x in data.items()} == {
        "train": [0] * 5 + [1] * 3, "valid": [0, 1, 1, 1], "test": [0, 1, 1, 1, 1]}
    assert (args.epochs, args.lr, args.batch) == (2, 0.25, 32)
    assert re.search(r"Tense +20\.00 +40\.00 +20\.00 ±0\.00", capsys.readouterr().out)


def test_sentences_and_seeds_reach_the_tasks(tmp_path, monkeypatch):
    """So many sentences in every part, drawn from --data-seed and nothing else."""
    drawn = []
    for name in ("toy_task", "text_task"):
        monkeypatch.setattr(probe, name, lambda *arguments: drawn.append(arguments))
    text = write(tmp_path / "text", sentences(30))
    for flags in (
        ["--sentences", "1500", "--data-seed", "7"],
        ["--sentences", "50", "--data-seed", "7"],
        ["--seeds", "3"],
        ["--text", str(text), "--data-seed", "5"],
    ):
        probe.load_task(filled(*flags), "SeLen")
    counts = [dict(zip(("train", "valid", "test"), found)) for found in (
        (1500, 1000, 1500), (50, 50, 50), (4000, 1000, 2000), (4000, 1000, 2000))]
    assert drawn == [("SeLen", counts[0], 7), ("SeLen", counts[1], 7), ("SeLen", counts[2], 1),
                     ("SeLen", read_text(text), counts[3], 5)]


def test_averages_are_means_over_tasks_seed_by_seed():
    """Ten tasks, two seeds that stand in another order in every second one; the average of a group,
    and that of all ten tasks, which is not that of the three groups."""
    share = {
        (task, seed): (i + 1) ** 2 / 200 + (0.03 * (i % 3) if seed == 2 else 0)
        for i, task in enumerate(TASKS)
        for seed in (1, 2)
    }
    rows = [
        {"task": task, "model": "em", "seed": seed, "accuracy": share[task, seed]}
        for i, task in enumerate(TASKS)
        for seed in ((1, 2), (2, 1))[i % 2]
    ]
    rows += [
        {"task": task, "model": "majority", "seed": 0, "accuracy": 0.01 * i}
        for i, task in enumerate(TASKS)
    ]
    lines = probe.summarize(rows, ["majority", "em"])
    groups = {"surface": TASKS[:2], "syntactic": TASKS[2:5], "semantic": TASKS[5:]}
    wanted = []
    for group, members in groups.items():
        wanted += [(group, task, [task]) for task in members]
        wanted.append((group, "Ave.", members))
    wanted.append(("all", "Ave.", TASKS))
    assert [(line["group"], line["task"]) for line in lines] == [
        (group, name) for group, name, _ in wanted
    ]
    for line, (_, _, tasks) in zip(lines, wanted):
        one = sum(share[task, 1] for task in tasks) / len(tasks)
        two = sum(share[task, 2] for task in tasks) / len(tasks)
        assert line["cells"]["em"] == {"mean": pytest.approx((one + two) / 2), "seeds": 2,
                                       "spread": pytest.approx(abs(one - two) / 2 ** 0.5)}
        mean = sum(0.01 * TASKS.index(task) for task in tasks) / len(tasks)
        assert line["cells"]["majority"] == {
            "mean": pytest.approx(mean),
            "seeds": 1,
            "spread": None,
        }
    text = [line.split() for line in probe.table(lines).splitlines()]
    assert (
        text[0] == ["majority", "em"]
        and text[1][:2] == ["Surface", "SeLen"]
        and len(text) == len(lines) + 1
    )
    for cells, line in zip(text[1:], lines):
        em = line["cells"]["em"]
        assert cells[-3:] == [
            f"{100 * line['cells']['majority']['mean']:.2f}",
            f"{100 * em['mean']:.2f}",
            f"±{100 * em['spread']:.2f}",
        ]


# ---- Sentences as tensors

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
    assert data["train"].labels.tolist() == [1, 0, 2] and data["train"].lengths.tolist() == [
        4, 2, 1,
    ]
    assert data["valid"].inputs.tolist() == [[1, 1, 1]] and data["valid"].labels.tolist() == [2]
    assert data["test"].inputs.tolist() == [[2, 1, 1, 4]] and data["test"].labels.tolist() == [0]
    inputs, labels = data["train"].batch(torch.tensor([2, 1]))
    assert inputs.tolist() == [[1, 0], [3, 2]] and labels.tolist() == [2, 0]
    assert probe_model.word_counts(parts["train"], words).toarray().tolist() == [
        [0, 2, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0]]


def test_majority_is_the_class_most_frequent_in_training():
    def part(labels):
        return [Item(label, ("a",)) for label in labels]

    assert (
        probe_model.majority(
            {"train": part("BBAC"), "valid": part("CCC"), "test": part("ABACAAAA")}
        )
        == 1 / 8
    )
    assert (
        probe_model.majority({"train": part("BACBA"), "valid": [], "test": part("ABBB")}) == 1 / 4
    )  # A before B


def test_the_classifier_is_an_mlp_with_the_models_dropout():
    """d -> d -> classes with ReLU, by hand; dropout on the sentence's vector, in training alone;
    none on frozen encoders."""
    model = probe_model.ProbeModel(
        TransformerConfig(20, d_model=8, heads=2, layers=1, d_ff=8, dropout=0.4, decoder=False), 3
    )
    dropout, first, _, second = model.classifier
    vectors = torch.randn(5, 8)
    wanted = (vectors @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(model.eval().classifier(vectors), wanted)
    assert dropout.p == 0.4 and second.weight.shape == (3, 8)
    frozen = probe_model.FrozenProbe(8, 3).train()
    torch.testing.assert_close(frozen(vectors)[0], frozen.eval()(vectors)[0])
    labels = torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(
        frozen.loss(vectors, labels), F.cross_entropy(frozen(vectors)[0], labels)
    )


def test_lengths_of_plain_text_fall_into_six_ranges():
    """As many sentences in each as can be: here one length a range, then two."""
    for ranges in ([(n, n) for n in range(5, 11)], [(n, n + 1) for n in range(5, 17, 2)]):
        found = []
        for low, high in ranges:
            for n in range(low, high + 1):
                for i in range(20):
                    found.append((*(f"w{i}x{n}{j}" for j in range(n)), "."))
        parts = text_task("SeLen", found, {"train": 60, "valid": 6, "test": 6}, 1)
        assert {item.label for item in parts["train"]} == {f"{low}-{high}" for low, high in ranges}
        for item in parts["train"]:
            low, high = map(int, item.label.split("-"))
            assert low <= len(item.tokens) - 1 <= high
