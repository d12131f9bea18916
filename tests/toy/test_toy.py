"""toy/: the stored sentences, counted and compared with their checksums."""
import hashlib
from collections import Counter

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
# task: lines, classes, and the SHA-256 of the lines
TASK_FILES = {
    "SeLen": (6_990, 6, "63fbe0e79fc60b769ed7f970b48513d883865e2b58a44d7f0360362d05837383"),
    "WC": (6_975, 31, "73b2742b6ce98453486677bdfccbfa58029c00eb7ef690c48a8341065249c93c"),
    "TrDep": (7_000, 5, "c80d9522c605c5b35b0798c56ead8962b36e348b3f736b30d42875366ce1d73d"),
    "ToCo": (7_000, 5, "de9fa5b3e772231c5c749f8a4e168eb6d9f9d0ce5d86ecdc26d4f1bc456550fa"),
    "BShif": (7_000, 2, "0f9abb01849e924798b36d080063e1824fbbf006667efcb39c204951b3f4e39a"),
    "Tense": (7_000, 2, "108540d9e6c8771d54fa9d0df0582ebdfc303f0bc0bb0faa678344cf27ae5183"),
    "SubNm": (7_000, 2, "fdb3e5262d8b41c1f653037e3814167776ec215c17cacaee246c11798f9540ca"),
    "ObjNm": (7_000, 2, "4311fa72e5bf4815e63f321d310e1e7137b0eb66f55701356adebbcfec49d7f7"),
    "SOMO": (7_000, 2, "a1f43505e36f691415743eca1a82ea342238f40545fd8a68b8dbe9a9d9e3ddde"),
    "CoIn": (6_990, 2, "947d6ae14482bdeb3a7de11d5b50b504ba7740fe3d6199c81ed799857c7a7f10"),
}
# one test example of each task, and what the label says about it
EXAMPLES = {
    "SeLen": "8-9\tthe mother wanted to talk to a hungry girl .",        # 9 words
    "WC": "lamp\twe have not sold the lamp .",
    # S NP SBAR S VP ADJP JJ (strong): 7 labels
    "TrDep": "7\tthe child who is strong saw a queen while her teacher heard a father",
    # S has three children: can, a child, and the rest
    "ToCo": "AUX_NP_VP\tcan a child sing on the bridge today because he follows them",
    "BShif": "I\tMax had to draw dog the .",                             # the dog
    "Tense": "PAST\tyesterday a queen did not hear his cow .",           # did
    "SubNm": "NNS\tbut two daughters are strong today .",                # daughters
    "ObjNm": "NN\tthe friend bought a gift behind the museum .",         # gift
    "SOMO": "C\this rich bags work for Leo .",                           # bags do not work
    "CoIn": "I\tshe is old , and they thank a daughter .",               # she: the daughter
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


def test_no_english_sentence_occurs_twice():
    assert len({english for part in PAIRS for english, german in toy.pairs(part)}) == 31_500


@pytest.mark.parametrize("task", TASKS)
def test_the_probing_tasks(task):
    """Classes are equally frequent in every part. No sentence occurs twice, not even with its words
    in another order."""
    lines = toy.task(task)
    count, classes, checksum = TASK_FILES[task]
    assert (len(lines), sha256(lines)) == (count, checksum)
    assert f"te\t{EXAMPLES[task]}" in lines
    examples = [line.split("\t") for line in lines]
    sizes = Counter((part, label) for part, label, tokens in examples)
    assert len(sizes) == 3 * classes
    for part in ("tr", "va", "te"):
        assert len({size for (its_part, label), size in sizes.items() if its_part == part}) == 1
    assert len({tuple(sorted(tokens.split())) for part, label, tokens in examples}) == count
