"""Trains the models of the papers' tables and prints the results beside the published numbers.

    python reproduce.py --list
    python reproduce.py li2018-1 duan-3 --data multi30k --seeds 1 2 3
    python reproduce.py all --data multi30k --arch small --dry-run

The tables are data (papers/tables.py). The flags of train_mt.py set the scale of all rows; without
them it is size tiny on the embedded corpus, where a row takes minutes per seed. Each row and seed
is a run of train_mt.py, in the folder that train_mt.py gives it: tables share runs, and the same
command resumes. Checkpoint averaging is off without --average, as in Li 2021 (the others do not
say).
"""
import datetime
import json
import math
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import train_mt
from nmt.corpus import load_corpora, name_text
from nmt.flags import UserError, command_line, flag
from nmt.flags import run as run_command
from nmt.machine import pick_device
from nmt.run_folder import read_config, read_metrics
from papers import documents, plan, render, verdicts
from papers.jobs import Job, processor, run_jobs
from papers.tables import TABLES

ROOT = Path(__file__).resolve().parent
GROUP = "tables"
SCRIPTS = ("logic", "probe")            # kinds of tables that other scripts measure


@dataclass
class Settings(train_mt.Settings):
    """The tables, and the settings of train_mt.py for all rows."""
    tables: tuple[str, ...] = flag((), "which tables, see --list", GROUP, metavar="TABLE",
                                   positional=True)
    list: bool = flag(False, "list the tables and stop", GROUP)
    dry_run: bool = flag(False, "list the runs and their commands and stop", GROUP)
    seeds: tuple[int, ...] = flag((1,), "train every row once per seed (1)", GROUP, 0, 2 ** 31,
                                  metavar="SEED")
    rows: tuple[str, ...] = flag((), "train only the rows with these labels", GROUP, metavar="ROW")
    jobs: int = flag(0, "runs at once (one per GPU, else 1)", GROUP, 0, 1024)
    finished: bool = flag(False, "train nothing: show, and --store, finished runs", GROUP)
    store: bool = flag(False, "write the table to results/TABLE.DATA-SIZE-STEPS.json; other seeds "
                       "and rows that are there stay", GROUP)
    write_results: bool = flag(False, "renew the tables of RESULTS.md and docs/ from results/ and "
                               "stop", GROUP)

    HIDDEN = (*plan.MECHANISMS, "seed", "name")          # not in --help: the rows set them


def given_for_all(settings: Settings) -> dict:
    """{field: value} of the settings of train_mt.py that are given for all rows."""
    own = Settings.__annotations__.keys() | {"runs", "device"}
    return {name: getattr(settings, name) for name in settings.given - own}


def check_tables(settings: Settings) -> None:
    """Raises UserError for a table or a row that does not exist."""
    if not settings.tables:
        raise UserError("which table? Name one or several; --list lists them")
    labels = []
    for name in settings.tables:
        if name not in TABLES:
            raise UserError(f"no table {name}: choose from {', '.join(TABLES)}")
        if TABLES[name].kind not in SCRIPTS:
            rows = [row for row in TABLES[name].rows if row.flags is not None]
            labels += [normalize_label(row.label) for row in rows]
    for label in settings.rows:
        if normalize_label(label) not in labels:
            raise UserError(f"--rows: no row {label!r} to train, only: {'; '.join(labels)}")


def normalize_label(label: str) -> str:
    """A row's label with one space between its words, as people type it."""
    return " ".join(label.split())


# ---- Runs

def plan_jobs(settings: Settings, plans: dict) -> list[Job]:
    """The jobs of the tables, each once; plans: {table: its rows with their runs}."""
    folder = Path(settings.runs)
    chosen = [normalize_label(label) for label in settings.rows]
    jobs = {}
    for name in settings.tables:
        table = TABLES[name]
        if table.kind in SCRIPTS:
            flags = ["--models", *(row.flags for row in table.rows),
                     "--seeds", *map(str, settings.seeds)]
            jobs[name] = Job(f"{table.kind}.py", flags, folder / name)
            continue
        for row, runs in plans[name]:
            if not chosen or normalize_label(row.label) in chosen:
                for run in runs:
                    jobs[run.name] = Job("train_mt.py", run.words, folder / run.name)
    return list(jobs.values())


