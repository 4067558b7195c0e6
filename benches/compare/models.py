"""Whole models loaded by programs that use `safetensors`, from slow mounts and cold from the disk."""

import tempfile
from functools import partial
from pathlib import Path

from fresh import alternate, load_cold, load_slow
from harness import Row
from load_model import INSTALLED, WAYS
from load_weights import used

TITLE = "models of 1 GiB by programs that load with safetensors, all bytes used"
CASES = {"10 ms per request, cached": False, "10 ms per request, direct_io": True, "local disk, cold": None}
DELAY_MS = 10
ROUNDS = 5


def written(folder: Path) -> dict[str, int]:
    """Saves a model, and returns the sum over the bytes of each parameter."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=5504,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        dtype="bfloat16",
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="256MB")
    with torch.no_grad():
        return {name: used(parameter) for name, parameter in model.named_parameters()}


def measure(folder: Path, cases: list[str]) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        source = Path(inner) / "source"
        sums = written(source)
        needed_bytes = sum(path.stat().st_size for path in source.glob("*.safetensors"))
        for case in cases:
            direct_io = CASES[case]
            if direct_io is None:
                load = partial(load_cold, "load_model.py", folder=source, sums=sums)
            else:
                load = partial(
                    load_slow,
                    "load_model.py",
                    source=source,
                    sums=sums,
                    needed_bytes=needed_bytes,
                    delay_ms=DELAY_MS,
                    direct_io=direct_io,
                )
            for stock in WAYS:
                ours = stock + INSTALLED
                found = alternate([ours, stock], load, rounds=ROUNDS)
                figures = {way: [each.seconds for each in loads] for way, loads in found.items()}
                goal = 1.0 if direct_io is None else 5.0
                rows.append(Row(f"{case}: {stock}", ours, figures, goals={stock: goal}))
    return rows
