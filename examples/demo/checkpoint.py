"""Saves the weights, reopens them without a copy, and checks that they are the same model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import safetensors.torch
import torch

import pagestream
import pagestream.safetensors.torch
from files import DemoError, written_whole
from model import Gpt, ModelSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor


def save(model: Gpt, path: Path) -> None:
    """Writes the weights as a safetensors file, which is either complete or absent."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with written_whole(path) as partial:
        pagestream.safetensors.torch.save_file(state, partial, metadata={"format": "pt"})


def load_with_safetensors(path: Path, settings: ModelSettings, device: torch.device) -> Gpt:
    """Returns the model as the `safetensors` package loads it, for a run that has not trained it."""
    return _model_from(safetensors.torch.load_file(path), settings, device)


def check_reopened(model: Gpt, path: Path, tokens: Tensor) -> dict[str, object]:
    """Opens the file in both zero-copy ways, and checks that each result equals `model`.

    Args:
        model: The saved model, in evaluation mode.
        path: The file.
        tokens: Token numbers [batch, tokens] for which the logits are compared.

    Returns:
        How the file was opened, in words and numbers.

    Raises:
        DemoError: An array does not lie in the file's mapping, or the logits differ.
    """
    views = pagestream.open_checkpoint(path)
    tensors = pagestream.safetensors.torch.load_file(path)
    facts: dict[str, object] = {
        "tensors": len(views),
        "parameters": sum(view.size for view in views.values()),
        "file_bytes": path.stat().st_size,
        "mmap_mode": views.mode,
        "mmap_mode_reason": views.reason,
        "arrays_inside_mapping": views.mode != "read",
    }
    if any(view.flags.writeable for view in views.values()):
        message = "open_checkpoint gave an array that can be written"
        raise DemoError(message)
    if views.mode != "read":
        _require_inside("open_checkpoint", path, [(view.ctypes.data, view.nbytes) for view in views.values()])
        _require_inside("load_file", path, [(each.data_ptr(), each.nbytes) for each in tensors.values()])
    # torch has no read-only tensors, so this copies the views to memory that torch may write.
    copies = {name: torch.tensor(view) for name, view in views.items()}
    for way, state in {"open_checkpoint": copies, "load_file": tensors}.items():
        _require_same_logits(way, model, _model_from(state, model.settings, tokens.device), tokens)
    return facts


def _model_from(state: Mapping[str, Tensor], settings: ModelSettings, device: torch.device) -> Gpt:
    model = Gpt(settings)
    model.load_state_dict(state)
    return model.to(device).eval()


@torch.no_grad()
def _require_same_logits(way: str, model: Gpt, reopened: Gpt, tokens: Tensor) -> None:
    expected, found = model(tokens), reopened(tokens)
    if not torch.equal(expected, found):
        difference = (expected - found).abs().max().item()
        message = f"the model reopened by {way} gives other logits, by up to {difference}"
        raise DemoError(message)


def _require_inside(way: str, path: Path, spans: Iterable[tuple[int, int]]) -> None:
    """Checks that each span (address, length in bytes) lies in memory that maps the file."""
    mapped = mapped_ranges(path)
    for address, length_bytes in spans:
        if not any(span.start <= address and address + length_bytes <= span.stop for span in mapped):
            message = f"{way} gave an array at {address:#x}, outside the mapping of {path}"
            raise DemoError(message)


def mapped_ranges(path: Path) -> list[range]:
    """Returns the address ranges of this process that map a file. Adjacent ranges are joined."""
    real_path = os.path.realpath(path)
    ranges: list[range] = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) < 6 or fields[5].replace("\\012", "\n") != real_path:
                continue
            start, stop = (int(address, 16) for address in fields[0].split("-"))
            if ranges and ranges[-1].stop == start:
                start = ranges.pop().start
            ranges.append(range(start, stop))
    return ranges
