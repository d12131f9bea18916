"""The papers' tables, one command each: trains what is missing, then prints what is measured beside what is published.

    python reproduce.py --list
    python reproduce.py li2018-1 duan-3 --data multi30k --seeds 1 2 3
    python reproduce.py all --data multi30k --arch small --dry-run

The tables are data (paper_tables.py); all other flags are train_mt.py's and set the scale, alike for every row. Each
row and seed is a run of train_mt.py in a process of its own, in a folder named after its scale and its mechanisms, so
that tables share what they have in common and an interrupted table resumes. Checkpoint averaging is off, as in Li 2021
(the other papers do not say).
"""
import argparse
import dataclasses
import datetime
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from nmt import files

from nmt import evaluate
from papers import plan
from papers import render
import train_mt
from nmt.flags import Parser, UserError, run, whole
from nmt.corpus import load_corpora
from nmt.tokenizer import VOCAB_SIZES
from papers.jobs import ROOT, complete, duration, finished, metrics, read_note, train
from nmt.machine import pick_device, processor
from papers.tables import TABLES
from papers.plan import Run
from transformer import Transformer
from nmt.run_folder import load_run

ROOT = Path(__file__).resolve().parent
OWN = ("tables", "list", "dry_run", "seeds", "jobs", "store", "write_results", "runs", "device")
RATE, PACE = 40e9, 0.05      # a first estimate: operations per second of a CPU core in training, least seconds a step


def parser() -> Parser:
    """The command line: the tables, and train_mt.py's own flags but for those that the rows set."""
    p = train_mt.parser()
    p.prog, p.description = "reproduce.py", ("Reproduces tables of the five papers at the scale that the flags of "
                                             "train_mt.py set: size tiny on the embedded corpus without any.")
    for action in p._actions:
        if action.dest != "help":
            action.default = argparse.SUPPRESS           # the namespace then holds what was given
        if action.dest in plan.ROWS:
            action.help = argparse.SUPPRESS
    p.set_defaults(tables=[], runs="runs", device="auto", seeds=[1], jobs=None)
    g = p.add_argument_group("tables")
    g.add_argument("tables", nargs="*", metavar="TABLE", help="which tables, see --list")
    g.add_argument("--list", action="store_true", help="name the tables and stop")
    g.add_argument("--dry-run", action="store_true", help="say what would be trained and about how long it takes")
    g.add_argument("--seeds", nargs="+", type=whole(0, 2 ** 31), metavar="SEED",
                   help="train every row once per seed (1)")
    g.add_argument("--jobs", type=whole(1, 1024), metavar="N", help="runs at once (one per GPU, else 1)")
    g.add_argument("--store", action="store_true", help="keep what is measured in results/ for RESULTS.md, as "
                   "TABLE.DATA-SIZE-STEPS.json")
    g.add_argument("--write-results", action="store_true", help="renew the tables in RESULTS.md from results/ and stop")
    return p


# ---- How long it takes

def seconds_taken(path: Path) -> float | None:
    """How long a finished run took, as noted beside it, or its training alone; None where it is not finished."""
    last = next((row for row in metrics(path) if "test_bleu" in row), None)
    if last is None:
        return None
    note = read_note(path)
    return note["seconds"] if note else last["tokens"] / last["tokens_per_second"]


def guess(job: Run, runs: str, device: torch.device) -> float | None:
    """The training of a run at the speed it has logged so far; of one that has not begun, by a rule: 6 x parameters x
    target tokens operations at RATE, but PACE seconds per step at least, on a CPU; on a GPU None."""
    if job.script != "train_mt.py":
        return None
    tokens = job.settings.steps * job.settings.accumulate * job.settings.max_tokens
    logged = [row["tokens_per_second"] for row in metrics(Path(runs) / job.name) if "loss" in row]
    if logged:
        return tokens / logged[-1]
    if device.type == "cuda":
        return None
    words = job.settings.vocab_size or VOCAB_SIZES.get(job.settings.data, 10_000)
    config = dataclasses.replace(job.config, vocab_size=words)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return max(6 * parameters * tokens / RATE, PACE * job.settings.steps)


def forecast(runs: list[Run], args, device: torch.device) -> None:
    """Prints what is missing and about how long it takes: as long as the same row with another seed took; else the mean
    of the finished runs of these tables; else by the rule of `guess`."""
    taken = {job.name: seconds_taken(Path(args.runs) / job.name) if not complete(job, args) or job.config else 0.0
             for job in runs}
    known = [seconds for seconds in taken.values() if seconds is not None]
    family = lambda name: name.rpartition("-seed")[0]
    alike = {family(name): seconds for name, seconds in taken.items() if seconds is not None}
    total, unknown, missing = 0.0, 0, [job for job in runs if taken[job.name] is None]
    for job in missing:
        seconds = alike.get(family(job.name)) or (sum(known) / len(known) if known else guess(job, args.runs, device))
        steps = [row["step"] for row in metrics(Path(args.runs) / job.name) if "step" in row]
        begun = f", begun: step {max(steps)}" if steps else ""
        print(f"{job.name}: missing{begun}, about {'?' if seconds is None else duration(seconds)}")
        total, unknown = total + (seconds or 0), unknown + (seconds is None)
    basis = ("from the finished runs of these tables" if known else "by the speed logged so far, else 6 x parameters x "
             f"tokens operations at {RATE / 1e9:.0f} GFLOP/s, {PACE} s per step at least; without validation and test")
    print(f"{len(missing)} of {len(runs)} runs are missing"
          + (f"; of {unknown} the time is not known before the first is finished" if unknown else "")
          + (f"; about {duration(total / args.jobs)} with --jobs {args.jobs}, {basis}" if total else ""))


