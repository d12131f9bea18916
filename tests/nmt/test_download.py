"""Known corpora from a server on this machine: made whole or not at all, checked, and nothing
outside their folder."""
import contextlib
import gzip
import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nmt import corpus, download
from nmt.corpus import DataFlags, load_corpora
from nmt.download import Archive, Part
from nmt.flags import UserError, parse


class Server(ThreadingHTTPServer):
    """Serves `files` (path: bytes); `cut` paths break off half-way; counts the requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.cut = set()
        self.requests = []

    def add(self, name: str, content: bytes) -> Archive:
        self.files["/" + name] = content
        return Archive(
            f"http://127.0.0.1:{self.server_port}/{name}",
            len(content),
            hashlib.sha256(content).hexdigest(),
        )


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # of a client that has read enough
            self.wfile.write(
                content[: len(content) // 2] if self.path in self.server.cut else content
            )

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def zipped(members: dict) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


TEXTS = {"train": ("one\ntwo\nthree\n", "eins\nzwei\ndrei\n"), "val": ("four\n", "vier\n"),
         "last": ("five\n", "fünf\n")}


@pytest.fixture
def known(server, monkeypatch):
    """`--data multi30k` as three texts of gzipped files, from the server."""
    texts = {}
    for name, (english, german) in TEXTS.items():
        source = server.add(f"{name}.en.gz", gzip.compress(english.encode()))
        target = server.add(f"{name}.de.gz", gzip.compress(german.encode()))
        texts[name] = [Part((source, "*"), (target, "*"))]
    monkeypatch.setitem(download.CORPORA, "multi30k", (("en", "de"), texts))
    return server


def data_flags(folder, *more) -> DataFlags:
    """The flags that ask for it."""
    argv = ["--data", "multi30k", "--data-dir", str(folder), *more]
    return parse(DataFlags, argv, "p.py", "")


def test_download_once(known, tmp_path):
    """The files arrive under their names, the archives go, and the second time the server is not
    asked."""
    corpora = load_corpora(data_flags(tmp_path))
    assert list(corpora.train.source) == ["one", "two", "three"] and corpora.test.target == ["fünf"]
    wanted = [f"{name}.{language}" for name in TEXTS for language in ("en", "de")]
    found = [path.name for path in (tmp_path / "multi30k").iterdir() if path.name != ".lock"]
    assert sorted(found) == sorted(wanted)
    asked = len(known.requests)
    assert asked == 6
    load_corpora(data_flags(tmp_path))
    assert len(known.requests) == asked


def test_reverse_direction(known, tmp_path):
    corpora = load_corpora(data_flags(tmp_path, "--src", "de"))
    assert (corpora.src, corpora.tgt) == ("de", "en") and corpora.valid == (["vier"], ["four"])


def test_present_files_need_no_server(known, tmp_path):
    (tmp_path / "multi30k").mkdir()
    for name, pair in TEXTS.items():
        for language, text in zip(("en", "de"), pair):
            (tmp_path / "multi30k" / f"{name}.{language}").write_text(text, encoding="utf-8")
    load_corpora(data_flags(tmp_path))
    assert not known.requests


def failed(folder):
    """The error of loading, which must leave no text and no part of a download behind."""
    with pytest.raises(UserError) as error:
        load_corpora(data_flags(folder))
    assert not [
        path
        for path in folder.rglob("*")
        if path.name.endswith((".tmp", "val.de.gz")) or path.suffix == ".de"
    ]
    return str(error.value)


def test_missing_at_the_source(known, tmp_path):
    del known.files["/val.de.gz"]
    message = failed(tmp_path)
    assert "val.de.gz" in message and "404" in message
    assert str(tmp_path / "multi30k" / "archives" / "val.de.gz") in message
    assert "train.en, train.de" in message


def test_unreachable_server(known, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("network is unreachable")
    monkeypatch.setattr(download.urllib.request, "urlopen", refuse)
    assert "network is unreachable" in failed(tmp_path)


def test_broken_off(known, tmp_path):
    """A connection that ends half-way: an error now; later only what is missing is asked for."""
    known.cut.add("/val.de.gz")
    assert "val.de.gz" in failed(tmp_path)
    known.cut.clear()
    asked = len(known.requests)
    assert load_corpora(data_flags(tmp_path)).valid.target == ["vier"]
    assert "/train.en.gz" not in known.requests[asked:]


def test_other_content_than_published(known, tmp_path):
    same_size = bytearray(known.files["/val.de.gz"])
    same_size[-1] ^= 1
    known.files["/val.de.gz"] = bytes(same_size)
    assert "SHA-256" in failed(tmp_path)


def test_foreign_archive_put_there_by_hand(known, tmp_path):
    archives = tmp_path / "multi30k" / "archives"
    archives.mkdir(parents=True)
    (archives / "train.en.gz").write_bytes(b"something else")
    with pytest.raises(UserError, match="train.en.gz is not the file published"):
        load_corpora(data_flags(tmp_path))
    assert (archives / "train.en.gz").read_bytes() == b"something else"


def test_folder_that_cannot_be_made(known, tmp_path):
    (tmp_path / "multi30k").write_text("a file")
    with pytest.raises(UserError, match="multi30k"):
        load_corpora(data_flags(tmp_path))


def test_two_programs_at_once(known, tmp_path):
    """The second waits for the first and finds the texts there."""
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(load_corpora(data_flags(tmp_path))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [corpora.valid for corpora in found] == [(["four"], ["vier"])] * 3
    assert len(known.requests) == 6


def test_a_download_that_was_stopped_goes_on(known, tmp_path):
    """The archives that are there are used, and a file of somebody else's stays."""
    archives = tmp_path / "multi30k" / "archives"
    archives.mkdir(parents=True)
    (archives / "train.en.gz").write_bytes(known.files["/train.en.gz"])
    (archives / "mine.txt").write_text("mine")
    load_corpora(data_flags(tmp_path))
    assert len(known.requests) == 5
    assert [path.name for path in archives.iterdir()] == ["mine.txt"]


