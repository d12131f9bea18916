"""Trains the models of the papers' tables and prints the results with the published numbers.

    python -m papers.reproduce                             # lists the tables
    python -m papers.reproduce li2018-1 duan-3 --data multi30k --seeds 1 2 3
    python -m papers.reproduce readme --data multi30k --arch small --dry-run

The tables are data (papers/tables.py). The flags of train_mt.py set the scale of all rows. The
default is size tiny on the embedded corpus, where a row takes minutes per seed. Each row and seed
is a run of train_mt.py, in the folder that train_mt.py gives it, so tables share runs, and the same
command resumes. Checkpoints are averaged only with --average: Li 2021 does not average, and the
other papers do not say.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

if not __package__:
    print("error: start it in the project's folder: python -m papers.reproduce", file=sys.stderr)
    sys.exit(2)

import torch
from filelock import FileLock
from tabulate import tabulate
from tqdm import tqdm

import train_mt
from nmt.corpus import hash_text, known_languages, load_corpora
from nmt.flags import OPTIONS
from nmt.languages import bleu_tokenizer
from nmt.run_folder import check_settings, read_config, read_metrics, say
from papers.tables import TABLES, Row, Table
from tools.command_line import command_line, flag, parse, shell_line
from tools.command_line import run as run_command
from tools.files import UserError, as_user_error, atomic_write
from tools.machine import pick_device, processor
from tools.signals import defer_signals
from tools.streams import print_once

ROOT = Path(__file__).resolve().parents[1]
GROUP = "tables"
SIZE_FLAGS = {"layers", "d_model", "heads", "d_ff", "dropout"}
# not in a run's key
MACHINE = {"data_dir", "workers", "compile", "graphs", "log_every", "save_every"}
WIDTH = 120                     # columns of a printed table
NONE = "–"
LEGEND = """BLEU: mean ± standard deviation over the seeds. Δ: difference of means. Parameters: the
baseline's, and those added to it. In parentheses: speed divided by the baseline's, and published
BLEU minus the baseline's."""


@dataclass
class Settings(train_mt.Settings):
    """The tables, and the settings of train_mt.py for all rows."""
    tables: tuple[str, ...] = flag((), "which tables (none: lists them)", GROUP, metavar="TABLE",
                                   positional=True)
    dry_run: bool = flag(False, "train nothing: list the runs with their commands, and print the "
                         "tables of those that are finished", GROUP)
    seeds: tuple[int, ...] = flag((1,), "train every row once per seed (1)", GROUP, 0, 2 ** 31,
                                  metavar="SEED")
    jobs: int = flag(0, "number of runs at a time; 0: one per GPU, or 1 without GPUs", GROUP, 0,
                     1024)
    store: bool = flag(False, "add finished runs to results/runs.jsonl, and do not train runs that "
                       "are already there", GROUP)

    # not in --help: the rows set them
    HIDDEN = ("agg", "reg", "capsule_attention", *OPTIONS, "seed", "name")


# ---- From the rows of a table to runs of train_mt.py

class Run(NamedTuple):
    """A run of train_mt.py: a row of a table with a seed."""
    words: list[str]            # the command line
    settings: train_mt.Settings
    scale: str                  # the flags of all rows
    size: str                   # the row's size, with the flags that make it
    flags: str                  # the row's flags

    @property
    def key(self) -> tuple:
        """Its line in results/runs.jsonl has this scale, size, flags and seed."""
        return self.scale, self.size, self.flags, self.settings.seed


def own_text(s) -> list[dict]:
    """Checksums of own text as it is now: those in config.json, and those of a test row. Raises
    UserError for text that cannot be read."""
    corpora = load_corpora(s)
    text = {f"train.{s.src}": hash_text(corpora.train.source),
            f"train.{s.tgt}": hash_text(corpora.train.target)}
    tests = corpora.tests or {"valid": corpora.valid}
    return [{"text": text, "valid_text": list(map(hash_text, corpora.valid))},
            {name: list(map(hash_text, pairs)) for name, pairs in tests.items()}]


def read_own_texts(plans: dict) -> dict[str, list[dict]]:
    """{flags of all rows: `own_text`} of the tables on own text. Raises UserError."""
    texts = {}
    for rows in plans.values():
        run = rows[0][1][0]
        if run.settings.train and run.scale not in texts:
            texts[run.scale] = own_text(run.settings)
    return texts


def settings_of(words: list[str]) -> train_mt.Settings:
    """Parses a command line of train_mt.py."""
    return parse(train_mt.Settings, words, train_mt.presets)


