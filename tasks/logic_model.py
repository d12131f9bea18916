"""The model of logical inference: a shared encoder, two pooling queries, a classifier of pairs (Li
2021 §4.3.2).

Where the paper leaves a point open it follows Tran et al. 2018 ("The importance of being recurrent
for modeling hierarchical structure"). The data: logic_data.py; training: classifier.py; the table:
logic.py.
"""
import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from attention import MultiHeadAttention
from tasks.logic_data import PAD, RELATIONS
from transformer import Embedding, Encoder, TransformerConfig, model_disagreement, positions

QUERIES = 2
NO_PAIR = -100                                           # a label that the loss leaves out


class SpreadEmbedding(Embedding):
    """Word embeddings times sqrt(d), plus positions that lie apart, with dropout: ids [N, L] -> [N,
    L, d].

    In training the positions of a formula are drawn, in ascending order, from the first `reach`
    ones; in a test they stand evenly over them. So a formula longer than all of training meets no
    position that was never trained, as long as it has at most `reach` tokens; a longer one is
    counted (Ruoss et al. 2023, "Randomized positional encodings boost length generalization of
    Transformers").
    """

    def __init__(self, vocab_size: int, d_model: int, dropout: float, reach: int):
        super().__init__(vocab_size, d_model, dropout)
        self.reach = reach

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """ids [N, L] -> [N, L, d]; formulas are read whole, so `start` is 0."""
        N, L = ids.shape
        length = (ids != PAD).sum(-1, keepdim=True).clamp(min=1)             # [N, 1]
        reach = length.clamp(min=self.reach)                                 # [N, 1]
        most = max(L, self.reach)                                            # the largest reach
        if self.training:
            beyond = torch.arange(most, device=ids.device) >= reach          # [N, most]
            keys = torch.rand(N, most, device=ids.device).masked_fill(beyond, 2.0)
            drawn = keys.argsort(-1)[:, :L]              # [N, L] within the reach, in any order
            drawn = drawn.masked_fill(ids == PAD, most - 1)
            chosen = drawn.sort(-1).values               # ascending, padding last
        else:
            chosen = torch.arange(L, device=ids.device) * reach // length    # [N, L]
        table = positions(most, self.embedding_dim, device=ids.device, dtype=self.weight.dtype)
        p = table[chosen.clamp(max=most - 1)]                                # [N, L, d]
        words = nn.Embedding.forward(self, ids)                              # [N, L, d]
        return self.dropout(words * math.sqrt(self.embedding_dim) + p)


class Reading(NamedTuple):
    """What the encoder and the pooling make of the formulas of B pairs."""
    vectors: Tensor             # [n, 2d] of the n formulas read
    rows: Tensor                # [2B] the row in `vectors` of the left and right formulas in turn
    heads: dict                 # {"enc": Heads of every layer}
    mask: Tensor                # [n, L] True at a token


