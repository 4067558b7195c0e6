"""Unusual folders: every way to load weights must treat a folder in the same way."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from pagestream import open_checkpoint
from pagestream.errors import SafetensorError
from pagestream.torch import (
    HuggingFaceStorageReader,
    QuantizedHuggingFaceStorageReader,
    load_into,
    load_state_dict,
    stream_checkpoint,
)

from support.checkpoints import index_of, values, write_index, write_shards
from support.process import PROGRAMS, output_of

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

ONE, TWO = np.full(1, 1, "f4"), np.full(1, 2, "f4")
NAMES = ("a", "b", "t", "lost", "extra")
# For each folder: its files, its index if there is one, the tensors that load (None for an error), the
# options that help, and the tensors that load with these options. The folder has a link to each file in
# "elsewhere".
FOLDERS = {
    "the index names the first copy": (
        {"1": {"a": ONE, "t": ONE}, "2": {"b": TWO, "t": TWO}},
        {"a": "1", "b": "2", "t": "1"},
        {"a": [1.0], "b": [2.0], "t": [1.0]},
        {},
        None,
    ),
    "the index names the last copy": (
        {"1": {"a": ONE, "t": ONE}, "2": {"b": TWO, "t": TWO}},
        {"a": "1", "b": "2", "t": "2"},
        {"a": [1.0], "b": [2.0], "t": [2.0]},
        {},
        None,
    ),
    "an entry without a tensor": (
        {"1": {"a": ONE}},
        {"a": "1", "lost": "1"},
        None,
        {"strict": False},
        {"a": [1.0]},
    ),
    "a name twice in the index": (
        {"1": {"a": ONE, "t": ONE}, "2": {"t": TWO}},
        [("a", "1"), ("t", "1"), ("t", "2")],
        None,
        {"strict": False},
        {"a": [1.0], "t": [2.0]},
    ),
    "a missing file": ({"1": {"a": ONE}}, {"a": "1", "lost": "2"}, None, {}, None),
    "a link to another folder": (
        {"1": {"a": ONE}, "elsewhere/2": {"b": TWO}},
        {"a": "1", "b": "2"},
        None,
        {"cache_root": "elsewhere"},
        {"a": [1.0], "b": [2.0]},
    ),
    "a link to another folder, without an index": (
        {"1": {"a": ONE}, "elsewhere/2": {"b": TWO}},
        None,
        None,
        {"cache_root": "elsewhere"},
        {"a": [1.0], "b": [2.0]},
    ),
    "a file that the index does not name": (
        {"1": {"a": ONE}, "2": {"a": TWO, "extra": TWO}},
        {"a": "1"},
        {"a": [1.0]},
        {},
        None,
    ),
    "files beside model.safetensors": (
        {"model": {"a": ONE}, "other": {"a": TWO, "extra": TWO}},
        None,
        {"a": [1.0]},
        {},
        None,
    ),
    "an unsorted index": (
        {"10": {"b": TWO, "a": ONE}, "2": {"t": ONE}},
        {"t": "2", "b": "10", "a": "10"},
        {"a": [1.0], "b": [2.0], "t": [1.0]},
        {},
        None,
    ),
}


def by_open_checkpoint(path):
    return values(open_checkpoint(path))


def by_load_state_dict(path):
    return tensors_of(load_state_dict(path))


def by_stream_checkpoint(path):
    return tensors_of(dict(stream_checkpoint(path, device="cpu")))


def by_load_into(path):
    module = torch.nn.Module()
    for name in NAMES:
        module.register_buffer(name, torch.zeros(1))
    missing = load_into(module, path, strict=False).missing
    return tensors_of({name: buffer for name, buffer in module.named_buffers() if name not in missing})


def by_storage_reader(path):
    return read_by(HuggingFaceStorageReader(path))


def by_quantized_storage_reader(path):
    return read_by(QuantizedHuggingFaceStorageReader(path))


def read_by(reader):
    state = {name: torch.zeros(1) for name in reader.read_metadata().state_dict_metadata}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return tensors_of(state)


def tensors_of(found):
    return {name: tensor.tolist() for name, tensor in found.items()}


# Each of these takes a path or an open checkpoint.
OF_BOTH = (
    by_load_state_dict,
    by_stream_checkpoint,
    by_load_into,
    by_storage_reader,
    by_quantized_storage_reader,
)


@pytest.fixture(params=FOLDERS)
def row(request, tmp_path):
    """Returns a folder, the tensors that load, the options that help, and the tensors that load with them."""
    files, weight_map, expected, options, helped = FOLDERS[request.param]
    folder = tmp_path / "folder"
    for name, tensors in files.items():
        write_shards(tmp_path if "/" in name else folder, {f"{name}.safetensors": tensors})
        if "/" in name:
            (folder / f"{name.rpartition('/')[2]}.safetensors").symlink_to(tmp_path / f"{name}.safetensors")
    if weight_map is not None:
        pairs = weight_map.items() if isinstance(weight_map, dict) else weight_map
        write_index(folder, index_of((name, f"{file}.safetensors") for name, file in pairs))
    if "cache_root" in options:
        options = {"cache_root": tmp_path / options["cache_root"]}
    return folder, expected, options, helped


@pytest.mark.parametrize("load", [by_open_checkpoint, *OF_BOTH])
def test_every_loader_treats_a_folder_alike(row, load):
    folder, expected, *_ = row
    if expected is not None:
        assert load(folder) == expected
        return
    with pytest.raises(SafetensorError, match="the checkpoint is not whole"):
        load(folder)


@pytest.mark.parametrize("load", OF_BOTH)
def test_loaders_keep_the_options_of_an_open_checkpoint(row, load):
    folder, expected, options, helped = row
    if expected is None and helped is None:
        return
    with open_checkpoint(folder, **options) as checkpoint:
        assert load(checkpoint) == (expected if helped is None else helped)
        assert not checkpoint.closed


def test_a_plug_in_that_chooses_files_treats_a_folder_alike(row):
    """The host of the plug-in follows links, and the plug-in does the same."""
    folder, expected, options, helped = row
    found = json.loads(
        output_of(
            PROGRAMS / "checkpoint_folders/loads_for_tensorrt.py", folder, with_torch=True, has_brief_end=True
        )
    )
    if "cache_root" in options:
        assert found == helped
    else:
        assert found == ("SafetensorError" if expected is None else expected)


def test_an_error_names_an_option_that_helps(row):
    folder, expected, options, helped = row
    if expected is not None:
        return
    with pytest.raises(SafetensorError) as caught:
        load_state_dict(folder)
    told = str(caught.value)
    for name, value in options.items():
        told_value = f'"{value}"' if name == "cache_root" else value
        assert "open_checkpoint" in told
        assert f"{name}={told_value}" in told
    if helped is None:
        assert "open_checkpoint" not in told
