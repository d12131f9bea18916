"""Runs train_mt.py in float64, for the test that compares two processes with one."""
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

if __name__ == "__main__":
    import train_mt
    sys.exit(train_mt.main(sys.argv[1:]))
