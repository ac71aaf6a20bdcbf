"""Damage drawn at random: a value of a column, a place of a row, an operation of Redis on a key.

Whatever keeps a job from firing once and on time is found and named, and nothing healthy is. What is repaired
fires once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.deep import ALL
from tests.invariants.conftest import MakeStack, make_stack, own_redis
from tests.invariants.harness import TYPE, Stack
from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import _database as temporary_database
from tests.servers.fixtures import redis_client
from tests.table import add_line
from tests.worker.waiting import wait_until
from toc.domain.disagreements import Disagreement as D  # noqa: N817 - it stands in every line
from toc.domain.ids import ROUTING_MASK, routing_bits_of
from toc.domain.routing import routing_hash_of
from toc.reconcile.findings import ReconcileResult
from toc.reconcile.reconciliation import Reconciliation
from toc.timer import redis_keys

__all__ = ["make_stack", "own_redis"]

pytestmark = pytest.mark.timeout(300)

JOBS = 3000 if ALL else 900
SHARDS = 4
DUE_S = 45.0
"""Until then all is damaged, found and repaired, also on a busy machine."""
DAY_S = 86_400


class Job(NamedTuple):
    job_id: int
    biz_id: int
    shard: int
    due_ms: int

    @property
    def table(self) -> str:
        return f"toc_job_{self.shard:04d}"


class Town:
    """Two databases, a Redis, and jobs in them, all armed."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.settings = stack, stack.settings
        self.redis: Any = redis_client(self.settings.redis_url, is_cluster=False)
        self._engines = [create_engine(url, poolclass=NullPool) for url in self.settings.databases]
        due = timedelta(seconds=DUE_S)
        self.due_s = time.time() + DUE_S
        ids = stack.center.schedule_many([(n, due) for n in range(JOBS)], biz_type=TYPE)
        routing = self.settings.routing
        self.jobs = [
            Job(job_id, n, routing.shard_of_hash(routing_bits_of(job_id)), 0)
            for n, job_id in enumerate(ids)
        ]
        self.jobs = [job._replace(due_ms=int(self.redis.zscore(self.store(job), job.job_id)))
                     for job in self.jobs]  # fmt: skip

    def close(self) -> None:
        self.redis.close()

    def sql(self, shard: int, statement: str, **values: Any) -> list[Any]:
        engine = self._engines[self.settings.routing.database_index(shard)]
        with engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def set(self, job: Job, **columns: str) -> None:
        """Writes SQL expressions into columns of the row, as a person would."""
        values = ", ".join(f"{name} = {value}" for name, value in columns.items())
        self.sql(job.shard, f"UPDATE {job.table} SET {values} WHERE job_id = :id", id=job.job_id)

    def store(self, job: Job, shift: int = 0) -> str:
        slot = (job.shard + shift) % SHARDS
        return redis_keys.store_queue_key(self.settings.namespace, "default", slot)

    def prepare(self, job: Job) -> str:
        return redis_keys.prepare_queue_key(self.settings.namespace, "default", job.shard)

    def move_row(self, job: Job, shard: int) -> None:
        (row,) = self.sql(job.shard, f"SELECT * FROM {job.table} WHERE job_id = :id", id=job.job_id)
        values = {name: value for name, value in row._mapping.items() if name != "live_key"}
        names = ", ".join(values)
        slots = ", ".join(f":{name}" for name in values)
        self.sql(shard, f"INSERT INTO toc_job_{shard:04d} ({names}) VALUES ({slots})", **values)
        self.sql(job.shard, f"DELETE FROM {job.table} WHERE job_id = :id", id=job.job_id)

    def pop(self, job: Job, until_ms: int) -> None:
        self.redis.zrem(self.store(job), job.job_id)
        self.redis.zadd(self.prepare(job), {job.job_id: until_ms})

    def letter(self, job: Job) -> None:
        self.sql(
            job.shard,
            "INSERT INTO toc_dead_job (job_id, biz_id, type_no, attempts, error, dead_time)"
            f" SELECT job_id, biz_id, type_no, 1, 'by hand', UTC_TIMESTAMP(3) FROM {job.table}"
            " WHERE job_id = :id",
            id=job.job_id,
        )


def misrouted_biz_id(job: Job, rng: random.Random) -> int:
    """A business id whose routing bits are not those of the job: with the same bits the row is no misfit."""
    while True:
        biz_id = job.biz_id + rng.randint(1_000_000, 2_000_000)
        if (routing_hash_of(biz_id) & ROUTING_MASK) != routing_bits_of(job.job_id):
            return biz_id


