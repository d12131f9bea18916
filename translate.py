"""Translation with a trained run: beam search and the command line.

    python translate.py runs/NAME < in.txt > out.txt

Beam search keeps the `beam` best unfinished hypotheses of every sentence and ranks the finished ones by
`score(y) = log P(y|x) / lp(y)`, `lp(y) = ((5 + |y|) / 6)^lenpen` (Wu et al. 2016, Eq. 14, without the coverage
penalty; beam 4 and lenpen 0.6 as in Vaswani et al. 2017). |y| counts the end-of-sentence token.
"""
import math
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

import checkpoint
from attention import Cache
from cli import Parser, UserError, real, run, whole
from data import BOS, EOS, PAD, load_tokenizer
from fast_routing import install
from machine import memory, pick_device
from transformer import Transformer, TransformerConfig

MAX_SOURCE = 512            # tokens: longer lines are translated in pieces
MAX_WORD = 1000             # characters: a longer run without a space is no language, and is copied as it stands
SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")                       # where a long line is cut first
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")               # would break "one line in, one line out"


class Hypothesis(NamedTuple):
    """A finished translation: tokens without BOS and EOS, and log P(y|x) / lp(y)."""
    tokens: list[int]
    score: float


class Translation(NamedTuple):
    """A translation of a line, and its score: the hypothesis', or the sum of those of the line's pieces."""
    text: str
    score: float


# Beam search

def length_limit(source: Tensor) -> Tensor:
    """The longest translation, EOS included, of sentences [B, L_s]: 1.5 times their tokens (with EOS) plus 20, [B]."""
    return (source != PAD).sum(1) * 3 // 2 + 20


def expand(logits: Tensor, log_p: Tensor, beam: int, last: Tensor):
    """One step of the search: the best continuations of the live hypotheses, and which of them end here.

    logits [B * k, V]: of the next token; log_p [B, k]: of the live hypotheses; last [B]: True where a sentence is at
    its limit, so that every hypothesis has to end. Returns the continued ones, best first: log_p [B, k'], the
    hypothesis each stems from [B, k'] and its new token [B, k']; and the log_p of ending each live one [B, k], -inf
    unless that is among the `beam` best of all continuations of the sentence.
    """
    next_p = logits.log_softmax(-1, dtype=log_p.dtype).view(*log_p.shape, -1)    # [B, k, V]
    ends = log_p + next_p[:, :, EOS]                                         # [B, k]
    next_p[:, :, :EOS + 1] = -math.inf                                       # padding and BOS are never produced
    words, ids = next_p.topk(b := min(beam, next_p.shape[-1]))               # [B, k, b]
    words = (log_p.unsqueeze(-1) + words).flatten(1)                         # [B, k * b]
    words = words.masked_fill(last.unsqueeze(1), -math.inf)
    words, best = words.topk(min(beam, words.shape[1]))                      # [B, k']
    rivals = torch.cat([words, ends], dim=1).unsqueeze(1)                    # [B, 1, k' + k]
    better = (rivals > ends.unsqueeze(2)).sum(-1)                            # [B, k]
    return words, best // b, ids.flatten(1).gather(1, best), ends.masked_fill(better >= beam, -math.inf)


