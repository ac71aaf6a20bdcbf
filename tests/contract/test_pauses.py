"""The pauses, a copy in each database: changes, history, databases that were away, peaks and passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.domain.pauses import PASS_MS, Pause, Phase, Ramp
from toc.errors import InvalidInput, NotFound
from toc.store import pauses
from toc.store.pauses import (
    PauseCache,
    PauseRow,
    Pauses,
    add_peak,
    delete_old_changes,
    read_history,
    read_passes,
    read_targets_now,
    write_pass,
)

TARGET = "type:order.close"


def until(delta_ms: int | None, ramp: Ramp | None = None) -> Callable[[Pause | None, int], Pause]:
    """An edit: paused from now until so many ms from now."""
    return lambda _, now_ms: Pause(
        TARGET, now_ms, None if delta_ms is None else now_ms + delta_ms, ramp
    )


def changes_of(library: Library, pauses_max: int = 100) -> Pauses:
    return Pauses(library.databases, pauses_max)


def test_a_change_is_in_every_database_with_its_history(library: Library) -> None:
    changes = changes_of(library)
    first = changes.change(TARGET, until(1000), "ann", "it is down")
    second = changes.change(TARGET, until(None, Ramp()), "bob")
    for database in library.databases:
        cache = PauseCache(library.databases)
        cache.read_copy(database)
        known = cache.all()[TARGET]
        assert known.pause == second.pause
        assert (known.row.version, known.row.actor, known.row.reason) == (2, "bob", None)
        assert cache.complete_copy(database) == 0
    history = read_history(library.databases, TARGET)
    assert [(row.version, row.actor, row.reason) for row in history] == [
        (2, "bob", None),
        (1, "ann", "it is down"),
    ]
    assert Pause.from_json(TARGET, history[1].settings) == first.pause
    with pytest.raises(NotFound):
        read_history(library.databases, "all")


def test_a_change_that_changes_nothing_is_not_written(library: Library) -> None:
    changes = changes_of(library)
    changes.change(TARGET, until(1000), "ann")
    again = changes.change(TARGET, lambda before, _: before or Pause(TARGET, 0), "ann")
    assert again.row.version == 1


@pytest.fixture(params=["sqlite", "mysql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path, databases=2) as library:
        yield library


def test_a_copy_that_missed_changes_gets_the_newest(two: Library) -> None:
    changes = changes_of(two)
    changes.change(TARGET, until(1000), "ann")
    missed, other = two.databases[0], two.databases[1]
    with missed.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM toc_pause")
    cache = PauseCache(two.databases)
    cache.read_all_copies()
    assert cache.complete_copy(other) == 0
    assert cache.complete_copy(missed) == 1
    assert cache.complete_copy(missed) == 0
    alone = PauseCache(two.databases)
    alone.read_copy(missed)
    assert alone.all()[TARGET].row.copied


def test_of_two_changes_with_one_version_the_later_counts_everywhere(two: Library) -> None:
    """Each reached another database first."""
    now_ms = two.databases[0].now_ms()
    for database, actor, later_ms in zip(two.databases, ("ann", "bob"), (0, 5), strict=True):
        settings = Pause(TARGET, now_ms, now_ms + 1000).to_json()
        row = PauseRow(
            TARGET, 1, settings, now_ms + later_ms, actor, actor, None, copied=False, peak_per_min=0
        )
        assert pauses.COPIES.insert(database, row)
    cache = PauseCache(two.databases)
    cache.read_all_copies()
    assert [cache.complete_copy(database) for database in two.databases] == [1, 1]
    cache.read_all_copies()
    assert [cache.complete_copy(database) for database in two.databases] == [0, 0]
    for database in two.databases:
        alone = PauseCache(two.databases)
        alone.read_copy(database)
        assert alone.all()[TARGET].row.actor == "bob"
        assert alone.all()[TARGET].row.version == 2


def test_two_changes_at_the_same_time_are_both_in_the_history(two: Library) -> None:
    changes = changes_of(two)
    changes.change(TARGET, until(1000), "ann")
    entered = list[int]()

    def edit(_: Pause | None, now_ms: int) -> Pause:
        entered.append(now_ms)
        if len(entered) == 1:  # another one is faster
            changes_of(two).change(TARGET, until(7000), "bob")
        return Pause(TARGET, now_ms, None)

    changes.change(TARGET, edit, "cleo")
    assert len(entered) == 2
    rows = read_history(two.databases, TARGET)
    assert [(row.version, row.actor) for row in rows] == [(3, "cleo"), (2, "bob"), (1, "ann")]


def test_only_so_many_pauses_at_a_time(library: Library) -> None:
    changes = changes_of(library, pauses_max=2)
    for target in ("type:a", "type:b"):
        changes.change(target, lambda _, now_ms, t=target: Pause(t, now_ms), "ann")  # type: ignore[misc]
    with pytest.raises(InvalidInput, match="allows 2"):
        changes.change("type:c", lambda _, now_ms: Pause("type:c", now_ms), "ann")
    changes.change("type:a", lambda _, now_ms: Pause("type:a", now_ms, now_ms), "ann")
    changes.change("type:c", lambda _, now_ms: Pause("type:c", now_ms), "ann")


def test_peaks_are_added_and_stay_while_the_pause_goes_on(library: Library) -> None:
    changes = changes_of(library)
    changes.change(TARGET, until(None, Ramp()), "ann")
    for database in library.databases:
        add_peak(database, TARGET, 1, 60)
        add_peak(database, TARGET, 1, 40)
    ended = changes.change(
        TARGET,
        lambda before, now_ms: (before or Pause("", 0)).resumed_at(now_ms, with_ramp=True),
        "ann",
    )
    assert ended.row.peak_per_min == 100
    assert ended.pause.phase_at(library.now_ms) is Phase.RAMPING
    cache = PauseCache(library.databases)
    cache.read_all_copies()
    assert cache.all()[TARGET].row.peak_per_min == 100


def test_a_row_that_cannot_be_read_is_a_pause_until_it_is_resumed(library: Library) -> None:
    changes = changes_of(library)
    changes.change(TARGET, until(1), "ann")
    for database in library.databases:
        with database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE toc_pause SET settings = '{}'")
    cache = PauseCache(library.databases)
    cache.read_all_copies()
    assert cache.all()[TARGET].pause.phase_at(library.now_ms + 10**9) is Phase.PAUSED
    assert read_targets_now(library.databases) == {TARGET}


def test_a_pass_is_read_for_a_minute_and_is_no_pause(library: Library) -> None:
    home, now_ms = library.databases[0], library.databases[0].now_ms()
    write_pass(home, 42, now_ms, "ann", "the customer waits")
    write_pass(home, 42, now_ms, "ann", None)  # within the same second
    write_pass(home, 7, now_ms + 5, "ann", None)
    found = read_passes(home, now_ms)
    assert [each.job_id for each in found] == [42, 7]
    assert [each.job_id for each in read_passes(home, now_ms, found[0].place)] == [7]
    assert read_passes(home, now_ms, found[1].place) == []
    assert read_passes(home, now_ms + PASS_MS + 5) == []
    cache = PauseCache(library.databases)
    cache.read_all_copies()
    assert cache.all() == {}


def test_old_changes_and_passes_are_deleted_and_what_holds_stays(library: Library) -> None:
    changes = changes_of(library)
    for _ in range(3):
        changes.change(TARGET, until(None), "ann")
        changes.change(TARGET, until(1000), "ann")
    home = library.databases[0]
    now_ms = home.now_ms()
    write_pass(home, 42, now_ms, "ann", None)
    before = len(read_history(library.databases, TARGET))
    assert delete_old_changes(home, now_ms - 100_000, 100) == 0
    assert delete_old_changes(home, now_ms + 100_000, 100) == before
    cache = PauseCache(library.databases)
    cache.read_copy(home)
    assert cache.all()[TARGET].row.version == before
    assert read_passes(home, now_ms) == []
