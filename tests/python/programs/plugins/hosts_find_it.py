"""Entry points lead to the plug-ins. Each plug-in only registers itself, and SGLang's only on request."""

import os
import sys
from pathlib import Path

from serving import is_installed, register_by

register_by("vllm.general_plugins")
register_by("sglang.srt.plugins")
from sglang.srt.plugins.hook_registry import HookRegistry
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

assert type(get_model_loader(LoadConfig(load_format="pagestream"))).__mro__[1] is DefaultModelLoader
assert HookRegistry._hooks == []
os.environ["PAGESTREAM_SGLANG"] = "yes"
try:
    register_by("sglang.srt.plugins")
except ValueError as error:
    assert str(error) == """PAGESTREAM_SGLANG must be "on" or "off", not 'yes'"""
else:
    raise AssertionError("a value that means nothing passes")
assert HookRegistry._hooks == []
os.environ["PAGESTREAM_SGLANG"] = "on"
register_by("sglang.srt.plugins")
assert len(HookRegistry._hooks) == 2
assert not is_installed()
assert Path(sys.argv[1]).exists()
print("ok")
