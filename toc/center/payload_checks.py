"""Checks the attributes of new jobs against the schemas of their declared types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from toc.center.job_spec import CheckedJob
from toc.domain.declared_type import check_payload
from toc.errors import StatementFailed, StoreUnavailable
from toc.runtime.clock import Clock
from toc.store.databases import Database
from toc.store.declared_types import DeclaredTypeCache


class PayloadChecks:
    """Checks payloads by declarations that are at most `refresh_s` old. Thread-safe.

    Each database has all declarations: a call reads them from the database of its job, so that it waits for
    no other one.
    """

    def __init__(self, declared: DeclaredTypeCache, clock: Clock, refresh_s: float) -> None:
        self._declared, self._clock, self._refresh_s = declared, clock, refresh_s
        self._read_s: float | None = None

    def may_block(self, biz_type: str) -> bool:
        """Whether `check_job` asks a database, or checks a payload: an event loop must not wait for it."""
        return self._is_old() or self._has_schema(biz_type)

    def check_job(self, database: Database, job: CheckedJob) -> None:
        """Raises InvalidInput for an attribute that does not fit the schema of the job's type, and
        SettingsError if there is a schema and toc[web] is not installed.
        """
        if self._is_old():
            self._refresh([database])
        if self._has_schema(job.biz_type):
            self._check_attribute(job, "attribute")

    def check_jobs(self, databases: Iterable[Database], jobs: Sequence[CheckedJob]) -> None:
        """The same for the jobs of a bulk call. `databases`: asked in this order until one answers."""
        if self._is_old():
            self._refresh(databases)
        with_schema = {name for name in self._declared.all() if self._has_schema(name)}
        if with_schema:
            for position, job in enumerate(jobs):
                if job.biz_type in with_schema:
                    self._check_attribute(job, f"jobs[{position}].attribute")

    def _check_attribute(self, job: CheckedJob, field: str) -> None:
        declared = self._declared.get(job.biz_type)
        if declared is not None:
            attribute = None if job.attribute is None else json.loads(job.attribute)
            check_payload(declared, attribute, field=field)

    def _has_schema(self, biz_type: str) -> bool:
        declared = self._declared.get(biz_type)
        return declared is not None and declared.payload_schema is not None

    def _is_old(self) -> bool:
        read_s = self._read_s
        return read_s is None or self._clock.monotonic_s() - read_s >= self._refresh_s

    def _refresh(self, databases: Iterable[Database]) -> None:
        now_s, last_s = self._clock.monotonic_s(), self._read_s
        if last_s is not None:
            # Set before the read: meanwhile other threads go by the old declarations. Without any
            # declarations, each thread reads them.
            self._read_s = now_s
        for database in databases:
            try:
                self._declared.read_copy(database)
            except (StoreUnavailable, StatementFailed):
                continue  # this database will refuse its jobs itself
            self._read_s = now_s
            return
        self._read_s = last_s  # the next call reads again
