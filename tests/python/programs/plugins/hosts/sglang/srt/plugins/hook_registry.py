import functools
import importlib
import sys
from enum import Enum


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    _hooks = []

    @classmethod
    def register(cls, target: str, hook, hook_type=HookType.AFTER, *, source=None):
        assert hook_type is HookType.AROUND, "this plays the one kind of hook that is used"
        cls._hooks.append((target, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks:
            module_name, name = target.rsplit(".", 1)
            original = getattr(importlib.import_module(module_name), name)
            wrapped = functools.wraps(original)(functools.partial(hook, original))
            for module in [module for module in sys.modules.values() if getattr(module, name, None) is original]:
                setattr(module, name, wrapped)
