"""Pausing and resuming, for a client."""

from __future__ import annotations

from datetime import datetime, timedelta

from toc.domain.pauses import HeldTypes, Pause, PauseInfo, Phase, Ramp
from toc.domain.times import action_time_to_ms
from toc.errors import InvalidInput
from toc.runtime.settings import Settings
from toc.store.databases import Database, Databases
from toc.store.pauses import KnownPause, PauseCache, Pauses


class PauseVerbs:
    """The verbs about pauses. `actor`: in whose name, unless a call names another one."""

    def __init__(self, settings: Settings, databases: Databases, actor: str) -> None:
        self._settings, self._databases, self._actor = settings.pauses, databases, actor
        self._pauses = Pauses(databases, settings.pauses.max)

    def pause(
        self,
        target: str,
        until: datetime | timedelta | None,
        reason: str | None,
        actor: str | None,
    ) -> PauseInfo:
        """See `TimeoutCenter.pause`."""
        settings = self._settings
        ramp = Ramp(
            settings.ramp_start, settings.ramp_growth, settings.ramp_step_s, settings.ramp_rate_min
        )

        def edit(before: Pause | None, now_ms: int) -> Pause:
            until_ms = None if until is None else _end_to_ms(until, now_ms)
            is_new = before is None or before.phase_at(now_ms) is Phase.OVER
            from_ms = now_ms if is_new or before is None else before.from_ms
            return Pause(target, from_ms, until_ms, ramp)

        return self._info(self._pauses.change(target, edit, actor or self._actor, reason))

    def resume(
        self, target: str, *, with_ramp: bool, reason: str | None, actor: str | None
    ) -> PauseInfo:
        """See `TimeoutCenter.resume`."""

        cache = PauseCache(self._databases)
        cache.read_all_copies()
        if target not in cache.all():
            now_ms = self._databases.now_ms()
            return PauseInfo(
                target, Phase.OVER.value, now_ms, now_ms, None, actor or self._actor, None
            )

        def edit(before: Pause | None, now_ms: int) -> Pause:
            if before is None:  # its rows were deleted a moment ago
                return Pause(target, now_ms, now_ms)
            if before.phase_at(now_ms) is Phase.OVER:
                return before
            return before.resumed_at(now_ms, with_ramp=with_ramp)

        return self._info(self._pauses.change(target, edit, actor or self._actor, reason))

    def list_pauses(self) -> list[PauseInfo]:
        """See `TimeoutCenter.pauses`."""
        cache = PauseCache(self._databases)
        cache.read_all_copies()
        infos = [self._info(known) for _, known in sorted(cache.all().items())]
        return [info for info in infos if info.state != "over"]

    def is_restricted(self, database: Database, biz_type: str, topic: str, now_ms: int) -> bool:
        """Whether a type is paused or ramps, as one database says. Raises StoreUnavailable."""
        cache = PauseCache(self._databases)
        cache.read_copy(database)
        held = HeldTypes()
        held.replace_targets(
            target
            for target, known in cache.all().items()
            if known.pause.phase_at(now_ms) is not Phase.OVER
        )
        return held.holds(biz_type, topic)

    def _info(self, known: KnownPause) -> PauseInfo:
        pause, row = known
        now_ms = self._databases.now_ms()
        rate = None
        phase = pause.phase_at(now_ms)
        if phase is Phase.RAMPING and pause.ramp is not None and pause.until_ms is not None:
            rate = pause.ramp.rate_at(now_ms - pause.until_ms, row.peak_per_min / 60)
        return PauseInfo(
            pause.target, phase.value, pause.from_ms, pause.until_ms, rate, row.actor, row.reason
        )


def _end_to_ms(until: datetime | timedelta, now_ms: int) -> int:
    """The end of a pause in ms. Raises InvalidInput for an end in the past, and as `action_time_to_ms`."""
    try:
        until_ms = action_time_to_ms(until, now_ms)
    except InvalidInput as error:
        raise InvalidInput("until", until, error.rule) from None
    if until_ms <= now_ms:
        raise InvalidInput("until", until, "must lie in the future")
    return until_ms
