"""The data of linguistic probing: the ten tasks, and the SentEval files.

The tasks are those of Conneau et al. 2018, "What you can cram into a single vector". Their files
(ten, in the public repository facebookresearch/SentEval under data/probing/) hold one example per
line, `tr|va|te TAB label TAB tokens`, the tokens with spaces between them. toy/ has the same tasks
on sentences of the embedded corpus.
"""
import hashlib
import io
import re
from pathlib import Path
from typing import Iterable, NamedTuple

from nmt.download import Archive, download
from tools.files import UserError, atomic_write

GROUPS = {"surface": ("SeLen", "WC"), "syntactic": ("TrDep", "ToCo", "BShif"),
          "semantic": ("Tense", "SubNm", "ObjNm", "SOMO", "CoIn")}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)
SPLITS = {"tr": "train", "va": "valid", "te": "test"}
COMMIT = "5d6dc117d1ac30357ddaeb7347fb5684e9b87015"     # its files do not change under it
URL = f"https://raw.githubusercontent.com/facebookresearch/SentEval/{COMMIT}/data/probing/"
# by task: file, and the id that git gives its content
FILES = {
    "SeLen": ("sentence_length.txt", "9799e50a7579b5b60294b708cedc063aea16f0be"),
    "WC": ("word_content.txt", "596d6fc7c624a989342f5aef2fa035d0d84f65b7"),
    "TrDep": ("tree_depth.txt", "91567ad524de360c38105afc39d29fb7ef6b5eb8"),
    "ToCo": ("top_constituents.txt", "1d00fe9b16f71303af7f0471fa028077f742d8b0"),
    "BShif": ("bigram_shift.txt", "1226c0467bd342c92132dd2fd26e54b7bd066bd7"),
    "Tense": ("past_present.txt", "d11394b28383bb1a8148670e33d39e5fcd326b16"),
    "SubNm": ("subj_number.txt", "dee5770953ad194ceafc68106bd9c071986c6d2a"),
    "ObjNm": ("obj_number.txt", "c5a6f758f2293d0ed0774de327ff8199322d12ee"),
    "SOMO": ("odd_man_out.txt", "ca1ec154df17e366330c542b48bdca5cfa65bf1c"),
    "CoIn": ("coordination_inversion.txt", "281888217fd1ed7faef2c63c5350d2ff1b8e64ce"),
}


class Item(NamedTuple):
    """A sentence and its class."""
    label: str
    tokens: tuple[str, ...]


Parts = dict[str, list[Item]]   # {"train": [...], "valid": [...], "test": [...]}


def detokenize(tokens: Iterable[str]) -> str:
    """Tokens as ordinary text: no space before a punctuation mark, a capital at the start."""
    before_mark = r" (?=[.,;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b)"
    after_bracket = r"(?<=[(\[]) "
    text = re.sub(f"{before_mark}|{after_bracket}", "", " ".join(tokens))
    return text[:1].upper() + text[1:]


# ---- The SentEval files

def read_task(lines: Iterable[str], limit: int | None = None) -> Parts:
    """The parts of a task from the lines of its file, with the first `limit` training sentences.
    Raises UserError where these lack a class."""
    parts: Parts = {part: [] for part in SPLITS.values()}
    for line in lines:
        split, label, *_, tokens = line.split("\t")
        parts[SPLITS[split]].append(Item(label, tuple(tokens.split())))
    parts["train"] = parts["train"][:limit]
    known = {item.label for item in parts["train"]}
    for item in parts["valid"] + parts["test"]:
        if item.label not in known:
            raise UserError(f"class {item.label} is not among the {len(parts['train'])} training"
                            " sentences: take more --sentences")
    return parts


def download_task(task: str, folder: Path) -> Path:
    """The path of a SentEval file in `folder`, downloaded if it is not there. Raises UserError if
    that fails, or if the file is not the published one: git's id is the SHA-1 of "blob SIZE\\0" and
    the content."""
    name, published = FILES[task]
    path = folder / name
    if path.is_file():
        content = path.read_bytes()
        remedy = "delete it, and the next run downloads it"
    else:
        folder.mkdir(parents=True, exist_ok=True)
        remedy = f"try again, or fetch it by other means and put it at {path}, or use --data toy"
        file = io.BytesIO()
        download(Archive(URL + name), remedy, file)
        content = file.getvalue()
    if hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() != published:
        raise UserError(f"{path}: is not the published file {URL}{name}: {remedy}")
    if not path.is_file():
        atomic_write(path, content)
    return path
