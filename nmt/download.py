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
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock
from tqdm import tqdm

from tools.files import BYTE_ORDER_MARK, UserError, as_user_error, atomic_write


class Archive(NamedTuple):
    """A text, .gz or .zip file of a public source, with its size in bytes and SHA-256 if known."""
    url: str
    size: int | None = None
    sha256: str | None = None

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
    Downloads what is missing. Raises UserError, which says what to put where, if that fails."""
    folder = data_dir / name
    texts = [folder / text for text in CORPORA[name][1]]
    if not all(path.is_file() for text in texts for path in paths_of(text)):
        with as_user_error("make the folder", f"--data-dir {data_dir}"):
            (folder / "archives").mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):          # a process that waited here finds the texts
            for text in texts:
                make_text(text)
            shutil.rmtree(folder / "archives", ignore_errors=True)
    return texts


def paths_of(text: Path) -> list[Path]:
    """The files DATA_DIR/NAME/TEXT.LANGUAGE of both languages."""
    return [Path(f"{text}.{language}") for language in CORPORA[text.parent.name][0]]


def make_text(text: Path) -> None:
    """Writes a missing text from its archives, kept in DATA_DIR/NAME/archives until then."""
    source, target = paths_of(text)
    if source.is_file() and target.is_file():
        return
    parts = CORPORA[text.parent.name][1][text.name]
    place = text.parent / "archives"
    remedy = f"or put {source.name} and {target.name} (one sentence per line) into {text.parent}"
    for archive in dict.fromkeys(archive for part in parts for archive, _ in part[:2]):
        fetch(archive, place / archive.name, remedy)
    write_parts([source, target], parts, place)


def fetch(archive: Archive, path: Path, instead: str) -> None:
    """Downloads an archive if it is missing. Raises UserError; instead: another remedy to name."""
    if path.exists():
        with as_user_error("read", path), open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != archive.sha256:
                raise UserError(f"{path} ({file.tell():,} bytes) is not the file published at "
                                f"{archive.url} ({archive.size:,} bytes): delete it")
        return
    remedy = (f"try again, or fetch it by other means and put it at {path}, {instead}, or use"
              " --data toy, which needs no download")
    atomic_write(path, partial(download, archive, remedy))


def download(archive: Archive, remedy: str, file) -> None:
    """Downloads an archive into a file. Raises UserError if that fails or the SHA-256 differs."""
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(archive.url, timeout=60) as response:
            size = f" ({archive.size / 1e6:.1f} MB)" if archive.size else ""
            print(f"downloading {archive.url}{size}", file=sys.stderr)
            with tqdm(total=archive.size, unit="B", unit_scale=True, disable=None) as bar:
                while block := response.read(1 << 20):
                    digest.update(block)
                    file.write(block)
                    bar.update(len(block))
        if archive.sha256 not in (None, digest.hexdigest()):
            raise ValueError("its SHA-256 is not that of the published file")
    except (OSError, HTTPException, ValueError) as error:
        raise UserError(f"cannot download {archive.url} ({error}): {remedy}") from error


def write_parts(paths: list[Path], parts: list[Part], place: Path) -> None:
    """Writes both files of a parallel text atomically. place: the folder of the archives."""
    for side, path in enumerate(paths):
        print(f"writing {path}", file=sys.stderr, flush=True)
        lines = (pair[side] + b"\n" for pair in pair_lines(parts, place))
        atomic_write(path, lambda file: file.writelines(lines))


def pair_lines(parts: list[Part], place: Path):
    """Yields the pairs of lines, without a member's lines beyond the end of its translation."""
    for part in parts:
        sources, targets = (read_members(place / file.name, pattern) for file, pattern in part[:2])
        members = zip(sources, targets, strict=True)
        pairs = itertools.chain.from_iterable(itertools.starmap(zip, members))
        if part.lines:
            pairs = itertools.islice(pairs, *part.lines)
        if part.unseen:
            pairs = leave_out_seen(pairs, paths_of(place.parent / part.unseen))
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
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not sgml:
            yield line.rstrip(b"\r\n")
        elif segment := re.search(rb"<seg[^>]*>(.*)</seg>", line):
            text = html.unescape(segment[1].decode(errors="surrogateescape"))
            yield " ".join(text.split()).encode(errors="surrogateescape")
