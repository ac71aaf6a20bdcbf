"""Runs: what they change and what they leave, how Redis follows, and the counts, whatever goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.event import listen
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.admin.desk import ANN, RUN, WHY, Desk, order, totals
from tests.contract.breaks import lose_answers
from tests.contract.library import ACTOR, Library
from tests.integration.world import World
from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.admin import bulk_changes as changes_module
from toc.admin.bulk_run import PAUSE_S_MIN, BulkRunProgress, RunInterrupted
from toc.domain.job import Event, Status
from toc.domain.routing import routing_hash_of
from toc.errors import InvalidInput, SchemaMismatch, StoreUnavailable
from toc.store.claims import OutcomeKind

MINUTE, HOUR = 60_000, 3_600_000
FAST = 1_000_000  # a second: no page waits for another
P, C, D = Status.PENDING, Status.CANCELLED, Status.DEAD


def schedule(desk: Desk, count: int, in_ms: int = 10 * MINUTE, **fields: Any) -> list[int]:
    """Jobs over all shards, armed where they are near, as a client leaves them."""
    return [
        desk.world.center.schedule(
            number, timedelta(milliseconds=in_ms), **{"biz_type": "order.close"} | fields
        )
        for number in range(count)
    ]


def of_one_shard(count: int) -> list[int]:
    """Business ids."""
    return [biz_id for biz_id in range(20 * count) if routing_hash_of(biz_id) % 4 == 1][:count]


# ---- the dry run


def test_a_dry_run_counts_and_changes_nothing(desk: Desk) -> None:
    library = desk.library
    near = schedule(desk, 8)
    schedule(desk, 3, biz_type="vip.close")
    dead = [library.dead(biz_id=number) for number in range(2)]
    library.ended(OutcomeKind.DONE, biz_id=1)
    library.running("one", biz_id=1)
    before = desk.everything()
    found = desk.count(order("cancel", "biz_type = 'order.close'"))
    assert (found.total.matched, found.total.reached) == (12, 8)
    assert {kind: (n.matched, n.reached) for kind, n in found.kinds.items()} == {
        ("order.close", "pending"): (8, 8),
        ("order.close", "running"): (1, 0),
        ("order.close", "done"): (1, 0),
        ("order.close", "dead"): (2, 0),
    }
    assert {index: n.matched for index, n in found.databases.items()} == {0: 12}
    assert sum(n.matched for n in found.shards.values()) == 12
    assert 1 <= len(found.examples) <= 5
    assert {job.job_id for job in found.examples} <= set(near)
    for verb in ("redrive", "discard"):
        of_dead = desk.count(order(verb, "status <> 1"))
        assert (of_dead.total.matched, of_dead.total.reached) == (14, 2)
        assert {job.job_id for job in of_dead.examples} <= set(dead)
    to_ms = library.now_ms + 10 * MINUTE
    postponed = desk.count(order("postpone", to_ms=to_ms))
    assert (postponed.total.matched, postponed.total.reached) == (
        15,
        0,
    )  # they are due then already
    assert desk.count(order("cancel", "FALSE")).total.matched == 0
    assert desk.everything() == before


# ---- cancel


def test_cancel_leaves_one_event_for_each_and_redis_follows(desk: Desk) -> None:
    library = desk.library
    mine = schedule(desk, 9)
    others = schedule(desk, 4, biz_type="vip.close")
    running, done = library.running("one", biz_id=2), library.ended(OutcomeKind.DONE, biz_id=2)
    kept = {job_id: library.row(job_id) for job_id in (*others, running, done)}
    assert desk.world.reminders() == 13
    library.clock.advance(1)
    progress = desk.run(order("cancel", "type_no <> 0 AND biz_type = 'order.close'"))
    assert (totals(progress), progress.complete) == ((9, 0, 0, 0), True)
    for job_id in mine:
        row = library.row(job_id)
        assert (row.status, row.due_ms) == (C, None)
        expected = Event(row.modified_ms, "cancel", P, C, 0, ANN, WHY, run_id=RUN)
        assert desk.events(job_id) == [expected]
    assert {job_id: library.row(job_id) for job_id in kept} == kept
    assert [desk.events(job_id) for job_id in kept] == [[]] * 6
    assert desk.world.reminders() == 4
    assert None not in [desk.world.reminder(job_id, "vip") for job_id in others]


def test_what_is_out_with_a_worker_is_forgotten_too(desk: Desk) -> None:
    (job_id,) = schedule(desk, 1, in_ms=0)
    slot = desk.world.slot(job_id)
    (popped,) = desk.world.slots.pop("default", [(slot, 5)], 30_000)
    assert popped.ids == [job_id]
    assert totals(desk.run(order("cancel"))) == (1, 0, 0, 0)
    assert desk.world.slots.find_reminder("default", slot, job_id) == (None, None)


# ---- postpone


def test_postpone_by_counts_from_when_a_job_is_due_or_from_now(desk: Desk) -> None:
    library = desk.library
    near, far = schedule(desk, 1, 5 * MINUTE)[0], schedule(desk, 1, 50 * MINUTE)[0]
    overdue = schedule(desk, 1, -50 * MINUTE)[0]
    retried = library.running("one", biz_id=5)
    library.settle_as(OutcomeKind.RETRY, retried, "one", library.now_ms + 2 * MINUTE, "x")
    due = {job_id: library.row(job_id).due_ms or 0 for job_id in (near, far, overdue, retried)}
    progress = desk.run(order("postpone", by_ms=7 * MINUTE))
    assert totals(progress) == (4, 0, 0, 0)
    for job_id, was_ms in due.items():
        row, event = library.row(job_id), desk.events(job_id)[-1]
        at_ms = max(was_ms, row.modified_ms) + 7 * MINUTE
        assert (row.status, row.action_ms, row.due_ms, row.attempts) == (P, at_ms, at_ms, 0)
        reason = f"by 420 s: {WHY}"
        assert event == Event(row.modified_ms, "reschedule", P, P, 0, ANN, reason, run_id=RUN)
    assert len(desk.events(near)) == 1
    assert [event.what for event in desk.events(retried)] == ["retry", "reschedule"]


@pytest.mark.invariant("I4")
def test_a_postponed_job_is_not_early_though_its_old_reminder_is(desk: Desk) -> None:
    library = desk.library
    (job_id,) = schedule(desk, 1, 5 * MINUTE)
    desk.run(order("postpone", to_ms=library.now_ms + 60 * MINUTE))
    assert desk.world.reminder(job_id) == 5 * MINUTE  # the earliest wins: the claim puts it right
    library.clock.advance(5 * 60)
    assert library.claim([job_id], "one")[job_id].token is None
    library.clock.advance(55 * 60)
    assert library.claim([job_id], "one")[job_id].token == "one"


def test_postpone_to_leaves_those_that_are_due_later(desk: Desk) -> None:
    library = desk.library
    overdue, near = schedule(desk, 1, -MINUTE)[0], schedule(desk, 1, MINUTE)[0]
    far = schedule(desk, 1, 50 * MINUTE)[0]
    same = schedule(desk, 1, 10 * MINUTE)[0]
    kept = [library.row(job_id) for job_id in (far, same)]
    to_ms = library.now_ms + 10 * MINUTE
    assert totals(desk.run(order("postpone", to_ms=to_ms))) == (2, 0, 0, 0)
    assert [library.row(job_id).due_ms for job_id in (overdue, near)] == [to_ms] * 2
    assert [library.row(job_id) for job_id in (far, same)] == kept
    reasons = [event.reason for job_id in (overdue, near) for event in desk.events(job_id)]
    assert reasons == [f"to 2026-01-01 00:10:00.000 UTC: {WHY}"] * 2


def test_what_redis_did_not_know_is_armed_when_it_is_near(desk: Desk) -> None:
    library = desk.library
    job_id = library.pending(42, in_ms=-MINUTE)
    assert desk.world.reminder(job_id) is None
    desk.run(order("postpone", by_ms=5 * MINUTE))
    assert desk.world.reminder(job_id) == 5 * MINUTE
    beyond = library.pending(43)
    desk.run(order("postpone", f"job_id = {beyond}", by_ms=5 * HOUR))
    assert desk.world.reminder(beyond) is None


def test_a_job_is_postponed_once_though_it_moves_on_in_the_index(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toc.store import bulk_update  # noqa: PLC0415 - only here

    monkeypatch.setattr(bulk_update, "WINDOW_ROWS", 2)
    monkeypatch.setattr(changes_module, "IDS_MAX", 3)
    ids = [desk.library.pending(4 * number, in_ms=number * 1000) for number in range(12)]
    due = {job_id: desk.library.row(job_id).due_ms or 0 for job_id in ids}
    progress = desk.run(order("postpone", "due_time IS NOT NULL", by_ms=5000))
    assert totals(progress) == (12, 0, 0, 0)
    for job_id, was_ms in due.items():
        row = desk.library.row(job_id)
        assert row.due_ms == max(was_ms, row.modified_ms) + 5000
        assert len(desk.events(job_id)) == 1


def test_a_job_that_somebody_moves_while_it_is_looked_for_is_postponed_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk meets it twice: where it was, and where it is then."""
    from toc.store import bulk_update  # noqa: PLC0415 - only here

    monkeypatch.setattr(bulk_update, "WINDOW_ROWS", 2)
    library, looks = desk.library, []
    ids = [library.pending(biz_id, in_ms=n * 1000) for n, biz_id in enumerate(of_one_shard(12))]

    def move() -> bool:
        looks.append(1)
        if len(looks) == 2:  # its window was the first
            library.jobs.reschedule(ids[0], library.now_ms + 5500)
        return False

    progress = desk.run(order("postpone", by_ms=5000), stop=move, per_second=3)
    assert totals(progress) == (12, 0, 0, 0)
    assert [event.actor for event in desk.events(ids[0])] == [ACTOR, ANN]


