"""The checks of the tasks, by session.

A check takes a module, the student's or the project's, and inputs. Its results,
{"name, case": tensor, numbers or words}, and their gradients by the inputs must be the same for
both modules. It raises Wrong if a solution does too much work, or names a fault wrongly.
"""
import inspect
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.utils._python_dispatch import TorchDispatchMode

from attention import Heads, MultiHeadAttention
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import CapsuleRouting, horizontal_routing
from disagreement import subspace_disagreement
from nmt.loss import padded_cross_entropy
from routing_dynamic import dynamic_routing
from routing_em import em_routing
from transformer import TransformerConfig

CHECKS = {}                 # name of a task -> its check, shapes of the check's inputs
SOURCE = torch.tensor([[True, True, True, True], [True, True, False, False]])      # masks [B, L]
TARGET = torch.tensor([[True, True, True, False], [True, False, False, False]])
KEYS = SOURCE[:, None, None, :]                                                # [B, 1, 1, L]
CELLS = (SOURCE[:, :, None] & SOURCE[:, None, :]).unsqueeze(1)                 # [B, 1, L, L]
FORWARD = torch.ones(4, 4, dtype=torch.bool).tril()                            # [L, L]
CAPSULES = torch.tensor([[True, True, True], [True, False, True]])             # [B, N]


class Wrong(AssertionError):
    """The error of a solution that does not compute what the equation says."""


def check(name: str, **shapes):
    """Registers the check of a task. Its inputs are tensors of these shapes in float64."""
    def register(function):
        CHECKS[name] = (function, shapes)
        return function
    return register


def name_parts(names: str, values, case: str = "") -> dict:
    """Returns {"A": ..., "O": ...} for the names "A O", or {"A, case": ...} with a case."""
    names = names.split()
    count = 0 if values is None else len(values)
    if count != len(names):
        raise Wrong(f"number of results is {count}, expected {len(names)}: {', '.join(names)}")
    ending = f", {case}" if case else ""
    return {name + ending: value for name, value in zip(names, values)}


def error_of(function, *arguments, **settings) -> str:
    """Returns "ValueError" if a call raises it, otherwise "no error"."""
    try:
        function(*arguments, **settings)
    except ValueError:
        return "ValueError"
    return "no error"


def promotes(function, x: Tensor) -> bool:
    """Whether a function computes bfloat16 inputs in float32. Compares its first result or row."""
    half = x.detach().bfloat16()
    result = function(half)[0]
    return result.dtype == torch.float32 and result.allclose(function(half.float())[0], atol=1e-5)


def with_zero(x: Tensor) -> Tensor:
    """x [B, H, ...] with zeros as the first head."""
    return x.detach().index_fill(1, torch.tensor([0]), 0)


def fill_parameters(module: nn.Module) -> nn.Module:
    """Returns the module in float64 with parameters cos 0, cos 1, cos 2, ..."""
    for i, parameter in enumerate(module.double().parameters()):
        numbers = torch.arange(parameter.numel()) + i
        parameter.data = numbers.double().cos().view(parameter.shape)
    return module


class Work(TorchDispatchMode):
    """Counts the calls of torch in a block, also those inside vmap, and the numbers that they read
    and write; a view does neither."""
    calls = 0
    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else [result]
        results = [x for x in results if isinstance(x, Tensor)]
        inputs = [x for x in args if isinstance(x, Tensor)]
        memory = {x.untyped_storage().data_ptr() for x in inputs}
        self.calls += 1
        if not any(x.untyped_storage().data_ptr() in memory for x in results):
            self.numbers += sum(x.numel() for x in results + inputs)
        return result


def linear_in_heads(D) -> None:
    """Raises Wrong if D of 16 times the heads takes more than 24 times the work."""
    numbers = []
    for H in (4, 64):
        with Work() as work:
            D(torch.full((H, 2, 2), 0.5))
        numbers.append(work.numbers)
    growth = numbers[1] / numbers[0]
    if growth > 24:
        raise Wrong(f"16 times the heads take {growth:.0f} times the work: find a form without "
                    "a sum over pairs of heads")


