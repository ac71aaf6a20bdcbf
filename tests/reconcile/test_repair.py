"""Repairs: what each kind of damage comes to, once, twice, and while others are at work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.test_mending import misfit, shift, with_routing_bits
from tests.reconcile.damage import (
    ACTOR,
    CASES,
    FAR_MS,
    LONG_MS,
    SOON_MS,
    K,
    Town,
    copy_of_row,
    in_the_wrong_table,
    lease_over,
    mark_ahead,
    missing,
    moved_from_afar,
    orphan,
    orphan_without_a_row,
    overdue,
    store,
    stuck,
    wrong_slot,
)
from toc.domain.ids import ROUTING_MASK, routing_bits_of
from toc.domain.job import Status
from toc.domain.routing import routing_hash_of
from toc.reconcile.findings import Finding, RepairResult
from toc.store.claims import OutcomeKind
from toc.timer.loader import Loader

# ---- once


@pytest.mark.parametrize("name", CASES)
def test_it_is_mended(town: Town, name: str) -> None:
    case = CASES[name](town)
    rows, events = town.rows(), town.events()
    assert town.mend(case.finding) == [RepairResult(case.finding, True, case.how)]
    assert town.redis() == case.redis
    new = town.events()[len(events) :]
    if case.finding.kind is K.MISFIT:
        assert [event[1] for event in new] == ["repair", "cancel"]
        assert Counter(row["status"] for row in town.rows()) == {0: 1, 3: 1}
        return
    status = None if case.finding.status is None else int(case.finding.status)
    wanted = (case.finding.job_id, "repair", status, status, ACTOR, case.reason)
    assert new == ([] if case.reason is None else [wanted])
    if case.finding.kind is K.MOVED:
        (row,) = town.rows()
        assert row["due_time"] == row["action_time"]
        rows[0] |= {"due_time": row["due_time"], "gmt_modified": row["gmt_modified"]}
    assert town.rows() == rows


@pytest.mark.parametrize("name", CASES)
def test_the_second_time_changes_nothing(town: Town, name: str) -> None:
    case = CASES[name](town)
    town.mend(case.finding)
    before = town.everything()
    mended = town.mend(case.finding)
    assert town.everything() == before
    # What is armed and still not taken is no matter of reminders any more.
    stays = case.finding.kind in (K.OVERDUE, K.LEASE_OVER)
    assert [mend.done for mend in mended] == [not stays]


def test_without_a_row_the_log_has_the_trace(small: Town, caplog: pytest.LogCaptureFixture) -> None:
    case = orphan_without_a_row(small)
    with caplog.at_level(logging.INFO, "toc.reconcile.repair"):
        small.mend(case.finding)
        small.mend(case.finding)
    slot = case.finding.slot
    assert caplog.messages == [
        f"repair: job {case.finding.job_id}, which has no row: orphan (default slot {slot}): removed"
    ]


def test_a_mark_leaves_a_line_in_the_log(small: Town, caplog: pytest.LogCaptureFixture) -> None:
    case = mark_ahead(small)
    with caplog.at_level(logging.INFO, "toc.reconcile.repair"):
        small.mend(case.finding)
        small.mend(case.finding)
    assert caplog.messages == [
        f"repair: mark_ahead: dropped the mark of default slot {case.finding.slot}"
    ]


def test_after_a_mark_is_dropped_the_loader_brings_all(town: Town) -> None:
    job_id = town.library.pending(in_ms=SOON_MS)
    later = town.library.pending(in_ms=2 * SOON_MS)
    loader: Loader = town.world.loader()
    loader.load_due_shards()
    topic, slot = town.home(job_id)
    town.slots.remove_reminders(topic, {slot: [job_id, later]})
    loader.load_due_shards()
    assert town.world.reminders() == 0  # the mark says that all is there
    town.mend(Finding(K.MARK_AHEAD, town.library.shard(job_id), topic, slot))
    loader.load_due_shards()
    assert town.world.reminder(job_id) == SOON_MS
    assert town.world.reminder(later) == 2 * SOON_MS


def test_several_of_one_job(town: Town) -> None:
    """Moved by hand, overdue since, in no queue: each rule says what is the case when it comes."""
    job_id = town.library.pending(in_ms=-LONG_MS)
    shift(town.library, job_id, -LONG_MS)
    kinds = [K.OVERDUE, K.MISSING, K.MOVED]
    repairs = town.mend(*(town.finding(kind, job_id) for kind in kinds))
    assert [(mend.finding.kind, mend.done, mend.how) for mend in repairs] == [
        (K.MOVED, True, "due at its action_time again"),
        (K.MISSING, True, "the reminder is in place by now"),
        (K.OVERDUE, True, "this run has just armed the reminder"),
    ]
    assert town.redis() == {store(town.home(job_id)): {job_id: -LONG_MS}}


def test_a_misfit_takes_all_its_findings_along(town: Town) -> None:
    job = misfit(town.library, 0, 1, in_ms=SOON_MS)
    town.put(("default", 3), job.job_id, SOON_MS)
    findings = [
        town.finding(K.WRONG_SLOT, job.job_id, ("default", 3)),
        town.finding(K.MISSING, job.job_id),
        town.finding(K.MISFIT, job.job_id),
    ]
    assert all(mend.done for mend in town.mend(*findings))
    new_id = with_routing_bits(job.job_id, routing_hash_of(job.biz_id) & ROUTING_MASK)
    assert town.redis() == {store(town.home(new_id)): {new_id: SOON_MS}}


def test_a_row_that_was_copied_by_hand_does_not_cost_the_real_one(town: Town) -> None:
    """Its id stands in two tables. The one in the wrong table goes, the reminder stays."""
    job_id = town.library.pending(in_ms=SOON_MS)
    wrong = copy_of_row(town, job_id)
    town.put(town.home(job_id), job_id, SOON_MS)
    town.put(("default", wrong), job_id, SOON_MS)
    town.mend(
        town.finding(K.MISFIT, job_id, shard=wrong),
        town.finding(K.WRONG_SLOT, job_id, ("default", wrong), shard=wrong),
    )
    assert town.redis() == {store(town.home(job_id)): {job_id: SOON_MS}}
    assert [row["status"] for row in town.rows()] in ([0, 3], [3, 0])
    before = town.everything()
    (mend,) = town.mend(town.finding(K.ORPHAN, job_id, shard=wrong))
    assert mend.how == "the job is live again: its reminder stays"
    assert town.everything() == before


def test_a_type_that_has_no_name_is_of_the_default_topic(town: Town) -> None:
    job_id = town.library.pending(in_ms=SOON_MS, type_no=4711)
    shard = town.library.shard(job_id)
    town.mend(Finding(K.MISSING, shard, *town.home(job_id), job_id))
    assert town.world.reminder(job_id) == SOON_MS


def test_thousands_at_once(town: Town) -> None:
    new = [town.library.new(n, in_ms=SOON_MS + n) for n in range(1500)]
    by_shard = {
        shard: [j for j in new if routing_bits_of(j.job_id) & 3 == shard] for shard in range(4)
    }
    for jobs in by_shard.values():
        town.library.insert(*jobs)
    findings = [town.finding(K.MISSING, job.job_id) for job in new]
    told: list[int] = []
    repairs = list(town.repairs().repair_findings(findings, told.append))
    assert {mend.finding.job_id for mend in repairs if mend.done} == {job.job_id for job in new}
    assert {i: ms for key in town.redis().values() for i, ms in key.items()} == {
        job.job_id: SOON_MS + job.biz_id for job in new
    }
    assert len(town.events()) == 1500
    assert told == sorted(told)
    assert told[-1] == 1500


# ---- what is no more the case


def nothing(make: Callable[[Town], tuple[Finding, str]], *, done: bool = True) -> Any:
    return pytest.param(make, done, id=make.__name__)


def missing_and_cancelled(town: Town) -> tuple[Finding, str]:
    case = missing(town)
    town.library.jobs.cancel(case.finding.job_id)
    return case.finding, "the job has ended meanwhile"


def missing_and_purged(town: Town) -> tuple[Finding, str]:
    case = missing(town)
    job_id = case.finding.job_id
    town.library.sql(job_id, f"DELETE FROM toc_job_{town.library.shard(job_id):04d}")
    return case.finding, "the row is gone"


def missing_and_claimed(town: Town) -> tuple[Finding, str]:
    job_id = town.library.pending()
    finding = town.finding(K.MISSING, job_id)
    town.library.claim([job_id], "one")
    return finding, "the job is running by now"


def missing_and_rescheduled_far(town: Town) -> tuple[Finding, str]:
    case = missing(town)
    town.library.jobs.reschedule(case.finding.job_id, town.now_ms + FAR_MS)
    return case.finding, "the job is due later by now: the loader arms it"


def missing_and_armed(town: Town) -> tuple[Finding, str]:
    case = missing(town)
    town.put(town.home(case.finding.job_id), case.finding.job_id, SOON_MS - 1)
    return case.finding, "the reminder is in place by now"


def missing_and_popped(town: Town) -> tuple[Finding, str]:
    case = missing(town)
    town.put(town.home(case.finding.job_id), case.finding.job_id, out_in_ms=10)
    return case.finding, "the reminder is in place by now"


def missing_in_the_wrong_table(town: Town) -> tuple[Finding, str]:
    case = in_the_wrong_table(town)
    town.slots.remove_reminders("default", {case.finding.slot: [case.finding.job_id]})
    how = "the row is in a table where no worker looks for it: repair that first"
    return case.finding._replace(kind=K.MISSING), how


def orphan_that_lives_again(town: Town) -> tuple[Finding, str]:
    case = orphan(OutcomeKind.BURY)(town)
    town.library.jobs.redrive(case.finding.job_id, town.now_ms)
    return case.finding, "the job is live again: its reminder stays"


def orphan_that_went(town: Town) -> tuple[Finding, str]:
    case = orphan(OutcomeKind.DONE)(town)
    town.slots.remove_reminders(case.finding.topic, {case.finding.slot: [case.finding.job_id]})
    return case.finding, "the reminder is no longer in that slot"


def wrong_slot_that_was_left(town: Town) -> tuple[Finding, str]:
    case = wrong_slot(town)
    town.slots.remove_reminders(case.finding.topic, {case.finding.slot: [case.finding.job_id]})
    return case.finding, "the reminder is no longer in that slot"


def wrong_slot_that_is_right(town: Town) -> tuple[Finding, str]:
    case = wrong_slot(town)
    topic, slot = town.home(case.finding.job_id)
    town.put((topic, slot), case.finding.job_id, SOON_MS)
    return case.finding._replace(topic=topic, slot=slot), "the slot is the job's own by now"


def stuck_and_back(town: Town) -> tuple[Finding, str]:
    case = stuck(town)
    job_id = case.finding.job_id
    town.slots.remove_reminders(case.finding.topic, {case.finding.slot: [job_id]})
    town.put(town.home(job_id), job_id, SOON_MS)
    return case.finding, "the reminder is no longer in the PrepareQueue"


def stuck_and_popped_anew(town: Town) -> tuple[Finding, str]:
    case = stuck(town)
    town.put(town.home(case.finding.job_id), case.finding.job_id, out_in_ms=10)
    return case.finding, "the reminder was popped again meanwhile"


def overdue_and_rescheduled(town: Town) -> tuple[Finding, str]:
    case = overdue(town)
    town.library.jobs.reschedule(case.finding.job_id, town.now_ms + 1)
    return case.finding, "the job is due later by now"


def overdue_and_done(town: Town) -> tuple[Finding, str]:
    case = overdue(town)
    town.library.claim([case.finding.job_id], "one")
    assert town.library.settle_as(OutcomeKind.DONE, case.finding.job_id, "one")
    return case.finding, "the job has ended meanwhile"


def overdue_and_armed(town: Town) -> tuple[Finding, str]:
    case = overdue(town)
    town.put(town.home(case.finding.job_id), case.finding.job_id, -1)
    return case.finding, "the reminder is armed, but no worker takes it"


def lease_over_and_taken_over(town: Town) -> tuple[Finding, str]:
    case = lease_over(town)
    assert town.library.take_over(case.finding.job_id, "gone", "new")
    return case.finding, "the job is due later by now"


def moved_and_rescheduled(town: Town) -> tuple[Finding, str]:
    """A client knows better; the reminder is his."""
    case = moved_from_afar(town)
    assert town.world.center.reschedule(case.finding.job_id, timedelta(minutes=5)) == "rescheduled"
    return case.finding, "the row was corrected meanwhile"


def moved_and_cancelled(town: Town) -> tuple[Finding, str]:
    case = moved_from_afar(town)
    assert town.library.jobs.cancel(case.finding.job_id) == "cancelled"
    return case.finding, "the job has ended meanwhile"


def moved_and_claimed(town: Town) -> tuple[Finding, str]:
    job_id = town.library.pending(in_ms=SOON_MS)
    shift(town.library, job_id, -2 * SOON_MS)
    finding = town.finding(K.MOVED, job_id)
    town.library.claim([job_id], "one")
    return finding, "the job is running by now"


def moved_again(town: Town) -> tuple[Finding, str]:
    case = moved_from_afar(town)
    shift(town.library, case.finding.job_id, SOON_MS)
    return case.finding, "the row was changed again meanwhile"


def misfit_that_runs(town: Town) -> tuple[Finding, str]:
    job = misfit(town.library, 0, 1, in_ms=0)
    finding = town.finding(K.MISFIT, job.job_id)
    town.library.claim([job.job_id], "one")
    return finding, "the job is running: repaired when the job is pending again"


def misfit_that_was_cancelled(town: Town) -> tuple[Finding, str]:
    job = misfit(town.library, 0, 1)
    finding = town.finding(K.MISFIT, job.job_id)
    town.library.jobs.cancel(job.job_id)
    return finding, "the job has ended meanwhile"


def misfit_that_had_ended(town: Town) -> tuple[Finding, str]:
    job = misfit(town.library, 0, 1)
    town.library.jobs.cancel(job.job_id)
    return town.finding(K.MISFIT, job.job_id), "the job has ended meanwhile"


def misfit_whose_key_is_held(town: Town) -> tuple[Finding, str]:
    job = misfit(town.library, 0, 1, key="k")
    town.library.insert(town.library.new(job.biz_id, key="k"))
    return town.finding(K.MISFIT, job.job_id), "another live job holds the key of the job"


@pytest.mark.parametrize(
    ("make", "done"),
    [
        nothing(missing_and_cancelled),
        nothing(missing_and_purged),
        nothing(missing_and_claimed),
        nothing(missing_and_rescheduled_far),
        nothing(missing_and_armed),
        nothing(missing_and_popped),
        nothing(missing_in_the_wrong_table, done=False),
        nothing(orphan_that_lives_again),
        nothing(orphan_that_went),
        nothing(wrong_slot_that_was_left),
        nothing(wrong_slot_that_is_right, done=False),
        nothing(stuck_and_back),
        nothing(stuck_and_popped_anew),
        nothing(overdue_and_rescheduled),
        nothing(overdue_and_done),
        nothing(overdue_and_armed, done=False),
        nothing(lease_over_and_taken_over),
        nothing(moved_and_rescheduled),
        nothing(moved_and_cancelled),
        nothing(moved_and_claimed),
        nothing(moved_again, done=False),
        nothing(misfit_that_runs, done=False),
        nothing(misfit_that_was_cancelled),
        nothing(misfit_that_had_ended, done=False),
        nothing(misfit_whose_key_is_held, done=False),
    ],
)
def test_what_is_no_more_the_case_is_left_alone(
    town: Town, make: Callable[[Town], tuple[Finding, str]], done: bool
) -> None:
    finding, how = make(town)
    before = town.everything()
    assert town.mend(finding) == [RepairResult(finding, done, how)]
    assert town.everything() == before


# ---- races


class Between:
    """Slots where something happens right before an ack. `acked`: what was forgotten, and where."""

    def __init__(self, town: Town, what: Callable[[], object] = lambda: None) -> None:
        self._slots, self._what = town.slots, what
        self.acked: set[tuple[str, int, int]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slots, name)

    def remove_reminders(self, topic: str, ids: Mapping[int, Sequence[int]]) -> None:
        self._what()
        self.acked |= {(topic, slot, job_id) for slot, some in ids.items() for job_id in some}
        self._slots.remove_reminders(topic, ids)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_redrive_before_the_ack_keeps_its_reminder(town: Town, is_stuck: bool) -> None:
    """The ack knows only the id: it takes the reminder of the living, and the second look brings it."""
    job_id = town.library.dead(biz_id=7)
    spot = town.home(job_id)
    if is_stuck:
        town.put(spot, job_id, out_in_ms=-LONG_MS)
        finding = town.finding(K.STUCK, job_id)
    else:
        town.put(spot, job_id, -5)
        finding = town.finding(K.ORPHAN, job_id)
    slots = Between(town, lambda: town.world.center.redrive(job_id))
    (mend,) = town.repairs(slots=slots).repair_findings([finding])
    assert mend.done
    assert town.library.row(job_id).status == Status.PENDING
    assert town.redis() == {store(spot): {job_id: 0}}


def test_a_redrive_before_the_ack_in_a_wrong_slot_keeps_its_reminder(town: Town) -> None:
    """A client whose settings are of another day arms it in the very slot that is swept."""
    job_id = town.library.dead(biz_id=7)
    wrong = town.other(town.home(job_id))
    town.put(wrong, job_id, -5)

    def redrive() -> None:
        town.library.jobs.redrive(job_id, town.now_ms + 5)
        town.put(wrong, job_id, 5)

    finding = town.finding(K.ORPHAN, job_id, wrong)
    list(town.repairs(slots=Between(town, redrive)).repair_findings([finding]))
    assert town.redis() == {store(town.home(job_id)): {job_id: 5}}


def test_a_redrive_for_a_far_day_needs_no_reminder(town: Town) -> None:
    job_id = town.library.dead(biz_id=7)
    town.put(town.home(job_id), job_id, -5)
    slots = Between(town, lambda: town.library.jobs.redrive(job_id, town.now_ms + FAR_MS))
    list(town.repairs(slots=slots).repair_findings([town.finding(K.ORPHAN, job_id)]))
    assert town.redis() == {}


def test_a_row_that_goes_home_under_its_id_is_reminded_of_all_the_time(town: Town) -> None:
    case = in_the_wrong_table(town)
    slots = Between(town)
    list(town.repairs(slots=slots).repair_findings([case.finding]))
    job_id, wrong = case.finding.job_id, (case.finding.topic, case.finding.slot)
    assert slots.acked == {(*wrong, job_id)}


def test_a_job_that_ends_while_it_is_moved_to_its_slot(town: Town) -> None:
    """The reminder of an ended job is legal for a moment: it is forgotten when it is popped."""
    case = wrong_slot(town)
    slots = Between(town, lambda: town.library.jobs.cancel(case.finding.job_id))
    list(town.repairs(slots=slots).repair_findings([case.finding]))
    assert town.redis() == case.redis
    assert town.library.row(case.finding.job_id).status == Status.CANCELLED
