from abc import ABC, abstractmethod

from tensorrt_llm.mapping import Mapping


class ConsumableWeightsDict:
    def __init__(self, weights, *, consumption_observer=None):
        self._weights = weights

    def items(self):
        return list(self._weights.items())


class BaseWeightLoader(ABC):
    @abstractmethod
    def load_weights(self, checkpoint_dir: str, mapping: Mapping, **kwargs):
        pass

    def cleanup(self):
        pass
