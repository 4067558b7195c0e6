"""Fills a model of 24 tensors of 8 MiB, and prints the peak of its additional memory."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn

from pagestream.safetensors.torch import save_file
from pagestream.torch import load_into

from support.memory_peak import Peak

path, way = sys.argv[1:]
COUNT, WIDTH = 24, 1448
held = {f"{number}.weight": torch.full((WIDTH, WIDTH), float(number)) for number in range(COUNT)}
save_file(held, path)
del held
with torch.device("meta" if way.endswith("meta") else "cpu"):
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(COUNT))
with Peak() as peak:
    load_into(model, path, assign=way.startswith("assign"))
is_right = all(bool((layer.weight == number).all()) for number, layer in enumerate(model))
print(json.dumps({"extra_bytes": peak.extra_bytes, "is_right": is_right}))
