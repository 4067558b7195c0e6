from abc import ABC, abstractmethod


class ConsumableWeightsDict:
    def __init__(self, weights, *, consumption_observer=None):
        self._weights = weights

    def items(self):
        return list(self._weights.items())


class BaseWeightLoader(ABC):
    @abstractmethod
    def load_weights(self, checkpoint_dir, mapping, **kwargs):
        pass
