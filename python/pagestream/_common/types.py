"""Argument types that several packages share."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing_extensions import Buffer as Buffer  # noqa: PLC0414 - re-exported
elif sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    Buffer = Any

Mode = Literal["auto", "shared", "private", "read"]
StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