def name_versions(name_fault, function, faults: dict[str, tuple[str, str]]) -> dict:
    """Calls a student's `name_fault` with a function or class of the project, and with each of its
    faulty versions. faults: {name: (text in the file of the function, what replaces it)}. Raises
    Wrong unless every version gets its name. Returns no results."""
    source = inspect.getsource(inspect.getmodule(function))
    wrong = []
    for name, (text, faulty) in {"right": (source, source), **faults}.items():
        if source.count(text) != 1:
            raise LookupError(f"{function.__module__} has {source.count(text)} times {text!r}")
        version = ModuleType(function.__module__)
        exec(compile(source.replace(text, faulty), version.__name__, "exec"), vars(version))
        try:
            answer = name_fault(getattr(version, function.__name__))
        except BaseException as error:
            error.add_note(f"with the version {name!r}")
            raise
        if answer != name:
            wrong.append(f"{name!r} is called {answer!r}")
    if wrong:
        versions = len(faults) + 1
        raise Wrong(f"names {versions - len(wrong)} of {versions} versions; {wrong[0]}")
    return {}


# ---- Session 1: heads

def attend(attention, Q, K, V, mask=None, causal=False, cache=None) -> tuple[Tensor, Tensor]:
    """Returns (A, O)."""
    return attention.attend_explicitly(Q, K, V, mask, causal, cache)


@check("heads", x=(2, 3, 12))
def li2019_eq1(module, x):
    split = module.MultiHeadAttention(4, 2).split
    return name_parts("Q K V", split(x)) | name_parts("K V", split(x[..., :8]), "two projections")


@check("attention", Q=(2, 2, 3, 3), K=(2, 2, 4, 3), V=(2, 2, 4, 3))
def li2019_eq2(module, Q, K, V):
    attention = module.MultiHeadAttention(6, 2, dropout=1.0)
    half = module.MultiHeadAttention(6, 2, dropout=0.5)
    O = attend(half, Q, K, torch.ones_like(V))[1]        # dropout on A^h leaves its columns alike
    return (name_parts("A O", attend(attention.eval(), Q, K, V))
            | name_parts("A O", attend(attention.train(), Q, K, V), "dropout=1.0")
            | {"dropout on A^h": bool((O - O[..., :1]).abs().max() < 1e-9)})


@check("causal mask")
def vaswani_3_2_3_causal_mask(module):
    return {"mask, four positions": module.causal_mask(4, 4),
            "mask, the last two of five positions": module.causal_mask(2, 5)}


@check("masked attention", Q=(2, 2, 4, 3), K=(2, 2, 4, 3), V=(2, 2, 4, 3))
def vaswani_3_2_3_masks(module, Q, K, V):
    attention = module.MultiHeadAttention(6, 2)
    newest = attend(attention, Q[:, :, 2:], K, V, None, True)
    # a mask that is added has other gradients than one that is filled in
    nowhere = attend(attention, Q.detach(), K.detach(), V, KEYS & False)
    return (name_parts("A O", attend(attention, Q, K, V, KEYS), "padding")
            | name_parts("A O", attend(attention, Q, K, V, KEYS, True), "padding and causal")
            | name_parts("A O", newest, "causal and the newest 2 queries")
            | name_parts("A O", nowhere, "every key masked"))


@check("concatenation", outputs=(2, 3, 4, 2))
def li2019_eq3(module, outputs):
    return {"O_hat": module.concatenate(outputs)}


@check("positions")
def vaswani_3_5(module):
    return {"PE": module.positions(9, 8, dtype=torch.float64),
            "PE, start=7": module.positions(3, 4, start=7, dtype=torch.float64),
            "type, dtype=None": str(module.positions(3, 4).dtype)}


@check("attention fault")
def vaswani_3_2_faults(module):
    return name_versions(module.name_attention_fault, MultiHeadAttention, {
        "width": ("math.sqrt(self.d_k)", "math.sqrt(self.d_k * self.heads)"),
        "queries": ("E.softmax(-1)", "E.softmax(-2)"),
        "zero": ("torch.finfo(E.dtype).min", "0"),
        "ahead": ("tril(keys - queries)", "tril(keys - queries + 1)")})


