"""Measures how far the replicas of a database are behind: a purge must not overload replicas."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.store.replica import Replica, ReplicaUnavailable

log = logging.getLogger(__name__)

FRESH_S = 1.0  # how long a measured lag is used again


class ReplicaLag:
    """The lag of one database's replicas; 0 without replicas."""

    def __init__(self, replicas: Sequence[Replica], clock: Clock) -> None:
        self._replicas, self._clock = replicas, clock
        self._lag_s, self._until_s = 0.0, -math.inf
        self._log_throttle = LogThrottle(log)

    @property
    def lag_s(self) -> float:
        """The largest lag in seconds; infinite when a replica has stopped or does not answer."""
        if self._replicas and self._clock.monotonic_s() >= self._until_s:
            self._lag_s = max(map(self._measure_lag_s, self._replicas))
            self._until_s = self._clock.monotonic_s() + FRESH_S
        return self._lag_s

    def _measure_lag_s(self, replica: Replica) -> float:
        try:
            lag_s = replica.read_lag_s()
        except ReplicaUnavailable as error:
            self._log_throttle.warning(replica.name, "no purge: %s: %s", replica.name, error.orig)
            return math.inf
        if lag_s is None:
            self._log_throttle.warning(
                replica.name, "no purge: %s does not replicate", replica.name
            )
            return math.inf
        return lag_s
