"""reproduce.py, plan.py, jobs.py, render.py, paper_tables.py: every row a valid model with the published parameters,
names that are shared by what is the same, a table that is interrupted, fails and resumes, and RESULTS.md beside results/."""
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import jobs
import plan
import render
import reproduce
import train_mt
from cli import UserError
from paper_tables import TABLES
from transformer import Transformer, TransformerConfig

ROOT = Path(__file__).resolve().parents[1]
TRAINED = [name for name, table in TABLES.items() if table.kind not in ("logic", "probe")]
MINUTE = ["--layers", "1", "--d-model", "16", "--heads", "2", "--d-ff", "16", "--vocab-size", "300", "--device", "cpu"]
FAKE = """                                            # a training that takes no time; with a .wait file it takes long
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
    for row in ({"step": 2, "valid_bleu": 20.0, "valid_disagreement": {"enc": {"position": [-3.0, -2.0]}}},
                {"step": 4, "valid_bleu": 30.0, "valid_disagreement": {"enc": {"position": [-1.0, -2.0]}}},
                {"step": 4, "test_bleu": number + 0.25, "signature": "nrefs:1", "set": "test", "disagreement": {"enc": D},
                 "parameters": 1000 + number, "tokens": 5000, "tokens_per_second": 500.0, "sentences_per_second": 50.0}):
        file.write(json.dumps(row) + "\\n")
open(os.path.join(path, "test.hyp"), "w").write(("a b c d e %s\\n" % flags["--name"]) * 2)
"""


def given(*flags):
    """What reproduce.py passes on of these flags."""
    args = vars(reproduce.parser().parse_args(list(flags)))
    return {key: value for key, value in args.items() if key not in reproduce.OWN}


def runs(name, *flags, seeds=(1,)):
    """The runs of a table's rows, the quoted ones left out."""
    return [jobs for _, jobs in plan.plan(TABLES[name], given(*flags), seeds) if jobs]


def count(config):
    """The parameters of a model."""
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config).parameters())


# ---- The tables

@pytest.mark.parametrize("scale", [(), ("--arch", "base", "--data", "wmt17-zh-en"), MINUTE], ids=["tiny", "base", "minute"])
def test_every_row_parses_to_a_valid_model(scale):
    built = set()
    for name in TRAINED:
        for row, found in plan.plan(TABLES[name], given(*scale), (1, 2)):
            assert len(found) == (0 if row.flags is None else 2)
            for job in found:
                args = plan.flags_parser().parse_args([*job.flags, "--name", job.name])
                config = TransformerConfig.from_flags(args, vocab_size=100)
                assert plan.mechanism_flags(config) == job.mechanisms          # the one spelling says what the row says
                assert args.average == 0 and args.seed == job.seed
                if scale == MINUTE and row.size == "base" and str(job.mechanisms) not in built:
                    built.add(str(job.mechanisms))
                    count(config)


def test_published_cells_fit_their_columns_and_footnotes():
    for name, table in TABLES.items():
        cells = [cell or "" for row in table.rows for cell in row.published]
        assert all(len(row.published) == len(table.columns) for row in table.rows), name
        assert {int(mark) for mark in re.findall(r"\[(\d+)\]", " ".join(cells))} <= set(range(1, len(table.notes) + 1)), name
        assert bool(table.part) == (table.kind == "figure"), name
        assert table.rows[0].flags is None or table.kind in ("logic", "probe") or table.rows[0].flags == "", name


def test_scripts_know_the_models_of_their_tables():
    import logic
    for name, table in TABLES.items():
        if table.kind == "logic":
            assert all(row.flags in logic.MODELS for row in table.rows)
            logic.parser().parse_args(reproduce.script_run(name, SimpleNamespace(seeds=[1, 2])).flags)
        elif table.kind == "probe" and (ROOT / "probe.py").exists():
            import probe
            probe.parser().parse_args(reproduce.script_run(name, SimpleNamespace(seeds=[1, 2])).flags)


@pytest.mark.parametrize("name, column", [("li2019-2", 0), ("li2019-3", 0), ("li2019-4", 0), ("li2021-3", 0), ("li2021-4", 0),
                                          ("li2021-5", 0), ("li2021-6", 0), ("gu-2", 0)])
