"""reproduce.py and papers/: published numbers, valid models, shared runs, tables and documents."""
import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from outside import SHARED
from small_run import name_files, write_text

from nmt.run_folder import RunFolder, read_metrics
from papers import reproduce
from papers.tables import DEPARTURE, OWN, SCORES, SCORES_BY_LAYER, TABLES
from tools.files import UserError

PAPERS = SHARED / "papers"
TRAINED = [name for name, table in TABLES.items() if table.kind != "probe"]


def plan_runs(name: str, seeds=(1,), **given) -> dict:
    """{(label, size): the first run} of a table's rows that are trained."""
    rows = reproduce.plan(TABLES[name], given, seeds)
    return {(row.label, row.size): runs[0] for row, runs in rows}


# ---- The published numbers

def numbers_of(text: str) -> str:
    return " ".join(re.findall(r"\d+\.?\d*", text))


@pytest.mark.parametrize("name", TABLES)
def test_published_cells_fit_their_columns_and_footnotes(name):
    table = TABLES[name]
    paper, _, number = name.removesuffix("-toy").partition("-")
    if table.source != OWN:                              # "li2018-1": Li 2018 Table 1
        assert table.source.lower().replace(" ", "").startswith(paper)
        assert table.source.endswith(f" {number.removeprefix('fig')}")
    assert all(len(row.published) == len(table.columns) for row in table.rows)
    cells = " ".join(cell for row in table.rows for cell in row.published)
    assert isinstance(table.notes, tuple)
    assert (DEPARTURE in table.notes) == (paper == "gu")
    notes = " ".join(table.notes)                        # explain the marks of significance
    assert {*cells} & {*"↑⇑*"} == {*notes} & {*"↑⇑*"}
    marks = {int(mark) for mark in re.findall(r"\[(\d+)\]", cells)}
    assert marks <= set(range(1, len(table.notes) + 1))


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers are not here")
@pytest.mark.parametrize("name", [name for name in TABLES if " Table" in TABLES[name].source])
def test_published_rows_are_printed_in_the_papers(name):
    """The numbers of a row one after the other; Li 2021 Table 7 has a row per task."""
    paper = TABLES[name].source.rpartition(" Table")[0].lower().replace(" ", "")     # "li2018"
    text = "".join(path.read_text("utf-8") for path in PAPERS.glob(f"{paper}*.txt"))
    rows = [row.published for row in TABLES[name].rows]
    if name == "gu-1":                                   # whose columns are test sets
        assert " ".join(TABLES[name].columns[1:]) in " ".join(text.split())
    if name == "li2018-1":
        rows += [*SCORES.values(), *SCORES_BY_LAYER.values()]
    for row in zip(*rows) if name == "li2021-7" else rows:
        cells = re.sub(r"\[\d+\]", "", " ".join(row))
        assert f" {numbers_of(cells)} " in f" {numbers_of(text)} ", row


# ---- Runs

def test_every_row_is_a_model_with_one_name_in_all_tables():
    """At size base, where no two layer ranges of a table coincide."""
    names = {}                          # model -> its runs
    for table in TRAINED:
        for run in plan_runs(table, arch="base").values():
            # the stored rows of gu-em name its default gradient
            name = run.settings.name.replace("-gu-em-em-gradient-last", "-gu-em")
            names.setdefault(repr(run.settings.model_config(100)), set()).add(name)
    assert max(map(len, names.values())) == 1
    assert len(names) == len(set.union(*names.values()))


def test_sizes():
    """Big is twice the width, heads and FFN beside other sizes than base."""
    wide = plan_runs("li2021-6")["big (8 heads)", "wide"].settings
    assert (wide.d_model, wide.heads, wide.d_ff) == (256, 4, 512)
    tiny = plan_runs("li2018-3")["big", "big"].settings
    assert (tiny.d_model, tiny.heads, tiny.d_ff, tiny.layers) == (256, 8, 512, 4)
    with pytest.raises(UserError, match="--arch big"):
        plan_runs("li2018-3", arch="big")


def test_runs_that_differ_have_different_keys():
    """Both tables train "big", with another dropout; from Chinese, baselines differ, too."""
    big = {plan_runs(name, arch="base")["big", "big"].key for name in ("li2018-3", "li2021-5")}
    bases = {next(iter(plan_runs(name, data="wmt17-zh-en").values())).key
             for name in ("li2018-3", "duan-1", "gu-1")}
    assert (len(big), len(bases)) == (2, 3)
    machine = dict(data_dir="elsewhere", workers=0, graphs=True, compile=False, log_every=1,
                   save_every=1)
    run, *_ = plan_runs("duan-1", data="multi30k", **machine).values()
    assert run.key == ("--data multi30k", "base", "", 1)


