"""The probing model: an encoder, the mean of its top layer, a classifier; and what it is compared
with.

Li 2019 section 5.1 and Li 2021 section 4.2 train all of it on the task. The other protocol, that of
Conneau et al. 2018, takes the encoder of a finished translation model as it is and trains the
classifier alone.
"""
import sys
from collections import Counter
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from nmt.tokenizer import EOS
from tasks.probe_data import Item, Parts, plain
from transformer import PAD, Embedding, Encoder, TransformerConfig, disagreement

UNKNOWN = 1                     # the id of a word that is not in the vocabulary
VOCABULARY = 30_000             # the most frequent words of the training sentences; the others are unknown
LONGEST = 512                   # tokens that a translation model reads of a sentence


def mean_pool(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the states [B, L, d] over the valid positions, mask [B, L]: [B, d] (Li 2019
    section 5.1.1)."""
    mask = mask.unsqueeze(-1)                                                # [B, L, 1]
    return torch.where(mask, states, 0).sum(1) / mask.sum(1).clamp(min=1)


def classifier(width: int, classes: int, dropout: float = 0.0) -> nn.Sequential:
    """An MLP, d -> d -> classes, with ReLU."""
    return nn.Sequential(nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))


class ProbeModel(nn.Module):
    """Sentences -> classes: an encoder on word embeddings, the mean of its top layer, an MLP (Li
    2021 §4.2.2)."""

    def __init__(self, config: TransformerConfig, classes: int):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.d_model, config.dropout)
        self.encoder = Encoder(config)
        self.classifier = classifier(config.d_model, classes, config.dropout)

    def forward(self, ids: Tensor) -> tuple[Tensor, dict, Tensor]:
        """ids [B, L] -> logits [B, classes], the encoder's heads {"enc": [Heads, ...]}, mask [B,
        L]."""
        mask = ids != PAD
        states, heads = self.encoder(self.embedding(ids), mask)              # [B, L, d]
        return self.classifier(mean_pool(states, mask)), {"enc": heads}, mask

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy per sentence - lambda D (Li 2018 section 3.1; D is 0 without --reg)."""
        logits, heads, mask = self(ids)
        D = disagreement(self.config, heads, mask) if self.config.reg else 0.0
        return F.cross_entropy(logits, labels) - self.config.reg_lambda * D


class FrozenProbe(nn.Module):
    """Sentence vectors -> classes: the classifier alone, for an encoder that is not trained."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.classifier = classifier(width, classes)

    def forward(self, vectors: Tensor) -> tuple[Tensor]:
        """vectors [B, d] -> (logits [B, classes],)."""
        return self.classifier(vectors),

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy per sentence."""
        return F.cross_entropy(self(vectors)[0], labels)


# ---- Sentences as tensors

class Examples(NamedTuple):
    """Encoded sentences, or their vectors."""
    inputs: Tensor              # [n, L] word ids, PAD after a sentence's end; or [n, d] vectors
    lengths: Tensor             # [n] words, on the CPU; 0 for vectors
    labels: Tensor              # [n] index of the class

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The sentences `index` [B]: inputs [B, L'], cut to the longest of them, or [B, d]; labels
        [B]."""
        width = int(self.lengths[index].max())
        index = index.to(self.labels.device, non_blocking=True)
        inputs = self.inputs[index]
        return (inputs[:, :width].long() if width else inputs), self.labels[index]


def classes_of(parts: Parts) -> list[str]:
    """The classes of the training sentences, sorted."""
    return sorted({item.label for item in parts["train"]})


def vocabulary(parts: Parts) -> dict[str, int]:
    """Word -> id, from 2 on, of the most frequent words of the training sentences."""
    counts = Counter(token for item in parts["train"] for token in item.tokens)
    return {word: i for i, (word, _) in enumerate(sorted(counts.items(), key=lambda x: (-x[1], x[0]))[:VOCABULARY], 2)}


def encode(parts: Parts, words: dict[str, int], device="cpu") -> dict[str, Examples]:
    """Every part as `Examples` of word ids."""
    classes = {label: i for i, label in enumerate(classes_of(parts))}
    return {part: Examples(pad_sequence([torch.tensor([words.get(token, UNKNOWN) for token in item.tokens],
                                                      dtype=torch.int32) for item in items], True, PAD).to(device),
                           torch.tensor([len(item.tokens) for item in items]),
                           torch.tensor([classes[item.label] for item in items], device=device))
            for part, items in parts.items()}


@torch.no_grad()
def freeze(parts: Parts, model, tokenizer, device="cpu", size: int = 128) -> dict[str, Examples]:
    """Every part as `Examples` of vectors: the mean of the top encoder layer of a trained
    Transformer.

    Sentences are put as plain text through the model's own tokenizer, with the end-of-sentence
    token that it was trained with, which counts in the mean. Every dimension is brought to mean 0
    and deviation 1 over the training sentences, a linear map that lets one learning rate serve
    every encoder.
    """
    vectors = {}
    for part, items in parts.items():
        ids = [torch.tensor(tokenizer.encode(plain(item.tokens)).ids[:LONGEST - 1] + [EOS]) for item in items]
        order = torch.tensor([len(x) for x in ids]).argsort()
        found = torch.empty(len(items), model.config.d_model, device=device)                # [n, d]
        for index in tqdm(order.split(size), desc=part, leave=False, disable=not sys.stderr.isatty()):
            memory = model.encode(pad_sequence([ids[i] for i in index], True, PAD).to(device))
            found[index.to(device)] = mean_pool(memory.states, memory.mask)
        vectors[part] = found
    mean, deviation = vectors["train"].mean(0), vectors["train"].std(0).clamp(min=1e-6)
    labels = {label: i for i, label in enumerate(classes_of(parts))}
    return {part: Examples((vectors[part] - mean) / deviation, torch.zeros(len(items), dtype=torch.long),
                           torch.tensor([labels[item.label] for item in items], device=device))
            for part, items in parts.items()}


# ---- What a model must beat

def majority(parts: Parts) -> float:
    """The accuracy on the test part of the class most frequent in training (the first in order
    among equals)."""
    counts = Counter(item.label for item in parts["train"])
    label = min(counts, key=lambda label: (-counts[label], label))
    return sum(item.label == label for item in parts["test"]) / len(parts["test"])


def logistic_regression(features, parts: Parts) -> float:
    """Test accuracy of scikit-learn's multinomial logistic regression; features: {part: matrix [n,
    f]}."""
    from sklearn.linear_model import LogisticRegression
    found = LogisticRegression(max_iter=300).fit(features["train"], [item.label for item in parts["train"]])
    return float(found.score(features["test"], [item.label for item in parts["test"]]))


def word_counts(items: list[Item], words: dict[str, int]):
    """How often each word stands in each sentence: a sparse matrix [n, words + 2]."""
    from scipy.sparse import csr_matrix
    cells = [(row, words.get(token, UNKNOWN)) for row, item in enumerate(items) for token in item.tokens]
    rows, columns = zip(*cells)
    return csr_matrix(([1.0] * len(cells), (rows, columns)), shape=(len(items), len(words) + 2))    # adds up repeats


def bag_of_words(parts: Parts) -> float:
    """Test accuracy of a logistic regression on the counts of the words: what can be told without
    their order."""
    words = vocabulary(parts)
    return logistic_regression({part: word_counts(parts[part], words) for part in ("train", "test")}, parts)
