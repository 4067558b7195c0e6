"""Loads a file as bfloat16, and prints the memory that it took at most."""

import json
import sys

import torch
from memory import Peak

from pagestream.torch import load_state_dict

load_state_dict(sys.argv[1], mmap_mode="read", plan=["t00"], dtype=torch.bfloat16)  # torch's own first costs
with Peak() as peak:
    found = load_state_dict(sys.argv[1], mmap_mode="read", dtype=torch.bfloat16)
print(json.dumps({"kept_bytes": sum(t.nbytes for t in found.values()), "peak_bytes": peak.extra_bytes}))
