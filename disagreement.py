"""Disagreement regularization, measures of how much the heads differ: Li 2018, Li 2021.

Li et al. 2018, "Multi-Head Attention with Disagreement Regularization", §3.2, Eq. 1-3
(Li et al. 2021, Eq. 5-7, prints the same). Training maximizes `J = likelihood + lambda D` (§3.1);
its D is `model_disagreement`.

Every D averages over the H x H pairs of heads, i = j included, as printed. So D_subspace and
D_output are -1 for identical heads, -1/H for orthogonal ones, and 0 only where the heads' unit
vectors cancel. D_position is below 0: per query it is -1 if all heads put all their weight on the
same key, -1/H if each does on a different key. (Footnote 2's variant is 0 or more.) The double
sums as loops: `cosine_double_sum`, `position_double_sum` in tests/equations/by_hand.py.
"""
import torch
from torch import Tensor

from attention import Heads, check_mask
from routing_dynamic import at_least_float32


def subspace_disagreement(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Disagreement on subspaces, D_subspace: Li 2018 Eq. 1 (Li 2021 Eq. 5).

    The cosine is taken between the heads' value vectors at one position, and averaged over the
    positions. A zero vector (shorter than 1e-12) has cosine 0 with everything.

    values: V^h [..., H, L_k, d_k]; mask: [..., L_k], True where a position counts. Returns a
    scalar in [-1, 0].
    """
    # -(1/H^2) sum_i sum_j V^i . V^j / (||V^i|| ||V^j||)              Li 2018 Eq. 1
    # = -||(1/H) sum_h v^h||^2 with v^h = V^h / ||V^h||, which costs O(H) instead of O(H^2)
    V_mean = unit(values).mean(-3)                                           # [..., L_k, d_k]
    return -masked_mean((V_mean * V_mean).sum(-1), mask)


def position_disagreement(weights: Tensor, mask: Tensor | None = None,
                          reduce: str = "mean") -> Tensor:
    """Disagreement on attended positions, D_position: Li 2018 Eq. 2 (Li 2021 Eq. 6).

    weights: A^h [..., H, L_q, L_k], which an attention returns with need_weights=True; mask:
    [..., L_q], True where a query counts.
    reduce: "mean" sums over the keys and averages over the valid queries (training, as in the
    released code); "sum" is the literal equation, the sum over all cells of a sentence's matrix,
    averaged over the sentences (Tables 4 and 5).
    Returns a scalar <= 0 (>= -1 for "mean"). Raises ValueError for an unknown reduce.
    """
    # -(1/H^2) sum_i sum_j |A^i (*) A^j|, product cell by cell        Li 2018 Eq. 2
    # = -((1/H) sum_h A^h)^2 in every cell, which costs O(H) instead of O(H^2)
    A_mean = at_least_float32(weights).mean(-3)                              # [..., L_q, L_k]
    return -reduce_queries((A_mean * A_mean).sum(-1), mask, reduce)


def output_disagreement(outputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """Disagreement on outputs, D_output: Li 2018 Eq. 3 (Li 2021 Eq. 7); the cosine per position, as
    in `subspace_disagreement`.

    outputs: O^h [..., H, L_q, d_k]; mask: [..., L_q], True where a position counts. Returns a
    scalar in [-1, 0].
    """
    # -(1/H^2) sum_i sum_j O^i . O^j / (||O^i|| ||O^j||)              Li 2018 Eq. 3
    # = -||(1/H) sum_h o^h||^2 with o^h = O^h / ||O^h||, which costs O(H) instead of O(H^2)
    O_mean = unit(outputs).mean(-3)                                          # [..., L_q, d_k]
    return -masked_mean((O_mean * O_mean).sum(-1), mask)


def squared_position_disagreement(weights: Tensor, mask: Tensor | None = None,
                                  reduce: str = "mean") -> Tensor:
    """Disagreement on attended positions by the squared difference: Li 2018 footnote 2 (Li 2021
    footnote 3), in words there: the "squared element-wise subtraction".

    The papers report that it performs worse than Eq. 2's product. A difference grows as the heads
    disagree, so training maximizes D.

    weights, mask, reduce: as in `position_disagreement`. Returns a scalar >= 0 (for "mean" <= 2 -
    2/H), 0 where the heads attend alike. Raises ValueError for an unknown reduce.
    """
    # (1/H^2) sum_i sum_j |A^i - A^j|^2                               Li 2018 footnote 2
    # = (2/H) sum_h (A^h - (1/H) sum_i A^i)^2 in every cell, which costs O(H)
    A = at_least_float32(weights)                                            # [..., H, L_q, L_k]
    rows = 2 * (A - A.mean(-3, keepdim=True)).square().mean(-3).sum(-1)      # [..., L_q]
    return reduce_queries(rows, mask, reduce)


def unit(vectors: Tensor) -> Tensor:
    """Returns the unit vectors x^h / ||x^h|| [..., H, L, d_k]. A vector shorter than 1e-12 stays as
    it is: its cosines are 0."""
    x = at_least_float32(vectors)
    square = (x * x).sum(-1, keepdim=True)                                   # [..., H, L, 1]
    # Dropout can leave very short vectors: if it drops the only position that a head attends to,
    # O^h may shrink to 1e-20 of its length, and the gradient 1 / ||x||^3 would overflow
    return x * torch.rsqrt(torch.where(square > 1e-24, square, 1))           # [..., H, L, d_k]


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of x over the positions where the mask is True."""
    if mask is None:
        return x.mean()
    check_mask(mask, x.shape, "[..., L]")
    mask = mask.expand_as(x)
    return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)


