"""tasks/models.py: the papers' models at the sizes of the settings, and the names of runs."""
import json
from dataclasses import asdict
from pathlib import Path

import pytest

import logic
import probe
from tasks.models import FRAME, encoder_config
from tools.command_line import parse

ROOT = Path(__file__).resolve().parents[2]


def settings(script, text=""):
    """The settings that a command line gives."""
    return parse(script.Settings, text.split(), script.presets)


def configs(script, text=""):
    """The configurations of the chosen models."""
    s = settings(script, text)
    if script is probe:
        return {model: probe.model_config(s, model, 9) for model in s.models}
    return {model: encoder_config(s, model, 9) for model in s.models}


def test_li2019_has_three_layers_that_all_route():
    by_name = configs(probe, "--protocol li2019")
    assert {name: (c.agg, c.layers, c.agg_at) for name, c in by_name.items()} == {
        "baseline": ("linear", 3, ()),
        "simple": ("dynamic", 3, ("enc",)),
        "em": ("em", 3, ("enc",)),
    }
    (config,) = configs(probe, "--models uniform").values()                  # does not route
    assert (config.agg, config.iterations) == ("em", 1)


@pytest.mark.parametrize("script, flags", [(probe, "--protocol li2021"), (logic, "--full")])
def test_the_four_models_of_li2021(script, flags):
    by_name = configs(script, flags)
    assert {name: (c.agg, c.reg) for name, c in by_name.items()} == {
        "baseline": ("linear", ()),
        "disagreement": ("linear", ("output",)),
        "aggregation": ("em", ()),
        "combined": ("em", ("output",)),
    }
    assert by_name["combined"].agg_at == ("enc:1-2",)
    assert not by_name["combined"].decoder


@pytest.mark.parametrize("script, file", [(probe, "probe-toy"), (logic, "logic-bowman")])
def test_the_defaults_are_those_of_the_stored_results(script, file):
    stored = json.loads((ROOT / "results" / f"{file}.json").read_text("utf-8"))["settings"]
    s = settings(script)
    model = asdict(encoder_config(s, "baseline", 9))
    for name in FRAME:
        assert model[name] == stored["models"]["baseline"][name], name
    for name in {"epochs", "lr", "batch", "notation", "decay", "spread", "learn"} & stored.keys():
        assert getattr(s, name) == stored[name], name


def test_the_settings_of_li2021():
    """§4.2.2 and §4.3.2; four heads, see logic.py."""
    s = settings(probe, "--protocol li2021")
    assert (s.layers, s.d_model, s.d_ff, s.epochs, s.lr) == (6, 512, 2048, 250, 5e-4)
    s = settings(logic, "--full")
    assert (s.layers, s.d_model, s.d_ff, s.epochs, s.lr) == (2, 256, 512, 100, 1e-4)
    assert (s.dropout, s.norm, s.heads) == (0.2, "post", 4)
    assert (s.notation, s.learn, s.decay) == ("brackets", "pairs", "none")


def test_data_and_encoders_have_defaults_of_their_own():
    assert settings(probe, "--data senteval").sentences == probe.ALL
    s = settings(probe, "--encoder x --protocol small")
    assert (s.models, s.epochs, s.lr, s.batch) == ((), 30, 1e-3, 64)


def test_sizes_reach_every_model():
    for config in configs(logic, "--full --layers 6 --heads 2 --norm pre --dropout 0.3").values():
        assert (config.layers, config.d_model, config.heads) == (6, 256, 2)
        assert (config.norm, config.dropout) == ("pre", 0.3)


@pytest.mark.parametrize("script, flags, name", [
    (logic, "", "logic"),
    (logic, "--full --heads 2", "logic-full-heads-2"),
    (logic, "--data some/bowman --batch 9", "logic-bowman-batch-9"),
    (probe, "--task Tense --seeds 2", "probe-toy"),
    (probe, "--batch 9 --epochs 2", "probe-toy-epochs-2-batch-9"),
    (probe, "--protocol li2019 --data senteval", "probe-senteval-protocol-li2019"),
    (probe, "--encoder runs/a runs/b --checkpoint last", "probe-frozen-toy-checkpoint-last"),
])
def test_a_run_is_named_after_its_settings(script, flags, name):
    assert settings(script, flags).name == name
