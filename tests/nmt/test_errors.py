"""Bad input to every script: one line on stderr that names the argument or the file and says what
would work, exit code 2, no traceback, nothing overwritten. All through each script's `main(argv)`.
"""
import argparse
import contextlib
import importlib
import re
import shlex
from collections import Counter
from pathlib import Path

import bad_files
import pytest
import torch
from bad_files import NOT_READ, digest, traces
from filelock import FileLock

import train_mt
from nmt import download, flags

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.stem for path in ROOT.glob("*.py")
                 if re.search(r"^def main\(argv", path.read_text(encoding="utf-8"), re.M))
READ_ONLY = "/proc/nowhere"                        # not even root makes a file or a folder there
NO_GPU = f"cuda:{min(99, max(7, torch.cuda.device_count()))}"
TRAIN = ("--src en --tgt de --train good --valid good --layers 1 --d-model 16 --heads 2 --d-ff 16 "
         "--vocab-size 280 --max-tokens 256 --steps 1 --device cpu --name new ")
RESUME = TRAIN.replace("--name new", "--name")
TABLE = "li2018-1 --src en --tgt de --train good --valid good --device cpu "


def call(script: str, argv, capsys) -> tuple[int, str, str]:
    """The exit status of a script's main, what it printed and what it complained about."""
    try:
        words = argv if isinstance(argv, list) else shlex.split(argv)
        status = importlib.import_module(script).main(words)
    except SystemExit as exit:                    # of the argument parser
        status = exit.code
    return status, *capsys.readouterr()


