"""Token files in a Hugging Face `Trainer`.

A stopped run resumes with ``trainer.train(resume_from_checkpoint=True)``. Trainer skips
the numbers of the windows that it has seen, without reading these windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import Trainer, TrainingArguments

from pagestream.torch import TokenDataset

if TYPE_CHECKING:
    from os import PathLike

    from transformers import PreTrainedModel


def collate(windows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Makes a batch for a causal language model, which shifts the labels itself."""
    input_ids = torch.stack(windows)
    return {"input_ids": input_ids, "labels": input_ids}


def trainer(
    model: PreTrainedModel,
    path: str | PathLike[str],
    *,
    sequence_length: int,
    arguments: TrainingArguments,
) -> Trainer:
    """Returns a Trainer over all windows of `path`, each once per epoch.

    Examples:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50257, n_positions=1024))
        arguments = TrainingArguments("output", max_steps=1000)
        trainer(model, "train.bin", sequence_length=1024, arguments=arguments).train()
    """
    # target="none" gives x alone, with T tokens.
    dataset = TokenDataset(path, sequence_length, stride=sequence_length, target="none")
    return Trainer(model, arguments, train_dataset=dataset, data_collator=collate)
