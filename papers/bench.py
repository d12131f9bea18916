"""Measures the speed and memory of every mechanism beside `torch.nn.Transformer`.

    OMP_NUM_THREADS=1 python -m papers.bench                      # one CPU core
    python -m papers.bench --rows "--agg em" --arch base --vocab-size 32000

A row is a string of flags of train_mt.py, or torch for torch.nn.Transformer. All other flags are
those of train_mt.py, for every row. The default is size tiny with 10,000 words and batches of 4,096
tokens.

The rows take turns. Every turn has a new model and prints a line. The table at the end has medians
over the turns; its last two columns are medians of the ratios to the baseline in the same turn. The
text is random: sentences of 24 tokens. Training is the step of train_mt.py; decoding is its beam
search with beam 4, in which no hypothesis ends early. Values that are not measured are nan.

torch.nn.Transformer trains as in other programs: in a process that gives freed memory back to the
system, and with Adam as it is by default.
"""
import gc
import math
import time
import warnings
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
from tabulate import tabulate

import train_mt
from nmt.batches import Batch, Update, rectangle
from nmt.command_line import count, flag, run
from nmt.machine import Machine, setup_machine
from nmt.replay import Replay
from nmt.search import beam_search
from nmt.tokenizer import BOS, EOS, SPECIAL_TOKENS
from papers.reproduce import settings_of
from papers.tables import TABLES
from transformer import PAD, Transformer, TransformerConfig

LENGTH = 24                             # tokens of a sentence, without BOS and EOS
BEAM = 4
DEFAULTS = "--data multi30k --vocab-size 10000 --max-tokens 4096"
ROWS = ("torch", *(row.flags for row in TABLES["verdicts"].rows if row.flags))


@dataclass
class Settings:
    """Rows."""
    rows: tuple[str, ...] = flag(ROWS, "rows beside the baseline (default: torch, and those of the "
                                 "table `verdicts` of papers.reproduce)", metavar='"FLAGS"')
    repeats: int = flag(3, "turns of every row", type=count)


class TorchTransformer(Transformer):
    """The baseline with torch.nn.Transformer (pre-norm) as encoder and decoder. It has no cache of
    keys and values, so it is only for training."""

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "enable_nested_tensor")        # not with pre-norm
            whole = nn.Transformer(config.d_model, config.heads, config.layers, config.layers,
                                   config.d_ff, config.dropout, batch_first=True, norm_first=True)
        self.encoder, self.decoder = whole.encoder, whole.decoder

    def hidden(self, source, target_in):
        """source [B, L_s], target_in [B, L_t] -> (vectors [B, L_t, d], no heads)."""
        padding = source == PAD                                              # [B, L_s]
        ahead = nn.Transformer.generate_square_subsequent_mask(target_in.shape[1], source.device)
        memory = self.encoder(self.embedding(source), src_key_padding_mask=padding)
        states = self.decoder(self.embedding(target_in), memory, tgt_mask=ahead,
                              tgt_is_causal=True, memory_key_padding_mask=padding)
        return states, {}


class Turn(NamedTuple):
    """The measurements of a row in a turn; NaN: not measured."""
    parameters: int
    training: float             # target tokens per second
    decoding: float             # sentences per second
    memory: float               # GPU memory in training, in MiB


def row_settings(row: str, words: list[str]) -> tuple:
    """The text, the model and the training of a row; words: the flags of all rows."""
    return settings_of([*DEFAULTS.split(), *words, *row.replace("torch", "").split()])


def build(row: str, config: TransformerConfig, device) -> Transformer:
    """The model of a row with random parameters, which never predicts EOS."""
    torch.manual_seed(1)
    with torch.device(device), torch.no_grad():
        model = TorchTransformer(config) if row == "torch" else Transformer(config)
        model.output.weight[EOS] = 0    # the logit 0 is never among a vocabulary's best
    return model


