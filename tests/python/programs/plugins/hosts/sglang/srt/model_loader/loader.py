from sglang.srt.model_loader.weight_utils import (
    buffered_multi_thread_safetensors_weights_iterator,
    safetensors_weights_iterator,
)

__all__ = ["buffered_multi_thread_safetensors_weights_iterator", "safetensors_weights_iterator"]
