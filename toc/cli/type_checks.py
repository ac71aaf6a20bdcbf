"""The checks of `toc doctor` of types: their numbers, their declarations, and the handlers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from toc.cli.check_results import CheckResult, result_ok_or_fail, result_ok_or_warn
from toc.domain.declared_type import DeclaredType
from toc.handlers.registry import Registry
from toc.node.type_settings import describe_differences
from toc.runtime.settings import Settings
from toc.store.biz_types import describe_type_conflict, read_known_types
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypeCache


def check_types(
    settings: Settings, databases: Databases, handlers: Registry | None
) -> Iterator[CheckResult]:
    """Checks types and handlers. A database that does not answer is the finding of another check."""
    types: set[str] | None = None
    with suppress(Exception):
        names, conflicts, _ = read_known_types(databases)
        types = {*names.values(), *(n for by_no in conflicts.values() for n in by_no.values())}
        found = "; ".join(describe_type_conflict(number, conflicts) for number in sorted(conflicts))
        advice = "give one of the two types another name: docs/how-to/type-conflict.md"
        found = found or f"{len(types)} types, no number has two names"
        yield result_ok_or_fail(not conflicts, "biz_types", "numbers", found, advice)
    declared: Mapping[str, DeclaredType] = {}
    with suppress(Exception):
        cache = DeclaredTypeCache(databases)
        cache.read_all_copies()
        declared = cache.all()
        yield from _check_declarations(settings, cache)
    if handlers is not None:
        yield from _check_handler_coverage(types, handlers, declared)
        yield _check_refused_handlers(handlers, declared)


def _check_declarations(settings: Settings, cache: DeclaredTypeCache) -> Iterator[CheckResult]:
    """Whether the declared types can be read, and are as toc.toml has them."""
    faults = "; ".join(f"{name}: {text}" for name, text in cache.faults.items())
    advice = "no job of these types runs: declare them again (`toc types declare`), or update toc"
    found = faults or f"{len(cache.all())} declared types"
    yield result_ok_or_fail(not faults, "biz_types", "declarations", found, advice)
    differing = describe_differences(settings, cache.all())
    advice = "`toc types apply` declares what toc.toml says"
    found = "; ".join(differing.values()) or "none"
    yield result_ok_or_warn(not differing, "biz_types", "differences of toc.toml", found, advice)


def _check_handler_coverage(
    types: set[str] | None, handlers: Registry, declared: Mapping[str, DeclaredType]
) -> Iterator[CheckResult]:
    """Whether there is a handler for each type that needs one. `types`: all biz_types; None: not known."""
    names = sorted(spec.biz_type for spec in handlers)
    yield CheckResult("handlers", "registered", "ok", ", ".join(names) or "one for every type")
    if handlers.handler_of_every_type is not None or types is None:
        return
    others = {name for name, each in declared.items() if each.mode != "handler"}
    missing = sorted(types - set(names) - others)
    found = ", ".join(missing) or "none"
    advice = "fine when other workers handle them; otherwise their jobs wait"
    yield result_ok_or_warn(not missing, "handlers", "types without one", found, advice)


def _check_refused_handlers(
    handlers: Registry, declared: Mapping[str, DeclaredType]
) -> CheckResult:
    """Whether a handler's type is declared for others: then the handler does not run."""
    others = {name: each.mode for name, each in declared.items() if each.mode != "handler"}
    refused = sorted(spec.biz_type for spec in handlers if spec.biz_type in others)
    found = ", ".join(f"{name} is declared {others[name]}" for name in refused) or "none"
    advice = "these handlers do not run: remove them, or `toc types set NAME --handler`"
    return result_ok_or_fail(not refused, "handlers", "refused", found, advice)
