"""toy/: the stored sentences, counted and compared with their checksums."""
import hashlib

import pytest

import toy

# part: pairs, and the SHA-256 of the English and of the German lines
PAIRS = {
    "train": (30_000, "a08a66cfc3e3d2884a81eae151e31c4342be3f4bcf56f5bca818a6041f1c5fb0",
              "12fd33851cd3be348dbc5b31662393e788e56e5e9e7150d078894d6d62164956"),
    "valid": (500, "70027ee9b7724dd0510c8b56ae1ce0662bf1d7cf659619b45fe5d500d7f02240",
              "9f0a787aa6a5ce4d65c99cf248e0b0b6b94b41b5f56c289a0057f460e554aad4"),
    "test": (1_000, "c611dce514c09a3601413339d6ea69c8c90d27e3b2b01d4744d360ef38100a20",
             "e704865d8bda90593c174099a3a7e526369d1197bafba6045ad01c38993299e7"),
}


def sha256(lines) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


@pytest.mark.parametrize("part", PAIRS)
def test_the_pairs(part):
    english, german = zip(*toy.pairs(part))
    assert (len(english), sha256(english), sha256(german)) == PAIRS[part]


def test_a_german_line_translates_the_english_line():
    assert toy.pairs("test")[1] == ("Three young teachers have run into the city in the evening.",
                                    "Drei junge Lehrer sind am Abend in die Stadt gelaufen.")
