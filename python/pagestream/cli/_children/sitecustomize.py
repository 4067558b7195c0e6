# ruff: noqa: INP001 - Python finds the module by its name, in a folder of its own
"""Puts pagestream in place of safetensors in the processes that a program under ``pagestream run`` starts.

`run` puts this folder in front of ``PYTHONPATH``, and Python imports the module of this name when it starts
(https://docs.python.org/3/library/site.html). The module of that name that this one hides is imported, too.
"""

from __future__ import annotations

import importlib
import os
import sys

# Each Python process runs this: `typing` and `contextlib` take longer to import than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Installer:
    """Installs pagestream when safetensors is first imported. Other processes wait for nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "safetensors":
            return None
        sys.meta_path.remove(self)
        try:
            from pagestream.safetensors import install
        except ImportError:
            pass  # another Python may not have it
        else:
            install()
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        return next(filter(None, specs), None)


sys.meta_path.insert(0, _Installer())
sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _HERE]
_own = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ModuleNotFoundError:
    sys.modules[__name__] = _own
