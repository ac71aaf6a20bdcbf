"""Measures the largest rate at which a process has started jobs of each type, in the last hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from toc.domain.pauses import ALL, biz_type_of_target, topic_of_target
from toc.runtime import metrics
from toc.runtime.clock import Clock

PERIOD_S = 10.0
PASSED_S_MIN = 1.0
KEPT = 360  # measurements: an hour


def read_started_counts() -> dict[str, float]:
    """How many handlers this process has started or leased out, by type."""
    return {
        sample.labels["biz_type"]: sample.value
        for family in metrics.FIRED.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


class PeakMeter:
    """Not thread-safe. `home_topic_of(biz_type)`: the topic of the settings. `read_counts()`: see above."""

    def __init__(
        self,
        clock: Clock,
        home_topic_of: Callable[[str], str],
        read_counts: Callable[[], Mapping[str, float]] = read_started_counts,
    ) -> None:
        self._clock, self._home_topic_of, self._read_counts = clock, home_topic_of, read_counts
        self._counts, self._measured_s = read_counts(), clock.monotonic_s()
        # Jobs a second, by type; types that started none are left out.
        self._rates: deque[Mapping[str, float]] = deque(maxlen=KEPT)

    def measure_if_due(self) -> None:
        """Measures, if the last measurement is PERIOD_S old."""
        if self._clock.monotonic_s() - self._measured_s >= PERIOD_S:
            self.measure_rates()

    def measure_rates(self) -> None:
        """Adds a measurement of the time since the last one."""
        now_s = self._clock.monotonic_s()
        passed_s = now_s - self._measured_s
        if passed_s < PASSED_S_MIN:  # a rate over a moment would say nothing
            return
        counts = self._read_counts()
        started = {name: count - self._counts.get(name, 0.0) for name, count in counts.items()}
        self._rates.append({name: n / passed_s for name, n in started.items() if n > 0})
        self._counts, self._measured_s = counts, now_s

    def peak_of_target(self, target: str) -> float:
        """The largest rate of a pause's target in the last hour, in jobs a second, up to now."""
        self.measure_rates()
        return max((self._rate_of(target, rates) for rates in self._rates), default=0.0)

    def _rate_of(self, target: str, rates: Mapping[str, float]) -> float:
        if target == ALL:
            return sum(rates.values())
        name, topic = biz_type_of_target(target), topic_of_target(target)
        if name is not None:
            return rates.get(name, 0.0)
        return sum(rate for each, rate in rates.items() if self._home_topic_of(each) == topic)
