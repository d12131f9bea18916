"""Files: atomic writes, lines of text, and errors of the operating system as one line."""
import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class UserError(ValueError):
    """A mistake that the user can fix; its text says what is wrong and what would work."""


def how_to_write(error: OSError) -> str:
    """The remedy for an error in writing a file, for its message."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and repeat the command"
    return "choose another place"


def describe_error(error: OSError) -> str:
    """One line about a file that cannot be written, or about the output."""
    return f"{error.filename or 'output'}: {error.strerror or error}: {how_to_write(error)}"


@contextmanager
def as_user_error(action: str, path):
    """Turns an OSError of the block into a UserError: "PATH: cannot ACTION (why): ..."."""
    try:
        yield
    except OSError as error:
        remedy = "check the path" if action == "read" else how_to_write(error)
        raise UserError(f"{path}: cannot {action} ({error.strerror or error}): {remedy}") from error


@contextmanager
def errors_of(flag: str):
    """Puts the flag that named a file before a UserError of the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{flag}: {error}") from error


def atomic_write(path, data) -> None:
    """Writes a file under a temporary name and renames it, so that a killed program leaves the old
    file or the new one. data: bytes, str or a function of a binary file. Raises UserError."""
    target = Path(os.path.realpath(path))                # links are followed
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    if target.exists() and not target.is_file():         # it would replace /dev/null
        raise UserError(f"{path}: is not a file: choose another name")
    with as_user_error("write", path):
        try:
            with open(temporary, "xb") as file:
                if callable(data):
                    call_writer(data, file)
                else:
                    file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            rename(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(path):
    """Makes a folder that the block fills; it goes again if the block fails. Raises UserError."""
    with as_user_error("write", path):
        Path(path).mkdir(parents=True)
        try:
            yield
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise


def rename(source, target) -> None:
    """Renames a folder, or a file over the target. In Windows this fails while another program,
    such as a virus scanner, reads the target: it is tried again for some seconds."""
    for seconds in (0.1, 0.2, 0.5, 1, 2):
        try:
            os.replace(source, target)
            return
        except PermissionError:
            time.sleep(seconds)
    os.replace(source, target)


def read_json(path, remedy: str) -> dict:
    """Reads a JSON object from a file. Raises UserError; remedy: what helps if it is damaged."""
    with as_user_error("read", path):
        content = Path(path).read_bytes()
    try:
        return dict(json.loads(content))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: is damaged: {remedy}") from error


def call_writer(write, file) -> None:
    """Calls write(file). torch's zip writer raises a RuntimeError over a disk error, or over
    the exit of a signal."""
    try:
        write(file)
    except RuntimeError as error:
        raise error.__context__ or error


class Lines:
    """The lines of a UTF-8 file, read anew at every iteration: a corpus need not fit into memory.
    Raises UserError: missing, unreadable, empty, or (while iterating) not UTF-8, or changed."""

    def __init__(self, path):
        self.path = Path(path)
        digest = hashlib.sha256()
        with as_user_error("read", path), open(path, "rb") as file:
            self.count = sum(1 for _ in add_lines(digest, file))
        self.sha256 = digest.hexdigest()
        if not self.count:
            raise UserError(f"{path} is empty; it should hold one sentence per line")

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            yield from decode_lines(add_lines(digest, file), self.path)
        if digest.hexdigest() != self.sha256:
            raise UserError(f"{self.path}: changed while it was read: start again when it is "
                            "written")


def add_lines(digest, lines) -> Iterator[bytes]:
    """Yields the lines, and adds them to a digest of `hashlib`, whatever ends a line."""
    for line in lines:
        digest.update(line.removesuffix(b"\n").removesuffix(b"\r") + b"\n")
        yield line


def read_lines(path=None) -> list[str]:
    """The lines of a UTF-8 file or pipe, or of standard input; there may be none. Raises UserError:
    missing, unreadable or not UTF-8."""
    if not path:
        return list(decode_lines(sys.stdin.buffer, "standard input"))
    with as_user_error("read", path), open(path, "rb") as file:
        return list(decode_lines(file, path))


def decode_lines(file, name) -> Iterator[str]:
    """Yields the lines of a binary file, which end with \\n or \\r\\n, without a byte-order mark.
    Raises UserError naming a line that is not UTF-8."""
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{name}, line {number}: not UTF-8 (byte {error.start + 1} of the line)"
                            "; convert it, e.g. with iconv -t UTF-8") from None
