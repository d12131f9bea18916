"""Known corpora: where they come from, and how their files get below --data-dir.

An archive is checked against the SHA-256 that its source publishes, and nothing is ever unpacked to
a path of its own choosing: members are read as streams and written under our names.
"""
import gzip
import hashlib
import http.client
import re
import sys
import urllib.request
import zipfile
from contextlib import suppress
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock
from tqdm import tqdm

from nmt.files import BYTE_ORDER_MARK, atomic_write, reported
from nmt.flags import UserError


class Archive(NamedTuple):
    """A .gz or .zip file of a public source, with the size and the SHA-256 published there."""
    url: str
    size: int
    sha256: str


class Part(NamedTuple):
    """One stretch of a parallel text: for either language an archive and a pattern of its members'
    names."""
    src: tuple[Archive, str]
    tgt: tuple[Archive, str]


MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
WMT = "https://huggingface.co/datasets/wmt"              # copies of statmt.org's archives as .zip


def multi30k(split: str, english: tuple[int, str], german: tuple[int, str]) -> list[Part]:
    """A split of Multi30K (Elliott et al. 2016), raw text; (size, SHA-256) of its two .gz files."""
    source = Archive(f"{MULTI30K}/{split}.en.gz", *english)
    target = Archive(f"{MULTI30K}/{split}.de.gz", *german)
    return [Part((source, "*"), (target, "*"))]


def wmt(path: str, size: int, sha256: str, src: str, tgt: str) -> Part:
    """A part of a WMT corpus, from the copy of the archives that the organizers keep."""
    archive = Archive(f"{WMT}/{path}", size, sha256)
    return Part((archive, src), (archive, tgt))


def wmt_test_sets(src: str, tgt: str) -> Part:
    """A set out of the one archive that holds all development and test sets up to 2019."""
    return wmt("wmt19/resolve/main-zip/translation-task/dev.zip", 38714274,
               "d796e363740fdc4261aa6f5a3d2f8223e3adaee7d737b7724863325b8956dfd1", src, tgt)


def cwmt(name: str, size: int, sha256: str) -> Part:
    """A part of the CWMT corpus; its Chinese files end with _ch or _cn."""
    return wmt(f"wmt18/resolve/main/cwmt-wmt/{name}.zip", size, sha256, "*_c[hn].txt", "*_en.txt")


