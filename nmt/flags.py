"""The flags of the model: help and types of the fields of TransformerConfig."""
from capsule_transformer import PARTS
from disagreement import KINDS
from nmt.command_line import UserError, count, nonnegative, share
from routing_em import GRADIENTS
from transformer import AGGREGATIONS

MODEL = {
    "d_model": dict(help="width of the model", type=count),
    "heads": dict(help="attention heads", type=count),
    "layers": dict(help="layers of the encoder, and of the decoder", type=count),
    "d_ff": dict(help="width of the feed-forward layers", type=count),
    "dropout": dict(help="dropout rate", type=share),
    "norm": dict(help="layer normalization before or after each sub-layer",
                 choices=("pre", "post")),
    "attention_dropout": dict(help="dropout rate of the attention weights (default: --dropout)",
                              type=share),
    "ffn_dropout": dict(help="dropout rate of the feed-forward layers (default: --dropout)",
                        type=share),
    "agg": dict(help="aggregation of the heads: dynamic, em: Li 2019; gu-*: Gu 2019",
                choices=AGGREGATIONS),
    "agg_at": dict(help="where, such as enc:1-2 cross dec:4,6 (default: the lowest two encoder "
                        "layers; gu-*: the last decoder layer)", metavar="PLACE"),
    "capsules": dict(help="number of output capsules (default: d_model for dynamic and em, the "
                          "number of heads for gu-*)", type=count),
    "iterations": dict(help="iterations of every routing", type=count),
    "em_gradient": dict(help="EM: gradient through all iterations or the last one (default: full; "
                             "gu-em: last, a departure, since full costs BLEU there)",
                        choices=GRADIENTS),
    "reg": dict(help="kinds of disagreement to reward (Li 2018)", choices=KINDS, metavar="KIND"),
    "reg_at": dict(help="where, as --agg-at (default: everywhere)", metavar="PLACE"),
    "reg_weight": dict(help="weight lambda of the reward", type=nonnegative),
    "capsule_attention": dict(help="where the logits of self-attention are routed (Duan 2020: enc "
                                   "dec)", metavar="PLACE"),
    "capsule_parts": dict(help="routing in the encoder: vertical, horizontal (default: both)",
                          choices=PARTS, metavar="PART"),
}


def check_used(s, typed) -> None:
    """Raises UserError for an option whose mechanism is off: its result would be taken for the
    mechanism's. s: all flags; typed: the names of those on the command line."""
    em = s.agg in ("em", "gu-em")
    routed = em or s.agg in ("dynamic", "gu-dynamic")
    needs = {
        "agg_at": (s.agg != "linear", "--agg"),
        "capsules": (routed, "a routing"),
        "em_gradient": (em, "--agg em or gu-em"),
        "iterations": (routed or s.capsule_attention, "a routing"),
        "reg": (s.heads > 1, "--heads 2 or more"),
        "reg_at reg_weight": (s.reg, "--reg"),
        "capsule_parts": (any(place.startswith("enc") for place in s.capsule_attention),
                          "--capsule-attention enc")}
    for names, (used, need) in needs.items():
        for name in names.split():
            if name in typed and not used:
                raise UserError(f"--{name.replace('_', '-')} is not used: it needs {need}")