# ---- Session 2: disagreement

@check("cosines, double sum", V=(2, 3, 4, 5))
def li2018_eq1(module, V):
    return {"D_subspace": module.subspace_disagreement(V),
            "D_subspace, a mask": module.subspace_disagreement(V, TARGET),
            "D_subspace, a head of zeros": module.subspace_disagreement(with_zero(V))}


def refuse_eq1(*arguments, **settings):
    raise Wrong("calls subspace_disagreement, which is another task")


@check("cosines in O(H)", O=(2, 3, 4, 5))
def li2018_eq3_linear(module, O):
    with patch.object(module, "subspace_disagreement", refuse_eq1):
        linear_in_heads(module.output_disagreement)
    return {"D_output": module.output_disagreement(O),
            "D_output, a mask": module.output_disagreement(O, SOURCE),
            "D_output, a head of zeros": module.output_disagreement(with_zero(O))}


def position_disagreements(D, E) -> dict:
    A = E.softmax(-1)
    results = {}
    for reduce in ("mean", "sum"):
        results[f"D, reduce={reduce}"] = D(A, reduce=reduce)
        results[f"D, a mask and reduce={reduce}"] = D(A, TARGET, reduce)
    return results


@check("positions, double sum", E=(2, 3, 4, 5))
def li2018_eq2(module, E):
    D = module.position_disagreement
    error = error_of(D, E.softmax(-1), None, "other")
    return position_disagreements(D, E) | {"result, an unknown reduce": error}


@check("positions in O(H)", E=(2, 3, 4, 5))
def li2018_eq2_linear(module, E):
    linear_in_heads(module.position_disagreement)
    return position_disagreements(module.position_disagreement, E)


@check("squared differences", E=(2, 3, 4, 5))
def li2018_footnote2(module, E):
    D = module.squared_position_disagreement
    error = error_of(D, E.softmax(-1), None, "other")
    return position_disagreements(D, E) | {"result, an unknown reduce": error}


@check("squared cosines", V=(2, 3, 4, 5))
def released_squared_cosines(module, V):
    return {"D": module.squared_subspace_disagreement(V),
            "D, a mask": module.squared_output_disagreement(V, TARGET)}


@check("D of a layer", V=(2, 3, 4, 5), E=(2, 3, 4, 4), O=(2, 3, 4, 5))
def li2018_3_1_layer(module, V, E, O):
    D = module.layer_disagreement
    heads = Heads(V, E.softmax(-1), O)
    results = {}
    for component in ("enc", "cross", "dec"):
        for kind in ("subspace", "position", "output"):
            results[f"D_{kind} of {component}"] = D(kind, component, heads, SOURCE, TARGET)
    results["D_position, reduce=sum"] = D("position", "enc", heads, SOURCE, reduce="sum")
    no_weights = Heads(V, None, O)
    results["result, no weights"] = error_of(D, "position", "enc", no_weights, SOURCE)
    return results


@check("D of a model", V=(3, 2, 3, 4, 5), E=(3, 2, 3, 4, 4))
def li2018_3_1_model(module, V, E):
    D = module.model_disagreement
    layers = [Heads(v, e.softmax(-1), v.flip(-1)) for v, e in zip(V, E)]
    heads = {"enc": layers, "cross": layers[::-1], "dec": layers}
    results = {}
    for case, settings in (
            ("one layer", {"reg": ("output",), "reg_at": ("enc:2",)}),
            ("two components", {"reg": ("subspace",), "reg_at": ("enc", "dec:1,3")}),
            ("two kinds", {"reg": ("position", "output"), "reg_at": ("cross:1,3", "dec:2")})):
        config = TransformerConfig(5, d_model=6, heads=3, layers=3, **settings)
        results[f"D, {case}"] = D(config, heads, SOURCE, TARGET)
    results["D, reduce=sum"] = D(config, heads, SOURCE, TARGET, "sum")
    return results


