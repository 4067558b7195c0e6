"""The interfaces of host programs that the plug-ins use, and how an installed version differs from them."""

import ast
from importlib.util import find_spec
from pathlib import Path

STAND_INS = Path(__file__).parents[1] / "programs/plugins/hosts"

_VLLM = "vllm/model_executor/model_loader"
_SGLANG = "sglang/srt"
_TENSORRT = "tensorrt_llm/_torch/models"

# For each package and file, the used names. A function has the parameters that the plug-ins pass or expect,
# and all its other parameters must have defaults. A class has its used fields. None marks a generator
# function.
USED = {
    "vllm": {
        f"{_VLLM}/__init__.py": {"register_model_loader": ["load_format"]},
        f"{_VLLM}/default_loader.py": {
            "DefaultModelLoader.__init__": ["self", "load_config"],
            "DefaultModelLoader._get_weights_iterator": ["self", "source"],
        },
        f"{_VLLM}/weight_utils.py": {"safetensors_weights_iterator": None},
        "vllm/config/load.py": {
            "LoadConfig": ["load_format", "safetensors_load_strategy", "model_loader_extra_config"]
        },
    },
    "sglang": {
        f"{_SGLANG}/plugins/hook_registry.py": {
            "HookRegistry.register": ["cls", "target", "hook", "hook_type"],
            "HookType": ["AROUND"],
        },
        f"{_SGLANG}/model_loader/weight_utils.py": {
            "safetensors_weights_iterator": None,
            "buffered_multi_thread_safetensors_weights_iterator": None,
        },
    },
    "tensorrt_llm": {
        f"{_TENSORRT}/modeling_utils.py": {"register_checkpoint_weight_loader": ["name"]},
        f"{_TENSORRT}/checkpoints/base_weight_loader.py": {
            "BaseWeightLoader.load_weights": ["self", "checkpoint_dir", "mapping"],
            "ConsumableWeightsDict.__init__": ["self", "weights"],
        },
    },
}


def roots():
    """Returns the folders to compare: the stand-ins, and the installed packages."""
    found = [(package, STAND_INS) for package in USED]
    for package in USED:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found.append((package, Path(spec.origin).parents[1]))
    return found


def differences(package, root):
    """Returns the used names and parameters that a package below `root` lacks. Imports nothing."""
    lacking = []
    for file, names in USED[package].items():
        path = root / file
        tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
        for name, wanted in names.items():
            found = _found(tree, name.split("."))
            if found is None:
                lacking.append(f"{file} has no {name}")
            elif wanted is None:
                if not any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(found)):
                    lacking.append(f"{file}: {name} yields nothing")
            elif isinstance(found, ast.ClassDef):
                absent = set(wanted) - _fields(found)
                lacking += [f"{file}: {name} has no {field}" for field in sorted(absent)]
            else:
                lacking += _other_parameters(f"{file}: {name}", found.args, wanted)
    return lacking


def _other_parameters(title, arguments, wanted):
    parameters = [each.arg for each in arguments.posonlyargs + arguments.args]
    if parameters[: len(wanted)] != wanted:
        return [f"{title} takes {parameters}, not {wanted}"]
    required = parameters[: len(parameters) - len(arguments.defaults)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required += [each.arg for each, default in keywords if default is None]
    return [f"{title} needs {name}" for name in required if name not in wanted]


def _found(tree, parts):
    kinds = (ast.ClassDef, ast.FunctionDef)
    for part in parts:
        inside = [node for node in tree.body if isinstance(node, kinds) and node.name == part]
        if not inside:
            return None
        tree = inside[-1]
    return tree


def _fields(found):
    annotated = [node.target for node in found.body if isinstance(node, ast.AnnAssign)]
    assigned = [each for node in found.body if isinstance(node, ast.Assign) for each in node.targets]
    return {each.id for each in annotated + assigned}
