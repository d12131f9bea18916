"""The graded tests, by session: see grade.py for `task`, exercises/snapshots/ for what the checks
should return."""
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention import Heads
from capsule_transformer import CapsuleRouting
from exercises.grade import Wrong, small, task
from toy import Tree, corpus

SOURCE = torch.tensor([[True, True, True, True], [True, True, False, False]])      # masks [B, L]
TARGET = torch.tensor([[True, True, True, False], [True, False, False, False]])


def settled(module: nn.Module) -> nn.Module:
    """The module in float64, with parameters that are neither 0 nor 1 nor random."""
    for i, parameter in enumerate(module.double().parameters()):
        numbers = torch.arange(parameter.numel()) + i
        parameter.data = numbers.double().cos().view(parameter.shape)
    return module


def refuses(function, *args, claim: str, **settings) -> None:
    """Raises Wrong unless the function raises ValueError."""
    try:
        function(*args, **settings)
    except ValueError:
        return
    except NotImplementedError:
        raise
    except Exception as error:
        raise Wrong(f"{claim} should raise ValueError, not {type(error).__name__}") from error
    raise Wrong(f"{claim} should raise ValueError")


def entropy(C: Tensor) -> Tensor:
    """Of the rows of a coupling, on average."""
    return -torch.special.xlogy(C, C).sum(-1).mean()


def planted(noise: Tensor) -> Tensor:
    """Votes [4, 2, 5]: parts 0 and 1 agree about whole 0, parts 2 and 3 about whole 1."""
    ways = 3 * torch.eye(5, dtype=torch.float64)
    first = torch.stack([ways[0], ways[0], ways[3], ways[4]])
    second = torch.stack([ways[1], ways[2], ways[0], ways[0]])
    return torch.stack([first, second], dim=1) + 0.01 * noise


class Work(TorchFunctionMode):
    """Counts, in a block: calls of torch, the numbers in their results, the largest result."""
    calls = 0
    numbers = 0
    largest = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else [result]
        sizes = [x.numel() for x in results if isinstance(x, Tensor)]
        self.calls += 1
        self.numbers += sum(sizes)
        self.largest = max(self.largest, *sizes, 0)
        return result


def linear_in_heads(D) -> None:
    """Raises Wrong where D of sixteen times the heads is much more than sixteen times the work."""
    numbers = []
    for H in (4, 64):
        with Work() as work:
            D(torch.full((H, 2, 2), 0.5))
        numbers.append(work.numbers)
    growth = numbers[1] / numbers[0]
    if growth > 24:
        raise Wrong(f"sixteen times the heads should take some sixteen times the work, not "
                    f"{growth:.0f} times: find a form without pairs of heads")


# ---- Session 1: heads

@task("heads", x=(2, 3, 12))
def test_li2019_eq1_heads(module, x):
    Q, K, V = module.MultiHeadAttention(4, 2).split(x)
    return {"Q": Q, "K": K, "V": V}


@task("attention", Q=(2, 2, 3, 3), K=(2, 2, 4, 3), V=(2, 2, 4, 3))
def test_li2019_eq2_attention(module, Q, K, V):
    attention = module.MultiHeadAttention(6, 2)
    A, O = attention.attend_explicitly(Q, K, V, None, False, None)
    return {"A": A, "O": O}


@task("attention", Q=(2, 2, 3, 3), K=(2, 2, 4, 3), V=(2, 2, 4, 3))
def test_li2019_eq2_weights_are_shares(module, Q, K, V):
    attention = module.MultiHeadAttention(6, 2)
    A, O = attention.attend_explicitly(Q, K, V, None, False, None)
    small(A.sum(-1) - 1, "the weights of a query sum to 1")
    order = torch.tensor([2, 0, 3, 1])
    _, other = attention.attend_explicitly(Q, K[:, :, order], V[:, :, order], None, False, None)
    small(O - other, "the order of the keys changes no output")


@task("causal mask")
def test_vaswani_3_2_3_causal_mask(module):
    return {"the mask of four positions": module.causal_mask(4, 4),
            "the mask of the last two of five": module.causal_mask(2, 5)}