def test_nothing_is_postponed_beyond_the_end_of_time(desk: Desk) -> None:
    job_id = desk.library.pending(at_ms=253_402_300_799_000)
    assert totals(desk.run(order("postpone", by_ms=5000))) == (0, 0, 0, 0)
    assert desk.library.row(job_id).status == P


# ---- redrive


def test_redrive_gives_the_dead_a_new_life_now(desk: Desk) -> None:
    library = desk.library
    dead = [library.dead(biz_id=number) for number in range(6)]
    report = library.dead(type_no=library.report_no)
    library.clock.advance(60)
    progress = desk.run(order("redrive", "biz_type = 'order.close'"))
    assert totals(progress) == (6, 0, 0, 0)
    for job_id in dead:
        row = library.row(job_id)
        now_ms = row.modified_ms
        assert (row.status, row.action_ms, row.due_ms, row.attempts) == (P, now_ms, now_ms, 0)
        assert [event.what for event in desk.events(job_id)] == ["bury", "redrive"]
        assert desk.events(job_id)[1].actor == ANN
        assert desk.world.reminder(job_id) == now_ms - library.now_ms
    assert [letter.job_id for letter in library.jobs.read_dead_letters(10)] == [report]


@pytest.mark.parametrize("page", [500, 1])
def test_superseded_jobs_stay_dead_and_do_not_stop_their_page(
    desk: Desk, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "IDS_MAX", page)
    library = desk.library
    free = [library.dead(biz_id=4 * number) for number in range(3)]
    held = library.dead(biz_id=4, key="k")
    holder = library.pending(biz_id=4, key="k")
    older = library.dead(biz_id=8, key="k")
    newer = library.dead(biz_id=8, key="k")
    before = [library.row(job_id) for job_id in (held, holder, older)]
    progress = desk.run(order("redrive"), per_second=FAST)
    assert totals(progress) == (4, 0, 2, 0)
    assert desk.statuses([*free, newer]) == [P] * 4
    assert [library.row(job_id) for job_id in (held, holder, older)] == before
    assert {letter.job_id for letter in library.jobs.read_dead_letters(10)} == {held, older}
    assert [event.what for event in desk.events(held)] == ["bury"]