def fit_flags(flags: str, s) -> list[str]:
    """The flags of a row; places and sizes in braces are those of the model of the settings s."""
    L = s.layers
    d = s.d_model
    H = s.heads
    return flags.format(
        L=L, lower=f"1-{max(1, L // 2)}", upper=f"{min(L, L // 2 + 1)}-{L}", two=f"1-{min(2, L)}",
        top=f"{max(1, L - 1)}-{L}", H_4=max(1, H // 4),
        H_2=max(1, H // 2), H2=min(d, 2 * H), H4=min(d, 4 * H), H8=min(d, 8 * H)).split()


def size_flags(table: Table, size: str, scale: list[str]) -> list[str]:
    """The flags that make a row's size from the scale's: big is twice the width, heads and FFN, as
    in the papers; wide has the heads of base. Raises UserError for --arch big."""
    if size == "base":
        return []
    s = settings_of(scale)
    if s.arch == "big":
        raise UserError("--arch big: this table has rows of twice the size; choose tiny, small or "
                        "base")
    if s.arch == "base" and not s.given & SIZE_FLAGS:
        return [*table.big.split(), *(["--heads", str(s.heads)] if size == "wide" else [])]
    heads = s.heads if size == "wide" else 2 * s.heads
    doubled = {"d_model": 2 * s.d_model, "d_ff": 2 * s.d_ff, "heads": heads}
    return command_line(train_mt.Settings, doubled)


def plan(table: Table, given: dict, seeds) -> list[tuple[Row, list[Run]]]:
    """The rows of a table with their runs, one per seed.

    given: {field: value} of train_mt.py's settings for all rows. Raises UserError for a setting
    that the rows set, and for a row that is not a valid model at this scale.
    """
    for name in given:
        if name in Settings.HIDDEN:
            instead = " (several seeds: --seeds 1 2 3)" if name == "seed" else ""
            raise UserError(f"--{name.replace('_', '-')}: the rows of the table set it: leave it "
                            f"out{instead}")
    scale = command_line(train_mt.Settings, given)
    s = settings_of(scale)
    s.check_text()
    source, _ = known_languages(s)
    language = []
    if bleu_tokenizer([], s.src or source) == "zh":
        language = table.chinese.split()
    scale = language + scale                             # a given flag comes later, and counts
    named = {name: value for name, value in given.items() if name not in MACHINE}
    scale_name = " ".join([*language, *command_line(train_mt.Settings, named)])
    rows = []
    for row in table.rows:
        larger = size_flags(table, row.size, scale)
        size = " ".join([row.size, *larger])
        runs = [plan_run(row, scale + larger, seed, scale_name, size) for seed in seeds]
        rows.append((row, runs))
    return rows


def plan_run(row: Row, words: list[str], seed: int, scale: str, size: str) -> Run:
    """The run of a row with a seed; words: the flags of its scale and size."""
    base = settings_of(words)
    flags = fit_flags(row.flags, base)
    s = settings_of([*words, *flags])
    s.check_model()
    changed = {}                        # a fitted flag may have the default: --reg-weight 1.0
    for name, value in asdict(s).items():
        if name != "name" and value != getattr(base, name):
            changed[name] = value
    words = [*words, *command_line(train_mt.Settings, changed), "--seed", str(seed)]
    return Run(words, settings_of(words), scale, size, " ".join(flags))


class Job(NamedTuple):
    """A process that trains: the command line of train_mt.py, and the folder that it writes to."""
    words: tuple[str, ...]      # without --runs, --name and --device
    path: Path

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def step(self) -> int:
        """The last training step that it has logged; 0 before the first."""
        rows = read_metrics(self.path / "metrics.jsonl")
        return max([0, *(row["step"] for row in rows if "step" in row)])


def make_jobs(folder: Path, plans: dict) -> dict[Job, list[Run]]:
    """The jobs of the tables, each once and seed by seed, with their runs. Rows whose flags mean
    the same share a job. folder: the parent of the run folders; plans: {table: its rows with their
    runs}."""
    jobs = {}
    for rows in plans.values():
        for runs in zip(*(row_runs for _, row_runs in rows)):                # runs of one seed
            for run in runs:
                job = Job(tuple(run.words), folder / run.settings.name)
                jobs.setdefault(job, []).append(run)
    return jobs


# ---- Finished runs: lines of results/runs.jsonl

def stored_lines() -> dict[tuple, dict]:
    """The lines of results/runs.jsonl by the key of their run."""
    path = ROOT / "results" / "runs.jsonl"
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        print_once(f"warning: {path}: its last line is cut off: left out", file=sys.stderr)
    lines = {}
    for line in read_metrics(path):
        lines[line["scale"], line["size"], line["flags"], line["seed"]] = line
    return lines


def store(line: dict) -> None:
    """Adds a line to results/runs.jsonl, which a killed program or a full disk leaves as it was."""
    path = ROOT / "results" / "runs.jsonl"
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_name(".runs.jsonl.lock")):
        content = path.read_bytes() if path.exists() else b""
        if content and not content.endswith(b"\n"):      # a torn line
            content += b"\n"
        atomic_write(path, content + json.dumps(line).encode() + b"\n")


def read_run(path: Path, run: Run, text: list[dict] | None) -> dict | None:
    """The line of a run; None if it is not finished, or not tested on own text as it is now.
    Commit, torch and processor are the current ones. text: of `own_text`. Raises UserError if its
    folder has another run, or one of another text, or a damaged metrics.jsonl."""
    rows = read_metrics(path / "metrics.jsonl")
    tests = [row for row in rows if row.get("type") == "test"]
    if not tests:
        return None
    s = run.settings
    settings = {**asdict(s), "accumulate_times_processes": s.accumulate}
    if text:
        checksums, texts = text
        settings |= checksums
        tests = [row for row in tests if row.get("texts") == texts]
    free = set(train_mt.FREE)
    if "amp" in s.given:                 # a run's name does not say its precision
        free.remove("amp")
    check_settings(path, settings, free, asdict(train_mt.Settings()))
    if not tests:
        return None
    test = tests[-1]
    config = read_config(path)
    valid = [row for row in rows if row.get("type") == "valid"]
    if not valid:
        raise UserError(f"{path}/metrics.jsonl has no validation: delete the folder, and repeat "
                        "the command")
    best = max(valid, key=lambda row: (row["valid_bleu"], -row["valid_loss"]))
    commit = ""
    if shutil.which("git"):
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True,
                                capture_output=True).stdout.strip()
    device = pick_device("cpu" if config["device"] == "cpu" else "auto")
    return {"scale": run.scale, "size": run.size, "flags": run.flags, "seed": s.seed,
            "bleu": test["test_bleu"], "chrf": test["test_chrf"], "sets": test["sets"],
            "signature": test["signature"], "scores": test["disagreement"]["enc"],
            "parameters": test["parameters"], "tokens": test["tokens"],
            "tokens_per_second": test["tokens_per_second"],
            "sentences_per_second": test["sentences_per_second"], "best_step": best["step"],
            "valid_bleu": best["valid_bleu"], "valid_loss": best["valid_loss"],
            "precision": "bfloat16" if config["amp"] else "float32",
            "commit": commit, "torch": torch.__version__, "processor": processor(device),
            **({"text": text} if text else {})}


# ---- List, train, show

def list_jobs(jobs: dict, missing: list[Job]) -> None:
    """Prints the state and the command of every job."""
    for job in jobs:
        state = f"step {job.step:,}" if job in missing else "finished"
        command = shell_line("python", "train_mt.py", *job.words, "--runs", job.path.parent)
        print(f"{state:>12}  {job.path.name}\n{'':>12}  {command}")
    print(f"{len(missing)} of {len(jobs)} runs would start")


def train_jobs(jobs: list[Job], at_once: int, device: torch.device, end) -> list[str]:
    """Runs the jobs, `at_once` at a time, and calls end(job) after each that succeeds. A job that
    fails does not stop the others. Returns the names of the failed jobs. A signal is passed on to
    the jobs, which save; then SystemExit is raised."""
    env = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // at_once)), **os.environ}
    devices = [str(device)] * at_once
    if str(device) == "cuda":           # all GPUs in turn
        devices = [f"cuda:{i % torch.cuda.device_count()}" for i in range(at_once)]
    waiting = [*jobs]
    running = {}                        # process -> (its job, its device)
    failed = []
    stop = defer_signals()
    try:
        with tqdm(total=len(jobs), unit="run", dynamic_ncols=True, disable=None) as bar:
            while (waiting or running) and not stop:
                while waiting and devices:
                    job, name = waiting.pop(0), devices.pop()
                    running[start(job, name, env)] = job, name
                steps = [f"{job.path.name} step {job.step:,}" for job, _ in running.values()]
                bar.set_postfix_str(", ".join(steps))
                time.sleep(0.5)
                for process in [process for process in running if process.poll() is not None]:
                    job, name = running.pop(process)
                    devices.append(name)
                    bar.update()
                    if process.returncode == 0:
                        say(f"{job.path.name}: finished")
                        end(job)
                    else:
                        failed.append(job.path.name)
                        log = job.log.read_text("utf-8", "replace")
                        last = log.strip().rpartition("\n")[2]
                        say(f"{job.path.name}: exit status {process.returncode}: {last} (see "
                            f"{job.log})")
    finally:
        for process in running:
            if not stop:
                process.terminate()
            elif hasattr(os, "setsid"):                  # in Windows Ctrl-C has reached it, too
                process.send_signal(stop[0])
        for process in running:
            process.wait()
    if stop:
        say("stopped; the same command resumes")
        raise SystemExit(128 + stop[0])
    return failed


def start(job: Job, device: str, env: dict) -> subprocess.Popen:
    """Starts a job in a session of its own, so that Ctrl-C does not reach it twice. In Linux the
    job gets SIGTERM if this program is killed."""
    words = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    words += [sys.executable, str(ROOT / "train_mt.py"), *job.words, "--runs", str(job.path.parent),
             "--name", job.path.name, "--device", device]
    say(f"{job.path.name}: started, output in {job.log}")
    with open(job.log, "ab") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True, env=env)


