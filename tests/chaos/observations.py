"""What a worker of the rig writes down beside its journal, in lines of their own (`.seen`).

The judge of the restricted types needs times that no handler knows: between which moments a job was admitted
by its limits, and was named to Redis as one that still holds, when Redis did not answer the process, and for
how long the process had not read the pauses.
Each is recorded around the call, so that a slow machine makes the bounds wider, and never accuses toc.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import wraps
from typing import Any

from tests.chaos.plan import Lines, Now
from tests.chaos.restricted import LIMITS, RECURRING, SHOPS
from toc.domain.job import Job
from toc.domain.limit_terms import LimitTerms
from toc.errors import TimerUnavailable
from toc.limits.limits import Limits, Taken, Wanted
from toc.store.databases import Database
from toc.store.pauses import PauseCache
from toc.timer.limit_store import LimitStore, PartitionHold, PartitionWish, TakeAnswer

BLIND_MS = 1500.0
"""A process that reads a database's pauses so often, from asking to the next answer, is not blind."""


class Observations:
    """Writes what one process sees. `watch_process` is called once, before the process starts its node."""

    def __init__(self, lines: Lines, now: Now, process: str) -> None:
        self._lines, self._now, self._process = lines, now, process
        self._lock = threading.Lock()
        # By database: when the last read that was answered was asked for.
        self._read_ms: dict[int, float] = {}
        self._began_ms = now()

    def watch_process(self) -> None:
        """Writes a line around each call that takes starts, and for each span without knowledge."""
        self._watch_takes()
        self._watch_redis()
        self._watch_pauses()

    def note_start(self, job: Job) -> None:
        """What the handler of a restricted type knows of its job, before its start is written."""
        if job.biz_type == SHOPS:
            self._write("shop", job_id=job.job_id, shop=job.biz_id)
        elif job.biz_type == RECURRING and job.nominal_time is not None:
            nominal_ms = round(job.nominal_time.timestamp() * 1000)
            self._write("nominal", job_id=job.job_id, name=job.biz_id, nominal_ms=nominal_ms)

    def _write(self, what: str, **values: Any) -> None:
        self._lines.write({"what": what, "process": self._process, **values})

    def _watch_takes(self) -> None:
        take = Limits.take

        @wraps(take)
        def watched(
            limits: Limits, biz_type: str, wanted: Iterable[Wanted], token: str,
            lease_ms: int | None = None, *, goes_first: bool = False,
        ) -> Taken:  # fmt: skip
            asked_ms = self._now()
            taken = take(limits, biz_type, wanted, token, lease_ms, goes_first=goes_first)
            if taken.admitted and biz_type in LIMITS:
                self._write(
                    "taken", biz_type=biz_type, jobs=sorted(taken.admitted), token=token,
                    by_share=taken.time.by_share, from_ms=asked_ms, to_ms=self._now(),
                )  # fmt: skip
            return taken

        setattr(Limits, "take", watched)  # noqa: B010 - to a type checker, no method changes

    def _watch_redis(self) -> None:
        take, hold = LimitStore.take, LimitStore.hold

        @wraps(take)
        def watched(
            store: LimitStore, biz_type: str, terms: LimitTerms, hold_ms: int,
            wishes: Sequence[PartitionWish],
        ) -> TakeAnswer:  # fmt: skip
            asked_ms = self._now()
            try:
                return take(store, biz_type, terms, hold_ms, wishes)
            except TimerUnavailable:
                self._write("share", biz_type=biz_type, from_ms=asked_ms, to_ms=self._now())
                raise

        @wraps(hold)
        def watched_hold(store: LimitStore, biz_type: str, holds: Sequence[PartitionHold]) -> int:
            asked_ms = self._now()
            since_ms = hold(store, biz_type, holds)
            holders = [name for each in holds for _, name in each.holders]
            if holders and biz_type in LIMITS:
                self._write(
                    "named", biz_type=biz_type, holders=holders, from_ms=asked_ms, to_ms=self._now()
                )
            return since_ms

        setattr(LimitStore, "take", watched)  # noqa: B010 - to a type checker, no method changes
        setattr(LimitStore, "hold", watched_hold)  # noqa: B010 - as above

    def _watch_pauses(self) -> None:
        read_copy = PauseCache.read_copy

        @wraps(read_copy)
        def watched(cache: PauseCache, database: Database) -> None:
            asked_ms = self._now()
            self._note_blindness(database.index)  # should it die before the answer
            read_copy(cache, database)
            self._note_blindness(database.index)
            with self._lock:
                self._read_ms[database.index] = asked_ms

        setattr(PauseCache, "read_copy", watched)  # noqa: B010 - to a type checker, no method changes

    def _note_blindness(self, index: int) -> None:
        """Until now the process knew only what this database had when its last answer was asked for."""
        now_ms = self._now()
        with self._lock:
            since_ms = self._read_ms.get(index)
        if now_ms - (self._began_ms if since_ms is None else since_ms) > BLIND_MS:
            self._write("blind", database=index, from_ms=since_ms or 0.0, to_ms=now_ms)
