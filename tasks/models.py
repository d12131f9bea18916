"""The models of the papers, as what they change in the baseline, a Transformer's encoder."""

MODELS = {
    "baseline": {},
    # Li 2021: output disagreement, EM routing in the lowest two layers, both
    "disagreement": {"reg": ("output",)},
    "aggregation": {"agg": "em"},
    "combined": {"agg": "em", "reg": ("output",)},
    # Li 2019: routing in all layers
    "simple": {"agg": "dynamic", "agg_at": ("enc",)},
    "em": {"agg": "em", "agg_at": ("enc",)},
    # the control: aggregation without routing
    "uniform": {"agg": "em", "iterations": 1},
}