# ---- discard


@pytest.mark.parametrize("is_racing", [False, True])
def test_discard_cancels_the_dead_and_their_letters_go(desk: Desk, is_racing: bool) -> None:
    """The page is changed at once; if one of it is dead no more, the rows are locked and read first."""
    library = desk.library
    dead = [library.dead(biz_id=4 * number) for number in range(6)]
    report = library.dead(type_no=library.report_no)
    live = library.pending(biz_id=4)
    redriven = dead[:1] if is_racing else []
    before = [library.row(job_id) for job_id in (report, live)]
    library.clock.advance(60)

    def redrive() -> None:
        for job_id in redriven:
            assert library.jobs.redrive(job_id, library.now_ms)

    progress = desk.run(order("discard", "biz_type = 'order.close'"), chosen=redrive)
    assert totals(progress) == (6 - len(redriven), 0, 0, len(redriven))
    for job_id in dead[len(redriven) :]:
        row = library.row(job_id)
        assert (row.status, row.due_ms, row.attempts) == (C, None, 1)
        discarded = Event(row.modified_ms, "discard", D, C, 1, ANN, WHY, run_id=RUN)
        assert desk.events(job_id)[1:] == [discarded]
        assert library.jobs.redrive(job_id, library.now_ms) == "already_cancelled"
    assert desk.statuses(redriven) == [P] * len(redriven)
    assert [library.row(job_id) for job_id in (report, live)] == before
    assert [letter.job_id for letter in library.jobs.read_dead_letters(10)] == [report]


