"""Replicas of a lease server in this process, a client, and the rows, on databases of the test's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import text

from tests.worker.rig import Row
from toc.center.center import TimeoutCenter
from toc.domain.declared_type import DeclaredType
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job, Status
from toc.domain.pull_types import topic_of_pull_type
from toc.domain.retry_policies import DelayList
from toc.domain.times import EPOCH
from toc.leases.lease_server import LeaseServer
from toc.leases.settlement import ItemResult, LeaseItem
from toc.leases.waiter import LeasedJob
from toc.node.lease_node import LeaseNode
from toc.runtime.setting_groups import ScannerSettings, TimerSettings, WorkerSettings
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypes
from toc.timer.reminder import Reminder

T = TypeVar("T")

TYPE = "order.close"
NOW = timedelta()
WAIT_S = 60.0  # of a call that is expected to return with jobs: much longer than it takes
ANSWER_S = 100.0  # of a result: the test fails after this


class Consumers:
    """An event loop in a thread: the calls of remote consumers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(call, self.loop)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.start(call).result(ANSWER_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class LeaseRig:
    """Settings that are quick, a client, and the replicas that `replica` starts."""

    def __init__(
        self,
        urls: Sequence[str],
        redis_url: str,
        namespace: str,
        *,
        timer: dict[str, Any] | None = None,
        scanner: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.values: dict[str, Any] = {
            "databases": tuple(urls),
            "redis_url": redis_url,
            "namespace": namespace[:32],
            "shards": 4,
            "read_timeout_s": 10,
            "timer": TimerSettings(
                **{"slow_poll_s": 0.1, "load_tick_s": 0.5, "stay_s": 300} | (timer or {})
            ),
            "scanner": ScannerSettings(**{"grace_s": 3600, "tick_s": 0.2} | (scanner or {})),
            "worker": WorkerSettings(lease_s=3, lease_margin_s=1, settle_wait_ms=0),
            **settings,
        }
        self.settings = Settings(**self.values)
        migrate.upgrade(self.settings)
        self.consumers = Consumers()
        self.center = TimeoutCenter(self.settings)
        self.databases = Databases.from_settings(self.settings, self.center._clock)
        self._nodes: list[LeaseNode] = []

    def close(self) -> None:
        for node in self._nodes:
            node.stop()
        self.consumers.close()
        self.center.close()
        self.databases.close()

    # ---- types and replicas

    def declare(
        self,
        name: str = TYPE,
        *,
        timeout_s: float = 60,
        max_attempts: int = 16,
        retry: Sequence[float] = (0,),
    ) -> None:
        """Declares a pull type. Replicas that run know of it within their refresh time."""
        declared = DeclaredType(
            name, "pull", timeout_s=timeout_s, max_attempts=max_attempts,
            retry=DelayList(tuple(retry)), explicit=frozenset(("timeout_s", "max_attempts", "retry")),
        )  # fmt: skip
        types = DatabaseMetadata(self.databases).types
        DeclaredTypes(self.databases, types, 1000).change(name, lambda _: declared, "test")
        self.settings.pull_types.replace_names({*self.settings.pull_types.names, name})

    def replica(self) -> LeaseServer:
        """A replica with connections and settings of its own."""
        node = LeaseNode(Settings(**self.values))
        self._nodes.append(node)
        node.start()
        return node.server

    def node_of(self, server: LeaseServer) -> LeaseNode:
        return next(node for node in self._nodes if node.server is server)

    def stop(self, server: LeaseServer) -> bool:
        node = self.node_of(server)
        self._nodes.remove(node)
        return node.stop()

    # ---- calls

    def waits(
        self, server: LeaseServer, max_jobs: int = 1, wait_s: float = WAIT_S, **more: Any
    ) -> Future[list[LeasedJob]]:
        """A consumer that waits; returns when its call waits in the replica."""
        types = more.pop("types", [TYPE])
        return self.consumers.start(server.lease(types, max_jobs, wait_s, **more))

    def lease(self, server: LeaseServer, max_jobs: int = 1, **more: Any) -> list[LeasedJob]:
        """The jobs of a call that is expected to get some."""
        return self.waits(server, max_jobs, **more).result(ANSWER_S)

    def settle(
        self,
        verb: Callable[..., Coroutine[Any, Any, list[ItemResult]]],
        *jobs: LeasedJob,
        **more: Any,
    ) -> list[str]:
        """Settles leases by `server.finish` and so on; returns the outcomes."""
        accept = more.pop("accept", None)
        items = [LeaseItem(job.job_id, job.token, **more) for job in jobs]
        call = verb(items) if accept is None else verb(items, accept)
        return [result.outcome for result in self.consumers.run(call)]

    def schedule(self, count: int = 1, first: int = 1, **more: Any) -> list[int]:
        """Schedules jobs that are due now."""
        when = more.pop("action_time", NOW)
        biz_type = more.pop("biz_type", TYPE)
        return [
            self.center.schedule(biz_id, when, biz_type=biz_type, **more)
            for biz_id in range(first, first + count)
        ]

    # ---- rows

    def shard(self, job_id: int) -> int:
        return self.settings.routing.shard_of_hash(routing_bits_of(job_id))

    def sql(self, job_id: int, statement: str, /, **values: Any) -> list[Any]:
        """Plain SQL in the database of a job; `{table}` is its table."""
        database = self.databases.database_of_shard(self.shard(job_id))
        statement = statement.format(table=f"toc_job_{self.shard(job_id):04d}")
        with database.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def row(self, job_id: int) -> Row:
        due = "CASE status WHEN 1 THEN lease_end_time ELSE due_time END"
        columns = f"status, attempts, CAST({due} AS CHAR), CAST(action_time AS CHAR), claim_token"
        ((status, attempts, due, action, token),) = self.sql(
            job_id, f"SELECT {columns} FROM {{table}} WHERE job_id = :id", id=job_id
        )
        return Row(Status(status), attempts, _ms(due) if due else None, _ms(action), token)

    def statuses(self, job_ids: Sequence[int]) -> list[Status]:
        return [self.row(job_id).status for job_id in job_ids]

    def expire(self, job_id: int, seconds_ago: int = 1) -> None:
        """Makes the lease of a running job end so many seconds ago, as if the time had passed."""
        ago = f"UTC_TIMESTAMP(3) - INTERVAL {seconds_ago:d} SECOND"
        self.sql(
            job_id, f"UPDATE {{table}} SET lease_end_time = {ago} WHERE job_id = :id", id=job_id
        )
        self.remind(topic_of_pull_type(TYPE), job_id)

    def armed_ms(self, job_id: int) -> int | None:
        """When the reminder of a job of TYPE is due; None: it has none in the StoreQueue."""
        reminders, topic = self.center._open_connections().reminders, topic_of_pull_type(TYPE)
        assert reminders is not None
        slot = reminders.slot_of_job(topic, job_id)
        return reminders.find_reminder(topic, slot, job_id)[0]

    def remind(self, topic: str, job_id: int) -> None:
        """Arms a reminder that is due."""
        reminders = self.center._open_connections().reminders
        assert reminders is not None
        reminders.arm(topic, [Reminder(1, job_id)])


def sees_tenant(tenant: str | None) -> Callable[[Job], bool]:
    """The `accept` of a consumer of one tenant."""
    return lambda job: job.tenant == tenant


def _ms(value: str) -> int:
    return round((datetime.fromisoformat(value + "+00:00") - EPOCH) / timedelta(milliseconds=1))
