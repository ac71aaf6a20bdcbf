"""Which handler runs a type number in this process.

A function that is registered for a type runs its jobs, unless the type is declared "pull" or "sink". What the
declaration sets (timeout, attempts, retry policy) wins over the decorator. The jobs of a sink are run by the
sink's own handler. See docs/adr/0040-declared-types.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from toc.domain.declared_type import DeclaredType
from toc.errors import (
    InvalidInput,
    NotFound,
    SchemaMismatch,
    SettingsError,
    StatementFailed,
    StoreUnavailable,
)
from toc.handlers.hook_calls import wrap_batch_handler, wrap_handler
from toc.handlers.hooks import Hooks
from toc.handlers.registry import (
    BatchHandler,
    Handler,
    HandlerSpec,
    Registry,
    is_async_handler,
)
from toc.runtime import metrics
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.payload_codecs import PayloadCodecs
from toc.store.biz_types import BizTypeCache, describe_type_conflict
from toc.store.claims import Claims
from toc.store.databases import Database, Databases
from toc.store.declared_types import DeclaredTypeCache
from toc.store.due_pages import TypesExcept
from toc.worker.gate import Gate

log = logging.getLogger(__name__)

SinkHandlers = Mapping[str, Callable[[str], Handler | BatchHandler | None]]
"""Makes the handler of a sink: kind -> maker(target). For the sink "webhook:shop": maker("shop"). None: this
process cannot send there, and leaves the jobs to others.

