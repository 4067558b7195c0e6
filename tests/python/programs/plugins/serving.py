"""Loads a folder with one of the plug-ins, in the way of its host. ``hosts/`` has stand-ins."""

import os
import sys
from glob import glob
from importlib.metadata import entry_points
from pathlib import Path

import pagestream.safetensors

HERE = Path(__file__).parent
sys.path += [str(HERE / "hosts"), str(HERE.parent / "safetensors_slow_clients")]


def is_installed():
    """Returns whether ``import safetensors`` currently gives pagestream's module."""
    import safetensors

    return safetensors is pagestream.safetensors


def register_by(group):
    """Calls the plug-in that a host finds."""
    (found,) = [each for each in entry_points(group=group) if each.name == "pagestream"]
    register = found.load()
    register()
    return register


def vllm(folder, **options):
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    register = register_by("vllm.general_plugins")
    register()  # vLLM may call this twice in a process
    loader = get_model_loader(LoadConfig(load_format="pagestream", **options))
    return loader, loader._get_weights_iterator(loader.Source(folder, None, prefix=""))


def vllm_loads(folder):
    return dict(vllm(folder)[1])


def sglang(folder, name, *arguments):
    from sglang.srt.model_loader import loader
    from sglang.srt.plugins.hook_registry import HookRegistry

    os.environ["PAGESTREAM_SGLANG"] = "on"
    register_by("sglang.srt.plugins")
    HookRegistry.apply_hooks()
    return dict(getattr(loader, name)(sorted(glob(f"{folder}/*.safetensors")), *arguments))


def sglang_loads(folder):
    return sglang(folder, "safetensors_weights_iterator")


def sglang_loads_by_threads(folder):
    return sglang(folder, "buffered_multi_thread_safetensors_weights_iterator", 4)


def tensorrt_llm_loads(folder):
    from tensorrt_llm._torch.models.modeling_utils import LOADERS
    from tensorrt_llm.mapping import Mapping

    from pagestream.plugins.tensorrt_llm import PagestreamWeightLoader

    assert LOADERS["pagestream"] is PagestreamWeightLoader
    # The host's `ModelLoader` passes these to every loader.
    options = {"mapping": Mapping(), "model": None, "source_identity": None}
    return dict(PagestreamWeightLoader().load_weights(folder, **options).items())


if __name__ == "__main__":
    from loading import digest

    way, *folders = sys.argv[1:]
    for each in folders:
        print(digest(globals()[way](each)))
        assert not is_installed(), "installed for longer than the load"