@check("disagreement fault")
def li2018_eq1_faults(module):
    cosines = "(V_mean * V_mean).sum(-1)"
    return name_versions(module.name_disagreement_fault, subspace_disagreement, {
        "products": ("unit(values)", "values"),
        "pairs": (cosines, f"{cosines} - (unit(values) / values.shape[-3]).square().sum((-3, -1))"),
        "padding": ("mask.sum().clamp(min=1)", "mask.numel()"),
        "gradient": (cosines, "(V_mean * V_mean.detach()).sum(-1)")})


# ---- Session 3: dynamic routing

@check("squash", s=(4, 3))
def li2019_eq8(module, s):
    zero = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    results = {"squash(s)": module.squash(s), "squash(s), dim=0": module.squash(s, 0)}
    total = module.squash(zero).sum()
    if total.requires_grad:             # a missing result is the message
        total.backward()
        results["gradient, s = 0"] = zero.grad.clamp(max=1e-6)
    results["half precision computed by at_least_float32"] = promotes(module.squash, s)
    return results


@check("weighted votes", V=(2, 4, 3, 2), B=(2, 4, 3))
def li2019_eq7_gu_eq8(module, V, B):
    log_C = B.log_softmax(-1)
    return {"s": module.weigh_votes(V, log_C),
            "s, normalize=False": module.weigh_votes(V, log_C, normalize=False),
            # masked capsules are 0 whatever log_C
            "s, normalize=False and a mask": module.weigh_votes(V, log_C, False, CAPSULES)}


@check("unchosen capsules", V=(4, 3, 2), B=(4, 3))
def li2019_eq7_underflow(module, V, B):
    log_C = (B + torch.tensor([-800.0, 0, 0]).double()).log_softmax(-1)
    return {"s": module.weigh_votes(V, log_C),
            "s, a mask": module.weigh_votes(V, log_C, mask=CAPSULES[1])}


@check("agreement", V=(2, 4, 3, 2), omega=(2, 3, 2))
def li2019_alg1_gu_eq11(module, V, omega):
    return {"agreement": module.agreement(V, omega)}


@check("dynamic routing", V=(2, 4, 3, 2))
def li2019_alg1(module, V):
    results = {}
    for case, settings in (
            ("iterations=1", {"iterations": 1}),
            ("iterations=3", {}),
            ("normalize=False", {"normalize": False}),
            ("a mask", {"mask": CAPSULES})):
        results |= name_parts("Omega C B", module.dynamic_routing(V, **settings), case)
    results["half precision computed by at_least_float32"] = promotes(module.dynamic_routing, V)
    return results


@check("dynamic routing fault")
def li2019_alg1_eq7_eq8_faults(module):
    return name_versions(module.name_dynamic_routing_fault, dynamic_routing, {
        "inputs": ("return B.log_softmax(-1)", "return B.log_softmax(-2)"),
        "sum": ("log_C.softmax(-2)", "log_C.exp()"),
        "newest": ("B = B + agreement(V, omega)", "B = agreement(V, omega)"),
        "squares": ("length / (1 + length * length)", "1 / (1 + length)")})


# ---- Session 4: EM routing

@check("M-step, mean and deviation", V=(2, 4, 3, 2), B=(2, 4, 3))
def li2019_eq10_eq11(module, V, B):
    one_vote = module.m_step(V[:, :1], B[:, :1].log_softmax(-1), eps=0.01)
    return (name_parts("mu log_sigma log_A", module.m_step(V, B.log_softmax(-1)))
            | {"log_sigma, one vote and eps=0.01": one_vote[1]})


@check("M-step, activations", V=(2, 4, 3, 2), B=(2, 4, 3), beta_a=(3,), beta_mu=(3,))
def li2019_alg2_gu_eq13(module, V, B, beta_a, beta_mu):
    log_C = B.log_softmax(-1)
    _, _, log_A = module.m_step(V, log_C, beta_a, beta_mu)
    _, _, cooled = module.m_step(V, log_C, beta_a, beta_mu, 0.01)
    return {"log A": log_A, "log A, lambda_t=0.01": cooled}


@check("E-step", V=(2, 4, 3, 2), mu=(2, 3, 2), log_sigma=(2, 3, 2), a=(2, 3))
def li2019_eq12(module, V, mu, log_sigma, a):
    return {"log C": module.e_step(V, mu, log_sigma, logsigmoid(a))}


