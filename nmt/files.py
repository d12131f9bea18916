"""Files: writes that leave the old or the new content whole, texts line by line, one-line errors.

Files are written under a temporary name (`.NAME.*.tmp`), forced to the disk and renamed: whoever
kills the program, and whenever, finds the old file or the new one, whole.
"""
import os
import re
import secrets
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from nmt.flags import UserError

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@contextmanager
def reported(action: str, path):
    """Turns an OSError of the block into a UserError: "PATH: cannot ACTION (why): ..."."""
    remedy = "choose another place"
    if action == "read":
        remedy = "check the path, and that you may read it"
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{path}: cannot {action} ({why}): {remedy}") from error


# ---- Writing

def temporary_name(path: Path) -> Path:
    """A name beside `path` that nothing else has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def sync_folder(folder) -> None:
    """Forces the names in a folder to the disk: a rename is durable only after this."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def regular_file(path, shown) -> Path:
    """The file behind `path`, a link followed. Raises UserError for what is no regular file."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UserError(f"{shown}: is not a regular file: choose another name")
    return target


def check_writable(path, flag: str) -> None:
    """Raises UserError naming the flag where `atomic_write` could not write `path`: before the
    work is done."""
    shown = f"{flag} {path}"
    with reported("write", shown):
        temporary = temporary_name(regular_file(path, shown))
        open(temporary, "xb").close()
        temporary.unlink()


def atomic_write(path, data) -> None:
    """Writes a file so that at any moment, even in a power cut, its old or new content is there.

    data: bytes, str (written as UTF-8), or a function that writes to the binary file it is given.
    Raises UserError (full disk, size limit, no permission, not a regular file). After any exception
    the old file is intact and the temporary one gone.
    """
    with reported("write", path):
        target = regular_file(path, path)
        temporary = temporary_name(target)
        try:
            with open(temporary, "xb") as file:
                if callable(data):
                    data(file)
                else:
                    file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(target.parent)


# ---- Reading text

class Lines:
    """The lines of a UTF-8 file, read anew at every iteration: no corpus has to fit into memory.

    Lines end with \\n or \\r\\n and with nothing else (U+2028 or a form feed is text); a byte-order
    mark is skipped.
    Raises UserError for a file that is missing, unreadable, empty, or (while iterating) not UTF-8.
    """

    def __init__(self, path):
        self.path = Path(path)
        with reported("read", path):
            if self.path.is_dir():
                raise UserError(f"{path} is a directory; a text file with one sentence per line"
                                " belongs there")
            try:
                self.count = count_lines(self.path)
            except FileNotFoundError:
                raise UserError(f"{path} does not exist; a corpus is PREFIX.LANGUAGE, e.g. --train"
                                " data/train --src en reads data/train.en") from None
        if not self.count:
            raise UserError(f"{path} is empty; it should hold one sentence per line")

    def __len__(self) -> int:
        """The number of lines."""
        return self.count

    def __iter__(self) -> Iterator[str]:
        """The lines in order, without their ends."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield decoded(line.removesuffix(b"\n"), number, self.path)


def count_lines(path: Path) -> int:
    """The number of lines of a file; the last one needs no end."""
    count = 0
    last = b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block
    return count if last.endswith(b"\n") else count + 1


def read_lines(path: str | None, largest: int | None = None) -> list[str]:
    """The lines of a UTF-8 file (None: of standard input), cut and decoded as by `Lines`.

    Raises UserError for a file that is missing, unreadable, empty, larger than `largest` bytes, or
    not UTF-8 (naming the line). Standard input may be empty.
    """
    name = path or "standard input"
    with reported("read", name):
        if path and largest and os.path.getsize(path) > largest:
            raise UserError(f"{path} is too large to be translated in one go: split it, e.g. with"
                            " split -l 1000000")
        content = Path(path).read_bytes() if path else sys.stdin.buffer.read()
    if path and not content:
        raise UserError(f"{path} is empty; it should hold one sentence per line")
    if not content:
        return []
    lines = content.removesuffix(b"\n").split(b"\n")
    return [decoded(line, number, name) for number, line in enumerate(lines, start=1)]


def decoded(line: bytes, number: int, name) -> str:
    """A line of a UTF-8 file without its \\r, the first without a byte-order mark. Raises UserError
    naming the line."""
    if number == 1:
        line = line.removeprefix(BYTE_ORDER_MARK)
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, line {number}: not UTF-8 (byte {error.start + 1} of the line);"
                        " convert it, e.g. with iconv -t UTF-8") from None
