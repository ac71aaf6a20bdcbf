"""`center.types`: what HTTP does not have; the rest is in tests/client/test_same_verbs.py."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import toc
from tests.contract.library import Library
from toc.center.center import TimeoutCenter
from toc.domain.declared_type import DeclaredType
from toc.errors import InvalidInput, NotFound
from toc.handlers.registry import Registry
from toc.sinks import kinds
from toc.store.declared_types import COPIES, TypeVersion, read_history

NAME = "mail.send"


@pytest.fixture
def center(library: Library) -> Iterator[TimeoutCenter]:
    with TimeoutCenter(
        library.settings, handlers=Registry(), clock=library.clock, actor="ann"
    ) as made:
        yield made


def test_each_change_has_its_actor_and_reason(library: Library, center: TimeoutCenter) -> None:
    made = center.types.declare(NAME, mode="pull", reason="new")
    assert (made.version, made.actor, made.reason, made.away) == (1, "ann", "new", ())
    assert made.changed_ms == library.now_ms
    changed = center.types.set(NAME, rate="5/s", actor="bob", reason="slow")
    assert changed.declared.set_fields == {"mode": "pull", "rate": "5/s"}
    assert center.types.get(NAME) == changed
    assert center.types.list() == [changed]
    center.types.forget(NAME)
    history = read_history(library.databases, NAME)
    assert [(row.version, row.actor, row.reason) for row in history] == [
        (3, "ann", None), (2, "bob", "slow"), (1, "ann", "new"),
    ]  # fmt: skip
    assert [row.version for row in read_history(library.databases, NAME, limit=2)] == [3, 2]
    for verb in (center.types.get, center.types.forget):
        with pytest.raises(NotFound):
            verb(NAME)
    assert center.types.list() == []


def test_the_change_is_in_force_for_the_clients_next_call(center: TimeoutCenter) -> None:
    center.types.declare(NAME)
    center.schedule(1, timedelta(minutes=1), biz_type=NAME)
    center.types.set(NAME, payload_schema={"required": ["n"]})
    with pytest.raises(InvalidInput, match="does not fit the schema"):
        center.schedule(1, timedelta(minutes=1), biz_type=NAME)


def test_an_unknown_kind_of_sink_is_refused_but_may_stay(
    center: TimeoutCenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for verb in (center.types.declare, center.types.set):
        center.types.declare(NAME)
        with pytest.raises(InvalidInput, match="no such kind of sink"):
            verb(NAME, sink="pigeon:post")
    center.types.declare(NAME, sink="kafka:orders")
    monkeypatch.setattr(kinds, "BUILT_IN", {})  # as a process without a plug-in
    kinds.find_sink_class.cache_clear()
    try:
        assert center.types.set(NAME, timeout_s=5).declared.sink == "kafka:orders"
    finally:
        kinds.find_sink_class.cache_clear()


def test_a_guard_sees_the_present_and_the_wanted_declaration(center: TimeoutCenter) -> None:
    seen: list[Any] = []

    def guard(now: DeclaredType | None, wanted: DeclaredType | None) -> None:
        seen.append((now, wanted))
        if wanted is None:
            raise toc.Forbidden("not this one")

    verbs = center.types.with_guard(guard)
    first = verbs.declare(NAME, timeout_s=5).declared
    second = verbs.set(NAME, timeout_s=6).declared
    with pytest.raises(toc.Forbidden):
        verbs.forget(NAME)
    assert seen == [(None, first), (first, second), (second, None)]
    assert center.types.get(NAME).declared == second


def test_a_declaration_that_cannot_be_read_may_be_replaced_without_a_guard(
    library: Library, center: TimeoutCenter
) -> None:
    def write(version: int) -> None:
        for database in library.databases:
            row = TypeVersion(
                NAME, version, '{"mode": "new"}', 1, f"c{version}", "eve", None, False, None
            )
            assert COPIES.insert(database, row)

    write(1)
    assert center.types.list() == []
    with pytest.raises(InvalidInput, match="cannot read"):
        center.types.get(NAME)
    guarded = center.types.with_guard(lambda now, wanted: None)
    with pytest.raises(InvalidInput, match="cannot read"):
        guarded.declare(NAME)
    with pytest.raises(NotFound):
        center.types.set(NAME, timeout_s=5)
    assert center.types.declare(NAME, timeout_s=5).version == 2
    write(3)
    with pytest.raises(InvalidInput, match="cannot read"):
        guarded.forget(NAME)
    center.types.forget(NAME)
    with pytest.raises(NotFound):
        center.types.get(NAME)