@task("masked attention", Q=(2, 2, 4, 3), K=(2, 2, 4, 3), V=(2, 2, 4, 3))
def test_vaswani_3_2_3_masked_attention(module, Q, K, V):
    attention = module.MultiHeadAttention(6, 2)
    mask = SOURCE[:, None, None, :]
    A, O = attention.attend_explicitly(Q, K, V, mask, False, None)
    A_causal, O_causal = attention.attend_explicitly(Q, K, V, mask, True, None)
    _, newest = attention.attend_explicitly(Q[:, :, 2:], K, V, None, True, None)
    return {"A": A, "O": O, "A, causal": A_causal, "O, causal": O_causal,
            "O of the newest two queries, causal": newest}


@task("masked attention", Q=(1, 2, 4, 3), K=(1, 2, 4, 3), V=(1, 2, 4, 3))
def test_vaswani_3_2_3_the_future_is_unseen(module, Q, K, V):
    attention = module.MultiHeadAttention(6, 2)
    A, _ = attention.attend_explicitly(Q, K, V, None, True, None)
    small(A.triu(1), "no query attends to a later position")


@task("concatenation", outputs=(2, 3, 4, 2))
def test_li2019_eq3_concatenation(module, outputs):
    return {"O_hat": module.concatenate(outputs)}


@task("positions")
def test_vaswani_3_5_positions(module):
    return {"PE": module.positions(5, 6, dtype=torch.float64),
            "PE from position 7": module.positions(3, 4, start=7, dtype=torch.float64)}


@task("positions")
def test_vaswani_3_5_products_tell_the_distance(module):
    PE = module.positions(9, 8, dtype=torch.float64)
    products = PE @ PE.T
    for distance in (0, 1, 5):
        diagonal = products.diagonal(distance)
        small(diagonal - diagonal[0], "PE(p) . PE(p + k) depends on k alone")


# ---- Session 2: disagreement

@task("cosines, double sum", V=(2, 3, 4, 5))
def test_li2018_eq1_eq3_cosines(module, V):
    return {"D_subspace": module.subspace_disagreement(V),
            "D_subspace with a mask": module.subspace_disagreement(V, TARGET),
            "D_output": module.output_disagreement(V, SOURCE)}


@task("cosines, double sum", v=(5,))
def test_li2018_eq1_eq3_three_cases(module, v):
    alike = v.expand(4, 2, 5)
    small(module.output_disagreement(alike) + 1, "D = -1 for heads that are alike")
    orthogonal = torch.eye(4).double().unsqueeze(1)
    small(module.output_disagreement(orthogonal) + 1 / 4, "D = -1/H for orthogonal heads")
    opposite = torch.stack([v, -v, 2 * v, -3 * v]).unsqueeze(1)
    small(module.output_disagreement(opposite), "D = 0 for heads that cancel, of any length")


@task("cosines in O(H)")
def test_li2018_eq1_eq3_linear_in_heads(module):
    linear_in_heads(module.subspace_disagreement)


@task("positions, double sum", E=(2, 3, 4, 5))
def test_li2018_eq2_positions(module, E):
    A = E.softmax(-1)
    return {"D_position": module.position_disagreement(A),
            "D_position with a mask": module.position_disagreement(A, TARGET),
            "D_position, reduce=sum": module.position_disagreement(A, reduce="sum"),
            "D_position, reduce=sum, with a mask": module.position_disagreement(A, TARGET, "sum")}


@task("positions, double sum")
def test_li2018_eq2_two_cases(module):
    one_hot = torch.eye(4).double().unsqueeze(1)                             # [H, 1, L_k]
    small(module.position_disagreement(one_hot) + 1 / 4, "D = -1/H: every head at its own word")
    alike = one_hot[:1].expand(4, 1, 4)
    small(module.position_disagreement(alike) + 1, "D = -1: all heads at one word")


@task("positions in O(H)")
def test_li2018_eq2_linear_in_heads(module):
    linear_in_heads(module.position_disagreement)


