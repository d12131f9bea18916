"""Shared by several tests of nmt/: a tokenizer, a model, a small corpus; no figures."""
import pytest
from small_run import TEXT, small, small_corpus

from nmt.run_folder import RunFolder
from nmt.tokenizer import train_tokenizer


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """A figure at every validation would take longer than the runs of the tests."""
    monkeypatch.setattr(RunFolder, "draw_curves", lambda folder: None)


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
