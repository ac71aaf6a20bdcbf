"""Recurring schedules on every engine: one job for each nominal time, whatever dies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from tests.contract.breaks import lose_answers
from tests.contract.library import ACTOR, Library
from tests.contract.recurring_store import HOUR_MS, NAME, RecurringStore
from toc.domain.job import Status
from toc.errors import InvalidInput, NotFound
from toc.store import recurring_rows
from toc.store.claims import OutcomeKind
from toc.store.events import read_events

DONE, PENDING, RUNNING, CANCELLED, DEAD = (
    Status.DONE, Status.PENDING, Status.RUNNING, Status.CANCELLED, Status.DEAD,
)  # fmt: skip


@pytest.fixture
def store(library: Library) -> RecurringStore:
    return RecurringStore(library)


def test_a_new_schedule_has_its_first_job_at_the_next_time(store: RecurringStore) -> None:
    changed = store.declare(attribute='{"a":1}')
    job = store.job()
    assert changed.made is not None
    assert (changed.written, changed.made.job_id) == (True, job.job_id)
    assert (job.biz_id, job.biz_type, job.attribute) == (NAME, "report", {"a": 1})
    assert (store.nominal_h, store.hours(job.action_ms)) == (1, 1)
    assert job.nominal_time == job.action_time
    assert store.occurrences() == [1]


@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY])
def test_the_end_of_an_occurrence_makes_the_next_one(
    store: RecurringStore, kind: OutcomeKind
) -> None:
    store.declare()
    store.advance(1)
    made = store.end(store.claim(), kind)
    assert made is not None
    assert (made.job_id, store.nominal_h) == (store.job_id, 2)
    assert (store.row.made, store.row.skipped) == (2, 0)
    assert store.keep() is None


def test_a_retry_is_not_an_end(store: RecurringStore) -> None:
    store.declare()
    store.advance(1)
    job, token = store.claim()
    assert store.library.settle_as(
        OutcomeKind.RETRY, job.job_id, token, store.library.now_ms + 1, "no"
    )
    assert store.job_id == job.job_id
    assert store.keep() is None


class _Killed(Exception):
    """The process dies before it sends a statement."""


@contextmanager
def killed_before(store: RecurringStore, statement: int) -> Iterator[list[str]]:
    """The process dies before its statement of that number; no later one is sent."""
    seen: list[str] = []

    def count(connection: Any, cursor: Any, text: str, *_: Any) -> None:
        if len(seen) == statement:
            raise _Killed
        seen.append(text)

    for engine in (store.database.engine, store.database.autocommit_engine):
        event.listen(engine, "before_cursor_execute", count)
    try:
        yield seen
    finally:
        for engine in (store.database.engine, store.database.autocommit_engine):
            event.remove(engine, "before_cursor_execute", count)


def test_a_worker_that_dies_at_any_step_of_the_settle_leaves_all_or_nothing(
    store: RecurringStore,
) -> None:
    store.declare()
    hour = 1
    for step in range(50):
        store.advance(1)
        claimed = store.claim()
        try:
            with killed_before(store, step):
                store.end(claimed)
        except _Killed:
            # The transaction is gone: the job still runs, and nothing follows it yet.
            assert store.job(claimed[0].job_id).status is RUNNING
            assert (store.nominal_h, store.occurrences()[-1]) == (hour, hour)
            assert store.keep() is None
            store.end(claimed)  # the worker that takes the job over
            hour += 1
            assert store.nominal_h == hour
        else:
            break
    else:
        raise AssertionError("the settle has more than 50 statements")
    assert step > 4  # it was killed at the statements between the settle and the commit
    assert store.occurrences() == list(range(1, hour + 2))
    assert store.statuses() == [*((each, DONE) for each in range(1, hour + 1)), (hour + 1, PENDING)]


def test_a_settle_whose_answer_was_lost_makes_one_job(store: RecurringStore) -> None:
    store.declare()
    store.advance(1)
    claimed = store.claim()
    with lose_answers(store.database) as lost:
        store.end(claimed)
    assert lost.times == 1
    assert store.statuses() == [(1, DONE), (2, PENDING)]
    assert store.row.made == 2


def test_many_nodes_that_settle_and_keep_at_once_make_one_job(store: RecurringStore) -> None:
    store.declare()
    store.advance(1)
    claimed, seen = store.claim(), store.row
    together = threading.Barrier(4)
    errors: list[BaseException] = []

    def race(part: int) -> None:
        try:
            together.wait(60)
            if part:
                store.chains.keep_chain(store.database, seen, store.library.now_ms)
            else:
                store.end(claimed)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    threads = [threading.Thread(target=race, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert store.statuses() == [(1, DONE), (2, PENDING)]


@pytest.mark.parametrize("how", ["cancelled", "lost for good"])
def test_the_keeper_goes_on_after_an_end_that_no_worker_settled(
    store: RecurringStore, how: str
) -> None:
    store.declare()
    first = store.job_id
    if how == "cancelled":
        assert store.library.jobs.cancel(first).ok
    else:
        store.advance(1)
        _, token = store.claim()
        store.advance(0.5)
        assert store.library.bury_lost(first, token)
    made = store.keep()
    assert made is not None
    assert (made.job_id != first, store.nominal_h) == (True, 2)
    assert store.keep() is None


def test_a_chain_whose_job_retention_has_deleted_goes_on(store: RecurringStore) -> None:
    store.declare()
    job_id = store.job_id
    store.library.sql(job_id, f"DELETE FROM toc_job_{store.library.shard(job_id):04d}")
    store.advance(1)
    assert store.keep() is not None
    assert store.nominal_h == 2


# ---- overlap and catch-up


@pytest.mark.parametrize(
    ("overlap", "runs_h", "next_h", "skipped"),
    [
        ("skip", 0.1, 2, 0),
        ("skip", 1.1, 3, 1),  # 2 passed while it ran
        ("skip", 2.5, 4, 2),
        ("queue", 0.1, 2, 0),
        ("queue", 1.1, 2, 0),  # 2 waited
        ("queue", 2.5, 3, 1),  # 2 is older than the catch-up of an hour
        ("queue", 30.5, 31, 29),
    ],
)
def test_what_a_nominal_time_meets_when_the_job_before_runs_long(
    store: RecurringStore, overlap: Any, runs_h: float, next_h: int, skipped: int
) -> None:
    store.declare(overlap=overlap)
    store.advance(1)
    store.run(runs_h)
    assert (store.nominal_h, store.row.skipped) == (next_h, skipped)


@pytest.mark.parametrize("state", ["running", "retrying", "waiting"])
def test_cancel_other_ends_the_job_before_at_the_next_time(
    store: RecurringStore, state: str
) -> None:
    store.declare(overlap="cancel-other")
    first = store.job_id
    store.advance(1)
    if state != "waiting":
        job, token = store.claim()
        if state == "retrying":
            later_ms = store.library.now_ms + 10 * 3_600_000
            assert store.library.settle_as(OutcomeKind.RETRY, first, token, later_ms, "no")
    store.advance(0.5)
    assert store.keep() is None
    store.advance(0.5)
    made = store.keep()
    assert made is not None
    assert store.statuses() == [(1, CANCELLED), (2, PENDING)]
    what = "drop" if state == "running" else "cancel"
    last = read_events(store.database, first, 10)[-1]
    assert (last.what, last.to_status) == (what, CANCELLED)
    assert last.took_ms == (3_600_000 if state == "running" else None)
    if state == "running":  # the worker's outcome comes too late, and makes nothing
        assert store.end((job, token)) is None
        assert store.statuses() == [(1, CANCELLED), (2, PENDING)]


def test_cancel_other_takes_the_last_of_many_times(store: RecurringStore) -> None:
    store.declare(overlap="cancel-other", catch_up_s=86_400)
    store.advance(1)
    store.claim()
    store.advance(5.2)
    assert store.keep() is not None
    assert (store.nominal_h, store.row.skipped) == (6, 4)


@pytest.mark.parametrize(
    ("overlap", "down_h", "next_h"),
    [("skip", 2.5, 2), ("skip", 5.5, 5), ("queue", 5.5, 5), ("cancel-other", 5.5, 5)],
)
def test_after_an_outage_only_times_within_the_catch_up_are_made(
    store: RecurringStore, overlap: Any, down_h: float, next_h: int
) -> None:
    store.declare(overlap=overlap)
    store.library.jobs.cancel(store.job_id)
    store.advance(down_h)
    assert store.keep() is not None
    assert (store.nominal_h, store.job().status) == (next_h, PENDING)
    # Due at once, as its time has passed.
    assert store.library.claim([store.job_id], "t")[store.job_id].token == "t"


def test_an_occurrence_that_nobody_began_within_the_catch_up_is_cancelled(
    store: RecurringStore,
) -> None:
    store.declare()
    store.advance(2)  # due for an hour: just within
    assert store.keep() is None
    store.advance(0.01)
    assert store.keep() is not None
    assert store.statuses() == [(1, CANCELLED), (2, PENDING)]
    assert store.row.skipped == 0


def test_jitter_moves_the_due_time_by_the_same_amount_for_everybody(store: RecurringStore) -> None:
    store.declare(jitter_s=600)
    job = store.job()
    again = store.schedule(jitter_s=600).action_ms(store.row.nominal_ms)
    assert job.action_ms == again
    assert 0 < job.action_ms - (store.row.nominal_ms or 0) <= 600_000
    assert store.nominal_h == 1


# ---- changes


def test_the_same_definition_changes_nothing(store: RecurringStore) -> None:
    store.declare()
    row = store.row
    assert not store.declare().written
    assert store.row == row


def test_a_change_replaces_the_job_that_has_not_begun(store: RecurringStore) -> None:
    store.declare()
    first = store.job_id
    store.declare(cron="30 * * * *")
    assert store.job(first).status is CANCELLED
    assert store.nominal_h == 0.5
    assert (store.row.version, store.row.actor, store.row.made) == (2, ACTOR, 1)
    store.declare(attribute='{"new":1}')  # the old rule again: its time is made anew
    assert (store.nominal_h, store.job().attribute) == (1, {"new": 1})
    assert store.occurrences() == [1]


def test_a_change_leaves_a_job_that_has_begun_and_continues_when_it_ends(
    store: RecurringStore,
) -> None:
    store.declare()
    store.advance(1)
    claimed = store.claim()
    store.declare(cron="30 * * * *")
    assert store.job().status is RUNNING
    made = store.end(claimed)
    assert made is not None
    assert store.nominal_h == 1.5


@pytest.mark.parametrize("change", ["declare", "pause", "remove"])
def test_a_job_that_has_snoozed_has_begun(store: RecurringStore, change: str) -> None:
    """Its handler has run: another job for the same time would do the work twice."""
    store.declare()
    store.advance(1)
    job, token = store.claim()
    again_ms = store.library.now_ms + HOUR_MS // 4
    assert store.library.settle_as(OutcomeKind.SNOOZE, job.job_id, token, again_ms)
    if change == "declare":
        store.declare(cron="30 * * * *")
    elif change == "pause":
        store.changes.pause(NAME, None, ACTOR)
    else:
        store.changes.remove(NAME, None, ACTOR)
    assert store.job(job.job_id).status is PENDING
    assert store.occurrences() == [1]


def test_a_change_replaces_a_job_that_was_given_back(store: RecurringStore) -> None:
    store.declare()
    store.advance(1)
    job, token = store.claim()
    assert store.library.settle_as(OutcomeKind.GIVE_BACK, job.job_id, token)
    store.declare(attribute='{"new":1}')
    assert store.job(job.job_id).status is CANCELLED
    assert (store.nominal_h, store.job().attribute) == (1, {"new": 1})


def test_a_change_while_a_due_job_waits_keeps_its_time(store: RecurringStore) -> None:
    store.declare()
    store.advance(1.1)
    store.declare(attribute='{"new":1}')
    assert (store.nominal_h, store.job().attribute) == (1, {"new": 1})
    assert store.statuses() == [(1, PENDING), (1, CANCELLED)]


def test_pause_cancels_what_has_not_begun_and_resume_goes_on_from_now(
    store: RecurringStore,
) -> None:
    store.declare()
    first = store.job_id
    assert store.changes.pause(NAME, None, ACTOR, "night").written
    assert not store.changes.pause(NAME, None, ACTOR).written
    assert (store.job(first).status, store.row.job_id) == (CANCELLED, None)
    assert (store.row.paused_ms, store.row.reason) == (store.library.now_ms, "night")
    store.advance(3.2)
    assert store.keep() is None
    store.declare(attribute='{"new":1}')  # stays paused
    assert store.row.job_id is None
    assert store.changes.resume(NAME, None, ACTOR).made is not None
    assert not store.changes.resume(NAME, None, ACTOR).written
    assert store.nominal_h == 4


def test_a_job_that_ends_while_its_schedule_is_paused_has_no_successor_until_resume(
    store: RecurringStore,
) -> None:
    store.declare()
    store.advance(1)
    claimed = store.claim()
    store.changes.pause(NAME, None, ACTOR)
    assert store.end(claimed) is None
    assert store.keep() is None
    store.changes.resume(NAME, None, ACTOR)
    assert store.nominal_h == 2


def test_remove_and_declare_again_makes_no_time_twice(store: RecurringStore) -> None:
    store.declare()
    store.advance(1)
    claimed = store.claim()
    store.changes.remove(NAME, None, ACTOR, "moved")
    assert store.end(claimed) is None
    with pytest.raises(NotFound):
        store.changes.read(NAME)
    store.declare()
    assert store.nominal_h == 2
    assert store.occurrences() == [1, 2]


def test_a_schedule_that_has_ended_makes_nothing_more(store: RecurringStore) -> None:
    store.declare(rule={"end_ms": store.start_ms + 3_600_000})
    store.advance(1)
    assert store.end(store.claim()) is None
    store.advance(1)
    assert store.keep() is None
    assert store.statuses() == [(1, DONE)]


def test_a_tenant_has_so_many_schedules_and_others_have_room(store: RecurringStore) -> None:
    names: list[str] = []
    number = 0
    while len(names) < 3:  # of one database
        number += 1
        schedule = store.schedule(name=f"t{number}", tenant="red")
        if store.changes.home_of(schedule) is store.database:
            names.append(schedule.name)
    for name in names[:2]:
        store.declare(name=name, tenant="red")
    with pytest.raises(InvalidInput, match=r"limits\.recurring_per_tenant"):
        store.declare(name=names[2], tenant="red")
    store.declare(name=names[0], tenant="red", every_s=60)  # to change one is allowed
    assert store.declare(name=names[2]).written  # one without a tenant


def test_the_number_of_schedules_is_bounded(store: RecurringStore) -> None:
    for number in range(3):
        store.declare(name=f"s{number}")
    with pytest.raises(InvalidInput, match=r"limits\.recurring"):
        store.declare(name="s3")


# ---- backfill and run


def test_backfill_makes_only_times_without_a_job(store: RecurringStore) -> None:
    store.declare()
    store.advance(1)
    store.run(3.2)  # 2, 3 and 4 were skipped
    at = {hour: store.start_ms + hour * 3_600_000 for hour in range(-2, 9)}
    done = store.changes.backfill(NAME, None, at[-2], at[8])
    assert ([each.due_ms for each in done.made], done.present) == ([store.library.now_ms] * 6, 1)
    assert store.occurrences() == [-2, -1, 0, 1, 2, 3, 4, 5]
    again = store.changes.backfill(NAME, None, at[-2], at[8])
    assert (list(again.made), again.present) == ([], 7)
    assert store.row.made == 8
    with pytest.raises(InvalidInput, match=r"limits\.backfill"):
        store.changes.backfill(NAME, None, at[0] - 600 * 3_600_000, at[0])
    with pytest.raises(InvalidInput, match="occurrence_days"):
        store.changes.backfill(NAME, None, at[0] - 1000 * 3_600_000, at[0])


def test_a_time_that_a_backfill_has_made_is_left_out_by_the_chain(store: RecurringStore) -> None:
    store.declare(overlap="queue", catch_up_s=86_400)
    store.advance(1)
    claimed = store.claim()
    store.advance(2.2)  # 2 and 3 wait
    hour_2 = store.start_ms + 2 * 3_600_000
    assert len(store.changes.backfill(NAME, None, hour_2, hour_2).made) == 1
    store.end(claimed)
    assert store.nominal_h == 3
    assert store.occurrences() == [1, 2, 3]


def test_jobs_outside_the_chain_do_not_continue_it(store: RecurringStore) -> None:
    store.declare()
    made = store.changes.run(NAME, None)
    job = store.job(made.job_id)
    assert job.nominal_time == store.library.clock.now
    assert store.library.claim([job.job_id], "t")[job.job_id].token == "t"
    assert store.end((job, "t")) is None
    assert store.nominal_h == 1


def test_a_definition_of_a_newer_release_stops_only_its_own_schedule(store: RecurringStore) -> None:
    store.declare()
    definition = json.dumps({**json.loads(store.row.definition), "moon_phase": "full"})
    row = store.row._replace(definition=definition)
    with store.database.engine.begin() as connection:
        recurring_rows.update_row(store.database, connection, row)
    store.library.jobs.cancel(store.job_id)
    with pytest.raises(InvalidInput, match="moon_phase"):
        store.keep()


def test_a_backfill_knows_a_time_whose_job_was_made_long_before(store: RecurringStore) -> None:
    """The job of a rare schedule is made when the one before ends: perhaps a year before its time."""
    store.declare(every_s=100 * 86_400)
    nominal_h = store.nominal_h
    store.advance(nominal_h)
    store.end(store.claim())
    store.advance(1)
    now_ms = store.library.now_ms
    before_ms = now_ms - 10 * 24 * HOUR_MS
    assert recurring_rows.delete_old_occurrences(store.database, before_ms, 100) == 0
    done = store.changes.backfill(NAME, None, before_ms, now_ms)
    assert (len(done.made), done.present) == (0, 1)


def test_old_occurrences_are_deleted_a_page_at_a_time(store: RecurringStore) -> None:
    store.declare()
    store.changes.backfill(NAME, None, store.start_ms - 5 * 3_600_000, store.start_ms)
    store.advance(1.1)
    store.run()
    before_ms = store.library.now_ms
    assert recurring_rows.delete_old_occurrences(store.database, before_ms, 4) == 4
    assert recurring_rows.delete_old_occurrences(store.database, before_ms, 4) == 3
    assert store.occurrences() == [2]
