"""The verbs for recurring schedules: `toc.recurring.pause("nightly")`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from toc.center.job_spec import CheckedJob
from toc.domain.argument_checks import check_actor, check_integer, check_reason
from toc.domain.biz_ids import check_business_id, check_tenant
from toc.domain.recurring import Recurring, check_schedule_name, make_schedule
from toc.domain.times import MS_MAX, action_time_to_ms, datetime_of
from toc.errors import InvalidInput, NotFound, TocError
from toc.store.recurring_chains import MadeOccurrence, RecurringChains
from toc.store.recurring_changes import (
    Admit,
    BackfillCount,
    ChangedSchedule,
    Guard,
    RecurringChanges,
)
from toc.store.recurring_rows import RecurringRow
from toc.timer.reminder import Reminder

if TYPE_CHECKING:
    from toc.center.connections import Connections
    from toc.domain.recurrence import Gap
    from toc.domain.recurring import Overlap
    from toc.runtime.settings import Settings

NEXT_TIMES_MAX = 1000


class RecurringOptions(TypedDict, total=False):
    """The options of a recurring schedule; type checkers read them here."""

    cron: str | None
    every: timedelta | float | str | None
    rrule: str | None
    tz: str
    biz_type: str | None
    attribute: dict[str, Any] | None
    start: datetime | None
    end: datetime | None
    gap: Gap
    overlap: Overlap
    catch_up: timedelta | float | str
    jitter: timedelta | float | str
    tenant: str | None
    priority: int


class BackfillResult(NamedTuple):
    """What a backfill has done. job_ids: of the new jobs. present: nominal times that had a job already."""

    job_ids: list[int]
    present: int


class RecurringVerbs:
    """The recurring schedules of a client. Thread-safe.

    All verbs raise StoreUnavailable; those that name a schedule raise NotFound if there is none; those that
    make jobs raise SettingsError if their payloads are encrypted and this process lacks the keys. `actor`
    (default: the client's) and `reason` are kept with the schedule, and stand in the events of jobs that
    the change cancels.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        connect: Callable[[], Connections],
        guard: Guard = lambda row: None,
        admit: Admit = lambda row, jobs: None,
    ) -> None:
        self._settings, self._connect = settings, connect
        self._guard, self._admit = guard, admit

    def with_guard(self, guard: Guard, admit: Admit = lambda row, jobs: None) -> RecurringVerbs:
        """The same verbs, for a caller who may not use every schedule, nor make any number of jobs."""
        return RecurringVerbs(self._settings, self._connect, guard, admit)

    def add(
        self,
        name: str,
        *,
        actor: str | None = None,
        reason: str | None = None,
        **options: Unpack[RecurringOptions],
    ) -> Recurring:
        """Declares a recurring schedule, or changes it. See `TimeoutCenter.recur`."""
        limit = self._settings().limits.attribute_bytes
        schedule = make_schedule(name, **options, attribute_bytes_max=limit)
        _check_words(actor, reason)
        state = self._connect()
        changes = self._changes(state)
        job = CheckedJob(schedule.business, schedule.biz_type, 0, schedule.attribute, None)
        state.payload_checks.check_job(changes.home_of(schedule), job)
        done = changes.declare(schedule, actor or state.jobs.actor, reason)
        return self._changed(state, schedule.name, schedule.tenant, done)

    def get(self, name: str, *, tenant: str | None = None, next_times: int = 1) -> Recurring:
        """A schedule as it stands now, with its next nominal times. Raises NotFound."""
        check_integer("next_times", next_times, 0, NEXT_TIMES_MAX)
        _check_key(name, tenant)
        state = self._connect()
        row = self._changes(state).read(name, tenant)
        return recurring_of_row(row, self._now_ms(state), next_times)

    def list(self) -> list[Recurring]:
        """All schedules, by tenant and name, with the next nominal time of each.

        A schedule that this release cannot read, as a newer one wrote it, is left out.
        """
        return self._list(None, None)

    def list_of_tenant(self, tenant: str | None, database_index: int) -> builtins.list[Recurring]:
        """The schedules of one tenant (None: of none) in one database, as far as the guard lets through.

        Those of other tenants are not read, and their rules cost no time.
        """
        return self._list(database_index, tenant or "")

    def _list(self, database_index: int | None, owner: str | None) -> builtins.list[Recurring]:
        found, state = [], self._connect()
        for row in self._changes(state).read_all(database_index, owner):
            try:
                self._guard(row)
                found.append(recurring_of_row(row, self._now_ms(state), 1))
            except (InvalidInput, NotFound):
                continue
        return found

    def pause(
        self, name: str, *, tenant: str | None = None, reason: str | None = None,
        actor: str | None = None,
    ) -> Recurring:  # fmt: skip
        """Pauses a schedule: its job that has not begun is cancelled, and no other is made until
        `resume`."""
        _check_key(name, tenant, actor, reason)
        state = self._connect()
        done = self._changes(state).pause(name, tenant, actor or state.jobs.actor, reason)
        return self._changed(state, name, tenant, done)

    def resume(
        self, name: str, *, tenant: str | None = None, reason: str | None = None,
        actor: str | None = None,
    ) -> Recurring:  # fmt: skip
        """Resumes a paused schedule from now on; times that passed meanwhile are left to `backfill`."""
        _check_key(name, tenant, actor, reason)
        state = self._connect_to_make_jobs(name, tenant)
        done = self._changes(state).resume(name, tenant, actor or state.jobs.actor, reason)
        return self._changed(state, name, tenant, done)

    def remove(
        self, name: str, *, tenant: str | None = None, reason: str | None = None,
        actor: str | None = None,
    ) -> None:  # fmt: skip
        """Removes a schedule, and cancels its job if it has not begun."""
        _check_key(name, tenant, actor, reason)
        state = self._connect()
        self._changes(state).remove(name, tenant, actor or state.jobs.actor, reason)

    def run(self, name: str, *, tenant: str | None = None) -> int:
        """Makes one more job of a schedule, due now, and returns its id; also of a paused schedule.

        Its nominal time is now. The chain of the schedule goes on as if nothing had happened.
        """
        _check_key(name, tenant)
        state = self._connect_to_make_jobs(name, tenant)
        made = self._changes(state).run(name, tenant)
        self._arm(state, [made])
        return made.job_id

    def backfill(
        self, name: str, start: datetime, end: datetime, *, tenant: str | None = None
    ) -> BackfillResult:
        """Makes the jobs of all nominal times from start to end (both included) that had none, due now.

        Times after now are left out. Raises InvalidInput for more than `limits.backfill` times, and for a
        start before the records of made times begin (`retention.occurrence_days`).
        """
        start_ms, end_ms = _check_backfill(name, tenant, start, end)
        state = self._connect_to_make_jobs(name, tenant)
        done = self._changes(state).backfill(name, tenant, start_ms, end_ms)
        self._arm(state, done.made)
        return BackfillResult([made.job_id for made in done.made], done.present)

    def count_backfill(
        self, name: str, start: datetime, end: datetime, *, tenant: str | None = None
    ) -> BackfillCount:
        """Counts the jobs that `backfill` would make now. Raises InvalidInput as it does."""
        start_ms, end_ms = _check_backfill(name, tenant, start, end)
        return self._changes(self._connect()).count_backfill(name, tenant, start_ms, end_ms)

    # ---- inside

    def _connect_to_make_jobs(self, name: str, tenant: str | None) -> Connections:
        """The connections, when it was read which types have a codec: no payload may be written plain."""
        state = self._connect()
        business = check_business_id(check_schedule_name(name), tenant)
        state.payload_checks.read_if_old(state.database_of_business(business))
        return state

    def _changes(self, state: Connections) -> RecurringChanges:
        chains = RecurringChains(state.databases, state.jobs, state.payload_checks.codec_of)
        return RecurringChanges.from_settings(
            state.settings, state.databases, state.database_metadata, chains,
            guard=self._guard, admit=self._admit,
        )  # fmt: skip

    def _changed(
        self, state: Connections, name: str, tenant: str | None, done: ChangedSchedule
    ) -> Recurring:
        if done.made is not None:
            self._arm(state, [done.made])
        row = self._changes(state).read(name, tenant)
        return recurring_of_row(row, self._now_ms(state), 1)

    def _now_ms(self, state: Connections) -> int:
        return state.database_now_ms(state.databases[0])

    def _arm(self, state: Connections, made: Sequence[MadeOccurrence]) -> None:
        if made:
            # Without it the first call of a client would not know the time, and no job would be near. If the
            # database does not answer any more, the loader finds the jobs: they are committed.
            with suppress(TocError):
                state.database_now_ms(state.database_of_job(made[0].job_id))
        state.arm_near_jobs((each.biz_type, Reminder(each.due_ms, each.job_id)) for each in made)


