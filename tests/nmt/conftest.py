"""What several tests of nmt/ share: a small part of the embedded corpus, its tokenizer and token
ids."""
import pytest

import toy
from nmt.corpus import Pairs
from nmt.encoded import encode_pairs
from nmt.tokenizer import train_tokenizer


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