def reduce_queries(rows: Tensor, mask: Tensor | None, reduce: str) -> Tensor:
    """rows [..., L_q], the sums over the keys -> a scalar: the mean over the valid queries, or the
    sum over a sentence's queries and the mean over the sentences."""
    if reduce == "mean":
        return masked_mean(rows, mask)
    if reduce == "sum":
        check_mask(mask, rows.shape, "[..., L]")
        rows = rows if mask is None else torch.where(mask, rows, 0)
        return rows.sum(-1).mean()
    raise ValueError(f"reduce={reduce!r}: choose 'mean' or 'sum'")


# ---- The D of a layer and of a model

MEASURED = ("subspace", "position", "output")            # the papers' three
KINDS = (*MEASURED, "squared-position")


def choose_mask(kind: str, component: str, source_mask: Tensor,
                target_mask: Tensor | None) -> Tensor | None:
    """Returns the mask [B, L] of the positions over which a kind is averaged in a component."""
    # queries of the encoder, and the values that cross-attention reads, are source tokens
    if component == "enc" or (component == "cross" and kind == "subspace"):
        return source_mask
    return target_mask


def layer_disagreement(kind: str, component: str, heads: Heads, source_mask: Tensor,
                       target_mask: Tensor | None = None, reduce: str = "mean") -> Tensor:
    """D of one kind in one layer of a component ("enc", "cross", "dec"): Li 2018 Eq. 1-3.

    heads: the layer's, with weights for the kinds of positions; source_mask [B, L_s], target_mask
    [B, L_t]: True at a token; reduce: see `position_disagreement`. Returns a scalar. Raises
    ValueError for an unknown kind or reduce.
    """
    mask = choose_mask(kind, component, source_mask, target_mask)
    if kind == "subspace":
        return subspace_disagreement(heads.values, mask)
    if kind == "position":
        return position_disagreement(heads.weights, mask, reduce)
    if kind == "output":
        return output_disagreement(heads.outputs, mask)
    if kind == "squared-position":
        return squared_position_disagreement(heads.weights, mask, reduce)
    raise ValueError(f"kind={kind!r}: choose from {', '.join(KINDS)}")


def model_disagreement(config, heads: dict, source_mask: Tensor,
                       target_mask: Tensor | None = None, reduce: str = "mean") -> Tensor:
    """D of the training objective `J = likelihood + lambda D` (Li 2018 §3.1): the mean over the
    chosen layers of a component, summed over the chosen components and kinds.

    If both attentions of the decoder are chosen, each has weight 1/2, as in the released code.
    config: a TransformerConfig; heads: {component: Heads of every layer}; masks: [B, L], True at a
    token. Returns a scalar.
    """
    chosen = [component for component in heads if config.layers_at(config.reg_at, component)]
    both = "cross" in chosen and "dec" in chosen
    total = torch.zeros((), device=source_mask.device)
    for component in chosen:
        weight = 0.5 if both and component != "enc" else 1.0
        layers = [heads[component][i - 1] for i in config.layers_at(config.reg_at, component)]
        for kind in dict.fromkeys(config.reg):           # a kind named twice counts once
            D = [layer_disagreement(kind, component, x, source_mask, target_mask, reduce)
                 for x in layers]
            total = total + weight * torch.stack(D).mean()
    return total
