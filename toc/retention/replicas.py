"""How far the replicas of a database are behind: a purge must not be what they choke on."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from toc.runtime.clock import Clock
from toc.runtime.seldom import Seldom
from toc.store.replicas import Replica, Silent

log = logging.getLogger(__name__)

LOOK_S = 1.0  # how old what they said may be


class Replicas:
    """The replicas of one database. Without any there is no lag."""

    def __init__(self, replicas: Sequence[Replica], clock: Clock) -> None:
        self._replicas, self._clock = replicas, clock
        self._lag_s, self._until_s = 0.0, -math.inf
        self._seldom = Seldom(log)

    @property
    def lag_s(self) -> float:
        """Of the one that is furthest behind, in seconds; infinite when one stands still or does not say."""
        if self._replicas and self._clock.monotonic_s() >= self._until_s:
            self._lag_s = max(map(self._of, self._replicas))
            self._until_s = self._clock.monotonic_s() + LOOK_S
        return self._lag_s

    def _of(self, replica: Replica) -> float:
        try:
            lag_s = replica.lag_s()
        except Silent as error:
            self._seldom.warning(replica.name, "no purge: %s: %s", replica.name, error.orig)
            return math.inf
        if lag_s is None:
            self._seldom.warning(replica.name, "no purge: %s does not replicate", replica.name)
            return math.inf
        return lag_s
