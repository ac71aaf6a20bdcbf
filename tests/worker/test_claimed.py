"""Between claim and settle: the look at the lease, late outcomes, what is not ours."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from datetime import timedelta

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import FAR, LONG_AGO, NOW, SOON, TYPE, Gate, Rig, metric, outage
from tests.worker.waiting import remains, wait_until
from toc.domain.job import Job, Status
from toc.runtime.job_batch import BatchClaimAnswer, JobBatch, PermitSource
from toc.runtime.service import Inbox
from toc.timer import redis_keys
from toc.timer.poller import Poller
from toc.timer.reminders import Reminders


def refused() -> float:
    return metric("toc_settles_refused_total")


class BrokenAdmission:
    """An admission that cannot take anything back."""

    def admit(self, wanted: int) -> int:
        return wanted

    def return_unused(self, count: int) -> None:
        raise ArithmeticError(f"{count} cannot be returned")

    def job_ended(self, job_id: int) -> None:
        """It does not count them."""

    def retry_after_s(self) -> float:
        return 1.0


def test_a_fetcher_gets_its_answer_even_if_an_admission_cannot_be_returned(
    make_rig: MakeRig,
) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    worker = rig.alone()
    job_id = rig.center.schedule(1, FAR, biz_type=TYPE)  # not due: its admission comes back
    shard, answer = rig.shard(job_id), BatchClaimAnswer()
    database = rig.settings.routing.database_index(shard)
    permits, _ = worker.permits.take_permits_in_each_database([database], 1)
    worker.claims[0][database].enqueue(
        JobBatch(
            "",
            {shard: [job_id]},
            None,
            rig.clock.monotonic_s(),
            popped=False,
            permits=permits,
            answer=answer,
            admissions={job_id: BrokenAdmission()},
        )
    )
    wait_until(lambda: answer.is_answered, "an answer")
    assert answer.claimed == 0


# ---- the look at the lease


@pytest.mark.parametrize("attempts", [0, 2])
def test_a_run_whose_lease_is_too_short_is_given_back_unstarted(
    make_rig: MakeRig, attempts: int
) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler(timeout=30)(started.append)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    rig.sql(job_id, "UPDATE {table} SET attempts = :n WHERE job_id = :id", n=attempts, id=job_id)
    before = rig.row(job_id)

    # The lease is 32 s, the handler needs 31 of it.
    assert rig.offer(worker, job_id, found_s=rig.clock.monotonic_s() - 1.5) == 1
    wait_until(lambda: worker.jobs_in_flight == 0)
    after = rig.row(job_id)
    assert started == []
    assert (after.status, after.attempts) == (Status.PENDING, attempts)
    assert after.action_ms == before.action_ms
    assert after.due_ms == before.due_ms

    assert rig.offer(worker, job_id) == 1
    rig.wait_for(Status.DONE, job_id)
    assert [job.attempts for job in started] == [attempts + 1]


def test_waiting_in_the_queue_uses_up_the_lease(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 1})
    gate, started = Gate(), []
    rig.handler("slow", timeout=20)(gate)
    rig.handler("quick", timeout=0.1)(lambda job: started.append(job.job_id))
    worker = rig.alone()
    slow = rig.center.schedule(1, LONG_AGO, biz_type="slow")
    quick = rig.center.schedule(2, LONG_AGO, biz_type="quick")
    assert rig.offer(worker, slow) == 1
    gate.wait()
    assert rig.offer(worker, quick) == 1
    lease_end_s = rig.clock.monotonic_s() + 3
    wait_until(lambda: rig.clock.monotonic_s() > lease_end_s - 1)  # less is left than the margin
    gate.open.set()
    rig.wait_for(Status.PENDING, quick)
    assert rig.row(quick).attempts == 0
    assert started == []


# ---- late outcomes


def test_a_late_outcome_is_settled_while_its_token_holds(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler(timeout=0.1)(gate)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    rig.offer(worker, job_id)
    gate.wait()
    wait_until(lambda: worker.pool.running.stuck_count == 1)
    due_ms = rig.row(job_id).due_ms
    assert due_ms is not None
    wait_until(lambda: rig.clock.wall_ms() > due_ms)  # SQLite's clock is this process'
    assert rig.status(job_id) is Status.RUNNING
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)
    assert rig.row(job_id).attempts == 1


@pytest.mark.parametrize("result", ["return", "raise"])
def test_a_stale_outcome_is_refused_and_counted(make_rig: MakeRig, result: str) -> None:
    rig = make_rig()
    gate = Gate()

    @rig.handler(timeout=30, retry=[0], max_attempts=1)
    def handle(job: Job) -> None:
        gate(job)
        if result == "raise":
            raise ValueError("too late")

    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    rig.offer(worker, job_id)
    gate.wait()
    rig.run_elsewhere(job_id, token="another", attempts=2, lease_s=60)
    before, count = rig.row(job_id), refused()
    gate.open.set()
    wait_until(lambda: refused() == count + 1)
    assert rig.row(job_id) == before
    assert rig.center.dead() == []
    wait_until(lambda: worker.jobs_in_flight == 0)


def test_one_stale_outcome_of_a_batch_costs_the_others_nothing(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler()(gate)
    worker = rig.alone()
    jobs = [rig.center.schedule(rig.biz_id_on(0, n), LONG_AGO, biz_type=TYPE) for n in range(4)]
    rig.offer(worker, *jobs)
    gate.wait(4)
    rig.run_elsewhere(jobs[1], token="another", attempts=2, lease_s=60)
    count = refused()
    gate.open.set()
    rig.wait_for(Status.DONE, jobs[0], jobs[2], jobs[3])
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert refused() == count + 1
    assert rig.row(jobs[1])[:2] == (Status.RUNNING, 2)


# ---- what is not ours


def test_types_without_a_handler_are_left_alone_and_put_back(make_rig: MakeRig) -> None:
    rig = make_rig(scanner={"grace_s": 0})
    rig.handler()(lambda _: None)
    worker = rig.start()
    before = metric("toc_jobs_unhandled_total")
    foreign = rig.center.schedule(rig.biz_id_on(0), NOW, biz_type="of.another.node")
    wait_until(lambda: metric("toc_jobs_unhandled_total") > before)
    wait_until(lambda: (rig.armed_ms(foreign) or 0) > rig.row(foreign).action_ms + 5000)
    assert rig.out_ms(foreign) is None
    row = rig.row(foreign)
    assert (row.status, row.attempts, row.token) == (Status.PENDING, 0, None)
    assert worker.jobs_in_flight == 0
    # It holds up nobody, of its own slot neither.
    ours = rig.center.schedule(rig.biz_id_on(0, 1), NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, ours)


@pytest.mark.parametrize(
    ("overdue", "back_s"),
    [(timedelta(seconds=1), 10), (timedelta(minutes=1), 60), (timedelta(days=1), 300)],
)
def test_a_type_without_a_handler_is_popped_less_and_less_often(
    make_rig: MakeRig, overdue: timedelta, back_s: float
) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    job_id = rig.center.schedule(1, -overdue, biz_type="of.nobody")
    rig.start()
    seen: list[float] = []

    def is_put_back() -> bool:
        # The client's own reminder may come after the first look: then it is popped once more.
        waits_s = ((rig.armed_ms(job_id) or 0) - rig.now_ms(job_id)) / 1000
        if waits_s > 0:
            seen.append(waits_s)
        return waits_s > 0

    wait_until(is_put_back)
    assert back_s - 5 < seen[0] <= back_s + 10


def test_a_handler_for_every_type_takes_all(make_rig: MakeRig) -> None:
    rig = make_rig()
    seen: list[str] = []
    rig.handler("*")(lambda job: seen.append(job.biz_type))
    rig.handler("special")(lambda _: seen.append("its own"))
    rig.start()
    jobs = [rig.center.schedule(n, NOW, biz_type=name) for n, name in enumerate(["a", "special"])]
    rig.wait_for(Status.DONE, *jobs)
    assert sorted(seen) == ["a", "its own"]


def test_a_reminder_without_a_row_is_forgotten(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    job_id = rig.center.schedule(1, SOON, biz_type=TYPE)
    rig.sql(job_id, "DELETE FROM {table} WHERE job_id = :id", id=job_id)
    assert rig.armed_ms(job_id) is not None
    rig.start()
    wait_until(lambda: rig.armed_ms(job_id) is None and rig.out_ms(job_id) is None)


def test_a_reminder_that_is_too_early_is_put_right(make_rig: MakeRig) -> None:
    rig = make_rig()
    started: list[int] = []
    rig.handler()(lambda job: started.append(job.job_id))
    job_id = rig.center.schedule(1, SOON, biz_type=TYPE)
    early_ms = rig.armed_ms(job_id)
    later = rig.center.reschedule(job_id, FAR / 10)
    assert later == "rescheduled"
    assert rig.armed_ms(job_id) == early_ms  # the earliest one wins
    rig.start()
    wait_until(lambda: rig.armed_ms(job_id) == rig.row(job_id).due_ms)
    assert rig.row(job_id)[:2] == (Status.PENDING, 0)
    assert started == []


def test_what_a_scan_found_is_not_claimed_once_it_was_moved(make_rig: MakeRig) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler()(started.append)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    rig.center.reschedule(job_id, FAR)  # between the scanner's look and its offer
    before = rig.row(job_id)
    assert rig.offer(worker, job_id) == 0
    assert rig.row(job_id) == before
    assert worker.jobs_in_flight == 0
    assert started == []


def test_a_reminder_ahead_of_its_time_stays_where_it_is(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    rig.start()
    due = rig.center.schedule(rig.biz_id_on(0), SOON, biz_type=TYPE)
    ahead = rig.center.schedule(rig.biz_id_on(0, 1), FAR / 10, biz_type=TYPE)
    looks: list[int | None] = []

    def fired() -> bool:
        looks.append(rig.out_ms(ahead))
        return rig.status(due) is Status.DONE

    wait_until(fired)
    assert remains(lambda: rig.out_ms(ahead) is None, 0.3)
    assert set(looks) == {None}
    slots = rig.center._open_connections().reminders
    assert slots is not None
    popped = slots.pop("default", [(slot, 100) for slot in range(4)], 1000)
    assert [answer.ids for answer in popped] == [[], [], [], []]


@pytest.mark.invariant("I2")
def test_an_id_in_two_slots_that_is_popped_in_one_call_starts_once(make_rig: MakeRig) -> None:
    """A misfit: one reminder stands where it belongs, and one in a slot where it does not."""
    rig = make_rig(timer={"stay_s": 600})
    gate = Gate()
    rig.handler()(gate)
    worker, slots = rig.alone(), rig.slots()
    assert slots is not None
    job_id = rig.center.schedule(rig.biz_id_on(0), LONG_AGO, biz_type=TYPE)
    wrong = redis_keys.store_queue_key(rig.settings.namespace, "default", 2)
    slots.connected_client().zadd(wrong, {str(job_id): rig.row(job_id).action_ms})
    poller = poller_of(rig, slots, worker.permits, {0: worker.claims[0][0]})
    poller.set_slots([0, 2])
    poller.run_once()
    gate.wait()
    rig.offer(worker, job_id, job_id)  # and once more, while it runs: the claim is not this one's
    assert remains(lambda: worker.jobs_in_flight == 1 and len(gate.begun) == 1, 0.3)
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert len(gate.begun) == 1


def test_an_id_that_is_offered_twice_in_one_batch_starts_once(make_rig: MakeRig) -> None:
    """Whoever feeds the worker: each id of a batch has one fate."""
    rig = make_rig()
    gate = Gate()
    rig.handler()(gate)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    assert rig.offer(worker, job_id, job_id) == 1
    gate.wait()
    assert remains(lambda: worker.jobs_in_flight == 1 and len(gate.begun) == 1, 0.3)
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)


def test_a_poller_offers_each_id_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    slots, away = rig.slots(), HalfAway()
    assert slots is not None
    job_id = rig.center.schedule(rig.biz_id_on(0), LONG_AGO, biz_type=TYPE)
    wrong = redis_keys.store_queue_key(rig.settings.namespace, "default", 2)
    slots.connected_client().zadd(wrong, {str(job_id): rig.row(job_id).action_ms})
    poller = poller_of(rig, slots, away, {0: away})
    poller.set_slots([0, 2])
    poller.run_once()
    assert [each for batch in away.offered for each in batch.job_ids] == [job_id]


@pytest.mark.parametrize("lease_s", [60, 7200])
def test_a_row_that_runs_elsewhere_is_put_back_at_the_end_of_its_lease(
    make_rig: MakeRig, lease_s: float
) -> None:
    """Even if that is far away: no loader loads the row again, since its due_time has passed."""
    rig = make_rig()
    rig.handler()(lambda _: None)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.run_elsewhere(job_id, token="another", attempts=1, lease_s=lease_s)
    rig.start()
    wait_until(lambda: rig.armed_ms(job_id) == rig.row(job_id).due_ms)
    assert rig.out_ms(job_id) is None
    assert rig.row(job_id)[:2] == (Status.RUNNING, 1)


# ---- servers away


def test_a_database_that_is_away_holds_up_no_other(make_rig: MakeRig) -> None:
    # Two slots over four shards: each slot has jobs of both databases.
    rig = make_rig(databases=2, topics={"default": {"slot_amount": 2}}, timer={"stay_s": 600})
    rig.handler()(lambda _: None)
    worker = rig.start()
    assert rig.node is not None
    with outage(rig.node.databases[0]) as broken:
        # Its jobs come first in each pop. The client reaches it all the while.
        away = [rig.center.schedule(rig.biz_id_on(0, n), SOON, biz_type=TYPE) for n in range(5)]
        here = [rig.center.schedule(rig.biz_id_on(2, n), SOON, biz_type=TYPE) for n in range(5)]
        rig.wait_for(Status.DONE, *here)
        wait_until(lambda: broken.refused > 0)
        # Put back, not left out until their stay is over; not popped in a loop either.
        wait_until(lambda: all(rig.armed_ms(job_id) for job_id in away))
        more = rig.center.schedule(rig.biz_id_on(2, 9), NOW, biz_type=TYPE)
        rig.wait_for(Status.DONE, more)
        assert {rig.status(job_id) for job_id in away} == {Status.PENDING}
    rig.wait_for(Status.DONE, *away)
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert {rig.row(job_id).attempts for job_id in away} == {1}


def poller_of(
    rig: Rig, slots: Reminders, permits: PermitSource, inboxes: Mapping[int, Inbox[JobBatch]]
) -> Poller:
    """A poller to be run step by step."""
    return Poller(
        "toc-poller",
        slots,
        "default",
        rig.settings.slot_amount_of("default"),
        permits,
        inboxes,
        rig.settings.routing,
        rig.clock,
        pop_max=100,
        stay_ms=1000,
        paused=lambda: False,
    )


class HalfAway:
    """Permits, of which database 0 gets none beside another one, and the claim stage of all databases."""

    def __init__(self) -> None:
        self.offered: list[JobBatch] = []
        self.given = 0

    def take_permits(self, database: int, wanted: int) -> int:
        return wanted

    def take_permits_in_each_database(
        self, databases: Collection[int], wanted: int
    ) -> tuple[int, frozenset[int]]:
        open_ = frozenset(databases) - {0} or frozenset(databases)
        self.given += wanted * len(open_)
        return wanted, open_

    def return_permits(self, database: int, permits: int) -> None:
        self.given -= permits

    def enqueue(self, batch: JobBatch, /) -> None:
        self.offered.append(batch)


def test_one_pop_for_two_databases_reaches_the_one_that_answers(make_rig: MakeRig) -> None:
    rig = make_rig(databases=2, topics={"default": {"slot_amount": 2}})
    first = rig.center.schedule(rig.biz_id_on(0), LONG_AGO, biz_type=TYPE)
    second = rig.center.schedule(rig.biz_id_on(2), NOW, biz_type=TYPE)
    away, slots = HalfAway(), rig.slots()
    assert slots is not None
    poller = poller_of(rig, slots, away, {0: away, 1: away})
    poller.set_slots([0])
    poller.run_once()
    assert [(batch.job_ids, batch.permits) for batch in away.offered] == [
        ([first], 0),
        ([second], 1),
    ]
    assert away.given == 1  # the batch carries it


def test_outcomes_wait_for_their_database(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler()(gate)
    worker = rig.start()
    assert rig.node is not None
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(4)]
    gate.wait(4)
    with outage(rig.node.databases[0]) as broken:
        gate.open.set()
        wait_until(lambda: broken.refused >= 3)
        assert worker.jobs_in_flight == 4
        assert {rig.status(job_id) for job_id in jobs} == {Status.RUNNING}
        assert all(rig.out_ms(job_id) or rig.armed_ms(job_id) for job_id in jobs)  # not acked yet
    rig.wait_for(Status.DONE, *jobs)
    wait_until(lambda: worker.jobs_in_flight == 0)
    wait_until(lambda: not any(rig.out_ms(job_id) or rig.armed_ms(job_id) for job_id in jobs))
    assert len(gate.begun) == 4


def test_redis_hears_of_an_outcome_only_after_the_database(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    job_id = rig.center.schedule(1, SOON, biz_type=TYPE)
    worker = rig.start()
    slots = worker.acks._reminders
    assert slots is not None
    answers: list[Status] = []
    ack = slots.ack

    def watched(topic: str, ids: object) -> None:
        answers.append(rig.status(job_id))
        ack(topic, ids)  # type: ignore[arg-type]

    slots.ack = watched  # type: ignore[method-assign]
    rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: rig.out_ms(job_id) is None)
    wait_until(lambda: answers)
    assert set(answers) == {Status.DONE}


def test_two_handlers_run_at_once_on_two_databases(make_rig: MakeRig) -> None:
    rig = make_rig(databases=2)
    both = threading.Barrier(2, timeout=20)
    rig.handler()(lambda _: both.wait())
    rig.start()
    jobs = [rig.center.schedule(rig.biz_id_on(shard), NOW, biz_type=TYPE) for shard in (0, 2)]
    rig.wait_for(Status.DONE, *jobs)
