"""Shared by several tests of nmt/: a tokenizer, a model, a small corpus."""
import pytest
from small_run import TEXT, small, small_corpus

from nmt.tokenizer import train_tokenizer


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
