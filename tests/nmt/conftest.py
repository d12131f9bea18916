"""What several tests of nmt/ share: a small part of the embedded corpus, its tokenizer and token
ids."""
import pytest
from small_run import TEXT, small, small_corpus

import toy
from nmt.corpus import Pairs
from nmt.encoded import encode_pairs
from nmt.run_folder import RunFolder
from nmt.tokenizer import train_tokenizer


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """A figure at every validation would take longer than the runs of the tests."""
    monkeypatch.setattr(RunFolder, "draw_curves", lambda folder: None)


@pytest.fixture(scope="session")
def english():
    """600 pairs of the embedded corpus."""
    found = toy.splits(600, 1, 1, seed=5)["train"]
    return Pairs([pair.english for pair in found], [pair.german for pair in found])


@pytest.fixture(scope="session")
def toy_tokenizer(english):
    """500 tokens learned from them."""
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
    return small_corpus(tmp_path)
