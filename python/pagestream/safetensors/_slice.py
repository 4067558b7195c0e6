"""`PySafeSlice`: a tensor of which a part is read."""

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
    """A tensor that is read by parts. Upstream's class of that name; ``safe_open.get_slice`` makes it.

    Its brackets take what NumPy's basic indexing takes, in NumPy's meaning, whatever the framework: ints,
    slices with any step (negative ones give a reversed copy in torch as well), ``...`` and None. A slice
    that reaches beyond the end is clipped (upstream refuses ``[:20]`` of ten rows; NumPy and torch do not).

    Only the bytes that are needed are read. A part that is one run of bytes in the file is not copied where
    the file is mapped, as with ``get_tensor``; any other part gets memory of its own, which can be written.
    A slice keeps the file open, also when the `safe_open` is closed.

    Examples:
        >>> from pagestream.safetensors import safe_open
        >>> with safe_open("model.safetensors", "np") as f:
        ...     weight = f.get_slice("weight")
        >>> weight.get_shape(), weight[:, 1]
        ([2, 3], array([1., 1.]))
    """

    def __init__(self, stored: _native.StoredTensor, framework: Framework) -> None:
        """Keeps the tensor, and what makes its parts."""
        self._stored = stored
        self._framework = framework

    def _described(self) -> tuple[str, tuple[int, ...]]:
        stored = self._stored
        return self._framework.described(stored.dtype, stored.shape, stored.nbytes)

    def get_shape(self) -> list[int]:
        """Returns the whole tensor's dimensions, in elements; with ``raw=True`` in bytes.

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

        torch also takes lists and tensors of ints and masks, in torch's meaning, as upstream does: for one
        list among slices it reads the span from the smallest to the largest index, otherwise the whole
        tensor.

        Two F4 elements share a byte: torch counts the pairs, and so does an index along the last dimension.
        For other frameworks whole rows of such elements are read.

        Raises:
            SliceError: The index is out of range or not basic indexing; a `SafetensorError` and an
                ``IndexError``. Its text is upstream's where upstream refuses the index too; a note names the
                file and the tensor.
            SafetensorError: The framework has no type for the elements.
            MappedReadError: The file was cut or its storage failed.
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
        """Returns type, shape and path."""
        return f"<{type(self).__name__} {self.get_dtype()} {self.get_shape()} of {self._stored.path!r}>"
