"""safetensors' names, on pagestream: ``import pagestream.safetensors as safetensors``.

Reading is ours: files open where mapping is refused, headers are checked strictly, arrays and tensors
are not copied. They can be written, as upstream's can: their pages are copied when they are written,
so that the file, and what others loaded from it, never changes. Writing files is upstream's own code.
"""

from __future__ import annotations

from pagestream.errors import SafetensorError
from pagestream.safetensors._open import safe_open

__all__ = ["SafetensorError", "safe_open"]
