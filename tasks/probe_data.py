"""The data of linguistic probing: the ten tasks, the SentEval files, and three of the tasks from
plain text.

The tasks are those of Conneau et al. 2018, "What you can cram into a single vector". Their files
(ten, in the public repository facebookresearch/SentEval under data/probing/) hold one example per
line, `tr|va|te TAB label TAB tokens`, the tokens with spaces between them. probe_toy.py makes the
same tasks from the embedded grammar.
"""
import hashlib
import http.client
import random
import re
import sys
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

from tqdm import tqdm

from nmt.files import atomic_write, reported
from nmt.flags import UserError
from nmt.download import alone_in

GROUPS = {"surface": ("SeLen", "WC"), "syntactic": ("TrDep", "ToCo", "BShif"),
          "semantic": ("Tense", "SubNm", "ObjNm", "SOMO", "CoIn")}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)
SPLITS = {"tr": "train", "va": "valid", "te": "test"}
COMMIT = "5d6dc117d1ac30357ddaeb7347fb5684e9b87015"             # of the repository: its files do not change under it
URL = f"https://raw.githubusercontent.com/facebookresearch/SentEval/{COMMIT}/data/probing/"
FILES = {                                                       # by task: file, and the id that git gives its content
    "SeLen": ("sentence_length.txt", "9799e50a7579b5b60294b708cedc063aea16f0be"),
    "WC": ("word_content.txt", "596d6fc7c624a989342f5aef2fa035d0d84f65b7"),
    "TrDep": ("tree_depth.txt", "91567ad524de360c38105afc39d29fb7ef6b5eb8"),
    "ToCo": ("top_constituents.txt", "1d00fe9b16f71303af7f0471fa028077f742d8b0"),
    "BShif": ("bigram_shift.txt", "1226c0467bd342c92132dd2fd26e54b7bd066bd7"),
    "Tense": ("past_present.txt", "d11394b28383bb1a8148670e33d39e5fcd326b16"),
    "SubNm": ("subj_number.txt", "dee5770953ad194ceafc68106bd9c071986c6d2a"),
    "ObjNm": ("obj_number.txt", "c5a6f758f2293d0ed0774de327ff8199322d12ee"),
    "SOMO": ("odd_man_out.txt", "ca1ec154df17e366330c542b48bdca5cfa65bf1c"),
    "CoIn": ("coordination_inversion.txt", "281888217fd1ed7faef2c63c5350d2ff1b8e64ce")}
LARGEST = 1 << 28               # bytes of a file, far above the ten files' sizes
LONGEST = 512                   # tokens of a sentence: a line without spaces to speak of is no sentence
TEXT_TASKS = ("SeLen", "WC", "BShif")                           # what plain text tells of itself
WORDS = range(5, 29)            # words of a sentence of --text, as in SentEval's sentence_length.txt
BINS, TARGETS = 6, 50           # classes of SeLen, at most so many of WC, from plain text


class Item(NamedTuple):
    """A sentence and its class."""
    label: str
    tokens: tuple[str, ...]
    tree: Any = None            # of the unchanged sentence, where the embedded grammar made it
    control: Any = None         # what is equally frequent in every class, besides (see `fill`)


Parts = dict[str, list[Item]]   # {"train": [...], "valid": [...], "test": [...]}


def is_word(token: str) -> bool:
    """Whether a token holds a letter or a digit."""
    return any(map(str.isalnum, token))


def plain(tokens: Iterable[str]) -> str:
    """Tokens as ordinary text, for a tokenizer that learnt from it: no space before a mark, a
    capital at the start."""
    text = re.sub(r" (?=[.,;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b)|(?<=[(\[]) ", "", " ".join(tokens))
    return text[:1].upper() + text[1:]