def show_table(name: str, rows, lines: dict[tuple, dict]) -> None:
    """Prints a table: what is finished, and below it what the paper prints. lines: by key."""
    table = TABLES[name]
    if table.kind == "probe":           # a row per task
        text = align([*zip(table.columns, *(row.published for row in table.rows))],
                     ["published", *(row.flags for row in table.rows)])
    else:
        runs = []                       # the lines of every row
        for _, row_runs in rows:
            runs.append([lines[run.key] for run in row_runs if run.key in lines])
        text = runs_text(table, runs)
    if not text:
        print(f"\n{name}: nothing is finished")
        return
    published_on = f"; published on {table.data}" if table.data else ""
    heading = fill(f"{table.source} ({name}): {table.title}{published_on}.")
    print(f"\n{heading}\n\n{text}")
    printed = " ".join(cell for row in table.rows for cell in row.published)
    for i, note in enumerate(table.notes, 1):            # with a number if a cell refers to it
        print(fill(f"[{i}] {note}." if f"[{i}]" in printed else f"{note}."))


# ---- Tables as text

def fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def align(rows: list, header: list[str]) -> str:
    """Rows as text, with the first column on the left."""
    sides = ["left", *["right"] * (len(header) - 1)]
    return tabulate(rows, header, "plain", colalign=sides, disable_numparse=True)


