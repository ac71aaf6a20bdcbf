"""The verbs for declared types: `toc.types.set("order.close", rate="500/s")`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Unpack

from toc.center.connections import Connections
from toc.domain.argument_checks import check_biz_type
from toc.domain.declared_type import DeclaredType
from toc.domain.type_fields import TypeFields, TypeInfo, changes_of, declaration_of
from toc.errors import InvalidInput, NotFound, StoreUnavailable
from toc.sinks.kinds import check_sink
from toc.store.declared_types import ChangeResult, DeclaredTypes, Edit, read_history

Guard = Callable[[DeclaredType | None, DeclaredType | None], None]
"""Is given the present declaration and the wanted one; raises if the caller may not make this change."""


class TypeVerbs:
    """The declared types of a client. Thread-safe.

    A change is kept in every database with its actor (default: the client's) and reason, and is in force in
    every process within `catalogue.refresh_s`. All verbs raise StoreUnavailable, those that change something
    InvalidInput; SettingsError if a schema or a kind of sink needs a package that is not installed.

    Fields: mode ("handler", "pull" or "sink"); sink (as "webhook:shop"); timeout_s (seconds of one run or
    lease, default 30); max_attempts (default 16); retry (a list of seconds, "webhook", "exponential" or
    toc.Exponential(...), the default); payload_schema (a JSON Schema, draft 2020-12); the limits over all
    nodes rate ("500/s"), burst, concurrency and per ("biz_id", "tenant" or "payload.FIELD"); codec (a name of
    the settings); priority (0 to 9).
    """

    def __init__(self, connect: Callable[[], Connections], guard: Guard | None = None) -> None:
        self._connect, self._guard = connect, guard

    def with_guard(self, guard: Guard) -> TypeVerbs:
        """The same verbs, for a caller who may not make every change.

        These do not replace a declaration that this release cannot read: the guard could not judge it.
        """
        return TypeVerbs(self._connect, guard)

    def declare(
        self,
        name: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        **fields: Unpack[TypeFields],
    ) -> TypeInfo:
        """Declares a type, as a whole: a field that is not given is not set any more.

        mode: "handler" (default), "pull" or "sink", which `sink` implies. The same call again changes
        nothing.
        """
        wanted = declaration_of(name, fields)
        return _info(self._change(name, lambda _: wanted, actor, reason))

    def set(
        self,
        name: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        **fields: Unpack[TypeFields],
    ) -> TypeInfo:
        """Changes single fields of a declared type; None: the field is not set any more.

        A new sink changes the mode, and a mode that has no sink removes the sink. Raises NotFound.
        """
        changes: dict[str, Any] = changes_of(name, fields)

        def edit(now: DeclaredType | None) -> DeclaredType:
            return _found(name, now).with_changes(changes)

        return _info(self._change(name, edit, actor, reason))

    def forget(self, name: str, *, reason: str | None = None, actor: str | None = None) -> None:
        """Removes the declaration of a type. Its jobs stay, and handlers of workers run them.

        Jobs of a pull type that nobody handles wait. The history of the type stays. Raises NotFound.
        """
        check_biz_type(name)
        cache = self._connect().database_metadata.declared
        cache.read_all_copies()
        may_be_unreadable = name in cache.faults

        def edit(now: DeclaredType | None) -> None:
            if not may_be_unreadable:
                _found(name, now)

        self._change(name, edit, actor, reason)

    def get(self, name: str) -> TypeInfo:
        """A declared type, and its last change. Raises NotFound."""
        check_biz_type(name)
        (row,) = read_history(self._connect().databases, name, limit=1)
        if row.settings is None:
            raise _not_declared(name)
        try:
            declared = DeclaredType.from_json(name, row.settings)
        except InvalidInput as error:
            rule = f"has a declaration that this release cannot read: {error}"
            raise InvalidInput("biz_type", name, rule) from None
        return TypeInfo(declared, row.version, row.declared_ms, row.actor, row.reason)

    def list(self) -> list[TypeInfo]:
        """The declared types, by name. One that this release cannot read is left out."""
        cache = self._connect().database_metadata.declared
        cache.read_all_copies()
        return cache.infos()

    def _change(self, name: str, edit: Edit, actor: str | None, reason: str | None) -> ChangeResult:
        state, guard = self._connect(), self._guard

        def checked_edit(now: DeclaredType | None) -> DeclaredType | None:
            wanted = edit(now)
            if guard is not None:
                guard(now, wanted)
            # A sink that stays may be of a kind that only other processes have.
            if wanted is not None and wanted.sink is not None and wanted.sink != _sink_of(now):
                check_sink(wanted.sink)
            if wanted is not None:
                state.payload_checks.check_partitions_are_plain(wanted)
            return wanted

        metadata = state.database_metadata
        types = DeclaredTypes(state.databases, metadata.types, state.settings.limits.declared_types)
        result = types.change(
            name, checked_edit, actor or state.jobs.actor, reason, replaces_unreadable=guard is None
        )
        with suppress(StoreUnavailable):  # this client need not wait for its next look
            metadata.declared.read_all_copies()
        return result


def _info(result: ChangeResult) -> TypeInfo:
    row, declared = result.row, result.declared
    assert row is not None and declared is not None  # noqa: S101, PT018 - a type was declared
    return TypeInfo(
        declared, row.version, row.declared_ms, row.actor, row.reason, tuple(result.away)
    )


def _sink_of(declared: DeclaredType | None) -> str | None:
    return None if declared is None else declared.sink


def _found(name: str, declared: DeclaredType | None) -> DeclaredType:
    if declared is None:
        raise _not_declared(name)
    return declared


def _not_declared(name: str) -> NotFound:
    return NotFound(f"the biz_type {name!r} is not declared")
