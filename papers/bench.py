"""Measures the speed and memory of every mechanism.

    OMP_NUM_THREADS=1 python -m papers.bench                                        # one CPU core
    python -m papers.bench --arch base --vocab-size 32000 --max-tokens 32768        # a GPU

The rows take turns, with a new model in every turn. The table has medians over the turns; "ratio"
is the speed relative to `linear` in the same turn. The text is random: sentences of 24 tokens.
Training is the step of train_mt.py; decoding is its beam search with beam 4, in which no hypothesis
ends early.
"""
import gc
import statistics
import sys
import time
import warnings
from dataclasses import dataclass

import nmt.packages  # isort: skip  # noqa: F401 (first: it reports missing ones)
import torch
import torch.nn as nn
from tabulate import tabulate
from tqdm import tqdm

from nmt.batches import Batch, Step
from nmt.flags import ModelFlags, flag, parse, run
from nmt.loss import Objective
from nmt.machine import DEVICES, Machine, machine_defaults, pick_device, processor, setup_machine
from nmt.search import beam_search
from nmt.tokenizer import BOS, EOS, SPECIAL_TOKENS
from train_mt import train_step
from transformer import PAD, SIZES, Embedding, Layer, Transformer, TransformerConfig

LENGTH = 24                             # tokens of a sentence, without BOS and EOS
BEAM = 4
LAYERS = Layer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer


# flags of train_mt.py; torch: torch.nn.Transformer
ROWS = {
    "linear": "",
    "torch": "",
    "reg-output": "--reg output",
    "reg-enc": "--reg subspace position output --reg-at enc",
    "dynamic-enc": "--agg dynamic --agg-at enc",
    "em-enc": "--agg em --agg-at enc",
    "em-low": "--agg em",
    "em-all": "--agg em --agg-at enc cross dec",
    "gu-dynamic": "--agg gu-dynamic",
    "gu-em": "--agg gu-em",
    "capsule": "--capsule-attention enc dec",
}


@dataclass
class Settings:
    """The flags of bench.py."""
    arch: str = flag("tiny", f"size of the models: {', '.join(SIZES)}", choices=tuple(SIZES),
                     metavar="SIZE")
    vocab_size: int = flag(10_000, "joint vocabulary", low=100, high=10 ** 6)
    rows: tuple[str, ...] = flag(tuple(ROWS), "what to measure beside linear (all): "
                                 f"{', '.join(ROWS)}", choices=tuple(ROWS), metavar="ROW")
    max_tokens: int = flag(4096, "size of a training batch", low=16, high=10 ** 8)
    batches: int = flag(2, "training batches per turn", low=1, high=1000)
    sentences: int = flag(32, "sentences to decode at once; with CUDA 512", low=1, high=10 ** 6)
    repeats: int = flag(3, "turns of every row", low=1, high=1000)
    device: str = flag("auto", DEVICES)
    amp: bool = flag(False, "bfloat16 matrix products (on where the processor has them)")
    compile: bool = flag(False, "compile the layers for training: some minutes more per turn")


def presets(s: Settings) -> dict:
    """The defaults that depend on the machine."""
    return {"amp": machine_defaults(s.device)["amp"],
            "sentences": 512 if pick_device(s.device).type == "cuda" else 32}


# ---- One turn of one row

