"""The versions that the functions of faults.py are called with: the project's, and four others."""
import inspect
from types import ModuleType

import faults
import pytest

from attention import MultiHeadAttention
from capsule_aggregation import CapsuleAggregation
from capsule_transformer import horizontal_routing
from disagreement import subspace_disagreement
from nmt.loss import smoothed_cross_entropy
from routing_dynamic import dynamic_routing
from routing_em import em_routing

COSINES = "(V_mean * V_mean).sum(-1)"
TOKENS = "causal_mask(last, L, V.device)"                                    # t <= l
# task: (function, {fault: (text in the function's file, what replaces it)})
TASKS = {
    "attention": (MultiHeadAttention, {
        "width": ("math.sqrt(self.d_k)", "math.sqrt(self.d_k * self.heads)"),
        "queries": ("E.softmax(-1)", "E.softmax(-2)"),
        "zero": ("torch.finfo(E.dtype).min", "0"),
        "ahead": ("tril(keys - queries)", "tril(keys - queries + 1)")}),
    "disagreement": (subspace_disagreement, {
        "products": ("unit(values)", "values"),
        "pairs": (COSINES,
                  f"{COSINES} - (unit(values) / values.shape[-3]).square().sum((-3, -1))"),
        "padding": ("mask.sum().clamp(min=1)", "mask.numel()"),
        "gradient": (COSINES, "(V_mean * V_mean.detach()).sum(-1)")}),
    "dynamic_routing": (dynamic_routing, {
        "inputs": ("return B.log_softmax(-1)", "return B.log_softmax(-2)"),
        "sum": ("log_C.softmax(-2)", "log_C.exp()"),
        "newest": ("B = B + agreement(V, omega)", "B = agreement(V, omega)"),
        "squares": ("length / (1 + length * length)", "1 / (1 + length)")}),
    "em_routing": (em_routing, {
        "sum": ("log_C.softmax(-2)", "log_C.exp()"),
        "variance": ("sigma2.log() / 2", "sigma2.log()"),
        "factor": ("log_divisor = (log_sigma", "log_divisor = (0 * log_sigma"),
        "activation": ("(log_A.unsqueeze(-2) + log_P)", "log_P")}),
    "aggregation": (CapsuleAggregation, {
        "heads": ("self.weight, M)", "self.weight[:1].expand_as(self.weight), M)"),
        "residual": ("return u + self.ffn(v)", "return self.ffn(v)"),
        "order": ("v = v.flatten(-2)", "v = v.transpose(-2, -1).flatten(-2)"),
        "mean": ("normalize=False", "normalize=True")}),
    "horizontal_routing": (horizontal_routing, {
        "later": (TOKENS, f"{TOKENS} | True"),
        "earlier": (TOKENS, f"{TOKENS}.tril(L - last - 1)"),
        "positions": ("B.softmax(-3)", "B.softmax(-2)"),
        "mean": ("squash(R @ V)", "squash(R @ V / R.sum(-1, keepdim=True))")}),
    "label_smoothing": (smoothed_cross_entropy, {
        "padding": ("ignore_index=padding", "ignore_index=-100"),
        "others": ("label_smoothing=smoothing",
                   "label_smoothing=smoothing * len(weight) / (len(weight) - 1)"),
        "lost": ("label_smoothing=smoothing", "label_smoothing=0.0"),
        "gradient": ("hidden @ weight.T", "hidden @ weight.T.detach()")}),
}
CASES = [(task, fault) for task, (_, versions) in TASKS.items() for fault in ("right", *versions)]


def build_version(function, text: str = "", faulty: str = ""):
    """The function, or class, from its file with the text replaced."""
    source = inspect.getsource(inspect.getmodule(function))
    if text:
        assert source.count(text) == 1, f"{function.__module__} has not once {text!r}"
        source = source.replace(text, faulty)
    module = ModuleType(function.__module__)
    exec(source, vars(module))
    return getattr(module, function.__name__)


@pytest.mark.parametrize("task, fault", CASES)
def test_the_fault_is_named(task, fault):
    function, versions = TASKS[task]
    version = build_version(function, *versions.get(fault, ()))
    assert getattr(faults, f"name_{task}_fault")(version) == fault
