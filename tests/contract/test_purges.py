"""What has ended is deleted, what lives is not, on every engine."""

from __future__ import annotations

import pytest

from tests.contract.library import Library
from toc.domain.job import Status
from toc.store.claims import Outcome, OutcomeKind
from toc.store.events import read_events
from toc.store.purge_pages import EventAges, PurgeCandidate, PurgePages

DAY_MS = 86_400_000


@pytest.fixture
def purges(library: Library) -> PurgePages:
    return PurgePages(library.databases)


def page(
    library: Library, purges: PurgePages, shard: int, limit: int = 100
) -> list[PurgeCandidate]:
    return purges.read_purge_page(shard, 0, library.now_ms, limit)


def test_a_page_is_in_the_order_of_ids_and_ends_where_jobs_are_too_young(
    library: Library, purges: PurgePages
) -> None:
    old = [library.pending() for _ in range(3)]
    library.clock.advance(10)
    moment_ms = library.now_ms
    young = library.pending()
    shard = library.shard(young)
    assert [row.job_id for row in purges.read_purge_page(shard, 0, moment_ms, 10)] == old
    assert [row.job_id for row in purges.read_purge_page(shard, 0, moment_ms, 2)] == old[:2]
    assert [row.job_id for row in purges.read_purge_page(shard, old[1], moment_ms, 2)] == old[2:]
    assert [row.job_id for row in purges.read_purge_page(shard, 0, moment_ms + 1, 10)] == [
        *old,
        young,
    ]


def test_it_says_what_has_ended_and_when(library: Library, purges: PurgePages) -> None:
    done = library.ended(OutcomeKind.DONE)
    ended_ms = library.now_ms
    library.clock.advance(5)
    dead, running, pending = library.dead(), library.running(), library.pending()
    library.clock.advance(1)
    rows = {row.job_id: row for row in page(library, purges, library.shard(done))}
    assert rows[done].changed_ms == ended_ms
    assert [rows[j].has_ended for j in (done, dead, running, pending)] == [True, True, False, False]
    assert [j for j, row in rows.items() if row.is_dead] == [dead]
    assert rows[done].type_no == library.close_no


def test_only_what_has_ended_is_deleted(library: Library, purges: PurgePages) -> None:
    gone = [library.ended(OutcomeKind.DONE), library.ended(OutcomeKind.DROP), library.dead()]
    kept = [library.running(), library.pending()]
    library.clock.advance(1)
    shard = library.shard(gone[0])
    rows = page(library, purges, shard)
    assert purges.delete_unchanged_jobs(shard, rows) == 3
    assert [row.job_id for row in page(library, purges, shard)] == kept
    assert library.jobs.read_dead_letters(10) == []


def test_a_dead_job_that_was_redriven_in_between_stays_with_its_letter(
    library: Library, purges: PurgePages
) -> None:
    lives, dies_again, dead = library.dead(), library.dead(), library.dead()
    library.clock.advance(1)
    shard = library.shard(dead)
    rows = page(library, purges, shard)
    for job_id in (lives, dies_again):
        assert library.jobs.redrive(job_id, library.now_ms) == "redriven"
    library.claim([dies_again], "two")
    assert library.settle(Outcome(dies_again, "two", OutcomeKind.BURY, error="again"))
    assert purges.delete_unchanged_jobs(shard, rows) == 1
    assert {job.job_id for job in library.jobs.read_dead_letters(10)} == {dies_again}
    assert library.row(lives).status == Status.PENDING
    assert library.row(dies_again).status == Status.DEAD


def test_a_dead_job_that_was_discarded_in_between_stays(
    library: Library, purges: PurgePages
) -> None:
    discarded, dead = library.dead(), library.dead()
    library.clock.advance(1)
    shard = library.shard(dead)
    rows = page(library, purges, shard)
    assert library.jobs.discard(discarded) == "cancelled"
    assert purges.delete_unchanged_jobs(shard, rows) == 1
    assert library.row(discarded).status == Status.CANCELLED
    assert library.jobs.read_dead_letters(10) == []
    library.clock.advance(1)
    assert purges.delete_unchanged_jobs(shard, page(library, purges, shard)) == 1


