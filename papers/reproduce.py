"""Trains the models of the papers' tables and prints the results beside the published numbers.

    python -m papers.reproduce                             # lists the tables
    python -m papers.reproduce li2018-1 duan-3 --data multi30k --seeds 1 2 3
    python -m papers.reproduce li2019-2 --arch base --dry-run

The tables are data (papers/tables.py). All other flags go to train_mt.py, for all rows: the default
is size tiny on the embedded corpus, where a row takes minutes per seed. A row and seed is
a run of train_mt.py in the folder that train_mt.py gives it, so tables share runs, and the same
command resumes.
"""
import itertools
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import torch
from tabulate import tabulate

import train_mt
from nmt.command_line import UserError, count, flag, natural, parse, run
from nmt.flags import MODEL
from nmt.run_folder import read_log
from papers.tables import TABLES, Row

TRAIN = Path(__file__).resolve().parents[1] / "train_mt.py"


@dataclass
class Settings:
    """Tables."""
    tables: tuple[str, ...] = flag((), "which tables (default: lists them)", metavar="TABLE",
                                   positional=True, nargs="*")
    seeds: tuple[int, ...] = flag((1,), "train every row once per seed (default: 1)",
                                  type=natural, metavar="SEED")
    jobs: int = flag(max(1, torch.cuda.device_count()), "number of runs at a time", type=count)
    dry_run: bool = flag(False, "train nothing: print the commands, and the tables so far")


# ---- From a row to a run of train_mt.py

def settings_of(words: list[str]) -> tuple:
    """The text, the model and the training of a command line of train_mt.py."""
    return parse(train_mt.__doc__, *train_mt.FLAGS, argv=words, help=MODEL,
                 defaults=train_mt.defaults)


