"""Evaluation: cross-entropy, BLEU, chrF, and disagreement of the heads (Li 2018 §5.5)."""
import math
import re
import time
from collections import Counter, defaultdict
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from tabulate import tabulate

from disagreement import MEASURED, choose_mask, layer_disagreement
from nmt.batches import batches, collate
from nmt.languages import bleu_tokenizer
from nmt.loss import smoothed_cross_entropy
from nmt.search import count_long, describe_long, translate_text
from nmt.tokenizer import prepare_line
from tools.files import UserError
from transformer import PAD

WEIGHTS = 2 ** 27               # attention weights of a validation batch, in all layers together
LONGEST = 2 ** 29               # attention weights of a pair; a longer one is left out
# a subword of subword-nmt or SentencePiece; a full stop apart from its word
SUBWORD = re.compile(r"@@( |$)|▁")
FULL_STOP = re.compile(r" \.$")
NO_4_GRAMS = "BLEU counts 4-grams, and the references have none: only chrF scores them"


@torch.no_grad()
def validate(model, encoded, max_tokens: int, amp: bool = False) -> tuple[float, dict]:
    """Cross-entropy per target token (nats), and D of every kind and layer on a corpus:
    {component: {kind: [D of layer 1, ...]}}. D of positions is the sum of Li 2018 Eq. 2, averaged
    over the sentences; the others are means over all valid positions. Pairs whose attention weights
    would not fit into memory are left out, with a line that says so."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    nll = tokens = 0
    sums = defaultdict(float)            # (component, kind) -> the sum of D [layers]
    counts = Counter()                   # (component, kind) -> sentences or positions in the sum
    check_lengths(encoded, model.config)
    heads_of_component = model.config.heads * model.config.layers
    for indices in validation_batches(encoded, max_tokens, heads_of_component):
        source, target = (rows.to(device) for rows in collate(encoded, indices))
        target_out = target[:, 1:]                                           # [B, L_t]
        source_mask = source != PAD
        target_mask = target_out != PAD
        # with the heads, each layer would be compiled once more
        with (torch.autocast(device.type, torch.bfloat16, enabled=amp),
              torch.compiler.set_stance("force_eager")):
            hidden, heads = model.hidden(source, target[:, :-1], need_weights=True)  # [B, L_t, d]
            nll += smoothed_cross_entropy(hidden[target_mask], model.output.weight,
                                          target_out[target_mask]).item()
        tokens += int(target_mask.sum())
        for component, layers in heads.items():
            for kind in MEASURED:
                D = [layer_disagreement(kind, component, h, source_mask, target_mask, "sum")
                     for h in layers]
                count = len(source)                      # "sum" averages over the sentences
                if kind != "position":
                    count = int(choose_mask(kind, component, source_mask, target_mask).sum())
                sums[component, kind] += np.array(torch.stack(D).tolist()) * count
                counts[component, kind] += count
    model.train(training)
    means = {}
    for (component, kind), total in sums.items():
        means.setdefault(component, {})[kind] = (total / counts[component, kind]).tolist()
    return nll / tokens, means


def count_weights(source_lengths, target_lengths, heads: int):
    """The attention weights of a pair, or of each of several, in `heads` heads of each
    component."""
    m = source_lengths + 1                                                   # L_s with EOS
    n = target_lengths + 1                                                   # L_t
    return heads * (m * m + n * m + n * n)


def check_lengths(encoded, config) -> None:
    """Raises UserError if every pair of a validation set is left out of it."""
    weights = count_weights(encoded.source_lengths, encoded.target_lengths,
                            config.heads * config.layers)
    if weights.min() > LONGEST:
        raise UserError("--valid: every pair is too long for the memory: cut its lines into "
                        "sentences")


def validation_batches(encoded, max_tokens: int, heads: int):
    """Yields batches as arrays of indices, of at most max_tokens, and of at most WEIGHTS attention
    weights in `heads` heads of each component, except for single pairs. Leaves out a pair of more
    than LONGEST."""
    def weights(indices) -> int:
        return count_weights(int(encoded.source_lengths[indices].max()),
                             int(encoded.target_lengths[indices].max()), heads)

    left_out = 0
    for indices in batches(encoded.source_lengths, encoded.target_lengths, max_tokens,
                           shuffle=False):
        size = max(1, WEIGHTS // weights(indices))
        for start in range(0, len(indices), size):
            batch = indices[start:start + size]
            if weights(batch) > LONGEST:
                left_out += len(batch)
            else:
                yield batch
    if left_out:
        print(f"warning: too long for the memory and left out of the validation loss and of D: "
              f"{left_out} of {len(encoded):,} pairs")


def disagreement_scores(D: dict) -> dict:
    """exp(D) in (0, 1] by component and kind, of the mean D of the layers (Li 2018 Table 4)."""
    scores = {}
    for component, kinds in D.items():
        scores[component] = {kind: math.exp(fmean(layers)) for kind, layers in kinds.items()}
    return scores


def score_table(scores: dict) -> str:
    """exp(D) as a small table, a row per component, a column per kind."""
    rows = []
    for component, kinds in scores.items():
        rows.append([component, *(kinds[kind] for kind in MEASURED)])
    return tabulate(rows, ["", *MEASURED], tablefmt="plain", floatfmt=".3f")


def bleu_metric(references, tgt: str, lowercase: bool = False):
    """sacreBLEU's BLEU with the tokenizer of the references, see `bleu_tokenizer`."""
    from sacrebleu.metrics import BLEU
    return BLEU(tokenize=bleu_tokenizer(references, tgt), lowercase=lowercase, force=True)


