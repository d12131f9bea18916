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
from nmt.download import Archive, Part, fetch, write_text
from nmt.flags import UserError


class Server(ThreadingHTTPServer):
    """Serves `files` (path: bytes); `cut` paths break off half-way; counts the requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.cut = set()
        self.requests = []

    def add(self, name: str, content: bytes) -> Archive:
        self.files["/" + name] = content
        url = f"http://127.0.0.1:{self.server_port}/{name}"
        return Archive(url, len(content), hashlib.sha256(content).hexdigest())


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.path in self.server.cut:
            content = content[:len(content) // 2]
        with contextlib.suppress(ConnectionError):     # of a client that has read enough
            self.wfile.write(content)

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


TEXTS = {"train": ("one\ntwo\n", "eins\nzwei\n"), "val": ("four\n", "vier\n"),
         "first": ("five\n", "fünf\n"), "second": ("six\n", "sechs\n")}


@pytest.fixture
def known(server, monkeypatch):
    """`--data multi30k` as four texts of gzipped files, from the server."""
    texts = {}
    for name, (english, german) in TEXTS.items():
        source = server.add(f"{name}.en.gz", gzip.compress(english.encode()))
        target = server.add(f"{name}.de.gz", gzip.compress(german.encode()))
        texts[name] = [Part((source, "*"), (target, "*"))]
    monkeypatch.setitem(download.CORPORA, "multi30k", (("en", "de"), texts))
    return server


def load(folder, **flags):
    """The texts of `known`."""
    return load_corpora(DataFlags(data="multi30k", data_dir=str(folder), **flags))


def names_in(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_download_once(known, tmp_path):
    """The files get their names, the archives go, and the second time the server is not asked."""
    corpora = load(tmp_path)
    assert list(corpora.train.source) == ["one", "two"]
    assert corpora.tests == {"first": (["five"], ["fünf"]), "second": (["six"], ["sechs"])}
    files = {f"{name}.{language}" for name in TEXTS for language in ("en", "de")}
    assert names_in(tmp_path / "multi30k") - {".lock"} == files
    assert len(known.requests) == 8
    reverse = load(tmp_path, src="de")
    assert (reverse.src, reverse.tgt) == ("de", "en") and reverse.valid == (["vier"], ["four"])
    assert len(known.requests) == 8


def check_failure(folder, *words) -> None:
    """Asserts that loading raises one line with all the words, and leaves no text and no part of a
    download of the validation text behind."""
    with pytest.raises(UserError) as raised:
        load(folder)
    message = str(raised.value)
    assert "\n" not in message and all(str(word) in message for word in words), message
    names = {path.name for path in folder.rglob("*")}
    assert not [name for name in names if name.endswith(".tmp") or name in ("val.de.gz", "val.en")]


def test_missing_at_the_source(known, tmp_path):
    """The message says what to put where."""
    del known.files["/val.de.gz"]
    folder = tmp_path / "multi30k"
    check_failure(tmp_path, "404", f"put it at {folder}/archives/val.de.gz",
                  f"put val.en and val.de (one sentence per line) into {folder}")


def test_broken_off(known, tmp_path):
    """A connection that ends half-way is an error. Later only what is missing is asked for."""
    known.cut.add("/val.de.gz")
    check_failure(tmp_path, "val.de.gz")
    known.cut.clear()
    del known.requests[:]
    assert load(tmp_path).valid.target == ["vier"]
    assert not {"/train.en.gz", "/train.de.gz", "/val.en.gz"} & set(known.requests)


def test_other_content_than_published(known, tmp_path):
    known.files["/val.de.gz"] = known.files["/val.de.gz"][:-1] + b"?"
    check_failure(tmp_path, "another SHA-256")
    known.files["/val.de.gz"] += b"and more than that"
    check_failure(tmp_path, "more than the published size")


def test_archives_put_there_by_hand(known, tmp_path):
    """The published one is used, another one refused and left alone."""
    archives = tmp_path / "multi30k" / "archives"
    archives.mkdir(parents=True)
    (archives / "train.en.gz").write_bytes(known.files["/train.en.gz"])
    (archives / "train.de.gz").write_bytes(b"something else")
    with pytest.raises(UserError, match="train.de.gz is not the file published .*: delete it"):
        load(tmp_path)
    assert not known.requests and (archives / "train.de.gz").read_bytes() == b"something else"


def test_three_programs_at_once(known, tmp_path):
    """The others wait for the first one and find the texts."""
    results = []
    threads = []
    for _ in range(3):
        threads.append(threading.Thread(target=lambda: results.append(load(tmp_path))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert [corpora.valid for corpora in results] == [(["four"], ["vier"])] * 3
    assert len(known.requests) == 8


# ---- Members of archives

def serve_zip(server, folder, name: str, members: dict) -> Archive:
    """A .zip file of the members {name: content}, fetched into the folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    archive = server.add(name, file.getvalue())
    fetch(archive, folder / name, "")
    return archive