@check("E-step, far votes", V=(4, 3, 2), mu=(3, 2))
def li2019_eq12_far_votes(module, V, mu):
    zero = torch.zeros(3, 2).double()
    return {"log C": module.e_step(1000 * V, mu, zero, zero[:, 0])}


@check("E-step, sum of densities", V=(2, 4, 3, 2), mu=(2, 3, 2), log_sigma=(2, 3, 2), a=(2, 3))
def li2019_alg2_sum_of_densities(module, V, mu, log_sigma, a):
    return {"log C": module.e_step(V, mu, log_sigma, logsigmoid(a), "sum"),
            "result, an unknown density": error_of(module.e_step, V, mu, log_sigma, a, "other")}


@check("EM routing", V=(2, 4, 3, 2), beta_a=(3,), beta_mu=(3,))
def li2019_alg2_eq9(module, V, beta_a, beta_mu):
    results = {}
    betas = {"beta_a": beta_a, "beta_mu": beta_mu}
    for case, settings in (
            ("iterations=1", {"iterations": 1, **betas}),
            ("iterations=3", betas),
            ("without beta", {}),
            ("scale_by_activation=False", {"scale_by_activation": False, **betas}),
            ("density=sum", {"density": "sum", **betas}),
            ("schedule=released", {"schedule": "released", **betas}),
            ("eps=0.1", {"eps": 0.1, **betas})):
        results |= name_parts("Omega A C", module.em_routing(V, **settings), case)
    results["half precision computed by at_least_float32"] = promotes(module.em_routing, V)
    return results


@check("EM routing, last gradient", V=(2, 4, 3, 2))
def li2019_alg2_last_gradient(module, V):
    return {"Omega": module.em_routing(V, gradient="last").capsules}


@check("EM routing fault")
def li2019_alg2_eq10_eq11_eq12_faults(module):
    return name_versions(module.name_em_routing_fault, em_routing, {
        "sum": ("log_C.softmax(-2)", "log_C.exp()"),
        "variance": ("sigma2.log() / 2", "sigma2.log()"),
        "factor": ("log_divisor = (log_sigma", "log_divisor = (0 * log_sigma"),
        "activation": ("(log_A.unsqueeze(-2) + log_P)", "log_P")})


# ---- Session 5: aggregation

@check("Li's votes", outputs=(2, 2, 3, 2))
def li2019_eq5_eq6(module, outputs):
    aggregation = fill_parameters(module.RoutingAggregation(4, 2, capsules=2))
    return {"V": aggregation.cast_votes(outputs)}


@check("Gu's votes", outputs=(2, 2, 3, 4))
def gu_eq3(module, outputs):
    aggregation = fill_parameters(module.CapsuleAggregation(8, 2, capsules=4))
    return {"u_hat": aggregation.cast_votes(outputs)}


@check("Gu's pose votes", outputs=(1, 2, 2, 8))
def gu_eq3_poses(module, outputs):
    aggregation = fill_parameters(module.CapsuleAggregation(16, 2, capsules=4, routing="em"))
    return {"u_hat": aggregation.cast_votes(outputs)}


@check("Gu's aggregation", outputs=(2, 3, 3, 4))     # with two heads EM takes the mean
def gu_eq4_to_eq7(module, outputs):
    results = {}
    for routing in ("dynamic", "em"):
        aggregation = fill_parameters(module.CapsuleAggregation(12, 3, 6, routing, iterations=2))
        results[f"O, {routing} routing"] = aggregation(outputs)
    return results


@check("aggregation fault")
def gu_eq3_eq8_faults(module):
    return name_versions(module.name_aggregation_fault, CapsuleAggregation, {
        "heads": ("self.weight, M)", "self.weight[:1].expand_as(self.weight), M)"),
        "residual": ("return u + self.ffn(v)", "return self.ffn(v)"),
        "order": ("v = v.flatten(-2)", "v = v.transpose(-2, -1).flatten(-2)"),
        "mean": ("normalize=False", "normalize=True")})


