"""The data of linguistic probing: ten tasks, in the files of SentEval and in this folder.

The tasks are those of Conneau et al. 2018, "What you can cram into a single vector". Their files,
in the folder data/probing of github.com/facebookresearch/SentEval, have one example per line,
`tr|va|te TAB label TAB tokens`, the tokens with spaces between them. TASK.txt.gz in this folder is
the same task on generated sentences (see README.md).
"""
import gzip
import re
from pathlib import Path
from typing import Iterable, NamedTuple

from nmt.corpus import Lines

GROUPS = {"surface": ("SeLen", "WC"), "syntactic": ("TrDep", "ToCo", "BShif"),
          "semantic": ("Tense", "SubNm", "ObjNm", "SOMO", "CoIn")}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)
FILES = {
    "SeLen": "sentence_length.txt", "WC": "word_content.txt", "TrDep": "tree_depth.txt",
    "ToCo": "top_constituents.txt", "BShif": "bigram_shift.txt", "Tense": "past_present.txt",
    "SubNm": "subj_number.txt", "ObjNm": "obj_number.txt", "SOMO": "odd_man_out.txt",
    "CoIn": "coordination_inversion.txt",
}
SPLITS = {"tr": "train", "va": "valid", "te": "test"}


class Item(NamedTuple):
    """A sentence and its class."""
    label: str
    tokens: tuple[str, ...]


Parts = dict[str, list[Item]]   # {"train": [...], "valid": [...], "test": [...]}


def load_task(task: str, data: str) -> Parts:
    """The parts of a task. data: "embedded", or the folder of SentEval's files."""
    if data == "embedded":
        file = Path(__file__).with_name(f"{task}.txt.gz")
        return read_task(gzip.decompress(file.read_bytes()).decode().splitlines())
    return read_task(Lines(Path(data) / FILES[task]))


def read_task(lines: Iterable[str]) -> Parts:
    """The parts of a task from the lines of its file. If a line has more than three columns, the
    last one is the sentence."""
    parts: Parts = {part: [] for part in SPLITS.values()}
    for line in lines:
        split, label, *_, tokens = line.split("\t")
        parts[SPLITS[split]].append(Item(label, tuple(tokens.split())))
    return parts


def detokenize(tokens: Iterable[str]) -> str:
    """Tokens as ordinary text: no space before a punctuation mark, a capital at the start."""
    before_mark = r" (?=[.,;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b)"
    after_bracket = r"(?<=[(\[]) "
    text = re.sub(f"{before_mark}|{after_bracket}", "", " ".join(tokens))
    return text[:1].upper() + text[1:]
