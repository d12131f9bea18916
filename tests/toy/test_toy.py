"""toy/: the stored sentences, counted and compared with their checksums."""
import hashlib

import pytest

import toy
from tasks.probe_data import TASKS

# part: pairs, and the SHA-256 of the English and of the German lines
PAIRS = {
    "train": (30_000, "a08a66cfc3e3d2884a81eae151e31c4342be3f4bcf56f5bca818a6041f1c5fb0",
              "12fd33851cd3be348dbc5b31662393e788e56e5e9e7150d078894d6d62164956"),
    "valid": (500, "70027ee9b7724dd0510c8b56ae1ce0662bf1d7cf659619b45fe5d500d7f02240",
              "9f0a787aa6a5ce4d65c99cf248e0b0b6b94b41b5f56c289a0057f460e554aad4"),
    "test": (1_000, "c611dce514c09a3601413339d6ea69c8c90d27e3b2b01d4744d360ef38100a20",
             "e704865d8bda90593c174099a3a7e526369d1197bafba6045ad01c38993299e7"),
}
# task: lines, and their SHA-256
TASK_FILES = {
    "SeLen": (6_990, "63fbe0e79fc60b769ed7f970b48513d883865e2b58a44d7f0360362d05837383"),
    "WC": (6_975, "73b2742b6ce98453486677bdfccbfa58029c00eb7ef690c48a8341065249c93c"),
    "TrDep": (7_000, "c80d9522c605c5b35b0798c56ead8962b36e348b3f736b30d42875366ce1d73d"),
    "ToCo": (7_000, "de9fa5b3e772231c5c749f8a4e168eb6d9f9d0ce5d86ecdc26d4f1bc456550fa"),
    "BShif": (7_000, "0f9abb01849e924798b36d080063e1824fbbf006667efcb39c204951b3f4e39a"),
    "Tense": (7_000, "108540d9e6c8771d54fa9d0df0582ebdfc303f0bc0bb0faa678344cf27ae5183"),
    "SubNm": (7_000, "fdb3e5262d8b41c1f653037e3814167776ec215c17cacaee246c11798f9540ca"),
    "ObjNm": (7_000, "4311fa72e5bf4815e63f321d310e1e7137b0eb66f55701356adebbcfec49d7f7"),
    "SOMO": (7_000, "a1f43505e36f691415743eca1a82ea342238f40545fd8a68b8dbe9a9d9e3ddde"),
    "CoIn": (6_990, "947d6ae14482bdeb3a7de11d5b50b504ba7740fe3d6199c81ed799857c7a7f10"),
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


@pytest.mark.parametrize("task", TASKS)
def test_the_probing_tasks(task):
    lines = toy.task(task)
    assert (len(lines), sha256(lines)) == TASK_FILES[task]
