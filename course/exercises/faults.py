"""Name the fault. Each function below is called with one of the project's functions or classes:
either the right one, or one with a fault that is listed in the docstring. The function returns
"right" or the name of the fault.

Call what you are given with inputs for which you know what the right one and each fault would
return. Judge it by its results and gradients only, not by its code. Several inputs may be needed.
Shapes are in the docstrings of the functions in the other files. An example:

    def name_squash_fault(squash):
        # `squash(s)` returns the squashed vector
        # "squares": the squash is ||s|| / (1 + ||s||) * s / ||s||, without the squares
        length = squash(torch.tensor([2.0])).item()     # 4/5, without the squares 2/3
        return "right" if round(length, 4) == 0.8 else "squares"

With a vector of length 1 it would fail, because both versions shorten it to 1/2.
"""
import torch  # noqa: F401


def name_attention_fault(MultiHeadAttention):
    """`MultiHeadAttention(d_model, heads).attend_explicitly(Q, K, V, mask, causal, None)` returns
    (A, O).

    "width": the logits are divided by sqrt(d_model), not by sqrt(d_k)
    "queries": the softmax runs over the queries, not over the keys
    "zero": a masked logit is 0, not the lowest number
    "ahead": with causal, a query also attends to the next position
    """


def name_disagreement_fault(subspace_disagreement):
    """`subspace_disagreement(values, mask)` returns D.

    "products": V^i . V^j is not divided by ||V^i|| ||V^j||
    "pairs": the sum leaves out the pairs i = j, and is divided by H^2
    "padding": the sum over the positions in the mask is divided by the number of all positions
    "gradient": gradients flow into V^i, but not into V^j
    """


def name_dynamic_routing_fault(dynamic_routing):
    """`dynamic_routing(votes, iterations)` returns (Omega, C, B).

    "inputs": the softmax runs over the input capsules, not over the output capsules
    "sum": Eq. 7 does not divide by sum_m C_mn
    "newest": B is the newest agreement, not the sum of all agreements
    "squares": the squash is ||s|| / (1 + ||s||) * s / ||s||, without the squares
    """


def name_em_routing_fault(em_routing):
    """`em_routing(votes, beta_a, beta_mu, iterations)` returns (Omega, A, C).

    "sum": Eq. 10 and 11 do not divide by sum_m C_mn
    "variance": sigma_n is the variance, not its square root
    "factor": the density of the E-step lacks the factor 1 / sigma_n
    "activation": Eq. 12 lacks A_n
    """


def name_aggregation_fault(CapsuleAggregation):
    """`CapsuleAggregation(d_model, heads, capsules, iterations=T)(outputs)` returns O. You can
    set its parameters `weight`, `ffn[0].weight` and `ffn[2].weight`.

    "heads": Eq. 3 takes the first head's W_1j for every head i
    "residual": Eq. 6 lacks u
    "order": Eq. 7 takes the first number of every capsule v_j, then the second of every one, ...
    "mean": Eq. 8 divides by sum_i c_ij, as Li's Eq. 7 does
    """


def name_horizontal_routing_fault(horizontal_routing):
    """`horizontal_routing(logits, iterations)` returns Omega.

    "later": all tokens t are routed to l, not only those with t <= l
    "earlier": only the tokens with t < l are routed to l
    "positions": the softmax of a token t in a head runs over all positions l, not over the heads
    "mean": the sum over t is divided by the sum of its couplings, as in Li's Eq. 7
    """


def name_label_smoothing_fault(smoothed_cross_entropy):
    """`smoothed_cross_entropy(hidden, weight, target, smoothing, padding)` returns the sum of the
    cross-entropy of the logits hidden weight^T over the tokens whose target is not `padding`.

    "padding": a token whose target is `padding` counts as any other
    "others": the share eps is divided among the V - 1 other words
    "lost": eps is 0
    "gradient": gradients flow into hidden, but not into weight
    """
