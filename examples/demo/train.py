"""The training loop. A `TokenLoader` prepares windows of a token file in advance."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

import pagestream
from files import DemoError
from model import Gpt, ModelSettings, next_token_loss
from pagestream.torch import TokenLoader

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

Batch = tuple["Tensor", "Tensor"]


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """The settings of the training.

    Attributes:
        steps: Updates of the weights.
        batch_windows: Windows in a batch.
        learning_rate: The highest rate, reached after the warm-up. From there it follows a cosine down.
        warmup_steps: Steps until the highest rate.
        evaluations: The number of times to measure the validation loss.
        validation_windows: The number of windows for the validation loss, the same each time.
        seed: Seed of the weights and of the order of windows.
    """

    steps: int = 600
    batch_windows: int = 8
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    evaluations: int = 12
    validation_windows: int = 48
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class LossCurve:
    """The results of training besides the weights. Losses are in nats per token.

    Attributes:
        train: Loss of each step's batch.
        validation_steps: The steps, from 0, after which the validation loss was measured.
        validation: The validation losses.
    """

    train: list[float]
    validation_steps: list[int]
    validation: list[float]

    @property
    def drop(self) -> float:
        """Returns how far the validation loss fell, in nats."""
        return self.validation[0] - self.validation[-1]


def pick_device() -> torch.device:
    """Returns the GPU if torch can use one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def validation_batch(path: Path, windows: int, sequence_tokens: int) -> Batch:
    """Returns windows spread evenly over a token file.

    Raises:
        DemoError: The file is shorter than one window.
    """
    tokens = pagestream.open_tokens(path)
    last_start = len(tokens) - sequence_tokens - 1
    if last_start < 0:
        message = f"{path}: {len(tokens)} tokens are too few for windows of {sequence_tokens}; use more files"
        raise DemoError(message)
    stride = max(1, last_start // windows)
    with TokenLoader(
        tokens,
        sequence_length=sequence_tokens,
        batch_size=windows,
        stride=stride,
        order="sequential",
        drop_last=False,
    ) as loader:
        x, y = next(loader)
        return x, y


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Returns the rate at a step, from 0: a linear warm-up, then a cosine down to a twentieth."""
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    return settings.learning_rate * warmup * (0.05 + 0.95 * cosine)


@torch.no_grad()
def evaluate(model: Gpt, batch: Batch) -> float:
    """Returns the mean loss over a batch."""
    model.eval()
    x, y = batch
    loss = next_token_loss(model, x, y).item()
    model.train()
    return loss


def train(
    train_path: Path,
    validation_path: Path,
    model_settings: ModelSettings,
    settings: TrainSettings,
    device: torch.device,
) -> tuple[Gpt, LossCurve]:
    """Trains a model from random weights.

    Args:
        train_path: Token file for training.
        validation_path: Token file for the validation loss.
        model_settings: Shape of the network.
        settings: The settings of the training.
        device: The device to train on.

    Returns:
        The trained model, in evaluation mode, and its loss curve.
    """
    torch.manual_seed(settings.seed)
    model = Gpt(model_settings).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.1
    )
    x, y = validation_batch(validation_path, settings.validation_windows, model_settings.context_tokens)
    held_out = x.to(device), y.to(device)
    curve = LossCurve(train=[], validation_steps=[0], validation=[evaluate(model, held_out)])
    interval_steps = max(1, settings.steps // settings.evaluations)
    with (
        TokenLoader(
            train_path,
            sequence_length=model_settings.context_tokens,
            batch_size=settings.batch_windows,
            seed=settings.seed,
            epochs=None,
            device=device,
        ) as batches,
        tqdm(range(settings.steps), desc=f"train on {device.type}", unit="step") as progress,
    ):
        for step in progress:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, settings)
            curve.train.append(_update(model, optimizer, next(batches)))
            if (step + 1) % interval_steps == 0 or step + 1 == settings.steps:
                curve.validation_steps.append(step + 1)
                curve.validation.append(evaluate(model, held_out))
                progress.set_postfix(validation_loss=f"{curve.validation[-1]:.3f}")
    return model.eval(), curve


def _update(model: Gpt, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    loss = next_token_loss(model, *batch)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
