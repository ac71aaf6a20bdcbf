"""The verbs of clients: get, find, cancel, reschedule, redrive, discard, dead."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.breaks import lose_answers
from tests.contract.library import LEASE_MS, Library
from toc.domain.biz_ids import BusinessId
from toc.domain.job import Answer, Job, Status
from toc.store.claims import OutcomeKind
from toc.store.events import read_events
from toc.store.schema import live_key_of

LATER_MS = 90_000


def retrying(library: Library) -> int:
    job_id = library.running("one")
    library.settle_as(OutcomeKind.RETRY, job_id, "one", library.now_ms + LATER_MS)
    return job_id


def cancelled(library: Library) -> int:
    job_id = library.pending()
    library.jobs.cancel(job_id)
    return job_id


STATES: dict[str, Callable[[Library], int]] = {
    "pending": lambda library: library.pending(),
    "retrying": retrying,
    "running": lambda library: library.running("one"),
    "done": lambda library: library.ended(OutcomeKind.DONE),
    "already_cancelled": cancelled,
    "dead": lambda library: library.dead(),
    "unknown": lambda library: library.new().job_id,
}
ATTEMPTS = {"running": 1, "done": 1, "dead": 1}


def test_get_gives_the_whole_job(library: Library) -> None:
    job_id = library.pending(7, in_ms=5, attribute='{"a":1}', key="k")
    at_ms = library.now_ms + 5
    assert library.jobs.get(job_id) == Job(
        job_id, 7, "order.close", Status.PENDING, at_ms, {"a": 1}, at_ms, 0, None, "k"
    )
    library.clock.advance(1)
    library.claim([job_id], "one")
    job = library.jobs.get(job_id)
    assert job is not None
    assert (job.status, job.token, job.attempts) == (Status.RUNNING, "one", 1)
    assert job.due_ms == library.now_ms + LEASE_MS
    assert library.jobs.get(library.new().job_id) is None


# ---- cancel


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("state", STATES)
def test_cancel_says_what_is_the_case(library: Library, state: str) -> None:
    job_id = STATES[state](library)
    before = None if state == "unknown" else library.row(job_id)
    library.clock.advance(1)
    answer = library.jobs.cancel(job_id)
    if state in {"pending", "retrying"}:
        assert (answer, answer.job_id) == ("cancelled", job_id)
        assert before is not None
        assert library.row(job_id) == before._replace(
            status=Status.CANCELLED, due_ms=None, modified_ms=library.now_ms
        )
        return
    assert answer == state
    assert answer.job_id == (None if state == "unknown" else job_id)
    assert answer.attempts == ATTEMPTS.get(state, 0)
    if before is not None:
        assert library.row(job_id) == before


@pytest.mark.invariant("I3")
def test_a_lost_answer_of_cancel_never_becomes_a_lie(library: Library) -> None:
    job_id = library.pending()
    with lose_answers(library.databases[0]):
        assert library.jobs.cancel(job_id) in {"cancelled", "already_cancelled"}
    assert library.row(job_id).status == Status.CANCELLED


# ---- reschedule


@pytest.mark.parametrize("state", STATES)
def test_reschedule_says_what_is_the_case(library: Library, state: str) -> None:
    job_id = STATES[state](library)
    before = None if state == "unknown" else library.row(job_id)
    at_ms = library.now_ms + 5
    answer = library.jobs.reschedule(job_id, at_ms)
    if state in {"pending", "retrying"}:
        assert (answer, answer.job_id) == ("rescheduled", job_id)
        assert before is not None
        assert library.row(job_id) == before._replace(
            action_ms=at_ms, due_ms=at_ms, attempts=0, modified_ms=library.now_ms
        )
        return
    assert (answer, answer.attempts) == (state, ATTEMPTS.get(state, 0))
    if before is not None:
        assert library.row(job_id) == before


@pytest.mark.parametrize("by_ms", [-LATER_MS, LATER_MS])
def test_a_rescheduled_job_is_claimed_at_its_new_time(library: Library, by_ms: int) -> None:
    job_id = library.pending(in_ms=2 * LATER_MS)
    at_ms = library.now_ms + 2 * LATER_MS + by_ms
    library.jobs.reschedule(job_id, at_ms)
    library.clock.advance((at_ms - library.now_ms) / 1000)
    assert library.claim([job_id], "one", at_ms - 1)[job_id].token is None
    assert library.claim([job_id], "one", at_ms)[job_id].token == "one"


# ---- redrive and dead letters


@pytest.mark.parametrize("state", STATES)
def test_redrive_wakes_only_the_dead(library: Library, state: str) -> None:
    job_id = STATES[state](library)
    before = None if state == "unknown" else library.row(job_id)
    answer = library.jobs.redrive(job_id, library.now_ms + 5)
    if state == "dead":
        assert (answer, answer.job_id) == ("redriven", job_id)
        assert before is not None
        assert library.row(job_id) == before._replace(
            status=Status.PENDING,
            action_ms=library.now_ms + 5,
            due_ms=library.now_ms + 5,
            attempts=0,
        )
        assert library.jobs.read_dead_letters(10, None) == []
        return
    assert answer == ("pending" if state == "retrying" else state)
    if before is not None:
        assert library.row(job_id) == before


def test_redrive_is_superseded_by_a_newer_job_of_its_key(library: Library) -> None:
    old = library.dead(key="k")
    new = library.pending(key="k")
    before = library.row(old)
    answer = library.jobs.redrive(old, library.now_ms)
    assert (answer, answer.job_id) == ("superseded", old)
    assert library.row(old) == before
    assert [letter.job_id for letter in library.jobs.read_dead_letters(10, None)] == [old]
    library.jobs.cancel(new)
    assert library.jobs.redrive(old, library.now_ms) == "redriven"
    assert library.row(old).live_key == live_key_of("k")


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("state", STATES)
def test_discard_cancels_only_the_dead(library: Library, state: str) -> None:
    job_id, other = STATES[state](library), library.dead(biz_id=7)
    before = None if state == "unknown" else library.row(job_id)
    library.clock.advance(1)
    answer = library.jobs.discard(job_id)
    letters = [letter.job_id for letter in library.jobs.read_dead_letters(10)]
    assert letters == [other]  # the other one's stays
    if state == "dead":
        assert (answer, answer.job_id) == ("cancelled", job_id)
        assert before is not None
        assert library.row(job_id) == before._replace(
            status=Status.CANCELLED, due_ms=None, modified_ms=library.now_ms
        )
        return
    assert answer == ("pending" if state == "retrying" else state)
    assert answer.job_id == (None if state == "unknown" else job_id)
    if before is not None:
        assert library.row(job_id) == before


@pytest.mark.invariant("I3")
def test_a_discarded_job_is_not_redriven(library: Library) -> None:
    job_id = library.dead(key="k")
    assert library.jobs.cancel(job_id) == "dead"  # the caller is told that the job has died
    assert library.jobs.discard(job_id)
    row = library.row(job_id)
    library.clock.advance(1)
    for again in (
        library.jobs.redrive(job_id, library.now_ms),
        library.jobs.discard(job_id),
        library.jobs.cancel(job_id),
        library.jobs.run_now(job_id, library.now_ms),
    ):
        assert (again, again.ok) == ("already_cancelled", False)
    assert library.claim([job_id], "one")[job_id].status is Status.CANCELLED
    assert library.row(job_id) == row


@pytest.mark.invariant("I3")
def test_a_lost_answer_of_discard_never_becomes_a_lie(library: Library) -> None:
    job_id = library.dead()
    with lose_answers(library.databases[0]) as lost:
        assert library.jobs.discard(job_id) in {"cancelled", "already_cancelled"}
    assert lost.times == 1
    assert library.row(job_id).status == Status.CANCELLED
    assert library.jobs.read_dead_letters(10) == []


@pytest.mark.invariant("I3")
def test_of_a_discard_and_a_redrive_one_wins(library: Library) -> None:
    seen: Counter[str] = Counter()
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            job_id, both = library.dead(biz_id=number), threading.Barrier(2, timeout=60)

            def discard(job_id: int = job_id, both: threading.Barrier = both) -> Answer:
                both.wait()
                return library.jobs.discard(job_id)

            def redrive(job_id: int = job_id, both: threading.Barrier = both) -> Answer:
                both.wait()
                return library.jobs.redrive(job_id, library.now_ms)

            discarded, redriven = pool.submit(discard), pool.submit(redrive)
            answers = str(discarded.result()), str(redriven.result())
            seen[answers[0]] += 1
            assert answers in {("cancelled", "already_cancelled"), ("pending", "redriven")}
            won = Status.CANCELLED if answers[0] == "cancelled" else Status.PENDING
            assert library.row(job_id).status == won
            (event,) = [e for e in read_events(library.home(job_id), job_id, 9) if e.what != "bury"]
            assert event.to_status is won
    assert library.jobs.read_dead_letters(10) == []
    assert seen.total() == 20


def test_the_key_of_a_discarded_job_is_free_but_it_was_used_once(library: Library) -> None:
    job_id = library.dead(key="k")
    assert library.jobs.discard(job_id)
    (once,) = library.insert(library.new(key="k"), on_duplicate="once")
    assert (once.job_id, once.holder) == (job_id, Status.CANCELLED)
    (kept,) = library.insert(library.new(key="k"), on_duplicate="keep")
    assert kept.holder is None


def test_dead_letters_newest_first(library: Library) -> None:
    jobs = []
    for biz_id in range(6):
        type_no = library.report_no if biz_id % 2 else library.close_no
        jobs.append(library.dead(biz_id=biz_id, type_no=type_no))
        library.clock.advance(1 if biz_id != 3 else 0)  # 3 and 4 die together: the id decides
    newest = [jobs[5], *sorted(jobs[3:5], reverse=True), *jobs[2::-1]]
    assert [letter.job_id for letter in library.jobs.read_dead_letters(10, None)] == newest
    assert [letter.job_id for letter in library.jobs.read_dead_letters(2, None)] == newest[:2]
    reports = [letter.job_id for letter in library.jobs.read_dead_letters(10, "report")]
    assert reports == [jobs[5], jobs[3], jobs[1]]
    assert library.jobs.read_dead_letters(10, "unheard.of.ever") == []


# ---- find


def test_find_gives_the_newest_first_up_to_a_limit(library: Library) -> None:
    jobs: list[int] = []
    for _ in range(5):
        jobs.append(library.pending(42, in_ms=-len(jobs)))
        library.clock.advance(0.001)
    library.pending(46)
    shard = library.shard(jobs[0])
    assert [job.job_id for job in library.jobs.find(shard, BusinessId(42), None, 10)] == jobs[::-1]
    assert [job.job_id for job in library.jobs.find(shard, BusinessId(42), None, 2)] == jobs[:2:-1]
    assert library.jobs.find(shard, BusinessId(41), None, 10) == []


def test_find_tells_types_keys_and_states_apart(library: Library) -> None:
    keyed = library.pending(42, key="k")
    report = library.pending(42, type_no=library.report_no)
    ended = library.ended(OutcomeKind.DONE, key="")
    shard = library.shard(keyed)

    def find(type_no: int | None, key: str | None) -> set[int]:
        return {job.job_id for job in library.jobs.find(shard, BusinessId(42), type_no, 10, key)}

    assert find(None, None) == {keyed, report, ended}
    assert find(library.close_no, None) == {keyed, ended}
    assert find(library.report_no, None) == {report}
    assert find(library.close_no, "k") == {keyed}
    assert find(library.close_no, "") == {ended}
    assert find(library.report_no, "k") == set()
