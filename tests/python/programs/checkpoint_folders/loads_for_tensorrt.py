"""Loads a folder with the TensorRT-LLM plug-in. Prints its tensors, or the class of the error."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "plugins/hosts"))

from tensorrt_llm.mapping import Mapping

from pagestream.errors import SafetensorError
from pagestream.plugins.tensorrt_llm import PagestreamWeightLoader

try:
    found = PagestreamWeightLoader().load_weights(sys.argv[1], mapping=Mapping())
    print(json.dumps({name: tensor.tolist() for name, tensor in found.items()}))
except SafetensorError as error:
    print(json.dumps(type(error).__name__))
