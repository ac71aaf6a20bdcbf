"""Types of the rig that may not always run: with limits, paused again and again, or recurring.

Their load is a small part of the whole, and comes in bunches that are due at the same moment: larger than a
burst, so that the limits are used up, and small enough that no backlog remains for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

RATE = "chaos.limit.rate"
PLACES = "chaos.limit.places"  # a concurrency
SHOPS = "chaos.limit.shops"  # one at a time for each biz_id
PAUSED = "chaos.paused"
RECURRING = "chaos.recurring"

RESTRICTED_TYPES: dict[str, dict[str, Any]] = {
    RATE: {"retry": [0.5], "max_attempts": 32},
    PLACES: {"retry": [0.5], "max_attempts": 32},
    SHOPS: {"retry": [0.5], "max_attempts": 32},
    PAUSED: {"retry": [0.5], "max_attempts": 32},
    RECURRING: {"retry": [0.5], "max_attempts": 32},
}
"""The terms of their handlers."""

SLEEPS_S = {PLACES: 0.2, SHOPS: 0.1, RECURRING: 0.1}
"""How long a handler of the type takes."""
SHOP_IDS = range(1, 7)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a type is limited to, for the catalogue and for the judge. `per_shop`: each biz_id by itself."""

    rate_per_s: int | None = None
    burst: int = 0
    concurrency: int | None = None
    per_shop: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """As the catalogue has them."""
        found: dict[str, Any] = {"concurrency": self.concurrency} if self.concurrency else {}
        if self.rate_per_s is not None:
            found |= {"rate": f"{self.rate_per_s}/s", "burst": self.burst}
        if self.per_shop:
            found["per"] = "biz_id"
        return found


LIMITS = {
    RATE: Limit(rate_per_s=10, burst=5),
    PLACES: Limit(concurrency=2),
    SHOPS: Limit(concurrency=1, per_shop=True),
}

RAMP = {"ramp_start": 0.5, "ramp_growth": 1.0, "ramp_step_s": 1, "ramp_rate_min": 20}
"""Settings of pauses: a ramp ends within seconds."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recurring schedule of the rig."""

    name: str
    every_s: int
    overlap: str

    @property
    def options(self) -> dict[str, Any]:
        """For `recur`. A day to catch up: no step of a clock makes a time too old."""
        return {
            "every": self.every_s,
            "overlap": self.overlap,
            "biz_type": RECURRING,
            "catch_up": timedelta(days=1),
        }


SCHEDULES = [
    Schedule("chaos-skip", 2, "skip"),
    Schedule("chaos-queue", 3, "queue"),
    Schedule("chaos-cancel", 5, "cancel-other"),
]
