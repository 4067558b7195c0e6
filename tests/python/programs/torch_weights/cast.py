"""Loads a file as bfloat16, and prints the peak of its memory."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from pagestream.torch import load_state_dict

from support.memory_peak import Peak

load_state_dict(sys.argv[1], mmap_mode="read", plan=["t00"], dtype=torch.bfloat16)  # pays one-time costs
with Peak() as peak:
    found = load_state_dict(sys.argv[1], mmap_mode="read", dtype=torch.bfloat16)
print(json.dumps({"kept_bytes": sum(t.nbytes for t in found.values()), "peak_bytes": peak.extra_bytes}))
