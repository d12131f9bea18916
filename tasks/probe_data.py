"""The data of linguistic probing: the ten tasks, the SentEval files, three tasks from plain text.

The tasks are those of Conneau et al. 2018, "What you can cram into a single vector". Their files
(ten, in the public repository facebookresearch/SentEval under data/probing/) hold one example per
line, `tr|va|te TAB label TAB tokens`, the tokens with spaces between them. probe_toy.py makes the
same tasks from the embedded grammar.
"""
import hashlib
import http.client
import itertools
import random
import re
import sys
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

from nmt.files import atomic_write, read_lines
from nmt.flags import UserError

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
TEXT_TASKS = ("SeLen", "WC", "BShif")           # tasks that need no parse
WORDS = range(5, 29)            # of a sentence of --text, as in SentEval's sentence_length.txt
TEXT_RANGES, TEXT_TARGETS = 6, 50               # classes of SeLen, and at most of WC, from --text


class Item(NamedTuple):
    """A sentence and its class."""
    label: str
    tokens: tuple[str, ...]
    tree: Any = None            # of the unchanged sentence, where the embedded grammar made it
    control: Any = None         # also equally frequent in every class (see `fill`)


Parts = dict[str, list[Item]]   # {"train": [...], "valid": [...], "test": [...]}


def is_word(token: str) -> bool:
    """Whether a token holds a letter or a digit."""
    return any(map(str.isalnum, token))


def word_count(tokens: Iterable[str]) -> int:
    """The number of tokens that are words, not punctuation."""
    return sum(map(is_word, tokens))


def detokenize(tokens: Iterable[str]) -> str:
    """Tokens as ordinary text: no space before a punctuation mark, a capital at the start."""
    before_mark = r" (?=[.,;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b)"
    after_bracket = r"(?<=[(\[]) "
    text = re.sub(f"{before_mark}|{after_bracket}", "", " ".join(tokens))
    return text[:1].upper() + text[1:]


def fill(items: Iterator[Item], cells: list[tuple[str, Any]], counts: dict[str, int],
         seed: int) -> Parts:
    """Parts of the given counts in which all cells (label, control) are equally frequent, no
    sentence twice.

    Takes from `items` what a cell still lacks; a count is rounded down to a multiple of the cells.
    Raises UserError where the items run out (endless ones do not).
    """
    each = {part: count // len(cells) for part, count in counts.items()}
    wanted = sum(each.values())                          # of every cell
    missing = wanted * len(cells)
    by_cell: dict[tuple, list[Item]] = {cell: [] for cell in cells}
    seen = set()
    for item in items:
        cell = by_cell.get((item.label, item.control))
        words = tuple(sorted(item.tokens))               # in another order it is the same sentence
        if cell is None or len(cell) == wanted or words in seen:
            continue
        seen.add(words)
        cell.append(item)
        missing -= 1
        if not missing:
            break
    if missing:
        label, control = min(by_cell, key=lambda cell: len(by_cell[cell]))
        there = len(by_cell[label, control])
        raise UserError(f"there are {there} sentences of class {label} and {wanted} are needed:"
                        " choose fewer --sentences, or more text")

    rng = random.Random(seed)
    parts = {}
    start = 0
    for part, count in each.items():
        chosen = []
        for cell in by_cell.values():
            chosen += cell[start:start + count]
        parts[part] = sorted(chosen, key=lambda item: rng.random())
        start += count
    return parts


# ---- The SentEval files

def read_task(path: Path, limit: int) -> Parts:
    """The parts of one SentEval file, without the training sentences after the first `limit`.
    Raises UserError where these lack a class."""
    parts: Parts = {part: [] for part in SPLITS.values()}
    for line in read_lines(path):
        split, label, *_, tokens = line.split("\t")
        parts[SPLITS[split]].append(Item(label, tuple(tokens.split())))
    parts["train"] = parts["train"][:limit]
    known = {item.label for item in parts["train"]}
    for item in parts["valid"] + parts["test"]:
        if item.label not in known:
            raise UserError(f"{path}: class {item.label} is not among the {len(parts['train'])}"
                            " training sentences: take more --sentences")
    return parts


def download_task(task: str, folder: Path) -> Path:
    """The path of a SentEval file in `folder`, downloaded if it is not there. Raises UserError if
    that fails, or if the file is not the published one: git's id is the SHA-1 of "blob SIZE\\0" and
    the content."""
    name, published = FILES[task]
    path = folder / name
    if not path.is_file():
        print(f"downloading {URL}{name}", file=sys.stderr, flush=True)
        try:
            with urllib.request.urlopen(URL + name, timeout=60) as response:
                content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"cannot download {URL}{name} ({error}): try again, or fetch it by"
                            f" other means and put it at {path}, or use --data toy") from error
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content)
    content = path.read_bytes()
    if hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() != published:
        raise UserError(f"{path}: is not the published file {URL}{name}: delete it, and the next"
                        " run downloads it")
    return path


