"""BatchedHistogram shows the same numbers as prometheus_client's histogram."""

from __future__ import annotations

import random
import secrets
from threading import Thread

from prometheus_client import REGISTRY, CollectorRegistry, Histogram

from toc.runtime.batched_histogram import COUNT_AT, BatchedHistogram

BOUNDS = (0.001, 0.5, 1, 60)


def test_it_shows_what_prometheus_client_shows() -> None:
    name = f"toc_test_{secrets.token_hex(4)}_seconds"
    ours = BatchedHistogram(name, "a test", BOUNDS, "stage", ("a", "b"))
    registry = CollectorRegistry()
    theirs = Histogram(name, "a test", ["stage"], buckets=BOUNDS, registry=registry)
    rng = random.Random(1)  # noqa: S311 - values for a test
    values = [*BOUNDS, 0.0, 61.0, *(rng.expovariate(1) for _ in range(COUNT_AT + 7))]
    for value in values:
        for histogram in (ours, theirs):
            histogram.labels("b").observe(value)
    for stage in ("a", "b"):
        for bound in (*map(str, map(float, BOUNDS)), "+Inf"):
            labels = {"stage": stage, "le": bound}
            expected = registry.get_sample_value(f"{name}_bucket", labels) or 0.0
            assert REGISTRY.get_sample_value(f"{name}_bucket", labels) == expected, labels
    labels = {"stage": "b"}
    assert REGISTRY.get_sample_value(f"{name}_count", labels) == len(values)
    assert abs(sum(values) - (REGISTRY.get_sample_value(f"{name}_sum", labels) or 0.0)) < 1e-6


def test_no_value_is_lost_among_threads() -> None:
    name = f"toc_test_{secrets.token_hex(4)}_seconds"
    histogram = BatchedHistogram(name, "a test", BOUNDS)

    def observe_many() -> None:
        for _ in range(3 * COUNT_AT):
            histogram.observe(0.7)

    threads = [Thread(target=observe_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert REGISTRY.get_sample_value(f"{name}_count") == 24 * COUNT_AT