class LogicModel(nn.Module):
    """Two formulas -> one of seven relations (Li 2021 §4.3.2; Tran et al. 2018).

    One encoder reads both; two trainable queries pool each formula by multi-head attention into two
    vectors; the four vectors of the pair, concatenated, go through a feed-forward classifier 4d ->
    d -> d -> 7. reach: the positions over which SpreadEmbedding spreads a formula; 0 counts its
    tokens.
    """

    def __init__(self, config: TransformerConfig, reach: int = 0):
        super().__init__()
        d = config.d_model
        self.config = config
        if reach:
            self.embedding = SpreadEmbedding(config.vocab_size, d, config.dropout, reach)
        else:
            self.embedding = Embedding(config.vocab_size, d, config.dropout)
        self.encoder = Encoder(config)
        self.queries = nn.Parameter(torch.randn(QUERIES, d))
        self.pooling = MultiHeadAttention(d, config.heads, config.dropout)
        self.classifier = nn.Sequential(
            nn.Linear(2 * QUERIES * d, d), nn.ReLU(),
            nn.Linear(d, d), nn.ReLU(),
            nn.Linear(d, len(RELATIONS)),
        )
        # torch's own draw is so small that nothing is learned for long
        for linear in self.classifier[::2]:
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)

    def read(self, formulas: Tensor) -> Reading:
        """formulas [B, 2, L] -> their vectors.

        In training a formula that stands in several pairs is read once, n <= 2B, unless dropout or
        a regularizer tells its copies apart.
        """
        ids = formulas.flatten(0, 1)                                         # [2B, L]
        rows = torch.arange(len(ids), device=ids.device)
        if self.training and not self.config.dropout and not self.config.reg:
            ids, rows = ids.unique(dim=0, return_inverse=True)               # [n, L], [2B]
        mask = ids != PAD
        states, heads = self.encoder(self.embedding(ids), mask)              # [n, L, d]
        queries = self.queries.expand(len(ids), -1, -1)                      # [n, 2, d]
        vectors, _ = self.pooling(queries, states, mask[:, None, None, :])   # [n, 2, d]
        return Reading(vectors.flatten(1), rows, {"enc": heads}, mask)

    def forward(self, formulas: Tensor) -> tuple[Tensor, dict, Tensor]:
        """formulas [B, 2, L] -> logits [B, 7], the encoder's heads {"enc": [Heads, ...]}, mask [n,
        L], see `read`."""
        reading = self.read(formulas)
        return self.classify(reading.vectors, reading.rows), reading.heads, reading.mask

    def classify(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """Vectors [n, 2d] and the rows [2B] of the left and right formulas in turn -> logits [B,
        7]."""
        pairs = vectors.index_select(0, rows).view(len(rows) // 2, -1)       # [B, 4d]
        return self.classifier(pairs)

    def classify_all(self, vectors: Tensor) -> Tensor:
        """The classifier on all ordered pairs of formulas: vectors [n, 2d] -> logits [n, n, 7].

        Its first layer is a sum, W [u; v] + b = (W_l u + b) + W_r v, so it reads each formula
        twice, not each pair.
        """
        first, *others = self.classifier
        W_l, W_r = first.weight.chunk(2, dim=1)                              # [d, 2d] each
        left = F.linear(vectors, W_l, first.bias)                            # [n, d]
        right = F.linear(vectors, W_r)                                       # [n, d]
        x = left[:, None] + right                                            # [n, n, d]
        for layer in others:
            x = layer(x)
        return x

    def loss(self, formulas: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy - lambda D (Li 2018 section 3.1; D is 0 without --reg).

        labels [B]: of the pairs; labels [2B, 2B]: of every formula of the batch to every one, left
        and right ones in turn, which is thousands of answers to learn from for the cost of reading
        the same 2B formulas.
        """
        reading = self.read(formulas)
        if labels.dim() == 1:
            cross_entropy = F.cross_entropy(self.classify(reading.vectors, reading.rows), labels)
        else:
            cross_entropy = self.loss_of_all(reading, labels)
        D = model_disagreement(self.config, reading.heads, reading.mask)
        return cross_entropy - self.config.reg_weight * D

    def loss_of_all(self, reading: Reading, labels: Tensor) -> Tensor:
        """Mean cross-entropy over all ordered pairs of the n formulas read, a formula with itself
        left out.

        labels [2B, 2B]: of every formula of the batch to every one; copies of a formula have the
        same labels.
        """
        n = len(reading.vectors)
        copies = torch.arange(len(reading.rows), device=labels.device)       # [2B]
        first = torch.zeros(n, dtype=torch.long, device=labels.device)
        one_copy = first.scatter(0, reading.rows, copies)                    # [n] of every formula
        labels = labels[one_copy][:, one_copy].fill_diagonal_(NO_PAIR)       # [n, n]
        logits = self.classify_all(reading.vectors)                          # [n, n, 7]
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_PAIR,
                                reduction="sum")
        return total / max(1, n * (n - 1))