@task("squared differences", E=(2, 3, 4, 5))
def test_li2018_footnote2_squared_differences(module, E):
    A = E.softmax(-1)
    return {"D": module.squared_position_disagreement(A),
            "D with a mask": module.squared_position_disagreement(A, TARGET),
            "D, reduce=sum": module.squared_position_disagreement(A, reduce="sum")}


@task("squared differences", E=(2, 1, 4, 5))
def test_li2018_footnote2_heads_alike(module, E):
    A = E.softmax(-1).expand(2, 3, 4, 5)
    small(module.squared_position_disagreement(A), "D = 0 for heads that attend alike")


@task("squared cosines", V=(2, 3, 4, 5))
def test_released_squared_cosines(module, V):
    return {"D": module.squared_subspace_disagreement(V),
            "D with a mask": module.squared_output_disagreement(V, TARGET)}


@task("squared cosines", v=(5,))
def test_released_squared_cosines_of_opposites(module, v):
    opposite = torch.stack([v, -v]).unsqueeze(1)
    small(module.squared_output_disagreement(opposite) + 1, "D = -1 for opposite heads, too")


@task("D of a layer", V=(2, 3, 4, 5), E=(2, 3, 4, 4), O=(2, 3, 4, 5))
def test_li2018_3_1_layer(module, V, E, O):
    heads = Heads(V, E.softmax(-1), O)
    found = {}
    for component in ("enc", "cross", "dec"):
        for kind in ("subspace", "position", "output"):
            D = module.layer_disagreement(kind, component, heads, SOURCE, TARGET)
            found[f"D_{kind} of {component}"] = D
    return found


@task("D of a layer", V=(2, 3, 4, 5))
def test_li2018_3_1_layer_without_weights(module, V):
    refuses(module.layer_disagreement, "position", "enc", Heads(V, None, V), SOURCE,
            claim="D_position of Heads without weights")


@task("D of a model", V=(3, 2, 3, 4, 5), E=(3, 2, 3, 4, 4))
def test_li2018_3_1_model(module, V, E):
    layers = [Heads(v, e.softmax(-1), v.flip(-1)) for v, e in zip(V, E)]
    heads = {"enc": layers, "cross": layers[::-1], "dec": layers}
    weights = {"enc": 1.0, "cross": 0.5, "dec": 0.25}
    found = {}
    for name, places, kinds in (
            ("D, a layer", {"enc": {1}}, ("output",)),
            ("D, all layers", {"enc": {0, 1, 2}, "dec": {2, 0}}, ("subspace",)),
            ("D, two kinds", {"cross": {0, 2}, "dec": {1}}, ("position", "output"))):
        found[name] = module.model_disagreement(heads, places, weights, kinds, SOURCE, TARGET)
    nothing = module.model_disagreement(heads, {}, {}, (), SOURCE, TARGET)
    small(nothing, "D = 0 where nothing is chosen")
    return found


# ---- Session 3: dynamic routing

@task("squash", s=(4, 3))
def test_li2019_eq8_squash(module, s):
    return {"squash(s)": module.squash(s), "squash(s) along the first axis": module.squash(s, 0)}


@task("squash", s=(6, 3))
def test_li2019_eq8_length_and_direction(module, s):
    long = module.squash(100 * s)
    length = long.norm(dim=-1)
    small((length - 1).clamp(min=0), "no vector is longer than 1")
    small(long / length.unsqueeze(-1) - s / s.norm(dim=-1, keepdim=True), "the direction stays")
    zero = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    module.squash(zero).sum().backward()
    small(zero.grad, "the gradient at s = 0 is 0", 1e-6)


@task("output capsules", V=(2, 4, 3, 2), B=(2, 4, 3))
def test_li2019_eq7_gu_eq8_eq9_output_capsules(module, V, B):
    omega, C = module.combine(V, B)
    omega_gu, C_gu = module.combine(V, B, normalize=False)
    return {"Omega": omega, "C": C, "Omega, normalize=False": omega_gu, "C, normalize=False": C_gu}


