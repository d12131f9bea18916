"""Trains the models of the papers' tables and prints the results beside the published numbers.

    python -m papers.reproduce                             # lists the tables
    python -m papers.reproduce li2018-1 duan-3 --data multi30k --seeds 1 2 3
    python -m papers.reproduce claims --data multi30k --arch small --dry-run

The tables are data (papers/tables.py). The flags of train_mt.py set the scale of all rows. The
default is size tiny on the embedded corpus, where a row takes minutes per seed. Each row and seed
is a run of train_mt.py, in the folder that train_mt.py gives it, so tables share runs, and the same
command resumes. Checkpoints are averaged only with --average: Li 2021 does not average, and the
other papers do not say.
"""
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import train_mt
from nmt.corpus import load_corpora
from papers import plan, render, results
from papers.jobs import Job, run_jobs
from papers.tables import TABLES
from tools.command_line import flag
from tools.command_line import run as run_command
from tools.files import UserError, read_json
from tools.machine import pick_device
from toy.__main__ import write_text

GROUP = "tables"


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

    HIDDEN = (*plan.MECHANISMS, "seed", "name")          # not in --help: the rows set them


# ---- Runs

def plan_jobs(settings: Settings, plans: dict) -> dict[Job, dict[tuple, plan.PlannedRun]]:
    """The jobs of the tables, each once and seed by seed, as {job: {key: run of train_mt.py}}. Rows
    whose flags mean the same share a job; a job of probe.py has no such run. plans: {table: its
    rows with their runs}."""
    folder = Path(settings.runs)
    jobs = {}
    for name in settings.tables:
        table = TABLES[name]
        if table.kind == "probe":
            words = ["--models", *(row.flags for row in table.rows),
                     "--seeds", *map(str, settings.seeds)]
            jobs[Job("probe.py", tuple(words), folder / name)] = {}
            continue
        runs = [run for _, row_runs in plans[name] for run in row_runs]
        for run in sorted(runs, key=lambda run: settings.seeds.index(run.settings.seed)):
            job = Job("train_mt.py", tuple(run.words), folder / run.settings.name)
            jobs.setdefault(job, {})[run.key] = run
    return jobs


def list_jobs(jobs: dict, missing: list[Job], runs: str) -> None:
    """Prints the state and the command of every job."""
    for job in jobs:
        state = f"step {job.step:,}" if job in missing else "finished"
        if job.script == "probe.py":                     # which keeps what is finished
            state = "started" if (job.path / "results.json").exists() else "not started"
        name = [] if job.script == "train_mt.py" else ["--name", job.path.name]
        command = shlex.join(["python", job.script, *job.words, *name, "--runs", runs])
        print(f"{state:>12}  {job.path.name}\n{'':>12}  {command}")
    print(f"{len(missing)} of {len(jobs)} runs would start")


# ---- Output

def show(name: str, rows, settings: Settings, finished: dict) -> None:
    """Prints a table; finished: {key of a run: its line}."""
    table = TABLES[name]
    print()
    if table.kind == "probe":
        path = Path(settings.runs) / name / "results.json"
        if not path.exists():
            print(f"{name}: nothing is finished")
            return
        stored = read_json(path, "delete it, and it is made again")
        print(render.table_text(name, render.probing_rows(table, stored)))
        print("\nMeasured: the small setting of probe.py")
        return
    lines = []
    for _, runs in rows:
        lines.append([finished[run.key] for run in runs if run.key in finished])
    if not any(lines):
        print(f"{name}: nothing is finished")
        return
    print(render.table_text(name, render.table_rows(table, lines)))
    every = [line for row_runs in lines for line in row_runs]
    machines = dict.fromkeys(f"{line['processor']}, torch {line['torch']}" for line in every)
    print(f"\n{every[0]['scale'] or 'embedded corpus, size tiny'}; {'; '.join(machines)}")


# ---- The command

def reproduce(settings: Settings) -> None:
    """Trains the missing runs of the tables, prints the tables, and stores them with --store."""
    if not settings.tables:
        for name, table in TABLES.items():
            print(f"{name:<14}  {table.source:<16}  {len(table.rows):2} rows  {table.title}; "
                  f"{table.data or 'no published numbers'}")
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
            plans[name] = plan.plan(TABLES[name], given, settings.seeds, settings.runs)
        elif given:
            raise UserError(f"{name} is a table of probe.py: leave out the flags of train_mt.py")
    jobs = plan_jobs(settings, plans)
    lines = results.stored_lines() if settings.store else []
    finished = {results.key_of(line): line for line in lines}

    def read_finished(job: Job) -> None:
        """Reads the lines of a run of train_mt.py if it is finished; with --store, stores them."""
        for key, run in jobs[job].items():
            line = None if key in finished else results.read_run(job.path, run)
            if line:
                finished[key] = line
                if settings.store and not settings.dry_run:
                    results.store(line)

    for job in jobs:
        read_finished(job)
    missing = [job for job, runs in jobs.items() if not runs or runs.keys() - finished.keys()]
    failed = []
    needs_small_text = any("{toy4000}" in TABLES[name].scale for name in settings.tables)
    small_text = Path(settings.runs) / plan.SMALL_TEXT
    if settings.dry_run:
        if needs_small_text:
            print(f"first: python -m toy {shlex.quote(str(small_text))} --pairs 4000")
        list_jobs(jobs, missing, settings.runs)
    else:
        if needs_small_text:
            write_text(small_text, pairs=4_000)
        for rows in plans.values():     # here, so that errors and downloads occur only once
            load_corpora(rows[0][1][0].settings)
        device = pick_device(settings.device)
        gpus = torch.cuda.device_count() if device == torch.device("cuda") else 1
        at_once = settings.jobs or gpus
        failed = run_jobs(missing, Path(settings.runs), at_once, device, read_finished)
    for name in settings.tables:
        show(name, plans.get(name), settings, finished)
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} runs failed ({', '.join(failed)}): see "
                        "their logs; the same command trains them again")


def main(argv=None) -> int:
    return run_command(reproduce, Settings, argv, train_mt.presets)


if __name__ == "__main__":
    sys.exit(main())
