"""Measures the speed and memory of every mechanism beside `torch.nn.Transformer`.

    OMP_NUM_THREADS=1 python -m papers.bench                      # one CPU core
    python -m papers.bench --arch base --vocab-size 32000 --max-tokens 32768

The rows take turns. Every turn has a new model and prints a line. The table at the end has medians
over the turns; its last two columns are medians of the ratios to `linear` in the same turn. The
text is random: sentences of 24 tokens. Training is the step of train_mt.py, compiled or with CUDA
graphs where that uses them by itself; decoding is its beam search with beam 4, in which no
hypothesis ends early. "GPU busy" is the share of a training step in which the GPU runs kernels.
Values that are not measured are nan.
"""
import gc
import math
import sys
import time
import warnings
from dataclasses import dataclass
from typing import NamedTuple

if not __package__:
    print("error: start it in the project's folder: python -m papers.bench", file=sys.stderr)
    sys.exit(2)

import numpy as np
import torch
import torch.nn as nn
from tabulate import tabulate
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import train_mt
from nmt.batches import Batch, Step, rectangle
from nmt.flags import ModelFlags
from nmt.replay import Replay, check_graphs
from nmt.search import beam_search
from nmt.tokenizer import BOS, EOS, SPECIAL_TOKENS
from tools.command_line import command_line, flag, parse, run
from tools.machine import (
    DEVICES,
    Machine,
    check_compiler,
    pick_device,
    processor,
    setup_machine,
)
from train_mt import Objective, train_step
from transformer import PAD, SIZES, Transformer, TransformerConfig

LENGTH = 24                             # tokens of a sentence, without BOS and EOS
BEAM = 4
ROWS = {                                # flags of train_mt.py
    "linear": "",
    "torch": "",                        # torch.nn.Transformer
    "reg-output": "--reg output",
    "dynamic-enc": "--agg dynamic --agg-at enc",
    "em-enc": "--agg em --agg-at enc",
    "em-low": "--agg em",
    "uniform": "--agg em --iterations 1",
    "em-output": "--agg em --reg output",
    "em-all": "--agg em --agg-at enc cross dec",
    "gu-dynamic": "--agg gu-dynamic",
    "gu-em": "--agg gu-em",
    "capsule": "--capsule-attention enc dec",
    "one-head": "--heads 1",
}
GPU_ROWS = ("em-low", "reg-output", "capsule", "gu-em")


@dataclass
class Settings:
    """The rows, and the sizes and the machine that all of them share."""
    arch: str = flag("tiny", f"size of the models: {', '.join(SIZES)}", choices=tuple(SIZES),
                     metavar="SIZE")
    heads: int | None = flag(None, "heads of every row but one-head (as the size has)", low=1)
    vocab_size: int = flag(10_000, "size of the joint vocabulary", low=100, high=10 ** 6)
    rows: tuple[str, ...] = flag(tuple(ROWS), f"rows beside linear: {', '.join(ROWS)} (all; on a "
                                 f"GPU: {', '.join(GPU_ROWS)})", choices=tuple(ROWS), metavar="ROW")
    max_tokens: int = flag(4096, "size of the training batch", low=16, high=10 ** 8)
    repeats: int = flag(3, "turns of every row", low=1, high=1000)
    device: str = flag("auto", DEVICES)
    amp: bool = flag(False, "bfloat16 matrix products (on if the processor has them)")
    compile: bool = flag(False, "compile the layers for training; a turn takes minutes longer "
                         "(as train_mt.py)")
    graphs: bool = flag(False, "train with CUDA graphs")


def presets(s: Settings) -> dict:
    """The defaults of train_mt.py, and the rows of a GPU."""
    flags = {"arch": s.arch, "data": "multi30k", "device": s.device, "max_tokens": s.max_tokens}
    flags |= {name: getattr(s, name) for name in ("compile", "graphs") if name in s.given}
    usual = parse(train_mt.Settings, command_line(train_mt.Settings, flags), train_mt.presets)
    values = {"amp": usual.amp, "compile": usual.compile, "graphs": usual.graphs}
    if pick_device(s.device).type == "cuda":
        values["rows"] = GPU_ROWS
    return values


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
        memory = self.encoder(self.source_embedding(source), src_key_padding_mask=padding)
        states = self.decoder(self.target_embedding(target_in), memory, tgt_mask=ahead,
                              tgt_is_causal=True, memory_key_padding_mask=padding)
        return states, {}


class Turn(NamedTuple):
    """The measurements of a row in a turn; NaN: not measured."""
    parameters: int
    training: float             # target tokens per second
    decoding: float             # sentences per second
    memory: float               # GPU memory in training, in MiB
    busy: float                 # share of a training step in which the GPU runs kernels


def row_config(name: str, s: Settings) -> TransformerConfig:
    """The model of a row. Raises UserError if it is none with --heads."""
    size = dict(SIZES[s.arch])
    if s.heads:
        size["heads"] = s.heads
    flags = parse(ModelFlags, ROWS[name].split(), lambda _: size)
    return flags.model_config(s.vocab_size)