def line_lists(hypotheses, references) -> tuple[list[str], list[str]]:
    """Both as lists. Raises UserError unless they have a line or more, and as many: sacreBLEU would
    leave out the rest of the longer ones."""
    hypotheses, references = list(hypotheses), list(references)
    if not references or len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses)} translations and {len(references)} references: give "
                        "one reference for each translation, and one or more of both")
    return hypotheses, references


def corpus_bleu(hypotheses, references, tgt="", lowercase: bool = False) -> tuple[float, str]:
    """BLEU (0..100) of lines in the language tgt against one reference each, and its signature."""
    hypotheses, references = line_lists(hypotheses, references)
    metric = bleu_metric(references, tgt, lowercase)
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())


def has_4_grams(references, tgt: str) -> bool:
    """Whether a line has four tokens; otherwise BLEU says nothing (NO_4_GRAMS)."""
    metric = bleu_metric(references, tgt)
    return any(len(metric.tokenizer(line).split()) >= 4 for line in references)


def reference_warnings(references, tgt: str) -> list[str]:
    """Warnings about references whose BLEU is not that of ordinary text: a tenth of them or more
    segmented or tokenized, or some in another form than all translations."""
    segmented = [line for line in references if SUBWORD.search(line)]
    if bleu_tokenizer(references, tgt) == "13a":
        segmented += [line for line in references if FULL_STOP.search(line)]
    warnings = []
    if 10 * len(segmented) >= len(references) and segmented:
        warnings.append(f"the references are segmented or tokenized, as in {segmented[0][-40:]!r}: "
                        "their BLEU cannot be compared with that of ordinary text")
    odd = sum(prepare_line(line) != " ".join(line.split()) for line in references)
    if odd:
        warnings.append(f"{odd:,} of {len(references):,} references are not in NFC or have "
                        "invisible characters: BLEU counts these as errors")
    return warnings


def text_warnings(data, max_length: int) -> list[str]:
    """Warnings about the text of a run: what is left out of it, and unusual references."""
    warnings = []
    left_out = data.pairs - len(data.train)
    if left_out:
        warnings.append(f"{left_out:,} of {data.pairs:,} training pairs are left out: a side is "
                        f"empty or has more than {max_length} tokens (--max-length)")
    long = int((data.valid.source_lengths > data.longest_source).sum())
    warnings += [f"valid: {message}" for message in describe_long(long, 0)]
    for name, pairs in [("valid", data.valid_pairs), *data.tests.items()]:
        warnings += [f"{name}: {message}" for message in reference_warnings(pairs.target, data.tgt)]
    return warnings


