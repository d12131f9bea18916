"""A minute model for text with random weights, and its run folder as training leaves it."""
import json
from dataclasses import asdict

import torch

from nmt import run_folder
from nmt.tokenizer import save_tokenizer
from transformer import Transformer, TransformerConfig

TEXT = ["a man sees the dog.", "the dog sees a man.", "ein Mann sieht den Hund.",
        "der Hund sieht einen Mann."] * 3


def small(tokenizer, seed=0):
    """The model, in float32, in eval mode."""
    torch.manual_seed(seed)
    config = TransformerConfig(tokenizer.get_vocab_size(), 16, 2, 1, 32, tie="none")
    return Transformer(config).eval()


def write_run(folder, tokenizer, seed=0):
    """The folder of such a model, which is returned."""
    model = small(tokenizer, seed)
    folder.mkdir(parents=True)
    settings = {"format": run_folder.FORMAT, "data": "toy", "model": asdict(model.config)}
    (folder / "config.json").write_text(json.dumps(settings))
    save_tokenizer(tokenizer, folder / "tokenizer.json")
    run_folder.save(folder / "best.pt", {"model": model.state_dict()})
    return model
