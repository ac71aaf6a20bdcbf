"""earliest, latest and once: which time a held key ends up with, on every engine; and run_now."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.breaks import lose_answers
from tests.contract.library import Library
from tests.deep import EXAMPLES
from toc.domain.job import Event, Status
from toc.errors import DuplicateJob
from toc.store.claims import OutcomeKind
from toc.store.events import read_events

Rule = Literal["keep", "replace", "earliest", "latest"]
EARLIER, HELD, LATER = 1_000, 5_000, 9_000


@pytest.mark.parametrize(
    ("rule", "in_ms", "expected"),
    [
        ("earliest", EARLIER, EARLIER),
        ("earliest", HELD, HELD),
        ("earliest", LATER, HELD),
        ("latest", EARLIER, HELD),
        ("latest", HELD, HELD),
        ("latest", LATER, LATER),
        ("once", EARLIER, HELD),
    ],
)
def test_a_pending_holder_gets_the_time_that_the_rule_prefers(
    library: Library, rule: Any, in_ms: int, expected: int
) -> None:
    job_id = library.pending(in_ms=HELD, key="k", attribute='{"old":1}')
    (result,) = library.insert(
        library.new(in_ms=in_ms, key="k", attribute='{"new":1}'), on_duplicate=rule
    )
    row, changed = library.row(job_id), expected != HELD
    assert (result.job_id, result.written, result.holder) == (job_id, changed, Status.PENDING)
    assert (row.action_ms, row.due_ms) == (library.now_ms + expected, library.now_ms + expected)
    assert row.attribute == ('{"new":1}' if changed else '{"old":1}')
    assert library.count() == 1


def test_a_running_holder_is_kept_by_earliest_and_refused_by_latest(library: Library) -> None:
    job_id = library.running("one", key="k")
    (kept,) = library.insert(library.new(key="k", in_ms=-9), on_duplicate="earliest")
    assert (kept.job_id, kept.written, kept.holder) == (job_id, False, Status.RUNNING)
    with pytest.raises(DuplicateJob) as caught:
        library.insert(library.new(key="k", in_ms=9), on_duplicate="latest")
    assert caught.value.running
    assert library.row(job_id).claim_token == "one"


def test_a_job_that_waits_for_a_retry_is_compared_by_its_action_time(library: Library) -> None:
    job_id = library.running("one", key="k")
    library.settle_as(OutcomeKind.RETRY, job_id, "one", library.now_ms + LATER)
    (kept,) = library.insert(library.new(key="k", in_ms=HELD), on_duplicate="earliest")
    assert (kept.written, library.row(job_id).due_ms) == (False, library.now_ms + LATER)
    (moved,) = library.insert(library.new(key="k", in_ms=HELD), on_duplicate="latest")
    assert (moved.written, library.row(job_id).due_ms) == (True, library.now_ms + HELD)
    assert library.row(job_id).attempts == 0


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["keep", "replace", "earliest", "latest"]), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    )
)
def test_calls_with_one_key_leave_what_a_plain_model_says(
    library: Library, calls: list[tuple[Rule, int]]
) -> None:
    library.reset()
    held: tuple[int, int] | None = None  # (time, number of the call that set the attribute)
    for number, (rule, in_ms) in enumerate(calls):
        job = library.new(in_ms=in_ms, key="k", attribute=f'{{"n":{number}}}')
        library.insert(job, on_duplicate=rule)
        wins = {
            "keep": lambda old, new: False,
            "replace": lambda old, new: True,
            "earliest": lambda old, new: new < old,
            "latest": lambda old, new: new > old,
        }[rule]
        if held is None or wins(held[0], in_ms):
            held = in_ms, number
    assert held is not None
    assert library.count() == 1
    (job_id,) = library.jobs.live_ids_of_business(
        library.shard(job.job_id), job.business_id, library.close_no, "k"
    )
    row = library.row(job_id)
    assert (row.action_ms - library.now_ms, row.attribute) == (held[0], f'{{"n":{held[1]}}}')


# ---- once


@pytest.mark.parametrize("kind", [OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY])
def test_once_finds_a_job_that_has_ended(library: Library, kind: OutcomeKind) -> None:
    old = library.ended(kind, key="k")
    (found,) = library.insert(library.new(key="k"), on_duplicate="once")
    assert (found.job_id, found.written) == (old, False)
    assert found.holder is library.jobs.get(old).status  # type: ignore[union-attr]
    assert library.count() == 1
    # The key is free for the other rules, and for other businesses.
    library.insert(library.new(43, key="k"), on_duplicate="once")
    library.pending(key="k")
    assert library.count() == 3


def test_once_in_a_batch_inserts_the_new_keys_alone(library: Library) -> None:
    old = library.ended(OutcomeKind.DONE, key="k5")
    jobs = [library.new(42, key=f"k{n}", in_ms=n) for n in range(10)]
    found = library.insert(*jobs, on_duplicate="once")
    assert [each.written for each in found] == [n != 5 for n in range(10)]
    assert found[5].job_id == old
    assert library.count() == 10
    again = library.insert(*[library.new(42, key=f"k{n}") for n in range(10)], on_duplicate="once")
    assert [each.job_id for each in again] == [each.job_id for each in found]


def test_once_survives_a_commit_whose_answer_is_lost(library: Library) -> None:
    if library.sqlite:
        pytest.skip("a file loses no answer")
    job = library.new(42, key="k")
    with lose_answers(library.databases[0], 1) as lost:
        (found,) = library.insert(job, on_duplicate="once")
    assert lost
    assert (found.job_id, library.count()) == (job.job_id, 1)


def test_once_from_several_threads_is_one_job_whenever_it_ends(library: Library) -> None:
    """Each thread ends the job that it gets: a later call must find the ended row."""
    ids, failures = list[int](), list[Exception]()

    def schedule_and_end() -> None:
        try:
            for _ in range(3):
                (found,) = library.insert(library.new(key="k"), on_duplicate="once")
                ids.append(found.job_id)
                library.jobs.cancel(found.job_id)
        except Exception as error:  # noqa: BLE001 - the test's own thread raises it
            failures.append(error)

    threads = [threading.Thread(target=schedule_and_end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(ids) == 12
    assert (len(set(ids)), library.count()) == (1, 1)


# ---- run_now


def events(library: Library, job_id: int) -> list[Event]:
    return list(read_events(library.home(job_id), job_id, 10))


def test_run_now_moves_a_far_job_here(library: Library) -> None:
    job_id = library.pending(in_ms=LATER)
    answer = library.jobs.run_now(job_id, library.now_ms, "asked", "token:1:shop")
    assert (answer, answer.job_id) == ("rescheduled", job_id)
    row = library.row(job_id)
    assert (row.action_ms, row.due_ms) == (library.now_ms, library.now_ms)
    (event,) = events(library, job_id)
    assert (event.what, event.actor, event.reason) == ("run_now", "token:1:shop", "asked")


def test_run_now_keeps_attempts_and_moves_no_job_later(library: Library) -> None:
    job_id = library.running("one", in_ms=-7)
    action_ms = library.row(job_id).action_ms
    library.settle_as(OutcomeKind.RETRY, job_id, "one", library.now_ms + LATER)
    assert library.jobs.run_now(job_id, library.now_ms) == "rescheduled"
    row = library.row(job_id)
    assert (row.action_ms, row.due_ms, row.attempts) == (action_ms, library.now_ms, 1)
    library.clock.advance(60)
    assert library.jobs.run_now(job_id, library.now_ms).ok
    assert library.row(job_id).due_ms == library.now_ms - 60_000  # it was due before


def test_run_now_changes_no_job_that_runs_or_has_ended(library: Library) -> None:
    assert library.jobs.run_now(library.running("one"), library.now_ms) == "running"
    assert library.jobs.run_now(library.ended(OutcomeKind.DONE), library.now_ms) == "done"
    assert library.jobs.run_now(library.dead(), library.now_ms) == "dead"
    assert library.jobs.run_now(library.new().job_id, library.now_ms) == "unknown"


# ---- earliest and latest at the same time as claims


class _Calls:
    """Calls with one key from several threads, what they were told, and what the runs of the jobs saw."""

    def __init__(self, library: Library, rule: Rule) -> None:
        self.library, self.rule = library, rule
        self.wrote: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by job: (time, number)
        self.kept: list[tuple[int, int]] = []  # (job, time) of calls that kept a pending job
        self.refused: list[bool] = []
        self.failed: list[BaseException] = []
        self.runs: dict[
            int, tuple[int, str]
        ] = {}  # by job: the time and the attribute at the claim
        self._example = library.new()

    def call_often(self, caller: int) -> None:
        rng = random.Random(caller)  # noqa: S311 - times of calls
        try:
            for number in range(caller * 100, caller * 100 + 15):
                self._call(number, -rng.randrange(1000))
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self.failed.append(error)

    def _call(self, number: int, in_ms: int) -> None:
        new = self.library.new(in_ms=in_ms, key="k", attribute=f'{{"n":{number}}}')
        try:
            (done,) = self.library.insert(new, on_duplicate=self.rule)
        except DuplicateJob as error:
            self.refused.append(error.running)
            return
        if done.written:
            self.wrote[done.job_id].append((new.action_ms, number))
        elif done.holder is Status.PENDING:
            self.kept.append((done.job_id, new.action_ms))

    def run_pending(self, token: str) -> None:
        library, example = self.library, self._example
        for job_id in library.jobs.live_ids_of_business(
            library.shard(example.job_id), example.business_id, library.close_no, "k"
        ):
            row = library.claim([job_id], token)[job_id]
            assert (row.token, row.status) == (token, Status.RUNNING)
            seen = self.runs[job_id] = (row.action_ms, str(row.attribute))
            after = library.row(job_id)
            assert (after.action_ms, after.attribute) == seen
            assert library.settle_as(OutcomeKind.DONE, job_id, token)

    def check_runs(self) -> None:
        best = min if self.rule == "earliest" else max
        assert self.wrote.keys() == self.runs.keys()
        for job_id, calls in self.wrote.items():
            best_ms = best(ms for ms, _ in calls)
            texts = {f'{{"n":{number}}}' for ms, number in calls if ms == best_ms}
            assert self.runs[job_id][0] == best_ms
            assert self.runs[job_id][1] in texts
        for job_id, ms in self.kept:
            assert best(ms, self.runs[job_id][0]) == self.runs[job_id][0]


@pytest.mark.parametrize("rule", ["earliest", "latest"])
def test_concurrent_calls_leave_the_best_time_that_was_told(library: Library, rule: Any) -> None:
    """What a handler is given is what the calls were told, whatever a claim interrupts.

    Of the calls that wrote a job, the best time counts, with the attribute of a call with this time. A call
    that kept a pending job was no better. No call changes a job after its claim.
    """
    calls, turn = _Calls(library, rule), 0
    threads = [threading.Thread(target=calls.call_often, args=(caller,)) for caller in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        turn += 1
        calls.run_pending(f"turn {turn}")
    calls.run_pending("the last")
    assert calls.failed == []
    assert all(calls.refused)
    assert rule == "latest" or not calls.refused  # "earliest" keeps a running job
    calls.check_runs()
