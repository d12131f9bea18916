"""The embedded corpus: English-German sentence pairs (see README.md).

    import toy
    for english, german in toy.pairs("test")[:5]:
        print(english, "->", german)
"""
import gzip
from pathlib import Path


def pairs(part: str) -> list[tuple[str, str]]:
    """The (English, German) sentences of a part: "train", "valid" or "test"."""
    return list(zip(read_lines(f"{part}.en"), read_lines(f"{part}.de")))


def read_lines(name: str) -> list[str]:
    """The lines of NAME.gz in this folder."""
    path = Path(__file__).with_name(f"{name}.gz")
    return gzip.decompress(path.read_bytes()).decode().splitlines()
