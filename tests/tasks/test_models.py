"""tasks/models.py: a model is chosen and named by its fields that differ, also by those that nobody
listed."""
import json
from dataclasses import dataclass

import pytest

import logic
import nmt.flags
import probe
from nmt.flags import UserError, flag, parse
from tasks import models
from transformer import TransformerConfig


@dataclass
class Winged(TransformerConfig):
    """A configuration with the field of a mechanism that no list knows."""
    wings: int = 0


@pytest.fixture(params=[logic, probe])
def script(request, monkeypatch):
    """A script and its settings with that field."""
    for module in (nmt.flags, models):
        monkeypatch.setattr(module, "TransformerConfig", Winged)

    @dataclass
    class Settings(request.param.Settings):
        wings: int = flag(0, "how many", "model", 0, 9)
    monkeypatch.setattr(request.param, "Settings", Settings)
    return request.param


def filled(script, *flags):
    return script.completed(parse(script.Settings, flags, "script.py", ""))


def test_a_field_that_nobody_knows_makes_a_model_of_ones_own(script):
    settings = filled(script, "--wings", "2")
    assert settings.models == ("own",) and settings.name.endswith("-wings-2")
    assert script.configuration(settings, "own").wings == 2
    assert script.configuration(settings, "baseline").wings == 0
    assert filled(script, "--wings", "0").models != ("own",)
    with pytest.raises(UserError, match="--wings 2 describes the model own"):
        filled(script, "--wings", "2", "--models", "baseline")


def test_such_models_do_not_share_a_run(script, tmp_path, monkeypatch, capsys):
    """In one folder the second is refused: its configuration differs in that field. A field that
    the folder's configuration is too old to have had its default."""
    monkeypatch.setattr(script, "fit", stopped)
    tiny = ["--runs", str(tmp_path), "--device", "cpu", "--d-model", "8", "--heads", "2",
            "--d-ff", "8", "--name", "same"]
    tiny += ["--pairs", "300"] if script is logic else ["--sentences", "20", "--task", "SeLen"]
    for wings, status in ((2, 130), (3, 2)):
        assert script.main([*tiny, "--wings", str(wings)]) == status
    assert "wings was 2, is now 3" in capsys.readouterr().err
    path = tmp_path / "same" / "config.json"
    config = json.loads(path.read_text())
    assert config["models"]["own"]["wings"] == 2 and config["models"]["baseline"]["wings"] == 0
    for model in config["models"].values():
        del model["coupling"]
    path.write_text(json.dumps(config))
    assert script.main([*tiny, "--wings", "2"]) == 130


def stopped(*arguments):
    """In the place of `fit`: Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("flags, words", [
    (["--iterations", "2"], "--iterations 2 is not used by"),
    (["--reg-weight", "2", "--models", "aggregation"], "--reg-weight 2.0 is not used by"),
    (["--em-density", "sum", "--models", "disagreement"], "--em-density sum is not used by"),
    (["--agg", "em", "--reg-at", "enc", "--models", "own"], "--reg-at"),
])
@pytest.mark.parametrize("script", [logic, probe])
def test_an_option_that_no_model_uses_is_refused(script, flags, words):
    with pytest.raises(UserError, match=words):
        settings = filled(script, "--models", "baseline", *flags)
        script.configuration(settings, "own")


def test_an_option_reaches_the_models_that_use_it():
    flags = "--models baseline disagreement combined --reg-weight 2 --em-gradient full --d-model 16"
    settings = filled(logic, *flags.split())
    configs = {name: logic.configuration(settings, name) for name in logic.MODELS}
    assert {name: config.reg_weight for name, config in configs.items()} == {
        "baseline": 1.0, "disagreement": 2.0, "aggregation": 1.0, "combined": 2.0}
    assert {name: config.em_gradient for name, config in configs.items()} == {
        "baseline": "last", "disagreement": "last", "aggregation": "full", "combined": "full"}
    assert all(config.d_model == 16 for config in configs.values())


def test_the_name_says_what_differs():
    flags = "--agg em --reg output position --agg-at enc:2 --no-em-activations --d-model 32"
    name = "logic-em-agg-at-enc2-no-em-activations-output-position"
    assert filled(logic, *flags.split()).name == name
    assert filled(probe, "--models", "baseline").name == "probe"