# ---- Session 6: the Capsule-Transformer

@check("routed attention", Q=(2, 2, 4, 3), K=(2, 2, 4, 3), V=(2, 2, 4, 3))
def duan_3_2_attention(module, Q, K, V):
    encoder = module.MultiHeadAttention(6, 2, capsule=fill_parameters(CapsuleRouting(2)))
    decoder = module.MultiHeadAttention(6, 2, capsule=CapsuleRouting(2, ("horizontal",)))
    cache = module.Cache()
    attend(decoder, Q[:, :, :3], K[:, :, :3], V[:, :, :3], None, True, cache)
    newest = attend(decoder, Q[:, :, 3:], K, V, None, True, cache)
    return (name_parts("A O", attend(encoder, Q, K, V, KEYS), "padding")
            | name_parts("A O", attend(decoder, Q, K, V, None, True), "causal")
            | name_parts("A O", newest, "causal and a cache"))


@check("vertical routing", E=(2, 3, 4, 4), W=(3, 3), b=(3,))
def duan_alg2_eq8_to_eq11(module, E, W, b):
    return {"Omega": module.vertical_routing(E, W, b),
            "Omega, iterations=1": module.vertical_routing(E, W, b, 1),
            "Omega, padding": module.vertical_routing(E, W, b, mask=CELLS)}


@check("horizontal, one token", E=(2, 3, 4, 4))
def duan_alg3_eq12_to_eq14_one_token(module, E):
    return {"Omega, last=1": module.horizontal_routing(E, last=1),
            "Omega, last=1 and iterations=1": module.horizontal_routing(E, 1, last=1),
            "Omega, a single token": module.horizontal_routing(E[:, :, :1, :1], last=1)}


@check("horizontal, all at once", E=(2, 3, 4, 4))
def duan_alg3_eq12_to_eq14(module, E):
    calls = {}
    for L in (4, 12):
        with Work() as work:
            module.horizontal_routing(torch.ones(2, L, L))
        calls[L] = work.calls
    if calls[4] != calls[12]:
        raise Wrong(f"12 tokens take {calls[12]} calls of torch, 4 tokens take {calls[4]}: route "
                    "all tokens at once, without a loop over them")
    return {"Omega": module.horizontal_routing(E),
            "Omega, padding": module.horizontal_routing(E, mask=CELLS),
            "Omega, the forward mask": module.horizontal_routing(E, 2, FORWARD),
            "Omega, last=2": module.horizontal_routing(E, last=2),
            "Omega, last=2 and padding": module.horizontal_routing(E, mask=CELLS, last=2)}


@check("masks of the routing", E=(2, 3, 4, 4))
def duan_3_2_masks(module, E):
    encoder = fill_parameters(module.CapsuleRouting(3))
    decoder = module.CapsuleRouting(3, ("horizontal",), 2)
    vertical = fill_parameters(module.CapsuleRouting(3, ("vertical",)))
    return {"E'": encoder(E), "E', padding": encoder(E, KEYS), "E', vertical only": vertical(E),
            "E', causal": decoder(E, causal=True),
            "E', causal and padding": decoder(E, KEYS, True),
            "E', causal and last=1": decoder(E, causal=True, last=1),
            "result, vertical and last=1": error_of(encoder, E, last=1)}


@check("horizontal fault")
def duan_alg3_eq12_to_eq14_faults(module):
    tokens = "causal_mask(last, L, V.device)"                                # t <= l
    return name_versions(module.name_horizontal_routing_fault, horizontal_routing, {
        "later": (tokens, f"{tokens} | True"),
        "earlier": (tokens, f"{tokens}.tril(L - last - 1)"),
        "positions": ("B.softmax(-3)", "B.softmax(-2)"),
        "mean": ("squash(R @ V)", "squash(R @ V / R.sum(-1, keepdim=True))")})


# ---- Session 7: training, search and tasks

