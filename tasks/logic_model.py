"""The model of logical inference: a shared encoder, two pooling queries, a classifier of pairs (Li
2021 §4.3.2).

Where the paper leaves a point open it follows Tran et al. 2018 ("The importance of being recurrent
for modeling hierarchical structure").
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from attention import MultiHeadAttention
from disagreement import model_disagreement
from tasks.logic_data import RELATIONS, Formulas
from transformer import PAD, Embedding, Encoder, TransformerConfig, positions

QUERIES = 2
NO_PAIR = -100                                           # a label that the loss ignores


class SpreadEmbedding(Embedding):
    """Word embeddings times sqrt(d), plus positions at distances, with dropout: ids [N, L] -> [N,
    L, d].

    In training the positions of a formula are drawn, in ascending order, from the first `reach`
    ones; in a test they are even. So a formula of up to `reach` tokens has no position that was
    never trained; the tokens of a longer one are counted (Ruoss et al. 2023, "Randomized positional
    encodings boost length generalization of Transformers").

    Without it, accuracy falls from 95.2 to 92.7 per cent up to six operators and from 76.1 to 68.0
    from seven on (one seed; `git show 47932e2:tasks/logic_model.py`).
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
        # with torch's default weights, which are smaller, learning starts late
        for linear in self.classifier[::2]:
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)

    def read(self, formulas: Formulas) -> tuple[Tensor, dict, Tensor]:
        """The k formulas of B pairs -> vectors [k, 2d], the encoder's heads {"enc": [Heads, ...]},
        mask [k, L]."""
        mask = formulas.ids != PAD
        states, heads = self.encoder(self.embedding(formulas.ids), mask)     # [k, L, d]
        queries = self.queries.expand(len(mask), -1, -1)                     # [k, 2, d]
        vectors, _ = self.pooling(queries, states, mask[:, None, None, :])   # [k, 2, d]
        return vectors.flatten(1), {"enc": heads}, mask

    def forward(self, formulas: Formulas) -> Tensor:
        """The formulas of B pairs -> logits [B, 7]."""
        vectors, _, _ = self.read(formulas)
        return self.classify(vectors, formulas.rows)

    def classify(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """The classifier on B pairs: vectors [k, 2d], rows [2B] -> logits [B, 7]."""
        return self.classifier(vectors.index_select(0, rows).view(len(rows) // 2, -1))

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

    def loss(self, formulas: Formulas, labels: Tensor) -> Tensor:
        """Mean cross-entropy - lambda D (Li 2018 §3.1; D is 0 without a regularizer).

        labels [B]: of the pairs; labels [k, k]: of every distinct formula to every other, which
        gives thousands of labels for the cost of reading k formulas.
        """
        vectors, heads, mask = self.read(formulas)
        if labels.dim() == 1:
            cross_entropy = F.cross_entropy(self.classify(vectors, formulas.rows), labels)
        else:
            cross_entropy = self.loss_of_all(vectors, labels)
        D = model_disagreement(self.config, heads, mask)
        return cross_entropy - self.config.reg_weight * D

    def loss_of_all(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy over all ordered pairs of two different formulas; vectors [n, 2d],
        labels [n, n]."""
        n = len(vectors)
        others = labels.clone().fill_diagonal_(NO_PAIR)
        total = F.cross_entropy(self.classify_all(vectors).flatten(0, 1), others.flatten(),
                                ignore_index=NO_PAIR, reduction="sum")
        return total / max(1, n * (n - 1))
