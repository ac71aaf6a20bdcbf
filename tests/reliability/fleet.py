"""Several workers under load, and what came of every job."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.deep import ALL
from tests.invariants.harness import TYPE, Stack, WorkerProcess
from tests.reliability.wire import Wire
from tests.servers.fixtures import redis_client
from tests.worker.waiting import remains, wait_until
from toc.cluster.roster import Member, read_roster
from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.errors import PartlyScheduled, StoreUnavailable
from toc.timer import redis_keys

PERIOD_S = 0.05
CLAIMED_S = 0.5  # a living worker has claimed by then what it has popped
ON_TIME_S = 0.5
BURST = 1000

RATE = int(os.environ.get("TOC_TEST_RATE", "100"))
"""Jobs a second. What three workers and all servers on two processors do with time to spare."""

CALM_S = 3
"""How long all goes well before something is broken: what is late then is the machine's doing."""

OUTAGE_S = float(os.environ.get("TOC_TEST_OUTAGE_S", "15" if ALL else "8"))
"""How long Redis and ZooKeeper are stopped. Nothing changes with a longer one but the number of jobs."""


class Load:
    """A client that schedules `rate` jobs a second, each due `ahead_s` later, until it is stopped.

    `absolute`: it says when by its own clock, which is right, and not "so long from now".
    """

    def __init__(
        self, stack: Stack, rate: float, ahead_s: float, wants: Mapping[str, Any], *, absolute: bool
    ) -> None:
        self._stack, self._rate, self._ahead_s, self._wants = stack, rate, ahead_s, dict(wants)
        self._absolute = absolute
        self.ids: list[int] = []
        self.refused = 0
        self.last_refusal = ""
        self.slowest_call_s = 0.0
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60)

    def _run(self) -> None:
        n, began_s = 0, time.monotonic()
        while not self._enough.wait(PERIOD_S):
            wanted = int((time.monotonic() - began_s) * self._rate) - n
            if wanted <= 0:
                continue
            ahead = timedelta(seconds=self._ahead_s)
            when = datetime.now(UTC) + ahead if self._absolute else ahead
            jobs = [
                {"biz_id": 1_000_000 + n + i, "action_time": when, "attribute": self._wants or None}
                for i in range(min(wanted, BURST))
            ]
            n += len(jobs)
            called_s = time.monotonic()
            try:
                self.ids += self._stack.center.schedule_many(jobs, biz_type=TYPE)
            except PartlyScheduled as error:
                self.ids += [job_id for job_id in error.job_ids if job_id is not None]
                self.refused += error.job_ids.count(None)
                self.last_refusal = repr(error.__cause__)
            except StoreUnavailable as error:
                self.refused += len(jobs)
                self.last_refusal = repr(error)
            self.slowest_call_s = max(self.slowest_call_s, time.monotonic() - called_s)


class Row(NamedTuple):
    job_id: int
    status: Status
    action_ms: int


class Figures(NamedTuple):
    """What came of the jobs. Lateness: of each job's first start, in seconds."""

    jobs: int
    lost: int
    early: int
    twice: int
    late_p50_s: float
    late_p99_s: float
    late_max_s: float


