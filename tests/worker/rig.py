"""A node of this process, or its worker alone, on databases and a Redis of the test's own."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from prometheus_client import REGISTRY
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from tests.worker.waiting import DEADLINE_S, wait_until
from toc.center.center import TimeoutCenter
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job, Status
from toc.domain.routing import routing_hash_of, slot_of_hash
from toc.domain.times import EPOCH
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.job_batch import BatchClaimAnswer, JobBatch
from toc.runtime.payload_codecs import PayloadCodecs
from toc.runtime.setting_groups import ScannerSettings, TimerSettings, WorkerSettings
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.column_types import sql_time_of_ms
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import ConnectionLimits, Database, Databases
from toc.timer.reminders import Reminders
from toc.worker.context import ProcessContext
from toc.worker.handler_table import SinkHandlers
from toc.worker.worker import Worker

F = TypeVar("F", bound=Callable[..., Any])

NOW = timedelta()
SOON = timedelta(milliseconds=150)
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)
LATER = timedelta(minutes=10)  # within the horizon
FAR = timedelta(hours=1)  # beyond it
TYPE = "order.close"


class Row(NamedTuple):
    """A row of a job table, by plain SQL. `due_ms` and `action_ms` in ms since 1970."""

    status: Status
    attempts: int
    due_ms: int | None
    action_ms: int
    token: str | None


class LyingClock(SystemClock):
    """A machine whose wall clock is wrong by so many seconds."""

    def __init__(self, wrong_by_s: float) -> None:
        self._wrong_by_ms = round(wrong_by_s * 1000)

    def wall_ms(self) -> int:
        return super().wall_ms() + self._wrong_by_ms


class Rig:
    """Settings that are quick, a registry, a client; then `start` for a whole node, or `alone`."""

    def __init__(
        self,
        urls: Sequence[str],
        redis_url: str,
        namespace: str,
        *,
        clock: Clock | None = None,
        shards: int = 4,
        timer: dict[str, Any] | None = None,
        scanner: dict[str, Any] | None = None,
        worker: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings(
            databases=tuple(urls),
            redis_url=redis_url,
            namespace=namespace[:32],
            shards=shards,
            read_timeout_s=10,
            timer=TimerSettings(
                **{"stay_s": 1, "slow_poll_s": 0.1, "load_tick_s": 60} | (timer or {})
            ),
            scanner=ScannerSettings(**{"grace_s": 3600, "tick_s": 0.05} | (scanner or {})),
            worker=WorkerSettings(
                **{"concurrency": 4, "queue_max": 16, "lease_s": 3, "lease_margin_s": 1}
                | {"settle_wait_ms": 0, "stop_s": 5}
                | (worker or {})
            ),
            **settings,
        )
        migrate.upgrade(self.settings)
        self.clock = clock or SystemClock()
        self.registry = Registry()
        self.center = TimeoutCenter(self.settings, handlers=self.registry, clock=self.clock)
        self.restart_wanted = threading.Event()
        self.node: Node | None = None
        self._closing: list[Callable[[], object]] = [self.center.close]

    def handler(self, biz_type: str = TYPE, **terms: Any) -> Callable[[F], F]:
        return self.registry.handler(biz_type, **terms)

    def other_client(self) -> TimeoutCenter:
        """A client of a process that does not have the handlers."""
        return TimeoutCenter(self.settings, handlers=Registry(), clock=self.clock)

    # ---- a node, or its worker alone

    def start(self, sinks: SinkHandlers | None = None) -> Worker:
        """A whole node."""
        node = Node(
            self.settings,
            handlers=self.registry,
            clock=self.clock,
            restart_wanted=self.restart_wanted.set,
            sinks=sinks,
        )
        node.start()
        assert node.worker is not None
        self.node = node
        self._closing.append(node.stop)
        return node.worker

    def wait_for_loader(self) -> None:
        """Until the loader has made its first step; the next one is a tick away."""
        assert self.node is not None
        assert self.node.work_sources is not None
        loaders = list(self.node.work_sources.loaders.values())
        wait_until(lambda: all(loader._step for loader in loaders), "the loader's first step")

    def stop(self) -> bool:
        assert self.node is not None
        self._closing.remove(self.node.stop)
        return self.node.stop()

    def alone(self, sinks: SinkHandlers | None = None) -> Worker:
        """A worker that nobody feeds: see `offer`."""
        databases, slots = self.databases(), self.slots()
        database_metadata = DatabaseMetadata(databases)
        database_metadata.verify_and_record_meta(self.settings.routing.meta_values())
        rng = random.Random(1)  # noqa: S311 - jitter and names
        process = ProcessContext(
            "rig", self.settings, self.clock, rng, databases, database_metadata, slots
        )
        worker = Worker(process, self.registry, self.restart_wanted.set, sinks)
        worker.start()
        self._closing.append(lambda: worker.stop(1.0))
        return worker

    def databases(self) -> Databases:
        databases = Databases(
            self.settings.databases,
            self.settings.routing,
            self.clock,
            limits=ConnectionLimits(pool_size=4),
            payload_codecs=PayloadCodecs(self.settings.codecs),
        )
        self._closing.insert(0, databases.close)
        return databases

    def slots(self) -> Reminders | None:
        if not self.settings.has_timer:
            return None
        slots = Reminders.from_settings(self.settings, self.clock)
        self._closing.insert(0, slots.close)
        return slots

    def offer(self, worker: Worker, *job_ids: int, found_s: float | None = None) -> int:
        """Offers ids to a worker as a scanner does."""
        by_database: dict[int, dict[int, list[int]]] = {}
        for job_id in job_ids:
            shard = self.shard(job_id)
            database = self.settings.routing.database_index(shard)
            by_database.setdefault(database, {}).setdefault(shard, []).append(job_id)
        found_s = self.clock.monotonic_s() if found_s is None else found_s
        return sum(
            claimed(worker, database, JobBatch("", ids, None, found_s, popped=False))
            for database, ids in by_database.items()
        )

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()

    # ---- looking

    def shard(self, job_id: int) -> int:
        return self.settings.routing.shard_of_hash(routing_bits_of(job_id))

    def now_ms(self, job_id: int) -> int:
        """By the clock of the job's database."""
        return (
            self.center._open_connections().databases.database_of_shard(self.shard(job_id)).now_ms()
        )

    def row(self, job_id: int) -> Row:
        due = "CASE status WHEN 1 THEN lease_end_time ELSE due_time END"
        columns = f"status, attempts, CAST({due} AS CHAR), CAST(action_time AS CHAR), claim_token"
        ((status, attempts, due, action, token),) = self.sql(
            job_id, f"SELECT {columns} FROM {{table}} WHERE job_id = :id", id=job_id
        )
        return Row(Status(status), attempts, _ms(due) if due else None, _ms(action), token)

    def sql(self, job_id: int, statement: str, /, **values: Any) -> list[Any]:
        """Plain SQL in the database of a job; `{table}` is its table."""
        shard = self.shard(job_id)
        database = self.center._open_connections().databases.database_of_shard(shard)
        statement = statement.format(table=f"toc_job_{shard:04d}")
        with database.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def status(self, job_id: int) -> Status:
        return self.row(job_id).status

    def wait_for(self, status: Status, *job_ids: int, seconds: float = DEADLINE_S) -> None:
        wait_until(
            lambda: all(self.status(job_id) is status for job_id in job_ids),
            f"{len(job_ids)} jobs to be {status.name}",
            seconds,
        )

    def armed_ms(self, job_id: int, topic: str = "default") -> int | None:
        """When the job's reminder in the StoreQueue is due; None: there is none."""
        return self._place(job_id, topic)[0]

    def out_ms(self, job_id: int, topic: str = "default") -> int | None:
        """When the job's stay in the PrepareQueue is over; None: it is not there."""
        return self._place(job_id, topic)[1]

    def _place(self, job_id: int, topic: str) -> tuple[int | None, int | None]:
        slots = self.center._open_connections().reminders
        assert slots is not None
        slot = slot_of_hash(routing_bits_of(job_id), self.settings.slot_amount_of(topic))
        return slots.find_reminder(topic, slot, job_id)

    def biz_id_on(self, shard: int, nth: int = 0) -> int:
        """The nth business id whose jobs lie in a shard."""
        ids = (
            biz_id
            for biz_id in range(10_000)
            if self.settings.routing.shard_of_hash(routing_hash_of(biz_id)) == shard
        )
        return next(biz_id for position, biz_id in enumerate(ids) if position == nth)

    def run_elsewhere(self, job_id: int, *, token: str, attempts: int, lease_s: float) -> None:
        """Makes the row run under a token of another process, with a lease that ends so late."""
        now_ms = self.now_ms(job_id)
        end_ms = now_ms + round(lease_s * 1000)
        self.sql(
            job_id,
            "UPDATE {table} SET status = 1, claim_token = :token, attempts = :attempts, "
            "lease_end_time = :end, due_time = :due WHERE job_id = :id",
            id=job_id,
            token=token,
            attempts=attempts,
            end=sql_time_of_ms(end_ms),
            due=sql_time_of_ms(min(end_ms, now_ms)),
        )