def baseline_of(table: Table, row: Row) -> int:
    """The index of the row that a row is compared with: that of its size without flags."""
    return [(other.size, other.flags) for other in table.rows].index((row.size, ""))


def runs_text(table: Table, runs: list[list[dict]]) -> str:
    """The finished runs, their setting, and the published numbers; "" without a run. runs: the
    lines of every row."""
    finished = sum(runs, [])
    if not finished:
        return ""
    rows = []
    for row, lines in zip(table.rows, runs):
        base = runs[baseline_of(table, row)]
        rows.append([row.label, *measured_cells(lines, [] if base is lines else base)])
    header = ["", "seeds", "BLEU", "Δ", "parameters", "tokens/s", "sentences/s"]
    machines = "; ".join(dict.fromkeys(f"{line['processor']}, torch {line['torch']}"
                                       for line in finished))
    scale = finished[0]["scale"] or "embedded corpus, size tiny"
    text = f"{align(rows, header)}\n\n{fill(f'{scale}; {machines}')}\n"
    if table.columns:
        rows = []
        for row in table.rows:
            base = table.rows[baseline_of(table, row)]
            rows.append([row.label, *published_cells(table, row, base)])
        text += f"\n{align(rows, ['published', *table.columns])}\n"
    return f"{text}\n{LEGEND}"


def measured_cells(lines: list[dict], base: list[dict]) -> list[str]:
    """The cells of a row; base: the runs of its baseline, empty for that row itself."""
    if not lines:
        return [NONE] * 6
    bleu = [line["bleu"] for line in lines]
    score = f"{fmean(bleu):.2f}"
    if len(lines) > 1:
        score += f" ± {stdev(bleu):.2f}"
    gain = ""
    parameters = f"{lines[0]['parameters']:,}"
    if base:
        gain = f"{fmean(bleu) - fmean(line['bleu'] for line in base):+.2f}"
        parameters = f"{lines[0]['parameters'] - base[0]['parameters']:+,}"
    return [str(len(lines)), score, gain, parameters,
            speed_cell(lines, base, "tokens_per_second", 0),
            speed_cell(lines, base, "sentences_per_second", 1)]


