"""TensorRT-LLM: the weight loader ``pagestream``. Importing this module registers it."""

from __future__ import annotations

import os
from glob import escape, glob
from typing import TYPE_CHECKING, Any

from tensorrt_llm._torch.models.checkpoints.base_weight_loader import BaseWeightLoader, ConsumableWeightsDict
from tensorrt_llm._torch.models.modeling_utils import register_checkpoint_weight_loader

from pagestream.safetensors.torch import load_file
from pagestream.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from tensorrt_llm.mapping import Mapping

__all__ = ["PagestreamWeightLoader"]


@register_checkpoint_weight_loader("pagestream")
class PagestreamWeightLoader(BaseWeightLoader):
    """Loads safetensors files for TensorRT-LLM as views of the files on the CPU, with read-ahead.

    ``HfCheckpointLoader(weight_loader=PagestreamWeightLoader())`` uses it.

    Examples:
        >>> PagestreamWeightLoader().__class__.__base__.__name__
        'BaseWeightLoader'
    """

    def load_weights(
        self,
        checkpoint_dir: str,
        mapping: Mapping,  # noqa: ARG002 - of the interface; each rank takes its part of the views
        use_consolidated: bool = False,  # noqa: FBT001, FBT002 - TensorRT-LLM's
        **options: Any,  # noqa: ANN401, ARG002 - options of its other loaders: `model`, `source_identity`
    ) -> ConsumableWeightsDict:
        """Returns all tensors of a folder by name, from the files that `open_checkpoint` uses.

        Links may lead anywhere, as with the host's own loader.

        Args:
            checkpoint_dir: The folder.
            mapping: The rank of this process; not needed.
            use_consolidated: Whether to use the consolidated file of a checkpoint that has one beside its
                shards.
            options: Options of the host's other loaders; ignored.

        Raises:
            FileNotFoundError: The folder has no safetensors files.
            SafetensorError: Not a valid checkpoint.

        Examples:
            >>> from tensorrt_llm.mapping import Mapping
            >>> weights = PagestreamWeightLoader().load_weights(".", mapping=Mapping())
            >>> sorted(name for name, _ in weights.items())
            ['bias', 'weight']
        """
        found = sorted(glob(os.path.join(escape(checkpoint_dir), "*.safetensors")))
        if not found:
            message = f"no safetensors files in {checkpoint_dir}"
            raise FileNotFoundError(message)
        chosen = [path for path in found if ("consolidated" in os.path.basename(path)) == use_consolidated]
        # An index names the shards. Without an index, consolidated files beside shards are left out here.
        has_index = bool(glob(os.path.join(escape(checkpoint_dir), "*.safetensors.index.json")))
        is_chosen = use_consolidated if has_index else chosen != found
        with open_checkpoint(
            (chosen or found) if is_chosen else checkpoint_dir, cache_root=os.sep
        ) as checkpoint:
            names_of: dict[str, list[str]] = {path: [] for path in checkpoint.files}
            for name in checkpoint:
                names_of[checkpoint.info(name).path].append(name)
        weights: dict[str, Any] = {}
        for path, names in names_of.items():
            tensors = load_file(path)
            weights |= {name: tensors[name] for name in names}
        return ConsumableWeightsDict(weights)
