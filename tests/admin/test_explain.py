"""`toc explain`: what it says must be what is the case, on every engine and with a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.admin.desk import ANN, RUN, WHY, Desk, order
from tests.contract.library import LEASE_MS, Library
from tests.integration.world import World
from tests.servers.endpoint import Endpoint
from tests.servers.process import free_port
from tests.worker.conftest import make_rig
from tests.worker.rig import LONG_AGO, TYPE, Gate, Rig
from tests.worker.test_declared import declare
from tests.worker.waiting import wait_until
from toc.admin.job_explanation import JobExplanation, compute_job_delays, explain_job
from toc.admin.job_meaning import JobMeaning, describe_job_state
from toc.cli.explain import _explanation_as_json, _explanation_as_text
from toc.cli.time_texts import iso_utc
from toc.domain.ids import JOB_ID_MAX, routing_bits_of
from toc.domain.job import Status
from toc.errors import InvalidInput, SchemaMismatch
from toc.node.node import Node
from toc.runtime.setting_groups import TopicSettings
from toc.runtime.settings import Settings
from toc.store.claims import OutcomeKind
from toc.store.purge_pages import PurgePages
from toc.timer.reminders import Reminder

__all__ = ["make_rig"]

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
TOKEN = "shop7:4711:00c0ffee0000:12"


@pytest.fixture
def desk(library: Library, redis_server: Endpoint) -> Iterator[Desk]:
    world = World(library, redis_server.url)
    yield Desk(world)
    world.close()


def look(desk: Desk, job_id: int, **changes: Any) -> tuple[JobExplanation, JobMeaning]:
    settings = desk.world.settings.model_copy(update=changes)
    found = explain_job(settings, job_id, desk.world.clock)
    means = describe_job_state(found, settings)
    # However it is shown, nothing is missing and nothing fails.
    late = None if found.record is None else compute_job_delays(found.record)
    assert str(job_id) in _explanation_as_text(found, means, late)
    assert json.loads(json.dumps(_explanation_as_json(found, means, late)))["job_id"] == str(job_id)
    return found, means


def says(
    desk: Desk, job_id: int, agrees: bool | None, words: str, **changes: Any
) -> JobExplanation:
    found, means = look(desk, job_id, **changes)
    assert means == JobMeaning(agrees, words)
    return found


def schedule(desk: Desk, in_ms: int, **fields: Any) -> int:
    wanted = {"biz_type": "order.close"} | fields
    return desk.world.center.schedule(42, timedelta(milliseconds=in_ms), **wanted)


def pop(desk: Desk, job_id: int) -> None:
    (popped,) = desk.world.slots.pop("default", [(desk.world.slot(job_id), 9)], 30_000)
    assert job_id in popped.ids


def forget(desk: Desk, job_id: int) -> None:
    desk.world.slots.ack("default", [job_id])


# ---- the row


def test_the_whole_row_is_told(desk: Desk) -> None:
    library = desk.library
    note = {"note": "größer", "n": [1, None]}
    job_id = schedule(desk, 5 * MINUTE, attribute=note, dedup_key="k")
    found, _ = look(desk, job_id)
    assert found.record is not None
    assert found.record.job == library.jobs.get(job_id)
    row = library.row(job_id)
    assert (found.record.created_ms, found.record.modified_ms) == (row.created_ms, row.modified_ms)
    assert found.now_ms == library.now_ms
    shard = library.shard(job_id)
    home = found.home
    assert (home.shard, home.database, home.table) == (shard, 0, f"toc_job_{shard:04d}")
    assert home.created_ms == library.now_ms
    shown = _explanation_as_text(
        found, describe_job_state(found, desk.world.settings), compute_job_delays(found.record)
    )
    for word in ("order.close", '{"note": "größer", "n": [1, null]}', "'k'", home.table,
                 "action_time   2026-01-01 00:05:00.000Z (in 5m 0s)", "0 (pending)"):  # fmt: skip
        assert word in shown
    value = _explanation_as_json(found, JobMeaning(True, ""), compute_job_delays(found.record))
    assert value["row"]["attribute"] == note
    assert value["row"]["due_time"] == "2026-01-01T00:05:00.000Z"
    assert value["found"] is True


def test_texts_of_others_do_not_command_the_terminal(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE, attribute={"x": "\x1b[31m"})
    desk.library.jobs.cancel(job_id, "red \x1b[31m [bold]")
    found, means = look(desk, job_id)
    assert found.record is not None
    shown = _explanation_as_text(found, means, compute_job_delays(found.record))
    assert "\x1b" not in shown
    assert "red \\x1b[31m [bold]" in shown


def test_a_type_without_a_name(desk: Desk) -> None:
    job_id = desk.library.pending()
    table = f"toc_job_{desk.library.shard(job_id):04d}"
    desk.library.sql(job_id, f"UPDATE {table} SET type_no = 999, attribute = 'no json'")
    found, _ = look(desk, job_id)
    assert found.record is not None
    assert found.record.job.biz_type == "number 999, which has no name"


# ---- pending


def test_pending_far(desk: Desk) -> None:
    job_id = schedule(desk, HOUR)
    found = says(desk, job_id, True, "due in 1h 0m, not in Redis yet: beyond the horizon of 15m 0s")
    assert found.own_topic_reminder is not None
    assert found.own_topic_reminder.has_no_reminder


def test_pending_and_armed(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    found = says(desk, job_id, True, "due in 5m 0s, and armed for that moment")
    place, slot = found.own_topic_reminder, desk.world.slot(job_id)
    assert place is not None
    assert (place.topic, place.slot, place.out_ms) == ("default", slot, None)
    assert place.armed_ms == desk.library.now_ms + 5 * MINUTE
    client = desk.world.slots.connected_client()
    assert client.zscore(place.store_key, job_id) == place.armed_ms  # by the name that is told
    pop_at = desk.library.clock
    pop_at.advance(5 * 60)
    pop(desk, job_id)
    place = look(desk, job_id)[0].own_topic_reminder
    assert place is not None
    assert client.zscore(place.prepare_key, job_id) == place.out_ms


def test_pending_near_and_not_in_redis(desk: Desk) -> None:
    job_id = desk.library.pending(in_ms=5 * MINUTE)
    says(
        desk,
        job_id,
        False,
        "due in 5m 0s, and not in Redis: the loader brings it within moments, else the scanner "
        "takes it within 40s after its time",
    )


def test_armed_too_early_and_too_late(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    desk.library.jobs.reschedule(job_id, desk.library.now_ms + 9 * MINUTE)
    early = "due in 9m 0s, but armed 4m 0s earlier: the job was moved; the claim corrects it"
    says(desk, job_id, False, early)
    desk.library.jobs.reschedule(job_id, desk.library.now_ms + 2 * MINUTE)
    late = "due in 2m 0s, but armed 3m 0s later: the scanner takes it within 40s after its time"
    says(desk, job_id, False, late)
    desk.library.clock.advance(125)
    overdue = "overdue by 5s, but armed for later: the scanner takes it within 35s"
    says(desk, job_id, False, overdue)


def test_popped_before_its_time(desk: Desk) -> None:
    job_id = schedule(desk, 0)
    desk.library.jobs.reschedule(job_id, desk.library.now_ms + 9 * MINUTE)
    pop(desk, job_id)
    says(
        desk,
        job_id,
        False,
        "due in 9m 0s, but its reminder was popped already: the claim puts it back",
    )


def test_overdue(desk: Desk) -> None:
    job_id = schedule(desk, 0)
    desk.library.clock.advance(2)
    says(
        desk, job_id, True, "overdue by 2s, and armed: a worker takes it at once, if it handles the type"
    )  # fmt: skip
    pop(desk, job_id)
    popped = "overdue by 2s; popped, and on its way to a worker; its reminder comes back in 30s"
    says(desk, job_id, True, popped)
    forget(desk, job_id)
    desk.library.clock.advance(28)
    alone = "overdue by 30s and in no queue: the scanner takes it within 10s"
    says(desk, job_id, False, alone)
    desk.library.clock.advance(30)
    nobody = (
        "overdue by 1m 0s and in no queue: the scanner should have taken it: is there a worker with "
        "a handler for order.close? (`toc status`)"
    )
    says(desk, job_id, False, nobody)


# ---- running


def test_overdue_because_of_a_limit(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    declare(rig, TYPE, rate="5/s", concurrency=2)
    job_id = rig.center.schedule(42, LONG_AGO, biz_type=TYPE)
    found = explain_job(rig.settings, job_id)
    means = describe_job_state(found, rig.settings)
    assert means.agrees
    limited = "its type is limited (5/s (burst 5), 2 at once), so it may wait for its turn"
    assert limited in means.text


def test_running_under_a_lease(desk: Desk) -> None:
    job_id = schedule(desk, 0)
    pop(desk, job_id)
    desk.library.clock.advance(1.5)
    desk.library.claim([job_id], TOKEN)
    desk.library.clock.advance(2)
    words = "running under the lease of shop7:4711 until 2026-01-01 00:01:01.500 UTC, 58s left"
    assert LEASE_MS == 60_000
    found = says(desk, job_id, True, words)
    assert found.record is not None
    assert compute_job_delays(found.record).claimed_after_ms == 1500
    assert compute_job_delays(found.record).ended_after_ms is None
    desk.library.clock.advance(LEASE_MS / 1000)
    over = (
        "the lease of shop7:4711 was over 2s ago: it died, or its handler hangs; the next worker "
        "that pops or scans the job takes it over"
    )
    says(desk, job_id, True, over)
    desk.library.take_over(job_id, TOKEN, "shop8:1:00c0ffee0001:1")
    found, means = look(desk, job_id)
    assert (
        means.text
        == "running under the lease of shop8:1 until 2026-01-01 00:02:03.500 UTC, 1m 0s left"
    )
    (event,) = found.events
    assert (event.what, event.attempts) == ("take_over", 2)
    assert TOKEN in str(event.reason)


# ---- retried, dead, redriven, done


def test_retried(desk: Desk) -> None:
    job_id = schedule(desk, 0)
    desk.library.claim([job_id], TOKEN)
    due_ms = desk.library.now_ms + 90 * SECOND
    desk.library.settle_as(OutcomeKind.RETRY, job_id, TOKEN, due_ms, "boom")
    desk.world.slots.put_back("default", [Reminder(due_ms, job_id)])
    words = "due in 1m 30s, after 1 attempt, but armed 1m 30s earlier: "
    words += "the job was moved; the claim corrects it"
    says(desk, job_id, False, words)  # put_back never makes a reminder later: the earliest wins
    forget(desk, job_id)
    desk.world.slots.put_back("default", [Reminder(due_ms, job_id)])
    found = says(desk, job_id, True, "due in 1m 30s, after 1 attempt, and armed for that moment")
    (event,) = found.events
    assert (event.what, event.actor, event.reason) == ("retry", "shop7:4711", "boom")


def test_dead_and_redriven(desk: Desk) -> None:
    job_id = schedule(desk, -2 * SECOND)
    pop(desk, job_id)
    desk.library.claim([job_id], TOKEN)
    desk.library.clock.advance(3)
    desk.library.settle_as(OutcomeKind.BURY, job_id, TOKEN, error="no luck\nat line 5")
    forget(desk, job_id)
    desk.library.clock.advance(60)
    words = (
        "dead 1m 0s ago, after 1 attempt; `toc dead redrive` makes it pending again, "
        "`toc dead discard` cancels it"
    )
    found = says(desk, job_id, True, words)
    assert found.record is not None
    assert found.record.letter is not None
    assert found.record.letter.error == "no luck\nat line 5"
    assert compute_job_delays(found.record).claimed_after_ms == 2000
    assert compute_job_delays(found.record).ended_after_ms == 3000
    desk.run(order("redrive"))
    found, means = look(desk, job_id)
    assert means.agrees is True
    assert "armed: a worker takes it at once" in means.text
    assert [event.what for event in found.events] == ["bury", "redrive"]
    assert found.record is not None
    assert found.record.letter is None
    assert (
        compute_job_delays(found.record).claimed_after_ms is None
    )  # that claim was an earlier life's


def test_done(desk: Desk) -> None:
    job_id = schedule(desk, 0)
    desk.library.clock.advance(0.25)
    pop(desk, job_id)
    desk.library.claim([job_id], TOKEN)
    desk.library.clock.advance(1)
    desk.library.settle_as(OutcomeKind.DONE, job_id, TOKEN)
    left = (
        "done 0s ago, after 1 attempt; Redis still has its reminder, which the next claim removes"
    )
    says(desk, job_id, False, left)
    forget(desk, job_id)
    found = says(desk, job_id, True, "done 0s ago, after 1 attempt")
    assert found.record is not None
    late = compute_job_delays(found.record)
    assert (late.claimed_after_ms, late.ended_after_ms) == (250, 1000)
    shown = _explanation_as_text(found, JobMeaning(True, ""), late)
    assert "claimed  0.25s after its action_time" in shown
    assert "ended    1s after that" in shown


def test_how_long_a_failed_attempt_took(desk: Desk) -> None:
    job_id = schedule(desk, 0)
    desk.library.claim([job_id], TOKEN)
    began = iso_utc(desk.library.now_ms)
    desk.library.clock.advance(1)
    desk.library.settle_as(OutcomeKind.RETRY, job_id, TOKEN, desk.library.now_ms, "no")
    desk.library.jobs.cancel(job_id, "enough")
    found, means = look(desk, job_id)
    shown = _explanation_as_text(found, means, None)
    assert "retry (running -> pending, attempts 1) after 1s by shop7:4711" in shown
    assert "cancel (pending -> cancelled, attempts 1) by" in shown
    events = _explanation_as_json(found, means, None)["events"]
    assert [(event["claim_time"], event["took_ms"]) for event in events] == [
        (began, 1000), (None, None),
    ]  # fmt: skip


# ---- by a person


def test_cancelled_by_a_person(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    desk.library.jobs.actor = "bob@laptop"
    desk.library.jobs.cancel(job_id, "asked to")
    left = "cancelled 0s ago; Redis still has its reminder, which the next claim removes"
    found = says(desk, job_id, False, left)
    (event,) = found.events
    assert (event.what, event.actor, event.reason) == ("cancel", "bob@laptop", "asked to")
    account = account_of(desk, job_id)
    assert event.account == account
    beside = f" (account {account})" if account else ""
    shown = _explanation_as_text(found, JobMeaning(None, ""), None)
    assert f"cancel (pending -> cancelled) by bob@laptop{beside}: asked to" in shown
    assert (
        _explanation_as_json(found, JobMeaning(None, ""), None)["events"][0]["account"] == account
    )


def account_of(desk: Desk, job_id: int) -> str | None:
    """The database account of the tests, by the server's word."""
    if desk.library.sqlite:
        return None
    ((account,),) = desk.library.sql(job_id, "SELECT CURRENT_USER()")
    assert "@" in account
    return str(account)