# ---- Plain text

def read_text(path: Path) -> list[tuple[str, ...]]:
    """The distinct sentences of 5 to 28 words in a UTF-8 text, one on a line, as tokens (words and
    single marks). Raises UserError for a file that is missing, not UTF-8, or has none."""
    sentences = {}                                       # a dict as an ordered set
    for line in read_lines(path):
        tokens = tuple(re.findall(r"\w+(?:['’-]\w+)*|[^\w\s]", line))
        if word_count(tokens) in WORDS:
            sentences[tokens] = None
    if not sentences:
        raise UserError(f"--text {path}: has no line of {WORDS[0]} to {WORDS[-1]} words; give one"
                        " sentence per line")
    return list(sentences)


def text_task(task: str, sentences: list[tuple[str, ...]], counts: dict[str, int],
              seed: int) -> Parts:
    """SeLen, WC or BShif from sentences of plain text, in balanced classes; the sentences are drawn
    in random order.

    SeLen: up to six ranges of words that hold about equally many sentences. WC: of the words of at
    least four letters, those of middle frequency, just frequent enough for the counts; a sentence
    has one of them, once. BShif: two neighbouring words, not the first, changed places in half of
    the sentences. Raises UserError for too little text.
    """
    rng = random.Random(seed)
    sentences = sorted(sentences, key=lambda tokens: rng.random())
    if task == "SeLen":
        labels, items = sentence_length(sentences)
    elif task == "WC":
        labels, items = word_content(sentences, sum(counts.values()))
    else:
        labels = ["I", "O"]
        items = [shifted(Item("O", tokens), rng) for tokens in sentences]
        items = [item for item in items if item]
    return fill(iter(items), [(label, None) for label in labels], counts, seed)


def sentence_length(sentences: list[tuple[str, ...]]) -> tuple[list[str], list[Item]]:
    """(ranges of words as "5-7", an item for every sentence); see `text_task`."""
    lengths = sorted(map(word_count, sentences))
    starts = sorted({lengths[len(lengths) * i // TEXT_RANGES] for i in range(TEXT_RANGES)})
    ends = [*starts[1:], lengths[-1] + 1]
    label_of = {}                                        # number of words -> its range
    for start, end in zip(starts, ends):
        for n in range(start, end):
            label_of[n] = f"{start}-{end - 1}"
    items = [Item(label_of[word_count(tokens)], tokens) for tokens in sentences]
    return sorted(set(label_of.values())), items


def word_content(sentences: list[tuple[str, ...]], total: int) -> tuple[list[str], list[Item]]:
    """(target words, a sentence for each that holds exactly one of them); see `text_task`."""
    frequency = Counter()                                # of sentences that have the word
    for tokens in sentences:
        words = dict.fromkeys(token.lower() for token in tokens)
        frequency.update(word for word in words if len(word) >= 4 and word.isalpha())
    # as many targets as the text allows
    for count in range(min(TEXT_TARGETS, len(frequency)), 1, -1):
        enough = [word for word, n in frequency.most_common() if n >= 2 * total / count]
        targets = set(enough[-count:])                   # the rarest that are frequent enough
        by_word: dict[str, list[Item]] = defaultdict(list)
        for tokens in sentences:
            here = [token.lower() for token in tokens if token.lower() in targets]
            if len(here) == 1:
                by_word[here[0]].append(Item(here[0], tokens))
        if len(by_word) == count and min(map(len, by_word.values())) >= total // count:
            return sorted(targets), list(itertools.chain(*by_word.values()))
    raise UserError(f"--text: too little text for {total} sentences of WC: choose fewer"
                    " --sentences")


def shifted(item: Item, rng: random.Random, fixed: str | None = None) -> Item | None:
    """The item as it is (class O) or with two neighbours exchanged (class I), either with
    probability 1/2.

    The neighbours are different words, neither the first of the sentence nor `fixed`; where there
    are none the item is None in either case, so that the classes hold the same kinds of sentences.
    """
    tokens = item.tokens
    starts = []                              # of the pairs of neighbours that may be exchanged
    for i in range(1, len(tokens) - 1):
        pair = tokens[i:i + 2]
        different = pair[0].lower() != pair[1].lower()
        if different and fixed not in pair and is_word(pair[0]) and is_word(pair[1]):
            starts.append(i)
    i = starts[int(rng.random() * len(starts))] if starts else 0
    exchange = rng.random() < 0.5
    if not starts:
        return None
    if not exchange:
        return item._replace(label="O")
    return item._replace(label="I", tokens=(*tokens[:i], tokens[i + 1], tokens[i], *tokens[i + 2:]))