# ---- Measuring

def result(job: Run, runs: str) -> dict | None:
    """What a finished run says of itself; None where it is not finished."""
    rows = metrics(Path(runs) / job.name)
    last = next((row for row in rows if "test_bleu" in row), None)
    if last is None:
        return None
    judged = [row for row in rows if "valid_bleu" in row]
    best = max(judged, key=lambda row: row["valid_bleu"])                    # the first of equals, as it was saved
    return {"seed": job.seed, "bleu": last["test_bleu"], "parameters": last["parameters"],
            "tokens_per_second": last["tokens_per_second"], "sentences_per_second": last["sentences_per_second"],
            "scores": last["disagreement"]["enc"], "p": None, "signature": last["signature"], "set": last["set"],
            "layers": [math.exp(D) for D in best["valid_disagreement"]["enc"]["position"]]}


def hypotheses(job: Run, runs: str, pairs, device: torch.device) -> list[str]:
    """The run's translations of the test set, from test.hyp in its folder; made there once where it lacks them."""
    path = Path(runs) / job.name / "test.hyp"
    if path.exists():
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        if len(lines) == len(pairs.source):
            return lines
    model, tokenizer, settings = load_run(path.parent, "best", device)
    lines, *_ = evaluate.bleu(model, tokenizer, pairs, settings["beam"], settings["lenpen"], settings["lowercase"],
                              settings["amp"])
    files.atomic_write(path, "".join(f"{line}\n" for line in lines))
    return lines


