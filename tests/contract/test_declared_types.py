"""The declarations of types, on every engine, and as copies in two databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.domain.biz_types import type_no_of
from toc.domain.declared_type import DeclaredType
from toc.errors import InvalidInput, NotFound, StoreUnavailable
from toc.store import declared_types
from toc.store.databases import Database
from toc.store.declared_types import (
    DeclaredTypeCache,
    DeclaredTypes,
    Edit,
    TypeVersion,
    delete_old_versions,
    read_history,
)

NAME = "order.close"


@pytest.fixture(params=["sqlite", "mysql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path, databases=2) as library:
        yield library


def types_of(library: Library, types_max: int = 10) -> DeclaredTypes:
    return DeclaredTypes(library.databases, library.database_metadata.types, types_max)


def setting(**fields: Any) -> Edit:
    return lambda now: DeclaredType.from_fields(NAME if now is None else now.name, fields)


def declare(library: Library, name: str = NAME, **fields: Any) -> DeclaredType | None:
    made = DeclaredType.from_fields(name, fields)
    return types_of(library).change(name, lambda now: made, "ann", "new").declared


def read(library: Library) -> DeclaredTypeCache:
    cache = DeclaredTypeCache(library.databases)
    cache.read_all_copies()
    return cache


def rows_of(database: Database) -> list[tuple[Any, ...]]:
    table = database.declared_type
    return [(*tuple(row)[:2], row.change_id) for row in database.select(table.select())]


def take_away(monkeypatch: pytest.MonkeyPatch, *away: int) -> None:
    """These databases do not answer for toc_declared_type."""
    real = {name: getattr(Database, name) for name in ("select", "run_transaction")}

    def failing(name: str) -> Any:
        def call(self: Database, *args: Any, **named: Any) -> Any:
            if self.index in away:
                raise StoreUnavailable(self.index, OSError("away"))
            return real[name](self, *args, **named)

        return call

    for name in real:
        monkeypatch.setattr(Database, name, failing(name))


def test_declare_change_and_forget(library: Library) -> None:
    declare(library, mode="pull", timeout_s=30, retry=[10, 30, 60])
    found = read(library).get(NAME)
    assert found is not None
    assert (found.mode, found.timeout_s, found.max_attempts) == ("pull", 30, 16)
    changed = types_of(library).change(
        NAME, lambda now: now and now.with_changes({"timeout_s": 60}), "bob", "slow"
    )
    assert (changed.version, changed.written, changed.away) == (2, True, [])
    assert read(library).all()[NAME].set_fields == {
        "mode": "pull", "timeout_s": 60, "retry": [10, 30, 60],
    }  # fmt: skip
    types_of(library).change(NAME, lambda now: None, "bob", "gone")
    cache = read(library)
    assert cache.get(NAME) is None
    assert not cache.all()
    history = read_history(library.databases, NAME)
    assert [(row.version, row.actor, row.reason, row.copied) for row in history] == [
        (3, "bob", "gone", False), (2, "bob", "slow", False), (1, "ann", "new", False),
    ]  # fmt: skip
    assert history[0].declared_ms == library.now_ms
    assert all(bool(row.account) == (not library.sqlite) for row in history)
    with pytest.raises(NotFound):
        read_history(library.databases, "other")


def test_a_change_that_changes_nothing_is_not_written(library: Library) -> None:
    declare(library, timeout_s=5)
    again = types_of(library).change(NAME, setting(timeout_s=5), "ann")
    assert (again.version, again.written) == (1, False)
    assert not types_of(library).change("other", lambda now: None, "ann").written
    assert len(rows_of(library.databases[0])) == 1


def test_the_type_gets_its_number(library: Library) -> None:
    declare(library, "report.weekly")
    types = library.database_metadata.types
    assert types.find_number("report.weekly", library.databases[0]) == type_no_of("report.weekly")


def test_refused_changes_write_nothing(library: Library) -> None:
    for name, fields, actor in (
        ("bad name", {}, "ann"),
        (NAME, {"payload_schema": {"$ref": "http://x/y"}}, "ann"),
        (NAME, {}, ""),
    ):
        with pytest.raises(InvalidInput):
            types_of(library).change(
                name,
                lambda now, n=name, f=fields: DeclaredType.from_fields(n, f),  # type: ignore[misc]
                actor,
            )
    with pytest.raises(InvalidInput, match="declared_types"):
        types_of(library, 0).change(NAME, setting(), "ann")
    assert rows_of(library.databases[0]) == []


def test_forgotten_types_count_but_may_be_declared_again(library: Library) -> None:
    types = types_of(library, 1)
    types.change(NAME, setting(), "ann")
    types.change(NAME, lambda now: None, "ann")
    assert types.change(NAME, setting(mode="pull"), "ann").version == 3
    with pytest.raises(InvalidInput, match="forgotten already"):
        types.change("other", lambda now: DeclaredType("other"), "ann")


def test_of_two_changes_at_the_same_time_none_is_lost(library: Library) -> None:
    """Each reads before the other writes; the second must read again."""
    declare(library)
    both_read, seen = threading.Barrier(2, timeout=60), threading.local()

    def edit(field: str, value: object) -> Edit:
        def change(now: DeclaredType | None) -> DeclaredType:
            if not getattr(seen, "waited", False):
                seen.waited = True
                both_read.wait()
            assert now is not None
            return now.with_changes({field: value})

        return change

    changes = [("timeout_s", 7), ("max_attempts", 3)]
    threads = [
        threading.Thread(target=types_of(library).change, args=(NAME, edit(*change), "ann"))
        for change in changes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    found = read(library).all()[NAME]
    assert (found.timeout_s, found.max_attempts) == (7, 3)
    assert len(rows_of(library.databases[0])) == 3


def test_a_repeated_insert_finds_its_own_row(library: Library) -> None:
    row = TypeVersion(NAME, 1, "{}", library.now_ms, "abc", "ann", None, False, None)
    assert declared_types.COPIES.insert(library.databases[0], row)
    assert declared_types.COPIES.insert(library.databases[0], row)
    assert not declared_types.COPIES.insert(library.databases[0], row._replace(change_id="other"))


def test_only_changes_are_read_again(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(library)
    declare(library, "report")
    asked: list[dict[str, int]] = []
    real = declared_types._select_versions

    def spy(database: Database, wanted: Mapping[str, int]) -> Any:
        asked.append(dict(wanted))
        return real(database, wanted)

    monkeypatch.setattr(declared_types, "_select_versions", spy)
    cache, heard = DeclaredTypeCache(library.databases), []
    cache.add_listener(lambda: heard.append(cache.version))
    cache.read_copy(library.databases[0])
    before = cache.get("report")
    cache.read_copy(library.databases[0])
    assert asked == [{NAME: 1, "report": 1}, {}]
    declare(library, timeout_s=9)
    cache.read_copy(library.databases[0])
    assert asked[-1] == {NAME: 2}
    assert heard == [1, 2]
    assert cache.get("report") is before


def test_settings_that_cannot_be_read_stop_only_their_type(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    declare(library)
    declare(library, "report")
    row = TypeVersion("report", 2, '{"mode":"x"}', library.now_ms, "abc", "who", None, False, None)
    declared_types.COPIES.insert(library.databases[0], row)
    cache = read(library)
    assert list(cache.all()) == [NAME]
    assert "mode" in cache.faults["report"]
    assert "'report' (version 2) cannot be read" in caplog.text
    declare(library, "report", mode="pull")  # a person can mend it
    assert read(library).all()["report"].mode == "pull"


def test_old_versions_are_deleted_and_the_newest_never(library: Library) -> None:
    for timeout_s in (1, 2, 3):
        declare(library, timeout_s=timeout_s)
    declare(library, "report")
    old_ms = library.now_ms + 1
    database = library.databases[0]
    assert delete_old_versions(database, library.now_ms, 100) == 0
    assert delete_old_versions(database, old_ms, 1) == 1
    assert delete_old_versions(database, old_ms, 100) == 1
    assert delete_old_versions(database, old_ms, 100) == 0
    assert [row[:2] for row in rows_of(database)] == [(NAME, 3), ("report", 1)]
    declare(library, timeout_s=4)
    assert read(library).all()[NAME].timeout_s == 4


# ---- two databases


def test_all_databases_get_a_declaration(two: Library) -> None:
    declare(two)
    assert rows_of(two.databases[0]) == rows_of(two.databases[1])
    assert len(rows_of(two.databases[1])) == 1


def test_a_database_that_was_away_is_completed(
    two: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(two, "report")
    with monkeypatch.context() as patch:
        take_away(patch, 1)
        result = types_of(two).change(NAME, setting(mode="pull"), "ann")
        assert result.away == [1]
        cache = read(two)  # one database is enough
        assert cache.all()[NAME].mode == "pull"
    cache.read_copy(two.databases[1])
    assert cache.complete_copy(two.databases[1]) == 1
    assert cache.complete_copy(two.databases[1]) == 0
    assert sorted(rows_of(two.databases[0])) == sorted(rows_of(two.databases[1]))
    alone = DeclaredTypeCache(two.databases)
    alone.read_copy(two.databases[1])
    copied = alone.newest_version(NAME)
    assert copied is not None
    assert (copied.copied, copied.actor) == (True, "ann")
    assert [row.copied for row in read_history(two.databases, NAME)] == [False]


def test_no_database_answers(two: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, 0, 1)
    with pytest.raises(StoreUnavailable):
        types_of(two).change(NAME, setting(), "ann")
    with pytest.raises(StoreUnavailable):
        read_history(two.databases, NAME)


@pytest.mark.parametrize("first", [0, 1])
def test_changes_in_two_halves_of_a_network_end_in_one(
    two: Library, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Each was made while the other's database was away: the later one counts, in every process."""
    # The time decides before the random id, so the later change gets the smaller id.
    change_ids = iter("fedcba")
    monkeypatch.setattr(declared_types.secrets, "token_hex", lambda _: next(change_ids))
    declare(two)
    with monkeypatch.context() as patch:
        take_away(patch, 1 - first)
        types_of(two).change(NAME, setting(timeout_s=1), "ann")
    two.clock.advance(1)
    with monkeypatch.context() as patch:
        take_away(patch, first)
        types_of(two).change(NAME, setting(timeout_s=2), "bob")
    caches = [DeclaredTypeCache(two.databases) for _ in range(2)]
    for cache, order in zip(caches, ((0, 1), (1, 0)), strict=True):
        for index in order:
            cache.read_copy(two.databases[index])
        assert cache.all()[NAME].timeout_s == 2
    for _ in range(2):
        for cache in caches:
            for database in two.databases:
                cache.read_copy(database)
                cache.complete_copy(database)
    for database in two.databases:
        alone = DeclaredTypeCache(two.databases)
        alone.read_copy(database)
        assert alone.all()[NAME].timeout_s == 2
    assert all(cache.complete_copy(each) == 0 for cache in caches for each in two.databases)
    actors = [row.actor for row in read_history(two.databases, NAME)]
    assert actors == ["bob", "bob", "ann", "ann"]  # the change that lost stays in the history