@torch.inference_mode()
def beam_search(model, source: Tensor, beam: int = 4, lenpen: float = 0.6, max_length: int | None = None,
                nbest: int = 1) -> list[list[Hypothesis]]:
    """The nbest translations of every sentence [B, L_s] (ids, EOS last, padding 0 on the right), best first.

    An ending joins the finished hypotheses if it is among the `beam` best continuations at its step; `beam` others
    live on. The search of a sentence stops when `beam` hypotheses have finished (so beam 1 is greedy search), at
    max_length tokens with EOS (None: see `length_limit`), or when no live hypothesis can beat the worst of the nbest
    kept: log P only falls and lp only grows, so `log P / lp(max_length)` of the best live one bounds all that is to
    come. The last changes no result. A stopped sentence leaves the batch; no result depends on the other sentences.
    Scores are float32 or better. Fewer than nbest come back only where fewer were found within max_length.
    """
    if not 1 <= nbest <= beam or (max_length is not None and max_length < 1):
        raise ValueError(f"needs 1 <= nbest={nbest} <= beam={beam} and max_length={max_length} of 1 or more")
    B, device = len(source), source.device
    limit = length_limit(source) if max_length is None else source.new_full((B,), max_length)
    longest = int(limit.max())
    memory, cache = model.encode(source), Cache()
    dtype = torch.promote_types(memory.states.dtype, torch.float32)
    # lp(y) = ((5 + |y|) / 6)^lenpen
    lp = ((5 + torch.arange(longest + 1, device=device, dtype=dtype)) / 6) ** lenpen
    tokens = source.new_full((B, 1, longest), EOS)                           # [B, k, longest], k = 1 at first
    newest, log_p = source.new_full((B, 1), BOS), lp.new_zeros(B, 1)         # [B * k, 1], [B, k]
    kept, scores = tokens.expand(-1, nbest, -1), lp.new_full((B, nbest), -math.inf)
    ended, alive, found = limit.new_zeros(B), list(range(B)), {}
    take = lambda x, index: x.gather(1, index.unsqueeze(-1).expand(-1, -1, longest))       # [B, n, longest]
    for t in range(1, longest + 1):
        k, logits = log_p.shape[1], model.decode(newest, memory, cache)[:, -1]             # [B * k, V]
        log_p, parent, ids, ends = expand(logits, log_p, beam, limit == t)
        scores, index = torch.cat([scores, ends / lp[t]], dim=1).topk(nbest)               # [B, nbest]
        kept = take(torch.cat([kept, tokens], dim=1), index)                               # [B, nbest, longest]
        tokens = take(tokens, parent)                                                      # [B, k', longest]
        tokens[:, :, t - 1] = ids
        ended = ended + ends.isfinite().sum(1)
        done = (ended >= beam) | (log_p[:, 0] / lp[limit] <= scores[:, -1]) | (limit == t)
        rows = torch.arange(len(alive), device=device).unsqueeze(1) * k + parent           # [B, k']
        done = done.tolist()                                                 # the step's only wait for the device
        found.update((alive[i], (kept[i], scores[i])) for i, stopped in enumerate(done) if stopped)
        left = [i for i, stopped in enumerate(done) if not stopped]
        if not left:
            break
        moved = len(left) < len(alive) or rows.shape[1] != k                 # rows change their sentences
        if len(left) < len(alive):
            alive, left = [alive[i] for i in left], torch.tensor(left, device=device)
            log_p, ids, rows, tokens, kept, scores, ended, limit = (
                x.index_select(0, left) for x in (log_p, ids, rows, tokens, kept, scores, ended, limit))
        if moved:
            memory = memory.select(rows.flatten())
        if moved or beam > 1:
            cache.reorder(rows.flatten(), same_sources=not moved)
        newest = ids.reshape(-1, 1)
    kept, scores = (torch.stack(x).tolist() for x in zip(*(found[i] for i in range(B))))
    return [[Hypothesis(ids[:ids.index(EOS)] if EOS in ids else ids, score)
             for ids, score in zip(*sentence) if score > -math.inf] for sentence in zip(kept, scores)]


# Lines of text