def test_parameters_are_the_published_ones(name, column):
    """Increments equal the printed ones within rounding, but where a footnote says that none can (README)."""
    table, checked, base = TABLES[name], 0, {}
    for row, jobs in plan.plan(table, given("--arch", "base"), (1,)):
        text = row.published[column]
        if not jobs or text is None or "[" in text:
            continue
        count_here = count(TransformerConfig(**{**vars(jobs[0].config), "vocab_size": 32_000}))
        digits = len(text.partition(".")[2]) - 1
        value = float(re.match(r"\+?([\d.]+)M", text)[1])
        if row.flags == "":
            base[row.size] = count_here, value
            continue
        published = value if text.startswith("+") else value - base[row.size][1]
        last = 10 ** -max(0, digits)                     # rounded or cut: 37.86M is printed as 37.8M
        assert abs((count_here - base[row.size][0]) / 1e6 - published) < last + 1e-9, (row.label, text)
        checked += 1
    assert checked >= 2 or name == "gu-2" and checked == 1 or name == "li2021-6" and checked == 1


def test_duan_adds_1632_parameters_to_the_big_model():
    big = [jobs[0].config for row, jobs in plan.plan(TABLES["duan-1"], given("--arch", "base"), (1,)) if row.size == "big"]
    plain, capsule = (count(TransformerConfig(**{**vars(c), "vocab_size": 100})) for c in big)
    assert capsule - plain == 1632


def test_sizes():
    sizes = lambda name, *flags: {row.size: jobs[0].config for row, jobs in plan.plan(TABLES[name], given(*flags), (1,)) if jobs}
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
    dropout = lambda name: [jobs[0].settings.dropout for row, jobs in plan.plan(TABLES[name], given("--arch", "base"), (1,))
                            if row.size != "base"]
    assert set(dropout("li2021-5")) == set(dropout("li2021-6")) == {0.1}
    assert set(dropout("li2018-3")) == set(dropout("gu-2")) == set(dropout("duan-1")) == {0.3}


# ---- Names

def test_the_same_configuration_is_one_run_across_tables():
    names = {name: [jobs[0].name for jobs in runs(name)] for name in TRAINED}
    assert names["li2018-1"] == names["li2021-1"] and names["li2019-3"] == names["li2021-4"]
    assert len({names[name][0] for name in TRAINED
                if TABLES[name].rows[0].flags == "" and TABLES[name].rows[0].size == "base"}) == 1   # one baseline
    assert names["li2019-3"][4] == names["all"][5] == names["iterations"][3] == names["capsules"][5] # EM, N = d, T = 3
    assert names["li2018-2"][4] == names["all"][3] and names["li2018-2"][1] == names["li2018-1"][3]
    assert names["duan-2"][1] == names["duan-3"][3] == names["duan-4"][3]
    assert names["gu-3"][10] == names["all"][7] == names["gu-fig2"][3]
    assert len(set(names["li2018-1"])) == 7 and len(set(names["all"])) == len(names["all"])


def test_names_follow_what_matters():
    name = lambda *flags: runs("duan-3", *flags)[1][0].name
    assert name() == name("--data", "toy") == name("--arch", "tiny", "--steps", "1800") == name("--log-every", "7")
    assert name() != name("--steps", "1700") and name() != name("--lr", "0.5") and name() != name("--d-ff", "64")
    assert name("--train", "/x/multi30k/train", "--src", "en") == name("--train", "/y/multi30k/train", "--src", "en")
    assert name("--iterations", "2") != name() and runs("duan-3", "--iterations", "2")[0][0].name == runs("duan-3")[0][0].name
    assert name().endswith("-seed1") and name().startswith("toy-tiny-capsule-")


@pytest.mark.parametrize("flags, wanted", [
    ("--agg em", "--agg em --agg-at enc:1-2"), ("--agg em --agg-at enc:2 enc:1 --capsules 128", "--agg em --agg-at enc:1-2"),
    ("--agg gu-em --capsules 4", "--agg gu-em --agg-at cross:4 dec:4"), ("--reg output --reg-weight 0", ""),
    ("--reg position output --reg-at enc:1-4", "--reg output position --reg-at enc"),
    ("--capsule dec --capsule-parts vertical", "--capsule dec"), ("--iterations 5", ""),
    ("--capsule enc:1,3 --iterations 2", "--capsule enc:1,3 --iterations 2"),
    ("--capsule enc --capsule-parts horizontal vertical", "--capsule enc")])
def test_one_spelling(flags, wanted):
    config = TransformerConfig.from_flags(plan.completed(flags.split()), vocab_size=1)
    assert " ".join(plan.mechanism_flags(config)) == wanted


def test_paper_settings_for_chinese_only():
    flags = lambda name, *scale: runs(name, *scale)[0][0].flags
    assert "--max-length" not in flags("li2021-5") and "--lowercase" not in flags("gu-3")
    zh = ("--data", "wmt17-zh-en")
    assert flags("li2021-5", *zh)[-4:-2] == ["--max-length", "50"] and "--lowercase" in flags("gu-3", *zh)
    assert flags("duan-2", *zh, "--max-length", "80").count("--max-length") == 1
    assert "--max-length" not in flags("li2018-1", *zh)


