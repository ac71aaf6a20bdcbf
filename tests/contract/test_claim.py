"""claim, take_over, bury_lost: who may run a job, and from when on anybody else may."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest
from sqlalchemy.exc import OperationalError

from tests.contract.breaks import lose_answers
from tests.contract.library import LEASE_MS, Library
from toc.domain.job import Status
from toc.errors import StoreUnavailable
from toc.store import claims, databases
from toc.store.claims import Claims, Outcome, OutcomeKind
from toc.store.pipelined_executor import PipelinedExecutor
from toc.store.schema import live_key_of
from toc.store.verb import StatementResult


def test_a_claim_takes_a_due_job(library: Library) -> None:
    job_id = library.pending(attribute='{"a":1}', key="k")
    seen = library.claim([job_id], "one")[job_id]
    assert (seen.job_id, seen.biz_id, seen.type_no) == (job_id, 42, library.close_no)
    assert (seen.status, seen.attempts, seen.token) == (Status.RUNNING, 1, "one")
    assert (seen.attribute, seen.dedup_key) == ('{"a":1}', "k")
    assert (seen.action_ms, seen.due_ms) == (library.now_ms, library.now_ms + LEASE_MS)
    assert not seen.overdue
    row = library.row(job_id)
    assert (row.status, row.attempts, row.claim_token) == (Status.RUNNING, 1, "one")
    assert (row.due_ms, row.action_ms) == (library.now_ms + LEASE_MS, library.now_ms)
    assert (row.live_key, row.modified_ms) == (live_key_of("k"), library.now_ms)


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("by", ["database", "redis"])
def test_nothing_is_claimed_before_its_time(library: Library, by: str) -> None:
    job_id = library.pending(in_ms=1)
    before = library.row(job_id)
    seen = library.claim([job_id], "one", library.now_ms if by == "redis" else None)[job_id]
    assert (seen.status, seen.token, seen.due_ms) == (Status.PENDING, None, before.due_ms)
    assert library.row(job_id) == before
    library.clock.advance(0.001)
    seen = library.claim([job_id], "two", library.now_ms if by == "redis" else None)[job_id]
    assert seen.token == "two"


def test_the_time_that_popped_decides_and_not_the_databases(library: Library) -> None:
    job_id = library.pending(in_ms=500)
    assert library.claim([job_id], "one", library.now_ms + 499)[job_id].token is None
    assert library.claim([job_id], "one", library.now_ms + 500)[job_id].token == "one"
    # The lease is the database's all the same.
    assert library.row(job_id).due_ms == library.now_ms + LEASE_MS


@pytest.mark.parametrize("by_redis", [True, False])
def test_a_lease_is_as_long_as_its_type_says(library: Library, by_redis: bool) -> None:
    fast = library.pending(42)
    slow = library.pending(42, type_no=library.report_no)
    seen = library.claim([fast, slow], "one", library.now_ms if by_redis else None)
    assert seen[fast].due_ms == library.now_ms + LEASE_MS
    assert seen[slow].due_ms == library.now_ms + LEASE_MS


@pytest.mark.parametrize("by_redis", [True, False])
def test_other_types_are_left_alone(library: Library, by_redis: bool) -> None:
    other_no = library.database_metadata.types.get_or_create_number(
        "unheard.of", library.databases[0]
    )
    job_id = library.pending(type_no=other_no)
    before = library.row(job_id)
    seen = library.claim([job_id], "one", library.now_ms if by_redis else None)[job_id]
    assert (seen.status, seen.token) == (Status.PENDING, None)
    assert library.row(job_id) == before


def test_types_come_later(library: Library) -> None:
    claims = Claims(library.databases, 5_000)
    job_id = library.pending(42)
    assert library.claim([job_id], "one", claims=claims)[job_id].token is None
    claims.set_claimed_types([library.close_no])
    assert library.claim([job_id], "one", claims=claims)[job_id].due_ms == library.now_ms + 5_000


def test_a_node_without_handlers_claims_nothing(library: Library) -> None:
    job_id = library.pending()
    claims = Claims(library.databases, LEASE_MS)
    assert library.claim([job_id], "one", claims=claims)[job_id].token is None


def test_a_batch_over_shards_with_ids_that_are_gone(library: Library) -> None:
    jobs = [library.pending(biz_id) for biz_id in range(20)]
    gone = [library.new(biz_id).job_id for biz_id in range(20, 30)]
    seen = library.claim(jobs + gone, "one")
    assert set(seen) == set(jobs)
    assert all(row.token == "one" and row.attempts == 1 for row in seen.values())


@pytest.mark.invariant("I2")
def test_a_running_job_is_claimed_by_nobody(library: Library) -> None:
    job_id = library.running("one")
    before = library.row(job_id)
    seen = library.claim([job_id], "two")[job_id]
    assert (seen.status, seen.token, seen.overdue) == (Status.RUNNING, "one", False)
    assert library.row(job_id) == before
    # Not even when its lease is over: that is taken over, one by one.
    library.clock.advance(LEASE_MS / 1000)
    seen = library.claim([job_id], "two", library.now_ms)[job_id]
    assert (seen.token, seen.overdue) == ("one", True)
    assert library.row(job_id) == before


@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY])
def test_an_ended_job_is_claimed_by_nobody(library: Library, kind: OutcomeKind) -> None:
    job_id = library.ended(kind)
    before = library.row(job_id)
    assert not library.claim([job_id], "two")[job_id].status.live
    assert library.row(job_id) == before


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("by_redis", [True, False])
def test_a_cancelled_job_is_claimed_by_nobody(library: Library, by_redis: bool) -> None:
    job_id = library.pending()
    assert library.jobs.cancel(job_id) == "cancelled"
    library.clock.advance(3600)
    seen = library.claim([job_id], "one", library.now_ms if by_redis else None)[job_id]
    assert (seen.status, seen.token, seen.due_ms) == (Status.CANCELLED, None, None)


def test_claiming_again_with_the_same_token_is_harmless(library: Library) -> None:
    job_id = library.pending()
    first = library.claim([job_id], "one")
    row = library.row(job_id)
    assert library.claim([job_id], "one") == first
    assert library.row(job_id) == row


@pytest.mark.parametrize("shards", [1, 2])
def test_a_claim_whose_answer_was_lost_holds(library: Library, shards: int) -> None:
    jobs = [library.pending(biz_id) for biz_id in (range(10) if shards == 2 else [42])]
    with lose_answers(library.databases[0]) as lost:
        seen = library.claim(jobs, "one")
    assert lost.times == 1
    assert all((row.token, row.attempts) == ("one", 1) for row in seen.values())


# ---- take over


@pytest.mark.invariant("I2")
def test_a_live_lease_is_not_taken_over(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance((LEASE_MS - 1) / 1000)
    before = library.row(job_id)
    assert library.take_over(job_id, "one", "two") is None
    assert library.row(job_id) == before
    library.clock.advance(0.001)
    seen = library.take_over(job_id, "one", "two")
    assert seen is not None
    assert (seen.token, seen.attempts, seen.status) == ("two", 2, Status.RUNNING)
    assert seen.due_ms == library.now_ms + LEASE_MS
    assert library.row(job_id)[:5] == (
        Status.RUNNING, before.action_ms, library.now_ms + LEASE_MS, 2, "two",
    )  # fmt: skip


@pytest.mark.invariant("I2")
def test_only_one_takes_a_lost_lease_over(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    assert library.take_over(job_id, "one", "two") is not None
    assert library.take_over(job_id, "one", "three") is None
    library.clock.advance(LEASE_MS / 1000)
    # Over again, but seen under another token than it runs under now.
    assert library.take_over(job_id, "one", "three") is None
    assert library.row(job_id).claim_token == "two"
    assert library.take_over(job_id, "two", "three") is not None


def test_a_lost_job_whose_row_is_locked_is_left_to_who_has_it(library: Library) -> None:
    if library.sqlite:
        pytest.skip("SQLite has one writer and no row locks")
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    before = library.row(job_id)
    with library.databases[0].engine.begin() as connection:
        table = f"toc_job_{library.shard(job_id):04d}"
        connection.exec_driver_sql(f"SELECT * FROM {table} WHERE job_id = {job_id} FOR UPDATE")
        # Who waits for the lock hears of a database that does not answer, after 25 s.
        assert library.take_over(job_id, "one", "two") is None
        assert not library.bury_lost(job_id, "one")
    assert library.row(job_id) == before
    assert library.take_over(job_id, "one", "two") is not None


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_a_settled_job_is_not_taken_over(library: Library, kind: OutcomeKind) -> None:
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    library.settle_as(kind, job_id, "one", due_ms=library.now_ms)
    before = library.row(job_id)
    assert library.take_over(job_id, "one", "two") is None
    assert library.row(job_id) == before


def test_a_take_over_whose_answer_was_lost_holds(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    with lose_answers(library.databases[0]) as lost:
        seen = library.take_over(job_id, "one", "two")
    assert lost.times == 1
    assert seen is not None
    assert (seen.token, seen.attempts) == ("two", 2)


@pytest.mark.invariant("I7")
def test_a_take_over_whose_commit_is_slow_is_not_taken_for_somebody_elses(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is lost, and the second try meets the row locked by the first one."""
    if library.sqlite:
        pytest.skip("SQLite has one writer and no row locks")
    job_id = library.running("h:1:one")
    library.clock.advance(LEASE_MS / 1000)
    engine, attempt = library.home(job_id).engine, databases._connect_and_run
    with engine.connect() as slow:

        def lose_the_first(connect: Any, work: Any) -> Any:
            if connect != engine.begin or slow.in_transaction():
                return attempt(connect, work)
            slow.begin()
            work(slow)
            lost = pymysql.err.OperationalError(2013, "Lost connection")
            raise OperationalError("COMMIT", None, lost, connection_invalidated=True)

        monkeypatch.setattr(databases, "_connect_and_run", lose_the_first)
        with pytest.raises(StoreUnavailable):
            library.take_over(job_id, "h:1:one", "h:2:two:alone")
        slow.commit()
    monkeypatch.undo()
    assert library.row(job_id).claim_token == "h:2:two:alone"
    lost = Outcome(job_id, "h:2:two:alone", OutcomeKind.GIVE_BACK, previous_token="h:1:one")
    assert library.settle(lost)
    row = library.row(job_id)
    assert (row.status, row.claim_token, row.attempts) == (Status.RUNNING, "h:1:one", 1)


