"""The flags of the model: the fields of TransformerConfig, and which of them need another."""
import dataclasses

from tools.command_line import flag, refuse_unused
from tools.files import UserError
from transformer import BODY, SIZES, ConfigError, TransformerConfig

# options of a mechanism, of no use without it
AGG_OPTIONS = ("agg_at", "capsules")
EM_OPTIONS = ("em_density", "em_schedule", "em_activations", "em_gradient")
REG_OPTIONS = ("reg_at", "reg_weight")
OPTIONS = (*AGG_OPTIONS, *EM_OPTIONS, *REG_OPTIONS, "iterations", "capsule_parts")


def model_flags() -> list[tuple]:
    """--arch and the fields of TransformerConfig with a help, as `make_dataclass` takes them, in
    the order of a run's name."""
    arch = flag("tiny", "size: sets the next five flags and the recipe of training", BODY,
                choices=tuple(SIZES))
    declared = [("arch", str, arch)]
    for field in sorted(dataclasses.fields(TransformerConfig), key=lambda f: f.name != "layers"):
        if field.metadata:
            copy = dataclasses.field(default=field.default, metadata=field.metadata)
            declared.append((field.name, field.type, copy))
    return declared


class ModelFlags(dataclasses.make_dataclass("DeclaredFlags", model_flags())):
    """The flags of the model, a base of the settings of scripts."""

    def model_config(self, vocab_size: int, **overrides) -> TransformerConfig:
        """The configuration of the model that the flags describe. Raises UserError."""
        self.check_used()
        values = {}
        for field in dataclasses.fields(TransformerConfig):
            if hasattr(self, field.name):
                values[field.name] = getattr(self, field.name)
        values.update(overrides, vocab_size=vocab_size)
        try:
            return TransformerConfig(**values)
        except ConfigError as error:
            name = error.field.replace("_", "-")
            hint = ""
            if error.field in ("heads", "capsules"):
                width = values["d_model"]
                divisors = [str(n) for n in range(1, width + 1) if width % n == 0]
                hint = f"; choose from {', '.join(divisors)}"
            raise UserError(f"--{name} {error.value}: {error.reason}{hint}") from error

    def check_model(self) -> None:
        """Raises UserError if the flags describe no model."""
        self.model_config(vocab_size=1)

    def check_used(self) -> None:
        """Raises UserError for an option that would be ignored, because its mechanism is not
        chosen."""
        unused = {}                                      # option -> what it needs
        if self.agg == "linear":
            unused |= dict.fromkeys(AGG_OPTIONS, "an --agg other than linear, such as em")
        if not self.em_activations:
            unused["em_schedule"] = "--em-activations"
        if self.agg not in ("em", "gu-em"):
            unused |= dict.fromkeys(EM_OPTIONS, "--agg em or --agg gu-em")
        if not self.reg:
            unused |= dict.fromkeys(REG_OPTIONS, "a --reg, such as output")
        if self.heads == 1:                              # no other one to differ from
            unused["reg"] = "--heads 2 or more"
        if not any(place.startswith("enc") for place in self.capsule_attention):
            unused["capsule_parts"] = "--capsule-attention enc"
        if self.agg == "linear" and not self.capsule_attention:
            unused["iterations"] = "an --agg other than linear, or --capsule-attention"
        for field in dataclasses.fields(ModelFlags):
            value = getattr(self, field.name)
            if field.name in unused and value != field.default:
                refuse_unused(ModelFlags, field.name, value, unused[field.name])
