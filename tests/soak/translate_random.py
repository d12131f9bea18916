"""Lines of random Unicode through translate.py: as many come out as go in. The suite does it with a
few hundred.

    python tests/soak/translate_random.py            # 10,000 lines, a minute or two on one core
    python tests/soak/translate_random.py 500 7      # as many lines as you like, another seed

The model is a minute one with random weights: it spells arbitrary bytes, which is the hardest case
for the output.
"""
import random
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from small_run import write_run

import toy
import translate
from nmt.tokenizer import train_tokenizer

# What a decoder, a terminal or `str.splitlines` may stumble over: NUL and other controls, line and
# paragraph separators, direction marks, byte-order marks, joiners, noncharacters, the names of
# special tokens.
ODD = [
    "\0",
    "\x07",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "\u2028",
    "\u2029",
    "\x0b",
    "\x0c",
    "\x1c",
    "\r",
    "\r\r",
    "\t",
    "\u200d",
    "\u200f",
    "\u202e",
    "\u2066",
    "\ufeff",
    "\ufffe",
    "\ufffd",
    "\U0010ffff",
    "\u0301" * 9,
    "⟨s⟩",
    "⟨/s⟩",
    "⟨pad⟩",
    "</s>",
    "\u3000",
    " ",
]
RANGES = [
    (0x20, 0x7E),
    (0x00, 0x24F),
    (0x370, 0x52F),
    (0x590, 0x6FF),
    (0x900, 0xDFF),
    (0x3040, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xE000, 0xF8FF),
    (0x1D400, 0x1D7FF),
    (0x1F1E6, 0x1F6FF),
    (0x20000, 0x2A6DF),
    (0, 0x10FFFF),
]


def random_letter(rng: random.Random, low: int, high: int) -> str:
    """An odd character, a space or one of low to high."""
    if rng.random() < 0.05:
        return rng.choice(ODD)
    if rng.random() < 0.12:
        return " "
    return chr(rng.randint(low, high))


def random_line(rng: random.Random, longest: int) -> str:
    """A line of one script or of all, with odd characters strewn in; blank now and then, long now
    and then."""
    low, high = rng.choice(RANGES)
    length = (
        rng.choice([0, 1, 3, 10, 30])
        if rng.random() < 0.98
        else rng.randint(longest // 15, longest)
    )
    letters = [random_letter(rng, low, high) for _ in range(length)]
    line = "".join(letters).replace("\n", "")
    return line.encode("utf-8", "ignore").decode()           # lone surrogates are in no UTF-8 file


def random_lines(count: int, seed: int = 0, longest: int = 3000) -> list[str]:
    """`count` random lines, the same for the same seed; one is a very long word."""
    rng = random.Random(seed)
    lines = [random_line(rng, longest) for _ in range(count)]
    if lines:
        lines[rng.randrange(count)] = "é" * 5000
    return lines


def random_run(folder: Path, seed: int = 0) -> None:
    """A run folder as training leaves it, of a minute model with random weights."""
    texts = []
    for pair in toy.corpus(100):
        texts += [pair.english, pair.german]
    write_run(folder, train_tokenizer(texts, 400), seed)


def check(lines: list[str], output: bytes) -> Counter:
    """Asserts that every line has one translation, in valid UTF-8; counts what the lines were."""
    found = output.decode().split("\n")
    assert found.pop() == "" and len(found) == len(lines), (len(found), len(lines))
    counts = Counter(lines=len(lines))
    for line, translation in zip(lines, found):
        assert len(translation.splitlines()) <= 1, (line, translation)
        counts["blank"] += not line.strip()
        counts["answered with text"] += bool(translation)
        counts["right to left"] += any(
            unicodedata.bidirectional(c) in ("R", "AL") for c in line[:3000]
        )
        counts["with control characters"] += any(
            unicodedata.category(c) == "Cc" for c in line[:3000]
        )
    assert all(not translation for line, translation in zip(lines, found) if not line.strip())
    return counts


def main(count: int = 10_000, seed: int = 0) -> int:
    """Translates `count` random lines and says what they were."""
    torch.set_num_threads(1)
    lines = random_lines(count, seed)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_run(folder / "run")
        (folder / "in").write_bytes("".join(line + "\n" for line in lines).encode())
        status = translate.main(
            [
                str(folder / "run"),
                "--device",
                "cpu",
                "--beam",
                "1",
                "--max-tokens",
                "65536",
                "--input",
                str(folder / "in"),
                "--output",
                str(folder / "out"),
            ]
        )
        assert status == 0, status
        counts = check(lines, (folder / "out").read_bytes())
    characters = len(set().union(*lines))
    print(
        f"{count:,} lines of {characters:,} different characters in, {counts['lines']:,} out: "
        + ", ".join(f"{n:,} {what}" for what, n in counts.items() if what != "lines")
        + f"; {time.perf_counter() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