# ---- Errors

@pytest.mark.parametrize("flags, told", [
    (["li2018-9"], "no table li2018-9"), ([], "which table"), (["all", "--agg", "em"], "--agg"),
    (["all", "--seed", "3"], "--seeds"), (["all", "--average", "3"], "--average"), (["all", "--name", "x"], "--name"),
    (["iterations", "--iterations", "2"], "--iterations"), (["gu-2", "--arch", "big"], "--arch big"),
    (["all", "--steps", "0"], "--steps"), (["all", "--heads", "3"], "--heads"), (["all", "--data", "nowhere"], "--data"),
    (["all", "--jobs", "0"], "--jobs"), (["duan-3", "--device", "tpu"], "--device"), (["all", "--train", "x"], "--valid")])
def test_errors_are_one_line(flags, told, tmp_path, capsys):
    try:
        code = reproduce.main([*flags, "--runs", str(tmp_path / "runs")])
    except SystemExit as end:
        code = end.code
    error = capsys.readouterr().err
    assert code == 2 and told in error and error.startswith("reproduce.py: error: ") and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_list_names_every_table(capsys):
    assert reproduce.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(TABLES)


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
    text += ["--src", "en", "--tgt", "de", "--steps", "4", *MINUTE, "--runs", str(tmp_path / "runs")]
    return SimpleNamespace(runs=tmp_path / "runs", root=tmp_path, main=lambda *flags: reproduce.main([*flags, *text]))


def started(bench):
    """How often each run was started, by its name."""
    return {path.parent.name: len(path.read_text()) for path in bench.runs.glob("*/started")}


def test_every_row_and_seed_is_trained_once_and_shared(bench, capsys):
    assert bench.main("duan-3", "--seeds", "1", "2", "--jobs", "4") == 0
    assert len(started(bench)) == 8 and set(started(bench).values()) == {1}
    out = capsys.readouterr().out
    assert "Duan 2020 Table 3" in out and "24.76 (+0.48)" in out and "± 0.71" in out
    assert bench.main("duan-2", "duan-3", "--seeds", "1", "2", "--jobs", "4") == 0
    assert len(started(bench)) == 12 and set(started(bench).values()) == {1}       # Dec; Enc, Dec: 2 rows x 2 seeds
    assert bench.main("duan-2", "--dry-run", "--seeds", "1", "3") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("4 of 8 runs are missing")


