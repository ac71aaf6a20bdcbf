"""How far the limits of a type are used now, for `toc types show`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from toc.domain.declared_type import DeclaredType
from toc.domain.limit_terms import LimitTerms
from toc.errors import TimerUnavailable
from toc.limits.keeper import SETTLE_MS
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.timer.limit_store import LimitStore, LimitUse
from toc.timer.reminders import Reminders


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
        if self.use is None:
            return "limits: each node takes its share, because Redis does not answer"
        if self.terms.per is not None:
            return f"limits: {self.use.partitions} partitions in use"
        parts = []
        if self.terms.concurrency is not None:
            parts.append(f"{self.use.holders} of {self.terms.concurrency} run")
        if self.starts_left is not None:
            parts.append(f"{self.starts_left} of {self.terms.burst} starts left")
        return f"limits: {', '.join(parts)}"


def read_limit_use(settings: Settings, declared: DeclaredType | None) -> TypeLimitUse | None:
    """The use of a type's limits; None: it has none."""
    if declared is None or declared.limit_terms is None:
        return None
    terms, use = declared.limit_terms, None
    if settings.has_timer:
        clock = SystemClock()
        with closing(Reminders.from_settings(settings, clock)) as server:
            store = LimitStore(
                server, settings.namespace, clock, settle_ms=SETTLE_MS,
                partitions_max=settings.limits.partitions,
            )  # fmt: skip
            try:
                use = store.read_use([declared.name])[declared.name]
            except TimerUnavailable:
                use = None
    return TypeLimitUse(terms, use)
