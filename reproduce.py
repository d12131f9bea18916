"""The papers' tables, one command each: trains what is missing, then prints what is measured beside
what is published.

    python reproduce.py --list
    python reproduce.py li2018-1 duan-3 --data multi30k --seeds 1 2 3
    python reproduce.py all --data multi30k --arch small --dry-run

The tables are data (papers/tables.py); all other flags are train_mt.py's and set the scale, alike
for every row. Each row and seed is a run of train_mt.py in a process of its own, in a folder named
after its scale and its mechanisms, so that tables share what they have in common and an interrupted
table resumes. Checkpoint averaging is off without --average, as in Li 2021 (the others do not say).
"""
import datetime
import json
import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import train_mt
from nmt.corpus import load_corpora, text_name
from nmt.evaluate import bleu, bootstrap, corpus_bleu
from nmt.files import atomic_write
from nmt.flags import UserError, command_line, flag, run
from nmt.machine import pick_device, processor
from nmt.run_folder import load_run, read_metrics
from papers import documents, render
from papers.jobs import complete, machine_of, tested, train
from papers.plan import FOR_ALL, Job, completed, plan, rows_own
from papers.tables import TABLES

ROOT = Path(__file__).resolve().parent
GROUP = "tables"
DESCRIPTION = ("Reproduces tables of the five papers at the scale that the flags of train_mt.py "
               "set: size tiny on the embedded corpus without any, where a row takes minutes per "
               "seed. Begin with --list, then --dry-run: it says what would be trained. The rows "
               "set the mechanisms, --seed and --name themselves.")


@dataclass
class Settings(train_mt.Settings):
    """The tables, and train_mt.py's settings, which say at what scale."""
    tables: tuple[str, ...] = flag((), "which tables, see --list", GROUP, metavar="TABLE",
                                   positional=True)
    list: bool = flag(False, "name the tables and stop", GROUP)
    dry_run: bool = flag(False, "say what would be trained and stop", GROUP)
    seeds: tuple[int, ...] = flag((1,), "train every row once per seed (1)", GROUP, 0, 2 ** 31,
                                  metavar="SEED")
    rows: tuple[str, ...] = flag((), "train these rows alone, by the names that --dry-run "
                                 "shows", GROUP, metavar="ROW")
    jobs: int | None = flag(None, "runs at once (one per GPU, else 1)", GROUP, 1, 1024)
    finished: bool = flag(False, "train nothing: show, and --store, what is finished", GROUP)
    store: bool = flag(False, "keep what is measured in results/ for RESULTS.md, as "
                       "TABLE.DATA-SIZE-STEPS.json, beside other runs that are there", GROUP)
    write_results: bool = flag(False, "renew what RESULTS.md and docs/ hold of results/, tables, "
                               "verdicts and figures, and stop", GROUP)

    HIDDEN = frozenset(rows_own())      # not in --help: the rows set them


OWN = ("tables", "list", "dry_run", "seeds", "rows", "jobs", "finished", "store",
       "write_results", "runs", "device")


# ---- What is asked for

def given_of(settings: Settings) -> dict:
    """{field: value} of the settings of train_mt.py that are given for all rows. Raises UserError
    for one that the rows set themselves."""
    given = {}
    for name in settings.given:
        if name in rows_own():
            raise UserError(f"--{name.replace('_', '-')}: the tables set it themselves (seeds: "
                            "--seeds): leave it out")
        if name not in OWN:
            given[name] = getattr(settings, name)
    return given


def check_tables(settings: Settings) -> None:
    """Raises UserError for a table that there is not."""
    for name in settings.tables:
        if name not in TABLES:
            raise UserError(f"no table {name}: choose from {', '.join(TABLES)}")
    if not settings.tables:
        raise UserError("which table? Name one or several; --list tells them")


def one_spaced(label: str) -> str:
    """A row's label with one space between its words, as people type it."""
    return " ".join(label.split())


