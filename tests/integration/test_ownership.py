"""Pollers, loaders and scanners do what they are told to own, and deputies what an owner leaves undone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from tests.contract.library import Library
from tests.integration.test_poller import SLOW_S, Recording, arm, look, poller
from tests.integration.world import World
from tests.unit.test_pauses import known
from toc.domain.pauses import Pause
from toc.errors import StoreUnavailable
from toc.scanner import overdue_page, overdue_search
from toc.scanner import scanner as module
from toc.scanner.overdue_page import OverduePages
from toc.scanner.scanner import Scanner
from toc.timer.poller import DEPUTY_LATE_S, Poller
from toc.worker.gate import Gate, ScannedTypes


@pytest.fixture
def sink() -> Recording:
    return Recording()


def steps(poll: Poller, clock_s: float = 0.0, world: World | None = None) -> None:
    """Moves time on and looks, and then steps until there is nothing to do at once."""
    if world is not None:
        world.clock.advance(clock_s)
        look(world, poll)
    for _ in range(10):
        if poll.run_once() > 0:
            break


# ---- pollers


def test_a_poller_pops_what_it_owns_now(small: World, sink: Recording) -> None:
    first, second = arm(small, 0, 0), arm(small, 1, 0)
    poll = poller(small, sink)
    poll.set_slots([0])
    steps(poll)
    assert sink.ids == first
    poll.set_slots([1])
    steps(poll)
    assert sink.ids == first + second
    third = arm(small, 0, 0)
    poll.on_wakeup(0, 0.0)  # a wake-up for a slot that has gone to another node
    steps(poll, SLOW_S, small)
    assert sink.ids == first + second
    poll.set_slots([0, 1])
    steps(poll)
    assert sink.ids == first + second + third


def test_a_wake_up_that_came_before_the_slot_went_is_dropped(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    steps(poll)
    arm(small, 0, 0)
    poll.on_wakeup(0, 0.0)
    poll.set_slots([1])
    steps(poll, SLOW_S, small)
    assert sink.ids == []


def test_what_stays_owned_keeps_its_time(small: World, sink: Recording) -> None:
    arm(small, 0, 5000)
    poll = poller(small, sink)
    poll.set_slots([0])
    steps(poll)
    asked = len(sink.asked)
    poll.set_slots([0, 1])  # slot 0 is not looked at again
    poll.run_once()
    assert poll._due_s[0] == pytest.approx(5.0)
    assert len(sink.asked) == asked + 1


def test_a_deputy_leaves_to_the_owner_what_is_not_late(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    poll.set_slots([], [0])
    arm(small, 0, 0)
    poll.on_wakeup(0, 0.0)
    steps(poll)
    assert sink.ids == []
    small.clock.advance(DEPUTY_LATE_S)
    steps(poll)  # between two looks it does not even ask
    assert sink.asked == []


def test_a_deputy_pops_what_its_owner_leaves_undone(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    poll.set_slots([], [0, 2])
    steps(poll)
    ids = arm(small, 0, *range(6))  # the owner is dead, and so is the wake-up
    other = arm(small, 2, round(1000 * (SLOW_S + DEPUTY_LATE_S)))
    steps(poll, SLOW_S + DEPUTY_LATE_S, small)
    assert sorted(sink.ids) == sorted(ids)
    # The backlog is gone: it is a deputy again, until the next look.
    more = arm(small, 0, 0)
    steps(poll)
    assert sorted(sink.ids) == sorted(ids)
    steps(poll, SLOW_S + DEPUTY_LATE_S, small)
    assert sorted(sink.ids) == sorted(ids + other + more)


def test_a_deputy_that_inherits_looks_at_once(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    poll.set_slots([], [0])
    steps(poll)
    ids = arm(small, 0, 0)
    poll.set_slots([0], [])
    steps(poll)
    assert sink.ids == ids


def test_who_owns_a_slot_is_not_its_deputy_too(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    poll.set_slots([0], [0])
    ids = arm(small, 0, 0)
    steps(poll)
    assert sink.ids == ids


def test_nothing_owned_asks_nothing(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    poll.set_slots([])
    arm(small, 0, 0)
    steps(poll, SLOW_S, small)
    assert (sink.asked, sink.offers) == ([], [])


# ---- loaders


def test_a_loader_loads_what_it_owns_now(small: World) -> None:
    jobs = {
        small.slot(job_id): job_id for job_id in (small.library.pending(biz) for biz in range(20))
    }
    assert jobs.keys() == {0, 1, 2, 3}
    loader = small.loader()
    loader.set_slots([0, 1])
    loader.load_due_shards()
    assert [small.reminder(jobs[slot]) is not None for slot in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    loader.set_slots([2, 3])
    loader.load_due_shards()
    assert all(small.reminder(job_id) is not None for job_id in jobs.values())


def test_the_age_of_a_loader_is_that_of_its_oldest_shard(small: World) -> None:
    loader = small.loader()
    assert loader.oldest_read_age_s == 0
    loader.load_due_shards()
    small.clock.advance(5)
    assert loader.oldest_read_age_s == 5
    loader.set_slots([1])  # what it keeps, keeps its age
    loader._apply_new_slots()
    assert loader.oldest_read_age_s == 5
    loader.set_slots([])
    loader._apply_new_slots()
    assert loader.oldest_read_age_s == 0


# ---- scanners


TICK_S = 10.0


@pytest.fixture
def scanner(small_library: Library, sink: Recording) -> Scanner:
    return make_scanner(small_library, sink)


def make_scanner(
    library: Library, sink: Recording, restrictions: ScannedTypes | None = None
) -> Scanner:
    return Scanner(
        "toc-scanner-test",
        library.pages,
        OverduePages(0, library.pages, sink, sink.inbox(0), lambda: None, 100, restrictions),
        lambda: True,
        library.clock,
        grace_ms=0,
        tick_s=TICK_S,
    )


def scanned(scanner: Scanner, library: Library, seconds: float) -> None:
    """Runs the scanner for so long."""
    end_s = library.clock.monotonic_s() + seconds
    while library.clock.monotonic_s() < end_s:
        library.clock.advance(max(0.05, scanner.run_once()))


def shards_offered(sink: Recording) -> set[int]:
    return {shard for _, batch in sink.offers for shard in batch.ids}


def test_a_scanner_passes_over_the_rows_of_a_paused_type(
    small_library: Library, sink: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims what is overdue behind them, before them and between them; after the pause also the rows."""
    monkeypatch.setattr(overdue_search, "ROWS_READ_MAX", 10)
    monkeypatch.setattr(overdue_page, "ROWS_READ_MAX", 10)
    gate = Gate(clock=small_library.clock, now_ms=lambda: 1000)
    names = {small_library.report_no: "report", small_library.close_no: "order.close"}
    scanner = make_scanner(small_library, sink, ScannedTypes(gate, lambda: names))
    gate.update_pauses({"type:report": known(Pause("type:report", 0))})
    jobs = [small_library.new(42, -n, type_no=small_library.report_no) for n in range(100)]
    small_library.insert(*jobs)
    shard = small_library.shard(jobs[0].job_id)
    scanner.set_shards([shard])
    scanned(scanner, small_library, 2 * TICK_S)
    assert sink.ids == []
    wanted = {small_library.pending(42, in_ms=in_ms) for in_ms in (0, -10_000_000, -20_050)}
    ended: set[int] = set()
    for _ in range(2 * len(jobs) // 10 + 10):
        scanned(scanner, small_library, TICK_S / 2)
        for job_id in set(sink.ids) - ended:  # a worker would run them
            small_library.jobs.cancel(job_id)
        ended = set(sink.ids)
    assert ended == wanted
    gate.update_pauses({"type:report": known(Pause("type:report", 0, 1), version=2)})
    scanned(scanner, small_library, 2 * TICK_S)
    assert set(sink.ids) >= {job.job_id for job in jobs}


def test_a_scanner_scans_what_it_owns_now(
    small_library: Library, scanner: Scanner, sink: Recording
) -> None:
    for biz_id in range(30):
        small_library.pending(biz_id)
    every = range(small_library.settings.shards)
    scanned(scanner, small_library, TICK_S)
    assert shards_offered(sink) == set()
    scanner.set_shards(every[1:2])
    scanned(scanner, small_library, 2 * TICK_S)
    assert shards_offered(sink) == {1}
    scanner.set_shards(every)
    scanned(scanner, small_library, 2 * TICK_S)
    assert shards_offered(sink) == set(every)


def test_a_deputy_scans_only_what_its_owner_leaves_undone(
    small_library: Library, scanner: Scanner, sink: Recording
) -> None:
    for biz_id in range(30):
        small_library.pending(biz_id)
    count = small_library.settings.shards
    scanner.set_shards([0], range(count))
    scanned(scanner, small_library, TICK_S)
    assert shards_offered(sink) == {0}
    scanned(scanner, small_library, 2 * TICK_S)  # they are overdue by more than the tick now
    assert shards_offered(sink) == set(range(count))


def looked_at(
    library: Library, monkeypatch: pytest.MonkeyPatch, at_once: int = 2
) -> list[tuple[float, list[int]]]:
    """Which shards are looked at together, and when; at most two."""
    found: list[tuple[float, list[int]]] = []
    any_overdue = library.pages.find_overdue_shards

    def noted(grace_ms: Mapping[int, int]) -> set[int]:
        found.append((library.clock.monotonic_s(), [*grace_ms]))
        return any_overdue(grace_ms)

    monkeypatch.setattr(module, "SHARDS_PER_QUERY_MAX", at_once)
    monkeypatch.setattr(library.pages, "find_overdue_shards", noted)
    return found


def test_a_stretched_round_takes_so_many_ticks(
    small_library: Library, scanner: Scanner, sink: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = looked_at(small_library, monkeypatch)
    scanner.set_shards(range(small_library.settings.shards), stretch=3)
    scanned(scanner, small_library, 9 * TICK_S + 1)
    assert [shards for _, shards in looks] == [[0, 1], [2, 3]] * 3 + [[0, 1]]
    assert [at_s - looks[0][0] for at_s, _ in looks] == pytest.approx(
        [n * 3 * TICK_S / 2 for n in range(7)], abs=0.5
    )


def test_only_shards_with_work_are_read(
    small_library: Library, scanner: Scanner, sink: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = looked_at(small_library, monkeypatch)
    pages: list[int] = []
    overdue = small_library.pages.read_overdue_rows
    monkeypatch.setattr(
        small_library.pages,
        "read_overdue_rows",
        lambda shard, *rest: pages.append(shard) or overdue(shard, *rest),  # type: ignore[func-returns-value]
    )
    job_id = small_library.pending()
    shard = small_library.shard(job_id)
    scanner.set_shards(range(small_library.settings.shards))
    scanned(scanner, small_library, TICK_S / 2)
    assert len(looks) > len(pages) > 0
    assert set(pages) == {shard}
    assert set(sink.ids) == {job_id}


def test_a_scanner_that_is_told_again_and_again_still_reaches_its_last_shard(
    small_library: Library, scanner: Scanner, sink: Recording
) -> None:
    for biz_id in range(30):
        small_library.pending(biz_id)
    count = small_library.settings.shards
    for _ in range(4 * count):
        scanner.set_shards(range(count))  # members come and go
        scanned(scanner, small_library, TICK_S / count)
    assert shards_offered(sink) == set(range(count))


def test_a_table_that_breaks_is_left_out_of_the_looks_until_it_is_whole(
    small_library: Library, scanner: Scanner, sink: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = small_library.settings.shards
    looks = looked_at(small_library, monkeypatch, count)
    jobs = [small_library.pending(biz_id) for biz_id in range(30)]
    lost = next(job_id for job_id in jobs if small_library.shard(job_id) == 1)
    scanner.set_shards(range(count))
    small_library.sql(lost, "ALTER TABLE toc_job_0001 RENAME TO away")
    scanned(scanner, small_library, 2 * TICK_S)
    assert shards_offered(sink) == set(range(count)) - {1}
    first, *others = [shards for _, shards in looks]
    assert (first, {*map(tuple, others)}) == ([*range(count)], {(0, 2, 3)})
    small_library.sql(lost, "ALTER TABLE away RENAME TO toc_job_0001")
    scanned(scanner, small_library, TICK_S)
    assert shards_offered(sink) == set(range(count))
    looks.clear()
    scanned(scanner, small_library, 2 * TICK_S)
    assert [*range(count)] in [shards for _, shards in looks]


def test_a_database_that_is_away_is_not_asked_shard_by_shard(
    small_library: Library, scanner: Scanner, sink: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Any) -> Any:
        raise StoreUnavailable(0, OSError("away"))

    for biz_id in range(30):
        small_library.pending(biz_id)
    scanner.set_shards(range(small_library.settings.shards))
    with monkeypatch.context() as patch:
        scanner._found.append((0, 0, (0, 0)))  # it was found before, and takes long to fail

        def hangs(*_: Any) -> Any:
            small_library.clock.advance(60.0)
            away(_)

        patch.setattr(small_library.pages, "read_overdue_rows", hangs)
        patch.setattr(small_library.pages, "database_answers", lambda _: False)
        scanner.run_once()
        assert scanner._broken[0] <= small_library.clock.monotonic_s()  # it does not rest
    sink.asked.clear()
    with monkeypatch.context() as patch:
        patch.setattr(small_library.databases[0], "run_read", away)
        scanned(scanner, small_library, TICK_S)
    assert (sink.asked, sink.offers) == ([], [])
    scanned(scanner, small_library, 2 * TICK_S)
    assert shards_offered(sink) == set(range(small_library.settings.shards))


def test_a_table_that_is_locked_does_not_take_all_the_time(
    small_library: Library, scanner: Scanner, sink: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {small_library.shard(small_library.new(n).job_id): n for n in range(30)}
    small_library.pending(ids[1])
    tries_s: list[float] = []
    overdue = small_library.pages.read_overdue_rows

    def locked(shard: int, *rest: Any) -> Any:
        if shard != 1:
            return overdue(shard, *rest)
        tries_s.append(small_library.clock.monotonic_s())
        small_library.clock.advance(25.0)
        raise StoreUnavailable(0, OSError("lock wait timeout"))

    monkeypatch.setattr(small_library.pages, "read_overdue_rows", locked)
    scanner.set_shards(range(4))
    scanned(scanner, small_library, 400.0)
    assert {later - sooner >= 5 * 25.0 for sooner, later in pairwise(tries_s)} == {True}
    small_library.pending(ids[2])
    scanned(scanner, small_library, 2 * TICK_S)
    assert shards_offered(sink) == {2}