@task("output capsules", V=(2, 4, 3, 2), B=(2, 4, 3))
def test_li2019_eq7_absent_capsules(module, V, B):
    mask = torch.tensor([[True, True, True], [True, False, True]])
    omega, C = module.combine(V, B, False, mask)
    small(C.sum(-1) - 1, "the rows of C sum to 1")
    small(C[1, :, 1], "an absent capsule gets no coupling")
    small(omega[1, 1], "an absent capsule comes out as 0")
    return {"Omega": omega, "C": C}


@task("capsules nobody chooses", V=(4, 3, 2), B=(4, 3))
def test_li2019_eq7_where_the_sum_underflows(module, V, B):
    unchosen = torch.tensor([-800.0, 0, 0]).double()
    return {"Omega": module.combine(V, B + unchosen)[0]}


@task("agreement", V=(2, 4, 3, 2), omega=(2, 3, 2))
def test_li2019_alg1_gu_eq11_agreement(module, V, omega):
    return {"the agreement": module.agreement(V, omega)}


@task("dynamic routing", V=(2, 4, 3, 2), B=(2, 4, 3))
def test_li2019_alg1_dynamic_routing(module, V, B):
    mask = torch.tensor([[True, True, True], [True, False, True]])
    found = {}
    for name, settings in (
            ("iterations=1", {"iterations": 1}),
            ("iterations=3", {}),
            ("normalize=False", {"normalize": False}),
            ("with start", {"start": B}),
            ("with mask", {"mask": mask})):
        omega, C, logits = module.dynamic_routing(V, **settings)
        found |= {f"Omega, {name}": omega, f"C, {name}": C, f"B, {name}": logits}
    return found


@task("dynamic routing", noise=(4, 2, 5))
def test_li2019_alg1_coupling_sharpens(module, noise):
    V = planted(noise)
    entropies = [entropy(module.dynamic_routing(V, T).coupling) for T in (1, 2, 3, 5)]
    for earlier, later in zip(entropies, entropies[1:]):
        small((later - earlier).clamp(min=0), "where parts agree the coupling's entropy falls")


@task("dynamic routing", V=(4, 3, 2))
def test_li2019_alg1_no_iteration(module, V):
    refuses(module.dynamic_routing, V, 0, claim="iterations=0")


# ---- Session 4: EM routing

@task("M-step, mean and deviation", V=(2, 4, 3, 2), B=(2, 4, 3))
def test_li2019_eq10_eq11_mean_and_deviation(module, V, B):
    mu, log_sigma, log_A = module.m_step(V, B.log_softmax(-1))
    small(log_A, "log A = 0 without beta")
    mu_one, log_sigma_one, _ = module.m_step(V[:, :1], B[:, :1].log_softmax(-1), eps=0.01)
    return {"mu": mu, "log sigma": log_sigma, "mu of one vote": mu_one,
            "log sigma of one vote": log_sigma_one}


@task("M-step, mean and deviation", V=(4, 3, 2))
def test_li2019_eq10_mean_moves_with_the_votes(module, V):
    log_C = torch.full((4, 3), 1 / 3).double().log()
    mu, log_sigma, _ = module.m_step(V, log_C)
    moved, same, _ = module.m_step(V + 5, log_C)
    small(moved - mu - 5, "votes moved by 5 move mu by 5")
    small(same - log_sigma, "and leave sigma as it is", 1e-6)


@task("M-step, activations", V=(2, 4, 3, 2), B=(2, 4, 3), beta_a=(3,), beta_mu=(3,))
def test_li2019_alg2_gu_eq13_activations(module, V, B, beta_a, beta_mu):
    log_C = B.log_softmax(-1)
    return {"log A": module.m_step(V, log_C, beta_a, beta_mu)[2],
            "log A, lambda_t=0.01": module.m_step(V, log_C, beta_a, beta_mu, 0.01)[2]}


@task("E-step", V=(2, 4, 3, 2), mu=(2, 3, 2), log_sigma=(2, 3, 2), a=(2, 3))
def test_li2019_eq12_coupling(module, V, mu, log_sigma, a):
    log_C = module.e_step(V, mu, log_sigma, nn.functional.logsigmoid(a))
    return {"log C": log_C}


