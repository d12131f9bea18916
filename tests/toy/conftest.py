"""The pairs that several tests look at."""
import pytest

import toy


@pytest.fixture(scope="session")
def pairs():
    """6,000 pairs with distinct English sentences."""
    return toy.corpus(6_000, seed=1)
