"""pagestream for PyTorch. Importing this imports torch."""

from __future__ import annotations

from pagestream.torch.dataset import TokenDataset

__all__ = ["TokenDataset"]
