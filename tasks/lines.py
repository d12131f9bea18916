"""The lines of a text that fits into the memory: formulas, probing tasks, sentences to probe on."""
from pathlib import Path

from nmt.files import Lines, reported
from nmt.flags import UserError

LARGEST = 2 ** 30               # bytes of a file; the largest published one has 9 MB


def small_text(path, missing: str) -> list[str]:
    """The lines of a UTF-8 file as `nmt.files.Lines` reads them, none of an empty file.

    Raises UserError for a file that is not there (which then says `missing`), unreadable, not UTF-8
    or above 1 GiB.
    """
    path = Path(path)
    with reported("read", path):
        if not path.is_file():
            raise UserError(missing)
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: is too large, it may have 1 GiB: take its beginning, e.g."
                            " with head -n 1000000")
        with open(path, "rb") as file:
            empty = not file.read(1)
    return [] if empty else list(Lines(path))
