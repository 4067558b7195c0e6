"""Each plug-in is found by its entry point and does nothing but register."""

import sys
from pathlib import Path

import safetensors
from serving import register_by

upstream = safetensors.safe_open
register_by("vllm.general_plugins")
register_by("sglang.srt.plugins")
from sglang.srt.plugins.hook_registry import HookRegistry
from vllm.model_executor.model_loader import FORMATS

assert FORMATS["pagestream"].__mro__[1] is FORMATS["safetensors"]
assert len(HookRegistry._hooks) == 2
assert safetensors.safe_open is upstream
assert Path(sys.argv[1]).exists()
print("ok")
