"""The pauses, a copy in each database; see docs/adr/0044-pauses.md.

`toc_pause` has a row for each change of a target (toc/store/versioned_copies.py). Only `peak_per_min` of a
row ever changes: each worker adds how many jobs a minute it claimed at most before the pause.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Select, Table, and_, func, or_, select, update

from toc.domain.argument_checks import check_actor, check_reason
from toc.domain.pauses import JOB_PREFIX, PASS_MS, Pause, Phase
from toc.errors import InvalidInput, NotFound, StatementFailed, StoreUnavailable
from toc.store.databases import Database, Databases
from toc.store.schema import DATABASES_CACHED
from toc.store.versioned_copies import (
    CHANGE_TRIES_MAX,
    VersionedCopies,
    read_all_copies,
    rows_missing_in_copy,
)

log = logging.getLogger(__name__)

PASSES_MAX = 500  # that are read at once
_FIRST_MS = 1_704_067_200_000  # 2024: versions of passes count seconds from here
COLUMNS = (
    "target", "version", "settings", "changed_time", "change_id", "actor", "reason", "copied",
    "peak_per_min",
)  # fmt: skip
"""The columns that toc writes. The server writes the account."""

Edit = Callable[[Pause | None, int], Pause]
"""The new pause, given the present one (None: there was none) and the time in ms."""


class PauseRow(NamedTuple):
    """One row of `toc_pause`. peak_per_min: jobs a minute that all workers claimed at most before it."""

    target: str
    version: int
    settings: str
    changed_ms: int
    change_id: str
    actor: str
    reason: str | None
    copied: bool
    peak_per_min: int
    account: str | None = None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> PauseRow:
        """`row`: the values of COLUMNS and the account."""
        made = cls._make(row)
        return made._replace(copied=bool(made.copied))

    @property
    def rank(self) -> tuple[int, int, str]:
        """The newest version of a target has the largest rank."""
        return self.version, self.changed_ms, self.change_id


COPIES = VersionedCopies(lambda database: database.pause, COLUMNS, PauseRow.from_row)


class KnownPause(NamedTuple):
    """A pause, and its row: who made the newest change, and why."""

    pause: Pause
    row: PauseRow


class PauseCache:
    """The newest pauses, as far as the copies were read. Thread-safe; holds no lock during a query."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._lock = threading.Lock()
        self._newest: dict[str, PauseRow] = {}
        self._copies: dict[int, Mapping[str, PauseRow]] = {}
        self._known: Mapping[str, KnownPause] = {}

    def all(self) -> Mapping[str, KnownPause]:
        """The newest pause of each target, also those that are over."""
        return self._known

    @property
    def was_read(self) -> bool:
        """Whether any database has answered."""
        return bool(self._copies)

    def read_copy(self, database: Database) -> None:
        """Reads the newest rows of one database, by one statement.

        Raises StoreUnavailable and StatementFailed.
        """
        rows = _select_newest(database)
        with self._lock:
            self._copies[database.index] = rows
            newest = dict(self._newest)
            for target, row in rows.items():
                known = newest.get(target)
                if known is None or (known.rank, known.peak_per_min) < (row.rank, row.peak_per_min):
                    newest[target] = row
            if newest != self._newest:
                self._newest, self._known = newest, _parse_rows(newest.values())

    def read_all_copies(self) -> list[int]:
        """Reads the copies of all databases, and returns the indexes of those that do not answer.

        Raises StoreUnavailable if none answers.
        """
        return read_all_copies(self._databases, self.read_copy)

    def complete_copy(self, database: Database) -> int:
        """Writes the newest rows that a copy, as it was read, does not have; returns how many.

        Raises StoreUnavailable and StatementFailed.
        """
        with self._lock:
            newest, there = dict(self._newest), dict(self._copies.get(database.index, {}))
        keys = {target: (row.version, row.change_id) for target, row in there.items()}
        missing = rows_missing_in_copy(newest, keys)
        for row in missing:
            COPIES.insert(database, row)
        if missing:
            self.read_copy(database)
        return len(missing)


class Pauses:
    """Changes the pauses in all databases. `pauses_max`: pauses that are not over, at most."""

    def __init__(self, databases: Databases, pauses_max: int) -> None:
        self._databases, self._pauses_max = databases, pauses_max

    def change(self, target: str, edit: Edit, actor: str, reason: str | None = None) -> KnownPause:
        """Writes a change in all databases that answer; returns the pause that holds now.

        A change that changes nothing is not written. The time is that of a database. Raises InvalidInput for
        a pause beyond `pauses_max`, StoreUnavailable if no database answers, and what `edit` raises.
        """
        check_actor(actor)
        check_reason(reason)
        for _ in range(CHANGE_TRIES_MAX):
            cache = PauseCache(self._databases)
            away = cache.read_all_copies()
            now_ms = self._databases.now_ms()
            known = cache.all().get(target)
            before = None if known is None else known.pause
            wanted = edit(before, now_ms)
            if known is not None and wanted == before:
                return known
            if before is None or before.phase_at(now_ms) is Phase.OVER:
                self._check_count(cache, target, now_ms)
            is_going_on = before is not None and before.phase_at(now_ms) is not Phase.OVER
            row = PauseRow(
                target, 1 if known is None else known.row.version + 1, wanted.to_json(), now_ms,
                secrets.token_hex(8), actor, reason, copied=False,
                # The workers measure the peak once, when the pause begins.
                peak_per_min=known.row.peak_per_min if known is not None and is_going_on else 0,
            )  # fmt: skip
            if COPIES.insert_everywhere(self._databases, row, away) is not None:
                return KnownPause(wanted, row)
        rule = f"was changed by others {CHANGE_TRIES_MAX} times meanwhile: try again"
        raise InvalidInput("target", target, rule)

    def _check_count(self, cache: PauseCache, target: str, now_ms: int) -> None:
        others = sum(
            known.pause.phase_at(now_ms) is not Phase.OVER
            for name, known in cache.all().items()
            if name != target
        )
        if others >= self._pauses_max:
            rule = f"{others} pauses are not over, and `pauses.max` allows {self._pauses_max}"
            raise InvalidInput("target", target, rule)


