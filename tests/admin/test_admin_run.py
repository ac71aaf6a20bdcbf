"""Runs with two pages under way at a time: the counts are as exact as with one, whatever goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.admin.desk import ANN, Desk, order, totals
from tests.worker.waiting import wait_until
from toc.admin.bulk_run import PAUSE_S_MIN, BulkRunProgress, RunInterrupted, UnsurePage
from toc.domain.job import Status
from toc.errors import SchemaMismatch
from toc.store.bulk_update import IDS_MAX, BulkUpdate
from toc.store.schema import job_table_name

FAST = 1_000_000  # a second: no page waits for another
HOUR = 3_600_000
DEADLINE_S = 20.0
JOBS = 20


class Watch:
    """Sees each page in its thread: calls `before(shard)` and `after(shard)`, and counts them."""

    def __init__(self) -> None:
        self.before: Callable[[int], object] = lambda shard: None
        self.after: Callable[[int], object] = lambda shard: None
        self.begun: list[int] = []
        self.now = self.most = 0
        self._lock = threading.Lock()

    def change(
        self, change: Callable[..., Any], sets: BulkUpdate, shard: int, *args: Any, **more: Any
    ) -> Any:
        with self._lock:
            self.begun.append(shard)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self.before(shard)
            return change(sets, shard, *args, **more)
        finally:
            self.after(shard)
            with self._lock:
                self.now -= 1


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch, change = Watch(), BulkUpdate.change_page
    monkeypatch.setattr(
        BulkUpdate, "change_page", lambda *args, **more: watch.change(change, *args, **more)
    )
    return watch


@pytest.fixture
def ids(desk: Desk) -> list[int]:
    """Jobs over all shards, armed as a client leaves them. Each shard has some."""
    ids = [
        desk.world.center.schedule(n, timedelta(minutes=10), biz_type="order.close")
        for n in range(JOBS)
    ]
    assert len({desk.library.shard(job_id) for job_id in ids}) == 4
    return ids


def unsure(progress: BulkRunProgress) -> list[UnsurePage]:
    return [one for part in progress.databases.values() for one in part.unsure]


def test_two_pages_are_under_way_at_once(desk: Desk, watch: Watch, ids: list[int]) -> None:
    both = threading.Barrier(2, timeout=DEADLINE_S)
    watch.before = lambda _: both.wait() if len(watch.begun) <= 2 else None
    seen: list[int] = []
    progress = desk.run(order("cancel"), per_second=FAST, page=seen.append)
    assert watch.most == 2
    assert (totals(progress), progress.complete, unsure(progress)) == ((JOBS, 0, 0, 0), True, [])
    assert sum(seen) == JOBS
    assert set(desk.statuses(ids)) == {Status.CANCELLED}
    assert [desk.world.reminder(job_id) for job_id in ids] == [None] * JOBS


def test_a_page_that_takes_long_keeps_the_next_one_waiting(desk: Desk, watch: Watch) -> None:
    """So that no second sees more than its share, whatever was missed before."""
    for number in range(12):
        desk.library.pending(number)
    clock = desk.library.clock
    times: list[float] = []
    watch.after = lambda _: times.append(clock.monotonic_s())
    took = iter([3.0, 0.0, 5.0])

    def slow(shard: int) -> None:
        times.append(clock.monotonic_s())
        clock.advance(next(took, 0.0))

    watch.before = slow
    desk.run(order("cancel"), per_second=2)
    ends, begins = times[1:-1:2], times[2::2]
    assert len(begins) > 4
    assert min(begin - end for end, begin in zip(ends, begins, strict=True)) >= 1 - PAUSE_S_MIN


@pytest.mark.parametrize("scarce", ["the rate", "connections", "order"])
def test_a_page_waits_where_there_is_no_room_for_two(
    desk: Desk, watch: Watch, ids: list[int], scarce: str
) -> None:
    watch.before = lambda _: time.sleep(0.05)
    if scarce == "connections":
        settings = desk.world.settings
        desk.world.settings = settings.model_copy(update={"pool_size": 1})
    verb, per_second = "cancel", FAST
    if scarce == "the rate":  # two that end together are more than a tenth of it
        per_second = 2 * IDS_MAX * 10 - 1
    elif scarce == "order":  # the newest of a key is the first
        verb = "redrive"
        for job_id in ids:
            desk.library.dead(biz_id=desk.library.row(job_id).biz_id)
    progress = desk.run(order(verb), per_second=per_second)
    assert (progress.changed_jobs, watch.most) == (len(ids), 1)


def test_from_what_rate_on_there_is_room_for_two(desk: Desk, watch: Watch, ids: list[int]) -> None:
    both = threading.Barrier(2, timeout=DEADLINE_S)
    watch.before = lambda _: both.wait() if len(watch.begun) <= 2 else None
    progress = desk.run(order("cancel"), per_second=2 * IDS_MAX * 10)
    assert (progress.changed_jobs, watch.most) == (len(ids), 2)


def test_what_was_changed_before_takes_no_time(desk: Desk, ids: list[int]) -> None:
    """The clock stands still but for the waits of the throttle."""
    clock = desk.library.clock
    desk.run(order("postpone", by_ms=HOUR), per_second=FAST)
    began_s = clock.monotonic_s()
    again = desk.run(order("postpone", by_ms=HOUR, again=True), per_second=1)
    assert totals(again) == (0, len(ids), 0, 0)
    assert clock.monotonic_s() == began_s


def test_who_stops_it_has_what_was_under_way(desk: Desk, watch: Watch, ids: list[int]) -> None:
    both = threading.Barrier(2, timeout=DEADLINE_S)
    watch.before = lambda _: both.wait()
    progress = BulkRunProgress()
    with pytest.raises(RunInterrupted):
        desk.run(
            order("cancel"), per_second=FAST, progress=progress, stop=lambda: len(watch.begun) >= 2
        )
    first, second = sorted(watch.begun)
    done = [i for i in ids if desk.library.shard(i) in (first, second)]
    assert progress.changed_jobs == len(done) < len(ids)
    assert (progress.complete, unsure(progress)) == (False, [])
    assert [i for i in ids if desk.library.row(i).status == Status.CANCELLED] == done
    assert [i for i in ids if desk.world.reminder(i) is None] == done  # Redis was told


def test_who_stops_it_is_told_what_fails_then(desk: Desk, watch: Watch, ids: list[int]) -> None:
    """It is the better reason than that it was stopped."""
    library = desk.library
    bad = min(library.shard(i) for i in ids)
    table, some_id = job_table_name(bad), next(i for i in ids if library.shard(i) == bad)
    both = threading.Barrier(2, timeout=DEADLINE_S)
    watch.before = lambda _: both.wait()
    progress = BulkRunProgress()

    def drop() -> None:
        library.sql(some_id, f"ALTER TABLE {table} RENAME TO away")

    try:
        with pytest.raises(SchemaMismatch, match=rf"^database 0, table {table}: "):
            desk.run(
                order("cancel"),
                per_second=FAST,
                progress=progress,
                chosen=drop,
                stop=lambda: len(watch.begun) >= 2,
            )
    finally:
        library.sql(some_id, f"ALTER TABLE away RENAME TO {table}")
    good = max(watch.begun)
    done = [i for i in ids if library.row(i).status == Status.CANCELLED]
    assert done == [i for i in ids if library.shard(i) == good]
    assert (progress.changed_jobs, unsure(progress)) == (len(done), [])
    assert progress.at == f"database 0, table {table}"


def test_one_fails_while_another_is_under_way(desk: Desk, watch: Watch, ids: list[int]) -> None:
    library = desk.library
    good, bad = sorted({library.shard(i) for i in ids})[-2:]
    table, some_id = job_table_name(bad), next(i for i in ids if library.shard(i) == bad)
    both, failed = threading.Barrier(2, timeout=DEADLINE_S), threading.Event()

    def before(shard: int) -> None:
        if shard in (good, bad):
            both.wait()
        if shard == good:
            failed.wait(DEADLINE_S)

    watch.before = before
    watch.after = lambda shard: failed.set() if shard == bad else None
    progress = BulkRunProgress()

    def drop() -> None:
        library.sql(some_id, f"ALTER TABLE {table} RENAME TO away")

    try:
        with pytest.raises(SchemaMismatch, match=rf"^database 0, table {table}: "):
            desk.run(order("cancel"), per_second=FAST, progress=progress, chosen=drop)
    finally:
        library.sql(some_id, f"ALTER TABLE away RENAME TO {table}")
    done = [i for i in ids if library.row(i).status == Status.CANCELLED]
    assert progress.changed_jobs == len(done) == len([i for i in ids if library.shard(i) != bad])
    assert (progress.at, unsure(progress)) == (f"database 0, table {table}", [])


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def test_who_is_in_a_hurry_does_not_wait(
    desk: Desk, watch: Watch, ids: list[int], gate: threading.Event
) -> None:
    """A second Ctrl-C: what is under way may come to its end, and the counts say so."""
    watch.before = lambda _: gate.wait(DEADLINE_S)

    def stop() -> bool:
        if len(watch.begun) >= 2:
            raise KeyboardInterrupt
        return False

    progress = BulkRunProgress()
    with pytest.raises(KeyboardInterrupt):
        desk.run(order("postpone", by_ms=HOUR), per_second=FAST, progress=progress, stop=stop)
    assert not gate.is_set()
    assert watch.now == 2
    assert (progress.changed_jobs, progress.complete) == (0, False)
    of = {shard: [i for i in ids if desk.library.shard(i) == shard] for shard in watch.begun}
    assert sorted(unsure(progress), key=lambda one: one.table) == [
        UnsurePage(job_table_name(shard), min(of[shard]), max(of[shard]), len(of[shard]))
        for shard in sorted(of)
    ]
    gate.set()
    wait_until(lambda: watch.now == 0)
    changed = [i for i in ids if desk.events(i)]
    assert {desk.library.shard(i) for i in changed} <= set(of)
    again = desk.run(order("postpone", by_ms=HOUR, again=True), per_second=FAST)
    assert totals(again) == (JOBS - len(changed), len(changed), 0, 0)
    assert [[event.actor for event in desk.events(i)] for i in ids] == [[ANN]] * JOBS
