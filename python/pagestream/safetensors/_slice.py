"""`PySafeSlice`: a tensor that is read in parts."""

from __future__ import annotations

from typing import Any

from pagestream import _native
from pagestream._common.public import set_module
from pagestream.errors import SafetensorError, SliceError
from pagestream.weights.arrays import Framework
from pagestream.weights.indexing import Index, of_tensor

__all__ = ["PySafeSlice"]


@set_module("pagestream.safetensors")
class PySafeSlice:
    """A tensor that is read in parts, from ``safe_open.get_slice``. Upstream has a class of the same name.

    Its brackets accept NumPy's basic indexing, with NumPy's meaning for every framework: ints, slices with
    any step (negative steps give a reversed copy, even in torch), ``...`` and None. A slice that reaches
    beyond the end is clipped (upstream rejects ``[:20]`` of ten rows; NumPy and torch do not).

    Only the necessary bytes are read. A part that is contiguous in the file is not copied if the file is
    mapped, as with ``get_tensor``. Any other part gets its own, writable memory. A slice keeps the file open,
    even after the `safe_open` is closed.

    Examples:
        >>> from pagestream.safetensors import safe_open
        >>> with safe_open("model.safetensors", "np") as f:
        ...     weight = f.get_slice("weight")
        >>> weight.get_shape(), weight[:, 1]
        ([2, 3], array([1., 1.]))
    """

    def __init__(self, stored: _native.StoredTensor, framework: Framework) -> None:
        """Keeps the tensor and its framework."""
        self._stored = stored
        self._framework = framework

    def _described(self) -> tuple[str, tuple[int, ...]]:
        stored = self._stored
        return self._framework.described(stored.dtype, stored.shape, stored.nbytes)

    def get_shape(self) -> list[int]:
        """Returns the dimensions of the whole tensor, in elements; with ``raw=True`` in bytes.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("weight").get_shape()
            [2, 3]
        """
        return list(self._described()[1])

    def get_dtype(self) -> str:
        """Returns the element type by its safetensors name.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("bias").get_dtype()
            'F32'
        """
        return self._described()[0]

    def __getitem__(self, index: Index) -> Any:  # noqa: ANN401 - an array or a tensor
        """Returns the part that `index` selects.

        torch also accepts lists and tensors of ints and masks, with torch's meaning, as upstream does. For a
        single list among slices it reads the span from the smallest to the largest index, and otherwise the
        whole tensor.

        Two F4 elements share a byte: torch counts the pairs, and so does an index along the last dimension.
        For other frameworks, whole rows of such elements are read.

        Raises:
            SliceError: The index is out of range or not basic indexing; it is a `SafetensorError` and an
                ``IndexError``. If upstream also rejects the index, the text is upstream's; a note names the
                file and the tensor.
            SafetensorError: The framework has no type for the elements.
            MappedReadError: The file was truncated, or its storage failed.
            FileChangedError: The file was rewritten since it was opened.
        """
        try:
            return self._framework.part(self._stored, index)
        except SliceError as error:
            error.add_note(f"The index is for tensor {self._stored.name!r} of {self._stored.path}.")
            raise
        except SafetensorError as error:
            raise of_tensor(error, self._stored.path, self._stored.name) from error

    def __repr__(self) -> str:
        """Shows the type, the shape and the path."""
        return f"<{type(self).__name__} {self.get_dtype()} {self.get_shape()} of {self._stored.path!r}>"