def read_targets_now(databases: Databases) -> set[str]:
    """The targets that are paused or ramping now; empty if no database answers."""
    cache = PauseCache(databases)
    try:
        cache.read_all_copies()
        now_ms = databases.now_ms()
    except (StoreUnavailable, StatementFailed):
        return set()
    known = cache.all().items()
    return {target for target, each in known if each.pause.phase_at(now_ms) is not Phase.OVER}


class Pass(NamedTuple):
    """A pass of a job. place: where the next read goes on behind it."""

    job_id: int
    version: int
    place: tuple[int, str]


def version_of_pass(now_ms: int) -> int:
    """The version of a pass that is written at this time, in ms since 1970 UTC."""
    return (now_ms - _FIRST_MS) // 1000


def write_pass(
    database: Database, job_id: int, now_ms: int, actor: str, reason: str | None
) -> None:
    """Lets one job of this database run through pauses and ramps, for PASS_MS from now.

    Raises StoreUnavailable, denied if this account may not write pauses.
    """
    target = f"{JOB_PREFIX}{job_id}"
    passed = Pause(target, now_ms, now_ms + PASS_MS)
    version = version_of_pass(now_ms)  # a second pass within a second is the same one
    COPIES.insert(
        database,
        PauseRow(
            target, version, passed.to_json(), now_ms, secrets.token_hex(8), actor, reason,
            copied=False, peak_per_min=0,
        ),
    )  # fmt: skip


def read_passes(database: Database, now_ms: int, after: tuple[int, str] = (0, "")) -> list[Pass]:
    """The jobs of this database that have a pass now, the oldest pass first, behind the place `after`.

    At most PASSES_MAX. Raises StoreUnavailable and StatementFailed.
    """
    table = database.pause.c
    after_ms, after_target = after
    query = (
        select(table.target, table.version, table.changed_time)
        .where(
            table.target.like(f"{JOB_PREFIX}%"),
            table.changed_time > now_ms - PASS_MS,
            or_(
                table.changed_time > after_ms,
                and_(table.changed_time == after_ms, table.target > after_target),
            ),
        )
        .order_by(table.changed_time, table.target)
        .limit(PASSES_MAX)
    )
    return [
        Pass(int(target.removeprefix(JOB_PREFIX)), version, (changed_ms, target))
        for target, version, changed_ms in database.select(query)
    ]


def add_peak(database: Database, target: str, version: int, per_min: int) -> None:
    """Adds one worker's largest rate before the pause to a row, if the row is there.

    Raises StoreUnavailable and StatementFailed. A repeated call would add again: the ramp is then steeper.
    """
    table = database.pause
    database.execute(
        update(table)
        .where(table.c.target == target, table.c.version == version)
        .values(peak_per_min=table.c.peak_per_min + per_min)
    )


def delete_old_changes(database: Database, before_ms: int, limit: int) -> int:
    """Deletes up to `limit` changes older than `before_ms` that a newer one replaced, and passes."""
    is_pass = database.pause.c.target.like(f"{JOB_PREFIX}%")
    return COPIES.delete_replaced(database, "changed_time", before_ms, limit, besides=is_pass)


def read_history(databases: Databases, target: str) -> list[PauseRow]:
    """The newest HISTORY_MAX changes of a target, newest first, of all databases that answer.

    Raises NotFound, and StoreUnavailable if no database answers.
    """
    found = COPIES.read_history(databases, target)
    if not found:
        raise NotFound(f"{target!r} was never paused")
    return found


def _parse_rows(rows: Iterable[PauseRow]) -> dict[str, KnownPause]:
    known: dict[str, KnownPause] = {}
    for row in rows:
        try:
            known[row.target] = KnownPause(Pause.from_json(row.target, row.settings), row)
        except InvalidInput as error:
            log.error(  # noqa: TRY400 - the text says all
                "the pause of %r (version %d) cannot be read, so it is paused until it is resumed: %s",
                row.target, row.version, error,
            )  # fmt: skip
            known[row.target] = KnownPause(Pause(row.target, row.changed_ms), row)
    return known


def _select_newest(database: Database) -> dict[str, PauseRow]:
    """The newest row of each target in a database."""
    query = _newest_query(database.pause)
    return {row.target: row for row in map(PauseRow.from_row, database.select(query))}


@lru_cache(maxsize=DATABASES_CACHED)  # every node reads the pauses twice a second
def _newest_query(table: Table) -> Select[Any]:
    newest = (
        select(table.c.target, func.max(table.c.version).label("v"))
        .where(table.c.target.not_like(f"{JOB_PREFIX}%"))
        .group_by(table.c.target)
    )
    found = newest.subquery()
    return COPIES.select_rows(table).join(
        found, and_(table.c.target == found.c.target, table.c.version == found.c.v)
    )
