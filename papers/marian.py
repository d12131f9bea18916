"""`transformers.MarianMTModel` of the same size, to be measured beside this project's `Transformer`
in bench.py; optional: only that row asks for the package."""
import importlib.util

import torch
import torch.nn as nn

from nmt.tokenizer import BOS, EOS
from transformer import PAD, TransformerConfig

LONGEST = 1024  # positions


def installed() -> bool:
    """Whether the package transformers is there."""
    return importlib.util.find_spec("transformers") is not None


class Marian(nn.Module):
    """MarianMTModel (post norm, tied embeddings) with random parameters, in the shape of
    `Transformer`; its own beam search is `search`."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        self.config = config
        self.body = MarianMTModel(MarianConfig(
            vocab_size=config.vocab_size, d_model=config.d_model,
            encoder_layers=config.layers, decoder_layers=config.layers,
            encoder_attention_heads=config.heads, decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff,
            dropout=config.dropout, attention_dropout=config.dropout,
            activation_dropout=config.dropout, activation_function="relu", scale_embedding=True,
            max_position_embeddings=LONGEST, pad_token_id=PAD, bos_token_id=BOS,
            eos_token_id=EOS, decoder_start_token_id=BOS, forced_eos_token_id=None))
        self.output = self.body.lm_head

    def forward(self, source, target_in):
        """source [B, L_s], target_in [B, L_t] -> logits [B, L_t, V], {}."""
        mask = (source != PAD).long()  # [B, L_s]
        found = self.body(source, mask, decoder_input_ids=target_in, use_cache=False)
        return found.logits, {}

    @torch.inference_mode()
    def search(self, source, beam: int, lenpen: float, max_length: int):
        """The best translation of every sentence [B, L_s] by the package's own beam search: ids
        [B, L_t], BOS first."""
        return self.body.generate(source, attention_mask=(source != PAD).long(), num_beams=beam,
                                  length_penalty=lenpen, do_sample=False,
                                  max_new_tokens=max_length)
