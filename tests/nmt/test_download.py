"""Known corpora from addresses on this disk: made whole or not at all, checked, and nothing outside
their folder."""
import gzip
import hashlib
import io
import re
import shutil
import zipfile

import pytest

from nmt import download
from nmt.corpus import DataFlags, load_corpora
from nmt.download import Archive, Part, fetch, write_parts
from tools.files import UserError


def publish(path, content: bytes) -> Archive:
    """Puts an archive where an address leads."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return Archive(path.as_uri(), len(content), hashlib.sha256(content).hexdigest())


TEXTS = {"train": ("one\ntwo\n", "eins\nzwei\n"), "val": ("four\n", "vier\n"),
         "first": ("five\n", "fünf\n"), "second": ("six\n", "sechs\n")}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """`--data multi30k` as four texts of gzipped files; the folder that they come from."""
    place = tmp_path / "source"
    texts = {}
    for name, sides in TEXTS.items():
        archives = [publish(place / f"{name}.{language}.gz", gzip.compress(text.encode()))
                    for language, text in zip(("en", "de"), sides)]
        texts[name] = [Part(*((archive, "*") for archive in archives))]
    monkeypatch.setitem(download.CORPORA, "multi30k", (("en", "de"), texts))
    return place


def load(folder, **flags):
    """The texts of `source`."""
    return load_corpora(DataFlags(data="multi30k", data_dir=str(folder / "data"), **flags))


def names_in(folder) -> set[str]:
    """The names of the files in a folder."""
    return {path.name for path in folder.iterdir()}


def test_download_once(source, tmp_path, capsys):
    """The files get their names, the archives go, and the second time nothing is downloaded."""
    corpora = load(tmp_path)
    error = capsys.readouterr().err
    assert f"downloading {source.as_uri()}/train.en.gz (0.0 MB)\n" in error
    assert f"writing {tmp_path / 'data' / 'multi30k' / 'train.en'}\n" in error
    assert list(corpora.train.source) == ["one", "two"]
    assert corpora.tests == {"first": (["five"], ["fünf"]), "second": (["six"], ["sechs"])}
    files = {f"{name}.{language}" for name in TEXTS for language in ("en", "de")}
    assert names_in(tmp_path / "data" / "multi30k") - {".lock"} == files
    (tmp_path / "data" / "multi30k" / "val.de").unlink()
    assert load(tmp_path).valid == corpora.valid
    for archive in source.iterdir():
        archive.unlink()
    reverse = load(tmp_path, src="de")
    assert (reverse.src, reverse.tgt) == ("de", "en") and reverse.valid == (["vier"], ["four"])


def test_missing_or_broken_off(source, tmp_path):
    """The message says what to put where. Another file there is refused and kept, the published one
    is used. Later only what is missing is downloaded."""
    path = source / "val.de.gz"
    whole = path.read_bytes()
    path.unlink()
    folder = tmp_path / "data" / "multi30k"
    by_hand = folder / "archives" / "val.de.gz"
    failed = r"\A--data multi30k: .*val.de.gz"
    put = re.escape(f"put it at {by_hand}, or put val.en and val.de (one sentence per line) into "
                    f"{folder}")
    for reason in ("No such file", "its SHA-256 is not that of the published file"):
        with pytest.raises(UserError, match=rf"{failed} \(.*{reason}.*\): .*{put}[^\n]*\Z"):
            load(tmp_path)
        assert names_in(folder) == {".lock", "archives", "train.de", "train.en"}
        assert names_in(folder / "archives") == {"train.de.gz", "train.en.gz", "val.en.gz"}
        path.write_bytes(whole[:len(whole) // 2])
    by_hand.write_bytes(b"something else")
    other = re.escape(f"{by_hand} (14 bytes) is not the file published at {path.as_uri()} "
                      f"({len(whole)} bytes): delete it")
    with pytest.raises(UserError, match=other):
        load(tmp_path)
    assert by_hand.read_bytes() == b"something else"
    by_hand.write_bytes(whole)
    for archive in ("train.en.gz", "train.de.gz", "val.en.gz", "val.de.gz"):
        (source / archive).unlink()
    assert load(tmp_path).valid.target == ["vier"]


def test_two_programs_at_once(source, tmp_path, monkeypatch):
    """The second one waits for the first and finds the texts."""
    lock = download.FileLock

    def wait(path):
        monkeypatch.setattr(download, "FileLock", lock)
        load(tmp_path)
        shutil.rmtree(source)
        return lock(path)

    monkeypatch.setattr(download, "FileLock", wait)
    assert load(tmp_path).valid == (["four"], ["vier"])
    assert not source.exists()


def test_enja_is_plain_files_with_a_test_set_of_training_pairs(tmp_path, monkeypatch):
    """The last ones, without those that share a side with another training pair."""
    texts = {"train.en": "a\nb\nc\nd\na\ne\n", "train.ja": "ア\nイ\nウ\nエ\nオ\nイ\n",
             "dev.en": "x\n", "dev.ja": "ク\n", "test.en": "y\n", "test.ja": "ケ\n"}
    archives = {name: publish(tmp_path / "source" / name, text.encode())
                for name, text in texts.items()}
    languages, table = download.CORPORA["enja"]
    assert [len(parts) for parts in table.values()] == [1] * 4
    made_up = {}
    for text, (part,) in table.items():
        sides = [(archives[archive.name], pattern) for archive, pattern in part[:2]]
        lines = {"train": (0, 3), "test_more": (3, 6)}.get(text)             # of 6 pairs
        assert bool(part.lines) == bool(lines)
        made_up[text] = [Part(*sides, lines, part.unseen)]
    monkeypatch.setitem(download.CORPORA, "enja", (languages, made_up))
    corpora = load_corpora(DataFlags(data="enja", data_dir=str(tmp_path / "data")))
    assert (corpora.src, corpora.tgt) == ("en", "ja")
    assert [list(side) for side in corpora.train] == [["a", "b", "c"], ["ア", "イ", "ウ"]]
    assert corpora.valid == (["x"], ["ク"])
    assert corpora.tests == {"test": (["y"], ["ケ"]), "test_more": (["d"], ["エ"])}


# ---- Members of archives

def fetch_zip(folder, name: str, members: dict) -> Archive:
    """A .zip file of the members {name: content}, fetched into the folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    archive = publish(folder / "source" / name, file.getvalue())
    fetch(archive, folder / name, "")
    return archive