def test_zip_members(server, tmp_path, capsys):
    """Parts follow each other, members in the order of their names; SGML gives its segments; a
    surplus is left out."""
    train = server.add("a.zip", zipped({
        "t/Book2_cn.txt": "二\n", "t/Book2_en.txt": "two\n", "__MACOSX/t/Book1_cn.txt": "junk",
        "t/Book1_cn.txt": "\ufeff一\r\n多\n", "t/Book1_en.txt": "one"}))
    dev = server.add("b.zip", zipped({"d/x.zh.sgm": '<doc>\n<seg id="1"> 三 </seg>\n</doc>\n',
                                      "d/x.en.sgm": '<DOC>\n<seg id="1">three &amp; more</seg>\n'}))
    parts = [
        Part((train, "*_c[hn].txt"), (train, "*_en.txt")),
        Part((dev, "*x.zh.sgm"), (dev, "*x.en.sgm")),
    ]
    paths = {}
    for archive in (train, dev):
        paths[archive] = tmp_path / archive.url.rpartition("/")[2]
        download.fetch(archive, paths[archive], "")
    download.write_text(tmp_path / "out.zh", tmp_path / "out.en", parts, paths)
    assert (tmp_path / "out.zh").read_bytes().decode() == "一\n二\n三\n"
    assert (tmp_path / "out.en").read_bytes().decode() == "one\ntwo\nthree &amp; more\n"
    assert "1 lines without a translation" in capsys.readouterr().err


def test_member_that_points_outside(server, tmp_path):
    """A member's name is only ever compared with a pattern: nothing is written under it."""
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = server.add("evil.zip", zipped({"../../x_en.txt": "one\n", "/x_cn.txt": "一\n"}))
    download.fetch(archive, inside / "evil.zip", "")
    parts = [Part((archive, "*_cn.txt"), (archive, "*_en.txt"))]
    paths = {archive: inside / "evil.zip"}
    download.write_text(inside / "out.zh", inside / "out.en", parts, paths)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "evil.zip", "inside", "out.en", "out.zh",
    ]


def test_archive_without_the_member(server, tmp_path):
    archive = server.add("a.zip", zipped({"other.txt": ""}))
    download.fetch(archive, tmp_path / "a.zip", "")
    parts = [Part((archive, "*.en"), (archive, "*.de"))]
    paths = {archive: tmp_path / "a.zip"}
    with pytest.raises(UserError, match="holds no file"):
        download.write_text(tmp_path / "x.en", tmp_path / "x.de", parts, paths)
    assert not (tmp_path / "x.en").exists()


def test_table_of_sources():
    """Every known corpus has three texts; every archive a size, a SHA-256 and one name of its
    own."""
    assert set(download.CORPORA) | {"toy"} == set(corpus.NAMES)
    for name, (languages, texts) in download.CORPORA.items():
        assert languages == corpus.NAMES[name] and len(texts) == 3
        archives = {archive for parts in texts.values() for part in parts for archive, _ in part}
        assert len({archive.url.rpartition("/")[2] for archive in archives}) == len(archives)
        assert all(archive.size > 0 and len(bytes.fromhex(archive.sha256)) == 32 and
                   archive.url.startswith("https://") for archive in archives)