def pieces(line: str, tokenizer, limit: int) -> list[tuple[str, list[int] | None]]:
    """A line as (text, ids) of at most `limit` tokens each; ids None is text to copy; a blank line has no pieces.

    A line that is too long is cut into its sentences, too long a sentence between words, too long a word anywhere;
    a run of more than MAX_WORD characters without a space is copied, so that time and memory stay in bounds.
    """
    encode = lambda text: tokenizer.encode(text).ids
    words = line.split()
    if not words:
        return []
    if max(map(len, words)) <= MAX_WORD and len(ids := encode(line)) <= limit:
        return [(line, ids)]
    found = []
    for sentence in SENTENCE.split(line):
        text, ids = "", []                                                   # what has been gathered of the sentence
        for word in sentence.split():
            longer = f"{text} {word}" if text else word
            more = encode(longer[len(text):]) if len(word) <= MAX_WORD else None
            if more is not None and len(ids) + len(more) <= limit:
                text, ids = longer, ids + more
                continue
            found += [(text, ids)] * bool(text)
            text, ids = "", []
            if more is None:
                found.append((word, None))
            elif len(more := encode(word)) <= limit:
                text, ids = word, more
            else:
                step = max(1, limit // 4)                                    # a character is 4 bytes or tokens at most
                found += [(part, encode(part)) for part in (word[i:i + step] for i in range(0, len(word), step))]
        found += [(text, ids)] * bool(text)
    return found


def one_line(text: str) -> str:
    """The text without line ends, tabs and other control characters, which a model that spells bytes may produce."""
    return UNPRINTABLE.sub(" ", text).strip()


def batches(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Indices sorted by length, longest first, in batches of at most max_tokens with padding (but never empty)."""
    order, found, start = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True), [], 0
    while start < len(order):
        found.append(order[start:start + max(1, max_tokens // lengths[order[start]])])
        start += len(found[-1])
    return found


def translate_nbest(model, tokenizer, lines, beam: int = 4, lenpen: float = 0.6, max_tokens: int = 8192,
                    nbest: int = 1, max_source: int = MAX_SOURCE, progress: bool = False) -> list[list[Translation]]:
    """The nbest translations of every line, best first, in the order of the lines; as many lists as there are lines.

    A blank line has the one translation "" (score 0). A line of more than max_source tokens is translated in pieces
    (see `pieces`): their n-th translations are joined with spaces and the scores added. Any str is a line: what is
    no valid Unicode becomes "?". max_tokens: size of a batch, beams x source tokens. Runs on the model's device, in
    eval mode.
    """
    device, training = next(model.parameters()).device, model.training
    lines = [pieces(line.encode("utf-8", "replace").decode(), tokenizer, max_source) for line in lines]
    results = [[[Translation(one_line(text), 0.0)] for text, _ in line] for line in lines]
    places = [(i, j) for i, line in enumerate(lines) for j, (_, ids) in enumerate(line) if ids is not None]
    sources = [torch.tensor(lines[i][j][1] + [EOS]) for i, j in places]
    model.eval()
    try:
        with tqdm(total=len(places), unit="line", disable=not (progress and sys.stderr.isatty())) as bar:
            for batch in batches([len(ids) * beam for ids in sources], max_tokens):
                source = pad_sequence([sources[n] for n in batch], batch_first=True, padding_value=PAD)    # [B, L_s]
                found = beam_search(model, source.to(device), beam, lenpen, nbest=nbest)
                for (i, j), best in zip((places[n] for n in batch), found):
                    results[i][j] = [Translation(one_line(tokenizer.decode(h.tokens)), h.score) for h in best] or \
                        [Translation("", -math.inf)]                         # a model whose scores are no numbers
                bar.update(len(batch))
    finally:
        model.train(training)
    return [joined(line) for line in results]


def translate_lines(model, tokenizer, lines, **how) -> list[str]:
    """The best translation of every line, as text; the arguments are those of `translate_nbest`."""
    return [line[0].text for line in translate_nbest(model, tokenizer, lines, **how)]


def joined(parts: list[list[Translation]]) -> list[Translation]:
    """One line's translations from those of its pieces: the n-th (or last) of each, joined; scores added."""
    chosen = [[part[min(n, len(part) - 1)] for part in parts] for n in range(max(map(len, parts), default=1))]
    return [Translation(" ".join(x.text for x in line), sum(x.score for x in line)) for line in chosen]


# Runs and scores

def load_run(folder, name: str = "best", device="cpu"):
    """(model in eval mode, tokenizer, settings) of a run folder: its NAME.pt, tokenizer.json and config.json.

    Raises UserError for a folder or file that is missing, damaged, or of another version or run.
    """
    folder = Path(folder)
    settings = checkpoint.read_config(folder)
    path = folder / f"{name}.pt"
    there = sorted(file.stem for file in folder.glob("*.pt"))
    if name not in there:
        raise UserError(f"{path} does not exist; --checkpoint can be {', '.join(there) or 'given once there is one'}")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    state = checkpoint.load(path, needs=("model",))["model"]
    try:
        config = TransformerConfig(**settings["model"])
        with torch.device("meta"):                # it takes memory only where it fits the weights
            shapes = Transformer(config).state_dict() if config.layers <= len(state) else {}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder}/config.json describes no model that can be built here ({error}): take the one that "
                        "the run wrote") from error
    checkpoint.check_weights(state, shapes, path, "the model of config.json")
    model = install(Transformer(config).to(device))
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise UserError(f"{folder}/tokenizer.json has {tokenizer.get_vocab_size()} tokens and the model of config.json "
                        f"{config.vocab_size}: take both from one run")
    model.load_state_dict(state)
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise UserError(f"{path} holds weights that are no finite numbers; use another --checkpoint of the run")
    return model.eval(), tokenizer, settings


