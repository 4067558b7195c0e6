"""`Documents`: the documents of a corpus as a sequence of arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from pagestream import _native
from pagestream._common.checks import element
from pagestream._common.public import set_module

__all__ = ["Documents"]

# Number of documents whose bounds are looked up at once during iteration.
_BLOCK = 4096


class _Corpus(Protocol):
    @overload
    def __getitem__(self, index: slice) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...


@set_module("pagestream")
class Documents(Sequence["npt.NDArray[Any]"]):
    """The documents of a corpus, in order: a sequence of 1-d arrays. `TokenCorpus.documents` creates it.

    No table is loaded: the start of each document is looked up in the files that record it, and checked.
    Documents do not cross files. A slice returns a list.

    In Megatron's format a document is a run of sequences. datatrove records the ends of documents, and also
    of chunks if the file was shuffled in chunks.

    Examples:
        >>> import numpy as np
        >>> from pagestream import open_tokens, write_tokens
        >>> write_tokens("two", [np.arange(3), np.arange(2)], dtype="u2", format="megatron")
        5
        >>> documents = open_tokens("two").documents
        >>> len(documents), documents[1], documents.starts
        (2, array([0, 1], dtype=uint16), array([0, 3, 5], dtype=uint64))
    """

    __slots__ = ("_corpus", "_length", "_record")

    def __init__(self, corpus: _Corpus, record: _native.TokenCorpus) -> None:
        """Keeps a corpus, and the record of its documents."""
        self._corpus = corpus
        self._record = record
        self._length = record.document_count or 0

    @property
    def starts(self) -> npt.NDArray[np.uint64]:
        """The position of each document's first token, followed by the end of the last document.

        Each access looks them up: keep the result if you need it more than once.

        Raises:
            FormatError: The index is damaged; the error names the file, the document and the bad value.
        """
        return self._bounds(0, self._length)

    def _bounds(self, first: int, last: int) -> npt.NDArray[np.uint64]:
        bounds = np.empty(last - first + 1, "u8")
        self._record.document_bounds(first, bounds)
        return bounds

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self._length

    @overload
    def __getitem__(self, index: SupportsIndex) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[npt.NDArray[Any]]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        """Returns a document as a read-only array, or several as a list.

        Raises:
            IndexError: There is no such document.
            FormatError: The index is damaged there.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._length))]
        number = element(index, self._length, "document")
        start, stop = self._bounds(number, number + 1).tolist()
        return self._corpus[start:stop]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Iterates over the documents, in order."""
        for first in range(0, self._length, _BLOCK):
            bounds = self._bounds(first, min(first + _BLOCK, self._length)).tolist()
            for start, stop in itertools.pairwise(bounds):
                yield self._corpus[start:stop]

    def __repr__(self) -> str:
        """Shows the number of documents and the corpus."""
        return f"<{type(self).__name__}: {self._length} of {self._corpus!r}>"
