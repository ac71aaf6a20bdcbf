"""The audit: no call of consequence without an entry, and no stranger fills it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.access.conftest import World
from tests.worker.waiting import wait_until
from toc.access import refusals
from toc.access.audit import BATCH_MAX, Audit, AuditEntry
from toc.access.audit_list import list_audit
from toc.access.caller import Caller
from toc.access.token_text import make_token_text
from toc.errors import AccessUnavailable, StoreUnavailable
from toc.runtime import metrics
from toc.runtime.clock import SystemClock
from toc.store.audit_rows import AuditRow, delete_old_audit_rows, insert_audit_rows

SHOP = Caller("shop00000000", "shop", frozenset(), (), None)


def entry(target: str = "1", caller: Caller | None = SHOP, **more: Any) -> AuditEntry:
    given = {
        "caller": caller, "address": "10.0.0.7", "action": "jobs.cancel", "target": target,
        "rows_changed": 1, "outcome": "cancelled", "request_id": "r-1",
    } | more  # fmt: skip
    return AuditEntry(**given)


def refused(key: str) -> AuditEntry:
    return entry(caller=None, address=key, rows_changed=None, outcome="unauthenticated")


def targets(world: World, index: int = 0) -> list[str]:
    found = world.rows(index, "SELECT target FROM toc_audit ORDER BY audit_id")
    return [target for (target,) in found]


def audit_of(world: World, **limits: Any) -> Audit:
    return world.access(**limits).audit


def test_an_entry_has_what_toc_knows_of_the_call(world: World) -> None:
    audit = audit_of(world)
    audit.record(entry("7"))
    audit.run_once()
    ((found),) = list_audit(world.databases, 10)
    assert found.row == AuditRow(
        world.clock.wall_ms(), "shop00000000", "shop", "10.0.0.7", "jobs.cancel", "7", 1, 1,
        "cancelled", "r-1",
    )  # fmt: skip


def test_entries_are_written_in_batches_by_a_thread(world: World) -> None:
    audit = audit_of(world)
    audit.start()
    for n in range(3 * BATCH_MAX):
        audit.record(entry(str(n)))
    wait_until(lambda: audit.waiting == 0, "the batches")
    assert targets(world) == [str(n) for n in range(3 * BATCH_MAX)]
    assert audit.stop()


def test_two_threads_that_write_at_once_write_each_entry_once(world: World) -> None:
    audit = audit_of(world)
    for n in range(4 * BATCH_MAX):
        audit.record(entry(str(n)))

    def write() -> None:
        while audit.waiting:
            audit.run_once()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert targets(world) == [str(n) for n in range(4 * BATCH_MAX)]


def test_what_waits_and_what_is_written_is_counted(world: World) -> None:
    audit, written = audit_of(world), metrics.AUDIT_WRITTEN._value.get()
    audit.record(entry())
    audit.record(entry())
    audit.run_once()
    assert metrics.AUDIT_WAITING._value.get() == 2
    audit.run_once()
    assert metrics.AUDIT_WAITING._value.get() == 0
    assert metrics.AUDIT_WRITTEN._value.get() == written + 2


def test_a_stop_writes_what_waits(world: World) -> None:
    audit = audit_of(world)
    audit.start()
    audit.record(entry("last"))
    audit.stop()
    assert targets(world) == ["last"]


def test_a_process_that_ends_while_no_database_answers_says_what_is_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    audit = audit_of(world)
    audit.record(entry())
    for index in (0, 1):
        world.take_away(index)
    audit.stop()
    assert "1 entries of the audit are lost" in caplog.text
    for index in (0, 1):
        world.bring_back(index)


# ---- full


def test_a_call_without_a_place_is_refused(world: World) -> None:
    audit = audit_of(world, audit_queue=10, audit_wait_s=0)
    places = [audit.reserve() for _ in range(10)]
    with pytest.raises(AccessUnavailable, match=r"web\.limits\.audit_queue"):
        audit.record(entry())
    assert audit.try_reserve() is None
    places[0].release()
    places[0].release()  # again: no second place
    places[1].record(entry("1"))
    places[1].release()  # it is filled
    audit.record(entry("2"))
    with pytest.raises(AccessUnavailable):
        audit.reserve()
    audit.run_once()
    assert targets(world) == ["1", "2"]
    assert audit.reserve() is not None


def test_a_call_waits_for_a_place(world: World) -> None:
    audit = audit_of(world, audit_queue=10, audit_wait_s=60)
    for n in range(10):
        audit.record(entry(str(n)))
    done = threading.Event()

    def call() -> None:
        audit.record(entry("waited"))
        done.set()

    thread = threading.Thread(target=call)
    thread.start()
    assert not done.wait(0.05)
    audit.run_once()
    assert done.wait(60)
    thread.join()
    audit.run_once()
    assert targets(world)[-1] == "waited"


def test_a_call_that_was_not_tried_gives_its_place_back(world: World) -> None:
    audit = audit_of(world, audit_queue=10)
    for _ in range(20):
        with audit.place():
            pass
    with audit.place() as place:
        place.record(entry("done"))
    audit.run_once()
    assert targets(world) == ["done"]
    assert audit._reserved == 0


# ---- databases


def test_another_database_takes_the_entries_of_one_that_is_away(world: World) -> None:
    audit = audit_of(world)
    world.take_away(0)
    audit.record(entry("first"))
    audit.run_once()
    world.bring_back(0)
    audit.record(entry("second"))
    audit.run_once()  # it stays with the one that answers
    assert (targets(world, 0), targets(world, 1)) == ([], ["first", "second"])
    assert [each.row.target for each in list_audit(world.databases, 10)] == ["second", "first"]


def test_nothing_is_lost_while_no_database_answers(world: World) -> None:
    audit = audit_of(world)
    audit.record(entry("1"))
    for index in (0, 1):
        world.take_away(index)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            audit.run_once()
    for index in (0, 1):
        world.bring_back(index)
    audit.record(entry("2"))
    audit.run_once()
    assert sorted(targets(world, 0) + targets(world, 1)) == ["1", "2"]


# ---- refused calls


def test_of_many_refused_calls_some_are_listed_and_the_rest_counted(world: World) -> None:
    audit = audit_of(world, refusals_per_min=3)
    for _ in range(10):
        audit.record_refused(refused("10.0.0.1"))
    audit.record_refused(refused("10.0.0.2"))
    audit.record_refused(entry(outcome="forbidden"))
    audit.run_once()
    assert len(targets(world)) == 5
    world.clock.advance(refusals.PERIOD_S)
    audit.run_once()
    last = list_audit(world.databases, 10)[0].row
    assert last.target == "7 refused calls of address 10.0.0.1 that are not listed"
    assert (last.action, last.calls, last.address) == ("refused", 7, "10.0.0.1")
    audit.record_refused(refused("10.0.0.1"))  # a new minute
    audit.run_once()
    assert len(targets(world)) == 7


def test_many_addresses_share_one_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "KEYS_MAX", 4)
    audit = audit_of(world, refusals_per_min=1)
    for n in range(20):
        audit.record_refused(refused(f"10.0.0.{n}"))
    assert len(audit._refusals._counts) == 5
    world.clock.advance(refusals.PERIOD_S)
    audit.run_once()
    summary = [each.row for each in list_audit(world.databases, 50) if each.row.calls > 1]
    assert [(row.calls, row.address, row.token_id) for row in summary] == [(15, None, None)]


def test_who_has_many_addresses_does_not_fill_the_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "SUMMARIES_MAX", 3)
    audit = audit_of(world, refusals_per_min=2)
    for n in range(40):
        for _ in range(1 + n % 7):
            audit.record_refused(refused(f"10.0.0.{n}"))
    for _ in range(2):
        audit.record_refused(entry(outcome="forbidden"))  # a token has room of its own
    audit.run_once()
    assert len(targets(world)) == 2 * refusals.STRANGERS_FACTOR + 2
    world.clock.advance(refusals.PERIOD_S)
    audit.run_once()
    rows = [each.row for each in list_audit(world.databases, 100)]
    assert len(rows) == 2 * refusals.STRANGERS_FACTOR + 2 + 3 + 1
    assert sum(row.calls for row in rows) == sum(1 + n % 7 for n in range(40)) + 2
    (others,) = [row for row in rows if row.target and "calls of others" in row.target]
    assert (others.address, others.token_id, others.owner) == (None, None, None)


def test_refused_calls_leave_room_for_the_others(world: World) -> None:
    audit = audit_of(world, audit_queue=10, audit_wait_s=0, refusals_per_min=1000)
    for _ in range(100):
        audit.record_refused(refused("10.0.0.1"))
    assert audit.waiting == 5
    for n in range(5):
        audit.record(entry(str(n)))
    audit.run_once()
    world.clock.advance(refusals.PERIOD_S)
    audit.run_once()
    assert sum(each.row.calls for each in list_audit(world.databases, 50)) == 105


# ---- texts


def test_no_text_breaks_an_entry(world: World) -> None:
    audit = audit_of(world)
    nasty = "\x1b[2J\n\ud800" + "ä" * 5000
    audit.record(entry(nasty, address=nasty, action=nasty, outcome=nasty, request_id=nasty))
    audit.record(entry("", address="", action="", outcome="", request_id=""))
    audit.record_refused(entry(nasty, caller=None, address=nasty))
    audit.run_once()
    rows = [each.row for each in list_audit(world.databases, 10)]
    assert len(rows) == 3
    for row in rows:
        texts = [row.address, row.action, row.target, row.outcome, row.request_id]
        for text, chars in zip(texts, (45, 32, 512, 32, 64), strict=True):
            assert text is not None
            assert len(text) <= chars
            assert text.isprintable()


def test_no_secret_gets_into_an_entry(world: World) -> None:
    audit = audit_of(world)
    _, text = make_token_text()
    secret = text.rpartition("_")[2]
    audit.record(
        entry("x" * (512 - len(text) // 2) + text, request_id=text, outcome=text, action=text)
    )
    audit.run_once()
    (found,) = list_audit(world.databases, 1)
    assert secret[:8] not in str(found)


# ---- reading, retention


def test_the_audit_is_read_newest_first_from_all_databases(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.access.audit_list.PAGE", 3)
    now_ms = world.clock.wall_ms()
    for n in range(20):
        token = "shop00000000" if n % 5 else None
        row = AuditRow(
            now_ms + n * 1000, token, None, None, "jobs.cancel", str(n), 1, 1, "done", None
        )
        insert_audit_rows(world.databases[n % 2], [row])
    found = list_audit(world.databases, 8)
    assert [each.row.target for each in found] == [str(n) for n in range(19, 11, -1)]
    since = list_audit(world.databases, 100, since_ms=now_ms + 15_000)
    assert [each.row.target for each in since] == ["19", "18", "17", "16", "15"]
    mine = list_audit(world.databases, 100, token_id="shop00000000")
    assert [each.row.target for each in mine] == [str(n) for n in range(19, -1, -1) if n % 5]


def test_old_entries_are_deleted_page_by_page(world: World) -> None:
    database, now_ms = world.databases[0], world.clock.wall_ms()
    for n in range(10):
        row = AuditRow(now_ms + n, None, None, None, "a", str(n), 1, None, "done", None)
        insert_audit_rows(database, [row])
    deleted, after = delete_old_audit_rows(database, 0, now_ms + 7, 5)
    assert (deleted, targets(world)) == (5, [str(n) for n in range(5, 10)])
    assert after is not None
    assert delete_old_audit_rows(database, after, now_ms + 7, 5) == (2, after + 5)
    assert delete_old_audit_rows(database, after + 5, now_ms + 7, 5) == (0, None)
    assert targets(world) == ["7", "8", "9"]


def test_the_audit_survives_a_process_with_a_real_clock(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Started and stopped as a server does it; entries of several threads."""
    access = world.access(SystemClock())
    access.start()

    def call(name: str) -> None:
        for n in range(50):
            with access.audit.place() as place:
                place.record(entry(f"{name}{n}"))

    threads = [threading.Thread(target=call, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with caplog.at_level(logging.ERROR):
        assert access.stop()
    found = targets(world, 0) + targets(world, 1)
    assert sorted(found) == sorted(f"{name}{n}" for name in "abcd" for n in range(50))
    assert caplog.text == ""