# ---- whose set it is


def test_what_changed_meanwhile_is_left_and_counted(desk: Desk) -> None:
    library = desk.library
    ids = [library.pending(number) for number in range(8)]

    def others() -> None:
        library.claim(ids[:1], "one")
        library.jobs.cancel(ids[1])
        library.jobs.reschedule(ids[2], library.now_ms + HOUR)
        library.pending(42)  # comes into reach, and is not chased

    soon = "action_time < NOW() + INTERVAL 1 MINUTE"
    progress = desk.run(order("cancel", soon), chosen=others)
    assert totals(progress) == (5, 0, 0, 3)
    assert desk.statuses(ids) == [Status.RUNNING, C, P, C, C, C, C, C]
    actors = [event.actor for job_id in ids for event in desk.events(job_id)]
    assert actors.count(ANN) == 5
    assert desk.count(order("cancel")).total.reached == 2  # the rescheduled one and the new one


def test_one_database_only(desk: Desk) -> None:
    schedule(desk, 5)
    assert totals(desk.run(order("cancel"), database=0)) == (5, 0, 0, 0)
    with pytest.raises(InvalidInput, match="database: must be from 0 to 0"):
        desk.run(order("cancel"), database=1)


def test_more_than_the_limit_is_refused_and_nothing_is_done(desk: Desk) -> None:
    ids = schedule(desk, 7)
    before = desk.everything()
    with pytest.raises(InvalidInput, match="more than 6 jobs are in reach, so nothing was changed"):
        desk.run(order("cancel"), limit=6)
    assert desk.everything() == before
    desk.library.jobs.cancel(ids[0])  # only those in reach count
    assert totals(desk.run(order("cancel"), limit=6)) == (6, 0, 0, 0)


UNSIGNED: list[tuple[dict[str, str], str]] = [
    ({"reason": ""}, "reason: must say why"),
    ({"reason": " "}, "reason: must say why"),
    ({"reason": "x" * 901}, "reason: must say why"),
    ({"actor": ""}, "actor: must be"),
    ({"actor": "a\nb"}, "actor: must be"),
]


def test_a_run_must_be_signed(desk: Desk) -> None:
    desk.library.pending()
    before = desk.everything()
    for fields, complaint in UNSIGNED:
        with pytest.raises(InvalidInput, match=complaint):
            desk.run(order("cancel", **fields))
        assert desk.everything() == before, fields


