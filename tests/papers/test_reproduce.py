"""reproduce.py and papers/: every row a valid model with the published parameters, names that are
shared by what is the same, a table that is interrupted, fails and resumes, and RESULTS.md beside
results/."""

import importlib
import json
import math
import os
import re
import shutil
import signal
import threading
import time
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from outside import SHARED

import logic
import nmt.flags
import reproduce
import train_mt
from nmt.flags import UserError, flag, parse
from papers import documents, jobs, plan, render
from papers.rows import Row
from papers.tables import TABLES
from transformer import Transformer, TransformerConfig

ROOT = Path(__file__).resolve().parents[2]
PAPERS = SHARED / "papers"
PUBLISHED = {
    "li2018-1": 3701067665,
    "li2018-2": 3001044675,
    "li2018-3": 2713452604,
    "li2018-4": 313002679,
    "li2018-5": 1751656536,
    "li2019-1": 1302698164,
    "li2019-2": 2341571704,
    "li2019-3": 3904479246,
    "li2019-4": 3124195782,
    "li2021-1": 3701067665,
    "li2021-2": 3001044675,
    "li2021-3": 2793531943,
    "li2021-4": 594932896,
    "li2021-5": 2485617542,
    "li2021-6": 3321758364,
    "li2021-7": 402365203,
    "duan-1": 3292244180,
    "duan-2": 2876207201,
    "duan-3": 1493161334,
    "duan-4": 2690071081,
    "gu-1": 367932140,
    "gu-2": 1675520087,
    "gu-3": 3158450498,
}  # checksums by table
TRAINED = [name for name, table in TABLES.items() if table.kind not in ("logic", "probe")]
MINUTE = [
    "--layers", "1", "--d-model", "16", "--heads", "2", "--d-ff", "16", "--vocab-size", "300",
    "--device", "cpu",
]
# a training that takes no time; with a file "wait" it takes long
FAKE = """
import json, os, signal, sys, time
flags = {flag: value for flag, value in zip(sys.argv, sys.argv[1:]) if flag.startswith("--")}
path = os.path.join(flags["--runs"], flags["--name"])
os.makedirs(path, exist_ok=True)
stopped = []
signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
open(os.path.join(path, "started"), "a").write("x")
open(os.path.join(path, "config.json"), "w").write("{}")
while os.path.exists(os.path.join(flags["--runs"], "wait")) and not stopped:
    time.sleep(0.01)
if stopped:
    open(os.path.join(path, "saved"), "w").write("x")
    sys.exit(128 + stopped[0])
if os.path.exists(os.path.join(flags["--runs"], flags["--name"] + ".fail")):
    print("train_mt.py: error: the disk is full")
    sys.exit(2)
number = int(flags["--seed"]) + len(flags["--name"])
D = {"subspace": 0.9, "position": 0.1, "output": 0.8}
with open(os.path.join(path, "metrics.jsonl"), "w") as file:
    for row in ({"step": 2, "valid_bleu": 20.0,
                 "valid_disagreement": {"enc": {"position": [-3.0, -2.0]}}},
                {"step": 4, "valid_bleu": 30.0,
                 "valid_disagreement": {"enc": {"position": [-1.0, -2.0]}}},
                {"step": 4, "test_bleu": number + 0.25, "signature": "nrefs:1", "set": "test",
                 "average": 2, "disagreement": {"enc": D}, "parameters": 1000 + number,
                 "tokens": 5000, "tokens_per_second": 500.0, "sentences_per_second": 50.0}):
        file.write(json.dumps(row) + "\\n")
open(os.path.join(path, "test.hyp"), "w").write(("a b c d e %s\\n" % flags["--name"]) * 2)
"""


def settings_of(*flags):
    """The settings of reproduce.py with these flags."""
    return parse(reproduce.Settings, list(flags), "reproduce.py", "")


def given(*flags):
    """What reproduce.py passes on of these flags."""
    return reproduce.given_of(settings_of(*flags))


def runs(name, *flags, seeds=(1,)):
    """The runs of a table's rows, the quoted ones left out."""
    return [jobs for _, jobs in plan.plan(TABLES[name], given(*flags), seeds) if jobs]


def write_metrics(path, *rows):
    """The metrics.jsonl of a run's folder."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def vars_of(config) -> dict:
    """{field: value} of a configuration."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


def count(config):
    """The parameters of a model."""
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config).parameters())


# ---- The tables


@pytest.mark.parametrize(
    "scale",
    [(), ("--arch", "base", "--data", "wmt17-zh-en"), MINUTE],
    ids=["tiny", "base", "minute"],
)
def test_every_row_parses_to_a_valid_model(scale):
    built = set()
    for name in TRAINED:
        # a row of "all" and of "claims" sets heads, another the FFN's width: nobody else may
        words = scale[:4] + scale[8:] if scale == MINUTE and name in ("all", "claims") else scale
        for row, found in plan.plan(TABLES[name], given(*words), (1, 2)):
            assert len(found) == (0 if row.flags is None else 2)
            for job in found[1:]:
                assert "--average" not in job.flags
                again = plan.completed([*job.flags, "--name", job.name])
                config = again.model_config(vocab_size=1)
                # the one spelling says what the row says, and nothing of a row is lost on the way
                assert plan.mechanisms(config) == plan.mechanisms(job.config)
                assert plan.mechanism_flags(config) == plan.mechanism_flags(job.config)
                for name, value in vars(job.settings).items():
                    if name not in {*vars(config), "arch", "name", "seed", "given"}:
                        assert getattr(again, name) == value, name
                for name in plan.SIZES:
                    assert getattr(config, name) == getattr(job.config, name), name
                if scale == MINUTE and row.size == "base" and str(job.mechanisms) not in built:
                    built.add(str(job.mechanisms))
                    count(TransformerConfig(**{**vars_of(config), "vocab_size": 100}))


def test_published_cells_fit_their_columns_and_footnotes():
    for name, table in TABLES.items():
        cells = [cell or "" for row in table.rows for cell in row.published]
        assert all(len(row.published) == len(table.columns) for row in table.rows), name
        assert {int(mark) for mark in re.findall(r"\[(\d+)\]", " ".join(cells))} <= set(
            range(1, len(table.notes) + 1)
        ), name
        assert bool(table.part) == (table.kind == "figure"), name
        assert (
            table.rows[0].flags is None
            or table.kind in ("logic", "probe")
            or table.rows[0].flags == ""
        ), name


def checksum(table) -> int:
    """Of the columns and of the rows that have published numbers, with their labels, sizes and
    numbers."""
    rows = [(row.label, row.size, *row.published) for row in table.rows if row.published]
    return zlib.crc32(repr((table.columns, rows)).encode())


