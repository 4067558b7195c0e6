"""Code that is not ours, on ours: what reads and writes safetensors in the packages that people use."""

from __future__ import annotations

import pytest

from support.process import PROGRAMS, output_of

pytestmark = pytest.mark.frameworks

every_order = pytest.mark.parametrize("order", ["first", "last"], ids=["installed first", "installed last"])


def run(program, *arguments, order="first", with_torch=True):
    """What a program prints where ours is installed before its clients are imported, or after.

    It must have opened files by way of ours.
    """
    path = PROGRAMS / f"safetensors_clients/{program}.py"
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return output_of(path, *arguments, order, with_torch=with_torch, **environment).splitlines()[-1]


@every_order
def test_transformers_saves_in_shards_loads_and_trains(tmp_path, order):
    assert run("transformers_saves_loads_and_trains", tmp_path, order=order) == "well"


@every_order
def test_peft_saves_and_loads_an_adapter(tmp_path, order):
    assert run("peft_saves_and_loads", tmp_path, order=order) == "well"


def test_diffusers_saves_and_loads_a_model(tmp_path):
    assert run("diffusers_saves_and_loads", tmp_path) == "well"


@every_order
def test_accelerate_dispatches_with_offload_to_disk(tmp_path, order):
    folder, offload = tmp_path / "model", tmp_path / "offload"
    folder.mkdir()
    assert run("accelerate_offloads", folder, offload, order=order) == "well"


def test_huggingface_hub_saves_and_loads_a_model(tmp_path):
    assert run("huggingface_hub_saves_and_loads", tmp_path) == "well"


def test_torchs_checkpoint_reader_reads_by_ours(tmp_path):
    # Torch is the client: it is not imported before.
    assert run("torchs_checkpoint_reader_reads", tmp_path, with_torch=False) == "well"
