"""The papers and real data beside the checkout: checks that read it are skipped without."""
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared"