A handler with an attribute `batch` above 0 (and `batch_wait`, in seconds) gets lists of jobs, as with
`@toc.handler(batch=, batch_wait=)`.
"""


def with_declared_terms(spec: HandlerSpec, declared: DeclaredType) -> HandlerSpec:
    """A handler with the timeout, the attempts, the retry policy and the codec that the declaration sets."""
    terms: dict[str, Any] = {name: getattr(declared, name) for name in declared.explicit}
    if declared.codec is not None:
        terms["codec"] = declared.codec
    return replace(spec, biz_type=declared.name, **terms)


def with_hooks(spec: HandlerSpec, hooks: Hooks) -> HandlerSpec:
    """A handler whose runs have the hooks around them."""
    wrap: Any = wrap_batch_handler if spec.batch else wrap_handler
    return replace(spec, function=wrap(hooks.registered, spec.function, is_async=spec.is_async))


class HandlerTable:
    """The handlers by type number; follows changes of the types and their declarations in the databases."""

    def __init__(
        self,
        types: BizTypeCache,
        declared: DeclaredTypeCache,
        registry: Registry,
        sinks: SinkHandlers,
        claims: Claims,
        gate: Gate,
        codecs: PayloadCodecs | None = None,
    ) -> None:
        self._codecs = codecs or PayloadCodecs()
        self._had_hooks = False  # when `_specs` was made
        self._types, self._declared, self._claims = types, declared, claims
        self._gate = gate
        self._registry, self._sinks = registry, sinks
        self._specs: dict[int, HandlerSpec] = {}
        # The type numbers that the handler of "*" does not run.
        self._not_for_every_type: frozenset[int] = frozenset()
        # Of the types, of the declarations and of the gate, when `_specs` was made.
        self._version = (-1, -1, -1)
        self._refused: set[tuple[str, str]] = set()  # of which an error was logged
        self._lock = threading.Lock()
        self._log_throttle = LogThrottle(log)

    @property
    def hooks(self) -> Hooks:
        return self._registry.hooks

    def create_biz_types(self, databases: Databases) -> None:
        """Creates the handlers' types in each database that answers; in other databases at the first use.

        Raises StoreUnavailable when no database answers.
        """
        names = [spec.biz_type for spec in self._registry]
        failed: list[StoreUnavailable | StatementFailed] = []
        asked = [database for database in databases if not database.is_first_check_pending]
        for database in asked:
            try:
                self._types.get_or_create_numbers(names, database)
            except SchemaMismatch as error:  # one type's number is in conflict; the others exist
                log.error("%s", error)  # noqa: TRY400 - the text says all
            except (StoreUnavailable, StatementFailed) as error:
                failed.append(error)
        if failed and len(failed) == len(asked):
            raise failed[0]

    def refresh_handlers(self) -> None:
        """Updates which type numbers have which handler in this process, if types or declarations changed."""
        has_hooks = self._registry.hooks.registered.are_around_runs
        if self._version == self._present_version() and self._had_hooks is has_hooks:
            return
        with self._lock:
            # The versions before the content: a change in between makes the next call do this again.
            version = self._present_version()
            names = self._types.known.names
            specs = {no: spec for no, name in names.items() if (spec := self._make_spec(name))}
            if has_hooks:
                specs = {no: with_hooks(spec, self._registry.hooks) for no, spec in specs.items()}
            # The handlers are set first: each job that is claimed from now on must find its handler.
            self._specs = specs
            self._not_for_every_type = frozenset(names.keys() - specs.keys())
            closed = self._gate.closed_numbers(names)
            self._claims.set_claimed_types(specs, self._gate.moved_types, closed)
            self._version, self._had_hooks = version, has_hooks

    def _present_version(self) -> tuple[int, int, int]:
        return self._types.known.version, self._declared.version, self._gate.version

    def _make_spec(self, name: str) -> HandlerSpec | None:
        """The handler of a type with the terms in force; None: this process does not run the type."""
        spec = self._find_spec(name)
        if spec is not None and spec.codec is not None:
            try:
                self._codecs.check_usable(spec.codec)
            except SettingsError as error:
                text = (
                    "jobs of biz_type %r wait for another worker: their payloads are encrypted: %s"
                )
                self._log_once(name, f"codec {spec.codec}", text, name, error)
                return None
            self._check_partitions(name, spec.codec)
        return spec

    def _check_partitions(self, name: str, codec: str) -> None:
        """Logs a limit per field of payloads that the handler's decorator encrypts.

        The command that declared the limit may have known no handler.
        """
        declared = self._declared.get(name)
        try:
            if declared is not None:
                declared.check_partitions_are_plain(codec)
        except InvalidInput as error:
            text = (
                "the limit of biz_type %r is declared for each partition, but holds for all its jobs "
                "together: %s: declare the limit per biz_id or tenant, or leave out the codec"
            )
            self._log_once(name, f"per with codec {codec}", text, name, error)

    def _find_spec(self, name: str) -> HandlerSpec | None:
        if name in self._declared.faults:
            return None
        declared, registered = self._declared.get(name), self._registry.get(name)
        if declared is None:
            # The handler of "*" gets the name too.
            return None if registered is None else replace(registered, biz_type=name)
        if declared.mode != "handler" and self._registry.has_own_handler(name):
            self._log_refused_handler(declared)
        if declared.mode == "pull":
            return None
        if declared.mode == "sink":
            registered = self._make_sink_spec(declared)
        return None if registered is None else with_declared_terms(registered, declared)

    def _make_sink_spec(self, declared: DeclaredType) -> HandlerSpec | None:
        kind, _, target = (declared.sink or "").partition(":")
        make = self._sinks.get(kind)
        handler = None if make is None else make(target)
        if handler is None:
            self._log_once(
                declared.name, kind,
                "biz_type %r is declared for the sink %r, which this process does not have: its jobs wait",
                declared.name, declared.sink,
            )  # fmt: skip
            return None
        # A sink whose handler gets lists of jobs says so by these attributes.
        return HandlerSpec(
            declared.name, handler, is_async=is_async_handler(handler),
            batch=getattr(handler, "batch", 0), batch_wait_s=getattr(handler, "batch_wait", 0.0),
        )  # fmt: skip

    def _log_refused_handler(self, declared: DeclaredType) -> None:
        self._log_once(
            declared.name, declared.mode,
            "biz_type %r is declared %r, so its handler in this process does not run: remove the handler, or "
            "declare the type for handlers (`toc types set %s --handler`)",
            declared.name, declared.mode, declared.name,
        )  # fmt: skip

    def _log_once(self, name: str, about: str, text: str, *values: object) -> None:
        if (name, about) not in self._refused:
            self._refused.add((name, about))
            log.error(text, *values)

    @property
    def sink_type_names(self) -> set[str]:
        """The types whose jobs this process sends to sinks."""
        declared = self._declared.all().values()
        kinds = {each.name: (each.sink or "").partition(":")[0] for each in declared}
        return {name for name, kind in kinds.items() if kind in self._sinks}

    @property
    def handled_type_numbers(self) -> Sequence[int] | TypesExcept | None:
        """The type numbers that this worker handles; None: all, also types that it does not know yet."""
        self.refresh_handlers()
        if self._registry.handler_of_every_type is None:
            return list(self._specs)
        excluded = self._not_for_every_type
        return TypesExcept(excluded) if excluded else None

    def handler_spec_of(self, type_no: int) -> HandlerSpec | None:
        return self._specs.get(type_no)

    def look_up_unknown_type(self, type_no: int, database: Database) -> bool:
        """Reads an unknown type number's type from the row's database; True: it has a handler here."""
        if type_no in self._types.known.names or type_no in self._types.known.conflicts:
            return False
        with suppress(NotFound):
            self._types.find_name(type_no, database)
        self.refresh_handlers()
        return type_no in self._specs

    def type_name(self, type_no: int, database: Database) -> str:
        try:
            return self._types.find_name(type_no, database)
        except NotFound:  # another program wrote the number
            return f"#{type_no}"

    def warn_no_handler(self, type_no: int, database: Database) -> None:
        """Logs that a job waits for another node, because this node has no handler of its type.

        Nothing is wrong where the type is declared pull: the job waits for a remote consumer.
        """
        declared = self._declared.get(self._types.known.names.get(type_no, ""))
        if declared is not None and declared.mode == "pull":
            return
        metrics.UNHANDLED.inc()
        conflicts = self._types.known.conflicts
        if type_no in conflicts:
            text = describe_type_conflict(type_no, conflicts)
            self._log_throttle.warning(type_no, "%s", text)
            return
        text = "no handler here for jobs of type %s: they wait for another node"
        self._log_throttle.warning(type_no, text, self.type_name(type_no, database))