def claimed(worker: Worker, database: int, batch: JobBatch) -> int:
    """Puts a batch into a claim stage, with permits even if there are none. Returns how many jobs run.

    Raises what the claim raised.
    """
    permits, answer = len(batch.job_ids), BatchClaimAnswer()
    with worker.permits._lock:
        worker.permits._fetched[database] += permits
    worker.claims[0][database].enqueue(replace(batch, permits=permits, answer=answer))
    return answer.wait_for_claim()


def _ms(value: str) -> int:
    moment = datetime.fromisoformat(value).replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)


class Gate:
    """A handler that says that it has begun, and goes on when it is let."""

    def __init__(self) -> None:
        self.begun: list[Job] = []
        self.open = threading.Event()

    def __call__(self, job: Job) -> None:
        self.begun.append(job)
        assert self.open.wait(30)

    def wait(self, count: int = 1) -> None:
        wait_until(lambda: len(self.begun) >= count, f"{count} handlers to begin")


class Outage:
    """Makes a database unusable, and usable again."""

    def __init__(self, database: Database) -> None:
        self._engines = (database.engine, database.autocommit_engine)
        self.refused = 0

    def begin(self) -> None:
        for engine in self._engines:
            event.listen(engine, "before_cursor_execute", self._refuse)

    def end(self) -> None:
        for engine in self._engines:
            event.remove(engine, "before_cursor_execute", self._refuse)

    def _refuse(self, *_: Any) -> None:
        self.refused += 1
        raise OperationalError("", {}, sqlite3.OperationalError("disk I/O error"))


@contextmanager
def outage(database: Database) -> Iterator[Outage]:
    """The database does not answer inside the block."""
    broken = Outage(database)
    broken.begin()
    try:
        yield broken
    finally:
        broken.end()


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0