def corpus_chrf(hypotheses, references, lowercase: bool = False) -> tuple[float, str]:
    """chrF (0..100) of lines against one reference each, and its signature."""
    from sacrebleu.metrics import CHRF
    metric = CHRF(lowercase=lowercase)
    hypotheses, references = line_lists(hypotheses, references)
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())


class Scores(NamedTuple):
    """Scores of a model's translations."""
    bleu: float                 # on all test sets together
    chrf: float
    signature: str              # sacreBLEU's
    sets: dict                  # test set -> {"bleu", "chrf"}
    translations: dict          # test set -> lines
    in_pieces: int              # lines that were translated in pieces
    at_limit: int               # translations that reached the length limit
    sentences_per_second: float


def score_sets(model, data, sets: dict, beam: int, lenpen: float, lowercase: bool) -> Scores:
    """Translates test sets {name: pairs} and scores them, separately and pooled."""
    translations = {}
    scores = {}
    length_ratio = data.length_ratio                     # computed once, and not timed
    results = []
    started = time.perf_counter()
    # the shapes of the search differ at every step: it runs uncompiled
    with torch.compiler.set_stance("force_eager"):
        for name, pairs in sets.items():
            translated = list(translate_text(
                model, data.tokenizer, pairs.source, beam=beam, lenpen=lenpen,
                max_source=data.longest_source, length_ratio=length_ratio, progress=True))
            translations[name] = [translation.text for translation in translated]
            results += translated
    seconds = time.perf_counter() - started              # text: the device has finished
    for name, pairs in sets.items():
        bleu, _ = corpus_bleu(translations[name], pairs.target, data.tgt, lowercase)
        chrf, _ = corpus_chrf(translations[name], pairs.target, lowercase)
        scores[name] = {"bleu": bleu, "chrf": chrf}
    hypotheses = sum(translations.values(), [])
    references = [line for pairs in sets.values() for line in pairs.target]
    bleu, signature = corpus_bleu(hypotheses, references, data.tgt, lowercase)
    chrf, _ = corpus_chrf(hypotheses, references, lowercase)
    return Scores(bleu, chrf, signature, scores, translations, *count_long(results),
                  len(hypotheses) / seconds)


def summary(result: dict, heads: int) -> str:
    """The test row of a run's metrics in words."""
    which = "best checkpoint"
    steps = result["average"]
    if steps:
        which = f"average of {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    lines = [f"test BLEU {result['test_bleu']:.2f}, chrF {result['test_chrf']:.2f}   "
             f"{result['signature']}"]
    if [*result["sets"]] != ["test"]:
        for name, scores in result["sets"].items():
            lines.append(f"  {name}: BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}")
    for message in describe_long(result.get("in_pieces", 0), result.get("at_limit", 0)):
        lines.append(f"  {message}")
    if steps and steps[0] <= result["step"] / 2:
        lines.append("  warning: the average reaches into the first half of the training: average "
                     "fewer checkpoints, or validate more often (--eval-every)")
    return "\n".join([
        *lines, f"  {which}, beam {result['beam']}, length penalty {result['lenpen']}",
        f"  {result['parameters']:,} parameters; trained on {result['tokens']:,} target tokens, "
        f"{result['tokens_per_second']:,.0f} per second; decoded "
        f"{result['sentences_per_second']:.1f} sentences per second",
        "  disagreement exp(D) in validation; subspace and output: 1 where the heads cancel,",
        f"  {math.exp(-1 / heads):.3f} where they are orthogonal, 0.368 where alike; position: a "
        "sum over a sentence",
        score_table(result["disagreement"])])
