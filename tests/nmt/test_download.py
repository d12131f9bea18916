"""Known corpora from addresses on this disk: made whole or not at all, checked, and nothing outside
their folder."""
import gzip
import hashlib
import io
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from nmt import download
from nmt.command_line import UserError
from nmt.corpus import DataFlags, load_text
from nmt.download import Archive, Part, fetch, write_parts


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
    return load_text(DataFlags(data="multi30k", data_dir=str(folder / "data"), **flags))


def names_in(folder) -> set[str]:
    """The names of the files in a folder."""
    return {path.name for path in folder.iterdir()}


def test_download_once(source, tmp_path, monkeypatch):
    _, train, valid, tests = load(tmp_path)
    assert list(train.source) == ["one", "two"]
    assert tests == {"first": (["five"], ["fünf"]), "second": (["six"], ["sechs"])}
    files = {f"{name}.{language}" for name in TEXTS for language in ("en", "de")}
    assert names_in(tmp_path / "data" / "multi30k") == files
    (tmp_path / "data" / "multi30k" / "val.de").unlink()
    (source / "train.en.gz").unlink()
    assert load(tmp_path)[2] == valid
    for archive in source.iterdir():
        archive.unlink()
    monkeypatch.setattr(download, "FileLock", None)      # a read-only folder has no lock
    languages, _, back, _ = load(tmp_path, src="de")
    assert languages == ("de", "en") and back == (["vier"], ["four"])
    with pytest.raises(UserError, match="--data multi30k is between"):
        load(tmp_path, src="en", tgt="fr")


def test_three_at_once_download_once(source, tmp_path, monkeypatch):
    archives = []

    def download_slowly(archive, file):
        archives.append(archive)
        time.sleep(0.05)
        file.write((source / archive.name).read_bytes())

    monkeypatch.setattr(download, "download", download_slowly)
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(load, tmp_path) for _ in range(3)]
    for run in runs:
        _, train, valid, _ = run.result()
        assert list(train.source) == ["one", "two"] and valid.target == ["vier"]
    assert len(archives) == 8
    assert len(names_in(tmp_path / "data" / "multi30k")) == 8


def test_another_file_than_the_published_one_is_refused(source, tmp_path):
    whole = (source / "val.de.gz").read_bytes()
    (source / "val.de.gz").write_bytes(whole[:len(whole) // 2])
    with pytest.raises(ValueError, match="val.de.gz is not the file published"):
        load(tmp_path)
    folder = tmp_path / "data" / "multi30k"
    assert names_in(folder) == {"archives", "train.de", "train.en"}
    (folder / "archives" / "val.de.gz").unlink()
    (source / "val.de.gz").write_bytes(whole)
    assert load(tmp_path)[2].target == ["vier"]


def test_enja_has_a_test_set_of_its_last_training_pairs(tmp_path, monkeypatch):
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
    languages, train, valid, tests = load_text(
        DataFlags(data="enja", data_dir=str(tmp_path / "data")))
    assert languages == ("en", "ja")
    assert [list(side) for side in train] == [["a", "b", "c"], ["ア", "イ", "ウ"]]
    assert valid == (["x"], ["ク"])
    assert tests == {"test": (["y"], ["ケ"]), "test_more": (["d"], ["エ"])}


# ---- Members of archives

def fetch_zip(folder, name: str, members: dict) -> Archive:
    """A .zip file of the members {name: content}, fetched into the folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    archive = publish(folder / "source" / name, file.getvalue())
    fetch(archive, folder / name)
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
