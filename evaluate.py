"""How a translation model is judged: cross-entropy, BLEU, and how much its heads disagree.

The disagreement scores are those of Li et al. 2018, section 5.5, Tables 4 and 5.
"""
import math
import time

import torch
from torch.utils.data import DataLoader

from data import BatchDataset, batches
from nmt.loss import of_tokens
from transformer import KINDS, PAD, layer_disagreement
from translate import corpus_bleu, translate_lines


@torch.no_grad()
def validate(model, encoded, max_tokens: int, amp: bool = False) -> tuple[float, dict]:
    """Cross-entropy per target token (nats), and D of every kind and layer on a corpus.

    The second is {component: {kind: [D of layer 1, ...]}}, D averaged over the sentences, positions by the literal
    sum of Li 2018 Eq. 2 (the other kinds over the valid positions of a batch).
    """
    device, training = next(model.parameters()).device, model.training
    model.eval()
    nll, count, sentences, D = 0.0, 0, 0, {}
    found = batches(encoded.source_lengths, encoded.target_lengths, max_tokens, shuffle=False)
    for batch in DataLoader(BatchDataset(encoded, found), batch_size=None, generator=torch.Generator()):
        source, target = (x.to(device) for x in batch)
        target_in, target_out = target[:, :-1], target[:, 1:]                # [B, L_t]
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            hidden, heads = model.hidden(source, target_in, need_weights=True)             # [B, L_t, d]
            tokens = int((target_out != PAD).sum())
            nll += of_tokens(hidden, model.output.weight, target_out, PAD, tokens).item()
        count += tokens
        sentences += len(source)
        for component, layers in heads.items():
            for kind in KINDS:
                now = [layer_disagreement(kind, component, h, source != PAD, target_out != PAD, "sum") for h in layers]
                now = torch.stack(now).double() * len(source)                # [layers]
                before = D.setdefault(component, {}).get(kind, 0)
                D[component][kind] = before + now
    model.train(training)
    return nll / count, {c: {k: (sums / sentences).tolist() for k, sums in kinds.items()} for c, kinds in D.items()}


def disagreement_scores(D: dict) -> dict:
    """exp(D) by component and kind: the exponential of the mean over the layers (Li 2018 Table 4), in (0, 1]."""
    return {c: {k: math.exp(sum(layers) / len(layers)) for k, layers in kinds.items()} for c, kinds in D.items()}


def score_table(scores: dict) -> str:
    """exp(D) as a small table, a row per component, a column per kind."""
    rows = [f"  {'':6}" + "".join(f"{kind:>10}" for kind in KINDS)]
    rows += [f"  {c:6}" + "".join(f"{kinds[kind]:10.3f}" for kind in KINDS) for c, kinds in scores.items()]
    return "\n".join(rows)


def bleu(model, tokenizer, pairs, beam: int, lenpen: float, lowercase: bool = False, amp: bool = False):
    """(hypotheses, sacreBLEU, signature, sentences per second) of a model's translation of pairs."""
    started = time.perf_counter()
    with torch.autocast(next(model.parameters()).device.type, torch.bfloat16, enabled=amp):
        hypotheses = translate_lines(model, tokenizer, pairs.source, beam=beam, lenpen=lenpen)
    seconds = time.perf_counter() - started
    return hypotheses, *corpus_bleu(hypotheses, pairs.target, lowercase), len(hypotheses) / seconds
