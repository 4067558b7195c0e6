"""Types of arguments that several packages take."""

from __future__ import annotations

import os
from typing import Literal

Mode = Literal["auto", "shared", "private", "read"]
StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
