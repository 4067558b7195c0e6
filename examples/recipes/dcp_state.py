"""A loader in a checkpoint of `torch.distributed.checkpoint`, next to the model.

A `TokenLoader` has `state_dict` and `load_state_dict`, so it is already a `Stateful`.
Its state is the same on all ranks. For example, a checkpoint of 8 ranks resumes on 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint

if TYPE_CHECKING:
    from os import PathLike

    import torch

    from pagestream.torch import TokenLoader


class TrainingState:
    """Model, optimizer and loader as one `Stateful`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: TokenLoader[Any],
    ) -> None:
        self.model, self.optimizer, self.loader = model, optimizer, loader

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of all three."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a state."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.loader.load_state_dict(state["loader"])


def save(folder: str | PathLike[str], state: TrainingState) -> None:
    """Writes a checkpoint. All ranks call it."""
    save_checkpoint({"state": state}, checkpoint_id=folder)


def load(folder: str | PathLike[str], state: TrainingState) -> None:
    """Reads a checkpoint into existing objects. All ranks call it."""
    load_checkpoint({"state": state}, checkpoint_id=folder)
