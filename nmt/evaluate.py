"""Evaluation: cross-entropy, BLEU, chrF, and disagreement of the heads (Li 2018 §5.5)."""
import math
import re
import time
from collections import Counter, defaultdict
from statistics import fmean

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF
from tabulate import tabulate

from disagreement import MEASURED, choose_mask, layer_disagreement
from nmt.batches import batches, collate
from nmt.loss import smoothed_cross_entropy
from nmt.search import translate_lines
from transformer import PAD

HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
KANA = re.compile(r"[\u3041-\u30ff]")
# Thai, Lao, Tibetan, Burmese, Khmer: no spaces between words
UNSPACED = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")
LETTER = re.compile(r"[^\W\d_]")


@torch.no_grad()
def validate(model, encoded, max_tokens: int, amp: bool = False) -> tuple[float, dict]:
    """Cross-entropy per target token (nats), and D of every kind and layer on a corpus:
    {component: {kind: [D of layer 1, ...]}}. D of positions is the sum of Li 2018 Eq. 2, averaged
    over the sentences; the others are means over all valid positions."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    nll = tokens = 0
    sums = defaultdict(float)            # (component, kind) -> the sum of D [layers]
    counts = Counter()                   # (component, kind) -> sentences or positions in the sum
    for indices in batches(encoded.source_lengths, encoded.target_lengths, max_tokens,
                           shuffle=False):
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


# ---- BLEU and chrF

def bleu_tokenizer(references, tgt: str = "") -> str:
    """sacreBLEU's tokenizer for references in the language tgt: zh for Chinese, char for other
    scripts without spaces between words, otherwise 13a. The script of most letters decides."""
    text = "".join(references)
    han, kana, unspaced, letters = [len(script.findall(text))
                                    for script in (HAN, KANA, UNSPACED, LETTER)]
    if 2 * (han + kana + unspaced) <= letters:
        return "13a"
    if han > 20 * (kana + unspaced) and not tgt.startswith("ja"):    # Chinese may quote some kana
        return "zh"
    return "char"


def corpus_bleu(hypotheses, references, tgt: str = "") -> tuple[float, str]:
    """BLEU (0..100) of lines in the language tgt against one reference each, and its signature."""
    metric = BLEU(tokenize=bleu_tokenizer(references, tgt))
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


def corpus_chrf(hypotheses, references) -> float:
    """chrF (0..100) of lines against one reference each."""
    return CHRF().corpus_score(list(hypotheses), [list(references)]).score


def score_sets(model, data, sets: dict, beam: int, lenpen: float) -> tuple[dict, dict]:
    """Translates test sets {name: pairs}, and scores them, separately and pooled. Returns the
    translations {name: lines}, and the scores."""
    _, tgt = data.languages
    length_ratio = data.length_ratio                     # computed once, and not timed
    translations = {}
    started = time.perf_counter()
    # the shapes of the search differ at every step: it runs uncompiled
    with torch.compiler.set_stance("force_eager"):
        for name, pairs in sets.items():
            translations[name] = translate_lines(
                model, data.tokenizer, pairs.source, beam=beam, lenpen=lenpen,
                length_ratio=length_ratio, progress=True)
    seconds = time.perf_counter() - started              # text: the device has finished
    hypotheses = sum(translations.values(), [])
    references = [line for pairs in sets.values() for line in pairs.target]
    bleu, signature = corpus_bleu(hypotheses, references, tgt)
    scores = {"bleu": bleu, "chrf": corpus_chrf(hypotheses, references),
              "signature": signature, "sets": {},
              "sentences_per_second": len(hypotheses) / seconds}
    for name, pairs in sets.items():
        lines = translations[name]
        bleu, _ = corpus_bleu(lines, pairs.target, tgt)
        scores["sets"][name] = {"bleu": bleu, "chrf": corpus_chrf(lines, pairs.target)}
    return translations, scores


def describe_test(row: dict, heads: int) -> str:
    """The test row of a run's metrics in words."""
    text = "valid" if [*row["sets"]] == ["valid"] else "test"                # without --test
    lines = [f"{text} BLEU {row['bleu']:.2f}, chrF {row['chrf']:.2f}   {row['signature']}"]
    if len(row["sets"]) > 1:
        for name, scores in row["sets"].items():
            lines.append(f"  {name}: BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}")
    return "\n".join([
        *lines,
        f"  {row['parameters']:,} parameters; trained on {row['tokens']:,} target tokens, "
        f"{row['tokens_per_second']:,.0f} per second; decoded "
        f"{row['sentences_per_second']:.1f} sentences per second",
        "  disagreement exp(D) in validation; subspace and output: 1 where the heads cancel,",
        f"  {math.exp(-1 / heads):.3f} where they are orthogonal, 0.368 where alike; position: a "
        "sum over a sentence",
        score_table(row["disagreement"])])
