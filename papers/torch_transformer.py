"""`torch.nn.Transformer` with the interface of this project's `Transformer`: a row of bench.py."""
import warnings

import torch
import torch.nn as nn

from attention import Cache
from transformer import PAD, Embedding, Memory, TransformerConfig


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` (pre-norm) with what it lacks for translation: embeddings, positions,
    masks and a tied output matrix. The same loss and the same beam search run on both."""

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

    def encode(self, source) -> Memory:
        """source [B, L_s] ids -> Memory."""
        mask = source != PAD                                                 # [B, L_s]
        states = self.body.encoder(self.embedding(source), src_key_padding_mask=~mask)
        return Memory(states, mask, [])

    def decode_hidden(self, target, memory: Memory):
        """target [B, L_t] ids -> the vectors [B, L_t, d] before the output matrix."""
        ahead = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device)
        return self.body.decoder(self.embedding(target), memory.states, tgt_mask=ahead,
                                 tgt_is_causal=True, memory_key_padding_mask=~memory.mask)

    def decode(self, target, memory: Memory, cache: Cache):
        """The newest tokens [B, 1] of hypotheses -> logits [B, 1, V]. The decoder keeps no keys and
        values, so the cache holds the tokens so far, which are all decoded again."""
        target = torch.cat([*cache.growing.get(self, ()), target], dim=1)    # [B, L_t]
        cache.growing[self] = (target,)
        hypotheses = len(target) // len(memory.states)                       # of every sentence
        rows = torch.arange(len(target), device=target.device) // hypotheses
        return self.output(self.decode_hidden(target, memory.select(rows))[:, -1:])

    def hidden(self, source, target_in):
        """source [B, L_s], target_in [B, L_t] -> vectors [B, L_t, d] before the output matrix, and
        no heads."""
        return self.decode_hidden(target_in, self.encode(source)), {}

    def disagreement(self, heads: dict, source_mask, target_mask):
        """Always 0."""
        return torch.zeros((), device=source_mask.device)
