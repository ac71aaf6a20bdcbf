"""The store on one engine, as its tests use it, and rows as plain SQL sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import text

from toc.domain.biz_ids import check_business_id
from toc.domain.ids import JobIdFactory, routing_bits_of
from toc.domain.job import NewJob
from toc.domain.routing import routing_hash_of
from toc.domain.times import EPOCH
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.claims import ClaimedRow, Claims, Outcome, OutcomeKind
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.due_pages import DuePages
from toc.store.jobs import InsertResult, Jobs, OnDuplicate
from toc.testing import TestClock

SHARDS = 4
LEASE_MS = 60_000
NO_KEY = None
ACTOR = "somebody"


class Row(NamedTuple):
    """A row of a job table, by plain SQL. Times in ms since 1970. `due_ms`: running: the end of the lease."""

    status: int
    action_ms: int
    due_ms: int | None
    attempts: int
    claim_token: str | None
    attribute: str | None
    dedup_key: str | None
    live_key: str | None
    biz_id: int
    created_ms: int
    modified_ms: int


class Library:
    """Migrated databases with `SHARDS` shards, a clock that stands still, and the store's verbs.

    `packets`: whether several statements may go in one (on SQLite they never do). `is_migrated`: the
    databases are migrated already, which need not be found out again.
    """

    def __init__(
        self, urls: Sequence[str], *, packets: bool = True, is_migrated: bool = False
    ) -> None:
        self._packets = packets
        self.settings = Settings(databases=tuple(urls), shards=SHARDS, redis_url="none")
        if not is_migrated:
            migrate.upgrade(self.settings)
        self.clock = TestClock()
        self.connect()

    def connect(self) -> None:
        self.databases = Databases(self.settings.databases, self.settings.routing, self.clock)
        for database in self.databases:
            database._supports_packets &= self._packets
        self.database_metadata = DatabaseMetadata(self.databases)
        self.ids = JobIdFactory(self.clock.wall_ms, 0)
        self.jobs = Jobs(
            self.databases,
            self.database_metadata,
            lambda routing_bits: self.ids.make_ids([routing_bits])[0],
            ACTOR,
        )
        self.pages = DuePages(self.databases)
        for database in self.databases:
            numbers = self.database_metadata.types.get_or_create_numbers(
                ["order.close", "report"], database
            )
        self.close_no, self.report_no = numbers["order.close"], numbers["report"]
        self._claims: Claims | None = None

    @property
    def claims(self) -> Claims:
        """Made at the first use: its statements take longer to compile than all else that `reset` does."""
        if self._claims is None:
            self._claims = Claims(self.databases, LEASE_MS, [self.close_no, self.report_no])
        return self._claims

    def reset(self) -> None:
        """Empty job tables, a new clock, new caches. The rows of toc_meta and toc_biz_type stay."""
        for database in self.databases:
            with database.engine.begin() as connection:
                for shard in database.shards:
                    connection.exec_driver_sql(f"DELETE FROM toc_job_{shard:04d}")
                connection.exec_driver_sql("DELETE FROM toc_dead_job")
                connection.exec_driver_sql("DELETE FROM toc_event")
                connection.exec_driver_sql("DELETE FROM toc_purge")
                connection.exec_driver_sql("DELETE FROM toc_declared_type")
                connection.exec_driver_sql("DELETE FROM toc_pause")
                connection.exec_driver_sql("DELETE FROM toc_webhook")
                connection.exec_driver_sql("DELETE FROM toc_arrival")
                connection.exec_driver_sql("DELETE FROM toc_recurring")
                connection.exec_driver_sql("DELETE FROM toc_occurrence")
                connection.exec_driver_sql("DELETE FROM toc_mass_change")
        self.close()
        self.clock = TestClock()
        self.connect()

    def close(self) -> None:
        self.databases.close()

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    @property
    def sqlite(self) -> bool:
        return self.databases[0].sqlite

    @property
    def packets(self) -> bool:
        return self.databases[0]._supports_packets

    # ---- jobs

    def new(
        self,
        biz_id: int | str = 42,
        in_ms: int = 0,
        *,
        at_ms: int | None = None,
        type_no: int | None = None,
        attribute: str | None = None,
        key: str | None = NO_KEY,
        tenant: str | None = None,
    ) -> NewJob:
        """A job with a fresh id, due `in_ms` from now."""
        business = check_business_id(biz_id, tenant)
        return NewJob(
            self.ids.make_ids([routing_hash_of(business.number)])[0],
            business.number,
            self.close_no if type_no is None else type_no,
            self.now_ms + in_ms if at_ms is None else at_ms,
            attribute,
            key,
            business.text,
            business.tenant,
        )

    def insert(self, *jobs: NewJob, on_duplicate: OnDuplicate = "keep") -> list[InsertResult]:
        return self.jobs.insert(jobs, on_duplicate)

    def pending(self, biz_id: int | str = 42, in_ms: int = 0, **fields: Any) -> int:
        """The id of a new pending job."""
        (inserted,) = self.insert(self.new(biz_id, in_ms, **fields))
        assert inserted.written
        return inserted.job_id

    def running(self, token: str = "one", **fields: Any) -> int:
        """The id of a new job that runs under `token`."""
        job_id = self.pending(**fields)
        assert self.claim([job_id], token)[job_id].token == token
        return job_id

    def ended(self, kind: OutcomeKind, **fields: Any) -> int:
        job_id = self.running("ended", **fields)
        assert self.settle(Outcome(job_id, "ended", kind, error="it failed"))
        return job_id

    def dead(self, **fields: Any) -> int:
        return self.ended(OutcomeKind.BURY, **fields)

    # ---- claims

    def shard(self, job_id: int) -> int:
        return self.settings.routing.shard_of_hash(routing_bits_of(job_id))

    def home(self, job_id: int) -> Any:
        return self.databases.database_of_shard(self.shard(job_id))

    def claim(
        self,
        job_ids: Sequence[int],
        token: str,
        now_ms: int | None = None,
        claims: Claims | None = None,
    ) -> dict[int, ClaimedRow]:
        """Claims ids of one database, by its own clock unless `now_ms` is given."""
        by_shard: dict[int, list[int]] = {}
        for job_id in job_ids:
            by_shard.setdefault(self.shard(job_id), []).append(job_id)
        return (claims or self.claims).claim_jobs(self.home(job_ids[0]), by_shard, token, now_ms)

    def take_over(self, job_id: int, seen: str, token: str) -> ClaimedRow | None:
        return self.claims.take_over_job(self.home(job_id), self.shard(job_id), job_id, seen, token)

    def bury_lost(self, job_id: int, seen: str, error: str = "lost") -> bool:
        home, shard = self.home(job_id), self.shard(job_id)
        return self.claims.bury_expired_job(home, shard, job_id, seen, error, ACTOR)

    def settle(self, *outcomes: Outcome) -> set[tuple[int, str]]:
        return self.claims.settle_jobs(self.home(outcomes[0].job_id), outcomes)

    def settle_as(
        self, kind: OutcomeKind, job_id: int, token: str, due_ms: int = 0, error: str = ""
    ) -> bool:
        """Settles one outcome; whether it held."""
        return self.settle(Outcome(job_id, token, kind, due_ms, error)) == {(job_id, token)}

    # ---- plain SQL

    def row(self, job_id: int) -> Row:
        times = [f"CAST({name} AS CHAR)" for name in _TIMES]  # as text, whatever the driver makes
        columns = ", ".join([*times, *_PLAIN])
        table = f"toc_job_{self.shard(job_id):04d}"
        (found,) = self.sql(
            job_id, f"SELECT {columns} FROM {table} WHERE job_id = :id", {"id": job_id}
        )
        action_ms, due_ms, created_ms, modified_ms = map(_ms, found[:4])
        status, attempts, claim_token, attribute, key, live, biz_id = found[4:]
        assert action_ms is not None
        assert created_ms is not None
        assert modified_ms is not None
        return Row(
            status, action_ms, due_ms, attempts, claim_token, attribute, key, live, biz_id % 2**64,
            created_ms, modified_ms,
        )  # fmt: skip

    def sql(
        self, job_id: int, statement: str, values: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Plain SQL on the database of a job."""
        with self.home(job_id).engine.begin() as connection:
            result = connection.execute(text(statement), values or {})
            return list(result) if result.returns_rows else []

    def count(self) -> int:
        """Rows in all shards."""
        total = 0
        for database in self.databases:
            with database.engine.begin() as connection:
                for shard in database.shards:
                    sql = f"SELECT COUNT(*) FROM toc_job_{shard:04d}"
                    total += connection.exec_driver_sql(sql).scalar_one()
        return total


_DUE = "CASE status WHEN 1 THEN lease_end_time ELSE due_time END"
_TIMES = ("action_time", _DUE, "gmt_create", "gmt_modified")
_PLAIN = ("status", "attempts", "claim_token", "attribute", "dedup_key", "live_key", "biz_id")


def _ms(value: str | None) -> int | None:
    if value is None:
        return None
    assert len(value) == len("2026-01-01 00:00:00.000")
    delta = datetime.fromisoformat(value).replace(tzinfo=EPOCH.tzinfo) - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