def test_published_numbers_are_as_they_were_read():
    """A digit that changes is told here, on every machine. Rows and tables without published
    numbers may come and go."""
    found = {}
    for name, table in TABLES.items():
        if any(row.published for row in table.rows):
            found[name] = checksum(table)
    assert found == PUBLISHED


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers are not here")
def test_published_numbers_are_printed_in_the_papers():
    for name, table in TABLES.items():
        numbers = {
            number
            for row in table.rows
            for cell in row.published
            for number in re.findall(r"\d+\.?\d*", re.sub(r"\[\d+\]", "", cell or ""))
        }
        paper = table.source.rpartition(" Table")[0].lower().replace(" ", "")  # "li2018"
        text = "".join(
            path.read_text(encoding="utf-8") for path in PAPERS.glob(f"{paper}*.txt") if numbers
        )
        assert not [
            x for x in numbers if not re.search(rf"(?<![\d.]){re.escape(x)}(?!\d)", text)
        ], name


def printed(name, column):
    """{label: number} of a published column, its marks left out."""
    table = TABLES[name]
    cells = {
        row.label: row.published[table.columns.index(column)] for row in table.rows if row.published
    }
    return {
        label: float(re.match(r"[+-]?[\d.]+", cell)[0])
        for label, cell in cells.items()
        if cell not in (None, "-")
    }


@pytest.mark.parametrize(
    "name, score, gain",
    [
        ("li2019-2", "BLEU", "Δ"),
        ("li2021-3", "BLEU", "Δ"),
        ("li2021-6", "BLEU", "Δ"),
        ("gu-1", "AVE.", None),
        ("gu-3", "BLEU", None),
    ],
)
def test_published_gains_are_those_of_the_published_scores(name, score, gain):
    """A second reading: the papers print the score and its gain over the baseline, but for what
    footnotes tell."""
    table = TABLES[name]
    scores = printed(name, score)
    checked = 0
    base = next(iter(row.label for row in table.rows if row.flags == ""))
    for row in table.rows:
        cells = dict(zip(table.columns, row.published))
        text = cells[gain] if gain else (re.search(r"\((.*)\)", cells[score]) or [None, "-"])[1]
        if text != "-" and "[" not in cells[score]:
            assert float(text) == pytest.approx(scores[row.label] - scores[base], abs=1e-9), (
                row.label
            )
            checked += 1
    assert checked == {"li2019-2": 6, "li2021-3": 6, "li2021-6": 3, "gu-1": 1, "gu-3": 10}[name]


def test_published_averages_are_means():
    """Gu Table 1: of five scores; Li 2021 Table 7: of two, three and five tasks; each within a unit
    of its last digit."""
    for row in TABLES["gu-1"].rows:
        *scores, average = row.published[1:]
        if row.flags is not None:
            values = [float(text.strip("*")) for text in scores]
            assert abs(sum(values) / 5 - float(average.split()[0])) < 0.0101, row.label
    for row in TABLES["li2021-7"].rows:
        numbers = [float(text.split()[0]) for text in row.published]
        for average, tasks in zip(numbers[10:], (numbers[:2], numbers[2:5], numbers[5:10])):
            assert abs(sum(tasks) / len(tasks) - average) < 0.0151, row.label


def test_speeds_of_bench_are_the_published_ones():
    """Li 2018 Tables 1-2 and Li 2019 Tables 2-3."""
    import bench

    speed = {
        name: list(printed(name, "steps/s").values())
        for name in ("li2018-1", "li2018-2", "li2019-2", "li2019-3")
    }
    decoded = list(printed("li2019-2", "decoded/s").values())
    ratios = {
        "reg-output": (speed["li2018-2"][4] / speed["li2018-2"][0], None),
        "reg-enc": (speed["li2018-1"][6] / speed["li2018-1"][0], None),
        "dynamic-enc": (speed["li2019-2"][1] / speed["li2019-2"][0], None),
        "em-enc": (speed["li2019-2"][2] / speed["li2019-2"][0], decoded[2] / decoded[0]),
        "em-low": (speed["li2019-3"][4] / speed["li2019-3"][0], None),
        "em-all": (speed["li2019-2"][6] / speed["li2019-2"][0], decoded[6] / decoded[0]),
    }
    rows = bench.table_rows()
    linear = rows.pop("linear")
    assert (linear.training, linear.decoding) == (1, 1)
    assert {name for name, row in rows.items() if row.training} == set(ratios)
    for name, (training, decoding) in ratios.items():
        row = rows[name]
        assert abs(row.training - training) < 0.0051, name
        assert (row.decoding is None) == (decoding is None), name
        assert decoding is None or abs(row.decoding - decoding) < 0.0051, name


def test_a_lengthened_run_counts_with_its_last_test(tmp_path):
    assert jobs.tested(tmp_path) is None
    write_metrics(tmp_path, {"step": 2, "test_bleu": 20.0}, {"step": 3, "loss": 1.0},
                  {"step": 4, "test_bleu": 30.0}, {"step": 5, "loss": 1.0})
    assert jobs.tested(tmp_path)["test_bleu"] == 30.0


def test_numbers_published_twice_are_the_same():
    """What a paper takes from another, or from another table of its own."""
    assert printed("li2018-1", "BLEU") == printed("li2021-1", "BLEU")
    assert printed("li2018-2", "BLEU") == printed("li2021-2", "BLEU")
    bleu = {
        name: list(printed(name, "BLEU").values())
        for name in ("li2018-1", "li2018-2", "li2019-2", "li2019-3", "duan-2", "duan-3", "duan-4")
    }
    assert bleu["li2018-1"][::3][:2] == bleu["li2018-2"][:2]
    assert bleu["li2019-2"][::2][:2] == bleu["li2019-3"][:2]
    assert bleu["duan-2"][:2] == bleu["duan-3"][::3] == bleu["duan-4"][::3]
    main = TABLES["li2018-3"].rows
    assert main[5].published[1] == "24.13"
    assert [row.published[1].strip("↑") for row in main[5:7]] == [
        TABLES["li2018-2"].rows[0].published[1],
        TABLES["li2018-2"].rows[4].published[1],
    ]


