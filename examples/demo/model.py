"""A small GPT: pre-norm blocks, causal attention with rotary positions, tied input and output weights."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """The shape of the network.

    Attributes:
        vocabulary_tokens: Number of different tokens.
        context_tokens: The longest training sequence.
        layers: Number of transformer blocks.
        heads: Attention heads in each block; must divide `width` into even parts.
        width: Size of the residual stream.
    """

    vocabulary_tokens: int = 4096
    context_tokens: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 128


def rotate(x: Tensor) -> Tensor:
    """Rotates each pair of channels by an angle that grows with the position (rotary embedding).

    The product of a rotated query and a rotated key depends on their distance.
    https://arxiv.org/abs/2104.09864

    Args:
        x: Queries or keys [..., tokens, channels].
    """
    tokens, channels = x.shape[-2:]
    frequencies = 10_000.0 ** (-torch.arange(0, channels, 2, device=x.device) / channels)
    angles = torch.outer(torch.arange(tokens, device=x.device), frequencies)
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class CausalAttention(nn.Module):
    """Multi-head self-attention in which each token sees itself and the earlier tokens."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.query_key_value = nn.Linear(settings.width, 3 * settings.width, bias=False)
        self.output = nn.Linear(settings.width, settings.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes `x` [batch, tokens, width] along its tokens."""
        batch, tokens, width = x.shape
        projected = self.query_key_value(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return output


class Block(nn.Module):
    """Attention, followed by a feed-forward network. Both read the normed stream and add to it."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(settings)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the results of both to `x` [batch, tokens, width]."""
        x = x + self.attention(self.attention_norm(x))
        hidden = functional.gelu(self.expand(self.feed_forward_norm(x)), approximate="tanh")
        output: Tensor = x + self.contract(hidden)
        return output


class Gpt(nn.Module):
    """A decoder-only language model.

    The output layer uses the matrix of the token embedding. `forward` ties it, without a second parameter. A
    state dict therefore has each tensor once, as a safetensors file requires.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        self.token_embedding = nn.Embedding(settings.vocabulary_tokens, settings.width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.final_norm = nn.LayerNorm(settings.width)
        self._initialise()

    def _initialise(self) -> None:
        """Sets small normal weights as in GPT-2, and smaller ones in layers that add to the stream."""
        smaller = 0.02 * (2 * self.settings.layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                adds = name.endswith(("output.weight", "contract.weight"))
                nn.init.normal_(parameter, std=smaller if adds else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns logits [batch, tokens, vocabulary] of the next tokens for token numbers [batch, tokens]."""
        x = self.token_embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.final_norm(x), self.token_embedding.weight)


def next_token_loss(model: Gpt, x: Tensor, y: Tensor) -> Tensor:
    """Returns the mean cross-entropy of predictions for `x` and targets `y`, in nats per token."""
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def generate(
    model: Gpt,
    prompt: list[int],
    *,
    new_tokens: int,
    temperature: float = 0.8,
    top_k: int = 40,
    seed: int = 0,
) -> list[int]:
    """Continues a prompt token by token.

    Args:
        model: A trained model, in evaluation mode.
        prompt: The initial token numbers, at least one.
        new_tokens: The number of tokens to add.
        temperature: Values below 1 favour likely tokens.
        top_k: Draw only from this many of the likeliest tokens.
        seed: The same seed gives the same text.

    Returns:
        The prompt and its continuation.
    """
    device = model.token_embedding.weight.device
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    for _ in range(new_tokens):
        context = torch.tensor([tokens[-model.settings.context_tokens :]], device=device)
        logits = model(context)[0, -1].cpu() / temperature
        likeliest, candidates = logits.topk(min(top_k, len(logits)))
        choice = torch.multinomial(likeliest.softmax(0), 1, generator=generator)
        tokens.append(int(candidates[choice]))
    return tokens