class Damage(NamedTuple):
    """How a job is damaged. kinds: what must be found of it. fires: it runs once after the repair.

    left: the kinds that only a person repairs. also: what is true too, by the value that was drawn.
    """

    apply: Callable[[Town, Job, random.Random], object]
    kinds: frozenset[D]
    fires: bool = True
    left: frozenset[D] = frozenset()
    also: frozenset[D] = frozenset()


def ahead(rng: random.Random, least_s: float = 2 * 3600) -> int:
    return rng.randint(int(least_s), 400 * DAY_S)


def times(sign: str = "+") -> Callable[[Town, Job, random.Random], object]:
    def apply(town: Town, job: Job, rng: random.Random) -> None:
        town.set(
            job, due_time=f"TIMESTAMPADD(SECOND, {sign}{rng.randint(70, 90 * DAY_S)}, due_time)"
        )

    return apply


NOW = "UTC_TIMESTAMP(3)"
GRAMMAR: Mapping[str, Damage] = {
    # ---- the row: column, value
    "due_time is NULL": Damage(
        lambda t, j, r: t.set(j, due_time="NULL"), frozenset({D.NEVER_DUE})
    ),
    "due_time is NULL, no reminder": Damage(
        lambda t, j, r: (t.set(j, due_time="NULL"), t.redis.zrem(t.store(j), j.job_id)),
        frozenset({D.NEVER_DUE}),
    ),
    "due_time is later": Damage(times("+"), frozenset({D.MOVED})),
    "due_time is earlier": Damage(times("-"), frozenset({D.MOVED}), also=frozenset({D.OVERDUE})),
    "unknown status": Damage(
        lambda t, j, r: t.set(j, status=str(r.choice((5, 9, 77, -1)))),
        frozenset({D.UNKNOWN_STATUS}), fires=False, left=frozenset({D.UNKNOWN_STATUS}),
    ),
    "unknown type": Damage(
        lambda t, j, r: t.set(j, type_no=str(r.choice((0, 424_242, 2_000_000_000)))),
        frozenset({D.UNKNOWN_TYPE}), fires=False, left=frozenset({D.UNKNOWN_TYPE}),
    ),
    "done, with a due_time": Damage(
        lambda t, j, r: t.set(j, status=str(r.choice((2, 3)))), frozenset({D.ENDED_BUT_DUE}),
        fires=False, also=frozenset({D.ORPHAN}),
    ),
    "dead, without a letter": Damage(
        lambda t, j, r: t.set(j, status="4", due_time="NULL"), frozenset({D.NO_LETTER}),
        fires=False, also=frozenset({D.ORPHAN}),
    ),
    "a letter of a living job": Damage(lambda t, j, r: t.letter(j), frozenset({D.LONE_LETTER})),
    "a lease without end": Damage(
        lambda t, j, r: t.set(
            j, status="1", attempts="1", claim_token="'gone:1:1'", claim_time=NOW,
            lease_end_time=f"TIMESTAMPADD(SECOND, {ahead(r)}, {NOW})",
        ),
        frozenset({D.ENDLESS_LEASE}),
    ),
    "another biz_id": Damage(
        lambda t, j, r: t.set(j, biz_id=str(misrouted_biz_id(j, r))),
        frozenset({D.MISFIT}), left=frozenset({D.MISFIT}),
    ),
    # ---- the row: place
    "in another table": Damage(
        lambda t, j, r: t.move_row(j, j.shard ^ 1), frozenset({D.MISFIT})
    ),
    "in another database": Damage(
        lambda t, j, r: t.move_row(j, j.shard ^ 2), frozenset({D.MISFIT}),
        fires=False, left=frozenset({D.MISFIT}),
    ),
    # ---- Redis: operation, key
    "no reminder": Damage(lambda t, j, r: t.redis.zrem(t.store(j), j.job_id), frozenset({D.MISSING})),
    "a late reminder": Damage(
        lambda t, j, r: t.redis.zincrby(t.store(j), r.randint(30_000, 10**10), j.job_id),
        frozenset({D.LATE}),
    ),
    "in another slot": Damage(
        lambda t, j, r: (
            t.redis.zrem(t.store(j), j.job_id),
            t.redis.zadd(t.store(j, r.randint(1, 3)), {j.job_id: j.due_ms}),
        ),
        frozenset({D.WRONG_SLOT}),
    ),
    "in two slots": Damage(
        lambda t, j, r: t.redis.zadd(t.store(j, r.randint(1, 3)), {j.job_id: j.due_ms}),
        frozenset({D.TWO_SLOTS}),
    ),
    "popped long ago": Damage(
        lambda t, j, r: t.pop(j, j.due_ms - 1000 * ahead(r)), frozenset({D.STUCK})
    ),
    "popped for ever": Damage(
        lambda t, j, r: t.pop(j, j.due_ms + 1000 * ahead(r)), frozenset({D.STUCK})
    ),
    "the row is gone": Damage(
        lambda t, j, r: t.sql(j.shard, f"DELETE FROM {j.table} WHERE job_id = :id", id=j.job_id),
        frozenset({D.ORPHAN}), fires=False,
    ),
}  # fmt: skip


