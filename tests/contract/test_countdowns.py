"""Countdowns on every engine: what the table of rules in docs/how-to/countdown.md says."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.breaks import lose_answers
from tests.contract.library import Library
from tests.deep import EXAMPLES
from toc.domain.countdown import ArrivalAnswer, Countdown
from toc.domain.job import ANSWER_OF_STATUS, Status
from toc.errors import DuplicateJob
from toc.store.claims import _STATUS_AFTER, Outcome, OutcomeKind
from toc.store.countdowns import NewArrival, count_arrival, insert_countdown, read_countdown
from toc.store.events import read_events
from toc.store.purge_pages import PurgePages

KEY, DEADLINE_MS = "count:", 60_000


def start(library: Library, wanted: int = 2, **fields: Any) -> int:
    new = library.new(in_ms=DEADLINE_MS, key=KEY, **fields)
    return insert_countdown(library.jobs, new, wanted, "keep", None).job_id


def arrive(library: Library, job_id: int, arrival_id: str) -> ArrivalAnswer:
    return count_arrival(library.databases, NewArrival(job_id, arrival_id, library.now_ms, "shop"))


def state(library: Library, job_id: int) -> Countdown | None:
    job = library.jobs.get(job_id)
    assert job is not None
    return read_countdown(library.databases, job)


def arrivals(library: Library, job_id: int) -> list[tuple[Any, ...]]:
    rows = "SELECT arrival_no, wanted, arrival_id FROM toc_arrival WHERE job_id = :id ORDER BY 1"
    return [tuple(row) for row in library.sql(job_id, rows, {"id": job_id})]


def test_the_last_arrival_makes_the_job_due_now(library: Library) -> None:
    job_id = start(library)
    assert arrivals(library, job_id) == [(0, 2, None)]
    first = arrive(library, job_id, "pay")
    assert (first, first.arrived, first.wanted, bool(first)) == ("arrived", 1, 2, True)
    assert library.row(job_id).due_ms == library.now_ms + DEADLINE_MS
    again = arrive(library, job_id, "pay")
    assert (again, again.arrived, bool(again)) == ("repeated", 1, True)
    last = arrive(library, job_id, "Pay")
    assert (last, last.arrived, last.wanted) == ("completed", 2, 2)
    row = library.row(job_id)
    assert (row.status, row.due_ms, row.action_ms) == (0, library.now_ms, library.now_ms)
    assert arrivals(library, job_id) == [(0, 2, None), (1, 2, "pay"), (2, 2, "Pay")]
    (event,) = read_events(library.home(job_id), job_id, 10)
    assert (event.what, event.actor, event.reason) == ("run_now", "shop", "all 2 have arrived")
    assert state(library, job_id) == Countdown(2, ("pay", "Pay"), None)
    more = arrive(library, job_id, "stock")
    assert (more, bool(more), more.arrived) == ("pending", False, 2)
    library.claim([job_id], "one")
    assert state(library, job_id) == Countdown(2, ("pay", "Pay"), "arrivals")


def test_at_the_deadline_it_fires_with_those_that_have_arrived(library: Library) -> None:
    job_id = start(library)
    arrive(library, job_id, "pay")
    library.clock.advance(DEADLINE_MS / 1000)
    library.claim([job_id], "one")
    late = arrive(library, job_id, "stock")
    assert (late, bool(late), late.arrived, late.wanted) == ("running", False, 1, 2)
    assert state(library, job_id) == Countdown(2, ("pay",), "deadline")
    # A job that has fired stays closed while it waits for its retry.
    library.settle_as(OutcomeKind.RETRY, job_id, "one", library.now_ms + 5_000)
    assert arrive(library, job_id, "stock") == "pending"
    assert arrive(library, job_id, "pay") == "repeated"
    assert library.row(job_id).due_ms == library.now_ms + 5_000


def test_there_is_no_countdown_where_none_was_started(library: Library) -> None:
    plain = library.pending(key="k")
    answer = arrive(library, plain, "pay")
    assert (answer, answer.hint) == ("unknown", f"job {plain} is no countdown")
    assert state(library, plain) is None
    gone = arrive(library, library.new().job_id, "pay")
    assert (gone, gone.hint, bool(gone)) == ("unknown", None, False)
    copy = library.pending(key=KEY)  # as a repair makes it: with the key, without the rows
    assert "a repair has made the job" in str(arrive(library, copy, "pay").hint)
    assert state(library, copy) is None


def test_a_second_countdown_of_the_business_is_kept_once_or_refused(library: Library) -> None:
    job_id = start(library, 2)
    new = library.new(key=KEY, in_ms=DEADLINE_MS)
    kept = insert_countdown(library.jobs, new, 5, "keep", None)
    assert (kept.job_id, kept.written) == (job_id, False)
    with pytest.raises(DuplicateJob):
        insert_countdown(library.jobs, library.new(key=KEY), 5, "error", None)
    assert arrivals(library, job_id) == [(0, 2, None)]
    library.jobs.cancel(job_id)
    once = insert_countdown(library.jobs, library.new(key=KEY), 5, "once", None)
    assert (once.job_id, once.written, library.count()) == (job_id, False, 1)
    assert start(library, 5) != job_id


@pytest.mark.parametrize("wanted", [1, 2])
def test_a_lost_answer_counts_an_arrival_once(library: Library, wanted: int) -> None:
    job_id = start(library, wanted)
    with lose_answers(library.home(job_id)) as lost:
        answer = arrive(library, job_id, "pay")
    assert lost.times == 1
    assert (answer, answer.arrived) == ("completed" if wanted == 1 else "arrived", 1)
    assert len(arrivals(library, job_id)) == 2
    assert arrive(library, job_id, "pay") == "repeated"


def test_a_lost_answer_starts_a_countdown_once(library: Library) -> None:
    new = library.new(key=KEY, in_ms=DEADLINE_MS)
    with lose_answers(library.home(new.job_id)) as lost:
        done = insert_countdown(library.jobs, new, 3, "keep", None)
    assert (lost.times, done.job_id, done.written) == (1, new.job_id, True)
    assert arrivals(library, new.job_id) == [(0, 3, None)]


def test_arrivals_go_with_their_job(library: Library) -> None:
    purges = PurgePages(library.databases)
    ended, changed, live = start(library), start(library, biz_id=43), start(library, biz_id=44)
    for job_id in (ended, changed, live):
        arrive(library, job_id, "pay")
    library.jobs.cancel(ended)
    library.jobs.cancel(changed)
    library.clock.advance(1)
    for job_id in (ended, changed):
        shard = library.shard(job_id)
        rows = [
            row
            for row in purges.read_purge_page(shard, 0, library.now_ms, 10)
            if row.job_id == job_id
        ]
        assert [row.has_arrivals for row in rows] == [True]
        # A page with a row that has changed since is deleted row by row.
        gone = rows if job_id == ended else [*rows, rows[0]._replace(job_id=1)]
        assert purges.delete_unchanged_jobs(shard, gone) == 1
        assert arrivals(library, job_id) == []
    assert len(arrivals(library, live)) == 2


def test_of_many_at_once_each_counts_once_and_one_is_the_last(library: Library) -> None:
    names = [f"a{number % 6}" for number in range(12)]
    job_id = start(library, 5)
    answers: list[str] = []

    def call(name: str) -> None:
        answers.append(str(arrive(library, job_id, name)))

    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = [row[2] for row in arrivals(library, job_id)[1:]]
    assert len(set(counted)) == 5
    assert sorted(answers) == sorted(
        ["arrived"] * 4 + ["completed"] + ["repeated"] * 5 + ["pending"] * 2
    )


def test_a_claim_comes_before_or_after_an_arrival(library: Library) -> None:
    """The arrivals that a handler reads are those that were told that they count."""
    for biz_id in range(6):
        job_id = start(library, 3, biz_id=biz_id)
        library.jobs.run_now(job_id, library.now_ms)
        counted: list[str] = []

        def call(name: str, job_id: int = job_id, counted: list[str] = counted) -> None:
            if arrive(library, job_id, name):
                counted.append(name)

        threads = [threading.Thread(target=call, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        row = library.claim([job_id], "one")[job_id]
        assert row.token == "one"
        seen = state(library, job_id)
        for thread in threads:
            thread.join()
        assert seen is not None
        assert sorted(seen.arrival_ids) == sorted(counted)
        assert seen.by == ("arrivals" if len(counted) == 3 else "deadline")


# ---- a model of the table of rules


class Model:
    """A countdown as the table of rules has it, beside a real one. Times in ms since the start."""

    def __init__(self, library: Library, wanted: int) -> None:
        self.library, self.wanted = library, wanted
        self.job_id, self.began_ms = start(library, wanted), library.now_ms
        self.now, self.due_in = 0, DEADLINE_MS
        self.status, self.claimed = Status.PENDING, False
        self.names: list[str] = []

    def arrive(self, name: str) -> None:
        assert arrive(self.library, self.job_id, name) == self.answer_to(name)

    def answer_to(self, name: str) -> str:
        if name in self.names:
            return "repeated"
        if self.status is not Status.PENDING or self.claimed or len(self.names) >= self.wanted:
            return str(ANSWER_OF_STATUS[self.status])
        self.names.append(name)
        if len(self.names) < self.wanted:
            return "arrived"
        self.due_in = min(self.due_in, self.now)
        return "completed"

    def wait(self, ms: int) -> None:
        self.library.clock.advance(ms / 1000)
        self.now += ms

    def reschedule(self, in_ms: int) -> None:
        if self.library.jobs.reschedule(self.job_id, self.library.now_ms + in_ms):
            self.due_in = self.now + in_ms

    def cancel(self, _: int) -> None:
        if self.library.jobs.cancel(self.job_id):
            self.status = Status.CANCELLED

    def run_now(self, _: int) -> None:
        if self.library.jobs.run_now(self.job_id, self.library.now_ms):
            self.due_in = min(self.due_in, self.now)

    def redrive(self, _: int) -> None:
        if self.library.jobs.redrive(self.job_id, self.library.now_ms):
            self.status, self.due_in = Status.PENDING, self.now

    def discard(self, _: int) -> None:
        if self.library.jobs.discard(self.job_id):
            self.status = Status.CANCELLED

    def claim(self, _: int) -> None:
        self.library.claim([self.job_id], f"at {self.now}")
        if self.status is Status.PENDING and self.due_in <= self.now:
            self.status, self.claimed = Status.RUNNING, True

    def fail(self, kind: OutcomeKind) -> None:
        """The job fires, and waits for another attempt."""
        self.wait(2 * DEADLINE_MS)
        self.claim(0)
        self.settle(kind)

    def settle(self, kind: OutcomeKind) -> None:
        if self.status is not Status.RUNNING:
            return
        token = self.library.row(self.job_id).claim_token or ""
        due_ms = self.library.now_ms + 7
        assert self.library.settle(Outcome(self.job_id, token, kind, due_ms, "why"))
        self.status = _STATUS_AFTER[kind]
        if kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZE):
            self.due_in = self.now + 7

    def check(self) -> None:
        row = self.library.row(self.job_id)
        assert row.status == self.status
        if self.status is Status.PENDING:
            assert row.due_ms == self.began_ms + self.due_in
        all_arrived = len(self.names) >= self.wanted
        by = ("arrivals" if all_arrived else "deadline") if self.claimed else None
        found = state(self.library, self.job_id)
        assert found == Countdown(self.wanted, tuple(self.names), by)  # type: ignore[arg-type]


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from("abcd")),
    st.tuples(st.just("wait"), st.sampled_from([0, 20_000, DEADLINE_MS])),
    st.tuples(st.just("reschedule"), st.sampled_from([0, 10_000, 90_000])),
    st.tuples(st.sampled_from(["claim", "cancel", "run_now", "redrive", "discard"]), st.just(0)),
    st.tuples(st.just("fail"), st.sampled_from([OutcomeKind.RETRY, OutcomeKind.GIVE_BACK])),
    st.tuples(st.just("settle"), st.sampled_from(list(OutcomeKind))),
)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.integers(1, 3), steps=st.lists(STEPS, max_size=14))
def test_a_countdown_does_what_a_plain_model_says(
    library: Library, wanted: int, steps: list[tuple[str, Any]]
) -> None:
    library.reset()
    model = Model(library, wanted)
    for what, value in steps:
        getattr(model, what)(value)
        model.check()