class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` (pre-norm) with what it lacks for translation: embeddings, positions,
    masks and a tied output matrix. Only for training: it keeps no keys and values."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.embedding = Embedding(config.vocab_size, config.d_model, config.dropout)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "enable_nested_tensor")        # not with pre-norm
            self.body = nn.Transformer(
                config.d_model, config.heads, config.layers, config.layers, config.d_ff,
                config.dropout, batch_first=True, norm_first=True)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def hidden(self, source, target_in):
        """source [B, L_s], target_in [B, L_t] -> vectors [B, L_t, d] before the output matrix, and
        no heads."""
        padding = source == PAD                                              # [B, L_s]
        ahead = nn.Transformer.generate_square_subsequent_mask(target_in.shape[1], source.device)
        states = self.body(
            self.embedding(source), self.embedding(target_in), tgt_mask=ahead, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding)
        return states, {}

    def disagreement(self, heads: dict, source_mask, target_mask):
        """Always 0."""
        return torch.zeros((), device=source_mask.device)


def build(name: str, s: Settings, device) -> nn.Module:
    """The model of a row with random parameters."""
    torch.manual_seed(1)
    flags = parse(ModelFlags, ROWS[name].split())
    config = flags.model_config(s.vocab_size, **SIZES[s.arch])
    kind = TorchTransformer if name == "torch" else Transformer
    with torch.device(device):
        model = kind(config)
    for module in model.modules():
        if s.compile and isinstance(module, LAYERS):
            module.compile(dynamic=True)
    return model


def random_ids(vocab_size: int, sentences: int) -> torch.Tensor:
    """Sentences [B, LENGTH] of random tokens, none of them special."""
    return torch.randint(len(SPECIAL_TOKENS), vocab_size, (sentences, LENGTH))


def random_step(s: Settings) -> Step:
    """An update of one full batch."""
    sentences = max(1, s.max_tokens // (LENGTH + 1))     # targets are followed by EOS
    ids = random_ids(s.vocab_size, sentences)
    target = nn.functional.pad(ids, (1, 1), value=EOS)                       # [B, LENGTH + 2]
    target[:, 0] = BOS
    batch = Batch(ids, target)
    if torch.cuda.is_available():                        # as the DataLoader of training does
        batch = Batch(*(x.pin_memory() for x in batch))
    return Step([batch], sentences * (LENGTH + 1), (0, 0))


def measure_seconds(f, device: torch.device) -> float:
    """Seconds that f takes, after two calls that are not counted: Adam allocates its averages in
    the first. On a CPU with one thread its CPU time, which other programs disturb least."""
    f()
    f()
    one_thread = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if one_thread else time.perf_counter
    torch.get_device_module(device).synchronize()
    started = clock()
    f()
    torch.get_device_module(device).synchronize()
    return clock() - started


def training_speed(model, s: Settings, machine: Machine) -> float:
    """Target tokens per second in training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, betas=(0.9, 0.98), eps=1e-9,
                                 fused=True)
    objective = Objective(model).train()
    steps = [random_step(s) for _ in range(s.batches)]

    def train() -> None:
        for step in steps:
            train_step(objective, optimizer, step, machine, 0.1, reg_weight=1.0, amp=s.amp)

    return sum(step.tokens for step in steps) / measure_seconds(train, machine.device)


@torch.no_grad()
def decoding_speed(model, s: Settings, device: torch.device) -> float:
    """Sentences per second in beam search."""
    source = random_ids(s.vocab_size, s.sentences).to(device)
    model.eval().output.weight[EOS] = 0     # its logit, 0, is never among the best of a vocabulary

    def decode() -> None:
        beam_search(model, source, BEAM, max_length=LENGTH + 1)

    with torch.compiler.set_stance("force_eager"):       # shapes differ at every step
        return s.sentences / measure_seconds(decode, device)


def measure_turn(name: str, s: Settings, machine: Machine) -> dict:
    """One turn of a row: parameters, speeds (None: not measured), and with CUDA the peak memory of
    training in bytes."""
    torch.compiler.reset()      # the compiler gives up where many models share their code
    gc.collect()                # the modules of the model before refer to each other
    gpu = machine.device.type == "cuda"
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = build(name, s, machine.device)
    training = training_speed(model, s, machine)
    return {"parameters": sum(p.numel() for p in model.parameters()),
            "memory": torch.cuda.max_memory_allocated() if gpu else None,
            "training": training,
            "decoding": None if name == "torch" else decoding_speed(model, s, machine.device)}


# ---- The table

def speed_table(rows: dict[str, list[dict]]) -> str:
    """The table as text: medians over the turns of a row; ratios are to `linear` in the same
    turn."""
    header = ["", "parameters", "train tok/s", "ratio", "decode sent/s", "ratio", "GPU MiB"]
    lines = []
    for name, turns in rows.items():
        line = [f"{name} {ROWS[name]}", turns[0]["parameters"]]
        for what in ("training", "decoding"):
            if turns[0][what] is None:
                line += [None, None]
                continue
            ratios = [turn[what] / base[what] for turn, base in zip(turns, rows["linear"])]
            line += [statistics.median(turn[what] for turn in turns), statistics.median(ratios)]
        memory = turns[0]["memory"]
        lines.append([*line, memory and memory / 2 ** 20])
    return tabulate(lines, header, "plain", intfmt=",", missingval="",
                    floatfmt=["", "", ",.0f", ".2f", ",.2f", ".2f", ",.0f"])


def bench(s: Settings) -> None:
    """Measures and prints the table."""
    machine = setup_machine(s.device)
    name = processor(machine.device)
    if machine.device.type == "cpu":
        name += f", threads: {torch.get_num_threads()}"
    names = [row for row in ROWS if row in s.rows or row == "linear"]
    rows = {row: [] for row in names}                    # the turns of each
    for row in tqdm(names * s.repeats, unit="turn", disable=None):
        rows[row].append(measure_turn(row, s, machine))
    print(f"{name}; PyTorch {torch.__version__}; size {s.arch}, vocabulary {s.vocab_size:,}, "
          f"batches of {s.max_tokens:,} tokens; {'bfloat16' if s.amp else 'float32'}"
          + ", layers compiled" * s.compile
          + f"\n\n{speed_table(rows)}")


def main(argv=None) -> int:
    """Runs the command line; returns the exit status."""
    return run(bench, Settings, argv, presets)


if __name__ == "__main__":
    sys.exit(main())