def test_cancelled_and_postponed_by_the_admin(desk: Desk) -> None:
    one, two = schedule(desk, 5 * MINUTE), schedule(desk, 5 * MINUTE)
    desk.run(order("cancel", f"job_id = {one}"))
    found, means = look(desk, one)
    assert means.agrees is True
    assert [(e.actor, e.reason, e.run_id) for e in found.events] == [(ANN, WHY, RUN)]
    desk.run(order("postpone", f"job_id = {two}", to_ms=desk.library.now_ms + HOUR))
    found, means = look(desk, two)
    assert "but armed 55m 0s earlier: the job was moved; the claim corrects it" in means.text
    assert [(e.what, e.actor) for e in found.events] == [("reschedule", ANN)]
    shown = _explanation_as_text(found, means, None)
    account = account_of(desk, two)
    beside = f" (account {account})" if account else ""
    assert (
        f"reschedule (pending -> pending) by {ANN}{beside} in run {RUN}: to 2026-01-01 01:00:00"
        in shown
    )


# ---- topics


def test_a_topic_of_its_own(desk: Desk) -> None:
    job_id = desk.world.center.schedule(42, timedelta(minutes=5), biz_type="vip.close")
    found, means = look(desk, job_id)
    assert means.agrees is True
    (place,) = found.places
    assert (place.topic, place.slot) == ("vip", routing_bits_of(job_id) & 1)
    assert ":vip_" in place.store_key


