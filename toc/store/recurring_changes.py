"""What people do with recurring schedules: declare, pause, resume, remove, run and backfill.

A change cancels the occurrence that has not begun, and decides its nominal time anew. An occurrence that
has begun goes on, and the chain continues, by the new definition, when it ends. Each change raises the
version in the row, which names who made it last and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from toc.domain.biz_ids import check_business_id
from toc.domain.recurring import RecurringSchedule, check_schedule_name
from toc.domain.routing import routing_hash_of
from toc.domain.times import datetime_of
from toc.errors import InvalidInput, NotFound
from toc.runtime.settings import Settings
from toc.store import recurring_rows
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases
from toc.store.recurring_chains import ChainJob, MadeOccurrence, RecurringChains
from toc.store.recurring_rows import RecurringRow

BACKFILL_AT_ONCE = 200  # jobs of a backfill in one transaction


class ChangedSchedule(NamedTuple):
    """What a change has done. written: False: nothing was to change. made: the occurrence that it has
    made."""

    row: RecurringRow
    written: bool
    made: MadeOccurrence | None = None


class Backfilled(NamedTuple):
    """What a backfill has done. made: the new jobs. present: nominal times that had a job already."""

    made: Sequence[MadeOccurrence]
    present: int


class BackfillCount(NamedTuple):
    """What a backfill would do now. missing: nominal times that get a job. present: those that had one."""

    missing: int
    present: int


Guard = Callable[[RecurringRow], None]
"""Raises an error if the caller may not change a schedule. Called under the lock of its row."""

Admit = Callable[[RecurringRow, int], None]
"""Raises an error if the caller may not make so many jobs of a schedule now. Called before any is made."""


class RecurringChanges:
    """Changes recurring schedules. schedules_max: in a database. tenant_schedules_max: those of one tenant.
    backfill_max: nominal times of one backfill.

    All methods raise StoreUnavailable, and but `declare` and `read_all` NotFound for an unknown schedule.
    Those that make jobs raise SettingsError where `chains` lacks the keys for their payloads.
    """

    def __init__(
        self,
        databases: Databases,
        database_metadata: DatabaseMetadata,
        chains: RecurringChains,
        *,
        biz_types_max: int,
        schedules_max: int,
        tenant_schedules_max: int,
        backfill_max: int,
        occurrence_days: float,
        guard: Guard = lambda row: None,
        admit: Admit = lambda row, jobs: None,
    ) -> None:
        self._databases, self._types = databases, database_metadata.types
        self._biz_types_max, self._schedules_max = biz_types_max, schedules_max
        self._tenant_schedules_max, self._backfill_max = tenant_schedules_max, backfill_max
        self._occurrence_ms = round(occurrence_days * 86_400_000)
        self._guard, self._admit = guard, admit
        self.chains, self._jobs = chains, chains.jobs

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        databases: Databases,
        database_metadata: DatabaseMetadata,
        chains: RecurringChains,
        guard: Guard = lambda row: None,
        admit: Admit = lambda row, jobs: None,
    ) -> RecurringChanges:
        """With the bounds of the settings."""
        limits = settings.limits
        return cls(
            databases, database_metadata, chains, biz_types_max=limits.biz_types,
            schedules_max=limits.recurring, tenant_schedules_max=limits.recurring_per_tenant,
            backfill_max=limits.backfill,
            occurrence_days=settings.retention.occurrence_days, guard=guard, admit=admit,
        )  # fmt: skip

    def home_of(self, schedule: RecurringSchedule) -> Database:
        """The database of a schedule and of its jobs."""
        return self._database_of(schedule.name, schedule.tenant)

    # ---- reads

    def read(self, name: str, tenant: str | None = None) -> RecurringRow:
        """The row of a schedule."""
        database = self._database_of(name, tenant)
        rows = recurring_rows.select_rows(database, tenant=tenant, name=name)
        if not rows:
            raise schedule_not_found(name)
        self._guard(rows[0])
        return rows[0]

    def read_all(
        self, database_index: int | None = None, owner: str | None = None
    ) -> list[RecurringRow]:
        """The schedules of one database, or (None) of all, by tenant and name.

        owner: only those of this tenant, "" for those without one.
        """
        asked = self._databases.all if database_index is None else [self._databases[database_index]]
        rows = [
            row
            for database in asked
            for row in recurring_rows.select_rows(database, owner=owner, limit=self._schedules_max)
        ]
        return sorted(rows, key=lambda row: (row.tenant or "", row.name))

    # ---- changes

    def declare(
        self, schedule: RecurringSchedule, actor: str, reason: str | None = None
    ) -> ChangedSchedule:
        """Declares a schedule, or changes its definition. A paused one stays paused.

        Raises InvalidInput beyond `schedules_max` and `biz_types_max`.
        """
        database = self._database_of(schedule.name, schedule.tenant)
        numbers = self._types.get_or_create_numbers(
            (schedule.biz_type,), database, self._biz_types_max
        )
        type_no, now_ms = numbers[schedule.biz_type], _now_ms(database)
        definition = schedule.to_json()

        def write(
            connection: Connection, row: RecurringRow | None, job: ChainJob | None
        ) -> ChangedSchedule:
            if row is None:
                return self._insert(connection, database, schedule, type_no, now_ms, actor, reason)
            self._guard(row)
            if row.definition == definition:
                return ChangedSchedule(row, written=False)
            row = self.chains.release_job(
                connection, database, row, job, "its recurring schedule was changed", actor
            )
            row = row._replace(
                definition=definition, type_no=type_no, cursor_ms=min(row.cursor_ms, now_ms)
            )
            return self._write(connection, database, row, job, now_ms, actor, reason)

        try:
            return self.chains.run_locked(database, schedule.tenant, schedule.name, write)
        except IntegrityError:  # another process has declared it at the same time
            return self.chains.run_locked(database, schedule.tenant, schedule.name, write)

    def pause(
        self, name: str, tenant: str | None, actor: str, reason: str | None = None
    ) -> ChangedSchedule:
        """Pauses a schedule: no occurrence begins, nominal times that pass are left out."""
        database = self._database_of(name, tenant)
        now_ms = _now_ms(database)

        def write(
            connection: Connection, row: RecurringRow | None, job: ChainJob | None
        ) -> ChangedSchedule:
            if row is None:
                raise schedule_not_found(name)
            self._guard(row)
            if row.paused_ms is not None:
                return ChangedSchedule(row, written=False)
            row = self.chains.release_job(
                connection, database, row, job, "its recurring schedule was paused", actor
            )
            row = row._replace(paused_ms=now_ms)
            return self._write(connection, database, row, job, now_ms, actor, reason)

        return self.chains.run_locked(database, tenant, name, write)

    def resume(
        self, name: str, tenant: str | None, actor: str, reason: str | None = None
    ) -> ChangedSchedule:
        """Resumes a paused schedule from now on."""
        database = self._database_of(name, tenant)
        now_ms = _now_ms(database)

        def write(
            connection: Connection, row: RecurringRow | None, job: ChainJob | None
        ) -> ChangedSchedule:
            if row is None:
                raise schedule_not_found(name)
            self._guard(row)
            if row.paused_ms is None:
                return ChangedSchedule(row, written=False)
            row = row._replace(paused_ms=None, cursor_ms=now_ms)
            return self._write(connection, database, row, job, now_ms, actor, reason)

        return self.chains.run_locked(database, tenant, name, write)

    def remove(
        self, name: str, tenant: str | None, actor: str, reason: str | None = None
    ) -> ChangedSchedule:
        """Removes a schedule. An occurrence that has begun goes on."""
        database = self._database_of(name, tenant)

        def write(
            connection: Connection, row: RecurringRow | None, job: ChainJob | None
        ) -> ChangedSchedule:
            if row is None:
                raise schedule_not_found(name)
            self._guard(row)
            text = "its recurring schedule was removed"
            self.chains.release_job(
                connection,
                database,
                row,
                job,
                text if reason is None else f"{text}: {reason}",
                actor,
            )
            recurring_rows.delete_row(database, connection, row)
            return ChangedSchedule(row, written=True)

        return self.chains.run_locked(database, tenant, name, write)

    # ---- jobs outside the chain

    def run(self, name: str, tenant: str | None = None) -> MadeOccurrence:
        """Makes one more job of a schedule, due now, also of a paused one. At most one in a second."""
        database = self._database_of(name, tenant)
        row, now_ms = self.read(name, tenant), _now_ms(database)
        self._admit(row, 1)
        new = self.chains.new_extra_job(row, now_ms // 1000 * 1000, now_ms)
        (inserted,) = self._jobs.insert([new], "keep")
        return MadeOccurrence(inserted.job_id, row.schedule.biz_type, inserted.due_ms)

    def backfill(self, name: str, tenant: str | None, start_ms: int, end_ms: int) -> Backfilled:
        """Makes the jobs of the nominal times in [start_ms, end_ms] that have none, all due now.

        Times after now are left out. Raises InvalidInput for a range with more than `backfill_max` times.
        """
        database = self._database_of(name, tenant)
        row, now_ms = self.read(name, tenant), _now_ms(database)
        times_ms = self._times_of_backfill(row, start_ms, end_ms, now_ms)
        if times_ms:
            self._admit(row, len(times_ms))
        made: list[MadeOccurrence] = []
        for start in range(0, len(times_ms), BACKFILL_AT_ONCE):
            some = times_ms[start : start + BACKFILL_AT_ONCE]
            made += self._backfill_times(database, name, tenant, some, now_ms)
        return Backfilled(made, len(times_ms) - len(made))

    def count_backfill(
        self, name: str, tenant: str | None, start_ms: int, end_ms: int
    ) -> BackfillCount:
        """Counts what `backfill` would do now, and writes nothing. Raises InvalidInput as it does."""
        database = self._database_of(name, tenant)
        row = self.read(name, tenant)
        times_ms = self._times_of_backfill(row, start_ms, end_ms, _now_ms(database))
        present = database.run_read(
            lambda connection: recurring_rows.select_made_times(database, connection, row, times_ms)
        )
        return BackfillCount(len(times_ms) - len(present), len(present))

    def _times_of_backfill(
        self, row: RecurringRow, start_ms: int, end_ms: int, now_ms: int
    ) -> list[int]:
        if start_ms <= now_ms - self._occurrence_ms:
            text = (
                "must not lie further back than `retention.occurrence_days`: which times had jobs is "
                "not known any more"
            )
            raise InvalidInput("start", datetime_of(start_ms).isoformat(), text)
        times_ms: list[int] = []
        for each in row.schedule.recurrence.times_ms(start_ms - 1, min(end_ms, now_ms)):
            if len(times_ms) == self._backfill_max:
                text = f"has more than `limits.backfill` ({self._backfill_max}) nominal times"
                raise InvalidInput("range", f"{start_ms} to {end_ms}", text)
            times_ms.append(each)
        return times_ms

    def _backfill_times(
        self,
        database: Database,
        name: str,
        tenant: str | None,
        times_ms: Sequence[int],
        now_ms: int,
    ) -> list[MadeOccurrence]:
        def write(
            connection: Connection, row: RecurringRow | None, job: ChainJob | None
        ) -> list[MadeOccurrence]:
            if row is None:
                raise schedule_not_found(name)
            self._guard(row)
            present = recurring_rows.select_made_times(database, connection, row, times_ms)
            missing = [each for each in times_ms if each not in present]
            new = [self.chains.new_extra_job(row, each, now_ms) for each in missing]
            if not new:
                return []
            ids = [
                inserted.job_id
                for inserted in self._jobs.insert_on_connection(connection, database, new)
            ]
            recurring_rows.insert_occurrences(
                database, connection, row, zip(missing, ids, strict=True), now_ms
            )
            made = row._replace(made=row.made + len(new))
            recurring_rows.update_row(database, connection, made)
            return [MadeOccurrence(job_id, row.schedule.biz_type, now_ms) for job_id in ids]

        return self.chains.run_locked(database, tenant, name, write)

    # ---- inside

    def _insert(
        self,
        connection: Connection,
        database: Database,
        schedule: RecurringSchedule,
        type_no: int,
        now_ms: int,
        actor: str,
        reason: str | None,
    ) -> ChangedSchedule:
        if recurring_rows.count_rows(database, connection) >= self._schedules_max:
            rule = (
                f"is new, and its database has `limits.recurring` ({self._schedules_max}) recurring "
                "schedules already"
            )
            raise InvalidInput("name", schedule.name, rule)
        tenant, most = schedule.tenant, self._tenant_schedules_max
        if tenant is not None and recurring_rows.count_rows(database, connection, tenant) >= most:
            rule = (
                f"is new, and its tenant has `limits.recurring_per_tenant` ({most}) recurring schedules "
                "in its database already"
            )
            raise InvalidInput("name", schedule.name, rule)
        row = RecurringRow(
            schedule.tenant, schedule.name, 1, schedule.to_json(), type_no, now_ms, None, None, 0, 0, None,
            actor, reason,
        )  # fmt: skip
        recurring_rows.insert_row(database, connection, row)
        made = self.chains.make_next(connection, database, row, now_ms, now_ms)
        return ChangedSchedule(row, written=True, made=made)

    def _write(
        self,
        connection: Connection,
        database: Database,
        row: RecurringRow,
        job: ChainJob | None,
        now_ms: int,
        actor: str,
        reason: str | None,
    ) -> ChangedSchedule:
        """Writes a changed row, and its next occurrence if none lives. `job`: as it was before the
        change."""
        row = row._replace(version=row.version + 1, actor=actor, reason=reason)
        recurring_rows.update_row(database, connection, row)
        made = None
        lives = row.job_id is not None and job is not None and job.status.live
        if row.paused_ms is None and not lives:
            made = self.chains.make_next(connection, database, row, row.cursor_ms, now_ms)
        return ChangedSchedule(row, written=True, made=made)

    def _database_of(self, name: str, tenant: str | None) -> Database:
        business = check_business_id(check_schedule_name(name), tenant)
        shard = self._databases.routing.shard_of_hash(routing_hash_of(business.number))
        return self._databases.database_of_shard(shard)


def _now_ms(database: Database) -> int:
    known = database.server_clock.believed_now_ms()
    return database.now_ms() if known is None else known


def schedule_not_found(name: str) -> NotFound:
    """The error for a schedule that does not exist, or that the caller may not see."""
    return NotFound(f"there is no recurring schedule {name!r}")
