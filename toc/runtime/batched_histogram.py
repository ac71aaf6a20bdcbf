"""A histogram of Prometheus for values that many threads observe often.

prometheus_client's own histogram takes two locks for each value; with 32 handler threads this was a quarter
of the Python time of a busy worker. Here a value is only appended to a queue. The values are counted when
COUNT_AT of them wait, and when somebody reads the metrics.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

COUNT_AT = 1000


class BatchedSeries:
    """The values of one label. Thread-safe. `bounds`: the upper bounds of the buckets, in order."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = (*bounds, float("inf"))
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._waiting: deque[float] = deque()
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        self._waiting.append(value)
        if len(self._waiting) >= COUNT_AT:
            self._count_waiting_values()

    def read_buckets(self) -> tuple[list[tuple[str, float]], float]:
        """([(upper bound, how many values are not above it)], the sum of all values)."""
        self._count_waiting_values()
        with self._lock:
            names = map(floatToGoString, self._bounds)
            return list(zip(names, accumulate(self._counts), strict=True)), self._sum

    def _count_waiting_values(self) -> None:
        with self._lock:
            for _ in range(
                len(self._waiting)
            ):  # values that arrive meanwhile wait for the next time
                value = self._waiting.popleft()
                self._counts[bisect_left(self._bounds, value)] += 1
                self._sum += value


class BatchedHistogram(Collector):
    """A histogram with at most one label, in the default registry.

    label, label_values: the name of the label, and all values that it has. `bounds`: upper bounds of the
    buckets, in order, without infinity.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        bounds: Sequence[float],
        label: str = "",
        label_values: Sequence[str] = ("",),
    ) -> None:
        self._name, self._documentation = name, documentation
        self._labels = [label] if label else []
        self._series = {value: BatchedSeries(bounds) for value in label_values}
        REGISTRY.register(self)

    def labels(self, value: str) -> BatchedSeries:
        """The series of one value of the label."""
        return self._series[value]

    def observe(self, value: float) -> None:
        """Adds a value to the series without a label."""
        self._series[""].observe(value)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for value, series in self._series.items():
            buckets, total = series.read_buckets()
            family.add_metric([value] if self._labels else [], buckets, total)
        yield family
