"""What lies beside the checkout, papers and real data: checks that read it are skipped without."""
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared"
