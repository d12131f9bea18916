"""`train_mt.py --compile model` logs the losses of `--compile no`: a few dozen steps of each.

    python tests/soak/compile_model.py                       # some minutes on one core
    python tests/soak/compile_model.py --agg em              # more flags of train_mt.py
"""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import train_mt

# without dropout, for which the compiler draws numbers of its own
SMALL = ("--layers 2 --d-model 32 --vocab-size 500 --dropout 0 "
         "--steps 20 --eval-every 20 --log-every 5").split()


def losses(what: str, flags: list[str], runs: str) -> list[float]:
    """The losses that a run with --compile `what` logs."""
    words = ["--compile", what, "--name", what, "--runs", runs, "--device", "cpu", *SMALL, *flags]
    assert train_mt.main(words) == 0
    rows = map(json.loads, (Path(runs) / what / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        eager = losses("no", sys.argv[1:], folder)
        compiled = losses("model", sys.argv[1:], folder)
    worst = max(abs(x - y) for x, y in zip(eager, compiled))
    print(f"losses {eager} and {compiled}: they differ by {worst:.1e} at most")
    assert len(eager) == len(compiled) == 4 and worst < 1e-3