@pytest.mark.parametrize(
    "name, wanted",
    [
        (
            "li2018-1",
            [
                "",
                "--reg subspace --reg-at enc",
                "--reg position --reg-at enc",
                "--reg output --reg-at enc",
                "--reg output subspace --reg-at enc",
                "--reg position subspace --reg-at enc",
                "--reg output position subspace --reg-at enc",
            ],
        ),
        (
            "li2018-2",
            [
                "",
                "--reg output --reg-at enc",
                "--reg output --reg-at enc cross",
                "--reg output --reg-at enc dec",
                "--reg output --reg-at enc cross dec",
            ],
        ),
        (
            "li2019-2",
            [
                "",
                "--agg dynamic --agg-at enc",
                "--agg em --agg-at enc",
                "--agg em --agg-at cross",
                "--agg em --agg-at dec",
                "--agg em --agg-at enc cross",
                "--agg em --agg-at enc cross dec",
            ],
        ),
        (
            "li2019-3",
            [
                "",
                "--agg em --agg-at enc",
                "--agg em --agg-at enc:4-6",
                "--agg em --agg-at enc:1-3",
                "--agg em --agg-at enc:1-2",
                "--agg em --agg-at enc:6",
                "--agg em --agg-at enc:1",
            ],
        ),
        (
            "li2018-4",
            [
                "",
                "--reg subspace --reg-at enc",
                "--reg position --reg-at enc",
                "--reg output --reg-at enc",
            ],
        ),
        (
            "li2021-5",
            [
                "",
                "--reg output --reg-at enc cross dec",
                "--agg em --agg-at enc:1-2",
                "--agg em --agg-at enc:1-2 --reg output --reg-at enc cross dec",
            ]
            * 2,
        ),
        (
            "duan-2",
            [
                "",
                "--capsule-attention enc",
                "--capsule-attention dec",
                "--capsule-attention enc dec",
            ],
        ),
        (
            "duan-3",
            [
                "",
                "--capsule-attention enc --capsule-parts vertical",
                "--capsule-attention enc --capsule-parts horizontal",
                "--capsule-attention enc",
            ],
        ),
        (
            "duan-4",
            [
                "",
                "--capsule-attention enc:1-3",
                "--capsule-attention enc:4-6",
                "--capsule-attention enc",
            ],
        ),
        (
            "gu-1",
            ["", "--agg gu-dynamic --agg-at cross:6 dec:6", "--agg gu-em --agg-at cross:6 dec:6"],
        ),
        (
            "gu-3",
            [
                "",
                *(
                    f"--agg gu-em --agg-at {at}"
                    for at in (
                        "enc:1", "enc:1-2", "enc:5-6", "cross:1", "cross:6", "cross:5-6", "dec:1",
                        "dec:6", "dec:5-6", "cross:6 dec:6", "cross:5-6 dec:5-6",
                    )
                ),
            ],
        ),
    ],
)
def test_rows_are_the_mechanisms_that_the_papers_name(name, wanted):
    """At size base, in the one spelling."""
    assert [" ".join(jobs[0].mechanisms) for jobs in runs(name, "--arch", "base")] == wanted


def test_scripts_know_the_models_of_their_tables():
    for name, table in TABLES.items():
        if table.kind in ("logic", "probe"):
            script = importlib.import_module(table.kind)
            job = reproduce.script_job(name, SimpleNamespace(seeds=[1, 2]))
            settings = parse(script.Settings, job.flags, job.script, "")
            assert list(settings.models) == [row.flags for row in table.rows]
            assert list(settings.seeds) == [1, 2] and job.script == f"{table.kind}.py"


@pytest.mark.parametrize(
    "name, column",
    [
        ("li2019-2", 0),
        ("li2019-3", 0),
        ("li2019-4", 0),
        ("li2021-3", 0),
        ("li2021-4", 0),
        ("li2021-5", 0),
        ("li2021-6", 0),
        ("gu-2", 0),
    ],
)
def test_parameters_are_the_published_ones(name, column):
    """Increments equal the printed ones within rounding, but where a footnote says that none can
    (README)."""
    table = TABLES[name]
    checked = 0
    base = {}
    for row, of_row in plan.plan(table, given("--arch", "base"), (1,)):
        text = row.published[column]
        if not of_row or text is None or "[" in text:
            continue
        count_here = count(TransformerConfig(**{**vars_of(of_row[0].config), "vocab_size": 32_000}))
        digits = len(text.partition(".")[2]) - 1
        value = float(re.match(r"\+?([\d.]+)M", text)[1])
        if row.flags == "":
            base[row.size] = count_here, value
            continue
        published = value if text.startswith("+") else value - base[row.size][1]
        last = 10 ** -max(0, digits)  # rounded or cut: 37.86M is printed as 37.8M
        assert abs((count_here - base[row.size][0]) / 1e6 - published) < last + 1e-9, (
            row.label,
            text,
        )
        checked += 1
    assert checked >= 2 or name == "gu-2" and checked == 1 or name == "li2021-6" and checked == 1


def test_duan_adds_1632_parameters_to_the_big_model():
    big = [
        jobs[0].config
        for row, jobs in plan.plan(TABLES["duan-1"], given("--arch", "base"), (1,))
        if row.size == "big"
    ]
    plain, capsule = (count(TransformerConfig(**{**vars_of(c), "vocab_size": 100})) for c in big)
    assert capsule - plain == 1632


def test_sizes():
    def sizes(name, *flags):
        return {
            row.size: jobs[0].config
            for row, jobs in plan.plan(TABLES[name], given(*flags), (1,))
            if jobs
        }

    big = sizes("li2018-3", "--arch", "base")["big"]
    assert (big.d_model, big.heads, big.d_ff, big.layers) == (1024, 16, 4096, 6)
    assert sizes("li2021-6", "--arch", "base")["wide"].heads == 8
    assert sizes("li2021-6", "--arch", "base")["wide"].d_model == 1024
    tiny = sizes("li2018-3")["big"]
    assert (tiny.d_model, tiny.heads, tiny.d_ff, tiny.layers) == (256, 8, 512, 4)
    with pytest.raises(UserError, match="--arch big"):
        plan.plan(TABLES["li2018-3"], given("--arch", "big"), (1,))
    plan.plan(TABLES["li2018-1"], given("--arch", "big"), (1,))


def test_recipes_of_the_big_model():
    """Li 2021 trains big with dropout 0.1, the others with 0.3."""

    def dropout(name):
        return [
            jobs[0].settings.dropout
            for row, jobs in plan.plan(TABLES[name], given("--arch", "base"), (1,))
            if row.size != "base"
        ]

    assert set(dropout("li2021-5")) == set(dropout("li2021-6")) == {0.1}
    assert set(dropout("li2018-3")) == set(dropout("gu-2")) == set(dropout("duan-1")) == {0.3}


# ---- Names


def test_the_same_configuration_is_one_run_across_tables():
    names = {}
    for name in TRAINED:
        names[name] = [jobs[0].name for jobs in runs(name)]
    every = dict(zip((row.label for row in TABLES["all"].rows), names["all"]))
    assert names["li2018-1"] == names["li2021-1"] and names["li2019-3"] == names["li2021-4"]
    assert (
        len(
            {
                names[name][0]
                for name in TRAINED
                if TABLES[name].rows[0].flags == "" and TABLES[name].rows[0].size == "base"
            }
        )
        == 1
    )  # one baseline
    assert (
        names["li2019-3"][4]
        == every["EM routing"]
        == names["iterations"][3]
        == names["capsules"][5]
    )  # EM, N = d, T = 3
    assert names["li2018-2"][4] == every["output disagreement"]
    assert names["li2018-2"][1] == names["li2018-1"][3]
    assert names["duan-2"][1] == names["duan-3"][3] == names["duan-4"][3]
    assert names["gu-3"][10] == every["Gu's capsules, EM"] == names["gu-fig2"][3]
    assert names["claims"] == names["all"][: len(names["claims"])]
    assert len(set(names["li2018-1"])) == 7 and len(set(names["all"])) == len(names["all"])


