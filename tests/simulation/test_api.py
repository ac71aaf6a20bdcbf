"""The API against a model that fits on a page: Hypothesis draws the calls, and shrinks what goes wrong.

A whole node does the work, in virtual time and without faults, so that what every call must answer, and
what every row must then say, is known exactly. Calls that race with each other or with a fault are the
simulation's (world.py).
"""

from __future__ import annotations

import gc
import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

import toc
from tests.deep import ALL
from tests.simulation.__main__ import scratch
from tests.simulation.install import installed
from tests.simulation.kernel import Kernel, Process
from tests.simulation.servers import ProcessClock, Servers
from tests.simulation.world import Workshop, _settings, listening
from toc.cluster.membership import ClusterView
from toc.domain.job import Answer
from toc.domain.times import datetime_of
from toc.errors import DuplicateJob, InvalidInput
from toc.handlers.registry import Registry
from toc.node.node import Node

EXAMPLES = int(os.environ.get("TOC_TEST_EXAMPLES", "60" if ALL else "25"))
"""Of so many rows of calls; more by night."""

CALLS = 30
LATE_MS = 15_000  # what is due later than this is late: nothing is broken
LULL_MS = 3_000  # before a call nothing has happened, and nothing is due, for so long
EXACT_MS = 50  # what is counted from "now" is so exact
RETRY_S, LONG_S = 100.0, 150.0

TYPES = ("good", "slow")
KEYS = st.sampled_from((None, None, "", "k", "K"))
DOINGS = ("done", "fail", "retry", "snooze", "drop", "dead", "long", "long")
IN_S = st.sampled_from((-1000, 0, 5, 40, 100, 250))
SPEC = st.fixed_dictionaries({
    "biz_id": st.sampled_from((0, 2**64 - 1)),
    "biz_type": st.sampled_from(TYPES),
    "in_s": IN_S,
    "from_now": st.booleans(),
    "dedup_key": KEYS,
    "do": st.sampled_from(DOINGS),
})  # fmt: skip
ON_DUPLICATE = st.sampled_from(("keep", "replace", "error"))
UNKNOWN: tuple[str, int | None, int] = ("unknown", None, 0)
T = TypeVar("T")
Call = Callable[..., list[toc.Scheduled]]

WRONG: tuple[tuple[str, Callable[[toc.TimeoutCenter], object]], ...] = (
    ("biz_id", lambda center: center.schedule(-1, timedelta())),
    ("biz_id", lambda center: center.schedule(2**64, timedelta())),
    ("action_time", lambda center: center.schedule(1, datetime(2026, 1, 1))),  # noqa: DTZ001
    ("dedup_key", lambda center: center.schedule(1, timedelta(), dedup_key="schlüssel")),
    ("on_duplicate", lambda center: center.schedule(1, timedelta(), on_duplicate="drop")),  # type: ignore[arg-type]
    ("jobs[1].biz_id", lambda center: center.schedule_many([(1, timedelta()), (-1, timedelta())])),
    ("job_id", lambda center: center.cancel()),
    ("job_id", lambda center: center.cancel(-1)),
    ("biz_id", lambda center: center.cancel(1, biz_id=1)),
    ("action_time", lambda center: center.reschedule(1)),
    ("limit", lambda center: center.dead(0)),
)


@dataclass(slots=True)
class Expected:
    """One row. `ends_ms`: when its present run will have ended, while it runs."""

    job_id: int
    biz_id: int
    biz_type: str
    key: str | None
    do: str = ""
    action_ms: int = 0
    due_ms: int = 0
    since_ms: int = 0  # it has been pending so long
    status: str = "pending"
    attempts: int = 0
    ends_ms: int = 0
    snoozed: bool = False
    died: bool = False
    from_now_s: int | None = None  # its time is counted from the moment of the call: see the row

    @property
    def live(self) -> bool:
        return self.status in ("pending", "running")

    @property
    def holds(self) -> tuple[int, str, str | None]:
        return self.biz_id, self.biz_type, self.key

    @property
    def answer(self) -> tuple[str, int | None, int]:
        """To a call that cannot change it: the text, the id, the attempts."""
        text = {"cancelled": "already_cancelled"}.get(self.status, self.status)
        return text, self.job_id, self.attempts

    @property
    def next_ms(self) -> float:
        """When it will start, or end."""
        if self.status == "running":
            return self.ends_ms
        return max(self.due_ms, self.since_ms) if self.live else math.inf

    def renew(self, ms: int, now_ms: int, attempts: int = 0) -> None:
        self.status, self.attempts, self.since_ms = "pending", attempts, now_ms
        self.action_ms = self.due_ms = ms