def every(event_id: int, event_ms: int) -> bool:
    """Whether an event may be deleted."""
    return True


def test_events_that_may_not_go_are_counted_and_do_not_stop_the_pass(
    library: Library, purges: PurgePages
) -> None:
    job_id = library.pending(in_ms=DAY_MS)
    database = library.home(job_id)
    for n in range(5):
        library.jobs.reschedule(job_id, library.now_ms + DAY_MS, str(n))
        library.clock.advance(1)
    events = library.sql(job_id, "SELECT event_id FROM toc_event ORDER BY event_id")
    ids, ages = [row[0] for row in events], EventAges(library.now_ms, library.now_ms)
    asked: list[tuple[int, int]] = []

    def may_delete(event_id: int, event_ms: int) -> bool:
        asked.append((event_id, event_ms))
        return event_id == ids[3]

    assert purges.delete_old_events(database, 0, ages, 3, may_delete) == (0, 3, ids[2])
    assert purges.delete_old_events(database, ids[2], ages, 3, may_delete) == (1, 1, None)
    start_ms = library.now_ms - 5000
    assert asked == [(one, start_ms + 1000 * n) for n, one in enumerate(ids)]
    left = library.sql(job_id, "SELECT event_id FROM toc_event ORDER BY event_id")
    assert [row[0] for row in left] == [ids[0], ids[1], ids[2], ids[4]]


def test_events_go_oldest_first(library: Library, purges: PurgePages) -> None:
    job_id = library.pending(in_ms=DAY_MS)
    database = library.home(job_id)
    for n in range(5):
        assert library.jobs.reschedule(job_id, library.now_ms + DAY_MS, str(n)) == "rescheduled"
        library.clock.advance(1)
    before_ms = library.now_ms - 2500  # three of them are older
    now_ms = library.now_ms
    none, ages = EventAges(0, now_ms), EventAges(before_ms, now_ms)
    assert purges.delete_old_events(database, 0, none, 2, every) == (0, 0, None)
    deleted, held, after = purges.delete_old_events(database, 0, ages, 2, every)
    assert (deleted, held) == (2, 0)
    assert after is not None
    assert purges.delete_old_events(database, after, ages, 3, every) == (1, 0, after + 3)
    assert purges.delete_old_events(database, 0, ages, 2, every) == (0, 0, None)
    reasons = [event.reason or "" for event in read_events(database, job_id, 10)]
    assert [reason[-1] for reason in reasons] == ["3", "4"]


def test_events_of_a_clock_that_was_ahead_do_not_keep_the_others(
    library: Library, purges: PurgePages
) -> None:
    job_id = library.pending(in_ms=DAY_MS)
    database = library.home(job_id)
    for n in range(5):
        library.jobs.reschedule(job_id, library.now_ms + DAY_MS, str(n))
    ((first,),) = library.sql(job_id, "SELECT MIN(event_id) FROM toc_event")
    ahead = "UPDATE toc_event SET event_time = '2030-01-01 00:00:00.000' WHERE event_id < :id"
    library.sql(job_id, ahead, {"id": first + 3})
    now_ms, deleted = library.now_ms + 1, 0
    after: int | None = 0
    while after is not None:
        ages = EventAges(now_ms, now_ms)
        some, _, after = purges.delete_old_events(database, after, ages, 2, every)
        deleted += some
    assert deleted == 2
    assert len(read_events(database, job_id, 10)) == 3


def test_a_zero_date_stops_no_page(library: Library, purges: PurgePages) -> None:
    """A session without a strict sql_mode can write one: it counts as old."""
    done = library.ended(OutcomeKind.DONE)
    ignore = "INSERT OR IGNORE" if library.sqlite else "INSERT IGNORE"
    library.sql(
        done,
        f"{ignore} INTO toc_event (event_time, job_id, what, from_status, to_status, attempts, actor) "
        f"VALUES ('0000-00-00 00:00:00.000', {done}, 'cancel', 0, 3, 0, 'somebody')",
    )
    database = library.home(done)
    assert [event.at_ms for event in read_events(database, done, 10)] == [0]
    ages = EventAges(1, library.now_ms)
    assert purges.delete_old_events(database, 0, ages, 10, every) == (1, 0, None)
    assert read_events(database, done, 10) == []