def recurring_of_row(row: RecurringRow, now_ms: int, next_times: int) -> Recurring:
    """The schedule of a row, with its nominal times after now. Raises InvalidInput if it cannot be read."""
    schedule = row.schedule
    times = islice(schedule.recurrence.times_ms(now_ms, MS_MAX), next_times)
    return Recurring(
        schedule,
        None if row.paused_ms is None else datetime_of(row.paused_ms),
        row.job_id,
        None if row.nominal_ms is None else datetime_of(row.nominal_ms),
        [datetime_of(each) for each in times],
        row.made,
        row.skipped,
        row.version,
        row.actor,
        row.reason,
    )


def _check_key(name: object, tenant: object, actor: object = None, reason: object = None) -> None:
    check_schedule_name(name)
    check_tenant(tenant)
    _check_words(actor, reason)


def _check_words(actor: object, reason: object) -> None:
    check_reason(reason)
    if actor is not None:
        check_actor(actor)


def _check_backfill(name: object, tenant: object, start: object, end: object) -> tuple[int, int]:
    _check_key(name, tenant)
    start_ms, end_ms = _moment_ms("start", start), _moment_ms("end", end)
    if end_ms < start_ms:
        raise InvalidInput("end", end, "must not lie before the start")
    return start_ms, end_ms


def _moment_ms(field: str, value: object) -> int:
    if not isinstance(value, datetime):
        raise InvalidInput(field, value, "must be an aware datetime")
    return action_time_to_ms(value, 0)