def check_rows(settings: Settings) -> None:
    """Raises UserError for a label in --rows that no table asked for has as a row to train."""
    known = []
    for name in settings.tables:
        if TABLES[name].kind not in ("logic", "probe"):
            known += [one_spaced(row.label) for row in TABLES[name].rows if row.flags is not None]
    for label in settings.rows:
        if one_spaced(label) not in known:
            raise UserError(f"--rows: no row {label!r} to train, only: "
                            f"{'; '.join(known) or 'none'}")


def check_used(given: dict, jobs: list[Job]) -> None:
    """Raises UserError for a setting for all rows that none of them has a use for."""
    for name in FOR_ALL:
        if name in given and not any(name in job.settings.given for job in jobs if job.settings):
            raise UserError(f"--{name.replace('_', '-')}: no row of these tables has a use for it: "
                            "leave it out")


def chosen(rows, labels: tuple[str, ...]) -> list[Job]:
    """The runs of the rows that have these labels; of all rows without any."""
    wanted = [one_spaced(label) for label in labels]
    found = []
    for row, jobs in rows:
        if not wanted or one_spaced(row.label) in wanted:
            found += jobs
    return found


def script_job(name: str, settings: Settings) -> Job:
    """The run of logic.py or probe.py that measures a table, in a folder named after it, in the
    script's small setting. For another setting run the script itself with --name TABLE first: what
    is there is taken as it is."""
    table = TABLES[name]
    models = [row.flags for row in table.rows]
    flags = ["--models", *models, "--seeds", *map(str, settings.seeds)]
    return Job(name, name, flags, script=f"{table.kind}.py")


def list_tables() -> None:
    """Prints the names of the tables and what they are."""
    for name, table in TABLES.items():
        rows = sum(row.flags is not None for row in table.rows)
        data = f"; {table.data}" if table.data else ""
        print(f"{name:<11}  {table.source:<16}  {rows:2} rows  {table.title}{data}")


def labels_of(rows) -> dict[str, str]:
    """{name of a run: the label of its row}."""
    return {job.name: one_spaced(row.label) for row, jobs in rows for job in jobs}


def list_missing(jobs: list[Job], labels: dict[str, str], settings: Settings) -> None:
    """Prints which runs are missing, of which rows, and how far those are that have begun."""
    missing = [job for job in jobs if not complete(job, settings)]
    for job in missing:
        rows = read_metrics(Path(settings.runs) / job.name / "metrics.jsonl")
        steps = [row["step"] for row in rows if "step" in row]
        begun = f", begun: step {max(steps)}" if steps else ""
        row = f", row {labels[job.name]!r}" if job.name in labels else ""
        print(f"{job.label}: missing{begun} ({job.name}{row})")
    print(f"{len(missing)} of {len(jobs)} runs are missing")


# ---- Measuring

def result(job: Job, runs: str) -> dict | None:
    """What a finished run says of itself; None where it is not finished."""
    path = Path(runs) / job.name
    test = tested(path)
    if test is None:
        return None
    validated = [row for row in read_metrics(path / "metrics.jsonl") if "valid_bleu" in row]
    best = max(validated, key=lambda row: row["valid_bleu"])     # the first of equals, as saved
    return {"seed": job.seed, "bleu": test["test_bleu"], "parameters": test["parameters"],
            "tokens_per_second": test["tokens_per_second"],
            "sentences_per_second": test["sentences_per_second"],
            "scores": test["disagreement"]["enc"], "p": None, "lowercased": None,
            "curve": {str(row["step"]): row["valid_bleu"] for row in validated},
            "layers": [math.exp(D) for D in best["valid_disagreement"]["enc"]["position"]]}


def hypotheses(job: Job, runs: str, pairs, device: torch.device) -> list[str]:
    """The run's translations of the test set, from test.hyp in its folder; made there once where it
    lacks them."""
    path = Path(runs) / job.name / "test.hyp"
    if path.exists():
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        if len(lines) == len(pairs.source):
            return lines
    checkpoint = "average" if job.settings.average else "best"
    model, tokenizer, own = load_run(path.parent, checkpoint, device)
    lines, *_ = bleu(model, tokenizer, pairs, own["beam"], own["lenpen"], own["lowercase"],
                     own["amp"])
    atomic_write(path, "".join(f"{line}\n" for line in lines))
    return lines


