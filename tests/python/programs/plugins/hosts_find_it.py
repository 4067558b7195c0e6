"""Each plug-in is found by its entry point and does nothing but register."""

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
assert len(HookRegistry._hooks) == 2
assert not is_installed()
assert Path(sys.argv[1]).exists()
print("ok")
