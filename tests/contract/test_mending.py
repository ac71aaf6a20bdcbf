"""What reconciliation may change in rows: guarded, repeatable, each change with its event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from tests.contract.breaks import lose_answers
from tests.contract.engines import library_on
from tests.contract.library import Library
from tests.contract.test_events import no_event_table
from toc.domain.biz_ids import BusinessId, hash_text_id
from toc.domain.ids import ROUTING_MASK, SEQUENCE_BITS, SEQUENCE_MASK, routing_bits_of
from toc.domain.job import TRANSITIONS, Event, NewJob, Status
from toc.domain.routing import routing_hash_of
from toc.store.claims import OutcomeKind
from toc.store.column_types import sql_time_of_ms
from toc.store.events import read_events
from toc.store.job_repair import JobRepair, ShiftedJob
from toc.store.schema import job_table_name

ACTOR = "night"
LATER_MS = 90_000
P, C = Status.PENDING, Status.CANCELLED
Row = dict[str, Any]


@pytest.fixture(params=["sqlite", "mysql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    """Two databases: shards 0 and 1 in one, 2 and 3 in the other."""
    with library_on(request.param, request, tmp_path, databases=2) as library:
        yield library


def mending(library: Library) -> JobRepair:
    return JobRepair(library.databases, ACTOR)


def events(library: Library, shard: int, job_id: int) -> list[Event]:
    return read_events(library.databases.database_of_shard(shard), job_id, 100)


def on(library: Library, shard: int, statement: str, **values: Any) -> list[Any]:
    """Plain SQL in the database of a shard; {table} is its table."""
    with library.databases.database_of_shard(shard).engine.begin() as connection:
        found = connection.execute(text(statement.format(table=f"toc_job_{shard:04d}")), values)
        return list(found.mappings()) if found.returns_rows else []


def row(library: Library, shard: int, job_id: int) -> Row | None:
    """All columns of the row in the table of a shard, but for when it was changed."""
    found = on(library, shard, "SELECT * FROM {table} WHERE job_id = :id", id=job_id)
    return {k: v for k, v in found[0].items() if k != "gmt_modified"} if found else None


def everything(library: Library) -> list[Any]:
    """All rows and events, but for when rows were changed."""
    found: list[Any] = []
    for shard in range(4):
        for each in on(library, shard, "SELECT * FROM {table} ORDER BY job_id"):
            found.append((shard, {k: v for k, v in each.items() if k != "gmt_modified"}))
        if shard in {database.shards[0] for database in library.databases}:
            found += on(library, shard, "SELECT * FROM toc_event ORDER BY event_id")
    return found


# ---- note


def test_a_note_leaves_the_row_as_it_is(library: Library) -> None:
    pending, running = library.pending(1), library.running("one", biz_id=2)
    dead, gone = library.dead(biz_id=3), library.new(4).job_id
    before = {i: row(library, library.shard(i), i) for i in (pending, running, dead)}
    reasons: dict[int, dict[int, str]] = {}
    for job_id in (pending, running, dead, gone):
        reasons.setdefault(library.shard(job_id), {})[job_id] = f"of {job_id}"
    mending(library).record_reminder_repairs(reasons)
    for job_id, status, attempts in (
        (pending, Status.PENDING, 0), (running, Status.RUNNING, 1), (dead, Status.DEAD, 1),
    ):  # fmt: skip
        last = events(library, library.shard(job_id), job_id)[-1]
        assert last == Event(
            library.now_ms, "repair", status, status, attempts, ACTOR, f"of {job_id}"
        )
        assert row(library, library.shard(job_id), job_id) == before[job_id]
    assert events(library, library.shard(gone), gone) == []


def test_notes_of_one_shard_have_their_own_reasons(library: Library) -> None:
    ids = [library.pending(42, in_ms=n) for n in range(30)]
    shard = library.shard(ids[0])
    mending(library).record_reminder_repairs({shard: {i: f"of {i}" for i in ids}})
    mending(library).record_reminder_repairs({shard: dict.fromkeys(ids, "of all")})
    for job_id in ids:
        assert [e.reason for e in events(library, shard, job_id)] == [f"of {job_id}", "of all"]


def test_notes_of_several_databases(two: Library) -> None:
    ids = {two.shard(i): i for i in (two.pending(n) for n in range(16))}
    assert set(ids) == {0, 1, 2, 3}
    mending(two).record_reminder_repairs({shard: {job_id: "why"} for shard, job_id in ids.items()})
    assert all(len(events(two, shard, job_id)) == 1 for shard, job_id in ids.items())


# ---- realign


def shift(library: Library, job_id: int, by_ms: int = -LATER_MS) -> ShiftedJob:
    """Moves a job by hand; as it is seen then."""
    action_ms = library.row(job_id).action_ms
    values = {"due": sql_time_of_ms(action_ms + by_ms), "id": job_id}
    on(
        library,
        library.shard(job_id),
        "UPDATE {table} SET due_time = :due WHERE job_id = :id",
        **values,
    )
    return ShiftedJob(job_id, action_ms, action_ms + by_ms)


@pytest.mark.parametrize("by_ms", [-LATER_MS, LATER_MS, 1])
def test_realign_believes_the_business(library: Library, by_ms: int) -> None:
    job_id = library.pending(in_ms=LATER_MS)
    shard, before = library.shard(job_id), library.row(job_id)
    seen = shift(library, job_id, by_ms)
    library.clock.advance(1)
    assert mending(library).reset_due_times({shard: [seen]}) == {(shard, job_id)}
    assert library.row(job_id) == before._replace(modified_ms=library.now_ms)
    (found,) = events(library, shard, job_id)
    reason = f"moved: due_time was {sql_time_of_ms(seen.due_ms)} UTC"
    assert found == Event(library.now_ms, "repair", P, P, 0, ACTOR, reason)
    assert TRANSITIONS[P]["repair"] is P


def test_realign_twice_changes_once(library: Library) -> None:
    job_id = library.pending(in_ms=LATER_MS)
    shard, seen = library.shard(job_id), shift(library, job_id)
    mending(library).reset_due_times({shard: [seen]})
    before = everything(library)
    assert mending(library).reset_due_times({shard: [seen]}) == set()
    assert everything(library) == before


@pytest.mark.parametrize(
    "change",
    ["status = 1", "status = 3", "attempts = 1", "action_time = :other", "due_time = :other"],
)
def test_realign_leaves_what_has_changed_since(library: Library, change: str) -> None:
    job_id = library.pending(in_ms=LATER_MS)
    shard, seen = library.shard(job_id), shift(library, job_id)
    values = {"other": sql_time_of_ms(library.now_ms + 1)} if ":other" in change else {}
    on(library, shard, f"UPDATE {{table}} SET {change} WHERE job_id = :id", id=job_id, **values)
    before = everything(library)
    assert mending(library).reset_due_times({shard: [seen]}) == set()
    assert everything(library) == before


def test_realign_leaves_what_is_not_moved(library: Library) -> None:
    job_id = library.pending(in_ms=LATER_MS)
    at_ms = library.row(job_id).action_ms
    assert (
        mending(library).reset_due_times(
            {library.shard(job_id): [ShiftedJob(job_id, at_ms, at_ms)]}
        )
        == set()
    )
    assert events(library, library.shard(job_id), job_id) == []


def test_realign_whose_answer_was_lost_leaves_one_event(library: Library) -> None:
    job_id = library.pending(in_ms=LATER_MS)
    shard, seen = library.shard(job_id), shift(library, job_id)
    with lose_answers(library.databases[0]) as lost:
        mending(library).reset_due_times({shard: [seen]})
    assert lost.times == 1
    assert library.row(job_id).due_ms == seen.action_ms
    assert len(events(library, shard, job_id)) == 1


def test_realign_of_a_batch_changes_those_that_stand(library: Library) -> None:
    ids = [library.pending(n, in_ms=LATER_MS) for n in range(40)]
    seen: dict[int, list[ShiftedJob]] = {}
    for job_id in ids:
        seen.setdefault(library.shard(job_id), []).append(shift(library, job_id))
    for job_id in ids[::2]:
        assert library.jobs.reschedule(job_id, library.now_ms + 5) == "rescheduled"
    changed = mending(library).reset_due_times(seen)
    assert {job_id for _, job_id in changed} == set(ids[1::2])
    for job_id in ids[::2]:
        assert library.row(job_id).due_ms == library.now_ms + 5


# ---- rehome


def with_routing_bits(job_id: int, routing_bits: int) -> int:
    return job_id & ~(ROUTING_MASK << SEQUENCE_BITS) | routing_bits << SEQUENCE_BITS


def biz_of_shard(shard: int, nth: int = 0) -> int:
    return [n for n in range(1000) if routing_hash_of(n) % 4 == shard][nth]


def text_of_shard(shard: int) -> str:
    texts = (f"A-{n}" for n in range(1000))
    return next(text for text in texts if routing_hash_of(hash_text_id(text)) % 4 == shard)


def misfit(
    library: Library, shard: int, home: int, biz_id: int | str | None = None, **fields: Any
) -> NewJob:
    """A pending job in `shard`, by an id with the routing bits of that shard, of a business of `home`."""
    biz_id = biz_of_shard(home) if biz_id is None else biz_id
    job = library.new(biz_id, **{"in_ms": LATER_MS, "attribute": '{"a": 1}'} | fields)
    routing_bits = (routing_bits_of(job.job_id) & ~3 | shard) ^ 0b100  # wrong, whatever the shard
    job = job._replace(job_id=with_routing_bits(job.job_id, routing_bits))
    assert library.insert(job)[0].job_id == job.job_id
    assert row(library, shard, job.job_id)
    return job


def copy_by_hand(library: Library, job_id: int, to: int, *, move: bool) -> None:
    """What a DBA may do: the row lies in another table of its database as well, or only there."""
    shard = library.shard(job_id)
    columns = (
        "job_id, gmt_create, gmt_modified, biz_id, type_no, status, action_time, attribute, "
        "due_time, attempts, claim_token, dedup_key, claim_time, biz_text, tenant"
    )
    on(
        library, to,
        f"INSERT INTO {{table}} ({columns}) SELECT {columns} FROM toc_job_{shard:04d} WHERE job_id = :id",
        id=job_id,
    )  # fmt: skip
    if move:
        on(library, shard, "DELETE FROM {table} WHERE job_id = :id", id=job_id)


def expected(library: Library, old: Row, job: NewJob) -> Row:
    """The copy: all as it was, under its own id."""
    return old | {
        "job_id": with_routing_bits(job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK)
    }


def only_event(library: Library, shard: int, job_id: int, what: str) -> Event:
    (found,) = [e for e in events(library, shard, job_id) if e.what == what]
    return found


@pytest.mark.parametrize("key", [None, "", "k"])
@pytest.mark.parametrize(("shard", "home"), [(0, 1), (2, 2)], ids=["other table", "same table"])
def test_a_misfit_gets_a_copy_that_fits(
    library: Library, shard: int, home: int, key: str | None
) -> None:
    job = misfit(library, shard, home, key=key)
    old = row(library, shard, job.job_id)
    assert old is not None
    library.clock.advance(1)
    rehomed = mending(library).copy_to_right_shard(shard, job.job_id)
    wanted = expected(library, old, job)
    assert rehomed == (wanted["job_id"], library.close_no, job.action_ms, "", False)
    assert row(library, home, wanted["job_id"]) == wanted
    assert row(library, shard, job.job_id) == old | {
        "status": 3, "due_time": None, "live_key": None,
    }  # fmt: skip
    assert library.row(job.job_id).modified_ms == library.now_ms
    new_words = f"misfit: stands for job {job.job_id} in toc_job_{shard:04d}"
    old_words = f"misfit: job {wanted['job_id']} in toc_job_{home:04d} stands for it now"
    assert events(library, home, wanted["job_id"]) == [
        Event(library.now_ms, "repair", P, P, 0, ACTOR, new_words, related_job_id=job.job_id)
    ]
    assert events(library, shard, job.job_id) == [
        Event(
            library.now_ms,
            "cancel",
            P,
            C,
            0,
            ACTOR,
            old_words,
            related_job_id=wanted["job_id"],
        )
    ]
    assert library.jobs.find(home, BusinessId(job.biz_id), library.close_no, 5)


def test_a_misfit_keeps_its_text_and_its_tenant(library: Library) -> None:
    job = misfit(library, 0, 1, text_of_shard(1), key="k", tenant="shop")
    old = row(library, 0, job.job_id)
    assert old is not None
    assert (old["biz_text"], old["tenant"]) == (job.biz_text, "shop")
    new_id = mending(library).copy_to_right_shard(0, job.job_id).job_id or 0
    assert row(library, 1, new_id) == expected(library, old, job)
    assert [one.job_id for one in library.jobs.find(1, job.business_id, None, 5)] == [new_id]
    assert library.insert(library.new(text_of_shard(1), key="k", tenant="shop"))[0].job_id == new_id
    assert library.insert(library.new(text_of_shard(1), key="k"))[0].job_id != new_id
    answer = library.jobs.cancel(job.job_id)
    assert (answer, answer.job_id) == ("cancelled", new_id)


@pytest.mark.parametrize("two_of_it", [False, True])
def test_a_row_in_the_wrong_table_goes_home_under_its_id(library: Library, two_of_it: bool) -> None:
    job_id = library.pending(biz_of_shard(1), in_ms=LATER_MS, key="k")
    copy_by_hand(library, job_id, 3, move=not two_of_it)
    before = row(library, 3, job_id)
    assert mending(library).copy_to_right_shard(3, job_id).job_id == job_id
    assert row(library, 1, job_id) == before
    assert on(library, 3, "SELECT status, due_time FROM {table}") == [
        {"status": 3, "due_time": None}
    ]
    assert [e.what for e in events(library, 3, job_id)] == ["repair", "cancel"]


def test_a_misfit_that_waits_for_a_retry_keeps_its_place(library: Library) -> None:
    job = misfit(library, 0, 1, in_ms=0)
    library.claim([job.job_id], "one")
    at_ms = library.now_ms + 3 * LATER_MS
    assert library.settle_as(OutcomeKind.RETRY, job.job_id, "one", at_ms, "why")
    old = row(library, 0, job.job_id)
    assert old is not None
    assert old["attempts"] == 1
    rehomed = mending(library).copy_to_right_shard(0, job.job_id)
    assert rehomed.due_ms == at_ms
    assert row(library, 1, rehomed.job_id or 0) == expected(library, old, job)


def test_a_misfit_that_was_moved_is_due_when_the_business_said(library: Library) -> None:
    job = misfit(library, 0, 1)
    shift(library, job.job_id)
    rehomed = mending(library).copy_to_right_shard(0, job.job_id)
    assert rehomed.due_ms == job.action_ms
    assert library.row(rehomed.job_id or 0).due_ms == job.action_ms


@pytest.mark.parametrize(
    ("change", "why", "is_over"),
    [
        ("status = 1", "the job is running: repaired when the job is pending again", False),
        ("status = 2", "the job has ended meanwhile", True),
        ("status = 3", "the job has ended meanwhile", True),
        ("status = 4", "the job has ended meanwhile", True),
        ("status = 77", "the job has ended meanwhile", True),
        ("biz_id = :fits", "the job fits by now", True),
    ],
)
def test_other_misfits_are_left_alone(
    library: Library, change: str, why: str, is_over: bool
) -> None:
    job = misfit(library, 0, 0)
    fits = next(
        n
        for n in range(100_000)
        if routing_hash_of(n) & ROUTING_MASK == routing_bits_of(job.job_id)
    )
    values = {"fits": fits} if ":fits" in change else {}
    on(library, 0, f"UPDATE {{table}} SET {change} WHERE job_id = :id", id=job.job_id, **values)
    before = everything(library)
    rehomed = mending(library).copy_to_right_shard(0, job.job_id)
    assert (rehomed.job_id, rehomed.why, rehomed.is_over) == (None, why, is_over)
    assert everything(library) == before


def test_a_misfit_that_is_gone(library: Library) -> None:
    rehomed = mending(library).copy_to_right_shard(0, library.new().job_id)
    assert (rehomed.job_id, rehomed.why, rehomed.is_over) == (None, "the row is gone", True)


def test_a_misfit_whose_key_is_held_stays(library: Library) -> None:
    job = misfit(library, 0, 1, key="k")
    library.insert(library.new(job.biz_id, key="k"))
    before = everything(library)
    assert (
        mending(library).copy_to_right_shard(0, job.job_id).why
        == "another live job holds the key of the job"
    )
    assert everything(library) == before


def test_repeated_it_changes_nothing(library: Library) -> None:
    job = misfit(library, 0, 1, key="k")
    mending(library).copy_to_right_shard(0, job.job_id)
    before = everything(library)
    rehomed = mending(library).copy_to_right_shard(0, job.job_id)
    assert (rehomed.job_id, rehomed.is_over) == (None, True)
    assert everything(library) == before


def test_a_misfit_that_somebody_brings_back_finds_its_copy(library: Library) -> None:
    """By hand; and the business has gone on with the copy."""
    job = misfit(library, 0, 1)
    new_id = mending(library).copy_to_right_shard(0, job.job_id).job_id or 0
    assert library.jobs.reschedule(new_id, library.now_ms + 5) == "rescheduled"
    copy = row(library, 1, new_id)
    on(library, 0, "UPDATE {table} SET status = 0, due_time = action_time")
    assert mending(library).copy_to_right_shard(0, job.job_id).job_id == new_id
    assert row(library, 1, new_id) == copy
    assert library.row(job.job_id).status == C
    assert library.count() == 2


def test_an_id_that_is_taken_is_passed_over(library: Library) -> None:
    job = misfit(library, 0, 1)
    routing_bits = routing_hash_of(job.biz_id) & ROUTING_MASK
    first = with_routing_bits(job.job_id, routing_bits)
    low = with_routing_bits(0, routing_bits)
    taken = [first & ~SEQUENCE_MASK | (first + n) & SEQUENCE_MASK for n in range(3)]
    for n, job_id in enumerate(taken):
        assert job_id & low == low
        library.insert(library.new(job.biz_id, in_ms=n)._replace(job_id=job_id))
    new_id = mending(library).copy_to_right_shard(0, job.job_id).job_id
    assert new_id == first & ~SEQUENCE_MASK | (first + 3) & SEQUENCE_MASK
    assert library.row(new_id).action_ms == job.action_ms


def test_an_id_that_is_taken_after_the_look(library: Library) -> None:
    """Somebody inserts the very id between look and insert: the next look sees him."""
    job = misfit(library, 0, 1)
    taken = with_routing_bits(job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK)
    database, tries = library.databases[0], []

    def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO") and "toc_job_0001" in statement and not tries:
            tries.append(1)
            cursor.execute(statement, _[0])  # his row, with the same id, then ours is refused

    event.listen(database.engine, "before_cursor_execute", refuse)
    try:
        rehomed = mending(library).copy_to_right_shard(0, job.job_id)
    finally:
        event.remove(database.engine, "before_cursor_execute", refuse)
    assert tries
    # His was in our transaction, and went with it: so the id is free at the next look.
    assert rehomed.job_id == taken
    assert library.count() == 2


def test_rehome_whose_answer_was_lost(library: Library) -> None:
    job = misfit(library, 0, 1, key="k")
    with lose_answers(library.databases[0]) as lost:
        rehomed = mending(library).copy_to_right_shard(0, job.job_id)
    assert lost.times
    assert rehomed.job_id == with_routing_bits(
        job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK
    )
    assert library.count() == 2
    assert only_event(library, 0, job.job_id, "cancel")
    assert only_event(library, 1, rehomed.job_id or 0, "repair")


def test_rehome_without_its_event_changes_nothing(library: Library) -> None:
    job = misfit(library, 0, 1)
    before = everything(library)
    with no_event_table(library), pytest.raises(Exception, match="toc_event"):
        mending(library).copy_to_right_shard(0, job.job_id)
    assert everything(library) == before


# ---- rehome, from one database to the other


def test_a_misfit_of_another_database_is_left_to_a_person(two: Library) -> None:
    """There is no transaction over both: whoever cancelled it in between would be told so in vain (I3)."""
    job = misfit(two, 0, 2, key="k")
    before = everything(two)
    rehomed = mending(two).copy_to_right_shard(0, job.job_id)
    assert (rehomed.job_id, rehomed.is_over) == (None, False)
    assert rehomed.why == "the job belongs into database 1: cancel the job, and schedule it anew"
    assert everything(two) == before


# ---- who has the old id means the copy


def test_the_old_id_cancels_the_copy(library: Library) -> None:
    job = misfit(library, 0, 0)  # workers and clients find it by its id
    copy_id = mending(library).copy_to_right_shard(0, job.job_id).job_id
    answer = library.jobs.cancel(job.job_id)
    assert (answer, answer.job_id) == ("cancelled", copy_id)
    again = library.jobs.cancel(job.job_id)
    assert (again, again.job_id) == ("already_cancelled", copy_id)


def test_the_old_id_reschedules_the_copy(library: Library) -> None:
    job = misfit(library, 0, 0)
    copy_id = mending(library).copy_to_right_shard(0, job.job_id).job_id
    answer = library.jobs.reschedule(job.job_id, library.now_ms + 777_000)
    assert (answer, answer.job_id) == ("rescheduled", copy_id)
    assert library.row(copy_id or 0).due_ms == library.now_ms + 777_000


@pytest.mark.invariant("I3")
def test_the_old_id_redrives_and_discards_the_copy(library: Library) -> None:
    job = misfit(library, 0, 0)
    copy_id = mending(library).copy_to_right_shard(0, job.job_id).job_id or 0
    for token, verb, said in (("one", "redrive", "redriven"), ("two", "discard", "cancelled")):
        library.clock.advance(LATER_MS / 1000)
        library.claim([copy_id], token)
        assert library.settle_as(OutcomeKind.BURY, copy_id, token)
        at_ms = [library.now_ms] if verb == "redrive" else []
        answer = getattr(library.jobs, verb)(job.job_id, *at_ms)
        assert (answer, answer.job_id) == (said, copy_id)
    assert library.jobs.redrive(copy_id, library.now_ms) == "already_cancelled"
    assert library.jobs.read_dead_letters(10) == []


def test_a_job_that_was_simply_cancelled_has_no_successor(library: Library) -> None:
    job_id = library.pending()
    assert library.jobs.cancel(job_id, reason="the customer paid") == "cancelled"
    assert library.jobs.cancel(job_id).job_id == job_id


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("verb", ["cancel", "reschedule", "redrive", "discard"])
def test_a_reason_that_names_another_job_reaches_no_other_job(library: Library, verb: str) -> None:
    """What a client writes as its reason is a text for people: no id is read out of it."""
    mine, other = library.pending(1), library.pending(2)
    for job_id in (other, mine):  # its own id too: following it would never end
        reason = (
            f"misfit: job {job_id} in {job_table_name(library.shard(job_id))} stands for it now"
        )
        again = library.pending(1)
        assert library.jobs.cancel(again, reason) == "cancelled"
        before = library.row(other)
        at_ms = [library.now_ms + LATER_MS] if verb in ("reschedule", "redrive") else []
        answer = getattr(library.jobs, verb)(again, *at_ms)
        assert (answer, answer.job_id) == ("already_cancelled", again)
        assert library.row(other) == before


@pytest.mark.invariant("I3")
def test_a_misfit_that_its_client_cancelled_has_no_successor(library: Library) -> None:
    """Its id does not fit, so it could have a copy; and its client's reason is what a repair writes."""
    job, other = misfit(library, 0, 1), library.pending(2)
    words = f"misfit: stands for job {job.job_id} in toc_job_0000"
    library.jobs.reschedule(other, library.now_ms + LATER_MS, words)
    fits = with_routing_bits(job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK)
    library.insert(library.new(job.biz_id)._replace(job_id=fits))
    library.jobs.reschedule(fits, library.now_ms + LATER_MS, words)
    reason = f"misfit: job {other} in {job_table_name(library.shard(other))} stands for it now"
    assert library.jobs.cancel(job.job_id, reason) == "cancelled"
    again = library.jobs.cancel(job.job_id, words)
    assert (again, again.job_id) == ("already_cancelled", job.job_id)
    assert (library.row(other).status, library.row(fits).status) == (P, P)


def test_the_old_id_finds_a_copy_whose_id_was_not_the_next_one(library: Library) -> None:
    job = misfit(library, 0, 1)
    taken = with_routing_bits(job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK)
    library.insert(library.new(job.biz_id, in_ms=1)._replace(job_id=taken))
    copy_id = mending(library).copy_to_right_shard(0, job.job_id).job_id
    assert copy_id != taken
    answer = library.jobs.cancel(job.job_id)
    assert (answer, answer.job_id) == ("cancelled", copy_id)
    assert library.row(taken).status == P


def test_the_old_id_finds_a_copy_that_another_hand_had_made(library: Library) -> None:
    """The row that fits was there already, so the repair took it as the copy."""
    job = misfit(library, 0, 1)
    fits = with_routing_bits(job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK)
    same = library.new(job.biz_id, at_ms=job.action_ms, attribute=job.attribute)
    library.insert(same._replace(job_id=fits))
    assert mending(library).copy_to_right_shard(0, job.job_id).job_id == fits
    answer = library.jobs.cancel(job.job_id)
    assert (answer, answer.job_id) == ("cancelled", fits)