# ---- bury


@pytest.mark.invariant("I7")
def test_a_lost_job_is_buried_with_its_letter(library: Library) -> None:
    job_id = library.running("one", biz_id=2**64 - 1)
    library.clock.advance(LEASE_MS / 1000)
    assert library.bury_lost(job_id, "one", "lease lost")
    row = library.row(job_id)
    assert (row.status, row.due_ms, row.attempts) == (Status.DEAD, None, 1)
    (letter,) = library.jobs.read_dead_letters(10, None)
    assert (letter.job_id, letter.biz_id, letter.biz_type) == (job_id, 2**64 - 1, "order.close")
    assert (letter.attempts, letter.error, letter.dead_ms) == (1, "lease lost", library.now_ms)


def test_a_live_lease_is_not_buried(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance((LEASE_MS - 1) / 1000)
    before = library.row(job_id)
    assert not library.bury_lost(job_id, "one")
    assert (library.row(job_id), library.jobs.read_dead_letters(10, None)) == (before, [])


def test_only_what_was_seen_is_buried(library: Library) -> None:
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    before = library.row(job_id)
    assert not library.bury_lost(job_id, "two")
    assert (library.row(job_id), library.jobs.read_dead_letters(10, None)) == (before, [])


@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.RETRY, OutcomeKind.GIVE_BACK])
def test_a_settled_job_is_not_buried(library: Library, kind: OutcomeKind) -> None:
    job_id = library.running("one")
    library.clock.advance(LEASE_MS / 1000)
    library.settle_as(kind, job_id, "one", due_ms=library.now_ms)
    before = library.row(job_id)
    assert not library.bury_lost(job_id, "one")
    assert (library.row(job_id), library.jobs.read_dead_letters(10, None)) == (before, [])


