"""Known corpora: their sources, and how they are downloaded into --data-dir.

An archive must have the SHA-256 of the published file. Its members are read as streams and written
under our names, so it cannot choose a path.
"""
import fnmatch
import gzip
import hashlib
import html
import itertools
import json
import re
import shutil
import sys
import urllib.request
import zipfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock
from tqdm import tqdm

from nmt.files import write_atomically


class Archive(NamedTuple):
    """A text, .gz or .zip file of a public source, with its size in bytes and its SHA-256."""
    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class Part(NamedTuple):
    """A part of a parallel text: per language, an archive and a pattern of member names.

    lines: the range (first, end) of its pairs; None: all. unseen: a text of the corpus that is made
    before; pairs that share a side with it are left out.
    """
    src: tuple[Archive, str]
    tgt: tuple[Archive, str]
    lines: tuple[int, int] | None = None
    unseen: str | None = None


def read_corpora_table() -> dict:
    """corpora.json as {corpus: (languages, {text: [Part, ...]})}: training, validation, tests."""
    table = {}
    corpora = json.loads(Path(__file__).with_name("corpora.json").read_text("utf-8"))
    for corpus, entry in corpora.items():
        archives = {url: Archive(url, **sums) for url, sums in entry["archives"].items()}
        texts = {}
        for text, parts in entry["texts"].items():
            texts[text] = []
            for (src, src_pattern), (tgt, tgt_pattern), *more in parts:
                sides = (archives[src], src_pattern), (archives[tgt], tgt_pattern)
                options = more[0] if more else {}
                texts[text].append(Part(*sides, **options))
        table[corpus] = tuple(entry["languages"]), texts
    return table


# Multi30K: raw text (Elliott et al. 2016). enja: github.com/odashi/small_parallel_enja, tokenized
# pairs of 4 to 16 words from the Tanaka corpus, whose last 3,000 training pairs are a test set.
# WMT: the organizers' copy of statmt.org's archives; 4.5 million pairs of En-De, 25 million of
# Zh-En, of which the papers keep 20.6 million.
CORPORA = read_corpora_table()


def corpus_files(name: str, data_dir: Path) -> list[Path]:
    """The prefixes DATA_DIR/NAME/TEXT of the training, validation and test texts of a known corpus.
    Downloads what is missing, one program at a time."""
    folder = data_dir / name
    archives = folder / "archives"
    if missing_texts(folder):                            # a complete one may be read-only
        archives.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            for text in missing_texts(folder):
                parts = CORPORA[name][1][text]
                for archive in dict.fromkeys(archive for part in parts for archive, _ in part[:2]):
                    fetch(archive, archives / archive.name)
                write_parts(paths_of(folder / text), parts, archives)
    shutil.rmtree(archives, ignore_errors=True)
    return [folder / text for text in CORPORA[name][1]]


def missing_texts(folder: Path) -> list[str]:
    """The texts of a known corpus that are not in DATA_DIR/NAME."""
    texts = CORPORA[folder.name][1]
    return [text for text in texts if not all(map(Path.is_file, paths_of(folder / text)))]


def paths_of(text: Path) -> list[Path]:
    """The files DATA_DIR/NAME/TEXT.LANGUAGE of both languages."""
    return [Path(f"{text}.{language}") for language in CORPORA[text.parent.name][0]]


def fetch(archive: Archive, path: Path) -> None:
    """Downloads an archive if it is missing. Raises ValueError if its SHA-256 differs."""
    if not path.exists():
        write_atomically(path, partial(download, archive))
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != archive.sha256:
            raise ValueError(f"{path} is not the file published at {archive.url}: delete it")


def download(archive: Archive, file) -> None:
    """Downloads an archive into a file."""
    print(f"downloading {archive.url} ({archive.size / 1e6:.1f} MB)", file=sys.stderr)
    with (urllib.request.urlopen(archive.url, timeout=60) as response,
          tqdm(total=archive.size, unit="B", unit_scale=True, disable=None) as bar):
        while block := response.read(1 << 20):
            file.write(block)
            bar.update(len(block))


def write_parts(paths: list[Path], parts: list[Part], archives: Path) -> None:
    """Writes both files of a parallel text atomically. archives: their folder."""
    for side, path in enumerate(paths):
        print(f"writing {path}", file=sys.stderr, flush=True)
        lines = (pair[side] + b"\n" for pair in pair_lines(parts, archives))
        write_atomically(path, lambda file: file.writelines(lines))


def pair_lines(parts: list[Part], archives: Path):
    """Yields the pairs of lines, without a member's lines beyond the end of its translation."""
    for part in parts:
        sources, targets = (read_members(archives / archive.name, pattern)
                            for archive, pattern in part[:2])
        members = zip(sources, targets, strict=True)
        pairs = itertools.chain.from_iterable(itertools.starmap(zip, members))
        if part.lines:
            pairs = itertools.islice(pairs, *part.lines)
        if part.unseen:
            pairs = leave_out_seen(pairs, paths_of(archives.parent / part.unseen))
        yield from pairs


def leave_out_seen(pairs, paths: list[Path]):
    """Yields the pairs of which neither side is a line of its file, `paths` of both languages."""
    seen_sources, seen_targets = (set(path.read_bytes().split(b"\n")) for path in paths)
    for source, target in pairs:
        if source not in seen_sources and target not in seen_targets:
            yield source, target


def read_members(archive: Path, pattern: str):
    """Yields the sentences of every member that matches the pattern, in the order of the names; a
    file that is not a .zip is its only member."""
    if archive.suffix != ".zip":
        opener = gzip.open if archive.suffix == ".gz" else open
        with opener(archive, "rb") as file:
            yield read_sentences(file, sgml=False)
        return
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in fnmatch.filter(opened.namelist(), pattern)
                 if "__MACOSX" not in name]
        for name in sorted(names):
            with opened.open(name) as file:
                yield read_sentences(file, sgml=name.endswith(".sgm"))


def read_sentences(file, sgml: bool):
    """Yields a file's lines as bytes without their ends; of SGML, the text of the <seg> elements,
    one per line, with "&" for "&amp;". A byte-order mark is skipped."""
    for number, line in enumerate(file):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not sgml:
            yield line.rstrip(b"\r\n")
        elif segment := re.search(rb"<seg[^>]*>(.*)</seg>", line):
            text = html.unescape(segment[1].decode(errors="surrogateescape"))
            yield " ".join(text.split()).encode(errors="surrogateescape")