def test_a_failed_row_is_told_and_the_others_go_on(bench, capsys):
    broken = runs("duan-3", "--steps", "4", *MINUTE[:-2], "--train", str(bench.root / "train"), "--valid", "x", "--src", "en",
                  "--tgt", "de", "--test", "x")[1][0].name
    (bench.runs / f"{broken}.fail").touch()
    assert bench.main("duan-3", "--jobs", "2") == 2
    out = capsys.readouterr()
    assert f"{broken}: failed (exit status 2): train_mt.py: error: the disk is full" in out.out
    assert out.err.startswith("reproduce.py: error: 1 of 4 runs failed") and out.err.count("\n") == 1
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
    gpus = [jobs.environment(slot, 3, torch.device("cuda"))["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert gpus == ["3", "5", "3"] and jobs.environment(0, 1, torch.device("cuda:1"))["CUDA_VISIBLE_DEVICES"] == "5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert jobs.environment(1, 2, torch.device("cuda"))["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert jobs.environment(0, 2, torch.device("cpu"))["OMP_NUM_THREADS"] == "7"


def test_probing_beside_the_published_numbers(bench, capsys):
    cells = lambda x: {"baseline": {"mean": x, "spread": None, "seeds": 1}, "simple": {"mean": x, "spread": 0.01, "seeds": 2},
                       "em": {"mean": x, "spread": None, "seeds": 1}, "majority": {"mean": 0.1, "spread": None, "seeds": 1}}
    lines = [{"group": "surface", "task": "WC", "cells": cells(0.5)}, {"group": "surface", "task": "Ave.", "cells": cells(0.25)}]
    folder = bench.runs / "li2019-1"
    folder.mkdir()
    runs = [{"model": model, "seed": 1} for model in ("baseline", "simple", "em")]
    (folder / "results.json").write_text(json.dumps({"table": lines, "runs": runs, "settings": {"data": "/a/b/senteval"}}))
    assert reproduce.main(["li2019-1", "--runs", str(bench.runs), "--store", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| +50.00 \| 97.92 \| +50.00 ± 1.00 \| 98.85 \| 50.00 \| 98.75 \| +10.00 \|", out)
    stored = json.loads((bench.root / "results" / "li2019-1.json").read_text())
    assert "/a/b" not in json.dumps(stored) and "Li 2019 Table 1" in render.text(stored)


def test_scores_and_layers(bench, capsys):
    assert bench.main("li2018-4", "li2018-5", "--jobs", "4") == 0
    out = capsys.readouterr().out
    assert re.search(r"\| output +\|.*\| +0.900 \| +0.100 \| +0.800 \| +0.989 \| +0.006 \| +0.997 \|", out)
    assert re.search(r"\| n/a +\| +\| +0.368 \| +0.135 \| +0.040 \|", out)          # the best step's: exp(-1), exp(-2)


def test_significance():
    references = [f"the {i} house stands near a large tree in the old town" for i in range(40)]
    worse = [line.replace("large", "small") if i % 2 else line for i, line in enumerate(references)]
    assert reproduce.chance(references, references, references, False) == 1.0
    assert reproduce.chance(worse, references, references, False) < 0.01
    assert reproduce.chance(worse, list(reversed(list(reversed(worse)))), references, False) == 1.0
    assert reproduce.chance(references, [line.upper() for line in references], references, True) == 1.0
    assert reproduce.chance(references, [line.upper() for line in references], references, False) < 0.01


# ---- Results

def test_store_and_write_results(bench, capsys):
    assert bench.main("duan-3", "--seeds", "1", "2", "--jobs", "4", "--store") == 0
    stored = next((bench.root / "results").glob("duan-3.*-tiny-4.json"))
    assert str(bench.root) not in stored.read_text() and "DIR/train" in stored.read_text()
    document = f"# Results\n\nbefore\n\n<!-- results/{stored.name} -->\nold numbers\n<!-- end -->\n\nafter\n"
    (bench.root / "RESULTS.md").write_text(document)
    assert reproduce.main(["--write-results"]) == 0
    once = (bench.root / "RESULTS.md").read_text()
    assert "old numbers" not in once and "Duan 2020 Table 3" in once and once.startswith("# Results\n\nbefore\n")
    assert once.endswith("<!-- end -->\n\nafter\n")
    assert reproduce.main(["--write-results"]) == 0
    assert (bench.root / "RESULTS.md").read_text() == once
    capsys.readouterr()
    for broken in ("{", "[]", '{"kind": "table", "table": "duan-9", "rows": []}', '{"kind": "table", "table": "duan-3"}', "{}",
                   json.dumps({**json.loads(stored.read_text()), "rows": []})):
        good = stored.read_text()
        stored.write_text(broken)
        assert reproduce.main(["--write-results"]) == 2
        error = capsys.readouterr().err
        assert stored.name in error and error.count("\n") == 1 and (bench.root / "RESULTS.md").read_text() == once
        stored.write_text(good)
    for wrong in (once.replace("<!-- end -->", ""), once.replace(stored.name, "none.json")):
        (bench.root / "RESULTS.md").write_text(wrong)
        assert reproduce.main(["--write-results"]) == 2 and (bench.root / "RESULTS.md").read_text() == wrong
        assert capsys.readouterr().err.count("\n") == 1


def test_results_of_this_project_are_what_the_stored_json_gives():
    document = (ROOT / "RESULTS.md").read_text()
    assert render.renewed(document, ROOT) == document


def test_logic_and_bench_files_are_rendered(tmp_path):
    import logic
    cell = {"mean": 0.5, "spread": 0.1, "seeds": 2}
    summary = {"pairs": {"1": 10, "12": 4, "<=6": 10, ">=7": 4}, "majority": {k: 0.25 for k in ("1", "12", "<=6", ">=7")},
               "models": {"baseline": {k: cell for k in ("1", "12", "<=6", ">=7")}}}
    assert render.text(summary) == f"```\n{logic.table(summary)}\n```"
    row = {"label": "linear", "parameters": 5, "memory": None, **{f"{w}{x}": 1.0 for w in ("training", "decoding")
                                                                   for x in ("", "_ratio", "_paper", "_limit")}}
    assert "linear" in render.text({"machine": "a machine", "settings": {}, "summary": {"linear": row}, "growth": {}})


@pytest.mark.parametrize("text, value", [("24.13", 24.13), ("28.26⇑", 28.26), ("47.97*", 47.97), ("88M", None), ("+0.65", None),
                                         ("-", None), (None, None), ("45.70 (+0.75) [2]", None), ("27.98 [1]", 27.98)])
def test_number_of_a_published_cell(text, value):
    assert render.number(text) == value


def test_markdown_escapes_and_aligns():
    lines = render.markdown([["", "flags", "BLEU"], ["a|b", "`x`", "1.00"], ["c", "", "10.00"]]).splitlines()
    assert len({len(line) for line in lines}) == 1 and "a\\|b" in lines[2] and lines[1].endswith(":|")
