"""What every part of the rig must agree on: job types, settings, how long things take."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.chaos.restricted import RAMP, RESTRICTED_TYPES

NO_DATABASE = 69
"""A worker's exit code when it finds no database as it starts: it is to be started again."""

NOBODY = ("nobody",)
"""Whom a fault hits that must not make any handler start twice: what it does explains no duplicate."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A long run's or a short one's times in seconds, and rates per client and second.

    timeout_s: of all types but LENGTHY. hold_s: how long most faults last, from … to. calm_s: between two
    faults. rest: this part of a fault's own rest. waiters: threads of a consumer for quick jobs.
    """

    timeout_s: float
    lease_s: float
    hold_s: tuple[float, float]
    calm_s: float
    rest: float
    bulk: float
    singles: float
    session_s: int
    horizon_s: float
    slack_s: float
    waiters: int = 2

    @property
    def timeouts_s(self) -> dict[str, float]:
        """By type with handlers."""
        all_types = [*TYPES, *BATCH_TYPES, *RESTRICTED_TYPES]
        return dict.fromkeys(all_types, self.timeout_s) | {LENGTHY: 3 * self.lease_s}

    @property
    def holds_ms(self) -> dict[str, float]:
        """By type: how long a run is safe from another one, counted from its start.

        A consumer starts a job only if half of its lease is left; some extend it, up to two leases.
        """
        handlers = {name: (s + self.lease_s) * 1000 for name, s in self.timeouts_s.items()}
        pulled = dict.fromkeys(PULL_TYPES, self.lease_s / 2 * 1000)
        return handlers | pulled | {PULL_LONG: 2.5 * self.lease_s * 1000}

    @property
    def settings(self) -> dict[str, Any]:
        """A horizon of seconds: what is due later than that is the loader's, all the time."""
        return {
            "shards": 8,
            "pool_size": 10,
            "connect_timeout_s": 2,
            "read_timeout_s": 4,
            "timer": {
                "horizon_s": self.horizon_s,
                "slack_s": self.slack_s,
                "stay_s": 5,
                "slow_poll_s": 1,
                "load_tick_s": 1,
            },
            "scanner": {"grace_s": 3, "tick_s": 2},
            "worker": {
                "concurrency": 12,
                "queue_max": 400,
                "queue_wait_s": 1,
                "lease_s": self.lease_s,
                "lease_margin_s": 1,
                "stop_s": 2.5 * self.lease_s,  # LENGTHY takes two leases: a restart lets it end
            },
            "cluster": {"session_timeout_s": self.session_s},
            "pauses": RAMP,
            "reconcile": {"watch_s": 20, "grace_s": 5, "overdue_s": 60, "repair": True},
        }


LONG = Scale(1, 10, (2, 6), 3, 1, bulk=370, singles=20, session_s=3, horizon_s=8, slack_s=4)
SHORT = Scale(1, 4, (1, 2.5), 0.5, 0.1, bulk=120, singles=15, session_s=1, horizon_s=3, slack_s=1)
LIGHT = replace(SHORT, bulk=20)  # beside other tests

BULK = "chaos.bulk"
MOODY = "chaos.moody"  # fails in its first attempts
STUBBORN = "chaos.stubborn"  # fails until a moment, and is dead before that; somebody redrives or discards it
SLOW = "chaos.slow"  # returns beyond its timeout, within its lease
LENGTHY = "chaos.lengthy"  # takes longer than a lease, which is renewed meanwhile
ASYNC = "chaos.async"  # its first attempt is cut short by its timeout
POISON = "chaos.poison"  # kills its process each time

TYPES: dict[str, dict[str, Any]] = {
    BULK: {"retry": [1.0]},
    MOODY: {"retry": [0.5, 1.0], "max_attempts": 16},
    STUBBORN: {"retry": [0.3], "max_attempts": 2},
    SLOW: {"retry": [1.0]},
    LENGTHY: {"retry": [1.0], "max_attempts": 16},
    ASYNC: {"retry": [0.5], "max_attempts": 16},
    POISON: {"retry": [0.5], "max_attempts": 2},
}

BATCH = "chaos.batch"  # its handler takes many jobs in one call, some of which fail
BATCH_TYPES: dict[str, dict[str, Any]] = {
    BATCH: {"retry": [0.5], "max_attempts": 32, "batch": 20, "batch_wait": 0.1},
}

PULL = "chaos.pull"  # remote consumers settle them at once, some as failed
PULL_LONG = "chaos.pull.long"  # longer than a lease, which the consumer extends
PULL_LATE = "chaos.pull.late"  # its first consumer settles after the lease, the next ones fail
FENCED_ATTEMPTS = 3
PULL_TYPES: dict[str, dict[str, Any]] = {
    PULL: {"retry": [0.5], "max_attempts": 32},
    PULL_LONG: {"retry": [0.5], "max_attempts": 32},
    PULL_LATE: {"retry": [0.3], "max_attempts": 32},
}


def chance(seed: object) -> random.Random:
    """The same seed, the same draws."""
    return random.Random(str(seed))  # noqa: S311 - to be replayed, not to be secret


Now = Callable[[], float]


def true_clock(wrong_by_s: float) -> Now:
    """The machine's time in ms, in a process whose own clock is wrong."""
    return lambda: time.time_ns() / 1e6 - wrong_by_s * 1000


def dump_threads_when_asked() -> None:
    """On SIGUSR1 the stack of each thread goes to standard error: the rig asks who does not end."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def end_with_the_rig() -> None:
    """Waits for the end of standard input.

    Not by `sys.stdin`: a thread that waits in it holds its lock, and Python may fail for that as it ends.
    """
    while os.read(0, 4096):
        pass
    os._exit(1)


class Lines:
    """JSON lines of a process of its own, unbuffered: what was written survives kill -9."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, value: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(value, separators=(",", ":")).encode() + b"\n")
