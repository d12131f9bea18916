"""How a translation model is evaluated: cross-entropy, BLEU, and how much its heads disagree.

The disagreement scores are those of Li et al. 2018, section 5.5, Tables 4 and 5.
"""
import math
import statistics
import time

import numpy as np
import torch

from disagreement import MEASURED, layer_disagreement, mask_of
from nmt.batches import batches, collate
from nmt.loss import of_tokens
from nmt.search import translate_lines
from transformer import PAD

APART = 0.05                # BLEU: a smaller difference is not worth a p


@torch.no_grad()
def validate(model, encoded, max_tokens: int, amp: bool = False) -> tuple[float, dict]:
    """Cross-entropy per target token (nats), and D of every kind and layer on a corpus.

    The second is {component: {kind: [D of layer 1, ...]}}: of positions the literal sum of Li 2018
    Eq. 2, averaged over the sentences; of the other kinds the mean over all valid positions.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    nll = 0.0
    tokens = 0
    sums = {}                                            # (component, kind) -> [layers]
    counts = {}                                          # -> how many these are summed over
    found = batches(encoded.source_lengths, encoded.target_lengths, max_tokens, shuffle=False)
    for batch in (collate(encoded, indices) for indices in found):
        source = batch.source.to(device)
        target_in = batch.target[:, :-1].to(device)                          # [B, L_t]
        target_out = batch.target[:, 1:].to(device)                          # [B, L_t]
        source_mask = source != PAD
        target_mask = target_out != PAD
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            hidden, heads = model.hidden(source, target_in, need_weights=True)       # [B, L_t, d]
            n = int(target_mask.sum())
            nll += of_tokens(hidden, model.output.weight, target_out, n).item()
        tokens += n
        for key, (D, count) in summed_disagreement(heads, source_mask, target_mask).items():
            sums[key] = sums.get(key, 0) + D
            counts[key] = counts.get(key, 0) + count
    model.train(training)
    means = {}
    for (component, kind), total in sums.items():
        means.setdefault(component, {})[kind] = (total / counts[component, kind]).tolist()
    return nll / tokens, means


def summed_disagreement(heads: dict, source_mask, target_mask) -> dict:
    """D of every kind and layer of a batch as sums over its positions (over its sentences, where D
    is a sum of theirs), and over how many: {(component, kind): (D [layers], number)}."""
    m = int(source_mask.sum())
    n = int(target_mask.sum())
    found = {}
    for component, layers in heads.items():
        for kind in MEASURED:
            D = [layer_disagreement(kind, component, h, source_mask, target_mask, "sum")
                 for h in layers]
            if kind == "position":
                count = len(source_mask)
            elif mask_of(kind, component, source_mask, target_mask) is source_mask:
                count = m
            else:
                count = n
            found[component, kind] = (np.array(torch.stack(D).tolist()) * count, count)
    return found


def disagreement_scores(D: dict) -> dict:
    """exp(D) by component and kind: the exponential of the mean over the layers (Li 2018 Table 4),
    in (0, 1]."""
    scores = {}
    for component, kinds in D.items():
        scores[component] = {}
        for kind, layers in kinds.items():
            scores[component][kind] = math.exp(sum(layers) / len(layers))
    return scores


def score_table(scores: dict) -> str:
    """exp(D) as a small table, a row per component, a column per kind."""
    rows = [f"  {'':6}" + "".join(f"{kind:>10}" for kind in MEASURED)]
    for component, kinds in scores.items():
        rows.append(f"  {component:6}" + "".join(f"{kinds[kind]:10.3f}" for kind in MEASURED))
    return "\n".join(rows)


def summary(result: dict, heads: int) -> str:
    """The test row of a run's metrics in words."""
    orthogonal = math.exp(-1 / heads)
    which = "best checkpoint"
    if result["average"]:
        which = f"average of the last {result['average']} checkpoints"
    return (f"{result['set']} BLEU {result['test_bleu']:.2f}   {result['signature']}\n"
            f"  {which}, beam {result['beam']}, length penalty {result['lenpen']}\n"
            f"  {result['parameters']:,} parameters; trained on {result['tokens']:,} target "
            f"tokens, {result['tokens_per_second']:,.0f} per second; decoded "
            f"{result['sentences_per_second']:.1f} sentences per second\n"
            "  disagreement exp(D) in validation; subspace and output: 1 where the heads cancel,\n"
            f"  {orthogonal:.3f} where they are orthogonal, 0.368 where alike; position: a sum over"
            " a sentence\n"
            f"{score_table(result['disagreement'])}")