class Account:
    """What became of every job, up to now. Times in ms since 1970."""

    def __init__(
        self, rows: Iterable[Row], starts: Mapping[int, list[float]], done: set[int]
    ) -> None:
        self.rows = {row.job_id: row for row in rows}
        self.starts, self.done = starts, done

    def due(self, ids: Iterable[int], from_s: float = 0.0, to_s: float = float("inf")) -> set[int]:
        """Those of `ids` that are due in this time, in seconds since 1970."""
        rows = self.rows
        return {j for j in ids if j not in rows or from_s <= rows[j].action_ms / 1000 < to_s}

    def late_s(self, job_id: int) -> float:
        return (min(self.starts[job_id]) - self.rows[job_id].action_ms) / 1000

    def late_before_s(self, ids: Iterable[int], moment_s: float) -> float:
        """How late jobs were at most that were started before this moment.

        Before the first fault: how late this machine makes them, which is no fault's doing.
        """
        started = {j for j in self._ran(ids) if min(self.starts[j]) / 1000 < moment_s}
        return self.figures(started).late_max_s

    def late_until_s(self, ids: Iterable[int], since_s: float) -> float:
        """How long after this moment jobs came due that were started late."""
        late = (self.rows[j].action_ms / 1000 - since_s for j in self._ran(ids)
                if self.late_s(j) > ON_TIME_S)  # fmt: skip
        return max(0.0, max(late, default=0.0))

    def lost(self, ids: Iterable[int]) -> set[int]:
        rows = self.rows
        return {
            j
            for j in ids
            if j not in rows or rows[j].status is not Status.DONE or j not in self.done
        }

    def lost_rows(self, ids: Iterable[int]) -> set[int]:
        """Those that the database neither keeps nor has ended."""
        good = (Status.PENDING, Status.RUNNING, Status.DONE)
        return {j for j in ids if j not in self.rows or self.rows[j].status not in good}

    def twice(self, ids: Iterable[int]) -> set[int]:
        return {j for j in ids if len(self.starts.get(j, ())) > 1}

    def figures(self, ids: Iterable[int]) -> Figures:
        wanted = set(ids)
        late_s = sorted(map(self.late_s, self._ran(wanted)))
        return Figures(
            jobs=len(wanted),
            lost=len(self.lost(wanted)),
            early=sum(
                start < self.rows[j].action_ms
                for j in self._ran(wanted)
                for start in self.starts[j]
            ),
            twice=sum(len(self.starts[j]) - 1 for j in self.twice(wanted)),
            late_p50_s=late_s[len(late_s) // 2] if late_s else 0.0,
            late_p99_s=late_s[len(late_s) * 99 // 100] if late_s else 0.0,
            late_max_s=late_s[-1] if late_s else 0.0,
        )

    def _ran(self, ids: Iterable[int]) -> Iterator[int]:
        return (j for j in ids if j in self.starts and j in self.rows)


class Share(NamedTuple):
    """What a node owns, by its own word."""

    slots: frozenset[int]
    shards: frozenset[int]


class Fleet:
    """A stack's workers, and the account of its jobs. `wrong_by_s`: of a worker's clock, by its pid."""

    def __init__(self, stack: Stack, workers: int, **parts: Any) -> None:
        self.stack = stack
        self.parts = parts
        self.wrong_by_s: dict[int, float] = defaultdict(float)
        self.workers = [self.add() for _ in range(workers)]
        for worker in self.workers:
            worker.wait_ready()

    def add(self, **parts: Any) -> WorkerProcess:
        """One more worker; it is not among `workers`, and not waited for."""
        terms: Mapping[str, Mapping[str, Any]] = {TYPE: {"timeout": 1, "retry": [0]}}
        return self.stack.worker(**{"types": terms, **self.parts, **parts})

    def load(
        self, rate: float, ahead_s: float = 1.0, *, absolute: bool = False, **wants: Any
    ) -> Load:
        return Load(self.stack, rate, ahead_s, wants, absolute=absolute)

    def freeze_amid_transaction(self, worker: WorkerProcess, wire: Wire) -> None:
        """SIGSTOP when it holds the locks of rows. `wire`: its way to the database."""

        def stands_still() -> bool:
            if not self.in_flight_of(worker):  # it has nothing that it could settle
                return False
            wire.cut(answers_only=True)  # what it begins now does not come to its COMMIT
            found = not remains(lambda: not self._someone_stands_still(), 0.5)
            if not found:  # it only asks what needs no transaction
                wire.mend()
                time.sleep(1.0)  # it needs answers to claim further jobs
            return found

        wait_until(stands_still, "a transaction to stand still", 60)
        worker.freeze()
        wire.mend()

    def _someone_stands_still(self) -> bool:
        """Whether a transaction that has changed rows is idle, and stays so."""
        query = text(
            "SELECT trx_id FROM information_schema.innodb_trx JOIN information_schema.processlist"
            " ON id = trx_mysql_thread_id WHERE command = 'Sleep' AND trx_rows_modified > 0"
        )
        engine = create_engine(self.stack.settings.databases[0], poolclass=NullPool)
        with engine.connect() as connection:
            idle = set(connection.scalars(query))
            if idle:
                time.sleep(0.2)
                idle &= set(connection.scalars(query))
        return bool(idle)

    # ---- the database

    def in_flight_of(self, worker: WorkerProcess) -> set[int]:
        """Jobs that this process has claimed and not settled, by the database."""
        return set(self.attempts_of(worker))

    def attempts_of(self, worker: WorkerProcess) -> dict[int, int]:
        """Which attempt of each job this process has claimed and not settled, by the database."""
        held = f":{worker.pid}:"
        rows = self._select("job_id, attempts, claim_token", "status = 1")
        return {job_id: attempts for job_id, attempts, token in rows if held in str(token)}

    def running(self) -> set[int]:
        """Jobs that anybody has claimed and not settled, by the database."""
        return {job_id for (job_id,) in self._select("job_id", "status = 1")}

    def cut_off(self, worker: WorkerProcess) -> set[int]:
        """Jobs that a process that was just killed, or frozen, has taken along.

        It has claimed them, perhaps by its last words, which the database still carries out. Or it has
        popped them and no more, which nobody can tell from those that another is about to claim, but
        by waiting.
        """
        out = self.out()
        time.sleep(CLAIMED_S)
        pending = {job_id for (job_id,) in self._select("job_id", "status = 0 AND " + PAST)}
        return self.in_flight_of(worker) | (out & pending & self.out())

    def live(self, where: str = "TRUE") -> int:
        """How many jobs have not ended."""
        counts = self._select("COUNT(*)", f"due_time IS NOT NULL AND {where}")
        return sum(count for (count,) in counts)

    def wait_until_all_ended(self, seconds: float = 60, *, due_by_s: float | None = None) -> None:
        """All jobs, or all that were due by a moment."""
        where = "TRUE"
        if due_by_s is not None:
            where = f"action_time <= '{datetime.fromtimestamp(due_by_s, UTC):%Y-%m-%d %H:%M:%S.%f}'"

        def ended() -> bool:
            return not self.live(where)

        try:
            wait_until(ended, "every job to end", seconds)
        except AssertionError as error:
            left = self._select(
                "job_id, status, attempts, claim_token, due_time", "due_time IS NOT NULL"
            )
            raise AssertionError(f"{error}; {len(left)} live, among them {left[:5]}") from None

    def rows(self) -> list[Row]:
        epoch = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', action_time) DIV 1000"
        return [
            Row(job_id, Status(status), int(action_ms))
            for job_id, status, action_ms in self._select(f"job_id, status, {epoch}", "TRUE")
        ]

    def _select(self, columns: str, where: str) -> list[tuple[Any, ...]]:
        """Over all shards, past toc's own connections: a database that is down is none of their business."""
        settings = self.stack.settings
        found: list[tuple[Any, ...]] = []
        for index, url in enumerate(settings.databases):
            sql = " UNION ALL ".join(
                f"SELECT {columns} FROM toc_job_{shard:04d} WHERE {where}"
                for shard in settings.routing.shards_of_database(index)
            )
            engine = create_engine(url, poolclass=NullPool)
            with engine.connect() as connection:
                found += [tuple(row) for row in connection.execute(text(sql))]
            engine.dispose()
        return found

    # ---- Redis

    def armed(self) -> set[int]:
        """The jobs in all StoreQueues."""
        return self._entries(redis_keys.store_queue_key)

    def out(self) -> set[int]:
        """The jobs in all PrepareQueues."""
        return self._entries(redis_keys.prepare_queue_key)

    def _entries(self, key: Callable[[str, str, int], str]) -> set[int]:
        settings = self.stack.settings
        if not settings.has_timer:
            return set()
        is_cluster = settings.redis_url.startswith("redis+cluster")
        url = settings.redis_url.replace("redis+cluster", "redis")
        with closing(redis_client(url, is_cluster=is_cluster)) as client:
            return {
                int(job_id)
                for slot in range(settings.slot_amount_of("default"))
                for job_id in client.zrange(key(settings.namespace, "default", slot), 0, -1)
            }

    # ---- ZooKeeper

    def members(self) -> dict[int, Member]:
        """The members of the cluster by their process id."""
        return {pid_of(member): member for member in read_roster(self.stack.settings)}

    def wait_until_shared(
        self, among: Iterable[WorkerProcess], seconds: float = 30
    ) -> dict[int, Share]:
        """Until these workers are the members, and each slot and shard has one owner; their shares by pid."""
        pids = {worker.pid for worker in among}

        def shared() -> dict[int, Share]:
            found = self._shares()
            return found if found.keys() == pids and self._whole(found) else {}

        try:
            return wait_until(shared, "everything to have one owner", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; of {pids} there are {self._shares()}") from None

    def busiest(self) -> WorkerProcess:
        """The one with the largest share of slots, else shards: there is always something to break."""
        shares = self.wait_until_shared(self.workers)
        return max(self.workers, key=lambda w: [len(part) for part in shares[w.pid]])

    def _shares(self) -> dict[int, Share]:
        return {
            pid: Share(frozenset(member.slots.get("default", ())), frozenset(member.shards))
            for pid, member in self.members().items()
        }

    def _whole(self, shares: Mapping[int, Share]) -> bool:
        settings = self.stack.settings
        slots = Counter(slot for share in shares.values() for slot in share.slots)
        shards = Counter(shard for share in shares.values() for shard in share.shards)
        wanted = range(settings.slot_amount_of("default") if settings.has_timer else 0)
        return slots == Counter(wanted) and shards == Counter(range(settings.shards))

    # ---- what ran

    def starts_by_job(self) -> dict[int, list[float]]:
        """When the handlers of each job were started, in ms since 1970."""
        found: dict[int, list[float]] = defaultdict(list)
        for line in self.stack.starts:
            found[line.job_id].append(line.wall_ns / 1e6 - self.wrong_by_s[line.pid] * 1000)
        return dict(found)

    def account(self) -> Account:
        """Complete only for what has ended."""
        return Account(self.rows(), self.starts_by_job(), {line.job_id for line in self.stack.ends})

    def figures(self, ids: Iterable[int]) -> Figures:
        """The account of these jobs."""
        return self.account().figures(ids)

    def started(self) -> int:
        return len({line.job_id for line in self.stack.starts})

    def begun(self, pid: int | None = None) -> set[tuple[int, int]]:
        """(job_id, attempt) of all handler starts, or of those of one process."""
        return {
            (line.job_id, line.attempt) for line in self.stack.starts if pid in (None, line.pid)
        }

    def by_pid(self) -> Counter[int]:
        """Handler starts of each process."""
        return Counter(line.pid for line in self.stack.starts)


PAST = "due_time <= UTC_TIMESTAMP(3)"


def pid_of(member: Member) -> int:
    return int(member.identity.split(":")[1])


def slot_of(stack: Stack, job_id: int) -> int:
    """Of the only topic."""
    return routing_bits_of(job_id) & (stack.settings.slot_amount_of("default") - 1)


def shard_of(stack: Stack, job_id: int) -> int:
    return stack.settings.routing.shard_of_hash(routing_bits_of(job_id))


def timed(action: Callable[[], object]) -> float:
    """How long an action took, in seconds."""
    began_s = time.monotonic()
    action()
    return time.monotonic() - began_s
