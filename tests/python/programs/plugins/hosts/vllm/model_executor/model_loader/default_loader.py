import glob
import os
from dataclasses import dataclass

from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

KEYS = {"enable_multithread_load", "num_threads", "enable_weights_track"}


class DefaultModelLoader:
    @dataclass
    class Source:
        model_or_path: str
        revision: str | None
        prefix: str = ""

    def __init__(self, load_config):
        self.load_config = load_config
        self.local_expert_ids = None
        unknown = set(load_config.model_loader_extra_config) - KEYS
        if unknown:
            raise ValueError("unexpected extra config keys", unknown)

    def _get_weights_iterator(self, source):
        assert self.load_config.load_format == "safetensors", "a format that vLLM does not know"
        found = sorted(glob.glob(os.path.join(source.model_or_path, "*.safetensors")))
        strategy = self.load_config.safetensors_load_strategy
        weights = safetensors_weights_iterator(found, False, strategy, local_expert_ids=self.local_expert_ids)
        return ((source.prefix + name, tensor) for name, tensor in weights)
