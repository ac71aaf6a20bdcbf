"""The starts of ramps over all processes: the rate limit of ADR 45, with a rate that grows (ADR 44)."""

from __future__ import annotations

import logging
import threading

from toc.domain.limit_terms import ONE_PARTITION, LimitTerms
from toc.errors import TimerUnavailable
from toc.limits.node_share import NodeShare
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.timer.limit_store import (
    HOLDERS_MAX,
    LimitStore,
    PartitionAnswer,
    PartitionRelease,
    PartitionWish,
)

log = logging.getLogger(__name__)

RAMP_PREFIX = "ramp:"
"""The bucket of a ramp is that of the type "ramp:TARGET". No biz_type has a colon."""
BURST_S = (
    0.1  # in one moment at most as many jobs start as the rate allows in so long, and at least one
)
SHARE_BURST_S = 0.2  # without Redis a scanner asks every 0.1 s at most: less would be lost between
RAMPS_MAX = 10_000  # more than `pauses.max` allows


class RampStarts:
    """The ramps of all targets, as one process takes starts from them. Thread-safe.

    One bucket in Redis for each target: all processes take from it, so that they start together no more than
    burst + rate x time; a wipe of Redis empties it. What was returned counts as not taken from then on, and
    comes back whole, unlike a limit's: fetchers take starts in vain all the time, and must not slow the ramp
    down. While Redis does not answer, this process takes its part.
    `store`: None without Redis.
    """

    def __init__(self, clock: Clock, store: LimitStore | None = None) -> None:
        self.store = store
        self._share = NodeShare(clock, RAMPS_MAX)
        self._lock = threading.Lock()  # of the share; never held during a call of Redis
        self._log_throttle = LogThrottle(log)

    def set_nodes(self, index: int | None, nodes: int) -> None:
        """Without Redis, this process takes the rate divided by `nodes`. See `NodeShare.set_nodes`."""
        with self._lock:
            self._share.set_nodes(index, nodes)

    def take_starts(self, target: str, rate_per_s: float, wanted: int) -> PartitionAnswer:
        """Takes up to `wanted` starts (HOLDERS_MAX at most) of a ramp, whose rate is `rate_per_s` now.

        `rate_per_s`: of all processes together, more than 0. Calls Redis once.
        """
        wanted = min(wanted, HOLDERS_MAX)
        name = RAMP_PREFIX + target
        if self.store is not None:
            wish = PartitionWish(ONE_PARTITION, [""] * wanted)  # a rate counts, and knows no names
            try:
                (answer,), *_ = self.store.take(name, _terms(rate_per_s, BURST_S), 0, [wish])
            except TimerUnavailable as error:
                text = "Redis does not answer: this process takes its share of the ramps: %s"
                self._log_throttle.warning("share", text, error)
            else:
                with self._lock:
                    self._share.forget_type(name)
                return answer
        terms = _terms(rate_per_s, SHARE_BURST_S)
        with self._lock:
            return self._share.take(name, terms, ONE_PARTITION, wanted, 0)

    def return_starts(self, target: str, rate_per_s: float, unused: int) -> None:
        """Returns starts that no job has used. While Redis does not answer they are lost."""
        name, terms = RAMP_PREFIX + target, _terms(rate_per_s, BURST_S)
        assert terms.interval_ms is not None  # noqa: S101 - a ramp has a rate
        with self._lock:
            if self._share.return_starts(name, ONE_PARTITION, terms.interval_ms, unused):
                return
        if self.store is None:
            return
        try:
            self.store.release(name, terms, [PartitionRelease(ONE_PARTITION, [(None, unused)], [])])
        except TimerUnavailable as error:
            self._log_throttle.warning("return", "unused starts of a ramp are lost: %s", error)

    def forget_ramp(self, target: str) -> None:
        """The ramp is over: the next one of this target begins with an empty bucket, without Redis too."""
        with self._lock:
            self._share.forget_type(RAMP_PREFIX + target)


def _terms(rate_per_s: float, burst_s: float) -> LimitTerms:
    return LimitTerms(1000 / rate_per_s, max(1, int(rate_per_s * burst_s)), None, None)
