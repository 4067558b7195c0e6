"""Batches for Megatron-LM's ``--dataloader-type external``, without its index files.

In `pretrain_gpt.py`::

    def train_valid_test_datasets_provider(train_val_test_num_samples):
        args = get_args()
        train = PretrainingBatches(TokenLoader(
            args.data_path, sequence_length=args.seq_length,
            batch_size=args.micro_batch_size, seed=args.seed, epochs=None,
            rank=mpu.get_data_parallel_rank(),
            world_size=mpu.get_data_parallel_world_size()))
        return train, None, None

With ``--dataloader-save``, Megatron calls `save_state` at each checkpoint and keeps the
result, one file for each data-parallel rank. All of these files are equal. Pass any of
them to `restore_state` to resume, on any number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from pagestream.torch import TokenLoader


class PretrainingBatches:
    """Gives the batches of Megatron's `GPTDataset`, from a `TokenLoader`.

    Like Megatron by default, it ignores the limits of documents and masks no loss.

    Args:
        loader: A loader with the micro-batch size as its batch size, for this
            data-parallel rank.
        create_attention_mask: False for ``--no-create-attention-mask-in-dataloader``.
            Attention that is always causal, as in Transformer Engine, needs no mask.
    """

    def __init__(
        self, loader: TokenLoader, *, create_attention_mask: bool = True
    ) -> None:
        self.loader = loader
        length = loader.sequence_length
        self._position_ids = torch.arange(length)
        # True forbids attention.
        self._mask = (
            torch.ones(length, length, dtype=torch.bool).triu(1)
            if create_attention_mask
            else None
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        tokens, labels = next(self.loader)
        batch = {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": torch.ones(tokens.shape),
            "position_ids": self._position_ids.expand(tokens.shape),
        }
        if self._mask is not None:
            batch["attention_mask"] = self._mask.expand(
                len(tokens), 1, *self._mask.shape
            )
        return batch

    def save_state(self) -> dict[str, Any]:
        """Returns the position of the stream. Megatron calls this method."""
        return self.loader.state_dict()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from a result of `save_state`."""
        self.loader.load_state_dict(state)