def test_zip_members(tmp_path):
    """Parts follow each other, members in the order of their names; SGML gives its segments; a
    surplus is left out. A member's name is only compared with a pattern, not written under."""
    inside = tmp_path / "inside"
    inside.mkdir()
    train = fetch_zip(inside, "a.zip", {
        "t/Book2_cn.txt": "二\n", "t/Book2_en.txt": "two\n", "__MACOSX/t/Book1_cn.txt": "junk",
        "../t/Book1_cn.txt": "\ufeff一\r\n多\n", "/t/Book1_en.txt": "one"})
    dev = fetch_zip(inside, "b.zip", {
        "d/x.zh.sgm": '<doc>\n<seg id="1"> 三 </seg>\n</doc>\n',
        "d/x.en.sgm": b'<DOC>\n<seg id="1">three &amp; &lt;m\xf6re&gt;&#10;</seg>\n'})
    parts = [Part((train, "*_c[hn].txt"), (train, "*_en.txt")),
             Part((dev, "*x.zh.sgm"), (dev, "*x.en.sgm"))]
    write_parts([inside / "out.zh", inside / "out.en"], parts, inside)
    assert (inside / "out.zh").read_bytes().decode() == "一\n二\n三\n"
    assert (inside / "out.en").read_bytes() == b"one\ntwo\nthree & <m\xf6re>\n"      # not UTF-8
    assert names_in(tmp_path) == {"inside"}
    assert names_in(inside) == {"a.zip", "b.zip", "out.en", "out.zh", "source"}
