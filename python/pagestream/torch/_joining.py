"""Begins a load, either by the ranks of a process group or by this process alone.

Modules that ranks need are imported for the first group, because some builds of torch lack
``torch.distributed``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagestream.torch._meeting import Meeting


@contextlib.contextmanager
def joined(group: dist.ProcessGroup | None) -> Iterator[Meeting | None]:
    """Joins the ranks of a group, for an iterator that leaves at its end. After a failure, this leaves.

    Raises:
        TypeError: `group` is not a process group.
        RuntimeError: Another load of this process uses the group.
    """
    if group is None:
        yield None
        return
    if not isinstance(group, dist.ProcessGroup):
        message = f"process_group must be a torch.distributed.ProcessGroup, not {group!r}"  # type: ignore[unreachable]
        raise TypeError(message)
    from pagestream.torch._meeting import Meeting

    with contextlib.ExitStack() as stack:
        meeting = stack.enter_context(Meeting(group))
        yield meeting
        stack.pop_all()