def test_the_row_says_when_it_was_last_claimed(library: Library) -> None:
    def claimed_ms() -> int | None:
        job = library.jobs.get(job_id)
        assert job is not None
        return job.claimed_ms

    job_id = library.pending()
    assert claimed_ms() is None
    library.clock.advance(3)
    first_ms = library.now_ms
    assert library.claim([job_id], "one", first_ms)[job_id].claimed_ms == first_ms
    library.clock.advance(LEASE_MS / 1000)
    library.claim([job_id], "two")  # runs still: no claim
    assert claimed_ms() == first_ms
    assert library.take_over(job_id, "one", "two") is not None
    assert claimed_ms() == first_ms + LEASE_MS
    library.clock.advance(1)
    assert library.settle_as(OutcomeKind.DONE, job_id, "two")
    assert claimed_ms() == first_ms + LEASE_MS


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_one_look_sees_the_rows_of_many_shards(
    library: Library, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they would be seen one by one."""
    monkeypatch.setattr(claims, "SHARDS_PER_SELECT_MAX", at_once)
    jobs = [
        library.new(
            biz_id,
            in_ms=biz_id % 3 - 1,
            attribute=None if biz_id % 2 else f'{{"n":{biz_id}}}',
            key=f"k{biz_id}" if biz_id % 5 else "",
        )
        for biz_id in range(2**64 - 20, 2**64)
    ]
    library.insert(*jobs)
    ids = [job.job_id for job in jobs]
    sent: list[int] = []
    send = PipelinedExecutor.send_transaction

    def send_and_count(line: PipelinedExecutor, changes: Any, reads: Any) -> list[StatementResult]:
        sent.append(len(reads))
        return send(line, changes, reads)

    with monkeypatch.context() as patched:
        patched.setattr(PipelinedExecutor, "send_transaction", send_and_count)
        seen = library.claim(ids, "one")
    assert sent == ([{1: 4, 3: 2, 4: 1}[at_once]] if library.packets else [])
    assert seen == {job_id: library.claim([job_id], "two")[job_id] for job_id in ids}
    assert {row.token for row in seen.values()} == {None, "one"}
    assert {row.attribute is None for row in seen.values()} == {True, False}
