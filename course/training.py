"""A small corpus and a small training, which sessions 6 and 7 share."""
from itertools import islice

import torch

import tatoeba
from nmt.batches import training_updates
from nmt.corpus import Pairs
from nmt.encoded import encode_pairs
from nmt.machine import Machine
from nmt.tokenizer import train_tokenizer
from train_mt import Objective, Training, learning_rate, train_step
from transformer import Transformer, TransformerConfig

torch.set_num_threads(1)        # the tensors are too small to share out
STEPS = 30

pairs = Pairs(*zip(*tatoeba.pairs("train")[:500]))
tokenizer = train_tokenizer([*pairs.source, *pairs.target], vocab_size=600)
encoded = encode_pairs(tokenizer, pairs)


def train(**mechanisms):
    """Trains a small model with these mechanisms. Returns it and [cross-entropy, D] per step."""
    settings = Training(steps=STEPS, warmup=20, lr=0.016)
    config = TransformerConfig(tokenizer.get_vocab_size(), d_model=32, heads=4, layers=2, d_ff=64,
                               dropout=0.0, **mechanisms)
    machine = Machine(torch.device("cpu"))
    torch.manual_seed(1)
    model = Transformer(config)
    objective = Objective(model, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step in islice(training_updates(encoded, (0, 0), machine, max_tokens=256), STEPS):
        optimizer.param_groups[0]["lr"] = learning_rate(len(losses) + 1, settings)
        total, _ = train_step(objective, optimizer, step, machine, config.reg_weight, clip=1.0)
        losses.append((total / step.tokens).tolist())
    return model, losses
