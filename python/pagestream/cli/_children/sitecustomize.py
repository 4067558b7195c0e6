# ruff: noqa: INP001 - Python finds the module by its name, in a folder of its own
"""Puts pagestream in place of safetensors in the processes that a program under ``pagestream run`` starts.

`run` puts this folder in front of ``PYTHONPATH``, and Python imports the module of this name when it starts
(https://docs.python.org/3/library/site.html). The module of that name that this one hides is imported, too.
"""

import contextlib
import importlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

# Another Python may not have pagestream.
with contextlib.suppress(ImportError):
    from pagestream.safetensors import install

    install()

sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _HERE]
_own = sys.modules.pop(__name__)
try:
    importlib.import_module(__name__)
except ModuleNotFoundError:
    sys.modules[__name__] = _own
