"""The model of logical inference: a shared encoder, two pooling queries, a classifier of pairs (Li 2021 §4.3.2).

Where the paper leaves a point open it follows Tran et al. 2018 ("The importance of being recurrent for modeling
hierarchical structure"). The data: logic_data.py; training and the table: logic.py.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from attention import MultiHeadAttention
from tasks.logic_data import PAD, RELATIONS
from transformer import Embedding, Encoder, TransformerConfig, disagreement, positions

QUERIES = 2
NO_PAIR = -100                                         # a label that the loss leaves out


class SpreadEmbedding(Embedding):
    """Word embeddings times sqrt(d), plus positions that lie apart, with dropout: ids [N, L] -> [N, L, d].

    In training the positions of a formula are drawn, in ascending order, from the first `reach` ones; in a test they
    stand evenly over them. So a formula longer than all of training meets no position that was never trained, as long as
    it has at most `reach` tokens; a longer one is counted (Ruoss et al. 2023, "Randomized positional encodings boost
    length generalization of Transformers").
    """

    def __init__(self, vocab_size: int, d_model: int, dropout: float, reach: int):
        super().__init__(vocab_size, d_model, dropout)
        self.reach = reach

    def positions(self, ids: Tensor, start: int) -> Tensor:
        """ids [N, L] -> [N, L, d]; formulas are read whole, so `start` is 0."""
        N, L = ids.shape
        length = (ids != PAD).sum(-1, keepdim=True).clamp(min=1)             # [N, 1]
        reach, most = length.clamp(min=self.reach), max(L, self.reach)       # [N, 1], the largest of them
        if self.training:
            beyond = torch.arange(most, device=ids.device) >= reach          # [N, most]
            order = torch.rand(N, most, device=ids.device).masked_fill(beyond, 2.0).argsort(-1)
            places = order[:, :L].masked_fill(ids == PAD, most - 1).sort(-1).values      # [N, L], padding comes last
        else:
            places = torch.arange(L, device=ids.device) * reach // length    # [N, L]
        table = positions(most, self.embedding_dim, device=ids.device, dtype=self.weight.dtype)
        return table[places.clamp(max=most - 1)]                             # [N, L, d]


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

    def read(self, formulas: Tensor) -> tuple[Tensor, Tensor, dict, Tensor]:
        """formulas [B, 2, L] -> vectors [n, 2d] of the n formulas read, place [2B] of every formula among them, the
        encoder's heads {"enc": [Heads, ...]}, mask [n, L].

        In training a formula that stands in several pairs is read once, n <= 2B, unless dropout or a regularizer tells
        its copies apart.
        """
        ids = formulas.flatten(0, 1)                                         # [2B, L]
        place = torch.arange(len(ids), device=ids.device)
        if self.training and not self.config.dropout and not self.config.reg:
            ids, place = ids.unique(dim=0, return_inverse=True)              # [n, L], [2B]
        mask = ids != PAD
        states, heads = self.encoder(self.embedding(ids), mask)              # [n, L, d]
        queries = self.queries.expand(len(ids), -1, -1)                      # [n, 2, d]
        vectors, _ = self.pooling(queries, states, mask[:, None, None, :])   # [n, 2, d]
        return vectors.flatten(1), place, {"enc": heads}, mask

    def forward(self, formulas: Tensor) -> tuple[Tensor, dict, Tensor]:
        """formulas [B, 2, L] -> logits [B, 7], the encoder's heads {"enc": [Heads, ...]}, mask [n, L], see `read`."""
        vectors, place, heads, mask = self.read(formulas)
        return self.classify(vectors, place), heads, mask

    def classify(self, vectors: Tensor, place: Tensor) -> Tensor:
        """Vectors [n, 2d] and the places [2B] of the left and right formulas in turn -> logits [B, 7]."""
        return self.classifier(vectors.index_select(0, place).view(len(place) // 2, -1))

    def classify_all(self, vectors: Tensor) -> Tensor:
        """The classifier on all ordered pairs of formulas: vectors [n, 2d] -> logits [n, n, 7].

        Its first layer is a sum, W [u; v] + b = (W_l u + b) + W_r v, so it reads each formula twice, not each pair.
        """
        first, *others = self.classifier
        W_l, W_r = first.weight.chunk(2, dim=1)                              # [d, 2d] each
        x = F.linear(vectors, W_l, first.bias)[:, None] + F.linear(vectors, W_r)             # [n, n, d]
        for layer in others:
            x = layer(x)
        return x

    def loss(self, formulas: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy - lambda D (Li 2018 section 3.1; D is 0 without --reg).

        labels [B]: of the pairs; labels [2B, 2B]: of every formula of the batch to every one, left and right ones in
        turn, which is thousands of answers to learn from for the cost of reading the same 2B formulas.
        """
        vectors, place, heads, mask = self.read(formulas)
        if labels.dim() == 1:
            cross_entropy = F.cross_entropy(self.classify(vectors, place), labels)
        else:
            n, device = len(vectors), place.device
            copy = torch.zeros(n, dtype=torch.long, device=device).scatter(0, place, torch.arange(len(place), device=device))
            labels = labels[copy][:, copy].fill_diagonal_(NO_PAIR)           # [n, n]: a formula and itself are no pair
            cross_entropy = F.cross_entropy(self.classify_all(vectors).flatten(0, 1), labels.flatten(),
                                            ignore_index=NO_PAIR, reduction="sum") / max(1, n * (n - 1))
        D = disagreement(self.config, heads, mask) if self.config.reg else 0.0
        return cross_entropy - self.config.reg_lambda * D