@pytest.fixture
def two_databases(mysql_database: str, mysql_server: Endpoint) -> Iterator[list[str]]:
    with temporary_database(mysql_server) as second:
        yield [mysql_database, second]


@pytest.fixture
def town(make_stack: MakeStack, two_databases: list[str]) -> Iterator[Town]:
    stack = make_stack(
        databases=two_databases,
        reconcile={"grace_s": 0.2, "repairs_per_s": 100_000},
        timer={"stay_s": 5, "load_tick_s": 1, "slow_poll_s": 1},
        # What the timer does must be the timer's.
        scanner={"grace_s": 200, "tick_s": 20},
    )
    town = Town(stack)
    with closing(town):
        yield town


def reconcile(town: Town, *, repair: bool) -> ReconcileResult:
    return Reconciliation(town.settings, None, repair=repair, actor="night").run()


def test_whatever_is_drawn_is_found_named_repaired_and_fires_once(
    town: Town, request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(10**6)  # noqa: S311 - which damage; pytest-randomly tells its seed
    rng = random.Random(seed)  # noqa: S311
    assert not reconcile(town, repair=False).findings
    damaged = dict(zip(rng.sample(town.jobs, JOBS // 2), names(rng), strict=False))
    for job, name in damaged.items():
        GRAMMAR[name].apply(town, job, rng)
    foreign = [town.store(town.jobs[0]), town.prepare(town.jobs[1])]
    for key in foreign:
        town.redis.zadd(key, {b"no job \xff": town.jobs[0].due_ms + 10**9})

    outcome = reconcile(town, repair=True)

    found: dict[int, set[D]] = {}
    for finding in outcome.findings:
        found.setdefault(finding.job_id, set()).add(finding.kind)
    assert D.FOREIGN in found.pop(0), seed
    wrong = {
        name: (found.get(job.job_id), GRAMMAR[name].kinds)
        for job, name in damaged.items()
        if found.get(job.job_id, set()) - GRAMMAR[name].also != GRAMMAR[name].kinds
    }
    assert not wrong, (seed, wrong)
    accused = found.keys() - {job.job_id for job in damaged}
    assert not accused, (seed, accused)
    again = reconcile(town, repair=True)
    left = {job.job_id: GRAMMAR[name].left for job, name in damaged.items() if GRAMMAR[name].left}
    for finding in again.findings:
        assert finding.kind in left[finding.job_id], (seed, finding)

    fires = Counter(
        job.biz_id for job in town.jobs if job not in damaged or GRAMMAR[damaged[job]].fires
    )
    renamed = {job.biz_id for job, name in damaged.items() if name == "another biz_id"}
    assert time.time() < town.due_s, "the machine was too slow: nothing may be due yet"
    town.stack.worker().wait_ready()
    wait_until(lambda: len(town.stack.ends) >= fires.total() - len(renamed), "all to fire", 120)
    time.sleep(2)
    started = Counter(line.biz_id for line in town.stack.starts if line.biz_id < JOBS)
    assert started == Counter(biz_id for biz_id in fires if biz_id not in renamed), seed
    add_line(
        request,
        "damage",
        (
            str(seed), f"{len(damaged):,}", f"{len(damaged):,}", f"{len(damaged) - len(wrong):,}",
            f"{len(damaged) - len(left):,}", f"{started.total():,}", f"{JOBS - len(damaged):,}", "0",
        ),
    )  # fmt: skip


def names(rng: random.Random) -> Iterator[str]:
    """Each kind of damage in turn, in an order that changes."""
    while True:
        yield from rng.sample(sorted(GRAMMAR), len(GRAMMAR))
