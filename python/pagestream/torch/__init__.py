"""pagestream for PyTorch. Importing this imports torch."""

from __future__ import annotations

from pagestream.torch.dataset import TokenDataset
from pagestream.torch.loader import TokenLoader
from pagestream.torch.modules import LoadReport, load_into
from pagestream.torch.sampler import DistributedTokenSampler
from pagestream.torch.weights import load_state_dict, stream_checkpoint

__all__ = [
    "DistributedTokenSampler",
    "LoadReport",
    "TokenDataset",
    "TokenLoader",
    "load_into",
    "load_state_dict",
    "stream_checkpoint",
]
