"""Token files as a Lightning data module that can resume in the middle of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule

from pagestream.torch import TokenLoader

if TYPE_CHECKING:
    from os import PathLike

    from pagestream import Epoch, Mixture, TokenCorpus


class TokenDataModule(LightningDataModule):
    """Gives batches ``(x, y)`` of this rank's windows.

    The loader takes rank and world size from torch.distributed or the environment.
    Lightning makes it after it has set these up. ``trainer.fit(model, data,
    ckpt_path=...)`` resumes with the next window, even on another number of ranks. The
    same holds for a second `fit`, and with ``reload_dataloaders_every_n_epochs``.

    Lightning's epoch is ``len(loader)`` batches, an epoch of the corpus. For epochs of
    another size, pass ``epochs=None`` here, and a number as ``limit_train_batches`` to
    `Trainer`. A `Mixture` that repeats needs both. Without the number, Lightning takes
    one batch in advance to detect the end, and a checkpoint would skip it.

    Args:
        tokens: A path, a corpus or a `Mixture`, as for `TokenLoader`.
        **arguments: Arguments of `TokenLoader`, at least `sequence_length` and
            `batch_size`.
    """

    def __init__(
        self,
        tokens: str | PathLike[str] | TokenCorpus | Mixture,
        **arguments: Any,  # noqa: ANN401 - passed through
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.arguments = arguments
        self._loader: TokenLoader | None = None
        self._state: dict[str, Any] | None = None

    def train_dataloader(self) -> TokenLoader:
        """Starts reading where the previous loader or a loaded state stopped."""
        self._stop()
        self._loader = TokenLoader(self.tokens, **self.arguments)
        if self._state is not None:
            self._loader.load_state_dict(self._state)
        return self._loader

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, which is equal on all ranks. Lightning saves it."""
        return (
            (self._state or {}) if self._loader is None else self._loader.state_dict()
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the state for the next loader."""
        self._stop()
        self._state = state_dict or None

    def teardown(self, stage: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Stops the loader's threads. Another fit resumes from here."""
        self._stop()

    def _stop(self) -> None:
        """Closes the loader. The next one resumes where it stopped."""
        if self._loader is not None:
            self._state = self._loader.state_dict()
            self._loader.close()
            self._loader = None


class ValidatedTokenDataModule(TokenDataModule):
    """Adds a validation on all windows of other tokens, the same each time.

    With several ranks, the last batch of a validation can have fewer rows on some
    ranks, or none.

    Args:
        tokens: As for `TokenDataModule`.
        validation: Tokens for validation, for example
            ``open_tokens(path).part(0.9, 1)``.
        **arguments: As for `TokenDataModule`.
    """

    def __init__(
        self,
        tokens: str | PathLike[str] | TokenCorpus | Mixture,
        validation: str | PathLike[str] | TokenCorpus,
        **arguments: Any,  # noqa: ANN401 - passed through
    ) -> None:
        super().__init__(tokens, **arguments)
        self.validation = validation

    def val_dataloader(self) -> Epoch[Any]:
        """Starts reading. Validations are complete, even after Lightning's check."""
        shape = {
            name: self.arguments[name] for name in ("sequence_length", "batch_size")
        }
        return TokenLoader(
            self.validation, order="sequential", drop_last=False, **shape
        ).epoch(0)
