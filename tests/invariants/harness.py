"""A stack that a test may break: MySQL, a Redis of its own, worker processes, and their journal."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import text

from tests.forked import start_forked
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store import migrate

ROOT = Path(__file__).resolve().parents[2]
TYPE = "order.close"
SHARDS = 4

QUICK: dict[str, dict[str, Any]] = {
    "timer": {"stay_s": 1, "slow_poll_s": 0.2, "load_tick_s": 0.1},
    "scanner": {"grace_s": 1, "tick_s": 0.2},
    "worker": {
        "concurrency": 8,
        "queue_max": 32,
        "lease_s": 3,
        "lease_margin_s": 1,
        "stop_s": 10,
    },
}
"""Short leases and periods; a lease is 3 s."""


class Line(NamedTuple):
    """A handler's start or end."""

    what: str
    job_id: int
    biz_id: int
    attempt: int
    wall_ns: int
    pid: int


class Load(NamedTuple):
    """A worker process' figures at one moment."""

    in_flight: int
    waiting: int
    unsettled: int
    peak_kb: int
    refused: int
    wall_ns: int
    pid: int


class Row(NamedTuple):
    status: Status
    attempts: int
    token: str | None
    due: str | None


class WorkerProcess:
    """`toc.node` in a process, with the handlers of `app`."""

    def __init__(
        self, stack: Stack, name: str, plan: dict[str, Any], env: Mapping[str, str]
    ) -> None:
        self._stack, self.name = stack, name
        file = stack.directory / f"{name}.json"
        file.write_text(json.dumps(plan))
        self.log = stack.directory / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = start_forked(
                "tests.invariants.app",
                [str(file)],
                cwd=ROOT,
                env={k: v for k, v in os.environ.items() if not k.startswith("TOC_")} | dict(env),
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> WorkerProcess:
        def ready() -> bool:
            assert self._process.poll() is None, self.log.read_text()
            return any(
                words[0] == "ready" and words[-1] == str(self.pid) for words in self._stack.words()
            )

        wait_until(ready, f"{self.name} to be ready", 90)
        return self

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM: a graceful stop. Returns the exit status."""
        self._process.terminate()
        return self._process.wait(30)


class Stack:
    """MySQL's databases and a Redis by URL, clients and workers on them."""

    def __init__(
        self,
        directory: Path,
        databases: Sequence[str],
        redis_url: str,
        **settings: Mapping[str, Any],
    ) -> None:
        self.directory = directory
        self.plan: dict[str, Any] = {
            "databases": list(databases),
            "redis_url": redis_url,
            "shards": SHARDS,
            "pool_size": 8,
            "connect_timeout_s": 2,
            "read_timeout_s": 5,
            **{name: {**part, **settings.pop(name, {})} for name, part in QUICK.items()},
            **settings,
        }
        self.settings = Settings(**self.plan)
        migrate.upgrade(self.settings)
        self._journal = directory / "journal"
        self._journal.touch()
        self._names = (f"worker-{n}" for n in itertools.count(1))
        self._closing: list[Callable[[], object]] = []
        self.center = self.client()

    def client(self, clock: Clock | None = None, **settings: Any) -> TimeoutCenter:
        center = TimeoutCenter(Settings(**self.plan | settings), clock=clock)
        self._closing.append(center.close)
        return center

    def worker(
        self,
        types: Mapping[str, Mapping[str, Any]] | None = None,
        wrong_by_ms: int = 0,
        env: Mapping[str, str] | None = None,
        *,
        packets: bool = True,
        **parts: Any,
    ) -> WorkerProcess:
        """Starts a worker process.

        `types`: the terms of each biz_type; `env`: above the tests' own; `parts`: other settings. `packets`:
        False: it sends its statements one by one, as behind a proxy that accepts no more.
        """
        settings = self.plan | {
            name: {**self.plan.get(name, {}), **value} if isinstance(value, dict) else value
            for name, value in parts.items()
        }
        plan = {
            "settings": settings,
            "journal": str(self._journal),
            "types": types or {TYPE: {"timeout": 1, "retry": [0]}},
            "wrong_by_ms": wrong_by_ms,
            "packets": packets,
        }
        worker = WorkerProcess(self, next(self._names), plan, env or {})
        self._closing.append(worker.kill)
        return worker

    def schedule(self, count: int, when: Any, *, first: int = 0, **wants: Any) -> list[int]:
        """Schedules `count` jobs whose handlers do what `wants` says."""
        return self.center.schedule_many(
            [
                {"biz_id": first + n, "action_time": when, "attribute": wants or None}
                for n in range(count)
            ],
            biz_type=TYPE,
        )

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()

    # ---- the journal

    def words(self) -> list[list[str]]:
        # What is being written may be there in part.
        *whole, _ = self._journal.read_text().split("\n")
        return [line.split() for line in whole]

    def lines(self, what: str) -> list[Line]:
        return [Line(words[0], *map(int, words[1:])) for words in self.words() if words[0] == what]

    @property
    def starts(self) -> list[Line]:
        return self.lines("start")

    @property
    def ends(self) -> list[Line]:
        return self.lines("end")

    def starts_of(self, job_id: int) -> list[Line]:
        return [line for line in self.starts if line.job_id == job_id]

    def loads(self, worker: WorkerProcess) -> list[Load]:
        found = [Load(*map(int, words[1:])) for words in self.words() if words[0] == "load"]
        return [load for load in found if load.pid == worker.pid]

    # ---- rows

    def row(self, job_id: int) -> Row:
        table = f"toc_job_{self.settings.routing.shard_of_hash(routing_bits_of(job_id)):04d}"
        columns = "status, attempts, claim_token, CAST(due_time AS CHAR)"
        ((status, *rest),) = self.sql(f"SELECT {columns} FROM {table} WHERE job_id = {job_id}")
        return Row(Status(status), *rest)

    def statuses(self) -> Counter[Status]:
        """How many rows there are of each status."""
        found: Counter[Status] = Counter()
        for shard in range(SHARDS):
            sql = f"SELECT status, COUNT(*) FROM toc_job_{shard:04d} GROUP BY status"
            for status, count in self.sql(sql):
                found[Status(status)] += count
        return found

    def sql(self, statement: str) -> list[Any]:
        database = self.center._open_connections().databases[0]

        def run(connection: Any) -> list[Any]:
            result = connection.execute(text(statement))
            return list(result) if result.returns_rows else []

        return database.run_read(run)

    def wait_for(self, wanted: Mapping[Status, int], seconds: float = 60) -> None:
        """Until all jobs have ended, and then they must have ended so."""

        def ended() -> Counter[Status] | None:
            found = self.statuses()
            return None if any(status.live for status in found) else found

        assert wait_until(ended, "every job to end", seconds) == Counter(wanted)