@pytest.mark.parametrize(
    "fields",
    [{}, {"by_ms": 5, "to_ms": 5}, {"by_ms": 0}, {"by_ms": -5}, {"by_ms": 400 * 366 * 24 * HOUR}],
)
def test_postpone_goes_by_or_to(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        order("postpone", **fields)


def test_the_mark_survives_the_longest_reason(desk: Desk) -> None:
    job_id = desk.library.pending()
    desk.run(order("postpone", by_ms=3_600_001, reason="😀" * 900))
    assert desk.events(job_id)[0].run_id == RUN


# ---- the throttle


@pytest.mark.parametrize("per_second", [1, 10, 1000])
def test_the_throttle(desk: Desk, per_second: int) -> None:
    for number in range(25):
        desk.library.pending(number)
    clock = desk.library.clock
    pages: list[tuple[float, int]] = []
    desk.run(
        order("cancel"),
        per_second=per_second,
        page=lambda jobs: pages.append((clock.monotonic_s(), jobs)),
    )
    assert sum(jobs for _, jobs in pages) == 25
    assert max(jobs for _, jobs in pages) <= per_second
    for (done_s, jobs), (next_s, _) in pairwise(pages):
        assert next_s - done_s >= jobs / per_second - PAUSE_S_MIN
    assert pages[-1][0] - pages[0][0] >= (25 - pages[-1][1]) / per_second - PAUSE_S_MIN


def test_a_slow_page_is_not_made_up_for(desk: Desk) -> None:
    ids = [desk.library.pending(number) for number in range(20)]
    clock, pages = desk.library.clock, []

    def page(jobs: int) -> None:
        if not pages:
            clock.advance(3600)
        pages.append((clock.monotonic_s(), jobs))

    desk.run(order("cancel"), per_second=4, page=page)
    for (done_s, jobs), (next_s, _) in pairwise(pages[1:]):
        assert next_s - done_s >= jobs / 4 - PAUSE_S_MIN
    assert set(desk.statuses(ids)) == {C}


# ---- stopped half-way


def stopping_after(pages: int) -> tuple[Callable[[], bool], Callable[[int], None]]:
    seen: list[int] = []
    return lambda: len(seen) >= pages, seen.append


@pytest.mark.parametrize("verb", ["cancel", "postpone", "redrive", "discard"])
def test_an_interrupted_run_has_exact_counts_and_goes_on(desk: Desk, verb: str) -> None:
    library = desk.library
    make = library.dead if verb in ("redrive", "discard") else library.pending
    ids = [make(biz_id=number) for number in range(20)]
    due = {job_id: library.row(job_id).due_ms for job_id in ids}
    fields = {"by_ms": HOUR} if verb == "postpone" else {}
    wanted = order(verb, **fields)
    stop, page = stopping_after(2)
    progress = BulkRunProgress()
    with pytest.raises(RunInterrupted):
        desk.run(wanted, per_second=3, stop=stop, page=page, progress=progress)
    done = [i for i in ids if [e for e in desk.events(i) if e.actor == ANN]]
    assert progress.changed_jobs == len(done)
    assert 0 < len(done) <= 6
    assert (progress.complete, progress.databases[0].chosen) == (False, 20)
    again = desk.run(order(verb, run=wanted.run, again=True, **fields))
    counts = totals(again)
    assert counts[0] == 20 - len(done)
    # What is cancelled, redriven or discarded does not match any more; what was postponed does.
    assert counts[1] == (len(done) if verb == "postpone" else 0)
    for job_id in ids:
        assert len([event for event in desk.events(job_id) if event.actor == ANN]) == 1
        if verb == "postpone":
            row = library.row(job_id)
            assert row.due_ms == max(due[job_id] or 0, row.modified_ms) + HOUR
    if verb == "postpone":  # another run is another matter
        assert totals(desk.run(order(verb, run="99999999", again=True, **fields)))[0] == 20


def test_it_stops_while_it_waits_for_the_throttle(desk: Desk) -> None:
    for number in range(20):
        desk.library.pending(number)
    clock = desk.library.clock
    start_s = clock.monotonic_s()
    progress = BulkRunProgress()
    with pytest.raises(RunInterrupted):
        desk.run(
            order("cancel"),
            per_second=1,
            stop=lambda: clock.monotonic_s() - start_s > 2.5,
            progress=progress,
        )
    assert 1 <= progress.changed_jobs <= 4


def test_it_stops_while_it_looks(desk: Desk) -> None:
    schedule(desk, 5)
    before = desk.everything()
    for look in (desk.run,):
        with pytest.raises(RunInterrupted, match="nothing was changed"):
            look(order("cancel"), stop=lambda: True)
    assert desk.everything() == before


# ---- connections


@pytest.mark.parametrize("per_second", [500, FAST])
@pytest.mark.parametrize("verb", ["cancel", "postpone", "redrive", "discard"])
def test_a_commit_whose_answer_was_lost_is_counted_once(
    desk: Desk, verb: str, per_second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = desk.library
    make = library.dead if verb in ("redrive", "discard") else library.pending
    ids = [make(biz_id=4 * number) for number in range(10)]
    due = [library.row(job_id).due_ms for job_id in ids]
    monkeypatch.setattr(changes_module, "IDS_MAX", 4)
    fields = {"by_ms": HOUR} if verb == "postpone" else {}
    with losing(monkeypatch, times=1) as lost:
        progress = desk.run(order(verb, **fields), per_second=per_second)
    assert lost.times == 1
    assert (totals(progress), progress.complete) == ((10, 0, 0, 0), True)
    assert [len([e for e in desk.events(i) if e.actor == ANN]) for i in ids] == [1] * 10
    if verb == "postpone":
        rows = [library.row(i) for i in ids]
        wanted = [max(ms or 0, row.modified_ms) + HOUR for ms, row in zip(due, rows, strict=True)]
        assert [row.due_ms for row in rows] == wanted
    if verb == "redrive":  # Redis was told of the page whose answer was lost, too
        assert None not in [desk.world.reminder(i) for i in ids]


@pytest.mark.parametrize("verb", ["cancel", "postpone"])
def test_a_page_that_nobody_answers_for_is_unsure_and_can_be_repeated(
    desk: Desk, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = desk.library
    ids = sorted(library.pending(biz_id=4 * number) for number in range(10))
    monkeypatch.setattr(changes_module, "IDS_MAX", 4)
    fields = {"by_ms": HOUR} if verb == "postpone" else {}
    progress = BulkRunProgress()
    # One more, where all are tried at once first.
    times = 3 if verb == "cancel" else 2
    with losing(monkeypatch, times), pytest.raises(StoreUnavailable):
        desk.run(order(verb, **fields), progress=progress)
    (part,) = progress.databases.values()
    (unsure,) = part.unsure
    first = min(library.shard(i) for i in ids)
    page = [i for i in ids if library.shard(i) == first][:4]
    assert (unsure.first_id, unsure.last_id, unsure.jobs) == (page[0], page[-1], len(page))
    assert unsure.table == f"toc_job_{first:04d}"
    assert progress.changed_jobs == 0  # it is not counted, it is named
    changed = {i for i in ids if desk.events(i)}
    assert changed <= set(page)
    again = desk.run(order(verb, again=True, **fields))
    assert again.changed_jobs == 10 - len(changed)
    assert [len(desk.events(i)) for i in ids] == [1] * 10


def losing(monkeypatch: pytest.MonkeyPatch, times: int) -> Any:
    """The first database that is opened from now on loses the answers of so many COMMITs."""
    from contextlib import contextmanager  # noqa: PLC0415

    @contextmanager
    def lose() -> Iterator[Any]:
        made: list[Any] = []
        apply = changes_module.BulkChanges.change_jobs

        def applied(self: Any, *args: Any, **kwargs: Any) -> None:
            with lose_answers(self.databases[0], times) as lost:
                made.append(lost)
                apply(self, *args, **kwargs)

        class Sum:
            @property
            def times(self) -> int:
                return sum(lost.times for lost in made)

        monkeypatch.setattr(changes_module.BulkChanges, "change_jobs", applied)
        try:
            yield Sum()
        finally:
            monkeypatch.setattr(changes_module.BulkChanges, "change_jobs", apply)

    return lose()


@pytest.mark.parametrize("kills", [1, 50])
def test_killed_connections(desk: Desk, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DBA kills them in mid-run: once is made good, for ever is reported, and nothing else is."""
    library = desk.library
    if library.sqlite:
        pytest.skip("it has no connections to kill")
    ids = [library.pending(biz_id=number) for number in range(30)]
    change = changes_module.BulkUpdate.change_page
    pages: list[int] = []

    def kill(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal kills
        if kills and len(pages) > 3 and statement.startswith("INSERT INTO"):
            kills -= 1
            mine = connection.connection.driver_connection.thread_id()
            with killer.connect() as other:
                other.execute(text(f"KILL CONNECTION {mine}"))

    def watched(self: Any, shard: int, *args: Any, **kwargs: Any) -> Any:
        pages.append(shard)
        if len(pages) == 1:
            listen(self._databases[0].engine, "before_cursor_execute", kill)
        return change(self, shard, *args, **kwargs)

    killer = create_engine(library.settings.databases[0], poolclass=NullPool)
    monkeypatch.setattr(changes_module.BulkUpdate, "change_page", watched)
    for_ever, progress = kills > 1, BulkRunProgress()
    if for_ever:
        with pytest.raises(StoreUnavailable, match="database 0 does not answer"):
            desk.run(order("cancel"), per_second=4, progress=progress)
    else:
        desk.run(order("cancel"), per_second=4, progress=progress)
    changed = [i for i in ids if library.row(i).status == C]
    assert progress.changed_jobs == len(changed)
    assert progress.complete is not for_ever
    assert len(changed) == (30 if not for_ever else progress.changed_jobs)
    assert progress.databases[0].unsure == []  # it never came to a COMMIT
    assert [len(desk.events(i)) for i in ids] == [int(i in changed) for i in ids]
    assert changed


@pytest.mark.parametrize("moment", ["before", "in the middle"])
def test_a_dropped_table(desk: Desk, moment: str) -> None:
    library = desk.library
    ids = [library.pending(biz_id=number) for number in range(16)]
    last = max(library.shard(i) for i in ids)
    table, some_id = f"toc_job_{last:04d}", next(i for i in ids if library.shard(i) == last)
    progress = BulkRunProgress()

    def drop() -> None:
        library.sql(some_id, f"ALTER TABLE {table} RENAME TO away")

    try:
        if moment == "before":
            drop()
        with pytest.raises(SchemaMismatch, match=rf"^database 0, table {table}: "):
            desk.run(
                order("cancel"),
                progress=progress,
                chosen=drop if moment != "before" else lambda: None,
            )
    finally:
        library.sql(some_id, f"ALTER TABLE away RENAME TO {table}")
    changed = [i for i in ids if library.row(i).status == C]
    assert progress.changed_jobs == len(changed)
    assert (len(changed) > 0) is (moment != "before")
    assert {library.shard(i) for i in changed} == {
        shard for shard in {library.shard(i) for i in ids} if shard != last and moment != "before"
    }
    assert [len(desk.events(i)) for i in ids] == [int(i in changed) for i in ids]
    assert progress.databases == {} or progress.databases[0].unsure == []


@pytest.mark.parametrize("verb", ["cancel", "postpone", "redrive", "discard"])
def test_redis_may_be_away(library: Library, verb: str) -> None:
    world = World(library, f"redis://127.0.0.1:{free_port()}/0", connect_timeout_s=1)
    desk = Desk(world)
    make = library.dead if verb in ("redrive", "discard") else library.pending
    ids = [make(biz_id=number) for number in range(6)]
    try:
        progress = desk.run(order(verb, **{"by_ms": HOUR} if verb == "postpone" else {}))
    finally:
        world.center.close()
    assert (totals(progress), progress.complete) == ((6, 0, 0, 0), True)
    assert [len([e for e in desk.events(i) if e.actor == ANN]) for i in ids] == [1] * 6


def test_without_redis(library: Library) -> None:
    world = World(library, "none", topics={})
    job_id = library.pending()
    try:
        assert totals(Desk(world).run(order("cancel"))) == (1, 0, 0, 0)
    finally:
        world.center.close()
    assert library.row(job_id).status == C


def test_a_broken_slot_does_not_stop_it(desk: Desk) -> None:
    ids = schedule(desk, 4)
    client, settings = desk.world.slots.connected_client(), desk.world.settings
    for slot in range(4):
        client.delete(f"{settings.namespace}:default_{slot}")
        client.set(f"{settings.namespace}:default_{slot}", "not a sorted set")
    assert totals(desk.run(order("cancel"))) == (4, 0, 0, 0)
    assert set(desk.statuses(ids)) == {C}


# ---- beside workers


@pytest.mark.invariant("I3")
@pytest.mark.parametrize(("verb", "after"), [("postpone", "SELECT"), ("cancel", "UPDATE")])
def test_nobody_takes_a_job_once_it_is_looked_at(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: str, after: str
) -> None:
    """A cancel changes it at once, without a look."""
    library = desk.library
    job_id = library.pending()
    other = create_engine(
        library.settings.databases[0],
        poolclass=NullPool,
        connect_args={"timeout": 0} if library.sqlite else {},
    )
    refused: list[str] = []

    def take(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if refused or not statement.startswith(after) or "toc_job_" not in statement:
            return
        table = f"toc_job_{library.shard(job_id):04d}"
        with other.begin() as rival:
            if not library.sqlite:
                rival.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
            try:
                rival.execute(text(f"UPDATE {table} SET status = 1 WHERE job_id = {job_id}"))
            except OperationalError as error:
                refused.append(str(error.orig))

    change = changes_module.BulkUpdate.change_page

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        listen(self._databases[0].engine, "after_cursor_execute", take)
        return change(self, *args, **kwargs)

    monkeypatch.setattr(changes_module.BulkUpdate, "change_page", watched)
    fields = {"by_ms": HOUR} if verb == "postpone" else {}
    progress = desk.run(order(verb, **fields))
    assert ("locked" in refused[0]) if library.sqlite else ("1205" in refused[0])
    status = C if verb == "cancel" else P
    assert (totals(progress), library.row(job_id).status) == ((1, 0, 0, 0), status)


@pytest.mark.parametrize("meanwhile", ["nothing", "a claim", "a reschedule"])
def test_a_page_is_read_only_where_some_do_not_match_any_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Where all match a cancel is one UPDATE; where one does not, what that did is taken back."""
    library = desk.library
    ids = [library.pending() for _ in range(3)]  # of one shard
    others, seen = int(meanwhile != "nothing"), list[str]()

    def happens() -> None:
        if meanwhile == "a claim":
            library.claim(ids[:1], "one")
        elif meanwhile == "a reschedule":
            library.jobs.reschedule(ids[0], library.now_ms + HOUR)

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    change = changes_module.BulkUpdate.change_page

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        listen(self._databases[0].engine, "after_cursor_execute", note)
        return change(self, *args, **kwargs)

    monkeypatch.setattr(changes_module.BulkUpdate, "change_page", watched)
    soon = "action_time < NOW() + INTERVAL 1 MINUTE"
    progress = desk.run(order("cancel", soon), chosen=happens)
    assert totals(progress) == (3 - others, 0, 0, others)
    first = {"nothing": C, "a claim": Status.RUNNING, "a reschedule": P}[meanwhile]
    assert desk.statuses(ids) == [first, C, C]
    cancels = [[e.what for e in desk.events(i)].count("cancel") for i in ids]
    assert cancels == [1 - others, 1, 1]
    if not library.sqlite:
        assert any("FOR UPDATE" in statement for statement in seen) == bool(others)
        tried = next(statement for statement in seen if statement.startswith("UPDATE"))
        assert "FORCE INDEX (PRIMARY)" in tried  # else it may lock what it walks over


class Crew:
    """Two workers that claim, settle and retry some jobs, round after round, until they are stopped."""

    def __init__(self, library: Library, ids: list[int]) -> None:
        self._library, self._ids = library, ids
        self._stop = threading.Event()
        self.rounds = {"one": 0, "two": 0}
        self.errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(token,)) for token in self.rounds
        ]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def go_on(self) -> None:
        """Waits until each has begun and ended a whole round."""
        seen = dict(self.rounds)
        wait_until(
            lambda: self.errors or all(self.rounds[token] > seen[token] + 1 for token in seen)
        )

    def _guarded(self, token: str) -> None:
        try:
            while not self._stop.is_set():
                for start in range(0, len(self._ids), 20):
                    self._work(token, self._ids[start : start + 20])
                self.rounds[token] += 1
        except Exception as error:  # noqa: BLE001 - the main thread fails for it
            self.errors.append(error)

    def _work(self, token: str, ids: list[int]) -> None:
        library = self._library
        for job_id, row in library.claim(ids, token).items():
            if row.token == token and row.status is Status.RUNNING:
                kind = OutcomeKind.DONE if job_id % 7 == 0 else OutcomeKind.RETRY
                library.settle_as(kind, job_id, token, library.now_ms, "again")


@pytest.mark.invariant("I3")
def test_beside_workers_a_job_is_cancelled_or_run_never_both(library: Library) -> None:
    """Workers claim, settle and retry the very jobs that two people cancel."""
    world = World(library, "none", topics={})
    desk = Desk(world)
    ids = [library.pending(biz_id=number) for number in range(60 if library.sqlite else 200)]
    progresses: list[BulkRunProgress] = []
    people = [
        threading.Thread(
            target=lambda run=run: progresses.append(
                desk.run(order("cancel", run=run), per_second=FAST)
            )
        )
        for run in ("aaaaaaaa", "bbbbbbbb")
    ]
    with Crew(library, ids) as crew:
        crew.go_on()
        for thread in people:
            thread.start()
        for thread in people:
            thread.join(60)
        rows = {job_id: library.row(job_id) for job_id in ids}
        crew.go_on()
    world.center.close()
    assert not crew.errors
    cancelled = {job_id for job_id, row in rows.items() if row.status == C}
    assert sum(progress.changed_jobs for progress in progresses) == len(cancelled) > 0
    for job_id in ids:
        events = desk.events(job_id)
        assert [event.what for event in events].count("cancel") == int(job_id in cancelled)
        if job_id in cancelled:  # final: nothing came after it
            assert events[-1].what == "cancel"
            assert library.row(job_id) == rows[job_id]