def fit_flags(row: Row, words: list[str]) -> list[str]:
    """The flags of a row; sizes and places in braces are those of `words`, the flags of all
    rows."""
    _, config, s = settings_of(words)
    L = config.layers
    d = config.d_model
    H = config.heads
    big = f"--d-model {2 * d} --d-ff {2 * config.d_ff} --heads {2 * H}"
    if s.arch == "base" and not {"--d-model", "--d-ff", "--heads"} & {*words}:
        big = "--arch big"                               # with its recipe
    flags = f"{row.size} {row.flags}".format(
        L=L, lower=f"1-{max(1, L // 2)}", upper=f"{min(L, L // 2 + 1)}-{L}", two=f"1-{min(2, L)}",
        top=f"{max(1, L - 1)}-{L}", H=H, H_4=max(1, H // 4), H_2=max(1, H // 2), H2=min(d, 2 * H),
        H4=min(d, 4 * H), H8=min(d, 8 * H), dropout=config.dropout, big=big)
    return flags.split()


def plan(tables, words: list[str], seeds) -> tuple[dict, dict]:
    """The runs of tables, seed by seed; words: the flags of all rows. Returns {folder: flags of
    train_mt.py}, and {(table, row): its folders}. Raises UserError if two different runs have the
    same folder."""
    commands = {}
    folders = {}
    for seed in seeds:
        for name in tables:
            for row in TABLES[name].rows:
                command = [*words, *fit_flags(row, words), "--seed", str(seed)]
                _, _, s = settings_of(command)
                folder = Path(s.runs) / s.name
                if commands.setdefault(folder, command) != command:
                    raise UserError(f"{folder}: would have several rows: leave out --name")
                folders.setdefault((name, row), []).append(folder)
    return commands, folders


# ---- Runs

def read_test(folder: Path) -> dict | None:
    """The scores of a finished run; None for another one."""
    rows = read_log(folder)
    return rows[-1] if rows and rows[-1]["type"] == "test" else None


def train_all(commands: dict[Path, list[str]], jobs: int) -> dict[Path, int]:
    """Runs train_mt.py with each list of flags, `jobs` at a time, with the GPUs in turn. A run that
    fails does not stop the others. Returns the exit status of every run. Ctrl-C at a terminal
    reaches the trainings, too, which save and end."""
    threads = max(1, torch.get_num_threads() // jobs)
    env = {"OMP_NUM_THREADS": str(threads), **os.environ}
    gpus = torch.cuda.device_count()

    def train(number: int, folder: Path) -> int:
        """The exit status of a run."""
        device = ["--device", f"cuda:{number % gpus}"] if gpus > 1 else []
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"{folder}: run {number} of {len(commands)}, output in {folder}.log")
        with open(f"{folder}.log", "ab") as log:
            run = subprocess.run([sys.executable, TRAIN, *device, *commands[folder]],
                                 stdout=log, stderr=subprocess.STDOUT, env=env)
        print(f"{folder}: exit status {run.returncode}")
        return run.returncode

    pool = ThreadPoolExecutor(jobs)
    try:
        return dict(zip(commands, pool.map(train, itertools.count(1), commands)))
    finally:
        pool.shutdown(cancel_futures=True)


# ---- Tables

def measured_cells(tests: list[dict], base: list[dict]) -> list[str]:
    """The cells of a row from the tests of its finished seeds; base: those of its baseline."""
    if not tests:
        return [""] * 5
    bleu = [test["bleu"] for test in tests]
    spread = f" ± {stdev(bleu):.2f}" if len(bleu) > 1 else ""
    gain = ""
    if base and base is not tests:
        gain = f"{fmean(bleu) - fmean(test['bleu'] for test in base):+z.2f}"
    speed = fmean(test["tokens_per_second"] for test in tests)
    return [str(len(tests)), f"{fmean(bleu):.2f}{spread}", gain, f"{tests[0]['parameters']:,}",
            f"{speed:,.0f}"]


def format_table(name: str, tests: dict[tuple, list[dict]]) -> str:
    """A table: what is finished, and beside it what the paper prints. tests: those of the finished
    seeds by (table, row)."""
    table = TABLES[name]
    header = ["", *table.columns]
    if not table.probed:
        header[1:1] = ["seeds", "BLEU", "gain", "parameters", "tokens/s", "|"]
    lines = []
    for row in table.rows:
        cells = [row.label, *row.published]
        if not table.probed:
            base = next(x for x in table.rows if x.size == row.size and not x.flags)
            cells[1:1] = [*measured_cells(tests[name, row], tests[name, base]), "|"]
        lines.append(cells)
    published = f". Published on {table.data}" if table.columns else ""
    notes = [f"[{i}] {note}." for i, note in enumerate(table.notes, 1)]
    return "\n".join([f"{table.source} ({name}): {table.title}{published}.\n",
                      tabulate(lines, header, "plain", disable_numparse=True), *notes])


# ---- The command

def reproduce(settings: Settings, words: list[str]) -> None:
    """Trains the missing runs of the tables and prints the tables. Exits with the status of a run
    that failed. words: the flags of train_mt.py."""
    if not settings.tables:
        rows = [[name, table.source, table.title] for name, table in TABLES.items()]
        print(tabulate(rows, tablefmt="plain"))
        return
    for name in settings.tables:
        if name not in TABLES:
            raise UserError(f"no table {name}: choose from {' '.join(TABLES)}")
    trained = [name for name in settings.tables if not TABLES[name].probed]
    commands, folders = plan(trained, words, settings.seeds)
    statuses = {}
    if settings.dry_run:
        for command in commands.values():
            print(shlex.join(["python", "train_mt.py", *command]))
    else:
        # own text may have changed: train_mt.py reads it, and does not train a finished run again
        todo = {folder: command for folder, command in commands.items()
                if "--train" in words or not read_test(folder)}
        statuses = train_all(todo, settings.jobs)
    tests = {folder: read_test(folder) for folder in commands if not statuses.get(folder)}
    finished = {}
    for key, row_folders in folders.items():
        finished[key] = [tests[folder] for folder in row_folders if tests.get(folder)]
    for name in settings.tables:
        print(f"\n{format_table(name, finished)}")
    missing = [str(folder) for folder in commands if not tests.get(folder)]
    if missing:
        print(f"\n{len(missing)} of {len(commands)} runs are missing: {', '.join(missing)}")
    failed = [status for status in statuses.values() if status]
    if failed:
        sys.exit(failed[0])


def main(argv=None) -> None:
    run(reproduce, Settings, argv=argv, others=True)


if __name__ == "__main__":
    main()
