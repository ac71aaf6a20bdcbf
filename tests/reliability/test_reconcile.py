"""Hundreds of disagreements of every kind, made under live traffic: all are found, none is invented, and
when they are repaired each job fires exactly once."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.deep import deep
from tests.invariants.harness import ROOT, TYPE
from tests.reliability.conftest import MakeFleet, Report
from tests.reliability.fleet import Fleet, Load
from tests.worker.waiting import wait_until
from toc.domain.disagreements import Disagreement as D  # noqa: N817 - it stands in every line
from toc.domain.ids import JobIdFactory, routing_bits_of
from toc.domain.routing import routing_hash_of, slot_of_hash
from toc.domain.times import datetime_of
from toc.runtime.clock import SystemClock
from toc.timer import redis_keys
from toc.timer.loader import LoadMark
from toc.timer.reminders import Reminders

# EACH is set by hand to several thousand.
pytestmark = pytest.mark.timeout(400 + int(os.environ.get("TOC_TEST_DAMAGE", "0")) / 5)

EACH = int(os.environ.get("TOC_TEST_DAMAGE", "300"))
"""Damaged jobs of each kind; 3,000 by hand."""

QUIET, BULK = "quiet.close", "bulk.close"
"""Types of topics of their own: the first has no worker while it is damaged; the second loses its queues."""

NOBODY, PATIENCE_S = "nobody.close", 20.0
"""A type without a handler, in the topic of the load; how long its jobs are due before they are cancelled."""

SHARDS, BULK_SLOTS = 64, 8
DUE_S, SPREAD_S = (
    150.0 + EACH / 15,
    10.0,
)  # all is found and repaired before, also on a busy machine
TERMS = {"timeout": 1, "retry": [0]}


class Damage:
    """Damaged jobs. `expected`: what a compare must call each; `fires`: business ids of the living."""

    def __init__(self, fleet: Fleet, slots: Reminders) -> None:
        self._fleet, self._slots = fleet, slots
        self._settings = fleet.stack.settings
        self._client: Any = slots.connected_client()
        self.expected: dict[int, set[D]] = defaultdict(set)
        self.fires: set[int] = set()
        self._next_biz_id = 500_000_000
        self._biz_id: dict[int, int] = {}
        self._due = datetime_of(slots.read_time_ms()) + timedelta(seconds=DUE_S)
        self._sound = {
            biz_type: self._schedule(7 * EACH if biz_type == TYPE else 3 * EACH, biz_type)
            for biz_type in (TYPE, QUIET, BULK)
        }
        # Else a loader might arm anew what is about to be lost.
        self._wait_until_loaded({"default": SHARDS, "bulk": BULK_SLOTS})

    # ---- one kind after the other

    def missing(self) -> None:
        self._zrem(self._jobs(D.MISSING))

    def late(self) -> None:
        for job_id in self._jobs(D.LATE):
            self._client.zincrby(self._key(job_id), 3_600_000, job_id)

    def orphans(self) -> None:
        third = EACH // 3
        ended, gone = (
            self._jobs(D.ORPHAN, third, live=False),
            self._jobs(D.ORPHAN, third, live=False),
        )
        self._sql(ended, "UPDATE {table} SET status = 2, due_time = NULL WHERE job_id IN ({ids})")
        self._sql(gone, "DELETE FROM {table} WHERE job_id IN ({ids})")
        ids = JobIdFactory(lambda: 1_800_000_000_000, 0)
        for job_id in ids.make_ids([routing_hash_of(n) for n in range(EACH - 2 * third)]):
            self.expected[job_id].add(D.ORPHAN)
            self._client.zadd(self._key(job_id), {job_id: self._due.timestamp() * 1000})

    def in_other_slots(self) -> None:
        wrong = self._jobs(D.WRONG_SLOT)
        self._zrem(wrong)
        for job_id in [*wrong, *self._jobs(D.TWO_SLOTS)]:
            due_ms = int(self._due.timestamp() * 1000)
            self._client.zadd(self._key(job_id, shift=1), {job_id: due_ms})

    def moved(self) -> None:
        sql = "UPDATE {table} SET due_time = TIMESTAMPADD(SECOND, 200, due_time) WHERE job_id IN ({ids})"
        self._sql(self._jobs(D.MOVED), sql)

    def misfits(self) -> None:
        ids = self._jobs(D.MISFIT)
        self._sql(ids, "UPDATE {table} SET biz_id = biz_id + 50000000 WHERE job_id IN ({ids})")
        before = {self._biz_id[job_id] for job_id in ids}
        self.fires = self.fires - before | {biz_id + 50_000_000 for biz_id in before}

    def stuck(self) -> None:
        ids = self._jobs(D.STUCK, biz_type=QUIET)
        self._zrem(ids, "quiet")
        for job_id in ids:
            prepare = redis_keys.prepare_queue_key(
                self._settings.namespace, "quiet", routing_bits_of(job_id) % SHARDS
            )
            self._client.zadd(prepare, {job_id: (time.time() - 600) * 1000})

    def overdue(self) -> None:
        pending = self._jobs(D.OVERDUE, biz_type=QUIET)
        running = self._jobs(D.LEASE_OVER, biz_type=QUIET)
        for job_id in pending:
            self.expected[job_id].add(D.MISSING)
        self._zrem([*pending, *running], "quiet")
        long_ago = "TIMESTAMPADD(SECOND, -600, UTC_TIMESTAMP(3))"
        change = f"due_time = {long_ago}, action_time = {long_ago}"
        self._sql(pending, f"UPDATE {{table}} SET {change} WHERE job_id IN ({{ids}})")
        change += ", status = 1, attempts = 1, claim_token = 'gone:1:a:1'"
        self._sql(running, f"UPDATE {{table}} SET {change} WHERE job_id IN ({{ids}})")

    def lost_queues(self) -> None:
        """All StoreQueues of a topic are lost, and its marks stay."""
        self._jobs(D.MISSING, 3 * EACH, biz_type=BULK)
        for slot in range(BULK_SLOTS):
            self._client.delete(redis_keys.store_queue_key(self._settings.namespace, "bulk", slot))

    def marks(self) -> int:
        """How many shards have jobs in the lost queues."""
        mine = [job_id for job_id, kinds in self.expected.items() if kinds == {D.MISSING}]
        return len({routing_bits_of(job_id) % SHARDS for job_id in mine[-3 * EACH :]})

    # ---- how

    def _jobs(
        self, kind: D, count: int = EACH, *, biz_type: str = TYPE, live: bool = True
    ) -> list[int]:
        """Sound jobs, for damage of a kind. `live`: they will fire."""
        sound = self._sound[biz_type]
        ids = [sound.pop() for _ in range(count)]
        for job_id in ids:
            self.expected[job_id].add(kind)
            if live:
                self.fires.add(self._biz_id[job_id])
        return ids

    def _schedule(self, count: int, biz_type: str) -> list[int]:
        """New jobs, which come due within `SPREAD_S`."""
        biz_ids = range(self._next_biz_id, self._next_biz_id + count)
        self._next_biz_id += count
        spread = timedelta(seconds=SPREAD_S)
        jobs = [
            {"biz_id": biz_id, "action_time": self._due + spread * n / count}
            for n, biz_id in enumerate(biz_ids)
        ]
        ids: list[int] = self._fleet.stack.center.schedule_many(jobs, biz_type=biz_type)
        self._biz_id.update(zip(ids, biz_ids, strict=True))
        return ids

    def _wait_until_loaded(self, slots: Mapping[str, int]) -> None:
        """Until the marks of all slots of these topics are behind the sound jobs."""
        last_ms = (self._due + timedelta(seconds=SPREAD_S)).timestamp() * 1000
        ids = self._fleet.stack.center.schedule_many(
            [
                {"biz_id": n, "action_time": datetime_of(int(last_ms) + 1000)}
                for n in self._one_for_each_shard()
            ],
            biz_type=TYPE,
        )

        def loaded() -> bool:
            marks = [self._slots.read_marks(topic, range(n)) for topic, n in slots.items()]
            texts = [t for one in marks for some in one.values() for t in some.by_shard.values()]
            found = [mark.due_ms for mark in map(LoadMark.parse_mark, texts) if mark is not None]
            return len(found) == SHARDS * len(slots) and min(found) > last_ms

        wait_until(loaded, "the loaders to have come so far", 60)
        for job_id in ids:
            self._fleet.stack.center.cancel(job_id)

    def _one_for_each_shard(self) -> list[int]:
        found: dict[int, int] = {}
        while len(found) < SHARDS:
            self._next_biz_id += 1
            found.setdefault(routing_hash_of(self._next_biz_id) % SHARDS, self._next_biz_id)
        return list(found.values())

    def _key(self, job_id: int, topic: str = "default", shift: int = 0) -> str:
        slot = (slot_of_hash(routing_bits_of(job_id), SHARDS) + shift) % SHARDS
        return redis_keys.store_queue_key(self._settings.namespace, topic, slot)

    def _zrem(self, ids: Sequence[int], topic: str = "default") -> None:
        for job_id in ids:
            assert self._client.zrem(self._key(job_id, topic), job_id) == 1

    def _sql(self, ids: Sequence[int], sql: str) -> None:
        """A change of the rows of these ids; `{table}` and `{ids}` are put in."""
        by_shard: dict[int, list[int]] = defaultdict(list)
        for job_id in ids:
            by_shard[routing_bits_of(job_id) % SHARDS].append(job_id)
        engine = create_engine(self._settings.databases[0], poolclass=NullPool)
        with engine.begin() as connection:
            for shard, some in by_shard.items():
                table = f"toc_job_{shard:04d}"
                statement = sql.format(table=table, ids=", ".join(map(str, some)))
                assert connection.execute(text(statement)).rowcount == len(some)


class Answered:
    """What `toc reconcile` answered, by a process of its own, and the findings of its report."""

    def __init__(self, fleet: Fleet, *options: str, master: str = "none") -> None:
        plan = fleet.stack.plan
        environment = {f"TOC_{name.upper()}": _as_variable(value) for name, value in plan.items()}
        ran = subprocess.run(
            [sys.executable, "-m", "toc", "reconcile", "--json", "--master", master, *options],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("TOC_")} | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stdout, ran.stderr
        self.code, self.summary = ran.returncode, json.loads(ran.stdout)
        report = Path(ROOT / self.summary["report"])
        self.rows = pq.read_table(report / "findings.parquet").to_pylist()
        assert (report / "index.html").stat().st_size > 1000

    @property
    def kinds(self) -> dict[int, set[D]]:
        found: dict[int, set[D]] = defaultdict(set)
        for row in self.rows:
            if row["kind"] != D.MARK_AHEAD:
                found[row["job_id"]].add(D(row["kind"]))
        return found

    @property
    def by_kind(self) -> Counter[D]:
        return Counter(D(row["kind"]) for row in self.rows)


def _as_variable(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return json.dumps(value) if isinstance(value, dict) else str(value)


@contextmanager
def second_thoughts(fleet: Fleet, load: Load) -> Iterator[Callable[[], int]]:
    """A client that cancels and reschedules jobs of the load all the time; gives how many it cancelled."""
    stop, rng, cancelled = threading.Event(), random.Random(7), []  # noqa: S311 - who changes his mind

    def change() -> None:
        while not stop.wait(0.02):
            if len(load.ids) < 50:
                continue
            job_id = rng.choice(load.ids[-50:])
            if rng.random() < 0.5:
                if fleet.stack.center.cancel(job_id) == "cancelled":
                    cancelled.append(job_id)
            else:
                fleet.stack.center.reschedule(job_id, timedelta(seconds=rng.uniform(0, 30)))

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield lambda: len(cancelled)
    finally:
        stop.set()
        thread.join(20)


@contextmanager
def jobs_of_nobody(fleet: Fleet) -> Iterator[None]:
    """A client that schedules jobs of a type that no worker has a handler of, and cancels them later."""
    stop = threading.Event()
    center, waiting = fleet.stack.center, deque[tuple[float, int]]()

    def schedule() -> None:
        for biz_id in itertools.count():
            if stop.wait(0.2):
                return
            job_id = center.schedule(biz_id, timedelta(0), biz_type=NOBODY)
            waiting.append((time.monotonic(), job_id))
            while time.monotonic() - waiting[0][0] > PATIENCE_S:
                assert center.cancel(waiting.popleft()[1]) == "cancelled"

    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(schedule)
        try:
            yield
        finally:
            stop.set()
        ran.result()
    for _, job_id in waiting:
        assert center.cancel(job_id) == "cancelled"


@contextmanager
def rolling_restart(fleet: Fleet) -> Iterator[None]:
    """Meanwhile one worker after the other is stopped, and another one started."""

    def restart() -> None:
        for number, worker in enumerate(fleet.workers):
            worker.stop()
            fleet.workers[number] = fleet.add().wait_ready()

    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(restart)
        yield
        ran.result()


@deep
def test_all_damage_is_found_and_none_is_invented(
    make_fleet: MakeFleet, report: Report, tmp_path: Path
) -> None:
    fleet = make_fleet(
        2,
        types={TYPE: TERMS, BULK: TERMS},
        shards=SHARDS,
        topics={
            "quiet": {"biz_types": [QUIET]},
            "bulk": {"biz_types": [BULK], "slot_amount": BULK_SLOTS},
        },
        timer={"load_tick_s": 0.2},
        reconcile={
            "grace_s": 3,
            "overdue_s": 60,
            "watch_s": "none",
            "repairs_per_s": 5000,
            "directory": str(tmp_path / "reports"),
        },
    )
    settings = fleet.stack.settings
    slots = Reminders.from_settings(settings, SystemClock())
    with (
        closing(slots),
        fleet.load(150, 1.0) as load,
        second_thoughts(fleet, load) as changed,
        jobs_of_nobody(fleet),
    ):
        wait_until(lambda: fleet.started() > 300 and changed() > 20, "traffic", 60)
        healthy = Answered(fleet, "--dry-run")
        assert (healthy.code, healthy.rows) == (0, []), healthy.rows[:5]
        damage = Damage(fleet, slots)
        for kind in (
            damage.missing, damage.late, damage.orphans, damage.in_other_slots, damage.moved,
            damage.misfits, damage.stuck, damage.overdue, damage.lost_queues,
        ):  # fmt: skip
            kind()
        with rolling_restart(fleet):
            found = Answered(fleet, "--dry-run", master="local[2]")
            assert found.code == 1
            assert found.kinds == damage.expected
            assert found.by_kind[D.MARK_AHEAD] == damage.marks()
            repaired = Answered(fleet, "--repair", master="local[2]")
        assert repaired.kinds == damage.expected
        assert repaired.code == 5, repaired.summary
        assert not Answered(fleet, "--dry-run").by_kind.keys() - {D.OVERDUE, D.LEASE_OVER}
        fleet.add(types={QUIET: TERMS}).wait_ready()
        wait_until(
            lambda: fired(fleet).keys() >= damage.fires,
            "the repaired ones to fire",
            200 + EACH / 10,
        )
    fleet.wait_until_all_ended(120)
    starts = fired(fleet)
    assert {biz_id: starts[biz_id] for biz_id in damage.fires} == dict.fromkeys(damage.fires, 1)
    agreed = Answered(fleet, "--dry-run")
    assert (agreed.code, agreed.rows) == (0, [])
    figures = fleet.figures(fleet.starts_by_job().keys() & set(load.ids))  # others were cancelled
    report(
        f"{len(damage.expected):,} jobs and {damage.marks()} marks damaged in ten ways, 150 jobs/s",
        figures,
        f"{sum(found.by_kind.values()):,} disagreements found, {len(damage.fires):,} repaired jobs "
        f"fired once; compared in {found.summary['seconds']['compare']:.1f} s",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)


def fired(fleet: Fleet) -> Counter[int]:
    """How often each business id's handler was started."""
    return Counter(line.biz_id for line in fleet.stack.starts)
