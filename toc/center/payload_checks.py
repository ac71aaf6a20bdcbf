"""Checks the payloads of new jobs: by the schemas of declared types, and by the forms that handlers declare.

Also says by which codec a payload is encrypted. The checks come first: they need the plain payload.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from toc.center.job_spec import CheckedJob
from toc.domain.declared_type import DeclaredType, check_payload
from toc.domain.payload_envelope import check_plain_size
from toc.errors import StatementFailed, StoreUnavailable
from toc.handlers.registry import Registry
from toc.runtime.clock import Clock
from toc.runtime.payload_codecs import PayloadCodecs
from toc.store.databases import Database
from toc.store.declared_types import DeclaredTypeCache


class PayloadChecks:
    """Checks payloads by declarations that are at most `refresh_s` old. Thread-safe.

    Each database has all declarations: a call reads them from the database of its job, so that it waits for
    no other one.
    """

    def __init__(
        self,
        declared: DeclaredTypeCache,
        clock: Clock,
        refresh_s: float,
        handlers: Registry,
        codecs: PayloadCodecs,
    ) -> None:
        self._declared, self._clock, self._refresh_s = declared, clock, refresh_s
        self._handlers, self._codecs = handlers, codecs
        self._read_s: float | None = None

    def codec_of(self, biz_type: str) -> str | None:
        """The codec of a type: as it is declared, else as the handler in this process says."""
        return self._handlers.codec_of(biz_type, self._declared.get(biz_type))

    def check_partitions_are_plain(self, wanted: DeclaredType) -> None:
        """Raises InvalidInput if a limit holds per field of payloads that the handler here encrypts."""
        wanted.check_partitions_are_plain(self._handlers.codec_of(wanted.name, wanted))

    def codecs_of(self, database: Database, names: Iterable[str]) -> dict[str, str]:
        """The codecs of those of the types that have one, when their jobs are about to be written.

        Reads the declarations if they are old: callers that have checked the jobs themselves, as `toc web`,
        have not read them here, and no payload may be written plain because of that.
        """
        self.read_if_old(database)
        found = ((name, self.codec_of(name)) for name in names)
        return {name: codec for name, codec in found if codec is not None}

    def read_if_old(self, database: Database) -> None:
        """Reads the declarations if they are old. Raises nothing: a database that is away refuses jobs."""
        if self._is_old():
            self._refresh([database])

    def may_block(self, biz_type: str) -> bool:
        """Whether `check_job` asks a database, or checks a payload: an event loop must not wait for it."""
        return self._is_old() or self._needs_check(biz_type)

    def check_job(self, database: Database, job: CheckedJob) -> None:
        """Raises InvalidInput for an attribute that does not fit the schema or the form of the job's type.

        Raises SettingsError if there is a schema and toc[web] is not installed, or if this process cannot use
        the codec of the type.
        """
        self.read_if_old(database)
        if self._needs_check(job.biz_type):
            self._check_attribute(job, "attribute")

    def check_jobs(self, databases: Iterable[Database], jobs: Sequence[CheckedJob]) -> None:
        """The same for the jobs of a bulk call. `databases`: asked in this order until one answers."""
        if self._is_old():
            self._refresh(databases)
        if any(self._needs_check(name) for name in {job.biz_type for job in jobs}):
            for position, job in enumerate(jobs):
                if self._needs_check(job.biz_type):
                    self._check_attribute(job, f"jobs[{position}].attribute")

    def _check_attribute(self, job: CheckedJob, field: str) -> None:
        declared, spec = self._declared.get(job.biz_type), self._handlers.own_spec(job.biz_type)
        if declared is not None and declared.payload_schema is not None:
            attribute = None if job.attribute is None else json.loads(job.attribute)
            check_payload(declared, attribute, field=field)
        if spec is not None and spec.payload is not None:
            spec.payload.read_json(job.attribute, field)
        codec = self.codec_of(job.biz_type)
        if codec is not None:
            self._codecs.check_usable(codec)
            check_plain_size(job.attribute, field)

    def _needs_check(self, biz_type: str) -> bool:
        declared, spec = self._declared.get(biz_type), self._handlers.own_spec(biz_type)
        return (
            declared is not None
            and (declared.payload_schema is not None or declared.codec is not None)
        ) or (spec is not None and (spec.payload is not None or spec.codec is not None))

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