@check("layer", x=(2, 4, 4), source=(2, 4, 4))
def vaswani_3_1(module, x, source):
    memory = module.Memory(source, SOURCE, [])

    def layer(component, dropout=0.0, **settings):
        config = module.TransformerConfig(5, d_model=4, heads=2, layers=1, d_ff=6, dropout=dropout,
                                          **settings)
        return fill_parameters(module.Layer(config, component, 1))

    results = {}
    for norm in ("pre", "post"):
        y, own, cross = layer("dec", norm=norm)(x, None, memory, need_weights=True)
        results |= {f"x, a {norm}-norm encoder": layer("enc", norm=norm)(x, KEYS)[0],
                    f"x, a {norm}-norm decoder": y,
                    f"A of self-attention, {norm}-norm": own.weights,
                    f"O of self-attention, {norm}-norm": own.outputs,
                    f"A of cross-attention, {norm}-norm": cross.weights,
                    f"O of cross-attention, {norm}-norm": cross.outputs}
    decoder = layer("dec")
    cache = module.Cache()
    steps = [decoder(x[:, t:t + 1], None, memory, cache)[0] for t in range(4)]
    regularized = layer("enc", reg=("position",))
    reads_cross = layer("dec", reg=("position",), reg_at=("cross",))
    return results | {"x, a cache": torch.cat(steps, dim=1),
                      "x, dropout=1.0": layer("dec", dropout=1.0)(x, None, memory)[0],
                      "A of self-attention, reg=position": regularized(x, KEYS)[1].weights,
                      "A of cross-attention, reg=position":
                          reads_cross(x, None, memory)[2].weights}


@check("learning rate")
def vaswani_5_3(module):
    results = {}
    for decay in ("sqrt", "linear"):
        settings = SimpleNamespace(lr=2.0, warmup=4, steps=12, decay=decay)
        for step in range(1, 13):
            results[f"rate, decay={decay} and step={step}"] = module.learning_rate(step, settings)
    return results


@check("label smoothing", hidden=(5, 3), weight=(7, 3))
def szegedy_7(module, hidden, weight):
    target = torch.tensor([3, 0, 6, 3, 2])
    loss = module.smoothed_cross_entropy
    return {"loss": loss(hidden, weight, target),
            "loss, smoothing=0.1": loss(hidden, weight, target, 0.1)}


@check("step of beam search", logits=(4, 9), log_p=(2, 2))
def wu_7(module, logits, log_p):
    logits = logits.detach()
    log_p = -log_p.abs().cumsum(1).detach()                  # the live hypotheses, best first
    last = torch.tensor([False, True])
    words, parent, token, ends = module.expand(logits, log_p, 3, last)
    first = module.expand(logits[:2], log_p[:, :1], 4, last & False)
    likely = logits + 2 * torch.eye(9)[module.EOS].double()
    return {"log P": words, "parent": parent[0], "token": token[0], "log P of ending": ends,
            "log P, one live hypothesis": first[0], "token, one live hypothesis": first[2],
            "log P of ending, one live hypothesis": first[3],
            "log P of ending, likely endings": module.expand(likely, log_p, 3, last & False)[3]}


@check("seven relations")
def li2021_4_3_1(module):
    formulas = ["a", "b", "( not a )", "( a ( and b ) )", "( a ( or b ) )", "( not ( not a ) )",
                "( not ( a ( and b ) ) )", "( a ( and ( not a ) ) )", "( a ( or ( not a ) ) )"]
    relations = []
    for left in formulas:
        for right in formulas:
            relations.append(f"{left} {module.relation(left, right)} {right}")
    tables = torch.tensor([0b1100, 0b1010, 0b1000, 0, -1])
    return {"relation": relations,
            "relation, tensors": module.table_labels(tables[:, None], tables)}


@check("label smoothing fault")
def szegedy_7_faults(module):
    return name_versions(module.name_label_smoothing_fault, padded_cross_entropy, {
        "padding": ("loss - outside.sum", "loss - 0 * outside.sum"),
        "others": ("loss = _Smoothed",
                   "smoothing *= len(weight) / (len(weight) - 1); loss = _Smoothed"),
        "lost": ("loss = -smoothing * ", "loss = 0 * "),
        "gradient": ("d_hidden -= smoothing * ", "d_hidden -= 0 * ")})