@task("E-step, far votes", V=(4, 3, 2), mu=(3, 2))
def test_li2019_eq12_far_votes(module, V, mu):
    zero = torch.zeros(3, 2).double()
    for size in (1, 1000):
        C = module.e_step(size * V, mu, zero, zero[:, 0]).exp()
        small(C.sum(-1) - 1, f"the rows of C sum to 1, for votes of size {size}")


@task("E-step, sum of densities", V=(2, 4, 3, 2), mu=(2, 3, 2), log_sigma=(2, 3, 2), a=(2, 3))
def test_li2019_alg2_sum_of_densities(module, V, mu, log_sigma, a):
    return {"log C": module.e_step(V, mu, log_sigma, nn.functional.logsigmoid(a), "sum")}


@task("E-step, sum of densities", V=(4, 3, 2), mu=(3, 2))
def test_li2019_alg2_another_density(module, V, mu):
    refuses(module.e_step, V, mu, mu, mu[:, 0], "mean", claim='density="mean"')


@task("EM routing", V=(2, 4, 3, 2), beta_a=(3,), beta_mu=(3,), B=(4, 3))
def test_li2019_alg2_eq9_em_routing(module, V, beta_a, beta_mu, B):
    found = {}
    for name, betas, settings in (
            ("iterations=1", (beta_a, beta_mu), {"iterations": 1}),
            ("iterations=3", (beta_a, beta_mu), {}),
            ("without beta", (), {}),
            ("scale_by_activation=False", (beta_a, beta_mu), {"scale_by_activation": False}),
            ("density=sum, schedule=released", (beta_a, beta_mu),
             {"density": "sum", "schedule": "released"}),
            ("with start", (), {"start": B.log_softmax(-1)})):
        omega, A, C = module.em_routing(V, *betas, **settings)
        found |= {f"Omega, {name}": omega, f"A, {name}": A, f"C, {name}": C}
    return found


@task("EM routing, last gradient", V=(2, 4, 3, 2))
def test_li2019_alg2_gradient_of_the_last_m_step(module, V):
    return {"Omega": module.em_routing(V, gradient="last").capsules}


@task("EM routing", noise=(4, 2, 5))
def test_li2019_alg2_planted_clusters(module, noise):
    C = module.em_routing(planted(noise), eps=1e-2).coupling
    small(1 - C[:2, 0], "parts that agree about whole 0 choose it", 0.01)
    small(1 - C[2:, 1], "parts that agree about whole 1 choose it", 0.01)


@task("EM routing", V=(4, 3, 2), beta=(3,))
def test_li2019_alg2_refusals(module, V, beta):
    refuses(module.em_routing, V, iterations=0, claim="iterations=0")
    refuses(module.em_routing, V, beta, None, claim="beta_a without beta_mu")
    refuses(module.em_routing, V, gradient="first", claim='gradient="first"')


# ---- Session 5: aggregation

@task("Li's votes", outputs=(2, 2, 3, 2))
def test_li2019_eq5_eq6_votes(module, outputs):
    aggregation = settled(module.RoutingAggregation(4, 2, capsules=2))
    return {"V": aggregation.cast_votes(outputs)}


@task("Gu's votes", outputs=(2, 2, 3, 4))
def test_gu_eq3_votes(module, outputs):
    aggregation = settled(module.CapsuleAggregation(8, 2, capsules=4))
    return {"u_hat": aggregation.cast_votes(outputs)}


@task("Gu's pose votes", outputs=(1, 2, 2, 8))
def test_gu_eq3_pose_votes(module, outputs):
    aggregation = settled(module.CapsuleAggregation(16, 2, capsules=4, routing="em"))
    return {"u_hat": aggregation.cast_votes(outputs)}


@task("Gu's aggregation", outputs=(2, 2, 3, 4))
def test_gu_eq4_to_eq7_aggregation(module, outputs):
    found = {}
    for routing in ("dynamic", "em"):
        aggregation = settled(module.CapsuleAggregation(8, 2, 4, routing, iterations=2))
        found[f"O, {routing} routing"] = aggregation(outputs)
    return found


