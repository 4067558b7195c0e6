"""The batches of a loader: `Batch`, `PackedBatch`."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pagestream._common.public import set_module

__all__ = ["Batch", "PackedBatch"]

Array = TypeVar("Array")


@set_module("pagestream")
class Batch(NamedTuple, Generic[Array]):
    """Inputs and targets of one step.

    Attributes:
        x: Tokens, ``[batch_size, sequence_length]``.
        y: The next token for each token of x, in the same shape.

    Examples:
        >>> from pagestream import TokenLoader
        >>> with TokenLoader("tokens.bin", sequence_length=4, batch_size=2, order="sequential") as loader:
        ...     x, y = next(loader)
        >>> x[1], y[1]
        (array([4, 5, 6, 7]), array([5, 6, 7, 8]))
    """

    x: Array
    y: Array


@set_module("pagestream")
class PackedBatch(NamedTuple, Generic[Array]):
    """A batch with its documents, in the form that variable-length attention needs.

    Attributes:
        x: Tokens, ``[batch_size, sequence_length]``.
        y: The next tokens, in the same shape; None with ``target="none"``. The target of a document's last
            token is the first token of the next document.
        cu_seqlens: int32, the starts of documents among the ``x.size`` tokens of the flattened x, then
            ``x.size``. Each row begins a document. With ``max_documents``, it is padded with ``x.size`` to
            ``max_documents + 1`` entries.
        max_seqlen: Length of the longest document, in tokens.
        position_ids: Position of each token in its document, ``[batch_size, sequence_length]``, of x's type,
            or int32 if x is raw.
        loss_mask: bool, ``[batch_size, sequence_length]``. False if the next token of the corpus begins
            another document, so that predicting it does not contribute to the loss; see Megatron's
            ``eod_mask_loss``. This includes the last token of a row.

    Examples:
        >>> import numpy as np
        >>> from pagestream import TokenLoader, write_tokens
        >>> documents = [np.arange(3), np.arange(5), np.arange(4)]
        >>> written = write_tokens("packed", documents, dtype="uint16", format="megatron")
        >>> options = dict(sequence_length=11, batch_size=1, documents="boundaries")
        >>> with TokenLoader("packed.idx", **options) as loader:
        ...     batch = next(loader)
        >>> batch.cu_seqlens, batch.max_seqlen, batch.position_ids
        (array([ 0,  3,  8, 11], dtype=int32), 5, array([[0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2]]))
        >>> (~batch.loss_mask).nonzero()[1]
        array([2, 7])

        A flat file marks its documents with a token, here 0:

        >>> np.array([5, 0, 6, 7, 0, 8, 9], "u2").tofile("ended.bin")
        >>> options = dict(sequence_length=6, batch_size=1, documents="boundaries", end_token=0)
        >>> with TokenLoader("ended.bin", **options) as loader:
        ...     batch = next(loader)
        >>> batch.cu_seqlens, batch.loss_mask.tolist()
        (array([0, 2, 5, 6], dtype=int32), [[True, False, True, True, False, True]])
    """

    x: Array
    y: Array | None
    cu_seqlens: Array
    max_seqlen: int
    position_ids: Array
    loss_mask: Array


def document_bounds(
    starts: list[int], tokens: int, max_documents: int | None
) -> tuple[npt.NDArray[np.int32], int]:
    """Returns ``cu_seqlens`` and ``max_seqlen`` of a batch.

    Args:
        starts: The starts of documents among the batch's tokens.
        tokens: Number of tokens in x.
        max_documents: Number of documents to pad to, or None.

    Raises:
        ValueError: There are more documents, or more tokens than int32 can count.

    Examples:
        >>> from pagestream.loading.batches import document_bounds
        >>> document_bounds([0, 5], 8, 3)
        (array([0, 5, 8, 8], dtype=int32), 5)
    """
    if tokens > np.iinfo(np.int32).max:
        message = f"a batch has {tokens} tokens; cu_seqlens is int32 and counts to 2^31 - 1"
        raise ValueError(message)
    bounds = np.array([*starts, tokens], np.int32)
    longest = int(np.diff(bounds).max(initial=0))
    if max_documents is None:
        return bounds, longest
    if len(starts) > max_documents:
        message = f"a batch has {len(starts)} documents, max_documents is {max_documents}"
        raise ValueError(message)
    return np.pad(bounds, (0, max_documents + 1 - len(bounds)), constant_values=tokens), longest
