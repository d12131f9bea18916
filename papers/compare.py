"""Compares finished runs of train_mt.py, group by group; a group differs in its seeds alone.

    python -m papers.compare runs/A-seed1 runs/A-seed2 runs/B-seed1 runs/B-seed2
    python -m papers.compare runs/tatoeba-tiny-seed* runs/*

The first run's group is what the others are compared with. A row has the flags that differ from it,
and means over the seeds: test BLEU ± its standard deviation, chrF, and the validation loss of the
tested checkpoint. The difference in BLEU is the mean over the seeds that both groups have, with the
95 % interval of a paired t-test. All runs must have the same text and test sets.

An aggregation draws its parameters when it is built, so the layers after it start from other random
numbers than without it, whatever the seed.
"""
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from scipy import stats
from tabulate import tabulate

from nmt.command_line import UserError, flag
from nmt.command_line import run as run_command
from nmt.run_folder import flatten, read_config, read_log
from train_mt import DERIVED, FREE, write_flag

# what runs of a group may differ in; the length ratio follows from the text
WITHIN = (*FREE, *DERIVED, "seed", "command", "length_ratio")


@dataclass
class Settings:
    """Runs."""
    runs: tuple[str, ...] = flag(help="folders of finished runs", metavar="RUN", positional=True,
                                 nargs="+")


class Run(NamedTuple):
    """A finished run."""
    folder: Path
    seed: int
    settings: dict              # without those that a group's runs may differ in
    text: tuple                 # checksums, references, and how BLEU is counted
    test: dict                  # the row of its log


def read_run(folder: Path) -> Run:
    """Raises UserError for a run without a test score."""
    config = read_config(folder)
    log = read_log(folder)
    if not log or log[-1]["type"] != "test":
        raise UserError(f"{folder}: is not finished")
    test = log[-1]
    references = [(folder / f"{name}.ref").read_bytes() for name in test["sets"]]
    settings = {name: x for name, x in flatten(config).items() if name not in WITHIN}
    return Run(folder, config["seed"], settings, (config["text"], references, test["signature"]),
               test)


def group_runs(runs: list[Run]) -> list[list[Run]]:
    """The runs that differ in the seed alone, together, one per seed. Raises UserError for a run of
    another text than the first."""
    groups = {}
    for run in runs:
        if run.text != runs[0].text:
            raise UserError(f"{run.folder}: has another text or other test sets than "
                            f"{runs[0].folder}")
        groups.setdefault(json.dumps(run.settings), {})[run.seed] = run
    return [[*group.values()] for group in groups.values()]


def describe_settings(group: list[Run], first: list[Run]) -> str:
    """The flags in which a group differs from the first one; of the first, its name."""
    if group is first:
        return group[0].folder.name.removesuffix(f"-seed{group[0].seed}")
    words = []
    for name, value in group[0].settings.items():
        if value != first[0].settings[name]:
            words += write_flag(name, tuple(value) if isinstance(value, list) else value)
    return " ".join(words)


def pair_runs(group: list[Run], first: list[Run]) -> list[tuple[Run, Run]]:
    """The runs of both groups with the same seed."""
    return [(run, other) for run in group for other in first if run.seed == other.seed]


def describe_difference(group: list[Run], first: list[Run]) -> str:
    """The difference in test BLEU from the first group, with its 95 % interval."""
    gains = [run.test["bleu"] - other.test["bleu"] for run, other in pair_runs(group, first)]
    if group is first or not gains:
        return ""
    if len(gains) == 1:
        return f"{gains[0]:+z.2f} (1)"
    low, high = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    return f"{fmean(gains):+z.2f} ± {(high - low) / 2:.2f} ({len(gains)})"


def describe_group(group: list[Run], first: list[Run]) -> list[str]:
    """The row of a group."""
    bleu = [run.test["bleu"] for run in group]
    spread = f" ± {stdev(bleu):.2f}" if len(bleu) > 1 else ""
    return [describe_settings(group, first),
            " ".join(str(run.seed) for run in group),
            f"{fmean(bleu):.2f}{spread}",
            f"{fmean(run.test['chrf'] for run in group):.2f}",
            f"{fmean(run.test['valid_loss'] for run in group):.3f}",
            f"{group[0].test['parameters']:,}",
            f"{fmean(run.test['tokens_per_second'] for run in group):,.0f}",
            describe_difference(group, first)]


def compare(settings: Settings) -> None:
    """Prints a row per group; for a single pair of runs, the command of a test over sentences."""
    groups = group_runs([read_run(Path(folder)) for folder in settings.runs])
    header = ["", "seeds", "BLEU", "chrF", "valid. loss", "parameters", "tokens/s",
              "difference (seeds)"]
    rows = [describe_group(group, groups[0]) for group in groups]
    print(tabulate(rows, header, "plain", disable_numparse=True))
    for group in groups[1:]:
        pairs = pair_runs(group, groups[0])
        if len(pairs) == 1:
            run, other = pairs[0]
            tokenizer = run.test["signature"].partition("tok:")[2].partition("|")[0]
            for name in run.test["sets"]:
                print(f"sacrebleu {other.folder / name}.ref -i {other.folder / name}.hyp "
                      f"{run.folder / name}.hyp --paired-bs -tok {tokenizer}")


def main(argv=None) -> None:
    run_command(compare, Settings, argv=argv)


if __name__ == "__main__":
    main()
