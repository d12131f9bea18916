"""Logical inference: which of seven relations holds between two propositional formulas? (Li 2021 §4.3, Fig. 4)

A model that composes what the brackets nest can answer; trained on formulas of at most six operators, it is tested on
one to twelve. The command trains the four models of Fig. 4 and prints their accuracy by number of operators.
Data: logic_data.py. Where the paper leaves a point open it follows Tran et al. 2018 ("The importance of being recurrent
for modeling hierarchical structure"), and so does this file, in their code's terms: as many queries as heads, two;
an inner width of 2d; post-norm; the epoch with the best validation accuracy over all lengths is the one tested.
"""
import json
import math
import statistics
import sys
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from attention import MultiHeadAttention
from checkpoint import RunFolder, atomic_write, load, load_model_state, save
from cli import Parser, UserError, real, run, whole
from logic_data import BINS, LETTERS, RAW_PAIRS, RELATIONS, generate, read_files, relation, split, tokenize, write_files
from transformer import Embedding, Encoder, TransformerConfig, add_model_flags, disagreement

#__all__ = ["relation", "LogicModel", "encode", "batches", "fit", "parser", "main"]
PAD = 0
IDS = {token: i for i, token in enumerate(("(", ")", "not", "and", "or", *LETTERS), 1)}
TRAINED = tuple(size for size in BINS if size <= 6)     # the operators of the training pairs
QUERIES = 2
MODELS = {"baseline": ("linear", ()), "disagreement": ("linear", ("output",)),          # --agg and --reg of Fig. 4
          "aggregation": ("em", ()), "combined": ("em", ("output",))}


# --- pairs as tensors -------------------------------------------------------------------------------------------

class Examples(NamedTuple):
    """Encoded pairs."""
    formulas: Tensor            # [n, 2, L] token ids, the left and the right formula, PAD after their ends
    lengths: Tensor             # [n] tokens of the longer formula
    labels: Tensor              # [n] index into RELATIONS

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs `index` [B]: formulas [B, 2, L'], cut to the longest of them, and labels [B]."""
        width = int(self.lengths[index].max())
        index = index.to(self.labels.device, non_blocking=True)
        return self.formulas[index, :, :width].long(), self.labels[index]


def encode(pairs, device="cpu") -> Examples:
    """Pairs as `Examples`; the lengths stay on the CPU, where batches are made."""
    texts = [bytes(IDS[token] for token in tokenize(text)) for pair in pairs for text in (pair.left, pair.right)]
    width = max(map(len, texts), default=1)
    ids = np.frombuffer(bytearray(b"".join(text.ljust(width, bytes([PAD])) for text in texts)), dtype=np.uint8)
    lengths = torch.tensor([len(text) for text in texts]).view(-1, 2).amax(1)                # [n]
    labels = torch.tensor([RELATIONS.index(pair.relation) for pair in pairs], dtype=torch.long)
    return Examples(torch.from_numpy(ids).view(-1, 2, width).to(device), lengths, labels.to(device))


def batches(lengths: Tensor, size: int, seed: int) -> list[Tensor]:
    """Batches of `size` indices of pairs of similar lengths [n], in an order drawn from the seed.

    Pairs are shuffled, sorted by length within a window of 50 batches and cut; then the batches are shuffled.
    """
    rng = torch.Generator().manual_seed(seed)
    found = []
    for window in torch.randperm(len(lengths), generator=rng).split(50 * size):
        found += window[lengths[window].argsort(stable=True)].split(size)
    return [found[i] for i in torch.randperm(len(found), generator=rng).tolist()]


# --- the model --------------------------------------------------------------------------------------------------

class LogicModel(nn.Module):
    """Two formulas -> one of seven relations (Li 2021 §4.3.2; Tran et al. 2018).

    One encoder reads both; two trainable queries pool each formula by multi-head attention into two vectors; the four
    vectors of the pair, concatenated, go through a feed-forward classifier 4d -> d -> d -> 7.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        d = config.d_model
        self.config = config
        self.embedding = Embedding(config.vocab_size, d, config.dropout)
        self.encoder = Encoder(config)
        self.queries = nn.Parameter(torch.randn(QUERIES, d))
        self.pooling = MultiHeadAttention(d, config.heads, config.dropout)
        self.classifier = nn.Sequential(nn.Linear(2 * QUERIES * d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(),
                                        nn.Linear(d, len(RELATIONS)))

    def forward(self, formulas: Tensor) -> tuple[Tensor, dict, Tensor]:
        """formulas [B, 2, L] -> logits [B, 7], the encoder's heads {"enc": [Heads, ...]}, mask [2B, L]."""
        ids = formulas.flatten(0, 1)                                          # [2B, L]
        mask = ids != PAD
        states, heads = self.encoder(self.embedding(ids), mask)              # [2B, L, d]
        queries = self.queries.expand(len(ids), -1, -1)                      # [2B, 2, d]
        vectors, _ = self.pooling(queries, states, mask[:, None, None, :])   # [2B, 2, d]
        return self.classifier(vectors.reshape(len(formulas), -1)), {"enc": heads}, mask

    def loss(self, formulas: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy per pair - lambda D (Li 2018 section 3.1; D is 0 without --reg)."""
        logits, heads, mask = self(formulas)
        D = disagreement(self.config, heads, mask) if self.config.reg else 0.0
        return F.cross_entropy(logits, labels) - self.config.reg_weight * D
