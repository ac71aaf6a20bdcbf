"""Separates job ids from foreign members of a queue, and counts removed foreign members.

toc writes each job_id as its decimal digits. Any other member was written by another program; toc
removes it when it is popped, because a member that cannot be claimed would only come back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from toc.domain.ids import JOB_ID_MAX
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle

log = logging.getLogger(__name__)

DIGITS_MAX = len(str(JOB_ID_MAX))
SHOWN_MAX, SHOWN_BYTES_MAX = 3, 40  # foreign members in a text, and bytes of each
RECENT_S = 3600.0  # health reports foreign members for so long after the last one


def parse_job_id(member: bytes) -> int | None:
    """The member as a job_id; None when toc cannot have written the member."""
    if not 1 <= len(member) <= DIGITS_MAX or not member.isdigit():
        return None
    job_id = int(member)
    return job_id if job_id <= JOB_ID_MAX and b"%d" % job_id == member else None


def parse_job_ids(members: Sequence[bytes]) -> list[int] | None:
    """All members as job ids, in their order; None when at least one may be foreign."""
    # Every poll goes through here: three passes in C, no Python code per member.
    if not members:
        return []
    if not b"".join(members).isdigit() or min(members) < b"1":  # b"" and b"0..." sort before b"1"
        return None
    with suppress(ValueError):  # more digits than int() takes
        ids = list(map(int, members))
        return ids if max(ids) <= JOB_ID_MAX else None
    return None


def split_foreign_members(members: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    """Splits members into job ids and foreign members."""
    ids = parse_job_ids(members)
    if ids is not None:
        return ids, []
    found = [(member, parse_job_id(member)) for member in members]
    foreign = [member for member, job_id in found if job_id is None]
    return [job_id for _, job_id in found if job_id is not None], foreign


class RemovedForeignMembers:
    """Counts members that are no job_id and were removed. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._log_throttle = LogThrottle(log)
        self._count, self._since_ms, self._last_s = 0, 0, float("-inf")

    def record_removed_members(self, topic: str, slot: int, members: Sequence[bytes]) -> None:
        """Counts and logs foreign members that were removed from a slot's queues."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if now_s - self._last_s > RECENT_S:
                self._count, self._since_ms = 0, self._clock.wall_ms()
            self._count += len(members)
            self._last_s = now_s
        metrics.FOREIGN_MEMBERS.labels(topic).inc(len(members))
        self._log_throttle.warning(
            "foreign",
            "removed %d members that are no job_id from slot %d of topic %s in Redis: %s. Another program "
            "writes into the queues of toc: find it, or give toc a namespace of its own",
            len(members), slot, topic, format_members(members),
        )  # fmt: skip

    @property
    def recent_removals(self) -> tuple[int, int]:
        """(count, ms since 1970 of the first removal by this machine's clock) of recent removals.

        (0, 0) when nothing was removed within the last hour.
        """
        with self._lock:
            if self._clock.monotonic_s() - self._last_s > RECENT_S:
                return 0, 0
            return self._count, self._since_ms


def format_members(members: Sequence[bytes]) -> str:
    """Up to SHOWN_MAX members as text: printable ASCII, each cut at SHOWN_BYTES_MAX bytes."""
    texts = [repr(member[:SHOWN_BYTES_MAX])[1:] for member in members[:SHOWN_MAX]]
    texts = [
        f"{text}..." if len(member) > SHOWN_BYTES_MAX else text
        for text, member in zip(texts, members, strict=False)
    ]
    return ", ".join(texts) + (", ..." if len(members) > SHOWN_MAX else "")
