"""The baseline: the least that drivers must do for the same work, by hand.

pymysql's cursors and redis-py directly. The connections come out of toc's own engine and Redis
factory, so TLS, isolation level and time-outs are alike on both sides by construction.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from toc.bench.child_node import wall_ms
from toc.bench.common import (
    CLIENTS,
    FAR_MS,
    BenchContext,
    measure_clock_offset,
    time_each_call_ms,
    time_in_threads_s,
)
from toc.bench.job_specs import make_attribute
from toc.bench.lateness import AHEAD_S, GATHER_S, ONE_BY_ONE
from toc.bench.report import BenchCheck
from toc.bench.scratch_databases import ScratchDatabases, create_scratch_databases
from toc.domain.ids import JobIdFactory, routing_bits_of
from toc.domain.routing import routing_hash_of, slot_of_hash
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Database, Databases
from toc.timer import redis_keys
from toc.timer.lua_scripts import Client

TOPIC = "default"
TYPE_NO = 1
DRAINERS = 2
"""Threads of a drain: one works in Python while the other waits for a server."""

AT_ONCE = 100  # jobs of a pop, when few are due
LATE_S_MAX = 30.0
LEASE_S = 60
STAY_MS = 30_000

COLUMNS = "job_id, biz_id, type_no, action_time, due_time, attribute, dedup_key"
READ = f"{COLUMNS}, status, attempts, claim_token"
EVENT = "event_time, job_id, what, from_status, to_status, attempts, actor, reason"

MOVE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local upto = string.format('%.0f', now)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', upto, 'LIMIT', 0, ARGV[1])
if #due > 0 then
    redis.call('ZREM', KEYS[1], unpack(due))
    local back, pairs_ = string.format('%.0f', now + ARGV[2]), {}
    for i, id in ipairs(due) do
        pairs_[2 * i - 1], pairs_[2 * i] = back, id
    end
    redis.call('ZADD', KEYS[2], unpack(pairs_))
end
return {upto, unpack(due)}
"""


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One job as the baseline writes it; all texts are made before the clock runs."""

    job_id: int
    biz_id: int
    due_ms: int
    when: str  # SQL text without quotes
    attribute: str  # a SQL literal


Batch = Mapping[int, Mapping[int, Sequence[PlannedRow]]]
"""Database -> shard -> rows, both ascending."""


def plan_rows(ids: JobIdFactory, first: int, count: int, due_ms: int) -> list[PlannedRow]:
    """The rows of jobs with business ids from `first` on."""
    job_ids = ids.make_ids([routing_hash_of(first + i) for i in range(count)])
    return [
        PlannedRow(
            job_id,
            first + i,
            due_ms,
            sql_time_of_ms(due_ms),
            _json_literal(make_attribute(first + i)),
        )
        for i, job_id in enumerate(job_ids)
    ]


def _json_literal(value: dict[str, Any]) -> str:
    """JSON as a MySQL string literal."""
    text = json.dumps(value, separators=(",", ":"))
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def group_by_database(settings: Settings, jobs: Sequence[PlannedRow]) -> Batch:
    found: dict[int, dict[int, list[PlannedRow]]] = defaultdict(lambda: defaultdict(list))
    routing = settings.routing
    for job in sorted(jobs, key=lambda job: routing.shard_of_hash(routing_hash_of(job.biz_id))):
        shard = routing.shard_of_hash(routing_hash_of(job.biz_id))
        found[routing.database_index(shard)][shard].append(job)
    return found


class BaselineConnection:
    """One raw connection per database, and one Redis client. For one thread."""

    def __init__(self, settings: Settings, databases: Databases, client: Client) -> None:
        self._settings, self._client, self._databases = settings, client, databases
        self._pooled = [database.engine.raw_connection() for database in databases]
        self._raw: list[Any] = [pooled.driver_connection for pooled in self._pooled]
        self._cursors: list[Any] = [raw.cursor() for raw in self._raw]
        for cursor in self._cursors:  # it stands idle while toc has its turn
            cursor.execute("SET SESSION wait_timeout = 28800")
        self._move = client.register_script(MOVE)

    def close(self) -> None:
        for pooled in self._pooled:
            pooled.close()

    # ---- schedule

    def insert_many(self, batch: Batch) -> None:
        """One INSERT per shard, one transaction per database, then a ZADD per slot, pipelined."""
        self.insert_rows(batch)
        entries: dict[str, dict[str, int]] = defaultdict(dict)
        for shards in batch.values():
            for jobs in shards.values():
                for job in jobs:
                    entries[self._store(job.job_id)][str(job.job_id)] = job.due_ms
        pipe = self._client.pipeline(transaction=False)
        for key, scores in entries.items():
            pipe.zadd(key, scores)
        pipe.execute()

    def insert_rows(self, batch: Batch) -> None:
        """The same without reminders."""
        for index, shards in batch.items():
            execute = self._cursors[index].execute
            for shard, jobs in shards.items():
                rows = ",".join([_values(job) for job in jobs])
                table = self._databases[index].job_table_name(shard)
                execute(f"INSERT INTO {table} ({COLUMNS}) VALUES {rows}")
            self._raw[index].commit()

    def insert(self, job: PlannedRow) -> None:
        """One-row INSERT, COMMIT, ZADD."""
        database, shard = self._home(job.job_id)
        table = database.job_table_name(shard)
        sql = f"INSERT INTO {table} ({COLUMNS}) VALUES {_values(job)}"
        self._cursors[database.index].execute(sql)
        self._raw[database.index].commit()
        self._client.zadd(self._store(job.job_id), {str(job.job_id): job.due_ms})

    # ---- cancel

    def parts(self, ids: Sequence[int], size: int) -> Iterator[list[int]]:
        """At most `size` ids of one shard each."""
        by_shard: dict[int, list[int]] = defaultdict(list)
        for job_id in ids:
            by_shard[self._home(job_id)[1]].append(job_id)
        for its in by_shard.values():
            for at in range(0, len(its), size):
                yield its[at : at + size]

    def cancel(self, ids: Sequence[int], *, events: bool) -> int:
        """The guarded UPDATE of ids of one shard, COMMIT, and a ZREM per slot, pipelined.

        `events`: it also writes, in the same transaction, who cancelled which and why, as toc does.
        """
        database, shard = self._home(ids[0])
        table, listed = database.job_table_name(shard), ",".join(map(str, ids))
        changed = self._cursors[database.index].execute(
            f"UPDATE {table} SET status = 3, due_time = NULL, gmt_modified = UTC_TIMESTAMP(3) "
            f"WHERE job_id IN ({listed}) AND status = 0"
        )
        if events:
            self._cursors[database.index].execute(
                f"INSERT INTO toc_event ({EVENT}) SELECT UTC_TIMESTAMP(3), job_id, 'cancel', 0, 3, "
                f"attempts, 'toc bench', 'measured' FROM {table} WHERE job_id IN ({listed})"
            )
        self._raw[database.index].commit()
        by_key: dict[str, list[int]] = defaultdict(list)
        for job_id in ids:
            by_key[self._store(job_id)].append(job_id)
        pipe = self._client.pipeline(transaction=False)
        for key, its in by_key.items():
            pipe.zrem(key, *its)
        pipe.execute()
        return int(changed)

    # ---- drain

    def drain(self, n: int, part: int = 0, parts: int = 1) -> int:
        """Runs all that is due in every `parts`th slot, `n` at a time. Returns how many rows it settled."""
        settled = 0
        for slot in range(part, self._settings.slot_amount_of(TOPIC), parts):
            while ids := self._pop(slot, n):
                settled += self._run(slot, ids)
        return settled

    def run_when_due(
        self, part: int, parts: int, until: Callable[[], bool], on_read: Callable[[list[int]], None]
    ) -> None:
        """Runs what comes due in every `parts`th slot. `on_read` is called with the ids of each claim."""
        slots = range(part, self._settings.slot_amount_of(TOPIC), parts)
        while not until():
            heads = self._client.pipeline(transaction=False)
            for slot in slots:
                heads.zrange(self._queues(slot)[0], 0, 0, withscores=True)
            now_ms = int(wall_ms()) + 1
            for slot, head in zip(slots, heads.execute(), strict=True):
                if head and head[0][1] <= now_ms and (popped := self._pop(slot, AT_ONCE)):
                    self._run(slot, popped, on_read)

    def _pop(self, slot: int, n: int) -> tuple[int, list[int]] | None:
        answer = self._move(keys=list(self._queues(slot)), args=[n, STAY_MS])
        return (int(answer[0]), [int(job_id) for job_id in answer[1:]]) if len(answer) > 1 else None

    def _run(
        self,
        slot: int,
        popped: tuple[int, list[int]],
        on_read: Callable[[list[int]], None] = lambda ids: None,
    ) -> int:
        now_ms, ids = popped
        parts: dict[tuple[int, int], list[int]] = defaultdict(list)
        for job_id in sorted(ids):
            database, shard = self._home(job_id)
            parts[database.index, shard].append(job_id)
        settled = sum(
            self._claim_and_settle(*home, part, now_ms, on_read) for home, part in parts.items()
        )
        self._client.zrem(self._queues(slot)[1], *ids)
        return settled

    def _claim_and_settle(
        self,
        index: int,
        shard: int,
        ids: Sequence[int],
        now_ms: int,
        on_read: Callable[[list[int]], None],
    ) -> int:
        table = self._databases[index].job_table_name(shard)
        cursor, raw = self._cursors[index], self._raw[index]
        listed = ",".join(map(str, ids))
        token = f"baseline:{ids[0]}"
        cursor.execute(
            f"UPDATE {table} SET status = 1, claim_token = '{token}', attempts = attempts + 1, "
            f"lease_end_time = TIMESTAMPADD(SECOND, {LEASE_S}, UTC_TIMESTAMP(3)), "
            "gmt_modified = UTC_TIMESTAMP(3) "
            f"WHERE job_id IN ({listed}) AND status = 0 AND due_time <= '{sql_time_of_ms(now_ms)}'"
        )
        raw.commit()
        cursor.execute(f"SELECT {READ} FROM {table} WHERE job_id IN ({listed})")
        mine = [row[0] for row in cursor.fetchall() if row[-1] == token]
        on_read(mine)
        if not mine:
            return 0
        listed = ",".join(map(str, mine))
        changed = cursor.execute(
            f"UPDATE {table} SET status = 2, gmt_modified = UTC_TIMESTAMP(3), due_time = NULL "
            f"WHERE job_id IN ({listed}) AND status = 1 AND claim_token = '{token}'"
        )
        raw.commit()
        return int(changed)

    # ---- names

    def _home(self, job_id: int) -> tuple[Database, int]:
        shard = self._settings.routing.shard_of_hash(routing_bits_of(job_id))
        return self._databases.database_of_shard(shard), shard

    def _store(self, job_id: int) -> str:
        slot = slot_of_hash(routing_bits_of(job_id), self._settings.slot_amount_of(TOPIC))
        return redis_keys.store_queue_key(self._settings.namespace, TOPIC, slot)

    def _queues(self, slot: int) -> tuple[str, str]:
        namespace = self._settings.namespace
        return redis_keys.store_queue_key(namespace, TOPIC, slot), redis_keys.prepare_queue_key(
            namespace, TOPIC, slot
        )


def _values(job: PlannedRow) -> str:
    when = f"'{job.when}','{job.when}'"
    return f"({job.job_id},{job.biz_id},{TYPE_NO},{when},{job.attribute},NULL)"


class BareDrivers:
    """The baseline of a run; it implements `toc.bench.common.Baseline`. It has databases of its own."""

    def __init__(
        self,
        bench: BenchContext,
        scratch: ScratchDatabases,
        connections: Sequence[BaselineConnection],
    ) -> None:
        self._bench, self._scratch, self._connections = bench, scratch, connections
        self._one = connections[0]
        self._ids = JobIdFactory(SystemClock().wall_ms, 0)
        self._batch = bench.options.batch

    def schedule_many(self, jobs: int) -> float:
        batches = self._plan_batches(jobs, int(wall_ms()) + FAR_MS)
        started_s = time.perf_counter()
        for batch in batches:
            self._one.insert_many(batch)
        return jobs / (time.perf_counter() - started_s)

    def schedule(self, jobs: int) -> list[float]:
        return time_each_call_ms([partial(self._one.insert, row) for row in self._plan(jobs)])

    def schedule_in_threads(self, clients: int, each: int) -> float:
        def insert_all(connection: BaselineConnection, rows: Sequence[PlannedRow]) -> None:
            for row in rows:
                connection.insert(row)

        works = [
            partial(insert_all, connection, self._plan(each))
            for connection in self._connections[:clients]
        ]
        return clients * each / time_in_threads_s(works)

    def cancel(self, jobs: int, *, events: bool) -> float:
        ids = self._insert_armed(jobs)
        calls = [partial(self._one.cancel, [job_id], events=events) for job_id in ids]
        return jobs / sum(time_each_call_ms(calls)) * 1000

    def cancel_in_bulk(self, jobs: int, *, events: bool) -> float:
        ids = self._insert_armed(jobs)
        started_s = time.perf_counter()
        parts = self._one.parts(ids, self._batch)
        cancelled = sum(self._one.cancel(part, events=events) for part in parts)
        return cancelled / (time.perf_counter() - started_s)

    def drain(self, jobs: int) -> float:
        for batch in self._plan_batches(jobs, int(self._bench.redis_time_ms())):
            self._one.insert_many(batch)
        connections = self._connections[:DRAINERS]
        counts: list[int] = []

        def drain_part(n: int) -> None:
            counts.append(connections[n].drain(self._batch, n, len(connections)))

        took_s = time_in_threads_s([partial(drain_part, n) for n in range(len(connections))])
        settled = sum(counts)
        text = f"the baseline settled {settled:,} of {jobs:,} rows"
        self._bench.report.checks.append(BenchCheck("drain", text, settled == jobs))
        return settled / took_s

    def lateness(self, rate: float, due_s: Sequence[float]) -> list[float]:
        """One thread schedules, DRAINERS threads look at the heads of their slots and run what is due."""
        offset_ms, _ = measure_clock_offset(self._bench.scratch.client)
        began_ms = wall_ms()
        rows = self._plan(len(due_s))
        rows = [
            replace(row, due_ms=ms, when=sql_time_of_ms(ms))
            for row, ms in zip(
                rows,
                (round(began_ms + offset_ms + (s + AHEAD_S) * 1000) for s in due_s),
                strict=True,
            )
        ]
        due_ms = {row.job_id: row.due_ms for row in rows}
        late_ms: list[float] = []
        until_s = time.monotonic() + due_s[-1] + AHEAD_S + LATE_S_MAX

        def note(ids: list[int]) -> None:
            now_ms = wall_ms() + offset_ms
            late_ms.extend(now_ms - due_ms[job_id] for job_id in ids)

        def is_over() -> bool:
            return len(late_ms) >= len(rows) or time.monotonic() > until_s

        def schedule() -> None:
            """As a RateClient does."""
            gather_s = GATHER_S if rate > ONE_BY_ONE else 0.0
            done = 0
            while done < len(rows):
                now_s = (wall_ms() - began_ms) / 1000
                if due_s[done] + gather_s > now_s:
                    time.sleep(due_s[done] + gather_s - now_s)
                    continue
                end = bisect_right(due_s, now_s, done)
                self._one.insert_many(group_by_database(self._scratch.settings, rows[done:end]))
                done = end

        others = self._connections[1 : DRAINERS + 1]
        looking = [
            partial(connection.run_when_due, n, len(others), is_over, note)
            for n, connection in enumerate(others)
        ]
        time_in_threads_s([schedule, *looking])
        text = f"the baseline ran {len(late_ms):,} of {len(rows):,} jobs"
        self._bench.report.checks.append(BenchCheck("lateness", text, len(late_ms) == len(rows)))
        return late_ms

    def clear(self) -> None:
        self._scratch.clear_tables_and_queues()

    def insert_stock(self, first: int, count: int, due_ms: int) -> None:
        """Writes rows without reminders, here and beside toc's own rows."""
        for side in (self._scratch, self._bench.scratch):
            rows = plan_rows(self._ids, first, count, due_ms)
            with closing(BaselineConnection(side.settings, side.databases, side.client)) as writer:
                writer.insert_rows(group_by_database(side.settings, rows))

    def _insert_armed(self, jobs: int) -> list[int]:
        rows = self._plan(jobs)
        self._one.insert_many(group_by_database(self._scratch.settings, rows))
        return [row.job_id for row in rows]

    def _plan(self, jobs: int) -> list[PlannedRow]:
        first = self._bench.reserve_biz_ids(jobs)
        return plan_rows(self._ids, first, jobs, int(wall_ms()) + FAR_MS)

    def _plan_batches(self, jobs: int, due_ms: int) -> list[Batch]:
        rows = plan_rows(self._ids, self._bench.reserve_biz_ids(jobs), jobs, due_ms)
        return [
            group_by_database(self._scratch.settings, rows[at : at + self._batch])
            for at in range(0, jobs, self._batch)
        ]


@contextmanager
def open_baseline(bench: BenchContext, settings: Settings) -> Iterator[BareDrivers]:
    """Databases beside those of toc, with the same shards, and connections to them."""
    ours, count = bench.scratch, max(DRAINERS + 1, bench.options.clients or CLIENTS)
    with (
        create_scratch_databases(
            settings, ours.settings.shards, name="baseline", stocked=ours.stocked
        ) as scratch,
        ExitStack() as stack,
    ):
        connections = [
            stack.enter_context(
                closing(BaselineConnection(scratch.settings, scratch.databases, scratch.client))
            )
            for _ in range(count)
        ]
        yield BareDrivers(bench, scratch, connections)
