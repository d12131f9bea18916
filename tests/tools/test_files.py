"""files.py: writes are all or nothing; lines of text come out as they are in the file."""
import errno
import io
import itertools
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_run import random_pairs

from nmt.encoded import make_folder
from tools.files import Lines, UserError, atomic_write, read_lines


@pytest.mark.parametrize("data", [b"\xc3\xa4", "ä", lambda file: file.write(b"\xc3\xa4")])
def test_atomic_write_replaces_the_file(tmp_path, data, monkeypatch):
    """When all its bytes are on the disk: a power failure leaves no half file."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    (tmp_path / "file").write_text("old", "utf-8")
    monkeypatch.setattr("tools.files.rename", lambda *paths: synced == [2] and os.replace(*paths))
    atomic_write(tmp_path / "file", data)
    assert (tmp_path / "file").read_text("utf-8") == "ä"
    assert os.listdir(tmp_path) == ["file"]


def test_atomic_write_follows_a_link(tmp_path):
    try:
        (tmp_path / "link").symlink_to("file")
    except OSError:
        pytest.skip("links need a privilege in Windows")
    atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "file").read_text("utf-8") == "new" and (tmp_path / "link").is_symlink()


def test_a_file_that_is_read_is_replaced_later(tmp_path, monkeypatch):
    """In Windows it cannot be replaced meanwhile. One that is never free is given up."""
    replace, waits = os.replace, []
    reads = 2

    def refuse(source, target):
        if len(waits) < reads:
            raise PermissionError(errno.EACCES, "Access is denied")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr("time.sleep", waits.append)
    atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text("utf-8") == "new" and len(waits) == 2
    reads = 99
    with pytest.raises(UserError, match="Access is denied"):
        atomic_write(tmp_path / "file", "newer")
    assert (tmp_path / "file").read_text("utf-8") == "new" and 3 < sum(waits[2:]) < 10


@pytest.mark.parametrize("name", [".", os.devnull, "missing/file"])
def test_atomic_write_names_what_cannot_be_written(tmp_path, name):
    path = tmp_path / name
    words = rf"^{re.escape(str(path))}: .*: choose another (name|place)$"
    with pytest.raises(UserError, match=words):
        atomic_write(path, b"x")


@pytest.mark.parametrize("failure, expected, words", [
    (OSError(errno.ENOSPC, "No space left on device"), UserError,
     "free some space and repeat the command"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), UserError, "free some space"),
    (OSError(errno.EIO, "Input/output error"), UserError, "cannot write .Input/output error"),
    (KeyboardInterrupt(), KeyboardInterrupt, "^$"), (SystemExit(143), SystemExit, "143")])
def test_a_write_that_fails_midway_keeps_the_old_file(tmp_path, failure, expected, words):
    """torch hides no signal and no passing error: its zip writer raises a RuntimeError over an
    exception in `write`."""
    def write_half(file):
        file.write(b"ne")
        raise failure

    def save(file):
        writes = itertools.count()

        def write(data):
            if next(writes) == 3:
                raise failure
            return file.write(data)

        torch.save(torch.zeros(9_000), SimpleNamespace(write=write, flush=file.flush))

    (tmp_path / "file").write_text("old", "utf-8")
    for write in (write_half, save):
        with pytest.raises(expected, match=words):
            atomic_write(tmp_path / "file", write)
        assert (tmp_path / "file").read_text("utf-8") == "old" and os.listdir(tmp_path) == ["file"]


def test_a_write_of_numpy_that_stops_anywhere_is_reported(tmp_path):
    """NumPy hides the error. The limit is that of `ulimit -f`."""
    pairs = random_pairs(2_500, 9)
    resource = pytest.importorskip("resource")           # not on Windows
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in range(0, 36_000, 1_000):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
            with pytest.raises(UserError, match=r"cannot write \(File too large\)"):
                make_folder(pairs, tmp_path / "file")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# ---- Text

def test_line_ends_and_byte_order_marks(tmp_path, monkeypatch):
    """A byte-order mark goes; \\n, \\r\\n and the end of the file end a line, nothing else does.
    The checksum is that of the lines."""
    content = "\ufeffone\r\ntwo\u2028\x0b\x0c\x85\x1c still\n\nfour\rfour\n\ufefffive".encode()
    expected = ["one", "two\u2028\x0b\x0c\x85\x1c still", "", "four\rfour", "\ufefffive"]
    (tmp_path / "text").write_bytes(content)
    lines = Lines(tmp_path / "text")
    assert list(lines) == expected == list(lines) and len(lines) == 5
    (tmp_path / "unix").write_bytes(content.replace(b"\r\n", b"\n"))
    assert Lines(tmp_path / "unix").sha256 == lines.sha256
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert read_lines() == expected == read_lines(tmp_path / "text")
    if Path("/dev/fd").exists():                         # not on Windows
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        assert read_lines(f"/dev/fd/{reader}") == expected
