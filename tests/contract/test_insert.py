"""insert: many rows, held keys, taken ids, and a COMMIT whose answer was lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.contract.breaks import lose_answers, statements_of
from tests.contract.library import Library
from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.errors import DuplicateJob, StoreUnavailable
from toc.store import pipelined_executor
from toc.store.claims import OutcomeKind
from toc.store.jobs import ROWS_MAX, InsertResult
from toc.store.schema import live_key_of
from toc.store.verb import Statement, StatementResult, Verb


def test_a_new_row_is_pending_and_due_at_its_action_time(library: Library) -> None:
    job = library.new(in_ms=1500, attribute='{"a":1}', key="k")
    assert library.insert(job) == [InsertResult(job.job_id, job.action_ms, written=True)]
    due_ms = library.now_ms + 1500
    assert library.row(job.job_id)[:9] == (
        Status.PENDING, due_ms, due_ms, 0, None, '{"a":1}', "k", live_key_of("k"), 42,
    )  # fmt: skip


def test_a_new_row_knows_when_it_was_made(library: Library) -> None:
    row = library.row(library.pending())
    assert row.created_ms == row.modified_ms
    if not library.sqlite:  # whose default is its own clock's
        assert row.created_ms == library.now_ms


def test_a_batch_is_written_whole_and_answered_in_its_order(library: Library) -> None:
    jobs = [library.new(biz_id, in_ms=biz_id) for biz_id in range(200, 0, -1)]
    answers = library.insert(*jobs)
    assert answers == [InsertResult(job.job_id, job.action_ms, written=True) for job in jobs]
    assert library.count() == 200
    assert {library.shard(job.job_id) for job in jobs} == {0, 1, 2, 3}
    assert all(library.row(job.job_id).biz_id == job.biz_id for job in jobs[:10])


def test_more_rows_than_one_statement_takes(library: Library) -> None:
    jobs = [library.new(42, in_ms=n) for n in range(ROWS_MAX + 1)]
    answers = library.insert(*jobs)
    assert [answer.job_id for answer in answers] == [job.job_id for job in jobs]
    assert library.count() == ROWS_MAX + 1


def test_the_rows_of_many_shards_go_in_one_packet(library: Library) -> None:
    jobs = [library.new(biz_id) for biz_id in range(20)]
    with statements_of(library.databases[0]) as seen:
        library.insert(*jobs)
    inserts = [statement.count("INSERT") for statement in seen if "INSERT" in statement]
    assert inserts == ([4] if library.packets else [1] * 4)
    assert library.count() == 20


@pytest.mark.parametrize("position", [0, 10, 19])
def test_a_taken_id_amid_a_packet_costs_nobody_his_row(library: Library, position: int) -> None:
    taken = library.pending(position)
    jobs = [library.new(biz_id, in_ms=biz_id) for biz_id in range(20)]
    jobs[position] = jobs[position]._replace(job_id=taken)
    answers = library.insert(*jobs)
    assert library.count() == 21
    assert all(library.row(answer.job_id).due_ms == answer.due_ms for answer in answers)
    assert [n for n in range(20) if answers[n].job_id != jobs[n].job_id] == [position]


@pytest.mark.parametrize(
    "failing",
    # The last one swallows what comes after it, and nobody complains.
    ["KILL CONNECTION_ID()", "SELEKT 1", "INSERT INTO {} () VALUES ()", "SELECT 1 -- "],
)
def test_a_packet_that_fails_anywhere_leaves_nothing(library: Library, failing: str) -> None:
    if not library.packets:
        pytest.skip("it has no packets")
    database, job_id = library.databases[0], library.pending()
    table = database.job_table_name(library.shard(job_id))
    move = f"UPDATE {table} SET attempts = attempts + %s WHERE job_id = %s"

    def sent(*changes: Statement) -> list[StatementResult] | None:
        return database.run_pipelined(Verb(changes, (), lambda results, _: results))

    one, two = Statement(move, (1, job_id)), Statement(move, (2, job_id))
    fails = Statement(failing.format(table))
    try:
        assert sent(one, fails, two) is None
    except StoreUnavailable:
        assert failing.startswith("KILL")  # the connection is lost
    assert library.row(job_id).attempts == 0
    answers = sent(one, Statement(move, (5, 1)))
    assert answers is not None
    assert [answer.rowcount for answer in answers] == [1, 0]
    assert library.row(job_id).attempts == 1


def test_a_server_that_refuses_packets_is_not_sent_any(library: Library) -> None:
    if not library.packets:
        pytest.skip("it has no packets")
    library.close()
    library.connect()  # whatever it learns is forgotten with it
    database = library.databases[0]
    database.autocommit_engine = create_engine(library.settings.databases[0], poolclass=NullPool)
    for joined in (1, 0):
        with statements_of(database) as seen:
            library.insert(*(library.new(biz_id) for biz_id in range(20)))
        assert sum("; INSERT " in statement for statement in seen) == joined
    assert library.count() == 40
    library.close()
    library.connect()


def test_attributes_that_are_too_large_for_one_packet(library: Library) -> None:
    text = json.dumps({"%s;": "x" * 60_000})
    jobs = [library.new(biz_id, attribute=text) for biz_id in range(300)]
    library.insert(*jobs)
    assert library.count() == 300
    assert library.row(jobs[-1].job_id).attribute == text


# ---- keys


@pytest.mark.parametrize("key", ["", "k", "!~" * 32])
def test_keep_answers_the_holder(library: Library, key: str) -> None:
    first, second = library.new(key=key), library.new(in_ms=9, key=key)
    library.insert(first)
    assert library.insert(second) == [
        InsertResult(first.job_id, first.action_ms, written=False, holder=Status.PENDING)
    ]
    assert library.count() == 1
    assert library.row(first.job_id).due_ms == first.action_ms


def test_without_a_key_a_business_may_have_several_jobs(library: Library) -> None:
    library.insert(library.new())
    library.insert(library.new(), library.new())
    library.insert(library.new(key=""))
    assert library.count() == 4


def test_a_key_is_of_one_business_and_type(library: Library) -> None:
    first = library.new(42, key="k")
    # 46 and 42 need not share a shard; 42 with another type does.
    others = [
        library.new(43, key="k"),
        library.new(42, key="k", type_no=library.report_no),
        library.new(42, key="K"),
    ]
    assert all(answer.written for answer in library.insert(first, *others))


def test_replace_gives_the_holder_the_new_time_and_attribute(library: Library) -> None:
    first = library.new(key="k", attribute='{"old":1}')
    library.insert(first)
    library.clock.advance(5)
    second = library.new(in_ms=7000, key="k", attribute='{"new":1}')
    answers = library.insert(second, on_duplicate="replace")
    assert answers == [
        InsertResult(first.job_id, second.action_ms, written=True, holder=Status.PENDING)
    ]
    row = library.row(first.job_id)
    assert (row.action_ms, row.due_ms, row.attribute) == (
        second.action_ms, second.action_ms, '{"new":1}',
    )  # fmt: skip
    assert row.modified_ms == library.now_ms
    assert library.count() == 1


def test_replace_starts_the_attempts_anew(library: Library) -> None:
    job_id = library.running("one", key="k")
    library.settle_as(OutcomeKind.RETRY, job_id, "one", due_ms=library.now_ms + 10)
    assert library.row(job_id).attempts == 1
    library.insert(library.new(key="k"), on_duplicate="replace")
    assert library.row(job_id).attempts == 0


def test_a_running_holder_cannot_be_replaced(library: Library) -> None:
    job_id = library.running("one", key="k", attribute='{"old":1}')
    before = library.row(job_id)
    with pytest.raises(DuplicateJob) as caught:
        library.insert(library.new(key="k", in_ms=9), on_duplicate="replace")
    assert (caught.value.job_id, caught.value.running) == (job_id, True)
    assert library.row(job_id) == before


def test_error_names_the_holder_and_writes_nothing_of_the_call(library: Library) -> None:
    job_id = library.pending(42, key="k")
    with pytest.raises(DuplicateJob) as caught:
        library.insert(library.new(41), library.new(42, key="k"), on_duplicate="error")
    error = caught.value
    assert (error.job_id, error.biz_id, error.biz_type, error.dedup_key, error.running) == (
        job_id, 42, "order.close", "k", False,
    )  # fmt: skip
    assert library.count() == 1


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_a_key_twice_in_one_batch_is_one_job(library: Library, on_duplicate: Any) -> None:
    first, second = library.new(in_ms=1, key="k"), library.new(in_ms=2, key="k")
    answers = library.insert(first, library.new(), second, on_duplicate=on_duplicate)
    assert answers[0].job_id == answers[2].job_id == first.job_id
    assert library.count() == 2
    last = second if on_duplicate == "replace" else first
    assert library.row(first.job_id).due_ms == last.action_ms


@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY])
def test_an_ended_job_frees_its_key(library: Library, kind: OutcomeKind) -> None:
    old = library.ended(kind, key="k")
    new = library.pending(key="k")
    assert new != old
    assert (library.row(old).dedup_key, library.row(old).live_key) == ("k", None)


def test_a_cancelled_job_frees_its_key(library: Library) -> None:
    old = library.pending(key="k")
    library.jobs.cancel(old)
    assert library.pending(key="k") != old


# ---- ids


def test_a_taken_id_is_drawn_again_for_the_same_shard_and_slot(library: Library) -> None:
    taken = library.pending(42)
    job = library.new(42, in_ms=77)._replace(job_id=taken)
    (answer,) = library.insert(job)
    assert answer.written
    assert answer.job_id != taken
    assert routing_bits_of(answer.job_id) == routing_bits_of(taken)
    assert library.count() == 2
    assert library.row(taken).due_ms == library.now_ms


def test_a_taken_id_holds_up_nobody_else_in_the_batch(library: Library) -> None:
    taken = library.pending(42)
    jobs = [library.new(42, in_ms=n) for n in range(5)]
    jobs[2] = jobs[2]._replace(job_id=taken)
    answers = library.insert(*jobs)
    assert [a.job_id == j.job_id for a, j in zip(answers, jobs, strict=True)] == [
        True, True, False, True, True,
    ]  # fmt: skip
    assert library.count() == 6


def test_a_taken_id_of_the_same_job_is_not_mine_at_the_first_try(library: Library) -> None:
    # Two processes may draw the same id for the same order and time: these are two jobs.
    first = library.new(42)
    library.insert(first)
    (answer,) = library.insert(first)
    assert answer.job_id != first.job_id
    assert library.count() == 2


# ---- a lost answer


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("on_duplicate", ["keep", "replace", "error"])
def test_a_lost_commit_answer_writes_once(
    library: Library, key: str | None, on_duplicate: Any
) -> None:
    jobs = [library.new(n, in_ms=n, key=key) for n in range(10)]
    with lose_answers(library.databases[0]) as lost:
        answers = library.jobs.insert(jobs, on_duplicate)
    assert lost.times == 1
    assert answers == [InsertResult(job.job_id, job.action_ms, written=True) for job in jobs]
    assert library.count() == 10


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("on_duplicate", ["keep", "replace", "error"])
def test_a_single_job_whose_answer_is_lost_is_written_once(
    library: Library, key: str | None, on_duplicate: Any
) -> None:
    """Its INSERT commits itself."""
    job = library.new(42, in_ms=5, key=key)
    with lose_answers(library.databases[0]) as lost:
        answers = library.jobs.insert([job], on_duplicate)
    assert lost.times == 1
    assert answers == [InsertResult(job.job_id, job.action_ms, written=True)]
    assert library.count() == 1


@pytest.mark.parametrize("how", ["kept", "unread"])
@pytest.mark.parametrize("count", [1, 10])
def test_a_packet_whose_answers_make_no_sense_writes_once(
    library: Library, monkeypatch: pytest.MonkeyPatch, count: int, how: str
) -> None:
    """A proxy, say, that keeps one of them for itself; or a stream that the driver cannot read."""
    read, kept = pipelined_executor._read_results, list[int]()

    def keep_last(cursor: Any) -> Iterator[StatementResult]:
        answers = list(read(cursor))
        if not kept and "INSERT" in cursor._executed:
            kept.append(1)
            answers.pop()
            if how == "unread":
                raise pymysql.err.InternalError("Packet sequence number wrong - got 7 expected 8")
        yield from answers

    monkeypatch.setattr(pipelined_executor, "_read_results", keep_last)
    jobs = [library.new(n, in_ms=n) for n in range(count)]
    assert library.insert(*jobs) == [
        InsertResult(job.job_id, job.action_ms, written=True) for job in jobs
    ]
    assert library.count() == count
    assert bool(kept) == library.packets


def test_a_lost_commit_answer_beside_a_taken_id(library: Library) -> None:
    taken = library.pending(42)
    jobs = [library.new(42, in_ms=5)._replace(job_id=taken), library.new(42, in_ms=6)]
    with lose_answers(library.databases[0]):
        answers = library.insert(*jobs)
    # The first one cannot be recognised: its new id died with the answer. It is there twice, which
    # a handler must bear anyway; the second one is there once.
    assert answers[1].job_id == jobs[1].job_id
    assert library.count() in {3, 4}
    assert library.row(answers[0].job_id).due_ms == jobs[0].action_ms


def test_rows_keep_their_priorities(library: Library) -> None:
    jobs = [library.new(42)._replace(priority=n) for n in (0, 9, 3)]
    library.insert(*jobs)
    for job in jobs:
        found = library.jobs.get(job.job_id)
        assert found is not None
        assert found.priority == job.priority
    seen = library.claims.read_rows(
        library.databases[0], {library.shard(jobs[0].job_id): [job.job_id for job in jobs]}
    )
    assert [seen[job.job_id].priority for job in jobs] == [0, 9, 3]
    (rows,) = [library.pages.read_due_rows(library.shard(jobs[0].job_id), (0, 0), 2**42, 10)]
    assert sorted(row.priority for row in rows) == [0, 3, 9]
