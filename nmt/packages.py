"""The packages of requirements.txt: scripts import this first, to report one that is missing."""
import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("torch", "numpy", "scipy", "sacrebleu", "tokenizers", "tqdm", "tabulate", "filelock",
            "matplotlib", "sklearn")    # of requirements.txt; some are imported after hours

try:
    for name in PACKAGES:
        if find_spec(name) is None:
            raise ImportError(f"no module {name}")
    import torch  # noqa: F401     a broken one raises ImportError
except ImportError as missing:
    print(f"{Path(sys.argv[0]).name}: error: a package is missing or broken ({missing}): "
          "pip install -r requirements.txt", file=sys.stderr)
    sys.exit(2)
