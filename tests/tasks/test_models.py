"""tasks/models.py: the papers' models at the sizes of the settings, and the names of runs."""
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from torch import nn

import logic
import probe
from tasks.logic_model import LogicModel
from tasks.models import FRAME, encoder_config
from tasks.probe_model import ProbeModel
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


@pytest.mark.parametrize("script, flags, models", [
    (probe, "--protocol li2019 --models baseline simple em uniform", {
        "baseline": ("linear", (), 3, ()), "simple": ("dynamic", (), 3, ("enc",)),
        "em": ("em", (), 3, ("enc",)), "uniform": ("em", (), 3, ("enc",))}),
    *((script, flags, {
        "baseline": ("linear", (), layers, ()), "disagreement": ("linear", ("output",), layers, ()),
        "aggregation": ("em", (), layers, ("enc:1-2",)),
        "combined": ("em", ("output",), layers, ("enc:1-2",))})
      for script, flags, layers in ((probe, "--protocol li2021", 6), (logic, "--full", 2)))])
def test_the_models_of_the_papers(script, flags, models):
    """Li 2019 routes in all layers; the control "uniform" does not route."""
    by_name = configs(script, flags)
    assert {name: (c.agg, c.reg, c.layers, c.agg_at) for name, c in by_name.items()} == models
    for name, config in by_name.items():
        assert config.iterations == (1 if name == "uniform" else 3) and not config.decoder


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
    """§4.2.2 and §4.3.2; for the others see probe.py and logic.py."""
    li2021 = dict(layers=6, d_model=512, heads=8, d_ff=2048, epochs=250, lr=5e-4, batch=64)
    assert li2021.items() <= vars(settings(probe, "--protocol li2021")).items()
    full = dict(layers=2, d_model=256, heads=4, d_ff=512, dropout=0.2, norm="post", epochs=100,
                lr=1e-4, batch=32, decay="none", pairs=500_000, notation="brackets", spread=0,
                learn="pairs")
    assert full.items() <= vars(settings(logic, "--full")).items()
    assert (settings(logic).pairs, settings(logic).data_seed) == (600_000, 0)
    frozen = dict(models=(), epochs=30, lr=1e-3, batch=64)
    assert frozen.items() <= vars(settings(probe, "--encoder x --protocol small")).items()


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


def test_the_sizes_and_the_rate_reach_every_model():
    for config in configs(logic, "--full --layers 6 --heads 2 --norm pre --dropout 0.3").values():
        assert (config.layers, config.d_model, config.heads) == (6, 256, 2)
        assert (config.norm, config.dropout) == ("pre", 0.3)
    config = encoder_config(settings(probe, "--dropout 0.3 --norm post"), "baseline", 9)
    assert config.norm == "post"
    for model in (ProbeModel(config, 3), LogicModel(config), LogicModel(config, reach=40)):
        assert {x.p for x in model.modules() if isinstance(x, nn.Dropout)} == {0.3}
    spread = model.classifier[0].weight.std().item()     # He et al. 2015, for ReLU
    assert spread == pytest.approx((2 / 256) ** 0.5, rel=0.05)


@pytest.mark.parametrize("script", [logic, probe])
def test_a_model_that_cannot_be_built_is_named(script, capsys):
    assert script.main("--heads 1 --models baseline disagreement".split()) == 2
    error = "error: --models disagreement: --reg output is not used: it needs --heads 2 or more"
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("script, words, flag", [
    *((probe, "--encoder x", flag) for flag in ("--models em", "--protocol li2019", "--norm post",
                                                "--layers 2", "--d-ff 2")),
    (probe, "", "--data-dir x"), (logic, "--data x", "--data-seed 1")])
def test_a_flag_that_would_be_ignored_is_refused(script, words, flag, capsys):
    assert script.main(f"{words} {flag}".split()) == 2
    assert f"{flag} is not used: it needs" in capsys.readouterr().err