def speed_cell(lines: list[dict], base: list[dict], key: str, digits: int) -> str:
    """The mean speed over the seeds, and its ratio to the baseline's in parentheses; a dash if the
    speed of a run is unknown."""
    speeds = [line.get(key) for line in lines]           # the oldest lines lack it
    base_speeds = [line.get(key) for line in base]
    if None in speeds + base_speeds:
        return NONE
    text = f"{fmean(speeds):,.{digits}f}"
    if base:
        text += f" ({fmean(speeds) / fmean(base_speeds):.2f})"
    return text


def published_cells(table: Table, row: Row, base: Row) -> list[str]:
    """The published cells of a row. A speed has its ratio to the baseline's in parentheses, and
    BLEU its gain, if the paper does not print gains."""
    cells = []
    for column, cell, base_cell in zip(table.columns, row.published, base.published):
        number = printed_number(cell)
        base_number = printed_number(base_cell)
        if base is not row and None not in (number, base_number):
            if column.endswith("/s"):
                cell += f" ({number / base_number:.2f})"
            elif "BLEU" in column and "Δ" not in table.columns:
                cell += f" ({number - base_number:+.2f})"
        cells.append(cell)
    return cells


def printed_number(text: str) -> float | None:
    """The number in a published cell, without marks of significance and footnotes; None if the cell
    is not a plain number."""
    match = re.fullmatch(r"(\d+\.?\d*)[↑⇑*]?(?: \[\d+\])?", text)
    return float(match[1]) if match else None


# ---- The command

def reproduce(settings: Settings) -> None:
    """Trains the missing runs of the tables, prints the tables, and stores them with --store."""
    if not settings.tables:
        rows = [[name, table.source, f"{len(table.rows)} rows", table.title]
                for name, table in TABLES.items()]
        print(tabulate(rows, tablefmt="plain"))
        return
    for name in settings.tables:
        if name not in TABLES:
            raise UserError(f"no table {name}: choose from {' '.join(TABLES)}")
    # the settings of train_mt.py that are given for all rows
    here = Settings.__annotations__.keys() | {"runs", "device"}
    given = {name: getattr(settings, name) for name in settings.given - here}
    plans = {}
    for name in settings.tables:
        if TABLES[name].kind != "probe":
            plans[name] = plan(TABLES[name], given, settings.seeds)
        elif given:
            raise UserError(f"{name} is a table of probe.py: leave out the flags of train_mt.py")
    texts = read_own_texts(plans)
    jobs = make_jobs(Path(settings.runs), plans)
    lines = stored_lines() if settings.store else {}
    for run in sum(jobs.values(), []):                   # a stored run of another text
        text = texts.get(run.scale)
        if lines.get(run.key, {}).get("text", text) != text:
            del lines[run.key]

    def read_finished(job: Job) -> None:
        """Reads the lines of a run of train_mt.py if it is finished; with --store, stores them."""
        for run in jobs[job]:
            line = None
            if run.key not in lines:
                line = read_run(job.path, run, texts.get(run.scale))
            if line:
                lines[run.key] = line
                if settings.store and not settings.dry_run:
                    store(line)

    missing = []
    for job, runs in jobs.items():
        read_finished(job)
        if any(run.key not in lines for run in runs):
            missing.append(job)
    failed = []
    if settings.dry_run:
        list_jobs(jobs, missing)
    else:
        with as_user_error("write", f"--runs {settings.runs}"):
            Path(settings.runs).mkdir(parents=True, exist_ok=True)
        for rows in plans.values():     # here, so that errors and downloads occur only once
            run = rows[0][1][0]
            if run.scale not in texts:
                load_corpora(run.settings)
        device = pick_device(settings.device)
        gpus = torch.cuda.device_count() if device == torch.device("cuda") else 1
        failed = train_jobs(missing, settings.jobs or gpus, device, read_finished)
    for name in settings.tables:
        show_table(name, plans.get(name), lines)
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} runs failed ({', '.join(failed)}): see "
                        "their logs; the same command trains them again")
    changed = 0
    for runs in jobs.values():
        changed += any(run.key not in lines for run in runs)
    if changed and not settings.dry_run:
        raise UserError(f"{changed} of {len(jobs)} runs were tested on text that changed "
                        "meanwhile: the same command tests them again")


def main(argv=None) -> int:
    return run_command(reproduce, Settings, argv, train_mt.presets)


if __name__ == "__main__":
    sys.exit(main())