def fill(items: Iterator[Item], cells: list[tuple[str, Any]], counts: dict[str, int], seed: int) -> Parts:
    """Parts of the given counts in which all cells (label, control) are equally frequent, no
    sentence twice.

    Takes from `items` what a cell still lacks; a count is rounded down to a multiple of the cells.
    Raises UserError where the items run out (endless ones do not).
    """
    each = {part: count // len(cells) for part, count in counts.items()}
    found: dict[tuple, list[Item]] = {cell: [] for cell in cells}
    wanted, seen, missing = sum(each.values()), set(), sum(each.values()) * len(cells)
    for item in items if missing else ():
        cell = found.get((item.label, item.control))
        sentence = tuple(sorted(item.tokens))                   # the same words in another order are the same sentence
        if cell is None or len(cell) == wanted or sentence in seen:
            continue
        seen.add(sentence)
        cell.append(item)
        missing -= 1
        if not missing:
            break
    if missing:
        cell = min(found, key=lambda cell: len(found[cell]))
        raise UserError(f"there are {len(found[cell])} sentences of class {cell[0]} and {wanted} are needed: choose "
                        "fewer --sentences, or more text")
    rng, parts, start = random.Random(seed), {}, 0
    for part, count in each.items():
        items = [item for cell in found.values() for item in cell[start:start + count]]
        parts[part] = sorted(items, key=lambda item: rng.random())
        start += count
    return parts


def content(path: Path) -> bytes:
    """What a file holds, without a byte-order mark. Raises UserError where it cannot be read or has
    more than 1 GiB."""
    with reported("read", path):
        if path.stat().st_size > 2 ** 30:
            raise UserError(f"{path}: is too large, it may have 1 GiB: take its beginning, e.g. with head -n 1000000")
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")


# ---- The SentEval files

def read_task(path: Path, limit: int | None = None) -> Parts:
    """The parts of one SentEval file; of the training part the first `limit` lines. The tree of an
    item is None.

    Raises UserError naming the file and, for a line that is not `tr|va|te TAB label TAB tokens`,
    its number. More columns than three are allowed, as the files' description has it: the last one
    is the sentence.
    """
    parts: Parts = {part: [] for part in SPLITS.values()}
    with reported("read", path):
        if not path.is_file():
            raise UserError(f"{path}: no such file: it is one of SentEval's ten, from data/probing/ of the repository "
                            "facebookresearch/SentEval; --task chooses tasks whose files are there")
        lines = content(path).removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            columns = line.removesuffix(b"\r").decode().split("\t")
        except UnicodeDecodeError:
            raise UserError(f"{path}, line {number}: not UTF-8: convert the file, e.g. with iconv -t UTF-8") from None
        part, label, tokens = columns[0], columns[min(1, len(columns) - 1)].strip(), columns[-1].split()
        if len(columns) < 3 or part not in SPLITS or not label or not tokens:
            raise UserError(f"{path}, line {number}: not `tr|va|te TAB label TAB tokens`")
        if len(tokens) > LONGEST:
            raise UserError(f"{path}, line {number}: {len(tokens)} tokens; a sentence has {LONGEST} at most")
        parts[SPLITS[part]].append(Item(label, tuple(tokens)))
    check_parts(path, parts)
    return {**parts, "train": parts["train"][:limit]}


def check_parts(path: Path, parts: Parts) -> None:
    """Raises UserError where a part is empty or a class of validation or test never occurs in
    training."""
    for part, items in parts.items():
        if not items:
            short = next(short for short, name in SPLITS.items() if name == part)
            raise UserError(f"{path}: has no line that begins with {short}: it takes tr, va and te")
    unknown = {item.label for part in ("valid", "test") for item in parts[part]} - {x.label for x in parts["train"]}
    if unknown or len({item.label for item in parts["train"]}) < 2:
        raise UserError(f"{path}: " + (f"class {min(unknown)} is not among the training lines" if unknown else
                                       "all training lines are of one class") + ": take the file as published")


def download_task(task: str, folder: Path) -> Path:
    """The path of a SentEval file in `folder`, downloaded if it is not there; it is there only when
    as published.

    Published is the id that git gives a content, the SHA-1 of "blob SIZE\\0" and the content.
    Raises UserError where the source cannot be reached or sends something else; it says which file
    to put where.
    """
    name, published = FILES[task]
    path = folder / name
    if path.is_file():
        return path
    with reported("make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    by_hand = f"fetch it by other means and put it at {path}, or use --data toy, which needs no download"
    with alone_in(folder):                                      # whoever had to wait finds the file there
        if path.is_file():
            return path
        content = bytearray()
        try:
            with urllib.request.urlopen(URL + name, timeout=60) as response, tqdm(
                    unit="B", unit_scale=True, desc=name, disable=not sys.stderr.isatty()) as bar:
                print(f"downloading {URL}{name}", file=sys.stderr, flush=True)
                while len(content) <= LARGEST and (block := response.read(1 << 20)):
                    content += block
                    bar.update(len(block))
        except (OSError, http.client.HTTPException) as error:
            raise UserError(f"cannot download {URL}{name} ({error}): {by_hand}") from error
        if hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() != published:
            raise UserError(f"the download of {URL}{name} is not what was published there ({len(content)} bytes came "
                            f"that git does not call {published}): try again, or {by_hand}")
        atomic_write(path, bytes(content))
    return path


# ---- Plain text

def read_text(path: Path) -> list[tuple[str, ...]]:
    """The distinct sentences of a UTF-8 text, one on a line, as tokens (words and single marks); of
    5 to 28 words.

    Raises UserError for a file that is missing, not UTF-8, or without such a sentence.
    """
    if not path.is_file():
        raise UserError(f"--text {path}: no such file; name a UTF-8 text with one sentence per line")
    sentences = {}
    for number, line in enumerate(content(path).split(b"\n"), 1):
        try:
            tokens = tuple(re.findall(r"\w+(?:['’-]\w+)*|[^\w\s]", line.decode()))
        except UnicodeDecodeError:
            raise UserError(f"{path}, line {number}: not UTF-8: convert it, e.g. with iconv -t UTF-8") from None
        if sum(map(is_word, tokens)) in WORDS:
            sentences[tokens] = None
    if not sentences:
        raise UserError(f"--text {path}: has no line of {WORDS[0]} to {WORDS[-1]} words; give one sentence per line")
    return list(sentences)


def text_task(task: str, sentences: list[tuple[str, ...]], counts: dict[str, int], seed: int) -> Parts:
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
        lengths = sorted(sum(map(is_word, tokens)) for tokens in sentences)
        bounds = sorted({lengths[len(lengths) * i // BINS] for i in range(BINS)})
        ranges = {n: f"{low}-{high - 1}" for low, high in zip(bounds, [*bounds[1:], lengths[-1] + 1])
                  for n in range(low, high)}
        items = (Item(ranges[sum(map(is_word, tokens))], tokens) for tokens in sentences)
        labels = sorted(set(ranges.values()))
    elif task == "WC":
        labels, items = word_content(sentences, sum(counts.values()))
    else:
        labels = ["I", "O"]
        items = (item for item in (shifted(Item("O", tokens), rng) for tokens in sentences) if item)
    return fill(iter(items), [(label, None) for label in labels], counts, seed)


def word_content(sentences: list[tuple[str, ...]], total: int) -> tuple[list[str], list[Item]]:
    """(target words, a sentence for each that holds exactly one of them); see `text_task`."""
    words = Counter(word for tokens in sentences for word in {token.lower() for token in tokens}
                    if len(word) >= 4 and word.isalpha())
    for count in range(min(TARGETS, len(words)), 1, -1):        # as many targets as the text allows
        enough = [word for word, n in words.most_common() if n >= 2 * total / count]
        targets = set(enough[-count:])                          # the rarest that are frequent enough
        by_word: dict[str, list[Item]] = defaultdict(list)
        for tokens in sentences:
            here = [token.lower() for token in tokens if token.lower() in targets]
            if len(here) == 1:
                by_word[here[0]].append(Item(here[0], tokens))
        if len(by_word) == count and min(map(len, by_word.values())) >= total // count:
            return sorted(targets), [item for items in by_word.values() for item in items]
    raise UserError(f"--text: too little text for {total} sentences of WC: choose fewer --sentences")


def shifted(item: Item, rng: random.Random, allowed=lambda before, after: True) -> Item | None:
    """The item as it is (class O) or with two neighbours exchanged (class I), either with
    probability 1/2.

    The neighbours are different words, neither the first of the sentence, and
    `allowed(place, place + 1)`; where there are none the item is None in either case, so that the
    classes hold the same kinds of sentences.
    """
    tokens = item.tokens
    places = [i for i in range(1, len(tokens) - 1) if is_word(tokens[i]) and is_word(tokens[i + 1])
              and tokens[i].lower() != tokens[i + 1].lower() and allowed(i, i + 1)]
    place, shift = (places[int(rng.random() * len(places))] if places else 0), rng.random() < 0.5
    if not places or not shift:
        return item._replace(label="O") if places else None
    return item._replace(label="I", tokens=(*tokens[:place], tokens[place + 1], tokens[place], *tokens[place + 2:]))