def refused(script: str, argv, capsys, *words) -> None:
    """Asserts that main refuses argv: status 2, one line on stderr that starts with the script and
    holds the words."""
    status, output, error = call(script, argv, capsys)
    assert status == 2 and error.count("\n") == 1, (status, error)
    if script == "translate":                      # what it prints are translations
        assert output == ""
    assert error.startswith(f"{script}.py: error: "), error
    assert all(word in error for word in words), error
    assert "Traceback" not in error and len(error) < 1200, error


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of all bad files. It holds a sound run and damaged copies of it; one of them is at
    work. All of it is the same at the end."""
    folder = tmp_path_factory.mktemp("place")
    with contextlib.chdir(folder):
        bad_files.make(folder, lambda name: train_mt.main(shlex.split(RESUME + name)))
    with FileLock(folder / "runs" / "busy" / "lock"):
        before = digest(folder)
        yield folder
        assert digest(folder) == before


# ---- The table

CASES = {
    # training: the text
    "text missing": ("train_mt", TRAIN + "--train gone", "gone.en does not exist",
        "PREFIX.LANGUAGE"),
    "text's folder missing": ("train_mt", TRAIN + "--train no/such/text",
        "no/such/text.en does not exist"),
    "text under a file": ("train_mt", TRAIN + "--train good.en/text", "good.en/text.en",
        "cannot read"),
    "text with too long a name": ("train_mt", TRAIN + f"--train {'x' * 300}", "x.en",
        "cannot read"),
    "text with NUL in its name": ("train_mt", [*shlex.split(TRAIN), "--train", "a\0b"], "NUL"),
    "text that is a folder": ("train_mt", TRAIN + "--train folder", "folder.en is a directory",
        "one sentence"),
    "text unreadable": ("train_mt", TRAIN + "--train unreadable", "unreadable.en", "cannot read",
        "check the path"),
    "text empty": ("train_mt", TRAIN + "--train empty", "empty.en is empty",
        "one sentence per line"),
    "text with unequal sides": ("train_mt", TRAIN + "--train unequal", "unequal.en has 2 lines",
        "unequal.de has 1"),
    "text in Latin-1": ("train_mt", TRAIN + "--train latin", "latin.en, line 2: not UTF-8",
        "iconv"),
    "text in UTF-16": ("train_mt", TRAIN + "--train wide", "wide.en, line 1: not UTF-8", "iconv"),
    "text of blank lines": ("train_mt", TRAIN.replace("--vocab-size 280", "--train blank"),
        "3 have an empty side"),
    "text of long lines": ("train_mt", TRAIN + "--max-length 1", "no training pair",
        "--max-length 1"),
    "validation missing": ("train_mt", "--train good --src en --tgt de", "--valid"),
    "validation in Latin-1": ("train_mt", TRAIN + "--valid latin", "latin.en, line 2: not UTF-8"),
    "validation of a million characters": ("train_mt", TRAIN + "--valid overlong",
        "--valid: line 1", "2,048 at most"),
    "test text unequal": ("train_mt", TRAIN + "--test unequal", "unequal.en has 2 lines"),
    "languages missing": ("train_mt", "--train good --valid good", "--src, --tgt"),
    "one language twice": ("train_mt", TRAIN + "--tgt en", "--src and --tgt are both en"),
    "a language the corpus lacks": ("train_mt", "--data toy --src fr",
        "--data toy is between en and de", "fr"),
    "a corpus without a network": ("train_mt", "--data multi30k --data-dir fetched", "train.en.gz",
        "put it at", "--data toy"),
    "a data folder under a file": ("train_mt", "--data multi30k --data-dir good.en",
        "good.en/multi30k", "cannot make"),
    "a vocabulary larger than the text": ("train_mt", TRAIN + "--vocab-size 99999",
        "--vocab-size 99999", "largest is"),
    # training: the model
    "a layer that does not exist": ("train_mt", TRAIN + "--agg em --agg-at enc:9", "--agg-at enc:9",
        "enc:1"),
    "a place that is none": ("train_mt", TRAIN + "--agg em --agg-at top", "--agg-at top",
        "enc, cross, dec"),
    "layers backwards": ("train_mt", TRAIN + "--agg em --agg-at enc:2-1", "--agg-at enc:2-1"),
    "capsules in the cross-attention": ("train_mt", TRAIN + "--capsule cross",
        "--capsule-attention cross", "enc, dec"),
    "heads that do not divide": ("train_mt", TRAIN + "--heads 3",
        "--d-model 16 must be even and a multiple of --heads 3"),
    "capsules that do not divide": ("train_mt", TRAIN + "--agg em --capsules 7",
        "--capsules 7 does not divide"),
    "an odd width": ("train_mt", TRAIN + "--d-model 15 --heads 1", "--d-model 15 must be even"),
    "a place without its mechanism": ("train_mt", TRAIN + "--agg-at enc", "--agg-at",
        "it takes --agg em"),
    "capsules without routing": ("train_mt", TRAIN + "--capsules 4", "--capsules 4",
        "it takes --agg em"),
    "a regularizer's place alone": ("train_mt", TRAIN + "--reg-at enc", "--reg-at", "--reg output"),
    "a regularizer's weight alone": ("train_mt", TRAIN + "--reg-weight 2", "--reg-weight 2",
        "--reg output"),
    "iterations of nothing": ("train_mt", TRAIN + "--iterations 2", "--iterations 2", "--agg em"),
    "parts of no capsule": ("train_mt", TRAIN + "--capsule-parts vertical", "--capsule-parts",
        "--capsule-attention"),
    "EM without EM": ("train_mt", TRAIN + "--agg dynamic --em-gradient full", "--em-gradient full",
        "--agg em"),
    "a model larger than the memory": ("train_mt", TRAIN + "--layers 9 --d-model 65536", "GiB",
        "--d-model"),
    "no such GPU": ("train_mt", TRAIN + f"--device {NO_GPU}", f"--device {NO_GPU}",
        "choose cpu or auto"),
    "no such device": ("train_mt", TRAIN + "--device moon", "--device moon", "auto, cpu, cuda"),
    # training: the run's folder
    "runs under a file": ("train_mt", TRAIN + "--runs good.en", "good.en/new", "cannot open",
        "choose another place"),
    "runs where nobody writes": ("train_mt", TRAIN + f"--runs {READ_ONLY}", f"{READ_ONLY}/new",
        "cannot open"),
    "an empty name": ("train_mt", [*shlex.split(TRAIN), "--name", ""], "--name", "names no folder"),
    "the name of the folder above": ("train_mt", TRAIN + "--name ..", "--name", "names no folder"),
    "too long a name": ("train_mt", TRAIN + f"--name {'x' * 300}", "x/", "too long"),
    "a folder of other files": ("train_mt", RESUME + "thesis", "runs/thesis", "thesis.txt",
        "--name"),
    "another configuration": ("train_mt", RESUME + "sound --agg em", "runs/sound",
        "agg was 'linear', is now 'em'"),
    "two runs at once": ("train_mt", RESUME + "busy", "runs/busy", "another run is at work",
        "--name"),
    "resume, cut short": ("train_mt", RESUME + "cut", "cut/last.pt", "cut short",
        "delete its folder and train again"),
    "resume, emptied": ("train_mt", RESUME + "emptied", "emptied/last.pt", "cut short"),
    "resume, foreign": ("train_mt", RESUME + "foreign", "foreign/last.pt", "damaged"),
    "resume, hostile": ("train_mt", RESUME + "hostile", "hostile/last.pt", "not safe"),
    "resume, pickled": ("train_mt", RESUME + "pickled", "pickled/last.pt", "not safe"),
    "resume, huge": ("train_mt", RESUME + "huge", "huge/last.pt", "damaged"),
    "resume, newer": ("train_mt", RESUME + "newer", "newer/last.pt", "format 3", "reads format 2",
        "--name"),
    "resume, other weights": ("train_mt", RESUME + "reshaped", "reshaped/last.pt", "weight",
        "model flags"),
    "resume, other optimizer": ("train_mt", RESUME + "unstepped", "unstepped/last.pt", "optimizer",
        "--name"),
    "resume, other random states": ("train_mt", RESUME + "unrandom", "random states", "versions"),
    "resume, no optimizer": ("train_mt", RESUME + "partial", "partial/last.pt",
        "holds no 'optimizer'"),
    "resume, damaged settings": ("train_mt", RESUME + "unconfigured", "unconfigured/config.json",
        "--name"),
    "resume, a later version": ("train_mt", RESUME + "future", "future/config.json", "format 99",
        "--name"),
    "resume, damaged metrics": ("train_mt", RESUME + "metrics", "metrics.jsonl: line 2",
        "take it out"),
    "resume, metrics without steps": ("train_mt", RESUME + "metrics-step", "metrics.jsonl: line 1",
        "take it out"),
    "resume, foreign tokenizer": ("train_mt", RESUME + "words", "words/tokenizer.json",
        "not a tokenizer"),
    "resume, damaged tokenizer": ("train_mt", RESUME + "untokenized", "untokenized/tokenizer.json",
        "not a tokenizer"),
    # translation
    "no run": ("translate", "runs/nowhere", "runs/nowhere", "no run folder"),
    "no run's name": ("translate", "", "RUN"),
    "a file as run": ("translate", "good.en", "good.en", "no run folder"),
    "a run with NUL in its name": ("translate", ["a\0b"], "NUL"),
    "a run under a file": ("translate", "good.en/run", "good.en/run", "no run folder"),
    "no such checkpoint": ("translate", "runs/sound --checkpoint step-9",
        "step-9.pt does not exist", "best, last"),
    "a checkpoint elsewhere": ("translate", "runs/sound --checkpoint ../cut/best",
        "does not exist"),
    "translate, cut short": ("translate", "runs/cut", "cut/best.pt", "cut short",
        "another --checkpoint"),
    "translate, hostile": ("translate", "runs/hostile", "hostile/best.pt", "not safe"),
    "translate, huge": ("translate", "runs/huge", "huge/best.pt", "damaged"),
    "translate, newer": ("translate", "runs/newer", "newer/best.pt", "format 3", "reads format 2"),
    "translate, other weights": ("translate", "runs/reshaped", "reshaped/best.pt", "weight"),
    "translate, no numbers": ("translate", "runs/nan", "nan/best.pt", "no finite numbers",
        "--checkpoint"),
    "translate, a later version": ("translate", "runs/future", "future/config.json", "format 99"),
    "translate, unknown settings": ("translate", "runs/winged", "winged/config.json", "no model"),
    "translate, settings without a model": ("translate", "runs/modelless", "modelless/config.json",
        "describes no model"),
    "translate, letters for numbers": ("translate", "runs/lettered", "lettered/config.json",
        "no model"),
    "translate, foreign tokenizer": ("translate", "runs/words", "words/tokenizer.json",
        "not a tokenizer"),
    "input missing": ("translate", "runs/sound --input gone.txt", "gone.txt", "cannot read"),
    "input with NUL in its name": ("translate", ["runs/sound", "--input", "a\0b"], "NUL"),
    "input empty": ("translate", "runs/sound --input empty.en", "empty.en is empty",
        "one sentence per line"),
    "input unreadable": ("translate", "runs/sound --input unreadable.en", "unreadable.en",
        "cannot read"),
    "input that is a folder": ("translate", "runs/sound --input folder.en", "folder.en",
        "cannot read"),
    "input in Latin-1": ("translate", "runs/sound --input latin.en", "latin.en, line 2: not UTF-8",
        "iconv"),
    "input in UTF-16": ("translate", "runs/sound --input wide.en", "wide.en, line 1: not UTF-8",
        "iconv"),
    "input huge": ("translate", "runs/sound --input huge.txt", "huge.txt is too large", "split"),
    "output over the input": ("translate", "runs/sound --input good.en --output ./good.en",
        "--output", "read as well"),
    "output in no folder": ("translate", "runs/sound --input good.en --output no/such",
        "--output no/such", "choose another place"),
    "output where nobody writes": ("translate", f"runs/sound --input good.en --output {READ_ONLY}",
                                   f"--output {READ_ONLY}", "cannot write"),
    "output that is a folder": ("translate", "runs/sound --input good.en --output runs",
        "--output runs", "choose another name"),
    "reference unequal": ("translate", "runs/sound --input good.en --reference latin.de",
        "latin.de has 2 lines"),
    "compared with itself": ("translate",
        "runs/sound --input good.en --reference good.de --compare runs/../runs/sound", "--compare",
        "name another"),
    "compared without reference": ("translate", "runs/sound --input good.en --compare runs/cut",
        "--reference FILE"),
    "compared with no run": ("translate",
        "runs/sound --input good.en --reference good.de --compare runs/nowhere", "runs/nowhere",
        "is no run folder"),
    "lower case without reference": ("translate", "runs/sound --lowercase", "--lowercase",
        "--reference"),
    "more than the beam": ("translate", "runs/sound --beam 2 --nbest 3", "--nbest 3",
        "--beam of 3"),
    "translate, no such GPU": ("translate", f"runs/sound --device {NO_GPU}", f"--device {NO_GPU}",
        "cpu or auto"),
    # logical inference
    "no such formulas": ("logic", "--data nowhere", "--data nowhere", "train1..train12"),
    "formulas that are a file": ("logic", "--data good.en", "--data good.en", "train1..train12"),
    "a relation that is none": ("logic", "--data relation", "relation/train1, line 1",
        "= < > ^ | v #"),
    "a file of formulas missing": ("logic", "--data missing", "missing/test7", "train1..train12"),
    "columns missing": ("logic", "--data columns", "columns/train1, line 1",
        "relation TAB left TAB right"),
    "a formula that is none": ("logic", "--data formula", "formula/train1, line 1", "xor"),
    "formulas in other bytes": ("logic", "--data bytes", "bytes/train1"),
    "a formula with NUL": ("logic", "--data nul", "nul/train1, line 1", "token 1"),
    "a formula in Hebrew and emoji": ("logic", "--data emoji", "emoji/train1, line 1",
        "a letter a..f"),
    "a formula of a million characters": ("logic", "--data endless", "endless/train1, line 1",
        "formula"),
    "a formula nested too deeply": ("logic", "--data deep-formula", "deep-formula/train1, line 1",
        "too deeply"),
    "huge formulas": ("logic", "--data huge-formula", "huge-formula/train1", "too large", "1 GiB"),
    "formulas over a file": ("logic", "--pairs 9 --write good.en", "--write good.en",
        "name a new one"),
    "formulas under a file": ("logic", "--pairs 9 --write good.en/new", "--write good.en/new",
        "choose another place"),
    "formulas where nobody writes": ("logic", f"--pairs 9 --write {READ_ONLY}",
        f"--write {READ_ONLY}", "cannot write"),
    "too few formulas": ("logic", "--data nothing", "--data"),
    "writing and reading": ("logic", "--data nothing --write new", "--write", "leave out --data"),
    "a model that is not asked for": ("logic", "--models baseline --agg em", "--agg",
        "add it to --models"),
    "a layer that logic lacks": ("logic", "--agg em --agg-at enc:9", "--agg-at enc:9", "enc:1"),
    "logic in a translation run": ("logic", "--pairs 400 --device cpu --name sound", "runs/sound",
        "--name"),
    "logic in a later version": ("logic", "--pairs 400 --device cpu --name future", "format 99",
        "--name"),
    "logic where nobody writes": ("logic", f"--pairs 400 --device cpu --runs {READ_ONLY}",
        READ_ONLY, "cannot open"),
    "logic, heads that do not divide": ("logic", "--pairs 400 --heads 3",
        "a multiple of --heads 3"),
    "logic, no such GPU": ("logic", f"--device {NO_GPU}", f"--device {NO_GPU}",
        "choose cpu or auto"),
    # probing
    "no such task files": ("probe", "--data nowhere", "nowhere/sentence_length.txt", "no such file",
        "SentEval"),
    "task files under a file": ("probe", "--data good.en", "good.en/sentence_length.txt",
        "no such file"),
    "a task file without columns": ("probe", "--data . --task Tense", "past_present.txt, line 2",
        "tr|va|te TAB label"),
    "a task file in Latin-1": ("probe", "--data . --task SubNm",
        "subj_number.txt, line 2: not UTF-8", "iconv"),
    "a task file that is cut": ("probe", "--data . --task ObjNm", "obj_number.txt",
        "no line that begins with va"),
    "task files without a network": ("probe", "--data senteval --data-dir fetched",
        "sentence_length.txt", "put it at"),
    "two kinds of sentences": ("probe", "--data nowhere --text good.en", "--text",
        "leave out --data"),
    "sentences missing": ("probe", "--text gone.txt", "gone.txt", "no such file"),
    "sentences unreadable": ("probe", "--text unreadable.en", "unreadable.en", "cannot read"),
    "sentences in Latin-1": ("probe", "--text latin.en", "latin.en, line 2: not UTF-8", "iconv"),
    "huge sentences": ("probe", "--text huge.txt", "huge.txt", "too large", "1 GiB"),
    "no sentences": ("probe", "--text empty.en", "--text empty.en", "5 to 28 words"),
    "too few sentences": ("probe", "--text good.en --task SeLen", "fewer --sentences", "more text"),
    "a task that needs trees": ("probe", "--text good.en --task Tense", "--task Tense",
        "SeLen, WC, BShif"),
    "an encoder that is none": ("probe", "--encoder runs/nowhere", "runs/nowhere", "no run folder"),
    "an encoder cut short": ("probe", "--encoder runs/cut --text good.en", "cut/best.pt",
        "cut short"),
    "an encoder and a model": ("probe", "--encoder runs/sound --agg em", "--encoder", "leave out"),
    "a model that probing lacks": ("probe", "--models baseline --agg em", "--agg",
        "add it to --models"),
    "a layer that probing lacks": ("probe", "--agg em --agg-at enc:9", "--agg-at enc:9", "enc:1"),
    "probing in a translation run": ("probe", "--name sound --device cpu", "runs/sound", "--name"),
    "probing in a later version": ("probe", "--name future --device cpu", "format 99", "--name"),
    "probing where nobody writes": ("probe", f"--runs {READ_ONLY} --device cpu", READ_ONLY,
        "cannot open"),
    "probe, no such GPU": ("probe", f"--device {NO_GPU}", f"--device {NO_GPU}",
        "choose cpu or auto"),
    # analysis
    "analysis of no run": ("analyze", "runs/nowhere", "runs/nowhere", "no run folder"),
    "analysis of a damaged run": ("analyze", "runs/sound runs/cut", "cut/best.pt", "cut short"),
    "analysis of a later version": ("analyze", "runs/future", "future/config.json", "format 99"),
    "a run named twice": ("analyze", "runs/sound runs/../runs/sound", "named twice"),
    "a layer above the top": ("analyze", "runs/sound --layer 9", "--layer 9", "layers 1 to 1"),
    "a sentence after the last": ("analyze", "runs/sound --sentence 99", "--sentence 99",
        "1 to 40"),
    "a sentence of nothing": ("analyze", ["runs/sound", "--sentence", " "], "--sentence is empty"),
    "a sentence too long to draw": ("analyze", ["runs/sound", "--sentence", "é" * 99_000],
        "--sentence", "64 fit"),
    "a sentence before the first": ("analyze", "runs/sound --sentence 0", "--sentence 0",
        "1 to 40"),
    "a sentence beyond all numbers": ("analyze", f"runs/sound --sentence {'9' * 9999}",
        "--sentence 9", "1 to 40"),
    "analysis of no such checkpoint": ("analyze", "runs/sound --checkpoint step-9", "--checkpoint",
        "best, last"),
    "another test text missing": ("analyze", "runs/sound --test gone", "gone.en does not exist"),
    "bins in disorder": ("analyze", "runs/sound --bins 20 10", "--bins 20 10", "rise"),
    "other text missing": ("analyze", "runs/sound --valid gone", "gone.en does not exist"),
    "other text in Latin-1": ("analyze", "runs/sound --valid latin", "latin.en, line 2: not UTF-8"),
    "figures over a file": ("analyze", "runs/sound --out good.en --only disagreement",
        "--out good.en", "choose"),
    "figures where nobody writes": ("analyze", f"runs/sound --out {READ_ONLY}",
        f"--out {READ_ONLY}", "choose"),
    "analyze, no such GPU": ("analyze", f"runs/sound --device {NO_GPU}", f"--device {NO_GPU}",
        "choose cpu or auto"),
    # the papers' tables
    "no table": ("reproduce", "", "which table", "--list"),
    "an unknown table": ("reproduce", "li2018-99", "li2018-99", "choose from"),
    "a flag that the rows set": ("reproduce", TABLE + "--agg em", "--agg", "leave it out"),
    "a flag that one row sets": ("reproduce", "iterations --iterations 2", "--iterations",
        "leave it out"),
    "a seed in place of seeds": ("reproduce", TABLE + "--seed 3", "--seed", "--seeds"),
    "a table of twice the largest size": ("reproduce", "gu-2 --arch big", "--arch big",
        "tiny, small or base"),
    "a table on missing text": ("reproduce", TABLE + "--train gone", "gone.en does not exist"),
    "a table of heads that do not divide": ("reproduce", TABLE + "--heads 3",
        "a multiple of --heads 3"),
    "a table under a file": ("reproduce", TABLE + "--runs good.en/runs", "good.en/runs",
        "choose another place"),
    "a table where nobody writes": ("reproduce", TABLE + f"--runs {READ_ONLY}", READ_ONLY,
        "choose another place"),
    "reproduce, no such GPU": ("reproduce", TABLE + f"--device {NO_GPU}", f"--device {NO_GPU}",
        "choose cpu or auto"),
    # measuring
    "measurements in no folder": ("bench", "--json no/such.json", "--json no/such.json",
        "choose another place"),
    "measurements over a folder": ("bench", "--json runs", "--json runs", "choose another name"),
    "measurements where nobody writes": ("bench", f"--json {READ_ONLY}", f"--json {READ_ONLY}",
        "cannot write"),
    "an unknown row": ("bench", "--rows magic", "--rows", "magic"),
    "bench, no such GPU": ("bench", f"--device {NO_GPU}", f"--device {NO_GPU}",
        "choose cpu or auto"),
}


NEEDS = {"unreadable": NOT_READ, READ_ONLY: "/proc", "huge": "huge.txt"}    # not on every system


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_errors_are_one_line_and_overwrite_nothing(case, place, monkeypatch, capsys):
    script, argv, *words = case
    for name, path in NEEDS.items():
        if name in str(argv) and not (place / path).exists():
            pytest.skip(f"this system has no {path}")
    monkeypatch.chdir(place)
    monkeypatch.setattr(download.urllib.request, "urlopen", refuse)
    before = traces(place)
    refused(script, argv, capsys, *words)
    after = traces(place)
    assert after == before, {path for path in after | before if after.get(path) != before.get(path)}


def refuse(*args, **kwargs):
    """No test reaches for the network."""
    raise OSError("network is unreachable")


# ---- Every flag of every script

ABSURD = ["", "x", "nan", "inf", "-inf", "-3", "-1e999", "1e99", "1" + "0" * 400, "9" * 5000,
          "0x10", "1;2", "٣" * 12]


def arguments(script: str) -> list[argparse.Action]:
    """The arguments of a script."""
    settings = importlib.import_module(script).Settings
    return flags.parser_of(settings, f"{script}.py", "")._actions


def options(script: str) -> list[argparse.Action]:
    """The optional arguments of a script but --help."""
    return [action for action in arguments(script)
            if action.option_strings and action.dest != "help"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_number_has_a_range_and_every_choice_is_named(script, capsys):
    numbers = 0
    for action in options(script):
        name = action.option_strings[-1]
        assert action.type not in (int, float, bool, eval), f"{name}: a number without a range"
        if action.choices:
            first = str(list(action.choices)[0])
            refused(script, [name, "no-such-choice"], capsys, name, "no-such-choice", first)
        elif action.type is not None and action.type.__qualname__.startswith("number."):
            numbers += 1
            for text in ABSURD:
                refused(script, [f"{name}={text}"], capsys, name)
    assert numbers, "no number found: has flags.number another name?"


@pytest.mark.parametrize("script", SCRIPTS)
def test_unknown_and_shortened_flags(script, capsys):
    wants = False
    for action in arguments(script):
        wants |= not action.option_strings and action.nargs not in ("*", "?")
    refused(script, ["--no-such-flag"], capsys, "required" if wants else "--no-such-flag")
    longest = max((action.option_strings[0] for action in options(script)), key=len)
    refused(script, [longest[:-1], "x"], capsys)
    refused(script, ["a\nb\x1b", "--no-such-flag"], capsys)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_names_every_flag(script, capsys):
    status, output, error = call(script, ["--help"], capsys)
    assert status == 0 and error == ""
    shown = [action for action in options(script) if action.help != argparse.SUPPRESS]
    assert all(name in output for action in shown for name in action.option_strings)


# ---- Input that is odd and not wrong

ODD = ["\ufeffa man sees the dog\r\n", "\r\n", "nul \0 bell \x07\r\n",
       "\u05e9\u05dc\u05d5\u05dd \u202ea \u0645\n",
       "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea e\u0301\r\n", "a\u2028b\x85c\x0bd\n",
       "x" * 10 ** 4 + "\n", "word " * 150 + "\n", "\U0010ffff\ufffe\u3000\n", "no line end"]


def test_the_table_covers_every_script():
    """The seven scripts, with at least four cases each, and forty in all."""
    tried = Counter(case[0] for case in CASES.values())
    assert len(SCRIPTS) == 7 and set(tried) == set(SCRIPTS)
    assert min(tried.values()) >= 4 and tried.total() >= 40


def test_odd_text_is_trained_on_and_translated(place, tmp_path, monkeypatch, capsys):
    """A byte-order mark, Windows line ends, NUL, right-to-left text, emoji, a very long word."""
    monkeypatch.chdir(tmp_path)
    good = (place / "good.en").read_bytes()
    for language in ("en", "de"):
        odd = "".join(ODD[:1] + ODD).encode()
        Path(f"odd.{language}").write_bytes(odd + b"\n" + good)
        Path(f"few.{language}").write_bytes(b"\xef\xbb\xbfa dog\r\na man\r\n")
    assert call("train_mt", RESUME + "odd --train odd --valid few --beam 1", capsys)[0] == 0
    Path("in.txt").write_bytes("".join(ODD).encode())
    argv = ("runs/odd --input in.txt --reference in.txt --output out.txt --beam 1 --device cpu"
            " --max-tokens 65536")
    status, output, error = call("translate", argv, capsys)
    assert status == 0 and output == "" and error.startswith("BLEU ") and error.count("\n") == 1
    lines = Path("out.txt").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == "" and len(lines) == len(ODD) and lines[1] == ""
    assert all(len(line.splitlines()) < 2 for line in lines)


def test_hundreds_of_random_lines(tmp_path, capsys):
    """As soak/translate_random.py does with ten thousand."""
    from soak.translate_random import check, random_lines, random_run
    lines = random_lines(300, seed=1, longest=60)
    random_run(tmp_path / "run")
    (tmp_path / "in").write_bytes("".join(line + "\n" for line in lines).encode())
    argv = f"{tmp_path}/run --device cpu --beam 1 --max-tokens 65536 --input {tmp_path}/in"
    assert call("translate", f"{argv} --output {tmp_path}/out", capsys)[0] == 0
    counts = check(lines, (tmp_path / "out").read_bytes())
    assert counts["lines"] == 300 and counts["answered with text"] > 200
    assert counts["with control characters"] > 20
