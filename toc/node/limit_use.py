"""How far the limits of a type are used now, for `toc types show`, `toc status` and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from toc.domain.declared_type import DeclaredType
from toc.domain.limit_terms import LimitTerms
from toc.errors import TimerUnavailable, TocError
from toc.limits.keeper import SETTLE_MS
from toc.node.health import HealthPart
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.sentences import join_sentences, sentence
from toc.store.databases import Databases
from toc.store.declared_types import DeclaredTypeCache
from toc.timer.limit_store import LimitStore, LimitUse
from toc.timer.reminders import Reminders

TYPES_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class TypeLimitUse:
    """The limits of a type and their use. `use`: None: Redis does not answer, or is not configured."""

    terms: LimitTerms
    use: LimitUse | None

    @property
    def starts_left(self) -> int | None:
        """Starts that the rate allows at once; None: no rate, partitions, or not known."""
        if self.use is None or self.terms.interval_ms is None or self.terms.per is not None:
            return None
        return max(0, self.terms.burst - -int(-self.use.used_ms // self.terms.interval_ms))

    def as_json(self) -> dict[str, Any]:
        has_parts = self.terms.per is not None
        holds = self.use is not None and self.terms.concurrency is not None and not has_parts
        return {
            "holders": self.use.holders if holds and self.use is not None else None,
            "starts_left": self.starts_left,
            "partitions": self.use.partitions if has_parts and self.use is not None else None,
        }

    @property
    def text(self) -> str:
        """One line for people."""
        return f"limits: {self.words}"

    @property
    def words(self) -> str:
        """The line without its first word."""
        if self.use is None:
            return sentence("each node takes its share, because Redis does not answer")
        if self.terms.per is not None:
            return sentence("{number} partitions in use", number=self.use.partitions)
        parts = []
        if self.terms.concurrency is not None:
            parts.append(
                sentence("{jobs} of {most} run", jobs=self.use.holders, most=self.terms.concurrency)
            )
        if self.starts_left is not None:
            parts.append(
                sentence(
                    "{starts} of {most} starts left",
                    starts=self.starts_left, most=self.terms.burst,
                )
            )  # fmt: skip
        return join_sentences(parts, by_comma=True)


def read_limit_use(settings: Settings, declared: DeclaredType | None) -> TypeLimitUse | None:
    """The use of a type's limits; None: it has none."""
    if declared is None or declared.limit_terms is None:
        return None
    return read_limit_uses(settings, {declared.name: declared.limit_terms})[declared.name]


def read_limit_uses(settings: Settings, types: Mapping[str, LimitTerms]) -> dict[str, TypeLimitUse]:
    """The use of the limits of several types, in one call of Redis."""
    if not settings.has_timer:
        return _read_uses(settings, types, None)
    with closing(Reminders.from_settings(settings, SystemClock())) as server:
        return _read_uses(settings, types, server)


def health_of_limits(
    settings: Settings, databases: Databases, reminders: Reminders | None
) -> Iterator[HealthPart]:
    """Yields a part with the limited types and how far their limits are used; no alarm.

    Jobs that wait for a limit are late all the same, which the part "jobs" says.
    """
    cache = DeclaredTypeCache(databases)
    try:
        cache.read_all_copies()
    except TocError:  # the parts of the databases say so
        return
    types = {name: each.limit_terms for name, each in cache.all().items() if each.limit_terms}
    if not types:
        return
    shown = dict(sorted(types.items())[:TYPES_SHOWN_MAX])
    uses = _read_uses(settings, shown, reminders)
    texts = [
        sentence("{biz_type}: {use}", biz_type=name, use=use.words) for name, use in uses.items()
    ]
    more = len(types) - len(shown)
    texts += [sentence("and {number} more types", number=more)] if more else []
    yield HealthPart("limits", "up", None, join_sentences(texts))


def _read_uses(
    settings: Settings, types: Mapping[str, LimitTerms], server: Reminders | None
) -> dict[str, TypeLimitUse]:
    """The use of each type's limits; without it where Redis does not answer."""
    found: Mapping[str, LimitUse] = {}
    if server is not None:
        store = LimitStore(
            server, settings.namespace, SystemClock(), settle_ms=SETTLE_MS,
            partitions_max=settings.limits.partitions,
        )  # fmt: skip
        with suppress(TimerUnavailable):
            found = store.read_use(list(types))
    return {name: TypeLimitUse(terms, found.get(name)) for name, terms in types.items()}
