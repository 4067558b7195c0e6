"""Metrics of a `TokenLoader` in TensorBoard, Weights & Biases and Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric
    from torch.utils.tensorboard import SummaryWriter

    from pagestream import TokenLoader

# These metrics describe the present. All other metrics are counters.
GAUGES = {"lookahead_batches", "ring_batches", "threads", "buffers_allocated"}


def to_tensorboard(writer: SummaryWriter, loader: TokenLoader, step: int) -> None:
    """Adds a point to the curve of each metric."""
    for name, value in loader.metrics().as_dict().items():
        writer.add_scalar(f"loader/{name}", value, step)


def to_wandb(run: Any, loader: TokenLoader, step: int) -> None:  # noqa: ANN401 - what `wandb.init` returns
    """Logs each metric with the step."""
    run.log(
        {f"loader/{name}": value for name, value in loader.metrics().as_dict().items()},
        step=step,
    )


class LoaderCollector(Collector):
    """Metrics for Prometheus: ``REGISTRY.register(LoaderCollector(loader))``."""

    def __init__(self, loader: TokenLoader) -> None:
        self.loader = loader

    def collect(self) -> Iterator[Metric]:
        """Yields one family for each metric."""
        for name, value in self.loader.metrics().as_dict().items():
            kind = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            yield kind(f"pagestream_loader_{name}", name.replace("_", " "), value=value)