def test_names_follow_what_matters():
    def name(*flags):
        return runs("duan-3", *flags)[1][0].name

    assert (
        name()
        == name("--data", "toy")
        == name("--arch", "tiny", "--steps", "1800")
        == name("--log-every", "7")
    )
    assert (
        name() != name("--steps", "1700")
        and name() != name("--average", "5")
        and name() != name("--lr", "0.5")
        and name() != name("--d-ff", "64")
    )
    assert name("--train", "/x/multi30k/train", "--src", "en") == name(
        "--train", "/y/multi30k/train", "--src", "en"
    )
    assert (
        name("--iterations", "2") != name()
        and runs("duan-3", "--iterations", "2")[0][0].name == runs("duan-3")[0][0].name
    )
    assert name().endswith("-seed1") and name().startswith("toy-tiny-capsule-")


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ("--agg em", "--agg em --agg-at enc:1-2"),
        ("--agg em --agg-at enc:2 enc:1 --capsules 128", "--agg em --agg-at enc:1-2"),
        ("--agg gu-em --capsules 4", "--agg gu-em --agg-at cross:4 dec:4"),
        ("--reg output --reg-weight 0", ""),
        ("--reg position output --reg-at enc:1-4", "--reg output position --reg-at enc"),
        ("--agg em --no-em-activations", "--agg em --agg-at enc:1-2 --no-em-activations"),
        ("--capsule dec --capsule-parts vertical", "--capsule-attention dec"),
        ("--capsule enc:1,3 --iterations 2", "--iterations 2 --capsule-attention enc:1,3"),
        ("--capsule enc:1-2,4", "--capsule-attention enc:1-2,4"),
        ("--capsule enc --capsule-parts horizontal vertical", "--capsule-attention enc"),
    ],
)
def test_one_spelling(flags, wanted):
    config = plan.completed(flags.split()).model_config(vocab_size=1)
    assert " ".join(plan.mechanism_flags(config)) == wanted


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ("", "baseline"),
        ("--agg em", "EM enc:1-2"),
        ("--agg em --reg output", "EM enc:1-2 + output disagreement"),
        ("--reg output --reg-at enc --reg-weight 0.5", "output disagreement enc (reg-weight 0.5)"),
        ("--agg em --iterations 1 --no-em-activations",
         "EM enc:1-2 (iterations 1, no-em-activations)"),
        ("--capsule enc:1 dec", "capsule attention enc:1 dec"),
    ],
)
def test_models_in_words(flags, wanted):
    """In progress, legends and tables of several seeds; a folder that somebody named keeps its
    name."""
    job_config = plan.completed(flags.split()).model_config(vocab_size=1)
    assert plan.in_words(job_config) == wanted
    assert plan.run_label("toy-tiny-em-21344303-seed7", job_config) == f"{wanted}, seed 7"
    assert plan.run_label("my-run-seed7", job_config) == "my-run-seed7"


# ---- A mechanism that is added later


@dataclass
class GatedConfig(TransformerConfig):
    """A model with a field that none of the files here has heard of."""

    gate: tuple[str, ...] = ()


@dataclass
class GatedSettings(train_mt.Settings):
    """Its flag."""

    gate: tuple[str, ...] = flag((), "where", "gates", choices=("enc", "dec"))


@pytest.fixture
def gated(monkeypatch):
    """A project whose TransformerConfig has one more field, and a table of models with it."""
    monkeypatch.setattr(nmt.flags, "TransformerConfig", GatedConfig)
    monkeypatch.setattr(plan, "TransformerConfig", GatedConfig)
    return TABLES["squared"]._replace(
        rows=(
            Row("baseline", ""),
            Row("gate", "--gate enc"),
            Row("two gates", "--gate enc dec"),
            Row("gate and EM", "--agg em --gate dec"),
        )
    )


def test_a_new_mechanism_has_runs_of_its_own(gated, monkeypatch):
    monkeypatch.setattr(train_mt, "Settings", GatedSettings)
    found = [jobs[0] for _, jobs in plan.plan(gated, {}, (1,))]
    assert [" ".join(job.mechanisms) for job in found] == [
        "",
        "--gate enc",
        "--gate enc dec",
        "--agg em --agg-at enc:1-2 --gate dec",
    ]
    assert len({job.name for job in found}) == 4
    assert found[0].name == runs("squared")[0][0].name  # the baseline's own
    assert all(word in job.name for job, word in zip(found[1:], ("-gate-", "-gate-", "-em-gate-")))
    labels = ["baseline", "gate enc", "gate enc dec", "EM enc:1-2 + gate dec"]
    assert [job.label for job in found] == [f"{label}, seed 1" for label in labels]
    for job in found:
        again = plan.completed(job.flags).model_config(vocab_size=1)
        assert again.gate == job.config.gate and again.agg == job.config.agg
    monkeypatch.setattr(reproduce.train_mt, "Settings", GatedSettings)
    assert "gate" in plan.rows_own()  # no flag of the whole table


def test_a_field_without_a_flag_is_an_error(gated):
    """It would be lost on the way to train_mt.py, and the row take the baseline's score."""
    with pytest.raises(UserError, match="TransformerConfig.gate has no flag"):
        plan.mechanism_flags(GatedConfig(100, gate=("enc",)))
    with pytest.raises(UserError, match="TransformerConfig.gate has no flag"):
        plan.in_words(GatedConfig(100, gate=("enc",)))
    assert plan.mechanism_flags(GatedConfig(100)) == []


def test_paper_settings_for_chinese_only():
    def flags(name, *scale):
        return runs(name, *scale)[0][0].flags

    assert "--max-length" not in flags("li2021-5") and "--lowercase" not in flags("gu-3")
    zh = ("--data", "wmt17-zh-en")
    assert flags("li2021-5", *zh)[-4:-2] == ["--max-length", "50"] and "--lowercase" in flags(
        "gu-3", *zh
    )
    assert flags("duan-2", *zh, "--max-length", "80").count("--max-length") == 1
    assert "--max-length" not in flags("li2018-1", *zh)


def test_options_for_all_reach_the_rows_that_have_a_use_for_them():
    options = given("--iterations", "2", "--reg-weight", "0.5")
    rows = plan.plan(TABLES["li2021-5"], options, (1,))
    found = {row.label: jobs[0] for row, jobs in rows if jobs}
    assert found["base"].mechanisms == []
    assert found["base + Aggregation"].config.iterations == 2
    rows = plan.plan(TABLES["duan-1"], options, (1,))
    capsule = {row.label: jobs[0] for row, jobs in rows if jobs}["capsule-Transformer base"]
    assert capsule.config.iterations == 2
    both = found["base + Both"].config
    assert (both.iterations, both.reg_weight) == (2, 0.5)


def test_an_option_that_no_row_has_a_use_for_is_refused(capsys):
    assert reproduce.main(["li2018-1", "--iterations", "2", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert "--iterations" in error and error.count("\n") == 1
    assert reproduce.main(["li2018-1", "duan-2", "--iterations", "2", "--dry-run"]) == 0


def test_help_leaves_out_what_the_rows_set(capsys):
    with pytest.raises(SystemExit):
        reproduce.main(["--help"])
    listed = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, flags=re.MULTILINE))
    assert {"--seeds", "--steps", "--iterations", "--reg-weight"} <= listed
    assert not {"--agg", "--reg", "--seed", "--name"} & listed


# ---- The list


def test_list_names_every_table(capsys):
    assert reproduce.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(TABLES)


