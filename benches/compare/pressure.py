"""A model several times larger than its control group, on disk by accelerate: time, and bytes read."""

import json
import subprocess
import sys
from pathlib import Path

from harness import ROOT, Row, in_turn
from offload_model import FORWARDS

import pagestream

sys.path.append(str(ROOT / "tests/python"))  # the tests make the same control groups
from support.control_groups import memory_limit

TITLE = "a model on disk by accelerate, in a quarter of its memory"
LIMIT_MIB = 200
ROUNDS = 5
LIBRARIES = ["pagestream", "safetensors"]


def write_model(folder: Path) -> int:
    """Saves a model in shards. Returns the bytes of its files."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=14,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="256MB")
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def run(folder: Path, library: str) -> dict[str, float]:
    """Returns the figures of a new process, whose files are not in the page cache."""
    for path in folder.glob("*.safetensors"):
        pagestream.MappedFile(path).evict()
    with memory_limit(LIMIT_MIB << 20) as wrapper:
        command = [sys.executable, Path(__file__).with_name("offload_model.py"), folder, library, wrapper[-1]]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder: Path) -> list[Row]:
    folder = folder / "pressure"
    model_mib = write_model(folder) >> 20
    found: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
    for turn in range(ROUNDS):
        for library in in_turn(LIBRARIES, turn):
            found[library].append(run(folder, library))
    assert len({each["sum"] for figures in found.values() for each in figures}) == 1
    case = f"{FORWARDS} forwards of {model_mib} MiB in {LIMIT_MIB} MiB"
    seconds = {library: [each["seconds"] for each in figures] for library, figures in found.items()}
    read_mib = {
        library: [each["read_bytes"] / (1 << 20) for each in figures] for library, figures in found.items()
    }
    goals = {"safetensors": 1.0}
    return [
        Row(f"{case}: time", "pagestream", seconds, goals=goals),
        Row(f"{case}: bytes read", "pagestream", read_mib, unit="MiB", goals=goals),
    ]