def chance(baseline: list[str], other: list[str], references: list[str], lowercase: bool) -> float:
    """p of the paired bootstrap: the chance that two systems alike would look as different as these
    by the choice of the test sentences."""
    results, _ = bootstrap([("baseline", baseline), ("other", other)], references, lowercase)
    return results[1].p_value


def measured_rows(name: str, rows, settings: Settings, pairs, device: torch.device) -> list[list]:
    """What the runs of every row of a table say of themselves; None for those not finished.

    p is taken seed by seed: pooled seeds would count every test sentence as many times as there are
    seeds, and find too much significant.
    """
    found = []
    for _, jobs in rows:
        found.append([result(job, settings.runs) for job in jobs])
    if TABLES[name].kind != "mt":
        return found
    base = render.baselines([row for row, _ in rows])
    references = list(pairs.target)
    for i, (_, jobs) in enumerate(rows):
        for k, job in enumerate(jobs):
            if found[i][k] is None:
                continue
            ours = hypotheses(job, settings.runs, pairs, device)
            found[i][k]["lowercased"], _ = corpus_bleu(ours, references, lowercase=True)
            if base[i] not in (None, i) and found[base[i]][k]:
                theirs = hypotheses(rows[base[i]][1][k], settings.runs, pairs, device)
                found[i][k]["p"] = chance(theirs, ours, references, job.settings.lowercase)
    return found


def measure(name: str, rows, settings: Settings, pairs, device: torch.device) -> dict | None:
    """What is stored of a table, see papers/render.py; None where nothing is finished."""
    found = measured_rows(name, rows, settings, pairs, device)
    done = []
    stored = []
    for (row, jobs), results in zip(rows, found):
        flags = shlex.join(jobs[0].mechanisms) if jobs else None
        finished = [one for one in results if one]
        stored.append({"label": row.label, "size": row.size, "flags": flags, "runs": finished})
        done += [job for job, one in zip(jobs, results) if one]
    if not done:
        return None
    paths = [Path(settings.runs) / job.name for job in done]
    test = tested(paths[0])
    notes = [note for note in map(machine_of, paths) if note]
    here = {"machine": processor(device), "torch": torch.__version__,
            "date": datetime.date.today().isoformat()}
    latest = max(notes, key=lambda note: note["date"], default=here)
    machines = sorted({note["machine"] for note in notes or [here]})
    scale = done[0].settings
    return {"kind": "table", "table": name, "command": command_text(name, settings),
            "seeds": list(settings.seeds), "data": text_name(scale), "arch": scale.arch,
            "steps": scale.steps, "batch": scale.max_tokens * scale.accumulate,
            "average": test["average"], "signature": test["signature"], "set": test["set"],
            "date": latest["date"], "machine": "; ".join(machines), "torch": latest["torch"],
            "rows": stored}


def command_text(name: str, settings: Settings) -> str:
    """The command that measures this table alone, with DIR in place of folders."""
    given = given_of(settings)
    for key in ("train", "valid", "test"):
        if key in given:
            given[key] = f"DIR/{Path(given[key]).name}"
    given.pop("data_dir", None)
    words = command_line(Settings, {**given, "seeds": settings.seeds})
    return shlex.join(["python", "reproduce.py", name, *words])


# ---- Showing

def draw(name: str, jobs: list[Job], settings: Settings) -> None:
    """Draws a figure from the runs of the first seed, in a folder named after it, by analyze.py."""
    import analyze  # here, for no other table needs it
    table = TABLES[name]
    print(f"**{table.source}** ({name}): {table.title}; published on {table.data}", *table.notes,
          sep="\n", flush=True)
    finished = [str(Path(settings.runs) / job.name) for job in jobs if complete(job, settings)]
    if not finished:
        return
    out = Path(settings.runs) / name
    out.mkdir(exist_ok=True)
    analyze.analyze(analyze.Settings(tuple(finished), only=(table.part,), out=str(out),
                                     device=settings.device))