def test_dry_run_names_the_rows(tmp_path, capsys):
    job = runs("duan-3")[1][0]
    write_metrics(tmp_path / job.name, {"step": 7, "loss": 1.0}, {"step": 9, "loss": 0.5})
    (tmp_path / job.name / "metrics.jsonl").open("a").write('{"step": 10, "lo')  # it was killed
    assert reproduce.main(["duan-3", "--dry-run", "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "capsule attention enc (capsule-parts vertical), seed 1: missing, begun: step 9 "
        f"({job.name}, row '2 vertical')"
    )
    assert lines[-1] == "4 of 4 runs are missing" and len(lines) == 5


# ---- Training and measuring, with a training that takes no time


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """reproduce.main over a folder, with text of two lines and FAKE in place of train_mt.py."""
    for name in ("train", "valid", "test"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("a b c d e f\na b c d e g\n")
    (tmp_path / "train_mt.py").write_text(FAKE)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setattr(jobs, "ROOT", tmp_path)
    text = [x for name in ("train", "valid", "test") for x in (f"--{name}", str(tmp_path / name))]
    text += [
        "--src",
        "en",
        "--tgt",
        "de",
        "--steps",
        "4",
        *MINUTE,
        "--runs",
        str(tmp_path / "runs"),
    ]
    return SimpleNamespace(
        runs=tmp_path / "runs", root=tmp_path, main=lambda *flags: reproduce.main([*flags, *text])
    )


def started(bench):
    """How often each run was started, by its name."""
    return {path.parent.name: len(path.read_text()) for path in bench.runs.glob("*/started")}


def test_every_row_and_seed_is_trained_once_and_shared(bench, capsys):
    assert bench.main("duan-3", "--seeds", "1", "2", "--jobs", "4") == 0
    assert len(started(bench)) == 8 and set(started(bench).values()) == {1}
    out = capsys.readouterr().out
    assert "Duan 2020 Table 3" in out and "24.76 (+0.48)" in out and "± 0.71" in out
    assert bench.main("duan-2", "duan-3", "--seeds", "1", "2", "--jobs", "4") == 0
    assert len(started(bench)) == 12 and set(started(bench).values()) == {
        1
    }  # Dec; Enc, Dec: 2 rows x 2 seeds
    assert bench.main("duan-2", "--dry-run", "--seeds", "1", "3") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("4 of 8 runs are missing")


def test_what_is_finished_is_shown_without_training(bench, capsys):
    assert bench.main("duan-3", "--finished") == 0
    assert started(bench) == {} and "duan-3: nothing is finished" in capsys.readouterr().out
    assert bench.main("duan-2", "--jobs", "4") == 0
    runs_before = started(bench)
    assert bench.main("duan-3", "--finished") == 0
    out = capsys.readouterr().out
    assert started(bench) == runs_before and re.search(r"4  both +\d", out)
    assert re.search(r"2  vertical +– +–", out)


def test_chosen_rows_alone_are_trained(bench, capsys):
    assert bench.main("duan-3", "--rows", "4  both", "1 baseline", "--jobs", "4") == 0
    names = set(started(bench))
    assert len(names) == 2 and any("-capsule-" in name for name in names)
    out = capsys.readouterr().out
    assert re.search(r"4  both +\d", out) and re.search(r"2  vertical +– +–", out)
    assert bench.main("squared", "--rows", "product") == 0  # of the papers' rows their numbers
    out = capsys.readouterr().out  # stand there; without any, a row without runs says nothing
    assert re.search(r"product +\d", out) and "squared difference  " not in out
    assert bench.main("duan-3", "li2019-1", "--rows", "3 both") == 2
    error = capsys.readouterr().err
    assert "--rows: no row '3 both' to train, only: 1 baseline; 2 vertical" in error
    assert error.count("\n") == 1


def test_a_failed_row_is_told_and_the_others_go_on(bench, capsys):
    broken = runs(
        "duan-3",
        "--steps",
        "4",
        *MINUTE[:-2],
        "--train",
        str(bench.root / "train"),
        "--valid",
        "x",
        "--src",
        "en",
        "--tgt",
        "de",
        "--test",
        "x",
    )[1][0].name
    (bench.runs / f"{broken}.fail").touch()
    assert bench.main("duan-3", "--jobs", "2") == 2
    out = capsys.readouterr()
    assert (
        "capsule attention enc (capsule-parts vertical), seed 1: failed (exit status 2): "
        "train_mt.py: error: the disk is full (all of "
        f"it: {bench.runs / broken}.log)"
    ) in out.out
    assert (
        out.err.startswith("reproduce.py: error: 1 of 4 runs failed") and out.err.count("\n") == 1
    )
    assert len(list(bench.runs.glob("*/metrics.jsonl"))) == 3 and "Duan 2020 Table 3" in out.out
    (bench.runs / f"{broken}.fail").unlink()
    assert bench.main("duan-3", "--jobs", "2") == 0
    assert sorted(started(bench).values()) == [1, 1, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_table_resumes(bench, capsys, number):
    (bench.runs / "wait").touch()

    def interrupt():
        while len(started(bench)) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(SystemExit) as end:
        bench.main("duan-3", "--jobs", "2")
    thread.join()
    assert end.value.code == 128 + number and "the same command resumes" in capsys.readouterr().out
    assert len(list(bench.runs.glob("*/saved"))) == 2 and len(started(bench)) == 2
    (bench.runs / "wait").unlink()
    assert bench.main("duan-3", "--jobs", "2") == 0
    assert sorted(started(bench).values()) == [1, 1, 2, 2]


def test_environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    assert jobs.environment(0, 4, torch.device("cpu"))["OMP_NUM_THREADS"] == "2"
    assert jobs.environment(0, 99, torch.device("cpu"))["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    gpus = [
        jobs.environment(slot, 3, torch.device("cuda"))["CUDA_VISIBLE_DEVICES"] for slot in range(3)
    ]
    assert (
        gpus == ["3", "5", "3"]
        and jobs.environment(0, 1, torch.device("cuda:1"))["CUDA_VISIBLE_DEVICES"] == "5"
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert jobs.environment(1, 2, torch.device("cuda"))["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert jobs.environment(0, 2, torch.device("cpu"))["OMP_NUM_THREADS"] == "7"


@pytest.fixture
def measured_runs(tmp_path):
    """The rows of li2018-3 with runs of seeds 3 and 5 in a folder, every number of every run
    another; base with seed 5 is not finished, and one row is validated equally well twice."""
    args = settings_of("li2018-3", "--lowercase", "--seeds", "3", "5", "--runs", str(tmp_path))
    rows, number = plan.plan(TABLES["li2018-3"], given("--lowercase"), (3, 5)), 0
    for _, jobs_of_row in rows:
        for job in jobs_of_row:
            number += 1
            D = {
                kind: [-number / 10 - i, -number / 20 - i]
                for i, kind in enumerate(("subspace", "position", "output"))
            }
            scores = {}
            for j, c in enumerate(("dec", "enc", "cross")):
                scores[c] = {kind: number / 100 + i / 10 + j / 7 for i, kind in enumerate(D)}
            test = [
                {
                    "test_bleu": 20.0 + number**2 / 10,
                    "signature": f"s{number}",
                    "set": "test",
                    "average": 0,
                    "disagreement": scores,
                    "parameters": 1000 * number,
                    "tokens": 99,
                    "tokens_per_second": 100.0 * number,
                    "sentences_per_second": 7.0 * number,
                }
            ]
            valid = [
                {
                    "step": 1,
                    "valid_bleu": 5.0,
                    "valid_disagreement": {"enc": {"position": [-9, -9]}},
                },
                {
                    "step": 2,
                    "valid_bleu": 8.0,
                    "valid_disagreement": {"enc": D, "dec": {"position": [-7, -7]}},
                },
                {
                    "step": 3,
                    "valid_bleu": 8.0,
                    "valid_disagreement": {"enc": {"position": [-8, -8]}},
                },
                {
                    "step": 4,
                    "valid_bleu": 6.0,
                    "valid_disagreement": {"enc": {"position": [-8, -8]}},
                },
            ]
            write_metrics(tmp_path / job.name, *valid, *(test if number != 2 else []))
            (tmp_path / job.name / "test.hyp").write_text(f"{number}\n{number} b\n")
    return args, rows


def test_what_is_stored_of_a_run_is_its_own(measured_runs, monkeypatch):
    """Every number from its place in the metrics, the layers from the best step; p against the
    baseline of the same seed and size alone."""
    args, rows = measured_runs
    compared, pairs = [], SimpleNamespace(source=["x", "y"], target=["r", "s"])
    monkeypatch.setattr(
        reproduce,
        "chance",
        lambda baseline, other, references, lowercase: (
            compared.append((int(baseline[0]), int(other[0]), references, lowercase))
            or int(other[0]) / 1000
        ),
    )
    monkeypatch.setattr(
        reproduce, "corpus_bleu", lambda lines, references, lowercase: (int(lines[0]) + 0.5, "s")
    )
    stored = reproduce.measure("li2018-3", rows, args, pairs, torch.device("cpu"))
    # runs 1, 2: base with seeds 3, 5; 3, 4: + Disagreement; 5, 6: big; 7, 8: big + Disagreement
    assert compared == [(base, other, ["r", "s"], True) for base, other in ((1, 3), (5, 7), (6, 8))]
    seeds = []
    for row in stored["rows"]:
        seeds.append([run["seed"] for run in row["runs"]])
    assert seeds == [[]] * 5 + [[3], [3, 5], [3, 5], [3, 5]]
    for numbers, row in zip(((1,), (3, 4), (5, 6), (7, 8)), stored["rows"][5:]):
        for number, run in zip(numbers, row["runs"]):
            assert run == {
                "seed": run["seed"],
                "bleu": 20 + number**2 / 10,
                "parameters": 1000 * number,
                "tokens_per_second": 100 * number,
                "sentences_per_second": 7 * number,
                "p": number / 1000 if number in (3, 7, 8) else None,
                "lowercased": number + 0.5,
                "curve": {"1": 5.0, "2": 8.0, "3": 8.0, "4": 6.0},
                "scores": {
                    kind: pytest.approx(number / 100 + i / 10 + 1 / 7)
                    for i, kind in enumerate(("subspace", "position", "output"))
                },
                "layers": pytest.approx([math.exp(-number / 10 - 1), math.exp(-number / 20 - 1)]),
            }
    assert [row["flags"] for row in stored["rows"]] == [None] * 5 + [
        "",
        "--reg output --reg-at enc cross dec",
    ] * 2
    assert (stored["seeds"], stored["steps"], stored["set"], stored["signature"]) == (
        [3, 5],
        1800,
        "test",
        "s1",
    )


def test_translations_are_made_once_by_the_best_checkpoint(measured_runs, monkeypatch):
    """And as the run itself was tested: its beam, length penalty, case."""
    args, rows = measured_runs
    job, asked = rows[5][1][0], []
    pairs = SimpleNamespace(source=["x", "y"], target=["r", "s"])
    assert reproduce.hypotheses(job, args.runs, pairs, "cpu") == ["1", "1 b"]
    path = Path(args.runs) / job.name / "test.hyp"
    path.write_text("of another set\n")
    monkeypatch.setattr(
        reproduce,
        "load_run",
        lambda *given: (
            asked.append(given)
            or ("model", "tokenizer", {"beam": 3, "lenpen": 0.25, "lowercase": True, "amp": False})
        ),
    )
    monkeypatch.setattr(
        reproduce, "bleu", lambda *given: asked.append(given) or (["u", "v"], 1.0, "s", 2.0)
    )
    for _ in range(2):
        assert reproduce.hypotheses(job, args.runs, pairs, "cpu") == ["u", "v"]
    assert asked == [
        (path.parent, "best", "cpu"),
        ("model", "tokenizer", pairs, 3, 0.25, True, False),
    ]
    assert path.read_text() == "u\nv\n"


def test_a_figure_is_drawn_of_the_runs_that_are_finished(measured_runs, monkeypatch, capsys):
    import analyze

    args, rows = measured_runs
    asked = []
    monkeypatch.setattr(analyze, "analyze", asked.append)
    one, unfinished = rows[5][1]
    reproduce.draw("gu-fig3", [one, unfinished], args)
    assert capsys.readouterr().out.startswith("**Gu 2019 Fig. 3** (gu-fig3)")
    runs = Path(args.runs)
    wanted = {"only": ("length",), "out": str(runs / "gu-fig3"), "device": args.device}
    assert asked == [analyze.Settings((str(runs / one.name),), **wanted)]
    assert (runs / "gu-fig3").is_dir()


def cells_of(markdown: str) -> list[list[str]]:
    """The rows of a Markdown table as cells, its rule left out."""
    rows = []
    for line in markdown.splitlines():
        if line.startswith("|") and not line.startswith("|:-"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def made_up(seed, bleu, parameters, tokens, sentences, p=None, lowercased=None):
    return {
        "seed": seed,
        "bleu": bleu,
        "lowercased": lowercased,
        "parameters": parameters,
        "tokens_per_second": tokens,
        "sentences_per_second": sentences,
        "p": p,
    }


def test_a_table_has_every_number_in_its_column():
    """The number of seeds where rows differ in it; mean ± sample standard deviation; Δ and p by the
    seeds that both have, whatever their order; ratios and differences to the baseline of the row's
    size; the published ones beside them."""
    runs = {
        "base": [
            made_up(1, 20.0, 1000, 500.0, 10.0, lowercased=22.5),
            made_up(2, 30.0, 1000, 600.0, 12.0),
            made_up(3, 25.0, 1000, 400.0, 14),
        ],
        "base + Disagreement": [
            made_up(3, 27.0, 1250, 300.0, 15.0, 0.03),
            made_up(9, 90.0, 1250, 500.0, 15.0),
            made_up(1, 21.0, 1250, 400.0, 15.0, 0.01),
        ],
        "big": [made_up(1, 40.0, 9000, 50.0, 5.0)],
        "big + Disagreement": [made_up(1, 38.5, 8999, 60.0, 4.0, 0.5)],
    }
    stored = {
        "rows": [
            {"label": row.label, "flags": row.flags, "runs": runs.get(row.label, [])}
            for row in TABLES["li2018-3"].rows
        ]
    }
    header, *rows = render.body(stored, TABLES["li2018-3"], TABLES["li2018-3"].rows)
    assert header == [
        "", "flags", "seeds", "BLEU", "lower-cased", "Δ", "p", "parameters", "tokens/s",
        "sentences/s", "paper: Zh-En steps/s", "paper: Zh-En BLEU", "paper: En-De steps/s",
        "paper: En-De BLEU",
    ]
    half = 12.7062 * math.sqrt(0.5) / math.sqrt(2)  # t of one degree of freedom; +2.0 and +1.0
    assert rows[0] == ["Wu et al. 2016, GNMT", "quoted", *[""] * 8, "–", "–", "–", "26.30"]
    assert rows[5:] == [
        [
            "base", "", "3", "25.00 ± 5.00", "22.50", "", "", "1,000", "500", "12.0", "1.21",
            "24.13", "1.28", "27.64",
        ],
        [
            "base + Disagreement", "`--reg output`", "3", "46.00 ± 38.22", "",
            f"+1.50 [{1.5 - half:+.2f}, {1.5 + half:+.2f}]", "0.030, 0.010", "1,250 (+250)",
            "400 (0.80)", "15.0 (1.25)", "1.06 (0.88)", "24.85↑ (+0.72)", "1.10 (0.86)",
            "28.51↑ (+0.87)",
        ],
        [
            "big", "", "1", "40.00", "", "", "", "9,000", "50", "5.0", "0.58", "24.56", "0.61",
            "28.58",
        ],
        [
            "big + Disagreement", "`--reg output`", "1", "38.50", "", "-1.50", "0.500",
            "8,999 (-1)", "60 (1.20)", "4.0 (0.80)", "0.47 (0.81)", "25.08↑ (+0.52)", "0.51 (0.84)",
            "29.28↑ (+0.70)",
        ],
    ]


def test_tables_of_scores_have_every_number_in_its_column():
    for name, header in (
        ("li2018-4", ["subspace", "position", "output"]),
        ("li2018-5", ["layer 1", "layer 2", "layer 3"]),
    ):
        rows = []
        for i, row in enumerate(TABLES[name].rows):
            measured = []
            for seed in (1, 3):
                numbers = [i / 10 + j / 100 + seed / 1000 for j in range(3)]
                scores = dict(zip(("subspace", "position", "output"), numbers))
                measured.append({"scores": scores, "layers": numbers})
            rows.append({"label": row.label, "flags": row.flags, "runs": measured})
        found = render.body({"rows": rows}, TABLES[name], TABLES[name].rows)
        assert found[0][2:5] == header
        for i, (row, cells) in enumerate(zip(TABLES[name].rows, found[1:])):
            assert cells == [
                row.label,
                f"`{row.flags}`" if row.flags else "",
                *(f"{i / 10 + j / 100 + 0.002:.3f} ± 0.001" for j in range(3)),
                *row.published,
            ]


def test_probing_averages_beside_the_published_ones():
    """Each model beside its own published row, each task and group under its own column."""
    names, lines = ["combined", "majority", "baseline"], []
    for i, (group, task) in enumerate(
        (
            ("surface", "WC"),
            ("surface", "Ave."),
            ("semantic", "CoIn"),
            ("semantic", "Ave."),
            ("all", "Ave."),
        )
    ):
        lines.append(
            {
                "group": group,
                "task": task,
                "cells": {
                    name: {"mean": (i + 1) / 10 + j / 100, "spread": None, "seeds": 1}
                    for j, name in enumerate(names)
                },
            }
        )
    stored = {"kind": "probing", "published": "li2021-7", "table": lines,
              "settings": {"data": "toy"}, "runs": []}
    assert cells_of(render.text(stored)) == [
        ["", "", "combined", "paper", "majority", "baseline", "paper"],
        ["surface", "WC", "10.00", "98.87", "11.00", "12.00", "98.03"],
        ["surface", "Ave.", "20.00", "97.71", "21.00", "22.00", "96.69"],
        ["semantic", "CoIn", "30.00", "69.99", "31.00", "32.00", "69.39"],
        ["semantic", "Ave.", "40.00", "75.08", "41.00", "42.00", "73.38"],
        ["all", "Ave.", "50.00", "–", "51.00", "52.00", "–"],
    ]


def test_probing_beside_the_published_numbers(bench, capsys):
    def cells(x):
        return {
            "baseline": {"mean": x, "spread": None, "seeds": 1},
            "simple": {"mean": x, "spread": 0.01, "seeds": 2},
            "em": {"mean": x, "spread": None, "seeds": 1},
            "majority": {"mean": 0.1, "spread": None, "seeds": 1},
        }

    lines = [
        {"group": "surface", "task": "WC", "cells": cells(0.5)},
        {"group": "surface", "task": "Ave.", "cells": cells(0.25)},
    ]
    folder = bench.runs / "li2019-1"
    folder.mkdir()
    runs = [{"model": model, "seed": 1} for model in ("baseline", "simple", "em")]
    (folder / "results.json").write_text(
        json.dumps({"kind": "probing", "table": lines, "runs": runs,
                    "settings": {"data": "/a/b/senteval"}})
    )
    assert (
        reproduce.main(["li2019-1", "--runs", str(bench.runs), "--store", "--device", "cpu"]) == 0
    )
    out = capsys.readouterr().out
    assert re.search(
        r"WC +50.00 +97.92 +50.00 ± 1.00 +98.85 +50.00 +98.75 +10.00$", out, flags=re.MULTILINE
    )
    stored = json.loads((bench.root / "results" / "li2019-1.json").read_text())
    assert "/a/b" not in json.dumps(stored) and "Li 2019 Table 1" in render.text(stored)


def test_logic_as_logic_prints_it(bench, capsys):
    content = json.loads((ROOT / "results" / "logic-bowman.json").read_text())
    folder = bench.runs / "li2021-fig4"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(content))
    seeds = sorted({str(run["seed"]) for run in content["runs"]})
    words = ["li2021-fig4", "--seeds", *seeds, "--runs", str(bench.runs), "--device", "cpu"]
    assert reproduce.main([*words, "--store"]) == 0
    assert logic.table(content) in capsys.readouterr().out
    stored = json.loads((bench.root / "results" / "li2021-fig4.json").read_text())
    assert logic.table(content) in render.text(stored)


def test_a_script_s_table_of_another_version_is_named(bench, capsys):
    content = json.loads((ROOT / "results" / "logic-bowman.json").read_text())
    del content["kind"]
    folder = bench.runs / "li2021-fig4"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(content))
    seeds = sorted({str(run["seed"]) for run in content["runs"]})
    words = ["li2021-fig4", "--seeds", *seeds, "--runs", str(bench.runs), "--device", "cpu"]
    assert reproduce.main(words) == 2
    error = capsys.readouterr().err
    assert "li2021-fig4/results.json: is no table of logic.py" in error and "delete it" in error


def test_scores_and_layers(bench, capsys):
    assert bench.main("li2018-4", "li2018-5", "--jobs", "4") == 0
    out = capsys.readouterr().out
    assert re.search(r"output +0.900 +0.100 +0.800 +0.989", out)
    assert re.search(r"n/a +0.368 +0.135 +0.040", out)  # the best step's: exp(-1), exp(-2)


def test_significance():
    references = [f"the {i} house stands near a large tree in the old town" for i in range(40)]
    worse = [line.replace("large", "small") if i % 2 else line for i, line in enumerate(references)]
    assert reproduce.chance(references, references, references, False) == 1.0
    assert reproduce.chance(worse, references, references, False) < 0.01
    others = [
        line.replace("large", "small") if i % 2 == 0 else line for i, line in enumerate(references)
    ]
    assert (
        reproduce.chance(worse, others, references, False) == 1.0
    )  # as many mistakes, in other sentences
    one_less = ["a", "b", *references[2:]]
    assert (
        0.1
        < reproduce.chance(
            [*one_less[:1], *references[1:]],
            [references[0], "b c", *references[2:]],
            references,
            False,
        )
        < 1
    )
    assert (
        reproduce.chance(references, [line.upper() for line in references], references, True) == 1.0
    )
    assert (
        reproduce.chance(references, [line.upper() for line in references], references, False)
        < 0.01
    )


# ---- Results


def test_store_and_write_results(bench, capsys):
    assert bench.main("duan-3", "--seeds", "1", "2", "--jobs", "4", "--store") == 0
    stored = next((bench.root / "results").glob("duan-3.*-tiny-4.json"))
    assert str(bench.root) not in stored.read_text() and "DIR/train" in stored.read_text()
    # what was tested, not what was asked for: a short run has fewer checkpoints than --average
    assert json.loads(stored.read_text())["average"] == 2
    marked = f"<!-- results/{stored.name} -->\nold numbers\n<!-- end -->\n"
    document = f"# Results\n\nbefore\n\n{marked}\nafter\n"
    (bench.root / "RESULTS.md").write_text(document)
    assert reproduce.main(["--write-results"]) == 0
    once = (bench.root / "RESULTS.md").read_text()
    assert (
        "old numbers" not in once
        and "Duan 2020 Table 3" in once
        and once.startswith("# Results\n\nbefore\n")
    )
    assert once.endswith("<!-- end -->\n\nafter\n")
    assert reproduce.main(["--write-results"]) == 0
    assert (bench.root / "RESULTS.md").read_text() == once
    capsys.readouterr()
    for broken in (
        "{",
        "[]",
        '{"kind": "table", "table": "duan-9", "rows": []}',
        '{"kind": "table", "table": "duan-3"}',
        "{}",
        json.dumps({**json.loads(stored.read_text()), "rows": []}),
    ):
        good = stored.read_text()
        stored.write_text(broken)
        assert reproduce.main(["--write-results"]) == 2
        error = capsys.readouterr().err
        assert (
            stored.name in error
            and error.count("\n") == 1
            and (bench.root / "RESULTS.md").read_text() == once
        )
        stored.write_text(good)
    for wrong in (once.replace("<!-- end -->", ""), once.replace(stored.name, "none.json")):
        (bench.root / "RESULTS.md").write_text(wrong)
        assert (
            reproduce.main(["--write-results"]) == 2
            and (bench.root / "RESULTS.md").read_text() == wrong
        )
        assert capsys.readouterr().err.count("\n") == 1


def test_what_is_stored_keeps_runs_that_are_not_here(bench):
    """Measured on several machines: of a row the seeds of all, of a seed the rows of all; where the
    recipe is another one, nothing."""
    assert bench.main("duan-3", "--jobs", "4", "--store") == 0
    path = next((bench.root / "results").glob("duan-3.*.json"))
    first = json.loads(path.read_text())
    old = {**first, "machine": "an older one", "date": "2001-01-01"}
    for row in old["rows"]:
        for run in row["runs"]:
            run["bleu"] = 11.0
    path.write_text(json.dumps(old))
    shutil.rmtree(bench.runs)
    assert bench.main("duan-3", "--seeds", "2", "--rows", "4  both", "--store") == 0
    second = json.loads(path.read_text())
    assert [[run["seed"] for run in row["runs"]] for row in second["rows"]] == [[1]] * 3 + [[1, 2]]
    scores = [run["bleu"] for run in second["rows"][3]["runs"]]
    assert scores[0] == 11.0 != scores[1]
    assert second["seeds"] == [1, 2] and second["command"].endswith(" --seeds 1 2")
    assert "an older one" in second["machine"].split("; ") and second["date"] == first["date"]

    # a run that is here comes before the one of the file
    assert bench.main("duan-3", "--rows", "4  both", "--store") == 0
    third = json.loads(path.read_text())
    assert third["rows"][:3] == second["rows"][:3] and third["command"] == second["command"]
    assert [run["bleu"] == 11.0 for run in third["rows"][3]["runs"]] == [False, False]

    # another recipe
    shutil.rmtree(bench.runs)
    assert bench.main("duan-3", "--lr", "0.5", "--rows", "4  both", "--store") == 0
    other = json.loads(path.read_text())
    assert [len(row["runs"]) for row in other["rows"]] == [0, 0, 0, 1] and other["seeds"] == [1]

    # a file that is no table is told of, and left as it is
    path.write_text("{")
    assert bench.main("duan-3", "--lr", "0.5", "--finished", "--store") == 2
    assert path.read_text() == "{"


@pytest.mark.parametrize("name", ["RESULTS.md", "docs/experiments.md"])
def test_results_of_this_project_are_what_the_stored_json_gives(name):
    document = (ROOT / name).read_text()
    assert documents.renewed(document, ROOT) == document


def test_logic_and_bench_files_are_rendered(tmp_path):
    import logic

    cell = {"mean": 0.5, "spread": 0.1, "seeds": 2}
    summary = {
        "pairs": {"1": 10, "12": 4, "<=6": 10, ">=7": 4},
        "majority": {k: 0.25 for k in ("1", "12", "<=6", ">=7")},
        "models": {"baseline": {k: cell for k in ("1", "12", "<=6", ">=7")}},
    }
    assert render.text({"kind": "logic", **summary}) == f"```\n{logic.table(summary)}\n```"
    row = {
        "label": "linear",
        "parameters": 5,
        "memory": None,
        **{
            f"{w}{x}": 1.0
            for w in ("training", "decoding")
            for x in ("", "_ratio", "_paper", "_limit")
        },
    }
    row["flops"] = 1e12
    tables = {"no": {"summary": {"linear": row}, "growth": {}}}
    stored = {"kind": "bench", "machine": "a machine", "settings": {}, "chip": None}
    assert "linear" in render.text({**stored, "tables": tables})


@pytest.mark.parametrize(
    "text, value",
    [
        ("24.13", 24.13),
        ("28.26⇑", 28.26),
        ("47.97*", 47.97),
        ("88M", None),
        ("+0.65", None),
        ("-", None),
        (None, None),
        ("45.70 (+0.75) [2]", None),
        ("27.98 [1]", 27.98),
    ],
)
def test_number_of_a_published_cell(text, value):
    assert render.printed_number(text) == value


def test_markdown_escapes_and_aligns():
    lines = render.markdown(
        [["", "flags", "BLEU"], ["a|b", "`x`", "1.00"], ["c", "", "10.00"]]
    ).splitlines()
    assert len({len(line) for line in lines}) == 1 and "a\\|b" in lines[2]
    assert lines[1].endswith("-:|") and lines[1].startswith("|:-")
