"""pagestream for PyTorch. Importing this imports torch."""

from __future__ import annotations

from pagestream.torch.dataset import TokenDataset
from pagestream.torch.loader import TokenLoader
from pagestream.torch.sampler import DistributedTokenSampler

__all__ = ["DistributedTokenSampler", "TokenDataset", "TokenLoader"]
