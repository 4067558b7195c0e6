# ruff: noqa: INP001 - Python finds the module by its name, in a folder of its own
# ruff: noqa: ANN001, ANN202, F401, UP004 - types are in comments, because Python 2.7 must parse this file
"""Puts pagestream in place of safetensors in Python processes at and below ``pagestream run``.

`run` puts this folder in front of ``PYTHONPATH``, and Python imports the module of this name when it starts
(https://docs.python.org/3/library/site.html). This module hides the user's ``sitecustomize``, and imports it.

A process may run any version of Python. In a version too old for pagestream, this module does nothing but
import the user's ``sitecustomize``.
"""

import os
import sys

# Each Python process runs this module, and importing `typing` takes longer than the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# The oldest Python that pagestream supports.
_OLDEST = (3, 11)
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Installer(object):
    """Installs pagestream when safetensors is first imported. Other processes are not delayed."""

    def find_spec(self, name, path=None, target=None):
        # type: (str, Sequence[str] | None, ModuleType | None) -> ModuleSpec | None
        if name.partition(".")[0] != "safetensors":
            return None
        sys.meta_path.remove(self)
        try:
            from pagestream.safetensors import install
        except ImportError as error:
            # Another Python may lack it. Without this message, a user would look for the speed-up in vain.
            if sys.stderr is not None:
                told = "pagestream run: {} cannot import pagestream ({}): it uses safetensors as it is\n"
                sys.stderr.write(told.format(sys.executable, error))
        else:
            install()
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        return next(filter(None, specs), None)


if sys.version_info >= _OLDEST:
    sys.meta_path.insert(0, _Installer())
sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _HERE]
# The reference matters: Python 2.7 clears a running module once nothing refers to it.
_own = sys.modules.pop(__name__)
# No `except`: Python itself ignores a missing `sitecustomize`, and reports an error inside it.
__import__(__name__)
