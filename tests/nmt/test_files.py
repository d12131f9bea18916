"""files.py: writes are all or nothing; lines of text come out as they are in the file."""
import errno
import io
import os
import stat
import sys

import pytest

from nmt import files
from nmt.files import Lines, read_lines
from nmt.flags import UserError


@pytest.mark.parametrize("data", [b"\xc3\xa4", "ä", lambda file: file.write(b"\xc3\xa4")])
def test_atomic_write_replaces_the_file_and_follows_a_link(tmp_path, data):
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        (tmp_path / "file").write_text("old")
        files.atomic_write(tmp_path / name, data)
        assert (tmp_path / "file").read_text(encoding="utf-8") == "ä"
        assert (tmp_path / "link").is_symlink()
        assert sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.parametrize("name", [".", os.devnull, "missing/file"])
def test_what_cannot_be_written_is_named_before_and_when_it_is(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(UserError, match=rf"^{path}: .*: choose another (name|place)$"):
        files.atomic_write(path, b"x")
    with pytest.raises(UserError, match=rf"^--out {path}: .*: choose another (name|place)$"):
        files.check_writable(path, "--out")


def test_check_writable_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "old").write_text("old")
    files.check_writable(tmp_path / "old", "--out")
    files.check_writable(tmp_path / "new", "--out")
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("failure, expected, words", [
    (OSError(errno.ENOSPC, "No space left on device"), UserError,
     "file: cannot write .No space left on device.: choose another place$"),
    (KeyboardInterrupt(), KeyboardInterrupt, None),
    (RuntimeError("a bug"), RuntimeError, "a bug")])
def test_atomic_write_failing_midway_keeps_the_old_file(tmp_path, failure, expected, words):
    def half(file):
        file.write(b"ne")
        raise failure

    (tmp_path / "file").write_text("old")
    with pytest.raises(expected, match=words):
        files.atomic_write(tmp_path / "file", half)
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_atomic_write_syncs_file_then_renames_then_syncs_folder(tmp_path, monkeypatch):
    calls = []
    replace = os.replace

    def fsync(handle):
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")

    def rename(*names):
        calls.append("rename")
        replace(*names)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    files.atomic_write(tmp_path / "file", b"x")
    assert calls == ["file", "rename", "folder"][:3 if os.name == "posix" else 2]


# ---- Text

MIXED = "\ufeffone\r\ntwo\u2028\x0b\x0c\x85\x1c still two\n\nfour\rfour\n\ufefffive".encode()


def from_stdin(content: bytes, monkeypatch) -> list[str]:
    """The lines that come in on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    return read_lines(None)


def test_line_ends_and_marks(tmp_path, monkeypatch):
    """A byte-order mark goes; \\n, \\r\\n and the end of the file end a line, nothing else does."""
    (tmp_path / "text").write_bytes(MIXED)
    expected = ["one", "two\u2028\x0b\x0c\x85\x1c still two", "", "four\rfour", "\ufefffive"]
    lines = Lines(tmp_path / "text")
    assert list(lines) == expected == list(lines) and len(lines) == 5
    assert read_lines(str(tmp_path / "text")) == expected == from_stdin(MIXED, monkeypatch)


@pytest.mark.parametrize("text, count", [
    (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2), (b"\x00", 1)])
def test_line_count(tmp_path, text, count):
    path = tmp_path / "text"
    path.write_bytes(text)
    assert len(Lines(path)) == count == len(list(Lines(path))) == len(read_lines(str(path)))


def test_line_count_of_a_large_file(tmp_path):
    """More than the block that is counted at a time, a line end on its border."""
    path = tmp_path / "text"
    path.write_bytes(b"a" * ((1 << 20) - 1) + b"\n" + b"b\n" * 10)
    assert len(Lines(path)) == 11
    path.write_bytes(b"a" * ((1 << 20) - 1) + b"\n")
    assert len(Lines(path)) == 1


@pytest.mark.parametrize("content, words", [
    (b"good\nb\xffd\n", "line 2: not UTF-8 .byte 2 of the line"),
    ("a\n".encode("utf-16"), "line 1: not UTF-8"),
    (b"", "is empty; it should hold one sentence per line")])
def test_text_that_is_none_is_named(tmp_path, content, words, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}.*{words}"):
        list(Lines(path))
    with pytest.raises(UserError, match=f"^{path}.*{words}"):
        read_lines(str(path))
    if content:
        with pytest.raises(UserError, match=f"^standard input, {words}"):
            from_stdin(content, monkeypatch)
    else:
        assert from_stdin(content, monkeypatch) == []


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match="gone does not exist"):
        Lines(tmp_path / "gone")
    with pytest.raises(UserError, match="is a directory"):
        Lines(tmp_path)
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(UserError, match=f"^{path}: cannot read"):
            read_lines(str(path))
    (tmp_path / "large").write_bytes(b"a\n" * 6)
    assert len(read_lines(str(tmp_path / "large"), largest=12)) == 6
    with pytest.raises(UserError, match="large is too large"):
        read_lines(str(tmp_path / "large"), largest=11)