def test_a_reminder_that_was_left_in_another_topic(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    moved = {"vip": TopicSettings(slot_amount=2, biz_types=("order.close",))}
    found, means = look(desk, job_id, topics=moved)
    assert [place.topic for place in found.places] == ["vip", "default"]
    assert means.agrees is False
    assert "and not in Redis" in means.text


# ---- no such job


def test_a_job_that_is_not_there(desk: Desk) -> None:
    gone = desk.library.new().job_id
    desk.library.clock.advance(90)
    purged = (
        "there is no such job: by its id it was made 1m 30s ago; by these settings jobs of its age are "
        "not purged yet: somebody deleted it, or it never existed"
    )
    found = says(desk, gone, True, purged)
    assert (found.record, found.events) == (None, [])
    assert [place.topic for place in found.places] == ["default", "vip"]
    desk.world.slots.arm("default", [Reminder(desk.library.now_ms, gone)])
    says(desk, gone, False, f"{purged}; the next claim removes its reminder")
    never = "there is no such job: by its id it would be made in"
    assert look(desk, JOB_ID_MAX)[1].text.startswith(never)
    old = look(desk, 0)[1].text
    assert old.startswith("there is no such job: by its id it was made 731d")
    assert old.endswith(
        "perhaps it was purged before purges were counted (nothing is counted yet), or somebody deleted it, "
        "or it never existed"
    )


def test_events_outlive_their_job(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    desk.library.jobs.cancel(job_id)
    table = f"toc_job_{desk.library.shard(job_id):04d}"
    desk.library.sql(job_id, f"DELETE FROM {table}")
    found, means = look(desk, job_id)
    assert means.text == (
        "there is no such job: by its id it was made 0s ago; by these settings jobs of its age are "
        "not purged yet: it has events; somebody deleted it; the next claim "
        "removes its reminder"
    )
    assert [event.what for event in found.events] == ["cancel"]


def purge(library: Library, *job_ids: int) -> None:
    """As retention does it, all pages being one."""
    library.clock.advance(1)
    purges = PurgePages(library.databases)
    for shard in {library.shard(job_id) for job_id in job_ids}:
        rows = purges.read_purge_page(shard, 0, library.now_ms, 1000)
        purges.delete_unchanged_jobs(shard, [row for row in rows if row.job_id in job_ids])


def test_a_purged_job_and_the_days_on_which_jobs_of_its_age_were_purged(desk: Desk) -> None:
    library = desk.library
    first = [library.ended(OutcomeKind.DONE) for _ in range(3)]
    gone = library.ended(OutcomeKind.DONE)
    dropped = library.ended(OutcomeKind.DROP)  # which leaves an event
    last = library.ended(OutcomeKind.DONE)
    report = library.ended(OutcomeKind.DONE, type_no=library.report_no)
    library.clock.advance(31 * 86_400)
    purge(library, *first[1:], gone, dropped, last, report)
    made = "there is no such job: by its id it was made 31d 0h ago; jobs made before and after it were purged"
    done = "on 2026-02-01 (4 done of order.close)"
    found = says(
        desk, gone, True, f"{made} {done}: it was likely purged with them, or it never existed"
    )
    shown = _explanation_as_text(found, JobMeaning(None, ""), None)
    assert f"  2026-02-01  4 done of order.close, ids {first[1]} to {last}" in shown
    both = "on 2026-02-01 (4 done of order.close, 1 cancelled of order.close)"
    likely = "it has events; it was likely purged with them"
    found = says(desk, dropped, True, f"{made} {both}: {likely}")
    assert [event.what for event in found.events] == ["drop"]
    # A job that lived for longer goes on another day, and its day encloses all between.
    library.clock.advance(86_400)
    purge(library, first[0])
    far = library.ended(OutcomeKind.DONE)
    purge(library, far)
    found, means = look(desk, gone)
    assert (
        "on 2026-02-01 (4 done of order.close), on 2026-02-02 (2 done of order.close): "
        in means.text
    )
    assert found.purges is not None
    assert [one.jobs for one in found.purges.counts] == [4, 2]  # the closest first
    value = _explanation_as_json(found, means, None)["purges"]
    assert value["closest"][0] == {
        "day": "2026-02-01", "biz_type": "order.close", "status": "done", "jobs": 4,
        "first_id": str(first[1]), "last_id": str(last),
    }  # fmt: skip
    assert (value["counted_since"], value["days"]) == ("2026-02-01", 2)


def test_more_days_than_are_told(desk: Desk) -> None:
    library = desk.library
    gone = library.new().job_id
    for day in range(1, 6):
        library.sql(
            library.pending(),
            f"INSERT INTO toc_purge (day, type_no, status, jobs, first_id, last_id) VALUES "
            f"('2026-03-0{day}', {library.close_no}, 2, {day}234, {gone - day}, {gone + day})",
        )
    library.clock.advance(70 * 86_400)
    told = ", ".join(f"on 2026-03-0{day} ({day},234 done of order.close)" for day in (1, 2, 3))
    assert f"purged {told} and on 2 more days: it was likely" in look(desk, gone)[1].text


def test_what_no_count_encloses_was_not_purged(desk: Desk) -> None:
    """All purges since before it was made are counted: known, and not only likely."""
    library = desk.library
    old = library.ended(OutcomeKind.DONE)
    purge(library, old)
    library.clock.advance(86_400)
    gone = library.new().job_id
    library.clock.advance(60 * 86_400)
    says(desk, gone, True,
         "there is no such job: by its id it was made 60d 0h ago; no jobs of its age were purged "
         "(counted since 2026-01-01): somebody deleted it, or it never existed")  # fmt: skip
    before = old - (1 << 22) * 86_400_000
    assert look(desk, before)[1].text.endswith(
        "perhaps it was purged before purges were counted (counted since 2026-01-01), or somebody "
        "deleted it, or it never existed"
    )


@pytest.mark.parametrize("job_id", [-1, JOB_ID_MAX + 1])
def test_what_is_no_id(desk: Desk, job_id: int) -> None:
    with pytest.raises(InvalidInput, match="job_id"):
        explain_job(desk.world.settings, job_id, desk.world.clock)


# ---- servers that are away


def test_without_redis(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    none = "due in 5m 0s; there is no Redis: the scanner takes it within 10s after its time"
    says(desk, job_id, None, none, redis_url="none")
    away = f"redis://127.0.0.1:{free_port()}/0"
    unknown = (
        "due in 5m 0s; Redis does not answer, so its reminder is not known; the scanner takes the job, "
        "1 to 3 s late"
    )
    found = says(desk, job_id, None, unknown, redis_url=away)
    assert list(found.troubles) == ["redis"]
    assert found.troubles["redis"].startswith("Redis does not answer: ")
    assert found.record is not None


def test_without_zookeeper(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    found, means = look(desk, job_id, zookeeper_hosts=f"127.0.0.1:{free_port()}")
    assert means.text == "due in 5m 0s, and armed for that moment"
    assert list(found.troubles) == ["zookeeper"]
    found, _ = look(desk, job_id)
    assert found.troubles == {}
    assert "every node: there is no ZooKeeper" in _explanation_as_text(found, means, None)


def test_without_its_database(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    url = "sqlite:////no/such/directory/toc.db"
    if not desk.library.sqlite:
        url = f"mysql+pymysql://root:hidden@127.0.0.1:{free_port()}/toc"
    found, means = look(desk, job_id, databases=(url,))
    assert means.text == "its database does not answer, so its state is not known"
    assert list(found.troubles) == ["database 0"]
    assert found.database_error is not None
    assert found.record is None
    place = next(place for place in found.places if place.topic == "default")
    assert place.armed_ms is not None  # Redis has it all the same
    shown = _explanation_as_text(found, means, None)
    assert "hidden" not in shown
    assert "missing: database 0 does not answer" in shown


@pytest.mark.parametrize("table", ["toc_job_#", "toc_event", "toc_dead_job", "toc_meta"])
def test_a_dropped_table_is_named(desk: Desk, table: str) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    name = table.replace("#", f"{desk.library.shard(job_id):04d}")
    desk.library.sql(job_id, f"ALTER TABLE {name} RENAME TO away")
    try:
        found, _ = look(desk, job_id)
    finally:
        desk.library.sql(job_id, f"ALTER TABLE away RENAME TO {name}")
    assert isinstance(found.database_error, SchemaMismatch)
    assert found.troubles["database 0"].startswith("database 0, table toc_")
    assert name in found.troubles["database 0"]


def test_other_settings_than_the_databases_are_refused(desk: Desk) -> None:
    job_id = schedule(desk, 5 * MINUTE)
    wrong = desk.world.settings.model_copy(update={"shards": 8, "topics": {}})
    with pytest.raises(SchemaMismatch, match="database 0 was set up with shards = 4"):
        explain_job(wrong, job_id, desk.world.clock)


# ---- real nodes


def tell(settings: Settings, job_id: int) -> tuple[JobExplanation, str]:
    found = explain_job(settings, job_id)
    return found, describe_job_state(found, settings).text


def test_what_a_worker_does_is_what_is_told(make_rig: Any) -> None:
    rig: Rig = make_rig()
    gate = Gate()
    rig.handler(timeout=5)(gate)
    rig.start()
    rig.wait_for_loader()
    job_id = rig.center.schedule(42, timedelta(), biz_type=TYPE)
    gate.wait()
    found, words = tell(rig.settings, job_id)
    assert rig.node is not None
    holder = ":".join(rig.node.identity.split(":")[:2])
    assert words.startswith(f"running under the lease of {holder} until ")
    assert words.endswith("s left")
    assert found.record is not None
    assert found.record.job.token is not None
    assert found.record.job.token.startswith(rig.node.identity)
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: tell(rig.settings, job_id)[0].own_topic_reminder.has_no_reminder, "the ack")  # type: ignore[union-attr]
    found, words = tell(rig.settings, job_id)
    assert words.startswith("done ")
    assert found.record is not None
    late = compute_job_delays(found.record)
    assert late.claimed_after_ms is not None
    assert late.ended_after_ms is not None
    assert late.claimed_after_ms >= 0


def test_owners_and_deputies(
    make_rig: Any, zookeeper_server: Endpoint, zookeeper_root: str, tmp_path: Path
) -> None:
    rig: Rig = make_rig(
        zookeeper_hosts=f"{zookeeper_server.url}{zookeeper_root}", cluster={"session_timeout_s": 2}
    )
    rig.handler()(lambda job: None)
    job_id = rig.center.schedule(42, timedelta(minutes=5), biz_type=TYPE)
    nobody, _ = tell(rig.settings, job_id)
    assert nobody.members == []
    assert nobody.owners == {"": [], "default": []}
    nodes = [Node(rig.settings, handlers=rig.registry) for _ in range(2)]
    try:
        for node in nodes:
            node.start()
        names = {node.identity for node in nodes}

        def shared() -> JobExplanation | None:
            found, _ = tell(rig.settings, job_id)
            owners = [owner for of_thing in found.owners.values() for owner in of_thing]
            whole = len(owners) == 2 and all(owner.deputy for owner in owners)
            return found if whole else None

        found = wait_until(shared, "each thing to have an owner and a deputy")
        assert found is not None
        for owners in found.owners.values():
            (owner,) = owners
            assert {owner.node, owner.deputy} == names
            assert owner.handles == [TYPE]
        (slot_owner,) = found.owners["default"]
        shown = _explanation_as_text(found, JobMeaning(True, ""), None)
        assert f"slot of default  {slot_owner.node}, since" in shown
        owner = next(node for node in nodes if node.identity == slot_owner.node)
        owner.stop()
        nodes.remove(owner)

        def inherited() -> bool:
            found, _ = tell(rig.settings, job_id)
            return [one.node for one in found.owners["default"]] == [slot_owner.deputy]

        assert wait_until(inherited, "the deputy to own the slot")
        rig.run_elsewhere(job_id, token=TOKEN, attempts=1, lease_s=60)
        left = "the lease of shop7:4711 (which has left ZooKeeper) until"
        assert left in tell(rig.settings, job_id)[1]
    finally:
        for node in nodes:
            node.stop()
