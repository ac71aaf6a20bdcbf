"""The search of the audit: each entry that fits once, newest first, over all databases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.access.conftest import World
from toc.access import audit_search
from toc.access.audit_search import AuditFilter, AuditPage, search_audit
from toc.store.audit_rows import AuditRow, find_audit_end, insert_audit_rows

START_MS = 1_800_000_000_000
MINUTE_MS = 60_000


def write_entries(world: World, count: int) -> None:
    """An entry each minute, five by five in one database and then in the other."""
    for number in range(count):
        row = AuditRow(
            START_MS + number * MINUTE_MS,
            f"token{number % 3:011d}",
            ("Ann", "bob")[number % 2],
            None,
            ("jobs.cancel", "types.pause")[number % 2],
            f"mail {number}",
            1,
            1,
            "done",
            None,
        )
        insert_audit_rows(world.databases[(number // 5) % 2], [row])


def walk(world: World, wanted: AuditFilter, limit: int) -> list[str]:
    """The targets of all pages."""
    found: list[str] = []
    ends: Sequence[int] | None = None
    for _ in range(200):
        page = search_audit(world.databases, wanted, ends, limit)
        assert len(page.records) <= limit
        found += [record.row.target or "" for record in page.records]
        ends = page.ends
        if ends is None:
            return found
    pytest.fail("the pages do not end")


@pytest.mark.parametrize("read_max", [4, 10, 2000])
def test_pages_have_each_entry_once_newest_first(
    world: World, monkeypatch: pytest.MonkeyPatch, read_max: int
) -> None:
    monkeypatch.setattr(audit_search, "READ_MAX", read_max)
    write_entries(world, 30)
    assert walk(world, AuditFilter(), 7) == [f"mail {n}" for n in range(29, -1, -1)]
    assert walk(world, AuditFilter(owner="ANN"), 7) == [f"mail {n}" for n in range(28, -1, -2)]
    assert walk(world, AuditFilter(action="pause", target="mail 1"), 2) == [
        f"mail {n}" for n in (19, 17, 15, 13, 11, 1)
    ]
    assert walk(world, AuditFilter(token_id="token00000000001"), 3) == [
        f"mail {n}" for n in range(28, 0, -3)
    ]
    assert walk(world, AuditFilter(owner="nobody"), 3) == []


def test_a_range_of_time_is_found_without_reading_what_is_newer(world: World) -> None:
    write_entries(world, 40)
    since_ms, until_ms = START_MS + 5 * MINUTE_MS, START_MS + 8 * MINUTE_MS
    wanted = AuditFilter(since_ms=since_ms, until_ms=until_ms)
    page = search_audit(world.databases, wanted, None, 100)
    assert [each.row.target for each in page.records] == [f"mail {n}" for n in (8, 7, 6, 5)]
    assert page.read <= 8
    assert page.ends is None


def test_bisection_finds_the_first_younger_entry(world: World) -> None:
    database = world.databases[0]
    assert find_audit_end(database, START_MS) == 1
    rows = [
        AuditRow(START_MS + n, None, None, None, "a", str(n), 1, None, "done", None)
        for n in range(100)
    ]
    insert_audit_rows(database, rows)
    assert find_audit_end(database, START_MS - 1) == 1
    assert find_audit_end(database, START_MS + 41) == 43
    assert find_audit_end(database, START_MS + 1000) == 101


def test_a_database_that_is_away_is_named_and_read_later(world: World) -> None:
    write_entries(world, 8)
    first = search_audit(world.databases, AuditFilter(), None, 1)
    world.take_away(1)
    found = search_audit(world.databases, AuditFilter(), None, 3)
    assert found.away == [1]
    assert [each.row.target for each in found.records] == ["mail 4", "mail 3", "mail 2"]
    assert found.ends is not None
    assert found.ends[1] == audit_search.ID_MAX
    later = search_audit(world.databases, AuditFilter(), first.ends, 3)
    assert first.ends is not None
    assert later.ends is not None
    assert later.ends[1] == first.ends[1]


def test_filters_are_of_one_piece() -> None:
    row = AuditRow(START_MS, "t", "Ann", None, "jobs.cancel", None, 1, 1, "done", None)
    fits = AuditFilter("t", "ann", "cancel", None, START_MS, START_MS)
    assert fits.fits(row)
    wrongs = (
        replace(fits, token_id="u"), replace(fits, owner="bob"), replace(fits, target="mail"),
        replace(fits, since_ms=START_MS + 1), replace(fits, until_ms=START_MS - 1),
    )  # fmt: skip
    assert not any(each.fits(row) for each in wrongs)
    assert AuditPage((), 0, None, ()).records == ()
