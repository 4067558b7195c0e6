"""Rejects worker processes of torch's `DataLoader`, because each of them would get every window."""

from __future__ import annotations

import sys

# Part of each error of a loader in a `DataLoader`.
NO_WORKERS = (
    "a TokenLoader needs no DataLoader and no workers: iterate it directly, because its own threads read "
    "ahead; for a DataLoader there is pagestream.torch.TokenDataset"
)


def refuse_in_a_worker() -> None:
    """Does nothing outside of a worker.

    Raises:
        RuntimeError: This process is a worker of a `DataLoader`.
    """
    # torch's module knows, and a worker has imported it.
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        message = (
            f"this process is a worker of a DataLoader, and each worker would get every window; {NO_WORKERS}"
        )
        raise RuntimeError(message)