def show_script(name: str, settings: Settings) -> dict | None:
    """Prints the table of logic.py or probe.py, and returns what it is made from; None where there
    is nothing. Raises UserError for a file that is none of theirs."""
    path = Path(settings.runs) / name / "results.json"
    if not path.exists():
        return None
    try:
        stored = {**json.loads(path.read_text()), "published": name}
        print(render.on_terminal(stored))
    except (AttributeError, KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(f"{path}: is no table of {TABLES[name].kind}.py (damaged?): delete it, "
                        "then give the command again") from error
    return stored


def show(name: str, rows, settings: Settings, pairs, device: torch.device) -> None:
    """Prints a table, or has it drawn; stores it with --store."""
    kind = TABLES[name].kind
    print()
    if kind == "figure":
        draw(name, [jobs[0] for _, jobs in rows], settings)
        return
    if kind in ("logic", "probe"):
        stored = show_script(name, settings)
        path = ROOT / "results" / f"{name}.json"
    else:
        stored = measure(name, rows, settings, pairs, device)
        if stored:
            label = f"{name}.{stored['data']}-{stored['arch']}-{stored['steps']}"
            path = ROOT / "results" / f"{label}.json"
            if settings.store:
                stored = documents.with_earlier(stored, path)
            print(render.on_terminal(stored))
    if stored is None:
        print(f"{name}: nothing is finished")
    elif settings.store:
        path.parent.mkdir(exist_ok=True)
        content = json.dumps(documents.portable(stored), indent=1, ensure_ascii=False)
        atomic_write(path, content + "\n")
        print(f"\nstored: results/{path.name}")


# ---- The documents

def write_results() -> None:
    """Renews what the documents hold of results/."""
    for path in (ROOT / "RESULTS.md", *sorted((ROOT / "docs").glob("*.md"))):
        count = documents.write(path, ROOT)
        if count:
            print(f"{path.relative_to(ROOT)}: {count} tables as in results/")
    for path in documents.draw(ROOT):
        print(f"{path.relative_to(ROOT)}: drawn")


# ---- The command

def reproduce(settings: Settings) -> None:
    """Trains what is missing of the tables, prints them, and stores them where asked to."""
    if settings.write_results:
        write_results()
        return
    if settings.list:
        list_tables()
        return

    # what there is to do
    check_tables(settings)
    check_rows(settings)
    settings.tables = tuple(dict.fromkeys(settings.tables))
    settings.seeds = tuple(dict.fromkeys(settings.seeds))
    given = given_of(settings)
    device = pick_device(settings.device)
    if settings.jobs is None:
        settings.jobs = torch.cuda.device_count() if device == torch.device("cuda") else 1
    trained = {}                        # table -> its rows with their runs
    jobs = {}                           # name -> run; tables share theirs
    for name in settings.tables:
        if TABLES[name].kind in ("logic", "probe"):
            jobs[name] = script_job(name, settings)
        else:
            trained[name] = plan(TABLES[name], given, settings.seeds)
            jobs.update((job.name, job) for job in chosen(trained[name], settings.rows))
    check_used(given, list(jobs.values()))
    if settings.dry_run:
        labels = {}
        for rows in trained.values():
            labels.update(labels_of(rows))
        list_missing(list(jobs.values()), labels, settings)
        return

    # train
    pairs = None
    if trained:                         # mistakes in the text are told, and downloads made, once
        corpora = load_corpora(completed(command_line(train_mt.Settings, given)))
        pairs = corpora.test or corpora.valid
    missing = [job for job in jobs.values() if not complete(job, settings)]
    failed = []
    if missing and not settings.finished:
        failed = train(missing, settings, device)

    # show
    for name in settings.tables:
        show(name, trained.get(name), settings, pairs, device)
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} runs failed ({', '.join(failed)}): mend "
                        "what their logs say; the same command trains them again")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(reproduce, Settings, "reproduce.py", DESCRIPTION, argv)


if __name__ == "__main__":
    sys.exit(main())
