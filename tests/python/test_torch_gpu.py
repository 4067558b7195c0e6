"""`pagestream.torch.TokenLoader` on a real GPU: the same batches as on the CPU."""

import gc

import numpy as np
import pytest
import torch

from pagestream import write_tokens
from pagestream.torch import TokenLoader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "i8", "u8"]


@pytest.mark.parametrize("file_dtype", DTYPES)
@pytest.mark.parametrize("dtype", ["int64", "int32", "raw"])
def test_batches_on_the_device_are_those_of_the_host(tmp_path, file_dtype, dtype):
    highest = min(np.iinfo(file_dtype).max, np.iinfo("i4").max)
    tokens = np.random.default_rng(0).integers(0, highest, 100_000, file_dtype, endpoint=True)
    write_tokens(tmp_path / "tokens.npy", [tokens], dtype=file_dtype, format="npy")
    arguments = {"sequence_length": 64, "batch_size": 8, "seed": 1, "epochs": 1, "dtype": dtype}
    with (
        TokenLoader(tmp_path / "tokens.npy", device="cuda", **arguments) as there,
        TokenLoader(tmp_path / "tokens.npy", **arguments) as here,
    ):
        for on_device, on_host in zip(there, here, strict=True):
            assert on_device.x.is_cuda
            assert on_device.x.dtype == on_host.x.dtype
            assert torch.equal(on_device.x.cpu(), on_host.x)
            assert torch.equal(on_device.y.cpu(), on_host.y)


def test_a_batch_does_not_change_while_later_ones_arrive(tmp_path):
    np.arange(4_000_000, dtype="u4").astype("u2").tofile(tmp_path / "tokens.bin")
    arguments = {"sequence_length": 1024, "batch_size": 64, "order": "sequential"}
    with TokenLoader(tmp_path / "tokens.bin", device="cuda", **arguments) as loader:
        busy = torch.randn(4096, 4096, device="cuda")
        kept = []
        for number in range(40):
            x, y = next(loader)
            for _ in range(5):  # the device lags behind the host, so buffers come back late
                busy = busy @ busy / 4096
            kept.append((number, x, y))
        for number, x, y in kept:
            first = number * 64 * 1024
            expected = torch.arange(first, first + 64 * 1024 + 1) % 65536
            assert torch.equal(x.cpu().view(-1), expected[:-1])
            assert torch.equal(y.cpu().view(-1), expected[1:])


def test_a_stop_a_state_and_a_second_loader(tmp_path):
    np.arange(100_000, dtype="u4").astype("u2").tofile(tmp_path / "tokens.bin")
    arguments = {"sequence_length": 100, "batch_size": 5, "seed": 3, "device": "cuda"}
    with TokenLoader(tmp_path / "tokens.bin", **arguments) as loader:
        for _ in range(7):
            next(loader)
        state = loader.state_dict()
        assert state["samples_consumed"] == 35
        expected = [next(loader).x.cpu() for _ in range(5)]
        loader.load_state_dict(state)
        assert all(torch.equal(next(loader).x.cpu(), x) for x in expected)
    with TokenLoader(tmp_path / "tokens.bin", **arguments) as other:
        other.load_state_dict(state)
        assert all(torch.equal(next(other).x.cpu(), x) for x in expected)


def test_loaders_that_are_dropped_unpin_their_buffers(tmp_path):
    np.arange(1_000_000, dtype="u4").astype("u2").tofile(tmp_path / "tokens.bin")
    for _ in range(50):
        loader = TokenLoader(tmp_path / "tokens.bin", sequence_length=1024, batch_size=32, device="cuda")
        x, _ = next(loader)
        del loader
        gc.collect()
        assert x[0, 0].item() >= 0  # a leftover registration would make the next one fail


def test_documents_arrive_with_their_bounds(tmp_path):
    lengths = np.random.default_rng(1).integers(3, 60, 400)
    documents = [np.arange(length, dtype="u2") for length in lengths]
    write_tokens(tmp_path / "corpus", documents, dtype="uint16", format="megatron")
    arguments = {"sequence_length": 128, "batch_size": 4, "documents": "boundaries", "epochs": 1}
    with (
        TokenLoader(tmp_path / "corpus", device="cuda", **arguments) as there,
        TokenLoader(tmp_path / "corpus", **arguments) as here,
    ):
        for on_device, on_host in zip(there, here, strict=True):
            for name in ("x", "y", "cu_seqlens", "position_ids", "loss_mask"):
                found, expected = getattr(on_device, name), getattr(on_host, name)
                assert found.is_cuda
                assert found.dtype == expected.dtype
                assert torch.equal(found.cpu(), expected)
