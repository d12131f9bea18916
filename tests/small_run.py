"""A small parallel corpus; a minute model for text with random weights, and its run folder as
training leaves it."""
import json
from dataclasses import asdict

import numpy as np
import torch

from nmt import run_folder
from nmt.tokenizer import save_tokenizer
from transformer import Transformer, TransformerConfig

TEXT = ["a man sees the dog.", "the dog sees a man.", "ein Mann sieht den Hund.",
        "der Hund sieht einen Mann."] * 3


def small_corpus(folder):
    """The files of a corpus, in a folder; the flags that name them, and folder/runs."""
    words = "ein zwei drei vier der die das Haus Baum geht sieht und rot blau klein".split()
    random = np.random.default_rng(0)
    flags = ["--src", "en", "--tgt", "de", "--runs", str(folder / "runs")]
    for name, count in (("train", 120), ("valid", 12), ("test", 8)):
        german = []
        for _ in range(count):
            german.append(list(random.choice(words, random.integers(2, 9))))
        english = [reversed(line) for line in german]
        for language, lines in (("de", german), ("en", english)):
            text = "".join(" ".join(line) + "\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text)
        flags += [f"--{name}", str(folder / name)]
    return flags


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