# By corpus: its languages and, in the order training, validation, test, the names of its texts and
# their parts.
CORPORA = {
    "multi30k": (("en", "de"), {
        "train": multi30k(
            "train",
            (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
            (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6")),
        "val": multi30k(
            "val",
            (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
            (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a")),
        "test_2016_flickr": multi30k(
            "test_2016_flickr",
            (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
            (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8")),
    }),
    # 4.5 million pairs
    "wmt14-en-de": (("en", "de"), {
        "train": [
            wmt("wmt13/resolve/main-zip/training-parallel-europarl-v7.zip", 658092427,
                "5b2d8b32c2396da739b4e731871c597fcc6e75729becd74619d0712eecf7770e",
                "*europarl-v7.de-en.en", "*europarl-v7.de-en.de"),
            wmt("wmt13/resolve/main-zip/training-parallel-commoncrawl.zip", 918734483,
                "5ffe980072ea29adfd84568d099bea366d9f72772b988e670794ae851b4e5627",
                "*commoncrawl.de-en.en", "*commoncrawl.de-en.de"),
            wmt("wmt14/resolve/main-zip/training-parallel-nc-v9.zip", 80462375,
                "ce199f93ec56ff480137ba29f0819f9a22e70d88be6d7458f112303d67d623d5",
                "*news-commentary-v9.de-en.en", "*news-commentary-v9.de-en.de")],
        "newstest2013": [wmt_test_sets("*newstest2013.en", "*newstest2013.de")],
        "newstest2014": [
            wmt_test_sets("*newstest2014-deen-ref.en.sgm", "*newstest2014-deen-src.de.sgm")],
    }),
    # 25 million pairs as published; the papers keep 20.6 million of them
    "wmt17-zh-en": (("zh", "en"), {
        "train": [
            wmt("wmt17/resolve/main-zip/translation-task/training-parallel-nc-v12.zip", 168699339,
                "a3e922fd19485a25870e628fdecb81b7d621f545e16df21a38fae15127413122",
                "*news-commentary-v12.zh-en.zh", "*news-commentary-v12.zh-en.en"),
            wmt("uncorpus/resolve/main-zip/UNv1.0.en-zh.zip", 1385832125,
                "97f5ce0892084cdbb2332b52ffcc0299a649ba0a43712d921575fe2b7edfb4b4",
                "*UNv1.0.en-zh.zh", "*UNv1.0.en-zh.en"),
            cwmt("casia2015", 98159063,
                 "c939f1528f96c419e9bbffb9caad869616a969e7704ffac896e245a02aff59a9"),
            cwmt("casict2011", 166957775,
                 "606adc0ccc5d8fc7c47f8589991286616342a1a379a571ce3038918731ae0182"),
            cwmt("casict2015", 106836569,
                 "eef8e25b297c1aff12ab24719247d3588e756d7a4e2c30d4d34fcb4d05ab1050"),
            cwmt("datum2015", 100118018,
                 "654afce6731485c40ce856514ab80cd2bfd836126bcaf48cdb911ebc32b021a4"),
            cwmt("datum2017", 99278067,
                 "737455c139596f4abf3b1da73bc38932b3ef9534549328eff47d867e29950ed2"),
            cwmt("neu2017", 150311715,
                 "5c5ea9ac5cbc43c974bd53796a3a29829800865b6398b52cda0a3854cb0d2e03")],
        "newsdev2017": [
            wmt_test_sets("*newsdev2017-zhen-src.zh.sgm", "*newsdev2017-zhen-ref.en.sgm")],
        "newstest2017": [
            wmt_test_sets("*newstest2017-zhen-src.zh.sgm", "*newstest2017-zhen-ref.en.sgm")],
    }),
}


def corpus_files(name: str, data_dir: Path) -> list[Path]:
    """The prefixes of the training, validation and test text of a known corpus, downloaded if they
    are not there.

    The files are DATA_DIR/NAME/PREFIX.LANGUAGE; the archives they are made of lie in
    DATA_DIR/NAME/archives meanwhile. Raises UserError, with what to put where, if the source cannot
    be reached or sends something else.
    """
    folder = data_dir / name
    if missing_texts(name, folder):
        with reported("make the folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):          # whoever had to wait finds the texts there
            make_texts(name, folder, missing_texts(name, folder))
    _, texts = CORPORA[name]
    return [folder / prefix for prefix in texts]


def missing_texts(name: str, folder: Path) -> dict[str, list[Part]]:
    """{prefix: parts} of the texts of a corpus that are not in the folder."""
    languages, texts = CORPORA[name]
    missing = {}
    for prefix, parts in texts.items():
        for language in languages:
            if not (folder / f"{prefix}.{language}").is_file():
                missing[prefix] = parts
    return missing


def make_texts(name: str, folder: Path, texts: dict[str, list[Part]]) -> None:
    """Downloads what the texts {prefix: parts} are made of into FOLDER/archives, writes them,
    deletes the archives."""
    languages, _ = CORPORA[name]
    place = folder / "archives"
    with reported("make the folder", place):
        place.mkdir(exist_ok=True)
    wanted = [f"{prefix}.{language}" for prefix in texts for language in languages]
    instead = f"or put {', '.join(wanted)} (one sentence per line) into {folder}"
    archives = {}                                 # archive -> its file
    for parts in texts.values():
        for part in parts:
            for archive, _ in part:
                archives[archive] = place / archive.url.rpartition("/")[2]
    for archive, path in archives.items():
        fetch(archive, path, instead)
    for prefix, parts in texts.items():
        source, target = (folder / f"{prefix}.{language}" for language in languages)
        write_text(source, target, parts, archives)
    for path in archives.values():                # all texts are written
        path.unlink(missing_ok=True)
    with suppress(OSError):                       # it holds something that is not ours
        place.rmdir()


def fetch(archive: Archive, path: Path, instead: str) -> None:
    """Downloads an archive to `path`, unless it lies there already; it is there only when whole and
    as published.

    Raises UserError otherwise: it names the file, where it belongs, and `instead`, another way out.
    """
    if path.is_file():
        with reported("read", path), open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != archive.sha256:
            raise UserError(f"{path} is not the file published at {archive.url}; delete it")
        return
    by_hand = (f"fetch it by other means and put it at {path}, {instead}, or use --data toy, which"
               " needs no download")

    def write(file):
        try:
            found = download(archive, path.name, file)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"cannot download {archive.url} ({error}): try again, or"
                            f" {by_hand}") from error
        if found != archive.sha256:
            raise UserError(f"the download of {archive.url} is not what was published there (it has"
                            f" another SHA-256): try again, or {by_hand}")

    atomic_write(path, write)


def download(archive: Archive, name: str, file) -> str:
    """Writes what the source sends to a file; returns its SHA-256."""
    digest = hashlib.sha256()
    shown = sys.stderr.isatty()
    with urllib.request.urlopen(archive.url, timeout=60) as response:
        if not shown:
            megabytes = archive.size / 1e6
            print(f"downloading {archive.url} ({megabytes:.1f} MB)", file=sys.stderr, flush=True)
        bar = tqdm(total=archive.size, unit="B", unit_scale=True, desc=name, disable=not shown)
        with bar:
            while block := response.read(1 << 20):
                digest.update(block)
                file.write(block)
                bar.update(len(block))
    return digest.hexdigest()


# ---- From archives to texts

def members(archive: Path, pattern: str):
    """Yields, for every member of the archive that matches the pattern, in the order of their
    names, its lines."""
    if archive.suffix == ".gz":
        with gzip.open(archive) as file:
            yield lines(file, sgml=False)
        return
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist()
                 if fnmatch(name, pattern) and "__MACOSX" not in name]
        if not names:
            raise UserError(f"{archive} holds no file {pattern}")
        for name in sorted(names):
            with opened.open(name) as file:
                yield lines(file, sgml=name.endswith(".sgm"))


def lines(file, sgml: bool):
    """Yields a file's sentences as bytes without line end; of SGML, the text of the <seg> elements,
    one on a line."""
    for number, line in enumerate(file):
        if number == 0:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not sgml:
            yield line.rstrip(b"\r\n")
        elif found := re.search(rb"<seg[^>]*>(.*)</seg>", line):
            yield found[1].strip()


def paired_lines(parts: list[Part], archives: dict[Archive, Path]):
    """Yields the pairs of lines of a parallel text. Where a member has more lines than its
    translation, the surplus is left out, with a line on stderr."""
    for part in parts:
        sources, targets = (members(archives[archive], pattern) for archive, pattern in part)
        for source, target in zip(sources, targets, strict=True):
            surplus = 0
            for left, right in zip_longest(source, target):
                if left is None or right is None:
                    surplus += 1
                else:
                    yield left, right
            if surplus:
                print(f"{part.src[0].url}: {surplus} lines without a translation left out",
                      file=sys.stderr)


def write_text(source: Path, target: Path, parts: list[Part],
               archives: dict[Archive, Path]) -> None:
    """Writes the source and the target file of a parallel text from its parts, both atomically."""
    print(f"writing {source} and {target}", file=sys.stderr, flush=True)

    def write_both(source_file):
        def write_target(target_file):
            for left, right in paired_lines(parts, archives):
                source_file.write(left + b"\n")
                target_file.write(right + b"\n")
        atomic_write(target, write_target)

    atomic_write(source, write_both)
