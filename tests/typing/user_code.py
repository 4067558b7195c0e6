"""User code that mypy and pyright check in strict mode, and that never runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch

import pagestream
from pagestream import Batch, Epoch, LoaderMetrics, PackedBatch
from pagestream import TokenLoader as NumpyTokenLoader
from pagestream.safetensors import safe_open
from pagestream.safetensors.torch import load_file
from pagestream.torch import (
    LoadReport,
    TokenDataset,
    TokenLoader,
    load_into,
    load_state_dict,
    stream_checkpoint,
)


def batches(path: Path) -> None:
    """The type of a batch follows from `dtype`, `target` and `documents`."""
    usual = NumpyTokenLoader(path, sequence_length=8, batch_size=2)
    assert_type(next(usual), Batch[npt.NDArray[np.int64]])
    for x, y in usual:
        assert_type(x, npt.NDArray[np.int64])
        assert_type(y, npt.NDArray[np.int64])
    for x, y in usual.epoch(3):
        assert_type(x, npt.NDArray[np.int64])
        assert_type(y, npt.NDArray[np.int64])
    assert_type(usual.epoch(3), Epoch[Batch[npt.NDArray[np.int64]]])
    assert_type(usual.current_epoch, int | None)
    NumpyTokenLoader(path, sequence_length=8, batch_size=2, epochs=None)

    named = NumpyTokenLoader(path, sequence_length=8, batch_size=2, dtype="int64", order="blocked")
    assert_type(next(named).x, npt.NDArray[np.int64])
    by_type = NumpyTokenLoader(path, sequence_length=8, batch_size=2, dtype=np.int32)
    assert_type(next(by_type).x, npt.NDArray[np.int32])
    narrow = NumpyTokenLoader(path, sequence_length=8, batch_size=2, dtype="int32")
    assert_type(next(narrow), Batch[npt.NDArray[np.int32]])
    raw = NumpyTokenLoader(path, sequence_length=8, batch_size=2, dtype="raw")
    assert_type(next(raw), Batch[npt.NDArray[Any]])
    alone = NumpyTokenLoader(path, sequence_length=8, batch_size=2, target="none")
    assert_type(next(alone), npt.NDArray[Any])
    packed = NumpyTokenLoader(path, sequence_length=8, batch_size=2, documents="boundaries", max_documents=4)
    assert_type(next(packed), PackedBatch[npt.NDArray[Any]])

    metrics = usual.metrics()
    assert_type(metrics, LoaderMetrics)
    assert_type(metrics.stall_seconds, float)
    assert_type(metrics.windows, int)
    assert_type(metrics.as_dict(), dict[str, int | float])
    usual.load_state_dict(usual.state_dict())


def tensor_batches(path: str) -> None:
    """Batches are tensors on every device."""
    on_gpu = TokenLoader(path, sequence_length=8, batch_size=2, device="cuda", rank=0, world_size=2)
    assert_type(next(on_gpu), Batch[torch.Tensor])
    assert_type(next(iter(on_gpu.epoch(0))), Batch[torch.Tensor])
    x, y = next(on_gpu)
    assert_type(x, torch.Tensor)
    assert_type(y, torch.Tensor)
    alone = TokenLoader(path, sequence_length=8, batch_size=2, target="none", device=torch.device("cpu"))
    assert_type(next(alone), torch.Tensor)
    packed = TokenLoader(path, sequence_length=8, batch_size=2, documents="boundaries", end_token=50256)
    assert_type(next(packed), PackedBatch[torch.Tensor])
    dataset = TokenDataset(path, 8)
    assert_type(len(dataset), int)


def corpora(paths: list[Path]) -> None:
    """Corpora, mixtures, files."""
    tokens = pagestream.open_tokens(paths, dtype=np.uint32)
    assert_type(tokens[7], int)
    assert_type(tokens[7:9], npt.NDArray[Any])
    assert_type(tokens.read(0, 4), npt.NDArray[Any])
    mixture = pagestream.Mixture([(tokens, 0.7), (tokens, 0.3)], exhausted="stop")
    assert_type(next(NumpyTokenLoader(mixture, sequence_length=8, batch_size=2)).y, npt.NDArray[np.int64])
    with pagestream.MappedFile(paths[0], mode="private") as file:
        assert_type(file.read(0, 4), bytes)
        assert_type(file.reason, str | None)
        assert_type(file.residency().fraction, float)


def arrays(path: Path) -> Iterator[npt.NDArray[Any]]:
    """Checkpoints as arrays."""
    with pagestream.open_checkpoint(path) as weights:
        assert_type(weights["a"], npt.NDArray[Any])
        assert_type(weights.info("a").shape, tuple[int, ...])
        for name, array in weights.stream({"a": np.s_[:, 1:3], "b": None}, order="layer"):
            assert_type(name, str)
            yield array
        with weights.warm() as lead:
            assert_type(lead.fraction, float)
        assert_type(weights.explain(), str)
        report = weights.verify()
        assert_type(report, pagestream.VerifyReport)


def tensors(path: Path, module: torch.nn.Module) -> None:
    """Checkpoints as tensors."""
    assert_type(load_state_dict(path, "cuda", dtype=torch.bfloat16), dict[str, torch.Tensor])
    for name, tensor in stream_checkpoint(path, device="cuda:1"):
        assert_type(name, str)
        assert_type(tensor, torch.Tensor)
    assert_type(load_into(module, path, strict=False), LoadReport)
    assert_type(load_file(path), dict[str, torch.Tensor])


def upstream_names(path: str) -> None:
    """`safe_open` infers the framework."""
    with safe_open(path, "np") as as_arrays:
        assert_type(as_arrays.get_tensor("a"), npt.NDArray[Any])
    with safe_open(path, framework="pt", device="cpu") as as_tensors:
        assert_type(as_tensors.get_tensor("a"), torch.Tensor)
        assert_type(as_tensors.keys(), list[str])
    with pagestream.safetensors.install():
        pass


def refused(path: str) -> None:
    """Type checkers reject these errors before the code runs."""
    NumpyTokenLoader(path, sequence_length=8, batch_size=2, order="shufled")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    NumpyTokenLoader(path, sequence_length=8)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pagestream.MappedFile(path, mode="rw")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pagestream.open_tokens(path, format="parquet")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pagestream.open_token(path)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    pagestream.errors.FormatErrors  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


def submodules(path: Path) -> None:
    """`import pagestream` is enough for them."""
    assert_type(pagestream.torch.load_state_dict(path, dtype=np.float16), dict[str, torch.Tensor])
    pagestream.safetensors.install(strict=False)
    pagestream.open_tokens(path, dtype=torch.uint16).close()
