"""Files in Bowman's format."""
import pytest


@pytest.fixture
def write_files():
    """A function that writes {part: {bin: pairs}} into a folder."""
    def write(folder, parts):
        folder.mkdir(exist_ok=True)
        for part, bins in parts.items():
            for size, pairs in bins.items():
                lines = ["\t".join(pair) + "\n" for pair in pairs]
                (folder / f"{part}{size}").write_text("".join(lines), "utf-8")
    return write
