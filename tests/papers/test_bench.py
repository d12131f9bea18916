"""papers/bench.py on tiny models: the rows, the work, the table; never a time."""
import re

import pytest
import torch

from nmt.search import beam_search
from nmt.tokenizer import EOS
from papers import bench
from transformer import PAD

V = 300  # vocabulary
SMALL = ["--layers", "1", "--d-model", "16", "--heads", "2", "--d-ff", "32", "--vocab-size", str(V),
         "--max-tokens", "128", "--device", "cpu", "--no-amp"]


def build(row: str, device="cpu"):
    _, config, _ = bench.row_settings(row, SMALL)
    return bench.build(row, config, device).eval()


def test_every_row_builds_and_torch_is_as_large_as_the_baseline():
    counts = {row: sum(p.numel() for p in build(row, "meta").parameters())
              for row in ("", *bench.ROWS)}
    assert counts["torch"] == counts[""] < counts["--agg em"]


def test_torch_sees_neither_padding_nor_later_words():
    model = build("torch")
    source = torch.randint(3, V, (2, 6))
    target = torch.randint(3, V, (2, 5))
    source[1, 4:] = PAD
    with torch.no_grad():
        states, _ = model.hidden(source, target)                             # [B, L_t, d]
        alone, _ = model.hidden(source[1:, :4], target[1:, :3])
    torch.testing.assert_close(alone[0], states[1, :3])


def test_no_hypothesis_ends_before_its_limit():
    model = build("")
    assert not model.output.weight[EOS].any()  # otherwise a few seeds would end earlier
    source = torch.randint(3, V, (3, 6))
    for hypotheses in beam_search(model, source, bench.BEAM, max_length=7):
        assert len(hypotheses[0].tokens) == 6  # and EOS


@pytest.mark.parametrize("max_tokens, sentences", [(124, 4), (125, 5)])
def test_a_training_batch_is_full(max_tokens, sentences):
    _, config, s = bench.row_settings("", [*SMALL, "--max-tokens", str(max_tokens)])
    step = bench.random_step(config.vocab_size, s)
    source, target = step.batches[0]
    assert step.tokens == sentences * 25 == (target[:, 1:] != PAD).sum()
    assert source.min() > 2 and torch.equal(target[:, 1:-1], source)


def test_the_command_prints_a_table(capsys):
    """torch is measured in a process of its own."""
    bench.main([*SMALL, "--repeats", "1", "--rows", "torch"])
    heading, *_, header, baseline, torchs = capsys.readouterr().out.splitlines()
    assert "; size tiny, vocabulary 300, batches of 128 tokens; float32" in heading
    assert baseline.split()[0] == "baseline" and baseline.split()[-2:] == ["1.00", "1.00"]
    assert torchs.split()[0] == "torch" and torchs.count("nan") == 3         # no decoding, no GPU


def test_ratios_are_medians_within_a_turn():
    """The median of the ratios, 5/10, 16/20 and 24/40, is not the ratio of the medians."""
    rows = {"": [bench.Turn(7000, speed, 1.0, 2.0) for speed in (10.0, 20.0, 40.0)],
            "--agg em": [bench.Turn(7000, speed, 3.0, 2.0) for speed in (5.0, 16.0, 24.0)]}
    *_, em = bench.speed_table(rows).splitlines()
    assert re.split("  +", em) == ["--agg em", "7,000", "16", "3.00", "2", "0.60", "3.00"]