def chance(baseline: list[str], other: list[str], references: list[str], lowercase: bool) -> float:
    """p of sacreBLEU's paired bootstrap (Koehn 2004; 1,000 resamples): the chance that two systems alike would look as
    different as these by the choice of the test sentences. 1 for identical translations."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest
    if baseline == other:
        return 1.0
    metric = {"BLEU": BLEU(lowercase=lowercase, force=True)}
    _, columns = PairedTest([("baseline", baseline), ("other", other)], metric, [references], test_type="bs")()
    first, second = columns["BLEU"]
    return 1.0 if first.score == second.score else second.p_value            # sacreBLEU gives equal scores its smallest


def measure(name: str, rows, args, pairs, device: torch.device) -> dict | None:
    """What is stored of a table, see render.py; None where nothing is finished. p is taken seed by seed: pooled seeds
    would count every test sentence as many times as there are seeds, and find too much significant."""
    table, base = TABLES[name], render.baselines([row for row, _ in rows])
    found = [[result(job, args.runs) for job in jobs] for _, jobs in rows]
    for i, (row, jobs) in enumerate(rows):
        for k, job in enumerate(jobs if table.kind == "mt" and base[i] not in (None, i) else ()):
            if found[i][k] and found[base[i]][k]:
                ours, theirs = (hypotheses(x, args.runs, pairs, device) for x in (job, rows[base[i]][1][k]))
                found[i][k]["p"] = chance(theirs, ours, list(pairs.target), job.settings.lowercase)
    done = [(job, r) for (_, jobs), results in zip(rows, found) for job, r in zip(jobs, results) if r]
    if not done:
        return None
    notes = [note for note in (read_note(Path(args.runs) / job.name) for job, _ in done) if note]
    settings, latest = done[0][0].settings, max(notes, key=lambda note: note["date"], default={})
    machines = sorted({note["machine"] + (f", {note['jobs']} runs at once" if note["jobs"] > 1 else "")
                       for note in notes})
    return {"kind": "table", "table": name, "command": command_text(name, args), "seeds": args.seeds,
            "data": plan.data_label(settings), "arch": settings.arch, "steps": settings.steps,
            "batch": settings.max_tokens * settings.accumulate, "signature": done[0][1]["signature"],
            "set": done[0][1]["set"], "date": latest.get("date", datetime.date.today().isoformat()),
            "machine": "; ".join(machines) or processor(device),
            "torch": latest.get("torch", torch.__version__),
            "rows": [{"label": row.label, "size": row.size, "flags": shlex.join(jobs[0].mechanisms) if jobs else None,
                      "runs": [{key: value for key, value in r.items() if key not in ("signature", "set")}
                               for r in results if r]} for (row, jobs), results in zip(rows, found)]}


def command_text(name: str, args) -> str:
    """The command that measures this table alone, with DIR in place of folders."""
    given = {key: value for key, value in vars(args).items() if key not in OWN}
    for key in ("train", "valid", "test"):
        if key in given:
            given[key] = f"DIR/{Path(given[key]).name}"
    given.pop("data_dir", None)
    return shlex.join(["python", "reproduce.py", name, *plan.command_line(given), "--seeds", *map(str, args.seeds)])


# ---- The command

def script_run(name: str, args) -> Run:
    """The run of logic.py or probe.py that measures a table, in a folder named after it, in the script's small setting.
    For another setting run the script itself with --name TABLE first: what is there is taken as it is."""
    table = TABLES[name]
    flags = ["--models", *(row.flags for row in table.rows), "--seeds", *map(str, args.seeds)]
    return Run(name, flags, script=f"{table.kind}.py")


def list_tables() -> None:
    """Prints the names of the tables and what they are."""
    width = max(map(len, TABLES))
    for name, table in TABLES.items():
        rows = sum(row.flags is not None for row in table.rows)
        data = f"; {table.data}" if table.data else ""
        print(f"{name:<{width}}  {table.source:<18}  {rows:2} rows  {table.title}{data}")


def draw(name: str, jobs: list[Run], args) -> None:
    """Has analyze.py draw a figure from the runs of the first seed, into a folder named after it."""
    there = [str(Path(args.runs) / job.name) for job in jobs if finished(Path(args.runs) / job.name)]
    out, table = Path(args.runs) / name, TABLES[name]
    print(f"**{table.source}** ({name}): {table.title}; published on {table.data}", *table.notes, sep="\n", flush=True)
    if there:
        out.mkdir(exist_ok=True)
        words = [sys.executable, str(ROOT / "analyze.py"), *there, "--only", table.part, "--out", str(out),
                 "--device", args.device]
        if subprocess.run(words).returncode:
            raise UserError(f"{name}: analyze.py failed (its message stands above): {shlex.join(words[1:])}")


def show(name: str, rows, args, pairs, device: torch.device) -> None:
    """Prints a table, or has it drawn; stores it with --store."""
    table = TABLES[name]
    print()
    if table.kind in ("logic", "probe"):
        path = Path(args.runs) / name / "results.json"
        if not path.exists():
            return print(f"{name}: nothing is finished")
        try:
            stored = {**json.loads(path.read_text()), "published": name}
            print(render.text(stored))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: is no table of {table.kind}.py (damaged?): delete it, then give the command "
                            "again") from error
    elif table.kind == "figure":
        return draw(name, [jobs[0] for _, jobs in rows], args)
    else:
        stored = measure(name, rows, args, pairs, device)
        if stored is None:
            return print(f"{name}: nothing is finished")
        print(render.text(stored))
    if args.store:
        (ROOT / "results").mkdir(exist_ok=True)
        label = f".{stored['data']}-{stored['arch']}-{stored['steps']}" if stored.get("kind") == "table" else ""
        path = ROOT / "results" / f"{name}{label}.json"
        files.atomic_write(path, json.dumps(render.portable(stored), indent=1, ensure_ascii=False) + "\n")
        print(f"\nstored: results/{path.name}")


def check(args) -> dict:
    """The given flags of train_mt.py. Raises UserError for tables and flags that do not go together."""
    for name in args.tables:
        if name not in TABLES:
            raise UserError(f"no table {name}: choose from {', '.join(TABLES)}")
    if not args.tables:
        raise UserError("which table? Name one or several; --list tells them")
    given = {key: value for key, value in vars(args).items() if key not in OWN}
    for key in plan.ROWS:
        if key in given:
            raise UserError(f"--{key.replace('_', '-')}: the tables set it themselves (seeds: --seeds): leave it out")
    return given


def reproduce(args) -> None:
    """Trains what is missing of the tables, prints them, and stores them where asked to."""
    if args.write_results:
        count = render.write(ROOT / "RESULTS.md")
        return print(f"RESULTS.md: {count} tables as in results/")
    if args.list:
        return list_tables()
    args.tables, args.seeds = list(dict.fromkeys(args.tables)), list(dict.fromkeys(args.seeds))
    given, device = check(args), pick_device(args.device)
    args.jobs = args.jobs or (torch.cuda.device_count() if device == torch.device("cuda") else 1)
    trained = {name: plan.plan(TABLES[name], given, args.seeds) for name in args.tables
               if TABLES[name].kind not in ("logic", "probe")}
    runs = {job.name: job for rows in trained.values() for _, jobs in rows for job in jobs}
    runs.update((name, script_run(name, args)) for name in args.tables if name not in trained)
    if args.dry_run:
        return forecast(list(runs.values()), args, device)
    corpora = load_corpora(plan.completed(plan.command_line(given))) if trained else None      # told, or fetched, once
    missing = [job for job in runs.values() if not complete(job, args)]
    failed = train(missing, args, device) if missing else []
    for name in args.tables:
        show(name, trained.get(name), args, corpora and (corpora.test or corpora.valid), device)
    if failed:
        raise UserError(f"{len(failed)} of {len(runs)} runs failed ({', '.join(failed)}): mend what their logs say; "
                        "the same command trains them again")


def main(argv=None) -> int:
    """The command line; returns the exit status."""
    return run(reproduce, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
