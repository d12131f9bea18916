"""The learning rate of every step, and a line about it for who starts a run."""
TINY = 3e-5                     # a peak rate below this hardly moves a model that starts from noise


def learning_rate(step: int, d_model: int, settings) -> float:
    """The learning rate of step = 1, 2, ...: with --decay sqrt
    `d^-0.5 min(step^-0.5, step warmup^-1.5)` (Vaswani et al. 2017, section 5.3); with --decay
    linear the same rise to the same peak, then a straight line to 0 at the last step."""
    warmup, last = settings.warmup, settings.steps + 1
    peak = settings.lr * (d_model * warmup) ** -0.5
    if settings.decay == "sqrt":
        falling = (warmup / step) ** 0.5
    else:
        falling = (last - step) / max(1, last - warmup)
    return peak * min(step / warmup, falling)


def in_words(d_model: int, settings) -> str:
    """The peak rate, where it lies and how the rate falls from there; warnings where that peak is
    never reached or hardly trains."""
    warmup, steps, factor = settings.warmup, settings.steps, settings.lr
    peak = factor * (d_model * warmup) ** -0.5
    formula = f"--lr {factor:g} x (d_model {d_model} x --warmup {warmup})^-0.5"
    falls = "linearly to 0" if settings.decay == "linear" else "with step^-0.5"
    text = f"learning rate: peak {peak:.2e} at step {warmup:,} = {formula}; falls {falls}"
    if warmup > steps:
        text += (f"\nwarning: --steps {steps} end before --warmup {warmup}: that peak is never "
                 f"reached; choose a --warmup of {steps} at most")
    if peak < TINY:
        text += (f"\nwarning: a peak rate of {peak:.2e} hardly trains: --lr is a factor on the "
                 "schedule, not the rate itself; the recipes have 0.4 to 1")
    return text