def bleu(model, tokenizer, pairs, beam: int, lenpen: float, lowercase: bool = False,
         amp: bool = False):
    """(hypotheses, sacreBLEU, signature, sentences per second) of a model's translation of
    pairs."""
    device = next(model.parameters()).device
    started = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=amp):
        hypotheses = translate_lines(model, tokenizer, pairs.source, beam=beam, lenpen=lenpen,
                                     progress=True)
    seconds = time.perf_counter() - started
    score, signature = corpus_bleu(hypotheses, pairs.target, lowercase)
    return hypotheses, score, signature, len(hypotheses) / seconds


# ---- Scores of lines of text

def corpus_bleu(hypotheses, references, lowercase: bool = False) -> tuple[float, str]:
    """The sacreBLEU score (0..100) of lines against one reference each, and its signature;
    lowercase: without case."""
    from sacrebleu.metrics import BLEU
    metric = BLEU(lowercase=lowercase, force=True)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


def bleu_interval(hypotheses, references, lowercase: bool = False) -> tuple[float, tuple]:
    """The sacreBLEU score of lines, and its 95 % interval (low, high) by the choice of the
    sentences, from 1,000 bootstrap resamples."""
    from sacrebleu.metrics import BLEU
    metric = BLEU(lowercase=lowercase, force=True)
    score = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=1000)
    return score.score, (score._mean - score._ci, score._mean + score._ci)


def bootstrap(systems, references, lowercase: bool = False) -> tuple[list, str]:
    """sacreBLEU's paired bootstrap test (Koehn 2004; 1,000 resamples): its result for every system
    (score, mean, ci, p_value) and the signature. systems: [(name, lines), ...], the first the
    baseline, whose p is None.

    p is the chance that the baseline would look as different as this by the choice of the test
    sentences alone; 1 for equal scores, to which sacreBLEU gives its smallest.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest
    metric = BLEU(lowercase=lowercase, force=True)
    signatures, columns = PairedTest(systems, {"BLEU": metric}, [references], test_type="bs")()
    baseline, *others = columns["BLEU"]
    for result in others:
        if result.score == baseline.score:
            result.p_value = 1.0
    return [baseline, *others], str(signatures["BLEU"])


def paired_bootstrap(systems, references, lowercase: bool = False) -> str:
    """A table of `bootstrap`: the systems' scores, confidence intervals and p, where they are APART
    from the baseline."""
    results, signature = bootstrap(systems, references, lowercase)
    width = max(len(name) for name, _ in systems)
    rows = [f"{'run':<{width}}   BLEU   mean ± 95% CI           p"]
    for (name, lines), result in zip(systems, results):
        if result.p_value is None:
            p = "baseline"
        elif lines == systems[0][1]:
            p = "identical"
        elif abs(result.score - results[0].score) < APART:
            p = "alike"
        else:
            p = f"{result.p_value:.4f}"
        interval = f"{result.mean:6.2f} ± {result.ci:4.2f}"
        rows.append(f"{name:<{width}}  {result.score:5.2f}  {interval}  {p:>10}")
    return "\n".join([*rows, signature])


def t_interval(values) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean of values (of differences between runs of the same
    seed: the paired one), by Student's t with n - 1 degrees of freedom; None for fewer than
    two."""
    from scipy.special import stdtrit
    n = len(values)
    if n < 2:
        return None
    mean = statistics.fmean(values)
    half = stdtrit(n - 1, 0.975) * statistics.stdev(values) / math.sqrt(n)
    return float(mean - half), float(mean + half)


def sign_test(baseline, other, references, lowercase: bool = False) -> tuple[int, int, float]:
    """(better, worse, p): the two-sided sign test of Collins, Koehn and Kučerová 2005, which Li
    2018 and Gu 2019 use.

    A sentence of `other` is better where it raises the baseline's BLEU when it takes the place of
    the baseline's, and worse where it lowers it. p is the chance of so uneven a split of the
    sentences that differ, were both as likely.
    """
    from sacrebleu.metrics import BLEU
    from scipy.stats import binomtest
    metric = BLEU(lowercase=lowercase, force=True)

    def counted(lines):                               # [sentences, 10]: what BLEU is made of
        rows = []
        for line, reference in zip(lines, references):
            score = metric.corpus_score([line], [[reference]])
            rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
        return np.array(rows)

    def bleu_of(sums):                                   # the statistics of sentences add up
        sums = sums.tolist()
        return BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9]).score

    theirs = counted(baseline)
    ours = counted(other)
    whole = theirs.sum(0)
    changed = [bleu_of(whole - old + new) for old, new in zip(theirs, ours)]
    changes = np.array(changed) - bleu_of(whole)
    better = int((changes > 0).sum())
    worse = int((changes < 0).sum())
    if better + worse == 0:
        return 0, 0, 1.0
    return better, worse, binomtest(better, better + worse).pvalue
