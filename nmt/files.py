"""Files: writes that leave the old or the new content whole, texts read line by line, errors in one line.

Files are written under a temporary name (`.NAME.*.tmp`), forced to the disk and renamed: whoever kills the program,
and whenever, finds the old file or the new one, whole.
"""
import errno
import os
import re
import secrets
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from nmt.flags import UserError

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
REMEDIES = {errno.ENOSPC: "free some space", errno.EDQUOT: "free some space", errno.EFBIG: "raise the file size limit",
            errno.EACCES: "check its permissions", errno.EPERM: "check its permissions"}


@contextmanager
def reported(action: str, path):
    """Turns an OSError or MemoryError of the block into a UserError: "PATH: cannot ACTION (why): remedy"."""
    if "\0" in str(path):
        raise UserError(f"{str(path)!r}: a file name cannot hold a NUL character")
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno, "choose another place")
        raise UserError(f"{path}: cannot {action} ({error.strerror or error}): {remedy}") from error
    except MemoryError as error:
        raise UserError(f"{path}: cannot {action} (the memory does not suffice): make it smaller") from error


def sync_folder(folder):
    """Forces the names in a folder to the disk: a rename is durable only after this."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:       # said by file systems that know no fsync of folders
                raise
        finally:
            os.close(handle)


def _names(path, shown) -> tuple[Path, Path]:
    """The file behind `path` and a temporary name beside it. Raises UserError for what is no regular file."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UserError(f"{shown}: is not a regular file: choose another name")
    return target, target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")


def check_writable(path, flag: str):
    """Raises UserError naming the flag where `atomic_write` could not write `path`: before the work is done."""
    with reported("write", shown := f"{flag} {path}"):
        temporary = _names(path, shown)[1]
        open(temporary, "xb").close()
        temporary.unlink()


def atomic_write(path, data):
    """Writes a file so that at any moment, through a power cut too, the old or the new content is there, whole.

    data: bytes, str (written as UTF-8), or a function that writes to the binary file it is given.
    Raises UserError (full disk, size limit, no permission, not a regular file). After any exception the old file is
    intact and the temporary one gone.
    """
    with reported("write", path):
        target, temporary = _names(path, path)
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


class Lines:
    """The lines of a UTF-8 file, read anew at every iteration, so that no corpus has to fit into memory.

    Lines end with \\n or \\r\\n and with nothing else (U+2028 or a form feed is text); a byte-order mark is skipped.
    Raises UserError for a file that is missing, unreadable, empty, or (while iterating) not UTF-8.
    """

    def __init__(self, path):
        self.path = Path(path)
        with reported("read", path):
            if self.path.is_dir():
                raise UserError(f"{path} is a directory; a text file with one sentence per line belongs there")
            try:
                with open(path, "rb") as file:
                    count, last = 0, b""
                    while block := file.read(1 << 20):
                        count, last = count + block.count(b"\n"), block
            except FileNotFoundError:
                raise UserError(f"{path} does not exist; a corpus is PREFIX.LANGUAGE, e.g. --train data/train --src en "
                                "reads data/train.en") from None
        if not last:
            raise UserError(f"{path} is empty; it should hold one sentence per line")
        self.count = count + (not last.endswith(b"\n"))

    def __len__(self) -> int:
        """The number of lines."""
        return self.count

    def __iter__(self) -> Iterator[str]:
        """The lines in order, without their ends."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield decoded(line.removesuffix(b"\n"), number, self.path)


def read_lines(path: str | None, largest: int | None = None) -> list[str]:
    """The lines of a UTF-8 file (None: of standard input), which end with \\n or \\r\\n; a byte-order mark is skipped.

    Raises UserError for a file that is missing, unreadable, empty, larger than `largest` bytes, or not UTF-8 (naming
    the line).
    """
    name = path or "standard input"
    with reported("read", name):
        if path and largest and os.path.getsize(path) > largest:
            raise UserError(f"{path} is too large to be translated in one go: split it, e.g. with split -l 1000000")
        content = sys.stdin.buffer.read() if path is None else Path(path).read_bytes()
    if path and not content:
        raise UserError(f"{path} is empty; it should hold one sentence per line")
    if not content:
        return []
    lines = []
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        lines.append(decoded(line, number, name))
    return lines


def decoded(line: bytes, number: int, name) -> str:
    """A line of a UTF-8 file without its \\r, the first without a byte-order mark. Raises UserError naming the line."""
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, line {number}: not UTF-8 (byte {error.start + 1} of the line); convert it, e.g. with "
                        "iconv -t UTF-8") from None