def build(name: str, s: Settings, device) -> Transformer:
    """The model of a row with random parameters, which never predicts EOS."""
    torch.manual_seed(1)
    config = row_config(name, s)
    with torch.device(device), torch.no_grad():
        model = TorchTransformer(config) if name == "torch" else Transformer(config)
        model.output.weight[EOS] = 0    # the logit 0 is never among a vocabulary's best
    return model


def random_step(s: Settings) -> Step:
    """An update of one micro-batch of random sentences, as many as --max-tokens holds."""
    sentences = max(1, s.max_tokens // (LENGTH + 1))     # targets are followed by EOS
    source = torch.randint(len(SPECIAL_TOKENS), s.vocab_size, (sentences, LENGTH))
    target = nn.functional.pad(source, (1, 1), value=EOS)                    # [B, LENGTH + 2]
    target[:, 0] = BOS
    batch = Batch(source, target)
    if s.graphs:
        batch = rectangle(batch, s.max_tokens)
    return Step([batch], sentences * (LENGTH + 1), (0, 0))


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


def measure_kernels(f, device: torch.device) -> float:
    """The seconds that the GPU's kernels take in one call of f; NaN without a GPU."""
    if device.type != "cuda":
        return math.nan
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        f()
        torch.cuda.synchronize()
    times = [event.self_device_time_total for event in profiler.events()
             if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    return sum(times) / 1e6             # from microseconds


def measure_turn(name: str, s: Settings, machine: Machine) -> Turn:
    """Trains and decodes with a new model of a row."""
    torch.compiler.reset()      # the compiler gives up where many models share their code
    gc.collect()                # the modules of the model before refer to each other
    device = machine.device
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = build(name, s, device)
    objective = Objective(model).train()
    if s.compile:
        objective.compile_parts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, fused=True)
    step = random_step(s)
    replay = Replay() if s.graphs else None

    def update():
        train_step(objective, optimizer, step, machine, 0.1, reg_weight=1.0, amp=s.amp,
                   replay=replay)

    training = measure_seconds(update, device)
    busy = measure_kernels(update, device) / training
    memory = torch.cuda.max_memory_allocated() / 2 ** 20 if device.type == "cuda" else math.nan
    decoding = math.nan
    if name != "torch":
        model.eval()
        sentences = 512 if device.type == "cuda" else 32
        source = torch.randint(len(SPECIAL_TOKENS), s.vocab_size, (sentences, LENGTH)).to(device)
        with torch.compiler.set_stance("force_eager"):   # shapes differ at every step
            seconds = measure_seconds(
                lambda: beam_search(model, source, BEAM, max_length=LENGTH + 1), device)
        decoding = sentences / seconds
    return Turn(sum(p.numel() for p in model.parameters()), step.tokens / training, decoding,
                memory, busy)


def speed_table(rows: dict[str, list[Turn]]) -> str:
    """The medians of the turns of every row, and their ratios to `linear`."""
    lines = []
    for name, turns in rows.items():
        medians = np.median(turns, axis=0)
        ratios = Turn(*np.median(np.divide(turns, rows["linear"]), axis=0))
        lines.append([f"{name} {ROWS[name]}", *medians, ratios.training, ratios.decoding])
    header = ["", "parameters", "train tok/s", "decode sent/s", "GPU MiB", "GPU busy", "train",
              "decode"]
    return tabulate(lines, header, "plain",
                    floatfmt=["", ",.0f", ",.0f", ",.2f", ",.0f", ".2f", ".2f", ".2f"])


def bench(s: Settings) -> None:
    """Measures the rows in turn, prints every turn, and the table at the end."""
    machine = setup_machine(s.device)
    if s.graphs:
        check_graphs(machine, s.max_tokens, s.compile)
    if s.compile:
        check_compiler(machine.device)
    precision = "bfloat16" if s.amp else "float32"
    print(f"{processor(machine.device)}, threads: {torch.get_num_threads()}; PyTorch "
          f"{torch.__version__}; size {s.arch}, vocabulary {s.vocab_size:,}, batches of "
          f"{s.max_tokens:,} tokens; {precision}{', layers compiled' * s.compile}"
          f"{', CUDA graphs' * s.graphs}")
    rows = {name: [] for name in ROWS if name in ("linear", *s.rows)}        # their turns
    for name in rows:                   # so an error comes before the work
        row_config(name, s)
    for number in range(1, s.repeats + 1):
        for name, turns in rows.items():
            turn = measure_turn(name, s, machine)
            print(f"turn {number} of {s.repeats}, {name}: {turn.training:,.0f} target tokens/s, "
                  f"{turn.decoding:,.2f} sentences/s, {turn.memory:,.0f} MiB, GPU busy "
                  f"{turn.busy:.2f}")
            turns.append(turn)
    print(f"\n{speed_table(rows)}")


def main(argv=None) -> int:
    return run(bench, Settings, argv, presets)


if __name__ == "__main__":
    sys.exit(main())
