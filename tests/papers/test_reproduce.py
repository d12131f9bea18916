"""papers/reproduce.py: which runs a table has, and what is printed."""
import re

import pytest
from small_run import TINY, small_corpus

from papers import reproduce
from papers.reproduce import plan, settings_of
from papers.tables import TABLES, Row, Table


def test_tables_share_runs_which_come_seed_by_seed():
    commands, folders = plan(["duan-3", "duan-4"], ["--data", "multi30k"], [2, 1])
    assert len(commands) == 12                           # both have a baseline and `enc`
    assert all(folder.name.endswith("seed2") for folder in [*commands][:6])
    both, enc = TABLES["duan-3"].rows[-1], TABLES["duan-4"].rows[-1]
    assert folders["duan-3", both] == folders["duan-4", enc]
    for folder, command in commands.items():
        _, _, s = settings_of(command)
        assert folder.name == s.name


def test_big_is_twice_the_size_of_all_rows():
    commands, folders = plan(["li2018-3", "li2021-6"], ["--d-model", "32"], [1])
    sizes = []
    for name, i in (("li2018-3", 0), ("li2018-3", 2), ("li2021-6", 0)):
        folder, = folders[name, TABLES[name].rows[i]]
        _, config, _ = settings_of(commands[folder])
        sizes.append((config.d_model, config.d_ff, config.heads))
    assert sizes == [(32, 256, 4), (64, 512, 8), (64, 512, 4)]


@pytest.mark.parametrize("words, message", [
    ("duan-9", "no table duan-9"), ("duan-3 --steps 0", "--steps"),
    ("duan-3 --name x", "x: would have several rows: leave out --name")])
def test_mistakes_are_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as exit:
        reproduce.main([*words.split(), "--dry-run"])
    error = capsys.readouterr().err
    assert exit.value.code == 2 and message in error and error.count("\n") == 1


# ---- Tables

def test_a_table_has_the_numbers_of_its_runs():
    """Gains are to the baseline of the row's size."""
    def tests_of(parameters, *bleu):
        return [dict(bleu=x, parameters=parameters, tokens_per_second=100 * x) for x in bleu]

    rows = TABLES["li2018-3"].rows
    tests = {("li2018-3", row): [] for row in rows}
    tests["li2018-3", rows[0]] = tests_of(1000, 20.0, 30.0)
    tests["li2018-3", rows[1]] = tests_of(1250, 32.0)
    tests["li2018-3", rows[3]] = tests_of(5000, 40.0)
    text = reproduce.format_table("li2018-3", tests)
    heading, _, header, *lines, note = [re.split("  +", line) for line in text.splitlines()]
    assert header[1:7] == ["seeds", "BLEU", "gain", "parameters", "tokens/s", "|"]
    assert lines == [
        ["base", "2", "25.00 ± 7.07", "1,000", "2,500", "|", "1.21", "24.13", "1.28", "27.64"],
        ["base + Disagreement", "1", "32.00", "+7.00", "1,250", "3,200", "|", "1.06", "24.85↑",
         "1.10", "28.51↑"],
        ["big", "|", "0.58", "24.56", "0.61", "28.58"],
        ["big + Disagreement", "1", "40.00", "5,000", "4,000", "|", "0.47", "25.08↑", "0.51",
         "29.28↑"]]
    assert reproduce.measured_cells(tests_of(1, 25.0), tests_of(1, 25.001))[2] == "+0.00"
    assert heading[0].endswith(": main results. Published on WMT17 Zh-En and WMT14 En-De.")
    assert note[0].startswith("[1] ↑: significantly better")


def test_a_table_is_trained_and_printed(tmp_path, monkeypatch, capsys):
    """The second row diverges: its run fails, and the table lacks it. A finished run is not
    trained again."""
    table = Table("Paper", "title", "", (), (Row("plain"), Row("wrong", "--lr 1e30")))
    monkeypatch.setitem(TABLES, "new", table)
    words = ["new", *small_corpus(tmp_path), *TINY.split(), "--steps", "2", "--jobs", "2"]
    with pytest.raises(SystemExit, match="2"):
        reproduce.main(words)
    *_, plain, wrong, _, missing = capsys.readouterr().out.splitlines()
    assert plain.split()[:2] == ["plain", "1"] and wrong.split() == ["wrong", "|"]
    assert re.fullmatch(r"1 of 2 runs are missing: \S+-seed1", missing)
    reproduce.main([*words, "--dry-run"])
    first, _, *_, again, wrong, _, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("python train_mt.py --src en") and again == plain