# ---- Session 6: the Capsule-Transformer

@task("routed attention", Q=(2, 2, 4, 3), K=(2, 2, 4, 3), V=(2, 2, 4, 3))
def test_duan_3_2_routed_attention(module, Q, K, V):
    attention = module.MultiHeadAttention(6, 2, capsule=settled(CapsuleRouting(2)))
    A, O = attention.attend_explicitly(Q, K, V, SOURCE[:, None, None, :], False, None)
    return {"A": A, "O": O}


@task("vertical routing", E=(2, 3, 4, 4), W=(3, 3), b=(3,))
def test_duan_alg2_eq8_to_eq11_vertical(module, E, W, b):
    mask = (SOURCE[:, :, None] & SOURCE[:, None, :]).unsqueeze(1)
    return {"Omega": module.vertical_routing(E, W, b),
            "Omega, iterations=1": module.vertical_routing(E, W, b, 1),
            "Omega with padding": module.vertical_routing(E, W, b, mask=mask)}


@task("vertical routing", E=(3, 4, 4), W=(3, 3), b=(3,))
def test_duan_eq10_heads_share(module, E, W, b):
    omega = module.vertical_routing(E, W, b).sum(0)
    other = module.vertical_routing(E, 5 * W, -b).sum(0)
    small(omega - other, "W and b change how the heads share, not what they share")


@task("horizontal, one token", E=(2, 3, 4, 4))
def test_duan_alg3_eq12_to_eq14_one_token(module, E):
    return {"Omega of the last token": module.horizontal_routing(E, last=1),
            "the same, iterations=1": module.horizontal_routing(E, 1, last=1),
            "Omega of a single token": module.horizontal_routing(E[:, :, :1, :1], last=1)}


@task("horizontal, one token", E=(3, 4, 4))
def test_duan_alg3_no_iteration(module, E):
    refuses(module.horizontal_routing, E, 0, claim="iterations=0")


@task("horizontal, all at once", E=(2, 3, 4, 4))
def test_duan_alg3_eq12_to_eq14_horizontal(module, E):
    mask = (SOURCE[:, :, None] & SOURCE[:, None, :]).unsqueeze(1)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    return {"Omega": module.horizontal_routing(E),
            "Omega with padding": module.horizontal_routing(E, mask=mask),
            "Omega with the forward mask": module.horizontal_routing(E, 2, causal),
            "Omega of the last two tokens": module.horizontal_routing(E, last=2)}


@task("horizontal, all at once", E=(2, 5, 5), row=(2, 5), column=(2, 5))
def test_duan_3_4_3_forward_mask(module, E, row, column):
    other = E.clone()
    other[:, 4] = row
    other[:, :, 4] = column
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    change = module.horizontal_routing(E, mask=causal) - module.horizontal_routing(
        other, mask=causal)
    small(change[:, :4], "with the forward mask a new token changes nothing before it")


@task("horizontal, all at once")
def test_duan_alg3_all_tokens_at_once(module):
    calls = []
    for L in (4, 12):
        with Work() as work:
            module.horizontal_routing(torch.ones(2, L, L))
        calls.append(work.calls)
    if calls[0] != calls[1]:
        raise Wrong(f"twelve tokens should take as many calls of torch as four, not "
                    f"{calls[1]} where these take {calls[0]}: route all at once")


@task("masks of the routing", E=(2, 3, 4, 4))
def test_duan_3_2_capsule_routing(module, E):
    padding = SOURCE[:, None, None, :]
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    encoder = settled(module.CapsuleRouting(3))
    decoder = module.CapsuleRouting(3, ("horizontal",), 2)
    return {"E'": encoder(E), "E' with padding": encoder(E, padding),
            "E' of a decoder": decoder(E, causal),
            "E' of a decoder's last token": decoder(E, causal, 1)}


@task("masks of the routing", E=(3, 4, 4))
def test_duan_3_4_3_no_vertical_routing_step_by_step(module, E):
    refuses(module.CapsuleRouting(3), E, last=1, claim="last=1 with a vertical part")