def read_test(path: Path) -> dict | None:
    """The test row of a run's metrics; None where the run is not finished."""
    rows = [row for row in read_metrics(path / "metrics.jsonl") if row["type"] == "test"]
    return rows[-1] if rows else None


def check_run(path: Path, settings: train_mt.Settings) -> None:
    """Raises UserError if a finished run has other settings than these: the defaults have changed,
    or it was trained under this name by hand."""
    config = read_config(path)
    for name, value in json.loads(json.dumps(asdict(settings))).items():
        if name not in train_mt.FREE and config.get(name) != value:
            raise UserError(f"{path}: holds another run ({name} is {config.get(name)!r} there and "
                            f"{value!r} here): choose other --runs")


def list_jobs(jobs: list[Job], runs: str) -> None:
    """Prints the state and the command of every job."""
    missing = 0
    for job in jobs:
        state = f"step {job.step:,}"
        if job.script == "train_mt.py" and read_test(job.path):
            state = "finished"
        else:
            missing += 1
        name = [] if job.script == "train_mt.py" else ["--name", job.path.name]
        command = shlex.join(["python", job.script, *job.words, *name, "--runs", runs])
        print(f"{state:>12}  {job.path.name}\n{'':>12}  {command}")
    print(f"{missing} of {len(jobs)} runs are missing")


# ---- Measuring

def read_run(path: Path, run: plan.Run) -> dict:
    """The numbers of a finished run. Raises UserError for another run under its name."""
    check_run(path, run.settings)
    test = read_test(path)
    valid = [row for row in read_metrics(path / "metrics.jsonl") if row["type"] == "valid"]
    best = max(valid, key=lambda row: row["valid_bleu"])
    position = best["valid_disagreement"]["enc"]["position"]
    return {"seed": run.settings.seed, "bleu": test["test_bleu"],
            "parameters": test["parameters"], "tokens_per_second": test["tokens_per_second"],
            "sentences_per_second": test["sentences_per_second"],
            "scores": test["disagreement"]["enc"], "layers": [math.exp(D) for D in position]}


def measure(name: str, rows, settings: Settings) -> dict | None:
    """The contents of a file of results/, see papers/render.py; None where nothing is finished."""
    folder = Path(settings.runs)
    finished = []
    for _, runs in rows:
        finished.append({run.settings.seed: run for run in runs if read_test(folder / run.name)})
    if not any(finished):
        return None
    measured = []
    for (row, runs), of_row in zip(rows, finished):
        results = [read_run(folder / run.name, run) for run in of_row.values()]
        measured.append({"label": row.label, "size": row.size,
                         "flags": runs[0].flags if runs else None, "runs": results})
    run = next(run for of_row in finished for run in of_row.values())
    test = read_test(folder / run.name)
    s = run.settings
    sets = " + ".join(test["sets"])
    return {"kind": "table", "table": name, "command": command_text(name, settings),
            "seeds": list(settings.seeds), "data": name_text(s), "arch": s.arch, "steps": s.steps,
            "batch": s.max_tokens * s.accumulate, "average": test["average"],
            "signature": test["signature"], "set": f"{sets} set{'s' * ('+' in sets)}",
            "date": datetime.date.fromtimestamp(test["time"]).isoformat(),
            "machine": processor(pick_device(settings.device)), "torch": torch.__version__,
            "rows": measured}


def command_text(name: str, settings: Settings) -> str:
    """The command that measures only this table, with DIR in place of folders."""
    given = given_for_all(settings)
    for key in ("train", "valid"):
        if key in given:
            given[key] = f"DIR/{Path(given[key]).name}"
    if "test" in given:
        given["test"] = [f"DIR/{Path(prefix).name}" for prefix in given["test"]]
    given.pop("data_dir", None)
    flags = command_line(Settings, {**given, "seeds": settings.seeds})
    return shlex.join(["python", "reproduce.py", name, *flags])