def corpus_bleu(hypotheses, references, lowercase: bool = False) -> tuple[float, str]:
    """The sacreBLEU score (0..100) of lines against one reference each, and its signature; lowercase: without case."""
    from sacrebleu.metrics import BLEU
    metric = BLEU(lowercase=lowercase, force=True)
    return metric.corpus_score(list(hypotheses), [list(references)]).score, str(metric.get_signature())


def paired_bootstrap(systems, references, lowercase: bool = False) -> str:
    """A table of sacreBLEU's paired bootstrap test (Koehn 2004): systems [(name, lines), ...], the first the baseline.

    p is the chance that the baseline would look as different as this by the choice of the test sentences alone.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest
    metric = BLEU(lowercase=lowercase, force=True)
    signatures, columns = PairedTest(systems, {"BLEU": metric}, [references], test_type="bs")()
    width = max(len(name) for name, _ in systems)
    rows = [f"{'run':<{width}}   BLEU   mean ± 95% CI           p"]
    for (name, lines), result in zip(systems, columns["BLEU"]):
        same = lines == systems[0][1]                                        # sacreBLEU would give them the smallest p
        p = "baseline" if result.p_value is None else "identical" if same else f"{result.p_value:.4f}"
        rows.append(f"{name:<{width}}  {result.score:5.2f}  {result.mean:6.2f} ± {result.ci:4.2f}  {p:>10}")
    return "\n".join(rows + [str(signatures["BLEU"])])


def sign_test(baseline, other, references, lowercase: bool = False) -> tuple[int, int, float]:
    """(better, worse, p): the two-sided sign test of Collins, Koehn and Kučerová 2005, which Li 2018 and Gu 2019 use.

    A sentence of `other` is better where it raises the baseline's BLEU when it takes the place of the baseline's, and
    worse where it lowers it. p is the chance of so uneven a split of the sentences that differ, were both as likely.
    """
    from sacrebleu.metrics import BLEU
    from scipy.stats import binomtest
    metric = BLEU(lowercase=lowercase, force=True)

    def statistics(lines):                               # [sentences, 10]: what BLEU is made of adds up
        scores = [metric.corpus_score([line], [[reference]]) for line, reference in zip(lines, references)]
        return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])

    def bleu(sums):
        sums = sums.tolist()
        return BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9]).score
    ours, theirs = statistics(other), statistics(baseline)
    whole = theirs.sum(0)
    changes = np.array([bleu(whole - old + new) for old, new in zip(theirs, ours)]) - bleu(whole)
    better, worse = int((changes > 0).sum()), int((changes < 0).sum())
    return better, worse, binomtest(better, better + worse).pvalue if better + worse else 1.0


# The command

def parser() -> Parser:
    """The command line of translate.py."""
    p = Parser(prog="translate.py", description="Translates text with a trained run: one line in, one line out. "
               "Reads the terminal line by line where there is no other input.")
    p.add_argument("run", metavar="RUN", help="run folder, e.g. runs/NAME")
    p.add_argument("--input", metavar="FILE", help="text to translate, UTF-8 (standard input)")
    p.add_argument("--output", metavar="FILE", help="where the translations go, at the end (standard output)")
    p.add_argument("--checkpoint", default="best", metavar="NAME", help="best, last, average, step-N")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group = p.add_argument_group("beam search")
    group.add_argument("--beam", type=whole(1, 1000), default=4, help="hypotheses kept; 1 is greedy search")
    group.add_argument("--lenpen", type=real(0, 10), default=0.6, help="length penalty; 0 prefers short translations")
    group.add_argument("--nbest", type=whole(1, 1000), default=1, help="translations per line; more than 1 adds a "
                       "first column, the line's number")
    group.add_argument("--scores", action="store_true", help="adds a column before the text: log P / length penalty")
    group.add_argument("--max-tokens", type=whole(1), default=8192, help="batch size in beams x source tokens")
    group = p.add_argument_group("scoring (on standard error)")
    group.add_argument("--reference", metavar="FILE", help="reference translations: prints sacreBLEU and its signature")
    group.add_argument("--lowercase", action="store_true", help="scores without regard to case")
    group.add_argument("--compare", metavar="OTHER", help="another run: prints a paired bootstrap test against it")
    group.add_argument("--sign-test", action="store_true", help="with --compare: the sign test of Li 2018 and Gu 2019 "
                       "as well")
    return p


def read_lines(path: str | None) -> list[str]:
    """The lines of a UTF-8 file (None: of standard input), which end with \\n or \\r\\n; a byte-order mark is skipped.

    Raises UserError for a file that is missing, unreadable, empty, or not UTF-8 (naming the line).
    """
    with checkpoint.reported("read", name := path or "standard input"):
        if path and os.path.getsize(path) > memory(torch.device("cpu")) // 4:
            raise UserError(f"{path} is too large to be translated in one go: split it, e.g. with split -l 1000000")
        content = sys.stdin.buffer.read() if path is None else Path(path).read_bytes()
    if path and not content:
        raise UserError(f"{path} is empty; it should hold one sentence per line")
    lines = content.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n") if content else []
    for i, line in enumerate(lines):
        try:
            lines[i] = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {i + 1}: not UTF-8; convert it, e.g. with iconv -t UTF-8") from None
    return lines


def check_flags(args, interactive: bool) -> None:
    """Raises UserError for flags that contradict each other, or an --output that cannot be written."""
    if args.nbest > args.beam:
        raise UserError(f"--nbest {args.nbest} needs a --beam of {args.nbest} or more")
    if (args.compare or args.lowercase) and not args.reference:
        raise UserError(f"--{'compare' if args.compare else 'lowercase'} is about scores: it needs --reference FILE")
    if args.sign_test and not args.compare:
        raise UserError("--sign-test compares two runs: it needs --compare OTHER")
    if interactive and (args.reference or args.output):
        raise UserError(f"--{'reference' if args.reference else 'output'} needs text from --input or a pipe")
    if args.compare and os.path.realpath(args.compare) == os.path.realpath(args.run):
        raise UserError(f"--compare {args.compare} is the run itself; name another one")
    if args.output:
        path, read = Path(args.output), [Path(other).resolve() for other in (args.input, args.reference) if other]
        if path.resolve() in read:
            raise UserError(f"--output {args.output} is read as well; name another file")
        checkpoint.check_writable(path, "--output")


def formatted(translations: list[list[Translation]], args) -> str:
    """The output: a line per translation, columns separated by tabs: line number (--nbest), score (--scores), text."""
    return "".join("\t".join([str(number)] * (args.nbest > 1) + [f"{x.score:.4f}"] * args.scores + [x.text]) + "\n"
                   for number, line in enumerate(translations, start=1) for x in line)


def interact(translate, args) -> None:
    """Asks for a line and prints its translation until the input ends (Ctrl-D)."""
    print("One sentence per line; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            print(formatted(translate([input("> ")]), args), end="", flush=True)
        except UnicodeDecodeError:
            print("that was not UTF-8", file=sys.stderr)
        except EOFError:
            return print()


def command(args) -> None:
    """Reads, translates, writes and, with --reference, scores."""
    interactive = args.input is None and sys.stdin.isatty()
    check_flags(args, interactive)
    device = pick_device(args.device)
    runs = {folder: load_run(folder, args.checkpoint, device)[:2] for folder in filter(None, [args.compare, args.run])}
    lines = [] if interactive else read_lines(args.input)
    references = read_lines(args.reference) if args.reference else []
    if references and len(references) != len(lines):
        raise UserError(f"--reference {args.reference} has {len(references)} lines and the input {len(lines)}; "
                        "line i of the one must translate line i of the other")

    def translate(lines, folder=args.run, progress=False):
        try:
            return translate_nbest(*runs[folder], lines, args.beam, args.lenpen, args.max_tokens, args.nbest,
                                   progress=progress)
        except torch.OutOfMemoryError:
            raise UserError(f"--max-tokens {args.max_tokens} is too much for the memory of {device}") from None

    if interactive:
        return interact(translate, args)
    found = {folder: translate(lines, folder, progress=True) for folder in runs}
    text = formatted(found[args.run], args)
    if args.output:
        checkpoint.atomic_write(args.output, text)
    else:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        sys.stdout.write(text)
    if references:
        systems = [(folder, [line[0].text for line in found[folder]]) for folder in runs]
        score, signature = corpus_bleu(systems[-1][1], references, args.lowercase)
        print(f"BLEU {score:.2f}  {signature}", file=sys.stderr)
        if args.compare:
            print(paired_bootstrap(systems, references, args.lowercase), file=sys.stderr)
        if args.sign_test:
            better, worse, p = sign_test(systems[0][1], systems[1][1], references, args.lowercase)
            print(f"sign test: {better} sentences better, {worse} worse, p = {p:.4f}", file=sys.stderr)


def main(argv=None) -> int:
    """Runs the command line; returns the exit status."""
    return run(command, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