def test_zip_members(server, tmp_path):
    """Parts follow each other, members in the order of their names; SGML gives its segments; a
    surplus is left out."""
    train = serve_zip(server, tmp_path, "a.zip", {
        "t/Book2_cn.txt": "二\n", "t/Book2_en.txt": "two\n", "__MACOSX/t/Book1_cn.txt": "junk",
        "t/Book1_cn.txt": "\ufeff一\r\n多\n", "t/Book1_en.txt": "one"})
    dev = serve_zip(server, tmp_path, "b.zip", {
        "d/x.zh.sgm": '<doc>\n<seg id="1"> 三 </seg>\n</doc>\n',
        "d/x.en.sgm": '<DOC>\n<seg id="1">three &amp; more</seg>\n'})
    parts = [
        Part((train, "*_c[hn].txt"), (train, "*_en.txt")),
        Part((dev, "*x.zh.sgm"), (dev, "*x.en.sgm")),
    ]
    write_text(tmp_path / "out.zh", tmp_path / "out.en", parts, tmp_path)
    assert (tmp_path / "out.zh").read_bytes().decode() == "一\n二\n三\n"
    assert (tmp_path / "out.en").read_bytes().decode() == "one\ntwo\nthree &amp; more\n"


def test_member_that_points_outside(server, tmp_path):
    """A member's name is only compared with a pattern: nothing is written under it."""
    inside = tmp_path / "inside"
    inside.mkdir()
    members = {"../../x_en.txt": "one\n", "/x_cn.txt": "一\n"}
    archive = serve_zip(server, inside, "evil.zip", members)
    parts = [Part((archive, "*_cn.txt"), (archive, "*_en.txt"))]
    write_text(inside / "out.zh", inside / "out.en", parts, inside)
    assert names_in(tmp_path) == {"inside"}
    assert names_in(inside) == {"evil.zip", "out.en", "out.zh"}


def test_archive_without_the_member(server, tmp_path):
    archive = serve_zip(server, tmp_path, "a.zip", {"other.txt": ""})
    parts = [Part((archive, "*.en"), (archive, "*.de"))]
    with pytest.raises(UserError, match="holds no file"):
        write_text(tmp_path / "x.en", tmp_path / "x.de", parts, tmp_path)
    assert names_in(tmp_path) == {"a.zip"}


def test_table_of_sources():
    """Every archive has a SHA-256, a secure address, and within its corpus a name of its own."""
    assert set(download.CORPORA) | {"toy"} == set(corpus.NAMES)
    for _, texts in download.CORPORA.values():
        archives = {archive for parts in texts.values() for part in parts for archive, _ in part}
        assert len(texts) >= 3 and len({archive.name for archive in archives}) == len(archives)
        for archive in archives:
            assert archive.size > 0 and len(bytes.fromhex(archive.sha256)) == 32
            assert archive.url.startswith("https://")
