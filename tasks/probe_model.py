"""The probing model: an encoder, the mean of its top layer, and a classifier.

Li 2019 §5.1 and Li 2021 §4.2 train all of it on the task. Conneau et al. 2018 take the encoder of a
trained translation model as it is and train only the classifier.
"""
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from disagreement import model_disagreement
from nmt.tokenizer import EOS, prepare_line
from tasks.classifier import Examples
from tasks.probe_data import Item, Parts, detokenize
from transformer import PAD, Embedding, Encoder, TransformerConfig

UNKNOWN = 1                     # the id of a word that is not in the vocabulary
VOCABULARY = 30_000             # the most frequent words of the training sentences


def mean_pool(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the states [B, L, d] over the valid positions, mask [B, L]: [B, d] (Li 2019
    §5.1.1)."""
    mask = mask.unsqueeze(-1)                                                # [B, L, 1]
    return torch.where(mask, states, 0).sum(1) / mask.sum(1).clamp(min=1)


class Classifier(nn.Sequential):
    """Sentence vectors -> classes: an MLP, d -> d -> classes, with ReLU. For a frozen encoder it is
    the whole model."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0):
        super().__init__(nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, classes))

    def loss(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy per sentence; vectors [B, d]."""
        return F.cross_entropy(self(vectors), labels)


class ProbeModel(nn.Module):
    """Sentences -> classes: an encoder on word embeddings, the mean of its top layer, an MLP
    (Li 2021 §4.2.2)."""

    def __init__(self, config: TransformerConfig, classes: int):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.d_model, config.dropout)
        self.encoder = Encoder(config)
        self.classifier = Classifier(config.d_model, classes, config.dropout)

    def read(self, ids: Tensor) -> tuple[Tensor, dict, Tensor]:
        """ids [B, L] -> logits [B, classes], the encoder's heads {"enc": [Heads, ...]}, mask [B,
        L]."""
        mask = ids != PAD
        states, heads = self.encoder(self.embedding(ids), mask)              # [B, L, d]
        return self.classifier(mean_pool(states, mask)), {"enc": heads}, mask

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, L] -> logits [B, classes]."""
        return self.read(ids)[0]

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy per sentence - lambda D (Li 2018 §3.1; D is 0 without a regularizer)."""
        logits, heads, mask = self.read(ids)
        D = model_disagreement(self.config, heads, mask)
        return F.cross_entropy(logits, labels) - self.config.reg_weight * D


# ---- Sentences as tensors

def classes_of(parts: Parts) -> list[str]:
    """The classes of the training sentences, sorted."""
    return sorted({item.label for item in parts["train"]})


def class_labels(parts: Parts, part: str, device) -> Tensor:
    """The classes [n] of a part's sentences, as indices into `classes_of`."""
    index = {label: i for i, label in enumerate(classes_of(parts))}
    return torch.tensor([index[item.label] for item in parts[part]], device=device)


def vocabulary(items: list[Item]) -> dict[str, int]:
    """Word -> id, from 2 on, of the most frequent words."""
    counts = Counter()
    for item in items:
        counts.update(item.tokens)
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: i for i, word in enumerate(by_frequency[:VOCABULARY], 2)}


def encode(parts: Parts, words: dict[str, int], device="cpu") -> dict[str, Examples]:
    """Every part as word ids."""
    encoded = {}
    for part, items in parts.items():
        ids = []
        for item in items:
            sentence = [words.get(token, UNKNOWN) for token in item.tokens]
            ids.append(torch.tensor(sentence, dtype=torch.int32))
        inputs = pad_sequence(ids, batch_first=True, padding_value=PAD).to(device)
        lengths = torch.tensor([len(item.tokens) for item in items])
        encoded[part] = Examples(inputs, lengths, class_labels(parts, part, device))
    return encoded


@torch.no_grad()
def sentence_vectors(items: list[Item], model, tokenizer, device="cpu") -> Tensor:
    """The mean [n, d] of the top encoder layer of a trained Transformer, 128 sentences at a time.

    Sentences go as plain text through the model's own tokenizer, with the end-of-sentence token
    that it was trained with, which counts in the mean.
    """
    ids = []
    for item in items:
        tokens = tokenizer.encode(prepare_line(detokenize(item.tokens))).ids
        ids.append(torch.tensor([*tokens, EOS]))
    by_length = torch.tensor([len(sentence) for sentence in ids]).argsort()
    vectors = torch.empty(len(items), model.config.d_model, device=device)   # [n, d]
    for index in tqdm(by_length.split(128), leave=False, disable=None):
        batch = [ids[i] for i in index]
        memory = model.encode(pad_sequence(batch, batch_first=True, padding_value=PAD).to(device))
        vectors[index.to(device)] = mean_pool(memory.states, memory.mask)
    return vectors


def freeze(parts: Parts, model, tokenizer, device="cpu") -> dict[str, Examples]:
    """Every part as the vectors that a trained Transformer's encoder makes of its sentences.

    Every dimension is standardized by its mean and deviation over the training sentences, so that
    one learning rate fits every encoder.
    """
    vectors = {part: sentence_vectors(items, model, tokenizer, device)
               for part, items in parts.items()}
    mean = vectors["train"].mean(0)
    deviation = vectors["train"].std(0).clamp(min=1e-6)
    frozen = {}
    for part, x in vectors.items():
        lengths = torch.full((len(x),), x.shape[1])
        frozen[part] = Examples((x - mean) / deviation, lengths, class_labels(parts, part, device))
    return frozen


def majority(parts: Parts) -> float:
    """Test accuracy of the class most frequent in training; of equals, the first by name."""
    counts = Counter(item.label for item in parts["train"])
    most_frequent = min(counts, key=lambda label: (-counts[label], label))
    return sum(item.label == most_frequent for item in parts["test"]) / len(parts["test"])