# ---- Output

def show(name: str, rows, settings: Settings) -> None:
    """Prints a table or draws a figure; stores it with --store."""
    table = TABLES[name]
    folder = Path(settings.runs)
    print()
    if table.kind == "figure":
        draw(name, rows, settings)
        return
    path = ROOT / "results" / f"{name}.json"
    if table.kind in SCRIPTS:
        stored = None
        if (folder / name / "results.json").exists():
            stored = {**documents.read_result(folder / name / "results.json"), "published": name}
    else:
        stored = measure(name, rows, settings)
        if stored:
            label = f"{name}.{stored['data']}-{stored['arch']}-{stored['steps']}"
            path = path.with_name(f"{label}.json")
    if stored is None:
        print(f"{name}: nothing is finished")
        return
    if settings.store and table.kind not in SCRIPTS and path.exists():
        stored = documents.join_results(stored, documents.read_result(path))
    if table.kind == "logic":
        import logic
        print(logic.table(stored))
    else:
        print(render.to_screen(stored))
    if settings.store:
        documents.write_result(path, stored)
        print(f"\nstored: {path.relative_to(ROOT)}")


def draw(name: str, rows, settings: Settings) -> None:
    """Draws a figure from the finished runs of the first seed, in a folder named after it."""
    import analyze  # loads matplotlib
    table = TABLES[name]
    print(f"{table.source} ({name}): {table.title}; published on {table.data}", *table.notes,
          sep="\n", flush=True)
    folder = Path(settings.runs)
    finished = [folder / runs[0].name for _, runs in rows if read_test(folder / runs[0].name)]
    if finished:
        analyze.analyze(analyze.Settings(tuple(map(str, finished)), only=(table.part,),
                                         out=str(folder / name), device=settings.device))


def list_tables() -> None:
    """Prints the names of the tables and their contents."""
    for name, table in TABLES.items():
        rows = sum(row.flags is not None for row in table.rows)
        data = f"; {table.data}" if table.data else ""
        print(f"{name:<11}  {table.source:<16}  {rows:2} rows  {table.title}{data}")


def write_results() -> None:
    """Renews the tables of the documents from results/, and the forest plot."""
    lines = read_metrics(ROOT / "results" / "planned.jsonl")
    if verdicts.analyze(lines):
        verdicts.draw(lines, ROOT / "docs" / "verdicts.png")
    for path in (ROOT / "RESULTS.md", *sorted((ROOT / "docs").glob("*.md"))):
        count = documents.renew_file(path, ROOT)
        if count:
            print(f"{path.relative_to(ROOT)}: {count} tables renewed")


# ---- The command

def reproduce(settings: Settings) -> None:
    """Trains the missing runs of the tables, prints the tables, and stores them with --store."""
    if settings.write_results:
        write_results()
        return
    if settings.list:
        list_tables()
        return
    check_tables(settings)
    settings.seeds = tuple(dict.fromkeys(settings.seeds))
    given = given_for_all(settings)
    plans = {}
    for name in settings.tables:
        if TABLES[name].kind not in SCRIPTS:
            plans[name] = plan.plan(TABLES[name], given, settings.seeds)
    jobs = plan_jobs(settings, plans)
    if settings.dry_run:
        list_jobs(jobs, settings.runs)
        return

    # train
    missing = [job for job in jobs if job.script != "train_mt.py" or not read_test(job.path)]
    failed = []
    if missing and not settings.finished:
        if plans:                        # reports a mistake in the text, and downloads, once
            load_corpora(plan.settings_of(command_line(train_mt.Settings, given)))
        device = pick_device(settings.device)
        gpus = torch.cuda.device_count() if device == torch.device("cuda") else 1
        failed = run_jobs(missing, Path(settings.runs), settings.jobs or gpus, device)

    # show
    for name in dict.fromkeys(settings.tables):
        show(name, plans.get(name), settings)
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} runs failed ({', '.join(failed)}): see "
                        "their logs; the same command trains them again")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run_command(reproduce, Settings, argv, train_mt.presets)


if __name__ == "__main__":
    sys.exit(main())
