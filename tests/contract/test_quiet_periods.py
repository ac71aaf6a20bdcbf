"""Debounced jobs on every engine: what the table of rules in docs/how-to/debounce.md says."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.breaks import lose_answers
from tests.contract.library import Library
from tests.deep import EXAMPLES
from toc.domain.job import Status
from toc.errors import DuplicateJob
from toc.store.claims import _STATUS_AFTER, Outcome, OutcomeKind
from toc.store.events import read_events
from toc.store.jobs import InsertResult, Jobs
from toc.store.quiet_periods import QuietCall, debounce_job

QUIET_MS, MAX_WAIT_MS = 10_000, 25_000


def debounce(
    library: Library, number: int = 0, quiet_ms: int = QUIET_MS, key: str = "", **fields: Any
) -> InsertResult:
    new = library.new(in_ms=quiet_ms, attribute=f'{{"n":{number}}}', **fields)
    return debounce_job(library.databases, library.jobs, QuietCall(new, key, MAX_WAIT_MS))


def test_each_call_moves_the_job_until_the_maximum(library: Library) -> None:
    made = debounce(library)
    began_ms = library.now_ms
    assert (made.written, made.holder, library.row(made.job_id).dedup_key) == (
        True, None, "quiet:a:",
    )  # fmt: skip
    for number, seconds in enumerate((9, 9, 6), start=1):  # after 9, 18 and 24 s
        library.clock.advance(seconds)
        moved = debounce(library, number)
        assert (moved.job_id, moved.holder) == (made.job_id, Status.PENDING)
        row = library.row(made.job_id)
        expected_ms = min(library.now_ms + QUIET_MS, began_ms + MAX_WAIT_MS)
        assert (row.action_ms, row.due_ms, moved.due_ms) == (expected_ms,) * 3
        assert row.attribute == f'{{"n":{number}}}'
    assert row.due_ms == began_ms + MAX_WAIT_MS
    assert library.count() == 1
    assert read_events(library.home(made.job_id), made.job_id, 10) == []


def test_a_call_never_moves_the_job_back(library: Library) -> None:
    made = debounce(library)
    due_ms = library.row(made.job_id).due_ms
    earlier = debounce(library, 1, quiet_ms=3)
    assert (earlier.due_ms, library.row(made.job_id).due_ms) == (due_ms, due_ms)
    assert library.row(made.job_id).attribute == '{"n":1}'


def test_a_call_while_the_job_runs_makes_one_more_and_no_third(library: Library) -> None:
    first = debounce(library).job_id
    library.clock.advance(QUIET_MS / 1000)
    library.claim([first], "one")
    second = debounce(library, 1)
    assert (second.holder, library.row(second.job_id).dedup_key) == (None, "quiet:b:")
    assert debounce(library, 2).job_id == second.job_id
    library.clock.advance(QUIET_MS / 1000)
    library.claim([second.job_id], "two")
    with pytest.raises(DuplicateJob) as caught:
        debounce(library, 3)
    assert (caught.value.running, caught.value.dedup_key) == (True, "")
    assert library.settle_as(OutcomeKind.DONE, first, "one")
    third = debounce(library, 3)
    assert library.row(third.job_id).dedup_key == "quiet:a:"


def test_a_job_that_waits_for_its_retry_gets_the_attribute_only(library: Library) -> None:
    job_id = debounce(library).job_id
    library.clock.advance(QUIET_MS / 1000)
    library.claim([job_id], "one")
    retry_ms = library.now_ms + 60_000
    library.settle_as(OutcomeKind.RETRY, job_id, "one", retry_ms, "why")
    joined = debounce(library, 5)
    row = library.row(job_id)
    assert (joined.job_id, joined.due_ms, row.due_ms, row.attempts) == (
        job_id, retry_ms, retry_ms, 1,
    )  # fmt: skip
    assert row.attribute == '{"n":5}'
    # One that has not run yet is joined first.
    library.claim([job_id], "two", retry_ms)
    library.clock.advance(60)
    library.claim([job_id], "two")
    other = debounce(library, 6).job_id
    library.settle_as(OutcomeKind.RETRY, job_id, "two", library.now_ms + 1, "why")
    assert debounce(library, 7).job_id == other
    assert library.row(job_id).attribute == '{"n":5}'


def test_keys_businesses_and_tenants_are_apart(library: Library) -> None:
    calls: list[dict[str, Any]] = [
        {}, {"key": "k"}, {"biz_id": 43}, {"biz_id": "42"}, {"tenant": "blue"},
        {"type_no": library.report_no},
    ]  # fmt: skip
    made = {debounce(library, **fields).job_id for fields in calls}
    assert made == {debounce(library, **fields).job_id for fields in calls}
    assert len(made) == library.count() == len(calls)


def test_a_lost_answer_makes_one_job(library: Library) -> None:
    new = library.new(in_ms=QUIET_MS)
    with lose_answers(library.home(new.job_id)) as lost:
        made = debounce_job(library.databases, library.jobs, QuietCall(new, "", MAX_WAIT_MS))
    assert (lost.times, made.job_id, made.holder) == (1, new.job_id, None)
    with lose_answers(library.home(new.job_id)) as lost:
        moved = debounce(library, 1)
    assert (lost.times, moved.job_id, library.count()) == (1, new.job_id, 1)


def test_two_calls_with_one_id_both_count(library: Library) -> None:
    new = library.new(in_ms=QUIET_MS, attribute='{"n":1}')
    debounce_job(library.databases, library.jobs, QuietCall(new, "", MAX_WAIT_MS))
    again = new._replace(attribute='{"n":2}')
    done = debounce_job(library.databases, library.jobs, QuietCall(again, "", MAX_WAIT_MS))
    assert (done.job_id, done.holder) == (new.job_id, Status.PENDING)
    assert library.row(new.job_id).attribute == '{"n":2}'


def test_an_encrypted_payload_is_made_for_the_row_that_takes_the_call(library: Library) -> None:
    def sealed(number: int) -> QuietCall:
        new = library.new(in_ms=QUIET_MS)
        seal = f'{{"call":{number},"row":%d}}'.__mod__
        return QuietCall(new._replace(attribute=seal(new.job_id), seal=seal), "", MAX_WAIT_MS)

    job_id = debounce_job(library.databases, library.jobs, sealed(1)).job_id
    for number in (1, 2):
        assert library.row(job_id).attribute == f'{{"call":{number},"row":{job_id}}}'
        debounce_job(library.databases, library.jobs, sealed(2))
    assert library.count() == 1


# ---- a model of the table of rules


class _Group(NamedTuple):
    """A live job: the number of its last call, when it was made and is due; whether it has run."""

    number: int
    made: int
    due: int
    status: Status = Status.PENDING
    fired: bool = False


class Model:
    """The live jobs of a key by job_id, as the table of rules has them, beside real ones."""

    def __init__(self, library: Library) -> None:
        self.library, self.began_ms = library, library.now_ms
        self.now, self.calls = 0, 0
        self.jobs: dict[int, _Group] = {}

    def call(self, quiet_ms: int) -> None:
        self.calls += 1
        pending = [j for j, it in self.jobs.items() if it.status is Status.PENDING]
        if not pending and len(self.jobs) == 2:
            with pytest.raises(DuplicateJob):
                debounce(self.library, self.calls, quiet_ms)
            return
        job_id = debounce(self.library, self.calls, quiet_ms).job_id
        at = self.now + quiet_ms
        if not pending:
            assert job_id not in self.jobs
            self.jobs[job_id] = _Group(self.calls, self.now, at)
            return
        assert job_id == min(pending, key=lambda j: self.jobs[j].fired) or len(pending) == 2
        job = self.jobs[job_id]
        if not job.fired:
            job = job._replace(due=max(job.due, min(at, job.made + MAX_WAIT_MS)))
        self.jobs[job_id] = job._replace(number=self.calls)

    def wait(self, ms: int) -> None:
        self.library.clock.advance(ms / 1000)
        self.now += ms

    def claim(self, _: int) -> None:
        for job_id, job in self.jobs.items():
            self.library.claim([job_id], f"at {self.now}")
            if job.status is Status.PENDING and job.due <= self.now:
                self.jobs[job_id] = job._replace(status=Status.RUNNING, fired=True)

    def settle(self, kind: OutcomeKind) -> None:
        running = [j for j, it in self.jobs.items() if it.status is Status.RUNNING]
        for job_id in running[:1]:
            token = self.library.row(job_id).claim_token or ""
            due_ms = self.library.now_ms + 7
            assert self.library.settle(Outcome(job_id, token, kind, due_ms, "why"))
            job = self.jobs.pop(job_id)._replace(status=_STATUS_AFTER[kind])
            if kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZE):
                job = job._replace(due=self.now + 7)
            if job.status.live:
                self.jobs[job_id] = job

    def cancel(self, _: int) -> None:
        for job_id in list(self.jobs)[:1]:
            if self.library.jobs.cancel(job_id):
                del self.jobs[job_id]

    def check(self) -> None:
        for job_id, job in self.jobs.items():
            row = self.library.row(job_id)
            assert (row.status, row.attribute) == (job.status, f'{{"n":{job.number}}}')
            if job.status is Status.PENDING:
                assert row.due_ms == self.began_ms + job.due
        not_fired = [it for it in self.jobs.values() if not it.fired]
        assert len(not_fired) <= 1


STEPS = st.one_of(
    st.tuples(st.just("call"), st.sampled_from([3, QUIET_MS, MAX_WAIT_MS])),
    st.tuples(st.just("call"), st.just(QUIET_MS)),
    st.tuples(st.just("wait"), st.sampled_from([0, 9_000, MAX_WAIT_MS])),
    st.tuples(st.sampled_from(["claim", "cancel"]), st.just(0)),
    st.tuples(st.just("settle"), st.sampled_from(list(OutcomeKind))),
)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=16))
def test_debounced_jobs_are_as_a_plain_model_says(
    library: Library, steps: list[tuple[str, Any]]
) -> None:
    library.reset()
    model = Model(library)
    for what, value in steps:
        getattr(model, what)(value)
        model.check()


# ---- at the same time


def test_calls_at_the_same_time_make_one_job(library: Library) -> None:
    results: list[int] = []
    for running in (False, True):
        if running:
            library.clock.advance(MAX_WAIT_MS / 1000)
            assert library.claim([results[0]], "one")[results[0]].token == "one"
            results.clear()
        threads = [
            threading.Thread(target=lambda n=n: results.append(debounce(library, n).job_id))  # type: ignore[misc]
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 8
        assert len(set(results)) == 1


def test_a_call_joins_the_job_that_another_one_has_made_meanwhile(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library.sqlite:
        pytest.skip("one writer: a call holds the file from its first read on")
    first, made = debounce(library).job_id, list[int]()
    library.clock.advance(QUIET_MS / 1000)
    library.claim([first], "one")
    insert = Jobs.insert_on_connection

    def end_first_and_call(self: Jobs, *args: Any, **options: Any) -> list[InsertResult]:
        """The caller has read that the first job runs, and will insert under the second key."""
        monkeypatch.setattr(Jobs, "insert_on_connection", insert)
        assert library.settle_as(OutcomeKind.DONE, first, "one")
        made.append(debounce(library, 1).job_id)
        return insert(self, *args, **options)

    monkeypatch.setattr(Jobs, "insert_on_connection", end_first_and_call)
    joined = debounce(library, 2)
    assert (joined.job_id, joined.holder) == (made[0], Status.PENDING)
    assert library.row(made[0]).attribute == '{"n":2}'
    assert library.count() == 2


def test_no_call_is_lost_while_jobs_are_claimed_and_end(library: Library) -> None:
    """The job that took a call runs after it, with the attribute of a call that no other one followed."""
    callers, calls = range(3), 12
    taken: dict[int, dict[int, int]] = {}  # by job and caller: the number of the last call
    failed: list[BaseException] = []

    def call(caller: int) -> None:
        try:
            for number in range(caller * 100, caller * 100 + calls):
                try:
                    job_id = debounce(library, number, quiet_ms=0).job_id
                except (
                    DuplicateJob
                ):  # two runs at a time: the caller knows that the call does not count
                    continue
                taken.setdefault(job_id, {})[caller] = number
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            failed.append(error)

    example, runs = library.new(), dict[int, str]()

    def run_pending(token: str) -> None:
        live = library.jobs.live_ids_of_business(
            library.shard(example.job_id), example.business_id, library.close_no, None
        )
        assert len(live) <= 1  # none runs here, so no call has made a second one
        for job_id in live:
            row = library.claim([job_id], token)[job_id]
            assert (row.token, row.status) == (token, Status.RUNNING)
            assert job_id not in runs
            runs[job_id] = str(row.attribute)
            assert library.settle_as(OutcomeKind.DONE, job_id, token)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    turn = 0
    while any(thread.is_alive() for thread in threads):
        turn += 1
        run_pending(f"turn {turn}")
    run_pending("the last")
    assert failed == []
    assert taken.keys() == runs.keys()
    for job_id, numbers in taken.items():
        assert runs[job_id] in {f'{{"n":{number}}}' for number in numbers.values()}
