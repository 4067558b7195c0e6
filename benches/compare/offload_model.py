"""Computes with a model that accelerate keeps on disk, in a control group. Run by `pressure.py`.

offload_model.py FOLDER LIBRARY PROCESSES
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

FORWARDS = 6


def read_bytes() -> int:
    """Returns the number of bytes that this process has caused to be read from storage (proc(5))."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def main() -> None:
    folder, library, processes = sys.argv[1:]
    if library == "pagestream":
        import pagestream.safetensors

        pagestream.safetensors.install()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    # The libraries themselves count outside of the group.
    Path(processes).write_text(str(os.getpid()))
    with tempfile.TemporaryDirectory() as offloaded, torch.inference_mode():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, device_map={"": "disk"}, offload_folder=offloaded
        )
        began, before = time.perf_counter(), read_bytes()
        logits = [model(torch.tensor([[token]])).logits for token in range(FORWARDS)]
        figures = {"seconds": time.perf_counter() - began, "read_bytes": read_bytes() - before}
    print(json.dumps({**figures, "sum": float(torch.stack(logits).double().sum())}))


if __name__ == "__main__":
    main()
