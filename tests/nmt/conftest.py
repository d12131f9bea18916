"""What several tests of nmt/ share: a small part of the embedded corpus, its tokenizer and token
ids."""
import numpy as np
import pytest
from small_run import TEXT, small

import toy
import train_mt
from nmt.corpus import Pairs
from nmt.encoded import encode_pairs
from nmt.tokenizer import train_tokenizer


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """A figure at every validation would take longer than the runs of the tests."""
    monkeypatch.setattr(train_mt, "draw", lambda rows, path: None)


@pytest.fixture(scope="session")
def english():
    """600 pairs of the embedded corpus."""
    found = toy.splits(600, 1, 1, seed=5)["train"]
    return Pairs([pair.english for pair in found], [pair.german for pair in found])


@pytest.fixture(scope="session")
def toy_tokenizer(english):
    """500 tokens learnt from them."""
    return train_tokenizer([*english.source, *english.target], 500)


@pytest.fixture(scope="session")
def toy_encoded(toy_tokenizer, english):
    """Their token ids."""
    return encode_pairs(toy_tokenizer, english)


@pytest.fixture(scope="session")
def tokenizer():
    """A tokenizer that spells most words."""
    return train_tokenizer(TEXT, 290)


@pytest.fixture(scope="module")
def model(tokenizer):
    """A small random model for text."""
    return small(tokenizer)


@pytest.fixture
def text(tmp_path):
    """A small parallel corpus; the flags that name it."""
    words = "ein zwei drei vier der die das Haus Baum geht sieht und rot blau klein".split()
    random = np.random.default_rng(0)
    for name, count in (("train", 120), ("valid", 12), ("test", 8)):
        lines = [" ".join(random.choice(words, random.integers(2, 9))) for _ in range(count)]
        (tmp_path / f"{name}.de").write_text("\n".join(lines) + "\n")
        (tmp_path / f"{name}.en").write_text(
            "\n".join(" ".join(reversed(x.split())) for x in lines) + "\n"
        )
    return [
        x for name in ("train", "valid", "test") for x in (f"--{name}", str(tmp_path / name))
    ] + ["--src", "en", "--tgt", "de", "--runs", str(tmp_path / "runs")]
