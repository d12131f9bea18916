"""Solutions of course/exercises/faults.py. Comments have what each version gives."""
import torch


def name_attention_fault(MultiHeadAttention):
    attention = MultiHeadAttention(8, 2)                                     # d_k = 4
    Q, K = torch.zeros(2, 1, 2, 2, 4)
    Q[..., 0] = 2
    K[..., 0, 0] = torch.tensor(3).log()                 # logits (log 3, 0) of both queries

    def weight(mask, causal):
        """The weight of the first query for the first key."""
        A, _ = attention.attend_explicitly(Q, K, K, mask, causal, None)
        return round(A[0, 0, 0, 0].item(), 4)

    if weight(None, False) != 0.75:
        return "queries" if weight(None, False) == 0.5 else "width"
    if weight(torch.tensor([False, True]), False) != 0:
        return "zero"
    return "right" if weight(None, True) == 1 else "ahead"


def name_disagreement_fault(subspace_disagreement):
    V = torch.full((2, 3, 1), 2.0).double()              # two heads that are alike
    D = subspace_disagreement(V, torch.tensor([True, False, False])).item()
    if D != -1:
        return {-4: "products", -0.5: "pairs"}.get(D, "padding")
    random = torch.randn(2, 2, 3).double().requires_grad_()
    right = torch.autograd.gradcheck(subspace_disagreement, random, raise_exception=False)
    return "right" if right else "gradient"


def name_dynamic_routing_fault(dynamic_routing):
    V = torch.full((3, 2, 1), 2.0)
    omega, C, B = dynamic_routing(V, 2)
    if C[0, 0] != 0.5:
        return "inputs"
    if B[0, 0] == 2 * omega[0, 0]:
        return "newest"
    s = {0.8: "right", 0.9: "sum", 0.6667: "squares"}
    return s[round(omega[0, 0].item(), 4)]


def name_em_routing_fault(em_routing):
    if em_routing(torch.ones(4, 2, 1), iterations=1).capsules[0] != 1:
        return "sum"
    V = torch.tensor([1.0, -1, 1, -1])[:, None, None] * torch.tensor([[1.0], [2]])
    # the means are 0, the deviations 1 and 2, so the densities are e^-0.5 and e^-0.5 / 2
    active = torch.tensor([1e6, -1e6])                   # A = (1, 0)
    if em_routing(V, active, torch.zeros(2), 1).coupling[0, 0] < 0.99:
        return "activation"
    share = em_routing(V, iterations=1).coupling[0, 0].item()
    return {0.6667: "right", 0.5: "factor"}.get(round(share, 4), "variance")


def name_aggregation_fault(CapsuleAggregation):
    aggregation = CapsuleAggregation(8, 2, 4, iterations=1)                  # c = 1/4
    torch.nn.init.eye_(aggregation.ffn[0].weight)
    torch.nn.init.eye_(aggregation.ffn[2].weight)
    torch.nn.init.zeros_(aggregation.weight)
    aggregation.weight.data[1, 0, 1, 0] = 4              # s_1 = (0, 1), v_1 = (0, 0.5)
    u = torch.zeros(1, 2, 1, 4)
    u[0, 1, 0, 0] = 1
    O = aggregation(u).flatten()
    names = {(0.5, 1): "right", (0, 1): "heads", (0.5, 0): "residual", (0, 1.5): "order",
             (0.8, 1): "mean"}
    return names[round(O[1].item(), 4), O[4].item()]


def name_horizontal_routing_fault(horizontal_routing):
    E = torch.tensor([6.0, 0]).expand(3, 2, 2)
    omega = horizontal_routing(E, 1)[0, 0, 0].item()     # the first token's; right: s = 6 / 3
    # s = 2, 6 / 3 + 6 / 3, 0, 6 / 2, 6
    names = {4 / 5: "right", 16 / 17: "later", 0: "earlier", 9 / 10: "positions", 36 / 37: "mean"}
    return {round(length, 4): name for length, name in names.items()}[round(omega, 4)]


def name_label_smoothing_fault(smoothed_cross_entropy):
    hidden = torch.ones(2, 1).double()
    weight = torch.tensor([[3.0], [0], [0]]).double().requires_grad_()       # logits (3, 0, 0)
    loss = smoothed_cross_entropy(hidden, weight, torch.tensor([1, 2]), 0.3, 2)
    if not loss.requires_grad:
        return "gradient"
    # one token: log(e^3 + 2), minus 0.3 / 3 * 3, minus 0.3 / 2 * 3, minus 0
    share = (weight.logsumexp(0) - loss).item()
    return {0.3: "right", 0.45: "others", 0: "lost"}.get(round(share, 4), "padding")