def random_step(vocab_size: int, s: train_mt.Training) -> Update:
    """An update of one micro-batch of random sentences, as many as --max-tokens holds."""
    sentences = max(1, s.max_tokens // (LENGTH + 1))     # targets are followed by EOS
    source = torch.randint(len(SPECIAL_TOKENS), vocab_size, (sentences, LENGTH))
    target = nn.functional.pad(source, (1, 1), value=EOS)                    # [B, LENGTH + 2]
    target[:, 0] = BOS
    batch = Batch(source, target)
    if s.graphs:
        batch = rectangle(batch, s.max_tokens)
    return Update([batch], sentences * (LENGTH + 1), (0, 0))


def measure_seconds(f, device: torch.device) -> float:
    """The seconds of one call of f (on a GPU the mean of five, which overlap as in training), after
    two that do not count: Adam allocates its averages in the first, a CUDA graph is recorded in the
    second. On a CPU with one thread this is CPU time, which other programs disturb least."""
    f()
    f()
    calls = 5 if device.type == "cuda" else 1
    one_thread = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if one_thread else time.perf_counter
    torch.get_device_module(device).synchronize()
    started = clock()
    for _ in range(calls):
        f()
    torch.get_device_module(device).synchronize()
    return (clock() - started) / calls


def measure_turn(row: str, words: list[str], machine: Machine) -> Turn:
    """Trains and decodes with a new model of a row."""
    torch.compiler.reset()      # the compiler gives up where many models share their code
    gc.collect()                # the modules of the model before refer to each other
    device = machine.device
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    _, config, s = row_settings(row, words)
    model = build(row, config, device)
    objective = train_mt.Objective(model, s.label_smoothing).train()
    if s.compile:
        objective.compile_parts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, fused=row != "torch" or None)
    step = random_step(config.vocab_size, s)
    replay = Replay() if s.graphs else None

    def update():
        train_mt.train_step(objective, optimizer, step, machine, config.reg_weight, s.clip, s.amp,
                            replay)

    training = step.tokens / measure_seconds(update, device)
    memory = torch.cuda.max_memory_allocated() / 2 ** 20 if device.type == "cuda" else math.nan
    decoding = math.nan
    if row != "torch":
        model.eval()
        sentences = 512 if device.type == "cuda" else 32
        source = torch.randint(len(SPECIAL_TOKENS), config.vocab_size, (sentences, LENGTH))
        source = source.to(device)

        def decode():
            with torch.compiler.set_stance("force_eager"):           # shapes differ at every step
                beam_search(model, source, BEAM, max_length=LENGTH + 1)

        decoding = sentences / measure_seconds(decode, device)
    return Turn(sum(p.numel() for p in model.parameters()), training, decoding, memory)


def measure_apart(row: str, words: list[str], machine: Machine) -> Turn:
    """`measure_turn` in a process of its own, where `keep_freed_memory` was not called."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(measure_turn, (row, words, machine))


def speed_table(rows: dict[str, list[Turn]]) -> str:
    """The medians of the turns of every row, and their ratios to the baseline, "", of the turn."""
    lines = []
    for row, turns in rows.items():
        ratios = Turn(*np.median(np.divide(turns, rows[""]), axis=0))
        lines.append([row or "baseline", *np.median(turns, axis=0), ratios.training,
                      ratios.decoding])
    header = ["", "parameters", "train tok/s", "decode sent/s", "GPU MiB", "train", "decode"]
    return tabulate(lines, header, "plain",
                    floatfmt=["", ",.0f", ",.0f", ",.2f", ",.0f", ".2f", ".2f"])


def bench(settings: Settings, words: list[str]) -> None:
    """Measures the rows in turn, prints every turn, and the table at the end. words: the flags of
    train_mt.py."""
    _, config, s = row_settings("", words)
    machine = setup_machine(s.device)
    print(f"{machine.device}, threads: {torch.get_num_threads()}; PyTorch "
          f"{torch.__version__}; size {s.arch}, vocabulary {config.vocab_size:,}, batches of "
          f"{s.max_tokens:,} tokens; {'bfloat16' if s.amp else 'float32'}"
          f"{', layers compiled' * s.compile}{', CUDA graphs' * s.graphs}")
    rows = {row: [] for row in ("", *settings.rows)}     # their turns
    for number in range(1, settings.repeats + 1):
        for row, turns in rows.items():
            measure = measure_apart if row == "torch" else measure_turn
            turns.append(measure(row, words, machine))
            parameters, training, decoding, memory = turns[-1]
            print(f"turn {number} of {settings.repeats}, {row or 'baseline'}: {training:,.0f} "
                  f"target tokens/s, {decoding:,.2f} sentences/s, {memory:,.0f} MiB")
    print(f"\n{speed_table(rows)}")


def main(argv=None) -> None:
    run(bench, Settings, argv=argv, others=True)


if __name__ == "__main__":
    main()