@pytest.mark.parametrize("words, message", [
    ("duan-9", "no table duan-9"), ("duan-3 --reg output", "--reg"),
    ("duan-3 --seed 2", "--seeds"), ("duan-3 --name x", "--name: the rows of the table set it"),
    ("li2019-1 --steps 9", "li2019-1 is a table of probe.py")])
def test_mistakes_are_one_line(words, message, capsys):
    assert reproduce.main([*words.split(), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_dry_run_lists_runs_and_their_commands(tmp_path, capsys):
    name = "toy-tiny-capsule-attention-enc-steps-9-seed1"
    (tmp_path / name).mkdir()
    rows = '{"type": "train", "step": 7}\n{"type": "tr'
    (tmp_path / name / "metrics.jsonl").write_text(rows, "utf-8")
    words = f"duan-4 --dry-run --steps 9 --device cpu --runs {tmp_path}"
    assert reproduce.main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[8] == "4 of 4 runs would start"
    assert lines[-1] == "duan-4: nothing is finished"
    assert lines[6].split() == ["step", "7", name]
    assert lines[7] == (14 * " " + "python train_mt.py --steps 9 --capsule-attention enc --seed 1 "
                        f"--runs {tmp_path}")


# ---- Processes

SCRIPT = """
import os, signal, sys, time
words = dict(zip(sys.argv, sys.argv[1:]))
path = os.path.join(words["--runs"], words["--name"])
stopped = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: stopped.append(number))
open(path + ".started", "w").close()
until = time.monotonic() + 20 * ("--wait" in sys.argv)
while time.monotonic() < until and not stopped:
    time.sleep(0.01)
print(words["--device"], os.environ["OMP_NUM_THREADS"], *stopped, "the last line")
sys.exit(128 + stopped[0] if stopped else "--fail" in sys.argv)
"""


@pytest.fixture
def run_scripts(tmp_path, monkeypatch):
    """A function: runs SCRIPT once per argument, two at a time."""
    (tmp_path / "train_mt.py").write_text(SCRIPT, "utf-8")
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words, device="cpu", end=None):
        queue = []
        for i, word in enumerate(words):
            queue.append(reproduce.Job((word,), tmp_path / f"run{i}"))
        failed = reproduce.train_jobs(queue, 2, torch.device(device), end or ended.append)
        return failed, [job.path.name for job in ended]
    ended = []
    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_job_that_fails_does_not_stop_the_others(run_scripts, tmp_path, capsys):
    assert run_scripts("--fail", "--go", "--go") == (["run0"], ["run1", "run2"])
    out = capsys.readouterr().out
    assert "run0: exit status 1: cpu 4 the last line" in out
    assert f"run2: started, output in {tmp_path / 'run2.log'}\n" in out and "run2: finished" in out


posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows ends without signals")


@posix
def test_a_signal_is_passed_on(run_scripts, tmp_path, capsys):
    def interrupt():
        while len(list(tmp_path.glob("*.started"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        run_scripts("--wait", "--wait", "--wait")
    thread.join()
    assert len(list(tmp_path.glob("*.started"))) == 2
    assert "the same command resumes" in capsys.readouterr().out


@posix
@pytest.mark.skipif(not shutil.which("setpriv"), reason="Linux has it")
def test_jobs_end_with_a_program_that_is_killed(run_scripts, tmp_path):
    child = os.fork()
    if child == 0:
        run_scripts("--wait")
    while not (tmp_path / "run0.started").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while not (tmp_path / "run0.log").read_text("utf-8") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert f"{signal.SIGTERM.value} the last line" in (tmp_path / "run0.log").read_text("utf-8")


@posix
def test_an_error_after_a_job_stops_the_others(run_scripts, tmp_path):
    def end(job):
        raise UserError("no space left")

    with pytest.raises(UserError):
        run_scripts("--go", "--wait", "--wait", end=end)
    assert f"{signal.SIGTERM.value} the last line" in (tmp_path / "run1.log").read_text("utf-8")


def test_jobs_at_once_have_a_gpu_each_and_the_users_threads(run_scripts, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (tmp_path / "run0.log").write_text("before\n", "utf-8")
    run_scripts("--go", "--go", device="cuda")
    logs = [(tmp_path / f"run{i}.log").read_text("utf-8") for i in (0, 1)]
    assert logs == ["before\ncuda:1 3 the last line\n", "cuda:0 3 the last line\n"]


# ---- Tables, with a training that takes no time

EXP_D = {"subspace": 0.9, "position": 0.1, "output": 0.8}


def write_run(path: Path, settings) -> None:
    """The folder of a finished run, with a BLEU of 20 + seed + the number of its heads."""
    config = {**asdict(settings), "accumulate_times_processes": settings.accumulate}
    checksums, texts = reproduce.own_text(settings)
    with RunFolder(path, config) as folder:
        folder.begin(languages=["en", "de"], **checksums)
        for step, bleu, loss in ((1, 8.0, 3.0), (2, 8.0, 2.0), (3, 6.0, 1.0)):
            folder.log("valid", step=step, valid_bleu=bleu, valid_loss=loss)
        bleu = 20.0 + settings.seed + settings.heads
        folder.log("test", step=3, test_bleu=bleu, test_chrf=50.0, sets={"test": bleu},
                   texts=texts, signature="nrefs:1", disagreement={"enc": EXP_D},
                   parameters=1000 + settings.heads, tokens=3_600_000, tokens_per_second=500.0,
                   sentences_per_second=50.0)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function: reproduce.main in another project folder. `trained` lists the runs so far."""
    for name in ("train", "valid", "test"):
        write_text(tmp_path, name, ["a b c d e f"] * 9, ["a b c d e f"] * 9)

    def train(queue, at_once, device, end):
        command.at_once = at_once
        for job in queue:
            write_run(job.path, reproduce.settings_of(job.words))
            command.trained.append(job.path.name)
            end(job)
        return []

    def command(words: str) -> int:
        return reproduce.main([*words.split(), *name_files(tmp_path)])

    monkeypatch.setattr(reproduce, "train_jobs", train)
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    command.trained = []
    command.root = tmp_path
    return command


def test_every_run_is_trained_once_and_shared(project, monkeypatch, capsys):
    assert project("duan-3 duan-4 --seeds 2 1 --jobs 3") == 0
    assert project.at_once == 3
    assert len(project.trained) == len(set(project.trained)) == 12      # two baselines, two `enc`
    assert all(name.endswith("seed2") for name in project.trained[:4])  # seed by seed
    assert project("duan-3 --seeds 1 2") == 0
    assert len(project.trained) == 12 and project.at_once == 1
    out = capsys.readouterr().out
    assert "; published on WMT17 Zh-En, base.\n" in out
    assert "Duan 2020 Table 3" in out and "24.76 (+0.48)" in out and "25.50 ± 0.71" in out
    monkeypatch.setattr(reproduce, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(reproduce, "processor", str)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert project("duan-3") == 0 and project.at_once == 2       # a run per GPU


def test_a_footnote_has_the_number_of_its_cell(project, capsys):
    assert project("gu-3 --heads 8") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "47.43 (+0.11) [1]" in out and f"[1] {TABLES['gu-3'].notes[0]}." in out


def test_a_folder_of_other_settings_is_not_taken(project, monkeypatch, capsys):
    """Nor is one of a run that failed."""
    assert project("duan-3") == 0
    config = project.root / "runs" / project.trained[0] / "config.json"
    config.write_text(config.read_text("utf-8").replace('"lr": 0.0032', '"lr": 0.1'), "utf-8")
    lock = FileLock(config.parent / "lock")              # of another program that reads the run
    with lock:
        assert project("duan-3") == 2
    assert "another configuration (lr was 0.1, is now 0.0032)" in capsys.readouterr().err
    assert project("duan-2 --lr 0.05") == 0              # two of the four
    monkeypatch.setattr(reproduce, "train_jobs", lambda jobs, *_: [jobs[0].path.name])
    assert project("duan-3 --lr 0.05") == 2
    error = capsys.readouterr().err
    assert re.search(r": 1 of 4 runs failed \(\S+-seed1\): see their logs", error)


def test_a_run_of_another_text_is_not_taken(project, capsys):
    """After the test set has changed, the run is tested again: the row of the new set counts."""
    assert project("duan-2") == 0
    write_text(project.root, "test", ["f e d c b a"] * 9, ["f e d c b a"] * 9)
    capsys.readouterr()
    assert project("duan-2 --dry-run") == 0
    assert "4 of 4 runs would start" in capsys.readouterr().out
    metrics = project.root / "runs" / project.trained[0] / "metrics.jsonl"
    *_, row = read_metrics(metrics)
    _, texts = reproduce.own_text(reproduce.settings_of(name_files(project.root)))
    with open(metrics, "a", encoding="utf-8") as file:
        file.write(json.dumps(row | {"texts": texts, "test_bleu": 77.0}) + "\n")
    assert project("duan-2 --dry-run") == 0
    out = capsys.readouterr().out
    assert "3 of 4 runs would start" in out and " 77.00 " in out
    write_text(project.root, "train", ["a"] * 9, ["b"] * 9)
    assert project("duan-2 --dry-run") == 2
    assert "the text of --train differs" in capsys.readouterr().err
    (project.root / "test.de").unlink()
    assert project("duan-2 --dry-run") == 2
    assert "--test: " in capsys.readouterr().err


def test_text_that_changes_while_runs_train_is_said(project, monkeypatch, capsys):
    train = reproduce.train_jobs

    def change_and_train(jobs, *arguments):
        write_text(project.root, "test", ["f e d c b a"] * 9, ["f e d c b a"] * 9)
        return train(jobs, *arguments)

    monkeypatch.setattr(reproduce, "train_jobs", change_and_train)
    assert project("duan-2") == 2
    assert "4 of 4 runs were tested on text that changed" in capsys.readouterr().err


def test_a_stored_run_is_a_line_and_is_not_trained_again(project, monkeypatch, capsys):
    """Also one that was trained before; of another scale it is trained. Numbers are those of the
    best step."""
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(reproduce.subprocess, "run", lambda words, **_:
                        SimpleNamespace(stdout=f"the answer to {words[0]}\n"))
    assert project("duan-2") == 0
    assert project("duan-2 --dry-run --store") == 0
    assert not (project.root / "results").exists()
    assert project("duan-3 --store") == 0
    (project.root / "runs").rename(project.root / "elsewhere")
    assert project("duan-3 --store") == 0
    assert len(project.trained) == 6
    text = (project.root / "results" / "runs.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["flags"] for line in lines] == [
        "", "--capsule-attention enc", "--capsule-attention enc --capsule-parts vertical",
        "--capsule-attention enc --capsule-parts horizontal"]
    numbers = dict(bleu=25.0, chrf=50.0, scores=EXP_D, parameters=1004, tokens=3_600_000, seed=1,
                   tokens_per_second=500.0, sentences_per_second=50.0, best_step=2,
                   valid_bleu=8.0, valid_loss=2.0, signature="nrefs:1", sets={"test": 25.0},
                   commit="the answer to git")
    assert numbers.items() <= lines[0].items()
    assert project("duan-3 --lr 0.05 --store") == 0
    assert len(project.trained) == 10
    assert project("duan-3 --seeds 2 --store") == 0
    (project.root / "runs").rename(project.root / "away")
    capsys.readouterr()
    assert project("duan-3 --seeds 1 2 3 --dry-run --store") == 0
    out = capsys.readouterr().out
    assert "4 of 12 runs would start" in out and out.count("    finished  ") == 8
    write_text(project.root, "test", ["f e d c b a"] * 9, ["f e d c b a"] * 9)
    assert project("duan-3 --dry-run --store") == 0
    assert "4 of 4 runs would start" in capsys.readouterr().out
    write_text(project.root, "test", ["a b c d e f"] * 9, ["a b c d e f"] * 9)
    text = text.replace(torch.__version__, "2.9.0", 1)   # as if one was trained elsewhere
    (project.root / "results" / "runs.jsonl").write_text(text, "utf-8")
    assert project("duan-3 --dry-run --store") == 0
    assert "torch 2.9.0; " in " ".join(capsys.readouterr().out.split())


def test_a_line_has_the_precision_of_its_run(project, monkeypatch, capsys):
    """And is on its own after one that a full disk tore, whose run is stored again."""
    monkeypatch.setenv("PATH", "")                       # without git
    for words in ("--amp --seeds 1", "--no-amp --seeds 2"):
        assert project(f"duan-4 {words} --store") == 0
    path = project.root / "results" / "runs.jsonl"
    whole = path.read_text("utf-8")
    lines = whole.splitlines()
    precisions = [json.loads(line)["precision"] for line in lines]
    assert precisions == ["bfloat16"] * 4 + ["float32"] * 4
    assert project("duan-4 --no-amp --lr 0.05") == 0
    assert project("duan-4 --amp --lr 0.05 --store") == 2
    path.write_text(whole[:-9], "utf-8")
    capsys.readouterr()
    assert project("duan-4 --no-amp --seeds 2 --store") == 0
    assert capsys.readouterr().err == f"warning: {path}: its last line is cut off: left out\n"
    *kept, torn, added = path.read_text("utf-8").splitlines(keepends=True)
    assert "".join([*kept, added]) == whole and torn == f"{lines[-1][:-8]}\n"
    assert len(project.trained) == 12


def test_published_probing_accuracies_and_the_command_that_measures_them(capsys):
    assert reproduce.main(["li2019-1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "published baseline simple em".split() in lines
    assert "WC 97.92 98.85 98.75".split() in lines
    assert "`python probe.py --protocol li2019 --data senteval`." in " ".join(lines[-1])


# ---- Cells

def run_of(bleu: float, parameters: int, tokens: float) -> dict:
    return {"scale": "", "bleu": bleu, "parameters": parameters, "tokens_per_second": tokens,
            "sentences_per_second": tokens / 10, "processor": "CPU", "torch": "2.9"}


def test_a_table_has_every_number_in_its_column():
    """Differences and ratios are to the baseline of the row's size."""
    runs = {"base": [run_of(20.0, 1000, 500.0), run_of(30.0, 1000, 600.0)],
            "base + Disagreement": [run_of(32.0, 1250, 300.0), run_of(90.0, 1250, 500.0),
                                    run_of(21.0, 1250, 400.0)]}
    table = TABLES["li2018-3"]
    text = reproduce.runs_text(table, [runs.get(row.label, []) for row in table.rows])
    rows = [re.split("  +", line) for line in text.splitlines()]
    assert rows[0] == ["", "seeds", "BLEU", "Δ", "parameters", "tokens/s", "sentences/s"]
    assert ["published", *table.columns] in rows
    assert "\nembedded corpus, size tiny; CPU, torch 2.9\n" in text
    assert rows[1] == ["base", "2", "25.00 ± 7.07", "1,000", "550", "55.0"]
    assert rows[2] == ["base + Disagreement", "3", "47.67 ± 37.07", "+22.67", "+250", "400 (0.73)",
                       "40.0 (0.73)"]
    assert rows[3] == ["big", *["–"] * 6]
    assert ["big", "0.58", "24.56", "0.61", "28.58"] in rows
    assert ["base + Disagreement", "1.06 (0.88)", "24.85↑ (+0.72)", "1.10 (0.86)",
            "28.51↑ (+0.87)"] in rows
    assert ["big + Disagreement", "0.47 (0.81)", "25.08↑ (+0.52)", "0.51 (0.84)",
            "29.28↑ (+0.70)"] in rows
    new = run_of(20.0, 1000, 500.0)
    old = new | {"tokens_per_second": None}
    for lines, base in (([new], [old]), ([old], [new]), ([old, new], [])):
        assert reproduce.speed_cell(lines, base, "tokens_per_second", 0) == "–"
    text = reproduce.runs_text(TABLES["li2019-2"], [[run_of(20.0, 1000, 500.0)], *[[]] * 6])
    assert "28.28  +0.97" in text and "28.28 (" not in text      # the paper prints the gain


def test_tables_have_120_columns(capsys):
    """The list, and every table with large numbers."""
    assert reproduce.main([]) == 0
    texts = [capsys.readouterr().out]
    listed = [re.split("  +", line) for line in texts[0].splitlines()]
    assert ["duan-4", "Duan 2020 Table 4", "4 rows",
            "capsule routing in different encoder layers"] in listed
    assert len({tuple(line[1:]) for line in listed}) == len(TABLES)
    runs_of_row = [run_of(bleu, 9_999_999, 99_999.0) for bleu in (0, 99)]
    for table in TABLES.values():
        if table.kind == "mt":
            texts.append(reproduce.runs_text(table, [runs_of_row] * len(table.rows)))
    for text in texts:
        assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("text, value", [
    ("24.13", 24.13), ("28.26⇑", 28.26), ("47.97*", 47.97), ("88M", None), ("+0.65", None),
    ("-", None), ("45.70 (+0.75) [2]", None), ("27.98 [1]", 27.98)])
def test_number_of_a_published_cell(text, value):
    assert reproduce.printed_number(text) == value
