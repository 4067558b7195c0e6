"""`TokenDataset`: windows of a corpus for `torch.utils.data.DataLoader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch.utils.data import Dataset

from pagestream import _native
from pagestream._common.checks import at_least, element, one_of, only_with
from pagestream._common.closing import HoldsFiles
from pagestream._common.keywords import advises
from pagestream._common.public import set_module
from pagestream._common.types import Mode
from pagestream.devices import constructors
from pagestream.loading.options import BatchDtype, Target, batch_dtype, check_long_enough
from pagestream.tokens.corpus import TokenCorpus, TokenFiles, native_corpus, open_tokens

__all__ = ["TokenDataset"]

Item = tuple[torch.Tensor, torch.Tensor] | torch.Tensor


@set_module("pagestream.torch")
class TokenDataset(Dataset[Item], HoldsFiles):
    """All windows of a corpus, by number.

    Item *i* is ``(x, y)`` with ``x = t[s:s+T]``, ``y = t[s+1:s+T+1]`` and ``s = i * stride``. Both have shape
    ``[T]``. There is no index and no copy of the corpus. Worker processes share the page cache, and a pickled
    dataset contains only paths.

    `DataLoader` calls `__getitems__`, which gathers a batch in one native call without the GIL.

    With the default stride of 1, a window begins at every token except the last T, as in the usual memmap
    dataset. This has two costs. First, an epoch reads each token T times, and ``shuffle=True`` makes torch
    hold a permutation of all windows, as a tensor and then as a list of ints. It takes 48 bytes for each
    window: 404 GiB for the 9 billion tokens of OpenWebText. Second, windows overlap, so ``random_split`` also
    puts almost every held-out token into training windows. For training, pass ``stride=sequence_length``,
    shuffle with `DistributedTokenSampler`, which takes constant memory, and split with `TokenCorpus.part`.

    Args:
        tokens: A corpus, or an argument of `open_tokens`.
        sequence_length: T.
        stride: Number of tokens between the beginnings of windows. None means 1, or T+1 for ``"block"``. With
            ``sequence_length``, no two windows share an input.
        target: ``"shift"`` as above; ``"block"`` for the same over separate blocks of T+1 tokens; ``"none"``
            for x alone.
        dtype: ``"int64"``, ``"int32"``, or ``"raw"`` for the type of the files.
        mmap_mode: How to open files; see `MappedFile`.
        vocabulary: The model's number of ids. An item with a token that is negative, or not below this
            number, raises `FormatError` with the file and the token's position. None disables the check.

    Raises:
        ValueError: The corpus is shorter than one window, or an argument is out of range.

    Examples:
        >>> from pagestream.torch import TokenDataset
        >>> dataset = TokenDataset("tokens.bin", 4)
        >>> len(dataset), dataset[10]
        (4092, (tensor([10, 11, 12, 13]), tensor([11, 12, 13, 14])))
        >>> from pagestream import open_tokens
        >>> from pagestream.torch import DistributedTokenSampler
        >>> from torch.utils.data import DataLoader
        >>> train = TokenDataset(open_tokens("tokens.bin").part(0, 0.9), 4, stride=4)
        >>> sampler = DistributedTokenSampler(train, num_replicas=1, rank=0)
        >>> x, y = next(iter(DataLoader(train, batch_size=8, sampler=sampler)))
        >>> x.shape, x.dtype
        (torch.Size([8, 4]), torch.int64)
    """

    @advises("torch.TokenDataset")
    def __init__(
        self,
        tokens: TokenCorpus | TokenFiles,
        sequence_length: int,
        *,
        stride: int | None = None,
        target: Target = "shift",
        dtype: BatchDtype = "int64",
        mmap_mode: Mode | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """Counts the windows."""
        if isinstance(tokens, TokenCorpus):
            only_with("mmap_mode", mmap_mode, needed=False, needs="a path: this corpus is open already")
        else:
            tokens = open_tokens(tokens, mmap_mode=mmap_mode)
        self.tokens = self._files = tokens
        self.sequence_length = at_least(1, "sequence_length", sequence_length)
        one_of("target", target, _native.TARGETS)
        check_long_enough(self.sequence_length + (target != "none"), (self.tokens,))
        default_stride = self.sequence_length + 1 if target == "block" else 1
        self.stride = default_stride if stride is None else at_least(1, "stride", stride)
        self.target = target
        self.dtype: str = batch_dtype(dtype)
        self.vocabulary = None if vocabulary is None else at_least(1, "vocabulary", vocabulary)
        self._windows = (self.sequence_length, self.stride, target)
        self._length = native_corpus(self.tokens).windows(*self._windows)
        self._torch_dtype = getattr(torch, str(self.tokens.dtype) if self.dtype == "raw" else self.dtype)

    def __len__(self) -> int:
        """Returns the number of windows, which is ``len(tokens) - sequence_length`` with stride 1."""
        return self._length

    def __getitem__(self, index: SupportsIndex) -> Item:
        """Returns a window.

        Raises:
            IndexError: There is no such window.
            MappedReadError: A file was truncated, or its storage failed.
            FileChangedError: A file was rewritten since it was opened.
            FormatError: A token does not fit into `dtype`, or exceeds `vocabulary`.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Item]:
        """Returns many windows, gathered at once. They are rows of one block for x and one for y.

        Args:
            indices: Numbers of windows; negative ones count from the end.

        Returns:
            The same number of items, in the same order.

        Raises:
            IndexError: There is no such window.
            MappedReadError: A file was truncated, or its storage failed.
            FileChangedError: A file was rewritten since it was opened.
            FormatError: A token does not fit into `dtype`, or exceeds `vocabulary`.

        Examples:
            >>> from pagestream.torch import TokenDataset
            >>> TokenDataset("tokens.bin", 2).__getitems__([0, -1])[1]
            (tensor([4093, 4094]), tensor([4094, 4095]))
        """
        numbers = [element(index, self._length, "window") for index in indices]
        shape = (len(numbers), self.sequence_length)
        # The gather writes to host memory, regardless of torch.set_default_device.
        x = constructors.empty(shape, self._torch_dtype, constructors.CPU)
        y = None if self.target == "none" else constructors.empty(shape, self._torch_dtype, constructors.CPU)
        out = (x.numpy(), None if y is None else y.numpy())
        native_corpus(self.tokens).assemble(numbers, *self._windows, self.dtype, self.vocabulary, *out)
        return list(x) if y is None else list(zip(x, y, strict=True))

    def __repr__(self) -> str:
        """Shows files, length and settings. Equal datasets have equal texts, as some tools expect."""
        return (
            f"{type(self).__name__}({self.tokens!r}, {self.sequence_length}, stride={self.stride}, "
            f"target={self.target!r}, dtype={self.dtype!r}, length={self._length})"
        )