KINDS: dict[str, Callable[[Expected], bool]] = {
    "any": lambda job: True,
    "retrying": lambda job: job.status == "pending" and job.attempts > 0,
    "running": lambda job: job.status == "running",
    "dead": lambda job: job.status == "dead",
    "ended": lambda job: not job.live,
}
Who = tuple[str, int]
WHO = st.tuples(st.sampled_from(tuple(KINDS)), st.integers(0, 7))


class Machine(RuleBasedStateMachine):
    workshop: ClassVar[Workshop]

    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[int, Expected] = {}
        self._changed_ms = 0  # when something last happened
        self._calls = 0  # under way
        self._stack = ExitStack()
        rng = random.Random(1)  # Hypothesis draws everything but the order of tasks
        self.kernel = Kernel(rng, steps_max=10_000_000)
        self.servers = Servers(self.kernel, rng, self.workshop.socket)
        changes = {
            "redis_url": f"unix://{self.workshop.socket}",
            "namespace": "api",
            "timer": {"horizon_s": 60, "slack_s": 20, "slow_poll_s": 4, "load_tick_s": 20},
            "scanner": {"grace_s": 120, "tick_s": 30},
            "worker": {"concurrency": 32},
            "reconcile": {"watch_s": "none"},
            "pauses": {"refresh_s": 0.8},  # nothing is paused
        }
        made = _settings(self.workshop.fresh((1, 4)), 4, changes)
        self._stack.enter_context(listening(self.kernel))
        self._stack.enter_context(installed(self.kernel, self.servers, rng))
        self._stack.callback(self.kernel.close)
        server, client = Process("node"), Process("client")
        self._client = client
        handlers = Registry()
        for name in TYPES:
            handlers.handler(name, timeout=2 * LONG_S, max_attempts=2, retry=[RETRY_S])(self._act)

        def start() -> Node:
            node = Node(made, handlers=handlers, clock=ProcessClock(self.servers, server, "redis"))
            node.start()
            node._on_view_change(ClusterView((node._member_name,), connected=True))
            return node

        def connect() -> toc.TimeoutCenter:
            clock = ProcessClock(self.servers, client, "redis")
            return toc.TimeoutCenter(made, handlers=Registry(), clock=clock)

        self._server, self.node = server, self._in(server, start)
        self.center = self._in(client, connect)

    # ---- calls

    @rule(spec=SPEC, like=st.none() | WHO, on_duplicate=ON_DUPLICATE)
    def schedule(self, spec: dict[str, Any], like: Who | None, on_duplicate: Any) -> None:
        """Anything, or what has the business key of another."""
        job = None if like is None else self._who(like, lambda job: job.key is not None)
        if job is not None:
            spec |= {"biz_id": job.biz_id, "biz_type": job.biz_type, "dedup_key": job.key}

        def call(jobs: list[Any], on_duplicate: Any) -> list[toc.Scheduled]:
            return [self.center.schedule(**jobs[0], on_duplicate=on_duplicate, details=True)]

        self._scheduled([spec], on_duplicate, call)

    @rule(specs=st.lists(SPEC, max_size=6), on_duplicate=ON_DUPLICATE)
    def schedule_many(self, specs: list[dict[str, Any]], on_duplicate: Any) -> None:
        self._scheduled(specs, on_duplicate, partial(self.center.schedule_many, details=True))

    @rule(who=WHO, named=WHO)
    def cancel(self, who: Who, named: Who) -> None:
        """For a reason that reads as if a repair had put another job in its place."""
        job, other = self._who(who), self._who(named)
        if job is not None and other is not None:
            reason = f"misfit: job {other.job_id} in toc_job_0000 stands for it now"
            answer = self._call(lambda: self.center.cancel(job.job_id, reason=reason))
            self._cancelled([job], answer)

    @rule(who=WHO, key=KEYS, of_all_types=st.booleans())
    def cancel_by_key(self, who: Who, key: str | None, of_all_types: bool) -> None:
        business = self._business(who, key) | ({"biz_type": None} if of_all_types else {})
        self._cancelled(self._found(**business), self._call(lambda: self.center.cancel(**business)))

    @rule(who=WHO, in_s=IN_S)
    def reschedule(self, who: Who, in_s: int) -> None:
        job, ms = self._who(who), self.now_ms + in_s * 1000
        if job is not None:
            found = self._call(lambda: self.center.reschedule(job.job_id, datetime_of(ms)))
            self._rescheduled([job], ms, found)

    @rule(who=WHO, key=KEYS, in_s=IN_S, of_all_types=st.booleans())
    def reschedule_by_key(self, who: Who, key: str | None, in_s: int, of_all_types: bool) -> None:
        business, ms = self._business(who, key), self.now_ms + in_s * 1000
        business |= {"biz_type": None} if of_all_types else {}
        found = self._found(**business)
        if len(found) > 1:
            with pytest.raises(InvalidInput, match="live jobs match"):
                self._call(lambda: self.center.reschedule(datetime_of(ms), **business))
        else:
            answer = self._call(lambda: self.center.reschedule(datetime_of(ms), **business))
            self._rescheduled(found, ms, answer)

    @rule(who=WHO)
    def redrive(self, who: Who) -> None:
        job, before_ms = self._who(who), self.now_ms
        if job is None:
            return
        job_id = job.job_id
        answer = self._call(lambda: self.center.redrive(job_id))
        held = any(
            other.live and other.holds == job.holds and job.key is not None
            for other in self.expected.values()
        )
        if job.status != "dead":
            assert (answer, answer.job_id, answer.attempts) == job.answer
        elif held:
            assert (answer, answer.job_id) == ("superseded", job_id)
        else:
            assert (answer, answer.job_id) == ("redriven", job_id)
            job.renew(self._ms_of_row(job_id, before_ms, 0), self.now_ms)

    @rule(who=WHO)
    def discard(self, who: Who) -> None:
        job = self._who(who)
        if job is None:
            return
        answer = self._call(lambda: self.center.discard(job.job_id))
        if job.status == "dead":
            assert (answer, answer.job_id, answer.ok) == ("cancelled", job.job_id, True)
            job.status = "cancelled"
        else:
            assert (answer, answer.job_id, answer.attempts) == job.answer

    @rule(name=st.sampled_from(("cancel", "redrive", "discard")))
    def nobody_knows_it(self, name: str) -> None:
        answer = self._call(lambda: getattr(self.center, name)(2**40))
        assert answer == "unknown"
        assert answer.job_id is None
        assert not answer
        assert "biz_id=" in (answer.hint or "")

    @rule(wrong=st.sampled_from(WRONG))
    def is_refused(self, wrong: tuple[str, Callable[[toc.TimeoutCenter], object]]) -> None:
        field, call = wrong
        with pytest.raises(InvalidInput) as met:
            self._call(lambda: call(self.center))
        assert met.value.field == field

    @rule(seconds=st.sampled_from((1, 20, 60, 90, 300)))
    def time_passes(self, seconds: int) -> None:
        self.kernel.run(lambda: False, seconds)

    # ---- what holds after each

    @invariant()
    def rows_are_as_expected(self) -> None:
        self._lull()
        for biz_id in {job.biz_id for job in self.expected.values()}:
            rows = self._call(partial(self.center.find, biz_id))
            mine = [job for job in self.expected.values() if job.biz_id == biz_id]
            mine.sort(key=lambda job: job.job_id, reverse=True)
            assert [row.job_id for row in rows] == [job.job_id for job in mine]
            for row, job in zip(rows, mine, strict=True):
                found = (row.biz_type, row.dedup_key, row.action_ms, row.status.name.lower())
                assert found == (job.biz_type, job.key, job.action_ms, job.status)
                assert (row.attempts, row.attribute) == (job.attempts, {"do": job.do})
                if job.status == "pending":
                    assert row.due_ms is not None
                    assert abs(row.due_ms - job.due_ms) <= EXACT_MS
                    job.due_ms = row.due_ms
                assert (row.due_ms is None) is (not job.live)
        dead = {job.job_id for job in self.expected.values() if job.status == "dead"}
        assert {letter.job_id for letter in self._call(self.center.dead)} == dead

    def teardown(self) -> None:
        try:
            for _ in range(20):
                live = [job for job in self.expected.values() if job.live]
                if not live:
                    break
                last_ms = max(job.next_ms for job in live)
                self.kernel.run(lambda: False, max(0, last_ms - self.now_ms) / 1000)
                self.rows_are_as_expected()
            assert not any(job.live for job in self.expected.values())
            self._in(self._server, self.node.stop)
            self._call(self.center.close)
        finally:
            self._stack.close()
            gc.collect()  # a run that failed leaves its connections behind

    # ---- what a handler meets, and does

    def _act(self, job: toc.Job) -> None:
        while self._calls:  # what it changes is known when it has answered
            self.kernel.wait(0.001)
        try:
            self._begin(job, self.expected[job.job_id])
        except Exception as error:
            self.kernel.failure = error  # the worker takes it for the handler's
            raise
        if job.attribute["do"] == "long":
            self.kernel.wait(LONG_S)
        self._changed_ms = self.now_ms
        self._end(self.expected[job.job_id])

    def _begin(self, job: toc.Job, mine: Expected) -> None:
        self._changed_ms = self.now_ms
        assert mine.status == "pending", mine
        assert mine.due_ms <= self.now_ms <= mine.next_ms + LATE_MS, mine
        mine.status, mine.attempts = "running", mine.attempts + 1
        mine.ends_ms = self.now_ms + (round(LONG_S * 1000) if mine.do == "long" else 0)
        assert (job.attempts, job.attribute) == (mine.attempts, {"do": mine.do})
        assert job.action_ms == mine.action_ms

    def _end(self, mine: Expected) -> None:
        if mine.do in ("fail", "retry") and mine.attempts == 1:
            mine.status, mine.due_ms = "pending", self.now_ms + round(RETRY_S * 1000)
            raise toc.Retry(RETRY_S) if mine.do == "retry" else RuntimeError("as asked")
        if mine.do == "snooze" and not mine.snoozed:
            mine.renew(self.now_ms + 50_000, self.now_ms, mine.attempts - 1)
            mine.snoozed = True
            raise toc.Snooze(datetime_of(mine.due_ms))
        if mine.do == "fail":
            mine.status = "dead"
            raise RuntimeError("as asked")
        if mine.do == "dead" and not mine.died:
            mine.status, mine.died = "dead", True
            raise toc.Dead("as asked")
        if mine.do == "drop":
            mine.status = "cancelled"
            raise toc.Drop("as asked")
        mine.status = "done"

    # ---- what calls change

    def _scheduled(self, specs: list[dict[str, Any]], on_duplicate: Any, call: Call) -> None:
        before_ms = self.now_ms
        planned = self._planned(specs, on_duplicate)
        jobs = [
            {name: spec[name] for name in ("biz_id", "biz_type", "dedup_key")}
            | {"action_time": self._when(spec), "attribute": {"do": spec["do"]}}
            for spec in specs
        ]
        if planned is None:
            with pytest.raises(DuplicateJob):
                self._call(lambda: call(jobs, on_duplicate=on_duplicate))
            return
        found = self._call(lambda: call(jobs, on_duplicate=on_duplicate))
        rows, standing = planned
        for (job_id, did, running), row in zip(found, standing, strict=True):
            held = "kept" if on_duplicate == "keep" else "replaced"
            assert did == (held if row.job_id else "inserted")
            assert running is (did == "kept" and row.status == "running")
            if not row.job_id:
                assert job_id not in self.expected
                row.job_id = job_id
            assert job_id == row.job_id
        self.expected = {row.job_id: row for row in rows}
        for row in standing:
            if row.from_now_s is not None:
                row.renew(self._ms_of_row(row.job_id, before_ms, row.from_now_s), self.now_ms)
                row.from_now_s = None

    def _planned(
        self, specs: list[dict[str, Any]], on_duplicate: str
    ) -> tuple[list[Expected], list[Expected]] | None:
        """All rows as they will be, and for each spec its own; None: DuplicateJob, and no change."""
        rows = [replace(job) for job in self.expected.values()]
        standing = []
        for spec in specs:
            biz_id, biz_type, key = spec["biz_id"], spec["biz_type"], spec["dedup_key"]
            row = None
            if key is not None:
                held = (biz_id, biz_type, key)
                row = next((row for row in rows if row.live and row.holds == held), None)
            if row is not None and on_duplicate == "keep":
                standing.append(row)
                continue
            if row is not None and (on_duplicate == "error" or row.status == "running"):
                return None
            if row is None:
                row = Expected(0, biz_id, biz_type, key)
                rows.append(row)
            row.renew(self.now_ms + spec["in_s"] * 1000, self.now_ms)
            row.do, row.from_now_s = spec["do"], spec["in_s"] if spec["from_now"] else None
            standing.append(row)
        return rows, standing

    def _who(self, who: Who, of: Callable[[Expected], bool] = lambda job: True) -> Expected | None:
        """A job of that kind, where there is one."""
        kind, which = who
        jobs = [job for _, job in sorted(self.expected.items()) if of(job)]
        some = [job for job in jobs if KINDS[kind](job)] or jobs
        return some[-1 - which % len(some)] if some else None

    def _business(self, who: Who, key: str | None) -> dict[str, Any]:
        """A business key that may be anybody's; the key itself may be another."""
        job = self._who(who) or Expected(0, 1, TYPES[0], None)
        return {"biz_id": job.biz_id, "biz_type": job.biz_type, "dedup_key": key}

    def _when(self, spec: dict[str, Any]) -> datetime | timedelta:
        if spec["from_now"]:
            return timedelta(seconds=spec["in_s"])
        return datetime_of(self.now_ms + spec["in_s"] * 1000)

    def _ms_of_row(self, job_id: int, before_ms: int, in_s: int) -> int:
        """Its action time, which was counted from the moment of the call."""
        row = self._call(lambda: self.center.get(job_id))
        assert row is not None
        assert before_ms <= row.action_ms - in_s * 1000 + EXACT_MS
        assert row.action_ms - in_s * 1000 - EXACT_MS <= self.now_ms
        return row.action_ms

    def _found(self, biz_id: int, biz_type: str | None, dedup_key: str | None) -> list[Expected]:
        """What a business key means: all live jobs, or the newest ended one."""
        of_it = [
            job
            for _, job in sorted(self.expected.items())
            if job.biz_id == biz_id
            and biz_type in (None, job.biz_type)
            and dedup_key in (None, job.key)
        ]
        return [job for job in of_it if job.live] or of_it[-1:]

    def _cancelled(self, found: list[Expected], answer: Answer) -> None:
        answers = []
        for job in found:
            answers.append(("cancelled", job.job_id, 0) if job.status == "pending" else job.answer)
            if job.status == "pending":
                job.status = "cancelled"
        worst = next((it for it in answers if it[0] != "cancelled"), (*answers, UNKNOWN)[0])
        assert (answer, answer.job_id, answer.attempts) == worst
        assert answer.ok is bool(answer) is (answer == "cancelled")

    def _rescheduled(self, found: list[Expected], ms: int, answer: Answer) -> None:
        expected = found[0].answer if found else UNKNOWN
        if found and found[0].status == "pending":
            expected = "rescheduled", found[0].job_id, 0
            found[0].renew(ms, self.now_ms)
        assert (answer, answer.job_id, answer.attempts) == expected
        assert answer.ok is bool(answer) is (answer == "rescheduled")

    # ---- time

    @property
    def now_ms(self) -> int:
        return self.servers.true_ms

    def _call(self, work: Callable[[], T]) -> T:
        self._calls += 1
        try:
            return self._in(self._client, work)
        finally:
            self._calls -= 1

    def _in(self, process: Process, work: Callable[[], T]) -> T:
        """What it returns, or raises."""
        answers: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                answers.append(work())
            except Exception as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        self.kernel.spawn(run, process)
        assert self.kernel.run(lambda: bool(answers or errors), 60), "no answer"
        if errors:
            raise errors[0]
        return answers[0]

    def _lull(self) -> None:
        """Goes on until nothing has happened for a while, and nothing is near."""
        while self.now_ms - self._changed_ms < LULL_MS or self._next_ms < self.now_ms + LULL_MS:
            assert self._next_ms >= self.now_ms - LATE_MS, "late"
            self.kernel.run(lambda: False, 0.5)

    @property
    def _next_ms(self) -> float:
        return min((job.next_ms for job in self.expected.values()), default=math.inf)


@pytest.mark.timeout(600)  # half a minute of computing; more beside others
def test_any_row_of_calls(given: Workshop) -> None:
    class Here(Machine):
        workshop = given

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=CALLS,
            deadline=None,
            # Not Phase.explain: it traces every line.
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.fixture(scope="module")
def given() -> Iterator[Workshop]:
    with scratch() as (directory, socket):
        yield Workshop(directory, socket)
