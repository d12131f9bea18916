"""The model of logical inference: a shared encoder, two pooling queries, a classifier of pairs (Li 2021 §4.3.2).

Where the paper leaves a point open it follows Tran et al. 2018 ("The importance of being recurrent for modeling
hierarchical structure"). The data: logic_data.py; training and the table: logic.py.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from attention import MultiHeadAttention
from logic_data import PAD, RELATIONS
from transformer import Embedding, Encoder, TransformerConfig, disagreement, positions

QUERIES = 2


class SpreadEmbedding(Embedding):
    """Word embeddings times sqrt(d), plus positions that lie apart, with dropout: ids [2B, L] -> [2B, L, d].

    In training the L positions are drawn, in ascending order, from the first `reach` ones; in a test they stand evenly
    over `reach`, by the longer formula of each pair. So a formula longer than all of training meets no position that
    was never trained (Ruoss et al. 2023, "Randomized positional encodings boost length generalization").
    """

    def __init__(self, vocab_size: int, d_model: int, dropout: float, reach: int):
        super().__init__(vocab_size, d_model, dropout)
        self.reach = reach

    def forward(self, ids: Tensor) -> Tensor:
        L, d = ids.shape[1], self.embedding_dim
        if self.training:
            places = torch.randperm(max(self.reach, L))[:L].sort().values.to(ids.device)   # [L]
        else:
            longer = (ids != PAD).sum(-1).view(-1, 2).amax(-1).repeat_interleave(2)[:, None]   # [2B, 1]
            places = torch.arange(L, device=ids.device) * longer.clamp(min=self.reach) // longer   # [2B, L]
        table = positions(max(self.reach, L), d, device=ids.device, dtype=self.weight.dtype)
        places = places.clamp(max=len(table) - 1)                            # those of padding
        x = F.embedding(ids, self.weight) * math.sqrt(d) + table[places]             # [2B, L, d]
        return F.dropout(x, self.dropout, self.training)


class LogicModel(nn.Module):
    """Two formulas -> one of seven relations (Li 2021 §4.3.2; Tran et al. 2018).

    One encoder reads both; two trainable queries pool each formula by multi-head attention into two vectors; the four
    vectors of the pair, concatenated, go through a feed-forward classifier 4d -> d -> d -> 7. reach: the positions over
    which SpreadEmbedding spreads a formula; 0 counts its tokens.
    """

    def __init__(self, config: TransformerConfig, reach: int = 0):
        super().__init__()
        d = config.d_model
        self.config = config
        self.embedding = (SpreadEmbedding(config.vocab_size, d, config.dropout, reach) if reach else
                          Embedding(config.vocab_size, d, config.dropout))
        self.encoder = Encoder(config)
        self.queries = nn.Parameter(torch.randn(QUERIES, d))
        self.pooling = MultiHeadAttention(d, config.heads, config.dropout)
        self.classifier = nn.Sequential(nn.Linear(2 * QUERIES * d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(),
                                        nn.Linear(d, len(RELATIONS)))
        for linear in self.classifier[::2]:              # torch's own draw is so small that nothing is learned for long
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)

    def forward(self, formulas: Tensor) -> tuple[Tensor, dict, Tensor]:
        """formulas [B, 2, L] -> logits [B, 7], the encoder's heads {"enc": [Heads, ...]}, mask [2B, L].

        In training a formula that stands in several pairs is read once, n <= 2B in all, unless dropout or a regularizer
        tells them apart.
        """
        ids, place = formulas.flatten(0, 1), None                             # [2B, L]
        if self.training and not self.config.dropout and not self.config.reg:
            ids, place = ids.unique(dim=0, return_inverse=True)              # [n, L], [2B]
        mask = ids != PAD
        states, heads = self.encoder(self.embedding(ids), mask)              # [n, L, d]
        queries = self.queries.expand(len(ids), -1, -1)                      # [n, 2, d]
        vectors, _ = self.pooling(queries, states, mask[:, None, None, :])   # [n, 2, d]
        vectors = vectors if place is None else vectors.index_select(0, place)               # [2B, 2, d]
        return self.classifier(vectors.reshape(len(formulas), -1)), {"enc": heads}, mask

    def loss(self, formulas: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy per pair - lambda D (Li 2018 section 3.1; D is 0 without --reg)."""
        logits, heads, mask = self(formulas)
        D = disagreement(self.config, heads, mask) if self.config.reg else 0.0
        return F.cross_entropy(logits, labels) - self.config.reg_weight * D