# ---- Session 7: training, search and tasks

@task("layer", x=(2, 4, 4), source=(2, 4, 4))
def test_vaswani_3_1_layer(module, x, source):
    memory = module.Memory(source, SOURCE, [])
    found = {}
    for norm in ("pre", "post"):
        config = module.TransformerConfig(5, d_model=4, heads=2, layers=1, d_ff=6, dropout=0.0,
                                          norm=norm)
        encoder = settled(module.Layer(config, 0, decoder=False))
        decoder = settled(module.Layer(config, 0, decoder=True))
        found[f"x of an encoder, {norm}-norm"] = encoder(x, SOURCE[:, None, None, :])[0]
        y, own, cross = decoder(x, None, memory)
        found |= {f"x of a decoder, {norm}-norm": y, f"its self-attention, {norm}-norm": own[2],
                  f"its cross-attention, {norm}-norm": cross[2]}
    return found


@task("learning rate")
def test_vaswani_5_3_learning_rate(module):
    found = {}
    for decay in ("sqrt", "linear"):
        settings = SimpleNamespace(lr=2.0, warmup=4, steps=12, decay=decay)
        rates = [module.learning_rate(step, 512, settings) for step in range(1, 13)]
        found[f"the rate, {decay}"] = rates
    return found


@task("label smoothing", hidden=(5, 3), weight=(7, 3))
def test_szegedy_7_label_smoothing(module, hidden, weight):
    target = torch.tensor([3, 0, 6, 3, 2])
    loss = module.smoothed_cross_entropy
    return {"the loss": loss(hidden, weight, target),
            "the loss, smoothing=0.1": loss(hidden, weight, target, 0.1)}


@task("smoothing without logits")
def test_szegedy_7_without_all_the_logits(module):
    n, V = 4096, 40
    hidden = torch.ones(n, 4, requires_grad=True)
    weight = torch.ones(V, 4, requires_grad=True)
    kept = {}

    def keep(x):
        kept[x.data_ptr()] = x.numel()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), Work() as work:
        module.smoothed_cross_entropy(hidden, weight, torch.zeros(n, dtype=torch.long), 0.1)
    for what, numbers in (("hold at once", work.largest), ("keep", sum(kept.values()))):
        if numbers > n * V / 2:
            raise Wrong(f"for {n} tokens and {V} words the loss should {what} less than "
                        f"{n * V // 2} numbers, not {numbers}: take some tokens at a time")


@task("step of beam search", logits=(4, 9), log_p=(2, 2))
def test_wu_7_step_of_beam_search(module, logits, log_p):
    log_p = -log_p.abs().cumsum(1).detach()                  # of the live hypotheses, best first
    last = torch.tensor([False, True])
    words, parent, token, ends = module.expand(logits.detach(), log_p, 3, last)
    small(words[1].exp(), "at the limit nothing is continued")
    first = module.expand(logits[:2].detach(), log_p[:, :1], 4, last & False)
    return {"log P": words[0], "the hypothesis each stems from": parent[0],
            "the new token": token[0], "log P of ending": ends,
            "log P of the first step": first[0], "the first token": first[2],
            "log P of ending at once": first[3]}


@task("probing label")
def test_conneau_3_tree_depth(module):
    flat = Tree("NP", ("she",))
    return {"the depth of one label": module.depth(flat),
            "the depth of three": module.depth(Tree("S", (flat, Tree("VP", (flat,))))),
            "the depths of 20 sentences": [module.depth(pair.tree) for pair in corpus(20)]}


@task("seven relations")
def test_li2021_4_3_1_relations(module):
    formulas = ["a", "b", "( not a )", "( a ( and b ) )", "( a ( or b ) )", "( not ( not a ) )",
                "( not ( a ( and b ) ) )", "( a ( and ( not a ) ) )", "( a ( or ( not a ) ) )"]
    found = []
    for left in formulas:
        for right in formulas:
            found.append(f"{left} {module.relation(left, right)} {right}")
    return {"the relation": found}
